//! Reed-Solomon: makes the parity blocks of a stripe, and restores its lost data blocks.

use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

use super::geometry::Geometry;
use regrow_base::error::{Error, Result};

/// Bytes of each block that are encoded at once. The code works on 64 bytes of each block at a
/// time, so slices do not change the parity. A slice of all blocks fits in a processor's cache.
const SLICE_LEN_BYTES: u64 = 4 << 10;

/// Makes the parity blocks of stripes, one stripe after another.
pub struct Encoder {
    code: ReedSolomonEncoder,
    slice_len: usize,
    block_len: usize,
}

impl Encoder {
    /// Makes a code for stripes of this form.
    pub fn new(geometry: &Geometry) -> Result<Self> {
        let Geometry { data_blocks, parity_blocks, block_len_bytes, .. } = *geometry;
        // Both lengths are powers of two, so slices divide a block evenly.
        let slice_len = count(block_len_bytes.min(SLICE_LEN_BYTES));
        let code = ReedSolomonEncoder::new(count(data_blocks), count(parity_blocks), slice_len);
        Ok(Self { code: code.map_err(unusable)?, slice_len, block_len: count(block_len_bytes) })
    }

    /// Appends the parity blocks of a stripe to `parity`; all data blocks, in their order, are in
    /// `blocks`.
    pub fn stripe<'b>(
        &mut self,
        blocks: impl Iterator<Item = &'b [u8]> + Clone,
        parity: &mut Vec<u8>,
    ) -> Result<()> {
        let start = parity.len();
        for from in (0..self.block_len).step_by(self.slice_len) {
            let slice = from..from + self.slice_len;
            for block in blocks.clone() {
                self.code
                    .add_original_shard(block.get(slice.clone()).unwrap_or_default())
                    .map_err(unusable)?;
            }
            let encoded = self.code.encode().map_err(unusable)?;
            for (at, made) in encoded.recovery_iter().enumerate() {
                let block = start + at * self.block_len;
                if parity.len() < block + self.block_len {
                    parity.resize(block + self.block_len, 0);
                }
                parity[block..][slice.clone()].copy_from_slice(made);
            }
        }
        Ok(())
    }
}

/// Restores the lost data blocks of a stripe from its other blocks, and calls `each` with each
/// restored block and its number in the stripe. `data` and `parity` together must have at least as
/// many blocks as the stripe has data blocks.
pub fn restore<'b>(
    geometry: &Geometry,
    data: impl Iterator<Item = (u64, &'b [u8])>,
    parity: impl Iterator<Item = (u64, &'b [u8])>,
    mut each: impl FnMut(u64, &[u8]),
) -> Result<()> {
    let Geometry { data_blocks, parity_blocks, block_len_bytes, .. } = *geometry;
    let code = ReedSolomonDecoder::new(count(data_blocks), count(parity_blocks), count(block_len_bytes));
    let mut code = code.map_err(unusable)?;
    for (at, block) in data {
        code.add_original_shard(count(at), block).map_err(unusable)?;
    }
    for (at, block) in parity {
        code.add_recovery_shard(count(at), block).map_err(unusable)?;
    }
    let result = code.decode().map_err(unusable)?;
    result.restored_original_iter().for_each(|(at, block)| each(at as u64, block));
    Ok(())
}

/// Converts a number that `Geometry::check` has bounded.
fn count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn unusable(error: reed_solomon_simd::Error) -> Error {
    Error::unsupported(format!("the parity cannot be computed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Removes `lost` neighbouring blocks of a stripe, and as many parity blocks as the code does
    /// not need.
    #[test]
    fn what_is_lost_comes_back() {
        for (data_blocks, parity_blocks) in [(1, 2), (1, 1), (2, 1), (7, 3), (64, 64), (256, 16), (1024, 11)]
        {
            let geometry =
                Geometry { len_bytes: data_blocks * 512, block_len_bytes: 512, data_blocks, parity_blocks };
            geometry.check().unwrap();
            let data: Vec<Vec<u8>> = (0..data_blocks)
                .map(|at| (0..512_u64).map(|byte| (at * 31 + byte * 7 + at * byte) as u8).collect())
                .collect();
            let mut parity = Vec::new();
            let mut encoder = Encoder::new(&geometry).unwrap();
            encoder.stripe(data.iter().map(Vec::as_slice), &mut parity).unwrap();
            assert_eq!(parity.len() as u64, parity_blocks * 512);
            let parity: Vec<_> = parity.chunks(512).collect();
            for lost in 1..=parity_blocks.min(data_blocks) {
                let first = (data_blocks - lost) / 2;
                let is_lost = |at: u64| (first..first + lost).contains(&at);
                let left = (0..)
                    .zip(&data)
                    .filter(|(at, _)| !is_lost(*at))
                    .map(|(at, block)| (at, block.as_slice()));
                let some = (0..).zip(&parity).skip((parity_blocks - lost) as usize);
                let mut found = 0;
                restore(&geometry, left, some.map(|(at, block)| (at, *block)), |at, block| {
                    assert!(is_lost(at));
                    assert_eq!(block, data[at as usize]);
                    found += 1;
                })
                .unwrap();
                assert_eq!(found, lost);
            }
        }
    }

    /// Parity that is computed from whole blocks, as by another program with the same code, is
    /// equal.
    #[test]
    fn slices_make_the_parity_that_whole_blocks_make() {
        let block_len_bytes = 8 * SLICE_LEN_BYTES;
        let geometry =
            Geometry { len_bytes: 7 * block_len_bytes, block_len_bytes, data_blocks: 7, parity_blocks: 3 };
        let data: Vec<Vec<u8>> = (0..7_u64)
            .map(|at| {
                (0..block_len_bytes).map(|byte| (at * 31 + byte * 7 + (byte >> 8) * at) as u8).collect()
            })
            .collect();
        let whole = reed_solomon_simd::encode(7, 3, &data).unwrap().concat();
        let mut parity = b"before".to_vec();
        let mut encoder = Encoder::new(&geometry).unwrap();
        for _ in 0..2 {
            encoder.stripe(data.iter().map(Vec::as_slice), &mut parity).unwrap();
        }
        assert!(parity == [b"before".as_slice(), &whole, &whole].concat());
    }
}
