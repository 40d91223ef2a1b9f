//! The work after a save: it verifies the new step on request, writes the pointer, and deletes
//! steps that no policy keeps. It deletes nothing before the new step is durable, and nothing if
//! the new step is damaged.

use std::collections::BTreeSet;

use super::delete::{DeleteOptions, Deletion};
use super::keep::{Keep, to_delete};
use super::lease::sweep_announcements;
use super::steps::Steps;
use crate::engine::{RemoveOptions, remove, verify};
use crate::error::{Error, ErrorKind, Result};

/// The suffix of the files of an interrupted copy.
const COPY_MARK: &str = "-copy";

/// What to do after a save.
#[derive(Debug, Clone, Default)]
pub struct TidyOptions {
    /// The steps to keep.
    pub keep: Keep,
    /// Count and delete also steps that other programs have saved: those without a record of the
    /// run.
    pub adopt: bool,
    /// Steps that are known to be damaged: they neither count nor go.
    pub damaged: BTreeSet<u64>,
    /// Read the new step again, all of it, before anything is deleted.
    pub verify: bool,
    /// How to delete.
    pub delete: DeleteOptions,
}

/// The work done after a save.
#[derive(Debug)]
#[non_exhaustive]
pub struct Tidied {
    /// Steps that went, or that were to go and could not.
    pub deletions: Vec<Deletion>,
    /// Whether the new step was read again and is whole.
    pub is_verified: bool,
}

impl Steps {
    /// Does the work after the commit of a step. Does nothing if the step is gone: if saves are
    /// faster than this work, newer steps may have replaced it.
    ///
    /// # Errors
    /// `Corrupt` if the step differs from the saved one, and then nothing is deleted; errors of the
    /// storage.
    #[doc(hidden)]
    pub fn tidy(&self, saved: u64, options: &TidyOptions) -> Result<Tidied> {
        options.keep.check()?;
        let Some(step) = self.find(saved)? else {
            return Ok(Tidied { deletions: Vec::new(), is_verified: false });
        };
        if options.verify {
            let report = verify(&step.location)?;
            if let Some(finding) = report.findings.first() {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!(
                        "step {saved} differs from what was \
                    saved"
                    ),
                )
                .in_file(&step.location)
                .help(format!("nothing was deleted; {}", finding.error.what())));
            }
        }
        let list = self.list()?;
        match self.point(&list) {
            // The deletions below make room, and the next save writes the pointer.
            Err(error) if error.kind() == ErrorKind::StorageFull => {}
            pointed => pointed?,
        }
        let mut gone =
            to_delete(&list.facts(&self.leased()?, &options.damaged, options.adopt), &options.keep);
        // Keep the step just saved: of all steps, only this one was verified.
        gone.retain(|step| *step != saved);
        let deletions = match gone.is_empty() {
            true => Vec::new(),
            false => self.delete(&gone, &options.delete)?,
        };
        // Remove the rest of an earlier deletion that failed. Files that cannot be removed are
        // harmless.
        list.unfinished.iter().for_each(|name| drop(self.sweep(name)));
        Ok(Tidied { deletions, is_verified: options.verify })
    }

    /// Updates the records beside the steps when a writer starts: the pointer, announcements of
    /// ended deletions, and temporary files of killed saves and deletions. Files that a process may
    /// still be writing stay, and so do files that an interrupted copy can use.
    ///
    /// # Errors
    /// Errors of the storage.
    #[doc(hidden)]
    pub fn refresh(&self) -> Result<()> {
        let list = self.list()?;
        let has_named = list
            .unfinished
            .iter()
            .try_fold(false, |has_named, name| Ok::<_, Error>(self.sweep(name)? || has_named))?;
        sweep_announcements(self.root())?;
        // A step whose rename was finished just now is missing in the old list.
        self.point(&if has_named { self.list()? } else { list })
    }

    /// Removes temporary files of a save or deletion. Returns true if they were the step itself,
    /// which gets its name again.
    fn sweep(&self, unfinished: &str) -> Result<bool> {
        if unfinished.ends_with(COPY_MARK) {
            return Ok(false);
        }
        let options = RemoveOptions { unfinished: true, ..RemoveOptions::default() };
        match remove(self.root().join(unfinished), &options) {
            Ok(_) => Ok(false),
            Err(error) => match error.kind() {
                ErrorKind::InvalidArgument => Ok(true),
                // The writer is alive, or has removed the files. Files that cannot be removed are
                // harmless.
                ErrorKind::AlreadyExists | ErrorKind::NotFound | ErrorKind::PermissionDenied => Ok(false),
                _ => Err(error),
            },
        }
    }
}
