//! Arrays of several processes: the file has a text instead of the array, and another folder has a
//! zarr array.
//!
//! ```text
//! checkpoint_7                          "w": "//GDAPlaceholder:params/w"
//! checkpoint_7_gda/params/w/.zarray     the array, in chunks
//! ```

use std::sync::Arc;

use super::steps::ARRAYS_SUFFIX;
use regrow_base::bytes::limits::ZARR_DOCUMENT_LEN_MAX_BYTES;
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_storage::location::Location;
use regrow_store::{Store, StoreExt};
use regrow_zarr::zarr::{ArrayMeta, Missing, V2_DOCUMENT, ZarrArray};

/// The prefix of a text that replaces an array.
pub(super) const PLACEHOLDER: &str = "//GDAPlaceholder:";

const DOCUMENT: &str = V2_DOCUMENT;

/// The folder with the arrays of one file.
#[derive(Debug)]
pub(super) struct ArraysFolder {
    store: Arc<dyn Store>,
    name: String,
}

/// The array that a text refers to.
#[derive(Debug)]
pub(super) enum Resolved {
    Array(ZarrArray),
    /// The name of an array that is missing.
    Missing(String),
}

impl ArraysFolder {
    /// The folder for the file `at` a location. The folder may be missing, which shows at the first
    /// read.
    pub fn of(at: &Location) -> Self {
        let mut name = at.name().to_os_string();
        name.push(ARRAYS_SUFFIX);
        let folder = at.with_name(&name);
        Self { store: folder.store(), name: name.to_string_lossy().into_owned() }
    }

    /// The array that `text` refers to; `None` for an ordinary text.
    ///
    /// # Errors
    /// `Corrupt` or `Unsupported` for an array whose document cannot be read; errors of the
    /// storage.
    pub fn resolve(&self, text: &str) -> Result<Option<Resolved>> {
        let Some(name) = text.strip_prefix(PLACEHOLDER) else { return Ok(None) };
        let missing = || Resolved::Missing(format!("{}/{name}", self.name));
        let key = format!("{name}/{DOCUMENT}").into_bytes();
        let len = match self.store.len_bytes(&key) {
            Ok(Some(len)) => len,
            Ok(None) => return Ok(Some(missing())),
            // A name that is forbidden, or that leads out of the folder, is not an array in it.
            Err(error)
                if matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::PermissionDenied) =>
            {
                return Ok(Some(missing()));
            }
            Err(error) => return Err(error),
        };
        if len > ZARR_DOCUMENT_LEN_MAX_BYTES as u64 {
            return Err(Error::corrupt("the metadata of an array is too long")
                .in_file(self.store.describe(&key))
                .expected(format_args!("at most {ZARR_DOCUMENT_LEN_MAX_BYTES} bytes"), len));
        }
        let Some(document) = self.store.get_whole(&key)? else { return Ok(Some(missing())) };
        let meta = ArrayMeta::parse_v2(&document).in_file(self.store.describe(&key))?;
        let array = ZarrArray::new(self.store.clone(), name.as_bytes(), Arc::new(meta), Missing::Fill);
        Ok(Some(Resolved::Array(array)))
    }
}
