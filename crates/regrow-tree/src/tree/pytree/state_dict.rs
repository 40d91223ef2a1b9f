//! State dicts, as `flax.serialization` makes them from a value.

use super::{NodeRef, Pytree, TreeIndex};
use crate::error::Result;
use crate::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};

/// Converts a value to nested dicts with text keys, which every tool can read. Implemented for
/// every [`Pytree`].
///
/// ```
/// use regrow_tree::tree::StateDict;
/// let state = (vec![1.0_f32, 2.0], vec![Some(3_i64), None]).to_state_dict()?;
/// let paths: Vec<String> = state.iter().map(|(path, _)| path.to_string()).collect();
/// assert_eq!(paths, ["0", "1/0"]);
/// assert!(state.nodes().iter().all(|node| !matches!(node.kind, regrow_tree::tree::NodeKind::Tuple)));
/// let back = <(Vec<f32>, Vec<Option<i64>>)>::from_state_dict(state)?;
/// assert_eq!(back, (vec![1.0, 2.0], vec![Some(3), None]));
/// # Ok::<(), regrow_base::Error>(())
/// ```
///
/// Source: `flax.serialization.to_state_dict`. Lists and tuples become dicts of `"0"`, `"1"`, ...
/// Named tuples and dataclasses become dicts of their fields. `None` and leaves do not change.
pub trait StateDict: Sized {
    /// The value with a plain dict in the place of every container.
    ///
    /// # Errors
    /// The same as for [`Pytree::flatten`].
    fn to_state_dict(&self) -> Result<Tree<Leaf>>;

    /// Restores the value from a state dict, or from its own tree.
    ///
    /// # Errors
    /// `Mismatch` with the first 1000 differences, each on its own line.
    fn from_state_dict(state: Tree<Leaf>) -> Result<Self>;
}

impl<P: Pytree> StateDict for P {
    fn to_state_dict(&self) -> Result<Tree<Leaf>> {
        let tree = self.to_tree()?;
        let mut build = TreeBuilder::new();
        // The ends of all open containers, the innermost last.
        let mut open: Vec<usize> = Vec::new();
        let index = TreeIndex::of(&tree);
        for node in NodeRef::subtree(index.root()) {
            while open.last() == Some(&node.position()) {
                open.pop();
                build.close()?;
            }
            let key = if open.is_empty() { Key::Index(0) } else { Key::dict(node.key().text()) };
            match (node.leaf(), node.kind()) {
                (Some(leaf), _) => build.leaf(key, leaf.clone())?,
                (None, NodeKind::None) => {
                    build.open(key, NodeKind::None)?;
                    build.close()?;
                }
                (None, _) => {
                    build.open(key, NodeKind::Dict)?;
                    open.push(node.end());
                }
            }
        }
        for _ in open {
            build.close()?;
        }
        build.finish()
    }

    fn from_state_dict(state: Tree<Leaf>) -> Result<Self> {
        Self::from_tree(state)
    }
}
