//! Written files equal those of safetensors, and are read correctly.

use regrow::LoadOptions;
use regrow_base::error::Result;
use regrow_layouts::Reader;
use regrow_layouts::options::{Compression, Layout, OpenOptions, SaveOptions};
use regrow_layouts::safetensors::{FileImage, TreeForm, layout, open_as, open_bytes};
use regrow_storage::location::Location;
use regrow_tree::tree::{Leaf, Tree};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::json;

use regrow_base::error::ErrorKind;
use regrow_tree::array::{Array, ArraySource, Dtype, Region, Shape};
use regrow_tree::tree::{Key, LeafData, LeafKind, NodeKind, Scalar, TreeBuilder};

fn save_options(options: serde_json::Value) -> SaveOptions {
    SaveOptions {
        layout: Layout::from_name("safetensors", options).unwrap(),
        casting: regrow_tree::array::Casting::Lossy,
        ..SaveOptions::default()
    }
}

fn array(dtype: Dtype, dims: &[u64], seed: u8) -> Array {
    let shape = Shape::new(dims).unwrap();
    let top = if dtype == Dtype::Bool { 2 } else { 16 };
    let len = shape.len_bytes(dtype).unwrap();
    let bytes: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(7).wrapping_add(seed) % top).collect();
    Array::new(dtype, shape, bytes.into()).unwrap()
}

fn dict(leaves: Vec<(&str, Leaf)>) -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for (key, leaf) in leaves {
        build.leaf(Key::dict(key), leaf).unwrap();
    }
    build.close().unwrap();
    build.finish().unwrap()
}

/// A tree with leaves of every kind, and with containers of several kinds.
fn rich() -> Tree<Leaf> {
    let of_kind = |kind, array| Leaf { kind, data: LeafData::Array(array), sharding: None };
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for (i, dtype) in Dtype::all().enumerate() {
        build.leaf(Key::dict(dtype.name()), Leaf::array(array(dtype, &[3, 4], i as u8))).unwrap();
    }
    build.open(Key::DictInt(-3), NodeKind::NamedTuple(Arc::from("optax.Adam"))).unwrap();
    build.leaf(Key::attr("odd"), Leaf::array(array(Dtype::Float4E2m1fn, &[4, 3], 1))).unwrap();
    build.leaf(Key::attr("empty"), Leaf::array(array(Dtype::Float32, &[0, 3], 0))).unwrap();
    build.leaf(Key::attr("scalar"), Leaf::array(array(Dtype::BFloat16, &[], 3))).unwrap();
    build.open(Key::attr("none"), NodeKind::None).unwrap();
    build.close().unwrap();
    build.close().unwrap();
    build.open(Key::dict("others"), NodeKind::List).unwrap();
    let others = [
        Leaf::text("t\u{e9}xt"),
        Leaf::scalar(Scalar::Int(-7)),
        Leaf::scalar(Scalar::Complex(1.0, -0.0)),
        of_kind(LeafKind::Bytes, array(Dtype::UInt8, &[5], 9)),
        of_kind(LeafKind::PrngKey(Some(Arc::from("rbg"))), array(Dtype::UInt32, &[4], 9)),
        of_kind(LeafKind::NumpyOther(Arc::from("<U2")), array(Dtype::UInt8, &[3, 8], 9)),
        Leaf { kind: LeafKind::Placeholder, data: LeafData::Absent, sharding: None },
    ];
    for (i, leaf) in others.into_iter().enumerate() {
        build.leaf(Key::Index(i), leaf).unwrap();
    }
    build.close().unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

fn image(tree: &Tree<Leaf>, options: &SaveOptions) -> Result<Vec<u8>> {
    let image = FileImage::new(tree, options)?;
    let mut out = vec![0xee; image.len_bytes() as usize];
    image.write_to(&mut out).map(|()| out)
}

fn assert_same(left: &Tree<Leaf>, right: &Tree<Leaf>) {
    assert_eq!(left.nodes(), right.nodes());
    for ((path, left), right) in left.iter().zip(right.leaves()) {
        assert_eq!(left.kind, right.kind, "{path}");
        match (&left.data, &right.data) {
            (LeafData::Array(left), LeafData::Array(right)) => {
                assert_eq!((left.dtype(), left.shape()), (right.dtype(), right.shape()), "{path}");
                assert_eq!(left.to_c_order().unwrap(), right.to_c_order().unwrap(), "{path}");
            }
            (LeafData::Text(left), LeafData::Text(right)) => assert_eq!(left, right, "{path}"),
            (LeafData::Absent, LeafData::Absent) => {}
            _ => panic!("{path}: another kind of data"),
        }
    }
}

struct Target(tempfile::TempDir);

impl Target {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

#[test]
fn every_leaf_and_container_comes_back() {
    let (target, tree) = (Target::new(), rich());
    let all_options = [
        ("a.safetensors", json!({})),
        ("b.safetensors", json!({"align": 4096, "separator": "/", "format": "pt"})),
        ("c", json!({})),
        ("d", json!({"max_shard_bytes": "40B"})),
        ("e.bin", json!({"one_file": true})),
    ];
    for (name, options) in all_options {
        let path = target.path(name);
        let mut save = save_options(options.clone());
        save.custom_metadata = Some(json!({"epoch": 3, "nested": [null]}));
        regrow::save_with(&path, &tree, &save).unwrap();
        let loaded = match name.ends_with(".bin") {
            true => {
                assert!(path.is_file());
                let read = |at: &Location| open_as(at, &TreeForm::Kept);
                regrow::Checkpoint::open_by(&path, read).unwrap().load(&LoadOptions::default()).unwrap()
            }
            false => {
                let checkpoint = regrow::open(&path).unwrap();
                let metadata = checkpoint.description().custom_metadata.clone().unwrap();
                assert_eq!(metadata, json!({"epoch": 3, "nested": [null]}), "{name}");
                checkpoint.load(&LoadOptions::default()).unwrap()
            }
        };
        assert_same(&loaded, &tree);
    }
    assert!(target.path("c/model.safetensors").is_file());
    assert!(target.path("d/model.safetensors.index.json").is_file());
    assert!(std::fs::read_dir(target.path("d")).unwrap().count() > 10, "as many files as are needed");
}

#[test]
fn a_file_and_its_image_are_the_same_bytes() {
    let (target, tree) = (Target::new(), rich());
    let save = save_options(json!({}));
    let path = target.path("x.safetensors");
    regrow::save_with(&path, &tree, &save).unwrap();
    let bytes = image(&tree, &save).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    let checkpoint = regrow::Checkpoint::in_memory(open_bytes(bytes.into(), &TreeForm::Kept).unwrap());
    assert_same(&checkpoint.load(&LoadOptions::default()).unwrap(), &tree);
}

/// The whole file, byte for byte, as safetensors 0.8 writes it.
#[test]
fn a_plain_file_is_safetensors_own() {
    let tree = dict(vec![
        ("b", Leaf::array(array(Dtype::Float32, &[0, 2], 0))),
        ("flag", Leaf::array(Array::new(Dtype::Bool, Shape::scalar(), vec![1].into()).unwrap())),
        ("a", Leaf::array(Array::new(Dtype::Float32, Shape::scalar(), vec![0, 0, 128, 63].into()).unwrap())),
        (
            "\u{e9}\"\n\u{1}/",
            Leaf::array(Array::new(Dtype::UInt8, Shape::new(vec![1]).unwrap(), vec![0].into()).unwrap()),
        ),
    ]);
    let found = image(&tree, &save_options(json!({"structure": false, "format": "np"}))).unwrap();
    let json = "{\"__metadata__\":{\"format\":\"np\"},\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},\
                \"b\":{\"dtype\":\"F32\",\"shape\":[0,2],\"data_offsets\":[4,4]},\
                \"\u{e9}\\\"\\n\\u0001/\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[4,5]},\
                \"flag\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[5,6]}}";
    let padded = json.len().next_multiple_of(8);
    let mut expected = (padded as u64).to_le_bytes().to_vec();
    expected.extend_from_slice(json.as_bytes());
    expected.resize(8 + padded, b' ');
    expected.extend_from_slice(&[0, 0, 128, 63, 0, 1]);
    assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(&expected));
}

/// The order of the dtypes is safetensors' own: the fixture has one tensor of each.
#[test]
fn every_dtype_lies_where_safetensors_puts_it() {
    let path = regrow_testkit::fixtures().join("safetensors/every_dtype.safetensors");
    let theirs = std::fs::read(&path).unwrap();
    let read = |at: &Location| open_as(at, &TreeForm::Flat);
    let loaded = regrow::Checkpoint::open_by(&path, read).unwrap().load(&LoadOptions::default()).unwrap();
    // safetensors writes metadata in no fixed order, so the test keeps the fixture's order.
    let header_len = u64::from_le_bytes(theirs[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&theirs[8..8 + header_len]).unwrap();
    let mut save = save_options(json!({"structure": false}));
    save.custom_metadata = Some(header["__metadata__"].clone());
    assert_eq!(image(&loaded, &save).unwrap(), theirs);
}

#[test]
fn a_folder_is_cut_as_asked_and_replaced_only_if_it_holds_nothing_else() {
    let target = Target::new();
    let path = target.path("model");
    let leaf = |seed| Leaf::array(array(Dtype::UInt8, &[10], seed));
    let tree = dict(vec![("c", leaf(1)), ("a", leaf(2)), ("b", leaf(3))]);
    let mut save = save_options(json!({"structure": false, "max_shard_bytes": 20}));
    regrow::save_with(&path, &tree, &save).unwrap();
    let index = std::fs::read_to_string(path.join("model.safetensors.index.json")).unwrap();
    let map = json!({"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors",
                     "c": "model-00001-of-00002.safetensors"});
    let expected = json!({"metadata": {"total_size": 30}, "weight_map": map});
    assert_eq!(index, format!("{}\n", serde_json::to_string_pretty(&expected).unwrap()));
    save.overwrite = true;
    save.layout = save_options(json!({"structure": false})).layout;
    regrow::save_with(&path, &tree, &save).unwrap();
    let names: Vec<_> = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["model.safetensors"]);
    std::fs::write(path.join("config.json"), "{}").unwrap();
    assert_eq!(regrow::save_with(&path, &tree, &save).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(path.join("config.json").is_file());
}

#[test]
fn colliding_names_are_all_refused_with_both_paths() {
    let leaf = || Leaf::array(array(Dtype::UInt8, &[1], 1));
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.open(Key::dict("a"), NodeKind::List).unwrap();
    build.leaf(Key::Index(0), leaf()).unwrap();
    build.leaf(Key::Index(1), leaf()).unwrap();
    build.close().unwrap();
    build.leaf(Key::dict("a.0"), leaf()).unwrap();
    build.leaf(Key::dict("a.1"), leaf()).unwrap();
    build.close().unwrap();
    let tree = build.finish().unwrap();
    let error = image(&tree, &save_options(json!({}))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NameCollision);
    let text = error.to_string();
    for part in
        ["2 leaves", "a.0: its name \"a.0\" is also that of a/0", "a.1: its name \"a.1\" is also that of a/1"]
    {
        assert!(text.contains(part), "{text}");
    }
    assert!(image(&tree, &save_options(json!({"separator": "/"}))).is_ok());
    let reserved = dict(vec![("__metadata__", leaf())]);
    assert_eq!(image(&reserved, &save_options(json!({}))).unwrap_err().kind(), ErrorKind::NameCollision);
}

#[test]
fn without_the_structure_what_is_no_tensor_is_refused_by_name() {
    let plain = save_options(json!({"structure": false}));
    let error = image(&rich(), &plain).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    let refused =
        ["int4", "uint2", "float6_e2m3fn", "float8_e3m4", "complex128", "others/0", "others/5", "-3/odd"];
    for leaf in refused {
        assert!(text.contains(&format!("\n  {leaf}: ")), "{leaf}: {text}");
    }
    for leaf in ["float4_e2m1fn", "bfloat16", "complex64", "others/1", "others/3", "others/4", "others/6"] {
        assert!(!text.contains(&format!("\n  {leaf}: ")), "{leaf}: {text}");
    }
    let unknown = Leaf { kind: LeafKind::Unknown(Arc::from("x.Y")), data: LeafData::Absent, sharding: None };
    assert!(image(&dict(vec![("u", unknown)]), &save_options(json!({}))).is_err());
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let tree = dict(vec![("a", Leaf::array(array(Dtype::UInt8, &[1], 1)))]);
    let kind = |save: &SaveOptions| image(&tree, save).unwrap_err().kind();
    assert_eq!(kind(&save_options(json!({"align": 3}))), ErrorKind::InvalidArgument);
    assert_eq!(kind(&save_options(json!({"max_shard_bytes": 3}))), ErrorKind::InvalidArgument);
    let zstd = SaveOptions { compression: Some(Compression::Zstd(1)), ..save_options(json!({})) };
    assert_eq!(kind(&zstd), ErrorKind::InvalidArgument);
    assert!(Layout::from_name("safetensors", json!({"max_shard_bytes": "lots"})).is_err());
    assert!(Layout::from_name("safetensors", json!({"sep": "."})).is_err());
}

#[test]
fn aligned_data_begins_at_a_page() {
    let tree = dict(vec![("a", Leaf::array(array(Dtype::Float32, &[3], 1)))]);
    let bytes = image(&tree, &save_options(json!({"align": 4096, "structure": false}))).unwrap();
    assert_eq!(bytes.len(), 4096 + 12);
    let header = layout::Header::parse(&bytes[8..4096], bytes.len() as u64).unwrap();
    assert_eq!(header.data_offset, 4096);
}

/// Keeps the length of the longest read.
#[derive(Debug)]
struct Elsewhere(Array, std::sync::atomic::AtomicUsize);

impl ArraySource for Elsewhere {
    fn read_c_order(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        self.1.fetch_max(out.len(), std::sync::atomic::Ordering::Relaxed);
        self.0.copy_c_order(offset_bytes, out)
    }

    fn read_region(&self, region: &Region, out: &mut [u8]) -> Result<()> {
        self.0.copy_region_c_order(region, out)
    }
}

#[test]
fn deferred_and_strided_arrays_are_streamed_packed_and_cast() {
    let target = Target::new();
    let base = array(Dtype::Float32, &[1 << 20], 3);
    let source = Arc::new(Elsewhere(base.clone(), Default::default()));
    let deferred = Array::deferred(Dtype::Float32, base.shape().clone(), source.clone()).unwrap();
    let f4 = array(Dtype::Float4E2m1fn, &[8, 6], 3);
    let strided = Array::with_strides(
        Dtype::Float4E2m1fn,
        Shape::new(vec![6, 8]).unwrap(),
        vec![1, 6],
        0,
        f4.to_c_order().unwrap(),
    )
    .unwrap();
    let leaves =
        || vec![("deferred", Leaf::array(deferred.clone())), ("strided", Leaf::array(strided.clone()))];
    let path = target.path("x.safetensors");
    regrow::save_with(&path, &dict(leaves()), &save_options(json!({"structure": false}))).unwrap();
    let expected = dict(vec![
        ("deferred", Leaf::array(base.clone())),
        (
            "strided",
            Leaf::array(
                Array::new(strided.dtype(), strided.shape().clone(), strided.to_c_order().unwrap()).unwrap(),
            ),
        ),
    ]);
    assert_same(&regrow::load(&path).unwrap(), &expected);
    assert!(source.1.load(std::sync::atomic::Ordering::Relaxed) <= 1 << 20);
    let mut cast = save_options(json!({}));
    cast.cast = vec![(regrow_tree::tree::PathPattern::new("**").unwrap(), Dtype::Float4E2m1fn)];
    let small = dict(vec![("x", Leaf::array(array(Dtype::Float32, &[4], 0)))]);
    let path = target.path("cast.safetensors");
    regrow::save_with(&path, &small, &cast).unwrap();
    let reader = open_bytes(std::fs::read(&path).unwrap().into(), &TreeForm::Kept).unwrap();
    assert_eq!(reader.tree().leaves()[0].dtype, Dtype::Float4E2m1fn);
    assert_eq!(&*reader.tree().leaves()[0].coding, "packed");
}

#[test]
fn the_form_of_the_tree_is_the_caller_s_choice() {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.open(Key::dict("a"), NodeKind::List).unwrap();
    build.leaf(Key::Index(0), Leaf::array(array(Dtype::Int4, &[2], 1))).unwrap();
    build.close().unwrap();
    build.close().unwrap();
    let bytes: Bytes = image(&build.finish().unwrap(), &save_options(json!({}))).unwrap().into();
    let open = |form| open_bytes(bytes.clone(), &form).unwrap();
    let seen = |reader: Box<dyn Reader>| {
        let leaf = reader.tree().leaves()[0].clone();
        (reader.tree().paths()[0].to_string(), leaf.dtype, reader.description().custom_metadata.is_some())
    };
    assert_eq!(seen(open(TreeForm::Kept)), ("a/0".to_owned(), Dtype::Int4, false));
    assert_eq!(seen(open(TreeForm::Flat)), ("a.0".to_owned(), Dtype::UInt8, true));
    assert_eq!(seen(open(TreeForm::Nested(".".to_owned()))), ("a/0".to_owned(), Dtype::UInt8, true));
}

fn load_all(bytes: Bytes) -> Result<()> {
    for form in [TreeForm::Kept, TreeForm::Flat, TreeForm::Nested(".".to_owned())] {
        let checkpoint = regrow::Checkpoint::in_memory(open_bytes(bytes.clone(), &form)?);
        checkpoint.load(&LoadOptions::default())?;
    }
    Ok(())
}

#[test]
fn every_truncation_of_ours_is_refused() {
    let bytes = Bytes::from(image(&rich(), &save_options(json!({}))).unwrap());
    let read = |bytes: Bytes| open_bytes(bytes, &TreeForm::Flat).map(|_| ());
    read(bytes.clone()).unwrap();
    for len in 0..bytes.len() {
        assert!(read(bytes.slice(..len)).is_err(), "{len} bytes");
    }
}

#[test]
fn a_flipped_bit_in_the_header_never_panics_nor_reads_beyond_the_file() {
    let tree = dict(vec![
        ("w.kernel", Leaf::array(array(Dtype::Float4E2m1fn, &[2, 4], 1))),
        ("w.bias", Leaf::array(array(Dtype::Float32, &[3], 1))),
        ("n", Leaf::text("hello")),
    ]);
    let bytes = image(&tree, &save_options(json!({}))).unwrap();
    load_all(bytes.clone().into()).unwrap();
    let data_len = 3 * 4 + 4;
    let mut refused = 0;
    for at in 0..(bytes.len() - data_len) {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            refused += usize::from(load_all(damaged.into()).is_err());
        }
    }
    assert!(refused > bytes.len(), "{refused} of {}", 8 * bytes.len());
}

proptest! {
    #[test]
    fn any_dict_comes_back_with_and_without_the_structure(
        tensors in prop::collection::btree_map("[a-c./]{0,5}", (0..30_usize, prop::collection::vec(0..5_u64, 0..4), any::<u8>()), 0..8),
        max_shard_bytes in prop::option::of(1..200_u64),
    ) {
        let target = Target::new();
        let leaves = tensors.iter().map(|(name, (dtype, dims, seed))| {
            (name.as_str(), Leaf::array(array(Dtype::all().nth(*dtype).unwrap(), dims, *seed)))
        });
        let tree = dict(leaves.collect());
        let path = target.path("model");
        let mut options = json!({"max_shard_bytes": max_shard_bytes});
        let mut save = save_options(options.clone());
        save.not_durable = true;
        regrow::save_with(&path, &tree, &save).unwrap();
        assert_same(&regrow::load(&path).unwrap(), &tree);
        options["structure"] = false.into();
        save.layout = save_options(options).layout;
        save.overwrite = true;
        match regrow::save_with(&path, &tree, &save) {
            Ok(_) => {
                let found = regrow::open_with(&path, &OpenOptions::default()).unwrap();
                prop_assert_eq!(found.tree().len(), tree.len());
                for (leaf, (name, (dtype, dims, seed))) in tree.leaves().iter().zip(&tensors) {
                    let at = found.tree().leaves().iter().position(|info| *info.name == **name).unwrap();
                    let read = found.read(at).unwrap();
                    let expected = array(Dtype::all().nth(*dtype).unwrap(), dims, *seed);
                    prop_assert_eq!(read.as_array().unwrap().dtype(), leaf.as_array().unwrap().dtype());
                    prop_assert_eq!(read.as_array().unwrap().to_c_order().unwrap(), expected.to_c_order().unwrap());
                }
            }
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Unsupported),
        }
    }

    #[test]
    fn random_damage_never_panics(changes in prop::collection::vec((0..600_usize, any::<u8>()), 1..6)) {
        let tree = dict(vec![
            ("w.kernel", Leaf::array(array(Dtype::Float4E2m1fn, &[2, 4], 1))),
            ("w.bias", Leaf::array(array(Dtype::Float32, &[3], 1))),
        ]);
        let mut bytes = image(&tree, &save_options(json!({}))).unwrap();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        let _ = load_all(bytes.into());
    }
}
