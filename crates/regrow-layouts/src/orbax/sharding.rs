//! `_sharding`: the sharding of each `jax.Array` at its save. It is only a hint: no byte depends on
//! it.
//!
//! ```text
//! {"Ymln":"{\"sharding_type\": \"NamedSharding\", \"shape\": [4, 2], …}","aw==":""}
//!    │        └ a string that holds JSON (Python's spacing), or an empty one
//!    └ url-safe base64 of the param name, with padding; the bare name before October 2023
//! ```
//!
//! [`regrow_tree::sharding`] reads the inner JSON. This module reads and writes the file.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::json_text;
use regrow_base::error::Result;
use regrow_tree::sharding::{DistinctShardings, Sharding, SingleDeviceSharding};

/// Name of the file.
pub const SHARDING_FILE: &str = "_sharding";

/// A parsed document: the entries by their stored names. `get` parses the inner JSON.
#[derive(Debug, Clone, Default)]
pub struct Shardings {
    texts: HashMap<String, String>,
    /// Thousands of leaves share a few shardings: each text is parsed once.
    parsed: HashMap<String, Option<Arc<Sharding>>>,
}

impl Shardings {
    /// Parses the document. Entries that are not strings are left out.
    ///
    /// # Errors
    /// `Corrupt` with the offset; the caller knows the file.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let members: Map<String, Value> = json_text::parse(bytes)?;
        let text = |value| match value {
            Value::String(text) => Some(text),
            _ => None,
        };
        let texts = members.into_iter().filter_map(|(key, value)| Some((key, text(value)?))).collect();
        Ok(Self { texts, parsed: HashMap::new() })
    }

    /// The sharding of a leaf; `None` if the leaf has no entry, or if its entry is not a JSON
    /// object.
    pub fn get(&mut self, param_name: &str) -> Option<Arc<Sharding>> {
        let text =
            self.texts.get(&base64url(param_name.as_bytes())).or_else(|| self.texts.get(param_name))?;
        if let Some(known) = self.parsed.get(text) {
            return known.clone();
        }
        let value: Option<Value> = serde_json::from_str(text).ok().filter(Value::is_object);
        let parsed = value.map(|value| Arc::new(Sharding::from_json(value)));
        self.parsed.insert(text.clone(), parsed.clone());
        parsed
    }
}

/// The document for leaves with their shardings. The entry is empty for a leaf without a sharding,
/// and for a sharding of a kind that Orbax does not know. Orbax cannot restore a leaf whose entry
/// has an unknown kind.
///
/// # Errors
/// None for JSON values with string keys.
pub fn to_json<'a>(shardings: impl IntoIterator<Item = (&'a str, Option<&'a Sharding>)>) -> Result<Vec<u8>> {
    // Each distinct sharding is encoded once, as the JSON string that its entries have.
    let mut distinct = DistinctShardings::default();
    let mut texts: Vec<Vec<u8>> = Vec::new();
    let mut members: Vec<(String, Option<usize>)> = Vec::new();
    for (name, sharding) in shardings {
        let sharding = sharding.filter(|sharding| sharding.is_known_to_orbax());
        let number = sharding.map(|sharding| distinct.number(sharding));
        if let Some(sharding) = sharding.filter(|_| number == Some(texts.len())) {
            let text = json_text::to_python_json(&sharding.to_json())?;
            let mut quoted = Vec::new();
            json_text::push_text(&mut quoted, &String::from_utf8_lossy(&text));
            texts.push(quoted);
        }
        members.push((base64url(name.as_bytes()), number));
    }
    // Sorted by name. If two leaves had one name, the later leaf would count; no caller passes such
    // leaves.
    members.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut out = vec![b'{'];
    for (at, (name, text)) in members.iter().enumerate() {
        if members.get(at + 1).is_some_and(|(next, _)| next == name) {
            continue;
        }
        if out.len() > 1 {
            out.push(b',');
        }
        json_text::push_text(&mut out, name);
        out.push(b':');
        out.extend_from_slice(text.and_then(|text| texts.get(text)).map_or(&b"\"\""[..], |quoted| quoted));
    }
    out.push(b'}');
    Ok(out)
}

/// The entry that makes Orbax place an array on the first CPU device.
pub fn single_device() -> Sharding {
    SingleDeviceSharding::new("cpu:0").into()
}

/// URL-safe base64 with padding (RFC 4648, section 5).
pub fn base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |i: usize| u32::from(group.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let sextet = (bits >> (18 - 6 * i) & 63) as usize;
            let symbol = ALPHABET.get(sextet).copied().unwrap_or(b'=');
            out.push(if i <= group.len() { char::from(symbol) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_as_rfc_4648() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("\u{fffff}", "87-_vw=="),
        ] {
            assert_eq!(base64url(plain.as_bytes()), coded);
        }
    }

    #[test]
    fn writes_what_orbax_wrote() {
        for fixture in ["md8_ocdbt_zarr2", "sd_files_zarr2", "weird_keys_ocdbt"] {
            let folder = regrow_testkit::fixtures().join("orbax").join(fixture);
            let bytes = std::fs::read(folder.join("ckpt/_sharding")).unwrap();
            let mut read = Shardings::parse(&bytes).unwrap();
            let expected = regrow_testkit::expected(&format!("orbax/{fixture}"));
            let names: Vec<&str> = expected["items"][""]["leaves"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|leaf| leaf["value_type"] == "jax.Array")
                .map(|leaf| leaf["param_name"].as_str().unwrap())
                .collect();
            let values: Vec<Option<Arc<Sharding>>> = names.iter().map(|name| read.get(name)).collect();
            assert!(values.iter().all(Option::is_some));
            let ours = to_json(names.iter().copied().zip(values.iter().map(Option::as_deref))).unwrap();
            assert_eq!(ours, bytes, "{fixture}");
        }
    }

    #[test]
    fn takes_older_and_broken_entries() {
        let text = br#"{"plain.name": "{\"sharding_type\": \"X\"}", "YQ==": "", "Yg==": "{", "Yw==": 5}"#;
        let mut read = Shardings::parse(text).unwrap();
        assert_eq!(read.get("plain.name").unwrap().type_name(), "X");
        assert!(["a", "b", "c", "d"].iter().all(|name| read.get(name).is_none()));
    }
}
