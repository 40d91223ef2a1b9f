//! `Option`, `Box`, `Rc`, `Arc`: they add no node around the value in them. `None` and `()` are
//! nodes without leaves.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use super::{Fit, NodeRef, Pytree, Restore};
use crate::error::Result;
use crate::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};

/// `None` is a node without leaves, as in JAX. A layout that does not store such nodes has no node
/// here, and a load then returns `None` again.
impl<P: Pytree> Pytree for Option<P> {
    fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()> {
        match self {
            Some(value) => value.flatten(key, build),
            None => {
                build.open(key, NodeKind::None)?;
                build.close()
            }
        }
    }

    fn unflatten(node: NodeRef<'_>, restore: &mut Restore) -> Option<Self> {
        match node.kind() {
            NodeKind::None => Some(None),
            _ => P::unflatten(node, restore).map(Some),
        }
    }

    fn check(&self, node: NodeRef<'_>, restore: &mut Restore) {
        match (self, node.kind()) {
            (_, NodeKind::None) => {}
            (Some(value), _) => value.check(node, restore),
            (None, _) => {
                let _ = P::unflatten(node, restore);
            }
        }
    }

    fn load_into(&mut self, node: NodeRef<'_>, restore: &mut Restore) {
        match (&mut *self, node.kind()) {
            (Some(value), kind) if *kind != NodeKind::None => value.load_into(node, restore),
            _ => {
                if let Some(value) = Self::unflatten(node, restore) {
                    *self = value;
                }
            }
        }
    }

    fn absent() -> Option<Self> {
        Some(None)
    }

    fn is_absent(&self) -> bool {
        self.is_none()
    }
}

macro_rules! pointers {
    ($($pointer:ident, $get_mut:expr;)*) => {$(
        impl<P: Pytree> Pytree for $pointer<P> {
            fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()> {
                (**self).flatten(key, build)
            }

            fn unflatten(node: NodeRef<'_>, restore: &mut Restore) -> Option<Self> {
                P::unflatten(node, restore).map(Self::new)
            }

            fn check(&self, node: NodeRef<'_>, restore: &mut Restore) {
                (**self).check(node, restore);
            }

            fn load_into(&mut self, node: NodeRef<'_>, restore: &mut Restore) {
                let get_mut: fn(&mut Self) -> Option<&mut P> = $get_mut;
                match get_mut(self) {
                    Some(value) => value.load_into(node, restore),
                    // Other owners share the value and keep the old one, so make a new value.
                    None => {
                        if let Some(value) = Self::unflatten(node, restore) {
                            *self = value;
                        }
                    }
                }
            }

            fn absent() -> Option<Self> {
                P::absent().map(Self::new)
            }

            fn is_absent(&self) -> bool {
                (**self).is_absent()
            }

            fn to_tree(&self) -> Result<Cow<'_, Tree<Leaf>>> {
                (**self).to_tree()
            }

            fn from_tree_with(tree: Tree<Leaf>, fit: Fit) -> Result<Self> {
                P::from_tree_with(tree, fit).map(Self::new)
            }
        }
    )*};
}

pointers! {
    Box, |value| Some(&mut **value);
    Rc, Rc::get_mut;
    Arc, Arc::get_mut;
}

/// The empty tuple.
impl Pytree for () {
    fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()> {
        build.open(key, NodeKind::Tuple)?;
        build.close()
    }

    fn unflatten(node: NodeRef<'_>, restore: &mut Restore) -> Option<Self> {
        if node.is_empty() {
            return Some(());
        }
        restore.wrong_kind(node, "nothing");
        None
    }

    fn absent() -> Option<Self> {
        Some(())
    }

    fn is_absent(&self) -> bool {
        true
    }
}
