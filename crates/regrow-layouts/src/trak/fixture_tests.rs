//! Compares every store of TRAK's own saver, and every damaged store, with `expected.json`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::documents::{self, read_object};
use super::*;
use crate::npy::header::Header;
use crate::orbax::json_text::to_python_json;
use regrow::ErrorKind;
use regrow::engine::Layout;
use regrow_layouts::options::SaveOptions;
use regrow_layouts::trak::Trak;
use regrow_layouts::{Fidelity, Format, LossKind};
use regrow_tree::tree::{LeafData, LeafKind};

fn stores(kind: &str) -> Vec<Value> {
    let expected = regrow_testkit::expected("trak");
    let all = expected["stores"].as_array().unwrap().clone();
    let of_kind: Vec<Value> = all.into_iter().filter(|store| store["kind"] == kind).collect();
    assert!(of_kind.len() >= 10);
    of_kind
}

fn folder_of(store: &Value) -> PathBuf {
    regrow_testkit::fixtures().join("trak").join(store["store"].as_str().unwrap())
}

fn copy_of(store: &Value) -> (tempfile::TempDir, PathBuf) {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("store");
    regrow_testkit::copy_folder(&folder_of(store), &path).unwrap();
    (temporary, path)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every file below a folder, with its bytes.
fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                found.insert(name, fs::read(path).unwrap());
            }
        }
    }
    found
}

#[test]
fn every_valid_store_opens_as_trak_wrote_it() {
    for store in stores("valid") {
        let (name, path) = (&store["store"], folder_of(&store));
        assert!(Trak.recognise(&Location::local(&path)).unwrap(), "{name}");
        let opened = regrow::open(&path).unwrap();
        assert_eq!(opened.description().layout, "trak");
        let finals = &store["final"];
        let mut arrays = finals["arrays"].as_object().unwrap().clone();
        for (leaf, info) in opened.tree().leaves().iter().enumerate() {
            let Some(expected) = arrays.remove(&*info.name) else {
                assert!(!info.name.ends_with(".mmap"), "{name}: {}", info.name);
                continue;
            };
            let read = opened.read(leaf).unwrap();
            let array = read.as_array().unwrap();
            assert_eq!(info.kind, LeafKind::NumpyArray);
            assert_eq!(array.dtype().name(), expected["dtype"], "{name}: {}", info.name);
            assert_eq!(
                Value::from(array.shape().dims().to_vec()),
                expected["shape"],
                "{name}: {}",
                info.name
            );
            let sum = Sha256::digest(array.to_c_order().unwrap());
            assert_eq!(hex(&sum), expected["sha256"].as_str().unwrap(), "{name}: {}", info.name);
        }
        // The tree has every array of the store, also those of an experiment whose record is lost.
        let forgotten: Vec<&String> = arrays.keys().collect();
        assert!(forgotten.is_empty(), "{name}: {forgotten:?}");

        let catalog = catalog::Catalog::read(&path).unwrap();
        assert!(catalog.faults.is_empty());
        let flags: BTreeMap<String, Value> =
            catalog.models.iter().map(|(id, flags)| (id.to_string(), flags.to_record())).collect();
        assert_eq!(serde_json::to_value(flags).unwrap(), finals["reopened"]["model_ids"], "{name}");
        assert_eq!(Value::Object(catalog.experiments.unwrap()), finals["reopened"]["experiments"], "{name}");
        assert_eq!(catalog.metadata.map(Value::Object).as_ref(), Some(&store["metadata"]), "{name}");
    }
}

#[test]
fn json_and_headers_are_written_byte_for_byte_as_trak_does() {
    let (mut documents, mut headers) = (0, 0);
    for store in stores("valid") {
        for (name, bytes) in files(&folder_of(&store)) {
            let path = folder_of(&store).join(&name);
            if name.ends_with(".json") {
                let object = read_object(&path).unwrap().unwrap();
                assert_eq!(to_python_json(&object).unwrap(), bytes, "{name}");
                assert_eq!(store["final"][&name].as_str().unwrap().as_bytes(), bytes, "{name}");
                documents += 1;
            } else {
                let spec = array_file::ArrayFile::spec_of(&path).unwrap();
                let header = Header::for_array(spec.dtype, spec.shape().unwrap(), true).to_bytes();
                assert_eq!(header, bytes[..header.len()], "{name}");
                headers += 1;
            }
        }
    }
    assert!(documents > 20 && headers > 30);
}

#[test]
fn a_store_is_written_byte_for_byte() {
    for store in stores("valid") {
        let name = store["store"].as_str().unwrap();
        let tree = regrow::engine::load(folder_of(&store)).unwrap();
        let temporary = tempfile::tempdir().unwrap();
        let target = temporary.path().join("copy");
        let options =
            SaveOptions { layout: Layout::from_name("trak", Value::Null).unwrap(), ..SaveOptions::default() };
        let saved = regrow::save_with(&target, &tree, &options);
        if name == "exp_resized" {
            // The experiment has three targets in its arrays, but eight in its record.
            let error = saved.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("scores/val"), "{error}");
            continue;
        }
        if name == "lost_update" {
            // The tree has targets and scores of an experiment whose record TRAK has lost.
            let error = saved.unwrap_err();
            let text = error.to_string();
            assert!(text.contains("models/0/targets/second") && text.contains("scores/second"), "{text}");
            assert!(error.help_text().unwrap().contains("repair"), "{error}");
            continue;
        }
        saved.unwrap();
        let mut before = files(&folder_of(&store));
        let mut after = files(&target);
        let records = |bytes: Option<Vec<u8>>, root: &str| {
            let records: Value = serde_json::from_slice(&bytes.unwrap()).unwrap();
            for (name, record) in records.as_object().unwrap() {
                assert_eq!(record["scores_path"], format!("{root}/scores/{name}.mmap"));
            }
            records.to_string().replace(root, "")
        };
        assert_eq!(
            records(before.remove("experiments.json"), &format!("/srv/trak-store/{name}")),
            records(after.remove("experiments.json"), target.to_str().unwrap()),
        );
        assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>(), "{name}");
        assert!(before == after, "{name}");
        assert!(target.join("scores").is_dir());
    }
}

/// The result of `verify` for a damaged store: it does not open, has findings, or is sound.
#[derive(Debug, PartialEq)]
enum Fate {
    Refused,
    Found,
    Sound,
}

fn fate(name: &str) -> Fate {
    match name {
        "c_id_empty" | "c_id_cut" | "c_id_word" | "c_id_no_finalized" | "c_id_wrong_name"
        | "c_exps_empty" | "c_exps_list" | "c_meta_empty" | "c_meta_partial" => Fate::Refused,
        "c_id_nested" | "c_meta_text_dim" => Fate::Sound,
        _ => Fate::Found,
    }
}

#[test]
fn every_damage_is_found_and_verify_changes_nothing() {
    for store in stores("corrupt") {
        let name = store["store"].as_str().unwrap();
        let (_temporary, path) = copy_of(&store);
        let before = files(&path);
        assert!(Trak.recognise(&Location::local(&path)).unwrap(), "{name}");
        let found = match regrow::verify(&path) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
                assert!(error.place().file.is_some() && error.help_text().is_some(), "{name}: {error}");
                Fate::Refused
            }
            Ok(report) if report.is_ok() => Fate::Sound,
            Ok(report) => {
                for finding in &report.findings {
                    assert!(finding.error.place().file.is_some(), "{name}: {}", finding.error);
                }
                Fate::Found
            }
        };
        assert_eq!(found, fate(name), "{name}");
        if let Ok(opened) = regrow::open(&path) {
            for leaf in 0..opened.tree().len() {
                let _ = opened.read(leaf);
            }
        }
        assert!(files(&path) == before, "{name}");
    }
}

#[test]
fn repair_mends_every_damaged_store() {
    for store in stores("corrupt") {
        let name = store["store"].as_str().unwrap();
        let (_temporary, path) = copy_of(&store);
        let without = repair(&path, &Repair::default());
        if matches!(name, "c_meta_empty" | "c_meta_partial" | "c_meta_missing") {
            // Only the caller knows the kind of projection.
            assert_eq!(without.unwrap_err().kind(), ErrorKind::Corrupt, "{name}");
            let metadata = regrow_testkit::expected("trak")["stores"][0]["metadata"].as_object().cloned();
            repair(&path, &Repair { metadata, ..Repair::default() }).unwrap();
        } else {
            let done = without.unwrap();
            assert_eq!(done.is_empty(), fate(name) == Fate::Sound, "{name}: {done:?}");
        }
        let report = regrow::verify(&path).unwrap();
        assert!(report.is_ok(), "{name}: {:?}", report.findings);
        assert!(repair(&path, &Repair::default()).unwrap().is_empty(), "{name}: a second time");
        // Model 1 was not damaged, so its files are unchanged.
        let whole = files(&regrow_testkit::fixtures().join("trak/half_two_models"));
        for (file, bytes) in files(&path) {
            if file.starts_with("1/") {
                assert!(whole[&file] == bytes, "{name}: {file}");
            }
        }
    }
}

#[test]
fn repair_loses_rows_only_where_they_were_lost() {
    let store = stores("valid").into_iter().find(|store| store["store"] == "half_two_models").unwrap();
    let (_temporary, path) = copy_of(&store);
    let grads = path.join("0/grads.mmap");
    let len = fs::metadata(&grads).unwrap().len();
    // Rows of 8 bytes: the last two are gone, and half of the one before.
    fs::File::options().write(true).open(&grads).unwrap().set_len(len - 20).unwrap();
    let done = repair(&path, &Repair::default()).unwrap();
    assert!(done.iter().any(|line| line.contains("3 rows")), "{done:?}");
    let store = open_existing(&path);
    assert_eq!(store.model(0).unwrap().rows.missing().unwrap(), [3, 4, 5]);
    let flags = store.flags(0).unwrap();
    assert_eq!((flags.is_featurized, flags.is_finalized), (false, false));
    let flags = store.flags(1).unwrap();
    assert_eq!((flags.is_featurized, flags.is_finalized), (true, true));
}

#[test]
fn repair_finds_an_experiment_that_was_lost() {
    let store = stores("valid").into_iter().find(|store| store["store"] == "lost_update").unwrap();
    let (_temporary, path) = copy_of(&store);
    let found = regrow::verify(&path).unwrap().findings;
    assert!(found.len() == 1 && found[0].error.to_string().contains("\"second\""), "{found:?}");
    repair(&path, &Repair::default()).unwrap();
    assert!(regrow::verify(&path).unwrap().is_ok());
    let records = read_object(&path.join("experiments.json")).unwrap().unwrap();
    assert_eq!(records.keys().collect::<Vec<_>>(), ["first", "second"]);
    assert_eq!(records["first"]["scores_finalized"], 1);
    assert_eq!(records["second"]["scores_finalized"], 0);
}

#[test]
fn metadata_of_another_run_are_refused() {
    let store = stores("valid").into_iter().find(|store| store["store"] == "half_two_models").unwrap();
    let (_temporary, path) = copy_of(&store);
    let metadata = documents::read_object(&path.join(METADATA_FILE)).unwrap().unwrap();
    let half = layout::Parameters { train_set_size: 6, proj_dim: 4, precision: layout::Precision::Half };
    let try_open = |parameters: layout::Parameters, changes: &[(&str, Value)]| {
        let mut metadata = metadata.clone();
        metadata.extend(changes.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        for mode in [Mode::Create(metadata.clone()), Mode::Join(metadata.clone())] {
            let error = TrakStore::open(&path, parameters, &mode).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            assert!(error.expected_found().is_some());
        }
    };
    let before = files(&path);
    try_open(layout::Parameters { proj_dim: 5, ..half }, &[("JL dimension", 5.into())]);
    try_open(layout::Parameters { train_set_size: 7, ..half }, &[("train set size", 7.into())]);
    try_open(half, &[("JL matrix type", "normal".into())]);
    try_open(layout::Parameters { precision: layout::Precision::Single, ..half }, &[]);
    // These metadata agree with the folder, but not with the parameters. TRAK accepts them.
    try_open(layout::Parameters { train_set_size: 60, proj_dim: 8, ..half }, &[]);
    let after = files(&path).into_iter().filter(|(name, _)| name != layout::LOCK_FILE).collect();
    assert!(before == after);
    TrakStore::open(&path, half, &Mode::Create(metadata)).unwrap();
}

fn open_existing(path: &Path) -> TrakStore {
    let parameters =
        layout::Parameters { train_set_size: 6, proj_dim: 4, precision: layout::Precision::Half };
    let metadata = documents::read_object(&path.join(METADATA_FILE)).unwrap().unwrap();
    TrakStore::open(path, parameters, &Mode::Create(metadata)).unwrap()
}

#[test]
fn arrays_without_axes_are_losses() {
    let store = stores("valid").into_iter().find(|store| store["store"] == "half_two_models").unwrap();
    let opened = regrow::open(folder_of(&store)).unwrap();
    let kinds = |kind: LeafKind| {
        let infos = opened.tree().clone().map(|mut info| {
            if info.name.ends_with("JL dimension") {
                info.kind = kind.clone();
            }
            info
        });
        let losses = Trak.losses(&infos, &[], &SaveOptions::default());
        let of_size = losses.into_iter().filter(|loss| loss.path.to_string().contains("JL dimension"));
        of_size.map(|loss| loss.kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(LeafKind::Scalar), []);
    for kind in [LeafKind::NumpyScalar, LeafKind::NumpyArray, LeafKind::JaxArray] {
        assert_eq!(kinds(kind), [LossKind::Kind]);
    }
}

#[test]
fn a_tree_of_another_shape_is_refused_with_every_reason() {
    let store = stores("valid").into_iter().find(|store| store["store"] == "half_two_models").unwrap();
    let mut tree = regrow::engine::load(folder_of(&store)).unwrap();
    let paths = tree.paths();
    for (path, leaf) in paths.iter().zip(tree.leaves_mut()) {
        if path.keys().last() == Some(&regrow_tree::tree::Key::dict("features")) {
            leaf.data = LeafData::Text("no array".into());
        }
    }
    let temporary = tempfile::tempdir().unwrap();
    let options =
        SaveOptions { layout: Layout::from_name("trak", Value::Null).unwrap(), ..SaveOptions::default() };
    let error = regrow::save_with(temporary.path().join("a"), &tree, &options).unwrap_err().to_string();
    assert!(error.contains("models/0/features") && error.contains("models/1/features"), "{error}");
    let other = regrow_tree::tree::Tree::single(Leaf::text("x"));
    let error = regrow::save_with(temporary.path().join("a"), &other, &options).unwrap_err();
    assert!(error.to_string().contains("metadata, models, scores"), "{error}");
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
}
