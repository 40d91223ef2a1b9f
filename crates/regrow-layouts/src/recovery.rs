//! Lost files of a checkpoint that a layout can rebuild.

use regrow_base::error::Result;
use regrow_storage::location::Location;
use regrow_store::reads::BlockTable;

/// A file of a checkpoint that was lost or damaged, rebuilt from the others.
#[derive(Debug)]
pub struct RecoveredFile {
    /// Its path below the folder, with slashes.
    pub name: String,
    /// All of it.
    pub bytes: Vec<u8>,
    /// What it was made of, and what is not sure about it: a sentence for people.
    pub how: String,
    /// Whether nothing proves that it says what was there before, such as checksums of files as
    /// they are now. What was there is kept beside it.
    pub is_guess: bool,
}

/// A layout with files that can be made of others.
pub trait Recovery {
    /// The files of the checkpoint in the folder `at` that are gone or damaged and can be made of
    /// the rest, in the order in which they are to be written: a reader that comes between two of
    /// them sees no more than before. Nothing is written. Empty if `at` is none of this layout, or
    /// nothing can be done.
    ///
    /// `other` is a checkpoint whose documents may say what is lost here: a replica, or another
    /// step.
    ///
    /// # Errors
    /// Errors of the storage.
    fn recover(&self, at: &Location, other: Option<&Location>) -> Result<Vec<RecoveredFile>>;

    /// The files of the checkpoint in the folder `at`, and what each block of them should be;
    /// `None` if it has no such checksums, or they are lost.
    ///
    /// # Errors
    /// Errors of the storage.
    fn summed_files(&self, _at: &Location) -> Result<Option<Vec<SummedFile>>> {
        Ok(None)
    }

    /// Where a checkpoint in the folder `other`, of another step, has what this one has at other
    /// places; `None` if either is none of this layout.
    ///
    /// # Errors
    /// Errors of the storage.
    fn counterpart(&self, _at: &Location, _other: &Location) -> Result<Option<Box<dyn Counterpart>>> {
        Ok(None)
    }
}

/// A file with a checksum for every block.
#[derive(Debug)]
pub struct SummedFile {
    /// Its path below the folder, with slashes.
    pub name: String,
    /// Its length.
    pub len_bytes: u64,
    /// Its blocks, front to back, without gaps.
    pub tables: Vec<BlockTable>,
}

/// Another checkpoint that may have the same leaves.
pub trait Counterpart: Send + Sync {
    /// Fills `out` with what stands there for the bytes of `file` from `offset_bytes` on; false if
    /// it has none of that. Nothing is checked.
    ///
    /// # Errors
    /// Errors of the storage.
    fn read(&self, file: &str, offset_bytes: u64, out: &mut [u8]) -> Result<bool>;
}
