//! The pytree: the nested structure being saved, its keys, its leaves.
//!
//! A [`Tree`] is flat inside: a vector of nodes in preorder, and a vector of leaves in the same
//! order. So walking, mapping and dropping a tree never recurses (a hundred thousand levels are as
//! safe as one), and a million leaves are two vectors.
//!
//! | type | is |
//! |---|---|
//! | [`Key`], [`KeyPath`] | one step from a node to its child; the steps from the root to a leaf |
//! | [`NodeKind`], [`Node`] | the kind of a container, so that a load restores the same kind |
//! | [`Tree`], [`TreeBuilder`] | the structure with its leaves |
//! | [`LeafNames`] | the names of all leaves, in one text |
//! | [`LeafKind`], [`LeafInfo`], [`Leaf`] | the description of a leaf, and a leaf with its data |
//! | [`LeafHandler`], [`LeafRegistry`] | leaves of a program's own types |
//! | [`Pytree`], [`StateDict`] | Rust values as trees, for `#[derive(Pytree)]` |
//! | [`PathPattern`] | globs over key paths: `params/**` |
//!
//! Source: `jax.tree_util` key types (`DictKey`, `SequenceKey`, `GetAttrKey`, `FlattenedIndexKey`).

pub mod handler;
mod leaf;
pub mod names;
mod node;
mod pattern;
pub mod pytree;
mod siblings;

pub use handler::{AnyLeaf, LeafHandler, LeafRegistry};
pub use leaf::BIG_INTEGER;
pub use leaf::{Leaf, LeafData, LeafInfo, LeafKind, Scalar};
pub use names::LeafNames;
pub use node::end_of;
pub use node::{Node, NodeKind, Tree, TreeBuilder};
pub use pattern::PathPattern;
pub use pytree::{Fit, NodeRef, Pytree, Restore, StateDict};
pub use regrow_base::key::{Key, KeyPath};
