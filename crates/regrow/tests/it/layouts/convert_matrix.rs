//! A tree of many types goes through every pair of layouts and back. All data that the conversions
//! do not list as lost comes back, bit for bit.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use regrow::array::{Array, Dtype, Shape};
use regrow::engine::{ConvertOptions, Layout, convert, load};
use regrow::tree::{Key, KeyPath, Leaf, LeafData, LeafKind, NodeKind, Scalar, Tree, TreeBuilder};
use regrow::{SaveOptions, save};
use regrow_layouts::{Loss, LossKind};

/// The layouts, and what a checkpoint in each is called.
const LAYOUTS: [(&str, &str, &str); 9] = [
    ("regrow", "regrow", "{}"),
    ("orbax", "orbax", "{}"),
    ("orbax", "orbax-rich", r#"{"rich_types": true, "zarr3": true, "ocdbt": false}"#),
    ("flax", "flax.msgpack", "{}"),
    ("equinox", "equinox.eqx", "{}"),
    ("pytree_data", "pytree", "{}"),
    ("safetensors", "tensors.safetensors", "{}"),
    ("npy", "arrays.npz", "{}"),
    ("npy", "arrays", "{}"),
];

fn array(dtype: Dtype, dims: &[u64], seed: u8) -> Array {
    let shape = Shape::new(dims).unwrap();
    let len = shape.len_bytes(dtype).unwrap();
    let mask = match dtype {
        Dtype::Bool => 1,
        Dtype::Int2 | Dtype::UInt2 => 3,
        Dtype::Int4 | Dtype::UInt4 | Dtype::Float4E2m1fn => 15,
        Dtype::Float6E2m3fn | Dtype::Float6E3m2fn => 63,
        _ => 127,
    };
    let bytes: Vec<u8> = (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) & mask).collect();
    Array::new(dtype, shape, bytes.into()).unwrap()
}

fn rich() -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.open(Key::dict("dtypes"), NodeKind::Dict).unwrap();
    for (at, dtype) in Dtype::all().enumerate() {
        build.leaf(Key::dict(dtype.name()), Leaf::array(array(dtype, &[3, 5], at as u8))).unwrap();
    }
    build.close().unwrap();
    build.open(Key::dict("kinds"), NodeKind::Tuple).unwrap();
    let other: Arc<str> = Arc::from("<U2");
    let leaves = [
        Leaf { kind: LeafKind::JaxArray, ..Leaf::array(array(Dtype::BFloat16, &[64, 64], 1)) },
        Leaf { kind: LeafKind::NumpyScalar, ..Leaf::array(array(Dtype::Float32, &[], 2)) },
        Leaf {
            kind: LeafKind::PrngKey(Some(Arc::from("rbg"))),
            ..Leaf::array(array(Dtype::UInt32, &[2, 4], 3))
        },
        Leaf { kind: LeafKind::Bytes, ..Leaf::array(array(Dtype::UInt8, &[7], 4)) },
        Leaf {
            kind: LeafKind::NumpyOther(other),
            ..Leaf::array(
                Array::new(
                    Dtype::UInt8,
                    Shape::new([2, 8]).unwrap(),
                    b"a\0\0\0b\0\0\0c\0\0\0\0\0\0\0".to_vec().into(),
                )
                .unwrap(),
            )
        },
        Leaf { kind: LeafKind::Placeholder, data: LeafData::Absent, sharding: None },
        Leaf::text("text with \"quotes\" and \u{1f331}"),
        Leaf::scalar(Scalar::Bool(true)),
        Leaf::scalar(Scalar::Int(-5)),
        Leaf::scalar(Scalar::UInt(u64::MAX)),
        Leaf::scalar(Scalar::Float(0.1)),
        Leaf::scalar(Scalar::Complex(1.0, -2.0)),
        Leaf::array(array(Dtype::Float32, &[0, 3], 5)),
        Leaf::array(array(Dtype::Float64, &[], 5)),
        Leaf::array(array(Dtype::Float64, &[1000, 300], 6)),
    ];
    for (at, leaf) in leaves.into_iter().enumerate() {
        build.leaf(Key::Index(at), leaf).unwrap();
    }
    build.close().unwrap();
    build.open(Key::dict("state"), NodeKind::NamedTuple(Arc::from("optax.ScaleByAdamState"))).unwrap();
    build.leaf(Key::attr("count"), Leaf::array(array(Dtype::Int32, &[2], 1))).unwrap();
    build.open(Key::attr("none"), NodeKind::None).unwrap();
    build.close().unwrap();
    build.open(Key::attr("list"), NodeKind::List).unwrap();
    build.leaf(Key::Index(0), Leaf::array(array(Dtype::Int8, &[4], 1))).unwrap();
    build.close().unwrap();
    build.open(Key::attr("empty"), NodeKind::Dict).unwrap();
    build.close().unwrap();
    build.close().unwrap();
    build.open(Key::dict("numbers"), NodeKind::Dict).unwrap();
    build.leaf(Key::DictInt(-1), Leaf::array(array(Dtype::Int8, &[2], 8))).unwrap();
    build.leaf(Key::dict("a b"), Leaf::array(array(Dtype::Int8, &[2], 9))).unwrap();
    build.close().unwrap();
    build.open(Key::dict("config"), NodeKind::Dataclass(Arc::from("acme.Config"))).unwrap();
    build.leaf(Key::attr("rate"), Leaf::array(array(Dtype::Float16, &[2], 8))).unwrap();
    build.close().unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

/// Strided, so that writers meet it too.
fn fortran() -> Array {
    let data = array(Dtype::Int32, &[6], 3).to_c_order().unwrap();
    Array::with_strides(Dtype::Int32, Shape::new([2, 3]).unwrap(), vec![4, 8], 0, data).unwrap()
}

fn convert_to(source: &Path, target: &Path, layout: &str, options: &str) -> Vec<Loss> {
    let layout = Layout::from_name(layout, serde_json::from_str(options).unwrap()).unwrap();
    let options = ConvertOptions {
        save: SaveOptions { layout, not_durable: true, ..SaveOptions::default() },
        lossy: true,
        ..ConvertOptions::default()
    };
    convert(source, target, &options)
        .unwrap_or_else(|error| panic!("{} to {}: {error}", source.display(), target.display()))
        .losses
}

fn by_text(tree: &Tree<Leaf>) -> BTreeMap<String, (KeyPath, Leaf)> {
    tree.iter().map(|(path, leaf)| (path.join("/"), (path, leaf.clone()))).collect()
}

/// A JAX array is a NumPy array to a layout that does not tell them apart.
fn kind_name(kind: &LeafKind) -> String {
    match kind {
        LeafKind::JaxArray => "numpy_array".to_owned(),
        LeafKind::PrngKey(_) => "prng_key".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Every leaf of `before` that no loss speaks of is in `after`, to the bit; every container too.
fn check_law(before: &Tree<Leaf>, after: &Tree<Leaf>, losses: &[Loss], what: &str) {
    let lost = |path: &KeyPath, at_least: LossKind| {
        losses.iter().any(|loss| {
            loss.kind >= at_least
                && path.join("/").starts_with(loss.path.join("/").as_str())
                && path.len() >= loss.path.len()
        })
    };
    let found = by_text(after);
    for (text, (path, leaf)) in by_text(before) {
        let exact =
            |kind: LossKind| losses.iter().any(|loss| loss.kind >= kind && loss.path.join("/") == text);
        let Some((_, other)) = found.get(&text) else {
            assert!(
                lost(&path, LossKind::Value) || lost(&path, LossKind::Structure),
                "{what}: {text} is gone"
            );
            continue;
        };
        if exact(LossKind::Kind) {
            continue;
        }
        // What is only noted has another dtype at most.
        if exact(LossKind::Note) {
            continue;
        }
        assert_eq!(kind_name(&leaf.kind), kind_name(&other.kind), "{what}: {text}");
        match (&leaf.data, &other.data) {
            (LeafData::Array(a), LeafData::Array(b)) => {
                assert_eq!((a.dtype(), a.shape()), (b.dtype(), b.shape()), "{what}: {text}");
                assert_eq!(a.to_c_order().unwrap(), b.to_c_order().unwrap(), "{what}: {text}");
            }
            (LeafData::Text(a), LeafData::Text(b)) => assert_eq!(a, b, "{what}: {text}"),
            (LeafData::Absent, LeafData::Absent) => {}
            _ => panic!("{what}: {text}: {:?} became {:?}", leaf.data, other.data),
        }
    }
    for text in found.keys() {
        assert!(by_text(before).contains_key(text), "{what}: {text} was not there before");
    }
    let containers = |tree: &Tree<Leaf>| -> BTreeMap<String, (KeyPath, NodeKind)> {
        let nodes = tree.walk().filter(|(_, node)| !matches!(node.kind, NodeKind::Leaf));
        nodes.map(|(path, node)| (path.join("/"), (path, node.kind.clone()))).collect()
    };
    let found = containers(after);
    for (text, (path, kind)) in containers(before) {
        let spoken_of = losses.iter().any(|loss| {
            let (lost, text) = (loss.path.join("/"), text.as_str());
            // A leaf that stays behind may change the container it was in.
            lost == text || (loss.kind == LossKind::Value && lost.starts_with(text)) || loss.path.is_root()
        });
        if !spoken_of && !lost(&path, LossKind::Structure) {
            assert_eq!(found.get(&text).map(|found| &found.1), Some(&kind), "{what}: container {text:?}");
        }
    }
}

#[test]
fn a_tree_survives_every_pair_of_layouts() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    save(&source, &rich()).unwrap();
    for (layout, name, options) in LAYOUTS {
        let first: PathBuf = folder.path().join("first").join(layout).join(name);
        let losses = convert_to(&source, &first, layout, options);
        let loaded = load(&first).unwrap();
        check_law(&rich(), &loaded, &losses, &format!("regrow to {name}"));
        for (other, other_name, other_options) in LAYOUTS {
            let what = format!("{name} to {other_name}");
            let second = folder.path().join("second").join(layout).join(name).join(other_name);
            let losses = convert_to(&first, &second, other, other_options);
            let there = load(&second).unwrap();
            check_law(&loaded, &there, &losses, &what);
            // And back: what came through once comes through the first layout again.
            let third = folder.path().join("third").join(layout).join(other_name).join(name);
            let losses = convert_to(&second, &third, layout, options);
            check_law(&there, &load(&third).unwrap(), &losses, &format!("{what} and back"));
            // regrow's own layout holds every result.
            let last = folder.path().join("last").join(layout).join(name).join(other_name).join("x");
            let losses = convert_to(&second, &last, "regrow", "{}");
            assert!(losses.iter().all(|loss| loss.kind == LossKind::Note), "{what} to regrow: {losses:?}");
            let back = load(&last).unwrap();
            assert_eq!(back.nodes(), there.nodes(), "{what} to regrow");
            check_law(&there, &back, &[], &format!("{what} to regrow"));
            // Some hundred of each are not on the disk at once.
            for done in ["second", "third", "last"] {
                fs::remove_dir_all(folder.path().join(done)).unwrap();
            }
        }
    }
}

#[test]
fn strided_arrays_reach_every_layout() {
    let folder = tempfile::tempdir().unwrap();
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("f"), Leaf::array(fortran())).unwrap();
    build.close().unwrap();
    let tree = build.finish().unwrap();
    for (layout, name, options) in LAYOUTS {
        let layout = Layout::from_name(layout, serde_json::from_str(options).unwrap()).unwrap();
        let path = folder.path().join(name);
        regrow::save_with(&path, &tree, &SaveOptions { layout, ..SaveOptions::default() }).unwrap();
        check_law(&tree, &load(&path).unwrap(), &[], name);
    }
}

#[test]
fn losses_are_refused_unless_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    save(&source, &rich()).unwrap();
    for (layout, name, options) in LAYOUTS.into_iter().filter(|row| row.0 != "regrow") {
        let layout = Layout::from_name(layout, serde_json::from_str(options).unwrap()).unwrap();
        let options = ConvertOptions {
            save: SaveOptions { layout, ..SaveOptions::default() },
            ..ConvertOptions::default()
        };
        let target = folder.path().join(name);
        match convert(&source, &target, &options) {
            Ok(report) => {
                assert!(report.losses.iter().all(|loss| loss.kind == LossKind::Note), "{name}");
                check_law(&rich(), &load(&target).unwrap(), &report.losses, name);
            }
            Err(error) => {
                assert_eq!(error.kind(), regrow::ErrorKind::Unsupported, "{name}: {error}");
                assert!(error.help_text().unwrap_or_default().contains("lossy"), "{name}: {error}");
                assert!(!target.exists(), "{name}");
            }
        }
    }
}

#[test]
fn a_trak_store_goes_through_every_layout_and_back() {
    let folder = tempfile::tempdir().unwrap();
    for store in ["half_two_models", "f32_partial", "odd_ids"] {
        let source = regrow_testkit::fixtures().join("trak").join(store);
        let original = load(&source).unwrap();
        for (layout, name, options) in LAYOUTS {
            let there = folder.path().join(store).join(layout).join(name);
            let losses = convert_to(&source, &there, layout, options);
            check_law(&original, &load(&there).unwrap(), &losses, &format!("trak to {name}"));
            if !losses.iter().all(|loss| loss.kind == LossKind::Note) {
                continue;
            }
            let back = folder.path().join(store).join("back").join(layout).join(name).join("x");
            let losses = convert_to(&there, &back, "trak", "{}");
            let found = load(&back).unwrap();
            assert_eq!(regrow::open(&back).unwrap().description().layout, "trak");
            check_law(&original, &found, &losses, &format!("trak to {name} and back"));
        }
    }
    let rich_source = folder.path().join("rich");
    save(&rich_source, &rich()).unwrap();
    let layout = Layout::from_name("trak", serde_json::Value::Null).unwrap();
    let options = ConvertOptions {
        save: SaveOptions { layout, ..SaveOptions::default() },
        lossy: true,
        ..ConvertOptions::default()
    };
    let error = convert(&rich_source, folder.path().join("no store"), &options).unwrap_err();
    assert!(error.to_string().contains("metadata, models, scores"), "{error}");
    assert!(!folder.path().join("no store").exists());
}
