//! Removal removes one checkpoint completely, and no other files.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use regrow::array::{Array, Dtype, Shape};
use regrow::engine::Layout;
use regrow::location::{Location, ToLocation};
use regrow::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};
use regrow::{ErrorKind, RemoveOptions, SaveOptions, copy, open, remove, save_with, verify};
use regrow_store::StoreExt;

fn tree() -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for name in ["a", "b", "c"] {
        let array = Array::new(Dtype::UInt8, Shape::new([5]).unwrap(), vec![1, 2, 3, 4, 5].into()).unwrap();
        build.leaf(Key::dict(name), Leaf::array(array)).unwrap();
    }
    build.close().unwrap();
    build.finish().unwrap()
}

fn layouts() -> Vec<(Layout, &'static str)> {
    let json =
        |name: &str, options: &str| Layout::from_name(name, serde_json::from_str(options).unwrap()).unwrap();
    vec![
        (json("regrow", "null"), ""),
        (json("orbax", "null"), ""),
        (json("orbax", r#"{"ocdbt": false}"#), ""),
        (json("orbax", r#"{"v1": true}"#), ""),
        (json("flax", "null"), ".msgpack"),
        (json("equinox", "null"), ".eqx"),
        (json("pytree_data", "null"), ""),
        (json("safetensors", "null"), ".safetensors"),
        (json("safetensors", r#"{"max_shard_bytes": 5}"#), ""),
        (json("npy", "null"), ".npz"),
        (json("npy", "null"), ""),
    ]
}

fn save(at: &Location, layout: &Layout) {
    let options = SaveOptions { layout: layout.clone(), not_durable: true, ..Default::default() };
    save_with(at, &tree(), &options).unwrap();
}

fn storages(test: &str) -> Vec<(Location, Option<tempfile::TempDir>)> {
    let folder = tempfile::tempdir().unwrap();
    vec![
        (Location::local(folder.path()), Some(folder)),
        (format!("memory://{test}/runs").to_location().unwrap(), None),
    ]
}

fn names(root: &Location) -> Vec<String> {
    let keys = root.store().list(b"").unwrap();
    keys.into_iter().map(|key| String::from_utf8(key).unwrap()).collect()
}

fn plain() -> RemoveOptions {
    RemoveOptions::default()
}

fn unfinished(force: bool) -> RemoveOptions {
    RemoveOptions { unfinished: true, force, ..RemoveOptions::default() }
}

#[test]
fn removal_deletes_every_layout_and_keeps_neighbours() {
    for (root, _folder) in storages("remove-all") {
        let kept = root.join("kept");
        save(&kept, &Layout::default());
        let before = names(&root);
        for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
            let path = root.join(format!("x{at}{suffix}"));
            save(&path, &layout);
            let stored = names(&root).len() - before.len();
            let report = remove(&path, &plain()).unwrap();
            assert_eq!(report.path, path.describe());
            assert!(report.file_count == stored || root.commits_by_marker(), "{stored}: {report:?}");
            assert!(report.bytes > 0);
            assert_eq!(names(&root), before, "{}", layout.name());
            assert_eq!(open(&path).unwrap_err().kind(), ErrorKind::NotFound);
            assert_eq!(remove(&path, &plain()).unwrap_err().kind(), ErrorKind::NotFound);
        }
        assert!(verify(&kept).unwrap().is_ok());
    }
}

#[test]
fn targets_that_are_not_one_checkpoint_are_refused() {
    for (root, _folder) in storages("remove-refused") {
        let run = root.join("run");
        for step in ["1", "2"] {
            save(&run.join(step), &Layout::default());
        }
        root.join("notes").store().put(b"a.txt", "hello".into()).unwrap();
        let before = names(&root);
        let refused = |at: &Location, kind: ErrorKind| {
            let error = remove(at, &plain()).unwrap_err();
            assert_eq!(error.kind(), kind, "{at}: {error}");
            assert_eq!(names(&root), before);
        };
        refused(&run, ErrorKind::InvalidArgument);
        refused(&root.join("notes"), ErrorKind::NotACheckpoint);
        refused(&root.join("notes/a.txt"), ErrorKind::NotACheckpoint);
        refused(&root.join("none"), ErrorKind::NotFound);
        // A part of a checkpoint is none.
        refused(&run.join("1/model.safetensors"), ErrorKind::InvalidArgument);
        let error = remove(run.join("1"), &unfinished(true)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        run.join("1").store().put(b"thesis.txt", "x".into()).unwrap();
        let error = remove(run.join("1"), &plain()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains("thesis.txt"), "{error}");
        assert!(verify(run.join("1")).unwrap().is_ok());
        remove(run.join("2"), &plain()).unwrap();
        assert_eq!(open(&run).unwrap().description().steps, [1]);
    }
}

#[test]
fn a_damaged_checkpoint_can_be_removed() {
    for (root, _folder) in storages("remove-damaged") {
        let path = root.join("x");
        save(&path, &Layout::default());
        path.store().put(b"regrow.json", "{".into()).unwrap();
        assert_eq!(open(&path).unwrap_err().kind(), ErrorKind::Corrupt);
        remove(&path, &plain()).unwrap();
        assert!(names(&root).is_empty(), "{:?}", names(&root));
    }
}

#[test]
fn links_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let root = Location::local(folder.path());
    save(&root.join("x"), &Layout::default());
    std::os::unix::fs::symlink("x", folder.path().join("link")).unwrap();
    for link in ["link", "link/"] {
        let error = remove(folder.path().join(link).as_path(), &plain()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{link}: {error}");
        assert!(folder.path().join("link").is_dir());
    }
    fs::create_dir(folder.path().join("mine")).unwrap();
    fs::write(folder.path().join("mine/.zarray"), "{}").unwrap();
    fs::rename(folder.path().join("x/model.safetensors"), folder.path().join("blob")).unwrap();
    std::os::unix::fs::symlink("../blob", folder.path().join("x/model.safetensors")).unwrap();
    remove(root.join("x"), &plain()).unwrap();
    assert!(folder.path().join("blob").is_file() && folder.path().join("mine/.zarray").is_file());
    assert!(!folder.path().join("x").exists());
}

#[test]
fn temporary_files_go_once_their_writer_is_dead() {
    let folder = tempfile::tempdir().unwrap();
    let root = Location::local(folder.path());
    let left = |name: &str| {
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "12345").unwrap();
        path
    };
    let target = root.join("x");
    assert_eq!(remove(&target, &unfinished(false)).unwrap_err().kind(), ErrorKind::NotFound);
    // Of a writer that died: the lock is free.
    let dead = left("x.orbax-checkpoint-tmp-12-0123456789abcdef");
    let other = left("y.orbax-checkpoint-tmp-12-0123456789abcdef");
    let report = remove(&target, &unfinished(false)).unwrap();
    assert_eq!((report.file_count, report.bytes), (1, 5));
    assert!(!dead.exists() && other.exists());
    // By its own name.
    remove(other.as_path(), &unfinished(false)).unwrap();
    assert!(!other.exists());
    // Of one that lives.
    let staged = regrow_storage::local::Staged::of_folder(&folder.path().join("x"), false).unwrap();
    let error = remove(&target, &unfinished(false)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    assert!(staged.folder().is_dir());
    drop(staged);
    // Orbax holds no locks: only time tells.
    let young = left("x.orbax-checkpoint-tmp");
    assert_eq!(remove(&target, &unfinished(false)).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert!(young.exists());
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
    for path in [young.join("file"), young.clone()] {
        fs::File::open(path).unwrap().set_modified(old).unwrap();
    }
    remove(&target, &unfinished(false)).unwrap();
    assert!(!young.exists());
    left("x.orbax-checkpoint-tmp");
    remove(&target, &unfinished(true)).unwrap();
    assert!(names(&root).is_empty());
    // Without being asked for, nothing unfinished goes.
    let young = left("x.orbax-checkpoint-tmp");
    assert_eq!(remove(young.as_path(), &plain()).unwrap_err().kind(), ErrorKind::Uncommitted);
}

/// Files that a save writes beside it in between were taken for temporary ones and got their name
/// again: step_10 for step_1.
#[test]
fn removal_keeps_running_saves_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let is_over = AtomicBool::new(false);
    fs::create_dir(at("elsewhere")).unwrap();
    let removed: Vec<_> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for (from, to) in [("elsewhere", "step_10"), ("step_10", "elsewhere")] {
                    let _ = fs::rename(at(from), at(to));
                }
            }
        });
        let remove_one = |_| {
            let left = at("step_1.orbax-checkpoint-tmp-12-0123456789abcdef");
            fs::create_dir(&left).ok()?;
            (0..20).for_each(|file| drop(fs::write(left.join(file.to_string()), "x")));
            Some(remove(at("step_1").as_path(), &unfinished(false)).map(|report| report.file_count))
        };
        let removed = (0..200).map(remove_one).collect();
        is_over.store(true, Ordering::Relaxed);
        removed
    });
    for removed in removed {
        assert_eq!(removed.unwrap().unwrap(), 20);
    }
}

#[test]
fn a_checkpoint_under_a_temporary_name_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let root = Location::local(folder.path());
    let names_it = |path: &Location| remove(path, &unfinished(true));
    // As an overwrite leaves it that is killed between two renames.
    for by_its_own_name in [false, true] {
        let aside = "x.orbax-checkpoint-tmp-replaced-12-0123456789abcdef";
        save(&root.join("x"), &Layout::default());
        fs::rename(folder.path().join("x"), folder.path().join(aside)).unwrap();
        let error = names_it(&root.join(if by_its_own_name { aside } else { "x" })).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(verify(root.join("x")).unwrap().is_ok());
        remove(root.join("x"), &plain()).unwrap();
    }
    // And in a bucket, where the pointer names the folder.
    let root = "memory://remove-moved/runs".to_location().unwrap();
    save(&root.join("s"), &Layout::default());
    let (old, staged) = (root.join("x"), root.join("x.orbax-checkpoint-tmp-copy"));
    old.store().put(b"model.safetensors", "x".into()).unwrap();
    for key in root.join("s").store().list(b"").unwrap() {
        let bytes = root.join("s").store().get(&key, regrow_store::ByteRange::Full).unwrap().unwrap();
        staged.store().put(&key, bytes).unwrap();
    }
    let pointer = r#"{"nonce":"copy","folder":"runs/x.orbax-checkpoint-tmp-copy"}"#;
    old.store().put(b"regrow-moved.json", pointer.into()).unwrap();
    assert!(verify(&old).unwrap().is_ok());
    let error = names_it(&staged).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(verify(&old).unwrap().is_ok());
    assert!(!names(&root).iter().any(|name| name.contains("tmp")), "{:?}", names(&root));
}

#[test]
fn in_a_bucket_the_claim_names_the_writer() {
    let root = "memory://remove-claims/runs".to_location().unwrap();
    let path = root.join("x");
    let claim = |host: &str, since: u64| {
        serde_json::json!({"nonce": "n", "host": host, "pid": 1, "since": since}).to_string().into()
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let store = path.store();
    store.put(b"model.safetensors", "x".into()).unwrap();
    store.put(b"regrow-writing.json", claim("elsewhere", now)).unwrap();
    let hurried = RemoveOptions { wait: Some(std::time::Duration::ZERO), ..plain() };
    assert_eq!(remove(&path, &hurried).unwrap_err().kind(), ErrorKind::Busy);
    let error = remove(&path, &unfinished(false)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert_eq!(names(&root).len(), 2);
    store.put(b"regrow-writing.json", claim("elsewhere", 1)).unwrap();
    remove(&path, &unfinished(false)).unwrap();
    assert!(names(&root).is_empty(), "{:?}", names(&root));
    store.put(b"model.safetensors", "x".into()).unwrap();
    store.put(b"regrow-writing.json", claim("elsewhere", now)).unwrap();
    remove(&path, &unfinished(true)).unwrap();
    assert!(names(&root).is_empty(), "{:?}", names(&root));
}

#[test]
fn removal_deletes_an_interrupted_copy() {
    for (root, _folder) in storages("remove-copies") {
        for (at, (layout, suffix)) in [layouts().remove(2), layouts().remove(6)].into_iter().enumerate() {
            let (source, target) = (root.join(format!("s{at}{suffix}")), root.join(format!("t{at}{suffix}")));
            save(&source, &layout);
            let before = names(&root);
            let monitor = regrow::Monitor::with_hook(|progress| {
                std::thread::sleep(std::time::Duration::from_millis(51));
                // Of the pair both files are there, and none of it is committed.
                match progress.done_bytes * 10 > progress.total_bytes * 7 {
                    true => Err(regrow::Error::new(ErrorKind::Cancelled, "enough")),
                    false => Ok(()),
                }
            });
            let options = regrow::CopyOptions { monitor, threads: Some(1), ..Default::default() };
            assert_eq!(copy(&source, &target, &options).unwrap_err().kind(), ErrorKind::Cancelled);
            assert!(names(&root).len() > before.len());
            remove(&target, &unfinished(false)).unwrap();
            assert_eq!(names(&root), before);
        }
    }
}
