//! Turns a tree into columns in one pass.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::letters::{leaf_letter, node_letter};
use super::{LeafColumns, STRUCTURE_VERSION, ShardingText, Structure};
use regrow_base::error::Result;
use regrow_tree::array::{Dtype, Shape};
use regrow_tree::sharding::{DistinctShardings, Sharding};
use regrow_tree::tree::{Key, LeafInfo, LeafKind, LeafNames, Node, NodeKind, Tree};

/// The number of recent texts that the cache keeps.
const RECENT_LEN: usize = 4096;

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

    /// Puts a tree into columns. `columns` gives the data of each leaf. One pass, no allocation for
    /// each leaf.
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
            out.add_node(node, &mut strings);
        }
        let mut tables = LeafTables::default();
        for (at, leaf) in tree.leaves().iter().enumerate() {
            let leaf = columns(at, leaf);
            out.leaves.push(leaf_letter(leaf.kind).map_err(|error| error.at_leaf(&tree.path_of(at)))?);
            out.add_leaf(at, leaf, &mut tables)?;
        }
        out.strings = strings.texts;
        out.dtypes = tables.dtypes.iter().map(|dtype| dtype.name().to_owned()).collect();
        out.shapes = tables.shapes.all;
        Ok(out)
    }

    fn add_node(&mut self, node: &Node, strings: &mut Interner) {
        self.nodes.push(node_letter(&node.kind));
        let (kind, key) = match &node.key {
            Key::Dict(text) => ('s', strings.index(text) as i64),
            Key::Attr(text) => ('a', strings.index(text) as i64),
            Key::DictInt(number) => ('i', *number),
            Key::Index(_) => ('x', 0),
        };
        self.key_kinds.push(kind);
        self.keys.push(key);
        if !matches!(node.kind, NodeKind::Leaf | NodeKind::None) {
            self.child_counts.push(node.child_count);
        }
        if let Some(name) = node.kind.type_name() {
            self.type_names.push(strings.index(name));
        }
    }

    /// Adds all columns of a leaf except its letter.
    fn add_leaf<'t>(&mut self, at: usize, leaf: LeafColumns<'t>, tables: &mut LeafTables<'t>) -> Result<()> {
        self.leaf_dtypes.push(tables.dtype(leaf.dtype));
        self.leaf_shapes.push(tables.shapes.index(leaf.shape));
        match leaf.kind {
            LeafKind::Str => self.texts.push(leaf.text.to_string()),
            LeafKind::PrngKey(name) => self.key_implementations.push(name.as_ref().map(ToString::to_string)),
            LeafKind::NumpyOther(dtype) | LeafKind::NumpyOtherScalar(dtype) => {
                self.numpy_dtypes.push(dtype.to_string());
            }
            _ => {}
        }
        if let Some(name) = leaf.name {
            self.names.insert(at, name.to_owned());
        }
        if let Some(sharding) = leaf.sharding {
            self.shardings.extend(tables.sharding(sharding)?.map(|text| (at, text)));
        }
        Ok(())
    }
}

/// Distinct values that leaves share, each with a number.
#[derive(Default)]
struct LeafTables<'t> {
    dtypes: Vec<Dtype>,
    shapes: Shapes,
    shardings: DistinctShardings<'t>,
    sharding_texts: Vec<ShardingText>,
}

impl<'t> LeafTables<'t> {
    fn dtype(&mut self, dtype: Dtype) -> u16 {
        // There are a few dozen dtypes at most.
        let known = self.dtypes.iter().position(|&known| known == dtype);
        known.unwrap_or_else(|| {
            self.dtypes.push(dtype);
            self.dtypes.len() - 1
        }) as u16
    }

    fn sharding(&mut self, sharding: &'t Sharding) -> Result<Option<ShardingText>> {
        let number = self.shardings.number(sharding);
        if number == self.sharding_texts.len() {
            self.sharding_texts.push(ShardingText::of(sharding)?);
        }
        Ok(self.sharding_texts.get(number).cloned())
    }
}

/// Numbers distinct texts.
struct Interner {
    texts: Vec<String>,
    index: HashMap<Arc<str>, usize>,
    /// A cache of recent numbers, by a cheap digest of their text: keys repeat in every layer of a
    /// model.
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

/// Numbers distinct shapes.
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
