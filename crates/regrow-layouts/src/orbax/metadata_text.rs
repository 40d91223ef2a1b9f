//! The entries of `_METADATA` in Orbax' form, without a separate text for each.
//!
//! ```text
//! "('m', '0', 'w')": {"key_metadata": [{"key": "m", "key_type": 2}, …], "value_metadata": {…}}
//!  ^ repr             ^ keys             a step down appends a key to both, a step up removes it
//! ```

use super::entry::KeyType;
use super::json_text::push_python_text;
use super::python_repr::push_repr_in_json;

/// The text of a key path in an entry. A step down appends to it, a step up truncates it.
#[derive(Debug, Default)]
pub(crate) struct PathText {
    repr: Vec<u8>,
    keys: Vec<u8>,
    /// For each key, the lengths of both texts before it.
    lens: Vec<(usize, usize)>,
}

impl PathText {
    pub(crate) fn truncate(&mut self, len: usize) {
        if let Some(&(repr, keys)) = self.lens.get(len) {
            self.repr.truncate(repr);
            self.keys.truncate(keys);
            self.lens.truncate(len);
        }
    }

    pub(crate) fn push(&mut self, kind: KeyType, key: &str) {
        self.lens.push((self.repr.len(), self.keys.len()));
        if self.lens.len() > 1 {
            self.repr.extend_from_slice(b", ");
            self.keys.extend_from_slice(b", ");
        }
        push_repr_in_json(&mut self.repr, key);
        self.keys.extend_from_slice(b"{\"key\": ");
        push_python_text(&mut self.keys, key);
        self.keys.extend_from_slice(match kind {
            KeyType::Sequence => b", \"key_type\": 1}",
            KeyType::Dict => b", \"key_type\": 2}",
        });
    }

    pub(crate) fn push_entry(
        &self,
        out: &mut Vec<u8>,
        value_type: &str,
        skip_deserialize: bool,
        write_shape: Option<&[u64]>,
    ) {
        out.extend_from_slice(b"\"(");
        out.extend_from_slice(&self.repr);
        out.extend_from_slice(if self.lens.len() == 1 { b",)" } else { b")" });
        out.extend_from_slice(b"\": {\"key_metadata\": [");
        out.extend_from_slice(&self.keys);
        out.extend_from_slice(b"], \"value_metadata\": {\"value_type\": ");
        push_python_text(out, value_type);
        out.extend_from_slice(b", \"skip_deserialize\": ");
        out.extend_from_slice(if skip_deserialize { b"true" } else { b"false" });
        if let Some(shape) = write_shape {
            out.extend_from_slice(b", \"write_shape\": ");
            push_shape(out, shape);
        }
        out.extend_from_slice(b"}}");
    }
}

pub(crate) fn push_shape(out: &mut Vec<u8>, shape: &[u64]) {
    use std::io::Write as _;
    out.push(b'[');
    for (axis, dim) in shape.iter().enumerate() {
        // Writing into a Vec cannot fail.
        let _ = write!(out, "{}{dim}", if axis > 0 { ", " } else { "" });
    }
    out.push(b']');
}
