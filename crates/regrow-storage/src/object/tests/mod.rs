//! Rules of all operations on a target in a bucket: every request of every operation fails, or
//! something happens after it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::listing::Listing;
use super::marker::{MARKER, OTHER_MARKER};
use super::{MemoryObjects, ObjectStorage, Objects};
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::transfer::{Left, Marker};
use crate::{PublishOptions, Removal, Target, TransferFile, TransferOptions};

mod cases;
mod faults;
mod others;
mod scripted;

pub(super) use scripted::{Fault, Scripted};

/// The files of a checkpoint in a folder.
const FILES: [&str; 3] = ["_METADATA", "d/a", "d/b"];
const SUFFIXES: [&str; 2] = [".data", ".manifest"];

/// The kind of the checkpoint, with the marker of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Folder(Marker),
    File,
    Pair,
}

impl Kind {
    fn all() -> [Self; 5] {
        let folders = [Marker::Own(Vec::new()), Marker::Other, Marker::OfSteps].map(Self::Folder);
        let [own, other, of_steps] = folders;
        [own, other, of_steps, Self::File, Self::Pair]
    }

    /// One kind of each `Target`.
    fn few() -> [Self; 3] {
        [Self::Folder(Marker::Own(Vec::new())), Self::File, Self::Pair]
    }

    fn target(&self) -> Target {
        match self {
            Self::Folder(_) => Target::Folder,
            Self::File => Target::File,
            Self::Pair => Target::Siblings { suffixes: SUFFIXES.map(str::to_owned).to_vec() },
        }
    }

    /// The keys of the files. The last file of a pair makes the checkpoint.
    fn keys(&self) -> Vec<String> {
        match self {
            Self::Folder(_) => FILES.iter().map(|name| format!("x/{name}")).collect(),
            Self::File => vec!["x".to_owned()],
            Self::Pair => SUFFIXES.iter().map(|suffix| format!("x{suffix}")).collect(),
        }
    }
}

/// An operation on the target `x`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Save,
    Overwrite,
    Copy,
    CopyOver,
    Remove,
    /// The lock of a repair, a seal or a signature.
    Change,
    Clean,
    Finish,
}

impl Act {
    const ALL: [Self; 8] = [
        Self::Save,
        Self::Overwrite,
        Self::Copy,
        Self::CopyOver,
        Self::Remove,
        Self::Change,
        Self::Clean,
        Self::Finish,
    ];

    fn writes(self) -> bool {
        matches!(self, Self::Save | Self::Overwrite | Self::Copy | Self::CopyOver)
    }

    fn replaces(self) -> bool {
        matches!(self, Self::Overwrite | Self::CopyOver)
    }

    /// What readers see after it, if they saw `before`; `None` if it is refused.
    fn after(self, kind: &Kind, before: Option<u8>, fill: u8) -> Option<Option<u8>> {
        match self {
            // A pair in a bucket is never replaced.
            Self::Overwrite | Self::CopyOver if *kind != Kind::Pair => Some(Some(fill)),
            _ if self.writes() => before.is_none().then_some(Some(fill)),
            Self::Remove => before.map(|_| None),
            _ => Some(before),
        }
    }
}

fn location(objects: &(impl Objects + Clone + 'static)) -> Location {
    Location::new(Arc::new(ObjectStorage::new(Arc::new(objects.clone()))), "x")
}

/// Performs an operation, which writes files with these bytes.
fn act(objects: &Scripted, kind: &Kind, act: Act, fill: u8) -> Result<()> {
    let (at, monitor) = (location(objects), Monitor::new());
    let overwrite = act.replaces();
    let options =
        PublishOptions { overwrite, wait: Some(Duration::ZERO), ..PublishOptions::of_new(&monitor) };
    match act {
        Act::Save | Act::Overwrite => save(&at, kind, options, fill),
        Act::Copy | Act::CopyOver => copy(&at, kind, overwrite, fill),
        Act::Remove => {
            let lock = at.lock("remove", Some(Duration::ZERO), &monitor)?;
            let files = kind.keys().into_iter().rev().map(|key| at.with_name(key)).collect();
            let what = match kind {
                Kind::Folder(_) => Removal::Folder,
                Kind::File | Kind::Pair => Removal::Files { files, beside: Vec::new() },
            };
            match at.remove(&what, &lock)?.file_count {
                0 => Err(Error::new(ErrorKind::NotFound, "no file was there")),
                _ => Ok(()),
            }
        }
        Act::Change => at.lock("seal", Some(Duration::ZERO), &monitor).map(drop),
        Act::Clean => at.remove_unfinished(false).map(drop),
        Act::Finish => at.finish_unfinished().map(drop),
    }
}

fn save(at: &Location, kind: &Kind, options: PublishOptions<'_>, fill: u8) -> Result<()> {
    match kind {
        Kind::Folder(marker) => {
            let new = at.publish_folder(options)?;
            for name in FILES {
                match name {
                    "d/a" => {
                        let mut writer = new.writer(name, 0, 0)?;
                        writer.write(&[fill])?;
                        writer.finish()?;
                    }
                    _ => new.write(name, &[fill])?,
                }
            }
            if let Marker::Own(_) = marker {
                new.write(MARKER, &[])?;
            }
            new.commit()
        }
        Kind::File => {
            let new = at.publish_file(options)?;
            let mut writer = new.single_writer(0, 0)?;
            writer.write(&[fill])?;
            writer.finish()?;
            new.commit()
        }
        Kind::Pair => {
            let new = at.publish_siblings(&SUFFIXES.map(str::to_owned), options)?;
            for number in 0..SUFFIXES.len() {
                let mut writer = new.sibling_writer(number, 0, 0)?;
                writer.write(&[fill])?;
                writer.finish()?;
            }
            new.commit()
        }
    }
}

fn copy(at: &Location, kind: &Kind, overwrite: bool, fill: u8) -> Result<()> {
    let monitor = Monitor::new();
    let names = match kind {
        Kind::Folder(_) => FILES.to_vec(),
        Kind::File => vec!["x"],
        Kind::Pair => SUFFIXES.to_vec(),
    };
    let file = |name: &str| TransferFile { name: name.to_owned(), len_bytes: 1, version: fill.to_string() };
    let files: Vec<TransferFile> = names.into_iter().map(file).collect();
    let target = kind.target();
    let marker = match kind {
        Kind::Folder(marker) => marker.clone(),
        _ => Marker::Other,
    };
    let new = at.transfer(TransferOptions {
        marker: &marker,
        overwrite,
        wait: Some(Duration::ZERO),
        ..TransferOptions::of_files(&target, &files, &monitor)
    })?;
    for number in 0..files.len() {
        let digest = blake3::hash(&[fill]);
        if let Left::Whole { digest: left, .. } = new.left(number) {
            assert_eq!(left, digest);
            continue;
        }
        let mut writer = new.writer(number, 0)?;
        writer.write(&[fill])?;
        writer.finish()?;
        drop(new.written(number)?);
        new.finished(number, digest, true)?;
    }
    new.commit()
}

/// All objects, with their bytes.
fn content(inner: &MemoryObjects) -> BTreeMap<String, Bytes> {
    let objects: Arc<dyn Objects> = Arc::new(inner.clone());
    let all = objects.list("").unwrap();
    all.into_iter().map(|object| (object.key.clone(), objects.get(&object.key).unwrap().unwrap().0)).collect()
}

/// The checkpoint that readers see; `None` if there is none. Panics if it is incomplete.
fn seen(inner: &MemoryObjects, kind: &Kind) -> std::result::Result<Option<u8>, String> {
    let all = content(inner);
    let fill_of = |keys: &[String]| {
        let fills: Vec<u8> = keys.iter().filter_map(|key| all.get(key)?.first().copied()).collect();
        match fills.first() {
            Some(first) if fills.len() == keys.len() && fills.iter().all(|fill| fill == first) => {
                Ok(Some(*first))
            }
            _ => Err(format!("an incomplete checkpoint: {all:?}")),
        }
    };
    let has = |key: &str| all.contains_key(key);
    match kind {
        Kind::Folder(marker) => {
            // Other programs see only the usual marker.
            if has(&format!("x/{MARKER}")) {
                fill_of(&kind.keys())?;
            }
            let objects: Arc<dyn Objects> = Arc::new(inner.clone());
            let listing = Listing::of_checkpoint(&objects, "x/".to_owned()).unwrap();
            let found = match listing.of_readers(&objects) {
                Err(error) if error.kind() == ErrorKind::Uncommitted => return Ok(None),
                found => found.map_err(|error| format!("{error}: {all:?}"))?,
            };
            if found.has_only_state() {
                return Ok(None);
            }
            if !found.is_marked() && *marker != Marker::OfSteps {
                return Err(format!("files without a marker and without a state: {all:?}"));
            }
            let key = |name: &&str| format!("{}{name}", found.prefix());
            fill_of(&FILES.iter().map(key).collect::<Vec<_>>())
        }
        Kind::File if !has("x") => Ok(None),
        Kind::Pair if !has("x.manifest") => match has("x.data") && !all.keys().any(|key| is_state(key)) {
            true => Err(format!("a file without a state: {all:?}")),
            false => Ok(None),
        },
        Kind::File | Kind::Pair => fill_of(&kind.keys()),
    }
}

fn is_state(key: &str) -> bool {
    key.ends_with("state.json")
}

/// A bucket, and what readers see in it.
fn bucket(kind: &Kind, before: Option<u8>) -> MemoryObjects {
    // Each test has a bucket of its own.
    let inner = MemoryObjects::new(&format!("{:?}", std::thread::current().id()));
    if let Some(fill) = before {
        let kind = if *kind == Kind::Folder(Marker::OfSteps) { &Kind::Folder(Marker::Other) } else { kind };
        copy(&location(&inner), kind, false, fill).unwrap();
        assert_eq!(seen(&inner, kind), Ok(before));
    }
    inner
}

/// Ends all operations: one more overwrite succeeds, and no other files stay.
fn check_end(inner: &MemoryObjects, kind: &Kind, after: &[Act]) -> std::result::Result<(), String> {
    const LAST: u8 = 9;
    let objects = Scripted::new(inner);
    let said = |error: Error| format!("{error}: {:?}", content(inner).keys());
    let mut expected = kind.keys();
    expected.sort();
    if *kind == Kind::Folder(Marker::OfSteps) && seen(inner, kind)?.is_some() {
        act(&objects, kind, Act::Change, 0).map_err(said)?;
        if !content(inner).keys().any(|key| is_marker(key)) {
            // No overwrite replaces a folder of steps.
            let _ = act(&objects, kind, Act::Clean, 0);
            let left: Vec<String> = content(inner).into_keys().collect();
            return if left == expected { Ok(()) } else { Err(format!("after a cleanup: {left:?}")) };
        }
    }
    if *kind == Kind::Pair && seen(inner, kind)?.is_some() {
        // A pair in a bucket is never replaced.
        match act(&objects, kind, Act::Remove, 0) {
            // The lock has ended the removal of a dead process.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            removed => removed.map_err(said)?,
        }
    }
    let is_copy = after.iter().any(|act| matches!(act, Act::Copy | Act::CopyOver));
    let last = match kind {
        Kind::Pair if is_copy => Act::Copy,
        Kind::Pair => Act::Save,
        // A copy of one file leaves its temporary object for the next copy.
        Kind::File if is_copy => Act::CopyOver,
        _ => Act::Overwrite,
    };
    // The first save to an empty target does not look for temporary folders.
    let is_new = seen(inner, kind)?.is_none() && matches!(kind, Kind::Folder(_));
    for _ in 0..1 + usize::from(is_new) {
        act(&objects, kind, last, LAST).map_err(|error| format!("{last:?}: {}", said(error)))?;
    }
    let left: Vec<String> = content(inner).into_keys().filter(|key| !is_marker(key)).collect();
    if left != expected || seen(inner, kind)? != Some(LAST) {
        return Err(format!("after the last overwrite: {left:?}"));
    }
    Ok(())
}

fn is_marker(key: &str) -> bool {
    [MARKER, OTHER_MARKER].iter().any(|name| key == format!("x/{name}"))
}

/// Panics if there are wrong results, and prints one of each sort.
fn none_of(wrong: &BTreeMap<String, Vec<String>>) {
    for (what, faults) in wrong {
        println!(
            "{what}\n    {} times, after {}",
            faults.len(),
            faults.iter().take(5).cloned().collect::<Vec<_>>().join("; ")
        );
    }
    assert!(wrong.is_empty(), "{} sorts of wrong results", wrong.len());
}
