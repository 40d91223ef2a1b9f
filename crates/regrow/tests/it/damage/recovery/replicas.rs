//! Seals and signatures that come back from a replica, and repairs of steps that cannot be opened.

use std::fs;
use std::path::{Path, PathBuf};

use regrow::engine::Layout;
use regrow::{PrivateKey, RepairOptions, SaveOptions, SealOptions, SignOptions};
use regrow_testkit::{copy_folder, fixtures, memory_folder};

use super::{layout, loaded, repair, repair_from, rich_tree};
use crate::common::damage::{checkpoints, files, options, put, small_tree};

/// The only file of a folder whose name has this in it.
fn only(folder: &Path, part: &str) -> PathBuf {
    let mut found =
        files(folder).into_keys().filter(|file| file.file_name().unwrap().to_string_lossy().contains(part));
    let only = found.next().unwrap();
    assert!(found.next().is_none(), "{part}");
    only
}

#[test]
fn a_damaged_seal_or_signature_comes_from_a_replica() {
    let root = memory_folder().unwrap();
    let key = PrivateKey::read(fixtures().join("keys/alice.pem")).unwrap();
    let mut count = 0;
    for (name, path) in checkpoints(root.path()) {
        if regrow::engine::load(&path).is_err() {
            continue;
        }
        regrow::seal(&path, &SealOptions::default()).unwrap();
        regrow::sign(&path, &key, &SignOptions::default()).unwrap();
        let folder = path.parent().unwrap();
        let copy = root.path().join("copy");
        copy_folder(folder, &copy).unwrap();
        // Under another name, where the checkpoint is one file.
        let theirs = copy.join(path.file_name().unwrap());
        let before = files(folder);
        for side in ["regrow.seal", "regrow.signature"] {
            // The default layout has no seal: it needs none.
            if !before.keys().any(|file| file.to_string_lossy().contains(side)) {
                continue;
            }
            let file = only(folder, side);
            for at in [0, before[&file].len() / 2, before[&file].len() - 1] {
                let mut bytes = before[&file].clone();
                bytes[at] ^= 4;
                put(&file, &bytes);
                let check = RepairOptions {
                    from: Some(regrow::location::Location::local(&theirs)),
                    check: true,
                    ..RepairOptions::default()
                };
                let report = regrow::repair(&path, &check).unwrap();
                assert!(report.recovered.len() == 1 && fs::read(&file).unwrap() == bytes, "{name}: {report}");
                let report = repair_from(&path, &theirs);
                assert!(
                    report.is_sound(),
                    "{name} {side} {at}: {report} {:?} {:?}",
                    report.lost,
                    report.findings
                );
                assert!(files(folder) == before, "{name} {side} {at}: {report}");
                count += 1;
            }
            // One that is gone was perhaps never there.
            fs::remove_file(&file).unwrap();
            assert!(repair_from(&path, &theirs).recovered.is_empty(), "{name} {side}");
            fs::write(&file, &before[&file]).unwrap();
        }
        fs::remove_dir_all(&copy).unwrap();
    }
    assert!(count > 60, "{count}");
}

/// The seal of something else says nothing of what is here.
#[test]
fn the_seal_of_other_files_is_not_taken() {
    let root = memory_folder().unwrap();
    let (path, other) = (root.path().join("x"), root.path().join("y"));
    let sealed = SaveOptions { seal: true, ..options(&layout("npy", "{}")) };
    regrow::save_with(&path, &rich_tree(), &sealed).unwrap();
    regrow::save_with(&other, &super::tree_with(super::array(regrow::array::Dtype::Int8, &[9], 1)), &sealed)
        .unwrap();
    let file = path.join("regrow.seal.json");
    let mut bytes = fs::read(&file).unwrap();
    bytes[20] ^= 1;
    put(&file, &bytes);
    let before = files(&path);
    let report = repair_from(&path, &other);
    assert!(!report.is_sound() && report.recovered.is_empty(), "{report}");
    assert!(report.lost.iter().any(|error| error.to_string().contains("seal")), "{:?}", report.lost);
    assert!(files(&path) == before);
}

#[test]
fn a_newest_step_that_does_not_open_is_repaired() {
    let root = memory_folder().unwrap();
    for (name, layout) in [("a", Layout::default()), ("b", layout("orbax", "{}"))] {
        let run = root.path().join(name);
        let parity = Some("1/2".parse().unwrap());
        for step in ["10", "20"] {
            let options = SaveOptions { parity, ..options(&layout) };
            regrow::save_with(run.join(step), &small_tree(), &options).unwrap();
        }
        let good = loaded(&run);
        let before = files(&run);
        for (lost, step) in [("20", None), ("20", Some(20)), ("10", Some(10))] {
            for file in ["_METADATA", "regrow.json", "manifest.ocdbt"] {
                let at = run.join(lost).join(file);
                if at.exists() {
                    put(&at, b"{");
                }
            }
            let report = match step {
                None => repair(&run),
                Some(_) => regrow::repair(&run, &RepairOptions { step, ..RepairOptions::default() }).unwrap(),
            };
            assert!(report.is_sound(), "{name} {lost}: {report} {:?} {:?}", report.lost, report.findings);
            assert!(!report.healed.is_empty(), "{name} {lost}: {report}");
            assert!(files(&run) == before && loaded(&run) == good, "{name} {lost}");
        }
    }
}
