//! Layouts from before `_METADATA` (July 2023).
//!
//! ```text
//! checkpoint                          msgpack with everything in it
//! checkpoint  params.w/.zarray …      msgpack with the structure; "PLACEHOLDER://params.w" stands for an array
//! params.w/.zarray …                  arrays alone: the names, split at dots, give a tree of dicts
//! ```
//!
//! The msgpack is Flax': [`flax`](crate::formats::flax). Source: orbax' `legacy` readers.

use std::path::Path;

use bytes::Bytes;

use super::arrays::{Arrays, DOCUMENTS, MANIFEST_FILE};
use super::files::list;
use super::metadata::{Entry, KeyType, TreeMetadata};
use super::pytree::Opened;
use super::slot::{Slot, Source};
use super::steps::{AGGREGATE_FILE, TMP_MARK};
use super::structure;
use crate::error::{Error, Result, ResultExt};
use crate::formats::flax::decode::decode;
use crate::formats::flax::msgpack::begins_map;
use crate::store::{LocalStore, Store, StoreExt};
use crate::tree::{LeafKind, Tree};
use crate::zarr::Missing;

/// What a text in the msgpack file begins with if an array stands in its place; the second is the older one.
const PLACEHOLDERS: [&str; 2] = ["PLACEHOLDER://", "AGGREGATED://"];

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
    let file = folder.join(AGGREGATE_FILE);
    let mut arrays = None;
    let mut slots = Vec::new();
    let tree = decode(&whole(folder, AGGREGATE_FILE)?).in_file(&file)?;
    let infos = tree.map(|leaf| slots.push(Slot::decoded(leaf)));
    for (slot, (path, ())) in slots.iter_mut().zip(infos.iter()) {
        let Source::Text(text) = &slot.source else { continue };
        let Some(name) = PLACEHOLDERS.iter().find_map(|prefix| text.strip_prefix(prefix)) else { continue };
        if arrays.is_none() {
            arrays = Some(match folder.join(MANIFEST_FILE).is_file() {
                true => Arrays::in_database(folder, false, Missing::Fill)?,
                false => Arrays::in_folders(folder, false, Missing::Fill),
            });
        }
        if let Some(arrays) = &mut arrays {
            let stored = arrays.leaf(name, LeafKind::NumpyArray);
            *slot = stored.map_err(|error| error.at_leaf(&path).in_file(&file))?;
        }
    }
    infos.with_leaves(slots)
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

/// Whether a file is named and begins like the msgpack file `checkpoint`.
pub(super) fn is_msgpack_file(file: &Path) -> bool {
    if file.file_name().is_none_or(|name| name != AGGREGATE_FILE) {
        return false;
    }
    let mut first = [0];
    let read =
        std::fs::File::open(file).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut first));
    read.is_ok() && begins_map(first[0])
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
