//! Reads that start again if a writer replaces one of their checkpoints during the read.

use std::sync::{Arc, Mutex, PoisonError};

use super::Checkpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::storage::Retries;

/// One attempt of a read, which records the checkpoints that it opened. Clones share the record.
#[derive(Debug, Clone, Default)]
pub struct Attempt(Arc<Mutex<Vec<Checkpoint>>>);

impl Attempt {
    /// Records a checkpoint that the attempt reads. If another checkpoint replaces it, an error of
    /// the attempt counts as `Replaced`.
    pub fn watch(&self, checkpoint: Checkpoint) -> Checkpoint {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(checkpoint.clone());
        checkpoint
    }

    fn was_replaced(&self) -> Option<Error> {
        let watched = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        watched.iter().find(|checkpoint| checkpoint.is_replaced()).map(Checkpoint::was_replaced)
    }
}

/// Repeats the read while it fails because a checkpoint that the attempt recorded was replaced.
///
/// # Errors
/// The errors of `read`; `Replaced` if writers replace the checkpoint again and again.
pub fn read_unreplaced<T>(mut read: impl FnMut(&Attempt) -> Result<T>) -> Result<T> {
    Retries::until_unreplaced(|| {
        let attempt = Attempt::default();
        match read(&attempt) {
            // If the checkpoint was replaced during the read, the error says nothing about the new
            // checkpoint.
            Err(error) if error.kind() != ErrorKind::Cancelled => {
                Err(attempt.was_replaced().unwrap_or(error))
            }
            read => read,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Leaf, Tree};

    #[test]
    fn an_error_of_a_replaced_checkpoint_is_read_again_and_others_are_not() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x");
        let save = |overwrite| {
            let options = crate::SaveOptions { overwrite, ..crate::SaveOptions::default() };
            crate::save_with(&path, &Tree::single(Leaf::text("x")), &options).unwrap()
        };
        save(false);
        for (replaces, kind, reads_expected) in
            [(true, ErrorKind::Mismatch, 2), (true, ErrorKind::Cancelled, 1), (false, ErrorKind::Mismatch, 1)]
        {
            let mut reads = 0;
            let read = read_unreplaced(|attempt| {
                attempt.watch(crate::open(&path)?);
                reads += 1;
                if reads == 1 && replaces {
                    save(true);
                }
                if reads == 1 { Err(Error::new(kind, "no")) } else { Ok(()) }
            });
            assert_eq!((reads, read.is_ok()), (reads_expected, reads_expected == 2), "{replaces}, {kind:?}");
        }
    }
}
