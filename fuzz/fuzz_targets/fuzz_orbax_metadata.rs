//! Orbax' JSON documents: the first byte says which.

#![no_main]

use libfuzzer_sys::fuzz_target;
use regrow_layouts::orbax::{array_metadatas, checkpoint_metadata, metadata, sharding, strings};

fuzz_target!(|input: &[u8]| {
    let Some((which, document)) = input.split_first() else { return };
    match which % 5 {
        0 => drop(metadata::TreeMetadata::parse(document)),
        1 => drop(array_metadatas::parse(document)),
        2 => drop(strings::Strings::parse(document)),
        3 => drop(checkpoint_metadata::CheckpointMetadata::parse(document)),
        _ => drop(sharding::Shardings::parse(document)),
    }
});
