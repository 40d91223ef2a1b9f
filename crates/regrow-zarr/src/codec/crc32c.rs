//! The codec `crc32c`: the bytes, then their CRC-32C, so that a reader detects a flipped bit.
//!
//! ```text
//! | bytes ... | u32le CRC-32C (Castagnoli) of them |
//! ```
//!
//! Source: zarr v3 codec `crc32c`.

use crate::bytes::checksum::crc32c;
use crate::error::{Error, Result};

/// The length that the checksum adds.
pub const CRC32C_LEN_BYTES: usize = size_of::<u32>();

pub fn strip(stored: &[u8]) -> Result<&[u8]> {
    let Some((bytes, stored_crc)) = stored.split_last_chunk::<CRC32C_LEN_BYTES>() else {
        return Err(Error::corrupt("the bytes end inside a crc32c")
            .expected(format_args!("at least {CRC32C_LEN_BYTES} bytes"), stored.len()));
    };
    let (expected, found) = (u32::from_le_bytes(*stored_crc), crc32c(bytes));
    if expected != found {
        return Err(Error::corrupt("its crc32c does not match")
            .at_byte(bytes.len() as u64)
            .expected(format_args!("{expected:08x} (stored)"), format_args!("{found:08x} (computed)"))
            .help("copy the file again from where it came from"));
    }
    Ok(bytes)
}

pub fn append(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let len = bytes.len() + CRC32C_LEN_BYTES;
    out.try_reserve_exact(len).map_err(|_| super::no_memory(len as u64))?;
    out.extend_from_slice(bytes);
    out.extend_from_slice(&crc32c(bytes).to_le_bytes());
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_tensorstore_writes_it() {
        let stored = [0, 1, 2, 3, 4, 5, 0x14, 0x85, 0x09, 0x41];
        assert_eq!(append(&[0, 1, 2, 3, 4, 5]).unwrap(), stored);
        assert_eq!(strip(&stored).unwrap(), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        for bit in 0..80 {
            let mut stored = append(&[0, 1, 2, 3, 4, 5]).unwrap();
            stored[bit / 8] ^= 1 << (bit % 8);
            assert!(strip(&stored).is_err(), "bit {bit}");
        }
        assert!(strip(&[1, 2, 3]).is_err());
    }
}
