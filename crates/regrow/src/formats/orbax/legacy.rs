//! Layouts from before `_METADATA` (July 2023).
//!
//! ```text
//! checkpoint                          msgpack with everything in it
//! checkpoint  params.w/.zarray …      msgpack with the structure; "PLACEHOLDER://params.w" stands for an array
//! ```
//!
//! Arrays without even that are [`bare`](super::bare)'s.
//!
//! The msgpack is Flax': [`flax`](crate::formats::flax). Source: orbax' `legacy` readers.

use bytes::Bytes;

use super::arrays::Arrays;
use super::marker_files::{AGGREGATE_FILE, MANIFEST_FILE};
use super::opened::{Opened, Wanted};
use super::slot::{Slot, Source};
use crate::error::{Error, Result, ResultExt};
use crate::formats::flax::decode::{decode, decode_front};
use crate::formats::flax::msgpack::begins_map;
use crate::location::Location;
use crate::tree::{LeafKind, Tree};
use crate::zarr::Missing;

/// What a text in the msgpack file begins with if an array stands in its place; the second is the older one.
const PLACEHOLDERS: [&str; 2] = ["PLACEHOLDER://", "AGGREGATED://"];

/// Opens a folder with the msgpack file `checkpoint`.
///
/// # Errors
/// `Corrupt` with file and leaf.
pub(super) fn open_aggregate(folder: &Location, wanted: Wanted) -> Result<Opened> {
    let database = folder.join(MANIFEST_FILE).is_file().then(|| folder.clone());
    Ok(Opened { database, ..Opened::new(read_aggregate(folder, wanted)?, "msgpack") })
}

/// The tree in the msgpack file `checkpoint`, with the arrays that its placeholders stand for.
///
/// # Errors
/// `Corrupt` with file and leaf.
pub(super) fn read_aggregate(folder: &Location, wanted: Wanted) -> Result<Tree<Slot>> {
    let file = folder.join(AGGREGATE_FILE);
    let mut arrays = None;
    let mut slots = Vec::new();
    let bytes = whole(folder, AGGREGATE_FILE)?;
    let tree = match wanted {
        Wanted::Whole | Wanted::Named => decode(&bytes),
        Wanted::Intact | Wanted::Arrays => decode_front(&bytes),
    };
    let tree = tree.in_file(&file)?;
    let infos = tree.map(|leaf| slots.push(Slot::decoded(leaf)));
    for (slot, (path, ())) in slots.iter_mut().zip(infos.iter()) {
        let Source::Text(text) = &slot.source else { continue };
        let Some(name) = PLACEHOLDERS.iter().find_map(|prefix| text.strip_prefix(prefix)) else { continue };
        if arrays.is_none() {
            arrays = Some(match folder.join(MANIFEST_FILE).is_file() {
                true => Arrays::in_database(folder, false, Missing::Fill, wanted)?,
                false => Arrays::in_folders(folder, false, Missing::Fill, wanted)?,
            });
        }
        if let Some(arrays) = &mut arrays {
            let stored = arrays.leaf(name, LeafKind::NumpyArray);
            *slot = stored.map_err(|error| error.at_leaf(&path).in_file(&file))?;
        }
    }
    infos.with_leaves(slots)
}

/// Whether a file is named and begins like the msgpack file `checkpoint`.
pub(super) fn is_msgpack_file(file: &Location) -> bool {
    if file.name() != AGGREGATE_FILE {
        return false;
    }
    matches!(file.read_beginning(1), Ok(Some(first)) if first.first().is_some_and(|&byte| begins_map(byte)))
}

/// A whole file, mapped if it can be: its arrays are then read where they lie.
fn whole(folder: &Location, name: &str) -> Result<Bytes> {
    folder
        .store()
        .whole(name.as_bytes())?
        .ok_or_else(|| Error::corrupt("the file that holds the tree is missing").in_file(folder.join(name)))
}
