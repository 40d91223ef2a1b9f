//! Layouts from before `_METADATA` (July 2023), and flax' own files.
//!
//! ```text
//! checkpoint                          msgpack with everything in it
//! checkpoint  params.w/.zarray …      msgpack with the structure; "PLACEHOLDER://params.w" stands for an array
//! params.w/.zarray …                  arrays alone: the names, split at dots, give a tree of dicts
//! checkpoint_7  checkpoint_8          flax.training.checkpoints: one msgpack file a step
//! ```
//!
//! Source: orbax' `legacy` readers and flax `training/checkpoints.py`.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::arrays::{Arrays, DOCUMENTS, MANIFEST_FILE};
use super::files::{Listed, list};
use super::metadata::{Entry, KeyType, TreeMetadata};
use super::pytree::Opened;
use super::slot::Slot;
use super::steps::{AGGREGATE_FILE, TMP_MARK};
use super::{msgpack, structure};
use crate::error::{Error, Result};
use crate::store::{LocalStore, Store, StoreExt};
use crate::tree::{LeafKind, Tree};
use crate::zarr::Missing;

/// What a text in the msgpack file begins with if an array stands in its place; the second is the older one.
const PLACEHOLDERS: [&str; 2] = ["PLACEHOLDER://", "AGGREGATED://"];

/// The same in flax' files of several processes; those arrays need their `_gda` folders and are not read.
const GDA_PLACEHOLDER: &str = "//GDAPlaceholder:";

/// Before the step in flax' file names.
const FLAX_PREFIX: &str = "checkpoint_";

/// Folders looked into when looking for arrays without any metadata.
const FOLDERS_MAX: usize = 1 << 20;

/// Opens a folder with the msgpack file `checkpoint`.
///
/// # Errors
/// `Corrupt` with file and leaf.
pub(super) fn open_aggregate(folder: &Path) -> Result<Opened> {
    Ok(Opened {
        tree: read_aggregate(folder)?,
        custom_metadata: None,
        variant: "msgpack".to_owned(),
        notes: Vec::new(),
        database: folder.join(MANIFEST_FILE).is_file().then(|| folder.to_owned()),
    })
}

/// The tree in the msgpack file `checkpoint`, with the arrays that its placeholders stand for.
///
/// # Errors
/// `Corrupt` with file and leaf.
pub(super) fn read_aggregate(folder: &Path) -> Result<Tree<Slot>> {
    let mut arrays = None;
    let mut resolve = |text: &str| {
        let Some(name) = PLACEHOLDERS.iter().find_map(|prefix| text.strip_prefix(prefix)) else {
            return Ok(None);
        };
        if arrays.is_none() {
            arrays = Some(match folder.join(MANIFEST_FILE).is_file() {
                true => Arrays::in_database(folder, false, Missing::Fill)?,
                false => Arrays::in_folders(folder, false, Missing::Fill),
            });
        }
        arrays.as_mut().map(|arrays| arrays.leaf(name, LeafKind::NumpyArray)).transpose()
    };
    msgpack::decode(&whole(folder, AGGREGATE_FILE)?, &folder.join(AGGREGATE_FILE), &mut resolve)
}

/// Opens one of flax' files.
///
/// # Errors
/// `Corrupt` with file and leaf.
pub(super) fn open_flax(file: &Path) -> Result<Opened> {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name().and_then(|name| name.to_str())) else {
        return Err(Error::invalid("the path of a checkpoint has no file name").in_file(file));
    };
    let mut resolve = |text: &str| {
        let gda = text.strip_prefix(GDA_PLACEHOLDER);
        Ok(gda.map(|name| Slot::absent(name, LeafKind::Unknown("array in a _gda folder".into()))))
    };
    Ok(Opened {
        tree: msgpack::decode(&whole(folder, name)?, file, &mut resolve)?,
        custom_metadata: None,
        variant: "flax msgpack".to_owned(),
        notes: Vec::new(),
        database: None,
    })
}

/// Opens arrays without any metadata.
///
/// # Errors
/// `Corrupt` with file and leaf, `NameCollision` if one name is another's beginning.
pub(super) fn open_bare(folder: &Path) -> Result<Opened> {
    let names = array_names(folder, FOLDERS_MAX)?;
    let entry = |name: &String| Entry {
        keys: name.split('.').map(|key| (KeyType::Dict, key.to_owned())).collect(),
        value_type: "np.ndarray".to_owned(),
        skip_deserialize: false,
        write_shape: None,
    };
    let metadata = TreeMetadata { entries: names.iter().map(entry).collect(), ..TreeMetadata::default() };
    let mut arrays = Arrays::in_folders(folder, false, Missing::Fill);
    let tree = structure::build(&metadata)?.try_map(|_, &position| match names.get(position) {
        Some(name) => arrays.leaf(name, LeafKind::NumpyArray),
        None => Err(Error::corrupt("an array has no name")),
    })?;
    if tree.len() < names.len() {
        return Err(Error::corrupt(
            "the name of an array is also the beginning of another's, so no tree can hold both",
        )
        .in_file(folder));
    }
    Ok(Opened {
        tree,
        custom_metadata: None,
        variant: "folders, no metadata".to_owned(),
        notes: vec!["there is no metadata: the tree is guessed from names, all of it dicts".to_owned()],
        database: None,
    })
}

/// Whether arrays lie somewhere below; looks into a thousand folders at most.
///
/// # Errors
/// What the file system says.
pub(super) fn has_bare_arrays(folder: &Path) -> Result<bool> {
    Ok(!array_names(folder, 1000)?.is_empty())
}

/// flax' files in a folder, by step; files whose step is no whole number are left out.
pub(super) fn flax_steps(folder: &Path, listed: &[Listed]) -> Vec<(u64, PathBuf)> {
    let mut steps: Vec<(u64, PathBuf)> = listed
        .iter()
        .filter(|entry| !entry.is_dir)
        .filter_map(|entry| {
            Some((entry.name.strip_prefix(FLAX_PREFIX)?.parse().ok()?, folder.join(&entry.name)))
        })
        .filter(|(_, file)| is_msgpack_map(file))
        .collect();
    steps.sort_unstable();
    steps
}

/// Whether a file is named and begins like one of these msgpack files.
pub(super) fn is_msgpack_file(file: &Path) -> bool {
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    (name == AGGREGATE_FILE || name.starts_with(FLAX_PREFIX) || name.ends_with(".msgpack"))
        && is_msgpack_map(file)
}

fn is_msgpack_map(file: &Path) -> bool {
    let mut first = [0];
    let read =
        std::fs::File::open(file).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut first));
    read.is_ok() && msgpack::starts_like_a_map(first[0])
}

/// The names of all zarr arrays below, sorted: folders that hold a document.
fn array_names(folder: &Path, folders_max: usize) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let mut open = vec![(folder.to_owned(), String::new())];
    let mut looked_into = 0;
    while let Some((path, name)) = open.pop() {
        looked_into += 1;
        if looked_into > folders_max {
            break;
        }
        let entries = match list(&path) {
            Ok(entries) => entries,
            // What cannot be looked into holds no array of this checkpoint, or its absence will be noticed.
            Err(_) if !name.is_empty() => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            if entry.is_dir && !entry.is_link && !entry.name.contains(TMP_MARK) {
                let below =
                    if name.is_empty() { entry.name.clone() } else { format!("{name}/{}", entry.name) };
                open.push((path.join(&entry.name), below));
            } else if DOCUMENTS.contains(&entry.name.as_str()) && !name.is_empty() {
                names.push(name.clone());
            }
        }
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// A whole file, mapped if it can be: its arrays are then read where they lie.
fn whole(folder: &Path, name: &str) -> Result<Bytes> {
    let store = LocalStore::new(folder);
    if let Some(map) = store.map(name.as_bytes())? {
        return Ok(map);
    }
    store
        .get_whole(name.as_bytes())?
        .ok_or_else(|| Error::corrupt("the file that holds the tree is missing").in_file(folder.join(name)))
}
