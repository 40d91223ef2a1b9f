//! Leases of readers, the lock of the writer, and waiting for new steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use regrow::ErrorKind;
use regrow::location::{Location, ToLocation};
use regrow::manager::{DeleteOptions, Deleted, Hooks, Manager, ManagerOptions, SaveStep, Steps, TrainingRun};
use regrow_store::StoreExt;
use serde_json::json;

use super::{keep_latest, options, places, save, tree};
use crate::common::buckets::buckets;

#[test]
fn a_lease_keeps_a_step_and_ends_with_its_reader() {
    for (root, _folder) in places("lease") {
        let steps = Steps::new(&root, None).unwrap();
        save(&steps, 1);
        save(&steps, 2);
        let lease = steps.lease(1).unwrap();
        assert_eq!((lease.step().number, steps.leased().unwrap()), (1, vec![1]));
        assert!(steps.tidy(2, &keep_latest(1)).unwrap().deletions.is_empty());
        assert_eq!(
            *steps.delete(&[1], &DeleteOptions::default()).unwrap()[0].outcome.as_ref().unwrap(),
            Deleted::Leased
        );
        drop(lease);
        assert!(steps.leased().unwrap().is_empty());
        // A lease that was not renewed for long, one of a reader that was killed just now, and a
        // file that is no lease.
        let record = |until: f64| format!(r#"{{"step": 1, "until": {until}, "holder": "x:1"}}"#);
        let store = root.store();
        store.put(b".regrow/leases/1~old", record(1.0).into()).unwrap();
        store.put(b".regrow/leases/1~bad", "{".into()).unwrap();
        assert!(steps.leased().unwrap().is_empty(), "{root}");
        store.put(b".regrow/leases/1~new", record(4e9).into()).unwrap();
        assert_eq!(steps.leased().unwrap(), [1]);
        store.delete(b".regrow/leases/1~new").unwrap();
        // A reader that comes while the step is being deleted.
        store.put(b".regrow/deleting/1", r#"{"since": 4e9, "holder": "x:1"}"#.into()).unwrap();
        assert_eq!(steps.lease(1).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(steps.leased().unwrap().is_empty());
        // ... by one who was killed at it long ago.
        store.put(b".regrow/deleting/1", r#"{"since": 1, "holder": "x:1"}"#.into()).unwrap();
        assert_eq!(steps.lease(1).unwrap().step().number, 1);
        assert!(steps.lease(7).is_err());
    }
}

#[test]
fn a_second_writer_is_refused_and_a_dead_one_gives_way() {
    for (root, _folder) in places("lock") {
        let steps = Steps::new(&root, None).unwrap();
        let lock = steps.lock().unwrap();
        let error = steps.lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert!(error.help_text().unwrap().contains("read_only"), "{error}");
        drop(lock);
        drop(steps.lock().unwrap());
    }
    // In a bucket: a lease that holds, one of a process of this machine that has ended, and one
    // that was not renewed.
    let root = "memory://manager-leases/run".to_location().unwrap();
    let steps = Steps::new(&root, None).unwrap();
    // What a process of this machine writes.
    let own = || root.store().get(b".regrow/writer.json", regrow_store::ByteRange::Full).unwrap().unwrap();
    let lock = steps.lock().unwrap();
    let own: serde_json::Value = serde_json::from_slice(&own()).unwrap();
    drop(lock);
    let machine = own["machine"].as_str().unwrap();
    assert!(machine.len() > 36, "the start of the kernel is in it: {machine}");
    let dead = {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    };
    // Another machine may have the same name, and the same numbers of processes.
    for (until, holder, machine, is_free) in [
        (4e9, "elsewhere:1".to_owned(), "", false),
        (4e9, format!("here:{dead}"), "another start", false),
        (4e9, format!("here:{dead}"), machine, true),
        (1.0, "elsewhere:1".to_owned(), "", true),
    ] {
        let record = json!({ "nonce": "n", "until": until, "holder": holder, "machine": machine });
        root.store().put(b".regrow/writer.json", record.to_string().into()).unwrap();
        let taken = steps.lock();
        assert_eq!(taken.is_ok(), is_free, "{holder} {until} {taken:?}");
        if let Err(error) = taken {
            assert!(error.to_string().contains(&holder), "{error}");
        }
    }
}

#[test]
fn a_writer_that_has_lost_its_lease_writes_no_more() {
    for root in storages_with_leases("lost") {
        let options = ManagerOptions { save: options("regrow"), ..ManagerOptions::default() };
        let manager = Manager::new(&root, options).unwrap();
        let save = |step| manager.save(step, &tree(1), &SaveStep::default());
        assert!(save(1).unwrap());
        manager.wait().unwrap();
        // It was removed: it is written again.
        let (store, lease) = (root.store(), b".regrow/writer.json");
        store.delete(lease).unwrap();
        assert!(save(2).unwrap(), "{root}");
        manager.wait().unwrap();
        assert!(store.len_bytes(lease).unwrap().is_some());
        // Another one has taken the place of a process that was stopped for long.
        let other = json!({ "nonce": "other", "until": 4e9, "holder": "elsewhere:7" });
        store.put(lease, other.to_string().into()).unwrap();
        let error = save(3).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{root}");
        assert!(error.to_string().contains("elsewhere:7"), "{error}");
        assert_eq!(manager.delete(1, false).unwrap_err().kind(), ErrorKind::AlreadyExists);
        drop(manager);
        assert_eq!(Steps::new(&root, None).unwrap().numbers().unwrap(), [1, 2], "{root}");
        assert!(store.len_bytes(lease).unwrap().is_some(), "the other one's lease stays");
    }
}

/// Places where the writer has a lease, and no lock of the system.
fn storages_with_leases(test: &str) -> Vec<Location> {
    let memory = format!("memory://manager-{test}/run").to_location().unwrap();
    std::iter::once(memory).chain(buckets(test).into_iter().map(|bucket| bucket.join("run"))).collect()
}

#[test]
fn waiting_ends_with_a_step_or_a_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("run");
    let steps = Steps::new(&root, None).unwrap();
    let looks = Arc::new(AtomicU64::new(0));
    let (writer, counted) = (steps.clone(), Arc::clone(&looks));
    let look = move || match counted.fetch_add(1, Ordering::Relaxed) {
        0 => Ok(()),
        // They come between two looks.
        step @ 1..=2 => {
            save(&writer, step);
            Ok(())
        }
        _ => Err(regrow::Error::new(ErrorKind::Cancelled, "enough")),
    };
    let hooks = Hooks { while_waiting: Some(Arc::new(look)), ..Hooks::default() };
    let reader = ManagerOptions { read_only: true, hooks, ..ManagerOptions::default() };
    let reader = TrainingRun::new(&root, reader).unwrap();
    let (short, long) = (Duration::from_millis(1), Duration::from_secs(60));
    assert_eq!(reader.wait_for_new(None, Duration::ZERO, short).unwrap(), None);
    assert_eq!(reader.wait_for_new(Some(1), long, short).unwrap(), Some(2));
    assert_eq!((looks.load(Ordering::Relaxed), steps.leased().unwrap()), (3, vec![2]));
    let stopped = reader.wait_for_new(Some(2), long, short);
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(steps.leased().unwrap().is_empty());
}

/// A slow reader pauses at any of its requests. During the pause newer steps are saved and all
/// steps that it has seen are deleted.
#[cfg(feature = "cloud")]
#[test]
fn a_reader_lists_again_if_all_steps_are_deleted() {
    use regrow::location::StorageOptions;
    use regrow_testkit::object_server::ObjectServer;

    let server = ObjectServer::start().unwrap();
    server.create_bucket("gone");
    let steps = |client: &str| {
        let options = StorageOptions::new().with("token", client).with("endpoint_url", server.endpoint());
        let root = Location::with_options(std::path::Path::new("gs://gone/run"), &options).unwrap();
        Steps::new(&root, None).unwrap()
    };
    let writer = steps("ya29.writer");
    let mut newest = 3;
    (1..=newest).for_each(|number| save(&writer, number));
    let reads: [fn(&Steps) -> Vec<u64>; 2] = [
        |steps| steps.numbers().unwrap(),
        |steps| steps.latest().unwrap().iter().map(|step| step.number).collect(),
    ];
    let mut stood_still = 0;
    for read in reads {
        for at in 0.. {
            let reader = steps("ya29.reader");
            let stop = server.stop("ya29.reader", at);
            let reading = std::thread::spawn(move || read(&reader));
            let has_stopped = loop {
                if stop.wait(Duration::from_millis(1)) {
                    break true;
                }
                if reading.is_finished() {
                    break false;
                }
            };
            if has_stopped {
                stood_still += 1;
                (newest + 1..=newest + 3).for_each(|number| save(&writer, number));
                let done =
                    writer.delete(&[newest - 2, newest - 1, newest], &DeleteOptions::default()).unwrap();
                assert!(done.iter().all(|deletion| deletion.outcome.is_ok()));
                newest += 3;
            }
            stop.go_on();
            let found = reading.join().unwrap();
            assert!(!found.is_empty(), "request {at}, up to step {newest}");
            if !has_stopped {
                break;
            }
        }
    }
    assert!(stood_still > 8, "{stood_still}");
}
