//! One large file, written front to back at the speed of the disk.
//!
//! The caller's bytes are copied into a ring of aligned buffers, and checksummed while they are
//! still in the processor's cache. At the same time a thread of the writer writes full buffers to
//! the disk by direct I/O.
//!
//! ```text
//! caller:  copy + crc32c, 256 KiB at a time ─▶ | 4 MiB | ─┐      (11 GB/s)
//!                                              | 4 MiB |  ├─▶ thread: pwrite, O_DIRECT   (4.3 GB/s)
//!                                              | 4 MiB | ◀┘
//! file:    | bytes 0 .. len                | zeros to a 4 KiB boundary, cut off by finish |
//! ```
//!
//! Buffered writes with one fsync reach half of this speed (2.2 GB/s): they fill the page cache
//! with pages that are not read again. If the caller wants these pages, or direct I/O is refused,
//! the same writes are buffered. Then the write-back of each buffer starts at once, so that the
//! fsync at the end has little to do. A file below 64 KiB is one ordinary write: no thread, no
//! direct I/O.
//!
//! The expected length is reserved on disk first, so that a full disk is an error before the first
//! write.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::output::{Output, reserve};
use super::watch::Watch;
use crate::blocks::{BLOCK_LEN_BYTES, BlockChecksums};
use crate::buffer::{Buffer, RING_LEN, SMALL_LEN_BYTES};
use crate::error::{Error, ErrorKind, Result};
use crate::monitor::Monitor;
use crate::system::{FileExt, sync};
use crate::{FileSink, WriteOptions, WrittenFile};

/// Bytes that are copied and then checksummed: few enough to stay in the processor's cache.
const PIECE_LEN_BYTES: usize = 256 << 10;

const NO_MEMORY: &str = "cannot get memory to write";

/// The pieces of `write_with` begin at multiples of this, so that no element is split.
const ELEMENT_LEN_MAX_BYTES: usize = 16;

/// Writes one file in order. Copies the bytes into a small ring of aligned buffers and computes the
/// checksums. A thread of the writer writes the buffers with direct I/O.
///
/// Needs at most 12 MiB for a file of any length. An error of the disk may be reported by a later
/// call than the one with the failed bytes. After an error every call fails. If the writer is
/// dropped unfinished, the owner of the folder removes the file.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data");
/// use regrow_store::DirectWriter;
/// let mut writer = DirectWriter::create(&path, 3 << 20, 0)?;
/// writer.write(&vec![1; 1 << 20])?;
/// writer.write_with(2 << 20, &mut |_offset, piece| {
///     piece.fill(2);
///     Ok(())
/// })?;
/// let written = writer.finish()?;
/// assert_eq!((written.len_bytes, written.block_crc32c.len()), (3 << 20, 96));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DirectWriter {
    path: PathBuf,
    options: WriteOptions,
    checksums: BlockChecksums,
    current: Buffer,
    /// The offset of `current` in the file.
    current_offset: u64,
    filled: usize,
    /// The number of bytes of `current` that are already in `checksums`.
    summed: usize,
    made: usize,
    idle: Vec<Buffer>,
    /// The open file, while this thread writes. When the first aligned buffer is full, a worker
    /// thread gets the file, if the system can start a thread.
    disk: Option<Disk>,
    failed: bool,
    watch: Watch,
    /// Bytes that `finish` of the sink writes over earlier bytes.
    patches: Vec<(u64, Vec<u8>)>,
}

enum Disk {
    Here(Output),
    Worker { full: Sender<Full>, free: Receiver<io::Result<Buffer>>, thread: JoinHandle<Option<Output>> },
}

/// A full buffer that is sent to the disk.
struct Full {
    buffer: Buffer,
    len: usize,
    offset: u64,
}

impl DirectWriter {
    /// Number of bytes under each checksum.
    pub const BLOCK_LEN_BYTES: u64 = BLOCK_LEN_BYTES as u64;

    /// Creates a file, which must not exist yet; it will be durable. `expected_len_bytes` are
    /// reserved on disk first, so a full disk is reported before the first write. Block checksums
    /// begin at byte `checksums_from`.
    ///
    /// # Errors
    /// `StorageFull`, `PermissionDenied`, `AlreadyExists`; `NotFound` if the folder does not exist.
    /// After an error no new file stays.
    pub fn create(path: &Path, expected_len_bytes: u64, checksums_from: u64) -> Result<Self> {
        Self::create_with(
            path,
            &WriteOptions { expected_len_bytes, checksums_from, ..WriteOptions::default() },
        )
    }

    /// The same as [`create`](Self::create), with all options.
    pub fn create_with(path: &Path, options: &WriteOptions) -> Result<Self> {
        let file = File::create_new(path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                Error::new(ErrorKind::AlreadyExists, "the file already exists").in_file(path)
            }
            _ => Error::io("cannot create", path, error),
        })?;
        Self::over(file, path, options).inspect_err(|_| {
            let _ = fs::remove_file(path);
        })
    }

    fn over(file: File, path: &Path, options: &WriteOptions) -> Result<Self> {
        let cannot_reserve = |error| {
            let what = format!("cannot reserve {} bytes", options.expected_len_bytes);
            Error::io(&what, path, error)
        };
        reserve(&file, options.expected_len_bytes).map_err(cannot_reserve)?;
        let current = Buffer::small().map_err(|error| Error::io(NO_MEMORY, path, error))?;
        Ok(Self {
            path: path.to_owned(),
            options: *options,
            checksums: BlockChecksums::from_byte(options.checksums_from),
            current,
            current_offset: 0,
            filled: 0,
            summed: 0,
            made: 0,
            idle: Vec::new(),
            disk: Some(Disk::Here(Output::new(file, options.keep_cached))),
            failed: false,
            watch: Watch::default(),
            patches: Vec::new(),
        })
    }

    /// Reports bytes and times to `monitor`. The writer stops at the next buffer if the monitor is
    /// cancelled.
    #[must_use]
    pub fn watched(mut self, monitor: &Monitor) -> Self {
        if let Some(Disk::Here(output)) = &mut self.disk {
            output.watched(monitor.clone());
        }
        self.watch.monitor = monitor.clone();
        self
    }

    /// Reports bytes as done that need no space in the file, because they are compressed. Returns
    /// `Cancelled` if the monitor was cancelled.
    pub fn saved(&self, len_bytes: u64) -> Result<()> {
        self.watch.monitor.advance(len_bytes)
    }

    /// Number of bytes appended so far.
    pub fn offset_bytes(&self) -> u64 {
        self.current_offset + self.filled as u64
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// Errors of the disk, for these bytes or earlier ones.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = self.room()?;
            let (now, later) = rest.split_at(rest.len().min(room.len()));
            if let Some(room) = room.get_mut(..now.len()) {
                room.copy_from_slice(now);
            }
            self.advance(now.len());
            rest = later;
        }
        Ok(())
    }

    /// Appends `len_bytes` that `fill` produces piece by piece, in order. `fill` gets the offset of
    /// each piece, counted from the first byte of this call, and a slice that it must fill
    /// completely. The old content of the slice is arbitrary. Pieces begin at multiples of 16 bytes
    /// and have at most 256 KiB.
    ///
    /// # Errors
    /// Errors of `fill`; errors of the disk, for these bytes or earlier ones.
    pub fn write_with(
        &mut self,
        len_bytes: u64,
        fill: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut done = 0;
        while done < len_bytes {
            let left = len_bytes - done;
            let room = self.room()?;
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(room.len());
            let whole = if len as u64 == left { len } else { len - len % ELEMENT_LEN_MAX_BYTES };
            match room.get_mut(..whole) {
                Some(piece) if whole > 0 => {
                    fill(done, piece)?;
                    self.advance(whole);
                    done += whole as u64;
                }
                // The rest of the buffer is shorter than one element, so the element is first
                // written to a small array.
                _ => {
                    let mut element = [0; ELEMENT_LEN_MAX_BYTES];
                    let len = usize::try_from(left).unwrap_or(usize::MAX).min(ELEMENT_LEN_MAX_BYTES);
                    let piece = element.get_mut(..len).unwrap_or_default();
                    fill(done, piece)?;
                    self.write(piece)?;
                    done += len as u64;
                }
            }
        }
        Ok(())
    }

    /// Writes the remaining bytes, cuts the file to its length and syncs it if it must be durable.
    ///
    /// # Errors
    /// Errors of the disk. The file stays.
    pub fn finish(mut self) -> Result<WrittenFile> {
        self.look_for_failure()?;
        self.sum_up_to(self.filled);
        let len_bytes = self.offset_bytes();
        self.watch.count(len_bytes)?;
        if let (Some(Disk::Worker { .. }), true) = (&self.disk, self.filled > 0) {
            self.send()?;
        }
        let began = Instant::now();
        let stopped = self.stop();
        self.watch.waited(began);
        let Some(mut output) = stopped? else { return Err(self.broken()) };
        self.close(&mut output).map_err(|error| Error::io("cannot write", &self.path, error))?;
        Ok(WrittenFile { len_bytes, block_crc32c: self.checksums.finish() })
    }

    fn close(&mut self, output: &mut Output) -> io::Result<()> {
        let len_bytes = self.offset_bytes();
        if len_bytes < SMALL_LEN_BYTES as u64 {
            output.write_all(&self.current, self.filled, self.current_offset)?;
        } else {
            let began = Instant::now();
            output.write(&mut self.current, self.filled, self.current_offset)?;
            self.watch.wrote(began, self.filled);
            self.watch.waited(began);
        }
        if output.len_bytes.max(self.options.expected_len_bytes) != len_bytes {
            output.file.set_len(len_bytes)?;
        }
        self.watch.filled(len_bytes);
        if self.options.durable { self.watch.sync(|| sync(&output.file)) } else { Ok(()) }
    }

    /// The space for the next bytes, at most up to the end of their piece; never empty.
    fn room(&mut self) -> Result<&mut [u8]> {
        self.look_for_failure()?;
        if self.filled == self.current.bytes().len() {
            self.next_buffer()?;
        }
        let end = (self.filled / PIECE_LEN_BYTES + 1) * PIECE_LEN_BYTES;
        let end = end.min(self.current.bytes().len());
        self.current
            .bytes_mut()
            .get_mut(self.filled..end)
            .ok_or_else(|| Error::invalid("no room in a buffer"))
    }

    fn advance(&mut self, len: usize) {
        self.filled += len;
        if self.filled.is_multiple_of(PIECE_LEN_BYTES) || self.filled == self.current.bytes().len() {
            self.sum_up_to(self.filled);
        }
    }

    fn sum_up_to(&mut self, end: usize) {
        self.checksums.update(self.current.bytes().get(self.summed..end).unwrap_or_default());
        self.summed = end;
    }

    /// Makes space: replaces a small buffer by an aligned one, or sends a full aligned buffer to
    /// the disk.
    fn next_buffer(&mut self) -> Result<()> {
        self.watch.count(self.offset_bytes())?;
        if let Buffer::Small(small) = &self.current {
            let mut aligned = self.ring_buffer()?;
            if let Some(start) = aligned.bytes_mut().get_mut(..small.len()) {
                start.copy_from_slice(small);
            }
            self.made += 1;
            self.current = aligned;
            return Ok(());
        }
        self.start_worker()?;
        self.send()
    }

    fn ring_buffer(&self) -> Result<Buffer> {
        Buffer::aligned().map_err(|error| Error::io(NO_MEMORY, &self.path, error))
    }

    fn start_worker(&mut self) -> Result<()> {
        match self.disk.take() {
            Some(Disk::Here(output)) => {
                let (full, to_write) = bounded::<Full>(RING_LEN);
                let (written, free) = bounded(RING_LEN + 1);
                let watch = self.watch.clone();
                // A thread that fails to start drops its closure, so the file goes only to a thread
                // that runs.
                let (hand_over, taken) = bounded::<Output>(1);
                let work = move || {
                    let mut output = taken.recv().ok()?;
                    for Full { mut buffer, len, offset } in to_write {
                        let began = Instant::now();
                        let done = output.write(&mut buffer, len, offset).map(|()| buffer);
                        watch.wrote(began, len);
                        let failed = done.is_err();
                        if written.send(done).is_err() || failed {
                            break;
                        }
                    }
                    Some(output)
                };
                let thread = std::thread::Builder::new().name("regrow-write".to_owned()).spawn(work);
                self.disk = Some(match thread {
                    Ok(thread) => {
                        // The thread waits for the file, so the send cannot fail.
                        let _ = hand_over.send(output);
                        Disk::Worker { full, free, thread }
                    }
                    // The system cannot start a thread, so this thread keeps writing.
                    Err(_) => Disk::Here(output),
                });
            }
            other => self.disk = other,
        }
        Ok(())
    }

    /// Sends the current buffer to the worker and takes another. Without a worker, writes the
    /// buffer.
    fn send(&mut self) -> Result<()> {
        if let Some(Disk::Here(output)) = &mut self.disk {
            let began = Instant::now();
            let written = output.write(&mut self.current, self.filled, self.current_offset);
            self.watch.wrote(began, self.filled);
            self.watch.waited(began);
            written.map_err(|error| self.failure(error))?;
            self.emptied();
            return Ok(());
        }
        let next = if let Some(buffer) = self.idle.pop() {
            Some(buffer)
        } else if self.made < RING_LEN {
            self.made += 1;
            Some(self.ring_buffer()?)
        } else {
            None
        };
        let Some(Disk::Worker { full, .. }) = &self.disk else { return Err(self.broken()) };
        // An empty buffer replaces the one that is sent, until a free buffer comes back.
        let stand_in = next.unwrap_or_else(|| Buffer::Small(Box::default()));
        let buffer = std::mem::replace(&mut self.current, stand_in);
        let sent = full.send(Full { buffer, len: self.filled, offset: self.current_offset });
        self.emptied();
        if sent.is_ok() && !self.current.bytes().is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        let taken = self.wait_for_buffer(sent.is_ok());
        self.watch.waited(began);
        taken
    }

    /// Starts the next buffer, after the current one was written or sent.
    fn emptied(&mut self) {
        self.current_offset += self.filled as u64;
        self.filled = 0;
        self.summed = 0;
    }

    /// Waits for a buffer from the worker. If the worker has ended, returns the error of the
    /// worker.
    fn wait_for_buffer(&mut self, is_running: bool) -> Result<()> {
        let Some(Disk::Worker { free, .. }) = &self.disk else { return Err(self.broken()) };
        loop {
            match free.recv() {
                Ok(Ok(buffer)) if is_running => {
                    self.current = buffer;
                    return Ok(());
                }
                Ok(Ok(buffer)) => buffer.give_back(),
                Ok(Err(error)) => return Err(self.failure(error)),
                Err(_) => {
                    self.failed = true;
                    return Err(self.broken());
                }
            }
        }
    }

    fn look_for_failure(&mut self) -> Result<()> {
        if self.failed {
            return Err(self.broken());
        }
        while let Some(Disk::Worker { free, .. }) = &self.disk {
            match free.try_recv() {
                Ok(Ok(buffer)) => self.idle.push(buffer),
                Ok(Err(error)) => return Err(self.failure(error)),
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Waits until the worker has written all buffers, and ends it.
    fn stop(&mut self) -> Result<Option<Output>> {
        let (full, free, thread) = match self.disk.take() {
            Some(Disk::Worker { full, free, thread }) => (full, free, thread),
            Some(Disk::Here(output)) => return Ok(Some(output)),
            None => return Ok(None),
        };
        drop(full);
        let output = thread.join().ok().flatten();
        for done in free.try_iter() {
            match done {
                Ok(buffer) => buffer.give_back(),
                Err(error) => return Err(self.failure(error)),
            }
        }
        Ok(output)
    }

    fn failure(&mut self, error: io::Error) -> Error {
        self.failed = true;
        Error::io("cannot write", &self.path, error)
    }

    fn broken(&self) -> Error {
        Error::new(ErrorKind::Io, "an earlier write to this file has failed").in_file(&self.path)
    }
}

impl Drop for DirectWriter {
    fn drop(&mut self) {
        // `finish` may have stopped the worker already. An error is ignored: `finish` has returned
        // the error, or the caller dropped the writer without `finish`.
        let _ = self.stop();
        std::mem::replace(&mut self.current, Buffer::Small(Box::default())).give_back();
        self.idle.drain(..).for_each(Buffer::give_back);
    }
}

impl FileSink for DirectWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.write(bytes)
    }

    fn write_with(
        &mut self,
        len_bytes: u64,
        fill: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        self.write_with(len_bytes, fill)
    }

    fn offset_bytes(&self) -> u64 {
        self.offset_bytes()
    }

    fn saved(&self, len_bytes: u64) -> Result<()> {
        self.saved(len_bytes)
    }

    fn describe(&self) -> PathBuf {
        self.path.clone()
    }

    fn finish(mut self: Box<Self>) -> Result<WrittenFile> {
        let patches = std::mem::take(&mut self.patches);
        let (path, durable) = (self.path.clone(), self.options.durable);
        let written = Self::finish(*self)?;
        if patches.is_empty() {
            return Ok(written);
        }
        let patch = || -> io::Result<()> {
            let file = File::options().write(true).open(&path)?;
            for (offset_bytes, bytes) in &patches {
                file.write_all_at(bytes, *offset_bytes)?;
            }
            if durable { sync(&file) } else { Ok(()) }
        };
        patch().map_err(|error| Error::io("cannot write", &path, error))?;
        Ok(written)
    }

    fn patches(&mut self) -> Option<&mut Vec<(u64, Vec<u8>)>> {
        Some(&mut self.patches)
    }
}

impl fmt::Debug for DirectWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectWriter")
            .field("path", &self.path)
            .field("options", &self.options)
            .field("offset_bytes", &self.offset_bytes())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "direct_tests.rs"]
mod tests;
