//! Opens a regular file and refuses every other kind: opening a pipe must not wait, a device must
//! not be read, and a link that leads nowhere must not count as missing.

use std::fs::{self, File, FileType};
use std::io;
use std::path::Path;

use crate::error::{Error, Result};
use crate::system::{name_of_special, reading, reading_no_link};

/// Opens the regular file at `path`, for reading or also for writing; `None` if nothing is at the
/// path.
///
/// # Errors
/// `Corrupt` if something other than a regular file is at the path, or a link to a missing file;
/// errors of the file system.
pub fn open_regular(path: &Path, writable: bool) -> Result<Option<File>> {
    let opened = reading().write(writable).open(path);
    match opened.and_then(|file| Ok((file.metadata()?.file_type(), file))) {
        Ok((kind, file)) if kind.is_file() => Ok(Some(file)),
        Ok((kind, _)) => Err(not_regular(path, kind)),
        Err(error) => match (fs::metadata(path), fs::symlink_metadata(path)) {
            (Ok(found), _) if !found.is_file() => Err(not_regular(path, found.file_type())),
            (Err(_), Ok(link)) if link.is_symlink() => Err(Error::corrupt("a link does not point to a file")
                .in_file(path)
                .expected("a regular file", format_args!("a link: {error}"))),
            (Err(_), Err(_)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            _ => Err(Error::io("cannot open", path, error)),
        },
    }
}

/// Opens a regular file for reading and writing, and makes it if nothing is at the path. Does not
/// follow links.
pub fn open_or_make_regular(path: &Path) -> Result<File> {
    let nofollow = reading_no_link().write(true).create(true).truncate(false).open(path);
    match nofollow.and_then(|file| Ok((file.metadata()?.file_type(), file))) {
        Ok((kind, file)) if kind.is_file() => Ok(file),
        Ok((kind, _)) => Err(not_regular(path, kind)),
        Err(error) => match fs::symlink_metadata(path) {
            Ok(found) if !found.is_file() => Err(not_regular(path, found.file_type())),
            _ => Err(Error::io("cannot open", path, error)),
        },
    }
}

fn not_regular(path: &Path, kind: FileType) -> Error {
    Error::corrupt("the path of a file is not a file").in_file(path).expected("a regular file", name_of(kind))
}

/// Whether the error only means that the file does not exist.
pub fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | InvalidFilename)
}

/// The kind of a file that is not regular, for messages.
pub fn name_of(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a folder"
    } else if kind.is_symlink() {
        "a link"
    } else {
        name_of_special(kind)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn only_regular_files_are_opened_and_nothing_waits() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), b"x").unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink(at("nowhere"), at("dangling")).unwrap();
        symlink(at("loop"), at("loop")).unwrap();
        symlink("/dev/zero", at("zero")).unwrap();
        symlink("/dev/full", at("full")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .unwrap();
        for writable in [false, true] {
            assert!(open_regular(&at("missing"), writable).unwrap().is_none());
            assert!(open_regular(&at("file"), writable).unwrap().is_some());
            assert!(open_regular(&at("link"), writable).unwrap().is_some());
            for name in ["dangling", "loop", "zero", "full", "folder", "socket", "pipe"] {
                let error = open_regular(&at(name), writable).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                assert_eq!(error.place().file, Some(at(name)));
            }
        }
        for name in ["link", "dangling", "loop", "zero", "full", "folder", "socket", "pipe"] {
            let error = open_or_make_regular(&at(name)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
        assert!(!at("nowhere").exists());
        open_or_make_regular(&at("missing")).unwrap();
        open_or_make_regular(&at("missing")).unwrap();
    }

    #[test]
    fn only_some_errors_say_that_nothing_is_there() {
        use io::ErrorKind::{
            Interrupted, InvalidFilename, NotADirectory, NotFound, PermissionDenied, StorageFull,
        };
        for (kind, expected) in [
            (NotFound, true),
            (NotADirectory, true),
            (InvalidFilename, true),
            (PermissionDenied, false),
            (Interrupted, false),
            (StorageFull, false),
        ] {
            assert_eq!(is_absent(&kind.into()), expected, "{kind}");
        }
    }
}
