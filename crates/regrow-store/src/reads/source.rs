//! The source of a leaf: the position of its bytes, and their encoding.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;

use super::table::BlockTable;
use super::table::Checked;
use crate::error::{Error, Result};
use crate::{Blob, ByteRange, resolve_range};

/// Where the data of a leaf is. Making one reads nothing of it.
#[derive(Debug)]
pub enum Source<'r> {
    /// Its elements lie in a blob as they are wanted: in C order, little endian, in one piece.
    Raw(Extent<'r>),
    /// The same in memory.
    Memory(Bytes),
    /// Only the layout knows how to decode it.
    Coded(Coded<'r>),
    /// It is a text.
    Text(Text<'r>),
    /// It has no data.
    Nothing,
    /// It has data that this build cannot read.
    Unreadable(Unreadable<'r>),
}

/// A range of a blob, and what vouches for it.
#[derive(Debug)]
pub struct Extent<'r> {
    /// The blob.
    pub blob: BlobRef<'r>,
    /// First byte.
    pub offset_bytes: u64,
    /// Number of bytes.
    pub len_bytes: u64,
    /// The checksums that tell whether they are what was written; `None` if there are none.
    pub checks: Option<Checks<'r>>,
    /// Whether a map of the blob shows them where programs can use them.
    pub is_viewable: bool,
    /// Memory that the layout takes to read a band of them, as of a [`Coded`] leaf.
    pub working_len_bytes: Option<u64>,
}

/// A blob that a reader keeps, or one made for the occasion.
#[derive(Debug)]
pub enum BlobRef<'r> {
    /// The reader's.
    Kept(&'r dyn Blob),
    /// Made when it was asked for.
    Made(Box<dyn Blob>),
}

/// The blocks of a table that cover an extent.
#[derive(Debug, Clone, Copy)]
pub struct Checks<'r> {
    /// The table.
    pub table: &'r BlockTable,
    /// From the block with this byte.
    pub start_bytes: u64,
    /// To the block with the byte before this one.
    pub end_bytes: u64,
}

/// A leaf that the layout decodes.
#[derive(Debug, Default)]
pub struct Coded<'r> {
    /// Memory that reading a band takes beside the result, at most; `None`: as much as the band.
    pub working_len_bytes: Option<u64>,
    /// What has to be checked before a part of the leaf is read alone.
    pub seal: Option<Box<dyn Seal + 'r>>,
    /// Where its elements lie as numbers of this machine, if they do: with gaps, or their axes in
    /// another order.
    pub span: Option<Extent<'r>>,
}

/// A text, or where it is.
#[derive(Debug)]
pub enum Text<'r> {
    /// It came with the metadata.
    Known(&'r Arc<str>),
    /// Its UTF-8 lies there.
    Stored(Extent<'r>),
}

/// A leaf whose data cannot be read.
#[derive(Debug)]
pub struct Unreadable<'r> {
    /// Why.
    pub why: Error,
    /// Checked first: the original bytes of damaged data are unknown.
    pub seal: Box<dyn Seal + 'r>,
    /// Whether that is as it should be: what only its own program could make is in the file, and
    /// nothing is wrong with it.
    pub is_sound: bool,
}

impl Unreadable<'_> {
    /// Of a leaf that is lost: there is nothing to be checked first. Which leaf that is in the
    /// whole, the reader of a part does not know.
    pub fn lost(why: Error) -> Self {
        Self { why: why.of_no_leaf(), seal: Box::new(Unsealed), is_sound: false }
    }
}

/// No checksum.
#[derive(Debug)]
struct Unsealed;

impl Seal for Unsealed {
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// One checksum over all of a leaf, which can be checked only with all of its stored bytes.
pub trait Seal: std::fmt::Debug + Send + Sync {
    /// Checks it, or knows that it has passed.
    ///
    /// # Errors
    /// `Corrupt`; what the storage says.
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
    /// A leaf in chunks: one stored and one decoded are held. Of a leaf without chunks, a copy of
    /// the band.
    pub fn in_chunks(chunk_len_bytes: Option<u64>) -> Self {
        Self { working_len_bytes: chunk_len_bytes.map(|len| len.saturating_mul(2)), ..Self::default() }
    }
}

impl Extent<'_> {
    /// The blob and its checksums, if it has any.
    pub fn checked(&self) -> Option<Checked<'_>> {
        self.checks.map(|checks| Checked { blob: &*self.blob, table: checks.table })
    }

    /// The bytes as a view of the blob's map, **not checked**; `None` if there is no map, or it
    /// shows them askew.
    ///
    /// # Errors
    /// `Corrupt` if the blob has changed.
    pub fn view(&self) -> Result<Option<Bytes>> {
        if self.len_bytes == 0 {
            return Ok(Some(Bytes::new()));
        }
        let map = if self.is_viewable { self.blob.map()? } else { None };
        map.map(|map| self.view_of(&map)).transpose()
    }

    /// The bytes as a part of the blob's map.
    ///
    /// # Errors
    /// As [`view`](Self::view).
    pub fn view_of(&self, map: &Bytes) -> Result<Bytes> {
        let range = ByteRange::Span { offset_bytes: self.offset_bytes, len_bytes: self.len_bytes };
        let part = resolve_range(range, map.len() as u64)
            .map_err(|error| error.in_file(self.blob.describe()).at_byte(self.offset_bytes))?;
        Ok(map.slice(part.start as usize..part.end as usize))
    }

    /// Whether memory has the bytes already, so that a view of them is at hand.
    pub fn is_cached(&self) -> bool {
        self.blob.is_cached(self.offset_bytes, self.len_bytes)
    }

    /// Checks every block that vouches for the bytes and has not passed yet.
    ///
    /// # Errors
    /// `Corrupt` with file and offset of the first block that fails; what the storage says.
    pub fn check(&self, purpose: super::CheckFor) -> Result<()> {
        match (self.checked(), self.checks) {
            (Some(checked), Some(checks)) => checked.check(checks.start_bytes, checks.end_bytes, purpose),
            _ => Ok(()),
        }
    }

    /// The bytes, checked, as a text.
    ///
    /// # Errors
    /// `Corrupt` if they fail their checksum or are no UTF-8.
    pub fn read_text(&self) -> Result<Arc<str>> {
        self.check(super::CheckFor::Views)?;
        let mut bytes = crate::bytes::limits::allocate(self.len_bytes)?;
        self.blob.read(self.offset_bytes, &mut bytes, crate::ReadPath::Cached)?;
        let text = std::str::from_utf8(&bytes);
        text.map(Arc::from).map_err(|_| Error::corrupt("a text is not UTF-8").at_byte(self.offset_bytes))
    }
}
