//! The small files of a checkpoint: all files except the arrays.
//!
//! ```text
//! _METADATA                     the tree: key path, kind and written shape of every leaf
//! _CHECKPOINT_METADATA          handler, times, the user's metadata (v1)
//! array_metadatas/process_<n>   chunks of jax.Array leaves; the name of a PRNG's algorithm; each process writes one
//! _sharding                     base64 of the name -> sharding, as JSON in a string
//! _strings.json                 texts, nested at every / of the name
//! orbax.checkpoint              the empty marker of the v1 layout
//! commit_success.txt            marks a complete checkpoint, for copies on an object store
//! ```
//!
//! `documents` writes all these files of process 0 from a tree and a `LeafEntry` for each leaf. The
//! modules of the layout, such as `metadata` and `strings`, define the form of each file. The
//! regrow layout writes the same files.

use std::collections::HashSet;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use crate::options::AboutCheckpoint;
use crate::orbax::checkpoint_metadata::{
    CHECKPOINT_METADATA_FILE, CheckpointMetadata, ItemHandlers, PYTREE_HANDLER, V1_PYTREE_HANDLER,
};
use crate::orbax::entry::{KeyType, ValueMetadata};
use crate::orbax::marker_files::{COMMIT_SUCCESS_FILE, V1_MARKER_FILE};
use crate::orbax::metadata::{METADATA_FILE, TreeMetadata, equal_key_paths};
use crate::orbax::metadata_text::PathText;
use crate::orbax::python_repr::tuple_repr;
use crate::orbax::rich::{RICH_DEPTH_MAX, RichNode};
use crate::orbax::sharding::{self, SHARDING_FILE};
use crate::orbax::strings::{STRINGS_FILE, Strings};
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_tree::array::Shape;
use regrow_tree::tree::names::push_key;
use regrow_tree::tree::{Key, KeyPath, Leaf, LeafData, LeafKind, NodeKind, Tree};

mod array_metadatas;

pub(crate) use self::array_metadatas::array_metadatas_of;

/// Item that holds the pytree in the v1 API's layout; the v0 layout has the pytree at the top.
pub(crate) const V1_ITEM: &str = "state";

/// The text of the commit marker. Orbax puts a path into it, which readers ignore.
pub const COMMIT_TEXT: &str = "Checkpoint commit was successful";

/// The kind of value that an entry of `_METADATA` describes.
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

    /// Whether the value has no data besides its entry.
    fn is_empty(self) -> bool {
        matches!(self, Self::None | Self::Dict | Self::List | Self::Tuple | Self::NamedTuple)
    }

    pub(crate) fn of_leaf(kind: &LeafKind) -> Self {
        match kind {
            LeafKind::JaxArray | LeafKind::PrngKey(_) => Self::JaxArray,
            LeafKind::NumpyArray
            | LeafKind::NumpyOther(_)
            | LeafKind::NumpyOtherScalar(_)
            | LeafKind::Bytes => Self::NumpyArray,
            LeafKind::Scalar | LeafKind::NumpyScalar => Self::Scalar,
            LeafKind::Str => Self::String,
            LeafKind::Placeholder | LeafKind::Unknown(_) => Self::Placeholder,
        }
    }

    /// The kind of value for a container without children. Only rich types have the empty named
    /// tuple.
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

/// The data about one leaf that the documents need, in addition to the tree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeafEntry<'a> {
    pub(crate) name: &'a str,
    /// The key path to write if Orbax cannot represent the leaf's own.
    pub(crate) path: Option<&'a KeyPath>,
    pub(crate) value_type: ValueType,
    /// The name of the type that a user's own type handler gives to the leaf, instead of the name
    /// of `value_type`.
    pub(crate) own_type: Option<&'a str>,
    /// Shape of one written piece; for `jax.Array` only.
    pub(crate) write_shape: Option<&'a Shape>,
    /// Shape of a chunk; for `jax.Array` only.
    pub(crate) chunk_shape: Option<&'a Shape>,
}

impl LeafEntry<'_> {
    fn type_name(&self) -> &str {
        self.own_type.unwrap_or_else(|| self.value_type.name())
    }
}

/// Which documents to write, and how the arrays are stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Switches<'a> {
    pub(crate) use_ocdbt: bool,
    pub(crate) use_zarr3: bool,
    pub(crate) rich_types: bool,
    pub(crate) write_sharding: bool,
    pub(crate) write_array_metadatas: bool,
    /// The v1 API's folder: a marker, and the pytree as item [`V1_ITEM`].
    pub(crate) v1: bool,
    /// Whether the folder will also have `regrow.json`.
    pub(crate) beside_regrow_json: bool,
    pub(crate) custom_metadata: Option<&'a Value>,
    pub(crate) about: &'a AboutCheckpoint,
}

impl Switches<'_> {
    /// The folder of the pytree, with a final `/`; empty if the pytree is in the checkpoint's
    /// folder.
    pub(crate) fn item(&self) -> String {
        if self.v1 { format!("{V1_ITEM}/") } else { String::new() }
    }
}

/// Receives the small files one after another, each piece by piece: for a million leaves they take
/// hundreds of MiB.
pub(crate) trait DocumentSink {
    /// Begins a file, by its name below the checkpoint's folder.
    fn begin(&mut self, name: &str) -> Result<()>;

    /// Appends to the file that was begun last.
    fn write(&mut self, bytes: &[u8]) -> Result<()>;

    fn end(&mut self) -> Result<()>;
}

pub(crate) type Document = (String, Vec<u8>);

impl DocumentSink for Vec<Document> {
    fn begin(&mut self, name: &str) -> Result<()> {
        self.push((name.to_owned(), Vec::new()));
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some((_, document)) = self.last_mut() {
            document.extend_from_slice(bytes);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

const PIECE_LEN_BYTES: usize = 64 << 10;

/// Passes the text to the sink when it has at least this length.
fn flush(sink: &mut dyn DocumentSink, text: &mut Vec<u8>, at_least: usize) -> Result<()> {
    if text.len() >= at_least {
        sink.write(text)?;
        text.clear();
    }
    Ok(())
}

fn whole(sink: &mut dyn DocumentSink, name: &str, bytes: &[u8]) -> Result<()> {
    sink.begin(name)?;
    sink.write(bytes)?;
    sink.end()
}

/// Writes all small files of a checkpoint. `entry` describes each leaf, by its position in flatten
/// order.
///
/// A tree with typed PRNG keys has `array_metadatas` for either value of the switch: only this file
/// has the algorithms of the keys.
///
/// # Errors
/// `InvalidArgument` for v1 metadata that is not a JSON object; `NameCollision` for equal key paths;
/// `Limit` for rich types of a tree deeper than they reach; errors of the sink.
pub(crate) fn documents<'a>(
    tree: &'a Tree<Leaf>,
    entry: &dyn Fn(usize) -> LeafEntry<'a>,
    switches: Switches<'_>,
    sink: &mut dyn DocumentSink,
) -> Result<()> {
    let item = |file: &str| format!("{}{file}", switches.item());
    let leaves = move || tree.leaves().iter().enumerate().map(move |(at, leaf)| (leaf, entry(at)));
    let jax_arrays = move || leaves().filter(|(_, entry)| entry.value_type == ValueType::JaxArray);

    check_key_paths(tree, entry)?;
    let checkpoint = checkpoint_metadata(switches)?.to_json()?;
    sink.begin(&item(METADATA_FILE))?;
    write_tree_metadata(tree, entry, switches, sink)?;
    sink.end()?;
    array_metadatas_of(0, tree, entry, switches, sink)?;
    if switches.write_sharding && jax_arrays().next().is_some() {
        // Without an entry Orbax could not restore the leaf, so a leaf of unknown sharding gets the
        // first CPU.
        let single = sharding::single_device();
        let shardings =
            jax_arrays().map(|(leaf, entry)| (entry.name, Some(leaf.sharding.as_deref().unwrap_or(&single))));
        whole(sink, &item(SHARDING_FILE), &sharding::to_json(shardings)?)?;
    }
    let mut strings = Strings::default();
    for (leaf, entry) in leaves().filter(|(_, entry)| entry.value_type == ValueType::String) {
        if let LeafData::Text(text) = &leaf.data {
            strings.insert(entry.name, &**text)?;
        }
    }
    if !strings.is_empty() {
        whole(sink, &item(STRINGS_FILE), &strings.to_json()?)?;
    }
    if switches.v1 {
        whole(sink, V1_MARKER_FILE, b"")?;
    }
    whole(sink, CHECKPOINT_METADATA_FILE, &checkpoint)?;
    whole(sink, COMMIT_SUCCESS_FILE, COMMIT_TEXT.as_bytes())
}

/// Refuses two entries with the same texts. If all keys of each container have one kind, and every
/// leaf has its own path, different keys have different texts, and nothing is compared.
fn check_key_paths<'a>(tree: &'a Tree<Leaf>, entry: &dyn Fn(usize) -> LeafEntry<'a>) -> Result<()> {
    let has_own_paths = (0..tree.len()).all(|leaf| entry(leaf).path.is_none());
    if has_own_paths && tree.has_keys_of_one_kind() && tree.first_equal_keys().is_none() {
        return Ok(());
    }
    let mut seen = HashSet::new();
    let mut leaf = 0;
    for (path, node) in tree.walk().filter(|(_, node)| node.child_count == 0) {
        let mut shown = &path;
        if node.kind == NodeKind::Leaf {
            shown = entry(leaf).path.unwrap_or(shown);
            leaf += 1;
        }
        let repr =
            tuple_repr(shown.keys().iter().map(Key::text).collect::<Vec<_>>().iter().map(|text| &**text));
        if let Some(repr) = seen.replace(repr) {
            return Err(equal_key_paths(&repr));
        }
    }
    Ok(())
}

fn write_tree_metadata<'a>(
    tree: &Tree<Leaf>,
    entry: &dyn Fn(usize) -> LeafEntry<'a>,
    switches: Switches<'_>,
    sink: &mut dyn DocumentSink,
) -> Result<()> {
    let entry = &|leaf| {
        let own = entry(leaf);
        LeafEntry { write_shape: own.write_shape.filter(|_| switches.write_array_metadatas), ..own }
    };
    let mut text = TreeMetadata::OPENING.to_vec();
    let (mut path, mut other_path) = (PathText::default(), PathText::default());
    let mut key_text = String::new();
    let mut is_first = true;
    let mut leaf = 0;
    // Children still to come, for each container on the way down.
    let mut open: Vec<usize> = Vec::new();
    for node in tree.nodes() {
        while open.last() == Some(&0) {
            open.pop();
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
            path.truncate(open.len() - 1);
            key_text.clear();
            push_key(&mut key_text, &node.key);
            path.push(key_type(&node.key), &key_text);
        }
        if node.child_count > 0 {
            open.push(node.child_count);
            continue;
        }
        if !std::mem::take(&mut is_first) {
            text.extend_from_slice(b", ");
        }
        if node.kind == NodeKind::Leaf {
            let entry = entry(leaf);
            leaf += 1;
            let mut shown = &path;
            if let Some(other) = entry.path {
                other_path.truncate(0);
                other.keys().iter().for_each(|key| other_path.push(key_type(key), &key.text()));
                shown = &other_path;
            }
            let shape = entry.write_shape.map(Shape::dims);
            shown.push_entry(&mut text, entry.type_name(), entry.value_type.is_empty(), shape);
        } else {
            let value_type = ValueType::of_empty(&node.kind, switches.rich_types);
            path.push_entry(&mut text, value_type.name(), value_type.is_empty(), None);
        }
        flush(sink, &mut text, PIECE_LEN_BYTES)?;
    }
    let rest = TreeMetadata {
        entries: Vec::new(),
        use_ocdbt: Some(switches.use_ocdbt),
        use_zarr3: switches.use_zarr3,
        store_array_data_equal_to_fill_value: true,
        custom_metadata: switches.custom_metadata.filter(|_| !switches.v1).cloned(),
        value_metadata_tree: if switches.rich_types { rich_tree(tree, entry)? } else { None },
        beside_regrow_json: switches.beside_regrow_json,
        rich_types_lost: None,
    };
    rest.push_rest(&mut text)?;
    flush(sink, &mut text, 1)
}

fn key_type(key: &Key) -> KeyType {
    match key {
        Key::Index(_) => KeyType::Sequence,
        Key::Dict(_) | Key::DictInt(_) | Key::Attr(_) => KeyType::Dict,
    }
}

fn rich_tree<'a>(tree: &Tree<Leaf>, entry: &dyn Fn(usize) -> LeafEntry<'a>) -> Result<Option<RichNode>> {
    let mut rich = RichBuilder::default();
    let mut leaf = 0;
    for node in tree.nodes() {
        if node.child_count > 0 {
            rich.open(&node.key, &node.kind, node.child_count)?;
            continue;
        }
        let value = if node.kind == NodeKind::Leaf {
            let entry = entry(leaf);
            leaf += 1;
            ValueMetadata {
                value_type: entry.type_name().to_owned(),
                skip_deserialize: entry.value_type.is_empty(),
                write_shape: entry.write_shape.map(|shape| shape.dims().to_vec()),
            }
        } else {
            let empty = ValueType::of_empty(&node.kind, true);
            ValueMetadata {
                value_type: empty.name().to_owned(),
                skip_deserialize: empty.is_empty(),
                write_shape: None,
            }
        };
        rich.add(&node.key, RichNode::Leaf(value));
    }
    Ok(rich.root)
}

/// Builds the tree of rich types from nodes in preorder.
#[derive(Default)]
struct RichBuilder {
    root: Option<RichNode>,
    /// The open containers: key, number of children to come, and the node so far.
    open: Vec<(String, usize, RichNode)>,
}

impl RichBuilder {
    fn open(&mut self, key: &Key, kind: &NodeKind, child_count: usize) -> Result<()> {
        if self.open.len() >= RICH_DEPTH_MAX {
            return Err(Error::new(
                ErrorKind::Limit,
                format!("rich types reach {RICH_DEPTH_MAX} levels down, and the tree goes deeper"),
            )
            .help("leave rich_types off: key paths can have any depth"));
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

/// Builds `_CHECKPOINT_METADATA`. The v1 layout has the user's metadata in this file; the v0 layout
/// has the user's metadata in `_METADATA`.
fn checkpoint_metadata(switches: Switches<'_>) -> Result<CheckpointMetadata> {
    let AboutCheckpoint { handler, custom_metadata: own } = switches.about;
    let mut custom_metadata = match switches.custom_metadata.filter(|_| switches.v1) {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(members)) => members.clone(),
        Some(_) => {
            return Err(Error::invalid("the v1 layout takes only a JSON object as custom metadata")
                .help("put the value into an object, or write the v0 layout"));
        }
    };
    // Both times are equal: the commit follows immediately.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    let now = now.and_then(|since| u64::try_from(since.as_nanos()).ok());
    let item_handlers = if switches.v1 {
        ItemHandlers::Many(vec![(V1_ITEM.to_owned(), Some(V1_PYTREE_HANDLER.to_owned()))])
    } else {
        ItemHandlers::One(handler.as_deref().unwrap_or(PYTREE_HANDLER).to_owned())
    };
    custom_metadata.extend(own.clone());
    Ok(CheckpointMetadata {
        item_handlers,
        init_timestamp_nsecs: now,
        commit_timestamp_nsecs: now,
        custom_metadata,
        ..CheckpointMetadata::default()
    })
}

#[cfg(test)]
mod tests;
