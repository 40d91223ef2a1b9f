//! Open files that are kept for later reads: a hundred thousand ranged reads of one file open it
//! once.
//!
//! An open file stays the same file. If another process renames a new file over it, this store
//! still reads the old bytes, until it writes the key itself or opens too many other files. Reads
//! are `pread`s, so a file that shrinks gives an error and never a signal.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;

use super::folder::FilePlace;
use super::map::map_file;
use super::reader::DirectReader;
use super::regular::is_absent;
use crate::error::{Error, ErrorKind, Result};
use crate::private_map::PrivateMap;
use crate::system::{Caching, FileExt, append_at};
use crate::{
    Blob, ByteRange, CACHED_LEN_BYTES, FETCH_LEN_MAX_BYTES, LONG_LEN_MIN_BYTES, ReadPath, Scratch,
    resolve_range,
};

pub(super) const OPEN_FILES_MAX: usize = 16;

/// The open files of one store. The least recently used one is closed first.
#[derive(Debug, Default)]
pub(super) struct OpenFiles(Mutex<Slots>);

#[derive(Debug, Default)]
struct Slots {
    by_key: HashMap<Box<[u8]>, (Arc<OpenFile>, u64)>,
    clock: u64,
}

impl OpenFiles {
    pub(super) fn open(&self, key: &[u8], place: FilePlace<'_>) -> Result<Option<Arc<OpenFile>>> {
        if let Some(file) = self.known(key) {
            return Ok(Some(file));
        }
        let Some(file) = OpenFile::open(place)? else { return Ok(None) };
        let file = Arc::new(file);
        let mut slots = self.slots();
        if slots.by_key.len() >= OPEN_FILES_MAX {
            let oldest = slots.by_key.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| key.clone());
            oldest.and_then(|key| slots.by_key.remove(&key));
        }
        slots.clock += 1;
        let used = slots.clock;
        slots.by_key.insert(key.into(), (Arc::clone(&file), used));
        Ok(Some(file))
    }

    /// The open file of `key`; `None` if it is not open.
    pub(super) fn known(&self, key: &[u8]) -> Option<Arc<OpenFile>> {
        let mut slots = self.slots();
        slots.clock += 1;
        let now = slots.clock;
        let (file, used) = slots.by_key.get_mut(key)?;
        *used = now;
        Some(Arc::clone(file))
    }

    /// Closes the file of `key`, because the store replaces or removes it.
    pub(super) fn forget(&self, key: &[u8]) {
        self.slots().by_key.remove(key);
    }

    // Every change is one call on the map, so a thread that panics cannot leave it half changed.
    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A regular file, open for reading.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    map: OnceLock<Bytes>,
    /// The same file, opened again for long reads; `None` if this fails, or if another file has its
    /// path by now.
    reader: OnceLock<Option<DirectReader>>,
}

impl OpenFile {
    /// Opens the regular file at `place`; `None` if no regular file is there.
    pub(super) fn open(place: FilePlace<'_>) -> Result<Option<Self>> {
        let opened = place.open(Caching::Through);
        match opened.and_then(|file| Ok((file.metadata()?.is_file(), file))) {
            Ok((true, file)) => Ok(Some(Self { file, map: OnceLock::new(), reader: OnceLock::new() })),
            Ok((false, _)) => Ok(None),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(Error::io("cannot open", place.describe(), error)),
        }
    }

    pub fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Reads exactly `range`. The length is compared with the file's length before memory is
    /// allocated.
    pub fn read(&self, range: ByteRange) -> Result<Bytes> {
        let len_bytes = self.len_bytes().map_err(io_error)?;
        let part = resolve_range(range, len_bytes)?;
        let too_large = || {
            Error::new(
                ErrorKind::Limit,
                format!("a stored value of {} bytes does not fit in memory", part.end - part.start),
            )
            .help("read the leaf in parts, by slices")
        };
        let wanted = usize::try_from(part.end - part.start).map_err(|_| too_large())?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(wanted).map_err(|_| too_large())?;
        while bytes.len() < wanted {
            let offset = part.start + bytes.len() as u64;
            match append_at(&self.file, &mut bytes, offset) {
                Ok(0) => {
                    return Err(Error::corrupt("the file became shorter while it was read")
                        .at_byte(offset)
                        .expected(format_args!("{len_bytes} bytes"), format_args!("{offset} bytes"))
                        .help("another program writes to it: wait until it ends, or copy the file again"));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io_error(error).at_byte(offset)),
            }
        }
        bytes.truncate(wanted);
        Ok(bytes.into())
    }

    pub(super) fn read_into(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while let Some(rest) = out.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let offset = offset_bytes.saturating_add(filled as u64);
            match self.file.read_at(rest, offset) {
                Ok(0) => {
                    return Err(Error::corrupt("the file is too short for the wanted bytes")
                        .at_byte(offset)
                        .help(
                            "it was cut short, or another program writes to it: wait until it ends, or \
                            copy the file again",
                        ));
                }
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io_error(error).at_byte(offset)),
            }
        }
        Ok(())
    }

    /// Passes `range` to `each` in order: a short range in one piece. Of a long range, bytes in the
    /// page cache are copied in small pieces that fit into the processor's cache. Other bytes are
    /// read from the disk by long direct reads.
    pub(super) fn stream(
        &self,
        place: FilePlace<'_>,
        range: ByteRange,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let part = resolve_range(range, self.len_bytes().map_err(io_error)?)?;
        let is_long = part.end - part.start >= LONG_LEN_MIN_BYTES;
        let long = is_long.then(|| self.reader(place)).flatten();
        let Some(reader) = long else { return each(&self.read(range)?) };
        let mut scratch = Scratch::default();
        let mut at = part.start;
        while at < part.end {
            let len = (part.end - at).min(FETCH_LEN_MAX_BYTES);
            let (way, step) = match reader.is_cached(at, len) {
                true => (ReadPath::Cached, CACHED_LEN_BYTES),
                false => (ReadPath::Direct, len),
            };
            let end = at + len;
            while at < end {
                let step = step.min(end - at);
                each(reader.fetch(at, step as usize, way, &mut scratch)?)?;
                at += step;
            }
        }
        Ok(())
    }

    /// Whether the page cache has the range; true if unknown. Checks only some pages of the range.
    pub(super) fn is_cached(&self, place: FilePlace<'_>, offset_bytes: u64, len_bytes: u64) -> bool {
        let reader = self.reader(place);
        reader.is_none_or(|reader| reader.is_cached(offset_bytes, len_bytes))
    }

    fn reader(&self, place: FilePlace<'_>) -> Option<&DirectReader> {
        let is_same = |reader: &DirectReader| reader.is_of(&self.file);
        let open = || DirectReader::open(place).ok().flatten().filter(is_same);
        self.reader.get_or_init(open).as_ref()
    }

    /// The whole file as a map, the same map each time; `None` if the file cannot be mapped.
    pub(super) fn map(&self) -> io::Result<Option<Bytes>> {
        if let Some(map) = self.map.get() {
            return Ok(Some(map.clone()));
        }
        let map = map_file(&self.file, self.len_bytes()?);
        Ok(map.map(|map| self.map.get_or_init(|| map).clone()))
    }

    /// The whole file, which is not empty, as a private map. Each call makes another map; `None` if
    /// the file cannot be mapped.
    pub(super) fn map_private(&self) -> Option<PrivateMap> {
        PrivateMap::of(&self.file)
    }
}

// The store adds the file's name.
fn io_error(error: io::Error) -> Error {
    Error::io("cannot read", Path::new(""), error)
}
