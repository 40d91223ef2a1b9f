//! Written files are read correctly, and damage is detected.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use regrow::engine::{self, SaveOptions};
use regrow_base::error::ErrorKind;
use regrow_layouts::equinox::Equinox;
use regrow_layouts::options::{Layout, OpenOptions};
use regrow_layouts::{Fidelity, Format, LossKind};
use regrow_tree::array::{Array, ArraySource, Dtype, Region, Shape};
use regrow_tree::tree::{Key, LeafKind, NodeKind, Scalar, TreeBuilder};

fn shape(dims: &[u64]) -> Shape {
    Shape::new(dims).unwrap()
}

fn bytes(len: usize) -> Bytes {
    (0..len).map(|at| (at * 7 % 251) as u8).collect::<Vec<_>>().into()
}

fn array(dtype: Dtype, dims: &[u64]) -> Array {
    let len = shape(dims).len_bytes(dtype).unwrap() as usize;
    Array::new(dtype, shape(dims), bytes(len)).unwrap()
}

fn of_kind(kind: LeafKind, array: Array) -> Leaf {
    Leaf { kind, ..Leaf::array(array) }
}

/// Every kind of leaf and container, keys in another order than JAX'.
fn tree() -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("z"), of_kind(LeafKind::JaxArray, array(Dtype::BFloat16, &[2, 3]))).unwrap();
    build.open(Key::dict("dtypes"), NodeKind::OrderedDict).unwrap();
    for dtype in Dtype::all() {
        build.leaf(Key::dict(dtype.name()), Leaf::array(array(dtype, &[3, 2]))).unwrap();
    }
    build.close().unwrap();
    build.open(Key::dict("a"), NodeKind::NamedTuple(Arc::from("m.Pair"))).unwrap();
    build.leaf(Key::attr("left"), Leaf::scalar(Scalar::Int(-5))).unwrap();
    build.leaf(Key::attr("right"), of_kind(LeafKind::NumpyScalar, array(Dtype::Float16, &[]))).unwrap();
    build.close().unwrap();
    build.open(Key::dict("none"), NodeKind::None).unwrap();
    build.close().unwrap();
    build.open(Key::dict("empty"), NodeKind::Tuple).unwrap();
    build.close().unwrap();
    build.leaf(Key::dict("text"), Leaf::text("hé\nllo")).unwrap();
    build.leaf(Key::dict("bytes"), of_kind(LeafKind::Bytes, array(Dtype::UInt8, &[9]))).unwrap();
    let placeholder =
        Leaf { kind: LeafKind::Placeholder, data: regrow_tree::tree::LeafData::Absent, sharding: None };
    build.leaf(Key::dict("left_out"), placeholder).unwrap();
    let words = of_kind(LeafKind::NumpyOther(Arc::from("<U2")), array(Dtype::UInt8, &[3, 8]));
    build.leaf(Key::dict("words"), words).unwrap();
    build.leaf(Key::dict("nothing"), Leaf::array(array(Dtype::Float64, &[0, 4]))).unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

fn options(value: serde_json::Value) -> SaveOptions {
    SaveOptions {
        layout: Layout::from_name("equinox", value).unwrap(),
        not_durable: true,
        casting: regrow_tree::array::Casting::Lossy,
        ..Default::default()
    }
}

fn saved(tree: &Tree<Leaf>, own: serde_json::Value) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.eqx");
    engine::save_with(&path, tree, &options(own)).unwrap();
    (folder, path)
}

fn assert_same(left: &Tree<Leaf>, right: &Tree<Leaf>) {
    assert_eq!(left.nodes(), right.nodes());
    for ((path, one), other) in left.iter().zip(right.leaves()) {
        assert_eq!(one.kind, other.kind, "{path}");
        match (one.as_array(), other.as_array()) {
            (Some(a), Some(b)) => {
                assert_eq!((a.dtype(), a.shape()), (b.dtype(), b.shape()), "{path}");
                assert_eq!(a.to_c_order().unwrap(), b.to_c_order().unwrap(), "{path}");
            }
            _ => assert_eq!(format!("{:?}", one.data), format!("{:?}", other.data), "{path}"),
        }
    }
}

#[test]
fn the_exact_tree_comes_back() {
    for own in [json!(null), json!({"strict": true}), json!({"hyperparameters": {"depth": 2}})] {
        let (_folder, path) = saved(&tree(), own.clone());
        assert_same(&tree(), &engine::load(&path).unwrap());
        let checkpoint = engine::open(&path).unwrap();
        assert_eq!(checkpoint.description().layout, "equinox");
        let metadata = own.get("hyperparameters").cloned();
        assert_eq!(checkpoint.description().custom_metadata, metadata);
        let report = engine::verify(&path).unwrap();
        assert!(report.is_ok() && report.has_data_checksums, "{:?}", report.findings);
        let own = Layout::from_name("equinox", own).unwrap();
        let options = SaveOptions { layout: own, ..Default::default() };
        let losses = Equinox.losses(checkpoint.tree(), &[], &options);
        assert!(losses.iter().all(|loss| loss.what.ends_with(", but for regrow")), "{losses:?}");
    }
}

#[test]
fn without_a_trailer_the_leaves_come_back_in_jax_order() {
    let (_folder, path) = saved(&tree(), json!({"trailer": false}));
    let loaded = engine::load(&path).unwrap();
    let original = tree();
    let with_record = |&leaf: &usize| {
        let kind = &original.leaves()[leaf].kind;
        !matches!(kind, LeafKind::Str | LeafKind::Bytes | LeafKind::Placeholder)
    };
    let order: Vec<usize> = jax_order(&original).into_iter().filter(with_record).collect();
    assert_eq!(loaded.len(), order.len());
    for (leaf, found) in order.into_iter().zip(loaded.leaves()) {
        let (wanted, found) = (original.leaves()[leaf].as_array().unwrap(), found.as_array().unwrap());
        assert_eq!((wanted.dtype(), wanted.shape()), (found.dtype(), found.shape()));
        assert_eq!(wanted.to_c_order().unwrap(), found.to_c_order().unwrap());
    }
    let trailed = saved(&tree(), json!(null));
    let infos = engine::open(&trailed.1).unwrap();
    let losses = Equinox.losses(infos.tree(), &[], &options(json!({"trailer": false})));
    assert!(losses.iter().any(|loss| loss.kind == LossKind::Structure && loss.path.is_root()));
    assert_eq!(losses.iter().filter(|loss| loss.kind == LossKind::Value).count(), 3);
    // The file without a trailer is the beginning of the file with a trailer. So Equinox reads the
    // same leaves from both.
    let (short, long) = (std::fs::read(&path).unwrap(), std::fs::read(&trailed.1).unwrap());
    assert_eq!(short, long[..short.len()]);
    assert!(long[short.len()..].starts_with(&TRAILER_MAGIC));
}

#[test]
fn every_flip_is_noticed_and_every_truncation_survived() {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("w"), Leaf::array(array(Dtype::Float32, &[2, 3]))).unwrap();
    build.leaf(Key::dict("b"), of_kind(LeafKind::Bytes, array(Dtype::UInt8, &[5]))).unwrap();
    build.leaf(Key::dict("n"), Leaf::scalar(Scalar::Float(0.5))).unwrap();
    build.close().unwrap();
    let (_folder, path) = saved(&build.finish().unwrap(), json!({"hyperparameters": {"depth": 2}}));
    let raw = std::fs::read(&path).unwrap();
    let copy = path.with_file_name("damaged.eqx");
    for at in 0..raw.len() {
        for mask in [0x01, 0x20, 0x80] {
            let mut damaged = raw.clone();
            damaged[at] ^= mask;
            std::fs::write(&copy, &damaged).unwrap();
            let is_noticed = engine::verify(&copy).map_or(true, |report| !report.is_ok());
            assert!(is_noticed, "byte {at} of {}, mask {mask:02x}", raw.len());
        }
    }
    for len in 0..raw.len() {
        std::fs::write(&copy, &raw[..len]).unwrap();
        let _ = engine::verify(&copy);
        let _ = engine::load(&copy);
    }
}

#[test]
fn fortran_and_big_endian_records_are_read_in_parts() {
    let data: Vec<u8> = (0..24_u16).flat_map(u16::to_be_bytes).collect();
    let header = "{'descr': '>u2', 'fortran_order': True, 'shape': (2, 3, 4), }";
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.bytes());
    file.extend(&data);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.eqx");
    std::fs::write(&path, &file).unwrap();
    let checkpoint = engine::open(&path).unwrap();
    let region = Region::new(vec![1, 0, 2], vec![1, 2, 2]).unwrap();
    // Element (i, j, k) is i + 2 j + 6 k.
    let expected: Vec<u8> = [13_u16, 19, 15, 21].iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(checkpoint.region(0, &region).unwrap().to_c_order().unwrap(), expected);
    assert_eq!(&*checkpoint.info(0).unwrap().coding, "raw, fortran order, big endian");
}

#[test]
fn a_fortran_array_is_written_as_it_lies() {
    let raw = bytes(6 * 8);
    let fortran = Array::with_strides(Dtype::Float64, shape(&[2, 3]), vec![8, 16], 0, raw.clone()).unwrap();
    for (kind, is_kept) in [(LeafKind::NumpyArray, true), (LeafKind::JaxArray, false)] {
        let tree = Tree::single(of_kind(kind, fortran.clone()));
        let (_folder, path) = saved(&tree, json!(null));
        let file = LeafFile::open(&path).unwrap();
        let record = &file.records()[0];
        assert_eq!(record.header.fortran_order, is_kept);
        assert_eq!(record.header.shape, shape(&[2, 3]));
        let mut stored = vec![0; raw.len()];
        file.read(vec![(0, &mut stored)]).unwrap();
        assert_eq!(stored == raw, is_kept);
        assert_same(&tree, &engine::load(&path).unwrap());
    }
}

/// A deferred array, which is read piece by piece.
#[derive(Debug)]
struct Pieces(Array);

impl ArraySource for Pieces {
    fn read_c_order(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        self.0.copy_c_order(offset_bytes, out)
    }

    fn read_region(&self, region: &Region, out: &mut [u8]) -> Result<()> {
        self.0.copy_region_c_order(region, out)
    }
}

#[test]
fn records_of_many_blocks_are_checked_block_by_block() {
    let rows = 3 * trailer::BLOCK_LEN_BYTES / 4096;
    let large = array(Dtype::UInt8, &[rows, 4096]);
    let deferred =
        Array::deferred(Dtype::UInt8, large.shape().clone(), Arc::new(Pieces(large.clone()))).unwrap();
    let (_folder, path) = saved(&Tree::single(Leaf::array(deferred)), json!(null));
    assert_same(&Tree::single(Leaf::array(large.clone())), &engine::load(&path).unwrap());
    let mut raw = std::fs::read(&path).unwrap();
    let at = 128 + 2 * trailer::BLOCK_LEN_BYTES as usize;
    raw[at] ^= 1;
    std::fs::write(&path, &raw).unwrap();
    let checkpoint = engine::open(&path).unwrap();
    let row = |row| Region::new(vec![row, 7], vec![1, 100]).unwrap();
    assert!(checkpoint.region(0, &row(0)).is_ok());
    let error = checkpoint.region(0, &row(rows - 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(error.place().offset_bytes, Some(2 * trailer::BLOCK_LEN_BYTES));
    assert!(engine::load(&path).is_err());
    let mut out = vec![0; large.len_bytes() as usize];
    assert!(LeafFile::open(&path).unwrap().read(vec![(0, &mut out)]).is_err());
}

/// The first block has the header with the byte order. So a read of any part checks this block.
#[test]
fn a_part_is_not_read_by_a_damaged_header() {
    let rows = 3 * trailer::BLOCK_LEN_BYTES / 4096;
    let (_folder, path) = saved(&Tree::single(Leaf::array(array(Dtype::UInt16, &[rows, 2048]))), json!(null));
    let mut raw = std::fs::read(&path).unwrap();
    let at = raw.windows(5).position(|window| window == b"'<u2'").unwrap();
    raw[at + 1] = b'>';
    std::fs::write(&path, &raw).unwrap();
    let checkpoint = engine::open(&path).unwrap();
    let error = checkpoint.region(0, &Region::new(vec![rows - 1, 0], vec![1, 9]).unwrap()).unwrap_err();
    assert_eq!((error.kind(), error.place().offset_bytes), (ErrorKind::Corrupt, Some(0)), "{error}");
}

#[test]
fn an_empty_file_is_no_empty_list() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.eqx");
    std::fs::write(&path, b"").unwrap();
    for result in [engine::load(&path).map(drop), engine::open(&path).map(drop)] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(
            error.what().contains("empty") && error.help_text().unwrap().contains("arrays_only"),
            "{error}"
        );
    }
    assert!(!engine::verify(&path).unwrap().is_ok());
    let arrays_only = OpenOptions { arrays_only: true, ..OpenOptions::default() };
    assert_eq!(engine::open_with(&path, &arrays_only).unwrap().tree().len(), 0);
    // A save never writes an empty file.
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.close().unwrap();
    let empty = build.finish().unwrap();
    let error = engine::save_with(folder.path().join("y.eqx"), &empty, &options(json!({"trailer": false})));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unsupported);
    let (_folder, path) = saved(&empty, json!(null));
    assert_same(&empty, &engine::load(&path).unwrap());
}

/// A file that ends within the trailer is an incomplete copy, not a file of Equinox.
#[test]
fn a_trailer_that_is_cut_off_is_an_error() {
    let (_folder, path) = saved(&tree(), json!(null));
    let raw = std::fs::read(&path).unwrap();
    let end = LeafFile::open(&path).unwrap().end_bytes() as usize;
    let copy = path.with_file_name("cut.eqx");
    for len in (end + 1)..raw.len() {
        std::fs::remove_file(&copy).ok();
        std::fs::write(&copy, &raw[..len]).unwrap();
        assert_eq!(engine::load(&copy).unwrap_err().kind(), ErrorKind::Corrupt, "{len}");
        let report = engine::verify(&copy).unwrap();
        assert_eq!(report.findings.len(), 1, "{len}");
    }
}

#[test]
fn what_cannot_be_written_is_named_at_once() {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::List).unwrap();
    for at in 0..2 {
        let key = of_kind(LeafKind::PrngKey(Some(Arc::from("rbg"))), array(Dtype::UInt32, &[4]));
        build.leaf(Key::Index(at), key).unwrap();
    }
    build.close().unwrap();
    let tree = build.finish().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.eqx");
    let error = engine::save_with(&path, &tree, &options(json!(null))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.what().starts_with("2 leaves cannot be written as Equinox writes them"), "{error}");
    assert!(!path.exists());
    engine::save_with(&path, &tree, &options(json!({"prng_keys": true}))).unwrap();
    assert_same(&tree, &engine::load(&path).unwrap());
}

#[test]
fn metadata_has_one_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.eqx");
    let mut with = options(json!(null));
    with.custom_metadata = Some(json!([1, 2]));
    engine::save_with(&path, &tree(), &with).unwrap();
    assert_eq!(engine::open(&path).unwrap().description().custom_metadata, with.custom_metadata);
    for own in [json!({"trailer": false}), json!({"hyperparameters": {}}), json!({"hyperparameters": 3})] {
        let own = Layout::from_name("equinox", own).unwrap();
        let metadata = with
            .custom_metadata
            .clone()
            .filter(|_| !matches!(&own, Layout::Equinox(o) if o.hyperparameters == Some(json!(3))));
        let options =
            SaveOptions { layout: own, custom_metadata: metadata, overwrite: true, ..Default::default() };
        let error = engine::save_with(&path, &tree(), &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn only_leaf_files_are_recognised() {
    let folder = tempfile::tempdir().unwrap();
    let (_kept, path) = saved(&tree(), json!(null));
    let several = std::fs::read(&path).unwrap();
    let file = LeafFile::open(&path).unwrap();
    let one = &several[..file.records()[0].end_bytes() as usize];
    let (_kept, single) = saved(&Tree::single(Leaf::array(array(Dtype::Int8, &[3]))), json!(null));
    let cases: [(&str, Vec<u8>, bool); 9] = [
        ("x.eqx", Vec::new(), true),
        ("x.EQX", Vec::new(), false),
        ("several.npy", several.clone(), true),
        ("several", several.clone(), true),
        ("one.npy", one.to_vec(), false),
        ("one_and_trailer", std::fs::read(single).unwrap(), true),
        ("line", [b"{\"a\": 1}\n", one].concat(), true),
        ("lines.json", b"{\"a\": 1}\n{\"b\": 2}\n".to_vec(), false),
        ("short", several[..9].to_vec(), false),
    ];
    for (name, bytes, is_ours) in cases {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(Equinox.recognise(&Location::local(&path)).unwrap(), is_ours, "{name}");
    }
    std::fs::create_dir(folder.path().join("folder.eqx")).unwrap();
    assert!(!Equinox.recognise(&Location::local(folder.path().join("folder.eqx"))).unwrap());
}

#[test]
fn a_file_that_shrinks_under_its_reader_is_no_fault() {
    let (_folder, path) = saved(&tree(), json!(null));
    let checkpoint = engine::open(&path).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    for leaf in 0..checkpoint.tree().len() {
        if matches!(checkpoint.info(leaf).unwrap().kind, LeafKind::JaxArray | LeafKind::NumpyArray) {
            assert!(checkpoint.read(leaf).is_err());
        }
    }
}
