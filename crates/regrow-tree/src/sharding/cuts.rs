//! How one axis is divided into parts.

use std::ops::Range;
use std::sync::Arc;

/// The division of an axis. Parts are numbered from its start and together cover it. The last parts
/// may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cuts {
    /// Parts of `step` elements. The part at the end of the axis is shorter, and parts after it are
    /// empty.
    Steps {
        /// The length of the axis.
        len: u64,
        /// The length of a part.
        step: u64,
        /// The number of parts.
        count: u64,
    },
    /// Part `i` lies between the bounds `i` and `i + 1`. The bounds never decrease. The first is 0,
    /// and the last is the length.
    Bounds(Arc<[u64]>),
}

impl Cuts {
    /// `count` parts of length `ceil(len / count)`.
    pub(super) fn in_parts(len: u64, count: u64) -> Self {
        Self::Steps { len, step: len.div_ceil(count.max(1)), count: count.max(1) }
    }

    /// As many parts of `step` elements as needed; one part for an axis without elements.
    pub(super) fn by_step(len: u64, step: u64) -> Self {
        let step = step.max(1);
        Self::Steps { len, step, count: len.div_ceil(step).max(1) }
    }

    /// Divides by each of `counts` in turn: every part of the previous division gets parts of
    /// length `ceil(part / count)`, as in DTensor.
    pub(super) fn in_nested_parts(len: u64, counts: &[u64]) -> Self {
        let cut: Vec<u64> = counts.iter().copied().filter(|&count| count != 1).collect();
        let total: u64 = cut.iter().product();
        if cut.len() < 2 || total > 0 && len.is_multiple_of(total) {
            return Self::in_parts(len, total);
        }
        let mut bounds = vec![0, len];
        for count in cut {
            let parts = bounds.windows(2).flat_map(|part| match *part {
                [start, end] => {
                    let cuts = Self::in_parts(end - start, count);
                    (0..count).map(move |at| start + cuts.part(at).0).collect::<Vec<_>>()
                }
                _ => Vec::new(),
            });
            bounds = parts.chain([len]).collect();
        }
        Self::Bounds(bounds.into())
    }

    pub(super) fn count(&self) -> u64 {
        match self {
            Self::Steps { count, .. } => *count,
            Self::Bounds(bounds) => bounds.len().saturating_sub(1) as u64,
        }
    }

    /// The start and length of a part. If there is no such part, an empty part at the end.
    pub(super) fn part(&self, at: u64) -> (u64, u64) {
        match self {
            Self::Steps { len, step, .. } => {
                let start = at.saturating_mul(*step).min(*len);
                (start, (*step).min(*len - start))
            }
            Self::Bounds(bounds) => {
                let bound = |at: u64| usize::try_from(at).ok().and_then(|at| bounds.get(at)).copied();
                let end = bounds.last().copied().unwrap_or(0);
                let start = bound(at).unwrap_or(end);
                (start, bound(at.saturating_add(1)).unwrap_or(end) - start)
            }
        }
    }

    pub(super) fn longest(&self) -> u64 {
        match self {
            Self::Steps { len, step, .. } => (*step).min(*len),
            Self::Bounds(_) => (0..self.count()).map(|at| self.part(at).1).max().unwrap_or(0),
        }
    }

    /// The parts that overlap the `len` elements from `start` on, which must lie inside the axis.
    /// Empty parts may be among them.
    pub(super) fn touched(&self, start: u64, len: u64) -> Range<u64> {
        if len == 0 {
            return 0..0;
        }
        match self {
            Self::Steps { step, .. } => {
                let step = (*step).max(1);
                start / step..(start + len).div_ceil(step)
            }
            Self::Bounds(bounds) => {
                // `first` is the last part that begins at or before `start`; `end` is the first
                // part that begins at or after `start + len`.
                let first = bounds.partition_point(|&bound| bound <= start).saturating_sub(1);
                let end = bounds.partition_point(|&bound| bound < start + len);
                first as u64..end as u64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule for one mesh axis in DTensor's documentation: `torch.chunk`, and empty parts for
    /// the remaining devices.
    fn chunk(start: u64, len: u64, count: u64) -> Vec<(u64, u64)> {
        let full = len.div_ceil(count);
        (0..count).map(|at| (start + (at * full).min(len), full.min(len.saturating_sub(at * full)))).collect()
    }

    #[test]
    fn parts_are_those_of_chunk_inside_chunk() {
        for len in 0..40 {
            for counts in
                [vec![1], vec![3], vec![4], vec![2, 2], vec![3, 2], vec![2, 3], vec![2, 2, 2], vec![1, 5, 1]]
            {
                let mut parts = vec![(0, len)];
                for &count in &counts {
                    parts = parts.into_iter().flat_map(|(start, len)| chunk(start, len, count)).collect();
                }
                let cuts = Cuts::in_nested_parts(len, &counts);
                let found: Vec<(u64, u64)> = (0..cuts.count()).map(|at| cuts.part(at)).collect();
                assert_eq!(found, parts, "{len} {counts:?}");
                for start in 0..len {
                    for end in start + 1..=len {
                        let holds = |&at: &u64| {
                            parts[at as usize].0.max(start)
                                < (parts[at as usize].0 + parts[at as usize].1).min(end)
                        };
                        let touched = cuts.touched(start, end - start);
                        let expected: Vec<u64> = (0..cuts.count()).filter(holds).collect();
                        assert_eq!(
                            touched.filter(holds).collect::<Vec<_>>(),
                            expected,
                            "{len} {counts:?} {start}..{end}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn ten_over_two_times_two_is_not_ten_over_four() {
        let lens = |cuts: Cuts| (0..cuts.count()).map(|at| cuts.part(at).1).collect::<Vec<_>>();
        assert_eq!(lens(Cuts::in_nested_parts(10, &[2, 2])), [3, 2, 3, 2]);
        assert_eq!(lens(Cuts::in_nested_parts(10, &[4])), [3, 3, 3, 1]);
        assert_eq!(lens(Cuts::in_nested_parts(5, &[4])), [2, 2, 1, 0]);
        assert_eq!(lens(Cuts::by_step(0, 4)), [0]);
    }
}
