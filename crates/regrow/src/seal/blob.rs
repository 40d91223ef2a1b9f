//! A sealed file that is open.

use std::path::PathBuf;
use std::sync::Arc;

use super::files::{Said, SealedFile};
use super::read::of_blob;
use crate::error::Result;
use crate::storage::Identity;
use crate::store::{Blob, ReadPath, Suits};

/// A file of which every byte is checked before it is handed out. It gives no maps: whoever wants views has the file itself,
/// and the table of its blocks, from the reader of the checkpoint.
#[derive(Debug)]
pub(super) struct SealedBlob {
    blob: Arc<dyn Blob>,
    file: Arc<SealedFile>,
}

impl SealedBlob {
    /// The file, opened.
    ///
    /// # Errors
    /// `Corrupt` if it has another length than the seal says.
    pub fn new(blob: Arc<dyn Blob>, file: Arc<SealedFile>, said: Said) -> Result<Self> {
        if blob.len_bytes() != file.len_bytes {
            return Err((said.misfit)()
                .in_file(blob.describe())
                .expected(format_args!("{} bytes", file.len_bytes), blob.len_bytes()));
        }
        Ok(Self { blob, file })
    }
}

impl Blob for SealedBlob {
    fn len_bytes(&self) -> u64 {
        self.blob.len_bytes()
    }

    fn describe(&self) -> PathBuf {
        self.blob.describe()
    }

    fn read(&self, offset_bytes: u64, out: &mut [u8], way: ReadPath) -> Result<()> {
        let is_inside =
            offset_bytes.checked_add(out.len() as u64).is_some_and(|end| end <= self.file.len_bytes);
        if !is_inside {
            // It says what is wrong.
            return self.blob.read(offset_bytes, out, way);
        }
        self.file.read_checked(&*self.blob, offset_bytes, out, &of_blob(&*self.blob, way))
    }

    fn is_cached(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.blob.is_cached(offset_bytes, len_bytes)
    }

    fn has_its_length(&self) -> bool {
        self.blob.has_its_length()
    }

    fn identity(&self) -> Option<Identity> {
        self.blob.identity()
    }

    fn object(&self) -> Option<(String, Identity)> {
        self.blob.object()
    }

    fn suits(&self) -> Suits {
        self.blob.suits()
    }
}
