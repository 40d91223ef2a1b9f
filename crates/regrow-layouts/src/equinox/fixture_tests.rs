//! Tests with files that Equinox wrote, and files that it refuses: `fixtures/equinox/README.md`.

use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::*;
use crate::ReaderExt;
use regrow_base::error::ErrorKind;
use regrow_tree::array::Region;

/// Cases that Equinox refuses because they differ from its `like`, or because of its own limits.
/// The files are sound.
const SOUND: [&str; 14] = [
    "trunc_148",     // cut between two records
    "extra_record",  // more than `like` asks for
    "trailing_junk", // reported as a note
    "shape_changed",
    "dtype_changed",
    "type_changed",
    "scalar_from_array",
    "int_from_float",
    "bool_from_float",
    "float_from_complex",
    "f8_into_jax",
    "void3",
    "swapped",
    "header_10001", // longer than NumPy reads unless told to
];

fn cases(kind: &str) -> Vec<Value> {
    let expected = regrow_testkit::expected("equinox");
    let cases = expected["cases"].as_array().unwrap();
    cases.iter().filter(|case| case["kind"] == kind).cloned().collect()
}

fn fixture(case: &Value) -> PathBuf {
    regrow_testkit::fixtures().join("equinox").join(case["file"].as_str().unwrap())
}

fn open(path: &Path) -> Result<Box<dyn Reader>> {
    assert!(Equinox.recognise(&Location::local(path)).unwrap(), "{path:?}");
    Equinox.open(&Location::local(path), &OpenOptions::default())
}

/// The whole leaf by `read_region`, and by `view` where there is one.
fn read(reader: &dyn Reader, leaf: usize) -> Vec<u8> {
    let info = &reader.tree().leaves()[leaf];
    let mut out = vec![0xee; info.len_bytes() as usize];
    reader.read_region(leaf, &Region::whole(&info.shape), &mut out).unwrap();
    if let Some(view) = reader.view(leaf).unwrap() {
        reader.check_view(leaf).unwrap();
        assert_eq!(&view[..], out);
    }
    out
}

#[test]
fn every_good_file_holds_what_equinox_wrote() {
    let cases = cases("valid");
    assert!(cases.len() >= 40);
    for case in cases {
        let name = case["file"].as_str().unwrap();
        let file = LeafFile::open(fixture(&case)).unwrap();
        let records = case["records"].as_array().unwrap();
        assert_eq!(file.records().len(), records.len(), "{name}");
        assert_eq!(Value::from(file.line().map_or(0, |line| line.len_bytes)), case["prefix_len"], "{name}");
        for (found, record) in file.records().iter().zip(records) {
            let at = format!("{name} at {}", record["offset"]);
            assert_eq!(found.offset_bytes, record["offset"], "{at}");
            assert_eq!(found.data_offset_bytes, record["data_offset"], "{at}");
            assert_eq!(found.end_bytes(), record["end"], "{at}");
            assert_eq!(found.header.descr.item_len_bytes(), record["itemsize"], "{at}");
            assert_eq!(found.header.fortran_order, record["fortran_order"], "{at}");
            assert_eq!(serde_json::json!(found.header.shape.dims()), record["shape"], "{at}");
            match record["descr"].as_str() {
                Some("<f1") => assert_eq!(found.header.descr.text(), "float8_e5m2"),
                Some(descr) => assert_eq!(found.header.descr.text(), descr, "{at}"),
                None => assert!(found.header.descr.text().starts_with("[("), "{at}"),
            }
        }
        let reader = open(&fixture(&case)).unwrap();
        let leaves: Vec<&Value> =
            case["leaves"].as_array().unwrap().iter().filter(|leaf| leaf["like"] != "skip").collect();
        assert_eq!(reader.tree().len(), records.len(), "{name}");
        // A leaf that a custom filter left out has no record, either.
        let leaves = &leaves[leaves.len() - records.len()..];
        for (at, leaf) in leaves.iter().enumerate() {
            let sum = Sha256::digest(read(&*reader, at));
            let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(Value::from(sum), leaf["sha256"], "{name} {}", leaf["path"]);
        }
    }
}

#[test]
fn hyperparameters_are_the_metadata() {
    let case = cases("valid").into_iter().find(|case| case["prefix_len"] != 0).unwrap();
    let raw = std::fs::read(fixture(&case)).unwrap();
    let line = &raw[..case["prefix_len"].as_u64().unwrap() as usize];
    let reader = open(&fixture(&case)).unwrap();
    let metadata = reader.description().custom_metadata.clone().unwrap();
    assert_eq!(metadata["name"], "aé");
    assert_eq!(writer::line_of(&metadata).unwrap(), line);
}

#[test]
fn every_bad_file_is_refused_with_its_place() {
    let cases = cases("corrupt");
    assert!(cases.len() >= 40);
    for case in cases {
        let path = fixture(&case);
        let name = case["file"].as_str().unwrap().trim_end_matches(".eqx");
        let opened = open(&path);
        if SOUND.contains(&name) {
            let reader = opened.unwrap();
            (0..reader.tree().len()).for_each(|leaf| drop(read(&*reader, leaf)));
            assert_eq!(reader.description().notes.len(), 1 + usize::from(name == "trailing_junk"), "{name}");
            continue;
        }
        let error = opened.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Limit | ErrorKind::Unsupported),
            "{name}: {error:?}"
        );
        assert_eq!(error.place().file.as_deref(), Some(&*path), "{name}: {error:?}");
        assert!(error.place().offset_bytes.is_some(), "{name}: {error:?}");
    }
}

#[test]
fn truncations_and_flips_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.eqx");
    let attempt = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let Ok(reader) = open(&path) else { return };
        for (leaf, info) in reader.tree().leaves().iter().enumerate() {
            assert!(info.len_bytes() <= bytes.len() as u64, "a leaf is larger than its file");
            let mut out = vec![0; info.len_bytes() as usize];
            let _ = reader.read_region(leaf, &Region::whole(&info.shape), &mut out);
            let _ = reader.view(leaf).and_then(|_| reader.check_view(leaf));
        }
    };
    for name in ["prefix_filter", "hyper_header", "named_float8_e4m3fn", "odd_numpy", "header_variants"] {
        let raw = std::fs::read(regrow_testkit::fixtures().join(format!("equinox/{name}.eqx"))).unwrap();
        for len in 0..raw.len() {
            attempt(&raw[..len]);
        }
        for at in 0..raw.len() {
            let mut damaged = raw.clone();
            damaged[at] ^= [0x01, 0x10, 0x80][at % 3];
            attempt(&damaged);
        }
    }
}
