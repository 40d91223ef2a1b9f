//! Where one level of the tree is cut into nodes: TensorStore's way, so that equal keys give equal nodes.
//!
//! The estimated size of an entry is its full key plus a fixed part plus its value or path. A run of m
//! entries is m - 1 times smaller by the prefix that the whole level has in common. What remains is divided
//! by the target size, rounded up, and the next node takes its even share.

use std::ops::Range;

use super::node::ENTRIES_MAX;

/// Cuts a level whose entries have estimated sizes `sizes_bytes` into ranges of at least `least` entries
/// (where there are so many) and at most [`ENTRIES_MAX`].
pub(super) fn split(sizes_bytes: &[u64], common_len: u64, target_bytes: u64, least: usize) -> Vec<Range<usize>> {
    let target_bytes = target_bytes.max(1);
    // Each entry without the common prefix: a run is the sum of these, plus the prefix once.
    let own = |size: &u64| size.saturating_sub(common_len);
    let mut left_bytes = sizes_bytes.iter().map(own).fold(common_len, u64::saturating_add);
    let mut ranges = Vec::new();
    let mut start = 0;
    while start < sizes_bytes.len() {
        let left = sizes_bytes.len() - start;
        let nodes = (left.div_ceil(ENTRIES_MAX) as u64).max(left_bytes.div_ceil(target_bytes)).max(1);
        let share_bytes = left_bytes.div_ceil(nodes);
        let mut len = 0;
        let mut taken_bytes = common_len;
        for size in sizes_bytes.iter().skip(start).take(ENTRIES_MAX) {
            let with_next = taken_bytes.saturating_add(own(size));
            if len >= least.max(1) && with_next > share_bytes {
                break;
            }
            taken_bytes = with_next;
            len += 1;
        }
        // A rest too small for a node of its own comes along, or gets company.
        let rest = left - len;
        if rest > 0 && rest < least {
            if left <= ENTRIES_MAX && len <= least { len = left } else { len -= least - rest }
        }
        let taken = sizes_bytes.iter().skip(start).take(len).map(own);
        left_bytes = left_bytes.saturating_sub(taken.fold(0, u64::saturating_add));
        ranges.push(start..start + len);
        start += len;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_cover_the_level(
            sizes in proptest::collection::vec(0..100_u64, 1..200),
            common_len in 0..20_u64, target in 0..400_u64, least in 1..3_usize,
        ) {
            let ranges = split(&sizes, common_len, target, least);
            prop_assert_eq!(ranges[0].start, 0);
            prop_assert_eq!(ranges[ranges.len() - 1].end, sizes.len());
            for (range, next) in ranges.iter().zip(&ranges[1..]) {
                prop_assert_eq!(range.end, next.start);
            }
            prop_assert!(ranges.iter().all(|range| range.len() >= least || ranges.len() == 1), "{:?}", ranges);
        }
    }

    #[test]
    fn more_entries_than_a_node_may_have_are_cut() {
        let ranges = split(&vec![0; ENTRIES_MAX + 1], 0, u64::MAX, 2);
        assert_eq!(ranges.len(), 2);
        assert!(ranges.iter().all(|range| range.len() <= ENTRIES_MAX && range.len() >= 2));
    }
}
