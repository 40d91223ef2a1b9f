//! A training loop that saves with a manager.

use std::fs;

use regrow::engine::{ItemsSave, LoadOptions};
use regrow::manager::{Keep, Manager, ManagerOptions, SaveStep, SaveWhen, TidyOptions};
use regrow::tree::{Leaf, Tree};
use regrow::{ErrorKind, verify};

use super::{options, places, tree};

fn looping(keep: Keep) -> ManagerOptions {
    ManagerOptions {
        save_when: SaveWhen::Any(vec![SaveWhen::Every(10), SaveWhen::Preempted]),
        tidy: TidyOptions { keep, verify: true, ..TidyOptions::default() },
        save: options("regrow"),
        ..ManagerOptions::default()
    }
}

#[test]
fn a_loop_saves_keeps_and_goes_on() {
    for (root, _folder) in places("loop") {
        let manager = Manager::new(&root, looping(Keep::Latest(2))).unwrap();
        assert_eq!(Manager::new(&root, looping(Keep::All)).unwrap_err().kind(), ErrorKind::AlreadyExists);
        let metrics = serde_json::json!({"loss": 0.5}).as_object().cloned().unwrap();
        for step in 0..35_u64 {
            let about =
                SaveStep { metrics: metrics.clone(), is_preempted: step == 33, ..SaveStep::default() };
            let is_saved = manager.save(step, &tree(step as u8), &about).unwrap();
            assert_eq!(is_saved, step % 10 == 0 || step == 33, "{step}");
        }
        manager.wait().unwrap();
        assert_eq!(manager.steps().numbers().unwrap(), [30, 33], "{root}");
        assert_eq!(manager.steps().step(33).unwrap().metrics, metrics);
        let restored = manager.restore::<Tree<Leaf>>(&LoadOptions::default()).unwrap();
        assert_eq!(restored.step.number, 33);
        assert_eq!(crate::common::bytes_of(&restored.value), crate::common::bytes_of(&tree(33)));
        // After a roll-back numbers are saved again, and once.
        manager.restore_step::<Tree<Leaf>>(30, &LoadOptions::default()).unwrap();
        let forced = SaveStep { force: true, ..SaveStep::default() };
        assert!(manager.save(33, &tree(1), &forced).unwrap());
        assert_eq!(manager.save(33, &tree(2), &forced).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert!(!manager.save(30, &tree(2), &SaveStep::default()).unwrap());
        drop(manager);
        let reader = Manager::new(&root, ManagerOptions { read_only: true, ..looping(Keep::All) }).unwrap();
        let again = reader.restore::<Tree<Leaf>>(&LoadOptions::default()).unwrap();
        assert_eq!(crate::common::bytes_of(&again.value), crate::common::bytes_of(&tree(1)));
        assert_eq!(reader.save(90, &tree(1), &forced).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn several_items_are_one_step() {
    for (root, _folder) in places("items") {
        let manager = Manager::new(&root, ManagerOptions { reuse: true, ..looping(Keep::All) }).unwrap();
        let is_saved = manager.save_items(5, &SaveStep::default(), |_| unreachable!("the step is not due"));
        assert!(!is_saved.unwrap());
        for step in [10, 20] {
            let fill = |items: &ItemsSave| {
                items.json("config", &serde_json::json!({"step": step}))?;
                items.file("iterator", "state.bin", &[step as u8])?;
                Ok(vec![("default".to_owned(), tree(step as u8)), ("average".to_owned(), tree(1))])
            };
            assert!(manager.save_items(step, &SaveStep::default(), fill).unwrap());
        }
        manager.wait().unwrap();
        let mut average = LoadOptions::default();
        average.open.item = Some("average".to_owned());
        let restored = manager.restore::<Tree<Leaf>>(&average).unwrap();
        assert_eq!((restored.step.number, restored.passed_over.len()), (20, 0));
        assert_eq!(crate::common::bytes_of(&restored.value), crate::common::bytes_of(&tree(1)));
        let state = manager.restore_step::<Tree<Leaf>>(10, &LoadOptions::default()).unwrap();
        assert_eq!(crate::common::bytes_of(&state), crate::common::bytes_of(&tree(10)));
        let step = manager.steps().step(20).unwrap().location;
        let items = regrow::open(&step).unwrap().description().items.clone();
        let names: Vec<&str> = items.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["average", "config", "default", "iterator"]);
        // What a step cannot hold leaves nothing, and the next one goes on.
        let refused = manager.save_items(30, &SaveStep::default(), |items| {
            items.json("config", &serde_json::json!({}))?;
            Err(regrow::Error::invalid("the iterator is gone"))
        });
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(manager.steps().numbers().unwrap(), [10, 20]);
        assert!(manager.save(30, &tree(2), &SaveStep::default()).unwrap());
    }
}

#[test]
fn a_failed_save_is_an_error_and_no_step() {
    let folder = tempfile::tempdir().unwrap();
    let reuse = ManagerOptions { reuse: true, ..looping(Keep::All) };
    let manager = Manager::new(folder.path(), reuse).unwrap();
    assert!(manager.save(0, &crate::common::tree(1), &SaveStep::default()).unwrap());
    manager.wait().unwrap();
    // A folder of another program at the path of the next one.
    fs::create_dir(folder.path().join("10")).unwrap();
    fs::write(folder.path().join("10/notes"), "mine").unwrap();
    assert!(manager.save(10, &crate::common::tree(1), &SaveStep::default()).is_err());
    assert!(manager.save(20, &crate::common::tree(1), &SaveStep::default()).unwrap());
    manager.wait().unwrap();
    assert_eq!(manager.steps().numbers().unwrap(), [0, 20]);
    fs::remove_dir_all(folder.path().join("10")).unwrap();
    assert!(manager.should_save(10, false).unwrap(), "an older number, since nothing was saved under it");
    assert!(verify(folder.path().join("20/default")).unwrap().is_ok());
}
