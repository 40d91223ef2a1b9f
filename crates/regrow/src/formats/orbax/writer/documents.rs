//! The small files of a checkpoint: what each leaf is, and who wrote it. All but the arrays.
//!
//! ```text
//! _METADATA                     the tree: key path, kind and written shape of every leaf
//! _CHECKPOINT_METADATA          handler, times, the user's metadata (v1)
//! array_metadatas/process_0     chunks of jax.Array leaves; the name of a PRNG's algorithm
//! _sharding                     base64 of the name -> sharding, as JSON in a string
//! _strings.json                 texts, nested at every / of the name
//! commit_success.txt            that it is complete, for copies on an object store
//! ```
//!
//! [`documents`] turns a tree and an [`LeafEntry`] a leaf into them all; the rooms next door know how each is
//! spelt. The regrow layout writes the same ones.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use crate::array::Shape;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::orbax::array_metadatas::{self, ARRAY_METADATAS_FOLDER, ArrayMetadata, process_file};
use crate::formats::orbax::checkpoint_metadata::{
    CHECKPOINT_METADATA_FILE, CheckpointMetadata, ItemHandlers, PYTREE_HANDLER, V1_PYTREE_HANDLER,
};
use crate::formats::orbax::metadata::{Entry, KeyType, METADATA_FILE, TreeMetadata, ValueMetadata};
use crate::formats::orbax::rich::{RICH_DEPTH_MAX, RichNode};
use crate::formats::orbax::sharding::{self, SHARDING_FILE};
use crate::formats::orbax::strings::{STRINGS_FILE, Strings};
use crate::tree::{Key, KeyPath, Leaf, LeafData, LeafKind, NodeKind, Tree};

/// Item that holds the pytree in the v1 API's layout; the v0 layout has the pytree at the top.
pub(crate) const V1_ITEM: &str = "state";

/// Empty file that marks a folder of the v1 API.
const V1_MARKER: &str = "orbax.checkpoint";

/// Present in a finished checkpoint; Orbax puts a path into it, which is nobody's business.
const COMMIT_FILE: &str = "commit_success.txt";
const COMMIT_TEXT: &str = "Checkpoint commit was successful";

/// What kind of value an entry of `_METADATA` stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueType {
    JaxArray,
    NumpyArray,
    Scalar,
    String,
    None,
    Dict,
    List,
    Tuple,
    NamedTuple,
    Placeholder,
}

impl ValueType {
    /// As Orbax spells it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::JaxArray => "jax.Array",
            Self::NumpyArray => "np.ndarray",
            Self::Scalar => "scalar",
            Self::String => "string",
            Self::None => "None",
            Self::Dict => "Dict",
            Self::List => "List",
            Self::Tuple => "Tuple",
            Self::NamedTuple => "NamedTuple",
            Self::Placeholder => "placeholder",
        }
    }

    /// Whether there is nothing behind it but its entry.
    fn is_empty(self) -> bool {
        matches!(self, Self::None | Self::Dict | Self::List | Self::Tuple | Self::NamedTuple)
    }

    /// What a leaf of this kind is called.
    pub(crate) fn of_leaf(kind: &LeafKind) -> Self {
        match kind {
            LeafKind::JaxArray | LeafKind::PrngKey(_) => Self::JaxArray,
            LeafKind::NumpyArray | LeafKind::NumpyOther(_) | LeafKind::Bytes => Self::NumpyArray,
            LeafKind::Scalar | LeafKind::NumpyScalar => Self::Scalar,
            LeafKind::Str => Self::String,
            LeafKind::Placeholder | LeafKind::Unknown(_) => Self::Placeholder,
        }
    }

    /// What a container without children is called; only rich types know the empty named tuple.
    fn of_empty(kind: &NodeKind, rich_types: bool) -> Self {
        match kind {
            NodeKind::Dict | NodeKind::OrderedDict | NodeKind::DefaultDict => Self::Dict,
            NodeKind::List => Self::List,
            NodeKind::Tuple => Self::Tuple,
            NodeKind::NamedTuple(_) if rich_types => Self::NamedTuple,
            _ => Self::None,
        }
    }
}

/// What the documents say of one leaf, beyond what the tree says.
#[derive(Debug, Clone)]
pub(crate) struct LeafEntry {
    /// The name it is stored under.
    pub(crate) name: Arc<str>,
    /// The key path to write instead of the leaf's own, where that cannot be said.
    pub(crate) path: Option<KeyPath>,
    /// What kind of value it is.
    pub(crate) value_type: ValueType,
    /// Shape of one written piece; for `jax.Array` only.
    pub(crate) write_shape: Option<Shape>,
    /// Shape of a chunk; for `jax.Array` only.
    pub(crate) chunk_shape: Option<Shape>,
}

/// What to write, and how the arrays are stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Switches<'a> {
    pub(crate) use_ocdbt: bool,
    pub(crate) use_zarr3: bool,
    pub(crate) rich_types: bool,
    pub(crate) write_sharding: bool,
    pub(crate) write_array_metadatas: bool,
    /// The v1 API's folder: a marker, and the pytree as item [`V1_ITEM`].
    pub(crate) v1: bool,
    pub(crate) custom_metadata: Option<&'a Value>,
}

/// One small file: its name below the checkpoint's folder, and what is in it.
pub(crate) type Document = (String, Vec<u8>);

/// All small files of a checkpoint whose leaves are described by `entries`, in flatten order.
///
/// PRNG keys have their `array_metadatas` whatever the switch says: nothing else names their algorithm.
///
/// # Errors
/// `InvalidArgument` if there is not one entry a leaf, or for v1 metadata that is no JSON object;
/// `NameCollision` for equal key paths; `Limit` for rich types of a tree deeper than they reach.
pub(crate) fn documents(
    tree: &Tree<Leaf>,
    entries: &[LeafEntry],
    switches: Switches<'_>,
) -> Result<Vec<Document>> {
    if entries.len() != tree.len() {
        return Err(
            Error::invalid("the documents need one entry for each leaf").expected(tree.len(), entries.len())
        );
    }
    let item = |file: &str| if switches.v1 { format!("{V1_ITEM}/{file}") } else { file.to_owned() };
    let leaves = || tree.leaves().iter().zip(entries);
    let jax_arrays = || leaves().filter(|(_, entry)| entry.value_type == ValueType::JaxArray);

    let mut documents = vec![(item(METADATA_FILE), tree_metadata(tree, entries, switches)?.to_json()?)];
    if jax_arrays().next().is_some() {
        let has_prng_key = jax_arrays().any(|(leaf, _)| matches!(leaf.kind, LeafKind::PrngKey(Some(_))));
        if switches.write_array_metadatas || has_prng_key {
            let file = format!("{ARRAY_METADATAS_FOLDER}/{}", process_file(0));
            let arrays = jax_arrays().map(|(leaf, entry)| array_metadata(leaf, entry)).collect();
            documents.push((item(&file), array_metadatas::to_json(arrays)?));
        }
        if switches.write_sharding {
            // Without an entry Orbax could not restore the leaf: one that says nothing gets the first CPU.
            let single = sharding::single_device();
            let shardings = jax_arrays()
                .map(|(leaf, entry)| (&*entry.name, Some(leaf.sharding.as_ref().unwrap_or(&single))));
            documents.push((item(SHARDING_FILE), sharding::to_json(shardings)?));
        }
    }
    let mut strings = Strings::default();
    for (leaf, entry) in leaves().filter(|(_, entry)| entry.value_type == ValueType::String) {
        if let LeafData::Text(text) = &leaf.data {
            strings.insert(&entry.name, &**text)?;
        }
    }
    if !strings.is_empty() {
        documents.push((item(STRINGS_FILE), strings.to_json()?));
    }
    if switches.v1 {
        documents.push((V1_MARKER.to_owned(), Vec::new()));
    }
    documents.push((CHECKPOINT_METADATA_FILE.to_owned(), checkpoint_metadata(switches)?.to_json()?));
    documents.push((COMMIT_FILE.to_owned(), COMMIT_TEXT.into()));
    Ok(documents)
}

fn tree_metadata(tree: &Tree<Leaf>, leaves: &[LeafEntry], switches: Switches<'_>) -> Result<TreeMetadata> {
    let mut entries = Vec::with_capacity(leaves.len());
    let mut rich = switches.rich_types.then(RichBuilder::default);
    let mut leaves = leaves.iter();
    for (path, node) in tree.walk() {
        if node.child_count > 0 {
            if let Some(rich) = &mut rich {
                rich.open(&node.key, &node.kind, node.child_count)?;
            }
            continue;
        }
        let leaf = if node.kind == NodeKind::Leaf { leaves.next() } else { None };
        let value_type = match leaf {
            Some(leaf) => leaf.value_type,
            None => ValueType::of_empty(&node.kind, switches.rich_types),
        };
        let write_shape = leaf.and_then(|leaf| leaf.write_shape.as_ref()).map(|shape| shape.dims().to_vec());
        if let Some(rich) = &mut rich {
            let value = ValueMetadata {
                value_type: value_type.name().to_owned(),
                skip_deserialize: value_type.is_empty(),
                write_shape: write_shape.clone(),
            };
            rich.add(&node.key, RichNode::Leaf(value));
        }
        let path = leaf.and_then(|leaf| leaf.path.as_ref()).unwrap_or(&path);
        entries.push(Entry {
            keys: path.keys().iter().map(|key| (key_type(key), key.text().into_owned())).collect(),
            value_type: value_type.name().to_owned(),
            skip_deserialize: value_type.is_empty(),
            write_shape,
        });
    }
    Ok(TreeMetadata {
        entries,
        use_ocdbt: Some(switches.use_ocdbt),
        use_zarr3: switches.use_zarr3,
        store_array_data_equal_to_fill_value: true,
        custom_metadata: switches.custom_metadata.filter(|_| !switches.v1).cloned(),
        value_metadata_tree: rich.and_then(|rich| rich.root),
        rich_types_lost: None,
    })
}

fn key_type(key: &Key) -> KeyType {
    match key {
        Key::Index(_) => KeyType::Sequence,
        Key::Dict(_) | Key::DictInt(_) | Key::Attr(_) => KeyType::Dict,
    }
}

/// Builds the tree of rich types from nodes in preorder.
#[derive(Default)]
struct RichBuilder {
    root: Option<RichNode>,
    /// Containers on the way down: their own key, children still to come, and what is there of them.
    open: Vec<(String, usize, RichNode)>,
}

impl RichBuilder {
    fn open(&mut self, key: &Key, kind: &NodeKind, child_count: usize) -> Result<()> {
        if self.open.len() >= RICH_DEPTH_MAX {
            return Err(Error::new(
                ErrorKind::Limit,
                format!("rich types reach {RICH_DEPTH_MAX} levels down, and the tree goes deeper"),
            )
            .help("leave rich_types off: the key paths themselves may be of any depth"));
        }
        let node = match kind {
            NodeKind::List => RichNode::List(Vec::new()),
            NodeKind::Tuple => RichNode::Tuple(Vec::new()),
            NodeKind::NamedTuple(name) => {
                let (module, class) = name.rsplit_once('.').unwrap_or(("", name));
                RichNode::NamedTuple { module: module.into(), class: class.into(), entries: Vec::new() }
            }
            _ => RichNode::Dict(Vec::new()),
        };
        self.open.push((key.text().into_owned(), child_count, node));
        Ok(())
    }

    fn add(&mut self, key: &Key, node: RichNode) {
        let (mut key, mut node) = (key.text().into_owned(), node);
        loop {
            let Some((_, left, parent)) = self.open.last_mut() else {
                self.root = Some(node);
                return;
            };
            match parent {
                RichNode::List(items) | RichNode::Tuple(items) => items.push(node),
                RichNode::Dict(entries) | RichNode::NamedTuple { entries, .. } => entries.push((key, node)),
                RichNode::Leaf(_) => {}
            }
            *left = left.saturating_sub(1);
            if *left > 0 {
                return;
            }
            // The last child closes its container, which then is a child itself.
            match self.open.pop() {
                Some((own_key, _, closed)) => (key, node) = (own_key, closed),
                None => return,
            }
        }
    }
}

fn array_metadata(leaf: &Leaf, entry: &LeafEntry) -> ArrayMetadata {
    let dims = |shape: &Option<Shape>| shape.as_ref().map(|shape| shape.dims().to_vec()).unwrap_or_default();
    let ext_metadata = match &leaf.kind {
        LeafKind::PrngKey(Some(algorithm)) => Some(serde_json::json!({"random_key_impl": &**algorithm})),
        _ => None,
    };
    ArrayMetadata {
        param_name: entry.name.to_string(),
        write_shape: dims(&entry.write_shape),
        chunk_shape: dims(&entry.chunk_shape),
        ext_metadata,
    }
}

/// The v1 API keeps the user's metadata here, v0 in `_METADATA`.
fn checkpoint_metadata(switches: Switches<'_>) -> Result<CheckpointMetadata> {
    let custom_metadata = match switches.custom_metadata.filter(|_| switches.v1) {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(members)) => members.clone(),
        Some(_) => {
            return Err(Error::invalid("the v1 layout takes only a JSON object as custom metadata")
                .help("put the value into an object, or write the v0 layout"));
        }
    };
    // One time for both: the commit follows at once.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    let now = now.and_then(|since| u64::try_from(since.as_nanos()).ok());
    let item_handlers = if switches.v1 {
        ItemHandlers::Many(vec![(V1_ITEM.to_owned(), Some(V1_PYTREE_HANDLER.to_owned()))])
    } else {
        ItemHandlers::One(PYTREE_HANDLER.to_owned())
    };
    Ok(CheckpointMetadata {
        item_handlers,
        init_timestamp_nsecs: now,
        commit_timestamp_nsecs: now,
        custom_metadata,
        ..CheckpointMetadata::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::{Array, Dtype};
    use crate::tree::{Key, TreeBuilder};
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

    /// The tree and entries that a fixture's own documents describe.
    struct Told {
        build: TreeBuilder<Leaf>,
        entries: Vec<LeafEntry>,
        arrays: serde_json::Map<String, Value>,
        shardings: Value,
        texts: Value,
    }

    impl Told {
        fn of(item: &std::path::Path) -> Self {
            let read =
                |name: &str| if item.join(name).exists() { json(&item.join(name)) } else { Value::Null };
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
                leaf.sharding =
                    self.shardings[coded].as_str().map(|text| serde_json::from_str(text).unwrap());
                self.build.leaf(key.clone(), leaf).unwrap();
                self.entries.push(LeafEntry {
                    name: name.as_str().into(),
                    path: None,
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

        /// Adds what `value_metadata_tree` tells, which knows all containers.
        fn add_rich(&mut self, path: &mut Vec<Key>, value: &Value) {
            let key = path.last().cloned().unwrap_or(Key::Index(0));
            if value["clazz"] == "ValueMetadataEntry" {
                return self.add(key, &path.clone(), &value["data"]);
            }
            let positions = |items: &Value| -> Vec<(Key, Value)> {
                items
                    .as_array()
                    .unwrap()
                    .iter()
                    .cloned()
                    .enumerate()
                    .map(|(i, v)| (Key::Index(i), v))
                    .collect()
            };
            let (kind, children) = if value.is_array() {
                (NodeKind::List, positions(value))
            } else if value["category"] == "namedtuple" {
                let class =
                    format!("{}.{}", value["module"].as_str().unwrap(), value["clazz"].as_str().unwrap());
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
                // Documents by hand or by older versions are spelt otherwise; two processes write two of each.
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
                    custom_metadata: Some(&expect["custom_metadata"]),
                };
                for (name, bytes) in documents(&tree, &told.entries, switches).unwrap() {
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
        let entry = LeafEntry {
            name: "".into(),
            path: None,
            value_type: ValueType::String,
            write_shape: None,
            chunk_shape: None,
        };
        let custom = serde_json::json!({"epoch": 1});
        let mut switches = Switches {
            use_ocdbt: true,
            use_zarr3: true,
            rich_types: false,
            write_sharding: true,
            write_array_metadatas: true,
            v1: true,
            custom_metadata: Some(&custom),
        };
        let documents_of = |switches| documents(&tree, std::slice::from_ref(&entry), switches);
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
        assert!(documents(&tree, &[], switches).is_err());
    }
}
