//! The file names of Orbax' checkpoints: documents, the OCDBT database, arrays and items.
//!
//! A user's own handler writes files with any names. The commit marker then lists these names:
//!
//! ```text
//! commit_success.txt      regrow files ["vocabulary.txt","extra"]
//! ```

use std::cell::OnceCell;

use serde_json::Value;

use super::array_metadatas::ARRAY_METADATAS_FOLDER;
use super::arrays::DOCUMENTS;
use super::checkpoint_metadata::{CHECKPOINT_METADATA_FILE, OF_THE_WHOLE, pytree_handler};
use super::json_text;
use super::left::PROCESS_PREFIX;
use super::marker_files::{AGGREGATE_FILE, COMMIT_SUCCESS_FILE, JSON_FILE, V1_MARKER_FILE};
use super::metadata::METADATA_FILE;
use super::sharding::SHARDING_FILE;
use super::strings::STRINGS_FILE;
use crate::item_files::ItemForm;
use crate::items_record;
use crate::options::{Layout, OrbaxOptions};
use crate::own_files::{FileNames, OwnNames, read_short};
use regrow_ocdbt::{DATA_FOLDER, MANIFEST_KEY, is_numbered_manifest};
use regrow_storage::location::Location;
use regrow_zarr::zarr::V2_GROUP_DOCUMENT;

const MARKERS: [&str; 4] = [METADATA_FILE, CHECKPOINT_METADATA_FILE, V1_MARKER_FILE, MANIFEST_KEY];

pub(super) const FILE_NAMES: FileNames = FileNames {
    markers: &MARKERS,
    first: &[CHECKPOINT_METADATA_FILE],
    // Of these files, an item that is not a pytree has only the commit marker for certain.
    beginnings: &[METADATA_FILE, CHECKPOINT_METADATA_FILE, V1_MARKER_FILE, MANIFEST_KEY, COMMIT_SUCCESS_FILE],
    own_in: Some(own_in),
    item: Some(item_form),
    needs_marker: Some(super::has_documents),
    looked_for: &[METADATA_FILE, CHECKPOINT_METADATA_FILE, V1_MARKER_FILE, "step folders", "zarr arrays"],
    ..FileNames::NONE
};

/// The item leaves out the marker and the checkpoint's metadata, because the checkpoint writes
/// them.
fn item_form(layout: &Layout, v1: bool) -> ItemForm {
    let own = match layout {
        Layout::Orbax(own) => own.clone(),
        _ => OrbaxOptions::default(),
    };
    ItemForm {
        handler: Some(pytree_handler(v1 || own.v1)),
        is_v1: own.v1,
        layout: Layout::Orbax(OrbaxOptions { v1: false, ..own }),
        file: None,
        left_out: OF_THE_WHOLE,
    }
}

const FILES: [&str; 4] = [items_record::FILE_NAME, SHARDING_FILE, STRINGS_FILE, AGGREGATE_FILE];

/// The prefix of the line of the commit marker that lists names. A JSON list follows.
const FILES_LINE: &str = "regrow files ";

/// The longest list that the marker has, so that the marker stays a small file. A checkpoint with a
/// longer list cannot be overwritten.
const FILES_LINE_LEN_MAX_BYTES: usize = 1 << 19;

const JSON_HANDLER: &str = ".JsonCheckpointHandler";

/// The longest `_CHECKPOINT_METADATA` that is read for the names of the items.
const METADATA_LEN_MAX_BYTES: u64 = 1 << 20;

fn own_in(folder: &Location, is_listed: bool) -> Box<dyn OwnNames + '_> {
    let has = |name: &&str| folder.join(name).is_file();
    // If no `regrow.json` lists the files, any file of `MARKERS` shows that there is a database:
    // its `manifest.ocdbt` may be lost.
    let has_database = if is_listed { has(&MANIFEST_KEY) } else { MARKERS.iter().any(has) };
    Box::new(Own { folder, has_database, items: OnceCell::new(), noted: OnceCell::new() })
}

struct Own<'f> {
    folder: &'f Location,
    has_database: bool,
    items: OnceCell<Vec<String>>,
    noted: OnceCell<Vec<String>>,
}

impl Own<'_> {
    fn is_noted(&self, name: &str) -> bool {
        self.noted.get_or_init(|| names_of_handler(self.folder)).iter().any(|noted| noted == name)
    }
}

impl OwnNames for Own<'_> {
    fn has_file(&self, name: &str) -> bool {
        FILES.contains(&name) || is_numbered_manifest(name) || self.is_noted(name)
    }

    fn has_folder(&self, name: &str) -> bool {
        let is_item = || self.items.get_or_init(|| item_names(self.folder)).iter().any(|item| item == name);
        name == ARRAY_METADATAS_FOLDER
            || name.starts_with(PROCESS_PREFIX)
            || name == DATA_FOLDER && self.has_database
            || is_item()
            || self.is_noted(name)
    }

    fn is_part(&self, folder: &Location) -> bool {
        DOCUMENTS.iter().chain(&[V2_GROUP_DOCUMENT]).any(|name| folder.join(name).is_file())
    }

    /// JSON items: `metrics/metrics`, `config/metadata`.
    fn has_file_below(&self, folder: &str, name: &str) -> bool {
        name == folder || name == JSON_FILE
    }
}

/// The line of a commit marker that lists the names of a checkpoint of files; empty if the list is
/// too long.
pub fn note_of_files(names: &[String]) -> String {
    let list = serde_json::json!(names).to_string();
    match list.len() > FILES_LINE_LEN_MAX_BYTES {
        true => String::new(),
        false => format!("\n{FILES_LINE}{list}\n"),
    }
}

/// The names that the marker of a checkpoint lists; `None` if the marker has no list.
pub(super) fn noted_files(folder: &Location) -> Option<Vec<String>> {
    let marker = read_short(&folder.join(COMMIT_SUCCESS_FILE), METADATA_LEN_MAX_BYTES)?;
    let text = String::from_utf8(marker).ok()?;
    text.lines().find_map(|line| serde_json::from_str(line.strip_prefix(FILES_LINE)?).ok())
}

/// The names of files that the handler of the whole checkpoint has written, as far as the
/// checkpoint lists them.
fn names_of_handler(folder: &Location) -> Vec<String> {
    let mut names = noted_files(folder).unwrap_or_default();
    let is_json = |handler: &Value| handler.as_str().is_some_and(|name| name.ends_with(JSON_HANDLER));
    if handlers_in(folder).as_ref().is_some_and(is_json) {
        names.push(JSON_FILE.to_owned());
    }
    names
}

fn item_names(folder: &Location) -> Vec<String> {
    let handlers = handlers_in(folder);
    let items = handlers.as_ref().and_then(Value::as_object);
    items.map(|items| items.keys().cloned().collect()).unwrap_or_default()
}

fn handlers_in(folder: &Location) -> Option<Value> {
    let text = read_short(&folder.join(CHECKPOINT_METADATA_FILE), METADATA_LEN_MAX_BYTES)?;
    // Parse the form of Python's JSON: metrics may be NaN.
    let mut document: Value = json_text::parse(&text).ok()?;
    document.get_mut("item_handlers").map(Value::take)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_left_out_of_the_marker() {
        let list = |len: usize| vec!["x".repeat(len - r#"[""]"#.len())];
        for (len, is_noted) in [
            (100, true),
            (FILES_LINE_LEN_MAX_BYTES, true),
            (FILES_LINE_LEN_MAX_BYTES + 1, false),
            (FILES_LINE_LEN_MAX_BYTES + 100, false),
        ] {
            assert_eq!(!note_of_files(&list(len)).is_empty(), is_noted, "{len}");
        }
    }
}
