//! Which process writes what every process holds: leaves in one piece, and replicated ones.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::array::Array;
use crate::tree::{Leaf, Tree};

/// For each leaf the process that writes it, if all hold it: the largest first, each to the one with the least. Every
/// process finds the same, for the trees have the same shapes.
pub(crate) fn writers_of_whole(tree: &Tree<Leaf>, count: u32) -> Vec<u32> {
    let mut writers = vec![0; tree.len()];
    if count <= 1 {
        return writers;
    }
    let is_whole = |array: &&Array| array.shards().is_none_or(|shards| shards.is_replicated());
    let mut whole: Vec<(u64, usize)> = tree
        .leaves()
        .iter()
        .enumerate()
        .filter_map(|(at, leaf)| Some((leaf.as_array().filter(is_whole)?.len_bytes(), at)))
        .collect();
    whole.sort_by_key(|&(len_bytes, at)| (Reverse(len_bytes), at));
    let mut loads: BinaryHeap<Reverse<(u64, u32)>> =
        (0..count.max(1)).map(|rank| Reverse((0, rank))).collect();
    for (len_bytes, at) in whole {
        let Some(Reverse((load, rank))) = loads.pop() else { break };
        if let Some(writer) = writers.get_mut(at) {
            *writer = rank;
        }
        loads.push(Reverse((load.saturating_add(len_bytes), rank)));
    }
    writers
}
