//! Copies regions of an array that lies in C order in several pieces of a file.

use bytes::Bytes;

use regrow_base::error::{Error, Result};
use regrow_base::text::counted;
use regrow_tree::array::{Dtype, Region, Shape};

/// Copies `region` of an array that lies in C order in `pieces`, one after another, into `out`.
///
/// # Errors
/// `InvalidArgument` if the region leaves the array or `out` has another size; `Corrupt` if bytes
/// are missing.
pub(crate) fn copy_pieces(
    pieces: &[Bytes],
    dtype: Dtype,
    shape: &Shape,
    region: &Region,
    out: &mut [u8],
) -> Result<()> {
    if region.shape().len_bytes(dtype)? != out.len() as u64 {
        return Err(Error::invalid("the destination of a region has another size")
            .expected(region.shape().len_bytes(dtype)?, out.len()));
    }
    region.for_each_run(shape, dtype, |offset_bytes, at, len| {
        copy_span(pieces, offset_bytes, out.get_mut(at..at.saturating_add(len)).unwrap_or_default())
    })
}

fn copy_span(pieces: &[Bytes], offset: u64, mut out: &mut [u8]) -> Result<()> {
    let mut offset = offset as usize;
    for piece in pieces {
        if offset >= piece.len() {
            offset -= piece.len();
            continue;
        }
        let from = piece.get(offset..).unwrap_or_default();
        let len = from.len().min(out.len());
        let (now, later) = out.split_at_mut(len);
        now.copy_from_slice(from.get(..len).unwrap_or_default());
        out = later;
        offset = 0;
        if out.is_empty() {
            return Ok(());
        }
    }
    Err(Error::corrupt("an array ends before its shape does")
        .expected(format_args!("{} more", counted(out.len(), "byte", "bytes")), "none")
        .help("the file was cut short: copy it again"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_region_of_pieces_is_the_region_of_the_whole(
            dims in prop::collection::vec(1_u64..5, 0..4),
            cuts in prop::collection::vec(0_usize..200, 0..4),
            picks in prop::collection::vec((0_u64..5, 1_u64..5), 4),
        ) {
            let shape = Shape::new(dims.clone()).unwrap();
            let data: Vec<u8> = (0..shape.len_bytes(Dtype::Int16).unwrap()).map(|i| i as u8).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(data.len())).collect();
            cuts.extend([0, data.len()]);
            cuts.sort_unstable();
            let whole = Bytes::from(data);
            let pieces: Vec<Bytes> = cuts.windows(2).map(|pair| whole.slice(pair[0]..pair[1])).collect();
            let starts: Vec<u64> = dims.iter().zip(&picks).map(|(&dim, pick)| pick.0 % dim).collect();
            let lens: Vec<u64> =
                dims.iter().zip(&picks).zip(&starts).map(|((&dim, pick), &start)| pick.1.min(dim - start)).collect();
            let region = Region::new(starts.clone(), lens.clone()).unwrap();
            let mut out = vec![0; region.shape().len_bytes(Dtype::Int16).unwrap() as usize];
            copy_pieces(&pieces, Dtype::Int16, &shape, &region, &mut out).unwrap();
            let strides = shape.strides_elements();
            for (n, pair) in out.chunks(2).enumerate() {
                let mut left = n as u64;
                let mut element = 0;
                for axis in (0..dims.len()).rev() {
                    element += (starts[axis] + left % lens[axis]) * strides[axis];
                    left /= lens[axis];
                }
                prop_assert_eq!(pair, &whole[element as usize * 2..element as usize * 2 + 2]);
            }
        }
    }
}
