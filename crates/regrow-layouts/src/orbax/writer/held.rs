//! The chunks of an array that this process writes, and the positions of their elements.
//!
//! ```text
//! (4, 6), chunks (2, 3), shards of two chunks    held here: rows 2..4    its chunks: number 0 is 1/0, number 1 is 1/1
//! ```
//!
//! A chunk is read from the array of its shard: the shards are not joined first.

use std::borrow::Cow;

use regrow_base::error::{Error, Result};
use regrow_tree::array::{Array, Region, Shape, Shards};

/// The part of an array that this process writes.
#[derive(Debug)]
pub(super) enum Held<'a> {
    /// The whole array, which is in one piece.
    Whole(&'a Array),
    /// The chunks of the array's shards in this process.
    Shards {
        shards: &'a Shards,
        /// For each shard, the number of chunks of this shard and the shards before it.
        ends: Vec<u64>,
    },
    /// Nothing, because other processes write the array.
    Nothing,
}

/// One chunk to be written.
#[derive(Debug)]
pub(super) struct Chunk<'a> {
    pub(super) index: Vec<u64>,
    pub(super) array: Cow<'a, Array>,
    pub(super) region: Region,
}

impl<'a> Held<'a> {
    pub(super) fn of_shards(shards: &'a Shards, chunk: &Shape) -> Self {
        let count = |region: &Region| counts(region.lens(), chunk).product::<u64>();
        let add = |sum: &mut u64, count| {
            *sum += count;
            Some(*sum)
        };
        let ends = shards.held().iter().map(|shard| count(&shard.region)).scan(0, add).collect();
        Self::Shards { shards, ends }
    }

    pub(super) fn count(&self, shape: &Shape, chunk: &Shape) -> u64 {
        match self {
            Self::Whole(_) => counts(shape.dims(), chunk).product(),
            Self::Shards { ends, .. } => ends.last().copied().unwrap_or(0),
            Self::Nothing => 0,
        }
    }

    pub(super) fn chunk(&self, number: u64, shape: &Shape, chunk: &Shape) -> Result<Chunk<'a>> {
        let region_of = |index: &[u64]| {
            Region::new(
                index.iter().zip(chunk.dims()).map(|(i, len)| i * len).collect::<Vec<_>>(),
                chunk.dims(),
            )
        };
        match self {
            Self::Whole(array) => {
                let index = index_of(number, shape.dims(), chunk);
                Ok(Chunk { region: region_of(&index)?, index, array: Cow::Borrowed(*array) })
            }
            Self::Shards { shards, ends } => {
                let at = ends.partition_point(|&end| end <= number);
                let Some(shard) = shards.held().get(at) else { return Err(no_chunk(number)) };
                let before = at.checked_sub(1).and_then(|at| ends.get(at)).copied().unwrap_or(0);
                let mut index = index_of(number - before, shard.region.lens(), chunk);
                for ((i, start), len) in index.iter_mut().zip(shard.region.starts()).zip(chunk.dims()) {
                    *i += start / len;
                }
                let region = region_of(&index)?;
                if shard.region.intersect(&region).as_ref() == Some(&region) {
                    let region = region.relative_to(shard.region.starts())?;
                    return Ok(Chunk { index, array: Cow::Borrowed(&shard.array), region });
                }
                // At the far edge of the array, the part beyond the array is filled with zeros.
                let array = shard.part(&region)?;
                Ok(Chunk { index, region: Region::whole(array.shape()), array: Cow::Owned(array) })
            }
            Self::Nothing => Err(no_chunk(number)),
        }
    }
}

fn no_chunk(number: u64) -> Error {
    Error::invalid(format!("chunk {number} does not exist"))
}

/// The number of chunks that cover these lengths, along each axis.
fn counts(lens: &[u64], chunk: &Shape) -> impl Iterator<Item = u64> {
    lens.iter().zip(chunk.dims()).map(|(len, chunk)| len.div_ceil((*chunk).max(1)))
}

/// The index of a chunk in a grid, from its number in C order.
fn index_of(number: u64, lens: &[u64], chunk: &Shape) -> Vec<u64> {
    let mut rest = number;
    let mut index: Vec<u64> = counts(lens, chunk).collect();
    for place in index.iter_mut().rev() {
        let count = (*place).max(1);
        *place = rest % count;
        rest /= count;
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;
    use regrow_tree::array::{Dtype, Shard};

    fn shape(dims: &[u64]) -> Shape {
        Shape::new(dims).unwrap()
    }

    #[test]
    fn chunks_of_shards_are_parts_of_the_shards() {
        // The array is (5, 8), with shards of (2, 4) and chunks of (1, 2). The chunks of the last
        // row of shards reach beyond the array.
        let whole: Vec<u8> = (0..40).collect();
        let whole = Array::new(Dtype::UInt8, shape(&[5, 8]), whole.into()).unwrap();
        let shard = |starts: [u64; 2], lens: [u64; 2]| {
            let region = Region::new(starts, lens).unwrap();
            let mut bytes = vec![0; region.len_elements() as usize];
            whole.copy_region_c_order(&region, &mut bytes).unwrap();
            Shard { array: Array::new(Dtype::UInt8, region.shape(), bytes.into()).unwrap(), region }
        };
        let held = vec![shard([4, 4], [1, 4]), shard([0, 4], [2, 4])];
        let array = Array::sharded(Dtype::UInt8, shape(&[5, 8]), shape(&[2, 4]), held, false).unwrap();
        let chunks_of = |chunk: &Shape| {
            let held = Held::of_shards(array.shards().unwrap(), chunk);
            let count = held.count(array.shape(), chunk);
            let read = |number| {
                let chunk = held.chunk(number, array.shape(), chunk).unwrap();
                let mut bytes = vec![9; chunk.region.len_elements() as usize];
                chunk.array.copy_region_c_order(&chunk.region, &mut bytes).unwrap();
                (chunk.index, bytes)
            };
            assert!(held.chunk(count, array.shape(), chunk).is_err());
            (0..count).map(read).collect::<Vec<_>>()
        };
        let found = chunks_of(&shape(&[1, 2]));
        let expected: [([u64; 2], [u8; 2]); 6] = [
            ([0, 2], [4, 5]),
            ([0, 3], [6, 7]),
            ([1, 2], [12, 13]),
            ([1, 3], [14, 15]),
            ([4, 2], [36, 37]),
            ([4, 3], [38, 39]),
        ];
        assert_eq!(found, expected.map(|(index, bytes)| (index.to_vec(), bytes.to_vec())));
        let found = chunks_of(&shape(&[2, 4]));
        assert_eq!(found.len(), 2);
        assert_eq!(found[1], (vec![2, 1], vec![36, 37, 38, 39, 0, 0, 0, 0]));
    }
}
