//! The kinds of shardings.

use std::sync::Arc;

use serde_json::Value;

use super::mesh::Mesh;
use super::spec::PartitionSpec;

/// How an array lies on devices.
///
/// It is read from JSON and written to the same JSON, to the byte: see [`Sharding::from_json`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Sharding {
    /// Cut by the named axes of a mesh.
    Named(NamedSharding),
    /// All of it on one device.
    SingleDevice(SingleDeviceSharding),
    /// Cut by a grid of devices without names, one axis of the grid for each axis of the array. JAX
    /// has given it up.
    Positional(PositionalSharding),
    /// A kind that this build does not know, or one whose members make no sense, as it was given.
    Other(Value),
}

/// How an axis is cut whose length is no multiple of the number of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Split {
    /// Not at all: JAX refuses such arrays, and so does [`Sharding::layout`].
    #[default]
    Even,
    /// As `torch.chunk` does, and with it DTensor: parts of `ceil(length / parts)`, the last ones
    /// smaller or empty. By several axes of the mesh, each cuts the part that the one before it has
    /// made.
    CeilDivision,
}

/// Cut by the named axes of a mesh, as JAX' `NamedSharding` and torch' DTensor do it.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedSharding {
    pub(super) mesh: Arc<Mesh>,
    pub(super) spec: PartitionSpec,
    pub(super) split: Split,
    pub(super) recorded: Recorded,
}

impl NamedSharding {
    /// Even parts over `mesh`, by `spec`. Whether they fit each other and an array is looked at by
    /// [`Sharding::layout`].
    #[inline]
    pub fn new(mesh: impl Into<Arc<Mesh>>, spec: PartitionSpec) -> Self {
        Self { mesh: mesh.into(), spec, split: Split::Even, recorded: Recorded::default() }
    }

    /// The same with another rule for lengths that are no multiples.
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

    /// What cuts each axis of the array.
    #[inline]
    pub fn spec(&self) -> &PartitionSpec {
        &self.spec
    }

    /// The rule for lengths that are no multiples.
    #[inline]
    pub fn split(&self) -> Split {
        self.split
    }
}

/// All of an array on one device.
#[derive(Debug, Clone, PartialEq)]
pub struct SingleDeviceSharding {
    pub(super) device: Arc<str>,
    pub(super) recorded: Recorded,
}

impl SingleDeviceSharding {
    /// On the device that JAX prints like this: `cpu:0`.
    #[inline]
    pub fn new(device: impl Into<Arc<str>>) -> Self {
        Self { device: device.into(), recorded: Recorded::default() }
    }

    /// The device as JAX prints it: `cpu:0`, before 2025 `TFRT_CPU_0`; free text.
    #[inline]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The number at the end of the device's text, 0 if there is none.
    pub fn device_id(&self) -> u64 {
        let digits = self.device.bytes().rev().take_while(u8::is_ascii_digit).count();
        self.device.get(self.device.len() - digits..).and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

/// Cut by a grid of devices without names.
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

    /// `device`, `pinned_host`, ...; where it is known.
    #[inline]
    pub fn memory_kind(&self) -> Option<&str> {
        self.memory_kind.as_deref()
    }
}

/// The JSON that a sharding was read from, where that says more than its kind writes, or in another
/// order.
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
