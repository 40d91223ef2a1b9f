//! Each file name of a layout stands once in the code, beside the code that writes the file. Other
//! code uses the constant.
//!
//! ```text
//! regrow-layouts/orbax/metadata.rs  pub const METADATA_FILE: &str = "_METADATA";
//! engine/repair/recovered.rs      METADATA_FILE, and no "_METADATA"
//! ```
//! Strings in comments and tests do not count, nor do names within longer texts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The crates that know files of checkpoints.
const CRATES: [&str; 8] = [
    "regrow",
    "regrow-layouts",
    "regrow-ocdbt",
    "regrow-protection",
    "regrow-storage",
    "regrow-store",
    "regrow-tree",
    "regrow-zarr",
];

/// Names of files, and how such names begin and end.
const NAMES: [&str; 42] = [
    // Orbax.
    "_METADATA",
    "_CHECKPOINT_METADATA",
    "_ROOT_METADATA",
    "_sharding",
    "_strings.json",
    "array_metadatas",
    "orbax.checkpoint",
    "commit_success.txt",
    ".orbax-checkpoint-tmp",
    "regrow.items.json",
    // TensorStore and zarr.
    "manifest.ocdbt",
    "ocdbt.process_",
    ".zarray",
    ".zgroup",
    "zarr.json",
    // The default layout.
    "regrow.json",
    "regrow.process_",
    // safetensors.
    ".safetensors",
    "model.safetensors",
    ".safetensors.index.json",
    "model.safetensors.index.json",
    // npy, flax, equinox, pytree data, torch.
    "regrow-structure.json",
    ".npy",
    ".npz",
    "arrays.npz",
    "array.npy",
    ".msgpack",
    "checkpoint.msgpack",
    ".eqx",
    "checkpoint.eqx",
    ".data",
    ".manifest",
    ".distcp",
    // Side files and the control objects of buckets.
    "regrow.seal.json",
    "regrow.signature.json",
    "regrow.parity.json",
    "regrow.parity.blocks",
    "regrow-state.json",
    "regrow-writing.json",
    "regrow-committed.txt",
    "regrow-moved.json",
    "regrow-settling.json",
];

#[test]
fn each_file_name_stands_once() {
    let mut found: BTreeMap<&str, Vec<String>> = NAMES.map(|name| (name, Vec::new())).into();
    for (file, line) in code() {
        for (name, places) in &mut found {
            let count = line.matches(&format!("\"{name}\"")).count();
            places.extend(vec![file.clone(); count]);
        }
    }
    let wrong: Vec<_> = found.into_iter().filter(|(_, places)| places.len() != 1).collect();
    assert!(wrong.is_empty(), "use the constant of the layout: {wrong:#?}");
}

/// Only then the storage knows which names are a checkpoint's own before it is asked.
#[test]
fn the_engine_makes_locations_with_located() {
    let is_above = |file: &str| ["regrow/engine/", "regrow/manager/"].iter().any(|top| file.starts_with(top));
    let all = code();
    let made = all.iter().filter(|(file, line)| is_above(file) && line.contains(".to_location()"));
    let places: Vec<&String> = made.map(|(file, _)| file).collect();
    assert!(places.is_empty(), "use `formats::located`: {places:?}");
    assert!(all.iter().any(|(file, line)| is_above(file) && line.contains("located(")), "nothing was read");
}

/// The lines of code of these crates without comments and tests, each with its file.
pub fn code() -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for name in CRATES {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
        let mut folders = vec![top.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let file = path.strip_prefix(&top).unwrap().to_str().unwrap().to_owned();
                if path.is_dir() {
                    folders.push(path);
                } else if file.ends_with(".rs") && !file.contains("test") {
                    let text = fs::read_to_string(&path).unwrap();
                    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
                    let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
                    lines.extend(code.map(|line| (format!("{name}/{file}"), line.to_owned())));
                }
            }
        }
    }
    lines
}
