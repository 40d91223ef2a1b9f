//! Distributes an array again: the parts of each piece that one process reads, and their
//! destinations.
//!
//! ```text
//! saved          wanted by this process        steps
//! ┌────┬────┐    ┌──┐                          piece 0, [0:2,0:1]  ->  region 0, [0:2,0:1]
//! │ 0  │ 1  │    │  │   on two devices         piece 2, [0:2,0:1]  ->  region 0, [2:4,0:1]
//! ├────┼────┤    │  │
//! │ 2  │ 3  │    └──┘                          read once; the second device gets the same bytes
//! └────┴────┘
//! ```
//!
//! Every element that a process needs is read once, even for several of its devices. The time
//! depends on the pieces that overlap the regions of the process, and not on other devices.

use std::collections::HashMap;

use super::boxes::Boxes;
use super::layout::Layout;
use super::pieces::Pieces;
use crate::array::Region;
use crate::error::{Error, Result};

/// The regions of an array that one process needs, without duplicates, and the region of each
/// device.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    regions: Vec<Region>,
    of: Vec<usize>,
    /// The regions to read, without overlap, each with the index of the needed region that it
    /// belongs to.
    reads: Vec<(usize, Region)>,
    copies: Vec<Copied>,
}

/// The steps with which a process gets the regions of one array.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The reads, sorted by piece, so that each piece is decoded only once.
    pub steps: Vec<Step>,
    /// The copies to make after the reads, in this order, between regions that overlap without
    /// being equal.
    pub copies: Vec<Copied>,
}

/// A part of a piece, and its destination in a needed region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The number of the piece.
    pub piece: u64,
    /// The part, relative to the start of the piece.
    pub from: Region,
    /// The index of the needed region.
    pub wanted: usize,
    /// The destination, relative to the start of the needed region.
    pub to: Region,
}

/// A part of a needed region that is copied from another needed region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// The index of the source region.
    pub source: usize,
    /// The part, relative to the start of the source region.
    pub from: Region,
    /// The index of the destination region.
    pub wanted: usize,
    /// The destination, relative to the start of the destination region.
    pub to: Region,
}

impl Wanted {
    /// The regions of the devices at these positions of the mesh.
    ///
    /// # Errors
    /// `InvalidArgument` if the mesh has no such position.
    pub fn of_devices(layout: &Layout, positions: impl IntoIterator<Item = u64>) -> Result<Self> {
        let regions = positions.into_iter().map(|position| layout.region(position));
        let mut wanted = Self::distinct(regions.collect::<Result<Vec<_>>>()?);
        // Cells of one grid are equal or disjoint, so no element is read twice.
        wanted.reads = wanted.regions.iter().cloned().enumerate().collect();
        Ok(wanted)
    }

    /// Any list of regions. The common part of two regions is read for the first and copied to the
    /// second.
    ///
    /// # Errors
    /// `InvalidArgument` if the ranks differ.
    pub fn of_regions(regions: impl IntoIterator<Item = Region>) -> Result<Self> {
        let mut wanted = Self::distinct(regions.into_iter().collect());
        if let Some(pair) = wanted
            .regions
            .windows(2)
            .find(|pair| pair.first().map(Region::rank) != pair.last().map(Region::rank))
        {
            let what = pair.iter().map(Region::to_string).collect::<Vec<_>>().join(" and ");
            return Err(Error::invalid(format!("the wanted regions {what} do not belong to one array")));
        }
        let boxes = Boxes::new(wanted.regions.clone());
        for (at, region) in boxes.regions().iter().enumerate() {
            let mut earlier = Vec::new();
            boxes.each_touched(region, |other, _| earlier.extend((other < at).then_some(other)));
            earlier.sort_unstable();
            let mut left = vec![region.clone()];
            for (source, other) in
                earlier.into_iter().filter_map(|other| Some((other, boxes.regions().get(other)?)))
            {
                let mut rest = Vec::new();
                for part in left {
                    let Some(shared) = part.intersect(other) else {
                        rest.push(part);
                        continue;
                    };
                    push_difference(&part, &shared, &mut rest);
                    let (from, to) = (seen_from(&shared, other), seen_from(&shared, region));
                    wanted.copies.push(Copied { source, from, wanted: at, to });
                }
                left = rest;
            }
            wanted.reads.extend(left.into_iter().map(|part| (at, part)));
        }
        Ok(wanted)
    }

    /// The regions without duplicates.
    #[inline]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The index of the region of each device, or of each given region, in their original order.
    #[inline]
    pub fn region_of(&self) -> &[usize] {
        &self.of
    }

    /// The number of elements to read.
    #[inline]
    pub fn len_elements(&self) -> u64 {
        self.reads.iter().map(|(_, region)| region.len_elements()).sum()
    }

    fn distinct(all: Vec<Region>) -> Self {
        let mut numbers: HashMap<Region, usize> = HashMap::with_capacity(all.len());
        let mut wanted = Self::default();
        for region in all {
            let next = wanted.regions.len();
            let number = *numbers.entry(region.clone()).or_insert(next);
            if number == next {
                wanted.regions.push(region);
            }
            wanted.of.push(number);
        }
        wanted
    }
}

/// The steps with which a process gets its regions.
///
/// # Errors
/// `InvalidArgument` if a needed region exceeds the array.
pub fn plan(pieces: &Pieces, wanted: &Wanted) -> Result<Plan> {
    let mut steps = Vec::with_capacity(wanted.reads.len());
    for (number, read) in &wanted.reads {
        let Some(whole) = wanted.regions.get(*number) else { continue };
        pieces.each_touched(read, |piece, region| {
            if let Some(shared) = read.intersect(region) {
                let (from, to) = (seen_from(&shared, region), seen_from(&shared, whole));
                steps.push(Step { piece, from, wanted: *number, to });
            }
        })?;
    }
    // The sort is stable, so steps of one piece keep the order of the wanted regions.
    steps.sort_by_key(|step| step.piece);
    Ok(Plan { steps, copies: wanted.copies.clone() })
}

/// A region inside another, relative to the start of the outer one.
fn seen_from(region: &Region, outer: &Region) -> Region {
    let starts = region.starts().iter().zip(outer.starts()).map(|(start, from)| start.saturating_sub(*from));
    Region::from_parts(starts.collect(), region.lens().to_vec())
}

/// Appends `region` without `part` to `out`, as at most two regions for each axis.
fn push_difference(region: &Region, part: &Region, out: &mut Vec<Region>) {
    let (mut starts, mut lens) = (region.starts().to_vec(), region.lens().to_vec());
    for axis in 0..region.rank() {
        let (Some(start), Some(len)) = (starts.get(axis).copied(), lens.get(axis).copied()) else { return };
        let inner = part.starts().get(axis).zip(part.lens().get(axis));
        let Some((&inner_start, &inner_len)) = inner else { return };
        let ends = [(start, inner_start), (inner_start + inner_len, start + len)];
        for (start, end) in ends.into_iter().filter(|(start, end)| start < end) {
            set(&mut starts, &mut lens, axis, (start, end - start));
            out.push(Region::from_parts(starts.clone(), lens.clone()));
        }
        set(&mut starts, &mut lens, axis, (inner_start, inner_len));
    }
}

fn set(starts: &mut [u64], lens: &mut [u64], axis: usize, (new_start, new_len): (u64, u64)) {
    if let (Some(start), Some(len)) = (starts.get_mut(axis), lens.get_mut(axis)) {
        (*start, *len) = (new_start, new_len);
    }
}
