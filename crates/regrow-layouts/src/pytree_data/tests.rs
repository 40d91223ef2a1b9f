//! A load returns the saved tree, with and without the structure, and never returns other values
//! from damaged files.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use regrow::engine::{load, load_with};
use regrow::{LoadOptions, SaveOptions, open, save_with, verify};
use regrow_base::error::ErrorKind;
use regrow_layouts::options::Layout;
use regrow_layouts::pytree_data::PytreeData;
use regrow_layouts::{Fidelity, Format, Loss, LossKind};
use regrow_tree::array::{Array, Dtype, Region, Shape};
use regrow_tree::tree::{Key, LeafData, LeafKind, NodeKind, Scalar, TreeBuilder};

fn array(dtype: Dtype, dims: &[u64]) -> Array {
    let shape = Shape::new(dims).unwrap();
    let len = shape.len_bytes(dtype).unwrap();
    Array::new(dtype, shape, (0..len).map(|i| (i % 251) as u8).collect::<Vec<u8>>().into()).unwrap()
}

fn leaf(kind: LeafKind, array: Array) -> Leaf {
    Leaf { kind, data: LeafData::Array(array), sharding: None }
}

fn options(json: serde_json::Value) -> SaveOptions {
    SaveOptions {
        layout: Layout::from_name("pytree_data", json).unwrap(),
        overwrite: true,
        not_durable: true,
        casting: regrow_tree::array::Casting::Lossy,
        ..SaveOptions::default()
    }
}

/// Dicts and arrays only: nothing that the original could not say.
fn plain() -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.open(Key::dict("layer"), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("w"), Leaf::array(array(Dtype::Float32, &[2, 3]))).unwrap();
    build.leaf(Key::DictInt(-7), Leaf::array(array(Dtype::Int16, &[3]))).unwrap();
    build.close().unwrap();
    build.leaf(Key::dict("e"), Leaf::array(array(Dtype::UInt8, &[0, 4]))).unwrap();
    build.leaf(Key::dict("x"), Leaf::array(array(Dtype::Complex128, &[]))).unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

/// Everything else that a pytree can have.
fn rich() -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Tuple).unwrap();
    build.leaf(Key::Index(0), leaf(LeafKind::JaxArray, array(Dtype::Float64, &[2]))).unwrap();
    build.open(Key::Index(1), NodeKind::NamedTuple(Arc::from("optax.Adam"))).unwrap();
    build.leaf(Key::attr("count"), Leaf::scalar(Scalar::Int(-3))).unwrap();
    build.open(Key::attr("mu"), NodeKind::None).unwrap();
    build.close().unwrap();
    build.close().unwrap();
    build.open(Key::Index(2), NodeKind::List).unwrap();
    build.close().unwrap();
    build.leaf(Key::Index(3), Leaf::text("grüße\0")).unwrap();
    build.leaf(Key::Index(4), leaf(LeafKind::Bytes, array(Dtype::UInt8, &[5]))).unwrap();
    build
        .leaf(Key::Index(5), leaf(LeafKind::PrngKey(Some(Arc::from("rbg"))), array(Dtype::UInt32, &[4])))
        .unwrap();
    build.leaf(Key::Index(6), leaf(LeafKind::NumpyScalar, array(Dtype::Float16, &[]))).unwrap();
    build
        .leaf(Key::Index(7), leaf(LeafKind::NumpyOther(Arc::from("<U2")), array(Dtype::UInt8, &[3, 8])))
        .unwrap();
    build
        .leaf(Key::Index(8), Leaf { kind: LeafKind::Placeholder, data: LeafData::Absent, sharding: None })
        .unwrap();
    build.open(Key::Index(9), NodeKind::Dict).unwrap();
    build.close().unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

fn assert_same(left: &Tree<Leaf>, right: &Tree<Leaf>) {
    assert_eq!(left.nodes(), right.nodes());
    for ((path, left), (_, right)) in left.iter().zip(right.iter()) {
        assert_eq!(left.kind, right.kind, "{path}");
        match (&left.data, &right.data) {
            (LeafData::Array(left), LeafData::Array(right)) => {
                assert_eq!((left.dtype(), left.shape()), (right.dtype(), right.shape()), "{path}");
                assert_eq!(left.to_c_order().unwrap(), right.to_c_order().unwrap(), "{path}");
            }
            (LeafData::Text(left), LeafData::Text(right)) => assert_eq!(left, right),
            (LeafData::Absent, LeafData::Absent) => {}
            _ => panic!("{path}: another kind of data"),
        }
    }
}

#[test]
fn trees_of_dicts_and_arrays_come_back_with_and_without_extra_keys() {
    let root = tempfile::tempdir().unwrap();
    let stem = root.path().join("model");
    for extra in [true, false] {
        save_with(&stem, &plain(), &options(serde_json::json!({"extra_keys": extra}))).unwrap();
        assert_same(&load(&stem).unwrap(), &plain());
        for path in [stem.with_extension("manifest"), stem.with_extension("data")] {
            assert_same(&load(path).unwrap(), &plain());
        }
        let report = verify(&stem).unwrap();
        assert!(report.is_ok());
        assert_eq!(report.has_data_checksums, extra);
    }
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2);
}

#[test]
fn everything_else_comes_back_through_the_extra_keys() {
    let root = tempfile::tempdir().unwrap();
    let stem = root.path().join("model");
    save_with(&stem, &rich(), &options(serde_json::json!({}))).unwrap();
    let mut expected = rich();
    let losses = losses_of(&rich(), serde_json::json!({}));
    assert!(losses.iter().all(|loss| loss.what.ends_with(", but for regrow")), "{losses:?}");
    expected.leaves_mut()[0].kind = LeafKind::JaxArray;
    assert_same(&load(&stem).unwrap(), &expected);
    // The original finds arrays under the paths, and an empty dict for each empty container.
    let entries = entries_of(&Files::of(&Location::local(&stem)), true).unwrap();
    let paths: Vec<&str> = entries.arrays.iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(paths[..3], ["(0,)", "(1, 'count')", "(3,)"]);
    assert_eq!(entries.empty, ["(2,)", "(9,)"]);
}

fn losses_of(tree: &Tree<Leaf>, json: serde_json::Value) -> Vec<Loss> {
    let infos: Vec<LeafInfo> = tree
        .leaves()
        .iter()
        .map(|leaf| LeafInfo {
            kind: leaf.kind.clone(),
            dtype: leaf.as_array().map_or(Dtype::UInt8, Array::dtype),
            shape: leaf.as_array().map_or(Shape::scalar(), |array| array.shape().clone()),
            name: Arc::from(""),
            chunk_shape: None,
            write_shape: None,
            sharding: None,
            coding: Arc::from(""),
        })
        .collect();
    PytreeData.losses(&tree.with_leaves(infos).unwrap(), &[], &options(json))
}

#[test]
fn without_extra_keys_the_losses_are_named() {
    let losses = losses_of(&rich(), serde_json::json!({"extra_keys": false}));
    let text: Vec<String> =
        losses.iter().map(|loss| format!("{} {}: {}", loss.kind.name(), loss.path, loss.what)).collect();
    assert_eq!(
        text,
        [
            "structure .: a tuple comes back as a dict",
            "structure 1: a named_tuple comes back as a dict",
            "structure 1/mu: None is lost",
            "structure 2: an empty list is lost",
            "structure 9: an empty dict is lost",
            "note 0: comes back as a NumPy array, without its sharding",
            "kind 1/count: a scalar comes back as an array",
            "kind 3: a str comes back as an array",
            "kind 4: a bytes comes back as an array",
            "kind 5: a prng_key comes back as an array",
            "kind 6: a numpy_scalar comes back as an array",
            "value 8: has no data that could be written",
        ]
    );
    let root = tempfile::tempdir().unwrap();
    let stem = root.path().join("model");
    let error = save_with(&stem, &rich(), &options(serde_json::json!({"extra_keys": false}))).unwrap_err();
    assert_eq!(error.place().leaf.as_ref().unwrap().to_string(), "8");
    assert_eq!(losses_of(&plain(), serde_json::json!({"extra_keys": false})), []);
    assert_eq!(losses_of(&plain(), serde_json::json!({"manifest": false}))[0].kind, LossKind::Value);
}

#[test]
fn bfloat16_is_widened_exactly_or_kept_under_its_name() {
    let root = tempfile::tempdir().unwrap();
    let stem = root.path().join("model");
    let words: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let all = Array::new(Dtype::BFloat16, Shape::new(vec![1 << 16]).unwrap(), words.clone().into()).unwrap();
    let tree = Tree::single(Leaf::array(all));
    save_with(&stem, &tree, &options(serde_json::json!({}))).unwrap();
    let wide = load(&stem).unwrap();
    let wide = wide.leaves()[0].as_array().unwrap();
    assert_eq!(wide.dtype(), Dtype::Float32);
    let expected: Vec<u8> = (0..=u16::MAX).flat_map(|bits| (u32::from(bits) << 16).to_le_bytes()).collect();
    assert!(wide.to_c_order().unwrap() == expected);
    assert_eq!(losses_of(&tree, serde_json::json!({}))[0].kind, LossKind::Note);
    save_with(&stem, &tree, &options(serde_json::json!({"native_dtypes": true}))).unwrap();
    assert_same(&load(&stem).unwrap(), &tree);
    assert!(fs::read_to_string(stem.with_extension("manifest")).unwrap().contains("'dtype': 'bfloat16'"));
}

#[test]
fn small_floats_are_refused_all_at_once_or_kept_under_their_names() {
    let root = tempfile::tempdir().unwrap();
    let stem = root.path().join("model");
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for dtype in Dtype::all() {
        build.leaf(Key::dict(dtype.name()), Leaf::array(array(dtype, &[3]))).unwrap();
    }
    build.close().unwrap();
    let tree = build.finish().unwrap();
    let error = save_with(&stem, &tree, &options(serde_json::json!({}))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(
        text.contains("15 leaves") && text.contains("float8_e5m2fnuz") && text.contains("native_dtypes"),
        "{text}"
    );
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    save_with(&stem, &tree, &options(serde_json::json!({"native_dtypes": true}))).unwrap();
    assert_same(&load(&stem).unwrap(), &tree);
}

#[test]
fn the_data_alone_is_what_c_plus_plus_loads() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("weights.bin");
    let json = serde_json::json!({"manifest": false, "data_suffix": "", "byte_align": 1});
    save_with(&path, &plain(), &options(json)).unwrap();
    let expected: Vec<u8> =
        plain().leaves().iter().flat_map(|leaf| leaf.as_array().unwrap().to_c_order().unwrap()).collect();
    assert_eq!(fs::read(&path).unwrap(), expected);
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    assert_eq!(open(&path).unwrap_err().kind(), ErrorKind::NotACheckpoint);
}

#[test]
fn other_suffixes_and_a_stem_with_dots() {
    let root = tempfile::tempdir().unwrap();
    let stem = root.path().join("model.v1.2");
    save_with(&stem, &plain(), &options(serde_json::json!({"data_suffix": ".bin"}))).unwrap();
    assert_same(&load(&stem).unwrap(), &plain());
    assert!(
        root.path().join("model.v1.2.bin").is_file() && root.path().join("model.v1.2.manifest").is_file()
    );
    save_with(&stem, &plain(), &options(serde_json::json!({"manifest_suffix": ".mf"}))).unwrap();
    let files = Files::named(&Location::local(&stem), ".data", ".mf");
    assert_eq!(entries_of(&files, true).unwrap().arrays.len(), 4);
    for bad in [serde_json::json!({"byte_align": 0}), serde_json::json!({"surprise": 1})] {
        assert_eq!(Layout::from_name("pytree_data", bad).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    let json = serde_json::json!({"data_suffix": "/x"});
    let error = save_with(&stem, &plain(), &options(json)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn given_paths_are_checked() {
    let root = tempfile::tempdir().unwrap();
    let list = |count: usize| {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::List).unwrap();
        for at in 0..count {
            build.leaf(Key::Index(at), Leaf::array(array(Dtype::Int8, &[2]))).unwrap();
        }
        build.close().unwrap();
        build.finish().unwrap()
    };
    let save = |paths: &[&str]| {
        let options = options(serde_json::json!({"paths": paths}));
        save_with(root.path().join("m"), &list(2), &options)
            .map(|_| load(root.path().join("m")).unwrap().paths())
    };
    let paths = save(&["('b', None)", "(np.int64(3), 1.5, ('t', 1))"]).unwrap();
    let printed: Vec<String> = paths.iter().map(ToString::to_string).collect();
    assert_eq!(printed, ["b/None", "3/1.5/('t', 1)"]);
    for (bad, text) in [
        (["('a',)", "('a',)"], "two leaves would have the path"),
        (["(1,)", "(True,)"], "two leaves would have the path"),
        (["('a', 'b')", "('a',)"], "cannot be inside another"),
        (["()", "('a',)"], "cannot be inside another"),
        (["a", "('a',)"], "cannot be the path of a leaf"),
        (["'a'", "('a',)"], "cannot be the path of a leaf"),
        (["({1},)", "('a',)"], "cannot be the path of a leaf"),
    ] {
        let error = save(&bad).unwrap_err();
        assert!(error.to_string().contains(text), "{bad:?}: {error}");
    }
    assert!(save(&["('a',)"]).is_err());
}

#[test]
fn stray_files_are_nobodys_checkpoint() {
    let root = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(root.path().join(name), text).unwrap();
    write("app.manifest", "CACHE MANIFEST\n");
    write("web.manifest", "{\"name\": \"x\"}");
    write("x.data", "anything");
    write("list.manifest", "[1, 2]");
    for name in ["app", "app.manifest", "web", "web.manifest", "x", "x.data", "list", "list.manifest"] {
        assert!(!PytreeData.recognise(&Location::local(root.path().join(name))).unwrap(), "{name}");
        assert!(open(root.path().join(name)).is_err());
    }
    // A folder with the stem's name is the checkpoint; files beside it are ignored.
    save_with(root.path().join("run"), &plain(), &options(serde_json::json!({}))).unwrap();
    fs::create_dir(root.path().join("run")).unwrap();
    assert!(!PytreeData.recognise(&Location::local(root.path().join("run"))).unwrap());
    assert_same(&load(root.path().join("run.manifest")).unwrap(), &plain());
    fs::remove_file(root.path().join("run.data")).unwrap();
    let error = open(root.path().join("run.manifest")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("data file"), "{error}");
}

#[test]
fn regions_are_read_with_their_blocks_checked() {
    let root = tempfile::tempdir().unwrap();
    let stem = root.path().join("model");
    // Three blocks and a bit.
    let tree = Tree::single(Leaf::array(array(Dtype::Float32, &[13 << 10, 1 << 10])));
    save_with(&stem, &tree, &options(serde_json::json!({}))).unwrap();
    let whole = tree.leaves()[0].as_array().unwrap();
    let file = stem.with_extension("data");
    let mut bytes = fs::read(&file).unwrap();
    bytes[20 << 20] ^= 1;
    fs::write(&file, bytes).unwrap();
    let read = |row: u64, rows: u64, column: u64, columns: u64| {
        let region = Region::new(vec![row, column], vec![rows, columns]).unwrap();
        let mut expected = vec![0; region.shape().len_bytes(Dtype::Float32).unwrap() as usize];
        whole.copy_region_c_order(&region, &mut expected).unwrap();
        open(&stem).unwrap().region(0, &region).map(|found| assert_eq!(found.to_c_order().unwrap(), expected))
    };
    read(0, 4096, 0, 1024).unwrap();
    read(12_000, 10, 0, 1024).unwrap();
    let error = read(5000, 1, 0, 1024).unwrap_err();
    assert_eq!((error.kind(), error.place().offset_bytes), (ErrorKind::Corrupt, Some(16 << 20)));
    assert!(read(0, 4, 3, 5).is_err(), "scattered rows need the whole array");
    assert!(load(&stem).is_err());
    assert_eq!(verify(&stem).unwrap().findings.len(), 1);
    load_with(&stem, &LoadOptions { unverified: true, ..LoadOptions::default() }).unwrap();
}

/// The tree of a checkpoint; `None` if its load fails, or if `verify` finds damage.
fn checked(stem: &Path) -> Option<Tree<Leaf>> {
    let tree = load(stem).ok()?;
    open(stem).unwrap().verify().unwrap().is_ok().then_some(tree)
}

#[test]
fn any_cut_and_any_flipped_bit_is_seen() {
    let root = tempfile::tempdir().unwrap();
    let stem = root.path().join("model");
    for tree in [plain(), rich()] {
        save_with(&stem, &tree, &options(serde_json::json!({}))).unwrap();
        let file = stem.with_extension("manifest");
        let whole = fs::read(&file).unwrap();
        for len in 0..whole.len() - 1 {
            fs::write(&file, &whole[..len]).unwrap();
            // A manifest that lacks only its last newline is still read.
            assert!(checked(&stem).is_none() || whole[len..].trim_ascii().is_empty(), "cut to {len}");
        }
        for at in 0..whole.len() {
            for bit in [0, 1, 3, 5, 7] {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                fs::write(&file, &flipped).unwrap();
                if let Some(found) = checked(&stem) {
                    // A flipped bit may turn white space or quotes into another form of the same
                    // value.
                    assert_same(&found, &tree);
                }
            }
        }
        fs::write(&file, &whole).unwrap();
        let data = fs::read(stem.with_extension("data")).unwrap();
        for len in 0..data.len() {
            fs::write(stem.with_extension("data"), &data[..len]).unwrap();
            if let Some(found) = checked(&stem) {
                assert_same(&found, &tree);
            }
        }
    }
}

#[test]
fn damage_to_a_manifest_of_the_original_never_panics() {
    let folder = regrow_testkit::fixtures().join("pytree");
    let root = tempfile::tempdir().unwrap();
    let stem = root.path().join("m");
    fs::copy(folder.join("np1_dtypes.data"), stem.with_extension("data")).unwrap();
    let whole = fs::read(folder.join("np2_dtypes.manifest")).unwrap();
    let mut opened = 0;
    for at in 0..whole.len() {
        for (byte, cut) in [(b'9', false), (b'(', false), (b'-', false), (0xff, false), (b']', true)] {
            let mut damaged = whole.clone();
            damaged[at] = byte;
            damaged.truncate(if cut { at + 1 } else { whole.len() });
            fs::write(stem.with_extension("manifest"), &damaged).unwrap();
            opened += usize::from(load(&stem).is_ok());
        }
    }
    assert!(opened > 0);
}

#[test]
fn a_manifest_beside_data_of_another_save_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let stem = root.path().join("model");
    save_with(&stem, &plain(), &options(serde_json::json!({}))).unwrap();
    let other = plain().map(|leaf| match leaf.as_array() {
        Some(array) => {
            let bytes: Vec<u8> = array.to_c_order().unwrap().iter().map(|byte| !byte).collect();
            Leaf::array(Array::new(array.dtype(), array.shape().clone(), bytes.into()).unwrap())
        }
        None => leaf,
    });
    let elsewhere = root.path().join("other");
    save_with(&elsewhere, &other, &options(serde_json::json!({}))).unwrap();
    fs::copy(elsewhere.with_extension("data"), stem.with_extension("data")).unwrap();
    assert_eq!(load(&stem).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_tree_of_nothing_and_a_very_deep_one() {
    let root = tempfile::tempdir().unwrap();
    let stem = root.path().join("model");
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.close().unwrap();
    let nothing: Tree<Leaf> = build.finish().unwrap();
    save_with(&stem, &nothing, &options(serde_json::json!({}))).unwrap();
    assert_eq!(fs::read(stem.with_extension("data")).unwrap(), [0]);
    assert_eq!(fs::read(stem.with_extension("manifest")).unwrap(), b"[]\n");
    assert_same(&load(&stem).unwrap(), &nothing);
    let mut build = TreeBuilder::new();
    for depth in 0..20_000 {
        let key = if depth == 0 { Key::Index(0) } else { Key::dict("a") };
        build.open(key, NodeKind::Dict).unwrap();
    }
    build.leaf(Key::dict("w"), Leaf::array(array(Dtype::Int8, &[1]))).unwrap();
    for _ in 0..20_000 {
        build.close().unwrap();
    }
    let deep = build.finish().unwrap();
    save_with(&stem, &deep, &options(serde_json::json!({}))).unwrap();
    assert_same(&load(&stem).unwrap(), &deep);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_tree_of_dicts_comes_back(
        paths in proptest::collection::btree_set(proptest::collection::vec("[ab'\"\\\\\n é]{0,30}", 1..4), 1..8),
        align in 1_u64..70,
        extra: bool,
    ) {
        // Only a path that is not the beginning of another path gets a leaf.
        let leaves: Vec<&Vec<String>> =
            paths.iter().filter(|path| !paths.iter().any(|other| other.len() > path.len() && other.starts_with(path))).collect();
        let texts: Vec<String> = leaves.iter().map(|path| {
            paths::path_text(&path.iter().cloned().map(regrow_base::bytes::python_literal::Literal::Str).collect::<Vec<_>>())
        }).collect();
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::List).unwrap();
        for at in 0..leaves.len() {
            build.leaf(Key::Index(at), Leaf::array(array(Dtype::UInt16, &[at as u64]))).unwrap();
        }
        build.close().unwrap();
        let root = tempfile::tempdir().unwrap();
        let stem = root.path().join("m");
        let json = serde_json::json!({"paths": texts, "byte_align": align, "extra_keys": extra});
        save_with(&stem, &build.finish().unwrap(), &options(json)).unwrap();
        let opened = open(&stem).unwrap();
        prop_assert_eq!(opened.tree().len(), leaves.len());
        for (at, text) in texts.iter().enumerate() {
            let found = opened.find(text).unwrap();
            prop_assert_eq!(opened.info(found).unwrap().shape.dims(), [at as u64]);
            opened.read(found).unwrap();
        }
    }
}
