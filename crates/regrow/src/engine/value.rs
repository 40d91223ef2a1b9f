//! Loads Rust values: loads the tree, then makes a value of the requested type from it.

use super::{Checkpoint, LoadOptions};
use crate::error::{Result, ResultExt};
use crate::formats::located;
use crate::location::ToLocation;
use crate::tree::{Fit, Pytree};

/// Loads the whole checkpoint at `path`, every block checked, as the requested type: a model with
/// `#[derive(Pytree)]`, or [`Tree<Leaf>`](crate::tree::Tree) for any checkpoint.
///
/// ```
/// use regrow::{Pytree, tree::{Leaf, Tree}};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("step_100");
/// #[derive(Pytree)]
/// struct Model {
///     kernel: Vec<[f32; 2]>,
///     step: u64,
/// }
/// regrow::save(&path, &Model { kernel: vec![[1.0, 2.0]; 3], step: 100 })?;
///
/// let model: Model = regrow::load(&path)?;
/// assert_eq!(model.kernel[2][1], 2.0);
/// let tree: Tree<Leaf> = regrow::load(&path)?;
/// assert_eq!(tree.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The errors of [`open`](crate::open); `Corrupt` with file, leaf and offset; `Mismatch` if the
/// type does not fit, with all differences at once.
pub fn load<P: Pytree>(path: impl ToLocation) -> Result<P> {
    load_with(path, &LoadOptions::default())
}

/// Loads the leaves that `options` select, as the requested type.
///
/// # Errors
/// The errors of [`load`].
pub fn load_with<P: Pytree>(path: impl ToLocation, options: &LoadOptions) -> Result<P> {
    let at = located(path)?;
    P::from_tree_with(super::load_with(&at, options)?, fit(options)).in_file(&at)
}

/// Loads the checkpoint at `path` into an existing value: array data is written in place, and
/// fields outside the pytree (`#[pytree(skip)]`) stay.
///
/// Arrays must keep their shape, lists their length and maps their keys; numbers, text, options and
/// enum variants take the stored values.
///
/// # Errors
/// The errors of [`load`]. After an error `value` is unchanged.
pub fn load_into<P: Pytree>(path: impl ToLocation, value: &mut P) -> Result<()> {
    load_into_with(path, value, &LoadOptions::default())
}

/// Loads the leaves that `options` select into an existing value. With [`LoadOptions::only`], all
/// other leaves stay unchanged.
///
/// # Errors
/// The errors of [`load_into`].
pub fn load_into_with<P: Pytree>(path: impl ToLocation, value: &mut P, options: &LoadOptions) -> Result<()> {
    let at = located(path)?;
    value.load_tree(&super::load_with(&at, options)?, fit(options)).in_file(&at)
}

impl Checkpoint {
    /// Loads the leaves that `options` select, as the requested type.
    ///
    /// # Errors
    /// The errors of [`load`](crate::load()).
    pub fn load_value<P: Pytree>(&self, options: &LoadOptions) -> Result<P> {
        P::from_tree_with(self.load(options)?, fit(options)).in_file(self.path())
    }

    /// Loads the leaves that `options` select into an existing value.
    ///
    /// # Errors
    /// The errors of [`load_into`].
    pub fn load_into<P: Pytree>(&self, value: &mut P, options: &LoadOptions) -> Result<()> {
        value.load_tree(&self.load(options)?, fit(options)).in_file(self.path())
    }
}

fn fit(options: &LoadOptions) -> Fit {
    let keep_missing = !options.only.is_empty();
    Fit { partial: options.partial, cast: options.cast_to_fields, casting: options.casting, keep_missing }
}
