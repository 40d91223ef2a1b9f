//! Writes the page to a file.

use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use regrow::{Error, ErrorKind, Result};

use crate::model::Report;
use crate::page::page;

const BEGINNING: &[u8] = b"<!doctype html>";

/// Writes the page to a temporary file beside `path`, and renames the temporary file. After an
/// error, `path` is unchanged. With `overwrite` the page replaces an HTML file or an empty file.
///
/// # Errors
/// `AlreadyExists` if a file or folder exists that may not be replaced; `PermissionDenied`,
/// `StorageFull`, `Io`.
pub fn save_page(report: &Report, path: &Path, overwrite: bool) -> Result<()> {
    check_target(path, overwrite)?;
    let cannot_write = |error| Error::io("cannot write the report", path, error);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The page gets the mode of any new file. Without this, only its owner could read it.
    let mut builder = tempfile::Builder::new();
    builder.prefix(".report-").suffix(".tmp").permissions(Permissions::from_mode(0o666));
    let mut file = builder.tempfile_in(folder).map_err(cannot_write)?;
    let mut out = BufWriter::with_capacity(1 << 16, &mut file);
    page(report, &mut out).and_then(|()| out.flush()).map_err(cannot_write)?;
    drop(out);
    let persisted = if overwrite { file.persist(path) } else { file.persist_noclobber(path) };
    persisted.map(drop).map_err(|error| match error.error.kind() {
        io::ErrorKind::AlreadyExists => taken(path),
        _ => cannot_write(error.error),
    })
}

/// Returns an error if [`save_page`] would not write to the path. Call it before a long read.
///
/// # Errors
/// `AlreadyExists`; `NotFound` if the folder does not exist.
pub fn check_target(path: &Path, overwrite: bool) -> Result<()> {
    let cannot_write = |error| Error::io("cannot write the report", path, error);
    let is_html = match File::open(path) {
        Ok(file) => begins_as_html(file).or_else(|error| match error.kind() {
            io::ErrorKind::IsADirectory => Ok(false),
            _ => Err(cannot_write(error)),
        })?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            return folder.map_or(Ok(()), |folder| folder.metadata().map(drop).map_err(cannot_write));
        }
        Err(error) => return Err(cannot_write(error)),
    };
    match is_html {
        true if overwrite => Ok(()),
        true => Err(taken(path)),
        false => Err(Error::new(ErrorKind::AlreadyExists, "the target exists and is not an HTML file")
            .in_file(path)
            .help("choose another name, or remove the file")),
    }
}

fn taken(path: &Path) -> Error {
    Error::new(ErrorKind::AlreadyExists, "the target already exists")
        .in_file(path)
        .help("pass `overwrite` to replace it, or choose another path")
}

fn begins_as_html(file: File) -> io::Result<bool> {
    let mut beginning = Vec::new();
    file.take(BEGINNING.len() as u64).read_to_end(&mut beginning)?;
    Ok(beginning.is_empty() || beginning.eq_ignore_ascii_case(BEGINNING))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_replace_pages_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.html");
        let report = Report { title: "one".into(), ..Report::default() };
        save_page(&report, &path, false).unwrap();
        let two = Report { title: "two".into(), ..report.clone() };
        assert_eq!(save_page(&two, &path, false).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert!(std::fs::read_to_string(&path).unwrap().contains("one"));
        save_page(&two, &path, true).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains("two"));
        let model = folder.path().join("model.safetensors");
        std::fs::write(&model, [8; 100]).unwrap();
        for taken in [&model, folder.path()] {
            assert_eq!(save_page(&report, taken, true).unwrap_err().kind(), ErrorKind::AlreadyExists);
        }
        assert_eq!(std::fs::read(&model).unwrap(), [8; 100]);
        let nowhere = folder.path().join("nowhere/report.html");
        assert_eq!(save_page(&report, &nowhere, true).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left beside");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o600, 0o600);
    }
}
