//! `#[derive(Pytree)]` through the public API. A saved value loads as saved, checkpoints of Python
//! load, and an error lists everything that does not fit.

#![expect(clippy::unwrap_used, reason = "a test's failure is a panic")]

mod attributes;
mod enums;
mod errors;
mod in_place;
mod laws;
mod leaves;
mod ndarrays;
mod python;

use std::fmt::Debug;

use regrow::engine::{Layout, OrbaxOptions};
use regrow::tree::{Leaf, NodeKind, Tree};
use regrow::{Pytree, SaveOptions};

/// Saves in the default layout and in Orbax' own, and loads again.
fn round_trip<P: Pytree + PartialEq + Debug>(value: &P) {
    round_trip_in(value, &[Layout::default(), Layout::Orbax(OrbaxOptions::default())]);
}

/// The same in the layouts given: Orbax has no bytes and no arrays without elements.
fn round_trip_in<P: Pytree + PartialEq + Debug>(value: &P, layouts: &[Layout]) {
    let folder = tempfile::tempdir().unwrap();
    for layout in layouts.iter().cloned() {
        let path = folder.path().join(layout.name());
        let options = SaveOptions { layout, not_durable: true, ..SaveOptions::default() };
        regrow::save_with(&path, value, &options).unwrap();
        let back: P = regrow::load(&path).unwrap();
        assert_eq!(&back, value, "{}", path.display());
    }
}

fn tree_of<P: Pytree>(value: &P) -> Tree<Leaf> {
    value.to_tree().unwrap().into_owned()
}

/// `path:kind` of every node, with type names, the root first.
fn shape_of<P: Pytree>(value: &P) -> Vec<String> {
    let tree = tree_of(value);
    let text = |kind: &NodeKind| match kind.type_name() {
        Some(name) => format!("{} {name}", kind.name()),
        None => kind.name().to_owned(),
    };
    tree.walk().map(|(path, node)| format!("{path}:{}", text(&node.kind))).collect()
}

/// The message of the error of a load.
fn refused<P: Pytree + Debug>(tree: Tree<Leaf>) -> String {
    P::from_tree(tree).unwrap_err().to_string()
}
