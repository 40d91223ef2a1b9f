//! The chunk shapes of an array: given by the caller, otherwise those of its shards. Compressed
//! chunks are small enough for parallel decoding within a budget.
//!
//! ```text
//! shape (5, 8) in shards of (3, 4)      chunks of at most 12 bytes, 2 bytes an element: (3, 2)
//!
//!   +---+---+---+---+
//!   |   |   |   |   |    chunks divide a shard on every axis with several shards
//!   +---+---+---+---+
//!   |   |   |   |   |    the last chunks reach beyond the array, as the last shards do
//!   +---+---+---+---+
//! ```

use crate::options::{LeafChunking, RegrowOptions};
use crate::orbax::writer::chunking::{asked_of, by_hand, choose};
use regrow_base::error::{Error, Result};
use regrow_tree::array::{Array, Dtype, Shape, Shards};
use regrow_tree::tree::KeyPath;

/// Largest chunk of a compressed leaf, if the caller gives no size.
const CODED_LEN_MAX_BYTES: u64 = 8 << 20;

/// An axis is cut to at least 1/8 of the length that fits. If no divisor is that large, the axis is
/// not cut.
const LEAST_PART: u64 = 8;

/// The chunk shape of an array that is stored as `dtype`; `None` if the array is stored whole or in
/// its shards.
///
/// # Errors
/// `InvalidArgument` if a shape does not divide the array, a byte size is below one element, or an
/// option has an axis that the array lacks.
pub(super) fn chunk_shape(
    path: &KeyPath,
    array: &Array,
    dtype: Dtype,
    options: &RegrowOptions,
    is_coded: bool,
) -> Result<Option<Shape>> {
    let shape = array.shape();
    let write = array.shards().map_or(shape, Shards::chunk_shape);
    if shape.is_empty() || !is_coded && !options.asks_for_chunks() {
        return Ok(None);
    }
    let of_all_leaves = LeafChunking {
        chunk_byte_size: options.chunk_byte_size,
        shard_axes: options.shard_axes.clone(),
        write_chunk_shape: options.write_chunk_shape.clone(),
        read_chunk_shape: None,
    };
    let asked = asked_of(path, shape, &options.per_leaf, of_all_leaves);
    if asked.read_chunk_shape.is_some() {
        return Err(Error::invalid("the layout regrow cannot nest chunks")
            .help("give write_chunk_shape alone, or for the layout orbax pass `zarr3`"));
    }
    let chunk = if asked.write_chunk_shape.is_some() {
        by_hand(shape, write, &asked, true)?.outer
    } else if asked.chunk_byte_size.is_some() || !asked.shard_axes.is_empty() {
        let item_bytes = dtype.size_bytes() as u64;
        Shape::new(choose(shape.dims(), write.dims(), item_bytes, asked.chunk_byte_size, &asked.shard_axes)?)?
    } else if is_coded {
        coded_chunk_shape(shape, write, dtype)?
    } else {
        return Ok(None);
    };
    Ok(Some(chunk).filter(|chunk| chunk != write))
}

/// The chunk shape of a compressed leaf: the leading axes are cut until a chunk is small enough.
fn coded_chunk_shape(shape: &Shape, write: &Shape, dtype: Dtype) -> Result<Shape> {
    let item_bytes = dtype.size_bytes() as u64;
    let mut dims: Vec<u64> = write.dims().to_vec();
    for (axis, &dim) in shape.dims().iter().enumerate() {
        let below: u64 = dims.iter().skip(axis + 1).product::<u64>().saturating_mul(item_bytes);
        let before: u64 = dims.iter().take(axis).product();
        let Some(len) = dims.get_mut(axis) else { break };
        let row_len_bytes = below.saturating_mul(before).max(1);
        if row_len_bytes.saturating_mul(*len) <= CODED_LEN_MAX_BYTES {
            break;
        }
        let fits = (CODED_LEN_MAX_BYTES / row_len_bytes).clamp(1, *len);
        // Only an axis with several shards needs a divisor: each shard must consist of whole
        // chunks.
        let cut = if *len == dim { fits } else { largest_divisor(*len, fits) };
        if cut >= fits.div_ceil(LEAST_PART) {
            *len = cut;
        }
    }
    Shape::new(dims)
}

/// The largest divisor of `of` that is at most `max`, where `max` is at least 1. O(square root of
/// `of`).
fn largest_divisor(of: u64, max: u64) -> u64 {
    let pairs = (1..).take_while(|n: &u64| n.saturating_mul(*n) <= of).filter(|&n| of.is_multiple_of(n));
    pairs.flat_map(|n| [n, of / n]).filter(|&divisor| divisor <= max).max().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[u64]) -> Shape {
        Shape::new(dims).unwrap()
    }

    #[test]
    fn chunks_of_whole_arrays_stay_small_and_inside() {
        for dims in [vec![1, 1 << 30], vec![1 << 20, 1 << 10], vec![3, 5], vec![7, 1 << 24, 2], vec![]] {
            let shape = shape(&dims);
            let chunk = coded_chunk_shape(&shape, &shape, Dtype::Float32).unwrap();
            assert!(chunk.len_bytes(Dtype::Float32).unwrap() <= CODED_LEN_MAX_BYTES, "{chunk}");
            assert!(chunk.dims().iter().zip(&dims).all(|(c, d)| *c >= 1 && c <= d), "{chunk}");
        }
    }

    #[test]
    fn compressed_shards_are_whole_chunks() {
        let cut = |global: &[u64], write: &[u64]| {
            coded_chunk_shape(&shape(global), &shape(write), Dtype::Float32).unwrap().dims().to_vec()
        };
        // 2048 rows of 4 KiB fit. The largest divisor of 5000 below 2048 is 1250. 10007 is a prime,
        // so the axis that has one shard is cut instead.
        assert_eq!(cut(&[10_000, 1024], &[5000, 1024]), [1250, 1024]);
        assert_eq!(cut(&[5000, 2048], &[5000, 1024]), [2048, 1024]);
        assert_eq!(cut(&[20_014, 1024], &[10_007, 1024]), [10_007, 209]);
        assert_eq!(cut(&[20_014 << 12], &[10_007 << 12]), [10_007 << 7]);
        assert_eq!(cut(&[4_000_046], &[2_000_023]), [2_000_023]);
        assert_eq!(cut(&[8_000_092], &[4_000_046]), [2_000_023]);
    }

    #[test]
    fn the_largest_divisor_is_found_on_either_side_of_the_root() {
        for of in 1..200_u64 {
            for max in 1..=of {
                let expected = (1..=max).filter(|n| of % n == 0).max().unwrap();
                assert_eq!(largest_divisor(of, max), expected, "{of} {max}");
            }
        }
    }
}
