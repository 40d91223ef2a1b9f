//! The shardings of arrays on devices.

use serde::{Deserialize, Serialize};

/// A sharding, and how many leaves have it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ShardingUse {
    /// The sharding as text: `P('x', None) over x=4,y=2`.
    pub words: String,
    /// The axes of the mesh: name, and size in devices; empty if there is no mesh.
    pub mesh: Vec<(String, u64)>,
    /// For each axis of the array, the mesh axes that divide it, as text: `x` or `x, y`; empty if
    /// the axis is not divided.
    pub spec: Vec<String>,
    /// The number of leaves that have this sharding.
    pub leaf_count: u64,
    /// The bytes of these leaves.
    pub bytes: u64,
    /// The largest of these leaves, to be drawn; `None` if the sharding does not fit its shape.
    pub example: Option<ShardingExample>,
}

/// The placement of an array on devices.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ShardingExample {
    /// The leaf, as a position in [`Leaves`](super::leaves::Leaves).
    pub leaf: u64,
    /// The shape of the leaf.
    pub shape: Vec<u64>,
    /// The shape of the largest part.
    pub part_shape: Vec<u64>,
    /// The number of devices that hold the same part.
    pub replica_count: u64,
    /// The number of all devices.
    pub device_count: u64,
    /// The part on each device, in the order of the mesh. For a large mesh only the first devices.
    pub parts: Vec<Part>,
}

/// The part of an array that one device holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The id of the device.
    pub device: u64,
    /// The coordinates of the device in the mesh.
    pub coordinates: Vec<u64>,
    /// The first element of the part, along each axis of the array.
    pub start: Vec<u64>,
    /// The end of the part, one past its last element, along each axis.
    pub end: Vec<u64>,
    /// The number of this copy among equal copies, from 0.
    pub replica: u64,
}
