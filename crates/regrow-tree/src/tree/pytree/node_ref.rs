//! A node of a tree during a load. Its children are found by text or by position.

use crate::tree::{Key, Leaf, Node, NodeKind, Tree};

/// The end of each subtree of a tree, and the leaf of each node. Made once, in O(nodes).
#[derive(Debug)]
pub(super) struct TreeIndex<'a> {
    tree: &'a Tree<Leaf>,
    ends: Vec<usize>,
    /// For each node, the number of leaves before it.
    leaves_before: Vec<usize>,
}

impl<'a> TreeIndex<'a> {
    pub(super) fn of(tree: &'a Tree<Leaf>) -> Self {
        let count = tree.nodes().len();
        let mut ends = vec![count; count];
        let mut leaves_before = Vec::with_capacity(count);
        let mut leaves = 0;
        // For each open container: its position, and how many children still follow.
        let mut open: Vec<(usize, usize)> = Vec::new();
        for (at, node) in tree.nodes().iter().enumerate() {
            leaves_before.push(leaves);
            leaves += usize::from(node.kind == NodeKind::Leaf);
            if let Some((_, left)) = open.last_mut() {
                *left -= 1;
            }
            open.push((at, node.child_count));
            while let Some(&(closed, 0)) = open.last() {
                open.pop();
                if let Some(end) = ends.get_mut(closed) {
                    *end = at + 1;
                }
            }
        }
        Self { tree, ends, leaves_before }
    }

    pub(super) fn root(&self) -> NodeRef<'_> {
        NodeRef { index: self, at: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }
}

/// A node of the tree from which a value is restored. Cheap to copy.
#[derive(Debug, Clone, Copy)]
pub struct NodeRef<'a> {
    index: &'a TreeIndex<'a>,
    at: usize,
}

impl<'a> NodeRef<'a> {
    #[expect(clippy::indexing_slicing, reason = "a NodeRef is only made for a node that is there")]
    fn node(self) -> &'a Node {
        &self.index.tree.nodes()[self.at]
    }

    /// The key in the parent; not used for the root.
    #[inline]
    pub fn key(self) -> &'a Key {
        &self.node().key
    }

    /// The kind of the node.
    #[inline]
    pub fn kind(self) -> &'a NodeKind {
        &self.node().kind
    }

    /// The leaf; `None` if the node is a container.
    pub fn leaf(self) -> Option<&'a Leaf> {
        let number = (*self.kind() == NodeKind::Leaf).then(|| self.index.leaves_before.get(self.at))??;
        self.index.tree.leaves().get(*number)
    }

    /// The direct children, in the order in which they are stored.
    #[inline]
    pub fn children(self) -> Children<'a> {
        Children { index: self.index, next: self.at + 1, end: self.end() }
    }

    /// The child whose key has this text, for any kind of key: `Attr("w")` and `Dict("w")` are
    /// equal here. Placeholders are ignored. O(children).
    #[inline]
    pub fn child(self, text: &str) -> Option<Self> {
        self.children().find(|child| child.key().text() == text && !child.is_placeholder())
    }

    /// The children of a list, tuple or named tuple, or of a dict whose keys are exactly `0`, `1`,
    /// ..., in order. `None` for all other nodes.
    pub fn items(self) -> Option<Vec<Self>> {
        match self.kind() {
            NodeKind::List | NodeKind::Tuple | NodeKind::NamedTuple(_) => Some(self.children().collect()),
            NodeKind::Dict | NodeKind::OrderedDict | NodeKind::DefaultDict | NodeKind::Custom(_) => {
                let numbered = self.children().map(|child| Some((child.key().text().parse().ok()?, child)));
                let mut items = numbered.collect::<Option<Vec<(usize, Self)>>>()?;
                items.sort_by_key(|&(position, _)| position);
                let all = items.iter().enumerate().all(|(i, &(position, _))| i == position);
                all.then(|| items.into_iter().map(|(_, child)| child).collect())
            }
            _ => None,
        }
    }

    /// Whether the children have names: a dict, dataclass, named tuple or custom node.
    pub fn has_names(self) -> bool {
        !matches!(self.kind(), NodeKind::Leaf | NodeKind::None | NodeKind::List | NodeKind::Tuple)
    }

    /// Whether the subtree has no leaves.
    pub fn is_empty(self) -> bool {
        (self.at..self.end())
            .all(|at| self.index.tree.nodes().get(at).is_some_and(|node| node.kind != NodeKind::Leaf))
    }

    /// Whether the node is a leaf that was omitted on purpose, or not selected by
    /// `LoadOptions::only`.
    #[inline]
    pub fn is_placeholder(self) -> bool {
        self.leaf().is_some_and(super::restore::is_placeholder)
    }

    /// A copy of the subtree.
    ///
    /// # Errors
    /// None in practice: every subtree is a valid tree.
    pub fn to_tree(self) -> crate::error::Result<Tree<Leaf>> {
        let mut build = crate::tree::TreeBuilder::new();
        super::derive_support::put_subtree(self, self.key().clone(), &mut build)?;
        build.finish()
    }

    pub(super) fn position(self) -> usize {
        self.at
    }

    /// The index after the last descendant.
    pub(super) fn end(self) -> usize {
        self.index.ends.get(self.at).copied().unwrap_or(self.at + 1)
    }

    /// All nodes of the subtree in preorder, beginning with this node.
    pub(super) fn subtree(self) -> impl Iterator<Item = Self> {
        (self.at..self.end()).map(move |at| NodeRef { index: self.index, at })
    }
}

/// The iterator of [`NodeRef::children`].
#[derive(Debug, Clone)]
pub struct Children<'a> {
    index: &'a TreeIndex<'a>,
    next: usize,
    end: usize,
}

impl<'a> Iterator for Children<'a> {
    type Item = NodeRef<'a>;

    fn next(&mut self) -> Option<NodeRef<'a>> {
        if self.next >= self.end {
            return None;
        }
        let child = NodeRef { index: self.index, at: self.next };
        self.next = child.end();
        Some(child)
    }
}
