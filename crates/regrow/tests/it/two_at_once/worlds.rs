//! The places, and what is done to them.

use std::sync::Arc;

use regrow::engine::Layout;
use regrow::location::Location;
use regrow::manager::{DeleteOptions, Keep, Manager, ManagerOptions, SaveStep, Steps, TidyOptions};
use regrow::tree::{Leaf, Tree};
use regrow::{
    CopyOptions, ParityOptions, RemoveOptions, RepairOptions, Result, SaveOptions, SealOptions, add_parity,
    copy, load, remove, repair, save_with, seal, verify,
};
use serde_json::{Value, json};

use super::{Kind, State, Work, World};
use crate::common::cuts::bytes_of;
use crate::scenes::saves::tree;
use crate::scenes::{check_names, is_nothing, make_room, told};

/// What was there before, what the two save, and what the next one saves.
const BEFORE: u8 = 1;
const SAVED: [u8; 2] = [2, 3];
const COPIED: u8 = 4;
const NEXT: u8 = 5;

fn generation(tree_found: &Tree<Leaf>) -> Option<u8> {
    let found = bytes_of(tree_found);
    (BEFORE..=NEXT).find(|&each| found == bytes_of(&tree(each)))
}

/// The generation of a checkpoint that is whole; `None` where there is none.
fn look(at: &Location) -> std::result::Result<Option<u8>, String> {
    let loaded: Tree<Leaf> = match load(at) {
        Err(error) if is_nothing(at, &error) => return Ok(None),
        other => told("load", other)?,
    };
    let Some(found) = generation(&loaded) else { return Err(format!("{at} is what nobody saved")) };
    let report = told("verify", verify(at))?;
    if report.is_ok() { Ok(Some(found)) } else { Err(format!("{at} does not verify: {:?}", report.findings)) }
}

fn work(
    kind: Kind,
    name: impl Into<String>,
    act: impl Fn(&Location) -> Result<()> + Send + Sync + 'static,
    after: impl Fn(&mut State) + 'static,
) -> Work {
    Work { name: name.into(), act: Arc::new(act), after: Box::new(after), kind }
}

fn housekeeping(name: &str, act: impl Fn(&Location) -> Result<()> + Send + Sync + 'static) -> Work {
    work(Kind::Housekeeping, name, act, |_| {})
}

/// A checkpoint at one path, in one layout.
#[derive(Debug, Clone)]
struct Place {
    layout: &'static str,
    options: Value,
    file: &'static str,
}

impl Place {
    fn target(&self, root: &Location) -> Location {
        root.join("run").join(self.file)
    }

    fn save(&self, at: &Location, generation: u8) -> Result<()> {
        let layout = Layout::from_name(self.layout, self.options.clone()).unwrap();
        let options = SaveOptions { layout, overwrite: true, not_durable: true, ..SaveOptions::default() };
        save_with(at, &tree(generation), &options).map(drop)
    }

    fn save_work(&self, generation: u8) -> Work {
        let place = self.clone();
        let act = move |root: &Location| place.save(&place.target(root), generation);
        let name = self.file;
        work(Kind::Save, format!("save {generation}"), act, move |state| {
            _ = state.insert(name.to_owned(), generation)
        })
    }

    /// What is done to a checkpoint.
    fn works(&self) -> Vec<Work> {
        let with = |act: fn(&Place, &Location) -> Result<()>| {
            let place = self.clone();
            move |root: &Location| act(&place, root)
        };
        let name = self.file;
        let copies = with(|place, root| {
            let options = CopyOptions { overwrite: true, not_durable: true, ..CopyOptions::default() };
            copy(root.join("source").join(place.file), place.target(root), &options).map(drop)
        });
        let removes = with(|place, root| remove(place.target(root), &RemoveOptions::default()).map(drop));
        let sweeps = with(|place, root| {
            let options = RemoveOptions { unfinished: true, ..RemoveOptions::default() };
            remove(place.target(root), &options).map(drop)
        });
        let seals = with(|place, root| seal(place.target(root), &SealOptions::default()).map(drop));
        let protects = with(|place, root| {
            let options = ParityOptions { ratio: "1/1".parse()?, ..ParityOptions::default() };
            add_parity(place.target(root), &options).map(drop)
        });
        let repairs = with(|place, root| repair(place.target(root), &RepairOptions::default()).map(drop));
        vec![
            self.save_work(SAVED[0]),
            self.save_work(SAVED[1]),
            work(Kind::Save, "copy", copies, move |state| _ = state.insert(name.to_owned(), COPIED)),
            work(Kind::Removal, "remove", removes, move |state| _ = state.remove(name)),
            housekeeping("remove what is unfinished", sweeps),
            housekeeping("repair", repairs),
            housekeeping("seal", seals),
            housekeeping("add parity", protects),
        ]
    }

    fn world(self, has_before: bool) -> World {
        let name =
            format!("{} {} {}", self.layout, self.options, if has_before { "replaced" } else { "new" });
        let before = if has_before { State::from([(self.file.to_owned(), BEFORE)]) } else { State::new() };
        let (preparing, looking, next) = (self.clone(), self.clone(), self.clone());
        World {
            name,
            works: self.works(),
            before,
            prepare: Box::new(move |root| {
                preparing.save(&root.join("source").join(preparing.file), COPIED).unwrap();
                if has_before {
                    preparing.save(&preparing.target(root), BEFORE).unwrap();
                }
            }),
            look: Box::new(move |root| {
                let found = look(&looking.target(root))?;
                Ok(found.map(|found| (looking.file.to_owned(), found)).into_iter().collect())
            }),
            next: Box::new(move |root| {
                let target = next.target(root);
                make_room(&target, next.layout)?;
                told("the next save", next.save(&target, NEXT))?;
                if look(&target)? != Some(NEXT) {
                    return Err("the next save is not there".to_owned());
                }
                // What a copy has brought that was overtaken waits for the same copy.
                let is_on_its_way = |name: &str| name.contains("-tmp-") && !name.ends_with("-tmp-copy");
                check_names(&target.parent(), |name| name.starts_with(next.file) && !is_on_its_way(name))
            }),
        }
    }
}

/// A checkpoint at one path, new or in place of another, in layouts of each kind: folders, a file, files beside each other.
fn places() -> Vec<World> {
    let layouts = [
        ("regrow", json!({}), "ckpt"),
        ("orbax", json!({}), "ckpt"),
        ("safetensors", json!({"max_shard_size": 9000}), "ckpt"),
        ("flax", json!({}), "ckpt.msgpack"),
        ("pytree_data", json!({}), "ckpt"),
    ];
    let worlds = layouts.into_iter().flat_map(|(layout, options, file)| {
        let place = Place { layout, options, file };
        [true, false].map(|has_before| place.clone().world(has_before))
    });
    worlds.collect()
}

/// The steps that are kept.
const KEPT: usize = 2;

fn steps(root: &Location) -> Result<Steps> {
    Steps::new(root.join("run"), None)
}

fn save_step(root: &Location, step: u64, generation: u8) -> Result<()> {
    let options = SaveOptions { not_durable: true, ..SaveOptions::default() };
    save_with(steps(root)?.place(step), &tree(generation), &options).map(drop)
}

fn tidy_options() -> TidyOptions {
    TidyOptions { keep: Keep::Latest(KEPT), ..TidyOptions::default() }
}

/// By a manager, which deletes what is not kept.
fn manage(root: &Location, step: u64, generation: u8) -> Result<()> {
    let save = SaveOptions { not_durable: true, ..SaveOptions::default() };
    let options = ManagerOptions { tidy: tidy_options(), save, ..ManagerOptions::default() };
    let manager = Manager::new(root.join("run"), options)?;
    let about = SaveStep { force: true, ..SaveStep::default() };
    manager.save(step, &tree(generation), &about)?;
    manager.wait()
}

/// Leaves the newest ones.
fn keep(state: &mut State) {
    while state.len() > KEPT {
        state.pop_first();
    }
}

/// Steps 1 and 2 of a run: a trainer with a manager, others that save by themselves, and who keeps house.
fn run_of_steps() -> World {
    let place = |root: &Location, step: u64| steps(root).map(|steps| steps.place(step));
    let sweeps = move |root: &Location| {
        let options = RemoveOptions { unfinished: true, ..RemoveOptions::default() };
        remove(place(root, 3)?, &options).map(drop)
    };
    let deletes = |root: &Location| {
        let done = steps(root)?.delete(&[2], &DeleteOptions::default())?;
        done.into_iter().try_for_each(|deletion| deletion.outcome.map(drop))
    };
    let refreshes = |root: &Location| {
        let steps = steps(root)?;
        let _lock = steps.lock()?;
        steps.refresh()
    };
    let tidies = |root: &Location| {
        let steps = steps(root)?;
        let _lock = steps.lock()?;
        let Some(latest) = steps.latest()? else { return Ok(()) };
        steps.tidy(latest.number, &tidy_options()).map(drop)
    };
    let repairs = |root: &Location| repair(root.join("run"), &RepairOptions::default()).map(drop);
    let insert = |state: &mut State, step: &str, generation: u8| {
        state.insert(step.to_owned(), generation);
    };
    World {
        name: "steps".to_owned(),
        works: vec![
            work(
                Kind::Save,
                "save step 3",
                |root| save_step(root, 3, SAVED[0]),
                move |state| insert(state, "3", SAVED[0]),
            ),
            work(
                Kind::Save,
                "save step 4",
                |root| save_step(root, 4, SAVED[1]),
                move |state| insert(state, "4", SAVED[1]),
            ),
            work(
                Kind::Save,
                "manage step 3",
                |root| manage(root, 3, SAVED[0]),
                move |state| {
                    insert(state, "3", SAVED[0]);
                    keep(state);
                },
            ),
            work(Kind::Removal, "delete step 2", deletes, |state| _ = state.remove("2")),
            work(Kind::Removal, "tidy", tidies, keep),
            work(Kind::Removal, "begin", refreshes, |_| {}),
            housekeeping("remove what is unfinished of step 3", sweeps),
            housekeeping("repair", repairs),
        ],
        before: State::from([("1".to_owned(), BEFORE), ("2".to_owned(), BEFORE)]),
        prepare: Box::new(|root| (1..3).for_each(|step| save_step(root, step, BEFORE).unwrap())),
        look: Box::new(|root| {
            let list = told("the list", steps(root).and_then(|steps| steps.list()))?;
            let each = list.steps.iter().map(|step| match look(&step.location)? {
                Some(found) => Ok((step.number.to_string(), found)),
                None => Err(format!("step {} is listed and is none", step.number)),
            });
            each.collect()
        }),
        next: Box::new(|root| {
            told("the next save", manage(root, 9, NEXT))?;
            let now = told("the numbers", steps(root).and_then(|steps| steps.numbers()))?;
            if now.last() != Some(&9) || now.len() > KEPT {
                return Err(format!("afterwards the steps are {now:?}"));
            }
            let own: Vec<String> = now.iter().map(u64::to_string).chain([".regrow".to_owned()]).collect();
            check_names(&root.join("run"), |name| own.iter().any(|known| known == name))
        }),
    }
}

pub(super) fn worlds() -> Vec<World> {
    let mut worlds = places();
    worlds.push(run_of_steps());
    worlds
}
