//! The codec `bytes`: elements one after another without gaps, little or big endian.
//!
//! Elements below 8 bits take a byte each with the value in the low bits. The unused bits are
//! written as zero and ignored on reading, so in memory they are zero too. A bool is `00` or `01`
//! and nothing else. Source: zarr v3 codec `bytes`; TensorStore for the sub-byte types.

use serde_json::{Value, json};

use crate::array::Dtype;
use crate::error::{Error, Result};
use crate::zarr::json::Members;

/// Which byte of a number comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endian {
    /// The lowest byte first.
    Little,
    /// The highest byte first.
    Big,
}

impl Endian {
    /// Reads the configuration of the codec `bytes`.
    ///
    /// # Errors
    /// `Corrupt` if the configuration of a dtype wider than a byte has no endianness.
    pub fn from_v3(mut configuration: Members, word_bytes: usize) -> Result<Self> {
        let endian = match configuration.take("endian") {
            None if word_bytes == 1 => Self::Little,
            None => {
                return Err(Error::corrupt("the codec \"bytes\" lacks the member \"endian\"")
                    .expected("little or big, as elements are wider than a byte", "nothing"));
            }
            Some(Value::String(text)) if text == "little" => Self::Little,
            Some(Value::String(text)) if text == "big" => Self::Big,
            Some(other) => return Err(configuration.bad("endian", "\"little\" or \"big\"", &other)),
        };
        configuration.finish()?;
        // One byte has no order. It counts as little, so that equal arrays have equal metadata.
        Ok(if word_bytes == 1 { Self::Little } else { endian })
    }

    /// The codec in a zarr v3 document. One-byte dtypes need no configuration.
    pub fn to_v3(self, word_bytes: usize) -> Value {
        if word_bytes == 1 {
            return json!({"name": "bytes"});
        }
        let endian = if self == Self::Big { "big" } else { "little" };
        json!({"name": "bytes", "configuration": {"endian": endian}})
    }
}

/// Converts stored elements to their form in memory, in place. Returns `Corrupt` for a bool that is
/// neither `00` nor `01`.
pub fn to_memory(dtype: Dtype, endian: Endian, bytes: &mut [u8]) -> Result<()> {
    if endian == Endian::Big {
        swap_words(dtype.word_bytes(), bytes);
    }
    clear_unused_bits(dtype, bytes);
    match odd_bool(dtype, bytes) {
        None => Ok(()),
        Some(byte) => Err(Error::corrupt("an element of dtype bool is neither true nor false")
            .expected("00 or 01", format_args!("{byte:02x}"))),
    }
}

/// Converts elements in memory to their stored form, in place.
/// A bool that is neither `00` nor `01` is `InvalidArgument`: other readers would refuse the chunk.
pub fn to_stored(dtype: Dtype, endian: Endian, bytes: &mut [u8]) -> Result<()> {
    if let Some(byte) = odd_bool(dtype, bytes) {
        return Err(Error::invalid("an element of dtype bool is neither true nor false")
            .expected("00 or 01", format_args!("{byte:02x}")));
    }
    clear_unused_bits(dtype, bytes);
    if endian == Endian::Big {
        swap_words(dtype.word_bytes(), bytes);
    }
    Ok(())
}

/// Whether any bytes are valid elements of the dtype: true unless it is bool or below 8 bits.
pub fn takes_any_bytes(dtype: Dtype) -> bool {
    dtype != Dtype::Bool && used_bits(dtype) == u8::MAX
}

/// Sets the unused bits of sub-byte elements to zero.
pub fn clear_unused_bits(dtype: Dtype, bytes: &mut [u8]) {
    let mask = used_bits(dtype);
    if mask != u8::MAX {
        bytes.iter_mut().for_each(|byte| *byte &= mask);
    }
}

fn used_bits(dtype: Dtype) -> u8 {
    match dtype {
        Dtype::Int2 | Dtype::UInt2 => 0x03,
        Dtype::Int4 | Dtype::UInt4 | Dtype::Float4E2m1fn => 0x0f,
        Dtype::Float6E2m3fn | Dtype::Float6E3m2fn => 0x3f,
        _ => u8::MAX,
    }
}

fn odd_bool(dtype: Dtype, bytes: &[u8]) -> Option<u8> {
    // Without an early exit the fold compiles to vector code. The search runs only for a bad byte.
    let is_odd = dtype == Dtype::Bool && bytes.iter().fold(0, |all, byte| all | byte) > 1;
    if is_odd { bytes.iter().copied().find(|&byte| byte > 1) } else { None }
}

fn swap_words(word_bytes: usize, bytes: &mut [u8]) {
    if word_bytes > 1 {
        bytes.chunks_exact_mut(word_bytes).for_each(<[u8]>::reverse);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn read(dtype: Dtype, endian: Endian, bytes: &[u8]) -> Result<Vec<u8>> {
        let mut bytes = bytes.to_vec();
        to_memory(dtype, endian, &mut bytes).map(|()| bytes)
    }

    #[test]
    fn big_endian_swaps_each_number_and_only_numbers() {
        use Dtype as D;
        let bytes: Vec<u8> = (0..8).collect();
        assert_eq!(read(D::UInt16, Endian::Big, &bytes).unwrap(), [1, 0, 3, 2, 5, 4, 7, 6]);
        assert_eq!(read(D::Complex64, Endian::Big, &bytes).unwrap(), [3, 2, 1, 0, 7, 6, 5, 4]);
        assert_eq!(read(D::UInt8, Endian::Big, &bytes).unwrap(), bytes);
        assert_eq!(read(D::Float64, Endian::Little, &bytes).unwrap(), bytes);
    }

    #[test]
    fn unused_bits_say_nothing_and_bools_are_strict() {
        assert_eq!(read(Dtype::Int4, Endian::Little, &[0xff, 0xf8, 0x17]).unwrap(), [0x0f, 8, 7]);
        assert_eq!(read(Dtype::Int2, Endian::Little, &[0xff, 2]).unwrap(), [3, 2]);
        assert_eq!(read(Dtype::Float4E2m1fn, Endian::Big, &[0x91]).unwrap(), [1]);
        assert_eq!(read(Dtype::Bool, Endian::Little, &[0, 1]).unwrap(), [0, 1]);
        assert_eq!(read(Dtype::Bool, Endian::Little, &[0, 2]).unwrap_err().kind(), ErrorKind::Corrupt);
        assert!(to_stored(Dtype::Bool, Endian::Little, &mut [0xff]).is_err());
    }
}
