//! The checksums of files, taken at the speed of the disk.

use std::sync::{Mutex, PoisonError};

use crate::bytes::checksum::Crc32;
use crate::error::{Error, ErrorKind, Result};
use crate::monitor::{Monitor, Stage};
use crate::seal::{BLOCK_LEN_BYTES, SealDocument};
use crate::store::{FETCH_LEN_MAX_BYTES, ReadPath, Scratch, Store, Version};
use crate::threads::{for_each_parallel, thread_count};

/// Bytes that are read at once: whole blocks.
const PIECE_LEN_BYTES: u64 = FETCH_LEN_MAX_BYTES - FETCH_LEN_MAX_BYTES % BLOCK_LEN_BYTES;

/// Threads that wait for a network at once.
const THREADS_FAR: usize = 16;

/// Whole blocks of a file.
struct Piece {
    file: usize,
    start: u64,
    len_bytes: u64,
}

/// Adds to a seal the files of these names, which are keys of `store`.
///
/// # Errors
/// `Replaced` if one of them changes meanwhile; what the storage says; `Cancelled`.
pub(super) fn add_files(
    document: &mut SealDocument,
    store: &dyn Store,
    names: Vec<String>,
    monitor: &Monitor,
) -> Result<u64> {
    let before = names.iter().map(|name| version(store, name)).collect::<Result<Vec<Version>>>()?;
    let total_bytes = before.iter().map(|version| version.len_bytes).fold(0, u64::saturating_add);
    monitor.expect(total_bytes);
    monitor.enter(Stage::Read);
    let mut sums: Vec<Vec<u32>> = Vec::with_capacity(names.len());
    let mut pieces = Vec::new();
    for (file, version) in before.iter().enumerate() {
        let count = usize::try_from(version.len_bytes.div_ceil(BLOCK_LEN_BYTES)).unwrap_or(usize::MAX);
        sums.push(vec![0; count]);
        let starts = (0..version.len_bytes).step_by(PIECE_LEN_BYTES as usize);
        pieces.extend(starts.map(|start| Piece {
            file,
            start,
            len_bytes: PIECE_LEN_BYTES.min(version.len_bytes - start),
        }));
    }
    let sums = Mutex::new(sums);
    let is_far = match names.first() {
        Some(name) => store.open(name.as_bytes())?.is_some_and(|blob| blob.suits().is_far()),
        None => false,
    };
    let threads = if is_far { THREADS_FAR } else { thread_count() };
    let sum_piece = |piece: Piece| {
        let name = names.get(piece.file).map_or("", String::as_str);
        let blob = store.open(name.as_bytes())?.ok_or_else(|| changed(store, name))?;
        let is_cached = blob.is_cached(piece.start, piece.len_bytes);
        let way = if is_cached { ReadPath::Cached } else { ReadPath::Direct };
        let mut scratch = Scratch::default();
        let bytes = blob.fetch(piece.start, piece.len_bytes as usize, way, &mut scratch)?;
        let found: Vec<u32> = bytes.chunks(BLOCK_LEN_BYTES as usize).map(Crc32::of).collect();
        let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
        let from = (piece.start / BLOCK_LEN_BYTES) as usize;
        let slots = sums.get_mut(piece.file).and_then(|sums| sums.get_mut(from..from + found.len()));
        slots.unwrap_or_default().iter_mut().zip(found).for_each(|(slot, sum)| *slot = sum);
        drop(sums);
        monitor.done(Stage::Read, piece.len_bytes)
    };
    for_each_parallel(threads, pieces, u64::MAX, |_| 0, sum_piece)?;
    let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
    for ((name, before), sums) in names.into_iter().zip(before).zip(sums) {
        if version(store, &name)? != before {
            return Err(changed(store, &name));
        }
        document.push(name, before.len_bytes, &sums);
    }
    Ok(total_bytes)
}

fn version(store: &dyn Store, name: &str) -> Result<Version> {
    store.version(name.as_bytes())?.ok_or_else(|| changed(store, name))
}

fn changed(store: &dyn Store, name: &str) -> Error {
    Error::new(ErrorKind::Replaced, "the checkpoint was changed while it was being sealed")
        .in_file(store.describe(name.as_bytes()))
        .help("seal it again when nobody writes to it")
}
