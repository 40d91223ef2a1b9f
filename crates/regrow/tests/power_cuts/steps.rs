//! A folder of steps: a save, and the deletion of what is not kept.

use std::path::Path;

use regrow::location::Location;
use regrow::manager::{Keep, Steps, TidyOptions};
use regrow::tree::{Leaf, Tree};
use regrow::{SaveOptions, load, save_with, verify};

use super::{Scene, check, told};
use crate::common::{bytes_of, cuts};

/// Steps 1, 2 and 3 are there; step 4 is saved, and then only two are kept.
struct Rotation;

const KEPT: usize = 2;

fn tree(step: u64) -> Tree<Leaf> {
    cuts::dict([("rows".to_owned(), cuts::rows(step + 1).whole())])
}

fn steps(root: &Path) -> regrow::Result<Steps> {
    Steps::new(Location::local(root.join("run")), None)
}

fn save(steps: &Steps, step: u64) -> regrow::Result<()> {
    save_with(steps.place(step), &tree(step), &SaveOptions::default()).map(drop)
}

fn options() -> TidyOptions {
    TidyOptions { keep: Keep::Latest(KEPT), ..TidyOptions::default() }
}

impl Scene for Rotation {
    fn name(&self) -> String {
        "a save, and the deletion of two steps".to_owned()
    }

    fn prepare(&self, root: &Path) {
        let steps = steps(root).unwrap();
        (1..4).for_each(|step| save(&steps, step).unwrap());
    }

    fn act(&self, root: &Path) -> regrow::Result<()> {
        let steps = steps(root)?;
        let _lock = steps.lock()?;
        save(&steps, 4)?;
        steps.tidy(4, &options()).map(drop)
    }

    fn check(&self, root: &Path, is_done: bool) -> Result<(), String> {
        let steps = told("the steps", steps(root))?;
        let list = told("the list", steps.list())?;
        let numbers: Vec<u64> = list.steps.iter().map(|step| step.number).collect();
        // Two are kept at any time, of which the newest was the newest before, or is the new one.
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
        let names = std::fs::read_dir(root.join("run")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let strangers: Vec<String> = names.filter(|name| !own.contains(name)).collect();
        if strangers.is_empty() { Ok(()) } else { Err(format!("left in the folder: {strangers:?}")) }
    }
}

pub fn scenes() -> Vec<Box<dyn Scene>> {
    vec![Box::new(Rotation)]
}

#[test]
fn a_rotation_keeps_what_it_is_to_keep() {
    check(&Rotation);
}
