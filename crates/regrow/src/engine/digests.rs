//! Checksums and digests of the blocks of files, computed at the speed of the disk.

use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::monitor::{Monitor, Stage};
use crate::store::{FETCH_LEN_MAX_BYTES, ReadPath, Scratch, Store, StoreExt, Version};
use crate::threads::{for_each_parallel, thread_count};

/// Threads that read from a network at once.
const THREADS_FAR: usize = 16;

/// A run of whole blocks of a file, which one thread reads.
struct Piece {
    file: usize,
    start: u64,
    len_bytes: u64,
}

/// A file and the digests of its blocks.
#[derive(Debug)]
pub(super) struct Digested<D> {
    pub name: String,
    pub len_bytes: u64,
    pub blocks: Vec<D>,
}

/// The digests of one piece, and the offset of the piece in its file.
type Part<D> = (u64, Vec<D>);

/// The block size and the hash function.
#[derive(Debug)]
pub(super) struct Digest<D> {
    pub block_len_bytes: u64,
    pub of_block: fn(&[u8]) -> D,
    /// The past participle that errors use for the action on the checkpoint, such as `sealed`.
    pub doing: &'static str,
}

impl<D: Send> Digest<D> {
    /// Reads the files `names`, which are keys of `store`, and returns the digests of their blocks.
    ///
    /// # Errors
    /// `Replaced` if a file changes during the read; errors of the storage; `Cancelled`.
    pub fn files(
        &self,
        store: &dyn Store,
        names: Vec<String>,
        monitor: &Monitor,
    ) -> Result<Vec<Digested<D>>> {
        let before = names.iter().map(|name| self.version(store, name)).collect::<Result<Vec<Version>>>()?;
        monitor.expect(before.iter().map(|version| version.len_bytes).fold(0, u64::saturating_add));
        monitor.enter(Stage::Read);
        let piece_len_bytes = FETCH_LEN_MAX_BYTES - FETCH_LEN_MAX_BYTES % self.block_len_bytes;
        let mut pieces = Vec::new();
        for (file, version) in before.iter().enumerate() {
            let starts = (0..version.len_bytes).step_by(piece_len_bytes as usize);
            pieces.extend(starts.map(|start| Piece {
                file,
                start,
                len_bytes: piece_len_bytes.min(version.len_bytes - start),
            }));
        }
        let is_far = match names.first() {
            Some(name) => store.open(name.as_bytes())?.is_some_and(|blob| blob.suits().is_far()),
            None => false,
        };
        let threads = if is_far { THREADS_FAR } else { thread_count() };
        let parts: Vec<Vec<Part<D>>> = before.iter().map(|_| Vec::new()).collect();
        let parts = Mutex::new(parts);
        let digest = |piece: Piece| {
            let name = names.get(piece.file).map_or("", String::as_str);
            let blob = store.open(name.as_bytes())?.ok_or_else(|| self.changed(store, name))?;
            let is_cached = blob.is_cached(piece.start, piece.len_bytes);
            let way = if is_cached { ReadPath::Cached } else { ReadPath::Direct };
            let mut scratch = Scratch::default();
            let bytes = blob.fetch(piece.start, piece.len_bytes as usize, way, &mut scratch)?;
            let found = bytes.chunks(self.block_len_bytes as usize).map(self.of_block).collect();
            let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(file) = parts.get_mut(piece.file) {
                file.push((piece.start, found));
            }
            drop(parts);
            monitor.done(Stage::Read, piece.len_bytes)
        };
        for_each_parallel(threads, pieces, u64::MAX, |_| 0, digest)?;
        let parts = parts.into_inner().unwrap_or_else(PoisonError::into_inner);
        let files = names.iter().zip(before).zip(parts).map(|((name, before), mut parts)| {
            if self.version(store, name)? != before {
                return Err(self.changed(store, name));
            }
            parts.sort_unstable_by_key(|(start, _)| *start);
            let blocks = parts.into_iter().flat_map(|(_, blocks)| blocks).collect();
            Ok(Digested { name: name.clone(), len_bytes: before.len_bytes, blocks })
        });
        files.collect()
    }

    fn version(&self, store: &dyn Store, name: &str) -> Result<Version> {
        store.version(name.as_bytes())?.ok_or_else(|| self.changed(store, name))
    }

    fn changed(&self, store: &dyn Store, name: &str) -> Error {
        Error::replaced(format!("the checkpoint was changed while it was being {}", self.doing))
            .in_file(store.describe(name.as_bytes()))
            .help("try again when no program writes to it")
    }
}
