//! Recognises NumPy files by their suffix, their first bytes, and the bytes after the array.

use std::ffi::OsStr;

use super::header::{Header, MAGIC, TRAILER_MAGIC};
use super::walk;
use crate::Preview;
use regrow_base::bytes::limits::allocate;
use regrow_base::error::Result;
use regrow_storage::Found;
use regrow_storage::location::{Location, suffix_of};

pub(super) const ZIP_BEGINNINGS: [&[u8]; 2] = [b"PK\x03\x04", b"PK\x05\x06"];

/// The number of bytes read first; nearly every header is shorter.
pub(super) const FIRST_LEN_BYTES: u64 = 256;

/// Whether a location is a folder of npy files, or a file with the suffix and the contents of a
/// NumPy file.
pub(super) fn is_one(at: &Location) -> Result<bool> {
    let suffix = suffix_of(at.name());
    match at.look() {
        Ok(Some(Found::Folder)) => walk::is_one(at),
        Ok(Some(Found::File { len_bytes })) if matches!(suffix.as_deref(), Some("npy" | "npz")) => {
            shows_one(suffix.as_deref(), len_bytes, read_of(at, len_bytes))
        }
        _ => Ok(false),
    }
}

/// As `is_one`, for a file that is not yet written.
pub(super) fn is_preview_of_one(name: &OsStr, preview: &Preview) -> bool {
    let read_at = |offset_bytes, len_max_bytes| Ok(preview.read_at(offset_bytes, len_max_bytes));
    shows_one(suffix_of(name).as_deref(), preview.len_bytes(), read_at).unwrap_or(false)
}

/// A function that reads a number of bytes of a file from an offset on; fewer at the end of the
/// file.
pub(crate) fn read_of(at: &Location, len_bytes: u64) -> impl Fn(u64, u64) -> Result<Vec<u8>> {
    let (store, key) = (at.parent().store(), at.name().as_encoded_bytes().to_vec());
    move |offset_bytes, len_max_bytes| {
        let mut out = allocate(len_max_bytes.min(len_bytes.saturating_sub(offset_bytes)))?;
        // Ask the storage for no bytes beyond the end.
        if !out.is_empty() {
            store.read_into(&key, offset_bytes, &mut out)?;
        }
        Ok(out)
    }
}

/// Whether a file is a NumPy file, by its suffix and contents. `read_at(offset, len)` gives `len`
/// bytes from the offset on, or fewer at the end of the file.
fn shows_one(
    suffix: Option<&str>,
    file_len: u64,
    read_at: impl Fn(u64, u64) -> Result<Vec<u8>>,
) -> Result<bool> {
    let mut first = read_at(0, FIRST_LEN_BYTES)?;
    match suffix {
        Some("npz") => return Ok(ZIP_BEGINNINGS.iter().any(|beginning| first.starts_with(beginning))),
        Some("npy") if first.starts_with(&MAGIC) => {}
        _ => return Ok(false),
    }
    match Header::len_bytes(&first) {
        Ok(header_len) if header_len > first.len() => first = read_at(0, header_len as u64)?,
        _ => {}
    }
    let end = Header::parse(&first)
        .ok()
        .and_then(|(header, len)| Some((len as u64).saturating_add(header.data_len_bytes().ok()?)));
    match end {
        // If another record or regrow's trailer follows the first record, the file is a stream of
        // leaves, in the layout equinox.
        Some(end) if end < file_len => {
            let next = read_at(end, TRAILER_MAGIC.len() as u64)?;
            Ok(!next.starts_with(&MAGIC) && next != TRAILER_MAGIC)
        }
        _ => Ok(true),
    }
}
