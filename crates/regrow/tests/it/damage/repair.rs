//! Parity and repair, in every layout and in every storage. Damage within the parity comes back to
//! the last byte. A repair makes damage beyond the parity no worse.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::child::child;
use crate::common::damage::{checkpoints, contents, files, options, put, small_tree};
use crate::common::{bytes_of, layouts, tree};
use regrow::engine::Layout;
use regrow::location::{Location, ToLocation};
use regrow::{
    ErrorKind, LoadOptions, ParityOptions, ParityRatio, RepairOptions, RepairReport, SaveOptions, SealOptions,
};
use regrow_store::{ByteRange, StoreExt};
use regrow_testkit::{copy_folder, memory_folder};

fn ratio(text: &str) -> ParityRatio {
    text.parse().unwrap()
}

fn protect(path: impl ToLocation, by: &str) -> regrow::ParityReport {
    regrow::add_parity(path, &ParityOptions { ratio: ratio(by), ..ParityOptions::default() }).unwrap()
}

fn repair(path: impl ToLocation) -> RepairReport {
    regrow::repair(path, &RepairOptions::default()).unwrap()
}

fn is_parity(path: &Path) -> bool {
    path.file_name().unwrap().to_string_lossy().starts_with("regrow.parity.")
}

/// Files without the parity's.
fn data(all: &BTreeMap<PathBuf, Vec<u8>>) -> BTreeMap<PathBuf, Vec<u8>> {
    all.iter()
        .filter(|(path, _)| !is_parity(path))
        .map(|(path, bytes)| (path.clone(), bytes.clone()))
        .collect()
}

/// Returns an error unless the content of a folder is unchanged; parity may have been made again.
fn assert_whole(folder: &Path, before: &BTreeMap<PathBuf, Vec<u8>>, what: &str) {
    let after = data(&files(folder));
    let before = data(before);
    assert!(after.keys().eq(before.keys()), "{what}: {:?} are not {:?}", after.keys(), before.keys());
    for (path, bytes) in &before {
        assert!(after.get(path) == Some(bytes), "{what}: {} has other bytes", path.display());
    }
}

/// Numbers that look random, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end.max(1)
    }
}

#[test]
fn every_file_of_every_layout_can_be_lost_and_comes_back() {
    let root = memory_folder().unwrap();
    for (name, path) in checkpoints(root.path()) {
        let folder = path.parent().unwrap();
        let report = protect(&path, "1/1");
        assert!(report.has_changed && report.file_count > 0, "{name}: {report}");
        let before = files(folder);
        let lost: Vec<&PathBuf> = before.keys().filter(|path| !is_parity(path)).collect();
        for file in &lost {
            fs::remove_file(file).unwrap();
            let report = repair(&path);
            assert!(report.is_sound() && report.healed.len() == 1, "{name} {}: {report}", file.display());
            assert_whole(folder, &before, &name);
        }
        lost.iter().for_each(|file| fs::remove_file(file).unwrap());
        assert!(repair(&path).is_sound(), "{name}");
        assert_whole(folder, &before, &name);
        assert!(files(folder) == before, "{name}: the parity was not what is damaged");
    }
}

#[test]
fn damage_of_every_kind_within_the_parity_is_healed() {
    let root = memory_folder().unwrap();
    let mut numbers = Numbers(1);
    for (name, path) in checkpoints(root.path()) {
        let folder = path.parent().unwrap();
        protect(&path, "1/8");
        let before = files(folder);
        let all = data(&before);
        let total: usize = all.values().map(Vec::len).sum();
        let mut but_for_the_index = before.clone();
        but_for_the_index.retain(|path, _| !is_parity(path) || path.extension().unwrap() == "blocks");
        for kind in 0..7 {
            // Two of them damage less than an eighth.
            for _ in 0..2 {
                // One copy of the index is left.
                let from = if kind == 0 { &but_for_the_index } else { &all };
                let (file, good) = from.iter().nth(numbers.below(from.len() as u64) as usize).unwrap();
                let mut bytes = good.clone();
                let start = numbers.below(bytes.len() as u64) as usize;
                let end = (start + total / 40).min(bytes.len());
                match kind {
                    0 => bytes.iter_mut().skip(start).take(1).for_each(|byte| *byte ^= 1),
                    1 => bytes[start..end].fill(0),
                    2 => bytes[start..end].iter_mut().for_each(|byte| *byte = !*byte),
                    3 => bytes.truncate(bytes.len() - (total / 40).min(bytes.len() / 2)),
                    4 => bytes.extend_from_slice(b"more"),
                    5 => bytes.truncate(bytes.len().saturating_sub(1)),
                    // As many zeros as an unfinished write leaves.
                    _ => bytes[end.saturating_sub(total / 40).max(start)..end].fill(0),
                }
                put(file, &bytes);
            }
            let report = repair(&path);
            assert!(
                report.is_sound(),
                "{name}, damage {kind}: {report} {:?} {:?}",
                report.lost,
                report.findings
            );
            assert_whole(folder, &before, &name);
            let again = repair(&path);
            assert!(again.healed.is_empty() && !again.is_parity_damaged, "{name}, damage {kind}: {again}");
        }
        // The parity is made again from complete files, with any damage to it.
        let blocks = before.keys().find(|path| path.extension().is_some_and(|end| end == "blocks")).unwrap();
        put(blocks, &vec![7; before[blocks].len()]);
        let report = repair(&path);
        assert!(
            report.is_sound() && report.is_parity_damaged && report.healed.is_empty(),
            "{name}: {report}"
        );
        assert!(!repair(&path).is_parity_damaged, "{name}");
    }
}

#[test]
fn damage_beyond_the_parity_is_reported_and_made_no_worse() {
    let root = memory_folder().unwrap();
    for (name, path) in checkpoints(root.path()) {
        let folder = path.parent().unwrap();
        protect(&path, "1/64");
        let before = files(folder);
        let (largest, good) =
            before.iter().filter(|(path, _)| !is_parity(path)).max_by_key(|(_, bytes)| bytes.len()).unwrap();
        let mut bytes = good.clone();
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
        put(largest, &bytes);
        let damaged = files(folder);
        let report = repair(&path);
        assert!(!report.is_sound() && !report.lost.is_empty(), "{name}: {report}");
        for lost in &report.lost {
            assert!(lost.place().file.is_some() && lost.help_text().is_some(), "{name}: {lost}");
        }
        let is_made_again = |path: &Path| report.recovered.iter().any(|file| file.path == path);
        for (path, bytes) in files(folder).into_iter().filter(|(path, _)| !is_made_again(path)) {
            let (was, is) = (&before[&path], &damaged[&path]);
            let is_no_worse =
                bytes.iter().zip(is).zip(was).all(|((now, then), good)| now == then || now == good);
            assert!(bytes.len() == is.len() && is_no_worse, "{name}: {}", path.display());
        }
        fs::remove_file(largest).unwrap();
        let report = repair(&path);
        // What others say, too, is made of these.
        let is_made_again = report.recovered.iter().any(|file| file.path == *largest);
        let is_right = !report.lost.is_empty() && largest.exists() == is_made_again;
        assert!(is_right, "{name}: a file with holes was made: {report}");
    }
}

#[test]
fn a_replica_mends_damage_beyond_the_parity() {
    let root = memory_folder().unwrap();
    for (name, path) in checkpoints(root.path()) {
        let folder = path.parent().unwrap();
        protect(&path, "1/4");
        let before = files(folder);
        let beside = root.path().join("replica").join(folder.file_name().unwrap());
        copy_folder(folder, &beside).unwrap();
        let from = beside.join(path.file_name().unwrap());
        // Each of the two has lost the half that the other has; the block in the middle is the
        // parity's to heal.
        let all = data(&before);
        let half = all.values().map(Vec::len).sum::<usize>() / 2;
        let mut start = 0;
        for (file, good) in all {
            let (mut here, mut there) = (good.clone(), good.clone());
            let middle = half.saturating_sub(start).min(good.len());
            start += good.len();
            here[..middle].iter_mut().for_each(|byte| *byte = !*byte);
            there[middle..].iter_mut().for_each(|byte| *byte = !*byte);
            put(&file, &here);
            put(&beside.join(file.strip_prefix(folder).unwrap()), &there);
        }
        let alone =
            regrow::repair(&path, &RepairOptions { check: true, ..RepairOptions::default() }).unwrap();
        assert!(!alone.lost.is_empty(), "{name}: {alone}");
        let from = RepairOptions { from: Some(Location::local(&from)), ..RepairOptions::default() };
        let report = regrow::repair(&path, &from).unwrap();
        assert!(report.is_sound(), "{name}: {report} {:?} {:?}", report.lost, report.findings);
        assert_whole(folder, &before, &name);
    }
}

#[test]
fn the_index_can_be_lost_in_one_of_its_copies() {
    let root = memory_folder().unwrap();
    for (name, path) in checkpoints(root.path()) {
        let folder = path.parent().unwrap();
        protect(&path, "1/8");
        let before = files(folder);
        let index =
            before.keys().find(|path| is_parity(path) && path.extension().unwrap() == "json").unwrap();
        let blocks =
            before.keys().find(|path| is_parity(path) && path.extension().unwrap() == "blocks").unwrap();
        let damages: [&dyn Fn(); 5] = [
            &|| fs::remove_file(index).unwrap(),
            &|| put(index, b"{\"crc32c\":"),
            &|| put(blocks, &before[blocks][..before[blocks].len() - 1]),
            &|| put(blocks, b""),
            &|| fs::remove_file(blocks).unwrap(),
        ];
        for (at, damage) in damages.iter().enumerate() {
            damage();
            let report = repair(&path);
            assert!(report.is_sound() && report.is_parity_damaged, "{name}, {at}: {report}");
            let again = repair(&path);
            assert!(!again.is_parity_damaged && again.healed.is_empty(), "{name}, {at}: {again}");
            assert_whole(folder, &before, &name);
        }
        put(index, b"");
        put(blocks, b"");
        let error = regrow::repair(&path, &RepairOptions::default()).unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.help_text().is_some(), "{name}: {error}");
    }
}

#[test]
fn a_dry_run_writes_no_file() {
    let root = memory_folder().unwrap();
    for (name, path) in checkpoints(root.path()) {
        let folder = path.parent().unwrap();
        protect(&path, "1/8");
        let good = files(folder);
        let file = good.keys().find(|path| !is_parity(path) && !good[*path].is_empty()).unwrap();
        let mut bytes = good[file].clone();
        bytes[0] ^= 255;
        put(file, &bytes);
        let before = files(folder);
        let check =
            || regrow::repair(&path, &RepairOptions { check: true, ..RepairOptions::default() }).unwrap();
        let report = check();
        assert!(report.healed.len() == 1 && report.healed[0].bytes == 1, "{name}: {report}");
        assert!(report.healed[0].path.ends_with(file.file_name().unwrap()), "{name}: {report:?}");
        assert!(files(folder) == before, "{name}");
        repair(&path);
        assert!(check().healed.is_empty() && files(folder) == good, "{name}");
    }
}

#[test]
fn a_save_writes_its_parity_in_every_storage() {
    let folder = tempfile::tempdir().unwrap();
    let mut roots = vec![Location::local(folder.path()), "memory://parity/runs".to_location().unwrap()];
    roots.extend(crate::common::buckets::buckets("parity"));
    for root in roots {
        for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
            let path = root.join(format!("x{at}{suffix}"));
            let say = |what: &dyn std::fmt::Display| format!("{} at {path}: {what}", layout.name());
            let tree = tree(at as u8);
            let save = SaveOptions { parity: Some(ratio("1/1")), seal: true, ..options(&layout) };
            regrow::save_with(&path, &tree, &save).unwrap_or_else(|error| panic!("{}", say(&error)));
            let load = || regrow::engine::load_with(&path, &LoadOptions::default());
            assert!(bytes_of(&load().unwrap()) == bytes_of(&tree), "{}", say(&"other bytes"));
            let report = repair(&path);
            assert!(report.is_sound() && report.healed.is_empty(), "{}", say(&report));

            // The largest file is lost.
            let (store, name) = match path.is_folder() {
                true => (path.store(), {
                    let keys = path.store().list(b"").unwrap();
                    let names = keys.into_iter().filter(|key| !key.starts_with(b"regrow.parity."));
                    names.max_by_key(|key| path.store().len_bytes(key).unwrap()).unwrap()
                }),
                false if path.is_file() => (path.parent().store(), path.name_text().into_bytes()),
                false => (path.parent().store(), format!("{}.data", path.name_text()).into_bytes()),
            };
            let good = store.get(&name, ByteRange::Full).unwrap().unwrap();
            store.delete(&name).unwrap();
            let report = repair(&path);
            assert!(report.is_sound() && report.healed.len() == 1, "{}", say(&report));
            assert!(root.store().len_bytes(b"nothing").unwrap().is_none());
            assert!(store.get(&name, ByteRange::Full).unwrap().unwrap() == good, "{}", say(&"not as it was"));
            assert!(bytes_of(&load().unwrap()) == bytes_of(&tree), "{}", say(&"other bytes after it"));
        }
    }
}

#[test]
fn an_overwrite_removes_the_old_parity() {
    let root = memory_folder().unwrap();
    for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
        let folder = root.path().join(format!("own{at}"));
        let path = folder.join(format!("x{suffix}"));
        fs::create_dir_all(&folder).unwrap();
        let parity = || files(&folder).keys().filter(|path| is_parity(path)).count();
        let save = SaveOptions { overwrite: true, ..options(&layout) };
        regrow::save_with(&path, &small_tree(), &save).unwrap();
        protect(&path, "1/16");
        assert_eq!(parity(), 2, "{}", layout.name());
        // A folder with parity in it is still a checkpoint that may be replaced.
        regrow::save_with(&path, &small_tree(), &save).unwrap();
        assert_eq!(parity(), 0, "{}", layout.name());
        protect(&path, "1/16");
        let away = ParityOptions { remove: true, ..ParityOptions::default() };
        assert!(regrow::add_parity(&path, &away).unwrap().has_changed);
        assert!(!regrow::add_parity(&path, &away).unwrap().has_changed);
        assert_eq!(parity(), 0, "{}", layout.name());
    }
}

#[test]
fn parity_goes_with_seals_and_signatures() {
    let root = memory_folder().unwrap();
    let path = root.path().join("x");
    let layout = Layout::from_name("orbax", serde_json::Value::Null).unwrap();
    regrow::save_with(&path, &small_tree(), &options(&layout)).unwrap();
    let good = contents(&regrow::engine::load_with(&path, &LoadOptions::default()).unwrap());
    regrow::seal(&path, &SealOptions::default()).unwrap();
    protect(&path, "1/8");
    let before = files(&path);
    let (file, bytes) =
        before.iter().filter(|(path, _)| !is_parity(path)).max_by_key(|(_, b)| b.len()).unwrap();
    let mut bytes = bytes.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    put(file, &bytes);
    let error = regrow::engine::load_with(&path, &LoadOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(repair(&path).is_sound());
    assert!(files(&path) == before);
    assert_eq!(contents(&regrow::engine::load_with(&path, &LoadOptions::default()).unwrap()), good);
}

/// Another process puts another checkpoint in the place of one with parity, by other means than
/// regrow, and seals or signs it.
#[test]
fn a_seal_or_signature_newer_than_the_parity_stays() {
    let root = memory_folder().unwrap();
    let key = regrow::PrivateKey::read(regrow_testkit::fixtures().join("keys/alice.pem")).unwrap();
    let sign = |path: &Path| {
        regrow::sign(path, &key, &regrow::SignOptions::default()).unwrap();
    };
    let seal = |path: &Path| {
        regrow::seal(path, &SealOptions::default()).unwrap();
    };
    let mut count = 0;
    for (number, (layout, suffix)) in layouts().into_iter().enumerate() {
        for kind in ["signed", "sealed"] {
            // It has what a seal would say.
            if layout.name() == "regrow" && kind == "sealed" {
                continue;
            }
            let say = format!("{} {suffix} {kind}", layout.name());
            let home = root.path().join(format!("{number}{kind}"));
            let (path, other) = (home.join(format!("x{suffix}")), home.join(format!("other/x{suffix}")));
            fs::create_dir_all(home.join("other")).unwrap();
            regrow::save_with(&path, &tree(1), &options(&layout)).unwrap();
            regrow::save_with(&other, &tree(2), &options(&layout)).unwrap();
            let is_in_other = |file: &Path| file.starts_with(home.join("other"));
            protect(&path, "1/1");
            let all = files(&home);
            for file in all.keys().filter(|file| !is_parity(file) && !is_in_other(file)) {
                fs::remove_file(file).unwrap();
            }
            for (file, bytes) in all.iter().filter(|(file, _)| is_in_other(file)) {
                let file = home.join(file.strip_prefix(home.join("other")).unwrap());
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, bytes).unwrap();
            }
            if kind == "signed" {
                sign(&path)
            } else {
                seal(&path)
            }
            let before = files(&home);
            let check = RepairOptions { check: true, ..RepairOptions::default() };
            let report = regrow::repair(&path, &check).unwrap();
            assert!(
                report.healed.is_empty() && report.is_parity_damaged,
                "{say}: {report} {:?}",
                report.lost
            );
            assert!(files(&home) == before, "{say}: a check has written");
            let report = repair(&path);
            assert!(report.is_sound() && report.healed.is_empty(), "{say}: {report} {:?}", report.lost);
            assert_whole(&home, &before, &say);
            assert!(bytes_of(&regrow::load(&path).unwrap()) == bytes_of(&tree(2)), "{say}");
            assert!(repair(&path).to_string().contains("nothing to do"), "{say}");
            // The parity is of what is there now.
            let own = before.iter().filter(|(file, _)| !is_parity(file) && !is_in_other(file));
            let own =
                own.filter(|(file, _)| !file.file_name().unwrap().to_string_lossy().starts_with("regrow.s"));
            let (file, bytes) = own.max_by_key(|(_, bytes)| bytes.len()).unwrap();
            let mut bytes = bytes.clone();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            put(file, &bytes);
            assert!(repair(&path).is_sound(), "{say}");
            assert_whole(&home, &before, &say);
            count += 1;
        }
    }
    assert!(count > 20);
}

/// Parity of other bytes than those that were sealed: what it would bring back is not written.
#[test]
fn repair_under_a_seal_never_restores_older_bytes() {
    let root = memory_folder().unwrap();
    let path = root.path().join("x.msgpack");
    let layout = Layout::from_name("flax", serde_json::Value::Null).unwrap();
    regrow::save_with(&path, &tree(1), &options(&layout)).unwrap();
    protect(&path, "1/1");
    regrow::save_with(root.path().join("other.msgpack"), &tree(2), &options(&layout)).unwrap();
    fs::rename(root.path().join("other.msgpack"), &path).unwrap();
    regrow::seal(&path, &SealOptions::default()).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    put(&path, &bytes);
    let before = files(root.path());
    for check in [true, false] {
        let report = regrow::repair(&path, &RepairOptions { check, ..RepairOptions::default() }).unwrap();
        assert!(!report.is_sound() && report.healed.is_empty(), "{report}");
        assert!(
            report.lost.iter().any(|lost| lost.to_string().contains("differ from the sealed")),
            "{:?}",
            report.lost
        );
        assert!(files(root.path()) == before, "something was written");
    }
}

/// Under the names of the copy, in a folder and in a bucket: each of its files can be lost, and
/// comes back.
#[test]
fn copies_take_their_parity_along() {
    let root = memory_folder().unwrap();
    for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
        let (from, to) = (root.path().join(format!("{at}")), root.path().join(format!("{at}.copy")));
        fs::create_dir_all(&from).unwrap();
        fs::create_dir_all(&to).unwrap();
        let what = format!("{} {suffix}", layout.name());
        let (path, copied) = (from.join(format!("x{suffix}")), to.join(format!("other name{suffix}")));
        let save = SaveOptions { parity: Some(ratio("1/1")), ..options(&layout) };
        regrow::save_with(&path, &small_tree(), &save).unwrap();
        let good = contents(&regrow::engine::load(&path).unwrap());
        let copy = regrow::CopyOptions { not_durable: true, ..regrow::CopyOptions::default() };
        regrow::copy(&path, &copied, &copy).unwrap();
        let before = files(&to);
        assert_eq!(before.len(), files(&from).len(), "{what}: as many files");
        for file in before.keys() {
            fs::remove_file(file).unwrap();
            let report = repair(&copied);
            assert!(report.is_sound(), "{what} {}: {report} {:?}", file.display(), report.lost);
            assert_whole(&to, &before, &what);
            assert_eq!(files(&to).len(), before.len(), "{what} {}: its parity, too", file.display());
        }
        assert!(contents(&regrow::engine::load(&copied).unwrap()) == good, "{what}");
        // Over another one, whose parity goes. Another folder with only tensors is not replaced, of
        // any writer.
        if !matches!(layout, Layout::Safetensors(_)) || !suffix.is_empty() {
            regrow::copy(&path, &copied, &regrow::CopyOptions { overwrite: true, ..copy }).unwrap();
            assert!(repair(&copied).is_sound(), "{what}: again");
        }
        // What is damaged is not copied as if it were whole.
        let is_blocks = |file: &&PathBuf| file.to_string_lossy().ends_with(".blocks");
        let blocks = files(&from).into_keys().find(|file| is_blocks(&file)).unwrap();
        fs::remove_file(blocks).unwrap();
        if !path.is_dir() {
            let error =
                regrow::copy(&path, from.join(format!("third{suffix}")), &regrow::CopyOptions::default());
            assert_eq!(error.unwrap_err().kind(), ErrorKind::Corrupt, "{what}");
        }
    }
}

#[test]
fn a_checkpoint_without_parity_is_an_error() {
    let root = memory_folder().unwrap();
    let path = root.path().join("x");
    let none = regrow::repair(&path, &RepairOptions::default()).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound);
    regrow::save_with(&path, &small_tree(), &options(&Layout::default())).unwrap();
    assert!(repair(&path).is_sound());
    let model = path.join("model.safetensors");
    let good = fs::read(&model).unwrap();
    put(&model, &vec![7; good.len()]);
    let report = repair(&path);
    assert!(!report.is_sound() && report.to_string().contains("no parity"), "{report}");
    put(&model, &good);
    protect(&path, "1/16");
    let same = RepairOptions { from: Some(Location::local(&path)), ..RepairOptions::default() };
    assert_eq!(regrow::repair(&path, &same).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

/// Where the child finds the checkpoint that it is to repair.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
const PATH: &str = "REGROW_TEST_REPAIR";

/// The child: does nothing unless it was started by the test below.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn child_repairs() {
    let Some(path) = std::env::var_os(PATH) else { return };
    regrow_testkit::trace::mark();
    assert!(repair(Path::new(&path)).is_sound());
    regrow_testkit::trace::mark();
}

/// Killed before any system call that changes something, a repair leaves each file as it was or
/// whole; the next one ends it.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn a_killed_repair_makes_nothing_worse() {
    use regrow_testkit::trace::{Fault, run, writes};
    let folder = memory_folder().unwrap();
    let layout = Layout::from_name("orbax", serde_json::json!({"ocdbt": false})).unwrap();
    let path = folder.path().join("x");
    regrow::save_with(&path, &small_tree(), &options(&layout)).unwrap();
    protect(&path, "1/1");
    let good = files(&path);
    // One is gone, one is cut, one is damaged.
    let mut damaged: BTreeMap<PathBuf, Vec<u8>> =
        data(&good).into_iter().filter(|(_, bytes)| bytes.len() > 9).take(3).collect();
    for (number, bytes) in damaged.values_mut().enumerate() {
        match number {
            0 => bytes.clear(),
            1 => bytes.truncate(bytes.len() / 2),
            _ => bytes.iter_mut().take(1).for_each(|byte| *byte = !*byte),
        }
    }
    let mut kills = 0;
    loop {
        for (file, bytes) in &damaged {
            put(file, bytes);
            if bytes.is_empty() {
                fs::remove_file(file).unwrap();
            }
        }
        let mut child = child("damage::repair::child_repairs");
        child.env(PATH, &path);
        let ended = run(&mut child, writes, kills, Fault::Kill).unwrap();
        for (file, good) in data(&good) {
            let found = fs::read(&file).unwrap_or_default();
            assert!(
                found == good || Some(&found) == damaged.get(&file),
                "killed at call {kills}: {}",
                file.display()
            );
        }
        assert!(repair(&path).is_sound(), "killed at call {kills}");
        let found = files(&path);
        assert!(data(&found) == data(&good), "killed at call {kills}: {:?}", found.keys());
        if ended.hit.is_none() {
            break;
        }
        kills += 1;
    }
    println!("killed at each of {kills} calls");
    assert!(kills > 10, "written, synced, named, for each file: {kills}");
}

#[test]
fn only_the_requested_step_gets_parity() {
    let root = memory_folder().unwrap();
    for step in ["1", "2"] {
        regrow::save_with(root.path().join(step), &small_tree(), &options(&Layout::default())).unwrap();
    }
    let parity = |step: &str| root.path().join(step).join("regrow.parity.json").is_file();
    let add = |step, remove| {
        let options = ParityOptions { step, remove, ..ParityOptions::default() };
        regrow::add_parity(root.path(), &options).unwrap()
    };
    assert!(add(Some(1), false).has_changed);
    assert!(parity("1") && !parity("2"));
    add(None, false);
    assert!(parity("2"));
    add(Some(1), true);
    assert!(!parity("1") && parity("2"));
    let missing = ParityOptions { step: Some(3), ..ParityOptions::default() };
    assert!(regrow::add_parity(root.path(), &missing).is_err());
}
