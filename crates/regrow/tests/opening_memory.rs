//! Opening needs memory for the content of a checkpoint, not for the lengths that its files claim
//! or have.
//!
//! The test replaces each file of each layout by a file that is no part of a checkpoint: zeros of a
//! sparse file, a beginning of the file and then zeros, or a beginning and then one repeated byte.
//! Opening ends, and its peak of memory is bounded. The tests run one after another, because the
//! peak is that of the process.
//!
//! Documents of the right form need memory for their length: see `bytes/limits.rs`.
//!
//! A comparison of two checkpoints needs its budget, for any length of the leaves. The same holds
//! for statistics.

#![expect(clippy::unwrap_used, reason = "a test's failure is a panic")]

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use regrow::SaveOptions;
use regrow::array::{Array, Dtype, Shape};
use regrow::engine::Layout;
use regrow::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};
use regrow_testkit::{copy_folder, fixtures};

/// Held by the test that runs.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// What opening may take beyond what the process has.
const MEMORY_MAX_BYTES: u64 = 64 << 20;

/// A sparse file: costs nothing to make.
const SPARSE_LEN_BYTES: u64 = 900 << 20;

/// A file of real bytes: longer than what may be taken, and quick to write.
const RUN_LEN_BYTES: usize = 72 << 20;

/// As much is to be free where the files are made: one of these at a time, and what else is there.
const FREE_LEN_MIN_BYTES: u64 = 512 << 20;

/// A folder in memory, where there is room in one: writing gigabytes to a disk takes its time.
fn in_memory() -> tempfile::TempDir {
    let free = rustix::fs::statvfs("/dev/shm").map_or(0, |found| found.f_bavail * found.f_frsize);
    let in_memory = (free >= FREE_LEN_MIN_BYTES).then(|| tempfile::tempdir_in("/dev/shm").ok());
    in_memory.flatten().unwrap_or_else(|| tempfile::tempdir().unwrap())
}

/// A number of the process's own status.
fn status_bytes(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// What one call takes at most, beyond what is there before it.
fn peak_bytes<T>(call: impl FnOnce() -> T) -> (T, u64) {
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status_bytes("VmRSS:");
    let out = call();
    (out, status_bytes("VmHWM:").saturating_sub(before))
}

fn tree() -> Tree<Leaf> {
    let array = |dtype: Dtype, dims: &[u64]| {
        let shape = Shape::new(dims).unwrap();
        let len = shape.len_bytes(dtype).unwrap() as usize;
        Leaf::array(Array::new(dtype, shape, vec![1; len].into()).unwrap())
    };
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.open(Key::dict("params"), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("bias"), array(Dtype::Float32, &[3])).unwrap();
    build.leaf(Key::dict("kernel"), array(Dtype::Float64, &[2, 5])).unwrap();
    build.close().unwrap();
    build.leaf(Key::dict("z"), array(Dtype::UInt8, &[70])).unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

fn samples(folder: &Path) -> Vec<(&'static str, PathBuf)> {
    let null = serde_json::Value::Null;
    let mut samples: Vec<(&str, PathBuf)> = [
        ("regrow", null.clone(), "regrow"),
        ("orbax", serde_json::json!({ "zarr3": true }), "orbax ocdbt"),
        ("orbax", serde_json::json!({ "ocdbt": false }), "orbax folders"),
        ("flax", null.clone(), "x.msgpack"),
        ("equinox", null.clone(), "x.eqx"),
        ("pytree_data", null.clone(), "pytree"),
        ("safetensors", null.clone(), "x.safetensors"),
        ("safetensors", serde_json::json!({ "max_shard_bytes": 64 }), "sharded"),
        ("npy", null.clone(), "x.npz"),
        ("npy", null, "npy folder"),
    ]
    .into_iter()
    .map(|(layout, options, name)| {
        let path = folder.join(name);
        let options =
            SaveOptions { layout: Layout::from_name(layout, options).unwrap(), ..SaveOptions::default() };
        regrow::save_with(&path, &tree(), &options).unwrap();
        (layout, path)
    })
    .collect();
    for (layout, fixture) in [
        ("trak", "trak/half_two_models"),
        ("orbax", "orbax/legacy_flax_msgpack/ckpt"),
        ("orbax", "orbax/manager_composite/ckpt"),
        ("flax", "flax/ckpt_keep2"),
    ] {
        let path = folder.join(fixture.replace('/', " "));
        copy_folder(&fixtures().join(fixture), &path).unwrap();
        samples.push((layout, path));
    }
    for name in ["tensor.pt", "legacy_protocol4"] {
        fs::copy(fixtures().join("torch").join(name), folder.join(name)).unwrap();
        samples.push(("torch", folder.join(name)));
    }
    samples
}

/// The files of a checkpoint that is a folder, a file, or the stem of several.
fn files_of(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    if !path.exists() {
        return ["data", "manifest"].map(|suffix| path.with_extension(suffix)).to_vec();
    }
    let (mut files, mut folders) = (Vec::new(), vec![path.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    files
}

/// Places to go on from: the whole, and beginnings that end outside a text, where the file is one.
fn beginnings(original: &[u8]) -> Vec<&[u8]> {
    let mut outside = vec![0];
    let mut quote = None;
    for (at, &byte) in original.iter().enumerate() {
        let is_escaped = at > 0 && original[at - 1] == b'\\';
        match (quote, byte) {
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), _) if open == byte && !is_escaped => quote = None,
            _ => {}
        }
        if quote.is_none() {
            outside.push(at + 1);
        }
    }
    let cut = |near: usize| outside.iter().rev().copied().find(|&end| end <= near).unwrap_or(0);
    let mut ends = vec![original.len(), cut(original.len() / 2), cut(40), cut(1)];
    ends.dedup();
    ends.into_iter().map(|end| &original[..end]).collect()
}

#[test]
fn hopeless_files_are_refused_from_their_beginning() {
    let _alone = ALONE.lock().unwrap();
    let folder = in_memory();
    let mut runs = 0;
    let mut run = vec![0; RUN_LEN_BYTES];
    let mut too_much = Vec::new();
    for (layout, path) in samples(folder.path()) {
        for file in files_of(&path) {
            let original = fs::read(&file).unwrap();
            let mut open = |what: String| {
                let (opened, peak) = peak_bytes(|| regrow::open(&path).map(drop));
                runs += 1;
                if peak > MEMORY_MAX_BYTES {
                    let opened = opened.map_or_else(|error| error.to_string(), |()| "opened".to_owned());
                    let file = file.strip_prefix(folder.path()).unwrap().display();
                    too_much.push(format!("{layout}, {file}, {what}: {} MiB: {opened}", peak >> 20));
                }
            };
            for start in std::iter::once(&b""[..]).chain(beginnings(&original)) {
                // A new file: a map of the one before must not see its bytes change.
                fs::remove_file(&file).unwrap();
                let mut out = File::create_new(&file).unwrap();
                out.write_all(start).unwrap();
                out.set_len(SPARSE_LEN_BYTES).unwrap();
                open(format!("{} bytes and zeros", start.len()));
            }
            let start = beginnings(&original)[beginnings(&original).len() / 2];
            // A document may go on with blanks, brackets or digits for long; to others they are all
            // the same.
            let is_document = std::str::from_utf8(&original).is_ok_and(|text| !text.contains('\0'));
            let endless: &[u8] = if is_document { b" [1" } else { b"1" };
            for &byte in endless {
                run.fill(byte);
                fs::remove_file(&file).unwrap();
                let mut out = File::create_new(&file).unwrap();
                out.write_all(start).unwrap();
                out.write_all(&run).unwrap();
                drop(out);
                open(format!("{} bytes and {:?} without end", start.len(), byte as char));
            }
            fs::remove_file(&file).unwrap();
            fs::write(&file, &original).unwrap();
        }
        regrow::open(&path).unwrap();
    }
    assert!(runs > 150, "{runs}");
    assert!(too_much.is_empty(), "{} of {runs} took too much:\n{}", too_much.len(), too_much.join("\n"));
}

/// A safetensors header near the longest length, in which every tensor has the same name.
#[test]
fn equal_names_end_a_header_at_the_second() {
    let _alone = ALONE.lock().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let entry = br#""a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
    let mut header = b"{".to_vec();
    while header.len() < 80_000_000 {
        header.extend_from_slice(entry);
        header.push(b',');
    }
    header.extend_from_slice(entry);
    header.push(b'}');
    let len_bytes = header.len() as u64;
    let mut out = File::create_new(&path).unwrap();
    out.write_all(&len_bytes.to_le_bytes()).unwrap();
    out.write_all(&header).unwrap();
    drop((out, header));
    let (opened, peak) = peak_bytes(|| regrow::open(&path));
    assert!(opened.unwrap_err().to_string().contains("\"a\" twice"));
    assert!(peak < len_bytes + MEMORY_MAX_BYTES, "{} MiB", peak >> 20);
}

#[test]
fn a_comparison_takes_its_budget_and_puts_its_parts_together() {
    const LEN: u64 = 5 << 19;
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = in_memory();
    let path = |name: &str| folder.path().join(name);
    // 40 MiB, which is more than one job.
    let leaf = |last: f64| {
        let mut bytes = vec![0; LEN as usize * 16];
        let at = bytes.len() - 8;
        bytes[at..].copy_from_slice(&last.to_le_bytes());
        bytes[..8].copy_from_slice(&1.0_f64.to_le_bytes());
        let array = Array::new(Dtype::Complex128, Shape::new([LEN]).unwrap(), bytes.into()).unwrap();
        Tree::single(Leaf::array(array))
    };
    regrow::save(path("a"), &leaf(0.0)).unwrap();
    regrow::save(path("b"), &leaf(1.0)).unwrap();
    let options = regrow::DiffOptions { budget_bytes: Some(8 << 20), ..regrow::DiffOptions::default() };
    let (report, peak) = peak_bytes(|| regrow::diff_with(path("a"), path("b"), &options).unwrap());
    assert!(peak < 40 << 20, "{peak} bytes");
    let leaf = &report.leaves[0];
    let distance = leaf.distance.as_ref().unwrap();
    assert_eq!((distance.count(), distance.differing_count(), distance.max_abs()), (LEN, 1, Some(1.0)));
    assert_eq!(leaf.worst().unwrap().0, [LEN - 1]);
    assert!((distance.cosine().unwrap() - 0.5_f64.sqrt()).abs() < 1e-12);
}

#[test]
fn statistics_take_their_budget_however_long_a_leaf_is() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = in_memory();
    let options =
        regrow::StatisticsOptions { budget_bytes: Some(8 << 20), ..regrow::StatisticsOptions::default() };
    let peaks = [48, 96].map(|len_mib: u64| {
        let path = folder.path().join(format!("{len_mib}"));
        let mut bytes = vec![0; (len_mib << 20) as usize];
        let at = bytes.len() - 4;
        bytes[at..].copy_from_slice(&2.0_f32.to_le_bytes());
        let array = Array::new(Dtype::Float32, Shape::new([len_mib << 18]).unwrap(), bytes.into()).unwrap();
        regrow::save(&path, &Tree::single(Leaf::array(array))).unwrap();
        let (report, peak) = peak_bytes(|| regrow::statistics_with(&path, &options).unwrap());
        let stats = report.leaves[0].stats.as_ref().unwrap();
        assert_eq!((stats.count(), stats.max(), stats.l2_norm()), (len_mib << 18, Some(2.0), Some(2.0)));
        assert_eq!(stats.zero_count(), (len_mib << 18) - 1);
        assert_eq!(stats.histogram().unwrap().counts()[0], (len_mib << 18) - 1);
        peak
    });
    assert!(peaks.iter().all(|peak| *peak < 24 << 20), "{peaks:?}");
}
