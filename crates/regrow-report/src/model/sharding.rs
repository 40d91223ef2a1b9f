//! How arrays lie on devices.

use serde::{Deserialize, Serialize};

/// One way in which arrays lie on devices, and how many do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ShardingUse {
    /// In words: `P('x', None) over x=4,y=2`.
    pub words: String,
    /// The axes of the mesh, names and sizes in devices; empty where there is no mesh.
    pub mesh: Vec<(String, u64)>,
    /// For each axis of the array the axes of the mesh that cut it, in words: `x`, `x, y`; empty
    /// where nothing does.
    pub spec: Vec<String>,
    /// Leaves that lie like this.
    pub leaf_count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The largest of them, drawn; `None` where it cannot be laid out.
    pub example: Option<ShardingExample>,
}

/// An array on devices.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ShardingExample {
    /// The leaf, by its position in [`Leaves`](super::leaves::Leaves).
    pub leaf: u64,
    /// Its shape.
    pub shape: Vec<u64>,
    /// The shape of the longest part.
    pub part_shape: Vec<u64>,
    /// How many devices hold each part.
    pub replica_count: u64,
    /// All devices.
    pub device_count: u64,
    /// What each device holds, in the order of the mesh; of large meshes the first ones.
    pub parts: Vec<Part>,
}

/// What one device holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Its id.
    pub device: u64,
    /// Where it is in the mesh.
    pub coordinates: Vec<u64>,
    /// First element along each axis of the array.
    pub start: Vec<u64>,
    /// The element behind the last one.
    pub end: Vec<u64>,
    /// Which of the equal copies it is, from 0.
    pub replica: u64,
}
