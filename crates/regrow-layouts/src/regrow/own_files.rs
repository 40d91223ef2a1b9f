//! Tells the files of the default layout from other files: `regrow.json`, and the files that it
//! lists.
//!
//! If `regrow.json` cannot be read, the layout's own files are those with a name that a save gives
//! to data files and parts.

use std::collections::HashSet;

use serde::Deserialize;

use super::manifest::{self, is_data_name, is_part_name};
use crate::item_files::ItemForm;
use crate::options::Layout;
use crate::orbax::checkpoint_metadata::pytree_handler;
use crate::orbax::metadata::{BESIDE_REGROW_JSON, METADATA_FILE};
use crate::own_files::{FileNames, OwnNames, read_short};
use regrow_base::bytes::limits::JSON_LEN_MAX_BYTES;
use regrow_ocdbt::DATA_FOLDER;
use regrow_storage::location::Location;

pub(super) const FILE_NAMES: FileNames = FileNames {
    markers: &[manifest::FILE_NAME],
    beginnings: &[manifest::FILE_NAME],
    listed_in: Some(listed_in),
    own_in: Some(own_in),
    of_item_folders: &[manifest::FILE_NAME],
    item: Some(item_form),
    record: Some(manifest::FILE_NAME),
    looked_for: &[manifest::FILE_NAME],
    needs_marker: Some(|_| true),
    ..FileNames::NONE
};

/// An item leaves out no file, because `regrow.json` has the checksums of all files.
fn item_form(layout: &Layout, v1: bool) -> ItemForm {
    let handler = Some(pytree_handler(v1));
    ItemForm { layout: layout.clone(), handler, is_v1: false, file: None, left_out: &[] }
}

/// The names at the top of the folder that `regrow.json` lists; `None` if `regrow.json` cannot be
/// read.
fn listed_in(folder: &Location) -> Option<HashSet<String>> {
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
    let text = read_short(&folder.join(manifest::FILE_NAME), JSON_LEN_MAX_BYTES)?;
    let Lists { data_files, files, parts } = serde_json::from_slice(&text).ok()?;
    let listed = data_files.iter().chain(&files).map(|listed| &listed.name);
    let of_parts = parts.iter().flat_map(|part| part.data_files.iter().chain([&part.name]));
    let top = |name: &String| name.split('/').next().unwrap_or_default().to_owned();
    Some(listed.chain(of_parts).map(top).collect())
}

fn own_in(folder: &Location, is_listed: bool) -> Box<dyn OwnNames + '_> {
    let has_record = !is_listed && folder.join(manifest::FILE_NAME).is_file();
    let is_unlisted = has_record || !is_listed && has_lost_its_record(folder);
    Box::new(Own { has_record, is_unlisted })
}

/// Whether `_METADATA` says that there was a `regrow.json` beside it.
fn has_lost_its_record(folder: &Location) -> bool {
    let text = read_short(&folder.join(METADATA_FILE), JSON_LEN_MAX_BYTES).unwrap_or_default();
    text.windows(BESIDE_REGROW_JSON.len()).any(|part| part == BESIDE_REGROW_JSON.as_bytes())
}

struct Own {
    /// Whether there is a `regrow.json` that cannot be read.
    has_record: bool,
    /// Whether the folder has or had a `regrow.json` but no readable list of its files.
    is_unlisted: bool,
}

impl OwnNames for Own {
    fn has_file(&self, name: &str) -> bool {
        self.is_unlisted && (is_data_name(name) || is_part_name(name))
    }

    fn has_folder(&self, name: &str) -> bool {
        self.has_record && name == DATA_FOLDER
    }
}
