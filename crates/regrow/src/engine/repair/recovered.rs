//! Rebuilds lost files from other files. Each layout knows how.

use std::path::PathBuf;

use super::guard::Guard;
use super::lost_marker::{self, LostMarker, is_marker};
use super::proof::{Proof, refused};
use super::{RepairOptions, RepairReport, is_damage};
use crate::error::{Error, Result};
use crate::formats::container::item_folders;
use crate::formats::{self, formats};
use crate::location::Location;
use crate::storage::side_files::DAMAGED_PREFIX;
use crate::store::StoreExt;

/// The most rounds. A file that one round rebuilds may be needed to rebuild another file in the
/// next round.
pub(super) const ROUNDS_MAX: usize = 4;

/// A lost or damaged file that was rebuilt from other files.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecoveredFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The length of the file in bytes.
    pub bytes: u64,
    /// The source of the new content, and what is uncertain about it.
    pub how: String,
    /// Whether the new content is not proved to equal the old: new checksums of the current files,
    /// or metadata of another step. The old file is then kept beside it, as `regrow.damaged.NAME`.
    pub is_guess: bool,
}

/// Rebuilds lost files from other files, in a folder and in its items, in at most `rounds` rounds.
pub(super) fn recover(
    at: &Location,
    rounds: usize,
    options: &RepairOptions,
    guard: &Guard<'_>,
    proof: &Proof,
    report: &mut RepairReport,
) -> Result<()> {
    if !at.is_folder() {
        return Ok(());
    }
    let writing = Writing { options, guard, proof };
    let mut markers = Vec::new();
    for folder in parts_of(at)? {
        let other = options.from.as_ref().map(|from| of_item(from, at, &folder));
        for _ in 0..rounds {
            let files = files_of(&folder, other.as_ref(), &writing, report)?;
            let (of_folder, files): (Vec<_>, Vec<_>) =
                files.into_iter().partition(|file| is_marker(&folder, &file.name));
            let has_written = !files.is_empty() && write(&folder, files, &writing, report)?;
            if !has_written || options.check {
                markers.push((folder, of_folder));
                break;
            }
        }
    }
    let markers = markers.into_iter().flat_map(|(folder, of_folder)| {
        of_folder.into_iter().map(move |marker| LostMarker { folder: folder.clone(), marker })
    });
    lost_marker::put_back(at, markers.collect(), options, report, &|LostMarker { folder, marker }, report| {
        write(&folder, vec![marker], &writing, report).map(drop)
    })
}

fn files_of(
    folder: &Location,
    other: Option<&Location>,
    writing: &Writing<'_>,
    report: &mut RepairReport,
) -> Result<Vec<formats::RecoveredFile>> {
    let options = writing.options;
    for format in formats() {
        options.monitor.check()?;
        let files = match format.roles().recovery.map(|it| it.recover(folder, other)) {
            Some(Ok(files)) => files,
            None => Vec::new(),
            // The files from which the layout would rebuild are damaged too.
            Some(Err(error)) if is_damage(&error, folder) => {
                add(&mut report.lost, error);
                Vec::new()
            }
            Some(Err(error)) => return Err(error),
        };
        if !files.is_empty() {
            return Ok(files);
        }
        // The first layout that recognises the folder also reads it.
        if format.recognise(folder).unwrap_or(false) {
            break;
        }
    }
    Ok(Vec::new())
}

/// The context of writing rebuilt files.
struct Writing<'w> {
    options: &'w RepairOptions,
    guard: &'w Guard<'w>,
    proof: &'w Proof,
}

/// Writes the files that are needed. Returns whether a file was written; in a check, whether a file
/// would be written.
fn write(
    folder: &Location,
    files: Vec<formats::RecoveredFile>,
    writing: &Writing<'_>,
    report: &mut RepairReport,
) -> Result<bool> {
    let mut has_written = false;
    let options = writing.options;
    // A check writes nothing, so files that a repair would restore are still missing or damaged.
    let is_healed = |file: &formats::RecoveredFile| {
        let path = folder.join(&file.name).describe();
        report.healed.iter().any(|healed| healed.path == path)
    };
    let files: Vec<_> = files.into_iter().filter(|file| !options.check || !is_healed(file)).collect();
    if let Some(other) =
        files.iter().find(|file| !writing.proof.allows(&folder.join(&file.name), &file.bytes))
    {
        add(&mut report.lost, refused(&folder.join(&other.name)));
    }
    for formats::RecoveredFile { name, bytes, how, is_guess } in files {
        if !writing.proof.allows(&folder.join(&name), &bytes) {
            continue;
        }
        has_written = true;
        let (path, len_bytes) = (folder.join(&name).describe(), bytes.len() as u64);
        if !options.check {
            writing.guard.check_folder()?;
            if is_guess {
                put_aside(folder, &name)?;
            }
            folder.store().put(name.as_bytes(), bytes.into())?;
            writing.guard.has_written()?;
        }
        match report.recovered.iter_mut().find(|file| file.path == path) {
            // The file was rebuilt again, from files that were restored since the last round.
            Some(file) => file.bytes = len_bytes,
            None => report.recovered.push(RecoveredFile { path, bytes: len_bytes, how, is_guess }),
        }
    }
    Ok(has_written)
}

/// Keeps a copy of a damaged file whose new content is a guess, for a repair by hand. If there is
/// already a copy, that copy stays.
fn put_aside(folder: &Location, name: &str) -> Result<()> {
    let (above, file) = name.rsplit_once('/').map_or(("", name), |(above, file)| (above, file));
    let aside = match above {
        "" => format!("{DAMAGED_PREFIX}{file}"),
        above => format!("{above}/{DAMAGED_PREFIX}{file}"),
    };
    let store = folder.store();
    match store.get_whole(name.as_bytes()) {
        Ok(Some(bytes)) if bytes.iter().any(|&byte| byte != 0) => match store.len_bytes(aside.as_bytes())? {
            None => store.put(aside.as_bytes(), bytes),
            Some(_) => Ok(()),
        },
        Ok(_) => Ok(()),
        Err(error) if is_damage(&error, folder) => Ok(()),
        Err(error) => Err(error),
    }
}

fn add(lost: &mut Vec<Error>, error: Error) {
    if !lost.iter().any(|known| known.to_string() == error.to_string()) {
        lost.push(error);
    }
}

/// The item of the same name in another checkpoint. If this folder is not an item, or the other
/// checkpoint has no such item: the other checkpoint itself.
pub(super) fn of_item(other: &Location, at: &Location, folder: &Location) -> Location {
    let item = other.join(folder.name());
    if folder.is_same(at) || !item.is_folder() { other.clone() } else { item }
}

/// A checkpoint and the folders of its items.
pub(super) fn parts_of(at: &Location) -> Result<Vec<Location>> {
    Ok([vec![at.clone()], item_folders(at)?].concat())
}
