//! Damaged checkpoints of items: each item loads as saved or is an error, and `verify` finds all
//! damage.

use std::fs;
use std::path::{Path, PathBuf};

use regrow::engine::{ItemsOptions, ItemsSave};
use regrow::location::ToLocation;
use regrow::{DiffOptions, ErrorKind, RepairOptions, Result};
use serde_json::json;

use super::{load_item, places};
use crate::common::damage::{RESERVED, content, contents, damaged_in_turn, files, put, save_items};

const ITEMS: [&str; 4] = ["config", "iterator", "metrics", "state"];

/// What each item gives, by name; the metadata last.
fn found(at: impl ToLocation) -> Vec<(String, Result<String>)> {
    let at = at.to_location().unwrap();
    let opened = regrow::open(&at);
    let of = |item: &str| -> Result<String> {
        let opened = opened.as_ref().map_err(|error| regrow::Error::new(error.kind(), error.what()))?;
        match item {
            "iterator" => opened.item_files(item).map(|files| format!("{files:?}")),
            "metrics" => Ok(format!("{:?}", opened.description().metrics)),
            "metadata" => Ok(format!("{:?}", opened.description().custom_metadata)),
            item => opened.item(item)?.load(&regrow::LoadOptions::default()).map(|tree| contents(&tree)),
        }
    };
    ITEMS.iter().chain(&["metadata"]).map(|item| ((*item).to_owned(), of(item))).collect()
}

/// Fails if an item gives something else, if `verify` sees nothing, or if an item is lost whose
/// files are as they were.
fn is_seen(at: &Path, good: &[(String, Result<String>)], hurt: &[&str], what: &str) {
    let mut is_changed = false;
    // Without a record the files decide, and the checkpoint says so.
    let is_guessed = || regrow::open(at).is_ok_and(|opened| !opened.description().lost_items.is_empty());
    let may_be_guessed = hurt.contains(&"regrow.items.json") && is_guessed();
    for ((item, found), (_, good)) in found(at).into_iter().zip(good) {
        match found {
            Ok(found) if found == *good.as_ref().unwrap() => {}
            Ok(_) if may_be_guessed => is_changed = true,
            // Metrics and metadata are told of with a warning.
            Ok(found) => {
                is_changed = true;
                assert_eq!(found, "None", "{what}: {item} is another one");
            }
            Err(error) => {
                is_changed = true;
                assert!(error.kind().name() != "internal", "{what}: {error}");
                let is_hurt = hurt.iter().any(|hurt| *hurt == item || hurt.contains('.'));
                assert!(is_hurt, "{what}: {item} cannot be read: {error}");
            }
        }
    }
    let is_ok = regrow::verify(at).is_ok_and(|report| report.is_ok());
    assert!(!is_ok || !is_changed, "{what}: verify sees nothing");
}

/// The items whose files these are; what is of none, as it is.
fn owners<'f>(at: &Path, file: &'f Path) -> &'f str {
    file.strip_prefix(at).unwrap().components().next().unwrap().as_os_str().to_str().unwrap()
}

#[test]
fn no_flipped_bit_goes_unseen() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("1");
    save_items(&at).unwrap();
    let good = found(&at);
    let each = if std::env::var_os("REGROW_LONG").is_some() { 1 } else { 61 };
    for (file, bytes) in files(&at) {
        let owner = owners(&at, &file);
        // Its bytes are under other suites.
        if owner == "state" && bytes.len() > 40_000 {
            continue;
        }
        for bit in (0..bytes.len() * 8).step_by(each) {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            put(&file, &flipped);
            let what = format!("{} bit {bit}", file.display());
            is_seen(&at, &good, &[owner], &what);
            let is_marker = file.ends_with("commit_success.txt") && owner == "commit_success.txt";
            let is_ok = regrow::verify(&at).is_ok_and(|report| report.is_ok());
            assert!(is_marker || !is_ok, "{what}: verify sees nothing");
        }
        put(&file, &bytes);
    }
    is_seen(&at, &good, &[], "as it was");
}

#[test]
fn lost_cut_and_swapped_files_are_seen() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("1");
    save_items(&at).unwrap();
    let good = found(&at);
    let all: Vec<_> = files(&at).into_iter().collect();
    damaged_in_turn(&all, |what| {
        let owners: Vec<&str> = all
            .iter()
            .filter(|(file, bytes)| fs::read(file).ok().as_ref() != Some(bytes))
            .map(|(file, _)| owners(&at, file))
            .collect();
        is_seen(&at, &good, &owners, what);
        let is_marker = owners == ["commit_success.txt"];
        let is_ok = regrow::verify(&at).is_ok_and(|report| report.is_ok());
        assert!(is_marker || !is_ok, "{what}: verify sees nothing");
    });
}

/// Each subset of the items lost: the rest loads, and nothing calls it whole.
#[test]
fn lost_items_are_named_and_the_rest_loads() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    save_items(&whole).unwrap();
    let good = found(&whole);
    for subset in 1..1_u32 << ITEMS.len() {
        let at = folder.path().join(subset.to_string());
        regrow_testkit::copy_folder(&whole, &at).unwrap();
        let lost: Vec<&str> = ITEMS
            .into_iter()
            .enumerate()
            .filter(|(bit, _)| subset >> bit & 1 == 1)
            .map(|(_, item)| item)
            .collect();
        lost.iter().for_each(|item| fs::remove_dir_all(at.join(item)).unwrap());
        // Where no item is left, nothing opens, and the metadata go with the rest.
        let hurt = if lost.len() == ITEMS.len() { [&lost[..], &["metadata"]].concat() } else { lost.clone() };
        is_seen(&at, &good, &hurt, &format!("{lost:?} lost"));
        assert!(!regrow::verify(&at).is_ok_and(|report| report.is_ok()), "{lost:?}");
        if let Ok(opened) = regrow::open(&at) {
            let mut named: Vec<&str> =
                opened.description().lost_items.iter().map(|(item, _)| item.as_str()).collect();
            named.sort_unstable();
            assert_eq!(named, lost);
        }
        let is_same = regrow::diff_with(&whole, &at, &DiffOptions::default()).map(|report| report.is_equal());
        assert!(!is_same.unwrap_or(false), "{lost:?}");
        // A copy brings all of them back.
        let options = RepairOptions { from: Some(whole.to_location().unwrap()), ..RepairOptions::default() };
        let report = regrow::repair(&at, &options).unwrap();
        assert!(report.is_sound(), "{lost:?}: {report} {:?} {:?}", report.lost, report.findings);
        let names = |at: &Path| -> Vec<(PathBuf, Vec<u8>)> {
            files(at)
                .into_iter()
                .map(|(file, bytes)| (file.strip_prefix(at).unwrap().to_owned(), bytes))
                .collect()
        };
        for (now, then) in names(&at).iter().zip(&names(&whole)) {
            assert!(now == then, "{lost:?}: {} and {}", now.0.display(), then.0.display());
        }
        assert_eq!(files(&at).len(), files(&whole).len());
    }
}

/// The user's files may be called as those of any layout, in every place.
#[test]
fn files_of_items_may_have_any_layouts_names() {
    let (_folder, places) = places("reserved");
    for place in places {
        let at = place.join("1");
        save_items(&at).unwrap();
        let opened = regrow::open(&at).unwrap();
        let files = opened.item_files("iterator").unwrap();
        assert_eq!(files.len(), RESERVED.len(), "{at}: {files:?}");
        for (name, bytes) in files {
            assert_eq!(bytes, content(&name), "{at} {name}");
        }
        assert!(regrow::verify(&at).unwrap().is_ok(), "{at}");
        assert_eq!(load_item(&at, "state").len(), 3);
        save_items(&at).unwrap();
    }
}

/// A folder of another checkpoint's item is told from its own, though its own files fit each other.
#[test]
fn items_of_another_checkpoint_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let save = |name: &str, width: u64| {
        let at = folder.path().join(name);
        let save = ItemsSave::begin(&at, ItemsOptions::default()).unwrap();
        save.tree("state", &super::tree(width as u8), &regrow::SaveOptions::default()).unwrap();
        save.json("config", &json!({ "width": width })).unwrap();
        save.commit().unwrap();
        at
    };
    let (one, other) = (save("1", 1), save("2", 2));
    for item in ["config", "state"] {
        let at = folder.path().join(format!("mixed {item}"));
        regrow_testkit::copy_folder(&one, &at).unwrap();
        fs::remove_dir_all(at.join(item)).unwrap();
        regrow_testkit::copy_folder(&other.join(item), &at.join(item)).unwrap();
        assert!(!regrow::verify(&at).unwrap().is_ok(), "{item}");
        let options = super::item(item);
        assert_eq!(regrow::open_with(&at, &options).unwrap_err().kind(), ErrorKind::Corrupt, "{item}");
    }
}

/// What is recorded may be lost: the checkpoint says that it was there, and a copy brings it back.
#[test]
fn a_lost_record_is_named_and_brought_back() {
    let folder = tempfile::tempdir().unwrap();
    let (at, copy) = (folder.path().join("1"), folder.path().join("copy"));
    save_items(&at).unwrap();
    regrow_testkit::copy_folder(&at, &copy).unwrap();
    let record = at.join("regrow.items.json");
    let good = fs::read(&record).unwrap();
    for is_gone in [true, false] {
        if is_gone {
            fs::remove_file(&record).unwrap();
        } else {
            put(&record, b"{}");
            assert_eq!(regrow::open(&at).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        assert!(!regrow::verify(&at).is_ok_and(|report| report.is_ok()));
        let options = RepairOptions { from: Some(copy.to_location().unwrap()), ..RepairOptions::default() };
        assert!(regrow::repair(&at, &options).unwrap().is_sound());
        assert_eq!(fs::read(&record).unwrap(), good);
    }
}
