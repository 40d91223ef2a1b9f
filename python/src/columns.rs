//! The structure of a tree in columns, both ways; `regrow/_tree.py` tells what they mean.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyInt, PyList, PyString};
use regrow::tree::{Key, KeyPath, NodeKind, PathPattern, Tree, TreeBuilder};
use regrow::{Error, Result};

use crate::error::OrRaise;

/// Names of the node kinds, by their number in the columns.
pub const NODE_KINDS: [&str; 10] = [
    "leaf",
    "none",
    "dict",
    "ordered_dict",
    "default_dict",
    "list",
    "tuple",
    "named_tuple",
    "dataclass",
    "custom",
];

/// Names of the key kinds, by their number in the columns.
pub const KEY_KINDS: [&str; 4] = ["dict", "dict_int", "index", "attr"];

/// Node kinds, key kinds, keys, child counts, type names, as they come from Python.
pub type StructureIn<'py> = (PyBackedBytes, PyBackedBytes, Bound<'py, PyList>, Vec<usize>, Vec<PyBackedStr>);

/// The same on the way to Python.
pub type StructureOut<'py> =
    (Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyList>, Bound<'py, PyList>, Bound<'py, PyList>);

/// The tree of the columns; its leaves are numbered.
pub fn to_tree(structure: &StructureIn<'_>) -> PyResult<Tree<usize>> {
    let (node_kinds, key_kinds, keys, child_counts, type_names) = structure;
    let mut type_names = type_names.iter();
    let mut build = TreeBuilder::new();
    let mut open: Vec<usize> = Vec::new();
    let mut leaf_count = 0;
    for (((&kind, &key_kind), key), &children) in
        node_kinds.iter().zip(key_kinds.iter()).zip(keys.iter()).zip(child_counts)
    {
        let key = to_key(key_kind, &key)?;
        if let Some(left) = open.last_mut() {
            *left = left.saturating_sub(1);
        }
        if kind == 0 {
            build.leaf(key, leaf_count).or_raise()?;
            leaf_count += 1;
        } else {
            let kind = to_node_kind(kind, || type_names.next().map(|name| name.to_string())).or_raise()?;
            build.open(key, kind).or_raise()?;
            open.push(children);
        }
        while open.last() == Some(&0) {
            open.pop();
            build.close().or_raise()?;
        }
    }
    build.finish().or_raise()
}

/// The columns of the tree.
pub fn from_tree<'py, L>(py: Python<'py>, tree: &Tree<L>) -> PyResult<StructureOut<'py>> {
    let nodes = tree.nodes();
    let (mut node_kinds, mut key_kinds) = (Vec::with_capacity(nodes.len()), Vec::with_capacity(nodes.len()));
    let mut keys = Vec::with_capacity(nodes.len());
    let mut type_names = Vec::new();
    // Names repeat in every layer of a model: one Python string serves all of them.
    let mut texts: HashMap<&str, Bound<'py, PyAny>> = HashMap::new();
    for node in nodes {
        node_kinds.push(node_kind_number(&node.kind));
        type_names.extend(node.kind.type_name());
        let (kind, key) = match &node.key {
            Key::Dict(text) => (0, text_of(py, &mut texts, text)),
            Key::DictInt(number) => (1, number.into_pyobject(py)?.into_any()),
            Key::Index(index) => (2, index.into_pyobject(py)?.into_any()),
            Key::Attr(text) => (3, text_of(py, &mut texts, text)),
        };
        key_kinds.push(kind);
        keys.push(key);
    }
    Ok((
        PyBytes::new(py, &node_kinds),
        PyBytes::new(py, &key_kinds),
        PyList::new(py, keys)?,
        PyList::new(py, nodes.iter().map(|node| node.child_count))?,
        PyList::new(py, type_names)?,
    ))
}

/// The printed key path of every leaf.
#[pyfunction]
pub fn paths(structure: StructureIn<'_>) -> PyResult<Vec<String>> {
    Ok(print_paths(&to_tree(&structure)?.paths()))
}

/// Key paths as people read them.
pub fn print_paths(paths: &[KeyPath]) -> Vec<String> {
    paths.iter().map(ToString::to_string).collect()
}

/// For each path the position of the first pattern that matches it; -1 if none does.
#[pyfunction]
pub fn match_paths(py: Python<'_>, patterns: Vec<String>, paths: Vec<String>) -> PyResult<Vec<i64>> {
    let patterns: Result<Vec<PathPattern>> = patterns.iter().map(|text| PathPattern::new(text)).collect();
    let patterns = patterns.or_raise()?;
    Ok(py.detach(|| {
        let first_match = |path: &String| {
            // Printed paths have lost their keys' kinds; a pattern looks at the printed form only.
            let path: KeyPath = match path.as_str() {
                "." => KeyPath::root(),
                path => path.split('/').map(Key::dict).collect(),
            };
            patterns.iter().position(|pattern| pattern.matches(&path)).map_or(-1, |at| at as i64)
        };
        paths.iter().map(first_match).collect()
    }))
}

fn text_of<'py, 'a>(
    py: Python<'py>,
    texts: &mut HashMap<&'a str, Bound<'py, PyAny>>,
    text: &'a str,
) -> Bound<'py, PyAny> {
    texts.entry(text).or_insert_with(|| PyString::new(py, text).into_any()).clone()
}

fn to_key(kind: u8, key: &Bound<'_, PyAny>) -> PyResult<Key> {
    let text = || -> PyResult<String> {
        key.cast::<PyString>()?.to_str().map(str::to_owned).map_err(|_| {
            let shown = key.repr().map(|shown| shown.to_string()).unwrap_or_default();
            crate::error::to_py_err(
                Error::unsupported(format!("the key {shown} is no valid Unicode text"))
                    .help("use keys without lone surrogates"),
            )
        })
    };
    match kind {
        0 => Ok(Key::dict(text()?)),
        1 => Ok(Key::DictInt(key.cast::<PyInt>()?.extract()?)),
        2 => Ok(Key::Index(key.extract()?)),
        3 => Ok(Key::attr(text()?)),
        _ => Err(Error::invalid(format!("there is no key kind {kind}"))).or_raise(),
    }
}

fn to_node_kind(number: u8, type_name: impl FnOnce() -> Option<String>) -> Result<NodeKind> {
    let named = || type_name().ok_or_else(|| Error::invalid("a type name is missing"));
    Ok(match number {
        1 => NodeKind::None,
        2 => NodeKind::Dict,
        3 => NodeKind::OrderedDict,
        4 => NodeKind::DefaultDict,
        5 => NodeKind::List,
        6 => NodeKind::Tuple,
        7 => NodeKind::NamedTuple(named()?.into()),
        8 => NodeKind::Dataclass(named()?.into()),
        9 => NodeKind::Custom(named()?.into()),
        _ => return Err(Error::invalid(format!("there is no node kind {number}"))),
    })
}

fn node_kind_number(kind: &NodeKind) -> u8 {
    match kind {
        NodeKind::Leaf => 0,
        NodeKind::None => 1,
        NodeKind::Dict => 2,
        NodeKind::OrderedDict => 3,
        NodeKind::DefaultDict => 4,
        NodeKind::List => 5,
        NodeKind::Tuple => 6,
        NodeKind::NamedTuple(_) => 7,
        NodeKind::Dataclass(_) => 8,
        // The enum may grow: a kind that this build does not know is a class by its name.
        _ => 9,
    }
}
