//! The npy files of a folder tree.

use std::ffi::OsString;

use super::names::{SUFFIX, unescaped};
use super::sidecar;
use crate::orbax::marker_files::COMMIT_SUCCESS_FILE;
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_storage::location::Location;

const DEPTH_MAX: usize = 256;

/// Limits of the search that decides whether a folder has npy files.
const LOOKED_AT_DEPTH_MAX: usize = 8;
const LOOKED_AT_MAX: usize = 10_000;

/// Suffixes of files that may lie beside npy files without making the folder something else.
const BESIDE: [&str; 2] = [".md", ".txt"];

/// One npy file.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    /// The keys of the leaf, from the file's path below the folder.
    pub keys: Vec<String>,
    pub path: Vec<u8>,
}

/// Whether a folder has only npy files. The search is limited; text files and hidden files do not
/// count.
pub(super) fn is_one(folder: &Location) -> Result<bool> {
    // An entry of any kind counts. If the entry is not a file, the reader returns an error.
    if folder.join(sidecar::FILE_NAME).is_taken() {
        return Ok(true);
    }
    if !folder.has_listings() {
        return Ok(false);
    }
    let (mut found, mut looked_at) = (false, 0);
    let mut pending = vec![(folder.clone(), 0)];
    while let Some((folder, depth)) = pending.pop() {
        for entry in entries(&folder)? {
            looked_at += 1;
            if looked_at > LOOKED_AT_MAX {
                return Ok(found);
            }
            match entry {
                Entry::Folder(name) if depth < LOOKED_AT_DEPTH_MAX => {
                    pending.push((folder.join(name), depth + 1));
                }
                Entry::Folder(_) => {}
                Entry::Npy(_) => found = true,
                // Orbax' commit marker shows that this was an Orbax checkpoint.
                Entry::Other(name) if name == COMMIT_SUCCESS_FILE => return Ok(false),
                Entry::Other(name) if BESIDE.iter().any(|suffix| name.ends_with(suffix)) => {}
                Entry::Other(_) => return Ok(false),
            }
        }
    }
    Ok(found)
}

/// Every npy file below the folder, sorted by its keys. Links to folders are not followed.
pub(super) fn npy_files(folder: &Location) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    let mut pending: Vec<(Location, Vec<String>, Vec<u8>)> = vec![(folder.clone(), Vec::new(), Vec::new())];
    while let Some((folder, keys, below)) = pending.pop() {
        if keys.len() > DEPTH_MAX {
            let what = format!("folders are nested deeper than {DEPTH_MAX} levels");
            return Err(Error::new(ErrorKind::Limit, what).in_file(folder));
        }
        let child = |key: &str, name: &OsString| {
            let name = name.as_encoded_bytes();
            let below = if below.is_empty() { name.to_owned() } else { [&below, &b"/"[..], name].concat() };
            let mut keys = keys.clone();
            keys.push(unescaped(key));
            (keys, below)
        };
        for entry in entries(&folder)? {
            match entry {
                Entry::Folder(name) => {
                    let (keys, below) = child(&name.to_string_lossy(), &name);
                    pending.push((folder.join(name), keys, below));
                }
                Entry::Npy(name) => {
                    let text = name.to_string_lossy();
                    let (keys, path) = child(text.get(..text.len() - SUFFIX.len()).unwrap_or(&text), &name);
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
    Folder(OsString),
    Npy(OsString),
    /// Another file, by its name in lower case.
    Other(String),
}

fn entries(folder: &Location) -> Result<Vec<Entry>> {
    let listed = folder.entries()?.into_iter().filter_map(|entry| {
        let name = entry.name.to_string_lossy().to_ascii_lowercase();
        match () {
            () if name.starts_with('.') => None,
            () if entry.is_folder() && !entry.is_link => Some(Entry::Folder(entry.name)),
            () if entry.is_file() && name.ends_with(SUFFIX) => Some(Entry::Npy(entry.name)),
            () => Some(Entry::Other(name)),
        }
    });
    Ok(listed.collect())
}
