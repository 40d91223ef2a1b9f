//! Checkpoints of every layout for tests that damage them, and texts of their contents for
//! comparisons.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use regrow::SaveOptions;
use regrow::array::{Array, Dtype, Shape};
use regrow::engine::{ItemsOptions, ItemsSave, Layout};
use regrow::tree::{Leaf, LeafData, Scalar, Tree};
use regrow_testkit::{copy_folder, files_below, fixtures};

use super::{dict, layouts};

pub fn options(layout: &Layout) -> SaveOptions {
    SaveOptions { layout: layout.clone(), not_durable: true, ..SaveOptions::default() }
}

/// Containers, a text, a number, and arrays long enough for several blocks.
pub fn small_tree() -> Tree<Leaf> {
    let array = |dtype: Dtype, dims: &[u64]| {
        let shape = Shape::new(dims).unwrap();
        let len = shape.len_bytes(dtype).unwrap();
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 % 120) as u8).collect();
        Leaf::array(Array::new(dtype, shape, bytes.into()).unwrap())
    };
    dict([
        ("b", array(Dtype::Float32, &[7])),
        ("n", Leaf::scalar(Scalar::Int(7))),
        ("w", array(Dtype::Float32, &[150, 150])),
    ])
}

/// Every difference that a user of the tree could see.
pub fn contents(tree: &Tree<Leaf>) -> String {
    let leaf = |leaf: &Leaf| match &leaf.data {
        LeafData::Array(array) => {
            let bytes = array.to_c_order().unwrap();
            format!("{:?} {} {} {:?}", leaf.kind, array.dtype(), array.shape(), &bytes[..])
        }
        other => format!("{:?} {other:?}", leaf.kind),
    };
    format!("{:?} {:?}", tree.nodes(), tree.leaves().iter().map(leaf).collect::<Vec<_>>())
}

/// Every file below a folder, with its bytes.
pub fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = files_below(folder).unwrap();
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Names by which some layout knows its own files.
pub const RESERVED: [&str; 24] = [
    ".zarray",
    "_CHECKPOINT_METADATA",
    "_METADATA",
    "_sharding",
    "arrays.npz",
    "checkpoint",
    "checkpoint.msgpack",
    "commit_success.txt",
    "config.json",
    "d/0",
    "data.json",
    "jax_random_key/x",
    "manifest.ocdbt",
    "metadata",
    "metadata.json",
    "metrics",
    "model.safetensors",
    "orbax.checkpoint",
    "process_0.json",
    "proto.pbtxt",
    "regrow-structure.json",
    "regrow.items.json",
    "regrow.json",
    "zarr.json",
];

/// What a file of the item `iterator` holds.
pub fn content(name: &str) -> Vec<u8> {
    format!("7 {name}").into_bytes()
}

/// Saves a tree, JSON, metrics, metadata, and files that are called as those of the layouts are.
pub fn save_items(at: impl regrow::location::ToLocation) -> regrow::Result<()> {
    let custom_metadata = serde_json::json!({"commit": 1}).as_object().unwrap().clone();
    let options =
        ItemsOptions { overwrite: true, not_durable: true, custom_metadata, ..ItemsOptions::default() };
    let save = ItemsSave::begin(at, options)?;
    save.tree("state", &small_tree(), &SaveOptions::default())?;
    save.json("config", &serde_json::json!({"width": 1024}))?;
    save.metrics(&serde_json::json!({"loss": 0.25}))?;
    for name in RESERVED {
        save.file("iterator", name, &content(name))?;
    }
    save.commit().map(drop)
}

/// A checkpoint of each layout in a folder of its own, so that all that belongs to it is in that
/// folder: what regrow writes, and what the original tools wrote. Each with its name in the tables.
pub fn checkpoints(root: &Path) -> Vec<(String, PathBuf)> {
    let mut all = Vec::new();
    for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
        let path = root.join(format!("own{at}")).join(format!("x{suffix}"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        regrow::save_with(&path, &small_tree(), &options(&layout)).unwrap();
        all.push((format!("{} {suffix} (regrow)", layout.name()), path));
    }
    for fixture in [
        "orbax/sd_ocdbt_zarr2/ckpt",
        "orbax/sd_ocdbt_zarr3_chunked/ckpt",
        "orbax/sd_files_zarr2/ckpt",
        "orbax/mp2_ocdbt_zarr3/ckpt",
        "orbax/v1_default/ckpt",
        "flax/all_dtypes.msgpack",
        "flax/chunked.msgpack",
        "equinox/model_and_opt.eqx",
        "npy/deflated.npz",
        "npy/fortran_big.npy",
        "safetensors/every_dtype.safetensors",
        "safetensors/sharded",
        "torch/training.pt",
        "torch/legacy_training.pt",
        "torch/dcp_sharded",
        "trak/half_two_models",
    ] {
        let from = fixtures().join(fixture);
        let name = from.file_name().unwrap();
        let path = root.join(fixture.replace('/', "-")).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if from.is_dir() {
            copy_folder(&from, &path).unwrap();
        } else {
            fs::copy(&from, &path).unwrap();
        }
        let _ = fs::remove_file(path.join("expected.json"));
        all.push((fixture.to_owned(), path));
    }
    let path = root.join("items").join("x");
    save_items(&path).unwrap();
    all.push(("regrow items".to_owned(), path));
    all
}

/// Writes the file that holds a flip as a new file, so that a map of the old one does not change.
pub fn put(file: &Path, bytes: &[u8]) {
    fs::remove_file(file).unwrap();
    fs::write(file, bytes).unwrap();
}

/// Each of these files lost, cut, made longer, and swapped with another one that has other bytes;
/// `check` is told which and what. All is as it was behind each.
pub fn damaged_in_turn(all: &[(PathBuf, Vec<u8>)], check: impl Fn(&str)) {
    for (at, (file, bytes)) in all.iter().enumerate() {
        let check = |what: &str| check(&format!("{} {what}", file.display()));
        fs::remove_file(file).unwrap();
        check("lost");
        fs::write(file, bytes).unwrap();
        if let Some((_, cut)) = bytes.split_last() {
            put(file, &bytes[..cut.len() - cut.len() / 3]);
            check("cut");
        }
        put(file, &[bytes, &b"\0"[..]].concat());
        check("longer");
        put(file, bytes);
        let (other, others) = &all[(at + 1) % all.len()];
        if others != bytes {
            put(file, others);
            put(other, bytes);
            check("swapped");
            put(file, bytes);
            put(other, others);
        }
    }
}
