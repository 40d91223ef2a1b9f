//! The default layout from save to load, through the public API. A tree loads as saved, errors name
//! the damage, and a failed save leaves no files.

use std::path::Path;
use std::sync::Arc;

use crate::common::dict;
use regrow::array::{Array, Dtype, Region, Shape};
use regrow::engine::{Compression, Layout, RegrowOptions, TemplateLeaf, load, load_with};
use regrow::tree::{Key, Leaf, LeafData, LeafKind, NodeKind, PathPattern, Scalar, Tree, TreeBuilder};
use regrow::{ErrorKind, LoadOptions, SaveOptions};

fn array(dtype: Dtype, dims: &[u64], seed: u8) -> Array {
    let shape = Shape::new(dims).unwrap();
    let len = shape.len_bytes(dtype).unwrap();
    // The narrow types keep to their low bits, as NumPy has them.
    let mask = match dtype {
        Dtype::Bool => 1,
        Dtype::Int2 | Dtype::UInt2 => 3,
        Dtype::Int4 | Dtype::UInt4 | Dtype::Float4E2m1fn => 15,
        Dtype::Float6E2m3fn | Dtype::Float6E3m2fn => 63,
        _ => 255,
    };
    let bytes: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed) & mask).collect();
    Array::new(dtype, shape, bytes.into()).unwrap()
}

/// Options that refuse what Orbax cannot read back.
fn strict() -> SaveOptions {
    let layout = Layout::Regrow(RegrowOptions { strict: true, ..RegrowOptions::default() });
    SaveOptions { layout, ..SaveOptions::default() }
}

/// Every container, every kind of leaf, every dtype, odd keys, colliding names.
fn everything() -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.open(Key::dict("dtypes"), NodeKind::OrderedDict).unwrap();
    for (i, dtype) in Dtype::all().enumerate() {
        build.leaf(Key::dict(dtype.name()), Leaf::array(array(dtype, &[3, 5], i as u8))).unwrap();
    }
    build.close().unwrap();
    build.open(Key::dict("kinds"), NodeKind::Tuple).unwrap();
    let leaves = [
        Leaf { kind: LeafKind::JaxArray, ..Leaf::array(array(Dtype::BFloat16, &[64, 64], 1)) },
        Leaf { kind: LeafKind::NumpyScalar, ..Leaf::array(array(Dtype::Float16, &[], 2)) },
        Leaf {
            kind: LeafKind::PrngKey(Some(Arc::from("rbg"))),
            ..Leaf::array(array(Dtype::UInt32, &[2, 4], 3))
        },
        Leaf { kind: LeafKind::Bytes, ..Leaf::array(array(Dtype::UInt8, &[7], 4)) },
        Leaf { kind: LeafKind::Bytes, ..Leaf::array(array(Dtype::UInt8, &[0], 4)) },
        Leaf { kind: LeafKind::Placeholder, data: LeafData::Absent, sharding: None },
        Leaf::text("text with \"quotes\" and \u{1f331}"),
        Leaf::scalar(Scalar::Bool(true)),
        Leaf::scalar(Scalar::Int(-5)),
        Leaf::scalar(Scalar::UInt(u64::MAX)),
        Leaf::scalar(Scalar::Float(0.1)),
        Leaf::scalar(Scalar::Complex(1.0, -2.0)),
        Leaf::array(array(Dtype::Float32, &[0, 3], 5)),
        Leaf::array(array(Dtype::Float64, &[1000, 300], 6)),
    ];
    for (i, leaf) in leaves.into_iter().enumerate() {
        build.leaf(Key::Index(i), leaf).unwrap();
    }
    build.close().unwrap();
    build.leaf(Key::dict("__metadata__"), Leaf::array(array(Dtype::Int32, &[2], 5))).unwrap();
    build.open(Key::dict("odd"), NodeKind::Dict).unwrap();
    for key in
        ["", "a/b", "..", "a.b", "\u{0}", "new\nline", "~", "%2E", "emoji \u{1f600}", "c", "c/../d", "%"]
    {
        build.leaf(Key::dict(key), Leaf::array(array(Dtype::Int32, &[2], key.len() as u8))).unwrap();
    }
    build.leaf(Key::dict("text~/.."), Leaf::text("x")).unwrap();
    build.open(Key::dict("a"), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("b"), Leaf::array(array(Dtype::Int32, &[2], 77))).unwrap();
    build.close().unwrap();
    build.leaf(Key::DictInt(1), Leaf::array(array(Dtype::Int8, &[2], 8))).unwrap();
    build.leaf(Key::dict("1"), Leaf::array(array(Dtype::Int8, &[2], 9))).unwrap();
    build.close().unwrap();
    build.open(Key::dict("state"), NodeKind::NamedTuple(Arc::from("optax.ScaleByAdamState"))).unwrap();
    build.leaf(Key::attr("count"), Leaf::array(array(Dtype::Int32, &[], 1))).unwrap();
    build.open(Key::attr("none"), NodeKind::None).unwrap();
    build.close().unwrap();
    build.open(Key::attr("list"), NodeKind::List).unwrap();
    build.close().unwrap();
    build.close().unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

fn assert_same(a: &Tree<Leaf>, b: &Tree<Leaf>) {
    assert_eq!(a.nodes(), b.nodes());
    for ((path, a), b) in a.iter().zip(b.leaves()) {
        assert_eq!(a.kind, b.kind, "{path}");
        match (&a.data, &b.data) {
            (LeafData::Array(a), LeafData::Array(b)) => {
                assert_eq!((a.dtype(), a.shape()), (b.dtype(), b.shape()), "{path}");
                assert_eq!(a.to_c_order().unwrap(), b.to_c_order().unwrap(), "{path}");
            }
            (LeafData::Text(a), LeafData::Text(b)) => assert_eq!(a, b, "{path}"),
            (LeafData::Absent, LeafData::Absent) => {}
            _ => panic!("{path}: {:?} became {:?}", a.data, b.data),
        }
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_tree_loads_as_saved() {
    let folder = tempfile::tempdir().unwrap();
    let tree = everything();
    for compression in [None, Some(Compression::Zstd(1))] {
        let path = folder.path().join(format!("step {compression:?}"));
        let options = SaveOptions { compression, ..SaveOptions::default() };
        assert_eq!(regrow::save_with(&path, &tree, &options).unwrap().leaf_count, tree.len());
        assert_same(&tree, &load(&path).unwrap());
        let verified = regrow::verify(&path).unwrap();
        assert!(verified.is_ok(), "{:?}", verified.findings);
        assert!(verified.has_data_checksums);
    }
}

#[test]
fn a_single_leaf_is_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leaf");
    let tree = Tree::single(Leaf::array(array(Dtype::Float32, &[4, 4], 1)));
    regrow::save(&path, &tree).unwrap();
    assert_same(&tree, &load(&path).unwrap());
}

#[test]
fn without_regrow_json_it_is_a_plain_orbax_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    let tree = dict(vec![
        ("lr", Leaf::scalar(Scalar::Float(0.5))),
        ("name", Leaf::text("adam")),
        ("w", Leaf::array(array(Dtype::Float32, &[64, 10], 1))),
    ]);
    regrow::save(&path, &tree).unwrap();
    std::fs::remove_file(path.join("regrow.json")).unwrap();
    assert_eq!(regrow::open(&path).unwrap().description().layout, "orbax");
    let report = regrow::verify(&path).unwrap();
    assert!(report.findings.iter().any(|found| found.error.to_string().contains("regrow.json is missing")));
    assert_same(&tree, &load(&path).unwrap());
}

#[test]
fn the_safetensors_file_alone_regrows_its_tree() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    let tree = everything();
    regrow::save(&path, &tree).unwrap();
    let alone = folder.path().join("alone.safetensors");
    std::fs::copy(path.join("model.safetensors"), &alone).unwrap();
    assert_same(&tree, &load(&alone).unwrap());
}

#[test]
fn a_slice_equals_the_slice_of_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let whole = array(Dtype::Int16, &[40, 50, 60], 3);
    for compression in [None, Some(Compression::Zstd(1))] {
        let path = folder.path().join(format!("step {compression:?}"));
        let options = SaveOptions { compression, ..SaveOptions::default() };
        regrow::save_with(&path, &Tree::single(Leaf::array(whole.clone())), &options).unwrap();
        let checkpoint = regrow::open(&path).unwrap();
        let regions = [
            ([0, 0, 0], [40, 50, 60]),
            ([7, 3, 1], [2, 40, 58]),
            ([39, 49, 59], [1, 1, 1]),
            ([4, 4, 4], [0, 3, 3]),
        ];
        for (starts, lens) in regions {
            let region = Region::new(starts, lens).unwrap();
            let mut expected = vec![0; region.shape().len_bytes(Dtype::Int16).unwrap() as usize];
            whole.copy_region_c_order(&region, &mut expected).unwrap();
            assert_eq!(checkpoint.region(0, &region).unwrap().to_c_order().unwrap(), expected, "{region}");
        }
        let outside = Region::new([40, 0, 0], [1, 1, 1]).unwrap();
        assert_eq!(checkpoint.region(0, &outside).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn a_selection_keeps_the_rest_of_the_structure() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    regrow::save(&path, &everything()).unwrap();
    let only =
        |glob: &str| LoadOptions { only: vec![PathPattern::new(glob).unwrap()], ..LoadOptions::default() };
    let tree = load_with(&path, &only("kinds/8")).unwrap();
    assert_eq!(tree.len(), 14, "positions in a tuple keep their meaning");
    assert_eq!(tree.leaves().iter().filter(|leaf| leaf.kind == LeafKind::Placeholder).count(), 13);
    let tree = load_with(&path, &only("dtypes/float*")).unwrap();
    assert!(tree.iter().all(|(path, _)| path.to_string().starts_with("dtypes/float")));
    assert_eq!(load_with(&path, &only("nothing/*")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn only_requested_leaves_are_cast() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    let values: Vec<u8> = [1.0_f32, -2.5, 3.25].iter().flat_map(|v| v.to_le_bytes()).collect();
    let source = Array::new(Dtype::Float32, Shape::new(vec![3]).unwrap(), values.clone().into()).unwrap();
    let all = PathPattern::new("**").unwrap();
    let save = SaveOptions { cast: vec![(all.clone(), Dtype::BFloat16)], ..SaveOptions::default() };
    regrow::save_with(&path, &Tree::single(Leaf::array(source)), &save).unwrap();
    let stored = load(&path).unwrap();
    assert_eq!(stored.leaves()[0].as_array().unwrap().dtype(), Dtype::BFloat16);
    let load = LoadOptions { cast: vec![(all, Dtype::Float32)], ..LoadOptions::default() };
    let back = load_with(&path, &load).unwrap();
    assert_eq!(back.leaves()[0].as_array().unwrap().to_c_order().unwrap(), values);
}

/// A cast is for arrays: bytes, keys and Python's own numbers stay what they are, and memory stays
/// bounded because the cast happens band by band.
#[test]
fn a_cast_on_load_changes_only_arrays() {
    let folder = tempfile::tempdir().unwrap();
    let big = Leaf::array(array(Dtype::Int8, &[300, 40_000], 1));
    let tree = dict(vec![
        ("big", big.clone()),
        ("bytes", Leaf { kind: LeafKind::Bytes, ..Leaf::array(array(Dtype::UInt8, &[7], 4)) }),
        ("key", Leaf { kind: LeafKind::PrngKey(None), ..Leaf::array(array(Dtype::UInt32, &[2], 3)) }),
        ("step", Leaf::scalar(Scalar::Int(16_777_217))),
        ("text", Leaf::text("x")),
    ]);
    let load =
        LoadOptions { cast: vec![(PathPattern::new("**").unwrap(), Dtype::Int16)], ..LoadOptions::default() };
    for compression in [None, Some(Compression::Zstd(1))] {
        let path = folder.path().join(format!("step {compression:?}"));
        regrow::save_with(&path, &tree, &SaveOptions { compression, ..SaveOptions::default() }).unwrap();
        let loaded = load_with(&path, &load).unwrap();
        for (want, found) in tree.leaves().iter().zip(loaded.leaves()).skip(1) {
            assert_eq!(want.kind, found.kind);
            match (want.as_array(), found.as_array()) {
                (Some(want), Some(found)) => {
                    assert_eq!(want.to_c_order().unwrap(), found.to_c_order().unwrap())
                }
                (want, found) => assert_eq!(want.is_some(), found.is_some()),
            }
        }
        let source = big.as_array().unwrap().to_c_order().unwrap();
        let expected: Vec<u8> = source.iter().flat_map(|&v| i16::from(v as i8).to_le_bytes()).collect();
        let found = loaded.leaves()[0].as_array().unwrap();
        assert_eq!(found.dtype(), Dtype::Int16);
        assert!(found.to_c_order().unwrap() == expected);
    }
}

#[test]
fn one_stored_leaf_fills_one_place_of_a_template() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    regrow::save(&path, &dict(vec![("1", Leaf::scalar(Scalar::Int(7)))])).unwrap();
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("1"), TemplateLeaf::default()).unwrap();
    build.leaf(Key::DictInt(1), TemplateLeaf::default()).unwrap();
    build.close().unwrap();
    let template = Some(build.finish().unwrap());
    let error = load_with(&path, &LoadOptions { template, ..LoadOptions::default() }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
}

#[test]
fn a_template_error_names_every_difference() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    let leaf = |dtype, dims: &[u64]| Leaf::array(array(dtype, dims, 1));
    let stored = dict(vec![
        ("a", leaf(Dtype::Float32, &[2])),
        ("b", leaf(Dtype::Float32, &[2])),
        ("c", leaf(Dtype::Int8, &[3])),
        ("x", leaf(Dtype::Int8, &[3])),
    ]);
    regrow::save(&path, &stored).unwrap();
    let template = |leaves: Vec<(&'static str, Leaf)>| {
        dict(leaves).map(|leaf| {
            let array = leaf.as_array().unwrap();
            TemplateLeaf { dtype: Some(array.dtype()), shape: Some(array.shape().clone()), skip: false }
        })
    };
    let wanted = template(vec![
        ("a", leaf(Dtype::Float32, &[2])),
        ("b", leaf(Dtype::Float16, &[2])),
        ("c", leaf(Dtype::Int8, &[4])),
        ("y", leaf(Dtype::Int8, &[3])),
    ]);
    let error =
        load_with(&path, &LoadOptions { template: Some(wanted), ..LoadOptions::default() }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    let text = error.to_string();
    for part in ["4 places", "dtype     b", "shape     c", "missing   y", "extra     x"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let fits = template(vec![("c", leaf(Dtype::Int8, &[3]))]);
    let options = LoadOptions { template: Some(fits), partial: true, ..LoadOptions::default() };
    assert_eq!(load_with(&path, &options).unwrap().len(), 1);
}

/// Every byte of every file is under a checksum: whichever is flipped, `verify` names that file.
#[test]
fn a_flipped_bit_anywhere_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let (original, copy) = (folder.path().join("step"), folder.path().join("copy"));
    regrow::save(&original, &everything()).unwrap();
    regrow_testkit::copy_folder(&original, &copy).unwrap();
    let files = regrow_testkit::files_below(&copy).unwrap();
    assert!(files.len() >= 8, "{files:?}");
    let mut tried = 0;
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        for at in (0..bytes.len()).step_by((bytes.len() / 23).max(1)) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            std::fs::write(&file, damaged).unwrap();
            let named = match regrow::verify(&copy) {
                Ok(report) => {
                    report.findings.iter().any(|found| found.error.place().file.as_ref() == Some(&file))
                }
                Err(error) => error.place().file.as_ref() == Some(&file),
            };
            assert!(named, "byte {at} of {}", file.display());
            tried += 1;
        }
        std::fs::write(&file, bytes).unwrap();
    }
    assert!(tried > 100);
    assert!(regrow::verify(&copy).unwrap().is_ok());
}

#[test]
fn damage_to_one_leaf_leaves_the_others_readable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    let leaf = |seed| Leaf::array(array(Dtype::UInt8, &[2 << 20], seed));
    regrow::save(&path, &dict(vec![("0", leaf(0)), ("1", leaf(1)), ("2", leaf(2))])).unwrap();
    let data = path.join("model.safetensors");
    let mut bytes = std::fs::read(&data).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&data, bytes).unwrap();
    let checkpoint = regrow::open(&path).unwrap();
    assert!(checkpoint.read(0).is_ok() && checkpoint.read(2).is_ok());
    let error = checkpoint.read(1).unwrap_err();
    assert_eq!((error.kind(), error.place().file.as_ref()), (ErrorKind::Corrupt, Some(&data)));
    assert_eq!(error.place().leaf.as_ref().unwrap().to_string(), "1");
    assert!(error.place().offset_bytes.unwrap() <= middle as u64);
    assert!(error.expected_found().is_some() && error.help_text().is_some());
    assert_eq!(load(&path).unwrap_err().kind(), ErrorKind::Corrupt, "load hands out no wrong number");
}

#[test]
fn a_truncated_file_is_named_and_never_faults() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    regrow::save(&path, &everything()).unwrap();
    let data = path.join("model.safetensors");
    let whole = std::fs::read(&data).unwrap();
    for len in [0, 7, 100, 4096, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&data, &whole[..len]).unwrap();
        let error = load(&path).unwrap_err();
        assert_eq!((error.kind(), error.place().file.as_ref()), (ErrorKind::Corrupt, Some(&data)), "{error}");
    }
    std::fs::remove_file(&data).unwrap();
    assert_eq!(load(&path).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_save_keeps_an_existing_target_without_overwrite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    let (old, new) = (Tree::single(Leaf::text("old")), Tree::single(Leaf::text("new")));
    regrow::save(&path, &old).unwrap();
    assert_eq!(regrow::save(&path, &new).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_same(&old, &load(&path).unwrap());
    regrow::save_with(&path, &new, &SaveOptions { overwrite: true, ..SaveOptions::default() }).unwrap();
    assert_same(&new, &load(&path).unwrap());
    assert_eq!(names_in(folder.path()), ["step"]);
}

#[test]
fn a_refused_save_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    let unknown =
        Leaf { kind: LeafKind::Unknown(Arc::from("my.Type")), data: LeafData::Absent, sharding: None };
    let error = regrow::save(&path, &Tree::single(unknown)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("my.Type"));
    let error = regrow::save_with(&path, &everything(), &strict()).unwrap_err();
    for part in ["kinds/3", "kinds/11", "kinds/12", "dtypes/uint4", "odd/a.b"] {
        assert!(error.to_string().contains(part), "{part} is not in {error}");
    }
    assert!(names_in(folder.path()).is_empty());
}

#[test]
fn a_folder_of_steps_opens_at_its_newest_with_its_checksums() {
    let folder = tempfile::tempdir().unwrap();
    for step in [1, 2, 10] {
        regrow::save(folder.path().join(step.to_string()), &Tree::single(Leaf::scalar(Scalar::Int(step))))
            .unwrap();
    }
    let newest = regrow::open(folder.path()).unwrap();
    assert_eq!((newest.description().step, &newest.description().steps[..]), (Some(10), &[1, 2, 10][..]));
    assert_eq!(newest.description().layout, "regrow");
    assert!(newest.verify().unwrap().has_data_checksums);
    let options = LoadOptions {
        open: regrow::OpenOptions { step: Some(2), ..regrow::OpenOptions::default() },
        ..LoadOptions::default()
    };
    let tree = load_with(folder.path(), &options).unwrap();
    assert_same(&Tree::single(Leaf::scalar(Scalar::Int(2))), &tree);
    let absent = LoadOptions {
        open: regrow::OpenOptions { step: Some(3), ..regrow::OpenOptions::default() },
        ..LoadOptions::default()
    };
    assert_eq!(load_with(folder.path(), &absent).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn the_error_for_no_checkpoint_lists_the_layouts() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("notes.txt"), "hello").unwrap();
    let error = regrow::open(folder.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotACheckpoint);
    assert!(error.to_string().contains("notes.txt") && error.to_string().contains("_METADATA"), "{error}");
    assert_eq!(regrow::open(folder.path().join("absent")).unwrap_err().kind(), ErrorKind::NotFound);
}

/// A false `regrow.json` with a fitting checksum: an error of kind `Corrupt`, for any false value.
#[test]
fn a_manifest_that_contradicts_itself_is_corrupt() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    regrow::save(&path, &dict(vec![("a", Leaf::array(array(Dtype::Int8, &[2], 8))), ("b", Leaf::text("x"))]))
        .unwrap();
    let file = path.join("regrow.json");
    let honest = std::fs::read_to_string(&file).unwrap();
    let lies = [
        ("\"leaf_files\":[0", "\"leaf_files\":[-2"),
        ("\"leaf_files\":[0", "\"leaf_files\":[9"),
        ("\"leaf_offsets\":[", "\"leaf_offsets\":[9"),
        ("\"nodes\":\"dll\"", "\"nodes\":\"lll\""),
        ("\"nodes\":\"dll\"", "\"nodes\":\"dnl\""),
        ("\"keys\":[0,0,1]", "\"keys\":[0,0,0]"),
        ("\"child_counts\":[2]", "\"child_counts\":[3]"),
        ("\"name\":\"model.safetensors\"", "\"name\":\"../model.safetensors\""),
        ("\"name\":\"_METADATA\"", "\"name\":\"../_METADATA\""),
        ("\"block_len_bytes\":32768", "\"block_len_bytes\":18446744073709551615"),
        ("\"block_len_bytes\":32768", "\"block_len_bytes\":0"),
    ];
    for (truth, lie) in lies {
        assert!(honest.contains(truth), "{truth} is not in {honest}");
        let body = honest[21..].replacen(truth, lie, 1);
        let crc = regrow_base::bytes::checksum::crc32c(body.as_bytes());
        std::fs::write(&file, format!("{{\"crc32c\":\"{crc:08x}\",{body}")).unwrap();
        let error = regrow::verify(&path).unwrap_err();
        assert_eq!(
            (error.kind(), error.place().file.as_ref()),
            (ErrorKind::Corrupt, Some(&file)),
            "{lie}: {error}"
        );
    }
}

#[test]
fn a_later_layout_version_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    regrow::save(&path, &Tree::single(Leaf::text("x"))).unwrap();
    let file = path.join("regrow.json");
    let text = std::fs::read_to_string(&file).unwrap();
    // The document after its checksum, with another version and a checksum that fits.
    let body = text[21..].replacen("\"version\":1", "\"version\":7", 1);
    let crc = regrow_base::bytes::checksum::crc32c(body.as_bytes());
    std::fs::write(&file, format!("{{\"crc32c\":\"{crc:08x}\",{body}")).unwrap();
    let error = regrow::open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("version 7"), "{error}");
}

#[test]
fn keys_of_any_length_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let long = |last: &str| format!("{}{last}", "k".repeat(70_000));
    let (one, two) = (long("1"), long("2"));
    let leaf = |seed| Leaf::array(array(Dtype::Float32, &[30, 30], seed));
    let tree = dict([
        (one.as_str(), leaf(1)),
        (two.as_str(), leaf(2)),
        ("short", leaf(3)),
        ("text", Leaf::text("x")),
    ]);
    for (name, compression) in [("raw", None), ("zstd", Some(Compression::Zstd(3)))] {
        let path = folder.path().join(name);
        regrow::save_with(&path, &tree, &SaveOptions { compression, ..SaveOptions::default() }).unwrap();
        assert_same(&tree, &load(&path).unwrap());
        assert!(regrow::verify(&path).unwrap().findings.is_empty());
        // The same as a plain Orbax checkpoint, under names that a database has room for.
        std::fs::remove_file(path.join("regrow.json")).unwrap();
        let plain = regrow::open(&path).unwrap();
        assert_eq!(plain.tree().len(), 4);
        assert!(plain.tree().leaves().iter().all(|info| info.name.len() < 300));
    }
    let error = regrow::save_with(folder.path().join("strict"), &tree, &strict()).unwrap_err();
    assert!(error.what().starts_with("2 leaves cannot be saved like this"), "{}", error.what().len());
}
