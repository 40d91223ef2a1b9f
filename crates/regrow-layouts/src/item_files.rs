//! Items in layouts other than Orbax': the file names that show the layout of an item, and the path
//! that the item's reader opens.
//!
//! | in the item's folder | the item is |
//! |---|---|
//! | `regrow.json` | the default layout |
//! | `model.safetensors`, `model.safetensors.index.json` | safetensors, one file or several |
//! | `regrow-structure.json` | npy files |
//! | `arrays.npz`, `array.npy`, `checkpoint.msgpack`, `checkpoint.eqx` | one file, in the layout of its suffix |

use super::formats;
use crate::options::Layout;
use regrow_base::error::{Error, Result};

/// The path that the reader of an item opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Folder,
    File(&'static str),
}

/// The path for the reader of an item with these files; `None` if no layout has them.
pub(crate) fn find(names: &[&str]) -> Option<Place> {
    let layouts = || formats().map(|format| format.file_names());
    if layouts().any(|own| own.of_item_folders.iter().any(|name| names.contains(name))) {
        return Some(Place::Folder);
    }
    layouts().flat_map(|own| own.of_item_files).copied().find(|name| names.contains(name)).map(Place::File)
}

/// How a tree is stored as an item of a checkpoint.
#[derive(Debug, Clone)]
pub struct ItemForm {
    /// The layout with its options for an item.
    pub layout: Layout,
    /// The handler with which Orbax reads the item; `None` if Orbax cannot read it.
    pub handler: Option<&'static str>,
    /// Whether the options ask for the v1 form of a checkpoint.
    pub is_v1: bool,
    /// The name of the file, if the item is one file.
    pub file: Option<&'static str>,
    /// Files of the layout that the save does not write in the item's folder, because the folder of
    /// the checkpoint has them.
    pub left_out: &'static [&'static str],
}

impl ItemForm {
    /// An item that Orbax cannot read: one file with this name.
    pub fn of_file(layout: &Layout, file: &'static str) -> Self {
        Self { layout: layout.clone(), handler: None, is_v1: false, file: Some(file), left_out: &[] }
    }
}

impl Layout {
    /// The form of an item; with `v1`, in the v1 form of a checkpoint.
    ///
    /// # Errors
    /// `Unsupported` for a layout that no item can have.
    pub fn item_form(&self, v1: bool) -> Result<ItemForm> {
        match self.format().file_names().item {
            Some(form) => Ok(form(self, v1)),
            None => Err(Error::unsupported(format!("items cannot have the layout {}", self.name()))
                .help("save the item in the layout regrow or orbax, or this tree beside the checkpoint")),
        }
    }
}
