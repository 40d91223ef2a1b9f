//! Finds damaged blocks by their checksums.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::index::Parity;
use crate::bytes::checksum::Crc32;
use crate::bytes::limits::work_space;
use crate::engine::parity::Run;
use crate::error::Result;
use crate::monitor::{Monitor, Stage};
use crate::parity::Geometry;
use crate::store::{Blob, ReadPath};
use crate::threads::{for_each_parallel, thread_count};

const PIECE_LEN_BYTES: u64 = 4 << 20;

/// Reads bytes of a run or of a file. Returns false if the bytes cannot be read.
type Read<'r> = &'r (dyn Fn(u64, &mut [u8]) -> Result<bool> + Sync);

/// The damaged blocks and files.
#[derive(Debug, Default)]
pub(super) struct Damage {
    /// Blocks of the run that fail their checksums.
    pub data: BTreeSet<u64>,
    /// Parity blocks that fail their checksums.
    pub parity: BTreeSet<u64>,
    /// Files that are missing or have another length, by their numbers.
    pub misfits: BTreeSet<usize>,
}

impl Damage {
    /// Reads all files that the parity covers, and the parity, and finds the damage.
    pub fn find(parity: &Parity, run: &Run, monitor: &Monitor) -> Result<Self> {
        let document = &parity.document;
        let geometry = document.geometry();
        monitor.expect(geometry.len_bytes.saturating_add(geometry.parity_len_bytes()));
        monitor.enter(Stage::Read);
        let data = Self::of_data(parity, run, monitor)?;
        let blob = parity.blocks()?;
        let of_parity =
            |offset_bytes: u64, out: &mut [u8]| read_parity(parity, blob.as_deref(), offset_bytes, out);
        let (count, len_bytes) = (geometry.all_parity_blocks(), geometry.parity_len_bytes());
        let bad = bad_blocks(&geometry, 0..count, len_bytes, &document.parity_crc32, &of_parity, monitor)?;
        Ok(Self { data, parity: bad, misfits: misfits(run)? })
    }

    /// The damage in the files that the parity covers. Does not read the parity blocks.
    pub fn of_files(parity: &Parity, run: &Run) -> Result<Self> {
        let data = Self::of_data(parity, run, &Monitor::new())?;
        Ok(Self { data, parity: BTreeSet::new(), misfits: misfits(run)? })
    }

    pub fn of_data(parity: &Parity, run: &Run, monitor: &Monitor) -> Result<BTreeSet<u64>> {
        let geometry = parity.document.geometry();
        let checksums = &parity.document.block_crc32;
        let read = |offset_bytes: u64, out: &mut [u8]| run.read_if_there(offset_bytes, out);
        bad_blocks(&geometry, 0..geometry.blocks(), geometry.len_bytes, checksums, &read, monitor)
    }

    pub fn is_none(&self) -> bool {
        self.data.is_empty() && self.parity.is_empty() && self.misfits.is_empty()
    }
}

/// The files of a run that are missing or have another length.
fn misfits(run: &Run) -> Result<BTreeSet<usize>> {
    let mut found = BTreeSet::new();
    for (number, file) in run.files().iter().enumerate() {
        let len_bytes = match run.store().len_bytes(file.name.as_bytes()) {
            Err(error) if super::is_damage(&error, run.folder()) => None,
            other => other?,
        };
        if len_bytes != Some(file.range.end - file.range.start) {
            found.insert(number);
        }
    }
    Ok(found)
}

/// Reads parity blocks. Returns false if they cannot be read.
pub(super) fn read_parity(
    parity: &Parity,
    blob: Option<&dyn Blob>,
    offset_bytes: u64,
    out: &mut [u8],
) -> Result<bool> {
    let Some(blob) = blob else { return Ok(false) };
    match blob.read(offset_bytes, out, ReadPath::Cached) {
        Ok(()) => Ok(true),
        Err(error) if super::is_damage(&error, &parity.at.blocks) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The blocks in `wanted` that fail their checksums. Together, all blocks have `len_bytes` bytes.
fn bad_blocks(
    geometry: &Geometry,
    wanted: std::ops::Range<u64>,
    len_bytes: u64,
    checksums: &[u32],
    read: Read<'_>,
    monitor: &Monitor,
) -> Result<BTreeSet<u64>> {
    let block_len_bytes = geometry.block_len_bytes;
    let blocks_of_piece = PIECE_LEN_BYTES / block_len_bytes;
    let found = Mutex::new(BTreeSet::new());
    let is_good = |block: u64, bytes: &[u8]| checksums.get(block as usize) == Some(&Crc32::of(bytes));
    let pieces = wanted.clone().step_by(blocks_of_piece as usize);
    for_each_parallel(
        thread_count(),
        pieces,
        u64::MAX,
        |_| 0,
        |first| {
            let blocks = first..(first + blocks_of_piece).min(wanted.end);
            let start = first * block_len_bytes;
            let mut bytes = work_space((blocks.end * block_len_bytes).min(len_bytes) - start)?;
            let is_read = read(start, &mut bytes)?;
            for (block, bytes) in blocks.zip(bytes.chunks_mut(block_len_bytes as usize)) {
                // If the read of the whole piece failed, read each block by itself.
                let is_read = is_read || read(block * block_len_bytes, bytes)?;
                if !is_read || !is_good(block, bytes) {
                    found.lock().unwrap_or_else(PoisonError::into_inner).insert(block);
                }
            }
            monitor.done(Stage::Read, bytes.len() as u64)
        },
    )?;
    Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
}
