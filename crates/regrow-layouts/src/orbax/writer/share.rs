//! The message of one of several processes to process 0: its chunks of each leaf.
//!
//! The message stays in the folder until process 0 has merged the shares. It is not part of the
//! checkpoint.

use serde::{Deserialize, Serialize};

use super::encode::PlannedArray;
use regrow_base::error::{Error, Result, ResultExt};
use regrow_storage::{MergedFolder, NewFolder};

/// The chunks that a process has written.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Share {
    /// For each chunk, the position of its leaf in flatten order.
    leaves: Vec<u32>,
    /// For each chunk, its number among the chunks of the leaf, in C order.
    chunks: Vec<u64>,
    /// The file with the nodes of the process' database, below the folder of the database; `None`
    /// if there is no database, or no key in it.
    pub(super) node_file: Option<String>,
}

impl Share {
    pub(super) fn of(arrays: &[PlannedArray<'_>], node_file: Option<String>) -> Result<Self> {
        let mut share = Self { node_file, ..Self::default() };
        for array in arrays {
            for number in 0..array.chunk_count() {
                share.leaves.push(array.leaf);
                share.chunks.push(array.number_in_array(&array.chunk(number)?));
            }
        }
        Ok(share)
    }

    /// Writes the list to a file, which process 0 reads.
    pub(super) fn write(&self, rank: u32, staged: &dyn NewFolder) -> Result<()> {
        let json = serde_json::to_vec(self)
            .map_err(|error| Error::invalid(format!("a list of chunks is not JSON: {error}")))?;
        staged.write(&file_name(rank), &json)
    }

    pub(super) fn read(rank: u32, staged: &dyn NewFolder) -> Result<Self> {
        let name = file_name(rank);
        let bytes = staged.written(&name).map_err(|error| {
            error
                .help(format!("process {rank} did not report its files: check that it took part in the save"))
        })?;
        let broken = |error| Error::corrupt(format!("the report of process {rank} cannot be read: {error}"));
        serde_json::from_slice(&bytes).map_err(broken).in_file(staged.target().join(&name))
    }

    pub(super) fn chunks(&self) -> impl Iterator<Item = (u32, u64)> {
        self.leaves.iter().copied().zip(self.chunks.iter().copied())
    }
}

pub(super) fn withdraw(rank: u32, staged: &dyn MergedFolder) -> Result<()> {
    staged.withdraw(&file_name(rank))
}

fn file_name(rank: u32) -> String {
    format!("regrow.share_of_process_{rank}.json")
}
