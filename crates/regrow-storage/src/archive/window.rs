//! Small reads of a large value, front to back: reads close to each other are combined.

use crate::bytes::limits::work_space;
use crate::error::{Error, Result};
use crate::store::{Blob, ReadPath};

/// Length of the first window.
const LEN_MIN_BYTES: u64 = 16 << 10;

/// Length of the longest window, which many small members in a row lead to.
const LEN_MAX_BYTES: u64 = 1 << 20;

/// A part of a value in memory, which moves forward with the reader.
#[derive(Debug)]
pub(super) struct Window<'a> {
    blob: &'a dyn Blob,
    at: u64,
    bytes: Vec<u8>,
    next_len_bytes: u64,
}

impl<'a> Window<'a> {
    pub(super) fn new(blob: &'a dyn Blob) -> Self {
        Self { blob, at: 0, bytes: Vec::new(), next_len_bytes: LEN_MIN_BYTES }
    }

    pub(super) fn len_bytes(&self) -> u64 {
        self.blob.len_bytes()
    }

    /// Returns `len_bytes` bytes from an offset on. The caller has checked that the length is
    /// reasonable.
    pub(super) fn read(&mut self, offset_bytes: u64, len_bytes: u64) -> Result<&[u8]> {
        let end = offset_bytes.checked_add(len_bytes).filter(|&end| end <= self.len_bytes());
        let Some(end) = end else {
            return Err(Error::corrupt("the archive is cut short")
                .at_byte(self.len_bytes())
                .expected(format_args!("{len_bytes} bytes from byte {offset_bytes} on"), "fewer")
                .help("it was cut short: copy it again"));
        };
        if offset_bytes < self.at || end > self.at + self.bytes.len() as u64 {
            // A read that continues at the end of the window suggests a sequential reader: read
            // more at once.
            let is_close = offset_bytes >= self.at && offset_bytes - self.at <= self.bytes.len() as u64;
            self.next_len_bytes = match is_close && !self.bytes.is_empty() {
                true => (2 * self.next_len_bytes).min(LEN_MAX_BYTES),
                false => LEN_MIN_BYTES,
            };
            let len_bytes = len_bytes.max(self.next_len_bytes).min(self.len_bytes() - offset_bytes);
            self.bytes = work_space(len_bytes)?;
            self.at = offset_bytes;
            let read = self.blob.read(offset_bytes, &mut self.bytes, ReadPath::Cached);
            if read.is_err() {
                self.bytes.clear();
            }
            read?;
        }
        let start = (offset_bytes - self.at) as usize;
        Ok(self.bytes.get(start..start + len_bytes as usize).unwrap_or_default())
    }
}
