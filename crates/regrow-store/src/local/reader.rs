//! One large file, read by offset, through the page cache or past it. The caller chooses the way
//! with a `ReadPath`:
//!
//! | the bytes are | the read is | the best way |
//! |---|---|---|
//! | in the page cache | any | a `pread` into the caller's memory: as fast as a copy |
//! | on disk | small | a `pread` without readahead: only the requested pages are read |
//! | on disk | large | direct I/O into a reused buffer: the disk's own speed, and the page cache stays as it is |
//! | on disk | large, to be mapped | a `pread` with readahead, which takes large pages for the page cache |
//!
//! If memory is short, filling the page cache costs more than reading the disk: the kernel takes a
//! page from a process, and its readahead waits (`examples/direct_read.rs` measures this). If
//! direct I/O is refused (some network file systems), large reads use the page cache, too.
//!
//! The file is opened once for each way of reading. The later opens compare the file with the file
//! of the first open, and drop another file that has taken the path. The map is a map of the file
//! of the first open. So all ways read the same file.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use super::folder::FilePlace;
use super::map::map_file;
use super::regular::is_absent;
use crate::Identity;
use crate::buffer::ALIGN_BYTES;
use crate::error::{Error, Result};
use crate::system::{Caching, FileExt, PageCache, Pattern, advise_file, id_of, look_at, refuses_direct};
use crate::{Blob, PrivateMap, ReadPath, Scratch, Suits};

/// A file that any number of threads can read by offset.
#[derive(Debug)]
pub struct DirectReader {
    path: PathBuf,
    len_bytes: u64,
    /// The descriptor for reads through the page cache, without readahead.
    cached: File,
    /// The descriptor for reads through the page cache, with full readahead.
    streamed: Option<File>,
    /// The descriptor for reads past the page cache, if the file system supports it.
    direct: Option<File>,
    is_refused: AtomicBool,
    page_cache: PageCache,
    map: OnceLock<Bytes>,
}

impl DirectReader {
    /// Opens the regular file at `place`; `None` if no regular file is there.
    pub fn open(place: FilePlace<'_>) -> Result<Option<Self>> {
        let path = place.describe();
        let cannot_open = |error| Error::io("cannot open", &path, error);
        let cached = match place.open(Caching::Through) {
            Ok(file) => file,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(cannot_open(error)),
        };
        let found = look_at(&cached).map_err(cannot_open)?;
        if !found.is_file {
            return Ok(None);
        }
        advise_file(&cached, Pattern::Random);
        // Another file may have been renamed to this name in between; then only the first
        // descriptor is used.
        let is_same = |file: &File| id_of(file).is_ok_and(|id| id == found.id);
        let open = |caching| place.open(caching).ok().filter(is_same);
        let (direct, streamed) = (open(Caching::Past), open(Caching::Through));
        if let Some(file) = &streamed {
            advise_file(file, Pattern::Sequential);
        }
        Ok(Some(Self {
            path,
            len_bytes: found.len_bytes,
            page_cache: PageCache::of(&cached),
            cached,
            streamed,
            direct,
            is_refused: AtomicBool::new(false),
            map: OnceLock::new(),
        }))
    }

    pub(super) fn is_of(&self, file: &File) -> bool {
        id_of(file).is_ok_and(|id| id_of(&self.cached).is_ok_and(|own| own == id))
    }

    /// Fills the first `wanted` bytes of `room` with the bytes from `start` on. `room` and `start`
    /// are aligned to device blocks. Returns `false` if direct I/O is refused.
    fn read_direct(&self, start: u64, wanted: usize, room: &mut [u8]) -> io::Result<bool> {
        let Some(file) = self.direct.as_ref().filter(|_| !self.is_refused.load(Ordering::Relaxed)) else {
            return Ok(false);
        };
        let direct = |room: &mut [u8], offset| file.read_at(room, offset);
        match read_in_blocks(
            direct,
            |rest, offset| self.cached.read_exact_at(rest, offset),
            start,
            wanted,
            room,
        ) {
            Err(error) if refuses_direct(&error) => {
                self.is_refused.store(true, Ordering::Relaxed);
                Ok(false)
            }
            other => other.map(|()| true),
        }
    }

    fn explain(&self, error: io::Error, offset: u64) -> Error {
        if error.kind() != io::ErrorKind::UnexpectedEof {
            return Error::io("cannot read", &self.path, error).at_byte(offset);
        }
        Error::corrupt("the file became shorter while it was read")
            .in_file(&self.path)
            .at_byte(offset)
            .expected(format_args!("{} bytes", self.len_bytes), "fewer")
            .help("another program writes to it: wait until it ends, or copy the file again")
    }
}

/// Fills the first `wanted` bytes of `room`. `direct` reads only whole blocks. After a read that
/// ends within a block, `cached` reads the rest.
fn read_in_blocks(
    mut direct: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
    mut cached: impl FnMut(&mut [u8], u64) -> io::Result<()>,
    start: u64,
    wanted: usize,
    room: &mut [u8],
) -> io::Result<()> {
    let mut done = 0;
    while done < wanted {
        match direct(room.get_mut(done..).unwrap_or_default(), start + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => done += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if done < wanted && done % ALIGN_BYTES != 0 {
            return cached(room.get_mut(done..wanted).unwrap_or_default(), start + done as u64);
        }
    }
    Ok(())
}

impl Blob for DirectReader {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn describe(&self) -> PathBuf {
        self.path.clone()
    }

    /// Reads through the page cache, also for a direct `way`: direct I/O needs aligned memory, and
    /// `out` may not be aligned.
    fn read(&self, offset: u64, out: &mut [u8], way: ReadPath) -> Result<()> {
        let streamed = self.streamed.as_ref().filter(|_| way == ReadPath::Streamed);
        streamed
            .unwrap_or(&self.cached)
            .read_exact_at(out, offset)
            .map_err(|error| self.explain(error, offset))
    }

    /// With `ReadPath::Direct`, reads past the page cache. If direct I/O is refused, and for other
    /// values of `way`, reads through the page cache.
    fn fetch<'s>(
        &self,
        offset: u64,
        len: usize,
        way: ReadPath,
        scratch: &'s mut Scratch,
    ) -> Result<&'s [u8]> {
        let explain = |error| self.explain(error, offset);
        // Direct I/O reads whole device blocks; the last block may lie beyond the end of the file.
        let from = (offset % ALIGN_BYTES as u64) as usize;
        let is_done = way == ReadPath::Direct && self.direct.is_some() && {
            let room = scratch.aligned((from + len).next_multiple_of(ALIGN_BYTES)).map_err(explain)?;
            self.read_direct(offset - from as u64, from + len, room).map_err(explain)?
        };
        if is_done {
            return Ok(scratch.bytes().get(from..from + len).unwrap_or_default());
        }
        let room = scratch.room(len).map_err(explain)?;
        self.read(offset, room, way)?;
        Ok(room)
    }

    fn map(&self) -> Result<Option<Bytes>> {
        if let Some(map) = self.map.get() {
            return Ok(Some(map.clone()));
        }
        let map = map_file(&self.cached, self.len_bytes);
        Ok(map.map(|map| self.map.get_or_init(|| map).clone()))
    }

    fn map_private(&self) -> Result<Option<PrivateMap>> {
        Ok(PrivateMap::of(&self.cached))
    }

    /// Checks only some pages of the range.
    fn is_cached(&self, offset: u64, len: u64) -> bool {
        self.page_cache.has(&self.cached, offset, len)
    }

    fn has_its_length(&self) -> bool {
        self.cached.metadata().is_ok_and(|found| found.len() == self.len_bytes)
    }

    fn identity(&self) -> Option<Identity> {
        let (found, id) = (self.cached.metadata().ok()?, id_of(&self.cached).ok()?);
        Some(Identity::Inode(id.device, id.number, found.created().ok()))
    }

    /// With three requests, the disk is busy while the bytes of a finished request are checked.
    fn suits(&self) -> Suits {
        Suits { requests_min: 3, requests_max: Scratch::KEPT_MAX }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::folder::Folder;
    use super::*;
    use crate::error::ErrorKind;

    /// Opens the file at a path.
    fn open(path: &Path) -> Option<DirectReader> {
        let folder = Folder::at_path(path.parent().unwrap());
        DirectReader::open(folder.file(Path::new(path.file_name().unwrap()))).unwrap()
    }

    const WAYS: [ReadPath; 3] = [ReadPath::Cached, ReadPath::Streamed, ReadPath::Direct];

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
        let reader = open(&path).unwrap();
        assert_eq!((reader.len_bytes(), reader.describe()), (bytes.len() as u64, path));
        assert!(reader.map_private().unwrap().is_some());
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
            for way in WAYS {
                let mut scratch = Scratch::default();
                let found = reader.fetch(offset as u64, len, way, &mut scratch).unwrap();
                assert!(found == expected, "{offset} {len}");
            }
            for way in WAYS {
                let mut out = vec![0; len];
                reader.read(offset as u64, &mut out, way).unwrap();
                assert!(out == expected);
            }
        }
    }

    // Only Linux tells which pages are in the page cache.
    #[cfg(all(target_os = "linux", not(feature = "portable")))]
    #[test]
    fn a_look_at_the_page_cache_leaves_it_as_it_is() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let reader = open(&path).unwrap();
        assert!(reader.is_cached(0, 1 << 20));
        reader.cached.sync_all().unwrap();
        rustix::fs::fadvise(&reader.cached, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let is_in_memory = reader.page_cache.has_page(0) == Some(true);
        assert!(!is_in_memory, "the working folder is on a disk");
        for _ in 0..3 {
            assert!(!reader.is_cached(0, 1 << 20));
            let mut scratch = Scratch::default();
            assert!(reader.fetch(0, 1 << 20, ReadPath::Direct, &mut scratch).unwrap() == vec![7; 1 << 20]);
        }
        reader.read(0, &mut vec![0; 1 << 19], ReadPath::Cached).unwrap();
        assert!(reader.is_cached(0, 1 << 19));
        assert!(!reader.is_cached(0, 1 << 20));
        assert_eq!(reader.page_cache.has_page(1 << 20), None);
        // A read through the page cache fills the page cache.
        reader.fetch(1 << 19, 1 << 19, ReadPath::Cached, &mut Scratch::default()).unwrap();
        assert!(reader.is_cached(0, 1 << 20));
    }

    #[cfg(all(target_os = "linux", not(feature = "portable")))]
    #[test]
    fn where_direct_reads_are_refused_the_page_cache_serves_and_other_errors_are_errors() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 2 * ALIGN_BYTES]).unwrap();
        let mut reader = open(&path).unwrap();
        assert!(reader.direct.is_some(), "the working folder is on a disk");
        // Most file systems refuse memory at an odd address. Some accept it, and read through the
        // page cache.
        let mut pages = vec![0; 3 * ALIGN_BYTES];
        let odd = pages.as_ptr().align_offset(ALIGN_BYTES) + 1;
        let is_read = reader.read_direct(0, 10, &mut pages[odd..odd + ALIGN_BYTES]).unwrap();
        assert_eq!(reader.is_refused.load(Ordering::Relaxed), !is_read);
        assert!(!is_read || pages[odd..odd + 10] == [7; 10]);
        let mut scratch = Scratch::default();
        assert!(reader.fetch(0, 10, ReadPath::Direct, &mut scratch).unwrap() == [7; 10]);
        // A read of a file that is open only for writing fails. This error is not a refusal of
        // direct I/O.
        reader.is_refused.store(false, Ordering::Relaxed);
        reader.direct = Some(File::options().write(true).open(&path).unwrap());
        assert_eq!(reader.fetch(0, 10, ReadPath::Direct, &mut scratch).unwrap_err().kind(), ErrorKind::Io);
        assert!(!reader.is_refused.load(Ordering::Relaxed));
    }

    #[test]
    fn memory_file_systems_are_read_as_well() {
        let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
        let path = folder.path().join("file");
        std::fs::write(&path, [5; 10_000]).unwrap();
        let reader = open(&path).unwrap();
        assert_eq!(reader.fetch(4000, 6000, ReadPath::Direct, &mut Scratch::default()).unwrap(), [5; 6000]);
        assert_eq!(reader.is_cached(0, 10_000), !cfg!(feature = "portable"));
    }

    #[test]
    fn reads_that_stop_anywhere_give_every_byte_and_go_on_at_whole_blocks() {
        let block = ALIGN_BYTES;
        let bytes: Vec<u8> = (0..4 * block).map(|at| (at % 251) as u8).collect();
        for wanted in [1, block - 1, block, block + 1, 3 * block - 1, 3 * block] {
            for stop in [1, block - 1, block, block + 1, 2 * block, 2 * block + 7, 4 * block] {
                let mut room = vec![0; 3 * block];
                let mut interrupted = false;
                let direct = |room: &mut [u8], offset: u64| {
                    interrupted = !interrupted;
                    if interrupted {
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                    let offset = offset as usize - block;
                    assert_eq!((offset % block, room.len() % block), (0, 0), "{wanted} {stop}");
                    let len = room.len().min(stop);
                    room[..len].copy_from_slice(&bytes[offset..offset + len]);
                    Ok(len)
                };
                let cached = |room: &mut [u8], offset: u64| {
                    let offset = offset as usize - block;
                    assert!(!room.is_empty() && !offset.is_multiple_of(block), "{wanted} {stop}");
                    room.copy_from_slice(&bytes[offset..offset + room.len()]);
                    Ok(())
                };
                read_in_blocks(direct, cached, block as u64, wanted, &mut room).unwrap();
                assert!(room[..wanted] == bytes[..wanted], "{wanted} {stop}");
            }
        }
        let ended = read_in_blocks(|_, _| Ok(0), |_, _| Ok(()), 0, 1, &mut [0]).unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
        let refused = |_: &mut [u8], _| Err(io::ErrorKind::PermissionDenied.into());
        assert!(read_in_blocks(refused, |_, _| Ok(()), 0, 1, &mut [0]).is_err());
    }

    #[test]
    fn a_file_that_shrinks_is_an_error_and_one_that_is_not_there_is_none() {
        let (_folder, path, _) = file(20_000);
        let reader = open(&path).unwrap();
        assert!(reader.has_its_length());
        File::options().write(true).open(&path).unwrap().set_len(9000).unwrap();
        assert!(!reader.has_its_length());
        for way in WAYS {
            let error = reader.fetch(5000, 10_000, way, &mut Scratch::default()).unwrap_err();
            assert_eq!((error.kind(), error.place().file.as_ref()), (ErrorKind::Corrupt, Some(&path)));
        }
        assert!(open(&path.join("below")).is_none());
        assert!(open(path.parent().unwrap()).is_none());
        // A circle of links is an error, and does not count as a missing file.
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&path, &path).unwrap();
        let folder = Folder::at_path(path.parent().unwrap());
        let error = DirectReader::open(folder.file(Path::new("file"))).unwrap_err();
        assert_eq!((error.kind(), error.place().file.clone()), (ErrorKind::Io, Some(path)));
    }
}
