use super::*;
use regrow_tree::array::{Array, Dtype};
use regrow_tree::sharding::Sharding;
use regrow_tree::tree::{Key, TreeBuilder};
use std::fs;

fn item(fixture: &str) -> std::path::PathBuf {
    regrow_testkit::fixtures().join("orbax").join(fixture)
}

fn json(path: &std::path::Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Shape {
    let dims: Vec<u64> = value.as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap()).collect();
    Shape::new(dims).unwrap()
}

/// The data that a [`LeafEntry`] refers to.
struct OwnEntry {
    name: String,
    value_type: ValueType,
    write_shape: Option<Shape>,
    chunk_shape: Option<Shape>,
}

fn all_of(tree: &Tree<Leaf>, entries: &[OwnEntry], switches: Switches<'_>) -> Result<Vec<Document>> {
    let mut documents = Vec::new();
    let entry = |leaf: usize| LeafEntry {
        name: &entries[leaf].name,
        path: None,
        value_type: entries[leaf].value_type,
        own_type: None,
        write_shape: entries[leaf].write_shape.as_ref(),
        chunk_shape: entries[leaf].chunk_shape.as_ref(),
    };
    super::documents(tree, &entry, switches, &mut documents)?;
    Ok(documents)
}

/// The tree and entries that a fixture's own documents describe.
struct Told {
    build: TreeBuilder<Leaf>,
    entries: Vec<OwnEntry>,
    arrays: serde_json::Map<String, Value>,
    shardings: Value,
    texts: Value,
}

impl Told {
    fn of(item: &std::path::Path) -> Self {
        let read = |name: &str| if item.join(name).exists() { json(&item.join(name)) } else { Value::Null };
        let arrays = read("array_metadatas/process_0")["array_metadatas"].as_array().cloned();
        let arrays = arrays.unwrap_or_default().into_iter().map(|array| {
            let array = array["array_metadata"].clone();
            (array["param_name"].as_str().unwrap().to_owned(), array)
        });
        Self {
            build: TreeBuilder::new(),
            entries: Vec::new(),
            arrays: arrays.collect(),
            shardings: read("_sharding"),
            texts: read("_strings.json"),
        }
    }

    /// Adds one entry of `_METADATA`.
    fn add(&mut self, key: Key, path: &[Key], data: &Value) {
        let name = KeyPath::from(path.to_vec()).join(".");
        let mut of = |value_type, kind| {
            let array = &self.arrays.get(&name).cloned().unwrap_or_default();
            let kind = match array["ext_metadata"]["random_key_impl"].as_str() {
                Some(algorithm) => LeafKind::PrngKey(Some(algorithm.into())),
                None => kind,
            };
            let text = name.split('/').fold(&self.texts, |at, part| &at[part]);
            let mut leaf = match text.as_str() {
                Some(text) if kind == LeafKind::Str => Leaf::text(text),
                _ => Leaf::array(Array::new(Dtype::Int8, Shape::scalar(), vec![0].into()).unwrap()),
            };
            leaf.kind = kind;
            let coded = sharding::base64url(name.as_bytes());
            leaf.sharding = self.shardings[coded]
                .as_str()
                .map(|text| std::sync::Arc::new(Sharding::from_json(serde_json::from_str(text).unwrap())));
            self.build.leaf(key.clone(), leaf).unwrap();
            self.entries.push(OwnEntry {
                name: name.clone(),
                value_type,
                write_shape: data.get("write_shape").map(numbers),
                chunk_shape: array.get("chunk_shape").map(numbers),
            });
        };
        let empty = match data["value_type"].as_str().unwrap() {
            "jax.Array" => return of(ValueType::JaxArray, LeafKind::JaxArray),
            "np.ndarray" => return of(ValueType::NumpyArray, LeafKind::NumpyArray),
            "scalar" => return of(ValueType::Scalar, LeafKind::Scalar),
            "string" => return of(ValueType::String, LeafKind::Str),
            "None" => NodeKind::None,
            "Dict" => NodeKind::Dict,
            "List" => NodeKind::List,
            "Tuple" => NodeKind::Tuple,
            "NamedTuple" => NodeKind::NamedTuple("x.Y".into()),
            other => panic!("{other}"),
        };
        self.build.open(key, empty).unwrap();
        self.build.close().unwrap();
    }

    /// Adds a node of `value_metadata_tree`, which has all containers.
    fn add_rich(&mut self, path: &mut Vec<Key>, value: &Value) {
        let key = path.last().cloned().unwrap_or(Key::Index(0));
        if value["clazz"] == "ValueMetadataEntry" {
            return self.add(key, &path.clone(), &value["data"]);
        }
        let positions = |items: &Value| -> Vec<(Key, Value)> {
            items.as_array().unwrap().iter().cloned().enumerate().map(|(i, v)| (Key::Index(i), v)).collect()
        };
        let (kind, children) = if value.is_array() {
            (NodeKind::List, positions(value))
        } else if value["category"] == "namedtuple" {
            let class = format!("{}.{}", value["module"].as_str().unwrap(), value["clazz"].as_str().unwrap());
            let entries = value["entries"].as_array().unwrap().iter();
            let children = entries.map(|e| (Key::attr(e["key"].as_str().unwrap()), e["value"].clone()));
            (NodeKind::NamedTuple(class.into()), children.collect())
        } else if value["clazz"] == "tuple" {
            (NodeKind::Tuple, positions(&value["entries"]))
        } else {
            let members = value.as_object().unwrap().iter();
            (NodeKind::Dict, members.map(|(k, v)| (Key::dict(k.as_str()), v.clone())).collect())
        };
        self.build.open(key, kind).unwrap();
        for (key, child) in children {
            path.push(key);
            self.add_rich(path, &child);
            path.pop();
        }
        self.build.close().unwrap();
    }

    /// Adds the flat entries of `tree_metadata` that lie below `path`.
    fn add_flat(&mut self, path: &mut Vec<Key>, entries: &[(Vec<Key>, Value)]) {
        let key = path.last().cloned().unwrap_or(Key::Index(0));
        if let [(keys, data)] = entries
            && keys.len() == path.len()
        {
            return self.add(key, keys, data);
        }
        self.build.open(key, NodeKind::Dict).unwrap();
        let depth = path.len();
        for group in entries.chunk_by(|a, b| a.0[depth] == b.0[depth]) {
            path.push(group[0].0[depth].clone());
            self.add_flat(path, group);
            path.pop();
        }
        self.build.close().unwrap();
    }
}

#[test]
fn writes_the_bytes_that_orbax_wrote() {
    let mut seen = 0;
    for entry in fs::read_dir(regrow_testkit::fixtures().join("orbax")).unwrap() {
        let fixture = entry.unwrap().file_name().into_string().unwrap();
        for below in ["ckpt", "ckpt/state"] {
            let item = item(&fixture).join(below);
            // Skip documents that were made by hand, by older versions, or by two processes: their
            // form differs.
            let is_other =
                ["legacy_", "edge_", "bad_", "mp2_", "v1_partial"].iter().any(|s| fixture.starts_with(s));
            if is_other || !item.join("_METADATA").exists() {
                continue;
            }
            let expect = json(&item.join("_METADATA"));
            let rich = expect.get("value_metadata_tree").and_then(Value::as_str);
            let mut told = Told::of(&item);
            match rich {
                Some(text) => told.add_rich(&mut Vec::new(), &serde_json::from_str(text).unwrap()),
                None => {
                    let flat = expect["tree_metadata"].as_object().unwrap().values().map(|entry| {
                        let keys = entry["key_metadata"].as_array().unwrap().iter().map(|key| {
                            let text = key["key"].as_str().unwrap();
                            if key["key_type"] == 1 {
                                Key::Index(text.parse().unwrap())
                            } else {
                                Key::dict(text)
                            }
                        });
                        (keys.collect(), entry["value_metadata"].clone())
                    });
                    told.add_flat(&mut Vec::new(), &flat.collect::<Vec<_>>());
                }
            }
            let tree = told.build.finish().unwrap();
            let switches = Switches {
                use_ocdbt: expect["use_ocdbt"].as_bool().unwrap(),
                use_zarr3: expect["use_zarr3"].as_bool().unwrap(),
                rich_types: rich.is_some(),
                write_sharding: true,
                write_array_metadatas: true,
                v1: false,
                beside_regrow_json: false,
                custom_metadata: Some(&expect["custom_metadata"]),
                about: &AboutCheckpoint::default(),
            };
            for (name, bytes) in all_of(&tree, &told.entries, switches).unwrap() {
                if ["_CHECKPOINT_METADATA", "commit_success.txt"].contains(&name.as_str()) {
                    continue;
                }
                let written = fs::read(item.join(&name)).unwrap();
                assert_eq!(
                    String::from_utf8(bytes).unwrap(),
                    String::from_utf8(written).unwrap(),
                    "{fixture} {name}"
                );
                seen += 1;
            }
        }
    }
    assert!(seen > 60, "{seen}");
}

#[test]
fn v1_has_a_marker_and_its_metadata_at_the_top() {
    let tree = Tree::single(Leaf::text("x"));
    let entry =
        OwnEntry { name: String::new(), value_type: ValueType::String, write_shape: None, chunk_shape: None };
    let (custom, about) = (serde_json::json!({"epoch": 1}), AboutCheckpoint::default());
    let mut switches = Switches {
        use_ocdbt: true,
        use_zarr3: true,
        rich_types: false,
        write_sharding: true,
        write_array_metadatas: true,
        v1: true,
        beside_regrow_json: false,
        custom_metadata: Some(&custom),
        about: &about,
    };
    let documents_of = |switches| all_of(&tree, std::slice::from_ref(&entry), switches);
    let all = documents_of(switches).unwrap();
    let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    let expect = [
        "state/_METADATA",
        "state/_strings.json",
        "orbax.checkpoint",
        "_CHECKPOINT_METADATA",
        "commit_success.txt",
    ];
    assert_eq!(names, expect);
    assert_eq!(all[1].1, br#"{"":"x"}"#);
    let top: Value = serde_json::from_slice(&all[3].1).unwrap();
    let written = json(&item("v1_default").join("ckpt/_CHECKPOINT_METADATA"));
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&top), keys(&written));
    assert_eq!(top["item_handlers"], written["item_handlers"]);
    assert_eq!(top["custom_metadata"], custom);
    switches.custom_metadata = Some(&Value::Bool(true));
    assert!(documents_of(switches).is_err());
}
