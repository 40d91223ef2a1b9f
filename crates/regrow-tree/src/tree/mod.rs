//! The pytree: the nested structure being saved, its keys, its leaves.
//!
//! A [`Tree`] is flat inside: its nodes in preorder, its leaves in the same order beside them. So
//! walking, mapping and dropping a tree never recurses (a hundred thousand levels are as safe as
//! one), and a million leaves are two vectors.
//!
//! | type | is |
//! |---|---|
//! | [`Key`], [`KeyPath`] | one step from a node to its child; the steps from the root to a leaf |
//! | [`NodeKind`], [`Node`] | what a container is, so that it comes back as what it was |
//! | [`Tree`], [`TreeBuilder`] | the structure with its leaves |
//! | [`LeafNames`] | the names of all leaves, in one text |
//! | [`LeafKind`], [`LeafInfo`], [`Leaf`] | what a leaf is, without and with its data |
//! | [`LeafHandler`], [`LeafRegistry`] | leaves of a program's own types |
//! | [`Pytree`], [`StateDict`] | Rust values as trees: what `#[derive(Pytree)]` makes |
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
