//! A manager in each process of a job. All processes make the same decisions. Rank 0 lists the
//! steps, deletes steps and has the lock.
//!
//! The ranks are threads that exchange messages in memory.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use regrow::coordination::{Folder, Job};
use regrow::engine::LoadOptions;
use regrow::location::{Location, ToLocation};
use regrow::manager::{
    Keep, Manager, ManagerOptions, Preemption, SaveIf, SaveStep, SaveWhen, StepName, StepNames, TidyOptions,
};
use regrow::tree::{Leaf, Tree};
use regrow::{ErrorKind, Result, SaveOptions};

use super::{damage, options, tree};
use crate::common::ranks::{LONG, on_ranks};

const RANKS: usize = 3;

/// The options of one rank, whose meeting place is in memory.
fn of_rank(test: &str, rank: usize) -> ManagerOptions {
    let meet = format!("memory://manager-job-{test}/meet").to_location().unwrap();
    let coordinator = Arc::new(Folder::new(meet, rank, RANKS).unwrap());
    let job = Job { timeout: LONG, ..Job::new(coordinator) };
    let save = SaveOptions { job: Some(job), ..options("regrow") };
    ManagerOptions { save, ..ManagerOptions::default() }
}

fn lines(log: &Path) -> Vec<serde_json::Value> {
    fs::read_to_string(log).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn all_ranks_save_and_restore_the_step_of_rank_0() {
    let folder = tempfile::tempdir().unwrap();
    let root = Location::local(folder.path().join("run"));
    let told = on_ranks(RANKS, |rank| -> Result<_> {
        // What the others would decide by themselves counts for nothing.
        let own = SaveIf::new(move |moment| rank > 0 || moment.step % 2 == 0);
        let tidy = TidyOptions { keep: Keep::Latest(2), verify: true, ..TidyOptions::default() };
        let names = (rank == 0).then(|| StepNames::one(StepName::new(Some("step"), Some(3)).unwrap()));
        let log = Some(folder.path().join(format!("log{rank}")));
        let options =
            ManagerOptions { save_when: SaveWhen::If(own), tidy, names, log, ..of_rank("same", rank) };
        let manager = Manager::new(&root, options)?;
        let mut told = Vec::new();
        for step in 0..5 {
            told.push(manager.save(step, &tree(step as u8), &SaveStep::default())?);
        }
        manager.wait()?;
        let value: Tree<Leaf> = manager.restore_step(2, &LoadOptions::default())?;
        assert_eq!(value.leaves().len(), 2);
        let error = manager.restore_step::<Tree<Leaf>>(1, &LoadOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        // Of another history since step 2 was restored.
        told.push(manager.should_save(4, false)?);
        manager.roll_back(2)?;
        told.push(manager.should_save(4, false)?);
        Ok((told, manager.steps().numbers()?))
    });
    for told in told {
        let saved = [true, false, true, false, true, true, true];
        assert_eq!(told.unwrap(), (saved.to_vec(), vec![2]));
    }
    assert!(folder.path().join("run/step_002").is_dir(), "all name steps as rank 0 does");
    let events = |rank: usize| -> Vec<String> {
        let name = |line: &serde_json::Value| format!("{} {}", line["event"].as_str().unwrap(), line["step"]);
        lines(&folder.path().join(format!("log{rank}"))).iter().map(name).collect()
    };
    assert_eq!(events(0), ["save 0", "save 2", "save 4", "delete 0", "restore 2", "delete 4"]);
    assert_eq!(events(1), ["save 0", "save 2", "save 4", "restore 2"]);
}

#[test]
fn a_second_job_is_refused_in_all_its_processes() {
    let root = "memory://manager-job-refused/run".to_location().unwrap();
    let alone = Manager::new(&root, ManagerOptions::default()).unwrap();
    let refused = on_ranks(RANKS, |rank| Manager::new(&root, of_rank("refused", rank)).unwrap_err());
    assert!(refused.iter().all(|error| error.kind() == ErrorKind::AlreadyExists), "{refused:?}");
    drop(alone);
    on_ranks(RANKS, |rank| {
        let manager = Manager::new(&root, of_rank("refused", rank)).unwrap();
        assert!(manager.save(1, &tree(1), &SaveStep::default()).unwrap());
        manager.wait().unwrap();
        // Rank 0 has the lock until all are done.
        if rank == 0 {
            let second = Manager::new(&root, ManagerOptions::default());
            assert_eq!(second.unwrap_err().kind(), ErrorKind::AlreadyExists);
        }
        manager.should_save(1, false).unwrap();
    });
    assert_eq!(Manager::new(&root, ManagerOptions::default()).unwrap().steps().numbers().unwrap(), [1]);
}

#[test]
fn a_signal_at_any_rank_has_all_save_the_same_step() {
    let folder = tempfile::tempdir().unwrap();
    let root = Location::local(folder.path().join("run"));
    let saved = on_ranks(RANKS, |rank| {
        let flag = Preemption::new();
        let options = ManagerOptions {
            save_when: SaveWhen::Every(1000),
            preemption: Some(flag.clone()),
            log: Some(folder.path().join(format!("log{rank}"))),
            ..of_rank("signal", rank)
        };
        let manager = Manager::new(&root, options).unwrap();
        let mut saved = Vec::new();
        for step in 1..5 {
            if (rank, step) == (2, 2) {
                flag.set();
            }
            if manager.save(step, &tree(1), &SaveStep::default()).unwrap() {
                // It is there when `save` returns.
                assert_eq!(manager.steps().numbers().unwrap(), [step]);
                saved.push(step);
            }
        }
        assert!(flag.is_set(), "all know of it");
        saved
    });
    assert_eq!(saved, vec![vec![2]; RANKS], "once, at the next question");
    for rank in 0..RANKS {
        let lines = lines(&folder.path().join(format!("log{rank}")));
        assert_eq!((lines.len(), &lines[0]["preempted"]), (1, &true.into()), "{lines:?}");
    }
}

#[test]
fn a_step_that_one_rank_cannot_restore_no_rank_restores() {
    let folder = tempfile::tempdir().unwrap();
    let root = Location::local(folder.path().join("run"));
    let told = on_ranks(RANKS, |rank| {
        let manager = Manager::new(&root, of_rank("restore", rank)).unwrap();
        for step in [1, 2] {
            manager.save(step, &tree(step as u8), &SaveStep::default()).unwrap();
        }
        manager.wait().unwrap();
        if rank == 0 {
            damage(&folder.path().join("run/2/default"));
        }
        let restored = manager.restore::<Tree<Leaf>>(&LoadOptions::default()).unwrap();
        let passed: Vec<u64> = restored.passed_over.iter().map(|passed| passed.step).collect();
        // One that asks for what is in no step ends all of them.
        let load = |options| manager.restore::<Tree<Leaf>>(&options).map(|restored| restored.step.number);
        let mut options = LoadOptions::default();
        if rank == 1 {
            options.open.item = Some("absent".to_owned());
        }
        (restored.step.number, passed, load(options).unwrap_err())
    });
    for (rank, (number, passed, error)) in told.into_iter().enumerate() {
        assert_eq!((number, passed), (1, vec![2]));
        let is_own = !error.to_string().contains("another process cannot restore");
        assert_eq!(is_own, rank == 1, "{error}");
        assert!(error.to_string().contains("absent"), "{error}");
    }
}

#[test]
fn a_step_whose_items_one_rank_cannot_restore_no_rank_restores() {
    let folder = tempfile::tempdir().unwrap();
    let root = Location::local(folder.path().join("run"));
    let told = on_ranks(RANKS, |rank| {
        let manager = Manager::new(&root, of_rank("restore-items", rank)).unwrap();
        for step in [1, 2] {
            manager.save(step, &tree(step as u8), &SaveStep::default()).unwrap();
        }
        manager.wait().unwrap();
        let restored = manager.restore_items(|step| {
            let leased = manager.steps().leased()?;
            match (rank, step.location().name_text().as_str()) {
                (1, "2") => Err(regrow::Error::corrupt("a bad disk")),
                _ => Ok((step.item("default")?.load(&LoadOptions::default())?.len(), leased)),
            }
        });
        let restored = restored.unwrap();
        let passed: Vec<u64> = restored.passed_over.iter().map(|passed| passed.step).collect();
        (restored.step.number, restored.value, passed)
    });
    for (rank, (number, (leaves, leased), passed)) in told.into_iter().enumerate() {
        assert_eq!((number, leaves, passed), (1, 2, vec![2]));
        // One keeps it for all.
        assert!(rank > 0 || leased == [1], "{leased:?}");
    }
}

#[test]
fn a_failed_save_of_one_rank_is_an_error_of_all_before_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let root = Location::local(folder.path().join("run"));
    on_ranks(RANKS, |rank| {
        // Rank 0 has no place for its records.
        let log = (rank == 0).then(|| folder.path().join("no/such/folder/log"));
        let manager = Manager::new(&root, ManagerOptions { log, ..of_rank("failure", rank) }).unwrap();
        let save = |step| manager.save(step, &tree(1), &SaveStep::default());
        assert!(save(1).unwrap());
        let error = save(2).unwrap_err();
        assert!(error.to_string().contains("cannot add a record to the log"), "{error}");
        assert!(save(2).unwrap(), "the next call goes on");
        // A place that is taken: no process waits for another, and all may go on.
        if rank == 0 {
            fs::create_dir_all(folder.path().join("run/3/notes")).unwrap();
        }
        save(3).unwrap_err();
        let error = save(3).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        manager.wait().ok();
        assert_eq!(manager.steps().numbers().unwrap(), [1, 2]);
    });
}
