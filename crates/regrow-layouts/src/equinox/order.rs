//! The order in which JAX flattens a pytree: the order of the leaves in the tree, but with the keys
//! of `dict` and `defaultdict` sorted. `OrderedDict` keeps its order.

use std::cmp::Reverse;

use regrow_tree::tree::{NodeKind, Tree};

/// For each leaf in JAX' order, its position in the tree's own order.
///
/// Text is sorted by code points and numbers by value, as in Python. JAX has no order for a dict
/// that mixes both; here numbers come last.
pub fn jax_order<L>(tree: &Tree<L>) -> Vec<usize> {
    let nodes = tree.nodes();
    // The numbers of nodes and leaves of each subtree. Children come after their parent, so the
    // loop starts at the end.
    let mut sizes = vec![(1_usize, 0_usize); nodes.len()];
    for (at, node) in nodes.iter().enumerate().rev() {
        let (mut child, mut leaves) = (at + 1, usize::from(node.kind == NodeKind::Leaf));
        for _ in 0..node.child_count {
            let (size, below) = sizes.get(child).copied().unwrap_or((1, 0));
            child += size;
            leaves += below;
        }
        if let Some(size) = sizes.get_mut(at) {
            *size = (child - at, leaves);
        }
    }
    let mut order = Vec::with_capacity(tree.len());
    // Nodes still to be visited, the next one last, each with the position of its first leaf.
    let mut open = vec![(0_usize, 0_usize)];
    while let Some((at, first_leaf)) = open.pop() {
        let Some(node) = nodes.get(at) else { continue };
        if node.kind == NodeKind::Leaf {
            order.push(first_leaf);
        }
        let children = open.len();
        let (mut child, mut leaf) = (at + 1, first_leaf);
        for _ in 0..node.child_count {
            open.push((child, leaf));
            let (size, below) = sizes.get(child).copied().unwrap_or((1, 0));
            child += size;
            leaf += below;
        }
        let children = open.get_mut(children..).unwrap_or_default();
        if matches!(node.kind, NodeKind::Dict | NodeKind::DefaultDict) {
            children.sort_by_key(|&(child, _)| nodes.get(child).map(|node| Reverse(&node.key)));
        } else {
            children.reverse();
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use regrow_tree::tree::{Key, TreeBuilder};

    #[test]
    fn dicts_are_sorted_and_nothing_else_is() {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        for (key, kind) in [
            ("b", NodeKind::OrderedDict),
            ("a", NodeKind::DefaultDict),
            ("é", NodeKind::Dict),
            ("Z", NodeKind::Dict),
        ] {
            build.open(Key::dict(key), kind).unwrap();
            build.leaf(Key::dict("y"), ()).unwrap();
            build.leaf(Key::dict("x"), ()).unwrap();
            build.close().unwrap();
        }
        build.open(Key::dict("10"), NodeKind::Dict).unwrap();
        for number in [10, 9, -1] {
            build.leaf(Key::DictInt(number), ()).unwrap();
        }
        build.close().unwrap();
        build.open(Key::dict("none"), NodeKind::None).unwrap();
        build.close().unwrap();
        build.close().unwrap();
        let tree = build.finish().unwrap();
        // In the tree: b 0 1, a 2 3, é 4 5, Z 6 7, "10" 8 9 10.
        assert_eq!(jax_order(&tree), [10, 9, 8, 7, 6, 3, 2, 0, 1, 5, 4]);
    }
}
