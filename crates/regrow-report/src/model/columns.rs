//! Columns of texts: key paths as a tree, and words with few distinct values.

use std::collections::HashMap;
use std::sync::Arc;

use regrow::tree::{Key, KeyPath};
use regrow::{Error, Result};
use serde::{Deserialize, Serialize};

/// The parent of the root: not the number of any node.
pub const NO_PARENT: u32 = u32::MAX;

/// Key paths as a tree of nodes. Each node has a name and a parent.
///
/// Node 0 is the root. A node comes after its parent, and the nodes of one branch are together if
/// key paths are added in flatten order. Names are exact: a `/` in a key does not separate keys.
///
/// ```
/// use regrow::tree::{Key, KeyPath};
/// use regrow_report::model::columns::KeyTree;
/// let mut keys = KeyTree::default();
/// let kernel = keys.add(&KeyPath::from_iter([Key::dict("dense"), Key::dict("kernel")]));
/// let bias = keys.add(&KeyPath::from_iter([Key::dict("dense"), Key::dict("bias")]));
/// assert_eq!((kernel, bias, keys.len()), (2, 3, 4));
/// assert_eq!(keys.names, ["", "dense", "kernel", "bias"]);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeyTree {
    /// All distinct names. The first name belongs to the root, and is empty.
    pub names: Vec<String>,
    /// The name of each node, by its position in `names`.
    pub name: Vec<u32>,
    /// The parent of each node; [`NO_PARENT`] for the root.
    pub parent: Vec<u32>,
    #[serde(skip)]
    building: Building,
}

/// The state that is needed only while key paths are added.
#[derive(Debug, Clone, Default)]
struct Building {
    positions: HashMap<Arc<str>, u32>,
    /// The last added path, with the node of each of its keys.
    last: Vec<(Key, u32)>,
}

/// Always equal, so that only the built columns are compared.
impl PartialEq for Building {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Default for KeyTree {
    fn default() -> Self {
        Self {
            names: vec![String::new()],
            name: vec![0],
            parent: vec![NO_PARENT],
            building: Building::default(),
        }
    }
}

impl KeyTree {
    /// Adds a key path, and returns its last node. Nodes that the path shares with the previous
    /// path are reused.
    pub fn add(&mut self, path: &KeyPath) -> u32 {
        let last = &mut self.building.last;
        let shared = last.iter().zip(path.keys()).take_while(|((last, _), key)| last == *key).count();
        last.truncate(shared);
        let mut node = last.last().map_or(0, |(_, node)| *node);
        for key in path.keys().iter().skip(shared) {
            let name = self.name_of(&key.text());
            let parent = std::mem::replace(&mut node, as_u32(self.name.len()));
            self.name.push(name);
            self.parent.push(parent);
            self.building.last.push((key.clone(), node));
        }
        node
    }

    /// The key path of a node. All its keys are dict keys, because the tree does not store other
    /// kinds.
    pub fn path(&self, node: u32) -> KeyPath {
        let mut names = Vec::new();
        let mut at = node as usize;
        while let Some((parent, name)) = self.parent.get(at).zip(self.name.get(at)) {
            if *parent == NO_PARENT {
                break;
            }
            names.extend(self.names.get(*name as usize).map(|name| Key::dict(name.as_str())));
            at = *parent as usize;
        }
        names.into_iter().rev().collect()
    }

    /// Returns an error if the nodes are not a tree, or if a row of `node` is not a node of it.
    pub(super) fn check(&self, node: &[u32]) -> Result<()> {
        let has_names = self.name.iter().all(|name| (*name as usize) < self.names.len());
        let is_root = |node: usize, parent: u32| node == 0 && parent == NO_PARENT;
        let is_below = |node: usize, parent: u32| (parent as usize) < node;
        let is_tree = self.name.len() == self.parent.len()
            && !self.parent.is_empty()
            && self
                .parent
                .iter()
                .enumerate()
                .all(|(node, parent)| is_root(node, *parent) || is_below(node, *parent));
        if has_names && is_tree && node.iter().all(|node| (*node as usize) < self.name.len()) {
            return Ok(());
        }
        Err(Error::invalid("the key paths of a report are not a tree").help("add them with KeyTree::add"))
    }

    /// The number of nodes, including the root.
    pub fn len(&self) -> usize {
        self.name.len()
    }

    /// Whether there is only the root.
    pub fn is_empty(&self) -> bool {
        self.name.len() <= 1
    }

    fn name_of(&mut self, text: &str) -> u32 {
        position(&mut self.building.positions, &mut self.names, text)
    }
}

/// A column of texts with many equal values: dtypes, files.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Words {
    /// All distinct texts.
    pub values: Vec<String>,
    /// The text of each row, by its position in `values`.
    pub index: Vec<u32>,
    #[serde(skip)]
    building: Building,
}

impl Words {
    /// Adds a row.
    pub fn push(&mut self, text: &str) {
        let at = position(&mut self.building.positions, &mut self.values, text);
        self.index.push(at);
    }

    pub(super) fn check(&self, name: &str, len: usize) -> Result<()> {
        let has_texts = self.index.iter().all(|at| (*at as usize) < self.values.len());
        if has_texts && self.index.len() == len {
            return Ok(());
        }
        Err(Error::invalid(format!("the column {name} of a report does not fit the others"))
            .expected(format!("{len} rows, each with a text"), format!("{} rows", self.index.len()))
            .help("add a row for each leaf with Words::push"))
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }
}

/// The position of `text` in `values`. A new text is added.
fn position(positions: &mut HashMap<Arc<str>, u32>, values: &mut Vec<String>, text: &str) -> u32 {
    if let Some(position) = positions.get(text) {
        return *position;
    }
    let position = as_u32(values.len());
    values.push(text.to_owned());
    positions.insert(text.into(), position);
    position
}

/// The count as u32. There are fewer than 2^32 leaves: the metadata of more would not fit in
/// memory.
fn as_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
