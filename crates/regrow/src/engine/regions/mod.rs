//! Reads regions of many leaves in one call: the regions of a process's devices, or of a rank.
//!
//! | a leaf is | its regions are read |
//! |---|---|
//! | raw | in the order of the blob, all regions of all leaves together: every block is read and checked once |
//! | raw, to be cast | the same, in bands of rows; a block in which two bands meet is read twice |
//! | in chunks | in bands of chunk rows; a chunk that several regions meet is decoded once, and copied to each |
//! | in any other encoding | in bands of rows; the layout decodes the rows that the regions span |
//!
//! A region that is requested several times is read once. Results have their own memory, never maps
//! of files, so the caller may write to them.

mod raw;
mod tiles;

use std::collections::HashMap;

use self::raw::{RawLeaf, read_raw};
use self::tiles::{Job, Origin, Tiles, cut_into_jobs};
use super::arena::Arena;
use super::{BUDGET_DEFAULT_BYTES, Checkpoint, RegionOptions};
use crate::array::{Array, Dtype, Region};
use crate::bytes::pages::Pages;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::ReaderExt;
use crate::monitor::Stage;
use crate::reads::{BlockTable, Checked, Extent, ReadOptions, Source};
use crate::threads::pool;
use crate::tree::LeafInfo;

/// The fewest threads that read and decode, as for whole leaves.
const THREADS_MIN: usize = 5;

/// Bytes without checksums are read in blocks of this length. A block is skipped if none of its
/// bytes is wanted.
const BLOCK_LEN_BYTES: u64 = 64 << 10;

/// A requested region of a leaf.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeafRegion {
    /// The leaf's position in flatten order.
    pub leaf: usize,
    /// The region, in elements of the leaf.
    pub region: Region,
    /// The dtype of the result; the stored dtype if `None`.
    pub dtype: Option<Dtype>,
}

impl Checkpoint {
    /// Reads regions of leaves, each into new memory. Equal regions share memory.
    ///
    /// In raw leaves that are not cast, every byte is read at most once. Blocks outside the regions
    /// are not read. In leaves with chunks, each chunk that the regions meet is decoded once.
    ///
    /// # Errors
    /// `InvalidArgument` if a leaf is not an array or a region exceeds it; `Mismatch` for a cast of
    /// elements that are not numbers; `Corrupt` with file, leaf and offset.
    pub fn load_regions(&self, wanted: &[LeafRegion], options: &RegionOptions) -> Result<Vec<Array>> {
        let distinct = Distinct::of(wanted);
        let mut arena = Arena::default();
        for want in &distinct.first {
            let (_, len_bytes) = self.check_region(want)?;
            arena.add(len_bytes).map_err(|error| self.of_leaf(want.leaf, error))?;
        }
        let pages = arena.pages();
        pages.made_during(|| self.watch_regions(&distinct.first, arena.slices(), options))?;
        let bytes = arena.into_bytes();
        let array = |(want, &at): (&LeafRegion, &usize)| {
            let dtype = want.dtype.map_or_else(|| self.info(want.leaf).map(|info| info.dtype), Ok)?;
            Array::new(dtype, want.region.shape(), bytes.get(at).cloned().unwrap_or_default())
        };
        wanted.iter().zip(&distinct.places).map(array).collect()
    }

    /// Reads regions of leaves into memory of the caller. `outs` has a slice for each region,
    /// exactly as long as its bytes. The bytes are in C order, little endian.
    ///
    /// # Errors
    /// The errors of [`load_regions`](Self::load_regions); `Mismatch` if a slice has another
    /// length. After an error the contents of all slices are unspecified.
    pub fn load_regions_into(
        &self,
        wanted: &[LeafRegion],
        mut outs: Vec<&mut [u8]>,
        options: &RegionOptions,
    ) -> Result<()> {
        if wanted.len() != outs.len() {
            return Err(Error::invalid("a load of regions needs a destination for each")
                .expected(wanted.len(), outs.len()));
        }
        for (want, out) in wanted.iter().zip(&outs) {
            let (_, len_bytes) = self.check_region(want)?;
            if len_bytes != out.len() as u64 {
                let error = Error::new(ErrorKind::Mismatch, "a destination does not fit its region");
                let error = error.expected(format_args!("{len_bytes} bytes"), out.len());
                return Err(self.of_leaf(want.leaf, error));
            }
        }
        let distinct = Distinct::of(wanted);
        let mut is_first = vec![true; distinct.first.len()];
        let mut firsts = Vec::with_capacity(distinct.first.len());
        let mut others = Vec::new();
        for (out, &place) in outs.iter_mut().zip(&distinct.places) {
            match is_first.get_mut(place) {
                Some(is_first) if *is_first => {
                    *is_first = false;
                    firsts.push(&mut **out);
                }
                _ => others.push((place, &mut **out)),
            }
        }
        // Make pages only for memory that the caller has not touched yet.
        let pages = Pages::of_all(firsts.iter().map(|out| &**out));
        let slices = firsts.iter_mut().map(|out| &mut **out).collect();
        pages.made_during(|| self.watch_regions(&distinct.first, slices, options))?;
        for (place, out) in others {
            out.copy_from_slice(firsts.get(place).map_or(&[][..], |first| first));
        }
        Ok(())
    }

    fn check_region(&self, want: &LeafRegion) -> Result<(&LeafInfo, u64)> {
        let info = self.info(want.leaf)?;
        let dtype = want.dtype.unwrap_or(info.dtype);
        let checked = if !info.kind.is_array() {
            Err(Error::invalid(format!("a leaf of kind {} has no elements", info.kind.name())))
        } else if dtype != info.dtype && !info.kind.is_castable() {
            Err(Error::new(ErrorKind::Mismatch, format!("a leaf of kind {} is not cast", info.kind.name()))
                .expected(info.dtype, dtype))
        } else if !want.region.is_inside(&info.shape) {
            Err(Error::invalid("the region is outside the array").expected(&info.shape, &want.region))
        } else {
            want.region.shape().len_bytes(dtype)
        };
        checked.map(|len| (info, len)).map_err(|error| self.of_leaf(want.leaf, error.in_file(self.path())))
    }

    pub(super) fn of_leaf(&self, leaf: usize, error: Error) -> Error {
        error.at_leaf(&self.tree().path_of(leaf))
    }

    fn watch_regions(
        &self,
        wanted: &[LeafRegion],
        outs: Vec<&mut [u8]>,
        options: &RegionOptions,
    ) -> Result<()> {
        let monitor = &options.monitor;
        let running = monitor.begin();
        let read = running.and_then(|_running| {
            monitor.timed(Stage::Read, 0, || self.unless_replaced(self.read_regions(wanted, outs, options)))
        });
        monitor.conclude(read)
    }

    fn read_regions(
        &self,
        wanted: &[LeafRegion],
        outs: Vec<&mut [u8]>,
        options: &RegionOptions,
    ) -> Result<()> {
        self.check_unverified(options.unverified)?;
        let monitor = &options.monitor;
        monitor.expect(outs.iter().map(|out| out.len() as u64).sum());
        monitor.enter(Stage::Read);
        let sources = self.sources_of(wanted, options)?;
        let mut outs: Vec<Option<&mut [u8]>> = outs.into_iter().map(Some).collect();
        let how = ReadOptions { verified: !options.unverified, direct: true };
        let mut raw: Vec<(RawLeaf<'_>, Vec<usize>)> = Vec::new();
        let mut jobs: Vec<Job<'_, '_>> = Vec::new();
        for source in &sources {
            let info = self.info(source.leaf)?;
            let leaf = source
                .extent()
                .and_then(|extent| RawLeaf::of(source.leaf, info, extent, source.table.as_ref()));
            for (dtype, regions) in by_dtype(wanted, &source.wanted, info.dtype) {
                if let Some(leaf) = leaf.as_ref().filter(|_| dtype == info.dtype) {
                    raw.push((leaf.clone(), regions));
                    continue;
                }
                let origin = match (&leaf, &source.source) {
                    (Some(leaf), _) => Origin::Raw(leaf.clone()),
                    (None, Source::Memory(bytes)) => Origin::Memory(bytes),
                    _ => Origin::Layout(self.reader()),
                };
                let tiles = Tiles::of(source.leaf, info, (dtype, options.casting), &source.source, origin);
                let take = |at: usize| {
                    let out = outs.get_mut(at).and_then(Option::take)?;
                    Some((wanted.get(at)?.region.clone(), out))
                };
                cut_into_jobs(&tiles, regions.into_iter().filter_map(take).collect(), &mut jobs)?;
            }
        }
        let named = |leaf, error: Error| self.of_leaf(leaf, error);
        let mut raw_outs: Vec<&mut [u8]> = Vec::new();
        let mut leaves = Vec::with_capacity(raw.len());
        for (mut leaf, regions) in raw {
            for at in regions {
                if let (Some(out), Some(want)) = (outs.get_mut(at).and_then(Option::take), wanted.get(at)) {
                    leaf.regions.push((want.region.clone(), raw_outs.len()));
                    raw_outs.push(out);
                }
            }
            leaves.push(leaf);
        }
        read_raw(leaves, &mut raw_outs, how, Some(monitor), &named)?;
        let budget_bytes = options.budget_bytes.unwrap_or(BUDGET_DEFAULT_BYTES);
        let threads = if jobs.len() < 2 { 1 } else { pool::thread_count().max(THREADS_MIN) };
        pool::for_each_parallel(threads, jobs, budget_bytes, Job::cost_bytes, |job| {
            let (leaf, len_bytes) = (job.leaf(), job.len_bytes());
            job.run(how).map_err(|error| named(leaf, error))?;
            monitor.done(Stage::Read, len_bytes)
        })?;
        monitor.finish()
    }

    /// The sources of the wanted leaves, in disk order. A leaf under one checksum is checked before
    /// any part of it is read.
    fn sources_of(&self, wanted: &[LeafRegion], options: &RegionOptions) -> Result<Vec<Located<'_>>> {
        let mut by_leaf: HashMap<usize, Vec<usize>> = HashMap::with_capacity(wanted.len());
        for (at, want) in wanted.iter().enumerate().filter(|(_, want)| !want.region.is_empty()) {
            by_leaf.entry(want.leaf).or_default().push(at);
        }
        let mut order: Vec<usize> = by_leaf.keys().copied().collect();
        self.sort_by_place(&mut order);
        let located = |leaf: usize| {
            let info = self.info(leaf)?;
            let wanted_here = by_leaf.remove(&leaf).unwrap_or_default();
            let whole = Region::whole(&info.shape);
            let is_part = |&at: &usize| wanted.get(at).is_some_and(|want| want.region != whole);
            if !options.unverified && wanted_here.iter().any(is_part) {
                self.reader().check_before_part(leaf).map_err(|error| self.of_leaf(leaf, error))?;
            }
            let source = self.reader().source(leaf).map_err(|error| self.of_leaf(leaf, error))?;
            let table = match &source {
                Source::Raw(extent) if extent.checks.is_none() => {
                    let end = extent.offset_bytes.saturating_add(extent.len_bytes);
                    Some(BlockTable::without_checksums(extent.offset_bytes..end, BLOCK_LEN_BYTES))
                }
                _ => None,
            };
            Ok(Located { leaf, source, table, wanted: wanted_here })
        };
        order.into_iter().map(located).collect()
    }
}

/// A leaf with requested regions, and the source of its bytes.
struct Located<'r> {
    leaf: usize,
    source: Source<'r>,
    /// The block table, if the leaf is raw without checksums.
    table: Option<BlockTable>,
    wanted: Vec<usize>,
}

impl<'r> Located<'r> {
    fn extent(&self) -> Option<&Extent<'r>> {
        match &self.source {
            Source::Raw(extent) => Some(extent),
            _ => None,
        }
    }
}

/// The regions of one leaf, grouped by the dtype of the result.
fn by_dtype(wanted: &[LeafRegion], of_leaf: &[usize], stored: Dtype) -> Vec<(Dtype, Vec<usize>)> {
    let mut groups: Vec<(Dtype, Vec<usize>)> = Vec::new();
    for &at in of_leaf {
        let dtype = wanted.get(at).and_then(|want| want.dtype).unwrap_or(stored);
        match groups.iter_mut().find(|(known, _)| *known == dtype) {
            Some((_, group)) => group.push(at),
            None => groups.push((dtype, vec![at])),
        }
    }
    groups
}

/// The requested regions without repetitions.
struct Distinct {
    first: Vec<LeafRegion>,
    places: Vec<usize>,
}

impl Distinct {
    fn of(wanted: &[LeafRegion]) -> Self {
        let mut known: HashMap<&LeafRegion, usize> = HashMap::with_capacity(wanted.len());
        let (mut first, mut places) = (Vec::new(), Vec::with_capacity(wanted.len()));
        for want in wanted {
            let place = *known.entry(want).or_insert(first.len());
            if place == first.len() {
                first.push(want.clone());
            }
            places.push(place);
        }
        Self { first, places }
    }
}

impl<'e> RawLeaf<'e> {
    /// A leaf that has no requests yet. `table` divides the leaf into blocks if it has no
    /// checksums.
    fn of(
        leaf: usize,
        info: &'e LeafInfo,
        extent: &'e Extent<'_>,
        table: Option<&'e BlockTable>,
    ) -> Option<Self> {
        let unchecked = table.map(|table| Checked { blob: &*extent.blob, table });
        let checked = extent.checked().or(unchecked)?;
        let offset_bytes = extent.offset_bytes;
        Some(Self { leaf, checked, offset_bytes, shape: &info.shape, dtype: info.dtype, regions: Vec::new() })
    }
}
