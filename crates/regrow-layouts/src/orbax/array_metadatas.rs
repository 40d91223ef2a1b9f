//! `array_metadatas/process_<N>`: further metadata of each `jax.Array`.
//!
//! ```text
//! {"array_metadatas": [{"array_metadata": {"param_name": "k", "write_shape": [2], "chunk_shape": [2],
//!                                          "ext_metadata": {"random_key_impl": "threefry2x32"}}}, …]}
//! ```
//!
//! The file of each process has all leaves. No other file has the implementations of typed PRNG
//! keys.

use serde::Deserialize;
use serde_json::Value;

use super::json_text;
use super::metadata_text::push_shape;
use regrow_base::error::Result;

/// Name of the folder.
pub const ARRAY_METADATAS_FOLDER: &str = "array_metadatas";

/// Name of the file of a process, below the folder.
pub fn process_file(process: usize) -> String {
    format!("process_{process}")
}

/// The metadata of one leaf.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ArrayMetadata {
    /// The stored name of the leaf.
    pub param_name: String,
    /// Shape of one written piece.
    pub write_shape: Vec<u64>,
    /// Shape of the smallest piece that is decoded alone.
    pub chunk_shape: Vec<u64>,
    /// Data that type handlers add; for typed PRNG keys, `random_key_impl`.
    #[serde(default)]
    pub ext_metadata: Option<Value>,
}

impl ArrayMetadata {
    /// The implementation of a typed PRNG key.
    pub fn random_key_impl(&self) -> Option<&str> {
        self.ext_metadata.as_ref()?.get("random_key_impl")?.as_str()
    }
}

#[derive(Deserialize)]
struct Document {
    array_metadatas: Vec<Wrapped>,
}

#[derive(Deserialize)]
struct Wrapped {
    array_metadata: ArrayMetadata,
}

/// Parses the file of one process.
///
/// # Errors
/// `Corrupt` with the offset; the caller knows the file.
pub fn parse(bytes: &[u8]) -> Result<Vec<ArrayMetadata>> {
    let document: Document = json_text::parse(bytes)?;
    Ok(document.array_metadatas.into_iter().map(|wrapped| wrapped.array_metadata).collect())
}

/// The text before and after the entries, which are separated by `, `.
pub(crate) const OPENING: &[u8] = b"{\"array_metadatas\": [";
pub(crate) const CLOSING: &[u8] = b"]}";

pub(crate) fn push_entry(
    out: &mut Vec<u8>,
    param_name: &str,
    write_shape: &[u64],
    chunk_shape: &[u64],
    ext_metadata: Option<&Value>,
) -> Result<()> {
    out.extend_from_slice(b"{\"array_metadata\": {\"param_name\": ");
    json_text::push_python_text(out, param_name);
    out.extend_from_slice(b", \"write_shape\": ");
    push_shape(out, write_shape);
    out.extend_from_slice(b", \"chunk_shape\": ");
    push_shape(out, chunk_shape);
    out.extend_from_slice(b", \"ext_metadata\": ");
    match ext_metadata {
        Some(value) => out.extend(json_text::to_python_json(value)?),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b"}}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_what_orbax_wrote() {
        let path = regrow_testkit::fixtures().join("orbax/prng_keys/ckpt/array_metadatas/process_0");
        let bytes = std::fs::read(path).unwrap();
        let leaves = parse(&bytes).unwrap();
        let keys: Vec<_> =
            leaves.iter().map(|leaf| (leaf.param_name.as_str(), leaf.random_key_impl())).collect();
        assert_eq!(keys[0], ("k", Some("threefry2x32")));
        assert_eq!(keys[1], ("other", None));
        let mut written = OPENING.to_vec();
        for (at, leaf) in leaves.iter().enumerate() {
            written.extend_from_slice(if at > 0 { b", " } else { b"" });
            let (name, note) = (&leaf.param_name, leaf.ext_metadata.as_ref());
            push_entry(&mut written, name, &leaf.write_shape, &leaf.chunk_shape, note).unwrap();
        }
        written.extend_from_slice(CLOSING);
        assert_eq!(written, bytes);
    }

    #[test]
    fn refuses_other_documents() {
        for bytes in [&b"{}"[..], b"", b"{\"array_metadatas\": [{}]}"] {
            assert!(parse(bytes).is_err());
        }
    }
}
