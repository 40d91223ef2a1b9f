//! The kinds of shardings.

use std::sync::Arc;

use serde_json::Value;

use super::mesh::Mesh;
use super::spec::PartitionSpec;

/// The distribution of an array over devices.
///
/// A sharding that was read from JSON is written to the same JSON: see [`Sharding::from_json`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Sharding {
    /// The array is divided by the named axes of a mesh.
    Named(NamedSharding),
    /// The whole array is on one device.
    SingleDevice(SingleDeviceSharding),
    /// The array is divided by a grid of devices without names. The grid has one axis for each axis
    /// of the array. Current JAX no longer has this kind.
    Positional(PositionalSharding),
    /// An unknown kind, or a kind with invalid members, as the original JSON.
    Other(Value),
}

/// The rule for an axis whose length is not a multiple of the number of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Split {
    /// Such a length is not allowed: JAX refuses it, and so does [`Sharding::layout`].
    #[default]
    Even,
    /// The rule of `torch.chunk` and DTensor: parts of `ceil(length / parts)`; the last ones are
    /// smaller or empty. If several axes of the mesh divide the axis, each divides the parts of the
    /// previous one.
    CeilDivision,
}

/// A sharding by the named axes of a mesh, as in JAX' `NamedSharding` and torch' DTensor.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedSharding {
    pub(super) mesh: Arc<Mesh>,
    pub(super) spec: PartitionSpec,
    pub(super) split: Split,
    pub(super) recorded: Recorded,
}

impl NamedSharding {
    /// A sharding over `mesh` with even parts. [`Sharding::layout`] checks whether mesh, spec and
    /// array match.
    #[inline]
    pub fn new(mesh: impl Into<Arc<Mesh>>, spec: PartitionSpec) -> Self {
        Self { mesh: mesh.into(), spec, split: Split::Even, recorded: Recorded::default() }
    }

    /// The same sharding with another rule for lengths that are not multiples.
    pub fn with_split(mut self, split: Split) -> Self {
        if self.split != split {
            (self.split, self.recorded) = (split, Recorded::default());
        }
        self
    }

    /// The devices.
    #[inline]
    pub fn mesh(&self) -> &Arc<Mesh> {
        &self.mesh
    }

    /// The mesh axes that divide each axis of the array.
    #[inline]
    pub fn spec(&self) -> &PartitionSpec {
        &self.spec
    }

    /// The rule for lengths that are not multiples.
    #[inline]
    pub fn split(&self) -> Split {
        self.split
    }
}

/// A sharding with the whole array on one device.
#[derive(Debug, Clone, PartialEq)]
pub struct SingleDeviceSharding {
    pub(super) device: Arc<str>,
    pub(super) recorded: Recorded,
}

impl SingleDeviceSharding {
    /// A sharding on the device with this text, as JAX prints it: `cpu:0`.
    #[inline]
    pub fn new(device: impl Into<Arc<str>>) -> Self {
        Self { device: device.into(), recorded: Recorded::default() }
    }

    /// The text of the device, as JAX prints it: `cpu:0`, before 2025 `TFRT_CPU_0`.
    #[inline]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The number at the end of the device's text; 0 if it has none.
    pub fn device_id(&self) -> u64 {
        let digits = self.device.bytes().rev().take_while(u8::is_ascii_digit).count();
        self.device.get(self.device.len() - digits..).and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

/// A sharding by a grid of devices without names.
#[derive(Debug, Clone, PartialEq)]
pub struct PositionalSharding {
    pub(super) shape: Vec<u64>,
    pub(super) memory_kind: Option<Arc<str>>,
    pub(super) recorded: Recorded,
}

impl PositionalSharding {
    /// The grid of devices: one size for each axis of the array.
    #[inline]
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The kind of memory, such as `device` or `pinned_host`; `None` if unknown.
    #[inline]
    pub fn memory_kind(&self) -> Option<&str> {
        self.memory_kind.as_deref()
    }
}

/// The original JSON of a sharding, if it has more members than its kind writes, or another order.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Recorded(pub(super) Option<Box<Value>>);

impl From<NamedSharding> for Sharding {
    fn from(sharding: NamedSharding) -> Self {
        Self::Named(sharding)
    }
}

impl From<SingleDeviceSharding> for Sharding {
    fn from(sharding: SingleDeviceSharding) -> Self {
        Self::SingleDevice(sharding)
    }
}
