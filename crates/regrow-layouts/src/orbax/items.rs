//! Items: the named parts of a checkpoint. Each is a folder, and its files show its kind.
//!
//! | in the folder | the item is |
//! |---|---|
//! | `_METADATA` | a pytree; with the array handler, its one leaf |
//! | `jax_random_key/` | a PRNG key: the only array of the pytree in this subfolder |
//! | `np_random_key/` | NumPy's random state: the pytree in this subfolder, a tuple or a dict |
//! | `metadata`, `data.json` | JSON: a tree of dicts, lists, numbers, texts |
//! | `metrics` | JSON for the description, not for the tree |
//! | `proto.pbtxt` | a text |
//! | `checkpoint` | a pytree from before `_METADATA` |
//! | `manifest.ocdbt`, `_sharding`, … without `_METADATA` | a damaged pytree |
//! | `regrow.json`, `model.safetensors`, … | a pytree in another layout: see [`item_files`] |
//! | anything else | listed, not read |
//!
//! `regrow.items.json` and the handler names of Orbax record the kinds of items. An item with such
//! a record has that kind. The table is for all other items. If the handler is not Orbax' own, the
//! item is an item of files, unless its `_METADATA` describes a pytree.

use serde_json::Value;

use super::array_metadatas::ARRAY_METADATAS_FOLDER;
use super::checkpoint_metadata::{CHECKPOINT_METADATA_FILE, CheckpointMetadata};
use super::files::{Listed, list, read_small, some_names};
use super::json_text::{self, Marked};
use super::left::PROCESS_PREFIX;
use super::legacy;
use super::marker_files::{AGGREGATE_FILE, COMMIT_SUCCESS_FILE, JSON_FILE, MANIFEST_FILE};
use super::metadata::{METADATA_FILE, TreeMetadata};
use super::opened::{Opened, Wanted};
use super::pytree;
use super::sharding::SHARDING_FILE;
use super::slot::{Slot, graft};
use super::strings::STRINGS_FILE;
use crate::item_files::{self, Place};
use crate::items_record::{ItemKind, ItemRecord, ItemsRecord};
use crate::regrow;
use regrow_base::bytes::glance::Language;
use regrow_base::bytes::limits::JSON_LEN_MAX_BYTES;
use regrow_base::error::{Error, Result, ResultExt};
use regrow_storage::location::Location;
use regrow_tree::tree::{BIG_INTEGER, Key, KeyPath, LeafKind, Node, NodeKind, Scalar, Tree, TreeBuilder};

const JSON_FILES: [&str; 2] = ["data.json", JSON_FILE];
const METRICS: &str = "metrics";
const PROTO_FILE: &str = "proto.pbtxt";
const JAX_KEY: &str = "jax_random_key";
const NUMPY_KEY: &str = "np_random_key";
/// The name of the one leaf in an item that an array handler writes.
const ARRAY_LEAF: &str = AGGREGATE_FILE;

/// The kind of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item {
    Pytree,
    Array,
    JaxKey,
    NumpyKey,
    Json(String),
    Metrics(String),
    Proto,
    Aggregate,
    /// A pytree that has lost its `_METADATA`.
    Damaged,
    /// An item in another layout, with the path for its reader.
    Layout(Place),
    /// An item of unknown files, with their names.
    Files(Vec<Listed>),
}

impl Item {
    /// The kind of an item, from the listing of its folder. `name` is empty for a checkpoint that
    /// is itself one item.
    pub fn of(listed: &[Listed], name: &str, handler: Option<&str>) -> Self {
        let folder = Contents { listed, name, handler };
        folder.by_handler().unwrap_or_else(|| folder.by_files())
    }

    /// The kind in words, for the description.
    pub fn kind(&self) -> String {
        match self {
            Self::Pytree | Self::Aggregate | Self::Damaged | Self::Layout(_) => "pytree".to_owned(),
            Self::Array => "array".to_owned(),
            Self::JaxKey => "jax prng key".to_owned(),
            Self::NumpyKey => "numpy random state".to_owned(),
            Self::Json(_) => "json".to_owned(),
            Self::Metrics(_) => "metrics".to_owned(),
            Self::Proto => "text proto".to_owned(),
            Self::Files(listed) => format!("files: {}", some_names(listed)),
        }
    }

    /// Opens the item in `folder`.
    ///
    /// # Errors
    /// `Corrupt` with file and leaf; `Unsupported` for an unknown item.
    pub fn open(&self, folder: &Location, wanted: Wanted) -> Result<Opened> {
        match self {
            Self::Pytree => pytree::open(folder, wanted),
            Self::Array => Ok(only_array(pytree::open(folder, wanted)?)),
            Self::Aggregate => legacy::open_aggregate(folder, wanted),
            Self::Damaged if matches!(wanted, Wanted::Arrays | Wanted::Named) => pytree::open(folder, wanted),
            Self::Damaged => Err(pytree::missing_metadata(folder)),
            Self::JaxKey => {
                let mut opened = only_array(pytree::open(&folder.join(JAX_KEY), wanted)?);
                let is_typed = read_flag(&folder.join("jax_random_key_metadata").join(JSON_FILE), "typed")?;
                for slot in opened.tree.leaves_mut() {
                    // Orbax does not store the implementation of the key.
                    slot.info.kind = if is_typed { LeafKind::PrngKey(None) } else { LeafKind::JaxArray };
                }
                Ok(opened)
            }
            Self::NumpyKey => {
                let mut opened = pytree::open(&folder.join(NUMPY_KEY), wanted)?;
                if read_flag(&folder.join("np_random_key_metadata").join(JSON_FILE), "legacy")? {
                    opened.tree = list_as_tuple(opened.tree)?;
                }
                Ok(opened)
            }
            Self::Json(name) | Self::Metrics(name) => {
                let file = folder.join(name);
                let bytes = read_small(&file)?.ok_or_else(|| gone(&file))?;
                let value = json_text::parse(&bytes).in_file(&file)?;
                Ok(plain(json_tree(&value)?, "json"))
            }
            Self::Proto => {
                let file = folder.join(PROTO_FILE);
                let bytes = file.read_document("a text proto", Language::Text, JSON_LEN_MAX_BYTES)?;
                let bytes = bytes.ok_or_else(|| gone(&file))?;
                let text = String::from_utf8(bytes).map_err(|error| {
                    Error::corrupt("a text proto is not UTF-8")
                        .in_file(&file)
                        .at_byte(error.utf8_error().valid_up_to() as u64)
                })?;
                Ok(plain(Tree::single(Slot::text("", text)), "text"))
            }
            Self::Layout(_) => Err(Error::unsupported("this item is in another layout").in_file(folder)),
            Self::Files(listed) => Err(Error::unsupported("regrow does not know the kind of this item")
                .in_file(folder)
                .help(format!("in it: {}", some_names(listed)))),
        }
    }
}

/// The data that decides the kind of an item.
struct Contents<'a> {
    listed: &'a [Listed],
    name: &'a str,
    handler: Option<&'a str>,
}

impl Contents<'_> {
    /// The kind that the handler implies; `None` if the files decide.
    fn by_handler(&self) -> Option<Item> {
        let has_metadata = self.has_file(METADATA_FILE);
        match Family::of(self.handler?) {
            Family::Json => Some(self.json(&self.only_json())),
            Family::JaxKey if self.has_folder(JAX_KEY) => Some(Item::JaxKey),
            Family::NumpyKey if self.has_folder(NUMPY_KEY) => Some(Item::NumpyKey),
            Family::Proto => Some(Item::Proto),
            Family::Unknown if !has_metadata => Some(Item::Files(without_marker(self.listed))),
            Family::Tree | Family::Array if !has_metadata && !self.has_file(AGGREGATE_FILE) => {
                Some(Item::Damaged)
            }
            _ => None,
        }
    }

    fn by_files(&self) -> Item {
        if self.has_file(METADATA_FILE) {
            return if self.is_handled_by("ArrayCheckpointHandler") { Item::Array } else { Item::Pytree };
        }
        if self.has_folder(JAX_KEY) {
            return Item::JaxKey;
        }
        if self.has_folder(NUMPY_KEY) {
            return Item::NumpyKey;
        }
        if self.has_file(AGGREGATE_FILE) {
            return Item::Aggregate;
        }
        if let Some(found) = self.known_json() {
            return self.json(found);
        }
        if self.has_file(PROTO_FILE) {
            return Item::Proto;
        }
        match self.has_parts_of_a_pytree() {
            true => Item::Damaged,
            false => Item::Files(without_marker(self.listed)),
        }
    }

    fn has_parts_of_a_pytree(&self) -> bool {
        let is_of_process = |entry: &Listed| entry.is_dir && entry.name.starts_with(PROCESS_PREFIX);
        [MANIFEST_FILE, SHARDING_FILE, STRINGS_FILE].into_iter().any(|name| self.has_file(name))
            || self.has_folder(ARRAY_METADATAS_FOLDER)
            || self.listed.iter().any(is_of_process)
    }

    fn has_file(&self, wanted: &str) -> bool {
        self.listed.iter().any(|entry| !entry.is_dir && entry.name == wanted)
    }

    fn has_folder(&self, wanted: &str) -> bool {
        self.listed.iter().any(|entry| entry.is_dir && entry.name == wanted)
    }

    fn is_handled_by(&self, ending: &str) -> bool {
        self.handler.is_some_and(|handler| handler.ends_with(ending))
    }

    fn known_json(&self) -> Option<&'static str> {
        JSON_FILES.into_iter().chain([METRICS]).find(|name| self.has_file(name))
    }

    /// The only file, or the one with a known name.
    fn only_json(&self) -> String {
        let mut own = self.listed.iter().filter(|entry| entry.name != COMMIT_SUCCESS_FILE);
        match (own.next(), own.next()) {
            (Some(only), None) if !only.is_dir => only.name.clone(),
            _ => self.known_json().unwrap_or(JSON_FILE).to_owned(),
        }
    }

    fn json(&self, file: &str) -> Item {
        match self.name == METRICS || file == METRICS || self.is_handled_by("MetricsHandler") {
            true => Item::Metrics(file.to_owned()),
            false => Item::Json(file.to_owned()),
        }
    }
}

/// The kind of data that a handler reads. The end of the handler's name shows the kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Tree,
    Array,
    JaxKey,
    NumpyKey,
    Json,
    Proto,
    /// A handler of a user's own.
    Unknown,
}

impl Family {
    const OF_NAMES: [(&str, Self); 11] = [
        ("PyTreeCheckpointHandler", Self::Tree),
        ("StandardCheckpointHandler", Self::Tree),
        ("PyTreeHandler", Self::Tree),
        ("ArrayCheckpointHandler", Self::Array),
        ("JaxRandomKeyCheckpointHandler", Self::JaxKey),
        ("NumpyRandomKeyCheckpointHandler", Self::NumpyKey),
        ("JsonCheckpointHandler", Self::Json),
        ("JsonHandler", Self::Json),
        ("MetricsHandler", Self::Json),
        ("ProtoCheckpointHandler", Self::Proto),
        ("ProtoHandler", Self::Proto),
    ];

    pub fn of(handler: &str) -> Self {
        let found = Self::OF_NAMES.into_iter().find(|(name, _)| handler.ends_with(name));
        found.map_or(Self::Unknown, |(_, family)| family)
    }
}

/// The items among `names` that a layout may read. With a record: the items that it records as
/// trees or with a handler. Without a record: all items, except the files of a user's own handler.
/// With a damaged record: the items with one of Orbax' handlers.
///
/// # Errors
/// Errors of the storage.
pub fn for_layouts(at: &Location, names: Vec<String>) -> Result<Vec<String>> {
    let record = ItemsRecord::of(at);
    let handlers = match read_small(&at.join(CHECKPOINT_METADATA_FILE)) {
        Ok(bytes) => bytes.and_then(|bytes| CheckpointMetadata::parse(&bytes).ok()).unwrap_or_default(),
        Err(_) => CheckpointMetadata::default(),
    };
    let mut found = Vec::new();
    for name in names {
        let family = handlers.item_handlers.of(&name).map(Family::of);
        let is_one = match &record {
            Ok(Some(record)) if record.item(&name).is_none_or(|item| item.kind.is_no_tree()) => false,
            Err(error) if error.kind().is_damage() => !matches!(family, None | Some(Family::Unknown)),
            Err(error) => return Err(error.duplicate()),
            Ok(_) => {
                let folder = at.join(&name);
                family != Some(Family::Unknown) || is_pytree(&folder, &list(&folder)?)?
            }
        };
        if is_one {
            found.push(name);
        }
    }
    Ok(found)
}

fn without_marker(listed: &[Listed]) -> Vec<Listed> {
    listed.iter().filter(|entry| entry.name != COMMIT_SUCCESS_FILE).cloned().collect()
}

/// Whether a folder that a user's own handler has written is a pytree all the same.
pub(super) fn is_pytree(folder: &Location, listed: &[Listed]) -> Result<bool> {
    // A folder that also has arrays may be a damaged pytree.
    let has_arrays =
        listed.iter().any(|entry| entry.name == MANIFEST_FILE || entry.name == ARRAY_METADATAS_FOLDER);
    let metadata = read_small(&folder.join(METADATA_FILE))?;
    Ok(metadata.is_some_and(|bytes| has_arrays || TreeMetadata::parse(&bytes).is_ok()))
}

pub(super) fn read_metrics(folder: &Location, name: &str) -> Result<Value> {
    let file = folder.join(name);
    let bytes = read_small(&file)?.ok_or_else(|| gone(&file))?;
    json_text::parse(&bytes).in_file(&file)
}

pub(super) fn look(
    folder: &Location,
    name: &str,
    handler: Option<&str>,
    record: Option<&ItemsRecord>,
) -> Result<Looked> {
    let listed = list(folder)?;
    let known = record.and_then(|record| record.item(name));
    let item = match (known, record) {
        (Some(ItemRecord { kind: ItemKind::Json, file: Some(file), .. }), _) => Item::Json(file.clone()),
        (Some(ItemRecord { kind: ItemKind::Metrics, file: Some(file), .. }), _) => {
            Item::Metrics(file.clone())
        }
        (Some(ItemRecord { kind: ItemKind::Files, has_own_marker: true, .. }), _) => {
            Item::Files(listed.clone())
        }
        (Some(ItemRecord { kind: ItemKind::Tree, .. }), _) => {
            match told_by_files(folder, &listed, name, handler)? {
                tree @ (Item::Pytree | Item::Layout(_) | Item::Damaged) => tree,
                _ => Item::Damaged,
            }
        }
        (Some(ItemRecord { kind: ItemKind::Handler, .. }), _) | (None, None) => {
            told_by_files(folder, &listed, name, handler)?
        }
        _ => Item::Files(without_marker(&listed)),
    };
    let is_there = |path: &str| {
        let first = path.split('/').next().unwrap_or(path);
        listed.iter().any(|entry| entry.name == first)
    };
    let files = record.zip(known).filter(|(_, known)| known.kind != ItemKind::Tree && folder.has_listings());
    let lost = files.and_then(|(record, known)| {
        record.files_of(known).map(|(path, _)| path).find(|path| !is_there(path)).map(str::to_owned)
    });
    Ok(Looked { item, lost })
}

/// The kind of an item, and a recorded file of the item that is missing.
pub(super) struct Looked {
    pub item: Item,
    pub lost: Option<String>,
}

fn told_by_files(folder: &Location, listed: &[Listed], name: &str, handler: Option<&str>) -> Result<Item> {
    let names: Vec<&str> =
        listed.iter().filter(|entry| !entry.is_dir).map(|entry| entry.name.as_str()).collect();
    let is_regrow = names.contains(&regrow::manifest::FILE_NAME);
    match Item::of(listed, name, handler) {
        Item::Pytree if handler.map(Family::of) == Some(Family::Unknown) && !is_pytree(folder, listed)? => {
            Ok(Item::Files(without_marker(listed)))
        }
        Item::Files(own) if handler.is_some() => Ok(Item::Files(own)),
        Item::Pytree if is_regrow => Ok(Item::Layout(Place::Folder)),
        Item::Files(own) => Ok(item_files::find(&names).map_or(Item::Files(own), Item::Layout)),
        item => Ok(item),
    }
}

fn plain(tree: Tree<Slot>, variant: &str) -> Opened {
    Opened::new(tree, variant)
}

fn gone(file: &Location) -> Error {
    Error::corrupt("a file of the checkpoint was removed after the folder was listed")
        .in_file(file)
        .help("another program removes the checkpoint, such as a limit on kept steps: open another step")
}

fn read_flag(file: &Location, name: &str) -> Result<bool> {
    let Some(bytes) = read_small(file)? else { return Ok(false) };
    let value: Value = json_text::parse(&bytes).in_file(file)?;
    Ok(value.get(name).and_then(Value::as_bool).unwrap_or(false))
}

/// Replaces a dict whose only member is `checkpoint` by that member.
fn only_array(opened: Opened) -> Opened {
    let is_one = match opened.tree.nodes() {
        [root, leaf] => root.kind == NodeKind::Dict && leaf.key == Key::dict(ARRAY_LEAF),
        _ => false,
    };
    if !is_one || opened.tree.len() != 1 {
        return opened;
    }
    let mut opened = opened;
    let tree = std::mem::replace(&mut opened.tree, json_empty());
    match tree.into_leaves().pop() {
        Some(leaf) => Opened { tree: Tree::single(leaf), ..opened },
        None => opened,
    }
}

fn list_as_tuple(tree: Tree<Slot>) -> Result<Tree<Slot>> {
    let is_flat_list = match tree.nodes().split_first() {
        Some((Node { kind: NodeKind::List, .. }, below)) => {
            below.iter().all(|node| node.kind == NodeKind::Leaf)
        }
        _ => false,
    };
    if !is_flat_list {
        return Ok(tree);
    }
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Tuple)?;
    for (i, leaf) in tree.into_leaves().into_iter().enumerate() {
        graft(&mut build, Key::Index(i), Tree::single(leaf))?;
    }
    build.close()?;
    build.finish()
}

/// A parsed JSON document as a tree. Numbers that JSON lacks are marked: see [`json_text`].
fn json_tree(value: &Value) -> Result<Tree<Slot>> {
    let mut build = TreeBuilder::new();
    add_json(&mut build, &mut KeyPath::root(), Key::Index(0), value)?;
    build.finish()
}

fn json_empty() -> Tree<Slot> {
    json_tree(&Value::Object(serde_json::Map::new()))
        .unwrap_or_else(|_| Tree::single(Slot::absent("", LeafKind::Placeholder)))
}

// The JSON reader stops at 128 levels, so this recursion is bounded.
fn add_json(build: &mut TreeBuilder<Slot>, path: &mut KeyPath, key: Key, value: &Value) -> Result<()> {
    let name = path.join(".");
    let scalar = |scalar| Slot::scalar(&name, scalar, "json");
    let leaf = match value {
        Value::Null => {
            build.open(key, NodeKind::None)?;
            return build.close();
        }
        Value::Object(members) => {
            build.open(key, NodeKind::Dict)?;
            for (name, value) in members {
                path.push(Key::dict(name.as_str()));
                add_json(build, path, Key::dict(name.as_str()), value)?;
                path.pop();
            }
            return build.close();
        }
        Value::Array(items) => {
            build.open(key, NodeKind::List)?;
            for (i, value) in items.iter().enumerate() {
                path.push(Key::Index(i));
                add_json(build, path, Key::Index(i), value)?;
                path.pop();
            }
            return build.close();
        }
        Value::Bool(value) => scalar(Scalar::Bool(*value)),
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), ..) => scalar(Scalar::Int(number)),
            (_, Some(number), _) => scalar(Scalar::UInt(number)),
            (_, _, number) => scalar(Scalar::Float(number.unwrap_or(f64::NAN))),
        },
        Value::String(text) => match Marked::of(text) {
            Marked::Float(number) => scalar(Scalar::Float(number)),
            Marked::Int(digits) => {
                Slot::absent(&name, LeafKind::Unknown(format!("{BIG_INTEGER}{digits}").into()))
            }
            Marked::Text(text) => Slot::text(&name, text),
        },
    };
    build.leaf(key, leaf)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(names: &[&str]) -> Vec<Listed> {
        let entry = |name: &&str| Listed {
            name: name.trim_end_matches('/').to_owned(),
            is_dir: name.ends_with('/'),
            is_link: false,
        };
        names.iter().map(entry).collect()
    }

    #[test]
    fn tells_items_apart_by_their_content() {
        let of = |names: &[&str], name: &str, handler| Item::of(&listed(names), name, handler);
        assert_eq!(of(&["_METADATA", "d/"], "x", None), Item::Pytree);
        assert_eq!(of(&["_METADATA"], "x", Some("a.ArrayCheckpointHandler")), Item::Array);
        assert_eq!(of(&["metadata", "commit_success.txt"], "x", None), Item::Json("metadata".to_owned()));
        assert_eq!(of(&["data.json"], "metrics", None), Item::Metrics("data.json".to_owned()));
        assert_eq!(of(&["own.txt"], "x", Some("JsonCheckpointHandler")), Item::Json("own.txt".to_owned()));
        assert_eq!(of(&["commit_success.txt", "own.txt"], "x", None).kind(), "files: own.txt");
        assert_eq!(of(&["jax_random_key/", "jax_random_key_metadata/"], "x", None), Item::JaxKey);
        assert_eq!(of(&["checkpoint"], "x", None), Item::Aggregate);
        assert_eq!(of(&["manifest.ocdbt"], "x", None), Item::Damaged);
    }

    #[test]
    fn json_becomes_a_tree() {
        let value: Value = json_text::parse(br#"{"b": [1, null, {"c": NaN}], "a": "t", "e": {}}"#).unwrap();
        let tree = json_tree(&value).unwrap();
        let all: Vec<String> =
            tree.walk().map(|(path, node)| format!("{path}:{}", node.kind.name())).collect();
        assert_eq!(
            all,
            [".:dict", "b:list", "b/0:leaf", "b/1:none", "b/2:dict", "b/2/c:leaf", "a:leaf", "e:dict"]
        );
        assert_eq!(&*tree.leaves()[1].info.name, "b.2.c");
        assert_eq!(tree.leaves()[1].info.kind, LeafKind::Scalar);
    }
}
