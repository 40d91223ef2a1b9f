//! The chunk grid: the chunks of an array, the chunks that overlap a region, and their keys.
//!
//! ```text
//! shape [5,4], chunks [2,3]            keys            v2      v3 (default)   v3 (v2)
//!   +-----+---+                        chunk (2,1)     2.1     c/2/1          2.1
//!   | 0,0 |0,1|                        of a scalar     0       c              0
//!   +-----+---+
//!   | 1,0 |1,1|    chunks at the upper edge are stored whole: the part beyond the array is padding
//!   +-----+---+
//!   | 2,0 |2,1|
//!   +-----+---+
//! ```
//!
//! Source: zarr v3 core, "Regular chunk grid" and "Chunk key encoding".

use crate::array::{Region, Shape};
use crate::error::{Error, Result};
use crate::text::counted;

/// The division of an array into chunks of one shape.
///
/// The type keeps this promise: shape and chunk shape have the same rank, and chunks are at least 1
/// on every axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkGrid {
    shape: Shape,
    chunk_shape: Shape,
}

impl ChunkGrid {
    /// Makes a grid after a check of both shapes.
    ///
    /// # Errors
    /// `Corrupt` if the ranks differ or a chunk has an axis of length 0.
    pub fn new(shape: Shape, chunk_shape: Shape) -> Result<Self> {
        if shape.rank() != chunk_shape.rank() || chunk_shape.is_empty() {
            return Err(Error::corrupt("the chunk shape of a zarr array does not fit its shape").expected(
                format_args!("{} of at least 1", counted(shape.rank(), "axis", "axes")),
                &chunk_shape,
            ));
        }
        Ok(Self { shape, chunk_shape })
    }

    /// The shape of the array.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The shape of each chunk.
    pub fn chunk_shape(&self) -> &Shape {
        &self.chunk_shape
    }

    /// The number of chunks along each axis; 0 for an axis of length 0.
    pub fn counts(&self) -> Vec<u64> {
        self.shape
            .dims()
            .iter()
            .zip(self.chunk_shape.dims())
            .map(|(dim, chunk)| dim.div_ceil(*chunk))
            .collect()
    }

    /// The region of chunk `index`, in the array's coordinates. At the upper edge it reaches beyond
    /// the array.
    pub fn chunk(&self, index: &[u64]) -> Result<Region> {
        let inside = index.len() == self.shape.rank() && index.iter().zip(self.counts()).all(|(i, n)| *i < n);
        if !inside {
            return Err(Error::invalid(format!("an array of shape {} has no chunk {index:?}", self.shape)));
        }
        let starts: Vec<u64> =
            index.iter().zip(self.chunk_shape.dims()).map(|(i, chunk)| i * chunk).collect();
        Region::new(starts, self.chunk_shape.dims())
    }

    /// The number of chunks of the grid.
    pub fn chunk_count(&self) -> u64 {
        self.counts().into_iter().fold(1, u64::saturating_mul)
    }

    /// The number of chunks that a region meets.
    pub fn count_in(&self, region: &Region) -> u64 {
        let axes = region.starts().iter().zip(region.lens()).zip(self.chunk_shape.dims());
        let along = |((start, len), chunk): ((&u64, &u64), &u64)| match len {
            0 => 0,
            len => start.saturating_add(len - 1) / chunk - start / chunk + 1,
        };
        axes.map(along).fold(1, u64::saturating_mul)
    }

    /// Whether the grid has a chunk with this index.
    pub fn has(&self, index: &[u64]) -> bool {
        let counts = self.counts();
        index.len() == counts.len() && index.iter().zip(counts).all(|(index, count)| *index < count)
    }

    /// The chunks that `region` meets, in C order, each with the part of the array that it holds
    /// (cut at the array's upper edge, not at the region).
    pub fn chunks(&self, region: &Region) -> Chunks<'_> {
        let inside = region.intersect(&Region::whole(&self.shape));
        let (mut first, mut last) = (Vec::new(), Vec::new());
        if let Some(inside) = &inside {
            for ((start, len), chunk) in
                inside.starts().iter().zip(inside.lens()).zip(self.chunk_shape.dims())
            {
                first.push(start / chunk);
                last.push((start + len - 1) / chunk);
            }
        }
        Chunks { grid: self, next: inside.map(|_| first.clone()), first, last }
    }
}

/// Chunks that a region meets; see [`ChunkGrid::chunks`].
#[derive(Debug, Clone)]
pub struct Chunks<'a> {
    grid: &'a ChunkGrid,
    first: Vec<u64>,
    last: Vec<u64>,
    next: Option<Vec<u64>>,
}

impl Iterator for Chunks<'_> {
    type Item = (Vec<u64>, Region);

    fn next(&mut self) -> Option<Self::Item> {
        let index = self.next.take()?;
        let mut after = index.clone();
        for ((i, first), last) in after.iter_mut().zip(&self.first).zip(&self.last).rev() {
            if *i < *last {
                *i += 1;
                self.next = Some(after);
                break;
            }
            *i = *first;
        }
        let chunk = self.grid.chunk(&index).ok()?;
        let part = chunk.intersect(&Region::whole(&self.grid.shape))?;
        Some((index, part))
    }
}

/// The form of chunk keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkKeys {
    /// `c` comes first (zarr v3's `default`).
    pub prefixed: bool,
    /// `.` or `/`.
    pub separator: char,
}

impl ChunkKeys {
    /// The default of zarr v2: `2.1`.
    pub const V2: Self = Self { prefixed: false, separator: '.' };
    /// The default of zarr v3: `c/2/1`.
    pub const V3: Self = Self { prefixed: true, separator: '/' };

    /// The index of the chunk with this key, in an array of this rank; `None` for other keys.
    pub fn index(self, key: &str, rank: usize) -> Option<Vec<u64>> {
        let digits = match self.prefixed {
            true => key.strip_prefix('c')?,
            false => key,
        };
        let digits = if self.prefixed && rank > 0 { digits.strip_prefix(self.separator)? } else { digits };
        let index: Vec<u64> = match rank {
            0 => Vec::new(),
            _ => digits.split(self.separator).map(str::parse).collect::<Result<_, _>>().ok()?,
        };
        // Refuse other spellings of the same index, such as leading zeros.
        (index.len() == rank && self.key(&index) == key).then_some(index)
    }

    /// The key of a chunk, without the array's name.
    pub fn key(self, index: &[u64]) -> String {
        let mut key = String::new();
        if self.prefixed {
            key.push('c');
        } else if index.is_empty() {
            key.push('0');
        }
        for (axis, i) in index.iter().enumerate() {
            if self.prefixed || axis > 0 {
                key.push(self.separator);
            }
            key.push_str(&i.to_string());
        }
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn grid(shape: &[u64], chunk: &[u64]) -> ChunkGrid {
        ChunkGrid::new(Shape::new(shape).unwrap(), Shape::new(chunk).unwrap()).unwrap()
    }

    #[test]
    fn keys_as_each_version_spells_them() {
        let slash = ChunkKeys { prefixed: false, separator: '/' };
        let dot = ChunkKeys { prefixed: true, separator: '.' };
        for (keys, of_two, of_one, of_none) in [
            (ChunkKeys::V2, "10.1", "3", "0"),
            (slash, "10/1", "3", "0"),
            (ChunkKeys::V3, "c/10/1", "c/3", "c"),
            (dot, "c.10.1", "c.3", "c"),
        ] {
            assert_eq!(keys.key(&[10, 1]), of_two);
            assert_eq!(keys.key(&[3]), of_one);
            assert_eq!(keys.key(&[]), of_none);
            assert_eq!(keys.index(of_two, 2), Some(vec![10, 1]));
            assert_eq!(keys.index(of_one, 1), Some(vec![3]));
            assert_eq!(keys.index(of_none, 0), Some(Vec::new()));
            assert_eq!((keys.index(of_two, 1), keys.index(of_one, 2)), (None, None));
            for key in ["", ".zarray", "c", "c/", "01", "c/01", "-1", "3.", "c/3/", "99999999999999999999"] {
                assert_eq!(keys.index(key, 1), None, "{key}");
            }
        }
    }

    #[test]
    fn a_scalar_has_one_chunk_and_an_empty_array_none() {
        let all = |grid: &ChunkGrid| grid.chunks(&Region::whole(grid.shape())).collect::<Vec<_>>();
        assert_eq!(all(&grid(&[], &[])), [(vec![], Region::whole(&Shape::scalar()))]);
        assert!(all(&grid(&[0, 3], &[1, 3])).is_empty());
        assert!(ChunkGrid::new(Shape::new([3]).unwrap(), Shape::new([0]).unwrap()).is_err());
        assert!(ChunkGrid::new(Shape::new([3]).unwrap(), Shape::scalar()).is_err());
    }

    #[test]
    fn the_largest_shapes_do_not_overflow() {
        let grid = grid(&[i64::MAX as u64], &[1 << 62]);
        let chunks: Vec<_> = grid.chunks(&Region::whole(grid.shape())).collect();
        assert_eq!(chunks.len(), 2);
        assert_eq!(chunks[1].1.starts()[0] + chunks[1].1.lens()[0], i64::MAX as u64);
    }

    proptest! {
        #[test]
        fn every_element_of_a_region_is_in_exactly_one_chunk(
            axes in proptest::collection::vec((1_u64..9, 1_u64..5, 0_u64..9, 1_u64..9), 1..4)
        ) {
            let shape: Vec<u64> = axes.iter().map(|a| a.0).collect();
            let chunk: Vec<u64> = axes.iter().map(|a| a.1).collect();
            let starts: Vec<u64> = axes.iter().map(|a| a.2 % a.0).collect();
            let lens: Vec<u64> = axes.iter().zip(&starts).map(|(a, s)| a.3.min(a.0 - s)).collect();
            let grid = grid(&shape, &chunk);
            let region = Region::new(starts, lens).unwrap();
            let mut elements = 0;
            let mut last: Option<Vec<u64>> = None;
            for (index, part) in grid.chunks(&region) {
                prop_assert!(last.as_ref().is_none_or(|last| last < &index), "C order");
                let both = part.intersect(&region);
                prop_assert!(both.is_some(), "no chunk for nothing");
                elements += both.unwrap().len_elements();
                last = Some(index);
            }
            prop_assert_eq!(elements, region.len_elements());
        }
    }
}
