//! CRC-32C (Castagnoli), as OCDBT, zarr v3 and regrow's block lists store it: plain, without
//! masking. Also the CRC-32 of zip and gzip.
//!
//! The CRC-32C of `123456789` is `e3069283`.

use crc_fast::CrcAlgorithm;

/// The CRC-32C of `bytes`.
#[expect(clippy::cast_possible_truncation, reason = "a 32-bit checksum in the crate's u64")]
#[inline]
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
    /// The checksum of no bytes.
    #[inline]
    pub fn new() -> Self {
        Self(crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds the next part.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all parts so far.
    #[expect(clippy::cast_possible_truncation, reason = "a 32-bit checksum in the crate's u64")]
    #[inline]
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

/// A CRC-32, as zip and gzip use it, over parts that arrive one after another.
pub struct Crc32(crc_fast::Digest);

impl Default for Crc32 {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32 {
    /// The checksum of no bytes.
    #[inline]
    pub fn new() -> Self {
        Self(crc_fast::Digest::new(CrcAlgorithm::Crc32IsoHdlc))
    }

    /// The CRC-32 of `bytes`.
    pub fn of(bytes: &[u8]) -> u32 {
        let mut crc = Self::new();
        crc.update(bytes);
        crc.value()
    }

    /// Adds the next part.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all parts so far.
    #[expect(clippy::cast_possible_truncation, reason = "a 32-bit checksum in the crate's u64")]
    #[inline]
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

impl std::fmt::Debug for Crc32 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Crc32({:08x})", self.value())
    }
}

/// Computes a CRC-32C for each block of a fixed length, from bytes that arrive in pieces of any
/// length.
pub struct BlockSums {
    block_len_bytes: usize,
    done: Vec<u32>,
    current: Crc32c,
    filled_bytes: usize,
}

impl BlockSums {
    /// Starts with no bytes. Each block has `block_len_bytes`.
    #[inline]
    pub fn new(block_len_bytes: usize) -> Self {
        Self { block_len_bytes, done: Vec::new(), current: Crc32c::new(), filled_bytes: 0 }
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(self.block_len_bytes - self.filled_bytes));
            if now.len() == self.block_len_bytes {
                self.done.push(crc32c(now));
            } else {
                self.current.update(now);
                self.filled_bytes += now.len();
                if self.filled_bytes == self.block_len_bytes {
                    self.close();
                }
            }
            rest = later;
        }
    }

    /// The checksums of all blocks, including a shorter last one. Starts again afterwards.
    pub fn finish(&mut self) -> Vec<u32> {
        if self.filled_bytes > 0 {
            self.close();
        }
        std::mem::take(&mut self.done)
    }

    fn close(&mut self) {
        self.done.push(std::mem::take(&mut self.current).value());
        self.filled_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_started_block_has_a_checksum() {
        let block = 1000;
        for len in [0, 1, block - 1, block, block + 1, 2 * block, 5 * block + 3] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let expected: Vec<u32> = bytes.chunks(block).map(crc32c).collect();
            for piece_len in [1, 7, block, 2 * block + 1] {
                let mut sums = BlockSums::new(block);
                bytes.chunks(piece_len).for_each(|piece| sums.update(piece));
                assert_eq!(sums.finish(), expected, "{len} bytes by {piece_len}");
            }
        }
    }

    #[test]
    fn meets_the_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let mut parts = Crc32c::new();
        parts.update(b"1234");
        parts.update(b"56789");
        assert_eq!(parts.value(), 0xe306_9283);
    }
}
