//! Restores damaged blocks, a few at a time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use super::by_checksums::read;
use super::damage::{Damage, Parity};
use crate::bytes::checksum::Crc32;
use crate::bytes::limits::work_space;
use crate::engine::parity::Run;
use crate::error::{Error, Result};
use crate::parity::{Geometry, restore};
use crate::store::Blob;
use crate::threads::{for_each_parallel, thread_count};

/// Bytes of restored blocks in memory. With less memory, stripes are read more often.
const HELD_LEN_BYTES: u64 = 256 << 20;

type Block = (u64, Vec<u8>);

/// The damaged blocks of a run that can be restored, in their order.
pub(super) struct RestoredBlocks<'r> {
    geometry: Geometry,
    parity: &'r Parity,
    run: &'r Run,
    other: Option<&'r Run>,
    /// Damaged blocks that are intact in the replica.
    in_other: BTreeSet<u64>,
    damage: &'r Damage,
    blob: Option<std::sync::Arc<dyn Blob>>,
    healable: Vec<u64>,
    /// Damaged blocks that cannot be restored.
    pub lost: BTreeSet<u64>,
    held: HashMap<u64, Vec<u8>>,
}

impl<'r> RestoredBlocks<'r> {
    pub fn of(parity: &'r Parity, run: &'r Run, other: Option<&'r Run>, damage: &'r Damage) -> Result<Self> {
        let geometry = parity.document.geometry();
        let mut restored = Self {
            geometry,
            parity,
            run,
            other,
            in_other: BTreeSet::new(),
            damage,
            blob: parity.blocks()?,
            healable: Vec::new(),
            lost: BTreeSet::new(),
            held: HashMap::new(),
        };
        for &block in &damage.data {
            if restored.of_other(block)?.is_some() {
                restored.in_other.insert(block);
            }
        }
        let mut missing: BTreeMap<u64, u64> = BTreeMap::new();
        for &block in damage.data.difference(&restored.in_other) {
            *missing.entry(geometry.stripe_of(block)).or_default() += 1;
        }
        for &block in &damage.parity {
            if let Some(missing) = missing.get_mut(&(block / geometry.parity_blocks)) {
                *missing += 1;
            }
        }
        let is_lost = |block: &u64| {
            !restored.in_other.contains(block)
                && missing
                    .get(&geometry.stripe_of(*block))
                    .is_some_and(|count| *count > geometry.parity_blocks)
        };
        (restored.lost, restored.healable) = {
            let (lost, healable): (Vec<_>, Vec<_>) = damage.data.iter().copied().partition(is_lost);
            (lost.into_iter().collect(), healable)
        };
        Ok(restored)
    }

    /// The restored bytes of a damaged block; `None` if the block is not damaged, or lost.
    /// `Corrupt` if the bytes change during the repair.
    pub fn get(&mut self, block: u64) -> Result<Option<&[u8]>> {
        if !self.held.contains_key(&block) {
            let Ok(at) = self.healable.binary_search(&block) else { return Ok(None) };
            self.held.clear();
            let count = (HELD_LEN_BYTES / self.geometry.block_len_bytes) as usize;
            let next: Vec<u64> = self.healable.iter().skip(at).take(count).copied().collect();
            let found = self.restore(&next)?;
            self.held.extend(found);
        }
        Ok(self.held.get(&block).map(Vec::as_slice))
    }

    fn restore(&self, blocks: &[u64]) -> Result<Vec<Block>> {
        let mut found = Vec::new();
        let mut stripes: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for &block in blocks {
            if self.in_other.contains(&block) {
                found.extend(self.of_other(block)?.map(|bytes| (block, bytes)));
            } else {
                stripes.entry(self.geometry.stripe_of(block)).or_default().insert(block);
            }
        }
        let found = Mutex::new(found);
        for_each_parallel(
            thread_count(),
            stripes,
            u64::MAX,
            |_| 0,
            |(stripe, wanted)| {
                let blocks = self.stripe(stripe, &wanted)?;
                found.lock().unwrap_or_else(PoisonError::into_inner).extend(blocks);
                Ok(())
            },
        )?;
        Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Computes the wanted blocks of a stripe from its intact blocks.
    fn stripe(&self, stripe: u64, wanted: &BTreeSet<u64>) -> Result<Vec<Block>> {
        let Geometry { block_len_bytes, data_blocks, parity_blocks, .. } = self.geometry;
        let mut data: Vec<Block> = Vec::with_capacity(data_blocks as usize);
        let mut missing = 0_u64;
        for at in 0..data_blocks {
            let mut bytes = work_space(block_len_bytes)?;
            if let Some(block) = self.geometry.block(stripe, at) {
                let Some(good) = self.good(block)? else {
                    missing += 1;
                    continue;
                };
                bytes.iter_mut().zip(&good).for_each(|(to, from)| *to = *from);
            }
            data.push((at, bytes));
        }
        let mut parity: Vec<Block> = Vec::with_capacity(missing as usize);
        for at in 0..parity_blocks {
            let block = self.geometry.parity_block(stripe, at);
            if parity.len() as u64 == missing {
                break;
            }
            let mut bytes = work_space(block_len_bytes)?;
            if !self.damage.parity.contains(&block)
                && read(self.blob.as_deref(), &self.parity.at.blocks, block * block_len_bytes, &mut bytes)?
            {
                parity.push((at, bytes));
            }
        }
        let mut found: Vec<Block> = Vec::with_capacity(wanted.len());
        restore(&self.geometry, borrowed(&data), borrowed(&parity), |at, bytes| {
            if let Some(block) = self.geometry.block(stripe, at).filter(|block| wanted.contains(block)) {
                let range = self.geometry.range(block);
                found.push((block, bytes.iter().copied().take((range.end - range.start) as usize).collect()));
            }
        })?;
        match found.iter().find(|(block, bytes)| !self.is_good(*block, bytes)) {
            None => Ok(found),
            // A block that was intact has changed since the scan.
            Some((block, _)) => Err(Error::corrupt("a restored block fails its checksum")
                .in_file(&self.parity.at.blocks)
                .expected(format_args!("the CRC-32 of block {block}"), "another")
                .help(
                    "another program writes to the checkpoint, or the disk fails: try again when no \
                    program writes to it",
                )),
        }
    }

    /// The bytes of an intact block, from the checkpoint or the replica; `None` for a block that
    /// must be restored.
    fn good(&self, block: u64) -> Result<Option<Vec<u8>>> {
        if self.in_other.contains(&block) {
            return self.of_other(block);
        }
        if self.damage.data.contains(&block) {
            return Ok(None);
        }
        let range = self.geometry.range(block);
        let mut bytes = work_space(range.end - range.start)?;
        self.run.read(range.start, &mut bytes)?;
        Ok(Some(bytes))
    }

    /// The bytes of a block in the replica; `None` if they do not match the block's checksum.
    fn of_other(&self, block: u64) -> Result<Option<Vec<u8>>> {
        let Some(other) = self.other else { return Ok(None) };
        let range = self.geometry.range(block);
        let mut bytes = work_space(range.end - range.start)?;
        let is_read = other.read_if_there(range.start, &mut bytes)?;
        Ok(Some(bytes).filter(|bytes| is_read && self.is_good(block, bytes)))
    }

    fn is_good(&self, block: u64, bytes: &[u8]) -> bool {
        self.parity.document.block_crc32.get(block as usize) == Some(&Crc32::of(bytes))
    }
}

fn borrowed(blocks: &[Block]) -> impl Iterator<Item = (u64, &[u8])> {
    blocks.iter().map(|(at, bytes)| (*at, bytes.as_slice()))
}
