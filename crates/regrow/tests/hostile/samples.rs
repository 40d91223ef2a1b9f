//! Small checkpoints of every layout for tests that change their bytes, and a function that reads a
//! checkpoint in every way. The fuzzer uses this module, too.

use std::fs;
use std::path::{Path, PathBuf};

use regrow::array::{Array, Dtype, Region, Shape};
use regrow::engine::Layout;
use regrow::tree::{Key, Leaf, LeafInfo, NodeKind, Scalar, Tree, TreeBuilder};
use regrow::{Error, OpenOptions, SaveOptions, SealOptions};
use regrow_testkit::archives::{files_below, tar, zip};
use regrow_testkit::hostile::Victim;
use regrow_testkit::{copy_folder, fixtures};

/// A leaf that a changed shape makes larger than this is not read: a checkpoint may be as large as
/// it says.
const READ_LEN_MAX_BYTES: u64 = 1 << 20;

/// A text, a number, a list, arrays of two dtypes.
fn tree() -> Tree<Leaf> {
    let array = |dtype: Dtype, dims: &[u64]| {
        let shape = Shape::new(dims).unwrap();
        let len = shape.len_bytes(dtype).unwrap();
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 % 120) as u8).collect();
        Array::new(dtype, shape, bytes.into()).unwrap()
    };
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("w"), Leaf::array(array(Dtype::Float32, &[12, 10]))).unwrap();
    build.leaf(Key::dict("h"), Leaf::array(array(Dtype::BFloat16, &[6]))).unwrap();
    build.leaf(Key::dict("n"), Leaf::scalar(Scalar::Int(7))).unwrap();
    build.open(Key::dict("l"), NodeKind::List).unwrap();
    build.leaf(Key::Index(0), Leaf::text("text")).unwrap();
    build.close().unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

/// A checkpoint in a folder of its own.
pub struct Sample {
    pub name: String,
    /// What is opened.
    pub path: PathBuf,
    pub victim: Victim,
}

/// What regrow writes, plain, sealed and packed, and what the original tools wrote.
pub fn samples(root: &Path) -> Vec<Sample> {
    let mut all: Vec<(String, PathBuf)> = Vec::new();
    let folder = |name: &str| {
        let folder = root.join(format!("{}", all_len(root)));
        fs::create_dir_all(&folder).unwrap();
        folder.join(name)
    };
    for (layout, options, name) in [
        ("regrow", "null", "x"),
        ("orbax", r#"{"zarr3": true}"#, "x"),
        ("orbax", r#"{"ocdbt": false}"#, "x"),
        ("orbax", r#"{"ocdbt": false, "zarr3": true}"#, "x"),
        ("orbax", r#"{"v1": true}"#, "x"),
        ("flax", "null", "x.msgpack"),
        ("equinox", "null", "x.eqx"),
        ("pytree_data", "null", "x"),
        ("safetensors", "null", "x.safetensors"),
        ("safetensors", r#"{"max_shard_bytes": 64}"#, "x"),
        ("npy", "null", "x.npz"),
        ("npy", "null", "x"),
    ] {
        let path = folder(name);
        let layout = Layout::from_name(layout, serde_json::from_str(options).unwrap()).unwrap();
        let casting = regrow::array::Casting::Lossy;
        let save = SaveOptions { layout, casting, not_durable: true, ..SaveOptions::default() };
        regrow::save_with(&path, &tree(), &save).unwrap();
        all.push((format!("{} {options}", save.layout.name()), path));
    }
    for fixture in [
        "regrow/early",
        "regrow/early_zstd",
        "orbax/edge_minimal_files/ckpt",
        "orbax/sd_ocdbt_nocompress_smallfiles/ckpt",
        "orbax/sd_ocdbt_zarr3_chunked/ckpt",
        "orbax/legacy_zarr3_sparse_inner_chunks/ckpt",
        "orbax/manager_composite/ckpt",
        "orbax/structures_rich/ckpt",
        "orbax/prng_keys/ckpt",
        "flax/ckpt_keep2",
        "flax/all_dtypes.msgpack",
        "flax/chunked.msgpack",
        "equinox/model_and_opt.eqx",
        "npy/deflated.npz",
        "npy/record_nested.npy",
        "safetensors/every_dtype.safetensors",
        "safetensors/sharded",
        "torch/training.pt",
        "torch/legacy_training.pt",
        "torch/dcp_sharded",
        "trak/half_two_models",
    ] {
        let from = fixtures().join(fixture);
        if !from.exists() {
            continue;
        }
        let path = folder(from.file_name().unwrap().to_str().unwrap());
        match from.is_dir() {
            true => copy_folder(&from, &path).unwrap(),
            false => drop(fs::copy(&from, &path).unwrap()),
        }
        let _ = fs::remove_file(path.join("expected.json"));
        all.push((fixture.to_owned(), path));
    }
    // Data and manifest are two files of one stem.
    let path = folder("np2_basic");
    for suffix in ["data", "manifest"] {
        fs::copy(fixtures().join("pytree/np2_basic").with_extension(suffix), path.with_extension(suffix))
            .unwrap();
    }
    all.push(("pytree/np2_basic".to_owned(), path));
    for (pack, name) in [(tar as fn(&_) -> _, "x.tar"), (zip, "x.zip")] {
        let from = files_below(&fixtures().join("regrow/early")).unwrap();
        let path = folder(name);
        fs::write(&path, pack(&from)).unwrap();
        all.push((format!("regrow in {name}"), path));
    }
    for (layout, name) in [("safetensors", "x.safetensors"), ("orbax", "x")] {
        let path = folder(name);
        let layout = Layout::from_name(layout, serde_json::Value::Null).unwrap();
        let casting = regrow::array::Casting::Lossy;
        let save = SaveOptions { layout, casting, not_durable: true, ..SaveOptions::default() };
        regrow::save_with(&path, &tree(), &save).unwrap();
        regrow::seal(&path, &SealOptions::default()).unwrap();
        all.push((format!("{} under a seal", save.layout.name()), path));
    }
    all.into_iter()
        .map(|(name, path)| {
            let victim = Victim::new(path.parent().unwrap()).unwrap();
            Sample { name, path, victim }
        })
        .collect()
}

fn all_len(root: &Path) -> usize {
    fs::read_dir(root).unwrap().count()
}

/// How far a reader came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reached {
    Refused,
    Opened,
    /// Each leaf was read that is not too long.
    Read,
}

/// Opens a checkpoint and reads all of it that is not too long, in every way that there is. `says`
/// gets every error.
pub fn use_it(path: &Path, says: &mut dyn FnMut(&Error)) -> Reached {
    let mut reached = Reached::Refused;
    let mut told = |error: Error| {
        let _ = error.to_string();
        says(&error);
    };
    if let Some(folder) = path.parent() {
        let _ = regrow::list(folder).map_err(&mut told);
    }
    let salvage = OpenOptions { salvage: true, ..OpenOptions::default() };
    let ways = [
        OpenOptions::default(),
        OpenOptions { ignore_seal: true, mapped: true, ..OpenOptions::default() },
        salvage.clone(),
        OpenOptions { ignore_seal: true, arrays_only: true, ..salvage },
    ];
    let mut is_small = true;
    for open in ways {
        let checkpoint = match regrow::open_with(path, &open) {
            Ok(checkpoint) => checkpoint,
            // Most layouts have no arrays alone.
            Err(_) if open.arrays_only => continue,
            Err(error) => {
                told(error);
                continue;
            }
        };
        // What is left of it is free.
        if !open.salvage {
            reached = reached.max(Reached::Opened);
        }
        checkpoint.keys();
        let infos = checkpoint.tree().leaves();
        let len_bytes = infos.iter().map(LeafInfo::len_bytes).fold(0, u64::saturating_add);
        let mut failed = false;
        for (leaf, info) in infos.iter().enumerate() {
            if info.len_bytes() <= READ_LEN_MAX_BYTES {
                failed |= checkpoint.read(leaf).map_err(&mut told).is_err();
            }
            let dims = info.shape.dims();
            if info.kind.is_array() && !dims.is_empty() && !dims.contains(&0) {
                // One element, the last, however large the array is said to be.
                let starts = dims.iter().map(|dim| dim - 1).collect::<Vec<_>>();
                if let Ok(region) = Region::new(starts, vec![1; dims.len()]) {
                    failed |= checkpoint.region(leaf, &region).map_err(&mut told).is_err();
                }
            }
        }
        is_small &= len_bytes <= READ_LEN_MAX_BYTES;
        if len_bytes <= READ_LEN_MAX_BYTES {
            failed |= checkpoint.load(&regrow::LoadOptions::default()).map_err(&mut told).is_err();
            match checkpoint.verify() {
                Ok(report) => report.findings.into_iter().for_each(|finding| told(finding.error)),
                Err(error) => told(error),
            }
        }
        if !failed && !open.salvage {
            reached = Reached::Read;
        }
    }
    if is_small {
        let _ = regrow::salvage(path, &regrow::LoadOptions::default()).map_err(&mut told);
    }
    reached
}
