//! Collects the shardings of arrays on devices. Each distinct sharding is listed once.

use std::collections::HashMap;
use std::sync::Arc;

use regrow::Checkpoint;
use regrow::sharding::{AxisSpec, Mesh, Sharding};
use regrow::tree::LeafInfo;

use crate::model::sharding::{Part, ShardingExample, ShardingUse};

/// The most devices of a mesh that the page draws.
const PARTS_MAX: usize = 1024;

/// The distinct shardings, sorted by the first leaf that has each.
pub(super) fn shardings(checkpoint: &Checkpoint) -> Vec<ShardingUse> {
    let leaves = checkpoint.tree().leaves();
    let mut uses: Vec<ShardingUse> = Vec::new();
    let mut largest: Vec<(usize, &LeafInfo, &Sharding)> = Vec::new();
    for (leaf, (info, number)) in leaves.iter().zip(of_leaves(checkpoint)).enumerate() {
        let (Some(sharding), Some(number)) = (&info.sharding, number) else { continue };
        if uses.len() == number as usize {
            uses.push(described(sharding));
            largest.push((leaf, info, sharding));
        }
        let (Some(own), Some(known)) = (uses.get_mut(number as usize), largest.get_mut(number as usize))
        else {
            continue;
        };
        own.leaf_count += 1;
        own.bytes = own.bytes.saturating_add(info.data_len_bytes());
        if info.data_len_bytes() > known.1.data_len_bytes() {
            *known = (leaf, info, sharding);
        }
    }
    for (own, (leaf, info, sharding)) in uses.iter_mut().zip(largest) {
        own.example = example(leaf, info, sharding);
    }
    uses
}

/// For each leaf, the position of its sharding among the distinct shardings.
pub(super) fn of_leaves(checkpoint: &Checkpoint) -> Vec<Option<u32>> {
    let mut by_words: HashMap<String, u32> = HashMap::new();
    // Leaves share sharding objects, so most are found by their address in memory.
    let mut by_place: HashMap<*const Sharding, u32> = HashMap::new();
    let number = |info: &LeafInfo| {
        let sharding = info.sharding.as_ref()?;
        Some(*by_place.entry(Arc::as_ptr(sharding)).or_insert_with(|| {
            let next = by_words.len() as u32;
            *by_words.entry(sharding.to_string()).or_insert(next)
        }))
    };
    checkpoint.tree().leaves().iter().map(number).collect()
}

fn described(sharding: &Sharding) -> ShardingUse {
    let (mesh, spec) = match sharding {
        Sharding::Named(named) => (axes(named.mesh()), named.spec().axes().iter().map(axis_words).collect()),
        Sharding::Positional(grid) => {
            let axes = grid.shape().iter().enumerate().map(|(axis, size)| (format!("axis {axis}"), *size));
            let axes: Vec<(String, u64)> = axes.collect();
            let spec = axes.iter().map(|(name, _)| name.clone()).collect();
            (axes, spec)
        }
        _ => (Vec::new(), Vec::new()),
    };
    ShardingUse { words: sharding.to_string(), mesh, spec, ..ShardingUse::default() }
}

fn axes(mesh: &Mesh) -> Vec<(String, u64)> {
    mesh.axis_names().iter().map(ToString::to_string).zip(mesh.shape().iter().copied()).collect()
}

fn axis_words(axis: &AxisSpec) -> String {
    let names: Vec<&str> = axis.names().iter().map(|name| &**name).collect();
    names.join(", ")
}

/// The parts of an array on devices; `None` if the sharding does not fit the array.
fn example(leaf: usize, info: &LeafInfo, sharding: &Sharding) -> Option<ShardingExample> {
    let layout = sharding.layout(&info.shape).ok()?;
    let grid: Vec<u64> = match sharding {
        Sharding::Named(named) => named.mesh().shape().to_vec(),
        Sharding::Positional(grid) => grid.shape().to_vec(),
        _ => Vec::new(),
    };
    let parts = layout.placements().take(PARTS_MAX).zip(0_u64..).map(|(placement, position)| {
        let (start, len) = (placement.region.starts(), placement.region.lens());
        Part {
            device: placement.device,
            coordinates: coordinates(position, &grid),
            start: start.to_vec(),
            end: start.iter().zip(len).map(|(start, len)| start + len).collect(),
            replica: placement.replica,
        }
    });
    Some(ShardingExample {
        leaf: leaf as u64,
        shape: info.shape.dims().to_vec(),
        part_shape: layout.shard_shape().dims().to_vec(),
        replica_count: layout.replica_count(),
        device_count: layout.device_count(),
        parts: parts.collect(),
    })
}

/// The coordinates in a grid of a position in C order.
fn coordinates(position: u64, grid: &[u64]) -> Vec<u64> {
    let mut rest = position;
    let mut coordinates: Vec<u64> = grid
        .iter()
        .rev()
        .map(|&size| {
            let own = rest % size.max(1);
            rest /= size.max(1);
            own
        })
        .collect();
    coordinates.reverse();
    coordinates
}
