//! Functions of the program that a manager calls.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use regrow::manager::{Hooks, Keep, Manager, ManagerOptions, SaveStep, SaveWhen, TidyOptions, TrainingRun};
use regrow::{Error, ErrorKind};

use super::{options, places, tree};

fn with(hooks: Hooks, save_when: SaveWhen, keep: Keep) -> ManagerOptions {
    let tidy = TidyOptions { keep, ..TidyOptions::default() };
    ManagerOptions { hooks, save_when, tidy, save: options("regrow"), ..ManagerOptions::default() }
}

#[test]
fn the_program_may_save_and_keep_more_than_the_policies() {
    for (root, _folder) in places("hooks") {
        let hooks = Hooks {
            also_saves: Some(Arc::new(|step| Ok(step == 7))),
            also_keeps: Some(Arc::new(|steps| {
                Ok(steps.numbers()?.into_iter().filter(|step| *step == 7).collect())
            })),
            ..Hooks::default()
        };
        let manager = Manager::new(&root, with(hooks, SaveWhen::Every(10), Keep::Latest(1))).unwrap();
        let saved: Vec<u64> = (1..31)
            .filter(|step| manager.save(*step, &tree(*step as u8), &SaveStep::default()).unwrap())
            .collect();
        manager.wait().unwrap();
        assert_eq!(saved, [7, 10, 20, 30], "{root}");
        assert_eq!(manager.steps().numbers().unwrap(), [7, 30], "{root}");
    }
}

#[test]
fn an_error_of_a_hook_is_the_next_call_s_with_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&told);
    let on_saved = move |step: u64, report: &regrow::SaveReport| {
        kept.lock().unwrap().push((step, report.leaf_count));
        match step {
            1 => Err(Error::invalid("of the program").caused_by(std::fmt::Error)),
            _ => Ok(()),
        }
    };
    let hooks = Hooks { on_saved: Some(Arc::new(on_saved)), ..Hooks::default() };
    let manager = Manager::new(folder.path(), with(hooks, SaveWhen::Always, Keep::All)).unwrap();
    assert!(manager.save(1, &tree(1), &SaveStep::default()).unwrap());
    let error = manager.wait().unwrap_err();
    let source = std::error::Error::source(&error).unwrap();
    assert!(error.what() == "of the program" && source.is::<std::fmt::Error>(), "{error}");
    // The step is committed, and the manager goes on.
    assert!(manager.save(2, &tree(2), &SaveStep::default()).unwrap());
    manager.wait().unwrap();
    assert_eq!(manager.steps().numbers().unwrap(), [1, 2]);
    assert_eq!(*told.lock().unwrap(), [(1, 2), (2, 2)]);
}

#[test]
fn a_wait_ends_with_the_error_of_its_hook_and_the_save_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    let held = Mutex::new(held);
    let hooks = Hooks {
        while_waiting: Some(Arc::new(|| Err(Error::new(ErrorKind::Cancelled, "a signal")))),
        on_saved: Some(Arc::new(move |_, _| {
            let _ = held.lock().unwrap().recv();
            Ok(())
        })),
        ..Hooks::default()
    };
    let manager = Manager::new(folder.path(), with(hooks, SaveWhen::Always, Keep::All)).unwrap();
    assert!(manager.save(1, &tree(1), &SaveStep::default()).unwrap());
    assert_eq!(manager.wait().unwrap_err().kind(), ErrorKind::Cancelled);
    drop(let_go);
    while manager.wait().is_err() {}
    assert_eq!(manager.steps().numbers().unwrap(), [1]);
}

#[test]
fn a_closed_run_refuses_to_write_and_leaves_the_folder_to_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let run = TrainingRun::new(folder.path(), ManagerOptions::default()).unwrap();
    assert!(run.wait_for(Duration::ZERO).unwrap() && run.should_save(1, false).unwrap());
    run.close();
    let refused = run.begin(1, &SaveStep::default(), Ok(())).unwrap_err();
    assert!(refused.what().contains("is closed"), "{refused}");
    assert!(!run.should_save(1, false).unwrap());
    TrainingRun::new(folder.path(), ManagerOptions::default()).unwrap();
}
