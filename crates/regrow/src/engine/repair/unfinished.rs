//! Saves that never ended, finished or removed.

use super::{RepairOptions, RepairReport};
use crate::error::{ErrorKind, Result};
use crate::location::Location;
use crate::storage::Removed;
use crate::text::{counted, format_bytes};

/// Gives a checkpoint its name whose writer died just before it had it; removes what is left of other saves.
///
/// # Errors
/// What the storage says.
pub(super) fn settle(at: &Location, options: &RepairOptions, report: &mut RepairReport) -> Result<()> {
    // To look is to settle.
    if options.check {
        return Ok(());
    }
    let note = match at.storage().remove_unfinished(at, false) {
        Ok(Removed { is_finished: true, .. }) => {
            "a save whose writer had died just before the checkpoint got its name was finished".to_owned()
        }
        Ok(Removed { file_count, bytes, .. }) => {
            let files = counted(file_count, "file", "files");
            format!("what a save that never ended had left was removed: {files}, {}", format_bytes(bytes))
        }
        Err(error) => match error.kind() {
            ErrorKind::NotFound | ErrorKind::Unsupported | ErrorKind::InvalidArgument => return Ok(()),
            ErrorKind::AlreadyExists => {
                "somebody may be saving to this path now; what a dead writer has left, `regrow remove --unfinished --force` \
                 removes"
                    .to_owned()
            }
            _ => return Err(error),
        },
    };
    report.notes.push(note);
    Ok(())
}
