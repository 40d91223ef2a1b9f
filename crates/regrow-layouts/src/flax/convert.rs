//! Converts arrays to little-endian order during the write.

use std::sync::Arc;

use regrow_base::error::{Error, Result};
use regrow_tree::array::{Array, ArraySource, Region};

const PIECE_LEN_BYTES: usize = 256 << 10;

/// The bytes of `array` (`uint8`) with the byte order of every word reversed.
pub(super) fn swap_words(array: &Array, word_bytes: usize) -> Result<Array> {
    let source = Swap { array: array.clone(), word_bytes: word_bytes.max(1) };
    Array::deferred(array.dtype(), array.shape().clone(), Arc::new(source))
}

#[derive(Debug)]
struct Swap {
    array: Array,
    word_bytes: usize,
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

/// Fills `out`, which may begin and end within a unit. `fill` gets the number of the first unit and
/// room for whole units.
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
    use regrow_tree::array::{Dtype, Shape};

    #[test]
    fn words_are_turned_around() {
        let array =
            Array::new(Dtype::UInt8, Shape::new(vec![2, 4]).unwrap(), (0..8_u8).collect::<Vec<_>>().into());
        let turned = swap_words(&array.unwrap(), 4).unwrap();
        let expected = [3, 2, 1, 0, 7, 6, 5, 4];
        assert_eq!(turned.to_c_order().unwrap()[..], expected);
        // Pieces may begin inside a word.
        for split in 0..=8 {
            let (mut a, mut b) = (vec![0; split], vec![0; 8 - split]);
            turned.copy_c_order(0, &mut a).unwrap();
            turned.copy_c_order(split as u64, &mut b).unwrap();
            assert_eq!([a, b].concat(), expected);
        }
    }
}
