//! Tests with files that NumPy wrote, and files that it refuses: `fixtures/npy/make.py`.

use std::path::PathBuf;

use super::descr::Descr;
use super::header::Header;
use super::zip::Crc32;
use super::*;
use crate::ReaderExt;
use regrow_base::error::ErrorKind;
use regrow_tree::array::{Dtype, Region, Shape, copy_region};
use regrow_tree::tree::{Key, LeafKind};

fn fixture(name: &str) -> PathBuf {
    regrow_testkit::fixtures().join("npy").join(name)
}

fn open(name: &str) -> Result<Box<dyn Reader>> {
    Npy.open(&Location::local(fixture(name)), &OpenOptions::default())
}

fn read(reader: &dyn Reader, leaf: usize) -> Result<Vec<u8>> {
    let info = &reader.tree().leaves()[leaf];
    let mut out = vec![0xee; info.len_bytes() as usize];
    reader.read_region(leaf, &Region::whole(&info.shape), &mut out).map(|()| out)
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = Crc32::new();
    crc.update(bytes);
    crc.value()
}

/// Compares a leaf with what `make.py` says of the array.
fn check_leaf(reader: &dyn Reader, leaf: usize, expected: &serde_json::Value, name: &str) {
    let info = &reader.tree().leaves()[leaf];
    let descr = Descr::from_text(expected["descr"].as_str().unwrap()).unwrap();
    let mut dims: Vec<u64> = serde_json::from_value(expected["shape"].clone()).unwrap();
    match (&info.kind, &descr) {
        (LeafKind::NumpyOther(text), _) => {
            assert_eq!(**text, *expected["descr"].as_str().unwrap(), "{name}");
            dims.push(descr.item_len_bytes());
        }
        (_, Descr::Number { dtype, .. }) => assert_eq!(info.dtype, *dtype, "{name}"),
        (_, Descr::Void { is_nameless: true, item_len_bytes: 2 }) => assert_eq!(info.dtype, Dtype::BFloat16),
        other => panic!("{name}: {other:?}"),
    }
    assert_eq!(info.shape.dims(), dims, "{name}");
    let bytes = read(reader, leaf).unwrap();
    assert_eq!(bytes.len() as u64, expected["len"].as_u64().unwrap(), "{name}");
    assert_eq!(u64::from(crc32(&bytes)), expected["crc32"].as_u64().unwrap(), "{name}");
    if let Some(view) = reader.view(leaf).unwrap() {
        reader.check_view(leaf).unwrap();
        assert_eq!(view, bytes, "{name}");
    }
    // A region: the second half of each axis.
    let starts: Vec<u64> = dims.iter().map(|dim| dim / 2).collect();
    let lens: Vec<u64> = dims.iter().zip(&starts).map(|(dim, start)| dim - start).collect();
    let region = Region::new(starts, lens).unwrap();
    let target = region.shape();
    let mut part = vec![0; target.len_bytes(info.dtype).unwrap() as usize];
    let origin = vec![0; dims.len()];
    let size = info.dtype.size_bytes();
    copy_region(size, &bytes, &info.shape, &region, &mut part, &target, &origin).unwrap();
    let mut found = vec![0xee; part.len()];
    reader.read_region(leaf, &region, &mut found).unwrap();
    assert_eq!(found, part, "{name}");
    assert!(reader.read_region(leaf, &region, &mut vec![0; part.len() + 1]).is_err());
}

#[test]
fn every_array_holds_what_numpy_wrote() {
    let expected = regrow_testkit::expected("npy");
    let arrays = expected["arrays"].as_object().unwrap();
    assert!(arrays.len() > 60);
    for (name, array) in arrays {
        let file = format!("{name}.npy");
        assert!(Npy.recognise(&Location::local(fixture(&file))).unwrap(), "{name}");
        let reader = open(&file).unwrap_or_else(|error| panic!("{name}: {error:?}"));
        assert_eq!(reader.tree().len(), 1);
        check_leaf(&*reader, 0, array, name);
    }
}

#[test]
fn headers_are_numpys_byte_for_byte() {
    let expected = regrow_testkit::expected("npy");
    for (name, array) in expected["arrays"].as_object().unwrap() {
        let raw = std::fs::read(fixture(&format!("{name}.npy"))).unwrap();
        let (header, len) = Header::parse(&raw).unwrap();
        assert_eq!(Header::len_bytes(&raw[..12]).unwrap(), len);
        assert_eq!(Header::parse(&raw[..len]).unwrap().0, header);
        assert_eq!(header.fortran_order && header.shape.rank() > 1, array["fortran_order"] == true, "{name}");
        let odd =
            ["py2_longs", "other_order", "short_name", "native_order", "many_lines", "custom_float8_e5m2"];
        if !odd.contains(&name.as_str()) {
            assert_eq!(header.to_bytes(), &raw[..len], "{name}");
        }
    }
    let headers = expected["headers"].as_array().unwrap();
    assert!(headers.len() > 500);
    for row in headers {
        let header = Header {
            descr: Descr::from_text(row[0].as_str().unwrap()).unwrap(),
            fortran_order: row[1].as_bool().unwrap(),
            shape: Shape::new(serde_json::from_value::<Vec<u64>>(row[2].clone()).unwrap()).unwrap(),
        };
        let bytes = header.to_bytes();
        assert_eq!(bytes.len() as u64, row[4].as_u64().unwrap(), "{row}");
        assert_eq!(u64::from(crc32(&bytes)), row[3].as_u64().unwrap(), "{row}");
        match header.data_len_bytes() {
            Ok(_) => assert_eq!(Header::parse(&bytes).unwrap(), (header, bytes.len()), "{row}"),
            Err(_) => assert_eq!(Header::parse(&bytes).unwrap_err().kind(), ErrorKind::Limit, "{row}"),
        }
    }
    for dtype in Dtype::all() {
        for named in [false, true] {
            let header = Header::for_array(dtype, Shape::new(vec![2]).unwrap(), named);
            assert_eq!(header.data_len_bytes().unwrap(), 2 * dtype.size_bytes() as u64);
            assert_eq!(
                Header::parse(&header.to_bytes()).unwrap().0.descr.item_len_bytes(),
                dtype.size_bytes() as u64
            );
        }
    }
}

#[test]
fn every_bad_file_is_refused_with_its_name() {
    let expected = regrow_testkit::expected("npy");
    let bad = expected["bad"].as_object().unwrap();
    assert!(bad.len() >= 19);
    for (name, theirs) in bad {
        assert_ne!(theirs, "accepted");
        let file = format!("{name}.npy");
        let error = open(&file).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Limit | ErrorKind::Unsupported),
            "{name}: {error:?}"
        );
        assert_eq!(error.place().file, Some(fixture(&file)), "{error:?}");
    }
    let pickled = open("bad_object.npy").unwrap_err();
    assert_eq!(pickled.kind(), ErrorKind::Unsupported);
    assert!(pickled.to_string().contains("executes nothing"), "{pickled}");
}

#[test]
fn archives_hold_what_numpy_wrote() {
    let expected = regrow_testkit::expected("npy");
    for (name, members) in expected["archives"].as_object().unwrap() {
        let file = format!("{name}.npz");
        assert!(Npy.recognise(&Location::local(fixture(&file))).unwrap(), "{name}");
        let arrays_only = OpenOptions { arrays_only: name == "extra", ..OpenOptions::default() };
        let reader = Npy
            .open(&Location::local(fixture(&file)), &arrays_only)
            .unwrap_or_else(|error| panic!("{name}: {error:?}"));
        let members = members.as_object().unwrap();
        // A member whose name ends in `/` is a folder, not an array.
        let count = members.keys().filter(|key| !key.ends_with('/')).count();
        assert_eq!(reader.tree().len(), count, "{name}");
        assert!(reader.standing().has_data_checksums);
        for (leaf, (path, info)) in reader.tree().iter().enumerate() {
            let [Key::Dict(key)] = path.keys() else { panic!("{path}") };
            let member = &members[&**key];
            let what = format!("{name} {key}");
            if member == "refused" {
                assert!(matches!(info.kind, LeafKind::Unknown(_)), "{what}");
                assert!(read(&*reader, leaf).is_err());
                assert!(reader.description().notes.iter().any(|note| note.contains("pickled")));
            } else if let Some(text) = member.get("bytes") {
                assert_eq!(info.kind, LeafKind::Bytes);
                assert_eq!(read(&*reader, leaf).unwrap(), text.as_str().unwrap().as_bytes());
            } else {
                check_leaf(&*reader, leaf, member, &what);
                assert_eq!(info.coding.contains("deflate"), name == "deflated", "{what}");
            }
        }
    }
}

/// The archive has a comment in regrow's form, but no pytree at the position in the comment.
#[test]
fn a_pytree_that_is_not_where_the_comment_says_is_an_error() {
    let error = open("extra.npz").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.help_text().unwrap().contains("`arrays_only`"), "{error}");
}

#[test]
fn a_folder_of_arrays_is_a_dict_of_dicts() {
    let folder = tempfile::tempdir().unwrap();
    let expected = regrow_testkit::expected("npy");
    for (name, to) in [("le_f4", "a/b/0"), ("fortran", "a/b/1"), ("text", "a/%2Ec"), ("empty", "d")] {
        let to = folder.path().join(format!("{to}.npy"));
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(fixture(&format!("{name}.npy")), to).unwrap();
    }
    std::fs::write(folder.path().join("README.md"), "x").unwrap();
    assert!(Npy.recognise(&Location::local(folder.path())).unwrap());
    let reader = Npy.open(&Location::local(folder.path()), &OpenOptions::default()).unwrap();
    let paths: Vec<String> = reader.tree().paths().iter().map(ToString::to_string).collect();
    assert_eq!(paths, ["a/.c", "a/b/0", "a/b/1", "d"]);
    for (leaf, name) in ["text", "le_f4", "fortran", "empty"].into_iter().enumerate() {
        check_leaf(&*reader, leaf, &expected["arrays"][name], name);
    }
    // A file and a folder with the same name.
    std::fs::copy(fixture("empty.npy"), folder.path().join("a.npy")).unwrap();
    let error = Npy.open(&Location::local(folder.path()), &OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NameCollision, "{error:?}");
    // A folder with another program's file is not recognised.
    std::fs::write(folder.path().join("a/model.bin"), "x").unwrap();
    assert!(!Npy.recognise(&Location::local(folder.path())).unwrap());
}

#[test]
fn other_peoples_files_are_not_claimed() {
    let fixtures = regrow_testkit::fixtures();
    let mut looked_at = 0;
    for layout in ["equinox", "flax", "orbax", "pytree", "safetensors", "trak", "zarr", "ocdbt"] {
        for entry in std::fs::read_dir(fixtures.join(layout)).unwrap() {
            let path = entry.unwrap().path();
            assert!(!Npy.recognise(&Location::local(&path)).unwrap(), "{}", path.display());
            looked_at += 1;
        }
        assert!(!Npy.recognise(&Location::local(fixtures.join(layout))).unwrap());
    }
    assert!(looked_at > 100);
    let folder = tempfile::tempdir().unwrap();
    assert!(!Npy.recognise(&Location::local(folder.path())).unwrap());
    // Two records in one file are a stream of leaves.
    let path = folder.path().join("two.npy");
    let one = std::fs::read(fixture("le_f4.npy")).unwrap();
    std::fs::write(&path, [&one[..], &one].concat()).unwrap();
    assert!(!Npy.recognise(&Location::local(&path)).unwrap());
    std::fs::write(folder.path().join("x.npz"), "no archive").unwrap();
    assert!(!Npy.recognise(&Location::local(folder.path().join("x.npz"))).unwrap());
}
