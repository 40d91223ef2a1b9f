//! Turns columns into a tree. The columns come from a file, so each is checked against the others.

use std::sync::Arc;

use super::letters::{leaf_kind, node_kind};
use super::{Regrown, ShardingText, Structure, bad_columns, check_version};
use regrow_base::bytes::limits::TREE_DEPTH_MAX;
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_tree::array::{Dtype, Shape};
use regrow_tree::sharding::Sharding;
use regrow_tree::tree::{Key, LeafInfo, LeafKind, LeafNames, Node, NodeKind, Tree};

impl Structure {
    /// Builds the tree from the columns.
    ///
    /// # Errors
    /// `Corrupt` if the columns contradict each other; `Unsupported` for a later version; `Limit`
    /// for a tree that is too deep.
    pub fn regrow(&self) -> Result<Regrown> {
        check_version(self.version)?;
        let regrown = self.put_together().map_err(|error| match error.kind() {
            // An unknown dtype is an error of the caller (`InvalidArgument`) in other code. Here
            // the file is at fault.
            ErrorKind::InvalidArgument => bad_columns(error.what()),
            _ => error,
        })?;
        match regrown.tree.first_equal_keys() {
            Some(path) => Err(bad_columns("two children of one container have the same key").at_leaf(&path)),
            None => Ok(regrown),
        }
    }

    fn put_together(&self) -> Result<Regrown> {
        let nodes = self.node_list()?;
        if nodes.iter().filter(|node| node.kind == NodeKind::Leaf).count() != self.leaves.len() {
            return Err(bad_columns("the number of leaves does not fit the leaf nodes"));
        }
        let mut tree = Tree::from_parts(nodes, self.leaf_infos()?);
        self.name_leaves(&mut tree);
        self.shard_leaves(&mut tree)?;
        let text_leaves = tree.leaves().iter().enumerate().filter(|(_, info)| info.kind == LeafKind::Str);
        let texts = text_leaves
            .map(|(leaf, _)| leaf)
            .zip(self.texts.iter().map(|text| Arc::from(text.as_str())))
            .collect();
        Ok(Regrown { tree, texts })
    }

    fn node_list(&self) -> Result<Vec<Node>> {
        let node_count = self.nodes.len();
        if self.key_kinds.len() != node_count || self.keys.len() != node_count {
            return Err(bad_columns("nodes, key_kinds and keys have different lengths"));
        }
        let strings: Vec<Arc<str>> = self.strings.iter().map(|text| Arc::from(text.as_str())).collect();
        let string = |at: i64| {
            usize::try_from(at)
                .ok()
                .and_then(|at| strings.get(at))
                .cloned()
                .ok_or_else(|| bad_columns("a key is not in strings"))
        };
        let mut type_names = self.type_names.iter();
        let mut type_name = || match type_names.next() {
            Some(&at) => string(at as i64),
            None => Err(bad_columns("type_names is too short")),
        };
        let mut child_counts = self.child_counts.iter();
        let mut nodes = Vec::with_capacity(node_count);
        let mut open = OpenContainers::default();
        for ((letter, key_kind), &key) in self.nodes.bytes().zip(self.key_kinds.bytes()).zip(&self.keys) {
            let position = open.next_position(nodes.is_empty())?;
            let key = match key_kind {
                b's' => Key::Dict(string(key)?),
                b'a' => Key::Attr(string(key)?),
                b'i' => Key::DictInt(key),
                b'x' => Key::Index(position),
                other => return Err(bad_columns(&format!("{:?} is not a kind of key", char::from(other)))),
            };
            let kind = node_kind(letter, &mut type_name)?;
            let child_count = match kind {
                NodeKind::Leaf | NodeKind::None => 0,
                _ => open.enter(child_counts.next())?,
            };
            nodes.push(Node { key, kind, child_count });
        }
        if open.0.iter().any(|(left, _)| *left > 0) {
            return Err(bad_columns("the last nodes lack children"));
        }
        match nodes.is_empty() {
            true => Err(bad_columns("the nodes are not a tree")),
            false => Ok(nodes),
        }
    }

    fn shard_leaves(&self, tree: &mut Tree<LeafInfo>) -> Result<()> {
        // Neighbours often have the same sharding. Parse it once.
        let mut last: Option<(&ShardingText, Arc<Sharding>)> = None;
        for (&leaf, text) in &self.shardings {
            let sharding = match &last {
                Some((known, sharding)) if known.is_same(text) => sharding.clone(),
                _ => Arc::new(text.sharding()?),
            };
            last = Some((text, sharding.clone()));
            if let Some(info) = tree.leaves_mut().get_mut(leaf) {
                info.sharding = Some(sharding);
            }
        }
        Ok(())
    }

    fn name_leaves(&self, tree: &mut Tree<LeafInfo>) {
        let names = LeafNames::of(tree, ".");
        for (info, name) in tree.leaves_mut().iter_mut().zip(names.iter()) {
            info.name = Arc::from(name);
        }
        for (&leaf, name) in &self.names {
            if let Some(info) = tree.leaves_mut().get_mut(leaf) {
                info.name = Arc::from(name.as_str());
            }
        }
    }

    fn leaf_infos(&self) -> Result<Vec<LeafInfo>> {
        let count = self.leaves.len();
        if self.leaf_dtypes.len() != count || self.leaf_shapes.len() != count {
            return Err(bad_columns("leaves, leaf_dtypes and leaf_shapes have different lengths"));
        }
        let dtypes = self.dtypes.iter().map(|name| name.parse::<Dtype>()).collect::<Result<Vec<_>>>()?;
        let shapes =
            self.shapes.iter().map(|dims| Shape::new(dims.as_slice())).collect::<Result<Vec<_>>>()?;
        let mut implementations = self.key_implementations.iter();
        let mut numpy_dtypes = self.numpy_dtypes.iter();
        let text_count = self.leaves.chars().filter(|&letter| letter == 't').count();
        if text_count != self.texts.len() {
            return Err(bad_columns("the number of texts does not fit the text leaves"));
        }
        let (name, coding): (Arc<str>, Arc<str>) = (Arc::from(""), Arc::from(""));
        let columns = self.leaves.bytes().zip(&self.leaf_dtypes).zip(&self.leaf_shapes);
        let mut infos = Vec::with_capacity(count);
        for ((letter, &dtype), &shape) in columns {
            let kind = leaf_kind(letter, &mut numpy_dtypes, &mut implementations)?;
            let (dtype, shape) = (usize::from(dtype), shape as usize);
            let (Some(&dtype), Some(shape)) = (dtypes.get(dtype), shapes.get(shape)) else {
                return Err(bad_columns("the dtype or shape of a leaf is not in its table"));
            };
            // Refuse an array whose length in bytes overflows.
            shape.len_bytes(dtype)?;
            infos.push(LeafInfo {
                kind,
                dtype,
                shape: shape.clone(),
                name: name.clone(),
                chunk_shape: None,
                write_shape: None,
                sharding: None,
                coding: coding.clone(),
            });
        }
        Ok(infos)
    }
}

/// For each open container: the number of children still to come, and the position of the next
/// child.
#[derive(Default)]
struct OpenContainers(Vec<(usize, usize)>);

impl OpenContainers {
    /// The position of the next node in its container.
    fn next_position(&mut self, is_root: bool) -> Result<usize> {
        while let Some((0, _)) = self.0.last() {
            self.0.pop();
        }
        match self.0.last_mut() {
            Some((left, position)) => {
                *left -= 1;
                *position += 1;
                Ok(*position - 1)
            }
            None if is_root => Ok(0),
            None => Err(bad_columns("a tree has one root")),
        }
    }

    /// Opens a container; returns the count of its children.
    fn enter(&mut self, child_count: Option<&usize>) -> Result<usize> {
        if self.0.len() >= TREE_DEPTH_MAX {
            let what = format!("the tree is nested deeper than {TREE_DEPTH_MAX} levels");
            return Err(Error::new(ErrorKind::Limit, what));
        }
        let count = *child_count.ok_or_else(|| bad_columns("child_counts is too short"))?;
        self.0.push((count, 0));
        Ok(count)
    }
}
