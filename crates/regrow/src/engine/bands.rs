//! Large leaves, divided into bands that are read one at a time.
//!
//! A band is a run of elements in C order, so bands follow each other in any destination.
//!
//! - A raw leaf can be divided anywhere, even if its layout treats it as one chunk.
//! - A leaf in chunks is divided between chunks, along the first axis longer than one, so that no
//!   chunk is decoded twice. If one chunk contains all rows, the band is the whole leaf, which must
//!   then fit in memory.

use crate::array::{Region, Shape, for_each_box};
use crate::error::Result;
use crate::formats::Reader;
use crate::reads::Source;
use crate::tree::LeafInfo;

/// The number of elements in a band of about `len_bytes`; all elements of a smaller leaf.
pub(super) fn band_elements(reader: &dyn Reader, leaf: usize, info: &LeafInfo, len_bytes: u64) -> u64 {
    let is_cut_between = || {
        info.len_bytes() > len_bytes && !matches!(reader.source(leaf), Ok(Source::Raw(_) | Source::Memory(_)))
    };
    let chunk = info.chunk_shape.as_ref().filter(|_| is_cut_between());
    elements_between(info, chunk, len_bytes)
}

fn elements_between(info: &LeafInfo, chunk: Option<&Shape>, len_bytes: u64) -> u64 {
    let total = info.shape.len_elements().max(1);
    let size = info.dtype.size_bytes() as u64;
    if info.len_bytes() <= len_bytes {
        return total;
    }
    let Some(chunk) = chunk else { return (len_bytes / size).clamp(1, total) };
    // Skip leading axes of length 1: the rows lie along the first longer axis.
    let Some(axis) = info.shape.dims().iter().position(|&dim| dim != 1) else { return total };
    let rows = info.shape.dims().get(axis).copied().unwrap_or(1).max(1);
    let chunk_rows = chunk.dims().get(axis).copied().unwrap_or(1).clamp(1, rows);
    let row_elements = (total / rows).max(1);
    let wanted_rows = (len_bytes / row_elements.saturating_mul(size).max(1)).max(1);
    let band_rows = wanted_rows.div_ceil(chunk_rows).saturating_mul(chunk_rows);
    band_rows.saturating_mul(row_elements).min(total)
}

/// Calls `each(region, count)` in C order. A band that is not a box is given as several boxes.
pub(super) fn for_each_band(
    reader: &dyn Reader,
    leaf: usize,
    info: &LeafInfo,
    len_bytes: u64,
    each: impl FnMut(&Region, u64) -> Result<()>,
) -> Result<()> {
    for_each_run(info, band_elements(reader, leaf, info, len_bytes), each)
}

fn for_each_run(info: &LeafInfo, step: u64, mut each: impl FnMut(&Region, u64) -> Result<()>) -> Result<()> {
    let total = info.shape.len_elements();
    if info.shape.rank() == 0 || total == 0 {
        return each(&Region::whole(&info.shape), total);
    }
    let mut first = 0;
    while first < total {
        let count = step.min(total - first);
        for_each_box(&info.shape, first, count, |region, _, count| each(region, count))?;
        first += count;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::{Dtype, Shape};
    use crate::tree::LeafKind;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn info(dims: &[u64], chunk: Option<&[u64]>) -> LeafInfo {
        LeafInfo {
            kind: LeafKind::NumpyArray,
            dtype: Dtype::Int8,
            shape: Shape::new(dims).unwrap(),
            name: Arc::from("x"),
            chunk_shape: chunk.map(|chunk| Shape::new(chunk).unwrap()),
            write_shape: None,
            sharding: None,
            coding: Arc::from(""),
        }
    }

    fn of(info: LeafInfo, len_bytes: u64) -> u64 {
        elements_between(&info, info.chunk_shape.as_ref(), len_bytes)
    }

    #[test]
    fn bands_are_whole_chunks_high_and_no_larger_than_need_be() {
        assert_eq!(of(info(&[100, 10], None), 64), 64);
        assert_eq!(of(info(&[100, 10], Some(&[4, 5])), 64), 80);
        assert_eq!(of(info(&[100, 10], Some(&[100, 1])), 64), 1000);
        assert_eq!(of(info(&[1, 100, 10], Some(&[1, 4, 5])), 64), 80);
        assert_eq!(of(info(&[1, 1000], None), 64), 64);
        assert_eq!(of(info(&[5], None), 64), 5);
        assert_eq!(of(info(&[], None), 64), 1);
    }

    proptest! {
        #[test]
        fn bands_cover_every_element_once_in_order(
            axes in proptest::collection::vec((0_u64..7, 1_u64..5), 0..4),
            chunked: bool,
            len_bytes in 1_u64..64,
        ) {
            let dims: Vec<u64> = axes.iter().map(|axis| axis.0).collect();
            let chunk: Vec<u64> = axes.iter().map(|axis| axis.1).collect();
            let info = info(&dims, chunked.then_some(&chunk[..]));
            let mut next = 0;
            let step = elements_between(&info, info.chunk_shape.as_ref(), len_bytes);
            for_each_run(&info, step, |region, count| {
                let (offset, len) = region.contiguous_bytes(&info.shape, Dtype::Int8).unwrap();
                assert_eq!((offset, len), (next, count));
                next += count;
                Ok(())
            }).unwrap();
            prop_assert_eq!(next, info.shape.len_elements());
        }
    }
}
