//! Finds unchanged leaves: leaves with the same bytes as in the base.
//!
//! The caller does not declare changes. A leaf is unchanged if the base has a leaf of the same
//! name, dtype, shape and bytes. The bytes are compared piece by piece up to the first difference,
//! so a leaf whose first piece has changed costs only this piece. If the base has a digest of a
//! file ([`DataFile::blake3`]), the save hashes its own leaves instead, and does not read the base.
//!
//! [`DataFile::blake3`]: super::super::manifest::DataFile::blake3

use std::sync::atomic::{AtomicBool, Ordering};

use super::base::{OldFile, OldLeaf};
use super::digest::for_each_piece;
use super::plan::Plan;
use regrow_base::bytes::limits::work_space;
use regrow_base::error::Result;
use regrow_base::monitor::{Monitor, Stage};
use regrow_base::threads::pool;
use regrow_store::{Blob, ReadPath};
use regrow_tree::array::Array;

const PIECE_LEN_BYTES: usize = 256 << 10;

/// Leaves are compared in batches of about this size, each by one thread.
const BATCH_LEN_BYTES: u64 = 8 << 20;

/// The cost of reading a leaf in addition to its bytes, as a number of bytes.
const LEAF_COST_BYTES: u64 = 4096;

/// For each leaf of the tree, whether it is unchanged.
pub(super) struct Unchanged(Vec<AtomicBool>);

impl Unchanged {
    /// Compares the leaves that the tree and the base share. The monitor's total grows by the
    /// compared bytes. The memory that leaves [keep](Array::kept_len_bytes) while they are read is
    /// at most `budget_bytes`, or the memory of one leaf if that is more.
    pub fn find(
        plan: &Plan<'_>,
        old_files: &[OldFile],
        budget_bytes: u64,
        monitor: &Monitor,
    ) -> Result<Self> {
        monitor.expect(old_files.iter().map(OldFile::leaves_len_bytes).fold(0, u64::saturating_add));
        let unchanged = Self(plan.leaves.iter().map(|_| AtomicBool::new(false)).collect());
        let mut to_compare = Vec::new();
        for old in old_files {
            match has_digest_of_leaves(old, plan, monitor)? {
                Some(true) => old.leaves.iter().for_each(|leaf| unchanged.set(leaf.leaf)),
                Some(false) => {
                    // The digest differs, so the leaves are compared one by one.
                    monitor.expect(old.leaves_len_bytes());
                    to_compare.push(old);
                }
                None => to_compare.push(old),
            }
        }
        compare(plan, &to_compare, &unchanged, budget_bytes, monitor)?;
        Ok(unchanged)
    }

    pub fn has(&self, leaf: u32) -> bool {
        self.0.get(leaf as usize).is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    fn set(&self, leaf: u32) {
        if let Some(flag) = self.0.get(leaf as usize) {
            flag.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether the digest of the file equals the digest of the tree's leaves, in their order; `None` if
/// the file has no digest, or if the tree lacks a leaf of the file.
fn has_digest_of_leaves(old: &OldFile, plan: &Plan<'_>, monitor: &Monitor) -> Result<Option<bool>> {
    let Some(expected) = old.record.blake3.as_ref().filter(|_| old.is_whole) else { return Ok(None) };
    let mut hasher = blake3::Hasher::new();
    for_each_piece(plan, old.leaves.iter().map(|leaf| leaf.leaf), |piece| {
        hasher.update(piece);
        monitor.done(Stage::Compare, piece.len() as u64)
    })?;
    Ok(Some(hasher.finalize().to_hex().as_str() == expected.as_str()))
}

fn compare(
    plan: &Plan<'_>,
    files: &[&OldFile],
    unchanged: &Unchanged,
    budget_bytes: u64,
    monitor: &Monitor,
) -> Result<()> {
    let batches = files.iter().flat_map(|old| {
        let mut len_bytes = 0_u64;
        let batches = old.leaves.chunk_by(move |leaf, _| {
            len_bytes = len_bytes.saturating_add(leaf.len_bytes).saturating_add(LEAF_COST_BYTES);
            let is_full = len_bytes >= BATCH_LEN_BYTES;
            len_bytes = if is_full { 0 } else { len_bytes };
            !is_full
        });
        batches.map(|batch| (&*old.opened, batch))
    });
    // Each thread needs memory for two pieces, and for the data that its current leaf keeps.
    let cost_bytes = |batch: &[OldLeaf]| {
        let arrays = batch.iter().filter_map(|leaf| plan.stored_array(leaf.leaf as usize)?.ok());
        arrays.map(|array| array.kept_len_bytes()).max().unwrap_or(0)
    };
    pool::for_each_parallel(
        pool::thread_count(),
        batches,
        budget_bytes,
        |(_, batch)| cost_bytes(batch),
        |(file, batch)| {
            for leaf in batch {
                let Some(array) = plan.stored_array(leaf.leaf as usize) else { continue };
                let same = array.and_then(|array| same_len_bytes(&array, file, leaf.offset_bytes, monitor));
                let same_bytes = same.map_err(|error| error.at_leaf(&plan.path(leaf.leaf as usize)))?;
                if same_bytes == leaf.len_bytes {
                    unchanged.set(leaf.leaf);
                }
                // The bytes after a difference are not compared, but they count as done.
                if same_bytes < leaf.len_bytes {
                    monitor.advance(leaf.len_bytes - same_bytes)?;
                }
            }
            Ok(())
        },
    )
}

/// The number of equal bytes of the array and the file from an offset on, up to the first piece
/// that differs. Bytes that cannot be read count as different.
fn same_len_bytes(array: &Array, file: &dyn Blob, offset_bytes: u64, monitor: &Monitor) -> Result<u64> {
    let len_bytes = array.len_bytes();
    let piece_len = usize::try_from(len_bytes).unwrap_or(usize::MAX).min(PIECE_LEN_BYTES);
    let mut theirs = work_space(piece_len as u64)?;
    let mut copied = work_space(if array.c_order_bytes().is_some() { 0 } else { piece_len as u64 })?;
    let mut done = 0_u64;
    while done < len_bytes {
        let len = usize::try_from(len_bytes - done).unwrap_or(usize::MAX).min(piece_len);
        let ours = match array.c_order_bytes() {
            Some(bytes) => bytes.get(done as usize..done as usize + len).unwrap_or_default(),
            None => {
                let piece = copied.get_mut(..len).unwrap_or_default();
                array.copy_c_order(done, piece)?;
                piece
            }
        };
        let theirs = theirs.get_mut(..len).unwrap_or_default();
        if file.read(offset_bytes.saturating_add(done), theirs, ReadPath::Cached).is_err() || theirs != ours {
            // Free the memory now: other leaves are read before this leaf is written.
            array.release();
            break;
        }
        done += len as u64;
        monitor.done(Stage::Compare, len as u64)?;
    }
    Ok(done)
}
