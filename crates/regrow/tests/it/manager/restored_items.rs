//! Several items of a step, restored together.

use std::cell::RefCell;

use regrow::engine::{Checkpoint, ItemsOptions, ItemsSave, LoadOptions};
use regrow::location::Location;
use regrow::manager::{DeleteOptions, Deleted, Manager, ManagerOptions, SaveStep, Steps};
use regrow::{ErrorKind, Pytree, Result};

use super::{damage, options, places, tree};
use crate::common::bytes_of;

#[derive(Pytree, Debug, PartialEq)]
struct Config {
    step: u64,
}

/// The trees `default` and `average`, a configuration, and files.
fn save(manager: &Manager, step: u8) {
    let fill = |items: &ItemsSave| {
        items.json("config", &serde_json::json!({"step": step}))?;
        items.file("iterator", "state.bin", &[step])?;
        Ok(vec![("default".to_owned(), tree(step)), ("average".to_owned(), tree(step + 1))])
    };
    assert!(manager.save_items(step.into(), &SaveStep::default(), fill).unwrap());
}

fn manager(root: &Location) -> Manager {
    Manager::new(root, ManagerOptions { save: options("regrow"), ..ManagerOptions::default() }).unwrap()
}

/// Bytes by key path.
type Bytes = Vec<(String, Vec<u8>)>;

fn tree_in(step: &Checkpoint, item: &str) -> Result<Bytes> {
    Ok(bytes_of(&step.item(item)?.load(&LoadOptions::default())?))
}

fn bytes(fill: u8) -> Bytes {
    bytes_of(&tree(fill))
}

fn both(step: &Checkpoint) -> Result<[Bytes; 2]> {
    Ok([tree_in(step, "default")?, tree_in(step, "average")?])
}

#[test]
fn items_of_one_step_are_restored_together() {
    for (root, _folder) in places("restored-items") {
        let manager = manager(&root);
        save(&manager, 10);
        save(&manager, 20);
        let all = |step: &Checkpoint| -> Result<_> {
            let config: Config = step.item("config")?.load_value(&LoadOptions::default())?;
            Ok((both(step)?, config, step.item_files("iterator")?))
        };
        let restored = manager.restore_items(all).unwrap();
        assert_eq!((restored.step.number, restored.passed_over.len()), (20, 0), "{root}");
        let (trees, config, files) = restored.value;
        assert_eq!((trees, config), ([bytes(20), bytes(21)], Config { step: 20 }));
        assert_eq!((files.len(), files[0].0.as_str(), &files[0].1[..]), (1, "state.bin", &[20][..]));
        let (trees, config, _) = manager.restore_step_items(10, all).unwrap();
        assert_eq!((trees, config), ([bytes(10), bytes(11)], Config { step: 10 }));
        assert!(manager.should_save(20, false).unwrap(), "of another history by now");
        // What no step has is the caller's to hear of.
        let error = manager.restore_items(|step| tree_in(step, "avrage")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.help_text().unwrap().contains("average, config, default, iterator"), "{error}");
        assert_eq!(manager.restore_step_items(7, both).unwrap_err().kind(), ErrorKind::NotFound);
    }
}

#[test]
fn restore_skips_a_step_whose_requested_item_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let manager = manager(&Location::local(folder.path()));
    for step in [10, 20] {
        save(&manager, step);
    }
    manager.wait().unwrap();
    damage(&folder.path().join("20/average"));
    let state = manager.restore_items(|step| tree_in(step, "default")).unwrap();
    assert_eq!((state.step.number, state.passed_over.len()), (20, 0));
    let restored = manager.restore_items(both).unwrap();
    assert_eq!(restored.value, [bytes(10), bytes(11)], "nothing of the newer one");
    let passed: Vec<_> =
        restored.passed_over.iter().map(|passed| (passed.step, passed.error.kind())).collect();
    assert_eq!((restored.step.number, passed), (10, vec![(20, ErrorKind::Corrupt)]));
    assert_eq!(manager.restore_step_items(20, both).unwrap_err().kind(), ErrorKind::Corrupt);
    // An item that was there when the step was saved.
    std::fs::remove_dir_all(folder.path().join("20/average")).unwrap();
    assert_eq!(manager.restore_items(both).unwrap().step.number, 10);
}

#[test]
fn a_lease_keeps_the_step_until_all_is_restored() {
    for (root, _folder) in places("restored-lease") {
        save(&manager(&root), 1);
        // Another program's: the one that deletes.
        let steps = Steps::new(&root, None).unwrap();
        let reader = Manager::new(&root, ManagerOptions { read_only: true, ..Default::default() }).unwrap();
        let delete = || steps.delete(&[1], &DeleteOptions::default()).unwrap().remove(0).outcome.unwrap();
        let restore = |step: &Checkpoint| {
            assert_eq!((steps.leased().unwrap(), delete()), (vec![1], Deleted::Leased), "{root}");
            both(step)
        };
        assert_eq!(reader.restore_items(restore).unwrap().value, [bytes(1), bytes(2)]);
        reader.restore_step_items::<()>(1, |_| Err(regrow::Error::invalid("no"))).unwrap_err();
        assert!(steps.leased().unwrap().is_empty(), "{root}");
        assert!(matches!(delete(), Deleted::Removed { .. }), "{root}");
    }
}

#[test]
fn items_are_of_one_version_of_a_step_that_is_replaced_in_between() {
    for (root, _folder) in places("restored-version") {
        let manager = manager(&root);
        save(&manager, 1);
        manager.wait().unwrap();
        let replaced = RefCell::new(Vec::new());
        let restore = |step: &Checkpoint| {
            let state = tree_in(step, "default")?;
            if replaced.borrow().is_empty() {
                let overwrite =
                    ItemsOptions { overwrite: true, not_durable: true, ..ItemsOptions::default() };
                let again = ItemsSave::begin(root.join("1"), overwrite)?;
                for (name, fill) in [("default", 5), ("average", 6)] {
                    again.tree(name, &tree(fill), &options("regrow"))?;
                }
                again.commit()?;
            }
            replaced.borrow_mut().push(state.clone());
            Ok([state, tree_in(step, "average")?])
        };
        let restored = manager.restore_items(restore).unwrap();
        assert_eq!(restored.value, [bytes(5), bytes(6)], "{root}");
        assert_eq!(*replaced.borrow(), [bytes(1), bytes(5)], "{root}");
        assert!(restored.passed_over.is_empty());
    }
}

#[test]
fn a_checkpoint_without_items_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("1");
    regrow::save(&path, &vec![1_f32; 3]).unwrap();
    let error = regrow::open(&path).unwrap().item("default").unwrap_err();
    assert!(error.to_string().contains("this is a single checkpoint"), "{error}");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}
