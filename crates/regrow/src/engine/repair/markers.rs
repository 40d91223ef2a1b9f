//! Restores lost markers of checkpoints in buckets. A checkpoint with a marker counts as complete.
//! So a marker is restored last, and only if all other files are intact.

use std::path::PathBuf;

use super::{Repair, RepairReport, findings, is_about, whole_all_the_same};
use crate::error::{Error, Result};
use crate::formats::{COMMIT_MARKERS, RecoveredFile};
use crate::location::Location;

pub(super) fn is_marker(folder: &Location, name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or_default();
    folder.commits_by_marker() && COMMIT_MARKERS.contains(&name)
}

/// Whether a file is a commit marker that is missing. An existing marker, damaged or not, was
/// handled before.
pub(super) fn is_lost_marker(folder: &Location, name: &str) -> Result<bool> {
    Ok(is_marker(folder, name) && folder.store().len_bytes(name.as_bytes())?.is_none())
}

/// The error for a marker that is not restored. The error names the damage that is the reason.
pub(super) fn not_put_back(marker: Location, wrong: Option<&Error>) -> Error {
    let wrong = wrong.map(|wrong| format!(" ({wrong})")).unwrap_or_default();
    Error::corrupt(format!(
        "the commit marker is lost, and is not restored: the checkpoint is incomplete{wrong}"
    ))
    .in_file(marker)
    .help(
        "pass `--from` to take it from a copy, or copy the checkpoint again; to load the rest, put an empty \
         object of this name here, and pass `salvage`",
    )
}

/// Missing markers with the content to write, each with its folder.
pub(super) type Markers = Vec<(Location, RecoveredFile)>;

/// Restores markers of a checkpoint and of its items, the checkpoint's own marker last. A marker is
/// written if everything is intact except the markers that are still to be restored.
pub(super) fn put_back(repair: &Repair<'_>, mut markers: Markers, report: &mut RepairReport) -> Result<()> {
    while let Some((folder, marker)) = markers.pop() {
        let path_of = |(folder, marker): &(Location, RecoveredFile)| folder.join(&marker.name).describe();
        let file = folder.join(&marker.name);
        let to_come: Vec<PathBuf> = markers.iter().map(path_of).chain([file.describe()]).collect();
        match reason_against(repair, &to_come, report)? {
            None => {
                report.lost.retain(|error| !is_about(error, &file.describe()));
                repair.write(&folder, vec![marker], report)?;
            }
            // An earlier stage may have reported the loss already.
            Some(_) if report.lost.iter().any(|error| is_about(error, &file.describe())) => {}
            Some(reason) => report.lost.push(not_put_back(file, Some(&reason))),
        }
    }
    Ok(())
}

/// The damage that prevents the restoring of a marker; `None` if there is none.
fn reason_against(repair: &Repair<'_>, to_come: &[PathBuf], report: &RepairReport) -> Result<Option<Error>> {
    let is_of_others = |error: &&Error| {
        !to_come.iter().any(|file| is_about(error, file))
            && !report.recovered.iter().any(|file| is_about(error, &file.path))
    };
    let said = |error: &Error| Error::corrupt(error.to_string());
    let lost = report.lost.iter().find(is_of_others).map(said);
    // A check writes nothing, so files that a repair would write first cannot be verified.
    if report.is_check && !(report.recovered.is_empty() && report.healed.is_empty()) {
        return Ok(lost);
    }
    let marked = repair.at.without_marker();
    let (found, is_all_proved) = findings(&marked, repair.options)?;
    let wrong = found.into_iter().find(|error| !to_come.iter().any(|file| is_about(error, file)));
    if wrong.is_some() || !is_all_proved {
        return Ok(wrong.or(lost));
    }
    let whole = whole_all_the_same(&marked, report)?;
    let is_whole = |error: &&Error| error.place().file.as_ref().is_some_and(|file| whole.contains(file));
    let mut lost = report.lost.iter().filter(|error| is_of_others(error) && !is_whole(error));
    Ok(lost.next().map(said))
}
