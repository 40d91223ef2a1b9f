//! Options of a save in the layout `pytree_data`.

use std::num::NonZeroU64;

use serde::Deserialize;

/// The suffix of a data file.
pub const DATA_SUFFIX: &str = ".data";

/// The suffix of a manifest.
pub const MANIFEST_SUFFIX: &str = ".manifest";

/// Options of the layout `pytree_data`.
///
/// With `extra_keys` off, both files equal the original's under NumPy 1, byte for byte. With
/// `extra_keys` on (the default), the original reads the same arrays.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PytreeDataOptions {
    /// Every array begins at a multiple of this, in bytes. Gemma's C++ loader wants 1.
    pub byte_align: NonZeroU64,
    /// Keep bfloat16, float8 and their like as they are, under their own names, which the original
    /// cannot read. Otherwise bfloat16 becomes float32, and the others are refused.
    pub native_dtypes: bool,
    /// Keep checksums and the exact pytree in keys that the original ignores.
    pub extra_keys: bool,
    /// Write the manifest; without one, only its writer knows the content of the data file.
    pub manifest: bool,
    /// The suffix of the data file.
    pub data_suffix: String,
    /// The suffix of the manifest. If it is not `.manifest`, only `entries_of` finds the manifest.
    pub manifest_suffix: String,
    /// The path of each leaf, as a tuple of Python, in the order of the leaves: for keys that a
    /// pytree cannot have, and for an order that its containers would not give. The tree is then a
    /// list of arrays.
    pub paths: Option<Vec<String>>,
    /// With `paths`: the paths of empty dicts.
    pub empty: Vec<String>,
}

impl Default for PytreeDataOptions {
    fn default() -> Self {
        Self {
            byte_align: NonZeroU64::MIN.saturating_add(7),
            native_dtypes: false,
            extra_keys: true,
            manifest: true,
            data_suffix: DATA_SUFFIX.to_owned(),
            manifest_suffix: MANIFEST_SUFFIX.to_owned(),
            paths: None,
            empty: Vec::new(),
        }
    }
}
