//! Types that already are a part of a tree: an array, a leaf, a tree.

use std::borrow::Cow;

use super::number::is_numeric;
use super::{Fit, NodeRef, Pytree, Restore, derive_support};
use crate::array::Array;
use crate::error::Result;
use crate::tree::{Key, Leaf, LeafKind, Tree, TreeBuilder};

/// An array of any dtype and shape. The bytes are shared: a save makes no copy, and a load returns
/// a view of the map.
impl Pytree for Array {
    fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()> {
        build.leaf(key, Leaf::array(self.clone()))
    }

    fn unflatten(node: NodeRef<'_>, restore: &mut Restore) -> Option<Self> {
        let is_array = |leaf: &&Leaf| is_numeric(&leaf.kind) || leaf.kind == LeafKind::Bytes;
        let array = node.leaf().filter(is_array).and_then(Leaf::as_array);
        if array.is_none() {
            restore.wrong_kind(node, "an array");
        }
        array.cloned()
    }

    fn check(&self, node: NodeRef<'_>, restore: &mut Restore) {
        let Some(stored) = Self::unflatten(node, restore) else { return };
        if stored.dtype() != self.dtype() && !restore.fit().cast {
            restore.differs("dtype", self.dtype(), stored.dtype());
        }
        if stored.shape() != self.shape() {
            restore.differs("shape", self.shape(), stored.shape());
        }
    }

    fn load_into(&mut self, node: NodeRef<'_>, restore: &mut Restore) {
        let Some(stored) = Self::unflatten(node, restore) else { return };
        if stored.dtype() == self.dtype() {
            *self = stored;
        } else if let Some(bytes) = super::sequence::bytes_of(&stored, self.dtype(), restore) {
            *self = Self::from_parts(self.dtype(), stored.shape().clone(), bytes);
        }
    }
}

/// A leaf of any kind.
impl Pytree for Leaf {
    fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()> {
        build.leaf(key, self.clone())
    }

    fn unflatten(node: NodeRef<'_>, restore: &mut Restore) -> Option<Self> {
        let leaf = node.leaf();
        if leaf.is_none() {
            restore.wrong_kind(node, "a leaf");
        }
        leaf.cloned()
    }
}

/// Any pytree, as it is stored.
impl Pytree for Tree<Leaf> {
    fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()> {
        derive_support::put_subtree(super::TreeIndex::of(self).root(), key, build)
    }

    fn unflatten(node: NodeRef<'_>, restore: &mut Restore) -> Option<Self> {
        restore.take_all(node);
        node.to_tree().map_err(|error| restore.fail(error)).ok()
    }

    fn to_tree(&self) -> Result<Cow<'_, Tree<Leaf>>> {
        Ok(Cow::Borrowed(self))
    }

    fn from_tree_with(tree: Tree<Leaf>, _: Fit) -> Result<Self> {
        Ok(tree)
    }

    fn load_tree(&mut self, tree: &Tree<Leaf>, _: Fit) -> Result<()> {
        *self = tree.clone();
        Ok(())
    }
}
