//! The tree itself: a vector of nodes in preorder, and a vector of leaves.

use std::sync::Arc;

use super::{Key, KeyPath};
use crate::bytes::limits::TREE_DEPTH_MAX;
use crate::error::{Error, ErrorKind, Result};

/// The kind of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NodeKind {
    /// A leaf; its data is in [`Tree::leaves`].
    Leaf,
    /// `None`: a node without children and without leaves.
    None,
    /// A dict. Its children are in the order in which they are stored.
    Dict,
    /// `collections.OrderedDict`.
    OrderedDict,
    /// `collections.defaultdict`; its factory is not stored.
    DefaultDict,
    /// A list.
    List,
    /// A tuple.
    Tuple,
    /// A named tuple, with the qualified name of its type (`optax.ScaleByAdamState`). A read never
    /// imports the type.
    NamedTuple(Arc<str>),
    /// A dataclass, with the qualified name of its type. A read never imports the type.
    Dataclass(Arc<str>),
    /// Any other registered pytree node, with the qualified name of its type. A read never imports
    /// the type.
    Custom(Arc<str>),
}

impl NodeKind {
    /// A lower-case name for tables and JSON: `dict`, `named_tuple`, ...
    pub fn name(&self) -> &'static str {
        match self {
            Self::Leaf => "leaf",
            Self::None => "none",
            Self::Dict => "dict",
            Self::OrderedDict => "ordered_dict",
            Self::DefaultDict => "default_dict",
            Self::List => "list",
            Self::Tuple => "tuple",
            Self::NamedTuple(_) => "named_tuple",
            Self::Dataclass(_) => "dataclass",
            Self::Custom(_) => "custom",
        }
    }

    /// The name of the node's type; `None` for kinds without a type name.
    pub fn type_name(&self) -> Option<&str> {
        match self {
            Self::NamedTuple(name) | Self::Dataclass(name) | Self::Custom(name) => Some(name),
            _ => None,
        }
    }
}

/// One node: its key, its kind, and its number of children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The key in the parent; not used for the root.
    pub key: Key,
    /// The kind of the node.
    pub kind: NodeKind,
    /// The number of direct children. They follow in preorder.
    pub child_count: usize,
}

/// A pytree with leaves of type `L`.
///
/// Every tree has these properties:
/// - `nodes` is one tree in preorder, with its root first;
/// - there is one leaf for each node of kind [`NodeKind::Leaf`], in the same order;
/// - leaves and `None` have no children; nesting stays within [`TREE_DEPTH_MAX`].
///
/// ```
/// use regrow_tree::tree::{Key, NodeKind, TreeBuilder};
/// let mut build = TreeBuilder::new();
/// build.open(Key::Index(0), NodeKind::Dict)?;   // the root's own key means nothing
/// build.leaf(Key::dict("bias"), 1)?;
/// build.open(Key::dict("layers"), NodeKind::List)?;
/// build.leaf(Key::Index(0), 2)?;
/// build.close()?;
/// build.close()?;
/// let tree = build.finish()?;
/// let paths: Vec<String> = tree.iter().map(|(path, _)| path.to_string()).collect();
/// assert_eq!(paths, ["bias", "layers/0"]);
/// # Ok::<(), regrow_base::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree<L> {
    /// Shared by all trees that were made from one another with the same structure.
    nodes: Arc<Vec<Node>>,
    leaves: Vec<L>,
}

impl<L> Tree<L> {
    /// A tree that consists of one leaf.
    pub fn single(leaf: L) -> Self {
        let root = Node { key: Key::Index(0), kind: NodeKind::Leaf, child_count: 0 };
        Self { nodes: Arc::new(vec![root]), leaves: vec![leaf] }
    }

    /// Makes a tree without checks: nodes and leaves must have the properties of a tree.
    pub fn from_parts(nodes: Vec<Node>, leaves: Vec<L>) -> Self {
        debug_assert_eq!(nodes.iter().filter(|node| node.kind == NodeKind::Leaf).count(), leaves.len());
        Self { nodes: Arc::new(nodes), leaves }
    }

    /// All nodes, in preorder.
    #[inline]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// All leaves, in flatten order.
    #[inline]
    pub fn leaves(&self) -> &[L] {
        &self.leaves
    }

    /// All leaves, for changes in place.
    #[inline]
    pub fn leaves_mut(&mut self) -> &mut [L] {
        &mut self.leaves
    }

    /// Number of leaves.
    #[inline]
    pub fn len(&self) -> usize {
        self.leaves.len()
    }

    /// Whether the tree has no leaves. It always has a root.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// Every leaf with its key path, in flatten order. Builds each path, which takes O(depth) for
    /// each leaf.
    pub fn iter(&self) -> impl Iterator<Item = (KeyPath, &L)> {
        let mut walk = self.walk();
        let leaf_paths = std::iter::from_fn(move || {
            loop {
                // Clone the path only for a leaf: containers on the way cost nothing.
                if walk.step()?.kind == NodeKind::Leaf {
                    return Some(walk.path.clone());
                }
            }
        });
        leaf_paths.zip(&self.leaves)
    }

    /// The key path of every leaf, in flatten order.
    #[inline]
    pub fn paths(&self) -> Vec<KeyPath> {
        self.iter().map(|(path, _)| path).collect()
    }

    /// Every node with its key path, in preorder. Builds each path, which takes O(depth) for each
    /// node.
    #[inline]
    pub fn walk(&self) -> Walk<'_> {
        Walk { nodes: self.nodes.iter(), path: KeyPath::root(), open: Vec::new(), is_done: true }
    }

    /// The same structure with converted leaves.
    #[inline]
    pub fn map<M>(self, mut to: impl FnMut(L) -> M) -> Tree<M> {
        Tree { nodes: self.nodes, leaves: self.leaves.into_iter().map(&mut to).collect() }
    }

    /// The same structure with converted leaves. Stops at the first error, and adds the key path to
    /// it.
    pub fn try_map<M>(&self, mut to: impl FnMut(&KeyPath, &L) -> Result<M>) -> Result<Tree<M>> {
        let mut leaves = Vec::with_capacity(self.leaves.len());
        for (path, leaf) in self.iter() {
            leaves.push(to(&path, leaf).map_err(|error| error.at_leaf(&path))?);
        }
        Ok(Tree { nodes: self.nodes.clone(), leaves })
    }

    /// The same structure with the given leaves, in flatten order.
    ///
    /// # Errors
    /// `InvalidArgument` if their number is not the number of leaves.
    pub fn with_leaves<M>(&self, leaves: Vec<M>) -> Result<Tree<M>> {
        if leaves.len() != self.leaves.len() {
            return Err(Error::invalid("a tree needs exactly one value for each leaf")
                .expected(self.leaves.len(), leaves.len()));
        }
        Ok(Tree { nodes: self.nodes.clone(), leaves })
    }

    /// The subtree of a child of the root; `None` if the root has no such child.
    pub fn child(&self, key: &Key) -> Option<Self>
    where
        L: Clone,
    {
        let (mut at, mut leaf) = (1, 0);
        while let Some(child) = self.nodes.get(at) {
            let end = end_of(&self.nodes, at);
            let nodes = self.nodes.get(at..end)?;
            let count = nodes.iter().filter(|node| node.kind == NodeKind::Leaf).count();
            if child.key == *key {
                let leaves = self.leaves.get(leaf..leaf + count)?.to_vec();
                return Some(Self { nodes: Arc::new(nodes.to_vec()), leaves });
            }
            (at, leaf) = (end, leaf + count);
        }
        None
    }

    /// The leaves without the structure.
    #[inline]
    pub fn into_leaves(self) -> Vec<L> {
        self.leaves
    }
}

/// The iterator of [`Tree::walk`].
pub struct Walk<'a> {
    nodes: std::slice::Iter<'a, Node>,
    /// The path of the node that `step` has returned last.
    path: KeyPath,
    open: Vec<usize>,
    /// Whether that node has no children, so that the next node is not below it.
    is_done: bool,
}

impl<'a> Walk<'a> {
    /// Moves to the next node. Its path is then in `self.path`.
    fn step(&mut self) -> Option<&'a Node> {
        let node = self.nodes.next()?;
        if !self.open.is_empty() {
            if self.is_done {
                self.path.pop();
            }
            while self.open.last() == Some(&0) {
                self.open.pop();
                self.path.pop();
            }
            if let Some(left) = self.open.last_mut() {
                *left -= 1;
            }
            self.path.push(node.key.clone());
        }
        self.is_done = node.child_count == 0;
        if !self.is_done {
            self.open.push(node.child_count);
        }
        Some(node)
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = (KeyPath, &'a Node);

    fn next(&mut self) -> Option<Self::Item> {
        let node = self.step()?;
        Some((self.path.clone(), node))
    }
}

/// The index after the subtree of the node at `at`.
pub fn end_of(nodes: &[Node], at: usize) -> usize {
    let mut missing = 1;
    let mut end = at;
    while missing > 0 {
        let Some(node) = nodes.get(end) else { break };
        missing = missing - 1 + node.child_count;
        end += 1;
    }
    end
}

/// Builds a [`Tree`] in preorder: open a container, add its children, close it.
#[derive(Debug)]
pub struct TreeBuilder<L> {
    nodes: Vec<Node>,
    leaves: Vec<L>,
    /// Indices into `nodes` of the containers that are still open.
    open: Vec<usize>,
}

impl<L> Default for TreeBuilder<L> {
    fn default() -> Self {
        Self::new()
    }
}

impl<L> TreeBuilder<L> {
    /// A builder without nodes. The first node becomes the root.
    #[inline]
    pub fn new() -> Self {
        Self { nodes: Vec::new(), leaves: Vec::new(), open: Vec::new() }
    }

    /// Opens a container. A `None` is also opened, and needs a `close`.
    ///
    /// # Errors
    /// `InvalidArgument` for a second root or a child of `None`; `Limit` for more than
    /// [`TREE_DEPTH_MAX`] levels.
    pub fn open(&mut self, key: Key, kind: NodeKind) -> Result<()> {
        if self.open.len() >= TREE_DEPTH_MAX {
            return Err(Error::new(
                ErrorKind::Limit,
                format!("the tree is nested deeper than {TREE_DEPTH_MAX} levels"),
            ));
        }
        self.add(key, kind)?;
        self.open.push(self.nodes.len() - 1);
        Ok(())
    }

    /// Adds a leaf.
    ///
    /// # Errors
    /// `InvalidArgument` for a second root or a child of `None`.
    pub fn leaf(&mut self, key: Key, leaf: L) -> Result<()> {
        self.add(key, NodeKind::Leaf)?;
        self.leaves.push(leaf);
        Ok(())
    }

    /// Closes the container opened last.
    ///
    /// # Errors
    /// `InvalidArgument` if no container is open.
    pub fn close(&mut self) -> Result<()> {
        match self.open.pop() {
            Some(_) => Ok(()),
            None => Err(Error::invalid("a tree builder closed more containers than it opened")),
        }
    }

    /// Whether nothing has been added yet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Number of containers that are open.
    #[inline]
    pub fn depth(&self) -> usize {
        self.open.len()
    }

    /// Returns the tree.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no root or a container is still open.
    pub fn finish(self) -> Result<Tree<L>> {
        if self.nodes.is_empty() || !self.open.is_empty() {
            return Err(Error::invalid("a tree builder was finished before its tree was"));
        }
        Ok(Tree { nodes: Arc::new(self.nodes), leaves: self.leaves })
    }

    fn add(&mut self, key: Key, kind: NodeKind) -> Result<()> {
        let has_root = !self.nodes.is_empty();
        match self.open.last().and_then(|&parent| self.nodes.get_mut(parent)) {
            Some(parent) if parent.kind == NodeKind::None => {
                return Err(Error::invalid("None cannot have children"));
            }
            Some(parent) => parent.child_count += 1,
            None if !has_root => {}
            None => return Err(Error::invalid("a tree has one root")),
        }
        self.nodes.push(Node { key, kind, child_count: 0 });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_past_empty_containers() {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        build.open(Key::dict("a"), NodeKind::List).unwrap();
        build.close().unwrap();
        build.open(Key::dict("b"), NodeKind::Tuple).unwrap();
        build.open(Key::Index(0), NodeKind::None).unwrap();
        build.close().unwrap();
        build.leaf(Key::Index(1), 7).unwrap();
        build.close().unwrap();
        build.leaf(Key::dict("c"), 8).unwrap();
        build.close().unwrap();
        let tree = build.finish().unwrap();
        let all: Vec<String> =
            tree.walk().map(|(path, node)| format!("{path}:{}", node.kind.name())).collect();
        assert_eq!(all, [".:dict", "a:list", "b:tuple", "b/0:none", "b/1:leaf", "c:leaf"]);
        let leaves: Vec<(String, i32)> = tree.iter().map(|(path, &leaf)| (path.to_string(), leaf)).collect();
        assert_eq!(leaves, [("b/1".to_owned(), 7), ("c".to_owned(), 8)]);
    }

    #[test]
    fn a_deep_tree_needs_no_stack() {
        let mut build = TreeBuilder::new();
        for _ in 0..50_000 {
            build.open(Key::Index(0), NodeKind::List).unwrap();
        }
        build.leaf(Key::Index(0), ()).unwrap();
        for _ in 0..50_000 {
            build.close().unwrap();
        }
        assert_eq!(build.finish().unwrap().paths()[0].len(), 50_000);
    }

    #[test]
    fn a_single_leaf_is_a_tree() {
        let tree = Tree::single(5);
        assert_eq!(tree.iter().collect::<Vec<_>>(), [(KeyPath::root(), &5)]);
    }

    #[test]
    fn refuses_what_is_no_tree() {
        let mut two = TreeBuilder::new();
        two.leaf(Key::Index(0), 1).unwrap();
        assert!(two.leaf(Key::Index(1), 2).is_err());
        let mut none = TreeBuilder::new();
        none.open(Key::Index(0), NodeKind::None).unwrap();
        assert!(none.leaf(Key::Index(0), 1).is_err());
        assert!(none.finish().is_err());
        assert!(TreeBuilder::<()>::new().finish().is_err());
    }
}
