//! The third stage of a save: every file gets its name and its header, and every raw leaf its
//! offset.

use super::super::manifest::{LeafPlace, data_name_of, further_data_name_of};
use super::header::{header_bytes, structure_in_header};
use super::plan::Plan;
use super::reuse::{Origin, Reused};
use crate::WriterRank;
use crate::safetensors::MODEL_FILE_NAME;
use regrow_base::error::Result;

/// The complete layout of a save, before a byte is written.
pub(super) struct Placed<'t> {
    pub plan: Plan<'t>,
    pub files: Vec<PlacedFile>,
}

/// A safetensors file, ready to be written or linked.
pub(super) struct PlacedFile {
    pub name: String,
    pub head: Vec<u8>,
    /// The leaves in the file, in the order of their bytes.
    pub leaves: Vec<u32>,
    pub len_bytes: u64,
    pub origin: Origin,
}

pub(super) fn place(reused: Reused<'_>, names: FileNames) -> Result<Placed<'_>> {
    let Reused { mut plan, files } = reused;
    let count = files.len();
    let mut placed = Vec::with_capacity(count);
    for (at, file) in files.into_iter().enumerate() {
        // The first file has the structure, so that a copy of this file alone restores its tree.
        let structure = structure_in_header(plan.structure()?).filter(|_| at == 0);
        let head = header_bytes(&plan, &file.leaves, structure)?;
        let len_bytes = place_leaves(&mut plan, at, &file.leaves, head.len() as u64);
        let name = names.name(at, count);
        placed.push(PlacedFile { name, head, leaves: file.leaves, len_bytes, origin: file.origin });
    }
    Ok(Placed { plan, files: placed })
}

/// Gives the leaves of one file their offsets, the first at `data_offset`; returns the byte after
/// the last.
fn place_leaves(plan: &mut Plan<'_>, file: usize, leaves: &[u32], data_offset: u64) -> u64 {
    let mut at = data_offset;
    for &leaf in leaves {
        if let Some(leaf) = plan.leaves.get_mut(leaf as usize) {
            leaf.place = LeafPlace::Raw { file, offset_bytes: at };
            at += leaf.len_bytes;
        }
    }
    at
}

/// The scheme of the files' names.
#[derive(Debug, Clone, Copy)]
pub(super) enum FileNames {
    /// The names in a checkpoint that one process writes.
    OfAll,
    /// The names of the files of one of several processes.
    OfProcess(WriterRank),
}

impl FileNames {
    fn name(self, file: usize, count: usize) -> String {
        match self {
            Self::OfProcess(WriterRank { rank, count }) if count > 1 || rank > 0 || file > 0 => match file {
                0 => data_name_of(rank + 1, count),
                _ => further_data_name_of(rank + 1, count, file + 1),
            },
            Self::OfAll if count > 1 => data_name_of(file as u32 + 1, count as u32),
            _ => MODEL_FILE_NAME.to_owned(),
        }
    }
}
