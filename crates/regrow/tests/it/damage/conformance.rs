//! The duties of every layout's reader, for any content of the files. The result is the right
//! answer, or an error with a place. It is never a panic, a hang or a huge allocation.
//!
//! The tests use fixtures of the original tools, and checkpoints that regrow writes. They cut each
//! file, flip bits in it, and fill it with hostile numbers; in small files at every byte. They do
//! so on a file system, in memory, and in a bucket behind a server. The outcomes must be the same
//! in each storage.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use regrow::array::{Array, Dtype, Shape};
use regrow::engine::Layout;
use regrow::location::{Location, ToLocation};
use regrow::tree::{Key, Leaf, LeafKind, NodeKind, Scalar, Tree, TreeBuilder};
use regrow::{Checkpoint, ErrorKind, OpenOptions, SaveOptions};
use regrow_layouts::formats;
use regrow_store::StoreExt;
use regrow_testkit::{damages, files_below, fixtures};

/// Damages of each kind to each file, in a local file and in memory.
const EACH_MAX: usize = 96;

/// The same in a bucket behind a server, where each takes a few requests.
const EACH_MAX_IN_BUCKET: usize = 2;

/// Address space beyond what the process has when a test begins: what a reader may take at once.
const MEMORY_MAX_BYTES: u64 = 512 << 20;

/// Larger leaves are not read: a damaged shape may be a valid one, of zeros that were never stored.
const READ_MAX_BYTES: u64 = 64 << 20;

/// From here on an allocation beyond the limit fails, in this process: not where it is that of
/// other tests, too.
fn limit_memory() {
    if std::env::var_os("NEXTEST").is_none() {
        return;
    }
    #[cfg(feature = "cloud")]
    std::sync::LazyLock::force(&SERVER);
    let pages: u64 =
        fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap().parse().unwrap();
    let limit = pages * 4096 + MEMORY_MAX_BYTES;
    let limit = rustix::process::Rlimit { current: Some(limit), maximum: None };
    rustix::process::setrlimit(rustix::process::Resource::As, limit).unwrap();
}

/// Opens, lists, reads and verifies; an error must speak. Gives what came of each, in short.
fn exercise(path: &Location, what: &str) -> Vec<String> {
    let mut outcomes = Vec::new();
    match regrow::open(path) {
        Ok(checkpoint) => {
            outcomes.push(checkpoint.description().layout.to_owned());
            read_all(&checkpoint, what, &mut outcomes);
            match checkpoint.verify() {
                Ok(report) => {
                    report
                        .findings
                        .iter()
                        .for_each(|finding| outcomes.push(check_error(&finding.error, what)));
                }
                Err(error) => outcomes.push(check_error(&error, what)),
            }
        }
        Err(error) => outcomes.push(check_error(&error, what)),
    }
    outcomes
}

fn read_all(checkpoint: &Checkpoint, what: &str, outcomes: &mut Vec<String>) {
    for (leaf, info) in checkpoint.tree().leaves().iter().enumerate() {
        if info.len_bytes() > READ_MAX_BYTES {
            continue;
        }
        match checkpoint.read(leaf) {
            Ok(read) => {
                if let Some(array) = read.as_array() {
                    let bytes = array.to_c_order().unwrap();
                    assert_eq!(bytes.len() as u64, info.len_bytes(), "{what}: leaf {leaf}");
                    outcomes.push(format!("{leaf}: {:?}", blake3::hash(&bytes)));
                }
            }
            Err(error) => outcomes.push(check_error(&error, what)),
        }
    }
}

/// An error has words and a place. Gives its kind.
fn check_error(error: &regrow::Error, what: &str) -> String {
    let text = error.to_string();
    let place = error.place();
    assert!(!error.what().is_empty(), "{what}: an error without a word");
    assert!(place.file.is_some() || place.leaf.is_some(), "{what}: an error without a place: {text}");
    assert!(text.len() < 64 << 10, "{what}: an error of {} bytes", text.len());
    format!("{:?}", error.kind())
}

type Place = (Location, usize, Option<tempfile::TempDir>);

/// Where the damaged checkpoints are, and how many damages of each kind there are to be.
fn places() -> Vec<Place> {
    let folder = regrow_testkit::memory_folder().unwrap();
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let memory = format!("memory://conformance{number}/runs").to_location().unwrap();
    let mut places = vec![(Location::local(folder.path()), EACH_MAX, Some(folder)), (memory, EACH_MAX, None)];
    places.extend(bucket(number).map(|bucket| (bucket, EACH_MAX_IN_BUCKET, None)));
    places
}

/// A bucket of the test kit's server.
#[cfg(feature = "cloud")]
fn bucket(number: usize) -> Option<Location> {
    use crate::common::buckets::s3;

    let options = s3(SERVER.endpoint());
    let name = format!("conformance{number}");
    SERVER.create_bucket(&name);
    Some(Location::with_options(Path::new(&format!("s3://{name}/runs")), &options).unwrap())
}

#[cfg(feature = "cloud")]
static SERVER: std::sync::LazyLock<regrow_testkit::object_server::ObjectServer> =
    std::sync::LazyLock::new(|| regrow_testkit::object_server::ObjectServer::start().unwrap());

#[cfg(not(feature = "cloud"))]
fn bucket(_number: usize) -> Option<Location> {
    None
}

/// Damages every file of the checkpoint at `source` (a file, a folder, or a stem of siblings), one
/// at a time, in every storage. What comes of it must be the same in each.
fn damage_all(source: &Path, layout: &str) {
    damage_all_at(places(), source, layout);
}

fn damage_all_at(places: Vec<Place>, source: &Path, layout: &str) {
    let folder = source.parent().unwrap();
    let files = if source.is_dir() { files_below(source).unwrap() } else { siblings(source) };
    let name_of = |file: &Path| file.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
    let mut all: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
    for (root, each_max, _folder) in places {
        let (target, store) = (root.join(source.file_name().unwrap()), root.store());
        let mut run = |what: String| {
            let outcomes = exercise(&target, &format!("{layout} {target} {what}"));
            // Where there is no rename, this file is the commit.
            if what.ends_with("commit_success.txt removed") && root.commits_by_marker() {
                return assert_eq!(outcomes, ["Uncommitted"], "{layout} {target} {what}");
            }
            let (first, expected) =
                all.entry(what.clone()).or_insert_with(|| (target.to_string(), outcomes.clone()));
            assert_eq!(outcomes, *expected, "{layout} {what}: at {target}, and before that at {first}");
        };
        for file in &files {
            store.put(name_of(file).as_bytes(), fs::read(file).unwrap().into()).unwrap();
        }
        run("whole".to_owned());
        for file in &files {
            let (name, original) = (name_of(file), fs::read(file).unwrap());
            for damage in damages(&original, each_max) {
                // A fresh file: a map of the last one must not see its bytes change.
                store.delete(name.as_bytes()).unwrap();
                store.put(name.as_bytes(), damage.bytes.into()).unwrap();
                run(format!("{name}, {}", damage.what));
            }
            store.delete(name.as_bytes()).unwrap();
            run(format!("{name} removed"));
            store.put(name.as_bytes(), original.into()).unwrap();
        }
    }
}

/// The file, or the files with the stem `source`.
fn siblings(source: &Path) -> Vec<PathBuf> {
    if source.is_file() {
        return vec![source.to_owned()];
    }
    let stem = format!("{}.", source.file_name().unwrap().to_string_lossy());
    let entries = fs::read_dir(source.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(&stem)).collect()
}

fn array(dtype: Dtype, dims: &[u64]) -> Leaf {
    let shape = Shape::new(dims).unwrap();
    let len = shape.len_bytes(dtype).unwrap();
    let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    Leaf::array(Array::new(dtype, shape, bytes.into()).unwrap())
}

/// What every layout but TRAK can hold.
fn common_tree() -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.open(Key::dict("params"), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("bias"), array(Dtype::Float32, &[3])).unwrap();
    build.leaf(Key::dict("kernel"), array(Dtype::Float64, &[2, 5])).unwrap();
    build.leaf(Key::dict("scalar"), array(Dtype::Int32, &[])).unwrap();
    build.close().unwrap();
    build.leaf(Key::dict("z"), array(Dtype::UInt8, &[70])).unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

/// A checkpoint of regrow's own in a layout, made in `folder`.
fn own(layout: &str, options: serde_json::Value, folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    let layout = Layout::from_name(layout, options).unwrap();
    let options = SaveOptions { layout, ..SaveOptions::default() };
    regrow::save_with(&path, &common_tree(), &options).unwrap();
    path
}

/// Fixtures of a folder that hold at most `len_max` bytes, as paths to open.
fn small_fixtures(folder: &str, extension: &str, len_max: u64) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(fixtures().join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file() && path.extension().is_some_and(|found| found == extension))
        .filter(|path| fs::metadata(path).unwrap().len() <= len_max)
        .collect();
    found.sort();
    assert!(!found.is_empty(), "no fixtures in {folder}");
    found
}

#[test]
fn regrow_layout() {
    limit_memory();
    let folder = tempfile::tempdir().unwrap();
    damage_all(&own("regrow", serde_json::Value::Null, folder.path(), "step"), "regrow");
}

#[test]
fn orbax() {
    limit_memory();
    let folder = tempfile::tempdir().unwrap();
    damage_all(&own("orbax", serde_json::json!({ "zarr3": true }), folder.path(), "v3"), "orbax");
    damage_all(&own("orbax", serde_json::json!({ "ocdbt": false }), folder.path(), "v2"), "orbax");
    damage_all(&fixtures().join("orbax/legacy_flax_msgpack/ckpt"), "orbax");
}

#[test]
fn flax() {
    limit_memory();
    let folder = tempfile::tempdir().unwrap();
    for file in small_fixtures("flax", "msgpack", 600) {
        damage_all(&file, "flax");
    }
    damage_all(&own("flax", serde_json::Value::Null, folder.path(), "x.msgpack"), "flax");
    damage_all(
        &own("flax", serde_json::json!({ "max_chunk_bytes": 16 }), folder.path(), "y.msgpack"),
        "flax",
    );
    damage_all(&fixtures().join("flax/ckpt_keep2"), "flax");
}

#[test]
fn equinox() {
    limit_memory();
    let folder = tempfile::tempdir().unwrap();
    for file in small_fixtures("equinox", "eqx", 700) {
        damage_all(&file, "equinox");
    }
    damage_all(&own("equinox", serde_json::Value::Null, folder.path(), "x.eqx"), "equinox");
}

#[test]
fn pytree_data() {
    limit_memory();
    let folder = tempfile::tempdir().unwrap();
    for file in small_fixtures("pytree", "manifest", 500) {
        damage_all(&file.with_extension(""), "pytree_data");
    }
    damage_all(&own("pytree_data", serde_json::Value::Null, folder.path(), "x"), "pytree_data");
}

#[test]
fn safetensors() {
    limit_memory();
    let folder = tempfile::tempdir().unwrap();
    for file in small_fixtures("safetensors", "safetensors", 2000) {
        damage_all(&file, "safetensors");
    }
    damage_all(&own("safetensors", serde_json::Value::Null, folder.path(), "x.safetensors"), "safetensors");
    let sharded = serde_json::json!({ "max_shard_bytes": 64 });
    damage_all(&own("safetensors", sharded, folder.path(), "sharded"), "safetensors");
}

#[test]
fn npy() {
    limit_memory();
    let folder = tempfile::tempdir().unwrap();
    damage_all(&own("npy", serde_json::Value::Null, folder.path(), "x.npz"), "npy");
    damage_all(&own("npy", serde_json::json!({ "compress": true }), folder.path(), "y.npz"), "npy");
    damage_all(&own("npy", serde_json::Value::Null, folder.path(), "folder"), "npy");
    let single = folder.path().join("single.npy");
    let layout = Layout::from_name("npy", serde_json::Value::Null).unwrap();
    let options = SaveOptions { layout, ..SaveOptions::default() };
    regrow::save_with(&single, &Tree::single(array(Dtype::Int16, &[3, 4])), &options).unwrap();
    damage_all(&single, "npy");
}

#[test]
fn trak() {
    limit_memory();
    // These stores are on local disks alone.
    let places = places().into_iter().take(1).collect();
    damage_all_at(places, &fixtures().join("trak/half_two_models"), "trak");
}

#[test]
fn torch() {
    limit_memory();
    for name in ["tensor.pt", "legacy_big_endian.pt", "dcp_flat"] {
        damage_all(&fixtures().join("torch").join(name), "torch");
    }
}

#[test]
fn files_of_another_layout_are_refused_by_every_reader() {
    limit_memory();
    let folder = tempfile::tempdir().unwrap();
    let null = || serde_json::Value::Null;
    let mut samples = vec![
        own("regrow", null(), folder.path(), "regrow"),
        own("orbax", null(), folder.path(), "orbax"),
        own("flax", null(), folder.path(), "a.msgpack"),
        own("equinox", null(), folder.path(), "a.eqx"),
        own("pytree_data", null(), folder.path(), "a"),
        own("safetensors", null(), folder.path(), "a.safetensors"),
        own("npy", null(), folder.path(), "a.npz"),
        own("npy", null(), folder.path(), "npy folder"),
    ];
    for (name, bytes) in [
        ("empty", &b""[..]),
        ("zeros", &[0; 100]),
        ("text", b"hello, this is no checkpoint\n"),
        ("json", b"{\"a\": [1, 2, 3]}\n"),
        ("pickle", b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07numpy\x94."),
        ("zip", b"PK\x03\x04\x14\x00\x00\x00\x00\x00"),
        ("png", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"),
        ("script", b"#!/bin/sh\necho hello\n"),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        samples.push(path);
    }
    let not_checkpoints = &samples[8..];
    for path in not_checkpoints {
        let error = regrow::open(path).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::NotACheckpoint | ErrorKind::Corrupt),
            "{}: {error}",
            path.display()
        );
    }
    for sample in &samples {
        for format in formats() {
            let what = format!("{} as {}", sample.display(), format.name());
            if let Err(error) = format.recognise(&Location::local(sample)) {
                check_error(&error, &what);
            }
            match format.open(&Location::local(sample), &OpenOptions::default()) {
                Ok(reader) => assert!(reader.tree().len() <= 64, "{what}"),
                Err(error) => drop(check_error(&error, &what)),
            }
        }
    }
    for (sample, layout) in
        samples.iter().zip(["regrow", "orbax", "flax", "equinox", "pytree_data", "safetensors", "npy", "npy"])
    {
        assert_eq!(regrow::open(sample).unwrap().description().layout, layout, "{}", sample.display());
    }
}

#[test]
fn scalars_and_odd_leaves_survive_damage_too() {
    limit_memory();
    let folder = tempfile::tempdir().unwrap();
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Tuple).unwrap();
    let leaves = [
        Leaf::scalar(Scalar::Int(-1)),
        Leaf::scalar(Scalar::Complex(1.0, 2.0)),
        Leaf::text("text"),
        Leaf { kind: LeafKind::Bytes, ..array(Dtype::UInt8, &[3]) },
        Leaf { kind: LeafKind::NumpyScalar, ..array(Dtype::BFloat16, &[]) },
    ];
    for (at, leaf) in leaves.into_iter().enumerate() {
        build.leaf(Key::Index(at), leaf).unwrap();
    }
    build.close().unwrap();
    let tree = build.finish().unwrap();
    for (layout, name) in [("regrow", "r"), ("flax", "f.msgpack")] {
        let path = folder.path().join(name);
        let options = SaveOptions {
            layout: Layout::from_name(layout, serde_json::Value::Null).unwrap(),
            ..SaveOptions::default()
        };
        regrow::save_with(&path, &tree, &options).unwrap();
        damage_all(&path, layout);
    }
}
