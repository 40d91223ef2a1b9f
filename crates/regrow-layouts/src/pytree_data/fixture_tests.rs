//! Every fixture against its `expected.json`: files that the original wrote and read, and files
//! that must be refused.

use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::manifest::Manifest;
use super::paths::path_text;
use super::*;
use regrow_base::bytes::python_literal::Literal;
use regrow_base::error::ErrorKind;
use regrow_layouts::options::{Layout, SaveOptions};
use regrow_tree::array::{Array, Dtype, Shape};
use regrow_tree::tree::{Key, LeafKind, NodeKind, TreeBuilder};

fn folder() -> PathBuf {
    regrow_testkit::fixtures().join("pytree")
}

fn cases(kind: &str) -> Vec<Value> {
    let expected = regrow_testkit::expected("pytree");
    let all = expected["cases"].as_array().unwrap().clone();
    all.into_iter().filter(|case| case["kind"] == kind).collect()
}

fn stem_of(case: &Value) -> &str {
    case["stem"].as_str().unwrap()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A key as `expected.json` tells it.
fn key_literal(value: &Value) -> Literal {
    let member = |name: &str| value.get(name);
    match value {
        Value::Null => Literal::None,
        Value::Bool(value) => Literal::Bool(*value),
        Value::Number(number) => Literal::Int(number.as_i64().unwrap().into()),
        Value::String(text) => Literal::Str(text.clone()),
        _ if member("tuple").is_some() => {
            Literal::Tuple(value["tuple"].as_array().unwrap().iter().map(key_literal).collect())
        }
        _ if member("bytes").is_some() => {
            let hex = value["bytes"].as_str().unwrap();
            let digits: Vec<u8> = hex.bytes().map(|c| (c as char).to_digit(16).unwrap() as u8).collect();
            Literal::Bytes(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
        }
        _ => {
            assert_eq!(value["float"], "0x1.8000000000000p+0", "the fixtures have one float");
            Literal::Float(1.5)
        }
    }
}

fn path_of(value: &Value) -> String {
    path_text(&value["path"].as_array().unwrap().iter().map(key_literal).collect::<Vec<_>>())
}

fn dims_of(value: &Value) -> Vec<u64> {
    value["shape"].as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap()).collect()
}

/// The files of a case that has a manifest.
fn files_of(case: &Value) -> Option<Files> {
    let folder = Location::local(folder());
    let mut files = Files::named(&folder.join(stem_of(case)), ".data", ".manifest");
    files.data = folder.join(case["data_file"].as_str()?);
    files.manifest.is_file().then_some(files)
}

/// Cases whose manifest the original wrote wrongly: records.
fn is_unreadable(case: &Value) -> bool {
    stem_of(case).contains("bad_struct")
}

#[test]
fn what_the_original_wrote_is_read_as_it_wrote_it() {
    let mut seen = 0;
    for case in cases("valid") {
        let Some(files) = files_of(&case).filter(|_| !is_unreadable(&case)) else { continue };
        let found = entries_of(&files, true).unwrap();
        let data = std::fs::read(files.data.path()).unwrap();
        assert_eq!(sha256(&data), case["data_sha256"], "{}", stem_of(&case));
        let expected = case["entries"].as_array().unwrap();
        assert_eq!(found.arrays.len(), expected.len(), "{}", stem_of(&case));
        for (entry, expected) in found.arrays.iter().zip(expected) {
            assert_eq!(entry.path, path_of(expected));
            assert_eq!(entry.dtype, expected["dtype"]);
            assert_eq!(entry.shape, dims_of(expected));
            assert_eq!(entry.offset_bytes, expected["offset"]);
            let start = entry.offset_bytes as usize;
            let end = start + expected["nbytes"].as_u64().unwrap() as usize;
            assert_eq!(sha256(&data[start..end]), expected["raw_sha256"]);
        }
        seen += 1;
    }
    assert!(seen >= 28, "{seen}");
}

#[test]
fn what_the_original_loads_is_loaded_to_the_bit() {
    let mut leaves = 0;
    for case in cases("valid") {
        if files_of(&case).is_none() {
            continue;
        }
        // Both cases of a pair have the same arrays, but the original cannot load the manifests
        // that it wrote under NumPy 2.
        let twin = cases("valid").into_iter().find(|other| {
            stem_of(other) == stem_of(&case).replace("np2", "np1") && other.get("leaves").is_some()
        });
        let (Some(twin), true) = (twin, case["data_file"].as_str().unwrap().ends_with(".data")) else {
            continue;
        };
        let checkpoint = regrow::open(folder().join(stem_of(&case))).unwrap();
        assert_eq!(checkpoint.description().layout, "pytree_data");
        let expected = twin["leaves"].as_array().unwrap();
        assert_eq!(checkpoint.tree().len(), expected.len());
        for expected in expected {
            let name = path_of(expected);
            let leaf = checkpoint.find(&name).unwrap();
            let array = checkpoint.read(leaf).unwrap();
            let bytes = array.as_array().unwrap().to_c_order().unwrap();
            assert_eq!(sha256(&bytes), expected["sha256"], "{name}");
            let info = checkpoint.info(leaf).unwrap();
            let rank = dims_of(expected).len();
            assert_eq!(info.shape.dims()[..rank], dims_of(expected));
            match &info.kind {
                LeafKind::NumpyArray => {
                    let dtype = expected["dtype"].as_str().unwrap();
                    let big: Dtype = match dtype {
                        ">i2" => Dtype::Int16,
                        ">f4" => Dtype::Float32,
                        ">c8" => Dtype::Complex64,
                        ">f8" => Dtype::Float64,
                        ">u4" => Dtype::UInt32,
                        ">i8" => Dtype::Int64,
                        ">i4" => Dtype::Int32,
                        other => other.parse().unwrap(),
                    };
                    assert_eq!(info.dtype, big, "{dtype}");
                }
                LeafKind::NumpyOther(_) => assert_eq!(info.shape.rank(), rank + 1),
                other => panic!("{other:?}"),
            }
            leaves += 1;
        }
        assert!(checkpoint.verify().unwrap().is_ok());
    }
    assert!(leaves > 100, "{leaves}");
}

#[test]
fn manifests_are_written_byte_for_byte_as_under_numpy_1() {
    let mut seen = 0;
    for case in cases("valid") {
        let Some(files) = files_of(&case).filter(|_| !is_unreadable(&case)) else { continue };
        let numpy_1 = files.manifest.with_name(files.manifest.name_text().replace("np2", "np1"));
        let Ok(expected) = std::fs::read_to_string(numpy_1.path()) else { continue };
        let entries = Manifest::parse(&std::fs::read(files.manifest.path()).unwrap()).unwrap().entries;
        assert_eq!(Manifest { entries, extra: None }.to_text(), expected, "{}", stem_of(&case));
        seen += 1;
    }
    assert!(seen >= 26, "{seen}");
}

#[test]
fn both_files_come_out_as_the_original_wrote_them() {
    let root = tempfile::tempdir().unwrap();
    let mut seen = 0;
    for case in cases("valid") {
        let Some(files) = files_of(&case).filter(|_| !is_unreadable(&case)) else { continue };
        if case["numpy_major"] == 2 && stem_of(&case) != "np2_empty_tree" {
            continue;
        }
        let data = std::fs::read(files.data.path()).unwrap();
        let entries = Manifest::parse(&std::fs::read(files.manifest.path()).unwrap()).unwrap().entries;
        // Each array as bytes under its own type string, big-endian ones too.
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::List).unwrap();
        for (at, entry) in entries.iter().enumerate() {
            let mut dims = entry.shape.dims().to_vec();
            dims.push(entry.descr.item_len_bytes());
            let start = entry.offset_bytes as usize;
            let bytes = data[start..start + entry.len_bytes as usize].to_vec();
            let array = Array::new(Dtype::UInt8, Shape::new(dims).unwrap(), bytes.into()).unwrap();
            let kind = LeafKind::NumpyOther(Arc::from(entry.descr.text()));
            build.leaf(Key::Index(at), Leaf { kind, ..Leaf::array(array) }).unwrap();
        }
        build.close().unwrap();
        let mut options = serde_json::json!({
            "extra_keys": false,
            "paths": entries.iter().map(|entry| path_text(&entry.path)).collect::<Vec<_>>(),
        });
        let given = case["options"].as_object().unwrap();
        for name in ["byte_align", "data_suffix"] {
            if let Some(value) = given.get(name) {
                options[name] = value.clone();
            }
        }
        let options = SaveOptions {
            layout: Layout::from_name("pytree_data", options).unwrap(),
            ..SaveOptions::default()
        };
        let stem = root.path().join(stem_of(&case));
        regrow::save_with(&stem, &build.finish().unwrap(), &options).unwrap();
        let written = |file: &Location| std::fs::read(root.path().join(file.name())).unwrap();
        assert!(written(&files.data) == data, "{}", stem_of(&case));
        let manifest = std::fs::read_to_string(files.manifest.path()).unwrap();
        assert_eq!(String::from_utf8(written(&files.manifest)).unwrap(), manifest);
        seen += 1;
    }
    assert!(seen >= 14, "{seen}");
}

#[test]
fn records_that_the_original_wrote_wrongly_are_refused() {
    for case in cases("valid").iter().filter(|case| is_unreadable(case)) {
        let error = entries_of(&files_of(case).unwrap(), true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("nbytes is not the size"), "{error}");
    }
}

/// The error of each bad file; `None` for files that are unusual but can be read.
const CORRUPT: [(&str, Option<&str>); 36] = [
    ("c_unaligned", None),
    ("c_extra_key", None),
    ("c_list_path", None),
    ("c_json", None),
    ("c_whitespace", None),
    ("c_short_data", Some("beyond the end")),
    ("c_short_data2", Some("beyond the end")),
    ("c_empty_data", Some("beyond the end")),
    ("c_past_end", Some("beyond the end")),
    ("c_negative_offset", Some("offset is not a size in bytes")),
    ("c_negative_nbytes", Some("nbytes is not a size in bytes")),
    ("c_nbytes_mismatch", Some("expected 8, found 12")),
    ("c_shape_minus1", Some("a shape is not a tuple of sizes")),
    ("c_shape_int", Some("a shape is not a tuple of sizes")),
    ("c_dtype_unknown", Some("\"<zz\" is not known")),
    ("c_dtype_object", Some("has Python objects")),
    ("c_dtype_void", Some("is untyped bytes")),
    ("c_dtype_struct", Some("a dtype is not a type string")),
    ("c_missing_key", Some("lacks \"offset\"")),
    ("c_str_path", Some("a path is not a tuple of keys")),
    ("c_empty_list_path", Some("a path is not a tuple of keys")),
    ("c_dup_path", Some("the same path occurs twice")),
    ("c_overlap", Some("two arrays overlap")),
    ("c_prefix_then_child", Some("leaf a/b")),
    ("c_child_then_prefix", Some("an array has the path of a container")),
    ("c_root_and_more", Some("a root array has other arrays beside it")),
    ("c_more_and_root", Some("a root array has other arrays beside it")),
    ("c_two_roots", Some("a root array has other arrays beside it")),
    ("c_call", Some("\"dict\" is not a Python literal")),
    ("c_import", Some("regrow never evaluates names and calls")),
    ("c_empty_manifest", Some("the manifest is empty")),
    ("c_cut_manifest", Some("the end of the text")),
    ("c_not_list", Some("not a list of arrays")),
    ("c_utf8", Some("not UTF-8")),
    ("c_np_int64", Some("\"numpy.int64\" is not a Python literal")),
    ("c_float_offset", Some("offset is not a size in bytes")),
];

/// Two more bad files: one has a bool as a size, the other a shape that no memory could hold.
const CORRUPT_SIZES: [(&str, Option<&str>); 2] =
    [("c_bool_offset", Some("offset is not a size in bytes")), ("c_huge", Some("2^63 elements"))];

#[test]
fn damaged_files_are_refused_with_a_reason_before_any_data_is_read() {
    let table: Vec<_> = CORRUPT.into_iter().chain(CORRUPT_SIZES).collect();
    let cases = cases("corrupt");
    assert_eq!(cases.len(), table.len());
    for case in &cases {
        let stem = stem_of(case);
        let (_, expected) = table.iter().find(|(name, _)| *name == stem).unwrap_or_else(|| panic!("{stem}"));
        let path = folder().join(stem);
        let opened = regrow::open(&path);
        match expected {
            Some(text) => {
                let error = opened.expect_err(stem);
                assert!(error.to_string().contains(text), "{stem}: {error}");
                assert!(
                    [ErrorKind::Corrupt, ErrorKind::Unsupported].contains(&error.kind()),
                    "{stem}: {error}"
                );
                assert!(error.place().file.is_some(), "{stem}");
            }
            None => {
                let expected = &case["upstream_load"]["np1"]["leaves"];
                let tree = opened.expect(stem).load(&regrow::LoadOptions::default()).unwrap();
                let expected = expected.as_array().unwrap();
                assert_eq!(tree.len(), expected.len());
                for (leaf, expected) in tree.leaves().iter().zip(expected) {
                    let bytes = leaf.as_array().unwrap().to_c_order().unwrap();
                    assert_eq!(sha256(&bytes), expected["sha256"], "{stem}");
                }
            }
        }
    }
}
