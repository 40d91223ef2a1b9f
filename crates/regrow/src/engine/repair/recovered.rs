//! Rebuilds lost files from other files. Each layout knows how.

use super::markers::{Markers, is_marker};
use super::proof::refused;
use super::{RecoveredFile, Repair, RepairReport, is_damage};
use crate::error::{Error, Result};
use crate::formats::container::item_folders;
use crate::formats::{self, formats};
use crate::location::Location;
use crate::storage::side_files::DAMAGED_PREFIX;
use crate::store::StoreExt;

/// One round of rebuilding, in a folder and in its items. Returns whether a file was written, and
/// otherwise the lost markers: the next round may need the files that this round has written.
pub(super) fn recover(repair: &Repair<'_>, report: &mut RepairReport) -> Result<(bool, Markers)> {
    let (mut has_written, mut markers) = (false, Vec::new());
    if !repair.at.is_folder() {
        return Ok((false, markers));
    }
    for folder in parts_of(repair.at)? {
        let other = repair.options.from.as_ref().map(|from| of_item(from, repair.at, &folder));
        let files = files_of(&folder, other.as_ref(), repair, report)?;
        let (of_folder, files): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|file| is_marker(&folder, &file.name));
        has_written |= repair.write(&folder, files, report)? && !repair.options.check;
        markers.extend(of_folder.into_iter().map(|marker| (folder.clone(), marker)));
    }
    Ok((has_written, markers))
}

fn files_of(
    folder: &Location,
    other: Option<&Location>,
    repair: &Repair<'_>,
    report: &mut RepairReport,
) -> Result<Vec<formats::RecoveredFile>> {
    for format in formats() {
        repair.options.monitor.check()?;
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
        // The first layout that recognises the folder also reads it.
        if !files.is_empty() || format.recognise(folder).unwrap_or(false) {
            return Ok(files);
        }
    }
    Ok(Vec::new())
}

impl Repair<'_> {
    /// Writes rebuilt files that match the seal and the signature. Returns whether a file was
    /// written; in a check, whether a file would be written.
    pub(super) fn write(
        &self,
        folder: &Location,
        files: Vec<formats::RecoveredFile>,
        report: &mut RepairReport,
    ) -> Result<bool> {
        let mut has_written = false;
        let mut is_refused = false;
        for formats::RecoveredFile { name, bytes, how, is_guess } in files {
            let file = folder.join(&name);
            let path = file.describe();
            // A check writes nothing, so files that a repair would restore still look lost.
            if self.options.check && report.healed.iter().any(|healed| healed.path == path) {
                continue;
            }
            if !self.proof.allows(&file, &bytes) {
                if !std::mem::replace(&mut is_refused, true) {
                    add(&mut report.lost, refused(&file));
                }
                continue;
            }
            has_written = true;
            let len_bytes = bytes.len() as u64;
            if !self.options.check {
                if is_guess {
                    put_aside(folder, &name)?;
                }
                folder.store().put(name.as_bytes(), bytes.into())?;
            }
            match report.recovered.iter_mut().find(|file| file.path == path) {
                // The file was rebuilt again, from files that were restored since the last round.
                Some(file) => file.bytes = len_bytes,
                None => report.recovered.push(RecoveredFile { path, bytes: len_bytes, how, is_guess }),
            }
        }
        Ok(has_written)
    }
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
