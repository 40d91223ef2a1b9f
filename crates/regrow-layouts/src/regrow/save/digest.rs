//! The BLAKE3 digest of a data file's leaves, with which the next save finds unchanged leaves.
//!
//! A second thread hashes leaves in memory during the write. An array that is read on demand and
//! [keeps](regrow_tree::array::ArraySource::kept_len_bytes) its last decoded part would be decoded
//! twice. So the writer itself hashes the leaves of a file with such an array.

use super::super::manifest::DataFile;
use super::plan::Plan;
use regrow_base::bytes::checksum::BlockSums;
use regrow_base::error::Result;
use regrow_base::monitor::Monitor;

const PIECE_LEN_BYTES: usize = 256 << 10;

/// The digest of the leaves of a file that is being written. It is dropped if the checksums of the
/// written blocks differ: then an array changed during the save, and the digest would mislead the
/// next save.
pub(super) struct Digest {
    blake3: String,
    block_crc32c: Vec<u32>,
}

impl Digest {
    pub fn of(plan: &Plan<'_>, leaves: &[u32], block_len_bytes: usize, monitor: &Monitor) -> Result<Self> {
        let (mut hasher, mut blocks) = (blake3::Hasher::new(), BlockSums::new(block_len_bytes));
        for_each_piece(plan, leaves.iter().copied(), |piece| {
            hasher.update(piece);
            blocks.update(piece);
            monitor.check()
        })?;
        Ok(Self { blake3: hasher.finalize().to_hex().to_string(), block_crc32c: blocks.finish() })
    }

    /// Puts the digest into the record of the file, if the blocks agree.
    pub fn record_in(self, file: &mut DataFile) {
        file.blake3 = (self.block_crc32c == file.block_crc32c).then_some(self.blake3);
    }
}

/// Passes the stored bytes of these leaves to `each`, one leaf after the other.
pub(super) fn for_each_piece(
    plan: &Plan<'_>,
    leaves: impl Iterator<Item = u32>,
    mut each: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    for leaf in leaves {
        let Some(array) = plan.stored_array(leaf as usize) else { continue };
        let shown = array.and_then(|array| array.for_each_piece(PIECE_LEN_BYTES, &mut each));
        shown.map_err(|error| error.at_leaf(&plan.path(leaf as usize)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_of_other_bytes_is_not_recorded() {
        let mut file = DataFile {
            name: String::new(),
            len_bytes: 3,
            data_offset: 0,
            head_crc32c: 0,
            block_len_bytes: 1 << 20,
            block_crc32c: vec![regrow_base::bytes::checksum::crc32c(b"abc")],
            blake3: None,
        };
        let digest = |bytes: &[u8]| Digest {
            blake3: "digest".to_owned(),
            block_crc32c: vec![regrow_base::bytes::checksum::crc32c(bytes)],
        };
        digest(b"abc").record_in(&mut file);
        assert_eq!(file.blake3.as_deref(), Some("digest"));
        digest(b"abd").record_in(&mut file);
        assert_eq!(file.blake3, None);
    }
}
