//! The source of a leaf: the position of its bytes, and their encoding.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;

use super::table::BlockTable;
use super::table::Checked;
use crate::error::{Error, Result};
use crate::{Blob, ByteRange, resolve_range};

/// The position and encoding of the data of a leaf. Making this value reads no data.
#[derive(Debug)]
pub enum Source<'r> {
    /// The elements are in a blob in their final form: in C order, little endian, without gaps.
    Raw(Extent<'r>),
    /// The elements are in memory, in the same form.
    Memory(Bytes),
    /// Only the layout can decode the elements.
    Coded(Coded<'r>),
    /// The leaf is a text.
    Text(Text<'r>),
    /// The leaf has no data.
    Nothing,
    /// The leaf has data that this build cannot read.
    Unreadable(Unreadable<'r>),
}

/// A range of a blob, and the checksums that cover it.
#[derive(Debug)]
pub struct Extent<'r> {
    /// The blob.
    pub blob: BlobRef<'r>,
    /// First byte.
    pub offset_bytes: u64,
    /// Number of bytes.
    pub len_bytes: u64,
    /// The checksums of the bytes; `None` if there are none.
    pub checks: Option<Checks<'r>>,
    /// Whether a program can use the bytes in a map of the blob as they are.
    pub is_viewable: bool,
    /// Memory that the layout needs to read a band of the bytes, as for a [`Coded`] leaf.
    pub working_len_bytes: Option<u64>,
}

/// A blob of the reader, or one made for this leaf.
#[derive(Debug)]
pub enum BlobRef<'r> {
    /// A blob that the reader keeps open.
    Kept(&'r dyn Blob),
    /// A blob that was made for this leaf.
    Made(Box<dyn Blob>),
}

/// The blocks of a table that cover an extent.
#[derive(Debug, Clone, Copy)]
pub struct Checks<'r> {
    /// The table.
    pub table: &'r BlockTable,
    /// The offset of the first byte of the first block.
    pub start_bytes: u64,
    /// The offset after the last byte of the last block.
    pub end_bytes: u64,
}

/// A leaf that the layout decodes.
#[derive(Debug, Default)]
pub struct Coded<'r> {
    /// Most memory for reading a band, in addition to the result; `None`: as much as the band.
    pub working_len_bytes: Option<u64>,
    /// A checksum of the whole leaf, which must be checked before a part of the leaf is read.
    pub seal: Option<Box<dyn Seal + 'r>>,
    /// The position of the elements if they are stored as native numbers, but with gaps or with the
    /// axes in another order.
    pub span: Option<Extent<'r>>,
}

/// A text, or the position of its bytes.
#[derive(Debug)]
pub enum Text<'r> {
    /// The text was in the metadata.
    Known(&'r Arc<str>),
    /// The range with the UTF-8 bytes of the text.
    Stored(Extent<'r>),
}

/// A leaf whose data cannot be read.
#[derive(Debug)]
pub struct Unreadable<'r> {
    /// The reason.
    pub why: Error,
    /// A checksum to check before the error is reported: if the data is damaged, the damage is the
    /// error.
    pub seal: Box<dyn Seal + 'r>,
    /// Whether the data is not damaged: only the program that wrote it can read it.
    pub is_sound: bool,
}

impl Unreadable<'_> {
    /// A lost leaf, for which no checksum can be checked. The error does not include the leaf's
    /// name, because the reader of an item does not know the leaf's name in the whole checkpoint.
    pub fn lost(why: Error) -> Self {
        Self { why: why.of_no_leaf(), seal: Box::new(Unsealed), is_sound: false }
    }
}

/// Data without a checksum.
#[derive(Debug)]
struct Unsealed;

impl Seal for Unsealed {
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// One checksum over a whole leaf. Checking it needs all stored bytes of the leaf.
pub trait Seal: std::fmt::Debug + Send + Sync {
    /// Checks the bytes, unless they have passed before.
    ///
    /// # Errors
    /// `Corrupt`; errors of the storage.
    fn check(&self) -> Result<()>;
}

impl<'r> Deref for BlobRef<'r> {
    type Target = dyn Blob + 'r;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Kept(blob) => *blob,
            Self::Made(blob) => &**blob,
        }
    }
}

impl Coded<'_> {
    /// A leaf in chunks: reading it needs memory for one stored and one decoded chunk. Without
    /// chunks, memory for a copy of the band.
    pub fn in_chunks(chunk_len_bytes: Option<u64>) -> Self {
        Self { working_len_bytes: chunk_len_bytes.map(|len| len.saturating_mul(2)), ..Self::default() }
    }
}

impl Extent<'_> {
    /// The blob with its checksums; `None` if there are no checksums.
    pub fn checked(&self) -> Option<Checked<'_>> {
        self.checks.map(|checks| Checked { blob: &*self.blob, table: checks.table })
    }

    /// The bytes as a view of the blob's map, **not checked**. `None` if the blob has no map, or if
    /// `is_viewable` is false.
    /// Returns `Corrupt` if the blob has changed.
    pub fn view(&self) -> Result<Option<Bytes>> {
        if self.len_bytes == 0 {
            return Ok(Some(Bytes::new()));
        }
        let map = if self.is_viewable { self.blob.map()? } else { None };
        map.map(|map| self.view_of(&map)).transpose()
    }

    /// The bytes as a part of the blob's map.
    pub fn view_of(&self, map: &Bytes) -> Result<Bytes> {
        let range = ByteRange::Span { offset_bytes: self.offset_bytes, len_bytes: self.len_bytes };
        let part = resolve_range(range, map.len() as u64)
            .map_err(|error| error.in_file(self.blob.describe()).at_byte(self.offset_bytes))?;
        Ok(map.slice(part.start as usize..part.end as usize))
    }

    /// Whether the bytes are already in memory, so that a view needs no read.
    pub fn is_cached(&self) -> bool {
        self.blob.is_cached(self.offset_bytes, self.len_bytes)
    }

    /// Checks every block under the bytes that has not passed yet.
    ///
    /// # Errors
    /// `Corrupt` with the file and offset of the first bad block; errors of the storage.
    pub fn check(&self, purpose: super::CheckFor) -> Result<()> {
        match (self.checked(), self.checks) {
            (Some(checked), Some(checks)) => checked.check(checks.start_bytes, checks.end_bytes, purpose),
            _ => Ok(()),
        }
    }

    /// Reads the bytes, checks them, and decodes them as a text.
    ///
    /// # Errors
    /// `Corrupt` if the bytes fail their checksum or are not UTF-8.
    pub fn read_text(&self) -> Result<Arc<str>> {
        self.check(super::CheckFor::Views)?;
        let mut bytes = crate::bytes::limits::allocate(self.len_bytes)?;
        self.blob.read(self.offset_bytes, &mut bytes, crate::ReadPath::Cached)?;
        let text = std::str::from_utf8(&bytes);
        text.map(Arc::from).map_err(|_| Error::corrupt("a text is not UTF-8").at_byte(self.offset_bytes))
    }
}
