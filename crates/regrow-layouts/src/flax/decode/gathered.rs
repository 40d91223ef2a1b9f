//! Finds dicts that are TensorStore specs, and turns each into one leaf.

use std::collections::HashSet;

use serde_json::{Map, Number, Value};

use super::super::specs::{BASE, DRIVER, KVSTORE, unknown};
use super::{Data, Decoded};
use regrow_base::error::{Error, Result};
use regrow_tree::array::Dtype;
use regrow_tree::tree::{LeafKind, Node, NodeKind, Tree, TreeBuilder};

/// The most nested containers in a spec. TensorStore's specs have fewer.
const NESTED_MAX: usize = 16;

pub(super) fn with_specs(tree: Tree<Decoded>) -> Result<Tree<Decoded>> {
    let is_spec = spec_nodes(&tree);
    if is_spec.is_empty() {
        return Ok(tree);
    }
    let nodes = tree.nodes().to_vec();
    let mut rest = Rest { nodes: &nodes, at: 0, leaves: tree.into_leaves().into_iter() };
    let mut build = TreeBuilder::new();
    let mut open: Vec<usize> = Vec::new();
    while let Some(node) = nodes.get(rest.at) {
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        if is_spec.contains(&rest.at) {
            let mut name = String::new();
            let value = rest.value(0, &mut name)?;
            build.leaf(node.key.clone(), Decoded::spec(&name, value))?;
        } else if node.kind == NodeKind::Leaf {
            build.leaf(node.key.clone(), rest.leaf()?)?;
        } else {
            rest.at += 1;
            build.open(node.key.clone(), node.kind.clone())?;
            open.push(node.child_count);
        }
        while open.last() == Some(&0) {
            open.pop();
            build.close()?;
        }
    }
    build.finish()
}

/// The positions of the dicts that have a driver and a location.
fn spec_nodes(tree: &Tree<Decoded>) -> HashSet<usize> {
    let mut found = HashSet::new();
    // For each open container: its position, children to come, whether it has a driver and a
    // location.
    let mut open: Vec<(usize, usize, bool, bool)> = Vec::new();
    let mut leaves = tree.leaves().iter();
    for (at, node) in tree.nodes().iter().enumerate() {
        let leaf = if node.kind == NodeKind::Leaf { leaves.next() } else { None };
        if let Some((_, left, has_driver, has_place)) = open.last_mut() {
            *left -= 1;
            let key = node.key.text();
            *has_driver |= key == DRIVER && leaf.is_some_and(|leaf| leaf.info.kind == LeafKind::Str);
            *has_place |= key == KVSTORE || key == BASE;
        }
        if node.child_count > 0 {
            open.push((at, node.child_count, false, node.kind != NodeKind::Dict));
        }
        while let Some(&(at, 0, has_driver, has_place)) = open.last() {
            if has_driver && has_place {
                found.insert(at);
            }
            open.pop();
        }
    }
    found
}

/// The nodes and leaves of a tree that are still to be moved.
struct Rest<'a> {
    nodes: &'a [Node],
    at: usize,
    leaves: std::vec::IntoIter<Decoded>,
}

impl Rest<'_> {
    fn leaf(&mut self) -> Result<Decoded> {
        self.at += 1;
        self.leaves.next().ok_or_else(|| Error::corrupt("a tree has fewer leaves than leaf nodes"))
    }

    /// The next node as JSON. If the node is a driver, `name` becomes the name of its container.
    fn value(&mut self, depth: usize, name: &mut String) -> Result<Value> {
        let Some(node) = self.nodes.get(self.at) else { return Ok(Value::Null) };
        if depth > NESTED_MAX {
            return Err(unknown("it is nested too deeply", &format!("{NESTED_MAX} levels"), "more"));
        }
        if node.kind == NodeKind::Leaf {
            let leaf = self.leaf()?;
            if let (1, Some(above)) = (depth, leaf.info.name.strip_suffix(DRIVER)) {
                *name = above.trim_end_matches('.').to_owned();
            }
            return Ok(plain(&leaf));
        }
        self.at += 1;
        let (count, mut items, mut members) = (node.child_count, Vec::new(), Map::new());
        for _ in 0..count {
            let key = self.nodes.get(self.at).map(|child| child.key.text().into_owned()).unwrap_or_default();
            let value = self.value(depth + 1, name)?;
            if node.kind == NodeKind::List {
                items.push(value);
            } else {
                members.insert(key, value);
            }
        }
        Ok(match node.kind {
            NodeKind::None => Value::Null,
            NodeKind::List => items.into(),
            _ => members.into(),
        })
    }
}

/// A leaf as JSON, if it is text or a number. Other leaves have no meaning in a spec.
fn plain(leaf: &Decoded) -> Value {
    match &leaf.data {
        Data::Text(text) => text.to_string().into(),
        Data::Pieces(pieces) => {
            let bytes: Option<[u8; 8]> = pieces.first().and_then(|piece| piece.as_ref().try_into().ok());
            match (leaf.info.dtype, bytes) {
                (Dtype::Int64, Some(bytes)) => i64::from_le_bytes(bytes).into(),
                (Dtype::UInt64, Some(bytes)) => u64::from_le_bytes(bytes).into(),
                (Dtype::Float64, Some(bytes)) => {
                    Number::from_f64(f64::from_le_bytes(bytes)).map_or(Value::Null, Value::Number)
                }
                (Dtype::Bool, _) => pieces.iter().any(|piece| piece.iter().any(|&byte| byte != 0)).into(),
                _ => Value::Null,
            }
        }
        _ => Value::Null,
    }
}
