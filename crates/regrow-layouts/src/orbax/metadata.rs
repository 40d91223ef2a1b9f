//! `_METADATA`: the tree of one pytree, and how its arrays are stored.
//!
//! ```text
//! {"tree_metadata": {
//!    "('params', 'kernel')": {                      Python's repr of the key path: distinct; readers ignore it
//!       "key_metadata": [{"key": "params", "key_type": 2}, {"key": "kernel", "key_type": 2}],
//!       "value_metadata": {"value_type": "jax.Array", "skip_deserialize": false, "write_shape": [6, 4]}}},
//!  "use_ocdbt": true,                               absent before August 2025: look for manifest.ocdbt
//!  "use_zarr3": false,
//!  "store_array_data_equal_to_fill_value": true,    absent before December 2024: absent chunks are zeros
//!  "custom_metadata": null,
//!  "value_metadata_tree": "{…}"}                    rich types only: see `rich`
//! ```
//!
//! [`TreeMetadata`] is the document, [`Entry`] a leaf or an empty container in it. Cost: one pass,
//! about 200 bytes a leaf. Source: orbax `metadata/tree.py`.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::entry::{Entry, KeyType, ValueMetadata};
use super::json_text;
use super::metadata_text::PathText;
use super::rich::RichNode;
use regrow_base::error::{Error, ErrorKind, Result};

/// Name of the file.
pub const METADATA_FILE: &str = "_METADATA";

/// The member that shows that `regrow.json` is beside this document.
pub(crate) const BESIDE_REGROW_JSON: &str = "\"beside_regrow_json\"";

/// The parsed document.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TreeMetadata {
    /// Leaves and empty containers, in the order of the file: flatten order.
    pub entries: Vec<Entry>,
    /// One OCDBT database rather than a folder for each array; `None` if the file does not say.
    pub use_ocdbt: Option<bool>,
    /// zarr v3 rather than v2.
    pub use_zarr3: bool,
    /// Every chunk is stored, so a missing one is damage.
    pub store_array_data_equal_to_fill_value: bool,
    /// The user's own metadata; `None` for null.
    pub custom_metadata: Option<Value>,
    /// The tree with tuples and named tuples, if it was saved with rich types.
    pub value_metadata_tree: Option<RichNode>,
    /// Whether the document is from the default layout, with `regrow.json` beside it. Orbax ignores
    /// this member.
    pub beside_regrow_json: bool,
    /// The reason why an existing `value_metadata_tree` could not be used. The tree then has lists
    /// and dicts instead of tuples and named tuples.
    pub rich_types_lost: Option<String>,
}

impl TreeMetadata {
    /// Parses the document.
    ///
    /// Ignores a `value_metadata_tree` that cannot be read, for example because it is nested too
    /// deeply. The tree is complete without it.
    ///
    /// # Errors
    /// `Corrupt` with the offset; the caller knows the file.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let document: Document = json_text::parse(bytes)?;
        let mut entries = Vec::with_capacity(document.tree_metadata.0.len());
        for raw in document.tree_metadata.0 {
            let mut keys = Vec::with_capacity(raw.key_metadata.len());
            for key in raw.key_metadata {
                let key_type = match key.key_type {
                    1 => KeyType::Sequence,
                    2 => KeyType::Dict,
                    other => {
                        return Err(Error::corrupt(format!("key {:?} has an unknown key_type", key.key))
                            .expected("1 or 2", other));
                    }
                };
                keys.push((key_type, key.key));
            }
            entries.push(Entry {
                keys,
                value_type: raw.value_metadata.value_type,
                skip_deserialize: raw.value_metadata.skip_deserialize,
                write_shape: raw.value_metadata.write_shape,
            });
        }
        let (value_metadata_tree, rich_types_lost) = match document.value_metadata_tree {
            None => (None, None),
            Some(text) => match parse_rich(&text) {
                Ok(node) => (Some(node), None),
                Err(error) => (None, Some(error.what().to_owned())),
            },
        };
        Ok(Self {
            entries,
            use_ocdbt: document.use_ocdbt,
            use_zarr3: document.use_zarr3.unwrap_or(false),
            store_array_data_equal_to_fill_value: document
                .store_array_data_equal_to_fill_value
                .unwrap_or(false),
            custom_metadata: document.custom_metadata,
            beside_regrow_json: document.beside_regrow_json,
            value_metadata_tree,
            rich_types_lost,
        })
    }

    /// The tree of arrays that are known only by name: nested dicts, split at the dots.
    pub(super) fn of_names<'n>(names: impl Iterator<Item = &'n String>) -> Self {
        Self::of_keys(names, |name| name.split('.').collect())
    }

    /// As `of_names`, for names of other programs, split at dots, slashes, or big_vision's `~`.
    pub(super) fn of_paths<'n>(names: impl Iterator<Item = &'n String>) -> Self {
        Self::of_keys(names, |name| match name {
            "" => Vec::new(),
            name if name.contains('/') => name.split(['/', '.']).collect(),
            name => name.split(['.', '~']).collect(),
        })
    }

    /// As `of_names`, but as one dict of whole names.
    pub(super) fn of_whole_names<'n>(names: impl Iterator<Item = &'n String>) -> Self {
        Self::of_keys(names, |name| vec![name])
    }

    fn of_keys<'n>(names: impl Iterator<Item = &'n String>, keys: impl Fn(&'n str) -> Vec<&'n str>) -> Self {
        let entry = |name: &'n String| Entry {
            keys: keys(name).into_iter().map(|key| (KeyType::Dict, key.to_owned())).collect(),
            value_type: "np.ndarray".to_owned(),
            skip_deserialize: false,
            write_shape: None,
        };
        Self { entries: names.map(entry).collect(), ..Self::default() }
    }

    /// Adds text leaves by their names alone, as [`of_names`](Self::of_names) does for arrays.
    pub(super) fn add_texts<'n>(&mut self, names: impl Iterator<Item = &'n String>) {
        let texts = Self::of_names(names).entries.into_iter();
        self.entries.extend(texts.map(|entry| Entry { value_type: "string".to_owned(), ..entry }));
    }

    /// The document as Orbax writes it, byte for byte.
    ///
    /// # Errors
    /// `NameCollision` if two entries have the same keys.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        let mut seen = std::collections::HashSet::with_capacity(self.entries.len());
        for entry in &self.entries {
            let texts: Vec<&str> = entry.keys.iter().map(|(_, key)| key.as_str()).collect();
            if !seen.insert(texts) {
                return Err(equal_key_paths(&entry.repr()));
            }
        }
        let mut out = Self::OPENING.to_vec();
        let mut path = PathText::default();
        for (at, entry) in self.entries.iter().enumerate() {
            path.truncate(0);
            entry.keys.iter().for_each(|(kind, key)| path.push(*kind, key));
            if at > 0 {
                out.extend_from_slice(b", ");
            }
            let shape = entry.write_shape.as_deref();
            path.push_entry(&mut out, &entry.value_type, entry.skip_deserialize, shape);
        }
        self.push_rest(&mut out)?;
        Ok(out)
    }

    /// The text before the entries, which are separated by `, `.
    pub(crate) const OPENING: &[u8] = b"{\"tree_metadata\": {";

    pub(crate) fn push_rest(&self, out: &mut Vec<u8>) -> Result<()> {
        out.push(b'}');
        if let Some(use_ocdbt) = self.use_ocdbt {
            out.extend_from_slice(b", \"use_ocdbt\": ");
            out.extend_from_slice(use_ocdbt.to_string().as_bytes());
        }
        out.extend_from_slice(b", \"use_zarr3\": ");
        out.extend_from_slice(self.use_zarr3.to_string().as_bytes());
        out.extend_from_slice(b", \"store_array_data_equal_to_fill_value\": ");
        out.extend_from_slice(self.store_array_data_equal_to_fill_value.to_string().as_bytes());
        out.extend_from_slice(b", \"custom_metadata\": ");
        out.extend(json_text::to_python_json(&self.custom_metadata)?);
        if let Some(rich) = &self.value_metadata_tree {
            let text = json_text::to_python_json(rich)?;
            out.extend_from_slice(b", \"value_metadata_tree\": ");
            json_text::push_python_text(out, &String::from_utf8_lossy(&text));
        }
        if self.beside_regrow_json {
            out.extend_from_slice(format!(", {BESIDE_REGROW_JSON}: true").as_bytes());
        }
        out.push(b'}');
        Ok(())
    }
}

/// `repr` is of the key path that two entries have.
pub(crate) fn equal_key_paths(repr: &str) -> Error {
    Error::new(ErrorKind::NameCollision, format!("two leaves have the key path {repr}"))
        .help("rename one of them; Orbax would keep only one of the two")
}

fn parse_rich(text: &str) -> Result<RichNode> {
    let value = json_text::parse(text.as_bytes())?;
    RichNode::from_json(&value)
}

#[derive(Deserialize)]
struct Document {
    tree_metadata: RawEntries,
    use_ocdbt: Option<bool>,
    use_zarr3: Option<bool>,
    store_array_data_equal_to_fill_value: Option<bool>,
    custom_metadata: Option<Value>,
    #[serde(default)]
    beside_regrow_json: bool,
    value_metadata_tree: Option<String>,
}

#[derive(Deserialize)]
struct RawEntry {
    key_metadata: Vec<RawKey>,
    value_metadata: ValueMetadata,
}

#[derive(Deserialize)]
struct RawKey {
    key: String,
    key_type: u8,
}

/// The values of an object, in order; their names are not looked at.
struct RawEntries(Vec<RawEntry>);

impl<'de> Deserialize<'de> for RawEntries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawEntries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of leaves")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<RawEntries, A::Error> {
                let mut entries = Vec::new();
                while let Some((IgnoredAny, entry)) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(RawEntries(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents() -> Vec<std::path::PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![regrow_testkit::fixtures().join("orbax")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.file_name().unwrap() == METADATA_FILE {
                    found.push(path);
                }
            }
        }
        found
    }

    #[test]
    fn writes_every_document_as_orbax_did() {
        let (mut same, mut all) = (0, 0);
        for path in documents() {
            let bytes = std::fs::read(&path).unwrap();
            let parsed = TreeMetadata::parse(&bytes).unwrap();
            let ours = parsed.to_json().unwrap();
            assert_eq!(TreeMetadata::parse(&ours).unwrap(), parsed, "{}", path.display());
            all += 1;
            // The other fixtures were made by hand: they have older forms, or lack members.
            if parsed.use_ocdbt.is_some() && ours == bytes {
                same += 1;
            } else {
                let name = path.display().to_string();
                assert!(name.contains("legacy") || name.contains("edge_minimal"), "{name}");
            }
        }
        assert!(same >= 40 && all > same, "{same} of {all}");
    }

    #[test]
    fn refuses_key_types_it_does_not_know() {
        let text = br#"{"tree_metadata": {"x": {"key_metadata": [{"key": "x", "key_type": 3}],
            "value_metadata": {"value_type": "scalar"}}}}"#;
        let error = TreeMetadata::parse(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(TreeMetadata::parse(b"{}").is_err());
        assert!(TreeMetadata::parse(b"").is_err());
    }
}
