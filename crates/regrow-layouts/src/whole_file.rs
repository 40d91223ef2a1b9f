//! The bytes of a file: a map, or its bytes in memory on storages without maps.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use regrow_base::error::{Error, Result};
use regrow_base::threads::pool;
use regrow_storage::location::Location;
use regrow_store::{Blob, ReadPath, Store, StoreExt, Suits};

/// The bytes of one file.
#[derive(Debug)]
pub(crate) struct WholeFile {
    pub at: Location,
    pub bytes: Bytes,
    /// The store from which the bytes are mapped; `None` if they were read into memory.
    mapped_from: Option<Arc<dyn Store>>,
}

impl WholeFile {
    pub fn of(at: Location) -> Result<Self> {
        let key = at.name().as_encoded_bytes();
        if key.is_empty() {
            return Err(Error::invalid("the path does not name a file").in_file(at));
        }
        let store = at.parent().store();
        if let Some(bytes) = store.map(key)? {
            return Ok(Self { at, bytes, mapped_from: Some(store) });
        }
        let no_file =
            || Error::io("cannot open the file", &at, std::io::Error::from(std::io::ErrorKind::NotFound));
        let bytes = store.get_whole(key)?.ok_or_else(no_file)?;
        Ok(Self { at, bytes, mapped_from: None })
    }

    /// The offset of `piece` in the file; `None` if it is not a slice of the file.
    pub fn offset_of(&self, piece: &Bytes) -> Option<u64> {
        let start = piece.as_ptr().addr().checked_sub(self.bytes.as_ptr().addr())?;
        let end = start.checked_add(piece.len())?;
        (end <= self.bytes.len()).then_some(start as u64)
    }

    pub fn is_map(&self) -> bool {
        self.mapped_from.is_some()
    }

    pub fn slice(&self, offset_bytes: u64, len_bytes: u64) -> Result<Bytes> {
        let (start, end) = (offset_bytes as usize, offset_bytes.saturating_add(len_bytes) as usize);
        match end <= self.bytes.len() && start <= end {
            true => Ok(self.bytes.slice(start..end)),
            false => Err(self.changed()),
        }
    }

    /// Returns an error if the file has shrunk since it was opened: a map of the file would fault
    /// beyond its end.
    pub fn check_len(&self) -> Result<()> {
        let Some(store) = &self.mapped_from else { return Ok(()) };
        match store.len_bytes(self.at.name().as_encoded_bytes())? {
            Some(len) if len >= self.bytes.len() as u64 => Ok(()),
            _ => Err(self.changed()),
        }
    }

    fn changed(&self) -> Error {
        Error::corrupt("the file has changed since it was opened").in_file(&self.at).help("open it again")
    }
}

impl Blob for WholeFile {
    fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn describe(&self) -> PathBuf {
        self.at.describe()
    }

    fn read(&self, offset_bytes: u64, out: &mut [u8], _way: ReadPath) -> Result<()> {
        self.check_len()?;
        out.copy_from_slice(&self.slice(offset_bytes, out.len() as u64)?);
        Ok(())
    }

    fn map(&self) -> Result<Option<Bytes>> {
        self.check_len()?;
        Ok(Some(self.bytes.clone()))
    }

    fn has_its_length(&self) -> bool {
        self.check_len().is_ok()
    }

    fn suits(&self) -> Suits {
        Suits { requests_min: 1, requests_max: pool::thread_count() }
    }
}
