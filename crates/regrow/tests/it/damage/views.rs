//! Checkpoints whose files are intact, with matching checksums, but contradict each other: `verify`
//! names the leaf and the file.

use std::fs;
use std::path::Path;

use crate::common::damage::{files, options, put};
use crate::common::{dict, layouts, tree};
use regrow::array::{Array, Dtype, Shape};
use regrow::engine::Layout;
use regrow::sharding::Sharding;
use regrow::tree::{Leaf, Tree};
use regrow::{ErrorKind, SaveOptions, VerifyReport};
use regrow_base::bytes::checksum::crc32c;
use regrow_testkit::{copy_folder, fixtures, memory_folder};
use serde_json::{Value, json};

const DATA: &str = "model.safetensors";

fn array(dtype: Dtype, dims: &[u64], first: u8) -> Leaf {
    let shape = Shape::new(dims).unwrap();
    let len = shape.len_bytes(dtype).unwrap();
    let bytes: Vec<u8> = (0..len).map(|at| (at * 5 % 113) as u8 ^ first).collect();
    Leaf::array(Array::new(dtype, shape, bytes.into()).unwrap())
}

/// Two arrays that differ only in their values, and a text.
fn pair(dtype: Dtype, dims: &[u64], text: &str) -> Tree<Leaf> {
    dict(vec![("x", array(dtype, dims, 0)), ("y", array(dtype, dims, 1)), ("z", Leaf::text(text))])
}

fn save(path: &Path, tree: &Tree<Leaf>) {
    let layout = Layout::from_name("regrow", Value::Null).unwrap();
    regrow::save_with(path, tree, &SaveOptions { overwrite: true, ..options(&layout) }).unwrap();
    assert_eq!(said(&regrow::verify(path).unwrap()), "");
}

/// Changes `regrow.json`, under its right checksum.
fn change_record(path: &Path, change: impl FnOnce(&mut Value)) {
    let file = path.join("regrow.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    record.as_object_mut().unwrap().remove("crc32c");
    change(&mut record);
    let text = record.to_string();
    let body = &text[1..];
    put(&file, format!("{{\"crc32c\":\"{:08x}\",{body}", crc32c(body.as_bytes())).as_bytes());
}

/// Changes the header of the data file, under its right checksum.
fn change_header(path: &Path, change: impl FnOnce(&mut Value)) {
    let file = path.join(DATA);
    let mut bytes = fs::read(&file).unwrap();
    let len = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    change(&mut header);
    let text = header.to_string();
    assert!(text.len() <= len, "there is room for the header");
    bytes[8..8 + len].copy_from_slice(format!("{text:len$}").as_bytes());
    put(&file, &bytes);
    let head = format!("{:08x}", crc32c(&bytes[..8 + len]));
    change_record(path, |record| record["data_files"][0]["head_crc32c"] = head.into());
}

fn said(report: &VerifyReport) -> String {
    report.findings.iter().map(|finding| format!("{}\n", finding.error)).collect()
}

/// Whether `verify` says this of this leaf and this file, as damage.
fn assert_found(path: &Path, what: &str, leaf: Option<&str>, file: &str) {
    let report = regrow::verify(path).unwrap();
    let found = report.findings.iter().any(|finding| {
        let error = &finding.error;
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        error.what().contains(what)
            && error.place().leaf.as_ref().map(ToString::to_string).as_deref() == leaf
            && error.place().file.as_ref().is_some_and(|found| found.ends_with(file))
            && error.help_text().is_some()
    });
    assert!(found, "{what} {leaf:?} in {file}; found\n{}", said(&report));
}

#[test]
fn a_header_that_contradicts_the_record_is_found() {
    let folder = memory_folder().unwrap();
    let path = folder.path().join("x");
    let changed = |change: &dyn Fn(&mut Value)| {
        save(&path, &pair(Dtype::Float32, &[6, 8], "adam"));
        change_header(&path, change);
    };
    let differ = "the header of a data file and regrow.json differ";
    changed(&|header| header["x"]["dtype"] = "I32".into());
    assert_found(&path, differ, Some("x"), DATA);
    changed(&|header| header["y"]["shape"] = json!([8, 6]));
    assert_found(&path, differ, Some("y"), DATA);
    changed(&|header| {
        let x = header["x"].take();
        header["x"] = std::mem::replace(&mut header["y"], x);
    });
    for leaf in ["x", "y"] {
        assert_found(&path, differ, Some(leaf), DATA);
    }
    changed(&|header| {
        let x = header.as_object_mut().unwrap().remove("x").unwrap();
        header["w"] = x;
    });
    assert_found(&path, differ, Some("x"), DATA);
    assert_found(&path, "has a tensor that regrow.json lacks", None, DATA);
    let other_pytree = "the pytree in the header of a data file differs from regrow.json";
    let text_of = |header: &Value| header["__metadata__"]["regrow"].as_str().unwrap().to_owned();
    changed(&|header| {
        header["__metadata__"]["regrow"] = text_of(header).replace("\"adam\"", "\"sgdm\"").into();
    });
    assert_found(&path, other_pytree, None, DATA);
    changed(&|header| {
        let mut structure: Value = serde_json::from_str(&text_of(header)).unwrap();
        structure["leaves"] = "jat".into();
        header["__metadata__"]["regrow"] = structure.to_string().into();
    });
    assert_found(&path, other_pytree, Some("x"), DATA);
    changed(&|_| {});
    assert_eq!(said(&regrow::verify(&path).unwrap()), "", "the same header in other words");
}

/// The data file and what `regrow.json` says of it and of the pytree are those of one checkpoint,
/// all else is that of another.
fn mixed(path: &Path, regrow: &Tree<Leaf>, orbax: &Tree<Leaf>) {
    save(path, regrow);
    let data = fs::read(path.join(DATA)).unwrap();
    let own: Value = serde_json::from_slice(&fs::read(path.join("regrow.json")).unwrap()).unwrap();
    save(path, orbax);
    put(&path.join(DATA), &data);
    change_record(path, |record| {
        for member in ["structure", "data_files", "leaf_files", "leaf_offsets"] {
            record[member] = own[member].clone();
        }
    });
}

#[test]
fn a_difference_between_orbax_documents_and_the_record_is_found() {
    let folder = memory_folder().unwrap();
    let path = folder.path().join("x");
    let differ = "a leaf differs between Orbax' metadata and regrow.json";
    let long = [600, 8];
    // Long arrays lie in the data file for both; short ones in the database, too.
    for dims in [long, [2, 4]] {
        let tree = |dtype: Dtype| pair(dtype, &dims, "adam");
        mixed(&path, &tree(Dtype::Float32), &tree(Dtype::Int32));
        for leaf in ["x", "y"] {
            assert_found(&path, differ, Some(leaf), "x");
        }
        mixed(&path, &tree(Dtype::Float32), &pair(Dtype::Float32, &[dims[1], dims[0]], "adam"));
        assert_found(&path, differ, Some("x"), "x");
        // In the place of each other: the same in `regrow.json` and in the header.
        save(&path, &tree(Dtype::Float32));
        change_header(&path, |header| {
            let x = header["x"].take();
            header["x"] = std::mem::replace(&mut header["y"], x);
        });
        change_record(&path, |record| record["leaf_offsets"].as_array_mut().unwrap().swap(0, 1));
        for leaf in ["x", "y"] {
            assert_found(&path, differ, Some(leaf), "x");
        }
    }
    // Orbax' reader does not say where bools lie; short ones are compared.
    let bools = |first: u8| {
        let bytes: Vec<u8> = (0..60).map(|at| (at % 2) as u8 ^ first).collect();
        let array = Array::new(Dtype::Bool, Shape::new([60]).unwrap(), bytes.into()).unwrap();
        dict(vec![("x", Leaf::array(array))])
    };
    mixed(&path, &bools(0), &bools(1));
    assert_found(&path, differ, Some("x"), "x");
    mixed(&path, &pair(Dtype::Float32, &long, "adam"), &pair(Dtype::Float32, &long, "sgdm"));
    assert_found(&path, differ, Some("z"), "x");
    let three =
        |key| dict(vec![("x", array(Dtype::Float32, &long, 0)), (key, array(Dtype::Float32, &long, 1))]);
    mixed(&path, &three("y"), &three("w"));
    assert_found(&path, "regrow.json has a leaf that Orbax' metadata lacks", Some("y"), "x");
    assert_found(&path, "Orbax' metadata has a leaf that regrow.json lacks", Some("w"), "x");
}

#[test]
fn a_sharding_that_does_not_fit_is_found() {
    let folder = memory_folder().unwrap();
    let sharding = Sharding::from_json(json!({
        "sharding_type": "NamedSharding", "shape": [4], "axis_names": ["x"],
        "partition_spec": ["x"], "device_mesh": {"mesh": [{"id": 0}, {"id": 1}, {"id": 2}, {"id": 3}]}
    }));
    for (layout, suffix) in [("regrow", ""), ("orbax", "")] {
        for (rows, fits) in [(8, true), (7, false)] {
            let path = folder.path().join(format!("{layout}{rows}{suffix}"));
            let mut leaf = array(Dtype::Float32, &[rows, 3], 0);
            leaf.kind = regrow::tree::LeafKind::JaxArray;
            leaf.sharding = Some(sharding.clone().into());
            let layout = Layout::from_name(layout, Value::Null).unwrap();
            regrow::save_with(&path, &dict(vec![("x", leaf)]), &options(&layout)).unwrap();
            let report = regrow::verify(&path).unwrap();
            assert_eq!(report.is_ok(), fits, "{} {rows}: {}", layout.name(), said(&report));
            if !fits {
                assert_found(
                    &path,
                    "does not fit it",
                    Some("x"),
                    path.file_name().unwrap().to_str().unwrap(),
                );
            }
        }
    }
}

#[test]
fn unprotected_files_are_named() {
    let folder = memory_folder().unwrap();
    for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
        let home = folder.path().join(format!("{at}"));
        fs::create_dir_all(&home).unwrap();
        let path = home.join(format!("x{suffix}"));
        regrow::save_with(&path, &tree(0), &options(&layout)).unwrap();
        let report = regrow::verify(&path).unwrap();
        let say = format!("{} {suffix}: {:?}", layout.name(), report.unprotected_files);
        let sum: u64 = report.unprotected_files.iter().map(|each| each.bytes).sum();
        assert_eq!(sum, report.unprotected_bytes, "{say}");
        assert_eq!(report.unprotected_files.is_empty(), report.has_data_checksums, "{say}");
        let known = files(&home);
        for each in &report.unprotected_files {
            assert!(each.file == path || known.contains_key(&each.file), "{say}");
            assert!(each.bytes > 0, "{say}");
        }
        // Of these each array is found in its file.
        let has_index = matches!(&layout, Layout::Orbax(options) if options.ocdbt);
        if has_index {
            // Small ones are in the index itself.
            assert!(report.unprotected_files.iter().any(|each| known.contains_key(&each.file)), "{say}");
        }
        if matches!(layout, Layout::Safetensors(_) | Layout::Npy(_) | Layout::Orbax(_)) && !has_index {
            assert!(report.unprotected_files.iter().all(|each| known.contains_key(&each.file)), "{say}");
        }
    }
}

/// Chunks are named by their files, with any compression: by data files of a database, or each by
/// its own.
#[test]
fn unprotected_chunks_are_named_by_file() {
    let folder = memory_folder().unwrap();
    for (at, fixture) in ["orbax/sd_ocdbt_zarr2/ckpt", "orbax/sd_files_zarr2/ckpt", "trak/half_two_models"]
        .into_iter()
        .enumerate()
    {
        let path = folder.path().join(at.to_string());
        copy_folder(&fixtures().join(fixture), &path).unwrap();
        let report = regrow::verify(&path).unwrap();
        let known = files(&path);
        let named: Vec<_> =
            report.unprotected_files.iter().filter(|each| known.contains_key(&each.file)).collect();
        let say = format!("{fixture}: {:?}", report.unprotected_files);
        assert!(!named.is_empty(), "{say}");
        // What is in the index of a database, and the members of TRAK's documents, are in no file
        // of their own.
        let others = report.unprotected_files.iter().filter(|each| !known.contains_key(&each.file));
        assert!(others.clone().all(|each| each.file == path), "{say}");
        if fixture.contains("files") {
            assert_eq!(others.count(), 0, "{say}");
        }
        let sum: u64 = report.unprotected_files.iter().map(|each| each.bytes).sum();
        assert_eq!(sum, report.unprotected_bytes, "{say}");
    }
}
