//! A mesh: a grid of devices with named axes.

use std::collections::HashSet;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// Largest number of devices of a mesh for which regions are computed. The largest machines have
/// some hundred thousand.
pub const DEVICES_MAX: u64 = 1 << 24;

/// How JAX uses an axis of a mesh. It has no effect on the position of data.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AxisType {
    /// The compiler chooses the shardings.
    Auto,
    /// The shardings are part of the types.
    Explicit,
    /// The program moves data itself.
    Manual,
    /// A name that this build does not know.
    Other(Arc<str>),
}

/// A grid of devices with named axes.
///
/// Sizes and names are not checked when the mesh is made. [`Mesh::check`] tells whether they are
/// consistent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mesh {
    pub(super) axis_names: Vec<Arc<str>>,
    pub(super) shape: Vec<u64>,
    pub(super) axis_types: Option<Vec<AxisType>>,
    pub(super) device_ids: Option<Vec<u64>>,
}

impl Mesh {
    /// A mesh from the names and sizes of its axes. Its devices have the ids 0, 1, ... in C order.
    pub fn new<N: Into<Arc<str>>>(axes: impl IntoIterator<Item = (N, u64)>) -> Self {
        let (axis_names, shape) = axes.into_iter().map(|(name, size)| (name.into(), size)).unzip();
        Self { axis_names, shape, axis_types: None, device_ids: None }
    }

    /// The same mesh with these devices, in C order.
    pub fn with_device_ids(mut self, ids: impl Into<Vec<u64>>) -> Self {
        self.device_ids = Some(ids.into());
        self
    }

    /// The same mesh with a type for each axis.
    pub fn with_axis_types(mut self, types: impl Into<Vec<AxisType>>) -> Self {
        self.axis_types = Some(types.into());
        self
    }

    /// The names of the axes.
    #[inline]
    pub fn axis_names(&self) -> &[Arc<str>] {
        &self.axis_names
    }

    /// The sizes of the axes, in devices.
    #[inline]
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The types of the axes; `None` if unknown.
    #[inline]
    pub fn axis_types(&self) -> Option<&[AxisType]> {
        self.axis_types.as_deref()
    }

    /// The ids of the devices in C order; `None` if unknown. The ids are only labels: the ids of a
    /// second process may begin at 2048.
    #[inline]
    pub fn device_ids(&self) -> Option<&[u64]> {
        self.device_ids.as_deref()
    }

    /// The number of devices.
    ///
    /// # Errors
    /// `Limit` if there are more than 2^24.
    #[inline]
    pub fn device_count(&self) -> Result<u64> {
        device_count(&self.shape)
    }

    /// The index of the axis with this name; `None` if there is none.
    #[inline]
    pub fn axis(&self, name: &str) -> Option<usize> {
        self.axis_names.iter().position(|known| &**known == name)
    }

    /// Checks that names, sizes and devices are consistent.
    ///
    /// # Errors
    /// `InvalidArgument` if the numbers of names and sizes differ, a name or device is repeated, a
    /// size is 0, or the number of devices is not the product of the sizes; `Limit` if there are
    /// more than 2^24.
    pub fn check(&self) -> Result<()> {
        let (names, sizes) = (&self.axis_names, &self.shape);
        if names.len() != sizes.len() {
            return Err(Error::invalid("a mesh needs one name for each of its axes").expected(
                format!("{} names for the sizes {sizes:?}", sizes.len()),
                format!("{}: {}", names.len(), names.join(", ")),
            ));
        }
        let mut seen = HashSet::new();
        if let Some(name) = names.iter().find(|name| !seen.insert(*name)) {
            return Err(Error::invalid(format!("the mesh has two axes with the name {name:?}")));
        }
        if let Some((name, _)) = names.iter().zip(sizes).find(|(_, size)| **size == 0) {
            return Err(Error::invalid(format!("axis {name:?} of the mesh has size 0")));
        }
        let count = self.device_count()?;
        let Some(ids) = &self.device_ids else { return Ok(()) };
        if ids.len() as u64 != count {
            return Err(Error::invalid("the number of devices does not fit the sizes of the mesh")
                .expected(format!("{count} devices for {sizes:?}"), format!("{} ids", ids.len())));
        }
        let mut seen = HashSet::with_capacity(ids.len());
        match ids.iter().find(|id| !seen.insert(*id)) {
            Some(id) => Err(Error::invalid(format!("device {id} occurs twice in the mesh"))),
            None => Ok(()),
        }
    }
}

pub(super) fn device_count(shape: &[u64]) -> Result<u64> {
    let count = shape.iter().try_fold(1_u64, |count, &size| count.checked_mul(size));
    count.filter(|&count| count <= DEVICES_MAX).ok_or_else(|| {
        Error::new(ErrorKind::Limit, format!("a mesh of {shape:?} has more than {DEVICES_MAX} devices"))
    })
}
