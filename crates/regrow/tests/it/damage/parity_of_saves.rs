//! A save computes parity from the arrays in memory. It is the parity that `add_parity` computes
//! from the files.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use crate::common::damage::{contents, files, options, small_tree};
use crate::common::{dict, layouts, tree};
use regrow::array::{Array, Dtype, Shape};
use regrow::monitor::Monitor;
use regrow::tree::{Leaf, Tree};
use regrow::{LoadOptions, ParityOptions, RepairOptions, RepairReport, SaveOptions};
use regrow_store::{LocalStore, Store};

const INDEX: &str = "regrow.parity.json";
const BLOCKS: &str = "regrow.parity.blocks";

fn array(dtype: Dtype, dims: &[u64], bytes: Bytes) -> Leaf {
    Leaf::array(Array::new(dtype, Shape::new(dims).unwrap(), bytes).unwrap())
}

fn bytes(len: u64, factor: u64) -> Bytes {
    (0..len).map(|at| (((at * factor) >> 7) ^ at) as u8).collect::<Vec<_>>().into()
}

/// Arrays whose ends lie within blocks, of several stripes.
fn odd_tree() -> Tree<Leaf> {
    let one = |name: &'static str, len: u64| (name, array(Dtype::UInt8, &[len], bytes(len, 31 + len)));
    dict([one("a", 5_000_003), one("b", 1), one("c", 70_001), one("e", 14_000_009)])
}

/// A file that is only partly in memory as it is stored.
fn transposed_tree() -> Tree<Leaf> {
    let shape = Shape::new([300, 400]).unwrap();
    let turned = Array::with_strides(Dtype::Float32, shape, vec![4, 1200], 0, bytes(480_000, 3)).unwrap();
    dict([("a", array(Dtype::UInt8, &[200_001], bytes(200_001, 5))), ("t", Leaf::array(turned))])
}

/// The index without its time, and the parity blocks.
fn parity_in(folder: &Path) -> (serde_json::Value, Vec<u8>) {
    let index = fs::read(folder.join(INDEX)).unwrap();
    let mut blocks = fs::read(folder.join(BLOCKS)).unwrap();
    // The file of blocks ends with the index, its length, and eight more bytes.
    blocks.truncate(blocks.len() - 16 - index.len());
    let mut index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    for key in ["crc32c", "created_unix_ns"] {
        index.as_object_mut().unwrap().remove(key).unwrap();
    }
    (index, blocks)
}

fn repair(path: &Path) -> RepairReport {
    regrow::repair(path, &RepairOptions::default()).unwrap()
}

/// Calls `act` with the temporary folder of a save, once: after the write, before the side files.
fn before_side_files(root: &Path, act: impl Fn(&Path) + Send + Sync + 'static) -> Monitor {
    let (root, is_done) = (root.to_owned(), AtomicBool::new(false));
    Monitor::with_hook(move |_| {
        // `regrow.json` is the last file of the layout.
        let is_last = |path: &PathBuf| path.ends_with("regrow.json");
        let last = files(&root).into_keys().find(is_last);
        if let Some(last) = last.filter(|_| !is_done.swap(true, Ordering::SeqCst)) {
            act(last.parent().unwrap());
        }
        Ok(())
    })
}

fn largest(folder: &Path) -> PathBuf {
    files(folder).into_iter().max_by_key(|(_, bytes)| bytes.len()).unwrap().0
}

#[test]
fn a_save_writes_the_parity_that_add_parity_writes() {
    let root = tempfile::tempdir().unwrap();
    let trees = [tree(3), small_tree(), odd_tree(), transposed_tree()];
    for (at, (layout, suffix)) in layouts().into_iter().enumerate().filter(|(_, (_, s))| s.is_empty()) {
        for (number, tree) in trees.iter().enumerate() {
            let path = root.path().join(format!("x{at}-{number}{suffix}"));
            let ratio = "1/16".parse().unwrap();
            let save = SaveOptions { parity: Some(ratio), ..options(&layout) };
            regrow::save_with(&path, tree, &save).unwrap();
            if !path.is_dir() {
                continue;
            }
            let of_save = parity_in(&path);
            regrow::add_parity(&path, &ParityOptions { ratio, ..ParityOptions::default() }).unwrap();
            assert!(of_save == parity_in(&path), "{} {number}", layout.name());
        }
    }
}

#[test]
fn bytes_that_the_disk_lost_during_the_save_come_back() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("step");
    let monitor = before_side_files(root.path(), |folder| {
        let file = largest(folder);
        let mut bytes = fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&file, bytes).unwrap();
    });
    let save = SaveOptions { parity: Some("1/16".parse().unwrap()), monitor, ..SaveOptions::default() };
    regrow::save_with(&path, &odd_tree(), &save).unwrap();
    let report = repair(&path);
    assert!(report.is_sound() && report.healed.len() == 1, "{report}");
    let loaded = regrow::engine::load_with(&path, &LoadOptions::default()).unwrap();
    assert!(contents(&loaded) == contents(&odd_tree()));
}

#[test]
fn parity_fits_the_files_if_an_array_changes_during_the_save() {
    let root = tempfile::tempdir().unwrap();
    let (source, path) = (root.path().join("source"), root.path().join("runs/step"));
    let good = bytes(3_000_000, 7);
    fs::write(&source, &good).unwrap();
    let map = LocalStore::new(root.path()).open(b"source").unwrap().unwrap().map().unwrap().unwrap();
    let of_array = |bytes: Bytes| dict([("w", array(Dtype::UInt8, &[3_000_000], bytes))]);
    let monitor = before_side_files(&root.path().join("runs"), move |_| {
        let mut file = fs::OpenOptions::new().write(true).open(&source).unwrap();
        file.seek(SeekFrom::Start(1_000_000)).unwrap();
        file.write_all(&[0xa5; 100_000]).unwrap();
    });
    fs::create_dir(root.path().join("runs")).unwrap();
    let save = SaveOptions { parity: Some("1/16".parse().unwrap()), monitor, ..SaveOptions::default() };
    regrow::save_with(&path, &of_array(map.clone()), &save).unwrap();
    assert!(map != good, "the array has changed");
    let report = repair(&path);
    assert!(report.is_sound() && report.healed.is_empty(), "{report}");
    let loaded = regrow::engine::load_with(&path, &LoadOptions::default()).unwrap();
    assert!(contents(&loaded) == contents(&of_array(good)));
}
