//! Lost files of a checkpoint that a layout can rebuild.

use regrow_base::bytes::limits::work_space;
use regrow_base::error::Result;
use regrow_storage::location::Location;
use regrow_store::reads::BlockTable;
use regrow_store::{Blob, ReadPath};

/// A file of a checkpoint that was lost or damaged, rebuilt from the others.
#[derive(Debug)]
pub struct RecoveredFile {
    /// The file's path below the folder, with slashes.
    pub name: String,
    /// The whole contents of the file.
    pub bytes: Vec<u8>,
    /// The source of the contents, and what is uncertain about them: a sentence for the user.
    pub how: String,
    /// Whether nothing proves that these are the original contents. An example is a record with the
    /// checksums of the present files. The repair keeps the damaged file beside the rebuilt file.
    pub is_guess: bool,
}

/// A layout that can rebuild lost files from other files.
pub trait Recovery {
    /// The files of the checkpoint in the folder `at` that are missing or damaged and can be
    /// rebuilt from the others. They are in the order in which to write them, so that a reader
    /// between two writes sees no half-repaired checkpoint. Writes nothing. Empty if `at` has
    /// another layout or nothing can be rebuilt.
    ///
    /// `other` is a replica or another step, whose documents may have the lost contents.
    ///
    /// # Errors
    /// Errors of the storage.
    fn recover(&self, at: &Location, other: Option<&Location>) -> Result<Vec<RecoveredFile>>;

    /// The files of the checkpoint in the folder `at`, with the checksum of each block; `None` if
    /// the checkpoint has no checksums of blocks, or has lost them.
    ///
    /// # Errors
    /// Errors of the storage.
    fn summed_files(&self, _at: &Location) -> Result<Option<Vec<SummedFile>>> {
        Ok(None)
    }

    /// Finds the bytes of this checkpoint's files in a checkpoint of another step, in the folder
    /// `other`, where the same leaves may lie at other offsets. `None` if either has another
    /// layout.
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
    /// The file's path below the folder, with slashes.
    pub name: String,
    /// Length of the file.
    pub len_bytes: u64,
    /// The checksums of its blocks, front to back, without gaps.
    pub tables: Vec<BlockTable>,
}

impl SummedFile {
    /// Whether a file has this length, and every block matches its checksum. Reads the whole file.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn is_whole(&self, file: &dyn Blob) -> Result<bool> {
        if file.len_bytes() != self.len_bytes {
            return Ok(false);
        }
        for table in &self.tables {
            let range = table.range();
            for block in table.blocks(range.start, range.end) {
                let mut bytes = work_space(block.end - block.start)?;
                file.read(block.start, &mut bytes, ReadPath::Cached)?;
                if !table.is_good(block, &bytes) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// Another checkpoint that may have the same leaves.
pub trait Counterpart: Send + Sync {
    /// Fills `out` with the bytes that correspond to `file` from `offset_bytes` on; false if the
    /// other checkpoint lacks them. Checks no checksum.
    ///
    /// # Errors
    /// Errors of the storage.
    fn read(&self, file: &str, offset_bytes: u64, out: &mut [u8]) -> Result<bool>;
}
