//! Flattens a user's tree. This module handles exact dicts, lists, tuples, `None` and known leaves.
//! `regrow/_tree/` handles every other class, one level at a time. So each class is handled in only
//! one place.
//!
//! There is no recursion: one list holds the pending children, and another the open containers. So
//! a deep tree needs memory, but not a deep call stack.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyDict, PyInt, PyList, PyNone, PyString, PyTuple, PyType};
use regrow::tree::{Key, NodeKind, TreeBuilder};
use regrow_base::bytes::limits::TREE_DEPTH_MAX;

use crate::addresses::{AddressMap, AddressSet};
use crate::columns::{KEY_DICT, KEY_DICT_INT, KeysIn, Structure, to_node_kind};
use crate::error::OrRaise;
use crate::unflatten;

/// A flattened tree: its structure, its leaves in order, and how to rebuild each container.
#[pyclass(frozen, module = "regrow._native")]
pub struct Flat {
    structure: Py<Structure>,
    leaves: Py<PyList>,
    /// For each node, its key object; `None` for the root and for children of lists and tuples.
    pub(crate) dict_keys: Vec<Option<Py<PyAny>>>,
    /// For containers that this module does not handle: by node number, the function that rebuilds
    /// the container from its children.
    pub(crate) rebuilds: HashMap<usize, Py<PyAny>>,
}

#[pymethods]
impl Flat {
    /// The nodes of the tree.
    #[getter]
    pub fn structure(&self, py: Python<'_>) -> Py<Structure> {
        self.structure.clone_ref(py)
    }

    /// The leaves in order.
    #[getter]
    fn leaves(&self, py: Python<'_>) -> Py<PyList> {
        self.leaves.clone_ref(py)
    }

    /// Rebuilds the containers with other leaves.
    fn with_leaves<'py>(&self, leaves: Bound<'py, PyList>) -> PyResult<Bound<'py, PyAny>> {
        unflatten::with_leaves(self, &leaves)
    }
}

/// The parts of the walk that Python does: the table of classes, the opener for classes outside the
/// table, the opener for objects of a handler, and the functions that make errors for cycles and
/// depth.
type Hooks<'py> =
    (Bound<'py, PyDict>, Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// A container that Python has opened: `_tree.Opened`.
type Opened<'py> =
    (u8, PyBackedBytes, Bound<'py, PyAny>, Bound<'py, PyAny>, Option<PyBackedStr>, Bound<'py, PyAny>);

/// Flattens `tree`. With `handlers`, each node is first passed to their `own_handler_of`.
#[pyfunction]
#[pyo3(signature = (tree, hooks, handlers))]
pub fn flatten<'py>(
    tree: Bound<'py, PyAny>,
    hooks: Hooks<'py>,
    handlers: Option<Bound<'py, PyAny>>,
) -> PyResult<Flat> {
    let mut walk = Walk::new(tree, hooks, handlers);
    while let Some(child) = walk.pending.pop() {
        walk.visit(child)?;
        walk.close()?;
    }
    walk.finish()
}

/// A node that the walk has not visited yet.
struct Child<'py> {
    key: ChildKey<'py>,
    value: Bound<'py, PyAny>,
}

enum ChildKey<'py> {
    Index(usize),
    Object(u8, Bound<'py, PyAny>),
}

/// A container whose children the walk has not finished.
struct Open<'py> {
    key: ChildKey<'py>,
    value: Bound<'py, PyAny>,
    /// The number of pending nodes after all children of this node were visited.
    pending_after: usize,
}

/// How the walk handles objects of a class.
#[derive(Clone, Copy)]
enum Way {
    Leaf,
    None,
    Dict,
    List,
    Tuple,
    /// Ask Python for this class.
    Other,
}

struct Walk<'py> {
    py: Python<'py>,
    hooks: Hooks<'py>,
    handlers: Option<Bound<'py, PyAny>>,
    pending: Vec<Child<'py>>,
    open: Vec<Open<'py>>,
    open_ids: AddressSet,
    /// The keys from the root, for Python's openers. Keys of `open` may still be missing at the
    /// end: `trail_to` appends them.
    trail: Bound<'py, PyList>,
    ways: AddressMap<Way>,
    keys: KeysIn,
    build: TreeBuilder<()>,
    leaves: Vec<Bound<'py, PyAny>>,
    dict_keys: Vec<Option<Py<PyAny>>>,
    rebuilds: HashMap<usize, Py<PyAny>>,
}

impl<'py> Walk<'py> {
    fn new(tree: Bound<'py, PyAny>, hooks: Hooks<'py>, handlers: Option<Bound<'py, PyAny>>) -> Self {
        let py = tree.py();
        let ways = AddressMap::from_iter([
            (address(&py.get_type::<PyDict>()), Way::Dict),
            (address(&py.get_type::<PyList>()), Way::List),
            (address(&py.get_type::<PyTuple>()), Way::Tuple),
            (address(&py.get_type::<PyNone>()), Way::None),
        ]);
        Self {
            py,
            hooks,
            handlers,
            pending: vec![Child { key: ChildKey::Index(0), value: tree }],
            open: Vec::new(),
            open_ids: AddressSet::default(),
            trail: PyList::empty(py),
            ways,
            keys: KeysIn::new(),
            build: TreeBuilder::new(),
            leaves: Vec::new(),
            dict_keys: Vec::new(),
            rebuilds: HashMap::new(),
        }
    }

    fn visit(&mut self, child: Child<'py>) -> PyResult<()> {
        let handler = match &self.handlers {
            Some(handlers) => Some(handlers.call_method1("own_handler_of", (&child.value,))?),
            None => None,
        };
        if let Some(handler) = handler.filter(|handler| !handler.is_none()) {
            let opener = self.hooks.2.call1((handler,))?;
            return self.open_other(child, &opener);
        }
        match self.way_of(&child.value)? {
            Way::Leaf => self.leaf(child),
            Way::None => {
                self.enter(&child)?;
                self.push(child, NodeKind::None, |_, _| Ok(()))
            }
            Way::Dict => self.open_dict(child),
            Way::List => {
                self.enter(&child)?;
                self.push(child, NodeKind::List, |pending, list| {
                    let list = list.cast::<PyList>()?;
                    pending.extend(list.iter().enumerate().map(at_index));
                    Ok(())
                })
            }
            Way::Tuple => {
                self.enter(&child)?;
                self.push(child, NodeKind::Tuple, |pending, tuple| {
                    let tuple = tuple.cast::<PyTuple>()?;
                    pending.extend(tuple.iter().enumerate().map(at_index));
                    Ok(())
                })
            }
            Way::Other => {
                let opener = match self.hooks.0.get_item(child.value.get_type())? {
                    Some(opener) => opener,
                    None => self.hooks.1.call1((&child.value,))?,
                };
                if opener.is_none() { self.leaf(child) } else { self.open_other(child, &opener) }
            }
        }
    }

    fn way_of(&mut self, value: &Bound<'py, PyAny>) -> PyResult<Way> {
        let class = value.get_type();
        if let Some(&way) = self.ways.get(&address(&class)) {
            return Ok(way);
        }
        // Remember only classes in the table: other classes may be registered at any time.
        let way = match self.hooks.0.get_item(&class)? {
            Some(opener) if opener.is_none() => Way::Leaf,
            Some(_) => Way::Other,
            None => return Ok(Way::Other),
        };
        self.ways.insert(address(&class), way);
        Ok(way)
    }

    fn leaf(&mut self, child: Child<'py>) -> PyResult<()> {
        let key = self.key_of(child.key)?;
        self.build.leaf(key, ()).or_raise()?;
        self.leaves.push(child.value);
        Ok(())
    }

    fn open_dict(&mut self, child: Child<'py>) -> PyResult<()> {
        let dict = child.value.cast::<PyDict>()?;
        let pending_after = self.pending.len();
        for (key, value) in dict.iter() {
            let kind = if key.is_exact_instance_of::<PyString>() {
                KEY_DICT
            } else if key.is_exact_instance_of::<PyInt>() && key.extract::<i64>().is_ok() {
                KEY_DICT_INT
            } else {
                // The Python opener names the key that cannot be stored.
                let opener = self.hooks.0.as_any().get_item(dict.get_type())?;
                self.pending.truncate(pending_after);
                return self.open_other(child, &opener);
            };
            self.pending.push(Child { key: ChildKey::Object(kind, key), value });
        }
        self.enter(&child)?;
        self.opened(child, NodeKind::Dict, pending_after)
    }

    fn open_other(&mut self, child: Child<'py>, opener: &Bound<'py, PyAny>) -> PyResult<()> {
        self.enter(&child)?;
        let trail = self.trail_to(&child.key)?;
        let (kind, key_kinds, keys, children, type_name, rebuild): Opened<'py> =
            opener.call1((&child.value, trail))?.extract()?;
        let kind = to_node_kind(kind, type_name.as_deref()).or_raise()?;
        self.rebuilds.insert(self.dict_keys.len(), rebuild.unbind());
        self.push(child, kind, |pending, _| {
            for ((&kind, key), value) in key_kinds.iter().zip(keys.try_iter()?).zip(children.try_iter()?) {
                pending.push(Child { key: ChildKey::Object(kind, key?), value: value? });
            }
            Ok(())
        })
    }

    /// Returns an error if the container contains itself, or if the tree is too deep.
    fn enter(&mut self, child: &Child<'py>) -> PyResult<()> {
        if !self.open_ids.insert(child.value.as_ptr().addr()) {
            let trail = self.trail_to(&child.key)?;
            self.hooks.3.call1((trail,))?;
        }
        if self.open.len() >= TREE_DEPTH_MAX {
            self.hooks.4.call0()?;
        }
        Ok(())
    }

    fn push(
        &mut self,
        child: Child<'py>,
        kind: NodeKind,
        children: impl FnOnce(&mut Vec<Child<'py>>, &Bound<'py, PyAny>) -> PyResult<()>,
    ) -> PyResult<()> {
        let pending_after = self.pending.len();
        children(&mut self.pending, &child.value)?;
        self.opened(child, kind, pending_after)
    }

    /// Opens a container. Its children are on the stack above `pending_after`, the last child on
    /// top.
    fn opened(&mut self, child: Child<'py>, kind: NodeKind, pending_after: usize) -> PyResult<()> {
        let Child { key, value } = child;
        if let Some(new) = self.pending.get_mut(pending_after..) {
            new.reverse();
        }
        let own_key = match &key {
            ChildKey::Index(index) => ChildKey::Index(*index),
            ChildKey::Object(kind, key) => ChildKey::Object(*kind, key.clone()),
        };
        let key = self.key_of(key)?;
        self.build.open(key, kind).or_raise()?;
        self.open.push(Open { key: own_key, value, pending_after });
        Ok(())
    }

    /// Closes the containers whose children have all been visited.
    fn close(&mut self) -> PyResult<()> {
        while let Some(open) = self.open.pop_if(|open| open.pending_after == self.pending.len()) {
            self.open_ids.remove(&open.value.as_ptr().addr());
            self.build.close().or_raise()?;
        }
        if self.trail.len() > self.open.len() {
            self.trail.del_slice(self.open.len(), self.trail.len())?;
        }
        Ok(())
    }

    fn key_of(&mut self, key: ChildKey<'py>) -> PyResult<Key> {
        match key {
            ChildKey::Index(index) => {
                self.dict_keys.push(None);
                Ok(Key::Index(index))
            }
            ChildKey::Object(kind, key) => {
                let made = self.keys.get(kind, &key);
                // Keep every key alive, because `keys` remembers a key by its address.
                self.dict_keys.push(Some(key.unbind()));
                made
            }
        }
    }

    /// The keys from the root to a child, for openers in Python. A key stays in `trail` until its
    /// container is closed, so that a deep tree costs no more than a flat one.
    fn trail_to(&self, key: &ChildKey<'py>) -> PyResult<Bound<'py, PyList>> {
        let append = |key: &ChildKey<'py>| match key {
            ChildKey::Index(index) => self.trail.append(index),
            ChildKey::Object(_, key) => self.trail.append(key),
        };
        self.open.iter().skip(self.trail.len()).try_for_each(|open| append(&open.key))?;
        append(key)?;
        Ok(self.trail.clone())
    }

    fn finish(self) -> PyResult<Flat> {
        let structure = Structure::new(self.build.finish().or_raise()?);
        Ok(Flat {
            structure: Py::new(self.py, structure)?,
            leaves: PyList::new(self.py, self.leaves)?.unbind(),
            dict_keys: self.dict_keys,
            rebuilds: self.rebuilds,
        })
    }
}

fn at_index<'py>((index, value): (usize, Bound<'py, PyAny>)) -> Child<'py> {
    Child { key: ChildKey::Index(index), value }
}

/// The address of a class, which identifies the class: the leaves, or the table, keep it alive.
fn address(class: &Bound<'_, PyType>) -> usize {
    class.as_ptr().addr()
}
