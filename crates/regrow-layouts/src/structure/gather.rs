//! Turns a tree into columns in one pass.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::letters::{leaf_letter, node_letter};
use super::{LeafColumns, STRUCTURE_VERSION, ShardingText, Structure};
use regrow_base::error::Result;
use regrow_tree::array::{Dtype, Shape};
use regrow_tree::sharding::DistinctShardings;
use regrow_tree::tree::{Key, LeafInfo, LeafKind, LeafNames, NodeKind, Tree};

/// Slots for texts that were numbered lately.
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

    /// Puts a tree into columns; `columns` tells what is to be kept of each leaf. One pass, no
    /// allocation a leaf.
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
        let (mut shardings, mut sharding_texts) = (DistinctShardings::default(), Vec::new());
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
                let number = shardings.number(sharding);
                if number == sharding_texts.len() {
                    sharding_texts.push(ShardingText::of(sharding)?);
                }
                out.shardings.extend(sharding_texts.get(number).map(|text| (at, text.clone())));
            }
        }
        out.strings = strings.texts;
        out.dtypes = dtypes.iter().map(|dtype| dtype.name().to_owned()).collect();
        out.shapes = shapes.all;
        Ok(out)
    }
}

/// Texts with a number each.
struct Interner {
    texts: Vec<String>,
    index: HashMap<Arc<str>, usize>,
    /// Numbers that were asked for lately, by a cheap digest of their text: keys repeat in every
    /// layer of a model.
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
