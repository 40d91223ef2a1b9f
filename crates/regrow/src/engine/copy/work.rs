//! Copies the bytes: reads them in pieces, hashes, writes, reads back and compares.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use blake3::{Hash, Hasher};

use super::CopyOptions;
use super::plan::{Plan, SourceFile};
use super::read::read_piece;
use crate::engine::BUDGET_DEFAULT_BYTES;
use crate::error::{Error, Result};
use crate::monitor::Stage;
use crate::storage::{Left, Target, Transfer};
use crate::store::Blob;
use crate::threads::{for_each_parallel, map_ordered, thread_count};

/// Bytes of a piece of a large file. A shorter file is one piece, and many such files are copied at
/// once.
const PIECE_LEN_BYTES: u64 = 8 << 20;

const THREADS_MAX: usize = 8;

/// Progress within a large file is recorded after this many bytes, so that a later copy can
/// continue there.
const NOTE_EVERY_BYTES: u64 = PIECE_LEN_BYTES;

/// A running copy.
pub(super) struct Copying<'a> {
    transfer: &'a dyn Transfer,
    options: &'a CopyOptions,
    threads: usize,
    budget_bytes: u64,
    pub(super) reused_bytes: AtomicU64,
}

impl<'a> Copying<'a> {
    pub(super) fn new(transfer: &'a dyn Transfer, options: &'a CopyOptions) -> Self {
        Self {
            transfer,
            options,
            threads: options.threads.unwrap_or_else(thread_count).clamp(1, THREADS_MAX),
            budget_bytes: options.budget_bytes.unwrap_or(BUDGET_DEFAULT_BYTES),
            reused_bytes: AtomicU64::new(0),
        }
    }

    /// Markers come last.
    pub(super) fn all(&self, plan: &Plan) -> Result<()> {
        self.options.monitor.enter(Stage::Copy);
        let numbered = || plan.files.iter().enumerate();
        if plan.kind != Target::Folder {
            // Copy in order: the last file commits the checkpoint.
            return numbered().try_for_each(|(at, file)| self.one(at, file));
        }
        let is_large = |file: &SourceFile| file.transfer.len_bytes > PIECE_LEN_BYTES;
        for (at, file) in numbered().filter(|(_, file)| !file.is_marker() && is_large(file)) {
            self.one(at, file)?;
        }
        let is_small = |(_, file): &(usize, &SourceFile)| !file.is_marker() && !is_large(file);
        // The cost is twice the length, because the bytes read back lie in memory too.
        let cost = |(_, file): &(usize, &SourceFile)| 2 * file.transfer.len_bytes;
        for_each_parallel(
            self.threads,
            numbered().filter(is_small),
            self.budget_bytes,
            cost,
            |(at, file)| self.one(at, file),
        )?;
        numbered().filter(|(_, file)| file.is_marker()).try_for_each(|(at, file)| self.one(at, file))
    }

    fn one(&self, at: usize, file: &SourceFile) -> Result<()> {
        let monitor = &self.options.monitor;
        monitor.check()?;
        let len_bytes = file.transfer.len_bytes;
        let is_verified = !self.options.unverified;
        let (mut hasher, mut offset) = (Hasher::new(), 0);
        match self.transfer.left(at) {
            Left::Nothing => {}
            Left::Whole { digest, is_proven } => {
                let is_same = is_proven || !is_verified || self.digest_of(at, len_bytes)?.0 == Some(digest);
                if is_same {
                    self.reused_bytes.fetch_add(len_bytes, Ordering::Relaxed);
                    self.transfer.finished(at, digest, is_verified)?;
                    // Bytes read for the comparison were already counted; count the rest as done.
                    let was_read = is_verified && !is_proven;
                    return monitor.advance(if is_verified && !was_read { 2 * len_bytes } else { len_bytes });
                }
            }
            Left::Beginning(known) => {
                if let Some(found) = self.longest_beginning(at, known)? {
                    (hasher, offset) = found;
                    self.reused_bytes.fetch_add(offset, Ordering::Relaxed);
                    monitor.advance(offset)?;
                }
            }
        }
        let digest = self.write(at, file, hasher, offset).map_err(|error| file.blame(error))?;
        file.check_version()?;
        if is_verified {
            self.compare(at, len_bytes, digest)?;
        }
        self.transfer.finished(at, digest, is_verified)
    }

    /// Copies a file from `offset` on, and returns the digest of the whole file.
    fn write(&self, at: usize, file: &SourceFile, mut hasher: Hasher, offset: u64) -> Result<Hash> {
        let len_bytes = file.transfer.len_bytes;
        let source = file.open()?;
        let mut out = self.transfer.writer(at, offset)?;
        let (mut done, mut noted) = (offset, offset);
        let written = self.each_piece(&*source, offset, len_bytes, &mut |piece| {
            self.options.monitor.timed(Stage::Copy, piece.len() as u64, || {
                hasher.update(piece);
                out.write(piece)
            })?;
            done += piece.len() as u64;
            if done - noted >= NOTE_EVERY_BYTES && done < len_bytes {
                noted = done;
                self.transfer.reached(at, done, hasher.finalize())?;
            }
            self.options.monitor.check()
        });
        written?;
        out.finish()?;
        Ok(hasher.finalize())
    }

    fn compare(&self, at: usize, len_bytes: u64, digest: Hash) -> Result<()> {
        let (found, name) = self.digest_of(at, len_bytes)?;
        if found == Some(digest) {
            return Ok(());
        }
        self.transfer.discard(at)?;
        Err(Error::corrupt("a copied file reads back with other bytes")
            .in_file(name)
            .expected(
                format_args!("{len_bytes} bytes with the BLAKE3 {}", digest.to_hex()),
                found.map_or("another length".to_owned(), |found| found.to_hex().to_string()),
            )
            .help("check the disk, the network and the memory of this machine, then copy again"))
    }

    /// The digest is `None` if the length differs.
    fn digest_of(&self, at: usize, len_bytes: u64) -> Result<(Option<Hash>, PathBuf)> {
        let blob = self.transfer.written(at)?;
        let name = blob.describe();
        if blob.len_bytes() != len_bytes {
            return Ok((None, name));
        }
        let mut hasher = Hasher::new();
        self.each_piece(&*blob, 0, len_bytes, &mut |piece| {
            self.options.monitor.timed(Stage::Compare, piece.len() as u64, || hasher.update(piece));
            self.options.monitor.advance(piece.len() as u64)
        })?;
        Ok((Some(hasher.finalize()), name))
    }

    /// The longest beginning of the file that an earlier copy has written and that is unchanged:
    /// the state of its digest, and its length.
    fn longest_beginning(&self, at: usize, mut known: Vec<(u64, Hash)>) -> Result<Option<(Hasher, u64)>> {
        known.sort_by_key(|(len_bytes, _)| *len_bytes);
        let blob = self.transfer.written(at)?;
        let (mut hasher, mut read, mut found) = (Hasher::new(), 0, None);
        for (len_bytes, digest) in known {
            if len_bytes <= read || len_bytes > blob.len_bytes() {
                continue;
            }
            self.each_piece(&*blob, read, len_bytes, &mut |piece| {
                self.options.monitor.timed(Stage::Compare, piece.len() as u64, || hasher.update(piece));
                self.options.monitor.check()
            })?;
            read = len_bytes;
            if hasher.finalize() != digest {
                break;
            }
            found = Some((hasher.clone(), len_bytes));
        }
        Ok(found)
    }

    /// Calls `each` with the bytes from `start` to `end`, in order. Reads ahead.
    fn each_piece(
        &self,
        blob: &dyn Blob,
        start: u64,
        end: u64,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let step = usize::try_from(PIECE_LEN_BYTES).unwrap_or(usize::MAX);
        let pieces = (start..end).step_by(step).map(|from| (from, PIECE_LEN_BYTES.min(end - from)));
        let monitor = &self.options.monitor;
        map_ordered(
            self.threads,
            pieces,
            self.budget_bytes,
            |(_, len_bytes)| *len_bytes,
            |(from, len_bytes)| monitor.timed(Stage::Read, len_bytes, || read_piece(blob, from, len_bytes)),
            |piece| each(&piece),
        )
    }
}
