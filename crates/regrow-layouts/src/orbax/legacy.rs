//! Layouts from before `_METADATA` (July 2023).
//!
//! ```text
//! checkpoint                          msgpack with everything in it
//! checkpoint  params.w/.zarray …      msgpack with the structure; "PLACEHOLDER://params.w" stands for an array
//! checkpoint  target.w/.zarray …      T5X: a TensorStore spec stands for an array, {"driver": "zarr", "kvstore": …}
//! ```
//!
//! [`bare`](super::bare) reads arrays without such a file.
//!
//! [`flax`](crate::flax) reads the msgpack, and [`specs`](crate::flax::specs)
//! reads a spec. Source: orbax' `legacy` readers; t5x `checkpoints.py`.

use std::collections::HashMap;

use bytes::Bytes;

use super::arrays::Arrays;
use super::files::list;
use super::left::lost_manifest;
use super::marker_files::{AGGREGATE_FILE, MANIFEST_FILE};
use super::opened::{Opened, Wanted};
use super::slot::{Slot, Source};
use crate::flax::decode::{Data, decode, decode_front};
use crate::flax::msgpack::begins_map;
use crate::flax::specs::ArraySpec;
use regrow_base::error::{Error, Result, ResultExt};
use regrow_storage::location::Location;
use regrow_store::StoreExt;
use regrow_tree::tree::{LeafKind, Tree};
use regrow_zarr::zarr::Missing;

/// The prefixes of a text in the msgpack file that replaces an array; the second is the older one.
const PLACEHOLDERS: [&str; 2] = ["PLACEHOLDER://", "AGGREGATED://"];

/// The dtype under which old T5X stored bfloat16. Nothing distinguishes such arrays from real
/// uint16.
const UNSURE_DTYPE: &str = "uint16";

pub(super) fn open_aggregate(folder: &Location, wanted: Wanted) -> Result<Opened> {
    let database = folder.join(MANIFEST_FILE).is_file().then(|| folder.clone());
    let databases = database.into_iter().collect();
    let (tree, is_of_t5x) = read_aggregate(folder, wanted)?;
    let variant = if is_of_t5x { "t5x: msgpack, folders" } else { "msgpack" };
    Ok(Opened { databases, ..Opened::new(tree, variant) })
}

/// The tree in the msgpack file `checkpoint`, with the arrays that its placeholders and specs stand
/// for; and whether there are specs.
pub(super) fn read_aggregate(folder: &Location, wanted: Wanted) -> Result<(Tree<Slot>, bool)> {
    let file = folder.join(AGGREGATE_FILE);
    let (mut arrays, mut beside) = (None, None);
    let (mut slots, mut specs) = (Vec::new(), HashMap::new());
    let bytes = whole(folder, AGGREGATE_FILE)?;
    let tree = match wanted {
        Wanted::Whole | Wanted::Named => decode(&bytes),
        Wanted::Intact | Wanted::Arrays => decode_front(&bytes),
    };
    let tree = tree.in_file(&file)?;
    let infos = tree.map(|leaf| {
        if let Data::Spec(spec) = &leaf.data {
            specs.insert(slots.len(), spec.clone());
        }
        slots.push(Slot::decoded(leaf));
    });
    for (at, (slot, (path, ()))) in slots.iter_mut().zip(infos.iter()).enumerate() {
        let stored = if let Some(spec) = specs.get(&at) {
            // Specs are T5X', and T5X has no database.
            let arrays = kept(&mut beside, || Arrays::in_folders(folder, false, Missing::Fill, wanted))?;
            let found = ArraySpec::parse(spec).and_then(|spec| specified(arrays, &spec));
            let found = found.map_err(|error| error.at_leaf(&path).in_file(&file));
            wanted.or_lost(found)?.unwrap_or_else(|why| Slot::lost(&slot.info.name, why))
        } else {
            let Source::Text(text) = &slot.source else { continue };
            let Some(name) = PLACEHOLDERS.iter().find_map(|prefix| text.strip_prefix(prefix)) else {
                continue;
            };
            let arrays = kept(&mut arrays, || match folder.join(MANIFEST_FILE).is_file() {
                true => Arrays::in_database(folder, false, Missing::Fill, wanted),
                false => match lost_manifest(folder, &list(folder)?)? {
                    Some(lost) if wanted.is_strict() => Err(lost),
                    _ => Arrays::in_folders(folder, false, Missing::Fill, wanted),
                },
            })?;
            let stored = arrays.leaf(name, LeafKind::NumpyArray);
            stored.map_err(|error| error.at_leaf(&path).in_file(&file))?
        };
        *slot = stored;
    }
    Ok((infos.with_leaves(slots)?, !specs.is_empty()))
}

fn kept(kept: &mut Option<Arrays>, open: impl FnOnce() -> Result<Arrays>) -> Result<&mut Arrays> {
    match kept {
        Some(arrays) => Ok(arrays),
        None => Ok(kept.insert(open()?)),
    }
}

/// The array that a spec refers to, after a check of its dtype and shape.
fn specified(arrays: &mut Arrays, spec: &ArraySpec) -> Result<Slot> {
    if !arrays.has(&spec.name) {
        return Err(spec.is_missing(&arrays.document_missing(&spec.name)));
    }
    let slot = arrays.leaf(&spec.name, LeafKind::NumpyArray)?;
    if matches!(slot.source, Source::Lost(_)) {
        return Ok(slot);
    }
    let blame = |error: Error| error.in_file(arrays.folder_of(&spec.name));
    let (dims, dtype) = (slot.info.shape.dims(), slot.info.dtype.name());
    let differs = |what: &str| Error::corrupt(format!("the {what} of an array differs from its spec"));
    if let Some(said) = spec.dims.as_ref().filter(|said| said.as_slice() != dims) {
        return Err(blame(differs("shape")).expected(format_args!("{said:?}"), format_args!("{dims:?}")));
    }
    match &spec.dtype {
        Some(said) if said == UNSURE_DTYPE => Err(Error::unsupported(
            "a T5X array is uint16, which old versions of T5X also used for bfloat16: its dtype is unknown",
        )
        .help("load it with TensorStore, and save it with the right dtype")),
        Some(said) if said != dtype => Err(blame(differs("dtype")).expected(said, dtype)),
        _ => Ok(slot),
    }
}

/// Whether a file is named and begins like the msgpack file `checkpoint`.
pub(super) fn is_msgpack_file(file: &Location) -> bool {
    if file.name() != AGGREGATE_FILE {
        return false;
    }
    matches!(file.read_beginning(1), Ok(Some(first)) if first.first().is_some_and(|&byte| begins_map(byte)))
}

/// The bytes of a whole file, mapped if possible, so that its arrays need no copy.
fn whole(folder: &Location, name: &str) -> Result<Bytes> {
    let store = folder.store();
    let whole = match store.map(name.as_bytes())? {
        Some(map) => Some(map),
        None => store.get_text_key(name)?,
    };
    whole.ok_or_else(|| Error::corrupt("the file with the tree is missing").in_file(folder.join(name)))
}
