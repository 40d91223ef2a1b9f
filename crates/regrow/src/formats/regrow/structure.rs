//! The exact pytree in column form: one array for each field, repeated strings once.
//!
//! It stands in `regrow.json`, and again in the `__metadata__` of the first safetensors file, so that this file
//! alone regrows its tree.
//!
//! ```text
//! {"version":1,
//!  "strings":["params","kernel",...]         every key and type name, once
//!  "nodes":"dDll..."                         a letter for each node in preorder (NODE_LETTERS)
//!  "key_kinds":"xss..."                      s dict text, i dict integer, x position, a attribute
//!  "keys":[0,1,...]                          s and a: into strings; i: the integer; x: 0, the position is implied
//!  "child_counts":[2,...]                    one for each container
//!  "type_names":[7,...]                      one for each N, D and C: into strings
//!  "leaves":"jjns..."                        a letter for each leaf (LEAF_LETTERS)
//!  "dtypes":["float32",...], "leaf_dtypes":[0,...]
//!  "shapes":[[64,10],...],   "leaf_shapes":[0,...]
//!  "texts":["adam",...]                      one for each text leaf
//!  "key_implementations":["rbg",...]         one for each PRNG key
//!  "numpy_dtypes":["<U8",...]                one for each array of a dtype that is NumPy's alone
//!  "names":{"3":"a%2Eb"}                     stored names that are not the key path joined by dots
//!  "shardings":{"0":{...}}}                  Orbax' sharding entries
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::array::{Dtype, Shape};
use crate::bytes::limits::TREE_DEPTH_MAX;
use crate::error::{Error, ErrorKind, Result};
use crate::tree::{Key, LeafInfo, LeafKind, LeafNames, Node, NodeKind, Tree};

/// The only version there is.
pub const STRUCTURE_VERSION: u32 = 1;

/// Slots for texts that were numbered lately.
const RECENT_LEN: usize = 4096;

/// See the module's story.
#[derive(Debug, Serialize, Deserialize)]
pub struct Structure {
    version: u32,
    strings: Vec<String>,
    nodes: String,
    key_kinds: String,
    keys: Vec<i64>,
    child_counts: Vec<usize>,
    type_names: Vec<usize>,
    leaves: String,
    dtypes: Vec<String>,
    leaf_dtypes: Vec<u16>,
    shapes: Vec<Vec<u64>>,
    leaf_shapes: Vec<u32>,
    texts: Vec<String>,
    key_implementations: Vec<Option<String>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    numpy_dtypes: Vec<String>,
    #[serde(default)]
    names: BTreeMap<usize, String>,
    #[serde(default)]
    shardings: BTreeMap<usize, serde_json::Value>,
}

/// What [`Structure`] says of the tree.
#[derive(Debug)]
pub struct Regrown {
    /// The tree; `coding` is empty and is left to the caller.
    pub tree: Tree<LeafInfo>,
    /// The text of each leaf of kind `Str`, by its position in flatten order.
    pub texts: HashMap<usize, Arc<str>>,
}

/// What [`Structure`] keeps of a leaf, beyond where it sits.
#[derive(Debug)]
pub struct LeafColumns<'a> {
    /// What it is.
    pub kind: &'a LeafKind,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Shape,
    /// The text of a `Str` leaf.
    pub text: Arc<str>,
    /// The stored name, where that is not the joined key path.
    pub name: Option<&'a str>,
    /// ReadOptions it was spread over devices.
    pub sharding: Option<&'a serde_json::Value>,
}

impl Structure {
    /// Puts a tree into columns. `text` gives the text of a `Str` leaf.
    ///
    /// # Errors
    /// `Unsupported` for a leaf that cannot be stored.
    pub fn of(tree: &Tree<LeafInfo>, text: impl Fn(usize) -> Arc<str>) -> Result<Self> {
        let names = LeafNames::of(tree, ".");
        Self::of_columns(tree, |leaf, info| LeafColumns {
            kind: &info.kind,
            dtype: info.dtype,
            shape: info.shape.clone(),
            text: if info.kind == LeafKind::Str { text(leaf) } else { Arc::default() },
            name: (*info.name != *names.get(leaf)).then_some(&*info.name),
            sharding: info.sharding.as_deref(),
        })
    }

    /// Puts a tree into columns; `columns` tells what is to be kept of each leaf. One pass, no allocation a leaf.
    ///
    /// # Errors
    /// `Unsupported` for a leaf that cannot be stored.
    pub fn of_columns<'t, L>(
        tree: &'t Tree<L>,
        columns: impl Fn(usize, &'t L) -> LeafColumns<'t>,
    ) -> Result<Self> {
        let (node_count, leaf_count) = (tree.nodes().len(), tree.len());
        let mut strings = Interner::default();
        let mut out = Self {
            version: STRUCTURE_VERSION,
            strings: Vec::new(),
            nodes: String::with_capacity(node_count),
            key_kinds: String::with_capacity(node_count),
            keys: Vec::with_capacity(node_count),
            child_counts: Vec::new(),
            type_names: Vec::new(),
            leaves: String::with_capacity(leaf_count),
            dtypes: Vec::new(),
            leaf_dtypes: Vec::with_capacity(leaf_count),
            shapes: Vec::new(),
            leaf_shapes: Vec::with_capacity(leaf_count),
            texts: Vec::new(),
            key_implementations: Vec::new(),
            numpy_dtypes: Vec::new(),
            names: BTreeMap::new(),
            shardings: BTreeMap::new(),
        };
        for node in tree.nodes() {
            out.nodes.push(node_letter(&node.kind));
            let (kind, key) = match &node.key {
                Key::Dict(text) => ('s', strings.index(text) as i64),
                Key::Attr(text) => ('a', strings.index(text) as i64),
                Key::DictInt(number) => ('i', *number),
                Key::Index(_) => ('x', 0),
            };
            out.key_kinds.push(kind);
            out.keys.push(key);
            if !matches!(node.kind, NodeKind::Leaf | NodeKind::None) {
                out.child_counts.push(node.child_count);
            }
            if let Some(name) = node.kind.type_name() {
                out.type_names.push(strings.index(name));
            }
        }
        let mut dtypes: Vec<Dtype> = Vec::new();
        let mut shapes = Shapes::default();
        for (at, leaf) in tree.leaves().iter().enumerate() {
            let leaf = columns(at, leaf);
            out.leaves.push(leaf_letter(leaf.kind).map_err(|error| error.at_leaf(&tree.path_of(at)))?);
            // There are a few dozen dtypes at most.
            let dtype = dtypes.iter().position(|&dtype| dtype == leaf.dtype).unwrap_or_else(|| {
                dtypes.push(leaf.dtype);
                dtypes.len() - 1
            });
            out.leaf_dtypes.push(dtype as u16);
            out.leaf_shapes.push(shapes.index(leaf.shape));
            match leaf.kind {
                LeafKind::Str => out.texts.push(leaf.text.to_string()),
                LeafKind::PrngKey(name) => {
                    out.key_implementations.push(name.as_ref().map(ToString::to_string))
                }
                LeafKind::NumpyOther(dtype) | LeafKind::NumpyOtherScalar(dtype) => {
                    out.numpy_dtypes.push(dtype.to_string());
                }
                _ => {}
            }
            if let Some(name) = leaf.name {
                out.names.insert(at, name.to_owned());
            }
            if let Some(sharding) = leaf.sharding {
                out.shardings.insert(at, sharding.clone());
            }
        }
        out.strings = strings.texts;
        out.dtypes = dtypes.iter().map(|dtype| dtype.name().to_owned()).collect();
        out.shapes = shapes.all;
        Ok(out)
    }

    /// As JSON text.
    ///
    /// # Errors
    /// None in practice: there is nothing in it that JSON cannot say.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self)
            .map_err(|error| Error::invalid(format!("the structure is no JSON: {error}")))
    }

    /// Parses JSON text.
    ///
    /// # Errors
    /// `Corrupt`, or `Unsupported` for a later version.
    pub fn from_json(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        // A later version may have other columns: what its number says comes before what is wrong with them.
        let parsed: Self = serde_json::from_str(text).map_err(|error| {
            let later =
                serde_json::from_str(text).ok().and_then(|Version { version }| check_version(version).err());
            later.unwrap_or_else(|| Error::corrupt(format!("the stored structure cannot be read: {error}")))
        })?;
        check_version(parsed.version)?;
        Ok(parsed)
    }

    /// Puts the columns together to a tree again.
    ///
    /// # Errors
    /// `Corrupt` if they do not fit each other; `Unsupported` for a later version.
    pub fn regrow(&self) -> Result<Regrown> {
        check_version(self.version)?;
        let regrown = self.put_together().map_err(|error| match error.kind() {
            // A dtype's name is parsed as a programmer's word; here the file is at fault.
            ErrorKind::InvalidArgument => bad_columns(error.what()),
            _ => error,
        })?;
        match regrown.tree.first_equal_keys() {
            Some(path) => Err(bad_columns("two children of one container have the same key").at_leaf(&path)),
            None => Ok(regrown),
        }
    }

    fn put_together(&self) -> Result<Regrown> {
        let node_count = self.nodes.len();
        if self.key_kinds.len() != node_count || self.keys.len() != node_count {
            return Err(bad_columns("nodes, key_kinds and keys have different lengths"));
        }
        let strings: Vec<Arc<str>> = self.strings.iter().map(|text| Arc::from(text.as_str())).collect();
        let string = |at: i64| {
            usize::try_from(at)
                .ok()
                .and_then(|at| strings.get(at))
                .cloned()
                .ok_or_else(|| bad_columns("a key is not in strings"))
        };
        let mut type_names = self.type_names.iter();
        let mut type_name = || match type_names.next() {
            Some(&at) => string(at as i64),
            None => Err(bad_columns("type_names is too short")),
        };
        let mut child_counts = self.child_counts.iter();
        let mut nodes = Vec::with_capacity(node_count);
        let mut leaf_count = 0;
        // For each open container: children still to come, and the position of the next.
        let mut open: Vec<(usize, usize)> = Vec::new();
        for ((letter, key_kind), &key) in self.nodes.bytes().zip(self.key_kinds.bytes()).zip(&self.keys) {
            while let Some((0, _)) = open.last() {
                open.pop();
            }
            let position = match open.last_mut() {
                Some((left, position)) => {
                    *left -= 1;
                    *position += 1;
                    *position - 1
                }
                None if nodes.is_empty() => 0,
                None => return Err(bad_columns("a tree has one root")),
            };
            let key = match key_kind {
                b's' => Key::Dict(string(key)?),
                b'a' => Key::Attr(string(key)?),
                b'i' => Key::DictInt(key),
                b'x' => Key::Index(position),
                other => return Err(bad_columns(&format!("{:?} is no kind of key", char::from(other)))),
            };
            let kind = match letter {
                b'l' => NodeKind::Leaf,
                b'n' => NodeKind::None,
                b'd' => NodeKind::Dict,
                b'o' => NodeKind::OrderedDict,
                b'f' => NodeKind::DefaultDict,
                b'L' => NodeKind::List,
                b't' => NodeKind::Tuple,
                b'N' => NodeKind::NamedTuple(type_name()?),
                b'D' => NodeKind::Dataclass(type_name()?),
                b'C' => NodeKind::Custom(type_name()?),
                other => return Err(bad_columns(&format!("{:?} is no kind of node", char::from(other)))),
            };
            let child_count = match kind {
                NodeKind::Leaf => {
                    leaf_count += 1;
                    0
                }
                NodeKind::None => 0,
                _ => {
                    if open.len() >= TREE_DEPTH_MAX {
                        return Err(Error::new(
                            ErrorKind::Limit,
                            format!("the tree is nested deeper than {TREE_DEPTH_MAX} levels"),
                        ));
                    }
                    let count =
                        *child_counts.next().ok_or_else(|| bad_columns("child_counts is too short"))?;
                    open.push((count, 0));
                    count
                }
            };
            nodes.push(Node { key, kind, child_count });
        }
        if open.iter().any(|(left, _)| *left > 0) {
            return Err(bad_columns("the last nodes lack children"));
        }
        if nodes.is_empty() {
            return Err(bad_columns("the nodes are no tree"));
        }
        if leaf_count != self.leaves.len() {
            return Err(bad_columns("there are not as many leaves as leaf nodes"));
        }
        let mut tree = Tree::from_parts(nodes, self.leaf_infos()?);
        self.name_leaves(&mut tree);
        for (&leaf, sharding) in &self.shardings {
            if let Some(info) = tree.leaves_mut().get_mut(leaf) {
                info.sharding = Some(Arc::new(sharding.clone()));
            }
        }
        let text_leaves = tree.leaves().iter().enumerate().filter(|(_, info)| info.kind == LeafKind::Str);
        let texts = text_leaves
            .map(|(leaf, _)| leaf)
            .zip(self.texts.iter().map(|text| Arc::from(text.as_str())))
            .collect();
        Ok(Regrown { tree, texts })
    }

    /// Gives every leaf its stored name.
    fn name_leaves(&self, tree: &mut Tree<LeafInfo>) {
        let names = LeafNames::of(tree, ".");
        for (info, name) in tree.leaves_mut().iter_mut().zip(names.iter()) {
            info.name = Arc::from(name);
        }
        for (&leaf, name) in &self.names {
            if let Some(info) = tree.leaves_mut().get_mut(leaf) {
                info.name = Arc::from(name.as_str());
            }
        }
    }

    fn leaf_infos(&self) -> Result<Vec<LeafInfo>> {
        let count = self.leaves.len();
        if self.leaf_dtypes.len() != count || self.leaf_shapes.len() != count {
            return Err(bad_columns("leaves, leaf_dtypes and leaf_shapes have different lengths"));
        }
        let dtypes = self.dtypes.iter().map(|name| name.parse::<Dtype>()).collect::<Result<Vec<_>>>()?;
        let shapes =
            self.shapes.iter().map(|dims| Shape::new(dims.as_slice())).collect::<Result<Vec<_>>>()?;
        let mut implementations = self.key_implementations.iter();
        let mut numpy_dtypes = self.numpy_dtypes.iter();
        let text_count = self.leaves.chars().filter(|&letter| letter == 't').count();
        if text_count != self.texts.len() {
            return Err(bad_columns("there are not as many texts as text leaves"));
        }
        let (name, coding): (Arc<str>, Arc<str>) = (Arc::from(""), Arc::from(""));
        let columns = self.leaves.bytes().zip(&self.leaf_dtypes).zip(&self.leaf_shapes);
        let mut infos = Vec::with_capacity(count);
        for ((letter, &dtype), &shape) in columns {
            let kind = match letter {
                b'a' => LeafKind::NumpyArray,
                b'n' => LeafKind::NumpyScalar,
                b'j' => LeafKind::JaxArray,
                b's' => LeafKind::Scalar,
                b't' => LeafKind::Str,
                b'b' => LeafKind::Bytes,
                b'.' => LeafKind::Placeholder,
                b'v' => match numpy_dtypes.next() {
                    Some(dtype) => LeafKind::NumpyOther(Arc::from(dtype.as_str())),
                    None => return Err(bad_columns("numpy_dtypes is too short")),
                },
                b'k' => match implementations.next() {
                    Some(name) => LeafKind::PrngKey(name.as_deref().map(Arc::from)),
                    None => return Err(bad_columns("key_implementations is too short")),
                },
                other => return Err(bad_columns(&format!("{:?} is no kind of leaf", char::from(other)))),
            };
            let (dtype, shape) = (usize::from(dtype), shape as usize);
            let (Some(&dtype), Some(shape)) = (dtypes.get(dtype), shapes.get(shape)) else {
                return Err(bad_columns("a leaf's dtype or shape is not in its table"));
            };
            // The product is checked here, so that later sizes cannot overflow.
            shape.len_bytes(dtype)?;
            infos.push(LeafInfo {
                kind,
                dtype,
                shape: shape.clone(),
                name: name.clone(),
                chunk_shape: None,
                write_shape: None,
                sharding: None,
                coding: coding.clone(),
            });
        }
        Ok(infos)
    }
}

/// Texts with a number each.
struct Interner {
    texts: Vec<String>,
    index: HashMap<Arc<str>, usize>,
    /// Numbers that were asked for lately, by a cheap digest of their text: keys repeat in every layer of a model.
    recent: Vec<usize>,
}

impl Default for Interner {
    fn default() -> Self {
        Self { texts: Vec::new(), index: HashMap::new(), recent: vec![usize::MAX; RECENT_LEN] }
    }
}

impl Interner {
    fn index(&mut self, text: &str) -> usize {
        let place =
            text.bytes().fold(text.len(), |sum, byte| sum.wrapping_mul(31) + usize::from(byte)) % RECENT_LEN;
        if let Some(&at) = self.recent.get(place)
            && self.texts.get(at).is_some_and(|known| known == text)
        {
            return at;
        }
        let at = match self.index.get(text) {
            Some(&at) => at,
            None => {
                self.texts.push(text.to_owned());
                self.index.insert(Arc::from(text), self.texts.len() - 1);
                self.texts.len() - 1
            }
        };
        if let Some(slot) = self.recent.get_mut(place) {
            *slot = at;
        }
        at
    }
}

/// Shapes with a number each.
#[derive(Default)]
struct Shapes {
    all: Vec<Vec<u64>>,
    index: HashMap<Shape, u32>,
    last: Option<(Shape, u32)>,
}

impl Shapes {
    fn index(&mut self, shape: Shape) -> u32 {
        if let Some((last, at)) = &self.last
            && *last == shape
        {
            return *at;
        }
        let at = *self.index.entry(shape.clone()).or_insert_with(|| {
            self.all.push(shape.dims().to_vec());
            (self.all.len() - 1) as u32
        });
        self.last = Some((shape, at));
        at
    }
}

fn node_letter(kind: &NodeKind) -> char {
    match kind {
        NodeKind::Leaf => 'l',
        NodeKind::None => 'n',
        NodeKind::Dict => 'd',
        NodeKind::OrderedDict => 'o',
        NodeKind::DefaultDict => 'f',
        NodeKind::List => 'L',
        NodeKind::Tuple => 't',
        NodeKind::NamedTuple(_) => 'N',
        NodeKind::Dataclass(_) => 'D',
        NodeKind::Custom(_) => 'C',
    }
}

fn leaf_letter(kind: &LeafKind) -> Result<char> {
    Ok(match kind {
        LeafKind::NumpyArray => 'a',
        LeafKind::NumpyScalar => 'n',
        LeafKind::JaxArray => 'j',
        LeafKind::Scalar => 's',
        LeafKind::Str => 't',
        LeafKind::Bytes => 'b',
        LeafKind::Placeholder => '.',
        LeafKind::NumpyOther(_) | LeafKind::NumpyOtherScalar(_) => 'v',
        LeafKind::PrngKey(_) => 'k',
        LeafKind::Unknown(name) => {
            return Err(Error::unsupported(format!("a leaf of the unknown type {name:?} cannot be stored")));
        }
    })
}

fn check_version(version: u32) -> Result<()> {
    if version == STRUCTURE_VERSION {
        return Ok(());
    }
    Err(Error::unsupported(format!("this structure is of version {version}"))
        .expected(format_args!("version {STRUCTURE_VERSION}"), version)
        .help("a newer regrow wrote it: update regrow, or let Orbax or safetensors read the arrays"))
}

fn bad_columns(why: &str) -> Error {
    Error::corrupt(format!("the stored structure contradicts itself: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::TreeBuilder;

    fn info(kind: LeafKind, name: &str) -> LeafInfo {
        LeafInfo {
            kind,
            dtype: Dtype::BFloat16,
            shape: Shape::new(vec![3, 0]).unwrap(),
            name: Arc::from(name),
            chunk_shape: None,
            write_shape: None,
            sharding: None,
            coding: Arc::from(""),
        }
    }

    fn sample() -> Tree<LeafInfo> {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        build.open(Key::DictInt(-3), NodeKind::Tuple).unwrap();
        build.leaf(Key::Index(0), info(LeafKind::JaxArray, "-3.0")).unwrap();
        build.open(Key::Index(1), NodeKind::None).unwrap();
        build.close().unwrap();
        build.leaf(Key::Index(2), info(LeafKind::Str, "renamed")).unwrap();
        build.close().unwrap();
        build.open(Key::dict("state"), NodeKind::NamedTuple(Arc::from("optax.Adam"))).unwrap();
        build.leaf(Key::attr("mu"), info(LeafKind::PrngKey(Some(Arc::from("rbg"))), "state.mu")).unwrap();
        build.open(Key::attr("nu"), NodeKind::Dict).unwrap();
        build.close().unwrap();
        build.close().unwrap();
        build.close().unwrap();
        build.finish().unwrap()
    }

    #[test]
    fn comes_back_exactly() {
        let tree = sample();
        let text = Structure::of(&tree, |_| Arc::from("hello")).unwrap().to_json().unwrap();
        let regrown = Structure::from_json(&text).unwrap().regrow().unwrap();
        assert_eq!(regrown.tree, tree);
        assert_eq!(regrown.texts.into_iter().collect::<Vec<_>>(), [(1, Arc::from("hello"))]);
    }

    #[test]
    fn a_later_version_is_named() {
        let text = Structure::of(&sample(), |_| Arc::from("")).unwrap().to_json().unwrap();
        let later = text.replace("\"version\":1", "\"version\":2");
        let error = Structure::from_json(&later).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Unsupported);
        assert!(error.to_string().contains("version 2"));
    }

    #[test]
    fn any_cut_or_changed_column_is_an_error_and_never_a_panic() {
        let text = Structure::of(&sample(), |_| Arc::from("hello")).unwrap().to_json().unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let members: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
        let mut refused = 0;
        for member in &members {
            for change in [
                "[]",
                "\"\"",
                "[7]",
                "[-1]",
                "{}",
                "\"zzzzzzzzz\"",
                "[18446744073709551615]",
                "[[9223372036854775807,4]]",
            ] {
                let mut changed = value.clone();
                changed[member] = serde_json::from_str(change).unwrap();
                if changed == value {
                    continue;
                }
                if let Ok(structure) = Structure::from_json(&changed.to_string())
                    && structure.regrow().is_ok()
                {
                    // Only the two optional members may be emptied.
                    assert!(["names", "shardings"].contains(&member.as_str()), "{member} = {change}");
                } else {
                    refused += 1;
                }
            }
        }
        assert!(refused > 80, "{refused}");
    }
}
