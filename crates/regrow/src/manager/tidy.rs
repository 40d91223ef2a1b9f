//! What follows a save: the new step is verified where that is asked for, the pointer is written, and steps that no policy
//! keeps are deleted. Never before the new step is durable, and never if it turns out to be damaged.

use super::delete::{DeleteOptions, Deletion};
use super::keep::{Keep, to_delete};
use super::steps::Steps;
use crate::engine::verify;
use crate::error::{Error, ErrorKind, Result};

/// What to do after a save.
#[derive(Debug, Clone, Default)]
pub struct TidyOptions {
    /// What to keep.
    pub keep: Keep,
    /// Read the new step again, all of it, before anything is deleted.
    pub verify: bool,
    /// How to delete.
    pub delete: DeleteOptions,
}

/// What was done after a save.
#[derive(Debug)]
#[non_exhaustive]
pub struct Tidied {
    /// Steps that went, or that were to go and could not.
    pub deletions: Vec<Deletion>,
    /// Whether the new step was read again, and found to be whole.
    pub is_verified: bool,
}

impl Steps {
    /// Does what follows the save of a step, which has been committed. Nothing, if the step is not there any more: where saves
    /// are faster than what follows them, newer ones may have cost it its place.
    ///
    /// # Errors
    /// `Corrupt` if the step is not what was saved, and then nothing is deleted; what the storage says.
    pub fn tidy(&self, saved: u64, options: &TidyOptions) -> Result<Tidied> {
        options.keep.check()?;
        let Some(step) = self.find(saved)? else {
            return Ok(Tidied { deletions: Vec::new(), is_verified: false });
        };
        if options.verify {
            let report = verify(&step.location)?;
            if let Some(finding) = report.findings.first() {
                return Err(Error::new(ErrorKind::Corrupt, format!("step {saved} is not what was saved"))
                    .in_file(&step.location)
                    .help(format!("nothing was deleted; {}", finding.error.what())));
            }
        }
        let list = self.list()?;
        self.point(&list.steps)?;
        let mut gone = to_delete(&list.facts(&self.leased()?), &options.keep);
        // The step that was verified is the one that is known to be good, whatever its number is.
        gone.retain(|step| *step != saved);
        let deletions = match gone.is_empty() {
            true => Vec::new(),
            false => self.delete(&gone, &options.delete)?,
        };
        Ok(Tidied { deletions, is_verified: options.verify })
    }

    /// Brings the pointer in line with the list, as a writer does that begins.
    ///
    /// # Errors
    /// What the storage says.
    pub fn refresh(&self) -> Result<()> {
        self.point(&self.list()?.steps)
    }
}
