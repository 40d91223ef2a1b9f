//! Every golden Orbax checkpoint, leaf by leaf against what Orbax said of it; and every one of them damaged.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops where something is not as it should be"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use regrow::array::{Dtype, Region, Shape};
use regrow::engine::OpenOptions;
use regrow::formats::orbax::Orbax;
use regrow::formats::orbax::entry::{Entry, KeyType};
use regrow::formats::orbax::metadata::TreeMetadata;
use regrow::formats::{Format, Reader, ReaderExt};
use regrow::location::Location;
use regrow::store::ocdbt::{EntryValue, OcdbtConfig, write_database};
use regrow::tree::{Key, KeyPath, LeafKind, NodeKind};
use regrow::zarr::ArrayMeta;
use regrow::{ErrorKind, Result};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// A leaf that a damaged shape makes larger than this is not read: its destination is the caller's to bound.
const READ_MAX_BYTES: u64 = 16 << 20;

fn fixture_names() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(regrow_testkit::fixtures().join("orbax"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names.len(), 53, "a fixture was added or lost");
    names
}

fn checkpoint(fixture: &str) -> PathBuf {
    regrow_testkit::fixtures().join("orbax").join(fixture).join("ckpt")
}

fn expected(fixture: &str) -> Value {
    regrow_testkit::expected(&format!("orbax/{fixture}"))
}

fn open(path: &Path) -> Result<Box<dyn Reader>> {
    open_at(path, None, None)
}

fn open_at(path: &Path, step: Option<u64>, item: Option<&str>) -> Result<Box<dyn Reader>> {
    Orbax.open(
        &Location::local(path),
        &OpenOptions { step, item: item.map(str::to_owned), ..OpenOptions::default() },
    )
}

fn read_whole(reader: &dyn Reader, leaf: usize) -> Result<Vec<u8>> {
    let info = &reader.tree().leaves()[leaf];
    let mut out = vec![0; info.len_bytes() as usize];
    reader.read_region(leaf, &Region::whole(&info.shape), &mut out)?;
    Ok(out)
}

/// A key path in the form of `expected.json`.
fn plain_path(path: &KeyPath) -> Value {
    let key = |key: &Key| match key {
        Key::Index(index) => json!(["seq", index.to_string()]),
        other => json!(["dict", other.text()]),
    };
    path.keys().iter().map(key).collect()
}

/// A stored sharding in the form of `expected.json`: device ids without the objects around them.
fn plain_sharding(sharding: &Value) -> Value {
    fn ids(mesh: &Value) -> Value {
        match mesh {
            Value::Array(items) => items.iter().map(ids).collect(),
            other => other["id"].clone(),
        }
    }
    let mut plain = sharding.clone();
    if let Some(mesh) = plain.as_object_mut().unwrap().remove("device_mesh") {
        plain["device_ids"] = ids(&mesh["mesh"]);
    }
    plain
}

fn dims(shape: &Option<Shape>) -> Value {
    json!(shape.as_ref().map(|shape| shape.dims().to_vec()))
}

/// What `_METADATA` calls an empty container.
fn empty_name(kind: &NodeKind) -> &'static str {
    match kind {
        NodeKind::None => "None",
        NodeKind::Dict => "Dict",
        NodeKind::List => "List",
        NodeKind::Tuple => "Tuple",
        NodeKind::NamedTuple(_) => "NamedTuple",
        other => panic!("no empty {other:?} in Orbax"),
    }
}

/// Compares a tree with the `leaves` of `expected.json`; returns how many arrays it read.
fn compare_leaves(what: &str, reader: &dyn Reader, item: &Value) -> usize {
    let mut empties: BTreeMap<String, &'static str> = BTreeMap::new();
    for (path, node) in reader.tree().walk() {
        if node.kind != NodeKind::Leaf && node.child_count == 0 {
            empties.insert(plain_path(&path).to_string(), empty_name(&node.kind));
        }
    }
    let leaves: BTreeMap<String, usize> =
        reader.tree().paths().iter().enumerate().map(|(i, path)| (plain_path(path).to_string(), i)).collect();
    assert_eq!(leaves.len(), reader.tree().len(), "{what}: paths are distinct");
    let complex = item.get("python_complex").and_then(Value::as_object);
    let all = item["leaves"].as_array().unwrap();
    assert_eq!(
        leaves.len() + empties.len(),
        all.len() + complex.map_or(0, Map::len),
        "{what}: number of leaves"
    );

    for (name, parts) in complex.into_iter().flatten() {
        let leaf = leaves[&json!([["dict", name]]).to_string()];
        let bytes = read_whole(reader, leaf).unwrap();
        let part = |i: usize| f64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().unwrap());
        assert_eq!(&json!([part(0), part(1)]), parts);
    }

    let mut arrays = 0;
    for want in all {
        let path = want["path"].to_string();
        let at = format!("{what}: {path}");
        let value_type = want["value_type"].as_str().unwrap();
        let Some(&leaf) = leaves.get(&path) else {
            assert_eq!(empties.get(&path), Some(&value_type), "{at}");
            continue;
        };
        let info = &reader.tree().leaves()[leaf];
        assert_eq!(*info.name, *want["param_name"].as_str().unwrap(), "{at}");
        let key_impl = want.get("random_key_impl").and_then(Value::as_str);
        match (value_type, &info.kind) {
            ("jax.Array", LeafKind::PrngKey(found)) => assert_eq!(found.as_deref(), key_impl, "{at}"),
            ("jax.Array", LeafKind::JaxArray) => assert_eq!(key_impl, None, "{at}"),
            ("np.ndarray" | "placeholder in msgpack; data in zarr directory", LeafKind::NumpyArray)
            | ("scalar", LeafKind::Scalar | LeafKind::NumpyScalar)
            | ("string", LeafKind::Str)
            | ("placeholder", LeafKind::Placeholder) => {}
            (name, LeafKind::Unknown(found)) => assert_eq!(&**found, name, "{at}"),
            (name, found) => panic!("{at}: {name} became {found:?}"),
        }
        if value_type == "string" {
            assert_eq!(*reader.read_text(leaf).unwrap(), *want["value"].as_str().unwrap(), "{at}");
        }
        let Some(sha256) = want.get("sha256") else { continue };
        assert_eq!(info.dtype.name(), want["dtype"], "{at}");
        assert_eq!(json!(info.shape.dims()), want["shape"], "{at}");
        assert_eq!(json!(info.len_bytes()), want["nbytes"], "{at}");
        if let Some(chunk_shape) = want.get("chunk_shape") {
            assert_eq!(&dims(&info.chunk_shape), chunk_shape, "{at}");
        }
        if let Some(write_shape) = want.get("write_shape") {
            assert_eq!(&dims(&info.write_shape), write_shape, "{at}");
        }
        match (want.get("sharding"), &info.sharding) {
            (Some(want), found) => {
                assert_eq!(&plain_sharding(&found.as_ref().expect(&at).to_json()), want, "{at}")
            }
            (None, Some(found)) => {
                let kind = found.type_name();
                assert!(!["NamedSharding", "SingleDeviceSharding"].contains(&kind), "{at}: {kind}");
            }
            (None, None) => {}
        }
        let whole = read_whole(reader, leaf).unwrap_or_else(|error| panic!("{at}: {error}"));
        let digest: String = Sha256::digest(&whole).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, sha256.as_str().unwrap(), "{at}");
        if let Some(value) = want.get("python_value") {
            compare_number(&at, value, info.dtype.name(), &whole);
        }
        if let Some(view) = reader.view(leaf).unwrap() {
            assert_eq!(&view[..], &whole[..], "{at}: the view");
        }
        compare_regions(&at, reader, leaf, &whole);
        arrays += 1;
    }
    arrays
}

fn compare_number(at: &str, want: &Value, dtype: &str, bytes: &[u8]) {
    match dtype {
        "bool" => assert_eq!(want, &json!(bytes[0] != 0), "{at}"),
        "int64" => assert_eq!(want, &json!(i64::from_le_bytes(bytes.try_into().unwrap())), "{at}"),
        "uint64" => assert_eq!(want, &json!(u64::from_le_bytes(bytes.try_into().unwrap())), "{at}"),
        "float64" => assert_eq!(want, &json!(f64::from_le_bytes(bytes.try_into().unwrap())), "{at}"),
        // NumPy's own scalars: their bytes were compared.
        _ => {}
    }
}

/// A few regions of a leaf against the same part of the whole, element by element.
fn compare_regions(at: &str, reader: &dyn Reader, leaf: usize, whole: &[u8]) {
    let info = &reader.tree().leaves()[leaf];
    let (shape, size) = (info.shape.dims(), info.dtype.size_bytes());
    let strides = info.shape.strides_elements();
    let mut seed = whole.len() as u64 + leaf as u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for _ in 0..4 {
        let starts: Vec<u64> = shape.iter().map(|&dim| random(dim)).collect();
        let lens: Vec<u64> =
            shape.iter().zip(&starts).map(|(&dim, &start)| 1 + random(dim - start)).collect();
        let region = Region::new(starts.clone(), lens.clone()).unwrap();
        let mut out = vec![0xee; region.len_elements() as usize * size];
        reader.read_region(leaf, &region, &mut out).unwrap_or_else(|error| panic!("{at} {region}: {error}"));
        for (n, element) in out.chunks(size).enumerate() {
            let (mut left, mut from) = (n as u64, 0);
            for axis in (0..shape.len()).rev() {
                from += (starts[axis] + left % lens[axis]) * strides[axis];
                left /= lens[axis];
            }
            let from = from as usize * size;
            assert_eq!(element, &whole[from..from + size], "{at} {region}, element {n}");
        }
        let short = out.len() - 1;
        assert!(reader.read_region(leaf, &region, &mut out[..short]).is_err(), "{at}: a short destination");
    }
}

/// The JSON that a tree of numbers and texts stands for.
fn to_json(reader: &dyn Reader) -> Value {
    let mut leaves = 0;
    let mut values: BTreeMap<String, Value> = BTreeMap::new();
    let mut nodes: Vec<(KeyPath, Value)> = Vec::new();
    for (path, node) in reader.tree().walk() {
        let value = match &node.kind {
            NodeKind::None => Value::Null,
            NodeKind::Dict => json!({}),
            NodeKind::List => json!([]),
            NodeKind::Leaf => {
                let leaf = leaves;
                leaves += 1;
                let info = &reader.tree().leaves()[leaf];
                match (&info.kind, info.dtype.name()) {
                    (LeafKind::Str, _) => json!(*reader.read_text(leaf).unwrap()),
                    (_, "bool") => json!(read_whole(reader, leaf).unwrap() == [1]),
                    (_, "int64") => {
                        json!(i64::from_le_bytes(read_whole(reader, leaf).unwrap().try_into().unwrap()))
                    }
                    _ => json!(f64::from_le_bytes(read_whole(reader, leaf).unwrap().try_into().unwrap())),
                }
            }
            other => panic!("{other:?} in JSON"),
        };
        values.insert(path.to_string(), value.clone());
        nodes.push((path, value));
    }
    // Children before parents: each is put into its parent when all below it is in place.
    for (path, _) in nodes.iter().rev() {
        let mut parent = path.clone();
        let Some(key) = parent.pop() else { continue };
        let value = values[&path.to_string()].clone();
        match values.get_mut(&parent.to_string()).unwrap() {
            Value::Array(items) => items.insert(0, value),
            Value::Object(members) => drop(members.insert(key.text().into_owned(), value)),
            other => panic!("{other} has children"),
        }
    }
    values.remove(".").unwrap()
}

fn is_damaged(expected: &Value) -> bool {
    expected.get("expect_error").is_some()
}

#[test]
fn every_item_of_every_fixture() {
    let mut arrays = 0;
    for fixture in fixture_names() {
        let expected = expected(&fixture);
        if is_damaged(&expected) {
            continue;
        }
        for (place, item) in expected["items"].as_object().unwrap() {
            let what = format!("{fixture}/{place}");
            let path = checkpoint(&fixture).join(place);
            assert!(
                item["file"] == "_ROOT_METADATA" || Orbax.recognise(&Location::local(&path)).unwrap(),
                "{what}"
            );
            if item["kind"] == "json" {
                if item["file"] != "_ROOT_METADATA" {
                    assert_eq!(to_json(&*open(&path).unwrap()), item["content"], "{what}");
                }
                continue;
            }
            let reader = open(&path).unwrap_or_else(|error| panic!("{what}: {error}"));
            arrays += compare_leaves(&what, &*reader, item);
            let description = reader.description();
            if let Some(use_zarr3) = item.get("use_zarr3").filter(|_| description.variant.contains("zarr")) {
                assert_eq!(json!(description.variant.ends_with("v3")), *use_zarr3, "{what}");
                assert_eq!(json!(description.variant.starts_with("ocdbt")), item["use_ocdbt"], "{what}");
            }
            match item.get("custom_metadata") {
                Some(custom) if !custom.is_null() => {
                    assert_eq!(description.custom_metadata.as_ref(), Some(custom), "{what}");
                }
                _ if place.is_empty() => {
                    let own = expected.get("checkpoint_custom_metadata").filter(|own| **own != json!({}));
                    assert_eq!(description.custom_metadata.as_ref(), own, "{what}");
                }
                _ => {}
            }
            let mut order = reader.read_order();
            order.sort_unstable();
            assert_eq!(order, (0..reader.tree().len()).collect::<Vec<_>>(), "{what}");
            let findings = reader.check_rest().unwrap().findings;
            assert!(findings.is_empty(), "{what}: {findings:?}");
        }
    }
    assert_eq!(arrays, 649, "arrays with a digest in the expectations of sound fixtures");
}

#[test]
fn damaged_ones_say_where() {
    let mut seen = 0;
    for fixture in fixture_names() {
        let expected = expected(&fixture);
        for error in expected.get("expect_error").and_then(Value::as_array).into_iter().flatten() {
            seen += 1;
            let (wanted, why) = (error["leaf"].as_str().unwrap(), error["why"].as_str().unwrap());
            let opened = open(&checkpoint(&fixture));
            if wanted == "*" {
                let error = opened.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{fixture}: {error}");
                assert!(
                    error.place().file.is_some() && error.to_string().contains("crc32c"),
                    "{fixture}: {error}"
                );
                continue;
            }
            if why.contains("share one param name") {
                let error = opened.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NameCollision, "{fixture}: {error}");
                assert!(error.what().contains("('a', 'b')") && error.what().contains("('a.b',)"), "{error}");
                continue;
            }
            let reader = opened.unwrap();
            for leaf in 0..reader.tree().len() {
                let name = reader.tree().leaves()[leaf].name.clone();
                let read = read_whole(&*reader, leaf);
                if *name != *wanted || why.starts_with("undetectable") {
                    read.unwrap_or_else(|error| panic!("{fixture}: {error}"));
                    continue;
                }
                let error = read.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{fixture}: {error}");
                assert_eq!(error.place().leaf.as_ref().unwrap().to_string(), wanted, "{fixture}");
                assert!(error.place().file.is_some(), "{fixture}: {error}");
                assert!(
                    !reader.check_rest().unwrap().findings.is_empty(),
                    "{fixture}: the check sees it, too"
                );
            }
        }
    }
    assert_eq!(seen, 6);
}

#[test]
fn roots_list_and_open_their_steps() {
    let mut seen = 0;
    for fixture in fixture_names() {
        let expected = expected(&fixture);
        let Some(steps) = expected.get("steps") else { continue };
        seen += 1;
        let root = checkpoint(&fixture);
        let newest = open(&root).unwrap();
        let steps: Vec<u64> = serde_json::from_value(steps.clone()).unwrap();
        assert_eq!(newest.description().steps, steps, "{fixture}");
        let latest = expected.get("latest_step").and_then(Value::as_u64).or(steps.last().copied());
        assert_eq!(newest.description().step, latest, "{fixture}");
        let items = expected["items"].as_object().unwrap();
        if let Some(metadata) = items.get("metadata") {
            let own = &metadata["content"]["custom_metadata"];
            assert!(
                own == &json!({}) || newest.description().custom_metadata.as_ref() == Some(own),
                "{fixture}"
            );
        }
        for step in &steps {
            let reader = open_at(&root, Some(*step), None).unwrap();
            assert_eq!(reader.description().step, Some(*step));
            for (place, item) in items {
                let Some((folder, name)) = place.split_once('/') else { continue };
                let number: String = folder.chars().filter(char::is_ascii_digit).collect();
                if number.parse() != Ok(*step) || name.contains('/') {
                    continue;
                }
                if name == "metrics" {
                    assert_eq!(reader.description().metrics.as_ref(), Some(&item["content"]), "{fixture}");
                }
                let alone = open_at(&root, Some(*step), Some(name)).unwrap();
                match item["kind"].as_str().unwrap() {
                    "json" => assert_eq!(to_json(&*alone), item["content"], "{fixture}/{place}"),
                    // The manager says that this one is an array, so it comes as that.
                    _ if name == "arr" => assert_eq!(alone.tree().nodes().len(), 1),
                    _ => drop(compare_leaves(&format!("{fixture}/{place}"), &*alone, item)),
                }
            }
        }
        assert_eq!(open_at(&root, Some(4711), None).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(open_at(&root, None, Some("nope")).unwrap_err().kind(), ErrorKind::NotFound);
    }
    assert_eq!(seen, 5);
}

#[test]
fn several_items_are_a_dict() {
    let reader = open(&checkpoint("manager_composite")).unwrap();
    let nodes: Vec<String> = reader
        .tree()
        .walk()
        .filter(|(path, _)| path.len() <= 1)
        .map(|(path, node)| format!("{path}:{}", node.kind.name()))
        .collect();
    assert_eq!(nodes, [".:dict", "arr:leaf", "cfg:dict", "nprng:tuple", "rng:leaf", "state:dict"]);
    let at = |path: &str| {
        let leaf = reader.tree().paths().iter().position(|found| found.to_string() == path).unwrap();
        (leaf, reader.tree().leaves()[leaf].clone())
    };
    assert_eq!(at("rng").1.kind, LeafKind::PrngKey(None));
    assert_eq!(at("arr").1.shape.dims(), [5]);
    assert_eq!(&*reader.read_text(at("nprng/0").0).unwrap(), "MT19937");
    assert_eq!(at("cfg/layers/1").1.kind, LeafKind::Scalar);
    assert!(reader.description().metrics.is_some());
    let kinds: Vec<&str> = reader.description().items.iter().map(|(_, kind)| kind.as_str()).collect();
    assert_eq!(kinds, ["array", "json", "metrics", "numpy random state", "jax prng key", "pytree"]);

    let v1 = open(&checkpoint("v1_checkpointables")).unwrap();
    let paths: Vec<String> = v1.tree().paths().iter().map(ToString::to_string).collect();
    assert_eq!(paths, ["config/lr", "config/sizes/0", "config/sizes/1", "config/h", "extra/e", "state/w"]);
    let only = open_at(&checkpoint("v1_checkpointables"), None, Some("extra")).unwrap();
    assert_eq!(only.tree().paths()[0].to_string(), "e");

    let state = open(&checkpoint("v1_default")).unwrap();
    let direct = open(&checkpoint("v1_default").join("state")).unwrap();
    assert_eq!(state.tree(), direct.tree());
    assert!(open(&checkpoint("v1_training")).unwrap().description().metrics.is_some());
}

#[test]
fn rich_types_keep_tuples_and_named_tuples() {
    let reader = open(&checkpoint("structures_rich")).unwrap();
    let kinds: BTreeMap<String, NodeKind> =
        reader.tree().walk().map(|(path, node)| (path.to_string(), node.kind.clone())).collect();
    assert_eq!(kinds["optax"], NodeKind::Tuple);
    assert_eq!(kinds["optax/0"], NodeKind::NamedTuple("optax._src.transform.ScaleByAdamState".into()));
    assert_eq!(kinds["namedtuple"], NodeKind::NamedTuple("__main__.MuNu".into()));
    assert_eq!(kinds["tuple/1/1"], NodeKind::Tuple);
    assert_eq!(kinds["list"], NodeKind::List);
    assert_eq!(kinds["empty_tuple"], NodeKind::Tuple);
    let path = reader.tree().paths().into_iter().find(|path| path.to_string() == "namedtuple/mu").unwrap();
    assert_eq!(path.keys()[1], Key::attr("mu"));

    let plain = open(&checkpoint("structures")).unwrap();
    let kinds: BTreeMap<String, NodeKind> =
        plain.tree().walk().map(|(path, node)| (path.to_string(), node.kind.clone())).collect();
    assert_eq!((&kinds["optax"], &kinds["optax/0"]), (&NodeKind::List, &NodeKind::Dict));
}

#[test]
fn what_is_no_checkpoint_is_said_to_be_none() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("notes.txt"), "x").unwrap();
    let error = open(folder.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotACheckpoint);
    assert!(error.to_string().contains("notes.txt") && error.to_string().contains("_METADATA"), "{error}");
    assert!(!Orbax.recognise(&Location::local(folder.path())).unwrap());
    assert_eq!(open(&folder.path().join("absent")).unwrap_err().kind(), ErrorKind::NotFound);

    let temporary = checkpoint("bad_uncommitted_step").join("2.orbax-checkpoint-tmp");
    for path in [temporary.clone(), temporary.join("default")] {
        let error = open(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Uncommitted);
        assert!(error.help_text().is_some());
    }
    assert_eq!(
        open_at(&checkpoint("bad_uncommitted_step"), Some(2), None).unwrap_err().kind(),
        ErrorKind::Uncommitted
    );
    std::fs::create_dir(folder.path().join("5.orbax-checkpoint-tmp")).unwrap();
    assert_eq!(open(folder.path()).unwrap_err().kind(), ErrorKind::Uncommitted);
}

#[test]
fn a_lost_metadata_file_is_named() {
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("ckpt");
    regrow_testkit::copy_folder(&checkpoint("sd_ocdbt_zarr2"), &path).unwrap();
    std::fs::remove_file(path.join("_METADATA")).unwrap();
    let error = open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.place().file.as_ref().unwrap().ends_with("_METADATA"));
    assert!(error.help_text().unwrap().contains("power cut"), "{error}");
    std::fs::write(path.join("_METADATA"), [0; 100]).unwrap();
    let error = open(&path).unwrap_err();
    assert!(
        error.place().file.as_ref().unwrap().is_absolute() && error.place().offset_bytes.is_some(),
        "{error}"
    );
    assert!(error.help_text().unwrap().contains("power cut"), "{error}");
}

#[test]
fn the_item_being_deleted_is_hidden() {
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("ckpt");
    regrow_testkit::copy_folder(&checkpoint("v1_checkpointables"), &path).unwrap();
    std::fs::write(path.join("_CHECKPOINT_DELETION"), r#"{"checkpointable_name": "extra"}"#).unwrap();
    let reader = open(&path).unwrap();
    assert!(!reader.tree().paths().iter().any(|path| path.to_string().starts_with("extra")));
    assert_eq!(open_at(&path, None, Some("extra")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn leaves_of_former_times_come_from_the_msgpack() {
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("ckpt");
    regrow_testkit::copy_folder(&checkpoint("legacy_aggregate_msgpack"), &path).unwrap();
    let entry = |keys: &[&str], value_type: &str| {
        let keys: Vec<Value> = keys.iter().map(|key| json!({"key": key, "key_type": 2})).collect();
        json!({"key_metadata": keys, "value_metadata": {"value_type": value_type, "skip_deserialize": true}})
    };
    let metadata = json!({"tree_metadata": {
        "1": entry(&["i"], "jax.Array"), "2": entry(&["names", "1"], "string"), "3": entry(&["none"], "None")}});
    std::fs::write(path.join("_METADATA"), metadata.to_string()).unwrap();
    let reader = open(&path).unwrap();
    assert_eq!(reader.tree().leaves()[0].kind, LeafKind::JaxArray);
    assert_eq!(read_whole(&*reader, 0).unwrap().len(), 40);
    assert_eq!(&*reader.read_text(1).unwrap(), "b");
}

#[test]
fn arrays_without_metadata_make_a_tree_of_dicts() {
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("ckpt");
    regrow_testkit::copy_folder(&checkpoint("legacy_placeholders_zarr"), &path).unwrap();
    std::fs::remove_file(path.join("checkpoint")).unwrap();
    let reader = open(&path).unwrap();
    let paths: Vec<String> = reader.tree().paths().iter().map(ToString::to_string).collect();
    assert_eq!(paths, ["a", "b/c"]);
    assert_eq!(read_whole(&*reader, 1).unwrap().len(), 24);
}

#[test]
fn a_hundred_thousand_leaves_open_at_once() {
    const LEAVES: u32 = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let shape = Shape::new(vec![1]).unwrap();
    let meta = ArrayMeta::v3_raw(shape, Dtype::UInt32).unwrap();
    let (document, chunk) = (bytes::Bytes::from(meta.to_json()), meta.chunk_key(&[0]));
    let mut entries = Vec::new();
    let mut tree = TreeMetadata { use_ocdbt: Some(true), use_zarr3: true, ..TreeMetadata::default() };
    for i in 0..LEAVES {
        // As an optimizer state of many layers: the parent's name repeats, the document is always the same.
        let keys = vec![
            (KeyType::Dict, "layers".to_owned()),
            (KeyType::Sequence, i.to_string()),
            (KeyType::Dict, "w".to_owned()),
        ];
        let entry =
            Entry { keys, value_type: "np.ndarray".to_owned(), skip_deserialize: false, write_shape: None };
        let name = entry.param_name();
        entries.push((format!("{name}/zarr.json").into_bytes(), EntryValue::Inline(document.clone())));
        entries.push((
            format!("{name}/{chunk}").into_bytes(),
            EntryValue::Inline(i.to_le_bytes().to_vec().into()),
        ));
        tree.entries.push(entry);
    }
    let database = write_database(&OcdbtConfig::orbax(), entries, "d/nodes", 0).unwrap();
    std::fs::create_dir(folder.path().join("d")).unwrap();
    std::fs::write(folder.path().join("d/nodes"), &database.nodes).unwrap();
    for (name, bytes) in &database.manifests {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    std::fs::write(folder.path().join("_METADATA"), tree.to_json().unwrap()).unwrap();

    let started = std::time::Instant::now();
    let reader = open(folder.path()).unwrap();
    let order = reader.read_order();
    let took = started.elapsed();
    // Anything quadratic takes minutes; a loaded machine may take several times the usual half second.
    assert!(took.as_secs() < 30, "opening took {took:?}");
    assert_eq!((reader.tree().len(), order.len()), (LEAVES as usize, LEAVES as usize));
    for leaf in [0, 77_777, 99_999] {
        assert_eq!(read_whole(&*reader, leaf).unwrap(), (leaf as u32).to_le_bytes());
    }
    println!("opened {LEAVES} leaves in {took:?}");
}

#[test]
fn a_deep_tree_opens_and_blames_the_right_leaf() {
    let folder = tempfile::tempdir().unwrap();
    let mut keys = vec![(KeyType::Dict, "k".to_owned()); 30_000];
    let entry = |keys: &[(KeyType, String)], value_type: &str| Entry {
        keys: keys.to_vec(),
        value_type: value_type.to_owned(),
        skip_deserialize: false,
        write_shape: None,
    };
    let mut tree = TreeMetadata { entries: vec![entry(&keys, "Custom")], ..TreeMetadata::default() };
    std::fs::write(folder.path().join("_METADATA"), tree.to_json().unwrap()).unwrap();
    let reader = open(folder.path()).unwrap();
    assert_eq!(reader.tree().leaves()[0].kind, LeafKind::Unknown("Custom".into()));
    let error = reader.read_region(0, &Region::whole(&Shape::scalar()), &mut [0]).unwrap_err();
    assert_eq!((error.kind(), error.place().leaf.as_ref().unwrap().len()), (ErrorKind::Unsupported, 30_000));
    keys.resize(200_000, (KeyType::Dict, "k".to_owned()));
    tree.entries = vec![entry(&keys, "Custom")];
    std::fs::write(folder.path().join("_METADATA"), tree.to_json().unwrap()).unwrap();
    assert_eq!(open(folder.path()).unwrap_err().kind(), ErrorKind::Limit);
}

/// Opens and reads whatever can be; the outcome is free, but there must be one.
fn use_it(path: &Path) -> usize {
    let Ok(reader) = open(path) else { return 1 };
    let mut errors = 0;
    for (leaf, info) in reader.tree().leaves().iter().enumerate() {
        if info.kind == LeafKind::Str {
            errors += usize::from(reader.read_text(leaf).is_err());
        } else if info.len_bytes() <= READ_MAX_BYTES {
            errors += usize::from(read_whole(&*reader, leaf).is_err());
        }
        errors += usize::from(reader.view(leaf).is_err());
    }
    reader.read_order();
    errors + reader.check_rest().map_or(1, |rest| rest.findings.len())
}

/// A new file under the same name: cutting the old one short would make some file systems wait for the disk.
fn replace(file: &Path, bytes: &[u8]) {
    std::fs::remove_file(file).unwrap();
    std::fs::write(file, bytes).unwrap();
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    files
}

#[test]
fn damage_anywhere_ends_in_an_outcome() {
    let (mut noticed, mut tried) = (0, 0);
    for fixture in fixture_names() {
        let files = files_below(&checkpoint(&fixture));
        let total: u64 = files.iter().map(|file| std::fs::metadata(file).unwrap().len()).sum();
        if total > 40_000 || files.len() > 40 {
            continue;
        }
        let copy = tempfile::tempdir().unwrap();
        regrow_testkit::copy_folder(&checkpoint(&fixture), copy.path()).unwrap();
        for file in files_below(copy.path()) {
            let bytes = std::fs::read(&file).unwrap();
            let mut forms: Vec<Vec<u8>> = [0, 1, bytes.len() / 2, bytes.len().saturating_sub(1)]
                .map(|len| bytes[..len.min(bytes.len())].to_vec())
                .to_vec();
            for step in 0..6 {
                let Some(last) = bytes.len().checked_sub(1) else { break };
                let mut flipped = bytes.clone();
                flipped[(last * step / 5).min(last)] ^= 1 << (step + 1);
                forms.push(flipped);
            }
            for form in forms {
                replace(&file, &form);
                tried += 1;
                noticed += usize::from(use_it(copy.path()) > 0);
            }
            replace(&file, &bytes);
        }
    }
    assert!(tried > 500 && noticed * 3 > tried, "{noticed} of {tried} were noticed");
}
