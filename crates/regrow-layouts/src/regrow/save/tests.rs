//! Whole saves whose headers are kept short, so that a few leaves fill many files.

use std::fs;
use std::path::Path;

use bytes::Bytes;

use super::super::manifest;
use super::base::Base;
use super::plan::Plan;
use super::reuse::LINKS_MAX;
use super::*;
use crate::safetensors::index::INDEX_FILE_NAME;
use regrow_storage::NewFolder;
use regrow_storage::local::Staged;
use regrow_storage::location::Location;
use regrow_store::{LocalStore, ReadPath, Store};
use regrow_tree::array::{Array, Dtype, Shape};
use regrow_tree::tree::{Key, NodeKind, TreeBuilder};

fn tree(fills: &[u8]) -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for (at, &fill) in fills.iter().enumerate() {
        let shape = Shape::new(vec![200]).unwrap();
        let array = Array::new(Dtype::UInt8, shape, vec![fill; 200].into()).unwrap();
        build.leaf(Key::dict(format!("leaf_{at:03}")), Leaf::array(array)).unwrap();
    }
    build.close().unwrap();
    build.finish().unwrap()
}

/// Saves with headers of about a dozen leaves. Returns the names of the files, and whether each
/// file is linked.
fn save(folder: &Path, step: usize, fills: &[u8]) -> Vec<(String, bool)> {
    use std::os::unix::fs::MetadataExt;
    let path = folder.join(step.to_string());
    let base = step.checked_sub(1).map(|step| Location::local(folder.join(step.to_string())));
    let options = SaveOptions { base, ..SaveOptions::default() };
    let staged = Staged::of_folder(&path, false).unwrap();
    save_split(&tree(fills), &staged, &options, 2000).unwrap();
    staged.commit().unwrap();
    assert!(regrow::verify(&path).unwrap().is_ok());
    let loaded: Tree<Leaf> = regrow::load(&path).unwrap();
    for (leaf, &fill) in loaded.leaves().iter().zip(fills) {
        assert!(leaf.as_array().unwrap().to_c_order().unwrap().iter().all(|&byte| byte == fill));
    }
    let mut files: Vec<(String, bool)> = fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().extension().is_some_and(|end| end == "safetensors"))
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().nlink() > 1))
        .collect();
    files.sort();
    files
}

#[test]
fn files_that_were_split_are_linked_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut fills: Vec<u8> = (0..40).collect();
    assert_eq!(save(folder.path(), 0, &fills).len(), 4);
    let all = save(folder.path(), 1, &fills);
    assert!(all.len() == 4 && all.iter().all(|(_, is_linked)| *is_linked), "{all:?}");
    // The second file has the changed leaf. The other three files are linked, the leaf is written,
    // and the other leaves of the second file are gathered.
    fills[15] += 100;
    let most = save(folder.path(), 2, &fills);
    let linked: Vec<bool> = most.iter().map(|(_, is_linked)| *is_linked).collect();
    assert_eq!(linked, [true, false, true, true, false], "{most:?}");
    fills[15] += 1;
    let linked: Vec<bool> =
        save(folder.path(), 3, &fills).into_iter().map(|(_, is_linked)| is_linked).collect();
    assert_eq!(linked, [true, false, true, true, true]);
}

#[test]
fn the_number_of_links_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let fills = vec![1; 12 * (LINKS_MAX + 20)];
    assert!(save(folder.path(), 0, &fills).len() > LINKS_MAX + 1);
    let linked = save(folder.path(), 1, &fills).into_iter().filter(|(_, is_linked)| *is_linked).count();
    assert_eq!(linked, LINKS_MAX + 1, "the first, and so many more");
}

#[test]
fn a_base_that_is_replaced_stays_the_one_that_was_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (ours, theirs) = ([1; 20], [2; 20]);
    save(folder.path(), 0, &ours);
    let before = fs::read(path("0/model-00001-of-00002.safetensors")).unwrap();
    let base = Base::open(&Location::local(path("0"))).unwrap();
    fs::rename(path("0"), path("aside")).unwrap();
    save(folder.path(), 0, &theirs);
    let (tree, options) = (tree(&theirs), SaveOptions::default());
    let plan = Plan::new(&tree, &options).unwrap();
    let files = base.match_leaves(&plan);
    if cfg!(feature = "portable") {
        // The base reaches its folder only by the name, which another folder has now. So all files
        // are written again.
        return assert!(files.is_empty());
    }
    assert_eq!(files.len(), 2);
    let mut found = vec![0; before.len()];
    files[0].opened.read(0, &mut found, ReadPath::Cached).unwrap();
    assert!(found == before, "a file of another checkpoint under the record of the base");
    // The name of the file now leads to another file, so the file cannot be linked.
    let staged = Staged::of_folder(&path("next"), false).unwrap();
    assert!(!staged.reuse("model", &files[0].source, &*files[0].opened).unwrap());
}

#[test]
fn a_file_that_was_replaced_in_between_is_not_linked() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("model.safetensors");
    fs::write(&source, b"old").unwrap();
    let opened = LocalStore::new(folder.path()).open(b"model.safetensors").unwrap().unwrap();
    let at = Location::local(&source);
    let staged = Staged::of_folder(&folder.path().join("step"), false).unwrap();
    assert!(staged.reuse("a", &at, &*opened).unwrap());
    fs::remove_file(&source).unwrap();
    assert!(!staged.reuse("b", &at, &*opened).unwrap());
    fs::write(&source, b"new").unwrap();
    assert!(!staged.reuse("c", &at, &*opened).unwrap());
    assert_eq!(staged.reused_bytes(), 3);
    let names: Vec<_> =
        fs::read_dir(staged.folder()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["a"], "nothing is left of the others");
    assert_eq!(fs::read(&source).unwrap(), b"new");
}

#[test]
fn many_leaves_are_split_over_files_that_all_readers_put_together() {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for i in 0..40_u8 {
        let shape = Shape::new(vec![100]).unwrap();
        let array = Array::new(Dtype::UInt8, shape, vec![i; 100].into()).unwrap();
        build.leaf(Key::dict(format!("leaf_{i:02}")), Leaf::array(array)).unwrap();
    }
    build.close().unwrap();
    let tree = build.finish().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    let staged = Staged::of_folder(&path, false).unwrap();
    save_split(&tree, &staged, &SaveOptions::default(), 2000).unwrap();
    staged.commit().unwrap();
    assert!(path.join("model-00001-of-00004.safetensors").is_file());
    assert!(path.join(INDEX_FILE_NAME).is_file());
    assert!(regrow::verify(&path).unwrap().is_ok());
    let bytes = |tree: Tree<Leaf>| -> Vec<Bytes> {
        tree.leaves().iter().map(|leaf| leaf.as_array().unwrap().to_c_order().unwrap()).collect()
    };
    let expected = bytes(tree);
    assert_eq!(bytes(regrow::load(&path).unwrap()), expected);
    std::fs::remove_file(path.join(manifest::FILE_NAME)).unwrap();
    assert_eq!(bytes(regrow::load(&path).unwrap()), expected, "through the database, as Orbax reads it");
    for entry in std::fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap().path();
        if entry.is_file() && !entry.to_string_lossy().contains("safetensors") {
            std::fs::remove_file(entry).unwrap();
        }
    }
    std::fs::remove_dir_all(path.join("d")).unwrap();
    assert_eq!(regrow::open(&path).unwrap().description().layout, "safetensors");
    assert_eq!(bytes(regrow::load(&path).unwrap()), expected, "through the safetensors files alone");
}
