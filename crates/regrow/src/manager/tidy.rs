//! The work after a save. It verifies the new step if the options say so, writes the pointer, and
//! deletes steps that no policy keeps. Nothing is deleted before the new step is durable, or if the
//! new step is damaged.

use std::collections::BTreeSet;

use super::delete::{DeleteOptions, Deletion};
use super::keep::{Keep, to_delete};
use super::lease::sweep_announcements;
use super::steps::Steps;
use crate::engine::{RemoveOptions, remove, verify};
use crate::error::{Error, ErrorKind, Result};

/// The suffix of the files of an interrupted copy.
const COPY_MARK: &str = "-copy";

/// The options of the work after a save.
#[derive(Debug, Clone, Default)]
pub struct TidyOptions {
    /// The policy for the steps to keep.
    pub keep: Keep,
    /// Steps that other programs have saved, without a record of the run, count too and may be
    /// deleted.
    pub adopt: bool,
    /// Steps that are known to be damaged: they do not count and are not deleted.
    pub damaged: BTreeSet<u64>,
    /// Read the whole new step again before anything is deleted.
    pub verify: bool,
    /// The options of deletions.
    pub delete: DeleteOptions,
}

/// The results of the work after a save.
#[derive(Debug)]
#[non_exhaustive]
pub struct Tidied {
    /// The result for each step that should be deleted.
    pub deletions: Vec<Deletion>,
    /// Whether the new step was read again and is intact.
    pub is_verified: bool,
}

impl Steps {
    /// Does the work after the commit of a step. Does nothing if the step no longer exists: newer
    /// saves may have replaced it before this call.
    ///
    /// # Errors
    /// `Corrupt` if the step differs from what was saved; nothing is deleted then. Errors of the
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
            // The deletions below free space, and the next save writes the pointer.
            Err(error) if error.kind() == ErrorKind::StorageFull => {}
            pointed => pointed?,
        }
        let mut gone =
            to_delete(&list.facts(&self.leased()?, &options.damaged, options.adopt), &options.keep);
        // Keep the new step: no other step may have been verified.
        gone.retain(|step| *step != saved);
        let deletions = match gone.is_empty() {
            true => Vec::new(),
            false => self.delete(&gone, &options.delete)?,
        };
        // Remove temporary files of killed saves and of deletions that failed. Files that cannot be
        // removed are harmless.
        list.unfinished.iter().for_each(|name| drop(self.sweep(name)));
        Ok(Tidied { deletions, is_verified: options.verify })
    }

    /// Updates the folder when a writer starts, and after a deletion. Rewrites the pointer. Removes
    /// the announcements of ended deletions, and temporary files of killed saves and deletions.
    /// Files that a process may still be writing stay, and so do files of an interrupted copy.
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
        // If a rename was finished just now, the old list lacks that step.
        self.point(&if has_named { self.list()? } else { list })
    }

    /// Removes temporary files of a save or deletion. If the files are a complete step, finishes
    /// the rename to the step's name instead, and returns true.
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
                ErrorKind::AlreadyExists
                | ErrorKind::Busy
                | ErrorKind::NotFound
                | ErrorKind::PermissionDenied => Ok(false),
                _ => Err(error),
            },
        }
    }
}
