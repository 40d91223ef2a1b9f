//! The names of all leaves of a tree, in one text.
//!
//! A key path needs several allocations, and its name one more. For a million leaves these
//! allocations are most of the work of a save. So this walk has one buffer: a step down appends a
//! key, and a step up removes it.
//!
//! ```text
//! buffer   m | m.0 | m.0.w ──▶ text "m.0.w" "m.0.v" "m.1.w" ...   ends 5, 10, 15, ...
//! ```

use std::fmt::Write as _;

use super::{Key, KeyPath, Node, NodeKind, Tree};

/// The name of every leaf, in flatten order. A name consists of the texts of the keys, with a
/// separator between them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeafNames {
    text: String,
    /// The end of each name in `text`.
    ends: Vec<usize>,
}

impl LeafNames {
    /// The names of all leaves, as [`KeyPath::join`] makes them.
    pub fn of<L>(tree: &Tree<L>, separator: &str) -> Self {
        let mut names = Self { text: String::new(), ends: Vec::with_capacity(tree.len()) };
        let mut walk = TextWalk::new(tree, separator);
        while let Some((node, text)) = walk.step() {
            if node.kind == NodeKind::Leaf {
                names.push(text);
            }
        }
        names
    }

    /// The name of a leaf; empty if there is no such leaf.
    pub fn get(&self, leaf: usize) -> &str {
        let start = leaf.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.ends.get(leaf).and_then(|&end| self.text.get(start..end)).unwrap_or_default()
    }

    /// All names, in flatten order.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.ends.len()).map(|leaf| self.get(leaf))
    }

    /// Number of leaves.
    #[inline]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the tree has no leaves.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    fn push(&mut self, name: &str) {
        self.text.push_str(name);
        self.ends.push(self.text.len());
    }
}

/// Walks through the nodes in preorder, with the joined texts of the keys from the root to each
/// node.
pub struct TextWalk<'a> {
    nodes: std::slice::Iter<'a, Node>,
    separator: &'a str,
    text: String,
    /// For each open container, the number of its children that still follow, and the length of its
    /// own text.
    open: Vec<(usize, usize)>,
}

impl<'a> TextWalk<'a> {
    /// A walk over the nodes of `tree`, with `separator` between the keys.
    #[inline]
    pub fn new<L>(tree: &'a Tree<L>, separator: &'a str) -> Self {
        Self { nodes: tree.nodes().iter(), separator, text: String::new(), open: Vec::new() }
    }

    /// Moves to the next node, and returns it with its text.
    pub fn step(&mut self) -> Option<(&'a Node, &str)> {
        let node = self.nodes.next()?;
        while self.open.last().is_some_and(|(left, _)| *left == 0) {
            self.open.pop();
        }
        let is_below_root = self.open.len() > 1;
        if let Some((left, len)) = self.open.last_mut() {
            *left -= 1;
            self.text.truncate(*len);
            if is_below_root {
                self.text.push_str(self.separator);
            }
            push_key(&mut self.text, &node.key);
        }
        if node.child_count > 0 {
            self.open.push((node.child_count, self.text.len()));
        }
        Some((node, &self.text))
    }
}

/// Appends the text of a key.
pub fn push_key(out: &mut String, key: &Key) {
    match key {
        Key::Dict(text) | Key::Attr(text) => out.push_str(text),
        // A write into a String cannot fail.
        Key::DictInt(number) => drop(write!(out, "{number}")),
        Key::Index(index) => drop(write!(out, "{index}")),
    }
}

impl<L> Tree<L> {
    /// The key path of one leaf; the root's path if there is no such leaf. Takes O(nodes), so use
    /// it only for messages.
    pub fn path_of(&self, leaf: usize) -> KeyPath {
        let mut open: Vec<(&Key, usize)> = Vec::new();
        let mut leaves_before = 0;
        for node in self.nodes() {
            while open.last().is_some_and(|(_, left)| *left == 0) {
                open.pop();
            }
            if let Some((_, left)) = open.last_mut() {
                *left -= 1;
            }
            if node.kind == NodeKind::Leaf {
                if leaves_before == leaf {
                    let above = open.iter().skip(1).map(|(key, _)| (*key).clone());
                    // A tree of one leaf has no keys.
                    let own = (!open.is_empty()).then(|| node.key.clone());
                    return above.chain(own).collect();
                }
                leaves_before += 1;
            }
            if node.child_count > 0 {
                open.push((&node.key, node.child_count));
            }
        }
        KeyPath::root()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::TreeBuilder;
    use proptest::prelude::*;

    fn key(number: u8) -> Key {
        match number % 4 {
            0 => Key::dict(["", "a", "b.c", "é"][usize::from(number / 4 % 4)]),
            1 => Key::DictInt(i64::from(number) - 100),
            2 => Key::Index(usize::from(number)),
            _ => Key::attr("x"),
        }
    }

    proptest! {
        #[test]
        fn names_and_paths_are_those_of_the_walk(steps in proptest::collection::vec((0..4_u8, any::<u8>()), 0..60)) {
            let mut build = TreeBuilder::new();
            build.open(Key::Index(0), NodeKind::Dict).unwrap();
            for (step, number) in steps {
                match step {
                    0 => build.open(key(number), NodeKind::List).unwrap(),
                    1 if build.depth() > 1 => build.close().unwrap(),
                    _ => build.leaf(key(number), number).unwrap(),
                }
            }
            while build.depth() > 0 {
                build.close().unwrap();
            }
            let tree = build.finish().unwrap();
            let names = LeafNames::of(&tree, ".");
            prop_assert_eq!(names.len(), tree.len());
            for (leaf, ((path, _), name)) in tree.iter().zip(names.iter()).enumerate() {
                prop_assert_eq!(&path.join("."), name);
                prop_assert_eq!(&path, &tree.path_of(leaf));
            }
        }
    }

    #[test]
    fn a_single_leaf_has_no_name() {
        let tree = Tree::single(());
        assert_eq!(LeafNames::of(&tree, ".").iter().collect::<Vec<_>>(), [""]);
        assert!(tree.path_of(0).is_root() && LeafNames::of(&tree, ".").get(1).is_empty());
    }
}
