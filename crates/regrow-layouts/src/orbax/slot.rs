//! A leaf of an opened checkpoint: its description, and the source of its data.

use std::sync::Arc;

use bytes::Bytes;

use super::stored_array::StoredArray;
use crate::flax::decode::{Data, Decoded};
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_tree::array::{Dtype, Shape};
use regrow_tree::tree::{Key, KeyPath, LeafInfo, LeafKind, Node, NodeKind, Scalar, Tree, TreeBuilder};

/// A leaf with the source of its data.
#[derive(Debug)]
pub(super) struct Slot {
    pub info: LeafInfo,
    pub source: Source,
}

/// Where the data of a leaf comes from.
#[derive(Debug)]
pub(super) enum Source {
    Zarr(StoredArray),
    /// Bytes in C order inside a file that has been read or mapped, in one piece or several.
    Pieces(Vec<Bytes>),
    Text(Arc<str>),
    /// A placeholder, or a kind of leaf that has no known form.
    Absent,
    Lost(Error),
}

impl Slot {
    pub fn text(name: &str, text: impl Into<Arc<str>>) -> Self {
        let text = text.into();
        let shape = Shape::new(vec![text.len() as u64]).unwrap_or_default();
        Self { info: info(LeafKind::Str, Dtype::UInt8, shape, name, "text"), source: Source::Text(text) }
    }

    pub fn absent(name: &str, kind: LeafKind) -> Self {
        Self {
            info: info(kind, Dtype::UInt8, Shape::new(vec![0]).unwrap_or_default(), name, "none"),
            source: Source::Absent,
        }
    }

    /// A lost leaf. Only its name is known.
    pub fn lost(name: &str, why: Error) -> Self {
        Self { source: Source::Lost(why), ..Self::absent(name, LeafKind::Placeholder) }
    }

    pub fn scalar(name: &str, value: Scalar, coding: &str) -> Self {
        let (dtype, bytes) = value.to_element();
        Self {
            info: info(LeafKind::Scalar, dtype, Shape::scalar(), name, coding),
            source: Source::Pieces(vec![bytes.into()]),
        }
    }

    pub fn decoded(leaf: Decoded) -> Self {
        let source = match leaf.data {
            Data::Pieces(pieces) => Source::Pieces(pieces),
            Data::Text(text) => Source::Text(text),
            Data::Absent | Data::Spec(_) => Source::Absent,
            Data::Lost(why) => Source::Lost(why),
        };
        Self { info: leaf.info, source }
    }
}

fn info(kind: LeafKind, dtype: Dtype, shape: Shape, name: &str, coding: &str) -> LeafInfo {
    LeafInfo {
        kind,
        dtype,
        shape,
        name: name.into(),
        chunk_shape: None,
        write_shape: None,
        sharding: None,
        coding: coding.into(),
    }
}

/// The key path of one leaf; O(nodes) at any depth.
pub(super) fn leaf_path<L>(tree: &Tree<L>, leaf: usize) -> KeyPath {
    let mut path = KeyPath::root();
    let mut open: Vec<usize> = Vec::new();
    let mut leaves_before = 0;
    for (i, node) in tree.nodes().iter().enumerate() {
        while open.last() == Some(&0) {
            open.pop();
            path.pop();
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        if i > 0 {
            path.push(node.key.clone());
        }
        if node.kind == NodeKind::Leaf {
            if leaves_before == leaf {
                return path;
            }
            leaves_before += 1;
        }
        if node.child_count > 0 {
            open.push(node.child_count);
        } else {
            path.pop();
        }
    }
    KeyPath::root()
}

/// Adds a whole tree as a child of the container that is open.
pub(super) fn graft<L>(build: &mut TreeBuilder<L>, key: Key, tree: Tree<L>) -> Result<()> {
    let nodes: Vec<Node> = tree.nodes().to_vec();
    let mut leaves = tree.into_leaves().into_iter();
    let mut open: Vec<usize> = Vec::new();
    let mut root_key = Some(key);
    for node in nodes {
        let key = root_key.take().unwrap_or(node.key);
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        if node.kind == NodeKind::Leaf {
            let leaf = leaves
                .next()
                .ok_or_else(|| Error::new(ErrorKind::Corrupt, "a tree has fewer leaves than leaf nodes"))?;
            build.leaf(key, leaf)?;
        } else {
            build.open(key, node.kind)?;
            open.push(node.child_count);
        }
        while open.last() == Some(&0) {
            open.pop();
            build.close()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grafts_keep_every_node() {
        let mut inner = TreeBuilder::new();
        inner.open(Key::Index(0), NodeKind::Tuple).unwrap();
        inner.open(Key::Index(0), NodeKind::None).unwrap();
        inner.close().unwrap();
        inner.leaf(Key::Index(1), 'x').unwrap();
        inner.close().unwrap();
        let mut outer = TreeBuilder::new();
        outer.open(Key::Index(0), NodeKind::Dict).unwrap();
        graft(&mut outer, Key::dict("a"), inner.finish().unwrap()).unwrap();
        graft(&mut outer, Key::dict("b"), Tree::single('y')).unwrap();
        outer.close().unwrap();
        let tree = outer.finish().unwrap();
        for (leaf, path) in tree.paths().iter().enumerate() {
            assert_eq!(leaf_path(&tree, leaf), *path);
        }
        let all: Vec<String> =
            tree.walk().map(|(path, node)| format!("{path}:{}", node.kind.name())).collect();
        assert_eq!(all, [".:dict", "a:tuple", "a/0:none", "a/1:leaf", "b:leaf"]);
    }
}
