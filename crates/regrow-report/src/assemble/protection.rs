//! Finds the data that checksums cover.

use regrow::Checkpoint;
use regrow::engine::format_bytes;
use regrow::tree::LeafInfo;
use regrow_base::text::counted;
use regrow_store::reads::{Source, Text};

use crate::model::Protection;

/// The checksum that covers the bytes of a leaf, as text; empty if there is none.
pub(super) fn of_leaf(checkpoint: &Checkpoint, leaf: usize, info: &LeafInfo) -> &'static str {
    if info.data_len_bytes() == 0 {
        return "";
    }
    let own = match checkpoint.reader().source(leaf) {
        Ok(Source::Raw(extent) | Source::Text(Text::Stored(extent))) if extent.checks.is_some() => {
            "crc32c of blocks"
        }
        Ok(Source::Coded(coded)) if coded.seal.is_some() => "one checksum of the leaf",
        // Codecs of zarr. A checksum that covers only an index does not count here.
        Ok(_) if info.coding.ends_with("crc32c") => "crc32c of each chunk",
        _ => "",
    };
    match own {
        "" if checkpoint.reader().standing().has_data_checksums => "checksums of the layout",
        own => own,
    }
}

/// The bytes of a checkpoint with and without checksums, and a text that explains them.
pub(super) fn of_checkpoint(checkpoint: &Checkpoint) -> Protection {
    let mut found = Protection::default();
    let (mut unprotected_count, mut kinds) = (0_u64, Vec::new());
    for (leaf, info) in checkpoint.tree().leaves().iter().enumerate() {
        let len_bytes = info.data_len_bytes();
        match of_leaf(checkpoint, leaf, info) {
            _ if len_bytes == 0 => {}
            "" => {
                found.unprotected_bytes = found.unprotected_bytes.saturating_add(len_bytes);
                unprotected_count += 1;
            }
            kind => {
                found.protected_bytes = found.protected_bytes.saturating_add(len_bytes);
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
            }
        }
    }
    let about = checkpoint.description();
    let unprotected = format_bytes(found.unprotected_bytes);
    found.words = match (found.protected_bytes, found.unprotected_bytes) {
        (0, 0) => "There is no data.".to_owned(),
        _ if checkpoint.path().as_os_str().is_empty() => "It is in memory, not stored.".to_owned(),
        (_, 0) => format!("Checksums cover all data: {}.", kinds.join(", ")),
        (0, _) => format!(
            "No checksum covers the data: regrow cannot detect damage of its {unprotected}. {}",
            why(&about.layout)
        ),
        (protected, _) => format!(
            "Checksums cover {} of data ({}). None covers the {unprotected} of {}: regrow cannot detect \
             damage there.",
            format_bytes(protected),
            kinds.join(", "),
            counted(unprotected_count, "other leaf", "other leaves"),
        ),
    };
    found
}

/// A sentence about the checksums that a layout has or lacks.
fn why(layout: &str) -> &'static str {
    match layout {
        "orbax" => {
            "Orbax' databases have checksums of their indexes, but not of array data. The layout regrow is \
             an Orbax checkpoint with checksums of everything."
        }
        "safetensors" => {
            "safetensors files have no checksums. The layout regrow is safetensors with checksums beside it."
        }
        "flax" => "Flax' msgpack has no checksums.",
        "npy" => ".npy files have no checksums; an .npz archive has one for each array.",
        "equinox" => "The leaf file was not written by regrow, which appends checksums to it.",
        "pytree_data" => "The manifest was not written by regrow, which puts checksums into it.",
        "trak" => "TRAK stores have no checksums.",
        "torch" => "Only zip files of torch.save have checksums.",
        _ => "",
    }
}
