//! Packed elements: F4 has two elements in a byte, the first in the low half, as in torch's
//! `float4_e2m1fn_x2`.
//!
//! ```text
//! byte 0   | element 1 | element 0 |      elements in C order, rows not padded
//!            7       4   3       0
//! ```
//!
//! No specification defines the bytes of the six-bit dtypes, and no program writes them. So a
//! reader lists tensors of these dtypes, but does not decode them.

use regrow_base::error::{Error, Result};
use regrow_tree::array::{Region, Shape};

/// Bits of the only packed dtype that can be decoded.
pub(super) const F4_BITS: u64 = 4;

/// Unpacks the elements of `region` of an array of `shape` into `out`, each into one byte, in C
/// order.
///
/// # Errors
/// `InvalidArgument` if `out` is not one byte an element of the region, or a region leaves the
/// array.
pub(super) fn unpack_f4(packed: &[u8], shape: &Shape, region: &Region, out: &mut [u8]) -> Result<()> {
    if !region.is_inside(shape) || out.len() as u64 != region.len_elements() {
        return Err(Error::invalid(format!("cannot unpack {region} of an array of shape {shape}")));
    }
    if out.is_empty() {
        return Ok(());
    }
    let strides = shape.strides_elements();
    let row_len = region.lens().last().map_or(1, |&len| len as usize);
    for (row, out) in out.chunks_mut(row_len).enumerate() {
        // Find the position of the row's first element in the array. `rest` is the number of the
        // row, counted over all axes of the region but the last.
        let mut rest = row as u64;
        let mut first = 0;
        let axes = region.starts().iter().zip(region.lens()).zip(&strides).rev().enumerate();
        for (from_last, ((start, len), stride)) in axes {
            let index = if from_last == 0 { 0 } else { rest % len };
            if from_last > 0 {
                rest /= len;
            }
            first += (start + index) * stride;
        }
        for (element, out) in (first..).zip(out) {
            let byte = packed.get((element / 2) as usize).ok_or_else(|| {
                Error::corrupt("a packed tensor is too short for its shape").at_byte(element / 2)
            })?;
            *out = if element % 2 == 0 { byte & 0xf } else { byte >> 4 };
        }
    }
    Ok(())
}

/// Packs elements of one byte each into pairs. An odd last element shares its byte with zero.
pub(super) fn pack_f4(elements: &[u8], packed: &mut Vec<u8>) {
    packed.clear();
    packed.extend(elements.chunks(2).map(|pair| match pair {
        [low, high] => (low & 0xf) | (high << 4),
        [low] => low & 0xf,
        _ => 0,
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_low_half_comes_first() {
        let shape = Shape::new(vec![2, 3]).unwrap();
        let packed = [0x10, 0x32, 0x54];
        let unpack = |starts: Vec<u64>, lens: Vec<u64>| {
            let region = Region::new(starts, lens).unwrap();
            let mut out = vec![0xee; region.len_elements() as usize];
            unpack_f4(&packed, &shape, &region, &mut out).map(|()| out)
        };
        assert_eq!(unpack(vec![0, 0], vec![2, 3]).unwrap(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(unpack(vec![0, 1], vec![2, 2]).unwrap(), [1, 2, 4, 5]);
        assert_eq!(unpack(vec![1, 2], vec![1, 1]).unwrap(), [5]);
        assert_eq!(unpack(vec![1, 0], vec![0, 3]).unwrap(), [0; 0]);
        assert!(unpack(vec![1, 0], vec![2, 3]).is_err());
        let scalar = Region::whole(&Shape::scalar());
        let mut out = [0];
        unpack_f4(&[0xa7], &Shape::scalar(), &scalar, &mut out).unwrap();
        assert_eq!(out, [7]);
    }

    #[test]
    fn what_is_packed_is_unpacked() {
        let mut packed = vec![0xee];
        pack_f4(&[0, 1, 2, 3, 4, 0xf5], &mut packed);
        assert_eq!(packed, [0x10, 0x32, 0x54]);
        let shape = Shape::new(vec![6]).unwrap();
        let mut out = [0xee; 6];
        unpack_f4(&packed, &shape, &Region::whole(&shape), &mut out).unwrap();
        assert_eq!(out, [0, 1, 2, 3, 4, 5]);
    }
}
