//! Every golden checkpoint against `expected.json`: trees, leaves, regions, steps and items.

use std::collections::BTreeMap;

use regrow::ErrorKind;
use regrow::array::{Region, Shape};
use regrow::location::Location;
use regrow::tree::{Key, KeyPath, LeafKind, NodeKind};
use regrow_layouts::orbax::Orbax;
use regrow_layouts::{Format, Reader, ReaderExt};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{checkpoint, expected, fixture_names, open, open_at, read_whole};

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
fn every_item_of_every_fixture_loads_as_orbax_says() {
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
fn damage_names_the_file() {
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
