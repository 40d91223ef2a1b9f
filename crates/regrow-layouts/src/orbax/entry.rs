//! A leaf or an empty container, as `_METADATA` has it.

use serde::{Deserialize, Serialize};

use super::python_repr::tuple_repr;

/// The kind of container that has a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyType {
    /// A list, a tuple, or a custom node registered without keys.
    Sequence = 1,
    /// A dict, or anything with attributes.
    Dict = 2,
}

/// The members of `value_metadata`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueMetadata {
    /// `jax.Array`, `np.ndarray`, `scalar`, `string`, `None`, `Dict`, `List`, `Tuple`,
    /// `NamedTuple`, `placeholder`, …
    pub value_type: String,
    /// No stored array: an empty container, or (before 2024) a leaf in the msgpack file
    /// `checkpoint`.
    #[serde(default)]
    pub skip_deserialize: bool,
    /// Shape of one piece as it was written; of `jax.Array` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_shape: Option<Vec<u64>>,
}

/// A leaf or an empty container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key path; empty for a pytree that is one leaf.
    pub keys: Vec<(KeyType, String)>,
    /// The type of the value: see `ValueMetadata::value_type`.
    pub value_type: String,
    /// See [`ValueMetadata::skip_deserialize`].
    pub skip_deserialize: bool,
    /// See [`ValueMetadata::write_shape`].
    pub write_shape: Option<Vec<u64>>,
}

impl Entry {
    /// The stored name of the leaf's data: the keys joined by dots, without escapes.
    pub fn param_name(&self) -> String {
        let mut name = String::with_capacity(self.keys.iter().map(|(_, key)| key.len() + 1).sum());
        for (i, (_, key)) in self.keys.iter().enumerate() {
            if i > 0 {
                name.push('.');
            }
            name.push_str(key);
        }
        name
    }

    /// The key path as its member name in the document: Python's `repr` of a tuple of strings.
    pub fn repr(&self) -> String {
        tuple_repr(self.keys.iter().map(|(_, key)| key.as_str()))
    }
}
