//! Services that carry the messages of ranks: folders on disks and in buckets, and services with
//! fewer or more functions.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use regrow::coordination::{Coordinator, Folder, Session, Single};
use regrow::location::Location;
use regrow::{Error, ErrorKind, Result};

use crate::common::ranks::{LONG, nothing_is_left, on_ranks, places, target, within};

/// A service that takes values of a few bytes only, and may give many in one call.
#[derive(Debug)]
struct Narrow(Folder, bool);

impl Coordinator for Narrow {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn size(&self) -> usize {
        self.0.size()
    }
    fn put_if_absent(&self, key: &str, value: Bytes) -> Result<bool> {
        assert!(!value.is_empty() && value.len() <= 1000, "{key}: {} bytes", value.len());
        self.0.put_if_absent(key, value)
    }
    fn get(&self, key: &str, wait: Duration) -> Result<Option<Bytes>> {
        self.0.get(key, wait)
    }
    fn get_many(&self, keys: &[String]) -> Result<Option<Vec<Option<Bytes>>>> {
        if self.1 { self.0.get_many(keys) } else { Ok(None) }
    }
    fn remove(&self, key: &str) -> Result<()> {
        self.0.remove(key)
    }
    fn value_len_max_bytes(&self) -> usize {
        1000
    }
}

/// A service that knows who lives.
#[derive(Debug)]
struct Listening(Folder, Vec<usize>);

impl Coordinator for Listening {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn size(&self) -> usize {
        self.0.size()
    }
    fn put_if_absent(&self, key: &str, value: Bytes) -> Result<bool> {
        self.0.put_if_absent(key, value)
    }
    fn get(&self, key: &str, wait: Duration) -> Result<Option<Bytes>> {
        self.0.get(key, wait)
    }
    fn remove(&self, key: &str) -> Result<()> {
        self.0.remove(key)
    }
    fn live(&self) -> Result<Option<Vec<usize>>> {
        Ok(Some(self.1.clone()))
    }
}

#[test]
fn a_value_is_put_once_and_got_by_all() {
    for (at, _folder) in places("put-once") {
        let won: Vec<bool> = on_ranks(8, |rank| {
            let service = Folder::new(at.clone(), rank, 8).unwrap();
            let won = service.put_if_absent("a/b", format!("rank {rank}").into()).unwrap();
            let value = service.get("a/b", LONG).unwrap().unwrap();
            assert_eq!(won, value == format!("rank {rank}"), "{at}");
            won
        });
        assert_eq!(won.iter().filter(|&&won| won).count(), 1, "{at}");
        let service = Folder::new(at.clone(), 0, 8).unwrap();
        service.put_if_absent("a/c/d", "x".into()).unwrap();
        service.put_if_absent("ab", "x".into()).unwrap();
        service.remove("a").unwrap();
        assert_eq!(service.get("a/b", Duration::ZERO).unwrap(), None);
        assert_eq!(service.get("a/c/d", Duration::ZERO).unwrap(), None);
        assert_eq!(service.get("ab", Duration::ZERO).unwrap().unwrap(), "x");
        service.remove("ab").unwrap();
        nothing_is_left(&at);
    }
}

#[test]
fn many_values_are_got_in_one_call() {
    for (at, _folder) in places("many") {
        let service = Folder::new(at.clone(), 0, 2).unwrap();
        let keys: Vec<String> = (0..50).map(|rank| format!("x/from/{rank}/0")).collect();
        assert_eq!(service.get_many(&keys).unwrap(), Some(vec![None; 50]), "{at}");
        let value = |at: usize| Bytes::from(format!("value {at}"));
        for (at, key) in keys.iter().enumerate().step_by(2) {
            assert!(service.put_if_absent(key, value(at)).unwrap());
        }
        service.put_if_absent("x/from-others/1/0", "no".into()).unwrap();
        let expected = (0..50).map(|at| (at % 2 == 0).then(|| value(at))).collect();
        assert_eq!(service.get_many(&keys).unwrap(), Some(expected), "{at}");
        service.remove("x").unwrap();
        nothing_is_left(&at);
    }
}

#[test]
fn values_of_any_length_pass_through_a_narrow_service() {
    let folder = tempfile::tempdir().unwrap();
    let at = Location::local(folder.path());
    let value = |rank: usize| Bytes::from(vec![rank as u8 + 1; [0, 1, 992, 993, 100_000][rank]]);
    for gives_many in [false, true] {
        on_ranks(5, |rank| {
            let narrow = Arc::new(Narrow(Folder::new(at.clone(), rank, 5).unwrap(), gives_many));
            let session = Session::begin(narrow, &target(), "save", within(LONG)).unwrap();
            let gathered = session.gather("index", value(rank)).unwrap();
            assert_eq!(gathered, (rank == 0).then(|| (0..5).map(value).collect()));
            assert_eq!(session.broadcast("plan", || Ok(value(4))).unwrap(), value(4));
            session.finish();
        });
        nothing_is_left(&at);
    }
}

/// A service that counts its gets, and says how many values its calls for many asked for.
#[derive(Debug)]
struct Counting(Folder, Arc<AtomicUsize>, Arc<Mutex<Vec<usize>>>);

impl Coordinator for Counting {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn size(&self) -> usize {
        self.0.size()
    }
    fn put_if_absent(&self, key: &str, value: Bytes) -> Result<bool> {
        self.0.put_if_absent(key, value)
    }
    fn get(&self, key: &str, wait: Duration) -> Result<Option<Bytes>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.get(key, wait)
    }
    fn get_many(&self, keys: &[String]) -> Result<Option<Vec<Option<Bytes>>>> {
        self.2.lock().unwrap().push(keys.len());
        self.0.get_many(keys)
    }
    fn remove(&self, key: &str) -> Result<()> {
        self.0.remove(key)
    }
}

#[test]
fn rank_0_asks_for_the_values_of_all_others_in_one_call() {
    const SIZE: usize = 40;
    let folder = tempfile::tempdir().unwrap();
    let at = Location::local(folder.path());
    let (have_put, gets, calls) = (Barrier::new(SIZE), Arc::default(), Arc::default());
    on_ranks(SIZE, |rank| {
        let folder = Folder::new(at.clone(), rank, SIZE).unwrap();
        let service: Arc<dyn Coordinator> = match rank {
            0 => Arc::new(Counting(folder, Arc::clone(&gets), Arc::clone(&calls))),
            _ => Arc::new(folder),
        };
        let session = Session::begin(service, &target(), "save", within(LONG)).unwrap();
        if rank > 0 {
            session.gather("index", format!("{rank}").into()).unwrap();
            have_put.wait();
            session.finish();
            return;
        }
        have_put.wait();
        gets.store(0, Ordering::Relaxed);
        calls.lock().unwrap().clear();
        let gathered = session.gather("index", "0".into()).unwrap().unwrap();
        assert_eq!(gathered, (0..SIZE).map(|rank| rank.to_string()).collect::<Vec<_>>());
        assert_eq!(*calls.lock().unwrap(), [SIZE - 1], "what is there is asked for once");
        assert_eq!(gets.load(Ordering::Relaxed), 0);
        session.finish();
    });
}

#[test]
fn a_rank_that_has_ended_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let at = Location::local(folder.path());
    let began = Instant::now();
    let errors = on_ranks(2, |rank| {
        let service = Arc::new(Listening(Folder::new(at.clone(), rank, 3).unwrap(), vec![0, 1]));
        Session::begin(service, &target(), "save", within(LONG)).unwrap_err()
    });
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("rank 2 has ended before phase `begin`"), "{error}");
    }
    assert!(began.elapsed() < LONG / 2);
}

#[test]
fn a_job_of_one_process_sends_no_messages() {
    let session = Session::begin(Arc::new(Single::new()), &target(), "save", within(LONG)).unwrap();
    assert_eq!(session.gather("index", "x".into()).unwrap().unwrap(), ["x"]);
    assert_eq!(session.broadcast("plan", || Ok("y".into())).unwrap(), "y");
    assert_eq!(session.agree("no", Err::<(), _>(Error::invalid("no"))).unwrap_err().to_string(), "no");
    session.shares_storage(&target()).unwrap();
    session.finish();
}

#[test]
fn names_that_cannot_be_keys_are_refused() {
    let single = || Arc::new(Single::new());
    let error = Session::begin(single(), &target(), "a/b", within(LONG)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let session = Session::begin(single(), &target(), "save", within(LONG)).unwrap();
    assert_eq!(session.barrier("").unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(Folder::new(target(), 3, 3).is_err());
}
