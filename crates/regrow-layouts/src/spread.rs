//! Chooses the writer of leaves that every process has: leaves in one piece, and replicated leaves.

use regrow_tree::array::Array;
use regrow_tree::sharding::spread;
use regrow_tree::tree::{Leaf, Tree};

/// For each leaf, the process that writes it if all processes hold it. Assigns the largest leaf
/// first, each to the process with the fewest bytes. All processes get the same result, because
/// their trees have the same shapes.
pub(crate) fn writers_of_whole(tree: &Tree<Leaf>, count: u32) -> Vec<u32> {
    let mut writers = vec![0; tree.len()];
    if count <= 1 {
        return writers;
    }
    let is_whole = |array: &&Array| array.shards().is_none_or(|shards| shards.is_replicated());
    let (leaves, lens_bytes): (Vec<usize>, Vec<u64>) = tree
        .leaves()
        .iter()
        .enumerate()
        .filter_map(|(at, leaf)| Some((at, leaf.as_array().filter(is_whole)?.len_bytes())))
        .unzip();
    for (leaf, rank) in leaves.into_iter().zip(spread(&lens_bytes, &mut vec![0; count as usize])) {
        if let Some(writer) = writers.get_mut(leaf) {
            *writer = rank as u32;
        }
    }
    writers
}
