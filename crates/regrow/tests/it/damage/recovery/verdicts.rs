//! A repair reports a checkpoint as whole only if a proof covers every file.

use std::fs;
use std::path::{Path, PathBuf};

use regrow::engine::Layout;
use regrow::tree::{Leaf, LeafData, Tree};
use regrow::{LoadOptions, ParityOptions, ProofBy, RepairReport, SealOptions, Verdict};
use regrow_testkit::{copy_folder, memory_folder};

use super::{layout, loaded, repair, repair_from, rich_tree};
use crate::common::damage::{checkpoints, contents, files, options, put, small_tree};

/// What vouches for a checkpoint, if anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protection {
    None,
    Seal,
    Parity,
}

/// What is done to a file.
fn damages(bytes: &[u8], other: &[u8]) -> Vec<(&'static str, Option<Vec<u8>>)> {
    let flipped = |at: usize, bit: u8| {
        let mut bytes = bytes.to_vec();
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= bit;
        }
        Some(bytes)
    };
    vec![
        ("all zeros", flipped(0, 1)),
        ("middle", flipped(bytes.len() / 2, 4)),
        ("near the end", flipped(bytes.len().saturating_sub(9), 16)),
        ("lost", None),
        ("swapped", Some(other.to_vec())),
        ("sound", Some(bytes.to_vec())),
    ]
}

#[test]
fn a_checkpoint_that_a_repair_calls_whole_loads_as_the_original() {
    let root = memory_folder().unwrap();
    // All of them take minutes: a seventh, unless it is asked for.
    let is_long = std::env::var_os("REGROW_LONG").is_some();
    let (mut whole, mut not_known, mut damaged, mut turn) = (0, 0, 0, 0);
    for (name, path) in checkpoints(root.path()) {
        let Ok(good) = regrow::engine::load(&path).map(|tree| contents(&tree)) else { continue };
        let folder = path.parent().unwrap();
        let plain = files(folder);
        for protection in [Protection::None, Protection::Seal, Protection::Parity] {
            match protection {
                Protection::None => {}
                Protection::Seal => drop(regrow::seal(&path, &SealOptions::default()).unwrap()),
                Protection::Parity => {
                    let ratio = "1/4".parse().unwrap();
                    drop(regrow::add_parity(&path, &ParityOptions { ratio, ..ParityOptions::default() }));
                }
            }
            let before = files(folder);
            let [same, differs] = ["same", "differs"].map(|name| {
                let copy = root.path().join(name);
                copy_folder(folder, &copy).unwrap();
                copy.join(path.file_name().unwrap())
            });
            let largest = plain.iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
            let theirs = root.path().join("differs").join(largest.0.strip_prefix(folder).unwrap());
            let mut bytes = largest.1.clone();
            let at = bytes.len() * 3 / 4;
            bytes[at] ^= 1;
            put(&theirs, &bytes);
            for file in plain.keys() {
                for (what, bytes) in damages(&plain[file], largest.1) {
                    match &bytes {
                        Some(bytes) => put(file, bytes),
                        None => fs::remove_file(file).unwrap(),
                    }
                    turn += 1;
                    if !is_long && turn % 7 != 0 {
                        put_back(folder, &before);
                        continue;
                    }
                    let from = [None, Some(&differs), Some(&same)][turn % 3];
                    let options = regrow::RepairOptions {
                        from: from.map(regrow::location::Location::local),
                        ..regrow::RepairOptions::default()
                    };
                    let say = format!("{name} {protection:?} {} {what}, from {from:?}", file.display());
                    if let Ok(report) = regrow::repair(&path, &options) {
                        match report.verdict {
                            Verdict::Whole(_) => {
                                let now = regrow::engine::load(&path).map(|tree| contents(&tree));
                                assert!(now.is_ok_and(|now| now == good), "{say}: {report}");
                                whole += 1;
                            }
                            Verdict::NotKnown => not_known += 1,
                            Verdict::Damaged => damaged += 1,
                        }
                    }
                    put_back(folder, &before);
                }
            }
            put_back(folder, &plain);
            for copy in ["same", "differs"] {
                fs::remove_dir_all(root.path().join(copy)).unwrap();
            }
        }
    }
    assert!(whole > 30 && not_known > 10 && damaged > 10, "{whole} {not_known} {damaged}");
}

fn put_back(folder: &Path, before: &std::collections::BTreeMap<PathBuf, Vec<u8>>) {
    let now = files(folder);
    for file in now.keys().filter(|file| !before.contains_key(*file)) {
        fs::remove_file(file).unwrap();
    }
    for (file, bytes) in before.iter().filter(|(file, bytes)| now.get(*file) != Some(bytes)) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, bytes).unwrap();
    }
}

#[test]
fn an_unchecked_file_is_whole_only_if_the_copy_is_the_same() {
    let root = memory_folder().unwrap();
    let (path, copy) = (root.path().join("x.msgpack"), root.path().join("y.msgpack"));
    regrow::save_with(&path, &small_tree(), &options(&layout("flax", "{}"))).unwrap();
    fs::copy(&path, &copy).unwrap();
    assert_eq!(repair(&path).verdict, Verdict::NotKnown, "nothing vouches for it");
    assert_eq!(repair_from(&path, &copy).verdict, Verdict::Whole(ProofBy::Replica));
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.len() - 5;
    bytes[at] ^= 1;
    put(&path, &bytes);
    let report = repair_from(&path, &copy);
    assert!(report.is_sound() && report.verdict == Verdict::NotKnown, "{report}");
    assert!(report.to_string().contains("nothing proves every file"), "{report}");
    // The layout regrow has checksums of all that it writes.
    let own = root.path().join("own");
    regrow::save_with(&own, &small_tree(), &options(&Layout::default())).unwrap();
    assert_eq!(repair(&own).verdict, Verdict::Whole(ProofBy::Checksums));
    fs::write(own.join("notes.txt"), "nothing vouches for this").unwrap();
    assert_eq!(repair(&own).verdict, Verdict::NotKnown);
}

#[test]
fn a_guessed_tree_has_the_texts_and_is_not_called_whole() {
    let root = memory_folder().unwrap();
    for own in ["null", r#"{"ocdbt": false}"#] {
        let folder = tempfile::tempdir_in(root.path()).unwrap();
        let path = folder.path().join("x");
        regrow::save_with(&path, &rich_tree(), &options(&layout("orbax", own))).unwrap();
        fs::remove_file(path.join("_METADATA")).unwrap();
        let report = repair(&path);
        assert!(report.is_sound() && report.recovered[0].is_guess, "{own}: {report}");
        assert_eq!(report.verdict, Verdict::NotKnown, "{own}");
        let tree: Tree<Leaf> = regrow::load(&path).unwrap();
        let has_text = tree.leaves().iter().any(|leaf| format!("{:?}", leaf.data).contains("regrown"));
        assert!(has_text, "{own}: {:?}", tree.leaves());
    }
}

#[test]
fn a_copy_heals_a_record_and_a_database_that_are_both_damaged() {
    let root = memory_folder().unwrap();
    let (path, copy) = (root.path().join("x"), root.path().join("y"));
    regrow::save_with(&path, &small_tree(), &options(&Layout::default())).unwrap();
    copy_folder(&path, &copy).unwrap();
    let (good, before) = (loaded(&path), files(&path));
    let [record, database] = ["regrow.json", "manifest.ocdbt"].map(|name| path.join(name));
    let step = if std::env::var_os("REGROW_LONG").is_some() { 1 } else { 29 };
    let bits = 8 * before[&database].len();
    for bit in (0..bits).step_by(step) {
        for (file, bit) in
            [(&database, bit), (&record, bit * before[&record].len() / before[&database].len())]
        {
            let mut bytes = before[file].clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            put(file, &bytes);
        }
        let report = repair_from(&path, &copy);
        assert!(
            matches!(report.verdict, Verdict::Whole(_)),
            "{bit}: {report} {:?} {:?}",
            report.lost,
            report.findings
        );
        assert_eq!(loaded(&path), good, "{bit}");
        assert!(files(&path) == before, "{bit}: {report}");
    }
    // The copy of another save has other arrays, and says nothing of these.
    let other = root.path().join("z");
    regrow::save_with(&other, &rich_tree(), &options(&Layout::default())).unwrap();
    put(&record, b"{");
    put(&database, b"{");
    let report: RepairReport = repair_from(&path, &other);
    assert_eq!(report.verdict, Verdict::Damaged, "{report}");
}

#[test]
fn tensors_with_gaps_between_them_are_salvaged() {
    let root = memory_folder().unwrap();
    let path = root.path().join("x.safetensors");
    let header = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&[1, 2, 3, 4, 0, 0, 0, 0, 5, 6, 7, 9, 9]);
    fs::write(&path, &bytes).unwrap();
    assert!(regrow::open(&path).is_err(), "safetensors refuses it");
    let salvaged = regrow::salvage(&path, &LoadOptions::default()).unwrap();
    let arrays: Vec<Vec<u8>> = salvaged
        .tree
        .leaves()
        .iter()
        .map(|leaf| match &leaf.data {
            LeafData::Array(array) => array.to_c_order().unwrap().to_vec(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(arrays, [vec![1, 2, 3, 4], vec![5, 6, 7]]);
    // Tensors that share bytes are damage: which of the two they are of, nothing says.
    let header = header.replace("[8,11]", "[2,05]").replace("05", "5");
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&[1, 2, 3, 4, 5]);
    fs::write(&path, &bytes).unwrap();
    assert!(regrow::salvage(&path, &LoadOptions::default()).is_err());
}
