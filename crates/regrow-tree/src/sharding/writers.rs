//! The process that writes each region. Each element of an array is written once, and every process
//! computes the same answer without messages.
//!
//! ```text
//! Replicas::First        the device with replica 0 writes its part                              JAX' plain rule
//! Replicas::Parallel     R replicas write an R-th of their part each, along the first axis
//!                        whose length R divides; if there is none, replica 0 writes all of it   Orbax' rule
//! spread                 arrays that every process has: the largest first, each to the writer that has the fewest
//!                        bytes so far; of several the first
//! ```
//!
//! If the parts of the sharding are even, the regions that [`Replicas`] gives to the devices all
//! have one shape. They are then the chunks of a regular grid.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::layout::Layout;
use crate::array::{Dtype, Region};

/// The choice of the devices that write a part, if several have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Replicas {
    /// The device with replica 0 writes the part.
    #[default]
    First,
    /// Each replica writes a slice, if the number of replicas divides an axis of the part.
    Parallel {
        /// Smallest length of a slice in bytes; 0 for no limit. If slices would be shorter, replica
        /// 0 writes the part.
        slice_len_min_bytes: u64,
        /// Largest number of replicas that write; `None` for all.
        replicas_max: Option<u64>,
    },
}

/// The region that one device writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The process of the device.
    pub process: usize,
    /// The device's id.
    pub device: u64,
    /// The region of the array.
    pub region: Region,
}

impl Replicas {
    /// All replicas write, without limits.
    pub const PARALLEL: Self = Self::Parallel { slice_len_min_bytes: 0, replicas_max: None };

    /// The region that the device at a position of the mesh writes; `None` if it writes nothing.
    /// The time does not depend on the number of devices.
    pub fn region(&self, layout: &Layout, dtype: Dtype, position: u64) -> Option<Region> {
        if position >= layout.device_count() {
            return None;
        }
        let replica = layout.replica(position);
        let part = layout.region_at(position);
        if part.is_empty() {
            return None;
        }
        match self.slices(layout, dtype, &part) {
            None => (replica == 0).then_some(part),
            Some((axis, count)) if replica < count => {
                let (mut starts, mut lens) = (part.starts().to_vec(), part.lens().to_vec());
                if let (Some(start), Some(len)) = (starts.get_mut(axis), lens.get_mut(axis)) {
                    *len /= count;
                    *start += replica * *len;
                }
                Some(Region::from_parts(starts, lens))
            }
            Some(_) => None,
        }
    }

    /// The regions that all devices write, in the order of the mesh, with the process of each
    /// device.
    pub fn writes<'a>(
        self,
        layout: &'a Layout,
        dtype: Dtype,
        process_of: impl Fn(u64) -> usize + 'a,
    ) -> impl Iterator<Item = Write> + 'a {
        (0..layout.device_count()).filter_map(move |position| {
            let region = self.region(layout, dtype, position)?;
            let device = layout.device(position);
            Some(Write { process: process_of(device), device, region })
        })
    }

    /// The axis along which a part is divided, and the number of slices; `None` if replica 0 writes
    /// the whole part.
    fn slices(&self, layout: &Layout, dtype: Dtype, part: &Region) -> Option<(usize, u64)> {
        let Self::Parallel { slice_len_min_bytes, replicas_max } = *self else { return None };
        let count = layout.replica_count().min(replicas_max.unwrap_or(u64::MAX));
        if count <= 1 {
            return None;
        }
        let axis = part.lens().iter().position(|len| len.is_multiple_of(count))?;
        let slice_len_bytes = (part.len_elements() / count).saturating_mul(dtype.size_bytes() as u64);
        (slice_len_bytes >= slice_len_min_bytes).then_some((axis, count))
    }
}

/// Chooses a writer for each of some arrays that every process has. `loads` has the bytes that each
/// writer already has to write; the lengths of the arrays are added. Takes O(n log n).
///
/// The load of the busiest writer exceeds the best possible one by at most the largest array.
pub fn spread(lens_bytes: &[u64], loads: &mut [u64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..lens_bytes.len()).collect();
    let len_of = |at: usize| lens_bytes.get(at).copied().unwrap_or(0);
    // The sort is stable, so every process keeps the same order for arrays of one size.
    order.sort_by_key(|&at| Reverse(len_of(at)));
    let mut least: BinaryHeap<Reverse<(u64, usize)>> =
        loads.iter().enumerate().map(|(writer, &load)| Reverse((load, writer))).collect();
    let mut writers = vec![0; lens_bytes.len()];
    for at in order {
        let Some(Reverse((load, writer))) = least.pop() else { break };
        let load = load.saturating_add(len_of(at));
        least.push(Reverse((load, writer)));
        if let Some(place) = writers.get_mut(at) {
            *place = writer;
        }
        if let Some(place) = loads.get_mut(writer) {
            *place = load;
        }
    }
    writers
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_largest_goes_first_and_ties_go_to_the_first_writer() {
        let mut loads = [0, 0, 5];
        assert_eq!(spread(&[1, 9, 4, 4, 0], &mut loads), [2, 0, 1, 1, 2]);
        assert_eq!(loads, [9, 8, 6]);
        assert_eq!(spread(&[], &mut [0, 0]), Vec::<usize>::new());
        assert_eq!(spread(&[3], &mut []), [0]);
    }

    proptest! {
        #[test]
        fn no_writer_has_much_more_than_its_share(lens in proptest::collection::vec(0_u64..1000, 0..200), writers in 1_usize..20) {
            let mut loads = vec![0; writers];
            let chosen = spread(&lens, &mut loads);
            let mut sums = vec![0; writers];
            chosen.iter().zip(&lens).for_each(|(&writer, &len)| sums[writer] += len);
            prop_assert_eq!(&sums, &loads);
            let most = *loads.iter().max().unwrap();
            let share = lens.iter().sum::<u64>() / writers as u64;
            prop_assert!(most <= share + lens.iter().max().copied().unwrap_or(0));
        }
    }
}
