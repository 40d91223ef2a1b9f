//! A partition spec: for each axis of an array, the mesh axes that divide it.

use std::sync::Arc;

/// The mesh axes that divide one axis of an array.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AxisSpec {
    /// No mesh axis: every device has the whole axis.
    Whole,
    /// One mesh axis.
    Axis(Arc<str>),
    /// Several mesh axes, the slowest first. An empty list is the same as [`Whole`](Self::Whole).
    Axes(Vec<Arc<str>>),
    /// The compiler may choose the mesh axes. The sharding of an existing array has no such entry.
    Unconstrained,
}

impl AxisSpec {
    /// The names of the mesh axes, the slowest first.
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

/// For each axis of an array, the mesh axes that divide it. Axes after the end of the list are
/// whole.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct PartitionSpec(pub(super) Vec<AxisSpec>);

impl PartitionSpec {
    /// Makes a spec from one entry for each axis: `[Some("x"), None]`, or [`AxisSpec`]s.
    #[inline]
    pub fn new<A: Into<AxisSpec>>(axes: impl IntoIterator<Item = A>) -> Self {
        Self(axes.into_iter().map(Into::into).collect())
    }

    /// The entry of each axis.
    #[inline]
    pub fn axes(&self) -> &[AxisSpec] {
        &self.0
    }
}
