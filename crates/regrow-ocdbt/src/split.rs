//! Divides one level of the tree into nodes.
//!
//! The estimated size of an entry is its full key plus a fixed part plus its value or path. The
//! size of the remaining entries divided by the target size, rounded up, is the number of remaining
//! nodes. The next node takes an even share. TensorStore divides all databases in the fixtures in
//! the same way, except one.

use std::ops::Range;

use super::node::ENTRIES_MAX;

/// Cuts a level whose entries have estimated sizes `sizes_bytes` into ranges of at most
/// [`ENTRIES_MAX`] entries, and, except the last one, of at least `least`.
pub(super) fn split<T: Copy + Into<u64>>(
    sizes_bytes: &[T],
    target_bytes: u64,
    least: usize,
) -> Vec<Range<usize>> {
    let mut left_bytes = sizes_bytes.iter().map(|&size| size.into()).fold(0, u64::saturating_add);
    let mut ranges = Vec::new();
    let mut start = 0;
    while start < sizes_bytes.len() {
        let left = sizes_bytes.len() - start;
        let nodes = (left.div_ceil(ENTRIES_MAX) as u64).max(left_bytes.div_ceil(target_bytes.max(1))).max(1);
        let share_bytes = left_bytes.div_ceil(nodes);
        let mut len = 0;
        let mut taken_bytes = 0_u64;
        for &size_bytes in sizes_bytes.iter().skip(start).take(ENTRIES_MAX) {
            let with_next = taken_bytes.saturating_add(size_bytes.into());
            if len >= least.max(1) && with_next > share_bytes {
                break;
            }
            taken_bytes = with_next;
            len += 1;
        }
        left_bytes = left_bytes.saturating_sub(taken_bytes);
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
            sizes in proptest::collection::vec(0..100_u64, 1..200), target in 0..400_u64, least in 1..3_usize,
        ) {
            let ranges = split(&sizes, target, least);
            prop_assert_eq!(ranges[0].start, 0);
            prop_assert_eq!(ranges[ranges.len() - 1].end, sizes.len());
            for (range, next) in ranges.iter().zip(&ranges[1..]) {
                prop_assert_eq!(range.end, next.start);
                prop_assert!(range.len() >= least);
            }
        }
    }

    #[test]
    fn more_entries_than_a_node_may_have_are_cut() {
        let ranges = split(&vec![0_u64; ENTRIES_MAX + 1], u64::MAX, 2);
        assert_eq!(ranges, [0..ENTRIES_MAX, ENTRIES_MAX..ENTRIES_MAX + 1]);
    }

    #[test]
    fn each_node_takes_an_even_share() {
        assert_eq!(split(&[10_u64; 7], 30, 1), [0..2, 2..4, 4..7]);
        assert_eq!(split(&[10_u64; 4], 1, 2), [0..2, 2..4]);
    }
}
