//! Chooses chunk shapes: Orbax' greedy algorithm, and shapes given by the caller.
//!
//! ```text
//! shape [16,24], float32, at most 256 bytes (64 elements)
//!   [16,24] -> [16,12] -> [8,12] -> [8,6]      the largest axis goes to its next smaller divisor
//! ```
//!
//! A chunk shape always divides the shape of the array or of its shards. So no chunk has two
//! writers, and a chunk crosses the edge of the array only if a shard does. In zarr v3 the outer
//! chunk is a `ZarrShard` and may hold several inner chunks. Orbax itself gives both the same
//! shape.
//!
//! Source: Orbax `subchunking.choose_chunk_shape`; `SaveArgs.write_chunk_shape` of 2024.

use crate::options::{LeafChunking, OrbaxOptions};
use regrow_base::error::{Error, Result};
use regrow_base::text::counted;
use regrow_tree::array::{Dtype, Shape};
use regrow_tree::tree::{KeyPath, PathPattern};

/// The target size of data files, if the caller gives no size.
pub(crate) const DATA_FILE_BYTES_DEFAULT: u64 = 1 << 31;

/// The chunks of one array.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ChunkShapes {
    /// The shape of the value of one key in the kvstore. It divides the shape of the array or of
    /// its shards.
    pub(crate) outer: Shape,
    /// The shape of the part that is decoded alone. It divides `outer`. It differs from `outer`
    /// only if the caller gives a `read_chunk_shape`.
    pub(crate) inner: Shape,
}

/// The chunk shapes of the leaf at `path`, as the options ask for; `write` is the shape of one
/// written piece, which is that of the array or of its shards.
///
/// The first matching rule of `per_leaf` replaces all chunk options of the whole tree. Options of
/// the whole tree apply only to arrays: scalars stay whole, and axes that a leaf lacks are ignored.
///
/// # Errors
/// `InvalidArgument` if a shape does not divide, a byte size is below one element, or a rule has an
/// axis that its leaf lacks.
pub(super) fn chunk_shapes(
    path: &KeyPath,
    shape: &Shape,
    write: &Shape,
    dtype: Dtype,
    options: &OrbaxOptions,
) -> Result<ChunkShapes> {
    let of_all_leaves = LeafChunking {
        chunk_byte_size: options.chunk_byte_size,
        shard_axes: options.shard_axes.clone(),
        write_chunk_shape: options.write_chunk_shape.clone(),
        read_chunk_shape: options.read_chunk_shape.clone(),
    };
    let asked = &asked_of(path, shape, &options.per_leaf, of_all_leaves);
    if asked.write_chunk_shape.is_some() || asked.read_chunk_shape.is_some() {
        return by_hand(shape, write, asked, options.zarr3);
    }
    let file_bytes = match options.ocdbt_target_data_file_size.unwrap_or(DATA_FILE_BYTES_DEFAULT) {
        _ if !options.ocdbt => None,
        0 => None,
        bytes => Some(bytes),
    };
    let target = match (asked.chunk_byte_size, file_bytes) {
        (None, Some(file)) if write.len_bytes(dtype)? > file => Some(file),
        (None, _) => None,
        (Some(chunk), file) => Some(chunk.min(file.unwrap_or(chunk))),
    };
    let chosen = choose(shape.dims(), write.dims(), dtype.size_bytes() as u64, target, &asked.shard_axes)?;
    let outer = Shape::new(chosen)?;
    Ok(ChunkShapes { inner: outer.clone(), outer })
}

/// The chunk options for the leaf at `path`: the first matching rule, otherwise the options of the
/// whole tree that apply to this shape.
pub(crate) fn asked_of(
    path: &KeyPath,
    shape: &Shape,
    per_leaf: &[(PathPattern, LeafChunking)],
    of_all_leaves: LeafChunking,
) -> LeafChunking {
    if let Some((_, rule)) = per_leaf.iter().find(|(pattern, _)| pattern.matches(path)) {
        return rule.clone();
    }
    let is_scalar = shape.rank() == 0;
    LeafChunking {
        chunk_byte_size: of_all_leaves.chunk_byte_size,
        shard_axes: of_all_leaves.shard_axes.into_iter().filter(|&axis| axis < shape.rank()).collect(),
        write_chunk_shape: of_all_leaves.write_chunk_shape.filter(|_| !is_scalar),
        read_chunk_shape: of_all_leaves.read_chunk_shape.filter(|_| !is_scalar),
    }
}

/// The chunk shapes that the caller gave.
///
/// # Errors
/// `InvalidArgument` if a shape does not divide, if the options also have a size or `shard_axes`,
/// or for a `read_chunk_shape` in zarr v2.
pub(crate) fn by_hand(
    shape: &Shape,
    write: &Shape,
    asked: &LeafChunking,
    use_zarr3: bool,
) -> Result<ChunkShapes> {
    let what = if write == shape { "the array's shape" } else { "the shape of its shards" };
    if asked.chunk_byte_size.is_some() || !asked.shard_axes.is_empty() {
        return Err(Error::invalid("chunk_byte_size and a chunk shape exclude each other")
            .help("give either write_chunk_shape and read_chunk_shape, or chunk_byte_size and shard_axes"));
    }
    if asked.read_chunk_shape.is_some() && !use_zarr3 {
        return Err(needs_zarr3());
    }
    let outer = asked.write_chunk_shape.clone().unwrap_or_else(|| write.clone());
    must_divide("write_chunk_shape", &outer, what, write)?;
    let inner = asked.read_chunk_shape.clone().unwrap_or_else(|| outer.clone());
    must_divide("read_chunk_shape", &inner, "the outer chunk", &outer)?;
    Ok(ChunkShapes { outer, inner })
}

pub(super) fn needs_zarr3() -> Error {
    Error::invalid("read_chunk_shape needs zarr v3").help("pass `zarr3`, or give write_chunk_shape alone")
}

fn must_divide(what: &str, part: &Shape, of_what: &str, whole: &Shape) -> Result<()> {
    let divides = part.rank() == whole.rank()
        && part.dims().iter().zip(whole.dims()).all(|(&part, &whole)| part > 0 && whole.is_multiple_of(part));
    if divides {
        return Ok(());
    }
    Err(Error::invalid(format!("{what} {part} does not divide {of_what}"))
        .expected(format_args!("divisors of {whole}"), part)
        .help("choose a divisor on every axis, or let chunk_byte_size choose"))
}

/// Orbax' chooser: divisors of `write`, at most `target_bytes` a chunk, large and sharded axes
/// first.
///
/// `write` is the shape of one written piece of an array of shape `global`; `shard_axes` go down to
/// one element before sizes are looked at.
///
/// # Errors
/// `InvalidArgument` if the target is below one element or an axis is not there.
pub(crate) fn choose(
    global: &[u64],
    write: &[u64],
    item_bytes: u64,
    target_bytes: Option<u64>,
    shard_axes: &[usize],
) -> Result<Vec<u64>> {
    let mut axes: Vec<Axis> =
        write.iter().zip(global).map(|(&len, &global)| Axis::new(len.max(1), global != len.max(1))).collect();
    for &axis in shard_axes {
        let Some(axis) = axes.get_mut(axis) else {
            return Err(Error::invalid(format!(
                "shard axis {axis} of an array with {}",
                counted(write.len(), "axis", "axes")
            ))
            .help("axes count from 0; give only axes that the array has"));
        };
        axis.len = 1;
        axis.is_sharded |= axis.whole > 1;
    }
    if let Some(target_bytes) = target_bytes {
        if target_bytes < item_bytes {
            return Err(Error::invalid("the chunk size is smaller than one element")
                .expected(format_args!("at least {item_bytes} bytes"), target_bytes)
                .help("raise chunk_byte_size (or the data file size); below 1 MiB chunks are slow anyway"));
        }
        let target_elements = target_bytes / item_bytes;
        while axes.iter().fold(1_u64, |n, axis| n.saturating_mul(axis.len)) > target_elements {
            // Take the first of the largest axes: `max_by_key` would give the last.
            let largest = axes
                .iter_mut()
                .filter(|axis| axis.is_sharded && axis.len > 1)
                .reduce(|first, next| if next.len > first.len { next } else { first });
            match largest {
                Some(axis) => axis.shrink(),
                None => axes.iter_mut().for_each(|axis| axis.is_sharded = true),
            }
        }
    }
    Ok(axes.into_iter().map(|axis| axis.len).collect())
}

/// One axis while it shrinks.
struct Axis {
    whole: u64,
    len: u64,
    is_sharded: bool,
    /// The divisors of `whole`, ascending; computed when the axis first shrinks.
    divisors: Vec<u64>,
}

impl Axis {
    fn new(whole: u64, is_sharded: bool) -> Self {
        Self { whole, len: whole, is_sharded, divisors: Vec::new() }
    }

    fn shrink(&mut self) {
        if self.divisors.is_empty() {
            self.divisors = divisors(self.whole);
        }
        while self.divisors.last().is_some_and(|&divisor| divisor >= self.len) {
            self.divisors.pop();
        }
        self.len = self.divisors.last().copied().unwrap_or(1);
        self.is_sharded = true;
    }
}

/// All divisors, ascending. O(square root).
fn divisors(of: u64) -> Vec<u64> {
    let small: Vec<u64> =
        (1..).take_while(|n: &u64| n.saturating_mul(*n) <= of).filter(|&n| of.is_multiple_of(n)).collect();
    let large = small.iter().rev().map(|n| of / n).filter(|n| n.saturating_mul(*n) > of);
    small.iter().copied().chain(large).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use regrow_tree::tree::Key;

    fn shape(dims: &[u64]) -> Shape {
        Shape::new(dims).unwrap()
    }

    #[test]
    fn chooses_what_orbax_chose() {
        // fixture, global, write, item bytes, target, axes, chosen
        type Row = (
            &'static str,
            &'static [u64],
            &'static [u64],
            u64,
            Option<u64>,
            &'static [usize],
            &'static [u64],
        );
        let rows: [Row; 14] = [
            ("sd_ocdbt_zarr2_chunked_axes w", &[12, 20], &[12, 20], 4, Some(120), &[1], &[12, 1]),
            ("sd_ocdbt_zarr2_chunked_axes z", &[9, 16], &[9, 16], 2, Some(120), &[1], &[9, 1]),
            ("sd_ocdbt_zarr3_chunked a", &[16, 24], &[16, 24], 4, Some(256), &[], &[8, 8]),
            ("sd_ocdbt_zarr3_chunked b", &[30, 7], &[30, 7], 4, Some(256), &[], &[6, 7]),
            ("sd_ocdbt_zarr3_chunked c", &[128], &[128], 1, Some(256), &[], &[128]),
            ("md8_zarr3_subchunked big", &[64, 96], &[16, 48], 4, Some(24), &[], &[2, 3]),
            ("md8_zarr3_subchunked big_half", &[40, 60], &[5, 60], 4, Some(24), &[], &[1, 6]),
            ("v1_options a", &[12, 10], &[12, 10], 4, Some(100), &[], &[4, 5]),
            ("v1_options b", &[6, 9], &[6, 9], 4, Some(100), &[], &[6, 3]),
            ("no target", &[6, 9], &[6, 9], 4, None, &[], &[6, 9]),
            ("axes alone", &[6, 9, 5], &[6, 9, 5], 4, None, &[0, 2], &[1, 9, 1]),
            ("one element", &[6, 9], &[6, 9], 4, Some(4), &[], &[1, 1]),
            ("primes", &[7, 11], &[7, 11], 8, Some(80), &[], &[7, 1]),
            ("scalar", &[], &[], 8, Some(8), &[], &[]),
        ];
        for (what, global, write, item_bytes, target, axes, chosen) in rows {
            assert_eq!(choose(global, write, item_bytes, target, axes).unwrap(), chosen, "{what}");
        }
    }

    #[test]
    fn refuses_less_than_an_element_and_axes_that_are_not_there() {
        assert!(choose(&[4], &[4], 8, Some(7), &[]).is_err());
        assert!(choose(&[4], &[4], 8, None, &[1]).is_err());
    }

    fn with(change: impl FnOnce(&mut OrbaxOptions)) -> OrbaxOptions {
        let mut options = OrbaxOptions { zarr3: true, ..OrbaxOptions::default() };
        change(&mut options);
        options
    }

    fn path() -> KeyPath {
        KeyPath::from_iter([Key::dict("a")])
    }

    #[test]
    fn shapes_given_by_hand_must_divide() {
        let cut = |dims: &[u64], options: &OrbaxOptions| {
            chunk_shapes(&path(), &shape(dims), &shape(dims), Dtype::Float32, options)
        };
        let both = with(|o| {
            o.write_chunk_shape = Some(shape(&[4, 6]));
            o.read_chunk_shape = Some(shape(&[2, 3]));
        });
        let chunks = cut(&[8, 6], &both).unwrap();
        assert_eq!((chunks.outer, chunks.inner), (shape(&[4, 6]), shape(&[2, 3])));
        assert_eq!(cut(&[], &both).unwrap().outer, Shape::scalar());
        for dims in [&[6, 6][..], &[8], &[8, 6, 1], &[2, 6]] {
            assert!(cut(dims, &both).is_err(), "{dims:?}");
        }
        let uneven = with(|o| {
            o.write_chunk_shape = Some(shape(&[4, 6]));
            o.read_chunk_shape = Some(shape(&[3, 3]));
        });
        assert!(cut(&[8, 6], &uneven).is_err());
        assert!(cut(&[8, 6], &with(|o| o.write_chunk_shape = Some(shape(&[0, 6])))).is_err());
        let v2 = OrbaxOptions { zarr3: false, ..both.clone() };
        assert!(cut(&[8, 6], &v2).unwrap_err().to_string().contains("zarr v3"));
        assert!(cut(&[8, 6], &OrbaxOptions { chunk_byte_size: Some(8), ..both }).is_err());
    }

    #[test]
    fn chunks_of_shards_divide_the_shards() {
        let cut = |write: &[u64], options: &OrbaxOptions| {
            chunk_shapes(&path(), &shape(&[64, 96]), &shape(write), Dtype::Float32, options)
        };
        let plain = with(|_| ());
        assert_eq!(cut(&[16, 48], &plain).unwrap().outer, shape(&[16, 48]));
        // As in the fixture md8_zarr3_subchunked.
        let small = with(|o| o.chunk_byte_size = Some(24));
        assert_eq!(cut(&[16, 48], &small).unwrap().outer, shape(&[2, 3]));
        let by_hand = with(|o| o.write_chunk_shape = Some(shape(&[32, 48])));
        assert!(cut(&[64, 96], &by_hand).is_ok());
        let error = cut(&[16, 48], &by_hand).unwrap_err().to_string();
        assert!(error.contains("the shape of its shards") && error.contains("[16,48]"), "{error}");
        let inner = with(|o| o.read_chunk_shape = Some(shape(&[8, 8])));
        let chunks = cut(&[16, 48], &inner).unwrap();
        assert_eq!((chunks.outer, chunks.inner), (shape(&[16, 48]), shape(&[8, 8])));
    }

    #[test]
    fn a_rule_for_a_leaf_stands_in_place_of_the_rest() {
        let rule = LeafChunking { write_chunk_shape: Some(shape(&[2, 2])), ..LeafChunking::default() };
        let options = with(|o| {
            o.chunk_byte_size = Some(4);
            o.shard_axes = vec![0, 5];
            o.per_leaf = vec![(PathPattern::new("a").unwrap(), rule)];
        });
        let cut = |path: &KeyPath| {
            chunk_shapes(path, &shape(&[4, 4]), &shape(&[4, 4]), Dtype::Float32, &options).unwrap().outer
        };
        assert_eq!(cut(&path()), shape(&[2, 2]));
        assert_eq!(cut(&KeyPath::from_iter([Key::dict("b")])), shape(&[1, 1]));
    }

    #[test]
    fn a_chunk_fits_its_data_file() {
        let cut = |options: &OrbaxOptions| {
            chunk_shapes(&path(), &shape(&[64, 64]), &shape(&[64, 64]), Dtype::Float32, options)
                .unwrap()
                .outer
        };
        assert_eq!(cut(&with(|o| o.ocdbt_target_data_file_size = Some(8192))), shape(&[32, 64]));
        assert_eq!(cut(&with(|o| o.ocdbt_target_data_file_size = Some(0))), shape(&[64, 64]));
        let files = with(|o| {
            o.ocdbt_target_data_file_size = Some(8192);
            o.ocdbt = false;
        });
        assert_eq!(cut(&files), shape(&[64, 64]));
    }

    proptest! {
        #[test]
        fn chosen_shapes_divide_and_fit(
            dims in proptest::collection::vec(1_u64..200, 0..4),
            target in 4_u64..5000,
        ) {
            let chosen = choose(&dims, &dims, 4, Some(target), &[]).unwrap();
            prop_assert!(chosen.iter().zip(&dims).all(|(c, d)| d % c == 0));
            prop_assert!(chosen.iter().product::<u64>() * 4 <= target);
        }

        #[test]
        fn lists_all_divisors(n in 1_u64..3000) {
            prop_assert_eq!(divisors(n), (1..=n).filter(|d| n % d == 0).collect::<Vec<_>>());
        }
    }
}
