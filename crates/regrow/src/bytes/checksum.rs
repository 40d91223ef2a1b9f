//! CRC-32C (Castagnoli), as OCDBT, zarr v3 and regrow's block lists store it: plain, without masking.
//!
//! The check value of `123456789` is `e3069283`.

use crc_fast::CrcAlgorithm;

/// The CRC-32C of `bytes`.
#[expect(clippy::cast_possible_truncation, reason = "a 32-bit checksum in the crate's u64")]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// A CRC-32C over parts that arrive one after another.
pub struct Crc32c(crc_fast::Digest);

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// Over nothing yet.
    pub fn new() -> Self {
        Self(crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Takes in the next part.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all parts so far.
    #[expect(clippy::cast_possible_truncation, reason = "a 32-bit checksum in the crate's u64")]
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meets_the_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let mut parts = Crc32c::new();
        parts.update(b"1234");
        parts.update(b"56789");
        assert_eq!(parts.value(), 0xe306_9283);
    }
}
