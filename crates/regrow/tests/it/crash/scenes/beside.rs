//! Scenes with side files: sealing, signing, parity and repair. The checkpoint reads as before at
//! any time. After a cut, a file under repair is as before the repair, or complete.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use regrow::engine::Layout;
use regrow::location::Location;
use regrow::{
    OpenOptions, ParityOptions, PrivateKey, RepairOptions, SaveOptions, SealOptions, SignOptions, load,
    open_with, save_with, verify,
};
use regrow_store::{ByteRange, StoreExt};
use regrow_testkit::fixtures;
use serde_json::json;

use super::saves::{NEW, OLD, tree};
use super::{Scene, make_room, told};
use crate::common::cuts::bytes_of;

/// What is done to a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Seal,
    Sign,
    Parity,
    Repair,
}

/// A checkpoint in a folder of its own, and what is done to it.
struct Beside {
    work: Work,
    layout: &'static str,
    file: &'static str,
    /// Whether there is a seal, a signature or parity already.
    is_there: bool,
    /// All files, as they are to be again, and as they are before the repair.
    files: OnceCell<(Files, Files)>,
}

type Files = BTreeMap<String, Vec<u8>>;

fn files(folder: &Location) -> Files {
    let store = folder.store();
    let read = |key: Vec<u8>| {
        let bytes = store.get(&key, ByteRange::Full).unwrap().unwrap();
        (String::from_utf8(key).unwrap(), bytes.to_vec())
    };
    store.list(b"").unwrap().into_iter().map(read).collect()
}

/// Whether a file is put beside checkpoints, and no part of one.
fn is_beside(name: &str) -> bool {
    ["regrow.seal.", "regrow.signature.", "regrow.parity."].iter().any(|known| name.contains(known))
}

fn key(name: &str) -> regrow::Result<PrivateKey> {
    PrivateKey::read(fixtures().join("keys").join(name))
}

impl Beside {
    fn folder(&self, root: &Location) -> Location {
        root.join("run")
    }

    fn target(&self, root: &Location) -> Location {
        self.folder(root).join(self.file)
    }

    fn save(&self, root: &Location, generation: u8) {
        let layout = Layout::from_name(self.layout, json!({})).unwrap();
        let options = SaveOptions {
            layout,
            overwrite: true,
            casting: regrow::array::Casting::Lossy,
            ..SaveOptions::default()
        };
        save_with(self.target(root), &tree(generation), &options).unwrap();
    }

    fn work(&self, root: &Location) -> regrow::Result<()> {
        let target = self.target(root);
        match self.work {
            Work::Seal => regrow::seal(target, &SealOptions::default()).map(drop),
            Work::Sign => regrow::sign(target, &key("alice.pem")?, &SignOptions::default()).map(drop),
            Work::Parity => {
                let ratio = "1/1".parse()?;
                regrow::add_parity(target, &ParityOptions { ratio, ..ParityOptions::default() }).map(drop)
            }
            Work::Repair => regrow::repair(target, &RepairOptions::default()).map(drop),
        }
    }

    /// Three files are damaged, each in another way, and one copy of the parity's index.
    fn damage(&self, good: &Files) -> Files {
        let mut damaged = good.clone();
        let data: Vec<String> = good
            .iter()
            .filter(|(name, bytes)| !is_beside(name) && bytes.len() > 9)
            .map(|(name, _)| name.clone())
            .collect();
        // The largest of them is among these.
        let largest = data.iter().max_by_key(|name| good[*name].len()).unwrap();
        damaged.get_mut(largest).unwrap()[5] ^= 0x40;
        for (at, name) in data.iter().filter(|name| *name != largest).take(2).enumerate() {
            if at == 0 {
                damaged.remove(name);
            } else {
                let bytes = damaged.get_mut(name).unwrap();
                bytes.truncate(bytes.len() / 2);
            }
        }
        let index = good.keys().find(|name| name.contains("parity") && !name.ends_with("blocks")).unwrap();
        damaged.get_mut(index).unwrap()[9] ^= 1;
        damaged
    }

    /// Whether the checkpoint loads as what it is, and verifies.
    fn check_whole(&self, root: &Location) -> Result<(), String> {
        let target = self.target(root);
        let loaded = told("load", load(&target))?;
        if bytes_of(&loaded) != bytes_of(&tree(NEW)) {
            return Err("the checkpoint is another one".to_owned());
        }
        let report = told("verify", verify(&target))?;
        if !report.is_ok() {
            return Err(format!("it does not verify: {:?}", report.findings));
        }
        Ok(())
    }

    /// Whether a damaged byte is healed.
    fn check_heals(&self, root: &Location) -> Result<(), String> {
        let good = files(&self.folder(root));
        let data = good.iter().filter(|(name, _)| !is_beside(name));
        let (name, bytes) = data.max_by_key(|(_, bytes)| bytes.len()).unwrap();
        let mut damaged = bytes.clone();
        damaged[bytes.len() / 2] ^= 1;
        self.folder(root).store().put(name.as_bytes(), damaged.into()).unwrap();
        let report = told("repair", regrow::repair(self.target(root), &RepairOptions::default()))?;
        if !report.is_sound() || files(&self.folder(root)).get(name) != Some(bytes) {
            return Err(format!("a byte is not healed: {report} {:?}", report.lost));
        }
        Ok(())
    }

    /// Whether what was put beside the checkpoint is there, and good for something.
    fn is_protected(&self, root: &Location) -> Result<bool, String> {
        let target = self.target(root);
        Ok(match self.work {
            Work::Seal => told("verify", verify(&target))?.has_data_checksums,
            Work::Sign => {
                let trusted_keys = vec![key("alice.pem").unwrap().public_key()];
                open_with(&target, &OpenOptions { trusted_keys, ..OpenOptions::default() }).is_ok()
            }
            Work::Parity | Work::Repair => {
                let check = RepairOptions { check: true, ..RepairOptions::default() };
                regrow::repair(&target, &check).is_ok_and(|report| {
                    report.is_sound() && report.healed.is_empty() && !report.is_parity_damaged
                })
            }
        })
    }
}

impl Scene for Beside {
    fn name(&self) -> String {
        let over = if self.is_there { " again" } else { "" };
        format!("{:?}{over} {} {}", self.work, self.layout, self.file)
    }

    fn prepare(&self, root: &Location) {
        self.save(root, NEW);
        if self.is_there {
            self.work(root).unwrap();
            if self.work == Work::Parity {
                // Of other blocks than those to come.
                let ratio = "1/4".parse().unwrap();
                regrow::add_parity(self.target(root), &ParityOptions { ratio, ..ParityOptions::default() })
                    .unwrap();
            }
        }
        if self.work == Work::Repair {
            let parity = Beside { work: Work::Parity, files: OnceCell::new(), ..*self };
            parity.work(root).unwrap();
            let good = files(&self.folder(root));
            let damaged = self.damage(&good);
            let store = self.folder(root).store();
            for (name, bytes) in &good {
                match damaged.get(name) {
                    None => store.delete(name.as_bytes()).unwrap(),
                    Some(now) if now != bytes => store.put(name.as_bytes(), now.clone().into()).unwrap(),
                    Some(_) => {}
                }
            }
            self.files.set((good, damaged)).unwrap();
        }
    }

    fn act(&self, root: &Location) -> regrow::Result<()> {
        self.work(root)
    }

    fn check(&self, root: &Location, is_done: bool) -> Result<(), String> {
        if let Some((good, damaged)) = self.files.get() {
            let found = files(&self.folder(root));
            // Of parity that was damaged there is another one.
            for (name, good) in good.iter().filter(|(name, _)| !is_beside(name)) {
                let (now, was) = (found.get(name), damaged.get(name));
                if now != Some(good) && (is_done || now != was) {
                    let lens = [now, was, Some(good)].map(|bytes| bytes.map(Vec::len));
                    return Err(format!("{name} is neither damaged as before nor whole: {lens:?} bytes"));
                }
            }
        } else {
            self.check_whole(root)?;
            if is_done && !self.is_protected(root)? {
                return Err(format!("{:?} had returned, and nothing is there", self.work));
            }
            // The old one or the new one heals, or vouches, at any time.
            if self.is_there && self.work == Work::Parity {
                self.check_heals(root)?;
            } else if self.is_there && !self.is_protected(root)? {
                return Err("neither the old one is there nor the new one".to_owned());
            }
        }
        told("the next one", self.work(root))?;
        self.check_whole(root)?;
        if !self.is_protected(root)? {
            return Err(format!("after the next {:?} nothing is there", self.work));
        }
        let names = files(&self.folder(root));
        if let Some((good, _)) = self.files.get() {
            // The parity is made again if it was damaged.
            let is_as_before = |(name, bytes): (&String, &Vec<u8>)| is_beside(name) || good[name] == *bytes;
            if !names.keys().eq(good.keys()) || !names.iter().all(is_as_before) {
                return Err(format!("other files than before: {:?}", names.keys()));
            }
        }
        let strangers: Vec<&String> = names.keys().filter(|name| name.contains("tmp")).collect();
        if !strangers.is_empty() {
            return Err(format!("left beside it: {strangers:?}"));
        }
        make_room(&self.target(root), self.layout)?;
        // What is saved here now is of no old seal, signature or parity.
        self.save(root, OLD);
        let left: Vec<String> =
            files(&self.folder(root)).into_keys().filter(|name| is_beside(name)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("the next save has left {left:?}")) }
    }
}

pub fn scenes() -> Vec<Box<dyn Scene>> {
    let mut scenes: Vec<Box<dyn Scene>> = Vec::new();
    for (layout, file) in [("orbax", "ckpt"), ("flax", "ckpt.msgpack"), ("pytree_data", "ckpt")] {
        for work in [Work::Seal, Work::Sign, Work::Parity, Work::Repair] {
            for is_there in [false, true] {
                // What is damaged is damaged once; a seal on what is sealed is the same seal.
                if work == Work::Repair && is_there {
                    continue;
                }
                scenes.push(Box::new(Beside { work, layout, file, is_there, files: OnceCell::new() }));
            }
        }
    }
    scenes
}
