//! The files of a checkpoint as one continuous run of bytes.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::parity::ParityDocument;
use crate::storage::{FileInMemory, FilesInMemory};
use crate::store::{Blob, ReadPath, Store};

/// Files that are read as if they were one file, one after another.
#[derive(Debug)]
pub(in crate::engine) struct Run {
    folder: Location,
    store: Arc<dyn Store>,
    files: Vec<RunFile>,
}

/// A file of a run. Its bytes have this range in the run.
#[derive(Debug)]
pub(in crate::engine) struct RunFile {
    pub name: String,
    pub range: Range<u64>,
    memory: Option<Arc<FileInMemory>>,
}

/// A range of bytes in one file.
struct Part<'r> {
    file: &'r RunFile,
    offset_bytes: u64,
    len: usize,
}

impl Run {
    /// A run of the files that the parity's index lists, below a folder.
    pub fn new(folder: &Location, store: Arc<dyn Store>, document: &ParityDocument) -> Self {
        Self::of(folder, store, document.names.iter().cloned(), &document.len_bytes)
    }

    /// A run of files with these names and lengths, in this order.
    pub fn of(
        folder: &Location,
        store: Arc<dyn Store>,
        names: impl Iterator<Item = String>,
        len_bytes: &[u64],
    ) -> Self {
        let mut start = 0_u64;
        let files = names.zip(len_bytes).map(|(name, len)| {
            let range = start..start.saturating_add(*len);
            start = range.end;
            RunFile { name, range, memory: None }
        });
        Self { folder: folder.clone(), files: files.collect(), store }
    }

    /// Takes the bytes of these files from memory. The other files are read.
    pub fn with_memory(mut self, in_memory: &FilesInMemory) -> Self {
        for file in &mut self.files {
            let memory = in_memory.get(self.folder.join(&file.name).path());
            let len_bytes = file.range.end - file.range.start;
            file.memory = memory.filter(|memory| memory.range().end == len_bytes);
        }
        self
    }

    /// The number of bytes that are taken from memory.
    pub fn memory_len_bytes(&self) -> u64 {
        let ranges = self.files.iter().filter_map(|file| file.memory.as_ref()).map(|memory| memory.range());
        ranges.map(|range| range.end - range.start).fold(0, u64::saturating_add)
    }

    pub fn files(&self) -> &[RunFile] {
        &self.files
    }

    pub fn folder(&self) -> &Location {
        &self.folder
    }

    /// The store in which the names of the files are keys.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Fills `out` with the bytes from `offset_bytes` on.
    pub fn read(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        self.reader().read(offset_bytes, out)
    }

    /// A reader for several parts in turn. It keeps the last file open for the next part.
    pub fn reader(&self) -> RunReader<'_> {
        RunReader { run: self, last: None }
    }

    /// Like [`read`](Self::read), but returns false if the bytes are lost: a file is missing, too
    /// short or not a regular file, or the disk cannot read it.
    pub fn read_if_there(&self, offset_bytes: u64, out: &mut [u8]) -> Result<bool> {
        match self.read(offset_bytes, out) {
            Ok(()) => Ok(true),
            Err(error) if is_damage(&error, &self.folder) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn parts(&self, offset_bytes: u64, len_bytes: u64) -> impl Iterator<Item = Part<'_>> {
        let end = offset_bytes.saturating_add(len_bytes);
        let first = self.files.partition_point(|file| file.range.end <= offset_bytes);
        let files = self.files.get(first..).unwrap_or_default().iter();
        files.take_while(move |file| file.range.start < end).filter(|file| !file.range.is_empty()).map(
            move |file| {
                let start = file.range.start.max(offset_bytes);
                let len = file.range.end.min(end) - start;
                // The field `len` is a length in memory (`usize`).
                Part {
                    file,
                    offset_bytes: start - file.range.start,
                    len: usize::try_from(len).unwrap_or(usize::MAX),
                }
            },
        )
    }
}

/// Reads parts of a run, and keeps the last file open.
pub(in crate::engine) struct RunReader<'r> {
    run: &'r Run,
    /// The last file that was read, and the offset in the run at which its bytes begin. No two
    /// files that have bytes begin at the same offset.
    last: Option<(u64, Arc<dyn Blob>)>,
}

impl<'r> RunReader<'r> {
    /// The bytes of a range of the run, if they are in memory in one piece.
    pub fn in_memory(&self, range: Range<u64>) -> Option<&'r [u8]> {
        let len = range.end.saturating_sub(range.start);
        let part = self.run.parts(range.start, len).next().filter(|part| part.len as u64 == len)?;
        part.file.memory.as_ref()?.slice(part.offset_bytes..part.offset_bytes + len)
    }

    /// Fills `out` with the bytes from `offset_bytes` on.
    pub fn read(&mut self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        let mut left = out;
        for part in self.run.parts(offset_bytes, left.len() as u64) {
            let (now, later) = left.split_at_mut(part.len.min(left.len()));
            left = later;
            if part.file.memory.as_ref().is_some_and(|memory| memory.read(part.offset_bytes, now)) {
                continue;
            }
            let blob = self.open(part.file)?;
            let is_cached = blob.is_cached(part.offset_bytes, now.len() as u64);
            let way = if is_cached { ReadPath::Cached } else { ReadPath::Direct };
            blob.read(part.offset_bytes, now, way)?;
        }
        Ok(())
    }

    fn open(&mut self, file: &RunFile) -> Result<Arc<dyn Blob>> {
        if let Some((start, blob)) = &self.last
            && *start == file.range.start
        {
            return Ok(Arc::clone(blob));
        }
        let (store, key) = (&self.run.store, file.name.as_bytes());
        let blob = store.open(key)?.ok_or_else(|| {
            Error::corrupt("a file of the checkpoint is missing").in_file(store.describe(key))
        })?;
        self.last = Some((file.range.start, Arc::clone(&blob)));
        Ok(blob)
    }
}

/// Whether an error means that bytes at a location are lost, and not only unreadable for now. On a
/// disk, an I/O error means an unreadable sector. On a network it says nothing about the data.
pub(in crate::engine) fn is_damage(error: &Error, at: &Location) -> bool {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::Corrupt | ErrorKind::Replaced | ErrorKind::InvalidArgument => true,
        ErrorKind::Io => at.local_path().is_ok(),
        _ => false,
    }
}
