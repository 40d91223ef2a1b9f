//! The position of each block, and the stripe that it belongs to.

use std::ops::Range;

use super::ratio::ParityRatio;
use regrow_base::error::{Error, Result};

/// The shortest and the longest block. A disk reads 32 KiB at once; a small checkpoint has shorter
/// blocks.
const BLOCK_LEN_RANGE_BYTES: std::ops::RangeInclusive<u64> = 64..=32 << 10;

/// The approximate number of blocks of a small checkpoint.
const BLOCKS_WANTED: u64 = 1024;

/// The most data blocks, and the most parity blocks, of a stripe. The limit bounds the memory for
/// healing a stripe.
const STRIPE_BLOCKS_MAX: u64 = 1024;

/// The division of a run of bytes into blocks, and of the blocks into stripes. Block `b` is in
/// stripe `b % stripes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Length of the run, which is all files.
    pub len_bytes: u64,
    /// Length of a block. The last block of the run is padded with zeros.
    pub block_len_bytes: u64,
    /// Data blocks of each stripe. Missing blocks of a stripe count as zeros.
    pub data_blocks: u64,
    /// Parity blocks of each stripe.
    pub parity_blocks: u64,
}

impl Geometry {
    /// The geometry for a run of this length.
    pub fn of(len_bytes: u64, ratio: ParityRatio) -> Self {
        let block_len_bytes = (len_bytes / BLOCKS_WANTED)
            .next_power_of_two()
            .clamp(*BLOCK_LEN_RANGE_BYTES.start(), *BLOCK_LEN_RANGE_BYTES.end());
        let blocks = len_bytes.div_ceil(block_len_bytes);
        let stripes = blocks.div_ceil(ratio.data_blocks_max()).max(1);
        let data_blocks = blocks.div_ceil(stripes).max(1);
        Self { len_bytes, block_len_bytes, data_blocks, parity_blocks: ratio.parity_blocks_of(data_blocks) }
    }

    /// Returns an error unless blocks and stripes of this form are possible.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: &str, expected: String, found: u64| {
            Err(Error::corrupt(format!("the index of the parity contradicts itself: {what}"))
                .expected(expected, found))
        };
        let blocks = BLOCK_LEN_RANGE_BYTES;
        if !blocks.contains(&self.block_len_bytes) || !self.block_len_bytes.is_power_of_two() {
            let expected = format!("a power of two from {} to {}", blocks.start(), blocks.end());
            return wrong("the block length is not valid", expected, self.block_len_bytes);
        }
        for count in [self.data_blocks, self.parity_blocks] {
            if !(1..=STRIPE_BLOCKS_MAX).contains(&count) {
                return wrong(
                    "the number of blocks of a stripe is not valid",
                    format!("1 to {STRIPE_BLOCKS_MAX}"),
                    count,
                );
            }
        }
        Ok(())
    }

    /// The number of data blocks of the run.
    pub fn blocks(&self) -> u64 {
        self.len_bytes.div_ceil(self.block_len_bytes)
    }

    /// The number of stripes.
    pub fn stripes(&self) -> u64 {
        self.blocks().div_ceil(self.data_blocks)
    }

    /// The number of parity blocks of all stripes.
    pub fn all_parity_blocks(&self) -> u64 {
        self.stripes().saturating_mul(self.parity_blocks)
    }

    /// Length of all parity blocks.
    pub fn parity_len_bytes(&self) -> u64 {
        self.all_parity_blocks().saturating_mul(self.block_len_bytes)
    }

    /// The stripe of a block.
    pub fn stripe_of(&self, block: u64) -> u64 {
        block % self.stripes().max(1)
    }

    /// The number in the run of block `at` of a stripe; `None` if the stripe has fewer blocks.
    pub fn block(&self, stripe: u64, at: u64) -> Option<u64> {
        let block = at.checked_mul(self.stripes())?.checked_add(stripe)?;
        (at < self.data_blocks && block < self.blocks()).then_some(block)
    }

    /// The number of a parity block among all parity blocks; the blocks of a stripe are neighbours.
    pub fn parity_block(&self, stripe: u64, at: u64) -> u64 {
        stripe * self.parity_blocks + at
    }

    /// The bytes of a block in the run.
    pub fn range(&self, block: u64) -> Range<u64> {
        let start = block.saturating_mul(self.block_len_bytes).min(self.len_bytes);
        start..start.saturating_add(self.block_len_bytes).min(self.len_bytes)
    }

    /// The blocks that have any of these bytes of the run.
    pub fn blocks_of(&self, bytes: Range<u64>) -> Range<u64> {
        if bytes.is_empty() {
            return 0..0;
        }
        bytes.start / self.block_len_bytes..bytes.end.div_ceil(self.block_len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_in_one_stripe_and_neighbours_are_in_different_ones() {
        for len_bytes in [0, 1, 511, 512, 513, 70_000, 1 << 20, (1 << 20) + 1, 100 << 20] {
            for ratio in ["1/16", "1/1", "1/1024", "3/7"] {
                let geometry = Geometry::of(len_bytes, ratio.parse().unwrap());
                geometry.check().unwrap();
                let mut of_block = vec![0; geometry.blocks() as usize];
                for stripe in 0..geometry.stripes() {
                    for at in 0..geometry.data_blocks {
                        let Some(block) = geometry.block(stripe, at) else { continue };
                        assert_eq!(geometry.stripe_of(block), stripe);
                        of_block[block as usize] += 1;
                    }
                    assert_eq!(geometry.block(stripe, geometry.data_blocks), None);
                }
                assert!(of_block.iter().all(|&count| count == 1), "{len_bytes} {ratio}");
                let last = geometry.blocks().saturating_sub(1);
                assert_eq!(geometry.range(last).end, len_bytes);
            }
        }
    }

    #[test]
    fn a_run_of_damage_as_long_as_the_parity_is_within_it() {
        let geometry = Geometry::of(90 << 20, ParityRatio::default());
        let run = geometry.parity_blocks * geometry.stripes();
        assert!(run * geometry.block_len_bytes >= geometry.len_bytes / 16);
        for first in [0, 1, geometry.stripes() - 1, geometry.blocks() - run] {
            let mut lost = vec![0; geometry.stripes() as usize];
            (first..first + run).for_each(|block| lost[geometry.stripe_of(block) as usize] += 1);
            assert!(lost.iter().all(|&count| count <= geometry.parity_blocks));
        }
    }

    #[test]
    fn blocks_of_bytes() {
        let geometry = Geometry::of(10_000, ParityRatio::default());
        assert_eq!(geometry.block_len_bytes, 64);
        assert_eq!(geometry.blocks_of(0..1), 0..1);
        assert_eq!(geometry.blocks_of(63..65), 0..2);
        assert_eq!(geometry.blocks_of(64..128), 1..2);
        assert_eq!(geometry.blocks_of(7..7), 0..0);
    }
}
