//! One large file, read by offset: through the page cache where its bytes are, past it where they are not.
//!
//! | the bytes are | the read is | so it is |
//! |---|---|---|
//! | in the page cache | any | a `pread` into the caller's memory: as fast as a copy |
//! | on disk | small | a `pread` without readahead: the pages asked for are read, and no others |
//! | on disk | large | direct I/O into a reused buffer: the disk's own speed, and the page cache stays as it is |
//!
//! Filling the page cache costs more than reading the disk where memory is short: a page has to be taken from
//! someone, and the kernel's readahead waits for it (`examples/direct_read.rs` measures it). Where direct I/O is
//! refused (some network file systems) large reads go through the page cache as well.
//!
//! The file is opened once for each way; like every open file it stays the one that was opened.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::ops::Deref;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, OFlags, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::buffer::{ALIGN_BYTES, BUFFER_LEN_BYTES, Buffer};
use super::files::is_absent;
use crate::error::{Error, Result};

/// Reads of fewer bytes are not worth a buffer of the ring.
const HEAP_LEN_MAX_BYTES: usize = 256 << 10;

/// A file that is open for reading by offset, by any number of threads at once.
#[derive(Debug)]
pub(crate) struct DirectReader {
    path: PathBuf,
    len_bytes: u64,
    /// Through the page cache, without readahead.
    cached: File,
    /// Past the page cache, where the file system can.
    direct: Option<File>,
    is_refused: AtomicBool,
}

impl DirectReader {
    /// Longest [`fetch`](Self::fetch): with what lies before it in its first device block it fills a buffer.
    pub(crate) const FETCH_LEN_MAX_BYTES: u64 = (BUFFER_LEN_BYTES - ALIGN_BYTES) as u64;

    /// Opens the regular file at `path`; `None` if there is none.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>> {
        let open = |more: OFlags| {
            // Without NONBLOCK, opening a named pipe that someone left in the folder would wait for ever.
            let flags = (OFlags::NONBLOCK | OFlags::NOCTTY | more).bits().cast_signed();
            OpenOptions::new().read(true).custom_flags(flags).open(path)
        };
        let cannot_open = |error| Error::io("cannot open", path, error);
        let cached = match open(OFlags::empty()) {
            Ok(file) => file,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(cannot_open(error)),
        };
        let found = cached.metadata().map_err(cannot_open)?;
        if !found.is_file() {
            return Ok(None);
        }
        let _ = fadvise(&cached, 0, None, Advice::Random);
        // Another file may have been renamed to this name in between: then there is no second way.
        let is_same = |file: &File| {
            file.metadata().is_ok_and(|other| (other.dev(), other.ino()) == (found.dev(), found.ino()))
        };
        let direct = open(OFlags::DIRECT).ok().filter(is_same);
        Ok(Some(Self {
            path: path.to_owned(),
            len_bytes: found.len(),
            cached,
            direct,
            is_refused: AtomicBool::new(false),
        }))
    }

    /// Its length when it was opened.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Whether the bytes are in the page cache, by a look at the first, the last and one between. True where nobody
    /// knows: then they are best read as if they were.
    pub(crate) fn is_cached(&self, offset: u64, len: u64) -> bool {
        [0, len / 2, len.saturating_sub(1)].into_iter().all(|at| {
            let mut byte = [0];
            let mut into = [IoSliceMut::new(&mut byte)];
            let looked = preadv2(&self.cached, &mut into, offset + at, ReadWriteFlags::NOWAIT);
            !matches!(looked, Err(Errno::AGAIN))
        })
    }

    /// Reads all of `out`, through the page cache.
    ///
    /// # Errors
    /// `Corrupt` if the file ends before; what the disk says.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.cached.read_exact_at(out, offset).map_err(|error| self.explain(error, offset))
    }

    /// Reads `len` bytes, at most [`FETCH_LEN_MAX_BYTES`](Self::FETCH_LEN_MAX_BYTES), into a buffer that is used
    /// again when the result is dropped: past the page cache if `direct` is true and it can be, else through it.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub(crate) fn fetch(&self, offset: u64, len: usize, direct: bool) -> Result<Fetched> {
        if len <= HEAP_LEN_MAX_BYTES && !direct {
            let mut bytes = vec![0; len];
            self.read(offset, &mut bytes)?;
            return Ok(Fetched { memory: Some(Buffer::Small(bytes.into_boxed_slice())), from: 0, len });
        }
        let buffer = Buffer::aligned().map_err(|error| self.explain(error, offset))?;
        let mut fetched = Fetched { memory: Some(buffer), from: 0, len };
        if direct && self.fetch_direct(offset, &mut fetched).map_err(|error| self.explain(error, offset))? {
            return Ok(fetched);
        }
        fetched.from = 0;
        self.read(offset, fetched.room(0, len).map_err(|error| self.explain(error, offset))?)?;
        Ok(fetched)
    }

    /// False if direct I/O is refused.
    fn fetch_direct(&self, offset: u64, fetched: &mut Fetched) -> io::Result<bool> {
        let Some(file) = self.direct.as_ref().filter(|_| !self.is_refused.load(Ordering::Relaxed)) else {
            return Ok(false);
        };
        // Whole device blocks; the last one may lie beyond the end of the file.
        fetched.from = (offset % ALIGN_BYTES as u64) as usize;
        let start = offset - fetched.from as u64;
        let wanted = fetched.from + fetched.len;
        let mut done = 0;
        while done < wanted {
            let room = fetched.room(done, wanted.next_multiple_of(ALIGN_BYTES) - done)?;
            match file.read_at(room, start + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => done += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                    self.is_refused.store(true, Ordering::Relaxed);
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
            if done < wanted && done % ALIGN_BYTES != 0 {
                // A read that stopped within a block: the rest comes the other way.
                let room = fetched.room(done, wanted - done)?;
                self.cached.read_exact_at(room, start + done as u64)?;
                done = wanted;
            }
        }
        Ok(true)
    }

    fn explain(&self, error: io::Error, offset: u64) -> Error {
        if error.kind() != io::ErrorKind::UnexpectedEof {
            return Error::io("cannot read", &self.path, error).at_byte(offset);
        }
        Error::corrupt("the file became shorter while it was read")
            .in_file(&self.path)
            .at_byte(offset)
            .expected(format_args!("{} bytes", self.len_bytes), "fewer")
            .help("something else is writing to it; wait for that, or copy it again")
    }
}

/// Bytes of a file, in a buffer that goes back to the ring.
pub(crate) struct Fetched {
    memory: Option<Buffer>,
    from: usize,
    len: usize,
}

impl Fetched {
    fn room(&mut self, at: usize, len: usize) -> io::Result<&mut [u8]> {
        let room = self.memory.as_mut().and_then(|memory| memory.bytes_mut().get_mut(at..at + len));
        room.ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}

impl Deref for Fetched {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes =
            self.memory.as_ref().and_then(|memory| memory.bytes().get(self.from..self.from + self.len));
        bytes.unwrap_or_default()
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            memory.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn file(len: usize) -> (tempfile::TempDir, PathBuf, Vec<u8>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        (folder, path, bytes)
    }

    #[test]
    fn both_ways_give_the_same_bytes_at_any_offset() {
        let (_folder, path, bytes) = file(3_000_001);
        let reader = DirectReader::open(&path).unwrap().unwrap();
        assert_eq!(reader.len_bytes(), bytes.len() as u64);
        for (offset, len) in [
            (0, 1),
            (0, 3_000_001),
            (4095, 2),
            (4096, 4096),
            (1_000_003, 1_500_000),
            (2_999_999, 2),
            (3_000_000, 1),
            (7, 0),
        ] {
            let expected = &bytes[offset..offset + len];
            for direct in [false, true] {
                assert!(*reader.fetch(offset as u64, len, direct).unwrap() == *expected, "{offset} {len}");
            }
            let mut out = vec![0; len];
            reader.read(offset as u64, &mut out).unwrap();
            assert!(out == expected);
        }
    }

    #[test]
    fn memory_file_systems_are_read_as_well() {
        let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
        let path = folder.path().join("file");
        std::fs::write(&path, [5; 10_000]).unwrap();
        let reader = DirectReader::open(&path).unwrap().unwrap();
        assert!(reader.fetch(4000, 6000, true).unwrap().iter().all(|&byte| byte == 5));
        assert!(reader.is_cached(0, 10_000));
    }

    #[test]
    fn a_file_that_shrinks_is_an_error_and_one_that_is_not_there_is_none() {
        let (_folder, path, _) = file(20_000);
        let reader = DirectReader::open(&path).unwrap().unwrap();
        File::options().write(true).open(&path).unwrap().set_len(9000).unwrap();
        for direct in [false, true] {
            let error = reader.fetch(5000, 10_000, direct).map(|_| ()).unwrap_err();
            assert_eq!((error.kind(), error.place().file.as_ref()), (ErrorKind::Corrupt, Some(&path)));
        }
        assert!(DirectReader::open(&path.join("below")).unwrap().is_none());
        assert!(DirectReader::open(path.parent().unwrap()).unwrap().is_none());
    }
}
