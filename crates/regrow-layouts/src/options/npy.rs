//! Options of a save in the layout `npy`.

use std::ffi::OsStr;

use serde::{Deserialize, Deserializer};

use regrow_storage::location::suffix_of;

/// The form of the checkpoint on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// One array.
    Npy,
    /// An archive of arrays.
    Npz,
    /// A folder tree of arrays.
    Folder,
}

impl Form {
    pub(crate) fn of_name(name: &OsStr) -> Self {
        let suffix = suffix_of(name);
        match suffix.as_deref() {
            Some("npy") => Self::Npy,
            Some("npz") => Self::Npz,
            _ => Self::Folder,
        }
    }
}

/// Options of the layout `npy`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NpyOptions {
    /// `"npy"`, `"npz"` or `"folder"`; by default the form of the path's suffix, or a folder
    /// without one.
    pub form: Option<Form>,
    /// Deflate the arrays of an archive: `true`, as `np.savez_compressed` does, or a level from 1
    /// to 9.
    #[serde(deserialize_with = "level")]
    pub compress: Option<u32>,
    /// The text between the keys of a path in an array's name in an archive.
    pub separator: String,
    /// Write the dtypes of ml_dtypes by their names, so that `np.load` returns them if ml_dtypes is
    /// imported. Otherwise write them as NumPy does: `<V2` for bfloat16, `<V1` for several dtypes
    /// that a reader cannot tell apart.
    pub named_dtypes: bool,
    /// Keep the exact pytree: in an archive as an unlisted member that only regrow reads, in a
    /// folder as one more file. Without it an archive is a flat dict of names, a folder a dict of
    /// dicts.
    pub structure: bool,
}

impl Default for NpyOptions {
    fn default() -> Self {
        Self { form: None, compress: None, separator: "/".to_owned(), named_dtypes: true, structure: true }
    }
}

/// zlib's own default, and Python's.
const LEVEL_DEFAULT: u32 = 6;

const LEVEL_MAX: u32 = 9;

fn level<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Asked {
        Flag(bool),
        Level(u32),
        Nothing(()),
    }
    match Asked::deserialize(from) {
        Ok(Asked::Flag(false) | Asked::Nothing(())) => Ok(None),
        Ok(Asked::Flag(true)) => Ok(Some(LEVEL_DEFAULT)),
        Ok(Asked::Level(level)) if (1..=LEVEL_MAX).contains(&level) => Ok(Some(level)),
        _ => Err(serde::de::Error::custom("`compress` is true, false, or a level from 1 to 9")),
    }
}
