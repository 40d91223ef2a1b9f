//! `array_metadatas/process_<n>`: the chunk shapes of `jax.Array` leaves, and the algorithms of
//! PRNG keys.

use super::{DocumentSink, LeafEntry, PIECE_LEN_BYTES, Switches, ValueType, flush};
use crate::orbax::array_metadatas::{self, ARRAY_METADATAS_FOLDER, process_file};
use regrow_base::error::Result;
use regrow_tree::array::Shape;
use regrow_tree::tree::{Leaf, LeafKind, Tree};

/// Writes the file of a process. All processes write the same contents. Writes nothing if the tree
/// has no `jax.Array` leaves.
pub(crate) fn array_metadatas_of<'a>(
    process: u32,
    tree: &'a Tree<Leaf>,
    entry: &dyn Fn(usize) -> LeafEntry<'a>,
    switches: Switches<'_>,
    sink: &mut dyn DocumentSink,
) -> Result<()> {
    let leaves = || tree.leaves().iter().enumerate().map(|(at, leaf)| (leaf, entry(at)));
    let jax_arrays = || leaves().filter(|(_, entry)| entry.value_type == ValueType::JaxArray);
    let is_named_key = |(leaf, _): (&Leaf, _)| matches!(leaf.kind, LeafKind::PrngKey(Some(_)));
    let is_written = if switches.write_array_metadatas {
        jax_arrays().next().is_some()
    } else {
        jax_arrays().any(is_named_key)
    };
    if !is_written {
        return Ok(());
    }
    sink.begin(&format!("{}{ARRAY_METADATAS_FOLDER}/{}", switches.item(), process_file(process as usize)))?;
    let mut text = array_metadatas::OPENING.to_vec();
    for (at, (leaf, entry)) in jax_arrays().enumerate() {
        if at > 0 {
            text.extend_from_slice(b", ");
        }
        push_array_metadata(&mut text, leaf, &entry)?;
        flush(sink, &mut text, PIECE_LEN_BYTES)?;
    }
    text.extend_from_slice(array_metadatas::CLOSING);
    flush(sink, &mut text, 1)?;
    sink.end()
}

fn push_array_metadata(out: &mut Vec<u8>, leaf: &Leaf, entry: &LeafEntry<'_>) -> Result<()> {
    let ext_metadata = match &leaf.kind {
        LeafKind::PrngKey(Some(algorithm)) => Some(serde_json::json!({"random_key_impl": &**algorithm})),
        _ => None,
    };
    let dims = |shape: Option<&'_ Shape>| shape.map(|shape| shape.dims().to_vec()).unwrap_or_default();
    let (write_shape, chunk_shape) = (dims(entry.write_shape), dims(entry.chunk_shape));
    array_metadatas::push_entry(out, entry.name, &write_shape, &chunk_shape, ext_metadata.as_ref())
}
