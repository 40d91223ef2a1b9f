//! The members of a zip archive, from its directory alone.
//!
//! The directory does not say where the data of a member begins: this depends on the length of the
//! header before the member. That header is read only when the member is needed, so opening an
//! archive of ten thousand files in a bucket takes two requests, not ten thousand.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::index::{BehindHeader, Index, Member, Place, Value, clean};
use crate::bytes::limits::work_space;
use crate::bytes::zip::{Method, read_headers};
use crate::error::{Error, Result};
use crate::store::{Blob, ReadPath};

/// The first bytes of a zip archive: of its first member, or of its end record if it is empty.
const BEGINNINGS: [&[u8]; 2] = [b"PK\x03\x04", b"PK\x05\x06"];

pub(super) fn begins(bytes: &[u8]) -> bool {
    BEGINNINGS.iter().any(|beginning| bytes.starts_with(beginning))
}

pub(super) fn read_index(blob: &dyn Blob) -> Result<Index> {
    let listed =
        read_headers(blob.len_bytes(), &|offset_bytes, len_bytes| read(blob, offset_bytes, len_bytes))?;
    let mut headers = listed.headers;
    headers.sort_by_key(|header| header.member.header_offset_bytes);
    let ends: Vec<u64> = headers.iter().map(|header| header.member.header_offset_bytes).collect();
    let ends = ends.into_iter().skip(1).chain([listed.offset_bytes]);
    let mut index = Index::default();
    for (header, end_bytes) in headers.into_iter().zip(ends.collect::<Vec<_>>()) {
        let at = header.member.header_offset_bytes;
        let shown = format!("{:?}", header.member.name);
        if at.checked_add(header.len_min_bytes()).is_none_or(|end| end > end_bytes) {
            return Err(Error::corrupt(format!("the member {shown} of a zip archive overlaps the next one"))
                .at_byte(at)
                .expected(format_args!("{} bytes", header.len_min_bytes()), end_bytes.saturating_sub(at)));
        }
        let is_utf8 = std::str::from_utf8(header.raw_name()).is_ok();
        let name = if is_utf8 { header.raw_name() } else { header.member.name.as_bytes() };
        let name = clean(name).map_err(|error| error.at_byte(at))?;
        let len_bytes = header.member.len_bytes;
        let place = match header.member.method {
            Method::Stored => {
                Place::Behind(Arc::new(BehindHeader { header, end_bytes, offset_bytes: OnceLock::new() }))
            }
            Method::Deflated => Place::Refused("compressed"),
        };
        if index.insert(name, Member::Value(Value { len_bytes, place }))?.is_some() {
            return Err(Error::corrupt(format!("the member {shown} is in the zip archive twice")).at_byte(at));
        }
    }
    index.check()?;
    Ok(index)
}

impl BehindHeader {
    /// The offset of the member's data. The header before the data is read once.
    pub(super) fn find(&self, blob: &dyn Blob) -> Result<u64> {
        if let Some(&found) = self.offset_bytes.get() {
            return Ok(found);
        }
        let at = self.header.member.header_offset_bytes;
        let header = self.header.clone();
        let read = |offset_bytes, len_bytes| read(blob, offset_bytes, len_bytes);
        let member = header.find_data(self.end_bytes, &read).map_err(|error| error.shift(at))?;
        Ok(*self.offset_bytes.get_or_init(|| member.offset_bytes))
    }
}

fn read(blob: &dyn Blob, offset_bytes: u64, len_bytes: u64) -> Result<Bytes> {
    let mut bytes = work_space(len_bytes)?;
    blob.read(offset_bytes, &mut bytes, ReadPath::Cached)?;
    Ok(bytes.into())
}
