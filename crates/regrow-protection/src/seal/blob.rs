//! An open sealed file.

use std::path::PathBuf;
use std::sync::Arc;

use super::files::{Said, SealedFile};
use super::read::of_blob;
use regrow_base::error::Result;
use regrow_storage::Identity;
use regrow_store::{Blob, ReadPath, Suits};

/// A file that checks every byte before it returns the byte. It gives no maps: for views, the
/// reader of the checkpoint uses the file itself, and its block table.
#[derive(Debug)]
pub(super) struct SealedBlob {
    blob: Arc<dyn Blob>,
    file: Arc<SealedFile>,
}

impl SealedBlob {
    /// Opens a sealed file. `Corrupt` if it has another length than the seal says.
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
            // The read returns the error that describes the bounds.
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

#[cfg(test)]
mod tests {
    use super::*;
    use regrow_base::bytes::checksum::crc32c;
    use regrow_base::error::{Error, ErrorKind};
    use regrow_store::reads::{BlockTable, Checksum, Words};

    /// A file of three bytes that behaves unusually in every way.
    #[derive(Debug)]
    struct Unusual;

    impl Blob for Unusual {
        fn len_bytes(&self) -> u64 {
            3
        }
        fn describe(&self) -> PathBuf {
            "unusual".into()
        }
        fn read(&self, offset_bytes: u64, out: &mut [u8], _way: ReadPath) -> Result<()> {
            let end = offset_bytes as usize + out.len();
            let part = b"abc".get(offset_bytes as usize..end);
            out.copy_from_slice(part.ok_or_else(|| Error::corrupt("it ends before"))?);
            Ok(())
        }
        fn is_cached(&self, offset_bytes: u64, _len_bytes: u64) -> bool {
            offset_bytes == 1
        }
        fn has_its_length(&self) -> bool {
            false
        }
        fn identity(&self) -> Option<Identity> {
            Some(Identity::Inode(1, 2, None))
        }
        fn object(&self) -> Option<(String, Identity)> {
            Some(("key".to_owned(), Identity::Inode(3, 4, None)))
        }
        fn suits(&self) -> Suits {
            Suits { requests_min: 5, requests_max: 6 }
        }
    }

    #[test]
    fn what_a_file_says_of_itself_it_says_under_a_seal() {
        let words = Words { what: |_, _| "a block".to_owned(), help: "", help_if_zeros: "" };
        let table = BlockTable::new(0..3, 3, Checksum::Crc32c, vec![crc32c(b"abc")], words).unwrap();
        let file = Arc::new(SealedFile { name: "unusual".to_owned(), len_bytes: 3, table });
        let fails = || Error::corrupt("another length");
        let said = Said { misfit: fails, unlisted: fails, changed: fails };
        let sealed = SealedBlob::new(Arc::new(Unusual), file, said).unwrap();
        assert_eq!((sealed.len_bytes(), sealed.describe()), (3, Unusual.describe()));
        assert_eq!((sealed.is_cached(0, 1), sealed.is_cached(1, 1)), (false, true));
        assert!(!sealed.has_its_length());
        assert_eq!((sealed.identity(), sealed.object()), (Unusual.identity(), Unusual.object()));
        assert_eq!(sealed.suits(), Unusual.suits());
        let mut out = [0; 2];
        sealed.read(1, &mut out, ReadPath::Cached).unwrap();
        assert_eq!(&out, b"bc");
        assert_eq!(sealed.read(2, &mut out, ReadPath::Cached).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
