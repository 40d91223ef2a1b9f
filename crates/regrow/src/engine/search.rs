//! Finds one leaf by its printed key path, without an index of the tree.
//!
//! An index needs some allocations for each leaf, which is too much for one lookup in a checkpoint
//! of a million leaves. So the search goes through the nodes once. It does not compare the keys
//! below a node whose text does not match.

use std::borrow::Cow;

use crate::text::printable;
use crate::tree::{Key, LeafInfo, Node, NodeKind, Tree};

/// The only leaf with the printed key path `printed`, else the only leaf with the stored name
/// `name`. If the two texts differ, the stored name comes first. `None` if no leaf or several
/// leaves match.
pub(super) fn leaf_of(tree: &Tree<LeafInfo>, printed: &str, name: &str) -> Option<usize> {
    let by_name = || {
        let names = tree.leaves().iter().enumerate();
        let mut named = names.filter(|(_, info)| *info.name == *name).map(|(leaf, _)| leaf);
        named.next().filter(|_| named.next().is_none())
    };
    // `name` has characters that key paths print as escapes, so no key path prints as `name`
    // itself: look for a stored name first.
    if printed != name
        && let Some(leaf) = by_name()
    {
        return Some(leaf);
    }
    let mut matches =
        Walk::new(tree.nodes(), printed).filter_map(|(leaf, is_match)| is_match.then_some(leaf));
    match (matches.next(), matches.next()) {
        (Some(leaf), None) => Some(leaf),
        (Some(_), Some(_)) => None,
        (None, _) => by_name(),
    }
}

/// A container whose children the walk has not finished.
struct Open<'t> {
    left: usize,
    /// The text that the key of a child must begin with; `None` if the container does not match.
    rest: Option<&'t str>,
}

/// An iterator over all leaves. For each leaf it says whether the printed key path is the text.
struct Walk<'a, 't> {
    nodes: std::slice::Iter<'a, Node>,
    text: &'t str,
    open: Vec<Open<'t>>,
    leaf: usize,
}

impl<'a, 't> Walk<'a, 't> {
    fn new(nodes: &'a [Node], text: &'t str) -> Self {
        Self { nodes: nodes.iter(), text, open: Vec::new(), leaf: 0 }
    }

    /// The text that remains after the node's own key, and after the slash if it is a container.
    fn rest(&mut self, node: &Node) -> Option<&'t str> {
        let is_leaf = node.kind == NodeKind::Leaf;
        let Some(parent) = self.open.last_mut() else {
            // If the root is a leaf, it prints as a dot; otherwise it prints nothing.
            return if is_leaf { self.text.strip_prefix('.') } else { Some(self.text) };
        };
        parent.left = parent.left.saturating_sub(1);
        let rest = parent.rest?.strip_prefix(&*printed(&node.key))?;
        if is_leaf { Some(rest) } else { rest.strip_prefix('/') }
    }
}

impl Iterator for Walk<'_, '_> {
    type Item = (usize, bool);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let node = self.nodes.next()?;
            while self.open.last().is_some_and(|container| container.left == 0) {
                self.open.pop();
            }
            let rest = self.rest(node);
            if node.kind == NodeKind::Leaf {
                let leaf = self.leaf;
                self.leaf += 1;
                return Some((leaf, rest == Some("")));
            }
            if node.child_count > 0 {
                self.open.push(Open { left: node.child_count, rest });
            }
        }
    }
}

/// A key in the form in which a key path prints it.
fn printed(key: &Key) -> Cow<'_, str> {
    match key {
        Key::Dict(text) | Key::Attr(text) => printable(text),
        number => number.text(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::TreeBuilder;
    use proptest::prelude::*;

    fn key(number: u8) -> Key {
        match number % 4 {
            0 => Key::dict(["", "a", "a/b", "b", ".", "é", "1", "\n", "\\n"][usize::from(number / 4 % 9)]),
            1 => Key::DictInt(i64::from(number % 3) - 1),
            2 => Key::Index(usize::from(number % 3)),
            _ => Key::attr("a"),
        }
    }

    fn tree_of(steps: &[(u8, u8)]) -> Tree<()> {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        for &(step, number) in steps {
            match step {
                0 => build.open(key(number), NodeKind::List).unwrap(),
                1 if build.depth() > 1 => build.close().unwrap(),
                _ => build.leaf(key(number), ()).unwrap(),
            }
        }
        while build.depth() > 0 {
            build.close().unwrap();
        }
        build.finish().unwrap()
    }

    fn matches(tree: &Tree<()>, text: &str) -> Vec<bool> {
        Walk::new(tree.nodes(), text).map(|(_, is_match)| is_match).collect()
    }

    proptest! {
        #[test]
        fn finds_leaves_that_print_as_the_same_text(steps in proptest::collection::vec((0..4_u8, any::<u8>()), 0..40)) {
            let tree = tree_of(&steps);
            let printed: Vec<String> = tree.paths().iter().map(ToString::to_string).collect();
            for text in printed.iter().map(String::as_str).chain(["", ".", "a", "a/b", "a/", "/", "\\n"]) {
                let expected: Vec<bool> = printed.iter().map(|path| path == text).collect();
                prop_assert_eq!(matches(&tree, text), expected, "{:?}", text);
            }
        }
    }

    #[test]
    fn a_tree_that_is_one_leaf_is_a_dot() {
        let tree = Tree::single(());
        assert_eq!((matches(&tree, "."), matches(&tree, "")), (vec![true], vec![false]));
    }
}
