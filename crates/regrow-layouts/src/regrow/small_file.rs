//! A short file, which is checked as a whole before a reader returns its first byte.

use std::sync::{Arc, OnceLock};

use super::data_file::WORDS;
use super::manifest::SmallFile;
use crate::SummedFile;
use regrow_base::error::{Error, Result};
use regrow_store::reads::{BlockTable, Checksum};
use regrow_store::{Blob, ReadPath, Scratch, Store};

const PIECE_LEN_BYTES: u64 = 1 << 20;

/// A file that is checked as a whole.
#[derive(Debug)]
pub(super) struct CheckedSmallFile {
    pub(super) record: SmallFile,
    /// The open file, after it has passed its checksum.
    passed: OnceLock<Arc<dyn Blob>>,
}

impl CheckedSmallFile {
    pub(super) fn new(record: SmallFile) -> Self {
        Self { record, passed: OnceLock::new() }
    }

    /// The open file, which is checked at the first call.
    pub(super) fn opened(&self, base: &dyn Store) -> Result<&Arc<dyn Blob>> {
        if let Some(passed) = self.passed.get() {
            return Ok(passed);
        }
        let passed = open_whole(base, &self.record)??;
        Ok(self.passed.get_or_init(|| passed))
    }
}

/// Opens and checks the file of a record. The inner error is for a missing or damaged file.
///
/// # Errors
/// Errors of the storage.
pub(crate) fn open_whole(base: &dyn Store, record: &SmallFile) -> Result<Result<Arc<dyn Blob>>> {
    let path = base.describe(record.name.as_bytes());
    let Some(file) = base.open(record.name.as_bytes())? else {
        return Ok(Err(Error::corrupt("a file of the checkpoint is missing")
            .in_file(path)
            .help("Orbax needs it; copy the checkpoint again")));
    };
    let len_bytes = file.len_bytes();
    let changed = || Error::corrupt("a file of the checkpoint differs from its record");
    let help = "the file is damaged or belongs to another checkpoint: copy the checkpoint again; \
        uncompressed arrays can be read without it";
    if len_bytes != record.len_bytes {
        return Ok(Err(changed()
            .in_file(path)
            .expected(format_args!("{} bytes", record.len_bytes), format_args!("{len_bytes} bytes"))
            .help(help)));
    }
    let mut sum = record.sum();
    let mut scratch = Scratch::default();
    let mut at = 0;
    while at < len_bytes {
        let len = (len_bytes - at).min(PIECE_LEN_BYTES);
        sum.update(file.fetch(at, len as usize, ReadPath::Cached, &mut scratch)?);
        at += len;
    }
    Ok(match sum.differs_from(record) {
        None => Ok(file),
        Some((expected, found)) => Err(changed().in_file(path).expected(expected, found).help(help)),
    })
}

/// The file of a record, with its one checksum over all bytes.
pub(crate) fn summed_whole(record: &SmallFile) -> Result<SummedFile> {
    let len_bytes = record.len_bytes;
    let digest = record.blake3.as_deref().and_then(|digest| blake3::Hash::from_hex(digest).ok());
    let table = match digest {
        _ if len_bytes == 0 => None,
        Some(digest) => Some(BlockTable::of_digests(0..len_bytes, len_bytes, vec![digest], WORDS)?),
        None => Some(BlockTable::new(0..len_bytes, len_bytes, Checksum::Crc32c, vec![record.crc32c], WORDS)?),
    };
    Ok(SummedFile { name: record.name.clone(), len_bytes, tables: table.into_iter().collect() })
}

/// An undamaged file, with the checksum of its present bytes.
pub(super) fn summed_as_it_is(name: &str, bytes: &[u8]) -> Result<SummedFile> {
    let len_bytes = bytes.len() as u64;
    let table = BlockTable::of_digests(0..len_bytes, len_bytes, vec![blake3::hash(bytes)], WORDS)?;
    Ok(SummedFile { name: name.to_owned(), len_bytes, tables: vec![table] })
}
