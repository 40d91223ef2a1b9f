//! Copies of every layout between every two storages, including interrupted copies and copies whose
//! source changes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use regrow::array::{Array, Dtype, Shape};
use regrow::engine::{Layout, load};
use regrow::location::{Location, ToLocation};
use regrow::tree::{Leaf, Tree};
use regrow::{CopyOptions, ErrorKind, Monitor, SaveOptions, copy, open, save_with, verify};
use regrow_store::{ByteRange, StoreExt};

use crate::common::{dict, layouts, storages};

/// Rows of the largest array: with so many it is longer than a piece of a copy.
const LONG: u64 = 1100;
const SHORT: u64 = 40;

/// Arrays of several sizes, of bytes that compress to nothing less.
fn tree(fill: u8, rows: u64) -> Tree<Leaf> {
    let array = |dtype: Dtype, dims: &[u64]| {
        let shape = Shape::new(dims.to_vec()).unwrap();
        let len = shape.len_bytes(dtype).unwrap() as usize;
        let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(fill);
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // No NaN, which some layouts would not give back bit for bit.
            (state >> 32) as u8 & 0x3f
        };
        let bytes: Vec<u8> = (0..len).map(|_| next()).collect();
        Leaf::array(Array::new(dtype, shape, bytes.into()).unwrap())
    };
    dict([
        ("bias", array(Dtype::Float32, &[7])),
        ("counter", array(Dtype::Int64, &[])),
        ("kernel", array(Dtype::Float32, &[rows, 2000])),
        ("small", array(Dtype::UInt8, &[3, 5])),
    ])
}

fn save(at: &Location, fill: u8, layout: &Layout) {
    save_rows(at, fill, SHORT, layout);
}

fn save_rows(at: &Location, fill: u8, rows: u64, layout: &Layout) {
    let options =
        SaveOptions { layout: layout.clone(), overwrite: true, not_durable: true, ..Default::default() };
    save_with(at, &tree(fill, rows), &options).unwrap();
}

fn local() -> (tempfile::TempDir, Location) {
    let folder = tempfile::tempdir().unwrap();
    let at = Location::local(folder.path());
    (folder, at)
}

fn options() -> CopyOptions {
    CopyOptions { not_durable: true, ..CopyOptions::default() }
}

fn overwrite() -> CopyOptions {
    CopyOptions { overwrite: true, ..options() }
}

/// What is below a place but for the text of generated markers: names and bytes.
fn files_at(at: &Location) -> BTreeMap<String, Vec<u8>> {
    // A folder, one file, or those of a stem.
    let (is_folder, name) = (at.is_folder(), at.name_text());
    let folder = if is_folder { at.clone() } else { at.parent() };
    let is_name = |key: &str| {
        is_folder || key.strip_prefix(&*name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let store = folder.opened().unwrap();
    let keys = store.list(b"").unwrap();
    let entry = |key: Vec<u8>| {
        let bytes = store.get(&key, ByteRange::Full).unwrap().unwrap().to_vec();
        let name = String::from_utf8(key).unwrap();
        let end = if at.is_folder() { String::new() } else { at.name_text() };
        let kept = is_name(&name).then(|| name.strip_prefix(&end).unwrap().to_owned());
        kept.map(|name| (name, bytes))
    };
    keys.into_iter().filter_map(entry).collect()
}

const MARKERS: [&str; 2] = ["commit_success.txt", "regrow-committed.txt"];

fn assert_same(source: &Location, target: &Location) {
    let (mut from, mut to) = (files_at(source), files_at(target));
    if source.commits_by_marker() != target.commits_by_marker() {
        for marker in MARKERS {
            if let (Some(from), Some(to)) = (from.get(marker), to.get(marker)) {
                assert_eq!(from, to, "{source} to {target}: the marker");
            }
            from.remove(marker);
            to.remove(marker);
        }
    } else {
        from.remove(MARKERS[1]);
        to.remove(MARKERS[1]);
    }
    assert!(from == to, "{source} to {target}: {:?} became {:?}", from.keys(), to.keys());
    assert!(!from.is_empty());
}

/// Names beside a place that end in something temporary.
fn leftovers(at: &Location) -> Vec<String> {
    let names = at.parent().store().list(b"").unwrap();
    let names = names.into_iter().map(|name| String::from_utf8(name).unwrap());
    let is_temporary = |name: &String| {
        name.starts_with(&at.name_text())
            && ["orbax-checkpoint-tmp", "regrow-state"].iter().any(|mark| name.contains(mark))
    };
    names.filter(is_temporary).collect()
}

#[test]
fn every_layout_goes_from_every_storage_to_every_other() {
    let storages = storages("copy-all");
    for (from, _folder) in &storages {
        for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
            let source = from.join(format!("s{at}{suffix}"));
            save_rows(&source, at as u8, LONG, &layout);
            for (to, _folder) in &storages {
                let kind = if from.commits_by_marker() { "bucket" } else { "disk" };
                let target = to.join(format!("from_{kind}/{at}{suffix}"));
                let report = copy(&source, &target, &options())
                    .unwrap_or_else(|error| panic!("{} from {source} to {target}: {error}", layout.name()));
                assert_same(&source, &target);
                assert_eq!((report.path.clone(), report.reused_bytes), (target.describe(), 0));
                assert!(report.file_count > 0 && report.bytes > 6_000_000, "{report}");
                assert!(verify(&target).unwrap().is_ok(), "{target}");
                assert!(leftovers(&target).is_empty(), "{:?}", leftovers(&target));
                let error = copy(&source, &target, &options()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
            }
        }
    }
}

#[test]
fn an_overwrite_by_a_copy_replaces_only_checkpoints() {
    for (root, _folder) in storages("copy-overwrite") {
        for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
            let (source, target) = (root.join(format!("s{at}{suffix}")), root.join(format!("t{at}{suffix}")));
            save(&source, 1, &layout);
            save(&target, 2, &layout);
            match copy(&source, &target, &overwrite()) {
                Ok(_) => assert_same(&source, &target),
                Err(error) => {
                    assert!(layout.name() == "pytree_data" && root.commits_by_marker(), "{error}");
                    assert_eq!(error.kind(), ErrorKind::Unsupported);
                    continue;
                }
            }
            assert!(verify(&target).unwrap().is_ok());
            assert!(leftovers(&target).is_empty(), "{:?}", leftovers(&target));
        }
    }
    let (folder, root) = local();
    let source = root.join("s");
    save(&source, 1, &Layout::default());
    fs::create_dir(folder.path().join("mine")).unwrap();
    fs::write(folder.path().join("mine/thesis.txt"), "x").unwrap();
    let error = copy(&source, root.join("mine"), &overwrite()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(folder.path().join("mine/thesis.txt").is_file());
}

#[test]
fn sources_without_a_checkpoint_and_overlapping_targets_are_refused() {
    for (root, _folder) in storages("copy-refused") {
        let (source, other) = (root.join("s"), root.join("t"));
        save(&source, 1, &Layout::default());
        assert_eq!(copy(root.join("none"), &other, &options()).unwrap_err().kind(), ErrorKind::NotFound);
        root.join("notes").store().put(b"a.txt", "hello".into()).unwrap();
        let error = copy(root.join("notes"), &other, &options()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotACheckpoint, "{error}");
        for (from, to) in [(&source, &source), (&source, &source.join("below")), (&source, &root)] {
            for options in [options(), overwrite()] {
                let error = copy(from, to, &options).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{from} {to}: {error}");
            }
        }
        assert!(verify(&source).unwrap().is_ok());
        assert!(!other.exists());
    }
}

#[test]
fn a_copy_of_steps_leaves_out_uncommitted_steps() {
    let storages = storages("copy-steps");
    for (from, _folder) in &storages {
        let source = from.join("run");
        for (step, fill) in [("1", 1), ("2", 2), ("10", 3)] {
            save(&source.join(step), fill, &Layout::default());
        }
        save(&source.join("11"), 4, &Layout::Orbax(Default::default()));
        source.store().put(b"metadata/_ROOT_METADATA", r#"{"custom_metadata":{"a":1}}"#.into()).unwrap();
        source.store().put(b"12.orbax-checkpoint-tmp-1/_METADATA", "{}".into()).unwrap();
        if from.commits_by_marker() {
            source.join("2").store().delete(b"commit_success.txt").unwrap();
        }
        for (to, _folder) in &storages {
            let target = to.join(format!("copy-{}", from.commits_by_marker()));
            copy(&source, &target, &options()).unwrap();
            let expected: &[u64] = if from.commits_by_marker() { &[1, 10, 11] } else { &[1, 2, 10, 11] };
            let copied = open(&target).unwrap();
            assert_eq!(copied.description().steps, expected, "{source} to {target}");
            assert_eq!(copied.description().custom_metadata, Some(serde_json::json!({"a": 1})));
            for step in expected {
                assert!(verify(target.join(step.to_string())).unwrap().is_ok(), "{target}/{step}");
            }
            assert!(leftovers(&target).is_empty());
            let error = copy(&source, &target, &overwrite()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    }
}

#[test]
fn copied_steps_are_not_replaced_as_one_checkpoint() {
    let source = "memory://copy-of-steps/run".to_location().unwrap();
    for step in ["1", "2"] {
        save(&source.join(step), 1, &Layout::default());
    }
    let target = source.with_name("copied");
    copy(&source, &target, &options()).unwrap();
    let overwrites = SaveOptions { overwrite: true, ..SaveOptions::default() };
    let error = save_with(&target, &tree(2, SHORT), &overwrites).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    save(&source.with_name("one"), 3, &Layout::default());
    let error = copy(source.with_name("one"), &target, &overwrite()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(open(&target).unwrap().description().steps, [1, 2]);
}

/// The names at the top of a folder.
fn names_at(at: &Location) -> Vec<String> {
    files_at(at).into_keys().filter(|name| !name.contains('/')).collect()
}

#[test]
fn arrays_without_orbax_documents_are_given_no_marker_of_orbax() {
    let (folder, root) = local();
    let (layout, _) = layouts().remove(2);
    save(&root.join("orbax"), 1, &layout);
    // Arrays as TensorStore writes them: a folder each, and no document.
    for name in ["_METADATA", "_CHECKPOINT_METADATA", "commit_success.txt", "_sharding"] {
        let _ = fs::remove_file(folder.path().join("orbax").join(name));
    }
    let bucket = "memory://copy-bare/runs".to_location().unwrap();
    copy(root.join("orbax"), bucket.join("bare"), &options()).unwrap();
    assert!(!names_at(&bucket.join("bare")).iter().any(|name| name == MARKERS[0]));
    assert!(load(bucket.join("bare")).is_ok());
    copy(bucket.join("bare"), root.join("back"), &options()).unwrap();
    assert_eq!(files_at(&root.join("back")), files_at(&root.join("orbax")));
}

/// Stops a copy when so many bytes are done. A hook is called 20 times a second at most, so it
/// takes its time.
fn stops_at(bytes: u64) -> Monitor {
    Monitor::with_hook(move |progress| {
        std::thread::sleep(Duration::from_millis(51));
        match progress.done_bytes >= bytes {
            true => Err(regrow::Error::new(ErrorKind::Cancelled, "enough")),
            false => Ok(()),
        }
    })
}

#[test]
fn an_interrupted_copy_goes_on_at_every_file() {
    let (_folder, from) = local();
    for (to, _folder) in storages("copy-interrupted") {
        for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
            if !matches!(at, 0 | 2 | 7 | 9) {
                continue;
            }
            let source = from.join(format!("s{at}{suffix}"));
            save_rows(&source, 1, LONG, &layout);
            let total = 2 * files_at(&source).values().map(|bytes| bytes.len() as u64).sum::<u64>();
            for threads in [1, 4] {
                let target = to.join(format!("t{at}-{threads}{suffix}"));
                let mut done = None;
                for end in (0..5).map(|part| part * total / 5 + 1) {
                    let options = CopyOptions { monitor: stops_at(end), threads: Some(threads), ..options() };
                    match copy(&source, &target, &options) {
                        Ok(report) => {
                            done = Some(report);
                            break;
                        }
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}"),
                    }
                    let error = open(&target).unwrap_err();
                    let is_none = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Uncommitted);
                    assert!(is_none, "{target} after {end} bytes: {error}");
                }
                let done = done.unwrap_or_else(|| copy(&source, &target, &options()).unwrap());
                let reused = done.reused_bytes;
                // In a bucket an unfinished file starts again, and here the longest is the first.
                let is_one_object = to.commits_by_marker() && matches!(at, 0 | 7 | 9);
                assert!(reused > 0 || is_one_object, "{target}");
                assert_same(&source, &target);
                assert!(verify(&target).unwrap().is_ok());
                assert!(leftovers(&target).is_empty(), "{:?}", leftovers(&target));
            }
        }
    }
}

/// Stops a copy to `target` when about half is done.
fn interrupt(source: &Location, target: &Location, options: &CopyOptions) {
    let bytes: u64 = files_at(source).values().map(|bytes| bytes.len() as u64).sum();
    let options = CopyOptions { monitor: stops_at(bytes), threads: Some(1), ..options.clone() };
    assert_eq!(copy(source, target, &options).unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(!leftovers(target).is_empty(), "nothing stays at {target}");
}

/// Arrays in many small files of their own.
fn save_files(at: &Location, fill: u8) {
    save_rows(at, fill, 200, &layouts()[2].0);
}

#[test]
fn a_source_that_was_replaced_in_between_is_copied_as_it_is_now() {
    for (root, _folder) in storages("copy-replaced") {
        for overwrites in [false, true] {
            let (source, target) = (root.join(format!("s{overwrites}")), root.join(format!("t{overwrites}")));
            let options = if overwrites { overwrite() } else { options() };
            if overwrites {
                save_files(&target, 9);
            }
            save_files(&source, 1);
            interrupt(&source, &target, &options);
            save_files(&source, 2);
            let report = copy(&source, &target, &options).unwrap();
            assert_eq!(report.reused_bytes, 0, "{report}");
            assert_same(&source, &target);
            assert!(verify(&target).unwrap().is_ok());
            assert!(leftovers(&target).is_empty(), "{:?}", leftovers(&target));
        }
    }
}

#[test]
fn a_source_that_changes_gives_no_mixed_copy() {
    for (from, _folder) in storages("copy-changing") {
        let (_other, to) = local();
        let (source, target) = (from.join("s"), to.join("t"));
        save_files(&source, 1);
        let (changed, at) = (Arc::new(AtomicU64::new(0)), source.clone());
        let monitor = Monitor::with_hook(move |progress| {
            std::thread::sleep(Duration::from_millis(51));
            if progress.done_bytes > 1_000_000 && changed.fetch_add(1, Ordering::Relaxed) == 0 {
                save_files(&at, 2);
            }
            Ok(())
        });
        copy(&source, &target, &CopyOptions { monitor, threads: Some(1), ..options() }).unwrap();
        assert_same(&source, &target);
        assert!(verify(&target).unwrap().is_ok());
    }
}

#[test]
fn a_file_that_changes_in_place_is_copied_again() {
    let (folder, root) = local();
    let (source, target) = (root.join("s.npy"), root.join("t.npy"));
    let one = |fill: u8| {
        let array =
            Array::new(Dtype::UInt8, Shape::new([9 << 20]).unwrap(), vec![fill; 9 << 20].into()).unwrap();
        Tree::single(Leaf::array(array))
    };
    let npy = SaveOptions {
        layout: Layout::from_name("npy", serde_json::Value::Null).unwrap(),
        ..Default::default()
    };
    save_with(&source, &one(1), &npy).unwrap();
    let path = folder.path().join("s.npy");
    let changed = AtomicU64::new(0);
    let monitor = Monitor::with_hook(move |progress| {
        if progress.done_bytes > 0 && changed.fetch_add(1, Ordering::Relaxed) == 0 {
            use std::os::unix::fs::FileExt;
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.write_all_at(&[7; 4096], (9 << 20) - 4096).unwrap();
            file.write_all_at(&[7; 4096], 1 << 20).unwrap();
        }
        Ok(())
    });
    copy(&source, &target, &CopyOptions { monitor, ..options() }).unwrap();
    assert_same(&source, &target);
    assert_eq!(load(&target).unwrap().len(), 1);
}

#[test]
fn a_copy_verifies_the_bytes_on_the_disk() {
    let (folder, root) = local();
    let len = 33 << 20;
    let array = Array::new(Dtype::UInt8, Shape::new([len]).unwrap(), vec![1; len as usize].into()).unwrap();
    let npy = Layout::from_name("npy", serde_json::Value::Null).unwrap();
    let options_of_save = SaveOptions { layout: npy, ..Default::default() };
    save_with(root.join("s.npy"), &Tree::single(Leaf::array(array)), &options_of_save).unwrap();
    let staged = folder.path().join("t.npy.orbax-checkpoint-tmp-copy/.orbax-checkpoint-tmp-files/t.npy");
    let changed = AtomicU64::new(0);
    let monitor = Monitor::with_hook(move |progress| {
        use std::os::unix::fs::FileExt;
        std::thread::sleep(Duration::from_millis(51));
        // All of it is written, and the end of it not yet read back.
        if progress.done_bytes > len + (1 << 20) && changed.fetch_add(1, Ordering::Relaxed) == 0 {
            let file = fs::File::options().write(true).open(&staged).unwrap();
            file.write_all_at(&[7], len - 1).unwrap();
        }
        Ok(())
    });
    let watched = CopyOptions { monitor, threads: Some(1), budget_bytes: Some(8 << 20), ..options() };
    let error = copy(root.join("s.npy"), root.join("t.npy"), &watched).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(!root.join("t.npy").exists());
    copy(root.join("s.npy"), root.join("t.npy"), &options()).unwrap();
    assert_same(&root.join("s.npy"), &root.join("t.npy"));
}

#[test]
fn steps_copied_to_a_bucket_are_whole_or_absent() {
    let (_folder, root) = local();
    for step in ["1", "2"] {
        save_files(&root.join("run").join(step), 1);
    }
    let total = 2 * files_at(&root.join("run")).values().map(|bytes| bytes.len() as u64).sum::<u64>();
    for part in 1..6 {
        let target = format!("memory://copy-half-steps/{part}").to_location().unwrap();
        let stopped = CopyOptions { monitor: stops_at(part * total / 6), threads: Some(1), ..options() };
        assert_eq!(copy(root.join("run"), &target, &stopped).unwrap_err().kind(), ErrorKind::Cancelled);
        for step in ["1", "2"] {
            if open(target.join(step)).is_ok() {
                assert!(verify(target.join(step)).unwrap().is_ok(), "{target}/{step}");
            }
        }
        copy(root.join("run"), &target, &options()).unwrap();
        assert_eq!(open(&target).unwrap().description().steps, [1, 2]);
    }
}

/// The largest file of an interrupted copy on a disk.
fn largest_staged(folder: &Path) -> std::path::PathBuf {
    let mut folders = vec![folder.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false if entry.file_name() != "journal" => {
                    files.push((entry.metadata().unwrap().len(), entry.path()))
                }
                false => {}
            }
        }
    }
    files.sort();
    files.pop().unwrap().1
}

#[test]
fn a_damaged_file_of_an_interrupted_copy_is_copied_again() {
    let (folder, root) = local();
    let (source, target) = (root.join("s"), root.join("t"));
    save_files(&source, 1);
    for (way, unverified) in [("flip", false), ("cut", true), ("remove", true), ("journal", false)] {
        // The largest file is whole and noted, and the next one begun.
        let files = files_at(&source);
        let largest = files.iter().max_by_key(|(_, bytes)| bytes.len()).unwrap().0;
        let before = files.iter().filter(|(name, _)| *name <= largest && *name != MARKERS[0]);
        let end = 2 * before.map(|(_, bytes)| bytes.len() as u64).sum::<u64>() + 1;
        let stopped = CopyOptions { monitor: stops_at(end), threads: Some(1), ..options() };
        assert_eq!(copy(&source, &target, &stopped).unwrap_err().kind(), ErrorKind::Cancelled);
        let staged = folder.path().join("t.orbax-checkpoint-tmp-copy");
        let file = largest_staged(&staged);
        let mut bytes = fs::read(&file).unwrap();
        match way {
            "flip" => {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                fs::write(&file, bytes).unwrap();
            }
            "cut" => {
                bytes.pop();
                fs::write(&file, bytes).unwrap();
            }
            "remove" => fs::remove_file(&file).unwrap(),
            // Without it the owner of the files is unknown.
            _ => {
                bytes[0] ^= 1;
                fs::write(&file, bytes).unwrap();
                fs::write(staged.join("journal"), b"\xff{\n[]\n{\"name\":3}\n").unwrap();
            }
        }
        copy(&source, &target, &CopyOptions { unverified, ..options() }).unwrap();
        assert_same(&source, &target);
        assert!(leftovers(&target).is_empty(), "{:?}", leftovers(&target));
        fs::remove_dir_all(folder.path().join("t")).unwrap();
    }
    // The same in a bucket: another object has another tag.
    let target = "memory://copy-damaged/t".to_location().unwrap();
    interrupt(&source, &target, &options());
    let store = target.store();
    let keys = store.list(b"").unwrap().into_iter().filter(|key| !key.starts_with(b"regrow-"));
    let keys: Vec<Vec<u8>> = keys.collect();
    assert!(keys.len() > 1, "{keys:?}");
    for key in keys {
        let len = store.len_bytes(&key).unwrap().unwrap() as usize;
        store.put(&key, vec![0; len].into()).unwrap();
    }
    store.put(b"stranger", "x".into()).unwrap();
    let report = copy(&source, &target, &CopyOptions { unverified: true, ..options() }).unwrap();
    assert_eq!(report.reused_bytes, 0);
    assert_same(&source, &target);
}

#[test]
fn one_of_two_concurrent_copies_wins() {
    for (root, _folder) in storages("copy-race") {
        for (at, (layout, suffix)) in [&layouts()[0], &layouts()[2], &layouts()[7]].into_iter().enumerate() {
            for overwrites in [false, true] {
                let (a, b) = (
                    root.join(format!("a{at}-{overwrites}{suffix}")),
                    root.join(format!("b{at}-{overwrites}{suffix}")),
                );
                let target = root.join(format!("t{at}-{overwrites}{suffix}"));
                save(&a, 1, layout);
                save(&b, 2, layout);
                let options = if overwrites { overwrite() } else { options() };
                let results: Vec<_> = std::thread::scope(|scope| {
                    let (target, options) = (&target, &options);
                    let copies = [&a, &b].map(|source| scope.spawn(move || copy(source, target, options)));
                    copies.into_iter().map(|copy| copy.join().unwrap()).collect()
                });
                let won: Vec<bool> = results.iter().map(Result::is_ok).collect();
                assert!(won.contains(&true), "{target}: {results:?}");
                for error in results.into_iter().filter_map(Result::err) {
                    assert!(
                        matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::Unsupported),
                        "{error}"
                    );
                }
                let found = files_at(&target);
                let same = |source: &Location| {
                    let marker = |(name, _): &(&String, &Vec<u8>)| !MARKERS.contains(&name.as_str());
                    files_at(source).iter().filter(marker).eq(found.iter().filter(marker))
                };
                assert!(same(&a) || same(&b), "{target} is a mixture");
                assert!(verify(&target).unwrap().is_ok());
                assert!(leftovers(&target).is_empty(), "{:?}", leftovers(&target));
            }
        }
    }
}

#[test]
fn only_the_state_of_a_dead_copy_is_taken_over() {
    let (_folder, root) = local();
    let source = root.join("s");
    save_files(&source, 1);
    for at in ["memory://copy-states/t", "memory://copy-states/u"] {
        let target = at.to_location().unwrap();
        interrupt(&source, &target, &options());
        let state = || {
            let bytes = target.store().get(b"regrow-state.json", ByteRange::Full).unwrap().unwrap();
            serde_json::from_slice::<serde_json::Value>(&bytes).unwrap()
        };
        let put = |state: &serde_json::Value| {
            target.store().put(b"regrow-state.json", state.to_string().into()).unwrap();
        };
        let released = state();
        assert_eq!(released["pid"], 0, "{released}");
        let mut living = released.clone();
        living["pid"] = 7.into();
        living["host"] = "elsewhere".into();
        put(&living);
        let hurried = CopyOptions { wait: Some(std::time::Duration::ZERO), ..options() };
        let error = copy(&source, &target, &hurried).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert_eq!(state(), living);
        put(&released);
        let report = copy(&source, &target, &options()).unwrap();
        assert!(report.reused_bytes > 0, "{report}");
        assert_same(&source, &target);
    }
}

#[test]
fn links_are_copied_as_files_and_pipes_are_refused() {
    let (folder, root) = local();
    let source = root.join("s");
    save(&source, 1, &Layout::default());
    let inside = |name: &str| folder.path().join("s").join(name);
    // As in the cache of a model hub: the name is a link to the bytes.
    fs::rename(inside("model.safetensors"), folder.path().join("blob")).unwrap();
    std::os::unix::fs::symlink("../blob", inside("model.safetensors")).unwrap();
    copy(&source, root.join("t"), &options()).unwrap();
    assert!(fs::symlink_metadata(folder.path().join("t/model.safetensors")).unwrap().is_file());
    assert!(verify(root.join("t")).unwrap().is_ok());
    std::os::unix::fs::symlink("nowhere", inside("broken")).unwrap();
    let error = copy(&source, root.join("u"), &options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    fs::remove_file(inside("broken")).unwrap();
    std::os::unix::fs::symlink(".", inside("round")).unwrap();
    let error = copy(&source, root.join("u"), &options()).unwrap_err();
    // The system itself gives up after 40 links.
    assert!(matches!(error.kind(), ErrorKind::Limit | ErrorKind::Unsupported), "{error}");
    assert!(!root.join("u").exists());
}

/// A file system of its own, as long as this lives.
struct Mount(tempfile::TempDir);

impl Mount {
    fn new(options: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "regrow-test"]).arg(folder.path());
        mount.output().is_ok_and(|output| output.status.success()).then_some(Self(folder))
    }

    fn remount(&self, options: &str) {
        let mut mount = std::process::Command::new("mount");
        let mounted = mount.args(["-o", &format!("remount,{options}")]).arg(self.0.path()).status();
        assert!(mounted.unwrap().success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_copy_resumes_after_a_full_disk() {
    // Without the right to mount there is no disk that is full.
    let Some(mount) = Mount::new("size=1200k") else { return };
    let (_folder, root) = local();
    let (source, target) = (root.join("s"), Location::local(mount.0.path().join("t")));
    save_files(&source, 1);
    let error = copy(&source, &target, &options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    assert!(!target.exists());
    mount.remount("size=64m");
    copy(&source, &target, &options()).unwrap();
    assert_same(&source, &target);
}
