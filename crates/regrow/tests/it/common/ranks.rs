//! Ranks that are threads, and the places through which they exchange messages.

use std::sync::Arc;
use std::time::Duration;

use regrow::Result;
use regrow::coordination::{Folder, Session, SessionOptions};
use regrow::location::{Location, ToLocation};

/// Long enough for a machine that is busy with other tests.
pub const LONG: Duration = Duration::from_secs(60);

/// A place on each kind of storage.
pub fn places(test: &str) -> Vec<(Location, Option<tempfile::TempDir>)> {
    let folder = tempfile::tempdir().unwrap();
    let mut places = vec![
        (Location::local(folder.path().join("meet")), Some(folder)),
        (format!("memory://{test}/meet").to_location().unwrap(), None),
    ];
    // One kind of bucket is as slow as the other, and a rank asks no more of it.
    places
        .extend(super::buckets::buckets(test).into_iter().take(1).map(|bucket| (bucket.join("meet"), None)));
    places
}

pub fn target() -> Location {
    Location::local("/data/run/step_100")
}

pub fn within(timeout: Duration) -> SessionOptions {
    SessionOptions { timeout, ..SessionOptions::default() }
}

pub fn begin(
    at: &Location,
    rank: usize,
    size: usize,
    target: &Location,
    timeout: Duration,
) -> Result<Session> {
    let folder = Arc::new(Folder::new(at.clone(), rank, size)?);
    Session::begin(folder, target, "save", within(timeout))
}

/// What each rank's thread gives.
pub fn on_ranks<T: Send>(size: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..size).map(|rank| scope.spawn(move || work(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

pub fn nothing_is_left(at: &Location) {
    assert_eq!(at.store().list(b"").unwrap(), Vec::<Vec<u8>>::new(), "{at}");
}
