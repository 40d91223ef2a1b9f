//! The only executor of load plans: it checks and returns views, and reads all other leaves into
//! their destination.

use std::cmp::Reverse;
use std::ops::Range;

use super::band::{BAND_LEN_BYTES, cut_into_bands};
use super::plan::{Destination, How, Plan, Step};
use crate::array::Array;
use crate::bytes::limits::allocate;
use crate::engine::arena::Arena;
use crate::engine::{BUDGET_DEFAULT_BYTES, Checkpoint, LoadOptions};
use crate::error::{Error, Result};
use crate::monitor::Stage;
use crate::reads::{CheckFor, Checked, Extent, Part, ReadOptions, Text, check_ahead, fill};
use crate::threads::pool;
use crate::tree::{Leaf, LeafData, LeafInfo};

/// The fewest threads that read and decode, if all bands together have at least `BAND_LEN_BYTES`.
/// On two processors, two threads decode while the other threads wait for the disk.
const THREADS_MIN: usize = 5;

/// The data of every leaf of the checkpoint; `None` for leaves not loaded.
type Loaded = Vec<Option<LeafData>>;

impl Checkpoint {
    /// Reads the `wanted` leaves into their destinations in `outs`, or into new memory. The result
    /// has an entry for every leaf of the checkpoint.
    pub(super) fn read_all(
        &self,
        wanted: &[usize],
        options: &LoadOptions,
        outs: Vec<Option<&mut [u8]>>,
    ) -> Result<Vec<Option<Leaf>>> {
        let is_given = |leaf: usize| matches!(outs.get(leaf), Some(Some(_)));
        let mut is_read = vec![true; self.tree().len()];
        for &leaf in &options.unread {
            if let Some(is_read) = is_read.get_mut(leaf) {
                *is_read = false;
            }
        }
        let (wanted, unread): (Vec<usize>, Vec<usize>) =
            wanted.iter().partition(|&&leaf| is_read.get(leaf) == Some(&true));
        let plan = Plan::of(self, &wanted, options, &is_given)?;
        options.monitor.expect(plan.wanted_bytes);
        options.monitor.enter(Stage::Read);
        let mut loaded: Loaded = vec![None; self.tree().len()];
        for portion in &plan.portions {
            let steps = plan.steps.get(portion.clone()).unwrap_or_default();
            self.hand_out_views(steps, options, &mut loaded)?;
        }
        self.read_into_memory(&plan, options, outs, &mut loaded)?;
        options.monitor.finish()?;
        for leaf in unread {
            if let Some(slot) = loaded.get_mut(leaf) {
                *slot = Some(LeafData::Absent);
            }
        }
        let leaf = |(info, data): (&LeafInfo, Option<LeafData>)| {
            data.map(|data| Leaf { kind: info.kind.clone(), data, sharding: info.sharding.clone() })
        };
        Ok(self.tree().leaves().iter().zip(loaded).map(leaf).collect())
    }

    /// Checks the views of one portion together, and stores the leaves that need no read in
    /// `loaded`.
    fn hand_out_views(&self, steps: &[Step<'_>], options: &LoadOptions, loaded: &mut Loaded) -> Result<()> {
        let monitor = &options.monitor;
        if !options.unverified {
            let views = steps.iter().filter_map(|step| step.view()).filter_map(short_blocks);
            check_ahead(views, CheckFor::Views, Some(monitor))?;
        }
        for step in steps {
            let at = |error: Error| error.at_leaf(&self.tree().path_of(step.leaf));
            let Some(info) = self.tree().leaves().get(step.leaf) else { continue };
            let array = |bytes| Array::new(info.dtype, info.shape.clone(), bytes).map(LeafData::Array);
            let data = match &step.how {
                How::Blocks(_) | How::Bands(_) if step.to == Destination::Given => LeafData::Absent,
                How::Blocks(_) | How::Bands(_) => continue,
                How::Nothing => LeafData::Absent,
                How::Unreadable(unreadable) => {
                    unreadable.seal.check().map_err(at)?;
                    return Err(at(unreadable.why.duplicate()));
                }
                How::Text(Text::Known(text)) => LeafData::Text((*text).clone()),
                How::Text(Text::Stored(extent)) => LeafData::Text(extent.read_text().map_err(at)?),
                How::View(extent, view) => {
                    let is_counted = !options.unverified && short_blocks(extent).is_some();
                    if !options.unverified {
                        extent.check(CheckFor::Views).map_err(at)?;
                    }
                    if !is_counted {
                        monitor.done(Stage::Read, info.len_bytes())?;
                    }
                    array(view.clone())?
                }
                How::Memory(bytes) => {
                    monitor.done(Stage::Read, info.len_bytes())?;
                    array(bytes.clone())?
                }
            };
            if let Some(slot) = loaded.get_mut(step.leaf) {
                *slot = Some(data);
            }
        }
        Ok(())
    }

    fn read_into_memory(
        &self,
        plan: &Plan<'_>,
        options: &LoadOptions,
        outs: Vec<Option<&mut [u8]>>,
        loaded: &mut Loaded,
    ) -> Result<()> {
        let infos = self.tree().leaves();
        let (mut fresh, mut paged) = (Arena::default(), Arena::default());
        for (step, info) in plan.steps.iter().filter_map(|step| Some((step, infos.get(step.leaf)?))) {
            let at = |error: Error| error.at_leaf(&self.tree().path_of(step.leaf));
            let arena = match step.to {
                Destination::Stay | Destination::Given => continue,
                Destination::Fresh => &mut fresh,
                Destination::Paged => &mut paged,
            };
            let len_bytes = info.shape.len_bytes(step.dtype).map_err(at)?;
            arena.add(len_bytes).map_err(at)?;
        }
        let pages = paged.pages();
        let mut places =
            Places { outs, fresh: fresh.slices().into_iter(), paged: paged.slices().into_iter() };
        let read = plan.steps.iter().filter_map(|step| Some((step, places.of(step)?))).collect();
        pages.made_during(|| self.fill(read, options))?;
        let (mut fresh, mut paged) = (fresh.into_bytes().into_iter(), paged.into_bytes().into_iter());
        for step in &plan.steps {
            let bytes = match step.to {
                Destination::Stay | Destination::Given => continue,
                Destination::Fresh => fresh.next(),
                Destination::Paged => paged.next(),
            };
            if let (Some(bytes), Some(info), Some(slot)) =
                (bytes, infos.get(step.leaf), loaded.get_mut(step.leaf))
            {
                *slot = Some(LeafData::Array(Array::new(step.dtype, info.shape.clone(), bytes)?));
            }
        }
        Ok(())
    }

    /// Fills the destinations of steps: first by blocks, then in bands.
    fn fill(&self, steps: Vec<(&Step<'_>, &mut [u8])>, options: &LoadOptions) -> Result<()> {
        let infos = self.tree().leaves();
        let (mut blocks, mut bands) = (Vec::new(), Vec::new());
        for (step, out) in steps {
            let Some(info) = infos.get(step.leaf) else { continue };
            match &step.how {
                How::Blocks(extent) => blocks.extend(wanted(step.leaf, extent, out)),
                How::Bands(working_len_bytes) => {
                    let how = (step.dtype, options.casting, *working_len_bytes);
                    cut_into_bands(self.reader(), step.leaf, info, how, out, &mut bands)?;
                }
                _ => {}
            }
        }
        let how = ReadOptions { verified: !options.unverified, direct: true };
        let named = |leaf, error: Error| error.at_leaf(&self.tree().path_of(leaf));
        fill(blocks, how, Some(&options.monitor), named)?;
        // Read long bands first, so that the other threads do not wait for them at the end. The
        // other bands follow in disk order.
        bands.sort_by_key(|band| Reverse(band.is_long()));
        let wanted_bytes: u64 = bands.iter().map(|band| band.out.len() as u64).sum();
        let threads_min = if wanted_bytes < BAND_LEN_BYTES { 1 } else { THREADS_MIN };
        let threads = pool::thread_count().max(threads_min);
        let budget_bytes = options.budget_bytes.unwrap_or(BUDGET_DEFAULT_BYTES);
        let cost =
            |band: &super::band::Band<'_>| infos.get(band.leaf).map_or(0, |info| band.cost_bytes(info));
        pool::for_each_parallel(threads, bands, budget_bytes, cost, |band| {
            let Some(info) = infos.get(band.leaf) else { return Ok(()) };
            let (leaf, len_bytes) = (band.leaf, band.stored_len_bytes(info));
            band.read(self.reader(), info).map_err(|error| named(leaf, error))?;
            options.monitor.done(Stage::Read, len_bytes)
        })
    }

    /// `None` if the leaf has no checksums of blocks.
    pub(in crate::engine) fn read_blocks(&self, leaf: usize, extent: &Extent<'_>) -> Result<Option<Vec<u8>>> {
        let Some(info) = self.tree().leaves().get(leaf) else { return Ok(None) };
        if extent.checks.is_none() || extent.len_bytes != info.len_bytes() {
            return Ok(None);
        }
        let mut out = allocate(info.len_bytes())?;
        let how = ReadOptions { verified: true, direct: true };
        fill(wanted(leaf, extent, &mut out), how, None, |_, error| error)?;
        Ok(Some(out))
    }
}

impl<'r> Step<'r> {
    fn view(&self) -> Option<&Extent<'r>> {
        match &self.how {
            How::View(extent, _) => Some(extent),
            _ => None,
        }
    }
}

/// The destinations that no step has taken yet, in the order of the steps.
struct Places<'o, F, P> {
    outs: Vec<Option<&'o mut [u8]>>,
    fresh: F,
    paged: P,
}

impl<'o, F, P> Places<'o, F, P>
where
    F: Iterator<Item = &'o mut [u8]>,
    P: Iterator<Item = &'o mut [u8]>,
{
    fn of(&mut self, step: &Step<'_>) -> Option<&'o mut [u8]> {
        match step.to {
            Destination::Stay => None,
            Destination::Given => self.outs.get_mut(step.leaf).and_then(Option::take),
            Destination::Fresh => self.fresh.next(),
            Destination::Paged => self.paged.next(),
        }
    }
}

/// A blob, the range of its blocks that contain an extent, and the range of the extent's data.
type Ranges<'e> = (Checked<'e>, Range<u64>, Range<u64>);

/// An extent whose blocks are checked many at a time; `None` for other extents.
pub(in crate::engine) fn short_blocks<'e>(extent: &'e Extent<'_>) -> Option<Ranges<'e>> {
    let (checked, checks) = extent.checked().zip(extent.checks)?;
    let data = extent.offset_bytes..extent.offset_bytes.saturating_add(extent.len_bytes);
    checked.table.is_short().then_some((checked, checks.start_bytes..checks.end_bytes, data))
}

fn wanted<'e, 'a>(
    leaf: usize,
    extent: &'e Extent<'_>,
    out: &'a mut [u8],
) -> Option<(Checked<'e>, Range<u64>, Part<'a>)> {
    let (checked, checks) = extent.checked().zip(extent.checks)?;
    Some((
        checked,
        checks.start_bytes..checks.end_bytes,
        Part { offset_bytes: extent.offset_bytes, out, leaf },
    ))
}
