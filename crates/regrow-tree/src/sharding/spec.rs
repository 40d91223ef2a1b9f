//! A partition spec: for each axis of an array the axes of the mesh that cut it.

use std::sync::Arc;

/// What cuts one axis of an array.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AxisSpec {
    /// Nothing: every device has all of it.
    Whole,
    /// One axis of the mesh.
    Axis(Arc<str>),
    /// Several axes of the mesh, the slowest first; none is the same as [`Whole`](Self::Whole).
    Axes(Vec<Arc<str>>),
    /// The compiler may choose. No array that exists has this.
    Unconstrained,
}

impl AxisSpec {
    /// The axes of the mesh, the slowest first.
    pub fn names(&self) -> &[Arc<str>] {
        match self {
            Self::Whole | Self::Unconstrained => &[],
            Self::Axis(name) => std::slice::from_ref(name),
            Self::Axes(names) => names,
        }
    }
}

impl<N: Into<Arc<str>>> From<Option<N>> for AxisSpec {
    fn from(axis: Option<N>) -> Self {
        axis.map_or(Self::Whole, |name| Self::Axis(name.into()))
    }
}

/// What cuts each axis of an array; axes beyond its end are whole.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct PartitionSpec(pub(super) Vec<AxisSpec>);

impl PartitionSpec {
    /// From what cuts each axis: `[Some("x"), None]`, or [`AxisSpec`]s.
    #[inline]
    pub fn new<A: Into<AxisSpec>>(axes: impl IntoIterator<Item = A>) -> Self {
        Self(axes.into_iter().map(Into::into).collect())
    }

    /// What cuts each axis.
    #[inline]
    pub fn axes(&self) -> &[AxisSpec] {
        &self.0
    }
}
