//! Every layout inside archives. A packed checkpoint is read without unpacking, and an archive that
//! is damaged or cut is an error.

use std::path::Path;

use crate::common::{bytes_of, layouts, tree};
use regrow::array::Region;
use regrow::engine::{Layout, load};
use regrow::location::{Location, ToLocation};
use regrow::{
    ConvertOptions, CopyOptions, ErrorKind, LoadOptions, OpenOptions, RemoveOptions, SaveOptions, convert,
    copy, open, open_with, remove, save_with, verify,
};
use regrow_store::StoreExt;
use regrow_testkit::archives::{Member, files_below, tar, zip};
use regrow_testkit::memory_folder;

type Pack = fn(&[Member]) -> Vec<u8>;

/// The kinds of archives, and how their names end.
const KINDS: [(Pack, &str); 2] = [(tar, "tar"), (zip, "ZIP")];

/// A file in a folder of its own, and the same in memory.
fn places(test: &str, name: &str, bytes: &[u8]) -> Vec<(Location, Option<tempfile::TempDir>)> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(name), bytes).unwrap();
    let memory = format!("memory://archives-{test}/x/{name}").to_location().unwrap();
    memory.parent().store().put(name.as_bytes(), bytes.to_vec().into()).unwrap();
    vec![(Location::local(folder.path().join(name)), Some(folder)), (memory, None)]
}

/// What was saved to a folder, packed.
fn packed(pack: Pack, folder: &Path) -> Vec<u8> {
    pack(&files_below(folder).unwrap())
}

#[test]
fn every_layout_is_read_inside_archives() {
    for (number, (layout, suffix)) in layouts().into_iter().enumerate() {
        let folder = memory_folder().unwrap();
        let tree = tree(number as u8);
        let name = format!("run{suffix}");
        let options = SaveOptions { layout: layout.clone(), ..SaveOptions::default() };
        save_with(folder.path().join(&name), &tree, &options).unwrap();
        for (pack, kind) in KINDS {
            let archive = format!("a{number}.{kind}");
            for (file, _folder) in places("layouts", &archive, &packed(pack, folder.path())) {
                let path = file.join(&name);
                let say = |what: &dyn std::fmt::Display| format!("{} at {path}: {what}", layout.name());
                let loaded = load(&path).unwrap_or_else(|error| panic!("{}", say(&error)));
                assert!(bytes_of(&loaded) == bytes_of(&tree), "{}", say(&"other bytes"));
                let report = verify(&path).unwrap_or_else(|error| panic!("{}", say(&error)));
                assert!(report.is_ok(), "{}", say(&format!("{:?}", report.findings)));
                let mapped = OpenOptions { mapped: true, ..OpenOptions::default() };
                for checkpoint in [open(&path).unwrap(), open_with(&path, &mapped).unwrap()] {
                    assert_eq!(checkpoint.path(), path.describe());
                    assert!(!checkpoint.is_replaced());
                    let whole = checkpoint.load(&LoadOptions::default()).unwrap();
                    assert!(bytes_of(&whole) == bytes_of(&tree), "{}", say(&"other bytes"));
                    let leaf = checkpoint.find("kernel").unwrap();
                    let region = Region::new(vec![100, 7], vec![3, 1000]).unwrap();
                    let slice = checkpoint.region(leaf, &region).unwrap().to_c_order().unwrap();
                    let kernel = &bytes_of(&tree)[2].1;
                    let row = |at: usize| &kernel[(at * 1500 + 7) * 4..(at * 1500 + 1007) * 4];
                    assert!(
                        slice[..] == [row(100), row(101), row(102)].concat(),
                        "{}",
                        say(&"another slice")
                    );
                    let leaf = checkpoint.read(leaf).unwrap();
                    assert!(leaf.as_array().unwrap().to_c_order().unwrap()[..] == kernel[..]);
                }
                // What lies alone at the top need not be named; the pair of files is two.
                if layout.name() != "pytree_data" {
                    let unnamed = memory_folder().unwrap();
                    let unnamed = unnamed.path().join(format!("copy{suffix}"));
                    copy(&file, &unnamed, &CopyOptions::default())
                        .unwrap_or_else(|error| panic!("{}", say(&error)));
                    assert!(
                        bytes_of(&load(&unnamed).unwrap()) == bytes_of(&tree),
                        "{}",
                        say(&"other copied")
                    );
                    assert!(
                        bytes_of(&load(&file).unwrap()) == bytes_of(&tree),
                        "{}",
                        say(&"other at the top")
                    );
                }
                let target = memory_folder().unwrap();
                let target = target.path().join("out");
                convert(&path, &target, &ConvertOptions { lossy: true, ..ConvertOptions::default() })
                    .unwrap();
                assert!(bytes_of(&load(&target).unwrap()) == bytes_of(&tree), "{}", say(&"converted"));
                let beside = memory_folder().unwrap();
                let copied = beside.path().join(&name);
                copy(&path, &copied, &CopyOptions::default())
                    .unwrap_or_else(|error| panic!("{}", say(&error)));
                assert_eq!(files_below(beside.path()).unwrap(), files_below(folder.path()).unwrap());
                let error = remove(&path, &RemoveOptions::default()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", say(&error));
                // The packed checkpoint is no place for another one, and stays what it is.
                for place in [path.clone(), path.join("below"), file.join("beside")] {
                    // The name of an archive alone is refused before anything is looked at.
                    let layout = match Layout::for_target(&place.to_location().unwrap()) {
                        Ok(layout) => layout,
                        Err(error) => {
                            assert!(error.to_string().contains("archive"), "{error}");
                            continue;
                        }
                    };
                    let overwrite = SaveOptions { overwrite: true, layout, ..SaveOptions::default() };
                    let error = save_with(&place, &tree, &overwrite).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", say(&error));
                    assert!(error.to_string().contains("archive"), "{error}");
                }
                assert!(bytes_of(&load(&path).unwrap()) == bytes_of(&tree));
            }
        }
    }
}

#[test]
fn steps_are_found_inside() {
    let folder = tempfile::tempdir().unwrap();
    for (step, fill) in [(1, 1), (2, 2), (10, 3)] {
        save_with(folder.path().join(format!("runs/{step}")), &small_tree(fill), &SaveOptions::default())
            .unwrap();
    }
    for (pack, kind) in KINDS {
        for (top, names) in [("", ["runs", "runs/2"]), ("runs", ["", "2"])] {
            let name = format!("steps{top}.{kind}");
            for (file, _folder) in places("steps", &name, &packed(pack, &folder.path().join(top))) {
                // The folder is named, or is the only one.
                for at in [file.join(names[0]), file.clone()] {
                    let newest = open(&at).unwrap();
                    assert_eq!(newest.description().steps, [1, 2, 10]);
                    assert!(
                        bytes_of(&newest.load(&LoadOptions::default()).unwrap()) == bytes_of(&small_tree(3))
                    );
                    let second = OpenOptions { step: Some(2), ..OpenOptions::default() };
                    let second = open_with(&at, &second).unwrap();
                    assert!(
                        bytes_of(&second.load(&LoadOptions::default()).unwrap()) == bytes_of(&small_tree(2))
                    );
                }
                for name in [names[1], "2"] {
                    assert!(bytes_of(&load(file.join(name)).unwrap()) == bytes_of(&small_tree(2)));
                }
                let error = open(file.join("none")).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                assert!(error.to_string().contains("none"), "{error}");
            }
        }
    }
}

/// Opened, and checked, the same tree: or an error, or a finding.
fn is_whole_or_refused(bytes: &[u8], name: &str, expected: &[(String, Vec<u8>)]) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let is_sound = verify(&path).is_ok_and(|report| report.is_ok());
    match load(&path) {
        Ok(loaded) => bytes_of(&loaded) == expected,
        Err(error) => {
            assert!(!is_sound, "{error}");
            true
        }
    }
}

#[test]
fn damage_to_archives_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let tree = small_tree(0);
    save_with(folder.path().join("run"), &tree, &SaveOptions::default()).unwrap();
    let expected = bytes_of(&tree);
    for (pack, kind) in KINDS {
        let whole = packed(pack, folder.path());
        let name = format!("x.{kind}");
        assert!(verify_bytes(&whole, &name), "the archive is sound before it is damaged");
        for len in (0..whole.len()).step_by(512).chain([whole.len() - 1]) {
            assert!(
                is_whole_or_refused(&whole[..len], &name, &expected),
                "cut after {len} of {}",
                whole.len()
            );
        }
        // Every byte of the headers, and some of the data.
        for at in (0..whole.len()).step_by(37) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            assert!(is_whole_or_refused(&bytes, &name, &expected), "byte {at}");
        }
        // Data of leaves is under the checksums of the layout.
        let kernel = &expected[1].1;
        let at = whole.windows(kernel.len()).position(|window| window == &kernel[..]).unwrap();
        let mut bytes = whole.clone();
        bytes[at + 5] ^= 1;
        assert!(!verify_bytes(&bytes, &name));
    }
}

fn small_tree(fill: u8) -> regrow::tree::Tree<regrow::tree::Leaf> {
    use regrow::array::{Array, Dtype, Shape};
    use regrow::tree::{Key, Leaf, NodeKind, TreeBuilder};
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for (name, len) in [("bias", 3_u64), ("kernel", 700)] {
        let bytes: Vec<u8> = (0..4 * len).map(|at| (at * 7) as u8 ^ fill).collect();
        let shape = Shape::new(vec![len]).unwrap();
        build
            .leaf(Key::dict(name), Leaf::array(Array::new(Dtype::Float32, shape, bytes.into()).unwrap()))
            .unwrap();
    }
    build.close().unwrap();
    build.finish().unwrap()
}

fn verify_bytes(bytes: &[u8], name: &str) -> bool {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(name), bytes).unwrap();
    verify(folder.path().join(name)).is_ok_and(|report| report.is_ok())
}

#[test]
fn a_replaced_archive_is_an_error() {
    for (pack, kind) in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let pack_of = |fill: u8| {
            let from = tempfile::tempdir().unwrap();
            save_with(from.path().join("run"), &tree(fill), &SaveOptions::default()).unwrap();
            packed(pack, from.path())
        };
        for (file, _folder) in places("replaced", &format!("x.{kind}"), &pack_of(1)) {
            let before = open(&file).unwrap();
            match file.local_path() {
                Ok(path) => {
                    std::fs::write(folder.path().join("new"), pack_of(2)).unwrap();
                    std::fs::rename(folder.path().join("new"), path).unwrap();
                }
                Err(_) => {
                    let name = file.name().as_encoded_bytes();
                    file.parent().store().put(name, pack_of(2).into()).unwrap();
                }
            }
            assert!(before.is_replaced(), "{file}");
            // It goes on being the one that was opened, or says that it is gone.
            match before.load(&LoadOptions::default()) {
                Ok(old) => assert!(bytes_of(&old) == bytes_of(&tree(1)), "{file}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Replaced, "{error}"),
            }
            assert!(bytes_of(&load(&file).unwrap()) == bytes_of(&tree(2)));
        }
    }
}

#[test]
fn a_file_named_like_an_archive_is_not_one() {
    let folder = tempfile::tempdir().unwrap();
    // A checkpoint folder of such a name is a folder, and so is one with steps.
    for name in ["x.tar", "runs.zip/1", "runs.zip/2.tar"] {
        let (path, saved) = (folder.path().join(name), folder.path().join("saved"));
        save_with(&saved, &tree(7), &SaveOptions::default()).unwrap();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::rename(&saved, &path).unwrap();
        assert!(bytes_of(&load(&path).unwrap()) == bytes_of(&tree(7)));
    }
    std::fs::write(folder.path().join("notes.tar"), b"nothing").unwrap();
    let error = open(folder.path().join("notes.tar")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotACheckpoint, "{error}");
    let error = open(folder.path().join("none.tar/x")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    // An npz is a zip, and a layout of its own.
    let options = SaveOptions {
        layout: regrow::engine::Layout::from_name("npy", serde_json::Value::Null).unwrap(),
        ..SaveOptions::default()
    };
    save_with(folder.path().join("a.npz"), &tree(8), &options).unwrap();
    assert_eq!(open(folder.path().join("a.npz")).unwrap().description().layout, "npy");
    std::fs::write(folder.path().join("none.zip"), zip(&[("notes.txt".to_owned(), b"1".to_vec())])).unwrap();
    let error = open(folder.path().join("none.zip")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotACheckpoint, "{error}");
}

/// A path that is not there was looked for again for ten seconds, where a folder had been left out
/// of the address: each of these would have been, and the test would have been stopped.
#[test]
fn a_missing_path_in_an_archive_is_an_error_at_once() {
    let folder = tempfile::tempdir().unwrap();
    save_with(folder.path().join("runs/1"), &small_tree(1), &SaveOptions::default()).unwrap();
    for (pack, kind) in KINDS {
        let file = folder.path().join(format!("x.{kind}"));
        std::fs::write(&file, packed(pack, &folder.path().join("runs"))).unwrap();
        for number in 0..40 {
            let error = open(file.join(format!("none{number}"))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        }
    }
}
