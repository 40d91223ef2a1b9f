//! Arrays without any metadata, from before July 2023: `params.w/.zarray …`, and nothing else.
//!
//! The names, split at dots, give a tree of dicts. Since nothing says "this is a checkpoint", everything below the
//! folder has to be of an array: a folder above several checkpoints, or a home with an array somewhere in it, has
//! arrays below it, too, and is no tree of them.
//!
//! Source: orbax' `legacy` readers.

use super::arrays::{Arrays, DOCUMENTS};
use super::metadata::TreeMetadata;
use super::opened::{Opened, Wanted};
use super::steps::TMP_MARK;
use super::structure;
use crate::commit::CHECKPOINT_MARKERS;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::suggestions;
use crate::location::Location;
use crate::tree::LeafKind;
use crate::zarr::Missing;

/// What may lie beside the arrays: Orbax' files of other ages, which only `_METADATA` made a checkpoint, and notes.
const BESIDE: [&str; 2] = ["_sharding", "_strings.json"];
const BESIDE_SUFFIXES: [&str; 2] = [".md", ".txt"];

/// Orbax' folder of types beside the arrays.
const TYPES_FOLDER: &str = "array_metadatas";

/// Opens arrays without any metadata.
///
/// # Errors
/// `Corrupt` with file and leaf; `NotACheckpoint` if something below is no part of an array, with the checkpoints
/// that lie there.
pub(super) fn open(folder: &Location, wanted: Wanted) -> Result<Opened> {
    let found = Walk::whole().run(folder)?;
    if let Some(foreign) = &found.foreign {
        return Err(refused(folder, foreign));
    }
    let names = found.names;
    let metadata = TreeMetadata::of_names(names.iter());
    // What Orbax wrote in those days has all its chunks.
    let mut arrays = Arrays::in_folders(folder, false, Missing::Error, wanted)?;
    let tree = structure::build(&metadata)?.try_map(|_, &position| match names.get(position) {
        Some(name) => arrays.leaf(name, LeafKind::NumpyArray),
        None => Err(Error::corrupt("an array has no name")
            .expected(format_args!("a number below {}", names.len()), position)
            .in_file(folder)),
    })?;
    if tree.len() < names.len() {
        return Err(Error::corrupt(
            "the name of an array is also the beginning of another's, so no tree can hold both",
        )
        .in_file(folder));
    }
    let guessed = "there is no metadata: the tree is guessed from the names of arrays, all of it dicts, and arrays that are \
                   gone are not missed";
    Ok(Opened { warnings: vec![guessed.to_owned()], ..Opened::new(tree, "folders, no metadata") })
}

/// Whether arrays, and nothing else, lie below: as far as a look goes that stops at the first other file.
///
/// # Errors
/// What the storage says.
pub(super) fn are_in(folder: &Location) -> Result<bool> {
    let found = Walk::look().run(folder)?;
    Ok(found.foreign.is_none() && !found.names.is_empty())
}

fn refused(folder: &Location, foreign: &str) -> Error {
    let what =
        "there are zarr arrays below this folder, but it is no checkpoint: something else is there, too";
    Error::new(ErrorKind::NotACheckpoint, what)
        .in_file(folder)
        .expected("arrays and nothing else, where no metadata say what is part of a checkpoint", foreign)
        .help(
            suggestions::checkpoints_in(folder).unwrap_or_else(|| "name a folder of arrays alone".to_owned()),
        )
}

/// How far to go.
struct Walk {
    folders_max: usize,
    entries_max: usize,
    /// Whether to go through the chunks of arrays: other arrays may lie among them.
    into_arrays: bool,
}

#[derive(Default)]
struct Found {
    /// Of all arrays, sorted: their paths below the folder.
    names: Vec<String>,
    /// The first thing that is of no array: its path below the folder.
    foreign: Option<String>,
}

impl Walk {
    fn look() -> Self {
        Self { folders_max: 1000, entries_max: 20_000, into_arrays: false }
    }

    fn whole() -> Self {
        Self { folders_max: 1 << 20, entries_max: usize::MAX, into_arrays: true }
    }

    fn run(&self, folder: &Location) -> Result<Found> {
        let mut found = Found::default();
        let mut open = vec![(folder.clone(), String::new(), false)];
        let (mut folders, mut entries) = (0, 0);
        while let Some((at, name, mut in_array)) = open.pop() {
            folders += 1;
            if folders > self.folders_max {
                break;
            }
            if !name.is_empty() && DOCUMENTS.iter().any(|document| at.join(document).is_file()) {
                found.names.push(name.clone());
                in_array = true;
                if !self.into_arrays {
                    continue;
                }
            }
            let listed = match at.entries() {
                Ok(listed) => listed,
                // What cannot be looked into holds no array of this checkpoint, or its absence will be noticed.
                Err(_) if !name.is_empty() => continue,
                Err(error) => return Err(error),
            };
            for entry in listed {
                entries += 1;
                if entries > self.entries_max {
                    break;
                }
                // Names that are no UTF-8 are left out: Orbax writes none.
                let Some(own) = entry.name.to_str() else { continue };
                let below = || if name.is_empty() { own.to_owned() } else { format!("{name}/{own}") };
                if entry.is_folder() {
                    // What is linked to is not gone into.
                    if !entry.is_link && !own.contains(TMP_MARK) {
                        open.push((at.join(own), below(), in_array));
                    }
                } else if is_foreign(&name, own, in_array) {
                    found.foreign = Some(below());
                    return Ok(found);
                }
            }
        }
        found.names.sort_unstable();
        Ok(found)
    }
}

/// Whether a file is of no array. Among the chunks of one, only what makes another checkpoint is sure to be none.
fn is_foreign(folder: &str, file: &str, in_array: bool) -> bool {
    if in_array {
        return CHECKPOINT_MARKERS.contains(&file);
    }
    let is_beside = BESIDE.contains(&file) || BESIDE_SUFFIXES.iter().any(|suffix| file.ends_with(suffix));
    let is_array = DOCUMENTS.contains(&file) || file.starts_with('.');
    !(is_beside || is_array || folder == TYPES_FOLDER)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn put(root: &Path, names: &[&str]) {
        for name in names {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, b"").unwrap();
        }
    }

    #[test]
    fn everything_below_is_of_an_array() {
        let bare = [
            "a.b/.zarray",
            "a.b/0.0",
            "c/d/.zarray",
            "c/d/0/1",
            "c/d/e/.zarray",
            "f/zarr.json",
            "f/c/0",
            "README.md",
            ".DS_Store",
            "_sharding",
            "array_metadatas/process_0",
        ];
        let root = tempfile::tempdir().unwrap();
        let at = Location::local(root.path());
        put(root.path(), &bare);
        assert!(are_in(&at).unwrap());
        assert_eq!(Walk::whole().run(&at).unwrap().names, ["a.b", "c/d", "c/d/e", "f"]);
        for foreign in ["plot.png", "c/regrow.json", "other/run/checkpoint", "w.safetensors"] {
            put(root.path(), &[foreign]);
            assert!(!are_in(&at).unwrap(), "{foreign}");
            assert_eq!(open(&at, Wanted::Whole).unwrap_err().kind(), ErrorKind::NotACheckpoint, "{foreign}");
            fs::remove_file(root.path().join(foreign)).unwrap();
        }
        // Too far in for a look, but not for who opens it.
        put(root.path(), &["c/d/run/_METADATA"]);
        assert!(are_in(&at).unwrap());
        let error = open(&at, Wanted::Whole).unwrap_err();
        assert_eq!(error.expected_found().unwrap().1, "c/d/run/_METADATA");
        assert!(error.help_text().unwrap().contains("\"c/d/run\""));
    }

    #[test]
    fn a_look_ends() {
        let root = tempfile::tempdir().unwrap();
        let at = Location::local(root.path());
        put(root.path(), &["a/.zarray", "a/0", "b/.zarray", "b/0"]);
        let few = Walk { folders_max: 2, ..Walk::look() };
        assert_eq!(few.run(&at).unwrap().names.len(), 1);
        let none = Walk { entries_max: 0, ..Walk::look() };
        assert!(none.run(&at).unwrap().names.is_empty());
    }
}
