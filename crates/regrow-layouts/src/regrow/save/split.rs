//! The order of raw leaves, and their division into safetensors files.

use super::super::manifest::LeafPlace;
use super::plan::{LeafPlan, Plan};
use regrow_tree::tree::Leaf;

/// The longest header of a safetensors file; then the next file begins. The library safetensors
/// refuses headers above 100 MB.
pub(super) const HEADER_LEN_MAX_BYTES: usize = 64 << 20;

/// The largest useful alignment, which is a page.
const ALIGNMENT_MAX_BYTES: u64 = 4096;

/// The order of raw leaves: by descending alignment of their sizes, then by name. So each leaf
/// starts at a multiple of its alignment.
pub(super) fn raw_order(plan: &Plan<'_>) -> Vec<u32> {
    let alignment_of = |leaf: u32| match plan.leaves.get(leaf as usize) {
        Some(LeafPlan { place: LeafPlace::Raw { .. }, len_bytes, .. }) => Some(alignment(*len_bytes)),
        _ => None,
    };
    let mut order = Vec::with_capacity(plan.by_name().len());
    let mut now = ALIGNMENT_MAX_BYTES;
    while now > 0 {
        order.extend(plan.by_name().iter().copied().filter(|&leaf| alignment_of(leaf) == Some(now)));
        now /= 2;
    }
    order
}

/// Divides the raw leaves into files whose safetensors headers stay below `header_len_max_bytes`.
/// There is at least one file.
pub(super) fn split_by_header(
    plan: &Plan<'_>,
    raw_order: &[u32],
    header_len_max_bytes: usize,
) -> Vec<Vec<u32>> {
    let mut files = vec![Vec::new()];
    let mut header_len_bytes = 0;
    for &leaf in raw_order {
        let rank =
            plan.tree.leaves().get(leaf as usize).and_then(Leaf::as_array).map_or(0, |a| a.shape().rank());
        // Escaping can make six bytes of one; offsets, dtype and punctuation fit in the rest.
        let entry_len = 6 * plan.name(leaf as usize).len() + 21 * rank + 100;
        if header_len_bytes + entry_len > header_len_max_bytes {
            files.push(Vec::new());
            header_len_bytes = 0;
        }
        header_len_bytes += entry_len;
        if let Some(file) = files.last_mut() {
            file.push(leaf);
        }
    }
    files
}

/// The largest power of two that divides the size, up to a page; a page for an empty leaf.
fn alignment(len_bytes: u64) -> u64 {
    if len_bytes == 0 {
        ALIGNMENT_MAX_BYTES
    } else {
        (1 << len_bytes.trailing_zeros()).min(ALIGNMENT_MAX_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_is_that_of_the_size() {
        assert_eq!([0, 1, 6, 64, 96, 8192].map(alignment), [4096, 1, 2, 64, 32, 4096]);
    }
}
