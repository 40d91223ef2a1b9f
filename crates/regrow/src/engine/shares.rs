//! Divides the leaves of a checkpoint between several processes that do not exchange messages.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The number of each leaf's share. The leaves are assigned in order of size, the largest first,
/// each to the smallest share so far. Every process computes the same shares.
pub(super) fn shares_of(len_bytes: impl Iterator<Item = u64>, count: u32) -> Vec<u32> {
    let mut leaves: Vec<(u64, usize)> =
        len_bytes.enumerate().map(|(at, len_bytes)| (len_bytes, at)).collect();
    let mut shares = vec![0; leaves.len()];
    leaves.sort_by_key(|&(len_bytes, at)| (Reverse(len_bytes), at));
    let mut loads: BinaryHeap<Reverse<(u64, u32)>> =
        (0..count.max(1)).map(|share| Reverse((0, share))).collect();
    for (len_bytes, at) in leaves {
        let Some(Reverse((load, share))) = loads.pop() else { break };
        if let Some(own) = shares.get_mut(at) {
            *own = share;
        }
        // Even a leaf without bytes costs some work.
        loads.push(Reverse((load.saturating_add(len_bytes.max(1)), share)));
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_alone_and_empty_ones_are_spread() {
        assert_eq!(shares_of([10, 3, 90, 20, 4].into_iter(), 2), [1, 1, 0, 1, 1]);
        assert_eq!(shares_of([0; 4].into_iter(), 2), [0, 1, 0, 1]);
        assert_eq!(shares_of([5].into_iter(), 3), [0]);
    }
}
