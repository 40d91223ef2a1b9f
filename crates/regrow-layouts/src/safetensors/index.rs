//! `model.safetensors.index.json`: the file of each tensor, as model hubs and `transformers` write
//! it.
//!
//! ```text
//! {"metadata":{"total_size":192},
//!  "weight_map":{"embed":"model-00001-of-00002.safetensors","head":"model-00002-of-00002.safetensors"}}
//! ```
//!
//! Files that are not in the index do not belong to the checkpoint, even in the same folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::layout::json_error;
use regrow_base::error::{Error, Result};

/// The usual name of the file.
pub const INDEX_FILE_NAME: &str = "model.safetensors.index.json";

/// The suffix of index files.
pub const INDEX_SUFFIX: &str = ".safetensors.index.json";

/// The suffix that an index adds to the name of the model in one file.
pub(super) const INDEX_ENDING: &str = ".index.json";

/// The file of each tensor. Every file is in the same folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    #[serde(skip_deserializing)]
    metadata: Metadata,
    #[serde(deserialize_with = "each_tensor_once")]
    weight_map: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
struct Metadata {
    /// Length of all tensors. Readers ignore it, because files of other programs may have a wrong
    /// value.
    total_size: u64,
}

impl Index {
    /// Adds a tensor of `len_bytes` that lies in `file`.
    pub fn insert(&mut self, tensor: &str, file: &str, len_bytes: u64) {
        self.weight_map.insert(tensor.to_owned(), file.to_owned());
        self.metadata.total_size = self.metadata.total_size.saturating_add(len_bytes);
    }

    /// Parses the file's bytes.
    ///
    /// # Errors
    /// `Corrupt` if the JSON is not an index, or lists a file outside its folder.
    pub fn parse(json: &[u8]) -> Result<Self> {
        let index: Self = serde_json::from_slice(json)
            .map_err(|error| json_error("the index of safetensors files cannot be read", json, 0, &error))?;
        let outside = |file: &&str| file.contains('/') || matches!(*file, "" | "." | "..");
        if let Some(file) = index.files().into_iter().find(outside) {
            return Err(Error::corrupt(format!("the index names {file:?}, which is not beside it"))
                .help("put all files of the checkpoint into one folder"));
        }
        Ok(index)
    }

    /// The file's bytes.
    ///
    /// # Errors
    /// None in practice: JSON can store all its members.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self)
            .map_err(|error| Error::invalid(format!("the index of files is not JSON: {error}")))
    }

    /// The file's bytes, with line breaks and indents as in files of model hubs.
    ///
    /// # Errors
    /// As [`to_json`](Self::to_json).
    pub fn to_json_lines(&self) -> Result<Vec<u8>> {
        let mut json = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::invalid(format!("the index of files is not JSON: {error}")))?;
        json.push(b'\n');
        Ok(json)
    }

    /// The files, each once, sorted.
    pub fn files(&self) -> BTreeSet<&str> {
        self.weight_map.values().map(String::as_str).collect()
    }

    /// Every tensor with its file, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &str)> {
        self.weight_map.iter().map(|(tensor, file)| (tensor.as_str(), file.as_str()))
    }

    /// The file that holds a tensor.
    pub fn file_of(&self, tensor: &str) -> Option<&str> {
        self.weight_map.get(tensor).map(String::as_str)
    }
}

fn each_tensor_once<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct MapVisitor;
    impl<'de> Visitor<'de> for MapVisitor {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object of file names")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut out = BTreeMap::new();
            while let Some((tensor, file)) = map.next_entry::<String, String>()? {
                if let Some(other) = out.insert(tensor, file.clone()).filter(|other| *other != file) {
                    return Err(A::Error::custom(format_args!(
                        "a tensor is both in {other:?} and in {file:?}"
                    )));
                }
            }
            Ok(out)
        }
    }
    from.deserialize_map(MapVisitor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_is_parsed() {
        let mut index = Index::default();
        index.insert("b \"quoted\"", "model-00002-of-00002.safetensors", 8);
        index.insert("a", "model-00001-of-00002.safetensors", 4);
        let json = index.to_json().unwrap();
        let value: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(value["metadata"]["total_size"], 12);
        let lines = index.to_json_lines().unwrap();
        assert!(
            lines.starts_with(b"{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n  \"weight_map\": {\n")
        );
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&lines).unwrap(), value);
        let again = Index::parse(&json).unwrap();
        assert_eq!(again.file_of("a"), Some("model-00001-of-00002.safetensors"));
        assert_eq!(again.tensors().count(), 2);
        assert_eq!(again.files().len(), 2);
    }

    #[test]
    fn hubs_write_more_than_is_needed() {
        let json = br#"{"metadata":{"total_size":1.5e3,"x":[]},"weight_map":{"a":"f.safetensors"},"more":1}"#;
        assert_eq!(Index::parse(json).unwrap().file_of("a"), Some("f.safetensors"));
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        for file in ["../x.safetensors", "/etc/x.safetensors", "", "sub/x.safetensors"] {
            let json = format!("{{\"weight_map\":{{\"a\":{file:?}}}}}");
            assert!(Index::parse(json.as_bytes()).is_err(), "{file}");
        }
        let twice = |file: &str| format!("{{\"weight_map\":{{\"a\":\"x\",\"a\":\"{file}\"}}}}");
        assert!(Index::parse(twice("x").as_bytes()).is_ok());
        assert!(
            Index::parse(twice("y").as_bytes())
                .unwrap_err()
                .to_string()
                .contains("both in \"x\" and in \"y\"")
        );
        assert!(Index::parse(b"{}").is_err());
        assert_eq!(Index::parse(b"{\n \"weight_map\":3}").unwrap_err().place().offset_bytes, Some(17));
    }
}
