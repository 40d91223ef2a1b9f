//! What in a checkpoint folder belongs to the checkpoint, and what a user has put beside it.
//!
//! An overwrite removes the whole folder. So the top of the folder is first searched for what no layout writes there:
//! notes, a tokenizer, logs. Any of these keeps the folder from being replaced. Subfolders are looked into only until
//! it is clear what they are; those of the checkpoint are not searched.

use std::fs::{self, DirEntry};
use std::io;
use std::path::Path;

use super::CHECKPOINT_MARKERS;
use crate::formats::UNCOMMITTED_MARK;

/// Files that Orbax, TensorStore and regrow write at the top of a checkpoint, besides the markers.
const FILES: [&str; 4] = ["_sharding", "_strings.json", "commit_success.txt", "checkpoint"];

/// Folders of OCDBT databases and of Orbax.
const FOLDERS: [&str; 2] = ["d", "array_metadatas"];

/// How the names of more such folders begin.
const FOLDER_PREFIX: &str = "ocdbt.process_";

/// How the numbered manifests of an OCDBT database begin.
const MANIFEST_PREFIX: &str = "manifest.";

/// How files of arrays end, and TensorStore's locks.
const SUFFIXES: [&str; 4] = [".safetensors", ".safetensors.index.json", ".npy", ".__lock"];

/// Names that a network file system gives to files that were removed while they were open.
const REMOVED_PREFIX: &str = ".nfs";

/// A folder with one of these is an array, or a group of them.
const ARRAY_DOCUMENTS: [&str; 3] = [".zarray", "zarr.json", ".zgroup"];

/// How far down the array of a leaf may lie whose name has slashes in it.
const DEPTH_MAX: usize = 8;

/// Most of `_CHECKPOINT_METADATA` that is read to know the names of a checkpoint's items.
const METADATA_LEN_MAX_BYTES: u64 = 1 << 20;

/// How many are named in an error.
const SHOWN_MAX: usize = 5;

/// Names in the checkpoint folder that are no part of the checkpoint, a few of them.
///
/// # Errors
/// What the file system says.
pub(super) fn strangers_in(folder: &Path) -> io::Result<Vec<String>> {
    let mut strangers = Vec::new();
    let mut items = None;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(REMOVED_PREFIX) || name.contains(UNCOMMITTED_MARK) {
            continue;
        }
        let belongs = match entry.file_type()? {
            kind if kind.is_dir() => {
                is_own_folder(&name)
                    || items.get_or_insert_with(|| item_names(folder)).contains(&name)
                    || is_part(&entry, DEPTH_MAX)?
            }
            _ => is_own_file(&name),
        };
        if !belongs {
            strangers.push(name);
        }
        if strangers.len() > SHOWN_MAX {
            break;
        }
    }
    strangers.sort();
    Ok(strangers)
}

fn is_own_file(name: &str) -> bool {
    let is_numbered_manifest = name
        .strip_prefix(MANIFEST_PREFIX)
        .is_some_and(|number| number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit()));
    CHECKPOINT_MARKERS.contains(&name)
        || FILES.contains(&name)
        || is_numbered_manifest
        || SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

fn is_own_folder(name: &str) -> bool {
    FOLDERS.contains(&name) || name.starts_with(FOLDER_PREFIX)
}

/// Whether a folder is an item, an array, a folder of arrays of a long name, or has nothing in it that could be lost.
fn is_part(folder: &DirEntry, depth: usize) -> io::Result<bool> {
    let path = folder.path();
    let has = |name: &&str| path.join(name).is_file();
    if ARRAY_DOCUMENTS.iter().chain(&CHECKPOINT_MARKERS).any(has) {
        return Ok(true);
    }
    for entry in fs::read_dir(&path)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        // Orbax' JSON items: `metrics/metrics`, `config/metadata`.
        let is_document = || {
            let name = entry.file_name();
            name == folder.file_name() || name == "metadata"
        };
        let name = entry.file_name();
        let belongs = match kind.is_dir() {
            true => depth > 0 && is_part(&entry, depth - 1)?,
            false => kind.is_file() && (is_document() || name.to_string_lossy().ends_with(".npy")),
        };
        if !belongs {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The names of the items that the checkpoint itself lists.
fn item_names(folder: &Path) -> Vec<String> {
    let file = folder.join("_CHECKPOINT_METADATA");
    if fs::metadata(&file).map_or(u64::MAX, |found| found.len()) > METADATA_LEN_MAX_BYTES {
        return Vec::new();
    }
    let document =
        fs::read(&file).ok().and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
    let handlers = document.as_ref().and_then(|document| document.get("item_handlers")?.as_object());
    handlers.map(|items| items.keys().cloned().collect()).unwrap_or_default()
}
