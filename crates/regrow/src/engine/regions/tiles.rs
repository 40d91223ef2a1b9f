//! Reads regions of a leaf if the leaf is encoded or in memory, or if the read casts it. The
//! regions are divided into bands of chunk rows, and each band into groups that share chunks.
//!
//! ```text
//! chunks    | 0 | 1 | 2 | 3 |     region A: columns of chunk 0 and half of 1, B: the other half of 1, C: 3
//! A, B      read chunk by chunk, each chunk once, and copied to both
//! C         alone: decoded directly into its destination
//! ```

use std::collections::BTreeMap;

use bytes::Bytes;

use super::raw::{RawLeaf, read_raw};
use crate::array::{Casting, Dtype, Region, Shape, copy_region};
use crate::engine::arena::Arena;
use crate::error::Result;
use crate::formats::Reader;
use crate::reads::{ReadOptions, Source};
use crate::sharding::{Grid, Pieces, Step, Wanted, plan};
use crate::tree::LeafInfo;

/// Bytes of a band, unless one row of chunks is longer. The same as for whole leaves.
const BAND_LEN_BYTES: u64 = 8 << 20;

/// The longest shard (file of several chunks) that is read with one read, as the reader does if it
/// needs all of the shard.
const SHARD_LEN_MAX_BYTES: u64 = 8 << 20;

/// The source of the elements.
#[derive(Clone)]
pub(super) enum Origin<'e> {
    Layout(&'e dyn Reader),
    Memory(&'e Bytes),
    Raw(RawLeaf<'e>),
}

/// The chunks of a leaf, and how its regions are read.
#[derive(Clone)]
pub(super) struct Tiles<'e> {
    leaf: usize,
    info: &'e LeafInfo,
    dtype: Dtype,
    casting: Casting,
    origin: Origin<'e>,
    /// The shape of a tile, which can only be decoded as a whole; `None` if any part can be
    /// decoded.
    tile: Option<Vec<u64>>,
    /// Memory that decoding needs; if `None`, as much as the part.
    working_len_bytes: Option<u64>,
}

impl<'e> Tiles<'e> {
    pub fn of(
        leaf: usize,
        info: &'e LeafInfo,
        (dtype, casting): (Dtype, Casting),
        source: &Source<'_>,
        origin: Origin<'e>,
    ) -> Self {
        let working_len_bytes = match source {
            Source::Raw(extent) => extent.working_len_bytes,
            Source::Coded(coded) => coded.working_len_bytes,
            _ => None,
        };
        let fits = |shape: &&Shape| shape.len_bytes(info.dtype).is_ok_and(|len| len <= SHARD_LEN_MAX_BYTES);
        let shard = info.write_shape.as_ref().filter(|_| info.chunk_shape.is_some()).filter(fits);
        let tile = match &origin {
            Origin::Layout(_) => shard.or(info.chunk_shape.as_ref()),
            Origin::Memory(_) | Origin::Raw(_) => None,
        };
        let tile = tile.filter(|tile| tile.rank() == info.shape.rank());
        let tile = tile.map(|tile| tile.dims().iter().map(|&dim| dim.max(1)).collect());
        Self { leaf, info, dtype, casting, origin, tile, working_len_bytes }
    }

    /// The axis along which bands are divided, and the number of indices in a band.
    fn rows(&self) -> Option<(usize, u64)> {
        let dims = self.info.shape.dims();
        let axis = dims.iter().position(|&dim| dim != 1)?;
        let rows = *dims.get(axis)?;
        let row_len_bytes = self.info.len_bytes() / rows.max(1);
        let tile_rows = self.tile.as_ref().and_then(|tile| tile.get(axis).copied()).unwrap_or(1);
        let wanted = (BAND_LEN_BYTES / row_len_bytes.max(1)).max(1);
        Some((axis, wanted.div_ceil(tile_rows).saturating_mul(tile_rows)))
    }

    fn cast(&self, source: &[u8], out: &mut [u8]) -> Result<()> {
        self.casting.cast(source, self.info.dtype, self.dtype, out)
    }

    /// The smallest region of whole tiles that contains `region`.
    fn hull(&self, region: &Region) -> Result<Region> {
        let Some(tile) = &self.tile else { return Ok(region.clone()) };
        let axes = region.starts().iter().zip(region.lens()).zip(tile).zip(self.info.shape.dims());
        let (starts, lens) = axes
            .map(|(((&start, &len), &tile), &dim)| {
                let first = start / tile * tile;
                let end = (start + len).div_ceil(tile).saturating_mul(tile).min(dim);
                (first, end - first)
            })
            .unzip::<u64, u64, Vec<_>, Vec<_>>();
        Region::new(starts, lens)
    }
}

type Parts<'a> = Vec<(Region, &'a mut [u8])>;

/// Parts of a leaf that one thread reads.
pub(super) struct Job<'e, 'a> {
    tiles: Tiles<'e>,
    parts: Parts<'a>,
}

/// Divides regions of a leaf into jobs. No two jobs decode the same chunk.
pub(super) fn cut_into_jobs<'e, 'a>(
    tiles: &Tiles<'e>,
    regions: Parts<'a>,
    jobs: &mut Vec<Job<'e, 'a>>,
) -> Result<()> {
    let Some((axis, rows)) = tiles.rows() else {
        jobs.push(Job { tiles: tiles.clone(), parts: regions });
        return Ok(());
    };
    let mut bands: BTreeMap<u64, Parts<'a>> = BTreeMap::new();
    for (region, out) in regions {
        let (Some(&start), Some(&len)) = (region.starts().get(axis), region.lens().get(axis)) else {
            continue;
        };
        let row_len_bytes = out.len() / (len.max(1) as usize);
        let (mut rest, mut row) = (out, start);
        while row < start + len {
            let band = row / rows;
            let end = ((band + 1).saturating_mul(rows)).min(start + len);
            let (now, later) = rest.split_at_mut((end - row) as usize * row_len_bytes);
            let (mut starts, mut lens) = (region.starts().to_vec(), region.lens().to_vec());
            if let (Some(start), Some(len)) = (starts.get_mut(axis), lens.get_mut(axis)) {
                (*start, *len) = (row, end - row);
            }
            bands.entry(band).or_default().push((Region::new(starts, lens)?, now));
            (rest, row) = (later, end);
        }
    }
    for parts in bands.into_values() {
        for parts in apart(tiles, parts)? {
            jobs.push(Job { tiles: tiles.clone(), parts });
        }
    }
    Ok(())
}

/// Groups the parts so that no two groups share a chunk. If the leaf has no chunks, all parts are
/// one group.
fn apart<'a>(tiles: &Tiles<'_>, parts: Parts<'a>) -> Result<Vec<Parts<'a>>> {
    if tiles.tile.is_none() {
        return Ok(vec![parts]);
    }
    let mut sets: Vec<(Vec<Region>, Parts<'a>)> = Vec::new();
    for part in parts {
        let hull = tiles.hull(&part.0)?;
        let meets =
            |set: &(Vec<Region>, Parts<'a>)| set.0.iter().any(|other| other.intersect(&hull).is_some());
        let (met, others): (Vec<_>, Vec<_>) = sets.into_iter().partition(meets);
        sets = others;
        let (mut hulls, mut joined) = (vec![hull], vec![part]);
        for (more_hulls, more) in met {
            hulls.extend(more_hulls);
            joined.extend(more);
        }
        sets.push((hulls, joined));
    }
    Ok(sets.into_iter().map(|(_, parts)| parts).collect())
}

impl Job<'_, '_> {
    pub fn leaf(&self) -> usize {
        self.tiles.leaf
    }

    pub fn len_bytes(&self) -> u64 {
        self.parts.iter().map(|(_, out)| out.len() as u64).sum()
    }

    fn source_len_bytes(&self) -> u64 {
        self.parts.iter().map(|(region, _)| region.len_elements()).sum::<u64>()
            * self.tiles.info.dtype.size_bytes() as u64
    }

    pub fn cost_bytes(&self) -> u64 {
        let working = self.tiles.working_len_bytes.unwrap_or_else(|| self.source_len_bytes());
        if self.is_alone() && self.tiles.dtype == self.tiles.info.dtype {
            return working;
        }
        let tile = self.tiles.tile.as_ref().map(|tile| {
            tile.iter().fold(self.tiles.info.dtype.size_bytes() as u64, |len, &dim| len.saturating_mul(dim))
        });
        let held = if self.is_alone() { None } else { tile };
        working.saturating_add(held.unwrap_or_else(|| self.source_len_bytes()))
    }

    fn is_alone(&self) -> bool {
        self.parts.len() == 1
    }

    pub fn run(mut self, how: ReadOptions) -> Result<()> {
        let Self { tiles, parts } = &mut self;
        let (stored, dtype) = (tiles.info.dtype, tiles.dtype);
        match (&tiles.origin, &mut parts[..]) {
            (Origin::Raw(leaf), parts) => read_and_cast(leaf, tiles, parts, how),
            (Origin::Memory(bytes), parts) => parts.iter_mut().try_for_each(|(region, out)| {
                let place = (region.shape(), vec![0; region.rank()]);
                let shape = &tiles.info.shape;
                if stored == dtype {
                    return copy_region(stored.size_bytes(), bytes, shape, region, out, &place.0, &place.1);
                }
                with_memory(region.shape().len_bytes(stored)?, |source| {
                    copy_region(stored.size_bytes(), bytes, shape, region, source, &place.0, &place.1)?;
                    tiles.cast(source, out)
                })
            }),
            (Origin::Layout(reader), [(region, out)]) => {
                if stored == dtype {
                    return reader.read_region(tiles.leaf, region, out);
                }
                with_memory(region.shape().len_bytes(stored)?, |source| {
                    reader.read_region(tiles.leaf, region, source)?;
                    tiles.cast(source, out)
                })
            }
            (Origin::Layout(reader), parts) => read_shared(*reader, tiles, parts),
        }
    }
}

/// Reads parts that share tiles. Each tile, and each overlap of two parts, is read once.
fn read_shared(reader: &dyn Reader, tiles: &Tiles<'_>, parts: &mut [(Region, &mut [u8])]) -> Result<()> {
    let shape = &tiles.info.shape;
    let tile = tiles.tile.clone().map_or_else(|| Ok(shape.clone()), Shape::new)?;
    let pieces = Pieces::grid(Grid::of_chunks(shape, &tile)?);
    let wanted = Wanted::of_regions(parts.iter().map(|(region, _)| region.clone()))?;
    let plan = plan(&pieces, &wanted)?;
    // Each region of the plan is read into its first part, and copied to equal parts.
    let mut first = vec![None; wanted.regions().len()];
    let mut equal = Vec::new();
    for (part, &number) in wanted.region_of().iter().enumerate() {
        match first.get_mut(number) {
            Some(Some(first)) => equal.push((*first, part)),
            Some(first) => *first = Some(part),
            None => {}
        }
    }
    let part_of = |number: usize| first.get(number).copied().flatten();
    for steps in plan.steps.chunk_by(|one, other| one.piece == other.piece) {
        let to = steps.iter().filter_map(|step| Some((step, part_of(step.wanted)?)));
        read_tile(reader, tiles, to, parts)?;
    }
    let size_bytes = tiles.dtype.size_bytes();
    for copied in &plan.copies {
        let (Some(source), Some(target)) = (part_of(copied.source), part_of(copied.wanted)) else { continue };
        let Ok([(held, from), (region, to)]) = parts.get_disjoint_mut([source, target]) else { continue };
        copy_region(size_bytes, from, &held.shape(), &copied.from, to, &region.shape(), copied.to.starts())?;
    }
    for (source, target) in equal {
        if let Ok([(_, from), (_, to)]) = parts.get_disjoint_mut([source, target]) {
            to.copy_from_slice(from);
        }
    }
    Ok(())
}

/// Reads the wanted regions of one tile once, and copies them to each part.
fn read_tile<'p>(
    reader: &dyn Reader,
    tiles: &Tiles<'_>,
    steps: impl Iterator<Item = (&'p Step, usize)>,
    parts: &mut [(Region, &mut [u8])],
) -> Result<()> {
    // The positions of the plan's steps in the array.
    let mut placed = Vec::new();
    for (step, part) in steps {
        let Some((region, _)) = parts.get(part) else { continue };
        let starts = step.to.starts().iter().zip(region.starts()).map(|(start, from)| start + from);
        placed.push((Region::new(starts.collect::<Vec<_>>(), step.to.lens().to_vec())?, &step.to, part));
    }
    let Some(read) = around(placed.iter().map(|(region, ..)| region))? else { return Ok(()) };
    let (stored, dtype) = (tiles.info.dtype, tiles.dtype);
    let cast_len_bytes = if stored == dtype { 0 } else { read.shape().len_bytes(dtype)? };
    let mut memory = memory(&[read.shape().len_bytes(stored)?, cast_len_bytes])?;
    let mut slices = memory.slices().into_iter();
    let (Some(source), Some(target)) = (slices.next(), slices.next()) else { return Ok(()) };
    reader.read_region(tiles.leaf, &read, source)?;
    let bytes = if stored == dtype {
        source
    } else {
        tiles.cast(source, target)?;
        target
    };
    for (region, to, part) in placed {
        let Some((whole, out)) = parts.get_mut(part) else { continue };
        let from = region.relative_to(read.starts())?;
        copy_region(dtype.size_bytes(), bytes, &read.shape(), &from, out, &whole.shape(), to.starts())?;
    }
    Ok(())
}

fn read_and_cast(
    leaf: &RawLeaf<'_>,
    tiles: &Tiles<'_>,
    parts: &mut [(Region, &mut [u8])],
    how: ReadOptions,
) -> Result<()> {
    let lens = parts.iter().map(|(region, _)| region.shape().len_bytes(leaf.dtype));
    let mut memory = memory(&lens.collect::<Result<Vec<u64>>>()?)?;
    let mut sources = memory.slices();
    let regions = parts.iter().enumerate().map(|(at, (region, _))| (region.clone(), at)).collect();
    read_raw([RawLeaf { regions, ..leaf.clone() }], &mut sources, how, None, &|_, error| error)?;
    let mut parts = parts.iter_mut().zip(&sources);
    parts.try_for_each(|((_, out), source)| tiles.cast(source, out))
}

/// Memory for decoding one tile. The memory is unmapped as soon as it is freed; an allocator would
/// keep large freed blocks.
fn memory(lens_bytes: &[u64]) -> Result<Arena> {
    let mut arena = Arena::default();
    lens_bytes.iter().try_for_each(|&len_bytes| arena.add(len_bytes))?;
    Ok(arena)
}

fn with_memory(len_bytes: u64, work: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<()> {
    let mut memory = memory(&[len_bytes])?;
    memory.slices().into_iter().next().map_or(Ok(()), work)
}

/// The smallest region that contains all of these regions; `None` if there are no regions.
fn around<'r>(regions: impl IntoIterator<Item = &'r Region>) -> Result<Option<Region>> {
    let mut regions = regions.into_iter();
    let Some(first) = regions.next() else { return Ok(None) };
    let mut ends: Vec<u64> =
        first.starts().iter().zip(first.lens()).map(|(start, len)| start + len).collect();
    let mut starts = first.starts().to_vec();
    for region in regions {
        let axes = region.starts().iter().zip(region.lens());
        for ((start, end), (&other, &len)) in starts.iter_mut().zip(&mut ends).zip(axes) {
            (*start, *end) = ((*start).min(other), (*end).max(other + len));
        }
    }
    let lens: Vec<u64> = ends.iter().zip(&starts).map(|(end, start)| end - start).collect();
    Region::new(starts, lens).map(Some)
}
