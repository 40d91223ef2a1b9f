//! Finds regions that overlap a given region, for regions without a grid.
//!
//! A tree of bounds: the bounds of a node contain all regions of the node. A node with many regions
//! has two halves, which divide its regions at the median of their middles. The division is along
//! the axis on which the middles spread most. Building takes O(n log n). For regions that do not
//! overlap, a search takes O(log n) plus the number of results.

use std::ops::Range;

use crate::array::Region;

/// Largest number of regions in a node that is not divided further.
const LEAF_MAX: usize = 8;

/// A tree of regions that finds the regions overlapping a given one.
#[derive(Debug, Clone)]
pub(super) struct Boxes {
    regions: Vec<Region>,
    order: Vec<usize>,
    nodes: Vec<Node>,
}

#[derive(Debug, Clone)]
struct Node {
    /// The start and the end of all its regions on each axis.
    bounds: Vec<(u64, u64)>,
    range: Range<usize>,
    /// `None` if the node is not divided.
    halves: Option<(usize, usize)>,
}

impl Boxes {
    pub(super) fn new(regions: Vec<Region>) -> Self {
        let order = (0..regions.len()).filter(|&at| regions.get(at).is_some_and(|region| !region.is_empty()));
        let mut boxes = Self { order: order.collect(), regions, nodes: Vec::new() };
        if !boxes.order.is_empty() {
            boxes.divide(0..boxes.order.len());
        }
        boxes
    }

    pub(super) fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Calls `visit` with the index and region of each region that overlaps `wanted`.
    pub(super) fn each_touched(&self, wanted: &Region, mut visit: impl FnMut(usize, &Region)) {
        if wanted.is_empty() {
            return;
        }
        let mut open = if self.nodes.is_empty() { Vec::new() } else { vec![0] };
        while let Some(node) = open.pop().and_then(|at| self.nodes.get(at)) {
            if !touches(&node.bounds, wanted) {
                continue;
            }
            match node.halves {
                Some((left, right)) => open.extend([right, left]),
                None => {
                    for &number in self.order.get(node.range.clone()).unwrap_or_default() {
                        let Some(region) = self.regions.get(number) else { continue };
                        if axes(region).zip(axes(wanted)).all(|(a, b)| a.0.max(b.0) < a.1.min(b.1)) {
                            visit(number, region);
                        }
                    }
                }
            }
        }
    }

    /// Makes the node for a range of `order`, and the nodes below it. Returns its index. The depth
    /// is logarithmic.
    fn divide(&mut self, range: Range<usize>) -> usize {
        let Self { regions, order, nodes } = self;
        let part = order.get_mut(range.clone()).unwrap_or_default();
        let mut bounds: Vec<(u64, u64)> = Vec::new();
        let mut middles: Vec<(u64, u64)> = Vec::new();
        for region in part.iter().filter_map(|&number| regions.get(number)) {
            if bounds.is_empty() {
                bounds = axes(region).collect();
                middles = axes(region).map(|axis| (middle(axis), middle(axis))).collect();
            }
            for (axis, (bound, spread)) in axes(region).zip(bounds.iter_mut().zip(&mut middles)) {
                *bound = (bound.0.min(axis.0), bound.1.max(axis.1));
                *spread = (spread.0.min(middle(axis)), spread.1.max(middle(axis)));
            }
        }
        let widest = middles.iter().enumerate().max_by_key(|(_, (low, high))| high - low);
        let axis =
            widest.filter(|(_, (low, high))| low < high && part.len() > LEAF_MAX).map(|(axis, _)| axis);
        let half = part.len() / 2;
        if let Some(axis) = axis {
            let key =
                |number: &usize| regions.get(*number).and_then(|region| axes(region).nth(axis)).map(middle);
            part.select_nth_unstable_by_key(half, key);
        }
        let number = nodes.len();
        nodes.push(Node { bounds, range: range.clone(), halves: None });
        if axis.is_some() {
            let left = self.divide(range.start..range.start + half);
            let right = self.divide(range.start + half..range.end);
            if let Some(node) = self.nodes.get_mut(number) {
                node.halves = Some((left, right));
            }
        }
        number
    }
}

fn axes(region: &Region) -> impl Iterator<Item = (u64, u64)> + '_ {
    region.starts().iter().zip(region.lens()).map(|(&start, &len)| (start, start + len))
}

/// The middle, computed so that it cannot overflow: the start plus half of the length.
fn middle((start, end): (u64, u64)) -> u64 {
    start + (end - start) / 2
}

fn touches(bounds: &[(u64, u64)], wanted: &Region) -> bool {
    bounds.iter().zip(axes(wanted)).all(|(bound, axis)| bound.0.max(axis.0) < bound.1.min(axis.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_what_looking_at_each_finds(
            boxes in proptest::collection::vec(((0_u64..30, 0_u64..30), (0_u64..6, 0_u64..6)), 0..80),
            wanted in ((0_u64..30, 0_u64..30), (0_u64..20, 0_u64..20)),
        ) {
            let region = |((a, b), (c, d)): &((u64, u64), (u64, u64))| Region::new([*a, *b], [*c, *d]).unwrap();
            let regions: Vec<Region> = boxes.iter().map(region).collect();
            let wanted = region(&wanted);
            let mut found = Vec::new();
            Boxes::new(regions.clone()).each_touched(&wanted, |number, _| found.push(number));
            found.sort_unstable();
            let expected: Vec<usize> = (0..regions.len()).filter(|&at| regions[at].intersect(&wanted).is_some()).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
