//! Sessions of several ranks, each a thread. The ranks exchange values, and every rank gets the
//! error of a failed rank.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use regrow::coordination::{Coordinator, Folder, OnWait, Session, SessionOptions};
use regrow::location::Location;
use regrow::{Error, ErrorKind, Monitor, Result};

use crate::common::ranks::{LONG, begin, nothing_is_left, on_ranks, places, target, within};

#[test]
fn ranks_gather_broadcast_and_agree() {
    for (at, _folder) in places("agree") {
        on_ranks(5, |rank| {
            let session = begin(&at, rank, 5, &target(), LONG).unwrap();
            let gathered = session.gather("index", format!("from {rank}").into()).unwrap();
            let all: Vec<Bytes> = (0..5).map(|rank| format!("from {rank}").into()).collect();
            assert_eq!(gathered, (rank == 0).then_some(all));
            let value = session.broadcast("plan", || {
                assert_eq!(rank, 0);
                Ok("the plan".into())
            });
            assert_eq!(value.unwrap(), "the plan");
            assert_eq!(session.agree("committed", Ok(rank)).unwrap(), rank);
            let error = session.barrier("committed").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "a phase is used once: {error}");
            session.finish();
        });
        nothing_is_left(&at);
    }
}

#[test]
fn a_posted_value_is_received_by_every_rank_that_asks() {
    for (at, _folder) in places("post") {
        let given = on_ranks(4, |rank| {
            let session = begin(&at, rank, 4, &target(), LONG)?;
            // One after the other, as the ranks of a host take turns.
            let mut seen = Vec::new();
            for turn in 0..4 {
                if turn == rank {
                    session.post("turn", &format!("of {rank}, after {seen:?}").into())?;
                } else {
                    seen.push(session.receive("turn", turn)?);
                }
            }
            for absent in [rank, 4] {
                let error = session.receive("turn", absent).unwrap_err();
                assert!(error.to_string().contains("the other rank does not exist"), "{error}");
            }
            session.agree(
                "end",
                session.post("turn", &Bytes::new()).map_or(Ok(()), |()| Err(Error::invalid("twice"))),
            )?;
            session.finish();
            Ok(seen)
        });
        let given: Vec<Vec<Bytes>> = given.into_iter().collect::<Result<_>>().unwrap();
        assert_eq!(given[0][0], "of 1, after [b\"of 0, after []\"]", "{at}");
        nothing_is_left(&at);
    }
}

#[test]
fn timeout_names_missing_ranks_and_failures() {
    for (at, _folder) in places("post-missing") {
        let given = on_ranks(3, |rank| -> Result<()> {
            let session =
                begin(&at, rank, 3, &target(), if rank == 0 { Duration::from_secs(3) } else { LONG })?;
            match rank {
                0 => session.receive("turn", 1).map(drop),
                1 => session.agree("elsewhere", Ok(())),
                _ => session.receive("turn", 1).map(drop),
            }
        });
        let first = given[0].as_ref().unwrap_err();
        assert_eq!(first.kind(), ErrorKind::TimedOut);
        assert!(first.what().contains("rank 1 has not come to phase `turn`"), "{at}: {first}");
        for other in &given[1..] {
            let error = other.as_ref().unwrap_err();
            assert!(error.what().contains("rank 0 failed in phase `turn`"), "{at}: {error}");
        }
    }
}

#[test]
fn an_error_of_one_rank_is_an_error_of_all() {
    for (at, _folder) in places("error") {
        for failing in 0..3 {
            let began = Instant::now();
            let errors = on_ranks(3, |rank| {
                // A quick rank may have failed before a slow one knows that the attempt has begun.
                let session = match begin(&at, rank, 3, &target(), LONG) {
                    Ok(session) => session,
                    Err(error) => return error,
                };
                let full = Error::new(ErrorKind::StorageFull, "cannot write: no space").in_file("/data/x");
                let result = if rank == failing { Err(full) } else { Ok(()) };
                let error = session.agree("written", result).unwrap_err();
                let after = session.barrier("after").unwrap_err();
                assert_eq!(after.kind(), ErrorKind::InvalidArgument, "{after}");
                error
            });
            for (rank, error) in errors.into_iter().enumerate() {
                assert_eq!(error.kind(), ErrorKind::StorageFull);
                let text = error.to_string();
                let others = format!("rank {failing} failed in phase `written`: cannot write: no space");
                assert_eq!(text.starts_with(&others), rank != failing, "{text}");
                assert!(text.contains("/data/x"), "{text}");
            }
            assert!(began.elapsed() < LONG / 2, "a process has waited until its time-out");
        }
    }
}

/// The rank that fails first deletes the temporary files. That a third rank then misses one is not
/// the reason.
#[test]
fn a_file_that_is_missing_after_a_failure_is_reported_as_that_failure() {
    for (at, _folder) in places("missing") {
        for (kind, reported) in [
            (ErrorKind::NotFound, "rank 1 failed in phase `written`: no space"),
            (ErrorKind::PermissionDenied, "its own"),
        ] {
            let (have_begun, has_failed) = (Barrier::new(3), Barrier::new(2));
            let errors = on_ranks(3, |rank| {
                let session = begin(&at, rank, 3, &target(), LONG).unwrap();
                have_begun.wait();
                if rank == 2 {
                    has_failed.wait();
                }
                let result = match rank {
                    0 => Ok(()),
                    1 => Err(Error::new(ErrorKind::StorageFull, "no space")),
                    _ => Err(Error::new(kind, "its own")),
                };
                let error = session.agree("written", result).unwrap_err();
                if rank == 1 {
                    has_failed.wait();
                }
                error
            });
            assert_eq!(errors[1].what(), "no space");
            assert_eq!(errors[2].what(), reported, "{at}");
        }
    }
}

#[test]
fn an_error_elsewhere_ends_every_wait() {
    let folder = tempfile::tempdir().unwrap();
    let at = Location::local(folder.path());
    let kinds = on_ranks(4, |rank| {
        let session = match begin(&at, rank, 4, &target(), LONG) {
            Ok(session) => session,
            Err(error) => return error.to_string(),
        };
        match rank {
            // Waits for all; waits for rank 0; leaves without a word; makes an error of its own.
            0 => session.gather("index", Bytes::new()).unwrap_err().to_string(),
            1 => session.broadcast("plan", || Ok(Bytes::new())).unwrap_err().to_string(),
            2 => String::from("rank 2 failed in phase `leave`: it has left before its end"),
            _ => session.barrier("plan").unwrap_err().to_string(),
        }
    });
    for text in kinds {
        assert!(text.starts_with("rank 2 failed in phase `leave`"), "{text}");
    }
}

#[test]
fn an_error_of_rank_0_ends_waits_for_its_value() {
    let folder = tempfile::tempdir().unwrap();
    let at = Location::local(folder.path());
    let errors = on_ranks(3, |rank| {
        begin(&at, rank, 3, &target(), LONG)
            .and_then(|session| session.broadcast("plan", || Err(Error::corrupt("the old index is damaged"))))
            .unwrap_err()
    });
    assert_eq!(errors[0].to_string(), "the old index is damaged");
    for error in &errors[1..] {
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(error.to_string(), "rank 0 failed in phase `plan`: the old index is damaged");
    }
}

#[test]
fn a_missing_rank_is_named_in_time() {
    for (at, _folder) in places("never") {
        let began = Instant::now();
        let told = Mutex::new(Vec::new());
        let told = Arc::new(told);
        let errors = on_ranks(3, |rank| {
            let rank = [0, 1, 3][rank];
            let service = Arc::new(Folder::new(at.clone(), rank, 4).unwrap());
            let tell = Arc::clone(&told);
            let options = SessionOptions {
                on_wait: Some(OnWait::new(move |waiting| tell.lock().unwrap().push((rank, waiting.clone())))),
                tell_after: Duration::from_millis(300),
                ..within(Duration::from_secs(2))
            };
            Session::begin(service, &target(), "save", options).unwrap_err()
        });
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            assert!(error.to_string().contains("rank 2 has not come to phase `begin` within"), "{error}");
            assert!(error.to_string().contains("/data/run/step_100"), "{error}");
        }
        assert!(began.elapsed() < LONG / 2);
        let told = told.lock().unwrap();
        let of_rank_0: Vec<_> =
            told.iter().filter(|(rank, _)| *rank == 0).map(|(_, waiting)| waiting).collect();
        assert_eq!(of_rank_0.first().unwrap().missing, [2], "{told:?}");
        assert!(of_rank_0.first().unwrap().to_string().starts_with("waits for rank 2 in phase `begin`"));
    }
}

#[test]
fn a_stuck_rank_is_named_and_gets_the_error() {
    for (at, _folder) in places("stuck") {
        let errors = on_ranks(3, |rank| {
            let session = begin(&at, rank, 3, &target(), Duration::from_secs(3)).unwrap();
            if rank == 1 {
                std::thread::sleep(Duration::from_secs(7));
            }
            session.agree("written", Ok(())).unwrap_err()
        });
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            assert!(error.to_string().contains("rank 1 has not come to phase `written`"), "{error}");
        }
    }
}

#[test]
fn ranks_without_rank_0_name_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = Location::local(folder.path());
    let errors = on_ranks(2, |rank| begin(&at, rank + 1, 3, &target(), Duration::from_secs(1)).unwrap_err());
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("rank 0 has not come to phase `begin`"), "{error}");
    }
}

#[test]
fn after_a_failed_attempt_the_next_one_succeeds() {
    for (at, _folder) in places("again") {
        // Rank 1 fails before it begins, and its second call is the others' first; rank 2 is late
        // for the first attempt.
        let attempts = on_ranks(3, |rank| {
            let mut attempts = 0;
            loop {
                attempts += 1;
                if rank == 1 && attempts == 1 {
                    continue;
                }
                if rank == 2 && attempts == 1 {
                    std::thread::sleep(Duration::from_secs(3));
                }
                let timeout = if attempts == 1 { Duration::from_secs(2) } else { LONG };
                let Ok(session) = begin(&at, rank, 3, &target(), timeout) else { continue };
                if session.agree("written", Ok(())).is_err() {
                    continue;
                }
                assert_eq!(session.broadcast("plan", || Ok("x".into())).unwrap(), "x");
                session.finish();
                return attempts;
            }
        });
        assert!(attempts[0] > 1, "{attempts:?}");
        nothing_is_left(&at);
    }
}

#[test]
fn a_failed_attempt_does_not_disturb_the_next() {
    for (at, _folder) in places("half-way") {
        for failing in 0..3 {
            on_ranks(3, |rank| {
                let result = if rank == failing { Err(Error::invalid("no")) } else { Ok(()) };
                let failed = begin(&at, rank, 3, &target(), LONG).and_then(|session| {
                    session.gather("index", "old".into())?;
                    session.agree("written", result)
                });
                failed.unwrap_err();
            });
        }
        on_ranks(3, |rank| {
            let session = begin(&at, rank, 3, &target(), LONG).unwrap();
            let gathered = session.gather("index", "new".into()).unwrap();
            assert_eq!(gathered, (rank == 0).then(|| vec![Bytes::from("new"); 3]));
            session.agree("written", Ok(())).unwrap();
            session.finish();
        });
        nothing_is_left(&at);
    }
}

#[test]
fn ranks_meet_again_at_the_same_target() {
    for (at, _folder) in places("saved-twice") {
        on_ranks(3, |rank| {
            for round in 0..5 {
                let session = begin(&at, rank, 3, &target(), LONG).unwrap();
                let value = session.broadcast("plan", || Ok(format!("{round}").into())).unwrap();
                assert_eq!(value, format!("{round}"));
                session.finish();
            }
        });
        nothing_is_left(&at);
    }
}

#[test]
fn files_of_a_killed_job_are_ignored() {
    for (at, _folder) in places("killed") {
        // Killed while they met: in one job of the same size, and in one that was larger; rank 2
        // had come to neither.
        for size in [3, 5] {
            std::thread::scope(|scope| {
                let monitors = [Monitor::new(), Monitor::new()];
                for (rank, monitor) in monitors.iter().enumerate() {
                    let (at, monitor) = (at.clone(), monitor.clone());
                    scope.spawn(move || {
                        let gone = Arc::new(Gone(Folder::new(at, rank, size).unwrap(), AtomicUsize::new(0)));
                        let options = SessionOptions { monitor, ..within(LONG) };
                        Session::begin(gone, &target(), "save", options).unwrap_err()
                    });
                }
                std::thread::sleep(Duration::from_millis(300));
                monitors.iter().for_each(Monitor::cancel);
            });
            assert!(!at.store().list(b"").unwrap().is_empty());
        }
        on_ranks(3, |rank| {
            // The others find what is left before rank 0 comes.
            std::thread::sleep(Duration::from_millis(if rank == 0 { 500 } else { 0 }));
            let session = begin(&at, rank, 3, &target(), LONG).unwrap();
            session.barrier("written").unwrap();
            session.finish();
        });
    }
}

/// A process that is killed while it meets the others: it never removes anything, and never says
/// that it has failed.
#[derive(Debug)]
struct Gone(Folder, AtomicUsize);

impl Coordinator for Gone {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn size(&self) -> usize {
        self.0.size()
    }
    fn put_if_absent(&self, key: &str, value: Bytes) -> Result<bool> {
        if key.contains("failed") && self.1.fetch_add(1, Ordering::Relaxed) > 0 || key.ends_with("failed/0") {
            return Ok(true);
        }
        self.0.put_if_absent(key, value)
    }
    fn get(&self, key: &str, wait: Duration) -> Result<Option<Bytes>> {
        self.0.get(key, wait)
    }
    fn remove(&self, _key: &str) -> Result<()> {
        Ok(())
    }
}

#[test]
fn sessions_of_other_targets_purposes_and_prefixes_do_not_meet() {
    for (at, _folder) in places("at-once") {
        let kinds = [
            ("save", "/data/1", "regrow"),
            ("save", "/data/2", "regrow"),
            ("restore", "/data/1", "regrow"),
            ("save", "/data/1", "evaluators"),
        ];
        on_ranks(8, |thread| {
            let (rank, (purpose, target, prefix)) = (thread / 4, kinds[thread % 4]);
            let service = Arc::new(Folder::new(at.clone(), rank, 2).unwrap());
            let options = SessionOptions { prefix: prefix.to_owned(), ..within(LONG) };
            let session = Session::begin(service, &Location::local(target), purpose, options).unwrap();
            let mine = format!("{purpose} {target} {prefix}");
            let value = session.broadcast("plan", || Ok(mine.clone().into())).unwrap();
            assert_eq!(value, mine);
            session.finish();
        });
        nothing_is_left(&at);
    }
}

#[test]
fn a_cancelled_rank_ends_all() {
    let folder = tempfile::tempdir().unwrap();
    let at = Location::local(folder.path());
    let errors = on_ranks(3, |rank| {
        let service = Arc::new(Folder::new(at.clone(), rank, 3).unwrap());
        let monitor = Monitor::new();
        let options = SessionOptions { monitor: monitor.clone(), ..within(LONG) };
        let session = Session::begin(service, &target(), "save", options).unwrap();
        if rank == 2 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(200));
                    monitor.cancel();
                });
                session.broadcast("plan", || Ok(Bytes::new())).unwrap_err()
            })
        } else if rank == 0 {
            session.gather("late", Bytes::new()).unwrap_err()
        } else {
            session.broadcast("plan", || Ok(Bytes::new())).unwrap_err()
        }
    });
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    }
}

#[test]
fn storage_that_is_not_shared_is_an_error_and_leaves_no_files() {
    for (at, _folder) in places("shared") {
        let data = tempfile::tempdir().unwrap();
        let target = Location::local(data.path().join("runs/step_1"));
        let shared = on_ranks(3, |rank| {
            let session = begin(&at, rank, 3, &target, LONG).unwrap();
            let shared = session.shares_storage(&target);
            session.finish();
            shared
        });
        assert!(shared.iter().all(Result::is_ok), "{shared:?}");
        let own = on_ranks(4, |rank| {
            let session = begin(&at, rank, 4, &target, Duration::from_secs(6)).unwrap();
            // The same path on each machine, and another disk behind it on two of them.
            let disk = data.path().join(["a", "a", "b", "c"][rank]);
            std::fs::create_dir_all(&disk).unwrap();
            let error = session.shares_storage(&Location::local(disk.join("runs/step_1"))).unwrap_err();
            session.finish();
            error
        });
        for error in own {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            let what = "the folder is not shared: ranks 2, 3 do not see the files of rank 0";
            assert!(error.to_string().starts_with(what), "{error}");
        }
        let mut left: Vec<_> =
            std::fs::read_dir(data.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left.len(), 3, "{left:?}");
        left.retain(|folder| std::fs::read_dir(folder).unwrap().next().is_some());
        assert_eq!(left, Vec::<std::path::PathBuf>::new());
        nothing_is_left(&at);
    }
}

#[test]
fn ranks_meet_in_a_bucket() {
    for (at, _folder) in places("bucket-shared") {
        on_ranks(2, |rank| {
            let target = at.join("runs/step_1");
            let session = begin(&at.join("meet"), rank, 2, &target, LONG).unwrap();
            session.shares_storage(&target).unwrap();
            session.finish();
        });
        nothing_is_left(&at);
    }
}
