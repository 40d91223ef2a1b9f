//! Items in layouts other than Orbax': the file that identifies each, and the path for its reader.
//!
//! | in the item's folder | the item is |
//! |---|---|
//! | `regrow.json` | the default layout |
//! | `model.safetensors`, `model.safetensors.index.json` | safetensors, one file or several |
//! | `regrow-structure.json` | npy files |
//! | `arrays.npz`, `array.npy`, `checkpoint.msgpack`, `checkpoint.eqx` | this file |

use crate::error::{Error, Result};
use crate::options::{Form, Layout};

/// Where the reader of such an item looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// At the item's folder.
    Folder,
    /// At this file in it.
    File(&'static str),
}

const FOLDERS: [&str; 4] =
    ["regrow.json", "model.safetensors", "model.safetensors.index.json", "regrow-structure.json"];
const NPZ: &str = "arrays.npz";
const NPY: &str = "array.npy";
const MSGPACK: &str = "checkpoint.msgpack";
const EQUINOX: &str = "checkpoint.eqx";
const SAFETENSORS: &str = "model.safetensors";

/// Where the reader of an item looks that has these files; `None` if they are of no layout.
pub(crate) fn find(names: &[&str]) -> Option<Place> {
    if FOLDERS.iter().any(|name| names.contains(name)) {
        return Some(Place::Folder);
    }
    [NPZ, NPY, MSGPACK, EQUINOX].into_iter().find(|name| names.contains(name)).map(Place::File)
}

/// The name of an item's file in a layout that is a single file.
///
/// # Errors
/// `Unsupported` for a layout that no item can have.
pub(crate) fn name_of(layout: &Layout) -> Result<&'static str> {
    match layout {
        Layout::Flax(_) => Ok(MSGPACK),
        Layout::Equinox(_) => Ok(EQUINOX),
        Layout::Safetensors(_) => Ok(SAFETENSORS),
        Layout::Npy(own) if own.form == Some(Form::Npy) => Ok(NPY),
        Layout::Npy(_) => Ok(NPZ),
        Layout::Regrow(_) | Layout::Orbax(_) | Layout::PytreeData(_) | Layout::Trak(_) => {
            Err(Error::unsupported(format!("the layout {} cannot be that of an item", layout.name()))
                .help("save the item in the layout regrow or orbax, or this tree beside the checkpoint"))
        }
    }
}
