//! A data file with its record in `regrow.json`: opened at its first use, and refused if it has
//! another length.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use regrow_base::error::{Error, Result};
use regrow_storage::Identity;
use regrow_store::{Blob, EachChunk, PrivateMap, ReadPath, Scratch, Store, Suits};

/// The file of a record. It is opened once, for all uses.
#[derive(Debug)]
pub(super) struct RecordedBlob {
    base: Arc<dyn Store>,
    name: String,
    len_bytes: u64,
    /// Whether a file whose length differs from the record is read, as far as it goes.
    takes_any_length: bool,
    opened: OnceLock<Arc<dyn Blob>>,
}

impl RecordedBlob {
    pub fn new(base: Arc<dyn Store>, name: &str, len_bytes: u64, takes_any_length: bool) -> Self {
        Self { base, name: name.to_owned(), len_bytes, takes_any_length, opened: OnceLock::new() }
    }

    /// Opens the file at the first call.
    pub fn opened(&self) -> Result<&Arc<dyn Blob>> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let found = self.base.open(self.name.as_bytes())?;
        match found {
            Some(found) if found.len_bytes() == self.len_bytes || self.takes_any_length => {
                Ok(self.opened.get_or_init(|| found))
            }
            Some(found) => Err(self.is_another(&found.len_bytes())),
            None => Err(self.is_another(&"the file does not exist")),
        }
    }

    /// The error for a file of this length, or for a missing file if the length is `None`; `None`
    /// if the length is as recorded.
    pub fn misfit(&self, len_bytes: Option<u64>) -> Option<Error> {
        match len_bytes {
            Some(len_bytes) if len_bytes == self.len_bytes => None,
            Some(len_bytes) => Some(self.is_another(&len_bytes)),
            None => Some(self.is_another(&"the file does not exist")),
        }
    }

    fn is_another(&self, found: &dyn std::fmt::Display) -> Error {
        Error::corrupt("a data file differs from regrow.json")
            .in_file(self.describe())
            .expected(format_args!("{} bytes", self.len_bytes), found)
            .help("the copy or download of this checkpoint did not finish: copy it again")
    }
}

/// If the file cannot be opened, a function that cannot return an error returns a value that leads
/// to a read. The read then returns the error.
impl Blob for RecordedBlob {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn describe(&self) -> PathBuf {
        self.base.describe(self.name.as_bytes())
    }

    fn read(&self, offset_bytes: u64, out: &mut [u8], way: ReadPath) -> Result<()> {
        self.opened()?.read(offset_bytes, out, way)
    }

    fn fetch<'s>(
        &self,
        offset_bytes: u64,
        len: usize,
        way: ReadPath,
        scratch: &'s mut Scratch,
    ) -> Result<&'s [u8]> {
        self.opened()?.fetch(offset_bytes, len, way, scratch)
    }

    fn stream(&self, offset_bytes: u64, len_bytes: u64, each: EachChunk<'_>) -> Result<bool> {
        self.opened()?.stream(offset_bytes, len_bytes, each)
    }

    fn map(&self) -> Result<Option<Bytes>> {
        match self.opened()?.map()? {
            Some(map) if map.len() as u64 != self.len_bytes && self.takes_any_length => Ok(None),
            // The file was truncated after it was opened.
            Some(map) if map.len() as u64 != self.len_bytes => Err(self.is_another(&map.len())),
            map => Ok(map),
        }
    }

    fn map_private(&self) -> Result<Option<PrivateMap>> {
        match self.opened()?.map_private()? {
            Some(map) if map.len() as u64 != self.len_bytes && self.takes_any_length => Ok(None),
            Some(map) if map.len() as u64 != self.len_bytes => Err(self.is_another(&map.len())),
            map => Ok(map),
        }
    }

    fn is_cached(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.opened().map_or(true, |opened| opened.is_cached(offset_bytes, len_bytes))
    }

    fn has_its_length(&self) -> bool {
        self.opened().is_ok_and(|opened| opened.has_its_length())
    }

    fn identity(&self) -> Option<Identity> {
        self.opened().ok()?.identity()
    }

    fn object(&self) -> Option<(String, Identity)> {
        self.opened().ok()?.object()
    }

    fn suits(&self) -> Suits {
        self.opened().map_or(Suits { requests_min: 1, requests_max: 1 }, |opened| opened.suits())
    }
}
