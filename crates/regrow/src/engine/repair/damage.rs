//! Finds the parity of a checkpoint, even if the parity is damaged, and the blocks that fail its
//! checksums.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::{by_checksums, is_damage};
use crate::bytes::checksum::Crc32;
use crate::bytes::limits::{JSON_LEN_MAX_BYTES, work_space};
use crate::engine::parity::Run;
use crate::error::{Error, Result, ResultExt};
use crate::location::Location;
use crate::monitor::{Monitor, Stage};
use crate::parity::{CLOSING_LEN_BYTES, Geometry, ParityDocument, ParityPlace, index_len_bytes};
use crate::store::{Blob, ReadPath};
use crate::threads::{for_each_parallel, thread_count};

const PIECE_LEN_BYTES: u64 = 4 << 20;

/// The parity of a checkpoint: its location, and its parsed index.
#[derive(Debug)]
pub(super) struct Parity {
    pub at: ParityPlace,
    pub document: ParityDocument,
    /// Whether both copies of the index exist and are equal.
    pub is_index_whole: bool,
}

impl Parity {
    /// Finds the parity of the checkpoint at a location. Reads both copies of the index, in its own
    /// file and behind the blocks, and uses a copy that is intact.
    pub fn find(at: &Location) -> Result<Option<Self>> {
        let at = ParityPlace::of(at);
        let mut copies = Copies::read(&at)?;
        if copies.is_none() {
            if !at.blocks.is_file() && !at.place.file.is_file() {
                return Ok(None);
            }
            // A save may have written the index after the first read.
            copies = Copies::read(&at)?;
        }
        let Copies { own, behind } = copies;
        let parsed = |bytes: Option<Vec<u8>>| bytes.map(|bytes| ParityDocument::parse(&bytes));
        let (behind, own) = (parsed(behind), parsed(own));
        // Two processes that made parity at the same time may each have written one of the copies.
        let is_index_whole = match (&behind, &own) {
            (Some(Ok(behind)), Some(Ok(own))) => behind.is_of_same_parity(own),
            _ => false,
        };
        let document = match (behind, own) {
            (Some(Ok(document)), _) | (_, Some(Ok(document))) => document,
            (_, Some(Err(error))) => return Err(error.in_file(&at.place.file)),
            (Some(Err(error)), None) => return Err(error.in_file(&at.blocks)),
            (None, None) => {
                return Err(Error::corrupt("the index of the parity is lost, in both of its copies")
                    .in_file(&at.place.file)
                    .help("this parity cannot repair; pass `--from` to take data from a copy"));
            }
        };
        if document.covers_folder != at.place.covers_folder {
            return Err(Error::corrupt("the parity belongs to another kind of checkpoint"))
                .in_file(&at.place.file);
        }
        at.place.check_names(&document.names).in_file(&at.place.file)?;
        Ok(Some(Self { at, document, is_index_whole }))
    }

    pub fn blocks(&self) -> Result<Option<Arc<dyn Blob>>> {
        let file = &self.at.blocks;
        file.parent().store().open(file.name().as_encoded_bytes())
    }
}

/// The unparsed bytes of both copies of the index; `None` for a copy that cannot be read.
struct Copies {
    own: Option<Vec<u8>>,
    behind: Option<Vec<u8>>,
}

impl Copies {
    fn read(at: &ParityPlace) -> Result<Self> {
        let undamaged = |read: Result<Option<Vec<u8>>>, file: &Location| match read {
            Err(error) if is_damage(&error, file) => Ok(None),
            other => other,
        };
        Ok(Self {
            own: undamaged(at.place.read("the index of the parity"), &at.place.file)?,
            behind: undamaged(behind_blocks(at), &at.blocks)?,
        })
    }

    fn is_none(&self) -> bool {
        self.own.is_none() && self.behind.is_none()
    }
}

/// The copy of the index that follows the blocks in their file.
fn behind_blocks(at: &ParityPlace) -> Result<Option<Vec<u8>>> {
    let store = at.blocks.parent().store();
    let Some(blob) = store.open(at.blocks.name().as_encoded_bytes())? else { return Ok(None) };
    let Some(end) = blob.len_bytes().checked_sub(CLOSING_LEN_BYTES) else { return Ok(None) };
    let mut closing = [0; CLOSING_LEN_BYTES as usize];
    blob.read(end, &mut closing, ReadPath::Cached)?;
    let len_bytes = index_len_bytes(&closing).filter(|len| *len <= JSON_LEN_MAX_BYTES);
    let Some((len_bytes, start)) = len_bytes.and_then(|len| Some((len, end.checked_sub(len)?))) else {
        return Ok(None);
    };
    let mut bytes = work_space(len_bytes)?;
    blob.read(start, &mut bytes, ReadPath::Cached)?;
    Ok(Some(bytes))
}

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
        let of_parity = |offset_bytes: u64, out: &mut [u8]| {
            by_checksums::read(blob.as_deref(), &parity.at.blocks, offset_bytes, out)
        };
        let (count, len_bytes) = (geometry.all_parity_blocks(), geometry.parity_len_bytes());
        let bad = bad_blocks(&geometry, 0..count, len_bytes, &document.parity_crc32, &of_parity, monitor)?;
        Ok(Self { data, parity: bad, misfits: misfits(run)? })
    }

    pub fn of_data(parity: &Parity, run: &Run, monitor: &Monitor) -> Result<BTreeSet<u64>> {
        let geometry = parity.document.geometry();
        let checksums = &parity.document.block_crc32;
        let read = |offset_bytes: u64, out: &mut [u8]| run.read_if_there(offset_bytes, out);
        bad_blocks(&geometry, 0..geometry.blocks(), geometry.len_bytes, checksums, &read, monitor)
    }
}

/// The files of a run that are missing or have another length.
fn misfits(run: &Run) -> Result<BTreeSet<usize>> {
    let mut found = BTreeSet::new();
    for (number, file) in run.files().iter().enumerate() {
        let len_bytes = match run.store().len_bytes(file.name.as_bytes()) {
            Err(error) if is_damage(&error, run.folder()) => None,
            other => other?,
        };
        if len_bytes != Some(file.range.end - file.range.start) {
            found.insert(number);
        }
    }
    Ok(found)
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
