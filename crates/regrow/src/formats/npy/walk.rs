//! The npy files of a folder tree.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::names::{SUFFIX, unescaped};
use super::sidecar;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::orbax::steps::COMMIT_SUCCESS_FILE;

/// Most folders inside each other.
const DEPTH_MAX: usize = 256;

/// How much of a folder is looked at to see whether it is one of npy files.
const LOOKED_AT_DEPTH_MAX: usize = 8;
const LOOKED_AT_MAX: usize = 10_000;

/// Suffixes of files that may lie beside npy files without making the folder something else.
const BESIDE: [&str; 2] = [".md", ".txt"];

/// One npy file.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    /// The keys that its path below the folder stands for.
    pub keys: Vec<String>,
    /// That path.
    pub path: Vec<u8>,
}

/// Whether a folder holds npy files and nothing else, as far as a look goes: text files and hidden ones do not count.
pub(super) fn is_one(folder: &Path) -> Result<bool> {
    // Whatever it is: what is no file is refused when it is read.
    if fs::symlink_metadata(folder.join(sidecar::FILE_NAME)).is_ok() {
        return Ok(true);
    }
    let (mut found, mut looked_at) = (false, 0);
    let mut pending = vec![(folder.to_owned(), 0)];
    while let Some((folder, depth)) = pending.pop() {
        for entry in entries(&folder)? {
            looked_at += 1;
            if looked_at > LOOKED_AT_MAX {
                return Ok(found);
            }
            match entry {
                Entry::Folder(path) if depth < LOOKED_AT_DEPTH_MAX => pending.push((path, depth + 1)),
                Entry::Folder(_) => {}
                Entry::Npy(_) => found = true,
                // What an Orbax checkpoint ends with: this was one.
                Entry::Other(name) if name == COMMIT_SUCCESS_FILE => return Ok(false),
                Entry::Other(name) if BESIDE.iter().any(|suffix| name.ends_with(suffix)) => {}
                Entry::Other(_) => return Ok(false),
            }
        }
    }
    Ok(found)
}

/// Every npy file below the folder, sorted by its keys. Links to folders are not followed.
///
/// # Errors
/// What the file system says; `Limit` for folders too deep inside each other.
pub(super) fn npy_files(folder: &Path) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    let mut pending: Vec<(PathBuf, Vec<String>, Vec<u8>)> = vec![(folder.to_owned(), Vec::new(), Vec::new())];
    while let Some((folder, keys, below)) = pending.pop() {
        if keys.len() > DEPTH_MAX {
            let what = format!("more than {DEPTH_MAX} folders stand inside each other");
            return Err(Error::new(ErrorKind::Limit, what).in_file(folder));
        }
        let child = |name: &str, path: &Path| {
            let file_name = path.file_name().unwrap_or_default().as_bytes();
            let below =
                if below.is_empty() { file_name.to_owned() } else { [&below, &b"/"[..], file_name].concat() };
            let mut keys = keys.clone();
            keys.push(unescaped(name));
            (keys, below)
        };
        for entry in entries(&folder)? {
            match entry {
                Entry::Folder(path) => {
                    let (keys, below) = child(&name_of(&path), &path);
                    pending.push((path, keys, below));
                }
                Entry::Npy(path) => {
                    let name = name_of(&path);
                    let (keys, path) = child(name.get(..name.len() - SUFFIX.len()).unwrap_or(&name), &path);
                    found.push(Found { keys, path });
                }
                Entry::Other(_) => {}
            }
        }
    }
    found.sort();
    Ok(found)
}

enum Entry {
    Folder(PathBuf),
    Npy(PathBuf),
    /// Its name in lower case.
    Other(String),
}

/// What lies in a folder, without what is hidden.
fn entries(folder: &Path) -> Result<Vec<Entry>> {
    let cannot_list = |source| Error::io("cannot list", folder, source);
    let mut out = Vec::new();
    for entry in fs::read_dir(folder).map_err(cannot_list)? {
        let entry = entry.map_err(cannot_list)?;
        let path = entry.path();
        let name = name_of(&path).to_ascii_lowercase();
        if name.starts_with('.') {
            continue;
        }
        let kind = entry.file_type().map_err(cannot_list)?;
        let is_file = kind.is_file() || kind.is_symlink() && path.is_file();
        out.push(match () {
            () if kind.is_dir() => Entry::Folder(path),
            () if is_file && name.ends_with(SUFFIX) => Entry::Npy(path),
            () => Entry::Other(name),
        });
    }
    Ok(out)
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
