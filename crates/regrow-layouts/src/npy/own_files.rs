//! Tells npy files of a checkpoint from other files. In a folder every `.npy` beside or below a
//! `regrow-structure.json` is the checkpoint's own.

use super::names::SUFFIX;
use super::sidecar;
use crate::item_files::ItemForm;
use crate::options::{Form, Layout};
use crate::own_files::{FileNames, OwnNames};
use regrow_storage::location::Location;

const ARCHIVE_SUFFIX: &str = ".npz";

const ITEM_ARCHIVE: &str = "arrays.npz";
const ITEM_FILE: &str = "array.npy";

pub(super) const FILE_NAMES: FileNames = FileNames {
    markers: &[sidecar::FILE_NAME],
    own_in: Some(own_in),
    of_item_folders: &[sidecar::FILE_NAME],
    of_item_files: &[ITEM_ARCHIVE, ITEM_FILE],
    item: Some(|layout, _| match form_of(layout) {
        Some(Form::Npy) => ItemForm::of_file(layout, ITEM_FILE),
        _ => ItemForm::of_file(layout, ITEM_ARCHIVE),
    }),
    step_name: Some(|_, plain, layout| match form_of(layout) {
        None | Some(Form::Npz) => format!("{plain}{ARCHIVE_SUFFIX}"),
        Some(Form::Npy) => format!("{plain}{SUFFIX}"),
        Some(Form::Folder) => plain.to_owned(),
    }),
    suffixes: &[ARCHIVE_SUFFIX, SUFFIX],
    looked_for: &["npy and npz files"],
    ..FileNames::NONE
};

fn form_of(layout: &Layout) -> Option<Form> {
    match layout {
        Layout::Npy(own) => own.form,
        _ => None,
    }
}

fn own_in(folder: &Location, _is_listed: bool) -> Box<dyn OwnNames + '_> {
    Box::new(Own { has_sidecar: folder.join(sidecar::FILE_NAME).is_file() })
}

struct Own {
    has_sidecar: bool,
}

impl OwnNames for Own {
    fn has_file(&self, name: &str) -> bool {
        self.has_sidecar && name.ends_with(SUFFIX)
    }

    fn has_folder(&self, _name: &str) -> bool {
        false
    }

    fn has_file_below(&self, _folder: &str, name: &str) -> bool {
        self.has_file(name)
    }
}
