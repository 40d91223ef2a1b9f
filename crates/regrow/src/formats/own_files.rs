//! Which names in the folder of a checkpoint are the checkpoint's own. The storage asks before it
//! replaces or removes the folder.
//!
//! An overwrite removes the whole folder. So it first searches the top of the folder for files that
//! no layout writes: notes, a tokenizer, logs. Any such file prevents the overwrite. It looks into
//! a subfolder only until its kind is known, and does not search subfolders of the checkpoint.
//!
//! Names of arrays prove little: `lora.safetensors` and `embeddings.npy` are a user's own files,
//! except if the checkpoint lists them.

use std::collections::HashSet;

use serde::Deserialize;

use super::orbax::json_text;
use crate::bytes::limits::JSON_LEN_MAX_BYTES;
use crate::error::Result;
use crate::location::{Location, ToLocation};
use crate::storage::{COMMITTED_MARKER, Found, Name, Names, tell_names};
use crate::store::StoreExt;

/// A folder must hold a file of one of these names, or be empty, for `overwrite` to replace it.
/// Names that other programs use too (`checkpoint`, `zarr.json`) are not among them: such folders
/// may hold other data.
pub const CHECKPOINT_MARKERS: [&str; 6] =
    [METADATA_FILE, CHECKPOINT_METADATA_FILE, REGROW_MARKER, "orbax.checkpoint", DATABASE_ROOT, NPY_MARKER];

/// Files that Orbax, TensorStore and regrow write at the top of a checkpoint, besides the markers.
const FILES: [&str; 4] = ["regrow.items.json", "_sharding", "_strings.json", "checkpoint"];

/// How the line of the commit marker begins that says which names lie in a checkpoint whose files
/// only a handler of its own knows; a list of names in JSON follows.
const FILES_LINE: &str = "regrow files ";

/// More than this is not noted: the marker stays a small file. Such a checkpoint is not
/// overwritten.
const FILES_LINE_LEN_MAX_BYTES: usize = 1 << 19;

/// By what the name of the handler of a JSON document ends, and the file that Orbax' own has.
const JSON_HANDLER: &str = ".JsonCheckpointHandler";
const JSON_FILE: &str = "metadata";

/// What says that npy files belong to the checkpoint.
const NPY_MARKER: &str = "regrow-structure.json";

/// What says which safetensors files and whether a database belong to it.
const REGROW_MARKER: &str = "regrow.json";

/// Orbax' document of the pytree, and the member of it by which regrow says that `regrow.json` is
/// beside it.
const METADATA_FILE: &str = "_METADATA";
const BESIDE_REGROW_JSON: &str = "\"beside_regrow_json\"";

/// The folder of an OCDBT database, and its root.
const DATABASE_FOLDER: &str = "d";
const DATABASE_ROOT: &str = "manifest.ocdbt";

/// A folder of Orbax.
const METADATAS_FOLDER: &str = "array_metadatas";

/// How the names of folders of OCDBT databases of several processes begin.
const FOLDER_PREFIX: &str = "ocdbt.process_";

/// How the numbered manifests of an OCDBT database begin.
const MANIFEST_PREFIX: &str = "manifest.";

/// How npy files end.
const NPY_SUFFIX: &str = ".npy";

/// A folder with one of these is an array, or a group of them.
const ARRAY_DOCUMENTS: [&str; 3] = [".zarray", "zarr.json", ".zgroup"];

/// How far down the array of a leaf may lie whose name has slashes in it.
const DEPTH_MAX: usize = 8;

/// Most of `_CHECKPOINT_METADATA` that is read to know the names of a checkpoint's items.
const METADATA_LEN_MAX_BYTES: u64 = 1 << 20;

/// The document that names the handlers.
const CHECKPOINT_METADATA_FILE: &str = "_CHECKPOINT_METADATA";

/// What a checkpoint on a web server has at least one of. Most have the first, or none.
const BEGINNINGS: [&str; 8] = [
    REGROW_MARKER,
    METADATA_FILE,
    CHECKPOINT_METADATA_FILE,
    "orbax.checkpoint",
    DATABASE_ROOT,
    "model.safetensors.index.json",
    "model.safetensors",
    // All that an item has for sure which is no pytree.
    COMMITTED_MARKER,
];

/// The location of a path or URL; the storage knows the names of the layouts from then on.
///
/// # Errors
/// `Unsupported` for a URL without a storage in this build.
pub(crate) fn located(place: impl ToLocation) -> Result<Location> {
    tell_storage();
    place.to_location()
}

/// Tells the storage the names of the layouts.
#[inline]
pub fn tell_storage() {
    tell_names(&OwnFiles);
}

/// The names of all layouts.
#[derive(Debug)]
struct OwnFiles;

impl Names for OwnFiles {
    fn markers(&self) -> &[&'static str] {
        &CHECKPOINT_MARKERS
    }

    fn first_files(&self) -> &[&'static str] {
        &[CHECKPOINT_METADATA_FILE]
    }

    fn beginnings(&self) -> &[&'static str] {
        &BEGINNINGS
    }

    fn are_of_one(&self, files: &[&str]) -> bool {
        let model_of = |name: &&str| model_of(name).filter(|_| !name.contains('/')).map(str::to_owned);
        let models: Option<HashSet<String>> = files.iter().map(model_of).collect();
        models.is_some_and(|models| models.len() <= 1)
    }

    fn own_in<'f>(&self, folder: &'f Location) -> Box<dyn FnMut(&Name<'_>) -> Result<bool> + 'f> {
        let own = Own::of(folder);
        let (mut items, mut noted) = (None, None);
        Box::new(move |name| {
            let belongs = match name.is_folder {
                true => {
                    own.has_folder(name.text)
                        || items
                            .get_or_insert_with(|| item_names(folder))
                            .iter()
                            .any(|item| item == name.text)
                        || is_part(&folder.join(name.text), own.has_npy, DEPTH_MAX)?
                }
                false => own.has_file(name.text),
            };
            let is = |noted: &String| noted == name.text;
            Ok(belongs || noted.get_or_insert_with(|| names_of_handler(folder)).iter().any(is))
        })
    }
}

/// The stem of the files of one model, from the name of one file: `m` for `m.safetensors`,
/// `m-00001-of-00002.safetensors` and `m.safetensors.index.json`.
fn model_of(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".index.json").unwrap_or(name).strip_suffix(".safetensors")?;
    let of_shard = || {
        let (rest, count) = name.rsplit_once("-of-")?;
        let (model, at) = rest.rsplit_once('-')?;
        (is_number(at) && is_number(count)).then_some(model)
    };
    Some(of_shard().unwrap_or(name))
}

/// The whole of a short file; `None` if there is none, or a longer one.
fn read_short(file: &Location, len_max_bytes: u64) -> Option<Vec<u8>> {
    match file.look() {
        Ok(Some(Found::File { len_bytes })) if len_bytes <= len_max_bytes => {}
        _ => return None,
    }
    let found = file.parent().store().get_whole(file.name().as_encoded_bytes());
    found.ok().flatten().map(Into::into)
}

/// What the checkpoint in a folder says of the names in it.
struct Own {
    /// What `regrow.json` lists: the first step of each path. `None` without one that can be read.
    recorded: Option<HashSet<String>>,
    /// Whether `regrow.json` is there at all, or was.
    is_regrow: bool,
    has_npy: bool,
    has_database: bool,
}

/// Whether Orbax' own document says that there was a `regrow.json` beside it.
fn has_lost_its_record(folder: &Location) -> bool {
    let text = read_short(&folder.join(METADATA_FILE), JSON_LEN_MAX_BYTES).unwrap_or_default();
    text.windows(BESIDE_REGROW_JSON.len()).any(|part| part == BESIDE_REGROW_JSON.as_bytes())
}

impl Own {
    fn of(folder: &Location) -> Self {
        let has = |name: &str| folder.join(name).is_file();
        let recorded = recorded_names(folder);
        let has_database = match &recorded {
            Some(_) => has(DATABASE_ROOT),
            // Its root may be what is lost. A folder of npy files never had one.
            None => CHECKPOINT_MARKERS.iter().any(|&marker| marker != NPY_MARKER && has(marker)),
        };
        let is_regrow = has(REGROW_MARKER) || has_lost_its_record(folder);
        Self { recorded, is_regrow, has_npy: has(NPY_MARKER), has_database }
    }

    fn has_file(&self, name: &str) -> bool {
        let is_numbered_manifest = name
            .strip_prefix(MANIFEST_PREFIX)
            .is_some_and(|number| number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let is_of_arrays = match &self.recorded {
            Some(recorded) => recorded.contains(name),
            // Then its own kind of name has to be enough.
            None => self.is_regrow && (is_data_file_of_regrow(name) || is_part_of_regrow(name)),
        };
        CHECKPOINT_MARKERS.contains(&name)
            || FILES.contains(&name)
            || is_numbered_manifest
            || is_of_arrays
            || self.has_npy && name.ends_with(NPY_SUFFIX)
    }

    fn has_folder(&self, name: &str) -> bool {
        let is_recorded = || self.recorded.as_ref().is_some_and(|recorded| recorded.contains(name));
        name == METADATAS_FOLDER
            || name.starts_with(FOLDER_PREFIX)
            || name == DATABASE_FOLDER && self.has_database
            || is_recorded()
    }
}

/// Whether regrow gives such a name to the record of what one process has written, or to what it
/// has compressed: `regrow.process_0.json`, `regrow.process_0.zstd`.
fn is_part_of_regrow(name: &str) -> bool {
    let Some(name) = name.strip_prefix("regrow.process_") else { return false };
    [".json", ".zstd"].into_iter().filter_map(|suffix| name.strip_suffix(suffix)).any(is_number)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether regrow gives such a name to a file of arrays: `model.safetensors`,
/// `model-00001-of-00002.safetensors`, and `model-00001-of-00002-2.safetensors` for the second file
/// of a process.
fn is_data_file_of_regrow(name: &str) -> bool {
    let stem = name.strip_suffix(".safetensors").and_then(|name| name.strip_prefix("model"));
    stem.is_some_and(|rest| {
        let numbers = rest.strip_prefix('-').and_then(|rest| rest.split_once("-of-"));
        rest.is_empty() || numbers.is_some_and(|(at, count)| is_number(at) && count.split('-').all(is_number))
    })
}

/// The names at the top of the folder that its `regrow.json` lists; `None` without one that can be
/// read.
fn recorded_names(folder: &Location) -> Option<HashSet<String>> {
    #[derive(Deserialize)]
    struct Listed {
        name: String,
    }
    #[derive(Deserialize)]
    struct Lists {
        data_files: Vec<Listed>,
        files: Vec<Listed>,
        #[serde(default)]
        parts: Vec<Part>,
    }
    #[derive(Deserialize)]
    struct Part {
        name: String,
        data_files: Vec<String>,
    }
    let text = read_short(&folder.join(REGROW_MARKER), JSON_LEN_MAX_BYTES)?;
    let Lists { data_files, files, parts } = serde_json::from_slice(&text).ok()?;
    let listed = data_files.iter().chain(&files).map(|listed| &listed.name);
    let of_parts = parts.iter().flat_map(|part| part.data_files.iter().chain([&part.name]));
    let top = |name: &String| name.split('/').next().unwrap_or_default().to_owned();
    Some(listed.chain(of_parts).map(top).collect())
}

/// Whether a folder is an item, an array, a folder of arrays of a long name, or has nothing in it
/// that could be lost.
fn is_part(folder: &Location, has_npy: bool, depth: usize) -> Result<bool> {
    let has = |name: &&str| folder.join(name).is_file();
    if ARRAY_DOCUMENTS.iter().chain(&CHECKPOINT_MARKERS).any(has) {
        return Ok(true);
    }
    for entry in folder.entries()? {
        // Orbax' JSON items: `metrics/metrics`, `config/metadata`.
        let is_document = || entry.name == folder.name() || entry.name == "metadata";
        let is_npy = || has_npy && entry.name.to_string_lossy().ends_with(NPY_SUFFIX);
        let belongs = match entry.is_real_folder() {
            true => depth > 0 && is_part(&folder.join(&entry.name), has_npy, depth - 1)?,
            false => entry.is_file() && !entry.is_link && (is_document() || is_npy()),
        };
        if !belongs {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The line of a commit marker that says which names belong to a checkpoint of files; nothing if
/// they are too many.
pub(crate) fn note_of_files(names: &[String]) -> String {
    let list = serde_json::json!(names).to_string();
    match list.len() > FILES_LINE_LEN_MAX_BYTES {
        true => String::new(),
        false => format!("\n{FILES_LINE}{list}\n"),
    }
}

/// The names that the marker of a checkpoint notes; `None` if it notes none.
pub(crate) fn noted_files(folder: &Location) -> Option<Vec<String>> {
    let marker = read_short(&folder.join(COMMITTED_MARKER), METADATA_LEN_MAX_BYTES)?;
    let text = String::from_utf8(marker).ok()?;
    text.lines().find_map(|line| serde_json::from_str(line.strip_prefix(FILES_LINE)?).ok())
}

/// The names of what the handler of the whole checkpoint has written, as far as the checkpoint says
/// so.
fn names_of_handler(folder: &Location) -> Vec<String> {
    let mut names = noted_files(folder).unwrap_or_default();
    let is_json =
        |handler: &serde_json::Value| handler.as_str().is_some_and(|name| name.ends_with(JSON_HANDLER));
    if handlers_in(folder).as_ref().is_some_and(is_json) {
        names.push(JSON_FILE.to_owned());
    }
    names
}

/// The names of the items that the checkpoint itself lists.
fn item_names(folder: &Location) -> Vec<String> {
    let handlers = handlers_in(folder);
    let items = handlers.as_ref().and_then(serde_json::Value::as_object);
    items.map(|items| items.keys().cloned().collect()).unwrap_or_default()
}

/// What the checkpoint says of its handlers.
fn handlers_in(folder: &Location) -> Option<serde_json::Value> {
    let text = read_short(&folder.join(CHECKPOINT_METADATA_FILE), METADATA_LEN_MAX_BYTES)?;
    // As Python writes it: metrics may be NaN.
    let mut document: serde_json::Value = json_text::parse(&text).ok()?;
    document.get_mut("item_handlers").map(serde_json::Value::take)
}

#[cfg(test)]
mod tests;
