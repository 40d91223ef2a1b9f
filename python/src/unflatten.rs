//! Builds a tree, from a checkpoint's structure or from the containers of a template. This module
//! makes exact dicts, lists, tuples and `None`. Python makes all other classes.
//!
//! Nodes are made from the last to the first, so that children exist before their container.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use regrow::Error;
use regrow::tree::{Key, Node, NodeKind};

use crate::columns::{KeysOut, StructureIn, node_kind_number};
use crate::error::OrRaise;
use crate::flatten::Flat;

/// Children with the numbers of their nodes, in order.
type Children<'a, 'py> = std::iter::Rev<std::vec::Drain<'a, (usize, Bound<'py, PyAny>)>>;

/// The two keys of a dict that holds the state of a handled leaf: the key of the type's name, and
/// the key of the state.
type StateKeys = (String, String);

/// Builds the tree of a checkpoint. `other(kind, keys, key_kinds, type_name, children)` makes
/// containers that are not a dict, list, tuple or `None`. `handled` is `((type_key, state_key),
/// restore)`: `restore(dict, first_child)` makes the value of a dict that has exactly these two
/// keys. `first_child` is the number of a node.
#[pyfunction]
#[pyo3(signature = (structure, leaves, other, handled))]
pub fn unflatten<'py>(
    py: Python<'py>,
    structure: StructureIn<'py>,
    leaves: Bound<'py, PyList>,
    other: Bound<'py, PyAny>,
    handled: Option<(StateKeys, Bound<'py, PyAny>)>,
) -> PyResult<Bound<'py, PyAny>> {
    let nodes = structure.tree().nodes();
    let mut keys = KeysOut::new();
    fold(nodes, &leaves, |_, node, children| match &node.kind {
        NodeKind::Dict => {
            let made = PyDict::new(py);
            let mut first = None;
            for (at, child) in children {
                first.get_or_insert(at);
                if let Some(node) = nodes.get(at) {
                    made.set_item(keys.get(py, &node.key)?.1, child)?;
                }
            }
            match (&handled, first) {
                (Some((state_keys, restore)), Some(first)) if is_state(nodes, first, &made, state_keys) => {
                    restore.call1((made, first))
                }
                _ => Ok(made.into_any()),
            }
        }
        NodeKind::List => list_of(py, children),
        NodeKind::Tuple => tuple_of(py, children),
        NodeKind::None => Ok(py.None().into_bound(py)),
        kind => {
            let (mut names, mut key_kinds, mut values) = (Vec::new(), Vec::new(), Vec::new());
            for (at, child) in children {
                if let Some(node) = nodes.get(at) {
                    let (key_kind, name) = keys.get(py, &node.key)?;
                    names.push(name);
                    key_kinds.push(key_kind);
                    values.push(child);
                }
            }
            other.call1((
                node_kind_number(kind),
                PyList::new(py, names)?,
                PyBytes::new(py, &key_kinds),
                kind.type_name(),
                PyList::new(py, values)?,
            ))
        }
    })
}

/// Whether a dict, whose children begin at the node `first`, has exactly the keys of a handled
/// leaf.
fn is_state(nodes: &[Node], first: usize, made: &Bound<'_, PyDict>, keys: &StateKeys) -> bool {
    let is_key = |key: &Key| matches!(key, Key::Dict(text) if **text == *keys.0 || **text == *keys.1);
    made.len() == 2
        && nodes.get(first).is_some_and(|node| is_key(&node.key))
        && made.contains(&keys.0).unwrap_or_default()
        && made.contains(&keys.1).unwrap_or_default()
}

/// The containers of `flat` with new leaves.
pub fn with_leaves<'py>(flat: &Flat, leaves: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyAny>> {
    let py = leaves.py();
    let structure = flat.structure(py);
    fold(structure.get().tree().nodes(), leaves, |at, node, children| {
        if let Some(rebuild) = flat.rebuilds.get(&at) {
            return rebuild.bind(py).call1((list_of(py, children)?,));
        }
        match node.kind {
            NodeKind::List => list_of(py, children),
            NodeKind::Tuple => tuple_of(py, children),
            NodeKind::None => Ok(py.None().into_bound(py)),
            _ => {
                let made = PyDict::new(py);
                for (at, child) in children {
                    if let Some(Some(key)) = flat.dict_keys.get(at) {
                        made.set_item(key, child)?;
                    }
                }
                Ok(made.into_any())
            }
        }
    })
}

/// Builds a tree: calls `build` with the number, the node and the children of every container.
fn fold<'py>(
    nodes: &[Node],
    leaves: &Bound<'py, PyList>,
    mut build: impl FnMut(usize, &Node, Children<'_, 'py>) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let too_few = || Error::invalid("a tree needs exactly one value for each leaf");
    // Built nodes that wait for their parent. The last node is the first of its siblings.
    let mut made: Vec<(usize, Bound<'py, PyAny>)> = Vec::new();
    let mut leaves = leaves.iter().rev();
    for (at, node) in nodes.iter().enumerate().rev() {
        let value = if node.kind == NodeKind::Leaf {
            leaves.next().ok_or_else(too_few).or_raise()?
        } else {
            let first = made.len().saturating_sub(node.child_count);
            build(at, node, made.drain(first..).rev())?
        };
        made.push((at, value));
    }
    match made.pop() {
        Some((_, root)) if leaves.next().is_none() => Ok(root),
        _ => Err(too_few()).or_raise(),
    }
}

fn list_of<'py>(py: Python<'py>, children: Children<'_, 'py>) -> PyResult<Bound<'py, PyAny>> {
    Ok(PyList::new(py, children.map(|(_, child)| child))?.into_any())
}

fn tuple_of<'py>(py: Python<'py>, children: Children<'_, 'py>) -> PyResult<Bound<'py, PyAny>> {
    Ok(PyTuple::new(py, children.map(|(_, child)| child))?.into_any())
}
