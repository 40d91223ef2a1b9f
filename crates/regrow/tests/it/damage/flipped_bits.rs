//! Each flipped bit of a file with checksums has no effect, or is an error of `load` and `convert`
//! and a finding of `verify`. No part of a leaf is read as other numbers.
//!
//! The tests flip the bits of the metadata, and one bit of each byte of arrays, because all bits of
//! a byte are equal to a checksum. Without `REGROW_LONG=1` they flip every third bit. `convert`
//! runs only after every 16th error of `load`, because it takes long.
//!
//! For files without checksums the result is an answer, or an error with a place, but never a
//! panic.

use std::fs;
use std::path::{Path, PathBuf};

use regrow::array::{Array, Dtype, Region, Shape};
use regrow::engine::{ConvertOptions, Layout};
use regrow::tree::{Key, Leaf, LeafData, LeafKind, NodeKind, Scalar, Tree, TreeBuilder};
use regrow::{ErrorKind, LoadOptions, OpenOptions, SaveOptions};
use regrow_testkit::{fixtures, flipped_bits};

fn array(dtype: Dtype, dims: &[u64]) -> Array {
    let shape = Shape::new(dims).unwrap();
    let len = shape.len_bytes(dtype).unwrap();
    Array::new(dtype, shape, (0..len).map(|at| (at * 7 % 120) as u8).collect::<Vec<_>>().into()).unwrap()
}

/// Containers, texts, numbers, bytes: all that the arrays alone would not give back.
fn tree() -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("w"), Leaf::array(array(Dtype::Float32, &[4, 3]))).unwrap();
    build.open(Key::dict("t"), NodeKind::Tuple).unwrap();
    build.leaf(Key::Index(0), Leaf::text("text")).unwrap();
    build.leaf(Key::Index(1), Leaf::scalar(Scalar::Int(7))).unwrap();
    build.close().unwrap();
    let bytes = Leaf { kind: LeafKind::Bytes, ..Leaf::array(array(Dtype::UInt8, &[3])) };
    build.leaf(Key::dict("b"), bytes).unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

fn saved(folder: &Path, name: &str, layout: &str, options: serde_json::Value) -> PathBuf {
    let layout = Layout::from_name(layout, options).unwrap();
    let options = SaveOptions {
        layout,
        not_durable: true,
        casting: regrow::array::Casting::Lossy,
        ..SaveOptions::default()
    };
    regrow::save_with(folder.join(name), &tree(), &options).unwrap();
    folder.join(name)
}

fn load(path: &Path) -> regrow::Result<Tree<Leaf>> {
    regrow::engine::load(path)
}

/// Every difference that a user of the tree could see.
fn contents(tree: &Tree<Leaf>) -> String {
    let leaf = |leaf: &Leaf| match &leaf.data {
        LeafData::Array(array) => {
            format!("{:?} {} {} {:?}", leaf.kind, array.dtype(), array.shape(), array.to_c_order().unwrap())
        }
        other => format!("{:?} {other:?}", leaf.kind),
    };
    format!("{:?} {:?}", tree.nodes(), tree.leaves().iter().map(leaf).collect::<Vec<_>>())
}

/// The last part of each array along its first axis, as `open` and a slice give it.
fn parts(path: &Path) -> Vec<(String, regrow::Result<Vec<u8>>)> {
    let Ok(checkpoint) = regrow::open(path) else { return Vec::new() };
    let mut out = Vec::new();
    for (leaf, (key_path, info)) in checkpoint.tree().iter().enumerate() {
        let dims = info.shape.dims();
        if !info.kind.is_array() || !dims.first().is_some_and(|dim| (2..=1 << 20).contains(dim)) {
            continue;
        }
        let (mut starts, mut lens) = (vec![0; dims.len()], dims.to_vec());
        (starts[0], lens[0]) = (dims[0] - 1, 1);
        let region = Region::new(starts, lens).unwrap();
        let part = checkpoint.region(leaf, &region).map(|part| part.to_c_order().unwrap().to_vec());
        out.push((key_path.to_string(), part));
    }
    out
}

/// How many refusals of `load` go by for each time that `convert` is asked, too.
const REFUSALS_A_CONVERT: usize = 16;

/// A shorter array, or one of nothing but one byte, may look like something else in the file.
const ARRAY_LEN_MIN_BYTES: usize = 16;

/// Which bytes of a file are those of arrays, as far as they lie there as they are.
fn array_bytes(raw: &[u8], tree: &Tree<Leaf>) -> Vec<bool> {
    let mut out = vec![false; raw.len()];
    for array in tree.leaves().iter().filter_map(Leaf::as_array) {
        let bytes = array.to_c_order().unwrap();
        if bytes.len() < ARRAY_LEN_MIN_BYTES || bytes.iter().all(|&byte| byte == bytes[0]) {
            continue;
        }
        for at in 0..raw.len().saturating_sub(bytes.len() - 1) {
            if raw[at..].starts_with(&bytes) {
                out[at..at + bytes.len()].fill(true);
            }
        }
    }
    out
}

/// Flips the bits of `file`, which is part of the checkpoint at `path`.
fn no_flip_goes_unseen(path: &Path, file: &Path) {
    let good_tree = load(path).unwrap();
    let good = contents(&good_tree);
    let good_parts = parts(path);
    let raw = fs::read(file).unwrap();
    let is_of_array = array_bytes(&raw, &good_tree);
    // No view of the file may be there when it goes.
    drop(good_tree);
    assert!(regrow::verify(path).unwrap().is_ok());
    let target = path.parent().unwrap().join("converted.msgpack");
    let flax = Layout::from_name("flax", serde_json::Value::Null).unwrap();
    let save = SaveOptions { layout: flax, not_durable: true, overwrite: true, ..SaveOptions::default() };
    let convert = ConvertOptions { save, lossy: true, ..ConvertOptions::default() };
    let (mut refused, mut harmless) = (0, 0);
    // `REGROW_LONG=1` flips every bit, otherwise each third: two or three of every byte.
    let each = if std::env::var_os("REGROW_LONG").is_some() { 1 } else { 3 };
    for (bit, damage) in flipped_bits(&raw).enumerate().step_by(each) {
        let (at, bit) = (bit / 8, bit % 8);
        // Of an array's bytes one bit each, and not always the same.
        if is_of_array[at] && bit != at % 8 {
            continue;
        }
        let what = format!("{}, {}", path.display(), damage.what);
        // A fresh file: a map of the last one must not see its bytes change.
        fs::remove_file(file).unwrap();
        fs::write(file, &damage.bytes).unwrap();
        match load(path) {
            Ok(found) => {
                assert!(contents(&found) == good, "{what}: loads as something else");
                harmless += 1;
            }
            Err(error) => {
                assert!(error.place().file.is_some() && !error.what().is_empty(), "{what}: {error:?}");
                let is_noticed = regrow::verify(path).map_or(true, |report| !report.is_ok());
                assert!(is_noticed, "{what}: load says {error}, verify nothing");
                if refused % REFUSALS_A_CONVERT == 0 {
                    let converted = regrow::convert(path, &target, &convert);
                    assert!(converted.is_err(), "{what}: load says {error}, convert nothing");
                }
                refused += 1;
            }
        }
        for (key_path, part) in parts(path) {
            let Ok(part) = part else { continue };
            let expected = good_parts.iter().find(|(path, _)| *path == key_path);
            let is_same = expected.is_some_and(|(_, good)| good.as_ref().is_ok_and(|good| *good == part));
            assert!(is_same, "{what}: a part of {key_path} is read as something else");
        }
    }
    fs::write(file, &raw).unwrap();
    // Most bits of such small files say something.
    assert!(refused > harmless, "{}: {refused} refused, {harmless} harmless", path.display());
}

#[test]
fn archives_with_a_flipped_bit_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for (name, options) in
        [("stored.npz", serde_json::Value::Null), ("deflated.npz", serde_json::json!({ "compress": true }))]
    {
        let path = saved(folder.path(), name, "npy", options);
        no_flip_goes_unseen(&path, &path);
    }
}

#[test]
fn archives_of_numpy_with_a_flipped_bit_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["plain.npz", "deflated.npz", "names.npz"] {
        let path = folder.path().join(name);
        fs::copy(fixtures().join("npy").join(name), &path).unwrap();
        no_flip_goes_unseen(&path, &path);
    }
}

#[test]
fn pytrees_of_npy_folders_with_a_flipped_bit_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = saved(folder.path(), "x", "npy", serde_json::Value::Null);
    no_flip_goes_unseen(&path, &path.join("regrow-structure.json"));
}

#[test]
fn equinox_files_with_a_flipped_bit_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let hyperparameters = serde_json::json!({ "hyperparameters": { "depth": 2 } });
    for (name, options) in [("x.eqx", serde_json::Value::Null), ("y.eqx", hyperparameters)] {
        let path = saved(folder.path(), name, "equinox", options);
        no_flip_goes_unseen(&path, &path);
    }
}

#[test]
fn files_without_checksums_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    for source in
        ["npy/fortran_big.npy", "npy/record.npy", "equinox/prefix_filter.eqx", "equinox/hyper_header.eqx"]
    {
        let raw = fs::read(fixtures().join(source)).unwrap();
        let path = folder.path().join(Path::new(source).file_name().unwrap());
        fs::write(&path, &raw).unwrap();
        load(&path).unwrap();
        for damage in flipped_bits(&raw[..raw.len().min(600)]) {
            let bytes = [&damage.bytes[..], &raw[damage.bytes.len()..]].concat();
            fs::remove_file(&path).unwrap();
            fs::write(&path, bytes).unwrap();
            for error in [load(&path).err(), regrow::verify(&path).err()].into_iter().flatten() {
                assert!(
                    error.place().file.is_some() && !error.what().is_empty(),
                    "{source}, {}",
                    damage.what
                );
            }
        }
    }
}

/// Where only what is kept beside the arrays is damaged, they can be had alone, and verify checks
/// them, too.
#[test]
fn arrays_load_without_a_damaged_pytree() {
    let folder = tempfile::tempdir().unwrap();
    for (name, layout) in [("x.npz", "npy"), ("x", "npy"), ("x.eqx", "equinox")] {
        let path = saved(folder.path(), name, layout, serde_json::Value::Null);
        let file = if path.is_dir() { path.join("regrow-structure.json") } else { path.clone() };
        let mut raw = fs::read(&file).unwrap();
        let at = raw.windows(12).position(|window| window == b"\"structure\":").unwrap();
        raw[at + 16] ^= 1;
        fs::remove_file(&file).unwrap();
        fs::write(&file, raw).unwrap();
        let error = load(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
        assert!(error.help_text().unwrap().contains("`arrays_only`"), "{name}: {error}");
        let report = regrow::verify(&path).unwrap();
        assert_eq!(report.findings.len(), 1, "{name}: {:?}", report.findings);
        assert!(report.leaf_count >= 2, "{name}: the arrays are checked, too");
        let open = OpenOptions { arrays_only: true, ..OpenOptions::default() };
        let arrays =
            regrow::engine::load_with(&path, &LoadOptions { open, ..LoadOptions::default() }).unwrap();
        let kernel = array(Dtype::Float32, &[4, 3]).to_c_order().unwrap();
        let is_kernel =
            |leaf: &Leaf| leaf.as_array().is_some_and(|array| array.to_c_order().unwrap() == kernel);
        assert!(arrays.leaves().iter().any(is_kernel), "{name}");
    }
    let regrow = saved(folder.path(), "default", "regrow", serde_json::Value::Null);
    let arrays_only = OpenOptions { arrays_only: true, ..OpenOptions::default() };
    assert_eq!(regrow::open_with(regrow, &arrays_only).unwrap_err().kind(), ErrorKind::InvalidArgument);
}
