//! The part of a tree that a selection keeps.

use crate::error::Result;
use crate::tree::{Key, Leaf, LeafData, LeafInfo, LeafKind, Node, NodeKind, Tree, TreeBuilder};

pub(super) fn placeholder() -> Leaf {
    Leaf { kind: LeafKind::Placeholder, data: LeafData::Absent, sharding: None }
}

/// The tree with only the loaded leaves, and with the empty containers for which `empty` is true.
/// In dicts and fields, all other children are left out, and so are containers that become empty.
/// In sequences, all other children become placeholders, so that positions keep their meaning.
pub(super) fn prune(tree: &Tree<LeafInfo>, leaves: Vec<Option<Leaf>>, empty: &[bool]) -> Result<Tree<Leaf>> {
    let nodes = tree.nodes();
    let (keeps, sizes) = kept(nodes, &leaves, empty);
    let mut build = TreeBuilder::new();
    let mut leaves = leaves.into_iter();
    // For each open container: the number of children to come, and whether it is a dict.
    let mut open: Vec<(usize, bool)> = Vec::new();
    let mut at = 0;
    while let Some(node) = nodes.get(at) {
        while let Some((0, _)) = open.last() {
            open.pop();
            build.close()?;
        }
        let in_sequence = open.last_mut().is_some_and(|(left, is_dict)| {
            *left -= 1;
            !*is_dict && matches!(node.key, Key::Index(_))
        });
        let keep = keeps.get(at) == Some(&true);
        let size = sizes.get(at).copied().unwrap_or(1);
        if !keep {
            // Skip the whole subtree and its leaves.
            let below = nodes.get(at..at + size).unwrap_or_default();
            for _ in below.iter().filter(|node| node.kind == NodeKind::Leaf) {
                leaves.next();
            }
            if in_sequence {
                build.leaf(node.key.clone(), placeholder())?;
            }
            at += size;
            continue;
        }
        if node.kind == NodeKind::Leaf {
            let leaf = leaves.next().flatten().unwrap_or_else(placeholder);
            build.leaf(node.key.clone(), leaf)?;
        } else {
            build.open(node.key.clone(), node.kind.clone())?;
            let is_dict = matches!(node.kind, NodeKind::Dict | NodeKind::OrderedDict | NodeKind::DefaultDict);
            open.push((node.child_count, is_dict));
        }
        at += 1;
    }
    for _ in open {
        build.close()?;
    }
    if build.is_empty() {
        build.open(Key::Index(0), NodeKind::Dict)?;
        build.close()?;
    }
    build.finish()
}

/// For each node: whether its subtree contains a chosen leaf or node, and the number of nodes in
/// its subtree.
fn kept(nodes: &[Node], leaves: &[Option<Leaf>], empty: &[bool]) -> (Vec<bool>, Vec<usize>) {
    let mut keeps = vec![false; nodes.len()];
    let mut sizes = vec![1_usize; nodes.len()];
    let mut next_leaf = leaves.len();
    // Children come after their parent, so process the nodes from last to first.
    for (at, node) in nodes.iter().enumerate().rev() {
        let mut child = at + 1;
        let mut keep = empty.get(at) == Some(&true);
        if node.kind == NodeKind::Leaf {
            next_leaf -= 1;
            keep = leaves.get(next_leaf).is_some_and(Option::is_some);
        }
        for _ in 0..node.child_count {
            keep |= keeps.get(child) == Some(&true);
            child += sizes.get(child).copied().unwrap_or(1);
        }
        if let (Some(k), Some(s)) = (keeps.get_mut(at), sizes.get_mut(at)) {
            (*k, *s) = (keep, child - at);
        }
    }
    (keeps, sizes)
}
