//! Attacks on repair. A repair must not accept damage, take files of other programs, or write
//! outside of the checkpoint.

use std::fs;
use std::path::PathBuf;

use regrow::array::Dtype;
use regrow::engine::Layout;
use regrow::location::Location;
use regrow::{ErrorKind, LoadOptions, RepairOptions, SaveOptions, SealOptions};
use regrow_testkit::{copy_folder, fixtures, memory_folder};

use super::{array, assert_sound, layout, loaded, repair, repair_from, rich_tree, tree_with};
use crate::common::cuts::dict;
use crate::common::damage::{contents, files, options, put, small_tree};

/// A rebuilt `regrow.json` has the checksums of the files as they are: files that pass these are
/// not proved.
#[test]
fn checksums_of_damaged_files_prove_nothing() {
    let root = memory_folder().unwrap();
    let (path, copy) = (root.path().join("x"), root.path().join("copy"));
    let parity = Some("1/64".parse().unwrap());
    let large = tree_with(array(Dtype::Float32, &[600, 100], 0));
    regrow::save_with(&path, &large, &SaveOptions { parity, ..options(&Layout::default()) }).unwrap();
    copy_folder(&path, &copy).unwrap();
    let good = loaded(&path);
    let index = fs::read(path.join("regrow.parity.json")).unwrap();
    fs::remove_file(path.join("regrow.json")).unwrap();
    let (data, mut bytes) = files(&path)
        .into_iter()
        .filter(|(file, _)| file.extension().is_some_and(|it| it == "safetensors"))
        .max_by_key(|(_, bytes)| bytes.len())
        .unwrap();
    let len = bytes.len();
    for byte in &mut bytes[len / 2..len / 2 + 40_000] {
        *byte ^= 0x55;
    }
    put(&data, &bytes);
    let report = repair(&path);
    assert!(!report.is_sound() && report.recovered.iter().any(|file| file.is_guess), "{report}");
    assert!(
        report.lost.iter().any(|error| error.place().file.as_deref() == Some(&*data)),
        "{:?}",
        report.lost
    );
    assert_eq!(fs::read(path.join("regrow.parity.json")).unwrap(), index, "the proof stays");
    let report = repair_from(&path, &copy);
    assert!(report.is_sound(), "{report} {:?} {:?}", report.lost, report.findings);
    assert_eq!(loaded(&path), good);
}

#[test]
fn temporary_files_stay_until_the_checkpoint_is_whole() {
    let root = memory_folder().unwrap();
    let left = root.path().join("7.orbax-checkpoint-tmp-12");
    regrow::save_with(root.path().join("x"), &small_tree(), &options(&Layout::default())).unwrap();
    fs::rename(root.path().join("x"), &left).unwrap();
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
    for at in files(&left).into_keys().chain([left.clone()]) {
        fs::File::open(at).unwrap().set_modified(long_ago).unwrap();
    }
    let before = files(&left);
    let named = regrow::repair(&left, &RepairOptions::default()).unwrap_err();
    assert_eq!(named.kind(), ErrorKind::InvalidArgument, "{named}");
    // Its save may be all that there is.
    let missing = regrow::repair(root.path().join("7"), &RepairOptions::default()).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    assert!(files(&left) == before);
    fs::create_dir(root.path().join("7")).unwrap();
    fs::write(root.path().join("7/regrow.json"), "{").unwrap();
    let _ = regrow::repair(root.path().join("7"), &RepairOptions::default());
    assert!(files(&left) == before);
}

/// What Orbax and its like wrote and what opens, a repair leaves alone: no document is made that
/// was never there.
#[test]
fn sound_checkpoints_of_every_version_are_not_touched() {
    let root = memory_folder().unwrap();
    let mut count = 0;
    for entry in fs::read_dir(fixtures().join("orbax")).unwrap() {
        let name = entry.unwrap().file_name();
        let path = root.path().join(&name);
        let from = fixtures().join("orbax").join(&name).join("ckpt");
        if !from.is_dir() || name.to_string_lossy().starts_with("bad_") {
            continue;
        }
        copy_folder(&from, &path).unwrap();
        if !regrow::verify(&path).is_ok_and(|report| report.is_ok()) {
            continue;
        }
        let before = files(&path);
        let report = repair(&path);
        assert!(report.recovered.is_empty() && report.healed.is_empty(), "{name:?}: {report}");
        assert!(files(&path) == before, "{name:?}");
        count += 1;
    }
    assert!(count > 30, "{count}");
}

#[test]
fn files_of_another_checkpoint_are_not_taken_for_its_own() {
    let root = memory_folder().unwrap();
    let (path, other) = (root.path().join("x"), root.path().join("other"));
    regrow::save_with(&path, &rich_tree(), &options(&Layout::default())).unwrap();
    regrow::save_with(&other, &tree_with(array(Dtype::BFloat16, &[8, 4], 9)), &options(&Layout::default()))
        .unwrap();
    let is_tensors = |file: &PathBuf| file.extension().is_some_and(|it| it == "safetensors");
    let theirs = files(&other).into_keys().find(is_tensors).unwrap();
    fs::remove_file(path.join("regrow.json")).unwrap();
    for name in ["a_old.safetensors", "z_old.safetensors"] {
        fs::copy(&theirs, path.join(name)).unwrap();
        let report = repair(&path);
        assert!(!report.is_sound() && report.recovered.is_empty(), "{report}");
        assert!(!path.join("regrow.json").exists());
        fs::remove_file(path.join(name)).unwrap();
    }
    // Neither is the record of another step.
    let report = repair_from(&path, &other);
    assert!(!report.is_sound() && !path.join("regrow.json").exists(), "{report}");
    assert!(repair(&path).is_sound());
}

#[test]
fn a_replaced_document_is_kept_beside_the_guess() {
    let root = memory_folder().unwrap();
    let path = root.path().join("x");
    regrow::save_with(&path, &rich_tree(), &options(&Layout::default())).unwrap();
    let good = loaded(&path);
    let mut bytes = fs::read(path.join("regrow.json")).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    put(&path.join("regrow.json"), &bytes);
    let report = repair(&path);
    assert!(report.is_sound(), "{report} {:?}", report.findings);
    assert_eq!(fs::read(path.join("regrow.damaged.regrow.json")).unwrap(), bytes);
    assert_sound(&path, &good, "kept");
    // It belongs to no process: the checkpoint can be replaced.
    let replaced = SaveOptions { overwrite: true, ..options(&Layout::default()) };
    regrow::save_with(&path, &small_tree(), &replaced).unwrap();
    assert!(!path.join("regrow.damaged.regrow.json").exists());
}

#[test]
fn each_item_and_each_step_is_healed_from_its_own() {
    let root = memory_folder().unwrap();
    let (run, copy) = (root.path().join("run"), root.path().join("copy"));
    for step in ["1", "2"] {
        let items = ["params", "state"].map(|item| (item, rich_tree()));
        for (item, tree) in items {
            regrow::save_with(run.join(step).join(item), &tree, &options(&Layout::default())).unwrap();
        }
        let document = r#"{"item_handlers": {"params": null, "state": null}, "metrics": {}, "performance_metrics": {},
            "init_timestamp_nsecs": 1, "commit_timestamp_nsecs": 2, "custom_metadata": {}}"#;
        fs::write(run.join(step).join("_CHECKPOINT_METADATA"), document).unwrap();
    }
    copy_folder(&run, &copy).unwrap();
    let is_data = |(file, _): &(PathBuf, Vec<u8>)| file.extension().is_some_and(|it| it == "safetensors");
    for item in ["params", "state"] {
        let (file, mut bytes) = files(&run.join("2").join(item)).into_iter().find(is_data).unwrap();
        let at = bytes.len() - 100;
        bytes[at] ^= 1;
        put(&file, &bytes);
    }
    let report = repair_from(&run, &copy);
    assert!(
        report.is_sound() && report.healed.len() == 2,
        "{report} {:?} {:?}",
        report.lost,
        report.findings
    );
    assert!(regrow::verify(run.join("2")).unwrap().is_ok());
}

#[test]
fn under_a_seal_only_sealed_files_come_back() {
    let root = memory_folder().unwrap();
    let (path, copy) = (root.path().join("x"), root.path().join("copy"));
    regrow::save_with(&path, &rich_tree(), &options(&Layout::default())).unwrap();
    regrow::seal(&path, &SealOptions::default()).unwrap();
    let before = files(&path);
    for name in ["_METADATA", "commit_success.txt"] {
        fs::remove_file(path.join(name)).unwrap();
        let report = repair(&path);
        assert!(report.is_sound() && report.recovered.len() == 1, "{name}: {report} {:?}", report.findings);
        assert!(files(&path) == before, "{name}");
    }
    // A database has a number of its own each time it is made.
    let path = root.path().join("orbax");
    regrow::save_with(&path, &rich_tree(), &options(&layout("orbax", "{}"))).unwrap();
    regrow::seal(&path, &SealOptions::default()).unwrap();
    copy_folder(&path, &copy).unwrap();
    let before = files(&path);
    fs::remove_file(path.join("manifest.ocdbt")).unwrap();
    let report = repair(&path);
    assert!(!report.is_sound(), "{report}");
    let after = files(&path);
    assert!(after.iter().all(|(file, bytes)| before.get(file) == Some(bytes)), "nothing else is written");
    let report = repair_from(&path, &copy);
    assert!(report.is_sound() && files(&path) == before, "{report} {:?}", report.findings);
}

#[test]
fn side_files_of_another_file_are_ignored() {
    let root = memory_folder().unwrap();
    let at = |name: &str| root.path().join(name);
    let safetensors = layout("safetensors", "{}");
    let parity = Some("1/4".parse().unwrap());
    let tree = dict([("a".to_owned(), array(Dtype::Float32, &[300, 7], 0).as_array().unwrap().clone())]);
    regrow::save_with(
        at("a.safetensors"),
        &tree,
        &SaveOptions { parity, seal: true, ..options(&safetensors) },
    )
    .unwrap();
    let before = files(root.path());
    for of in ["{}", "regrow.parity.{}.json", "regrow.parity.{}.blocks"] {
        fs::copy(at(&of.replace("{}", "a.safetensors")), at(&of.replace("{}", "c.safetensors"))).unwrap();
    }
    let error = regrow::repair(at("c.safetensors"), &RepairOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let seal = |name: &str| at(&format!("regrow.seal.{name}.json"));
    fs::copy(seal("a.safetensors"), seal("c.safetensors")).unwrap();
    assert_eq!(
        regrow::engine::load_with(at("c.safetensors"), &LoadOptions::default())
            .map(|_| ())
            .unwrap_err()
            .kind(),
        ErrorKind::Corrupt
    );
    assert!(files(root.path()).iter().all(|(file, bytes)| before.get(file).is_none_or(|it| it == bytes)));
}

#[test]
fn parity_does_not_follow_links_out_of_the_folder() {
    let root = memory_folder().unwrap();
    let path = root.path().join("x");
    regrow::save_with(&path, &small_tree(), &options(&Layout::default())).unwrap();
    fs::create_dir(root.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink("../elsewhere", path.join("link")).unwrap();
    let error = regrow::add_parity(&path, &regrow::ParityOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let missing = RepairOptions {
        from: Some(Location::local(root.path().join("nowhere"))),
        ..RepairOptions::default()
    };
    assert_eq!(regrow::repair(&path, &missing).unwrap_err().kind(), ErrorKind::NotFound);
}

/// Another process saves to the path when all damage has been found, and before any of it is
/// repaired.
#[test]
fn overwrite_beside_a_repair_is_busy() {
    let root = memory_folder().unwrap();
    let large = |step| tree_with(array(Dtype::Float32, &[600, 100], step));
    for (name, layout, by_parity) in
        [("a", Layout::default(), true), ("b", layout("npy", "{}"), true), ("c", Layout::default(), false)]
    {
        let (path, copy) = (root.path().join(name), root.path().join(format!("{name}.copy")));
        let parity = by_parity.then(|| "1/4".parse().unwrap());
        regrow::save_with(&path, &large(0), &SaveOptions { parity, ..options(&layout) }).unwrap();
        copy_folder(&path, &copy).unwrap();
        let (file, mut bytes) = files(&path)
            .into_iter()
            .filter(|(file, _)| !file.to_string_lossy().contains("regrow.parity"))
            .max_by_key(|(_, bytes)| bytes.len())
            .unwrap();
        let at = bytes.len() - 50;
        bytes[at] ^= 1;
        put(&file, &bytes);
        let replace = {
            let (path, layout, tree) = (path.clone(), layout.clone(), std::sync::Mutex::new(Some(large(9))));
            move |progress: regrow::monitor::Progress| {
                // It is called 20 times a second at most.
                std::thread::sleep(std::time::Duration::from_millis(51));
                let is_read = progress.done_bytes > 0 && progress.done_bytes >= progress.total_bytes;
                if is_read && let Some(tree) = tree.lock().unwrap().take() {
                    let wait = Some(std::time::Duration::ZERO);
                    let how = SaveOptions { overwrite: true, wait, ..options(&layout) };
                    let error = regrow::save_with(&path, &tree, &how).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                    assert!(error.to_string().contains("repair"), "{error}");
                }
                Ok(())
            }
        };
        let repair = RepairOptions {
            from: (!by_parity).then(|| Location::local(&copy)),
            monitor: regrow::Monitor::with_hook(replace),
            ..RepairOptions::default()
        };
        assert!(regrow::repair(&path, &repair).unwrap().is_sound(), "{name}");
        assert_eq!(loaded(&path), contents(&large(0)), "{name}");
        regrow::save_with(&path, &large(9), &SaveOptions { overwrite: true, ..options(&layout) }).unwrap();
        assert_eq!(loaded(&path), contents(&large(9)), "{name}");
    }
}
