//! Items in layouts other than Orbax': the file that identifies each, and the path for its reader.
//!
//! | in the item's folder | the item is |
//! |---|---|
//! | `regrow.json` | the default layout |
//! | `model.safetensors`, `model.safetensors.index.json` | safetensors, one file or several |
//! | `regrow-structure.json` | npy files |
//! | `arrays.npz`, `array.npy`, `checkpoint.msgpack`, `checkpoint.eqx` | this file |

use super::builtin_formats;
use crate::options::Layout;
use regrow_base::error::{Error, Result};

/// Where the reader of such an item looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// At the item's folder.
    Folder,
    /// At this file in it.
    File(&'static str),
}

/// Where the reader of an item looks that has these files; `None` if they are of no layout.
pub(crate) fn find(names: &[&str]) -> Option<Place> {
    let layouts = || builtin_formats().into_iter().map(|format| format.file_names());
    if layouts().any(|own| own.of_item_folders.iter().any(|name| names.contains(name))) {
        return Some(Place::Folder);
    }
    layouts().flat_map(|own| own.of_item_files).copied().find(|name| names.contains(name)).map(Place::File)
}

/// The name of an item's file in a layout that is a single file.
///
/// # Errors
/// `Unsupported` for a layout that no item can have.
pub fn name_of(layout: &Layout) -> Result<&'static str> {
    match layout.format().file_names().item_file {
        Some(name_of) => Ok(name_of(layout)),
        None => Err(Error::unsupported(format!("items cannot have the layout {}", layout.name()))
            .help("save the item in the layout regrow or orbax, or this tree beside the checkpoint")),
    }
}
