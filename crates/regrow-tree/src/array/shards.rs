//! An array in shards: separate pieces in memory, some of them possibly in other processes.
//!
//! ```text
//! shape (4, 6), chunk shape (2, 3)      +-------+-------+
//!                                       | here  | here  |     a shard is one chunk, or a box of several
//!                                       +-------+-------+
//!                                       |another process|     only that process can read this shard
//!                                       +-------+-------+
//! ```
//!
//! A writer of chunks uses the [`chunks`](Shards::chunks) in place. A writer of whole arrays reads
//! such an array like any deferred array: each piece is assembled from the shards that it overlaps,
//! without a copy of the whole array.

use std::sync::Arc;

use super::{Array, ArraySource, Dtype, Region, Shape, copy_region, for_each_box};
use crate::bytes::limits::work_space;
use crate::error::{Error, Result};

/// One shard of an array, with its position.
#[derive(Debug, Clone)]
pub struct Shard {
    /// The region in the whole array.
    pub region: Region,
    /// The elements.
    pub array: Array,
}

impl Shard {
    /// The part of the shard that fills `region` of the whole array. Elements beyond the shard are
    /// zeros.
    ///
    /// # Errors
    /// `InvalidArgument` for a region that begins before the shard.
    pub fn part(&self, region: &Region) -> Result<Array> {
        if self.region == *region {
            return Ok(self.array.clone());
        }
        let origin = Region::new(region.relative_to(self.region.starts())?.starts(), region.lens())?;
        let part = Part { inner: self.array.clone(), region: origin };
        Array::deferred(self.array.dtype(), region.shape(), Arc::new(part))
    }
}

/// The shards of one array that this process has.
#[derive(Debug)]
pub struct Shards {
    dtype: Dtype,
    shape: Shape,
    chunk_shape: Shape,
    shards: Vec<Shard>,
    is_replicated: bool,
}

impl Array {
    /// An array of `shape` in separate shards. Chunks of `chunk_shape` divide the array from its
    /// origin; the array may cut off the chunks at its far edges. Each shard is a box of whole
    /// chunks, and no chunk is in two shards. Chunks that are in no shard belong to other
    /// processes.
    ///
    /// With `is_replicated`, every process of the job has the same shards, and any of them may
    /// write the array.
    ///
    /// # Errors
    /// `InvalidArgument` with the region of a shard that leaves the array, does not consist of
    /// whole chunks, overlaps another shard, or has an array of another shape or dtype; `Limit` if
    /// the length in bytes overflows.
    pub fn sharded(
        dtype: Dtype,
        shape: Shape,
        chunk_shape: Shape,
        shards: Vec<Shard>,
        is_replicated: bool,
    ) -> Result<Self> {
        let shards = Shards::new(dtype, shape.clone(), chunk_shape, shards, is_replicated)?;
        Self::deferred(dtype, shape, Arc::new(shards))
    }
}

impl Shards {
    fn new(
        dtype: Dtype,
        shape: Shape,
        chunk_shape: Shape,
        mut shards: Vec<Shard>,
        is_replicated: bool,
    ) -> Result<Self> {
        let is_grid = chunk_shape.rank() == shape.rank()
            && chunk_shape.dims().iter().zip(shape.dims()).all(|(&chunk, &dim)| chunk > 0 || dim == 0);
        if !is_grid {
            return Err(Error::invalid("the chunk shape does not fit the array").expected(
                format_args!("{} axes, none of length 0", shape.rank()),
                format_args!("chunks of shape {chunk_shape}"),
            ));
        }
        for Shard { region, array } in &shards {
            if !region.is_inside(&shape) {
                return Err(Error::invalid(format!("shard {region} is outside an array of shape {shape}")));
            }
            if array.dtype() != dtype || *array.shape() != region.shape() {
                return Err(Error::invalid(format!("shard {region} does not fit its array")).expected(
                    format_args!("{dtype} {}", region.shape()),
                    format_args!("{} {}", array.dtype(), array.shape()),
                ));
            }
            let axes = region.starts().iter().zip(region.lens()).zip(chunk_shape.dims()).zip(shape.dims());
            let is_whole = |(((&start, &len), &chunk), &dim): (((&u64, &u64), &u64), &u64)| {
                start % chunk.max(1) == 0 && ((start + len) % chunk.max(1) == 0 || start + len == dim)
            };
            if !region.is_empty() && !axes.into_iter().all(is_whole) {
                return Err(Error::invalid(format!("shard {region} crosses chunks"))
                    .expected(format_args!("whole chunks of shape {chunk_shape}"), region));
            }
        }
        shards.retain(|shard| !shard.region.is_empty());
        shards.sort_by(|a, b| a.region.starts().cmp(b.region.starts()));
        let shards = Self { dtype, shape, chunk_shape, shards, is_replicated };
        shards.check_apart()?;
        Ok(shards)
    }

    fn check_apart(&self) -> Result<()> {
        let mut taken = std::collections::HashMap::new();
        for shard in &self.shards {
            for chunk in self.chunks_of(&shard.region) {
                if let Some(other) = taken.insert(chunk, &shard.region) {
                    return Err(Error::invalid(format!(
                        "the shards {other} and {} of one array overlap",
                        shard.region
                    )));
                }
            }
        }
        Ok(())
    }

    /// The type of the elements.
    #[inline]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The shape of the whole array.
    #[inline]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The shape of a chunk.
    #[inline]
    pub fn chunk_shape(&self) -> &Shape {
        &self.chunk_shape
    }

    /// The shards of this process, sorted by their first elements in C order.
    #[inline]
    pub fn held(&self) -> &[Shard] {
        &self.shards
    }

    /// Whether every process of the job has the same shards.
    #[inline]
    pub fn is_replicated(&self) -> bool {
        self.is_replicated
    }

    /// The chunks of this process, by their index in C order. Chunks at the edges are filled with
    /// zeros, so that all have the chunk shape. A chunk is copied only when it is read.
    ///
    /// # Errors
    /// None in practice: `sharded` has checked the shards.
    pub fn chunks(&self) -> Result<Vec<(u64, Array)>> {
        let mut chunks = Vec::new();
        for shard in &self.shards {
            for number in self.chunks_of(&shard.region) {
                let starts = chunk_starts(number, &self.shape, &self.chunk_shape);
                let region = Region::new(starts, self.chunk_shape.dims())?;
                chunks.push((number, shard.part(&region)?));
            }
        }
        chunks.sort_by_key(|(number, _)| *number);
        Ok(chunks)
    }

    /// Returns an error if this process does not have all chunks of the array.
    ///
    /// # Errors
    /// `InvalidArgument` with the first missing chunk.
    pub fn check_whole(&self) -> Result<()> {
        let total: u64 = chunk_counts(&self.shape, &self.chunk_shape).iter().product();
        let mut held: Vec<u64> = self.shards.iter().flat_map(|shard| self.chunks_of(&shard.region)).collect();
        if held.len() as u64 == total {
            return Ok(());
        }
        held.sort_unstable();
        let missing =
            (0..).zip(&held).find(|(at, number)| at != *number).map_or(held.len() as u64, |it| it.0);
        let starts = chunk_starts(missing, &self.shape, &self.chunk_shape);
        let region = Region::new(starts, self.chunk_shape.dims())?;
        let region = region.intersect(&Region::whole(&self.shape)).unwrap_or(region);
        Err(self.is_elsewhere(&region))
    }

    fn chunks_of(&self, region: &Region) -> impl Iterator<Item = u64> + use<'_> {
        let counts = chunk_counts(&self.shape, &self.chunk_shape);
        let axes = region.starts().iter().zip(region.lens()).zip(self.chunk_shape.dims());
        let ranges: Vec<(u64, u64)> =
            axes.map(|((&start, &len), &chunk)| (start / chunk.max(1), len.div_ceil(chunk.max(1)))).collect();
        let total: u64 = ranges.iter().map(|(_, len)| len).product();
        (0..total).map(move |mut at| {
            // From the last axis back, the position in the box gives the position in the grid.
            let (mut number, mut step) = (0, 1);
            for (&(first, len), &count) in ranges.iter().zip(&counts).rev() {
                number += (first + at % len) * step;
                at /= len;
                step *= count;
            }
            number
        })
    }

    fn is_elsewhere(&self, region: &Region) -> Error {
        Error::invalid(format!("another process has {region} of an array of shape {}", self.shape))
            .help("save it from all processes of the job, each with its shards")
    }
}

/// The number of chunks along each axis.
pub fn chunk_counts(shape: &Shape, chunk_shape: &Shape) -> Vec<u64> {
    let axes = shape.dims().iter().zip(chunk_shape.dims());
    axes.map(|(&dim, &chunk)| dim.div_ceil(chunk.max(1))).collect()
}

/// The first element of the chunk with index `number` in C order.
pub fn chunk_starts(number: u64, shape: &Shape, chunk_shape: &Shape) -> Vec<u64> {
    let counts = chunk_counts(shape, chunk_shape);
    let mut starts = vec![0; counts.len()];
    let mut rest = number;
    for ((start, &count), &chunk) in starts.iter_mut().zip(&counts).zip(chunk_shape.dims()).rev() {
        *start = rest % count.max(1) * chunk;
        rest /= count.max(1);
    }
    starts
}

impl ArraySource for Shards {
    fn read_c_order(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        read_by_regions(self, &self.shape, self.dtype, offset_bytes, out)
    }

    fn read_region(&self, region: &Region, out: &mut [u8]) -> Result<()> {
        let mut found = 0;
        for shard in &self.shards {
            let Some(common) = shard.region.intersect(region) else { continue };
            found += common.len_elements();
            copy_common(shard, &common, region, out)?;
        }
        if found == region.len_elements() { Ok(()) } else { Err(self.is_elsewhere(region)) }
    }

    fn kept_len_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.array.kept_len_bytes()).max().unwrap_or(0)
    }

    fn release(&self) {
        self.shards.iter().for_each(|shard| shard.array.release());
    }

    fn shards(&self) -> Option<&Shards> {
        Some(self)
    }
}

/// Copies the elements that a shard and `wanted` have in common to their position in `wanted`.
fn copy_common(shard: &Shard, common: &Region, wanted: &Region, out: &mut [u8]) -> Result<()> {
    let size = shard.array.dtype().size_bytes();
    let from = common.relative_to(shard.region.starts())?;
    let to = common.relative_to(wanted.starts())?;
    let wanted = wanted.shape();
    if let Some(bytes) = shard.array.c_order_bytes() {
        return copy_region(size, bytes, shard.array.shape(), &from, out, &wanted, to.starts());
    }
    let mut part = work_space(common.shape().len_bytes(shard.array.dtype())?)?;
    shard.array.copy_region_c_order(&from, &mut part)?;
    let shape = from.shape();
    copy_region(size, &part, &shape, &Region::whole(&shape), out, &wanted, to.starts())
}

/// A box of another array. Elements beyond that array are zeros.
#[derive(Debug)]
struct Part {
    inner: Array,
    region: Region,
}

impl ArraySource for Part {
    fn read_c_order(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        read_by_regions(self, &self.region.shape(), self.inner.dtype(), offset_bytes, out)
    }

    fn read_region(&self, region: &Region, out: &mut [u8]) -> Result<()> {
        let starts: Vec<u64> = region.starts().iter().zip(self.region.starts()).map(|(a, b)| a + b).collect();
        let wanted = Region::new(starts, region.lens())?;
        let whole = Region::whole(self.inner.shape());
        let shard = Shard { region: whole.clone(), array: self.inner.clone() };
        match whole.intersect(&wanted) {
            Some(common) if common == wanted => self.inner.copy_region_c_order(&wanted, out),
            Some(common) => {
                out.fill(0);
                copy_common(&shard, &common, &wanted, out)
            }
            None => {
                out.fill(0);
                Ok(())
            }
        }
    }

    fn kept_len_bytes(&self) -> u64 {
        self.inner.kept_len_bytes()
    }

    fn release(&self) {
        self.inner.release();
    }
}

fn read_by_regions(
    source: &dyn ArraySource,
    shape: &Shape,
    dtype: Dtype,
    offset_bytes: u64,
    out: &mut [u8],
) -> Result<()> {
    let size = dtype.size_bytes() as u64;
    let is_whole = offset_bytes.is_multiple_of(size) && (out.len() as u64).is_multiple_of(size);
    if !is_whole {
        // A piece that begins or ends inside an element is rare and short, so a copy is cheap.
        let first = offset_bytes / size * size;
        let end = (offset_bytes + out.len() as u64).next_multiple_of(size);
        let mut whole = work_space(end - first)?;
        read_by_regions(source, shape, dtype, first, &mut whole)?;
        let skip = (offset_bytes - first) as usize;
        out.copy_from_slice(whole.get(skip..skip + out.len()).unwrap_or_default());
        return Ok(());
    }
    if shape.rank() == 0 {
        return if out.is_empty() { Ok(()) } else { source.read_region(&Region::whole(shape), out) };
    }
    for_each_box(shape, offset_bytes / size, out.len() as u64 / size, |region, at, count| {
        let (from, to) = ((at * size) as usize, ((at + count) * size) as usize);
        source.read_region(region, out.get_mut(from..to).unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counted(shape: &Shape) -> Array {
        let bytes: Vec<u8> = (0..shape.len_elements()).flat_map(|at| (at as u16).to_le_bytes()).collect();
        Array::new(Dtype::UInt16, shape.clone(), bytes.into()).unwrap()
    }

    /// Divides the array into shards; `boxes` is the number of chunks of a shard along each axis.
    fn cut(whole: &Array, chunk: &Shape, boxes: &[u64]) -> Vec<Shard> {
        let shard_shape = chunk.dims().iter().zip(boxes).map(|(c, b)| c * b).collect::<Vec<_>>();
        let shard_shape = Shape::new(shard_shape).unwrap();
        let total: u64 = chunk_counts(whole.shape(), &shard_shape).iter().product();
        let shard = |number| {
            let starts = chunk_starts(number, whole.shape(), &shard_shape);
            let lens = starts.iter().zip(shard_shape.dims()).zip(whole.shape().dims());
            let lens: Vec<u64> = lens.map(|((start, len), dim)| (*len).min(dim - start)).collect();
            let region = Region::new(starts, lens).unwrap();
            let mut bytes = vec![0; region.len_elements() as usize * 2];
            whole.copy_region_c_order(&region, &mut bytes).unwrap();
            let array = Array::new(Dtype::UInt16, region.shape(), bytes.into()).unwrap();
            Shard { region, array }
        };
        (0..total).map(shard).collect()
    }

    proptest! {
        #[test]
        fn shards_read_as_the_array_that_was_cut(
            axes in prop::collection::vec((1..7_u64, 1..4_u64, 1..3_u64), 0..4),
            piece in 1..40_usize,
            skip in any::<prop::sample::Index>(),
        ) {
            let shape = Shape::new(axes.iter().map(|axis| axis.0).collect::<Vec<_>>()).unwrap();
            let chunk = Shape::new(axes.iter().map(|axis| axis.1).collect::<Vec<_>>()).unwrap();
            let boxes: Vec<u64> = axes.iter().map(|axis| axis.2).collect();
            let whole = counted(&shape);
            let shards = cut(&whole, &chunk, &boxes);
            let array =
                Array::sharded(Dtype::UInt16, shape.clone(), chunk.clone(), shards.clone(), false).unwrap();
            prop_assert_eq!(array.to_c_order().unwrap(), whole.to_c_order().unwrap());
            let offset = skip.index(array.len_bytes() as usize);
            let mut got = vec![7; piece.min(array.len_bytes() as usize - offset)];
            array.copy_c_order(offset as u64, &mut got).unwrap();
            prop_assert_eq!(&got[..], &whole.to_c_order().unwrap()[offset..offset + got.len()]);
            // Every chunk appears once, and has the array's elements, followed by zeros.
            let chunks = array.shards().unwrap().chunks().unwrap();
            let count: u64 = chunk_counts(&shape, &chunk).iter().product();
            prop_assert_eq!(chunks.iter().map(|chunk| chunk.0).collect::<Vec<_>>(), (0..count).collect::<Vec<_>>());
            for (number, part) in chunks {
                let starts = chunk_starts(number, &shape, &chunk);
                let inside: Vec<u64> =
                    (0..shape.rank()).map(|a| chunk.dims()[a].min(shape.dims()[a] - starts[a])).collect();
                let region = Region::new(starts, inside).unwrap();
                let mut inner = vec![0; region.len_elements() as usize * 2];
                whole.copy_region_c_order(&region, &mut inner).unwrap();
                let mut padded = vec![0; chunk.len_elements() as usize * 2];
                let from = Region::whole(&region.shape());
                let origin = vec![0; shape.rank()];
                copy_region(2, &inner, &region.shape(), &from, &mut padded, &chunk, &origin).unwrap();
                prop_assert_eq!(&part.to_c_order().unwrap()[..], &padded[..]);
            }
        }
    }

    #[test]
    fn what_another_process_holds_is_said() {
        let shape = Shape::new([4, 2]).unwrap();
        let chunk = Shape::new([2, 2]).unwrap();
        let mut shards = cut(&counted(&shape), &chunk, &[1, 1]);
        shards.remove(0);
        let array = Array::sharded(Dtype::UInt16, shape, chunk, shards, false).unwrap();
        let error = array.to_c_order().unwrap_err();
        assert!(error.to_string().contains("another process"), "{error}");
        let error = array.shards().unwrap().check_whole().unwrap_err();
        assert!(
            error.to_string().contains("another process has [0:2,0:2] of an array of shape [4,2]"),
            "{error}"
        );
        let mut out = vec![0; 8];
        array.copy_region_c_order(&Region::new([2, 0], [2, 2]).unwrap(), &mut out).unwrap();
        assert_eq!(out, [4, 0, 5, 0, 6, 0, 7, 0]);
    }

    #[test]
    fn shards_that_do_not_fit_are_refused() {
        let shape = Shape::new([4, 4]).unwrap();
        let chunk = Shape::new([2, 4]).unwrap();
        let shard = |starts: [u64; 2], lens: [u64; 2]| {
            let region = Region::new(starts, lens).unwrap();
            Shard { array: counted(&region.shape()), region }
        };
        let refused = |shards: Vec<Shard>| {
            Array::sharded(Dtype::UInt16, shape.clone(), chunk.clone(), shards, false)
                .unwrap_err()
                .to_string()
        };
        assert!(refused(vec![shard([3, 0], [2, 4])]).contains("[3:5,0:4] is outside"));
        assert!(refused(vec![shard([1, 0], [2, 4])]).contains("crosses chunks"));
        assert!(refused(vec![shard([0, 0], [4, 4]), shard([2, 0], [2, 4])]).contains("overlap"));
        let wrong = Shard { region: Region::new([0, 0], [2, 4]).unwrap(), array: counted(&shape) };
        assert!(refused(vec![wrong]).contains("does not fit its array"));
    }
}
