//! The structure of a tree. Its nodes stay in Rust. `regrow/_tree/` documents how a structure is
//! made and used.

use std::collections::HashMap;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString};
use regrow::tree::{Key, KeyPath, NodeKind, PathPattern, Tree};
use regrow::{Error, Result};

use crate::error::{OrRaise, released, to_py_err};

/// The names of the node kinds. Python uses their positions as numbers.
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

/// The names of the key kinds. Python uses their positions as numbers.
pub const KEY_KINDS: [&str; 4] = ["dict", "dict_int", "index", "attr"];

pub const KEY_DICT: u8 = 0;

pub const KEY_DICT_INT: u8 = 1;

/// The nodes of a tree, without its leaves.
#[pyclass(frozen, module = "regrow._native")]
pub struct Structure(Tree<()>);

impl Structure {
    pub fn new(tree: Tree<()>) -> Self {
        Self(tree)
    }

    pub fn of<L>(tree: &Tree<L>) -> PyResult<Self> {
        tree.with_leaves(vec![(); tree.len()]).or_raise().map(Self)
    }

    pub fn tree(&self) -> &Tree<()> {
        &self.0
    }
}

#[pymethods]
impl Structure {
    /// The kind of every node, in preorder: positions in `NODE_KINDS`.
    #[getter]
    fn node_kinds<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let kinds: Vec<u8> = self.0.nodes().iter().map(|node| node_kind_number(&node.kind)).collect();
        PyBytes::new(py, &kinds)
    }
}

/// A structure as an argument from Python.
pub type StructureIn<'py> = PyRef<'py, Structure>;

/// The printed key path of every leaf.
#[pyfunction]
pub fn paths(py: Python<'_>, structure: StructureIn<'_>) -> PyResult<Vec<String>> {
    let tree = structure.tree();
    released(py, || Ok(print_paths(&tree.paths())))
}

pub fn print_paths(paths: &[KeyPath]) -> Vec<String> {
    paths.iter().map(ToString::to_string).collect()
}

/// For each path, the position of the first matching pattern; -1 if no pattern matches.
#[pyfunction]
pub fn match_paths(py: Python<'_>, patterns: Vec<String>, paths: Vec<String>) -> PyResult<Vec<i64>> {
    let patterns: Result<Vec<PathPattern>> = patterns.iter().map(|text| PathPattern::new(text)).collect();
    let patterns = patterns.or_raise()?;
    released(py, || {
        let first_match = |path: &String| {
            let path = from_printed(path);
            patterns.iter().position(|pattern| pattern.matches(&path)).map_or(-1, |at| at as i64)
        };
        Ok(paths.iter().map(first_match).collect())
    })
}

/// The patterns that match none of the paths.
#[pyfunction]
pub fn idle_patterns(py: Python<'_>, patterns: Vec<String>, paths: Vec<String>) -> PyResult<Vec<String>> {
    let paths: Vec<KeyPath> = paths.iter().map(|path| from_printed(path)).collect();
    let is_idle =
        |text: &String| PathPattern::new(text).map(|pattern| !paths.iter().any(|path| pattern.matches(path)));
    let idle: Vec<bool> = released(py, || patterns.iter().map(is_idle).collect())?;
    Ok(patterns.into_iter().zip(idle).filter_map(|(text, is_idle)| is_idle.then_some(text)).collect())
}

/// A key path from its printed form. The kinds of its keys are lost, but patterns use only the
/// printed form.
fn from_printed(path: &str) -> KeyPath {
    match path {
        "." => KeyPath::root(),
        path => path.split('/').map(Key::dict).collect(),
    }
}

/// Converts Python's keys to keys of the engine. Most keys repeat (`w` in every layer, often as the
/// same object), so some texts are cached.
pub struct KeysIn {
    /// Cached texts by the address of the key object, which the caller keeps alive.
    texts: Vec<Option<(usize, Arc<str>)>>,
}

impl KeysIn {
    const KEPT: usize = 512;

    pub fn new() -> Self {
        Self { texts: vec![None; Self::KEPT] }
    }

    /// The key of a kind. The object `key` must live longer than `self`.
    pub fn get(&mut self, kind: u8, key: &Bound<'_, PyAny>) -> PyResult<Key> {
        match kind {
            KEY_DICT => Ok(Key::Dict(self.text(key)?)),
            KEY_DICT_INT => Ok(Key::DictInt(key.cast::<PyInt>()?.extract()?)),
            2 => Ok(Key::Index(key.extract()?)),
            3 => Ok(Key::Attr(self.text(key)?)),
            _ => Err(Error::invalid(format!("key kind {kind} does not exist"))).or_raise(),
        }
    }

    fn text(&mut self, key: &Bound<'_, PyAny>) -> PyResult<Arc<str>> {
        let address = key.as_ptr().addr();
        // Python objects lie at multiples of 16 bytes.
        let slot = self.texts.get_mut((address >> 4) % Self::KEPT);
        if let Some(Some((known, text))) = &slot
            && *known == address
        {
            return Ok(Arc::clone(text));
        }
        let text: Arc<str> = key.cast::<PyString>()?.to_str().map_err(|_| no_text(key))?.into();
        if let Some(slot) = slot {
            *slot = Some((address, Arc::clone(&text)));
        }
        Ok(text)
    }
}

fn no_text(key: &Bound<'_, PyAny>) -> PyErr {
    let shown = key.repr().map(|shown| shown.to_string()).unwrap_or_default();
    to_py_err(
        Error::unsupported(format!("the key {shown} is not valid Unicode"))
            .help("use keys without lone surrogates"),
    )
}

/// Converts keys of the engine to Python's keys. Names repeat in every layer of a model: equal
/// names become one Python string.
pub struct KeysOut<'a, 'py> {
    by_text: HashMap<&'a str, Bound<'py, PyAny>>,
    /// Some strings by the addresses of the engine's texts: most keys share one text.
    recent: Vec<Option<(usize, Bound<'py, PyAny>)>>,
}

impl<'a, 'py> KeysOut<'a, 'py> {
    const RECENT: usize = 2048;

    pub fn new() -> Self {
        Self { by_text: HashMap::new(), recent: vec![None; Self::RECENT] }
    }

    pub fn get(&mut self, py: Python<'py>, key: &'a Key) -> PyResult<(u8, Bound<'py, PyAny>)> {
        Ok(match key {
            Key::Dict(text) => (KEY_DICT, self.text(py, text)),
            Key::DictInt(number) => (KEY_DICT_INT, number.into_pyobject(py)?.into_any()),
            Key::Index(index) => (2, index.into_pyobject(py)?.into_any()),
            Key::Attr(text) => (3, self.text(py, text)),
        })
    }

    fn text(&mut self, py: Python<'py>, text: &'a Arc<str>) -> Bound<'py, PyAny> {
        // Two live texts never have the same address: a reference count precedes the bytes of each.
        let address = text.as_ptr().addr();
        let slot = self.recent.get_mut((address >> 4) % Self::RECENT);
        if let Some(Some((known, made))) = &slot
            && *known == address
        {
            return made.clone();
        }
        let made = self.by_text.entry(text).or_insert_with(|| PyString::new(py, text).into_any()).clone();
        if let Some(slot) = slot {
            *slot = Some((address, made.clone()));
        }
        made
    }
}

/// The node kind of a number, with the name of the type if the kind has one.
pub fn to_node_kind(number: u8, type_name: Option<&str>) -> Result<NodeKind> {
    let named = || type_name.map(Arc::from).ok_or_else(|| Error::invalid("a type name is missing"));
    Ok(match number {
        1 => NodeKind::None,
        2 => NodeKind::Dict,
        3 => NodeKind::OrderedDict,
        4 => NodeKind::DefaultDict,
        5 => NodeKind::List,
        6 => NodeKind::Tuple,
        7 => NodeKind::NamedTuple(named()?),
        8 => NodeKind::Dataclass(named()?),
        9 => NodeKind::Custom(named()?),
        _ => return Err(Error::invalid(format!("node kind {number} does not exist"))),
    })
}

pub fn node_kind_number(kind: &NodeKind) -> u8 {
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
        // The enum may grow: an unknown kind becomes a class by its name.
        _ => 9,
    }
}
