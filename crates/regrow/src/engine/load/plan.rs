//! The plan of a load, as data: the source and the destination of the bytes of each leaf, in disk
//! order.
//!
//! | a leaf | is loaded |
//! |---|---|
//! | raw, in a file without other writers | as a view of the map, checked first |
//! | the same, not in the page cache, if memory is free | into memory, without the page cache |
//! | raw, with checksums of blocks | block by block, into memory or into the caller's array |
//! | in any other encoding, or to be cast | in bands that the layout decodes |
//!
//! The plan examines maps and the page cache, but reads no data.

use std::cell::LazyCell;
use std::ops::Range;

use bytes::Bytes;

use crate::array::Dtype;
use crate::bytes::available::is_available;
use crate::engine::{Checkpoint, LoadOptions};
use crate::error::{Error, Result};
use crate::formats::Reader;
use crate::reads::{BlobRef, Extent, Source, Text, Unreadable};
use crate::store::LONG_LEN_MIN_BYTES;
use crate::tree::{LeafInfo, LeafKind};

/// Views are checked in portions of this many bytes before they are returned.
const AHEAD_LEN_BYTES: u64 = 256 << 20;

/// The work of a load. Steps are done in this order.
#[derive(Debug)]
pub(super) struct Plan<'r> {
    /// A step for each wanted leaf, in disk order.
    pub steps: Vec<Step<'r>>,
    pub portions: Vec<Range<usize>>,
    /// The stored bytes of all wanted leaves.
    pub wanted_bytes: u64,
}

/// The work for one leaf.
#[derive(Debug)]
pub(super) struct Step<'r> {
    pub leaf: usize,
    pub dtype: Dtype,
    pub how: How<'r>,
    pub to: Destination,
}

/// How a leaf is read.
#[derive(Debug)]
pub(super) enum How<'r> {
    Nothing,
    /// The leaf's data cannot be decoded. The step checks the data, and then returns an error.
    Unreadable(Unreadable<'r>),
    Text(Text<'r>),
    /// A view of the map, returned after its blocks have passed their checks.
    View(Extent<'r>, Bytes),
    Memory(Bytes),
    /// Read and check the blocks in the destination.
    Blocks(Extent<'r>),
    /// The layout decodes the leaf in bands. Each band needs this many bytes in addition to the
    /// result; if `None`, as many as the band.
    Bands(Option<u64>),
}

/// The destination of a leaf's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Destination {
    /// The bytes are not copied, or the leaf has no bytes.
    Stay,
    Given,
    /// New memory. Its pages are made at the first write.
    Fresh,
    /// New memory. Its pages are made in advance, because the disk is faster than page faults.
    Paged,
}

impl<'r> Plan<'r> {
    /// Plans to load the leaves `wanted`. `is_given` tells for which leaves the caller provides
    /// memory.
    pub fn of(
        checkpoint: &'r Checkpoint,
        wanted: &[usize],
        options: &LoadOptions,
        is_given: &dyn Fn(usize) -> bool,
    ) -> Result<Self> {
        let (reader, infos) = (checkpoint.reader(), checkpoint.tree().leaves());
        let order = in_order(reader, wanted);
        let wanted_bytes = sum_bytes(infos, order.iter().copied());
        checkpoint.check_unverified(options.unverified)?;
        let is_mapped = options.mapped || checkpoint.is_mapped();
        let has_views = is_mapped || checkpoint.has_views();
        let mut planner = Planner { checkpoint, options, has_views, map: None };
        let mut steps = Vec::with_capacity(order.len());
        for leaf in order {
            let Some(info) = infos.get(leaf) else { continue };
            // Only casts and errors need paths. Computing the paths of all leaves would take longer
            // than the opening.
            let step = planner.step(leaf, info, is_given(leaf));
            steps.push(step.map_err(|error| error.at_leaf(&checkpoint.tree().path_of(leaf)))?);
        }
        let mut plan = Self { steps, portions: Vec::new(), wanted_bytes };
        plan.portions = plan.cut_into_portions(infos);
        if has_views && !is_mapped && !options.unverified {
            plan.read_cold_views(infos);
        }
        plan.leave_overlaps(infos);
        Ok(plan)
    }

    fn cut_into_portions(&self, infos: &[LeafInfo]) -> Vec<Range<usize>> {
        let mut portions = Vec::new();
        let (mut start, mut len_bytes) = (0, 0_u64);
        for (at, step) in self.steps.iter().enumerate() {
            if len_bytes >= AHEAD_LEN_BYTES {
                portions.push(start..at);
                (start, len_bytes) = (at, 0);
            }
            len_bytes = len_bytes.saturating_add(infos.get(step.leaf).map_or(0, LeafInfo::len_bytes));
        }
        portions.push(start..self.steps.len());
        portions
    }

    /// Reads views that are not in the page cache into memory instead, portion by portion, if there
    /// is enough memory.
    fn read_cold_views(&mut self, infos: &[LeafInfo]) {
        let wanted_bytes = self.wanted_bytes;
        let has_room = LazyCell::new(|| is_available(wanted_bytes));
        for portion in self.portions.clone() {
            let steps = self.steps.get_mut(portion).unwrap_or_default();
            let views = steps.iter().filter(|step| step.is_view()).map(|step| step.leaf);
            let is_long = sum_bytes(infos, views) >= LONG_LEN_MIN_BYTES;
            if is_long && is_mostly_cold(steps) && *has_room {
                steps.iter_mut().for_each(Step::read_into_memory);
            }
        }
    }

    /// If two leaves have the same bytes, decodes the second one alone, because concurrent reads
    /// must not overlap. No layout writes such leaves, but a record may contain them.
    fn leave_overlaps(&mut self, infos: &[LeafInfo]) {
        let mut end: Option<(*const (), u64)> = None;
        for step in &mut self.steps {
            let (How::Blocks(extent), Some(info)) = (&step.how, infos.get(step.leaf)) else { continue };
            let Some(checks) = &extent.checks else { continue };
            let table = std::ptr::from_ref(checks.table).cast();
            let overlaps = end.is_some_and(|(last, end)| last == table && extent.offset_bytes < end);
            if overlaps || extent.len_bytes != info.len_bytes() {
                step.how = How::Bands(extent.working_len_bytes);
            } else {
                end = Some((table, extent.offset_bytes.saturating_add(extent.len_bytes)));
            }
        }
    }
}

/// Makes the step of each leaf.
struct Planner<'r, 'o> {
    checkpoint: &'r Checkpoint,
    options: &'o LoadOptions,
    has_views: bool,
    /// The map of the last blob. A run of leaves in one blob asks for it only once.
    map: Option<(*const (), Option<Bytes>)>,
}

impl<'r> Planner<'r, '_> {
    fn step(&mut self, leaf: usize, info: &LeafInfo, is_given: bool) -> Result<Step<'r>> {
        let reader = self.checkpoint.reader();
        let stay = |how| Step { leaf, dtype: info.dtype, how, to: Destination::Stay };
        Ok(match info.kind {
            LeafKind::Placeholder => stay(How::Nothing),
            LeafKind::Str => match reader.source(leaf)? {
                Source::Text(text) => stay(How::Text(text)),
                _ => return Err(Error::invalid("the leaf is not text")),
            },
            LeafKind::Unknown(_) => match reader.source(leaf)? {
                Source::Unreadable(unreadable) => stay(How::Unreadable(unreadable)),
                _ => stay(How::Nothing),
            },
            _ => {
                let cast = self.checkpoint.cast_of(leaf, info, self.options).filter(|&to| to != info.dtype);
                let how = self.array(reader.source(leaf)?, is_given || cast.is_some(), cast.is_some())?;
                let to = match &how {
                    How::View(..) | How::Memory(_) => Destination::Stay,
                    _ if is_given => Destination::Given,
                    _ => Destination::Fresh,
                };
                Step { leaf, dtype: cast.unwrap_or(info.dtype), how, to }
            }
        })
    }

    /// How to read an array. `is_moved` is true if the array must be copied, `is_cast` if the array
    /// must be cast.
    fn array(&mut self, source: Source<'r>, is_moved: bool, is_cast: bool) -> Result<How<'r>> {
        Ok(match source {
            Source::Raw(extent) if is_cast => How::Bands(extent.working_len_bytes),
            Source::Raw(extent) => match if is_moved { None } else { self.view(&extent)? } {
                Some(view) => How::View(extent, view),
                None => in_memory(extent),
            },
            Source::Memory(bytes) if self.has_views && !is_moved => How::Memory(bytes),
            Source::Coded(coded) => How::Bands(coded.working_len_bytes),
            _ => How::Bands(None),
        })
    }

    /// The view of an extent; `None` if the extent cannot be mapped, or if the file has other
    /// writers. If a writer changed the file, the elements of the view would change. If a writer
    /// truncated the file, a read of the view would end the process.
    fn view(&mut self, extent: &Extent<'r>) -> Result<Option<Bytes>> {
        let blob = match extent.blob {
            _ if !self.has_views => return Ok(None),
            BlobRef::Kept(blob) if extent.is_viewable && extent.len_bytes > 0 => blob,
            _ => return extent.view(),
        };
        let key = std::ptr::from_ref(blob).cast();
        if self.map.as_ref().is_none_or(|(known, _)| *known != key) {
            self.map = Some((key, blob.map()?));
        }
        let map = self.map.as_ref().and_then(|(_, map)| map.as_ref());
        map.map(|map| extent.view_of(map)).transpose()
    }
}

impl Step<'_> {
    fn is_view(&self) -> bool {
        matches!(self.how, How::View(..) | How::Memory(_))
    }

    /// Changes a step that returns a view with bytes into a read.
    fn read_into_memory(&mut self) {
        let how = std::mem::replace(&mut self.how, How::Nothing);
        (self.how, self.to) = match how {
            How::View(extent, _) if extent.len_bytes > 0 => (in_memory(extent), Destination::Paged),
            How::Memory(bytes) if !bytes.is_empty() => (How::Bands(None), Destination::Paged),
            how => (how, self.to),
        };
    }
}

/// How to read raw data: by blocks if it has checksums, otherwise in bands of the layout.
fn in_memory(extent: Extent<'_>) -> How<'_> {
    if extent.checks.is_some() { How::Blocks(extent) } else { How::Bands(extent.working_len_bytes) }
}

fn in_order(reader: &dyn Reader, wanted: &[usize]) -> Vec<usize> {
    let mut is_wanted = vec![false; reader.tree().len()];
    for &leaf in wanted {
        if let Some(slot) = is_wanted.get_mut(leaf) {
            *slot = true;
        }
    }
    let mut order = reader.read_order();
    order.retain(|&leaf| is_wanted.get(leaf) == Some(&true));
    order
}

/// Whether most of these neighbouring views are not in the page cache. Tests a few of them.
fn is_mostly_cold(steps: &[Step<'_>]) -> bool {
    let views: Vec<&How<'_>> = steps.iter().filter(|step| step.is_view()).map(|step| &step.how).collect();
    let last = views.len().saturating_sub(1);
    let looks = [0, last / 4, last / 2, last / 4 * 3, last];
    let is_cached = |how: &&How<'_>| !matches!(how, How::View(extent, _) if !extent.is_cached());
    let cached = looks.iter().filter_map(|&at| views.get(at).copied()).filter(is_cached).count();
    !views.is_empty() && cached < looks.len().div_ceil(2)
}

fn sum_bytes(infos: &[LeafInfo], leaves: impl Iterator<Item = usize>) -> u64 {
    leaves.filter_map(|leaf| infos.get(leaf)).map(LeafInfo::len_bytes).fold(0, u64::saturating_add)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
