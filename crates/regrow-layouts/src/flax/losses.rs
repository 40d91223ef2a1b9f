//! The losses of Flax' msgpack: leaves, containers and keys that a load returns differently.

use super::dtypes::to_name;
use super::gda::PLACEHOLDER;
use crate::options::FlaxOptions;
use crate::{Loss, LossKind};
use regrow_tree::tree::{Key, KeyPath, LeafInfo, LeafKind, Node, NodeKind, Tree};

pub(super) fn losses(tree: &Tree<LeafInfo>, flax: &FlaxOptions) -> Vec<Loss> {
    let mut losses = Vec::new();
    let mut leaves = tree.leaves().iter();
    for (path, node) in tree.walk() {
        let lost = match node.kind {
            NodeKind::Leaf => leaves.next().and_then(of_leaf),
            _ => of_container(node),
        };
        if let Some((kind, what)) = lost {
            losses.push(Loss { kind, path: path.clone(), what });
        }
        if let Some((kind, what)) = of_key(&path, flax) {
            losses.push(Loss { kind, path, what });
        }
    }
    losses
}

fn of_leaf(info: &LeafInfo) -> Option<(LossKind, String)> {
    let note = |what: &str| Some((LossKind::Note, what.to_owned()));
    match &info.kind {
        LeafKind::JaxArray if info.sharding.is_some() => {
            note("a JAX array comes back as a NumPy array, without its sharding")
        }
        LeafKind::JaxArray => note("a JAX array comes back as a NumPy array"),
        LeafKind::NumpyOther(descr) | LeafKind::NumpyOtherScalar(descr)
            if matches!(to_name(descr), Some((_, true))) =>
        {
            note(&format!("{descr} comes back in little-endian byte order, with the same values"))
        }
        LeafKind::Scalar if !is_wide(info.dtype.name()) => {
            let what = format!("a {} number comes back as Python's own", info.dtype);
            Some((LossKind::Kind, what))
        }
        _ => None,
    }
}

/// Whether this is the NumPy dtype of a Python number.
fn is_wide(dtype: &str) -> bool {
    matches!(dtype, "bool" | "int64" | "uint64" | "float64" | "complex128")
}

/// The loss of a text that Flax would take for a reference to an array.
pub(super) fn of_text(text: &str) -> Option<(LossKind, String)> {
    let lost =
        || (LossKind::Value, format!("a text that begins with {PLACEHOLDER:?} comes back as an array"));
    text.starts_with(PLACEHOLDER).then(lost)
}

fn of_container(node: &Node) -> Option<(LossKind, String)> {
    let becomes = |what: &str| Some((LossKind::Structure, format!("{what} comes back as a dict")));
    match &node.kind {
        NodeKind::List => becomes("a list"),
        NodeKind::Tuple => becomes("a tuple"),
        NodeKind::OrderedDict => becomes("an OrderedDict"),
        NodeKind::DefaultDict => becomes("a defaultdict"),
        NodeKind::NamedTuple(name) | NodeKind::Dataclass(name) | NodeKind::Custom(name) => becomes(name),
        _ => None,
    }
}

fn of_key(path: &KeyPath, flax: &FlaxOptions) -> Option<(LossKind, String)> {
    match path.keys().last()? {
        Key::DictInt(number) if !flax.integer_keys => {
            Some((LossKind::Structure, format!("the integer key {number} comes back as text")))
        }
        _ => None,
    }
}
