//! Documents, which are read whole: the metadata of checkpoints.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::files::OpenFile;
use super::folder::{FilePlace, Folder};
use super::regular::is_absent;
use crate::ByteRange;
use crate::bytes::glance::{Glance, Language};
use crate::error::{Error, ErrorKind, Result};
use crate::system::Caching;

/// Files up to this length are read at once. Longer files are read in pieces, and each piece must
/// look like the language of the document.
const AT_ONCE_LEN_MAX_BYTES: u64 = 4 << 20;

const PIECE_LEN_BYTES: u64 = 1 << 20;

/// Reads a whole document; `None` if no regular file is at `path`. Messages call it `what`: `the
/// manifest`.
///
/// # Errors
/// `Limit` if the document is longer than `len_max_bytes` or does not fit in memory; `Corrupt`,
/// with the offset, if a long file cannot be a document of `language`, as soon as a piece shows
/// this; errors of the file system. Each error has the name of the file.
pub fn read_document(
    path: &Path,
    what: &str,
    language: Language,
    len_max_bytes: u64,
) -> Result<Option<Vec<u8>>> {
    read_document_at(Folder::at_path("").file(path), what, language, len_max_bytes)
}

/// The first bytes of the regular file at `path`, at most `len_max_bytes`; `None` if no regular
/// file is there.
pub fn read_beginning(path: &Path, len_max_bytes: u64) -> Result<Option<Vec<u8>>> {
    let Some(file) = OpenFile::open(Folder::at_path("").file(path))? else { return Ok(None) };
    let len_bytes = file.len_bytes().map_err(|error| Error::io("cannot look at", path, error))?;
    let range = ByteRange::Span { offset_bytes: 0, len_bytes: len_bytes.min(len_max_bytes) };
    file.read(range).map(|bytes| Some(bytes.into())).map_err(|error| error.in_file(path))
}

/// The same as [`read_document`], for a file below a folder.
pub(super) fn read_document_at(
    place: FilePlace<'_>,
    what: &str,
    language: Language,
    len_max_bytes: u64,
) -> Result<Option<Vec<u8>>> {
    let path = &place.describe();
    let cannot_read = |error| Error::io(&format!("cannot read {what}"), path, error);
    let file = match place.open(Caching::Through) {
        Ok(file) => file,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(cannot_read(error)),
    };
    match file.metadata().map_err(cannot_read)?.is_file() {
        true => read_opened_document(&file, path, what, language, len_max_bytes).map(Some),
        false => Ok(None),
    }
}

/// The same as [`read_document`], for an open regular file. Messages show `path` as its name.
pub fn read_opened_document(
    mut file: &File,
    path: &Path,
    what: &str,
    language: Language,
    len_max_bytes: u64,
) -> Result<Vec<u8>> {
    let cannot_read = |error| Error::io(&format!("cannot read {what}"), path, error);
    let metadata = file.metadata().map_err(cannot_read)?;
    let len_bytes = metadata.len();
    if len_bytes > len_max_bytes {
        return Err(Error::new(ErrorKind::Limit, format!("{what} is too long"))
            .in_file(path)
            .expected(format_args!("at most {len_max_bytes} bytes"), len_bytes));
    }
    let mut glance = (len_bytes > AT_ONCE_LEN_MAX_BYTES).then(|| Glance::new(language));
    let mut bytes = Vec::new();
    loop {
        let wanted = if glance.is_some() { PIECE_LEN_BYTES } else { len_bytes.max(1) };
        let start = bytes.len();
        // The file may have grown since it was measured, so only an empty read shows its end.
        bytes.try_reserve(wanted as usize).map_err(|_| {
            Error::new(ErrorKind::Limit, format!("{what} does not fit in memory")).in_file(path)
        })?;
        if file.by_ref().take(wanted).read_to_end(&mut bytes).map_err(cannot_read)? == 0 {
            return Ok(bytes);
        }
        if bytes.len() as u64 > len_max_bytes {
            return Err(Error::new(ErrorKind::Limit, format!("{what} grows while it is read")).in_file(path));
        }
        if let Some(glance) = &mut glance {
            glance.look(bytes.get(start..).unwrap_or_default()).map_err(|error| error.in_file(path))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &Path) -> Result<Option<Vec<u8>>> {
        read_document(path, "the manifest", Language::Json, 64 << 20)
    }

    #[test]
    fn long_documents_are_read_as_short_ones_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        assert!(read(&path).unwrap().is_none());
        assert!(read(folder.path()).unwrap().is_none());
        for count in [0, 1, 1000, 3_000_000] {
            let text = serde_json::to_vec(&vec![1; count]).unwrap();
            std::fs::write(&path, &text).unwrap();
            assert!(read(&path).unwrap().unwrap() == text, "{count}");
        }
        std::fs::write(&path, b"").unwrap();
        assert_eq!(read(&path).unwrap().unwrap(), b"");
        std::fs::File::options().write(true).open(&path).unwrap().set_len(65 << 20).unwrap();
        assert_eq!(read(&path).unwrap_err().kind(), ErrorKind::Limit);
        std::fs::File::options().write(true).open(&path).unwrap().set_len(63 << 20).unwrap();
        let error = read(&path).unwrap_err();
        assert_eq!((error.kind(), error.place().offset_bytes), (ErrorKind::Corrupt, Some(0)));
        assert_eq!(error.place().file.as_deref(), Some(&*path));
    }
}
