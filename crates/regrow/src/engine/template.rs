//! Restoring into a template: which stored leaf goes where, and every way in which they differ.

use crate::array::{Dtype, Shape};

/// What a template wants of a leaf.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TemplateLeaf {
    /// The dtype it must have; any if `None`.
    pub dtype: Option<Dtype>,
    /// The shape it must have; any if `None`.
    pub shape: Option<Shape>,
    /// Not to be read (`...` in Python).
    pub skip: bool,
}
