//! Checksums of fixed-length blocks of a file, over bytes that arrive in pieces of any length.
//!
//! ```text
//! | not under a checksum | block 0 | block 1 | ... | last, shorter |
//! 0                      from      from + 32 KiB
//! ```
//!
//! To read a few bytes, a reader reads and checks their whole blocks. With blocks of 32 KiB, any 64
//! KiB lie in at most three blocks: 1.5 times the requested bytes. Blocks of half this length would
//! save few bytes, and the list of checksums would be twice as long.

use crate::bytes::checksum::BlockSums;

/// Number of bytes under each checksum.
pub const BLOCK_LEN_BYTES: usize = 32 << 10;

/// The CRC-32C of every block, starting at a given byte.
pub struct BlockChecksums {
    skip_bytes: u64,
    sums: BlockSums,
}

impl BlockChecksums {
    /// Starts the first block at byte `from`.
    #[inline]
    pub fn from_byte(from: u64) -> Self {
        Self { skip_bytes: from, sums: BlockSums::new(BLOCK_LEN_BYTES) }
    }

    /// Adds the next bytes of the file.
    pub fn update(&mut self, bytes: &[u8]) {
        let skip = usize::try_from(self.skip_bytes).unwrap_or(usize::MAX).min(bytes.len());
        self.skip_bytes -= skip as u64;
        self.sums.update(bytes.get(skip..).unwrap_or_default());
    }

    /// The checksums of all blocks, including the shorter last one.
    #[inline]
    pub fn finish(&mut self) -> Vec<u32> {
        self.sums.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::checksum::crc32c;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn pieces_do_not_matter(
            len in 0_usize..9 * BLOCK_LEN_BYTES,
            from in 0_usize..BLOCK_LEN_BYTES,
            cuts in prop::collection::vec(1_usize..4 * BLOCK_LEN_BYTES, 0..6),
        ) {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
            let mut sums = BlockChecksums::from_byte(from as u64);
            let mut rest = bytes.as_slice();
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                sums.update(now);
                rest = later;
            }
            sums.update(rest);
            let expected: Vec<u32> =
                bytes.get(from..).unwrap_or_default().chunks(BLOCK_LEN_BYTES).map(crc32c).collect();
            prop_assert_eq!(sums.finish(), expected);
        }
    }
}
