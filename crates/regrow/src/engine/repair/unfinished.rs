//! Finishes or removes unfinished saves.

use super::{RepairOptions, RepairReport};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::siblings;
use crate::location::Location;
use crate::storage::{EntryKind, Removed, UNCOMMITTED_MARK};
use crate::text::{counted, format_bytes};

/// Finishes the save of a checkpoint whose writer was killed just before the last rename. Removes
/// nothing.
/// Temporary files of a save are an error, because they may be the only copy.
pub(super) fn finish(at: &Location, options: &RepairOptions, report: &mut RepairReport) -> Result<()> {
    if at.name_text().contains(UNCOMMITTED_MARK) {
        return Err(Error::invalid("these are temporary files of an unfinished save, not a checkpoint").in_file(at).help(
            "`regrow rm --unfinished` removes them; if nothing else is left, rename the folder and repair \
             it under the new name",
        ));
    }
    // The call itself finishes the save, so a check must not make the call.
    if !options.check && at.finish_unfinished()? {
        let note = "an unfinished save was complete: it was renamed into place";
        report.notes.push(note.to_owned());
    }
    Ok(())
}

/// If the checkpoint is whole, removes temporary files of other saves beside it. Files that a
/// repair might still need stay.
pub(super) fn remove(at: &Location, report: &mut RepairReport) -> Result<()> {
    let note = match at.remove_unfinished(false) {
        Ok(Removed { is_finished: true, .. }) => return Ok(()),
        Ok(Removed { file_count, bytes, .. }) => {
            let files = counted(file_count, "file", "files");
            format!("temporary files of an unfinished save were removed: {files}, {}", format_bytes(bytes))
        }
        Err(error) => match error.kind() {
            ErrorKind::NotFound | ErrorKind::Unsupported | ErrorKind::InvalidArgument => return Ok(()),
            ErrorKind::AlreadyExists | ErrorKind::Busy => {
                "another process may save to this path now; `regrow rm --unfinished` removes files of a \
                 dead writer"
                    .to_owned()
            }
            _ => return Err(error),
        },
    };
    report.notes.push(note);
    Ok(())
}

/// Removes temporary files that a killed repair has left in the checkpoint.
pub(super) fn remove_of_files(part: &Location, report: &mut RepairReport) -> Result<()> {
    if part.commits_by_marker() {
        return Ok(());
    }
    if !part.is_folder() {
        let mut files = siblings::layouts().flat_map(|(_, siblings)| siblings.files(part));
        return files.try_for_each(|file| remove(&file, report));
    }
    let mut folders = vec![part.clone()];
    while let Some(folder) = folders.pop() {
        for entry in folder.entries()? {
            let name = entry.name.to_string_lossy();
            match name.split_once(UNCOMMITTED_MARK) {
                Some((of, _)) => remove(&folder.join(of), report)?,
                None if entry.found == EntryKind::Folder && !entry.is_link => {
                    folders.push(folder.join(&entry.name));
                }
                None => {}
            }
        }
    }
    Ok(())
}
