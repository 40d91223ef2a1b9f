//! Scenes with a folder of steps: a save, and the deletion of steps that the policy does not keep.

use regrow::engine::load_with;
use regrow::location::Location;
use regrow::manager::{Keep, Manager, ManagerOptions, SaveStep, Steps, TidyOptions};
use regrow::tree::{Leaf, Tree};
use regrow::{LoadOptions, OpenOptions, SaveOptions, load, open, save_with, verify};

use super::{Scene, check_names, told};
use crate::common::{bytes_of, cuts};

/// Steps 1, 2 and 3 are there; step 4 is saved, and then only two are kept.
struct Rotation;

const KEPT: usize = 2;

fn tree(step: u64) -> Tree<Leaf> {
    cuts::dict([("rows".to_owned(), cuts::rows(step + 1).whole())])
}

fn steps(root: &Location) -> regrow::Result<Steps> {
    Steps::new(root.join("run"), None)
}

fn save(steps: &Steps, step: u64) -> regrow::Result<()> {
    save_with(steps.place(step), &tree(step), &SaveOptions::default()).map(drop)
}

fn options() -> TidyOptions {
    TidyOptions { keep: Keep::Latest(KEPT), adopt: true, ..TidyOptions::default() }
}

impl Scene for Rotation {
    fn name(&self) -> String {
        "a save, and the deletion of two steps".to_owned()
    }

    fn prepare(&self, root: &Location) {
        let steps = steps(root).unwrap();
        (1..4).for_each(|step| save(&steps, step).unwrap());
    }

    fn act(&self, root: &Location) -> regrow::Result<()> {
        let steps = steps(root)?;
        let _lock = steps.lock()?;
        save(&steps, 4)?;
        steps.tidy(4, &options()).map(drop)
    }

    fn check(&self, root: &Location, is_done: bool) -> Result<(), String> {
        let steps = told("the steps", steps(root))?;
        let list = told("the list", steps.list())?;
        let numbers: Vec<u64> = list.steps.iter().map(|step| step.number).collect();
        // Two are kept at any time. The newest of them was the newest before, or is the new one.
        if numbers.len() < KEPT
            || ![3, 4].contains(numbers.last().unwrap())
            || is_done && numbers.last() != Some(&4)
        {
            return Err(format!("the steps are {numbers:?}"));
        }
        for step in &list.steps {
            let report = told("verify", verify(&step.location))?;
            let loaded: Tree<Leaf> = told("load", load(&step.location))?;
            if !report.is_ok() || bytes_of(&loaded) != bytes_of(&tree(step.number)) {
                return Err(format!("step {} is listed: {:?}", step.number, report.findings));
            }
        }
        let _lock = told("the lock", steps.lock())?;
        told("the refresh", steps.refresh())?;
        told("the next save", save(&steps, 5))?;
        let tidied = told("the next tidying", steps.tidy(5, &options()))?;
        if let Some(failed) = tidied.deletions.iter().find(|done| done.outcome.is_err()) {
            return Err(format!("{failed:?}"));
        }
        let now = told("the numbers", steps.numbers())?;
        if now.len() != KEPT || now.last() != Some(&5) {
            return Err(format!("afterwards the steps are {now:?}"));
        }
        let own: Vec<String> = now.iter().map(u64::to_string).chain([".regrow".to_owned()]).collect();
        check_names(&root.join("run"), |name| own.iter().any(|known| known == name))
    }
}

/// Steps 1, 2 and 3 are there, of two items each and what they were made with; a manager saves step
/// 3 again, then step 4, and keeps three.
struct ItemsOverwritten;

const ITEMS: [&str; 2] = ["default", "average"];

/// The first save of a step, and the one in its place.
const SAVES: [u64; 2] = [10, 20];

fn manager(root: &Location, reuse: bool) -> regrow::Result<Manager> {
    let tidy = TidyOptions { keep: Keep::Latest(3), ..TidyOptions::default() };
    Manager::new(root.join("run"), ManagerOptions { tidy, reuse, ..ManagerOptions::default() })
}

fn save_items(manager: &Manager, step: u64, nth: u64) -> regrow::Result<()> {
    let about = SaveStep { overwrite: true, force: true, ..SaveStep::default() };
    manager.save_items(step, &about, |items| {
        items.file("iterator", "process_0.json", nth.to_string().as_bytes())?;
        Ok(ITEMS.map(|item| (item.to_owned(), tree(step + nth))).into())
    })?;
    manager.wait()
}

/// Which save of a step is there, the same in all items.
fn nth(step: &Location, number: u64) -> Result<u64, String> {
    let checkpoint = told("open", open(step))?;
    let files = told("the iterator", checkpoint.item_files("iterator"))?;
    let found =
        SAVES.into_iter().find(|nth| files.iter().any(|(_, bytes)| bytes[..] == *nth.to_string().as_bytes()));
    let Some(found) = found else { return Err(format!("the iterator is {files:?}")) };
    for item in ITEMS {
        let open = OpenOptions { item: Some(item.to_owned()), ..OpenOptions::default() };
        let loaded = told(item, load_with(step, &LoadOptions { open, ..LoadOptions::default() }))?;
        if bytes_of(&loaded) != bytes_of(&tree(number + found)) {
            return Err(format!("{item} of step {number} is of another save than its iterator"));
        }
    }
    let report = told("verify", verify(step))?;
    if report.is_ok() { Ok(found) } else { Err(format!("step {number}: {:?}", report.findings)) }
}

impl Scene for ItemsOverwritten {
    fn name(&self) -> String {
        "a step of items that is overwritten, another one, and a deletion".to_owned()
    }

    fn prepare(&self, root: &Location) {
        let manager = manager(root, false).unwrap();
        (1..4).for_each(|step| save_items(&manager, step, SAVES[0]).unwrap());
    }

    fn act(&self, root: &Location) -> regrow::Result<()> {
        let manager = manager(root, true)?;
        save_items(&manager, 3, SAVES[1])?;
        save_items(&manager, 4, SAVES[1])
    }

    fn check(&self, root: &Location, is_done: bool) -> Result<(), String> {
        let steps = told("the steps", steps(root))?;
        let list = told("the list", steps.list())?;
        let mut found = Vec::new();
        for step in &list.steps {
            found.push((step.number, nth(&step.location, step.number)?));
        }
        let [old, new] = SAVES;
        // In their order: the deletion of step 1 is the last thing that happens.
        let histories: [&[(u64, u64)]; 4] = [
            &[(1, old), (2, old), (3, old)],
            &[(1, old), (2, old), (3, new)],
            &[(1, old), (2, old), (3, new), (4, new)],
            &[(2, old), (3, new), (4, new)],
        ];
        let allowed = if is_done { &histories[3..] } else { &histories[..] };
        if !allowed.contains(&found.as_slice()) {
            return Err(format!("the steps and their saves are {found:?}"));
        }
        let manager = told("the next manager", manager(root, false))?;
        for step in [4, 5] {
            told("the next save", save_items(&manager, step, old))?;
        }
        let now = told("the numbers", steps.numbers())?;
        if now != [3, 4, 5] || nth(&steps.place(4), 4)? != old {
            return Err(format!("afterwards the steps are {now:?}"));
        }
        check_names(&root.join("run"), |name| ["3", "4", "5", ".regrow"].contains(&name))
    }
}

pub fn scenes() -> Vec<Box<dyn Scene>> {
    vec![Box::new(Rotation), Box::new(ItemsOverwritten)]
}
