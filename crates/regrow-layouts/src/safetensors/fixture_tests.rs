//! Tests with files that safetensors wrote, and files that it refuses:
//! `fixtures/safetensors/make.py`.

use std::path::PathBuf;

use super::*;
use crate::ReaderExt;
use regrow_base::error::ErrorKind;
use regrow_tree::array::{Dtype, Region, copy_region};
use regrow_tree::tree::LeafKind;

fn fixture(name: &str) -> PathBuf {
    regrow_testkit::fixtures().join("safetensors").join(name)
}

fn open(name: &str) -> Result<Box<dyn Reader>> {
    let at = Location::local(fixture(name));
    assert!(Safetensors.recognise(&at).unwrap(), "{name}");
    Safetensors.open(&at, &OpenOptions::default())
}

/// The whole leaf by `read_region`.
fn read(reader: &dyn Reader, leaf: usize) -> Result<Vec<u8>> {
    let info = &reader.tree().leaves()[leaf];
    let mut out = vec![0xee; info.len_bytes() as usize];
    reader.read_region(leaf, &Region::whole(&info.shape), &mut out).map(|()| out)
}

#[test]
fn every_good_file_holds_what_safetensors_wrote() {
    let expected = regrow_testkit::expected("safetensors");
    for (name, file) in expected["good"].as_object().unwrap() {
        let raw = std::fs::read(fixture(name)).unwrap();
        let reader = open(name).unwrap();
        let metadata = reader.description().custom_metadata.clone().unwrap_or(serde_json::json!({}));
        assert_eq!(metadata, file["metadata"], "{name}");
        let tensors = file["tensors"].as_object().unwrap();
        assert_eq!(reader.tree().len(), tensors.len(), "{name}");
        for (leaf, info) in reader.tree().leaves().iter().enumerate() {
            let tensor = &tensors[&*info.name];
            assert_eq!(serde_json::json!(info.shape.dims()), tensor["shape"], "{name} {}", info.name);
            let offset = |i: usize| tensor["offsets"][i].as_u64().unwrap() as usize;
            let bytes = &raw[offset(0)..offset(1)];
            let tag = tensor["dtype"].as_str().unwrap();
            if tag.starts_with("F6_") {
                assert!(matches!(info.kind, LeafKind::Unknown(_)));
                assert!(read(&*reader, leaf).is_err());
            } else if tag == "F4" {
                let elements: Vec<u8> = serde_json::from_value(tensor["elements"].clone()).unwrap();
                assert_eq!(info.dtype, Dtype::Float4E2m1fn);
                assert_eq!(read(&*reader, leaf).unwrap(), elements);
                assert!(reader.view(leaf).unwrap().is_none());
            } else {
                assert_eq!(read(&*reader, leaf).unwrap(), bytes, "{name} {}", info.name);
                assert_eq!(&reader.view(leaf).unwrap().unwrap()[..], bytes, "{name} {}", info.name);
            }
        }
    }
}

#[test]
fn regions_are_read_alone() {
    let reader = open("every_dtype.safetensors").unwrap();
    let find = |name: &str| reader.tree().leaves().iter().position(|info| &*info.name == name).unwrap();
    for name in ["layer.bool", "layer.f4", "layer.i16"] {
        let leaf = find(name);
        let info = &reader.tree().leaves()[leaf];
        let whole = read(&*reader, leaf).unwrap();
        let starts: Vec<u64> = info.shape.dims().iter().map(|&dim| dim / 2).collect();
        let lens: Vec<u64> = info.shape.dims().iter().zip(&starts).map(|(dim, start)| dim - start).collect();
        let region = Region::new(starts, lens.clone()).unwrap();
        let (size, shape) = (info.dtype.size_bytes(), region.shape());
        let mut expected = vec![0; shape.len_bytes(info.dtype).unwrap() as usize];
        copy_region(size, &whole, &info.shape, &region, &mut expected, &shape, &vec![0; lens.len()]).unwrap();
        let mut found = vec![0xee; expected.len()];
        reader.read_region(leaf, &region, &mut found).unwrap();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn every_bad_file_is_refused_with_its_name() {
    let expected = regrow_testkit::expected("safetensors");
    let bad = expected["bad"].as_object().unwrap();
    assert!(bad.len() >= 30);
    for (name, theirs) in bad {
        assert_ne!(theirs, "accepted");
        let name = format!("bad/{name}.safetensors");
        let error = open(&name).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Limit | ErrorKind::Unsupported),
            "{error:?}"
        );
        assert_eq!(error.place().file, Some(fixture(&name)), "{error:?}");
    }
}

#[test]
fn a_folder_goes_by_its_index() {
    for name in ["sharded", "sharded/model.safetensors.index.json"] {
        let reader = open(name).unwrap();
        let names: Vec<&str> = reader.tree().leaves().iter().map(|info| &*info.name).collect();
        assert_eq!(names.len(), 4, "{names:?}");
        assert_eq!(reader.description().variant, "2 files, with an index");
    }
}

#[test]
fn an_index_that_lies_is_found_out() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("model");
    let index = copy.join("model.safetensors.index.json");
    let open = || Safetensors.open(&Location::local(&copy), &OpenOptions::default());
    regrow_testkit::copy_folder(&fixture("sharded"), &copy).unwrap();
    let text = std::fs::read_to_string(&index).unwrap();
    std::fs::write(&index, text.replace("\"head\"", "\"tail\"")).unwrap();
    assert!(open().unwrap_err().to_string().contains("\"tail\" in model-00002-of-00002"));
    std::fs::write(&index, &text).unwrap();
    assert!(open().is_ok());
    std::fs::remove_file(copy.join("model-00002-of-00002.safetensors")).unwrap();
    assert!(open().unwrap_err().to_string().contains("missing"));
    // Without the index, the checkpoint is all files of the folder, and the names count the shards.
    std::fs::remove_file(&index).unwrap();
    assert_eq!(open().unwrap_err().kind(), ErrorKind::Corrupt);
    // Two of the files have the same tensor.
    let part = "model-00002-of-00002.safetensors";
    std::fs::copy(fixture("sharded").join(part), copy.join(part)).unwrap();
    assert_eq!(open().unwrap_err().kind(), ErrorKind::NameCollision);
}

#[test]
fn a_file_that_shrinks_under_its_reader_is_no_fault() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    std::fs::copy(fixture("every_dtype.safetensors"), &path).unwrap();
    let reader = Safetensors.open(&Location::local(&path), &OpenOptions::default()).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    assert!(reader.view(0).is_err());
    assert!(read(&*reader, 0).is_err());
}

#[test]
fn every_truncation_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let raw = std::fs::read(fixture("odd_names.safetensors")).unwrap();
    for len in 0..raw.len() {
        std::fs::write(&path, &raw[..len]).unwrap();
        assert!(Safetensors.open(&Location::local(&path), &OpenOptions::default()).is_err(), "{len} bytes");
    }
}
