//! Rust values as pytrees: the base of `#[derive(Pytree)]`.
//!
//! A [`Pytree`] type turns a value into nodes and leaves, and makes a value from them. There is no
//! registry, and no file names code: the requested type alone decides the result.
//!
//! | Rust | pytree |
//! |---|---|
//! | `bool`, integers, floats, `half::{f16, bf16}` | a number leaf: `bool`, `i64`, `u64`, `f64` as Python's own, the others as NumPy scalars |
//! | `Vec<T>`, `[T; N]`, `[[T; M]; N]` of numbers, and any nesting of fixed arrays in a `Vec` | one array leaf |
//! | `Vec<P>`, `[P; N]` of anything else | a list |
//! | `String`, `Box<str>`, `Arc<str>`, `Cow<'static, str>` | text |
//! | [`Bytes`](::bytes::Bytes) | bytes |
//! | [`Array`](crate::array::Array), [`Leaf`], [`Tree<Leaf>`](Tree) | itself: any dtype, any leaf, any subtree |
//! | `ndarray::Array`, `ArcArray` (feature `ndarray`), `num_complex::Complex` (feature `num-complex`) | array leaf, element |
//! | `Option<P>` | `None`, or `P` |
//! | `Box<P>`, `Rc<P>`, `Arc<P>` | `P` |
//! | tuples | a tuple |
//! | `HashMap`, `BTreeMap` with text or integer keys | a dict, in the order of its keys |
//! | a derived struct, tuple struct, enum | a dataclass, a tuple, a dict of one variant: see the derive of `regrow` |
//!
//! **Loading** compares the text of keys. So a dict of Orbax or Flax loads as a struct, and a dict
//! of `"0"`, `"1"` loads as a tuple or a list. One error lists missing leaves, extra leaves, and
//! leaves with another shape or dtype: the first 1000, with key paths. An array must have the dtype
//! of its field, unless a [`Fit`] asks for casts. A whole number, or a number of Python (which has
//! no width), is accepted if the field can hold its exact value.
//!
//! **Cost.** A save copies the data of each leaf once into the tree that it writes. So during a
//! save a model needs its memory twice. `Arc<[T]>`, `ArcArray`, `Bytes` and `Array` are shared, and
//! need no copy. A load copies raw leaves once, from the map into the fields; `Bytes` and `Array`
//! are views of the map. Compressed leaves are held decoded until the value is complete.
//!
//! | module | holds |
//! |---|---|
//! | `node_ref` | [`NodeRef`]: a node of a tree, its children by text or position |
//! | `restore` | [`Restore`]: the position of a load, and all differences so far; [`Fit`] |
//! | `element`, `number` | [`Element`], [`Packing`]: single numbers, and numbers in arrays |
//! | `sequence`, `tuple`, `map`, `pointer`, `text`, `whole`, `ndarray` | the types of the table |
//! | `state_dict` | [`StateDict`], as in Flax |
//! | `derive_support` | functions for derived code |

use std::borrow::Cow;

#[doc(hidden)]
pub mod derive_support;
mod element;
mod map;
#[cfg(feature = "ndarray")]
mod ndarray;
mod node_ref;
mod number;
mod pointer;
mod restore;
mod sequence;
mod state_dict;
mod text;
mod tuple;
mod whole;

pub use element::{Element, Packing};
pub use map::MapKey;
pub use node_ref::{Children, NodeRef};
pub use restore::{Fit, Restore};
pub use state_dict::StateDict;

use super::{Key, Leaf, Tree, TreeBuilder};
use crate::error::Result;
use node_ref::TreeIndex;

/// A value that can be converted to a pytree and restored from one.
///
/// Usually derived. A manual implementation needs two functions; a newtype calls the functions of
/// its inner type:
///
/// ```
/// use regrow_tree::tree::{Key, Leaf, NodeRef, Pytree, Restore, TreeBuilder};
///
/// #[derive(Debug, PartialEq)]
/// struct Celsius(f64);
///
/// impl Pytree for Celsius {
///     fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> regrow_base::Result<()> {
///         (self.0 + 273.15).flatten(key, build)                   // stored as kelvin
///     }
///
///     fn unflatten(node: NodeRef<'_>, restore: &mut Restore) -> Option<Self> {
///         let kelvin = f64::unflatten(node, restore)?;
///         if kelvin < 0.0 {
///             restore.differs("value", "a temperature is above absolute zero", kelvin);
///             return None;
///         }
///         Some(Self(kelvin - 273.15))
///     }
/// }
///
/// let tree = Celsius(20.0).to_tree()?.into_owned();
/// assert_eq!(Celsius::from_tree(tree)?, Celsius(20.0));
/// # Ok::<(), regrow_base::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a pytree: it cannot be saved as nodes and leaves",
    label = "not `Pytree`",
    note = "put `#[derive(regrow::Pytree)]` on it if it is yours",
    note = "if it is a field of another crate's type, name a module that converts it: `#[pytree(with = \"module\")]`",
    note = "if a load can create it, leave it out: `#[pytree(skip)]`"
)]
pub trait Pytree: Sized {
    /// Adds the value to the open container, as one node with its children, under `key`.
    ///
    /// # Errors
    /// `Limit` if the value is nested too deep; `InvalidArgument` if a map's key cannot be a key of
    /// a tree; errors of the value's parts.
    fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()>;

    /// Restores a value from a node. `None` after a difference was reported to `restore`.
    fn unflatten(node: NodeRef<'_>, restore: &mut Restore) -> Option<Self>;

    /// Reports to `restore` how the node differs from a node that [`load_into`](Self::load_into)
    /// can load into this value.
    ///
    /// Arrays must keep their shape, lists their length, and maps their keys. Numbers, texts,
    /// options and enum variants may change.
    fn check(&self, node: NodeRef<'_>, restore: &mut Restore) {
        let _ = Self::unflatten(node, restore);
    }

    /// Loads the node's data into this value, in place if possible. The caller has called
    /// [`check`](Self::check), which found no difference. Fields with `#[pytree(skip)]` do not
    /// change.
    fn load_into(&mut self, node: NodeRef<'_>, restore: &mut Restore) {
        if let Some(value) = Self::unflatten(node, restore) {
            *self = value;
        }
    }

    /// The value for a missing node; `None` if a missing node is an error. Only options and values
    /// without any data have one.
    fn absent() -> Option<Self> {
        None
    }

    /// Whether the value would be [`absent`](Self::absent).
    fn is_absent(&self) -> bool {
        false
    }

    /// How several values of this type become one array; `None` if they become a list of nodes.
    /// Numbers and fixed arrays of numbers have a packing, so `Vec<f32>` is an array and
    /// `Vec<Layer>` is a list.
    fn packing() -> Option<Packing<Self>> {
        None
    }

    /// The value as a separate tree. Borrowed if it already is one.
    ///
    /// # Errors
    /// The same as for [`flatten`](Self::flatten).
    fn to_tree(&self) -> Result<Cow<'_, Tree<Leaf>>> {
        let mut build = TreeBuilder::new();
        self.flatten(Key::Index(0), &mut build)?;
        Ok(Cow::Owned(build.finish()?))
    }

    /// Restores a value from a whole tree. Missing and extra leaves are errors.
    ///
    /// # Errors
    /// `Mismatch` with the first 1000 differences, each on its own line.
    fn from_tree(tree: Tree<Leaf>) -> Result<Self> {
        Self::from_tree_with(tree, Fit::default())
    }

    /// Restores a value from a whole tree, with the differences that `fit` allows.
    ///
    /// # Errors
    /// The same as for [`from_tree`](Self::from_tree).
    fn from_tree_with(tree: Tree<Leaf>, fit: Fit) -> Result<Self> {
        let index = TreeIndex::of(&tree);
        let mut restore = Restore::of(&index, Fit { keep_missing: false, ..fit });
        let value = restore.root(&index, |root, restore| Self::unflatten(root, restore));
        restore.finish(&tree)?;
        value.ok_or_else(restore::no_value)
    }

    /// Loads a whole tree into this value. The tree must pass [`check`](Self::check).
    ///
    /// # Errors
    /// `Mismatch` with the first 1000 differences, each on its own line. The value is then
    /// unchanged.
    fn load_tree(&mut self, tree: &Tree<Leaf>, fit: Fit) -> Result<()> {
        let index = TreeIndex::of(tree);
        let mut checked = Restore::of(&index, fit);
        checked.root(&index, |root, restore| self.check(root, restore));
        checked.finish(tree)?;
        let mut restore = Restore::of(&index, fit);
        restore.root(&index, |root, restore| self.load_into(root, restore));
        restore.finish(tree)
    }
}
