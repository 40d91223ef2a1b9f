//! The places of these tests, and the operations on each place.

use std::sync::Arc;

use regrow::engine::Layout;
use regrow::location::Location;
use regrow::manager::{DeleteOptions, Keep, Manager, ManagerOptions, SaveStep, Steps, TidyOptions};
use regrow::tree::{Leaf, Tree};
use regrow::{
    CopyOptions, ErrorKind, ParityOptions, PrivateKey, RemoveOptions, RepairOptions, Result, SaveOptions,
    SealOptions, SignOptions, add_parity, copy, load, remove, repair, save_with, seal, sign, verify,
};
use regrow_store::{ByteRange, StoreExt};
use regrow_testkit::fixtures;
use serde_json::{Value, json};

use super::{Kind, State, Work, World};
use crate::common::cuts::bytes_of;
use crate::crash::scenes::saves::tree;
use crate::crash::scenes::{check_names, is_nothing, make_room, told};

/// The generation from before, those of the two saves, that of the next save, and that of a killed
/// one.
const BEFORE: u8 = 1;
const SAVED: [u8; 2] = [2, 3];
const COPIED: u8 = 4;
const NEXT: u8 = 5;
const KILLED: u8 = 6;
const COPIED_TOO: u8 = 7;

/// The name of the work that brings back what is damaged.
pub(super) const REPAIR: &str = "repair";

/// The work that removes the files of a killed one.
pub(super) const CLEANUP: &str = "remove what is unfinished";

/// What is there instead of a generation if a file is damaged.
const DAMAGED: u8 = 0;

fn generation(tree_found: &Tree<Leaf>) -> Option<u8> {
    let found = bytes_of(tree_found);
    (BEFORE..=COPIED_TOO).find(|&each| found == bytes_of(&tree(each)))
}

/// The generation of a checkpoint that is whole; `None` where there is none.
fn look(at: &Location) -> std::result::Result<Option<u8>, String> {
    let loaded: Tree<Leaf> = match load(at) {
        Err(error) if is_nothing(at, &error) => return Ok(None),
        other => told("load", other)?,
    };
    let Some(found) = generation(&loaded) else {
        return Err(format!("{at} is a checkpoint that no process saved"));
    };
    let report = told("verify", verify(at))?;
    if report.is_ok() { Ok(Some(found)) } else { Err(format!("{at} does not verify: {:?}", report.findings)) }
}

fn work(
    kind: Kind,
    name: impl Into<String>,
    act: impl Fn(&Location) -> Result<()> + Send + Sync + 'static,
    after: impl Fn(&mut State) + 'static,
) -> Work {
    Work { name: name.into(), act: Arc::new(act), after: Box::new(after), kind, meets: None }
}

fn housekeeping(name: &str, act: impl Fn(&Location) -> Result<()> + Send + Sync + 'static) -> Work {
    work(Kind::Housekeeping, name, act, |_| {})
}

/// What lies beside a checkpoint, as it stands in a [`State`], and its name there.
const BESIDE: [(&str, &str); 3] =
    [("its seal", "regrow.seal"), ("its parity", "regrow.parity"), ("its signature", "regrow.signature")];
const SEAL: &str = BESIDE[0].0;
const PARITY: &str = BESIDE[1].0;
const SIGNATURE: &str = BESIDE[2].0;

/// What there was at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Past {
    Nothing,
    Old,
    /// An old one, whose overwrite was killed.
    Killed,
    /// The files of a first save that was killed.
    KilledFirst,
    /// An old one with one changed byte.
    Damaged,
}

/// A checkpoint at one path, in one layout.
#[derive(Debug, Clone)]
struct Place {
    layout: &'static str,
    options: Value,
    file: &'static str,
    /// Whether all that is saved has a seal and parity.
    is_sealed: bool,
    /// Whether the two replace what is there.
    overwrite: bool,
}

impl Place {
    fn target(&self, root: &Location) -> Location {
        root.join("run").join(self.file)
    }

    /// Whether a seal of it is a file.
    fn takes_seals(&self) -> bool {
        self.layout != "regrow"
    }

    fn save(&self, at: &Location, generation: u8, is_sealed: bool) -> Result<()> {
        let layout = Layout::from_name(self.layout, self.options.clone()).unwrap();
        let parity = if is_sealed { Some("1/1".parse()?) } else { None };
        let options = SaveOptions {
            layout,
            overwrite: self.overwrite,
            not_durable: true,
            seal: is_sealed,
            parity,
            ..SaveOptions::default()
        };
        save_with(at, &tree(generation), &options).map(drop)
    }

    /// What is there once a generation has been saved, or copied from where it was.
    fn is_saved(&self, generation: u8) -> impl Fn(&mut State) + use<> {
        let (file, is_sealed, takes_seals) = (self.file.to_owned(), self.is_sealed, self.takes_seals());
        move |state| {
            state.clear();
            state.insert(file.clone(), generation);
            if is_sealed {
                state.insert(PARITY.to_owned(), 1);
            }
            if is_sealed && takes_seals {
                state.insert(SEAL.to_owned(), 1);
            }
        }
    }

    /// What is there once something has been put beside the checkpoint.
    fn has_beside(&self, what: &'static str) -> impl Fn(&mut State) + use<> {
        let file = self.file;
        move |state| {
            if state.contains_key(file) {
                state.insert(what.to_owned(), 1);
            }
        }
    }

    fn copy(&self, root: &Location, from: &str) -> Result<()> {
        let options = CopyOptions { overwrite: self.overwrite, not_durable: true, ..CopyOptions::default() };
        copy(root.join(from).join(self.file), self.target(root), &options).map(drop)
    }

    fn save_work(&self, generation: u8) -> Work {
        let place = self.clone();
        let act = move |root: &Location| place.save(&place.target(root), generation, place.is_sealed);
        work(Kind::Save, format!("save {generation}"), act, self.is_saved(generation))
    }

    /// What is done to a checkpoint.
    fn works(&self, past: Past) -> Vec<Work> {
        let with = |act: fn(&Place, &Location) -> Result<()>| {
            let place = self.clone();
            move |root: &Location| act(&place, root)
        };
        let copies = with(|place, root| place.copy(root, "source"));
        let copies_another = with(|place, root| place.copy(root, "another source"));
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
        let signs = with(|place, root| {
            let key = PrivateKey::read(fixtures().join("keys").join("alice.pem"))?;
            sign(place.target(root), &key, &SignOptions::default()).map(drop)
        });
        let repairs = with(|place, root| repair(place.target(root), &RepairOptions::default()).map(drop));
        let file = self.file;
        let heals = move |state: &mut State| {
            if state.get(file) == Some(&DAMAGED) {
                state.insert(file.to_owned(), BEFORE);
            }
        };
        let is_sealed: Box<dyn Fn(&mut State)> =
            if self.takes_seals() { Box::new(self.has_beside(SEAL)) } else { Box::new(|_| {}) };
        let mut works = vec![
            self.save_work(SAVED[0]),
            Work { meets: Some("save 2"), ..self.save_work(SAVED[1]) },
            work(Kind::Save, "copy", copies, self.is_saved(COPIED)),
            Work {
                meets: Some("copy"),
                ..work(Kind::Save, "copy another", copies_another, self.is_saved(COPIED_TOO))
            },
            work(Kind::Removal, "remove", removes, State::clear),
            housekeeping(CLEANUP, sweeps),
            work(Kind::Housekeeping, REPAIR, repairs, heals),
            work(Kind::Housekeeping, "add parity", protects, self.has_beside(PARITY)),
        ];
        if past != Past::Damaged {
            // Who seals what is damaged says that it is as it is to be.
            works.push(work(Kind::Housekeeping, "seal", seals, is_sealed));
        }
        if self.is_sealed {
            works.push(work(Kind::Housekeeping, "sign", signs, self.has_beside(SIGNATURE)));
        }
        works
    }

    /// What is there, whole and verified, and what lies beside it.
    fn look(&self, root: &Location, past: Past) -> std::result::Result<State, String> {
        let at = self.target(root);
        let is_damaged = past == Past::Damaged
            && load::<Tree<Leaf>>(&at).is_err_and(|error| error.kind() == ErrorKind::Corrupt);
        let found = if is_damaged { Some(DAMAGED) } else { look(&at)? };
        let Some(found) = found else { return Ok(State::new()) };
        let mut state = State::from([(self.file.to_owned(), found)]);
        // Data and manifest go by a name that neither of them has.
        let folder = at.for_reading().ok().map(|reading| reading.location).filter(Location::is_folder);
        for (what, name) in BESIDE {
            let file = match &folder {
                Some(folder) => folder.join(format!("{name}.json")),
                None => at.with_name(format!("{name}.{}.json", self.file)),
            };
            if file.is_file() {
                state.insert(what.to_owned(), 1);
            }
        }
        if state.contains_key(PARITY) && !is_damaged {
            let check = RepairOptions { check: true, ..RepairOptions::default() };
            let report = told("what a repair would do", repair(&at, &check))?;
            let would_write = !report.healed.is_empty() || !report.recovered.is_empty();
            if would_write || report.is_parity_damaged || !report.is_sound() {
                return Err(format!("a repair would change what is whole: {report:?}"));
            }
        }
        Ok(state)
    }

    /// Changes a byte in the middle of the longest file.
    fn damage(&self, root: &Location) {
        let store = root.join("run").store();
        let read = |key: &Vec<u8>| store.get(key, ByteRange::Full).unwrap().unwrap().to_vec();
        let keys = store.list(b"").unwrap();
        let own = keys.iter().filter(|key| !String::from_utf8_lossy(key).contains("regrow."));
        let longest = own.max_by_key(|key| read(key).len()).unwrap();
        let mut bytes = read(longest);
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        store.put(longest, bytes.into()).unwrap();
    }

    fn world(self, past: Past) -> World {
        let sealed = if self.is_sealed { " sealed" } else { "" };
        let name = format!("{}{sealed} {} {past:?}", self.layout, self.options);
        let mut before = State::new();
        match past {
            Past::Nothing | Past::KilledFirst => {}
            Past::Old | Past::Killed => self.is_saved(BEFORE)(&mut before),
            Past::Damaged => self.is_saved(DAMAGED)(&mut before),
        }
        let (preparing, looking) = (self.clone(), self.clone());
        let next = Self { overwrite: true, ..self.clone() };
        // A save, a copy, and a removal where there is something to remove.
        let killed_count = match past {
            Past::Killed => 3,
            Past::KilledFirst => 2,
            Past::Nothing | Past::Old | Past::Damaged => 0,
        };
        let copies_and_removes = self.works(past).into_iter().skip(2).filter(|work| work.meets.is_none());
        let killed =
            [self.save_work(KILLED)].into_iter().chain(copies_and_removes).take(killed_count).collect();
        World {
            name,
            works: self.works(past),
            before,
            is_clean: !self.is_sealed && matches!(past, Past::Nothing | Past::Old),
            is_damaged: past == Past::Damaged,
            is_exclusive: !self.overwrite,
            killed,
            prepare: Box::new(move |root| {
                for (from, generation) in [("source", COPIED), ("another source", COPIED_TOO)] {
                    let source = root.join(from).join(preparing.file);
                    preparing.save(&source, generation, preparing.is_sealed).unwrap();
                }
                if !matches!(past, Past::Nothing | Past::KilledFirst) {
                    preparing.save(&preparing.target(root), BEFORE, preparing.is_sealed).unwrap();
                }
                if past == Past::Damaged {
                    preparing.damage(root);
                }
            }),
            look: Box::new(move |root| looking.look(root, past)),
            next: Box::new(move |root| {
                let target = next.target(root);
                make_room(&target, next.layout)?;
                told("the next save", next.save(&target, NEXT, false))?;
                let found = next.look(root, Past::Old)?;
                if found != State::from([(next.file.to_owned(), NEXT)]) {
                    return Err(format!("the next save has left {found:?}"));
                }
                // What a copy has brought that was overtaken waits for the same copy.
                let is_on_its_way = |name: &str| name.contains("-tmp-") && !name.ends_with("-tmp-copy");
                check_names(&target.parent(), |name| name.starts_with(next.file) && !is_on_its_way(name))
            }),
        }
    }
}

/// A checkpoint at one path, new or in place of another, in layouts of each kind: folders, a file,
/// files beside each other.
fn places() -> Vec<World> {
    let layouts = [
        ("regrow", json!({}), "ckpt"),
        ("orbax", json!({}), "ckpt"),
        ("safetensors", json!({"max_shard_bytes": 9000}), "ckpt"),
        ("flax", json!({}), "ckpt.msgpack"),
        ("pytree_data", json!({}), "ckpt"),
    ];
    let worlds = layouts.into_iter().flat_map(|(layout, options, file)| {
        let place =
            |is_sealed, overwrite| Place { layout, options: options.clone(), file, is_sealed, overwrite };
        let plain = [Past::Nothing, Past::Old, Past::Killed].map(|past| place(false, true).world(past));
        let sealed = [Past::Nothing, Past::Old, Past::Damaged]
            .map(|past| place(true, past != Past::Nothing).world(past));
        plain.into_iter().chain([place(false, false).world(Past::KilledFirst)]).chain(sealed)
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
    TidyOptions { keep: Keep::Latest(KEPT), adopt: true, ..TidyOptions::default() }
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

/// Steps 1 and 2 of a run: a trainer with a manager, others that save by themselves, and who keeps
/// house.
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
            Work {
                meets: Some("save step 3"),
                ..work(
                    Kind::Save,
                    "save step 4",
                    |root| save_step(root, 4, SAVED[1]),
                    move |state| insert(state, "4", SAVED[1]),
                )
            },
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
            housekeeping(REPAIR, repairs),
        ],
        before: State::from([("1".to_owned(), BEFORE), ("2".to_owned(), BEFORE)]),
        is_clean: true,
        is_damaged: false,
        is_exclusive: false,
        killed: Vec::new(),
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
