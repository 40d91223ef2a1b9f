//! Readers of every kind beside a writer that replaces the checkpoint, in every layout. A read
//! returns data of one checkpoint: the opened checkpoint or its replacement. Otherwise an error
//! says that the checkpoint was replaced.
//!
//! Each save writes one number, the stamp, into all elements, texts and numbers of its checkpoint.
//! So a mixture of two checkpoints has two stamps.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use regrow::array::{Array, Dtype, Region, Shape};
use regrow::engine::{Compression, Layout, OpenOptions, RemoveOptions, TemplateLeaf, convert};
use regrow::manager::Steps;
use regrow::tree::{Key, Leaf, LeafData, LeafKind, NodeKind, Scalar, Tree, TreeBuilder};
use regrow::{Checkpoint, ConvertOptions, Error, ErrorKind, LoadOptions, SaveOptions};
use regrow_testkit::files_below;

/// Elements of the long array: some blocks of checksums, some chunks, in layouts that have them.
const LONG_LEN: u64 = 40_000;

/// Whether a folder is replaced by two renames, between which its path is empty.
const TWO_STEPS: bool = cfg!(feature = "portable");

/// A layout, with the name that its checkpoints have here.
struct Case {
    name: &'static str,
    options: SaveOptions,
    /// The step that is saved below the path, which is then that of a folder of steps.
    step: Option<&'static str>,
}

fn cases() -> Vec<Case> {
    let case = |name, layout: &str, options: serde_json::Value| Case {
        name,
        options: SaveOptions {
            layout: Layout::from_name(layout, options).unwrap(),
            overwrite: true,
            not_durable: true,
            ..SaveOptions::default()
        },
        step: None,
    };
    let step = |case: Case| Case { step: Some("5"), ..case };
    let null = serde_json::Value::Null;
    let mut zstd = case("zstd", "regrow", null.clone());
    zstd.options.compression = Some(Compression::Zstd(1));
    vec![
        case("raw", "regrow", null.clone()),
        zstd,
        case("ocdbt_v3", "orbax", serde_json::json!({ "zarr3": true })),
        case("ocdbt_v2", "orbax", serde_json::json!({ "zarr3": false })),
        case("files_v3", "orbax", serde_json::json!({ "ocdbt": false, "zarr3": true })),
        case("files_v2", "orbax", serde_json::json!({ "ocdbt": false })),
        case("x.msgpack", "flax", null.clone()),
        case("x.eqx", "equinox", null.clone()),
        case("pair", "pytree_data", null.clone()),
        case("x.safetensors", "safetensors", null.clone()),
        case("sharded", "safetensors", serde_json::json!({ "max_shard_bytes": 100_000 })),
        case("x.npz", "npy", null.clone()),
        case("deflated.npz", "npy", serde_json::json!({ "compress": true })),
        case("folder_of_npy", "npy", null.clone()),
        step(case("steps", "regrow", null)),
        step(case("steps_of_ocdbt", "orbax", serde_json::json!({ "zarr3": true }))),
        step(case("steps_of_files", "orbax", serde_json::json!({ "ocdbt": false }))),
    ]
}

fn filled(dtype: Dtype, len: u64, stamp: u8) -> Leaf {
    let shape = Shape::new([len]).unwrap();
    let element = match dtype {
        Dtype::Int64 => i64::from(stamp).to_le_bytes().to_vec(),
        _ => f32::from(stamp).to_le_bytes().to_vec(),
    };
    Leaf::array(Array::new(dtype, shape, element.repeat(len as usize).into()).unwrap())
}

/// A checkpoint all of whose values are `stamp`.
fn stamped(stamp: u8) -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("first"), filled(Dtype::Int64, 64, stamp)).unwrap();
    build.leaf(Key::dict("long"), filled(Dtype::Float32, LONG_LEN, stamp)).unwrap();
    build.leaf(Key::dict("other"), filled(Dtype::Int64, 64, stamp)).unwrap();
    build.leaf(Key::dict("number"), Leaf::scalar(Scalar::Int(stamp.into()))).unwrap();
    build.leaf(Key::dict("text"), Leaf::text(format!("{stamp:03}"))).unwrap();
    build.leaf(Key::dict("z"), filled(Dtype::Float32, 3, stamp)).unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

fn save(path: &Path, case: &Case, stamp: u8) {
    let path = case.step.map_or(path.to_owned(), |step| path.join(step));
    let options = SaveOptions { casting: regrow::array::Casting::Lossy, ..case.options.clone() };
    regrow::save_with(path, &stamped(stamp), &options).unwrap();
}

/// The values of a part of an array.
fn stamps_of(dtype: Dtype, bytes: &[u8]) -> BTreeSet<u64> {
    assert!(!bytes.is_empty());
    match dtype {
        Dtype::Int64 => bytes.as_chunks::<8>().0.iter().map(|&eight| u64::from_le_bytes(eight)).collect(),
        _ => bytes.as_chunks::<4>().0.iter().map(|&four| f32::from_le_bytes(four).to_bits().into()).collect(),
    }
}

/// A stamp as the elements of an array of floats show it.
fn as_float(stamp: u8) -> u64 {
    f32::from(stamp).to_bits().into()
}

/// The stamps of leaves; those of floats are turned back.
fn stamps<'a>(leaves: impl IntoIterator<Item = &'a Leaf>) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    for leaf in leaves {
        match &leaf.data {
            LeafData::Text(text) => _ = found.insert(text.parse().unwrap()),
            LeafData::Array(array) => {
                let of_array = stamps_of(array.dtype(), &array.to_c_order().unwrap());
                found.extend(of_array.into_iter().map(|stamp| plain(array.dtype(), stamp)));
            }
            LeafData::Absent => {}
        }
    }
    found
}

fn plain(dtype: Dtype, stamp: u64) -> u64 {
    match dtype {
        Dtype::Int64 => stamp,
        // What no stamp looks like stays what it is.
        _ => (0..=u8::MAX).find(|&known| as_float(known) == stamp).map_or(stamp, u64::from),
    }
}

type Read = Result<BTreeSet<u64>, Error>;

/// A way to read, and its name.
type Way<T> = (&'static str, fn(&T) -> Read);

/// Ways to read an opened checkpoint.
const OPENED: [Way<Checkpoint>; 7] = [
    ("leaf by leaf", |checkpoint| {
        let leaves: Result<Vec<Leaf>, Error> =
            (0..checkpoint.tree().len()).map(|leaf| checkpoint.read(leaf)).collect();
        Ok(stamps(&leaves?))
    }),
    ("slices", |checkpoint| {
        let mut found = BTreeSet::new();
        for (leaf, info) in checkpoint.tree().leaves().iter().enumerate() {
            if !info.kind.is_array() || info.shape.rank() == 0 {
                continue;
            }
            let len = info.shape.dims().first().copied().unwrap_or(0);
            for start in [0, len / 2, len - 1] {
                let region = Region::new(vec![start], vec![1]).unwrap();
                let array = checkpoint.region(leaf, &region)?;
                let of_array = stamps_of(array.dtype(), &array.to_c_order().unwrap());
                found.extend(of_array.into_iter().map(|stamp| plain(array.dtype(), stamp)));
            }
        }
        Ok(found)
    }),
    ("into memory", |checkpoint| {
        let mut found = BTreeSet::new();
        for (leaf, info) in checkpoint.tree().leaves().iter().enumerate() {
            if info.kind == LeafKind::Str {
                continue;
            }
            let mut out = vec![0; info.len_bytes() as usize];
            checkpoint.read_into(leaf, &mut out)?;
            found.extend(stamps_of(info.dtype, &out).into_iter().map(|stamp| plain(info.dtype, stamp)));
        }
        Ok(found)
    }),
    ("load", |checkpoint| Ok(stamps(checkpoint.load(&LoadOptions::default())?.leaves()))),
    ("load, mapped", |checkpoint| {
        let options = LoadOptions { mapped: true, ..LoadOptions::default() };
        Ok(stamps(checkpoint.load(&options)?.leaves()))
    }),
    ("load into arrays", |checkpoint| {
        let infos = checkpoint.tree().leaves();
        let template = infos.iter().map(|_| TemplateLeaf::default());
        let options = LoadOptions {
            template: Some(checkpoint.tree().with_leaves(template.collect())?),
            ..LoadOptions::default()
        };
        let mut memory: Vec<Vec<u8>> = infos.iter().map(|info| vec![0; info.len_bytes() as usize]).collect();
        let outs = memory.iter_mut().zip(infos);
        let outs = outs.map(|(out, info)| (info.kind != LeafKind::Str).then_some(&mut out[..])).collect();
        let tree = checkpoint.load_into_memory(&options, outs)?;
        let mut found = stamps(tree.leaves());
        for ((out, info), leaf) in memory.iter().zip(infos).zip(tree.leaves()) {
            if matches!(leaf.data, LeafData::Absent) && info.kind != LeafKind::Str {
                found.extend(stamps_of(info.dtype, out).into_iter().map(|stamp| plain(info.dtype, stamp)));
            }
        }
        Ok(found)
    }),
    ("verify, then load", |checkpoint| {
        let report = checkpoint.verify()?;
        assert!(report.is_ok(), "{:?}", report.findings);
        Ok(stamps(checkpoint.load(&LoadOptions::default())?.leaves()))
    }),
];

/// Ways to read the checkpoint at a path: these must not fail during any other work there.
const BY_PATH: [Way<Path>; 2] = [
    ("load", |path| Ok(stamps(regrow::engine::load(path)?.leaves()))),
    ("verify", |path| {
        let report = regrow::verify(path)?;
        assert!(report.is_ok(), "{:?}", report.findings);
        Ok(BTreeSet::new())
    }),
];

fn converted(path: &Path, to: &Path) -> Read {
    let save = SaveOptions { not_durable: true, overwrite: true, ..SaveOptions::default() };
    convert(path, to, &ConvertOptions { save, ..ConvertOptions::default() })?;
    assert!(regrow::verify(to)?.is_ok());
    Ok(stamps(regrow::engine::load(to)?.leaves()))
}

fn assert_is_one_of(found: &Read, allowed: &[u8], what: &str) {
    match found {
        Ok(found) => {
            let allowed: Vec<BTreeSet<u64>> =
                allowed.iter().map(|&stamp| BTreeSet::from([stamp.into()])).collect();
            assert!(found.is_empty() || allowed.contains(found), "{what}: a mixture of {found:?}");
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::Replaced, "{what}: {error}"),
    }
}

#[test]
fn an_opened_checkpoint_is_never_mixed_with_its_replacement() {
    let folder = tempfile::tempdir().unwrap();
    for case in cases() {
        let path = folder.path().join(case.name);
        for (way, read) in OPENED {
            for begin in [None, Some("first"), Some("z")] {
                let what = format!("{}, {way}, after {begin:?}", case.name);
                save(&path, &case, 1);
                let checkpoint = regrow::open(&path).unwrap();
                if let Some(key) = begin {
                    // Its file is open from here on, and some blocks have been checked.
                    let leaf = checkpoint.find(key).unwrap_or(0);
                    checkpoint.region(leaf, &Region::new(vec![0], vec![1]).unwrap()).unwrap();
                }
                save(&path, &case, 2);
                assert_is_one_of(&read(&checkpoint), &[1], &what);
                // A second look, and a third checkpoint.
                save(&path, &case, 3);
                assert_is_one_of(&read(&checkpoint), &[1], &what);
            }
        }
    }
}

#[test]
fn readers_beside_a_writer_see_one_whole_checkpoint() {
    const SAVES: u8 = 40;
    let folder = tempfile::tempdir().unwrap();
    // A step that is overwritten by two renames has no name for a moment, and the folder of steps
    // has one less.
    for case in cases().into_iter().filter(|case| !TWO_STEPS || case.step.is_none()) {
        let path = folder.path().join(case.name);
        save(&path, &case, 0);
        let (is_over, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
        let all: Vec<u8> = (0..=SAVES).collect();
        let check = |found: Read, what: &str| {
            assert_is_one_of(&found, &all, &format!("{}, {what}", case.name));
            reads.fetch_add(usize::from(found.is_ok()), Ordering::Relaxed);
        };
        let until_over = |read: &dyn Fn()| {
            // At least once, also where the writer is done before this thread begins.
            loop {
                read();
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                until_over(&|| {
                    for (way, read) in BY_PATH {
                        let found = read(&path);
                        assert!(found.is_ok(), "{}, {way}: {found:?}", case.name);
                        check(found, way);
                    }
                });
            });
            scope.spawn(|| {
                until_over(&|| {
                    for (way, read) in OPENED {
                        match regrow::open(&path) {
                            Ok(checkpoint) => check(read(&checkpoint), way),
                            Err(error) => check(Err(error), way),
                        }
                    }
                });
            });
            scope.spawn(|| {
                let to = folder.path().join(format!("{} converted", case.name));
                until_over(&|| {
                    let found = converted(&path, &to);
                    assert!(found.is_ok(), "{}, convert: {found:?}", case.name);
                    check(found, "convert");
                });
            });
            for stamp in 1..=SAVES {
                save(&path, &case, stamp);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(reads.into_inner() >= 3, "{}: hardly anything was read", case.name);
        let last = stamps(regrow::engine::load(&path).unwrap().leaves());
        assert_eq!(last, BTreeSet::from([SAVES.into()]));
    }
}

/// Overwrites of one step, and a step that comes and goes: neither makes the folder of steps less
/// than it is.
#[test]
fn a_reader_beside_a_writer_lists_every_kept_step() {
    const SAVES: usize = if TWO_STEPS { 0 } else { 200 };
    let tree = || {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        build.leaf(Key::dict("w"), filled(Dtype::Int64, 2, 1)).unwrap();
        build.close().unwrap();
        build.finish().unwrap()
    };
    for case in cases().into_iter().filter(|case| case.step.is_some()) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let write = |step: &str| regrow::save_with(root.join(step), &tree(), &case.options).unwrap();
        write("5");
        write("6");
        let is_over = AtomicBool::new(false);
        let until_over = |look: &dyn Fn()| {
            while !is_over.load(Ordering::Relaxed) {
                look();
            }
        };
        let read = |step: u64| {
            let options = OpenOptions { step: Some(step), ..OpenOptions::default() };
            let opened = regrow::engine::open_with(root, &options);
            let opened = opened.unwrap_or_else(|error| panic!("{}, step {step}: {error}", case.name));
            assert_eq!(opened.description().layout, if case.name == "steps" { "regrow" } else { "orbax" });
        };
        let steps = Steps::new(root, None).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| until_over(&|| [5, 6].into_iter().for_each(read)));
            scope.spawn(|| until_over(&|| [6, 5].into_iter().for_each(read)));
            scope.spawn(|| {
                until_over(&|| {
                    let list = steps.list().unwrap();
                    let numbers: Vec<u64> = list.steps.iter().map(|step| step.number).collect();
                    assert!(matches!(numbers[..], [5, 6] | [4, 5, 6]), "{}: {numbers:?}", case.name);
                    assert_eq!(list.notes, Vec::<String>::new(), "{}", case.name);
                });
            });
            for turn in 0..SAVES {
                write("5");
                if turn % 4 == 0 {
                    write("4");
                    regrow::remove(root.join("4"), &RemoveOptions::default()).unwrap();
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn a_base_replaced_during_a_save_gives_no_mixed_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let (base, next) = (folder.path().join("base"), folder.path().join("next"));
    let case = &cases()[0];
    let is_over = AtomicBool::new(false);
    save(&base, case, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Every second save has what the saver has, so that files are linked, and with digests.
            for turn in 0..60_u8 {
                // Every third comes where the base was removed.
                let own_base = (turn % 3 < 2).then(|| base.clone().into());
                if own_base.is_none() {
                    regrow::remove(&base, &regrow::RemoveOptions::default()).unwrap();
                }
                let options = SaveOptions { base: own_base, ..case.options.clone() };
                regrow::save_with(&base, &stamped(turn % 4 / 2), &options).unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        while !is_over.load(Ordering::Relaxed) {
            let options = SaveOptions { base: Some(base.clone().into()), ..case.options.clone() };
            match regrow::save_with(&next, &stamped(1), &options) {
                // There is none, and nothing was saved; never anything else of what was there a
                // moment ago.
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                    continue;
                }
                saved => saved.unwrap(),
            };
            let report = regrow::verify(&next).unwrap();
            assert!(report.is_ok(), "{:?}", report.findings);
            assert_eq!(stamps(regrow::engine::load(&next).unwrap().leaves()), BTreeSet::from([1]));
        }
    });
}

/// The rule for the default layout, whose every file has a record: a file of another checkpoint
/// under the same name is found, and no reader gets its numbers.
#[test]
fn any_file_of_another_checkpoint_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for case in cases().iter().take(2) {
        for stamp in [1, 2] {
            save(&path(&format!("{}{stamp}", case.name)), case, stamp);
        }
        let (ours, theirs) = (path(&format!("{}1", case.name)), path(&format!("{}2", case.name)));
        let (our_files, their_files) = (files_below(&ours).unwrap(), files_below(&theirs).unwrap());
        assert_eq!(our_files.len(), their_files.len());
        assert!(our_files.len() >= 8);
        for mine in &our_files {
            // Names of nodes and chunks are random: any file beside will do, of its own length or
            // another.
            let same_name = |theirs_file: &&PathBuf| {
                let (a, b) = (mine.strip_prefix(&ours).unwrap(), theirs_file.strip_prefix(&theirs).unwrap());
                a == b || a.starts_with("d") && b.starts_with("d")
            };
            for other in their_files.iter().filter(same_name) {
                let (before, bytes) = (std::fs::read(mine).unwrap(), std::fs::read(other).unwrap());
                if before == bytes {
                    continue;
                }
                std::fs::remove_file(mine).unwrap();
                std::fs::write(mine, &bytes).unwrap();
                let what = format!("{} in the place of {}", other.display(), mine.display());
                let found = match regrow::verify(&ours) {
                    Err(error) => vec![error],
                    Ok(report) => report.findings.into_iter().map(|finding| finding.error).collect(),
                };
                assert!(!found.is_empty(), "{what}: sound");
                if mine.file_name().unwrap() != "regrow.json" {
                    assert!(
                        found.iter().any(|error| error.place().file.as_deref() == Some(mine.as_path())),
                        "{what}: {found:?}"
                    );
                    if let Ok(tree) = regrow::engine::load(&ours) {
                        assert_eq!(stamps(tree.leaves()), BTreeSet::from([1]), "{what}");
                    }
                }
                std::fs::remove_file(mine).unwrap();
                std::fs::write(mine, &before).unwrap();
            }
        }
        assert!(regrow::verify(&ours).unwrap().is_ok());
    }
}

/// The whole database of another checkpoint, sound in itself: as after an interrupted copy over
/// this one.
#[test]
fn a_database_that_no_record_names_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let case = &cases()[1];
    save(&path("ours"), case, 1);
    save(&path("theirs"), case, 2);
    for file in files_below(&path("theirs")).unwrap() {
        let name = file.strip_prefix(path("theirs")).unwrap();
        if name == Path::new("manifest.ocdbt") || name.starts_with("d") {
            std::fs::copy(&file, path("ours").join(name)).unwrap();
        }
    }
    let opened = regrow::open(path("ours")).unwrap();
    let error = opened.read(opened.find("long").unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(error.place().file, Some(path("ours/manifest.ocdbt")));
    assert!(!regrow::verify(path("ours")).unwrap().is_ok());
}

/// Checkpoints that were written before files had digests are read as they were.
#[test]
fn early_checkpoints_still_open() {
    for name in ["early", "early_zstd"] {
        let path = regrow_testkit::fixtures().join("regrow").join(name);
        let report = regrow::verify(&path).unwrap();
        assert!(report.is_ok(), "{:?}", report.findings);
        assert!(report.notes.iter().any(|note| note.contains("manifest.ocdbt")), "{:?}", report.notes);
        let opened = regrow::open(&path).unwrap();
        let array = opened.read(opened.find("params/w").unwrap()).unwrap();
        let bytes = array.as_array().unwrap().to_c_order().unwrap();
        let found: Vec<u64> =
            bytes.as_chunks::<8>().0.iter().map(|&eight| u64::from_le_bytes(eight)).collect();
        let expected = regrow_testkit::expected("regrow")["params/w"]["int64"].clone();
        assert_eq!(serde_json::to_value(found).unwrap(), expected);
    }
    let folder = tempfile::tempdir().unwrap();
    let case = &cases()[0];
    save(&folder.path().join("new"), case, 1);
    assert_eq!(regrow::verify(folder.path().join("new")).unwrap().notes, Vec::<String>::new());
}
