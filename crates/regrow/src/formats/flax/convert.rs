//! Arrays that are cast, or put into little-endian order, while they are written.

use std::sync::Arc;

use crate::array::{Array, ArraySource, Dtype, Region, Shape, cast_bytes};
use crate::error::{Error, Result};

/// Bytes that are converted at a time.
const PIECE_LEN_BYTES: usize = 256 << 10;

/// `array` with elements of another dtype, computed when they are read.
///
/// # Errors
/// `Limit` if no memory could count its bytes.
pub(super) fn cast(array: &Array, to: Dtype) -> Result<Array> {
    if array.dtype() == to {
        return Ok(array.clone());
    }
    Array::deferred(to, array.shape().clone(), Arc::new(Cast { array: array.clone(), to }))
}

/// The bytes of `array` (`uint8`) with every word turned around.
///
/// # Errors
/// As [`cast`].
pub(super) fn swap_words(array: &Array, word_bytes: usize) -> Result<Array> {
    let source = Swap { array: array.clone(), word_bytes: word_bytes.max(1) };
    Array::deferred(array.dtype(), array.shape().clone(), Arc::new(source))
}

#[derive(Debug)]
struct Cast {
    array: Array,
    to: Dtype,
}

#[derive(Debug)]
struct Swap {
    array: Array,
    word_bytes: usize,
}

impl ArraySource for Cast {
    fn read_c_order(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        let (from_size, to_size) = (self.array.dtype().size_bytes(), self.to.size_bytes());
        in_units(to_size, offset_bytes, out, |unit, units| {
            let mut plain = vec![0; units.len() / to_size * from_size];
            self.array.copy_c_order(unit * from_size as u64, &mut plain)?;
            cast_bytes(&plain, self.array.dtype(), self.to, units)
        })
    }

    fn read_region(&self, region: &Region, out: &mut [u8]) -> Result<()> {
        let mut plain = vec![0; region_len(region, self.array.dtype())?];
        self.array.copy_region_c_order(region, &mut plain)?;
        cast_bytes(&plain, self.array.dtype(), self.to, out)
    }
}

impl ArraySource for Swap {
    fn read_c_order(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        let word = self.word_bytes;
        in_units(word, offset_bytes, out, |unit, units| {
            self.array.copy_c_order(unit * word as u64, units)?;
            units.chunks_exact_mut(word).for_each(<[u8]>::reverse);
            Ok(())
        })
    }

    fn read_region(&self, _region: &Region, _out: &mut [u8]) -> Result<()> {
        Err(Error::unsupported("an array that is being put into little-endian order is read front to back"))
    }
}

fn region_len(region: &Region, dtype: Dtype) -> Result<usize> {
    let shape: Shape = region.shape();
    usize::try_from(shape.len_bytes(dtype)?).map_err(|_| Error::invalid("a region is larger than memory"))
}

/// Fills `out`, which begins and ends anywhere, from whole units: `fill` gets the number of the first one and room
/// for some.
fn in_units(
    unit_bytes: usize,
    offset_bytes: u64,
    out: &mut [u8],
    mut fill: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut units = Vec::new();
    let mut done = 0;
    while done < out.len() {
        let at = offset_bytes + done as u64;
        let (unit, skip) = (at / unit_bytes as u64, (at % unit_bytes as u64) as usize);
        let rest = out.get_mut(done..).unwrap_or_default();
        let wanted = rest.len().min(PIECE_LEN_BYTES);
        units.resize((skip + wanted).div_ceil(unit_bytes) * unit_bytes, 0);
        fill(unit, &mut units)?;
        let part = units.get(skip..skip + wanted).unwrap_or_default();
        if let Some(room) = rest.get_mut(..wanted) {
            room.copy_from_slice(part);
        }
        done += wanted;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::Shape;

    fn whole(array: &Array) -> Vec<u8> {
        array.to_c_order().unwrap().to_vec()
    }

    #[test]
    fn pieces_may_begin_inside_an_element() {
        let numbers: Vec<u8> = (0..9_i16).flat_map(i16::to_le_bytes).collect();
        let array = Array::new(Dtype::Int16, Shape::new(vec![3, 3]).unwrap(), numbers.into()).unwrap();
        let wide = cast(&array, Dtype::Float32).unwrap();
        let expected: Vec<u8> = (0..9_u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
        assert_eq!(whole(&wide), expected);
        for split in 0..=36 {
            let (mut a, mut b) = (vec![0; split], vec![0; 36 - split]);
            wide.copy_c_order(0, &mut a).unwrap();
            wide.copy_c_order(split as u64, &mut b).unwrap();
            assert_eq!([a, b].concat(), expected);
        }
        let region = Region::new(vec![1, 1], vec![2, 1]).unwrap();
        let mut out = [0; 8];
        wide.copy_region_c_order(&region, &mut out).unwrap();
        assert_eq!(out, [4.0_f32.to_le_bytes(), 7.0_f32.to_le_bytes()].concat()[..]);
    }

    #[test]
    fn words_are_turned_around() {
        let array =
            Array::new(Dtype::UInt8, Shape::new(vec![2, 4]).unwrap(), (0..8_u8).collect::<Vec<_>>().into());
        let turned = swap_words(&array.unwrap(), 4).unwrap();
        assert_eq!(whole(&turned), [3, 2, 1, 0, 7, 6, 5, 4]);
    }
}
