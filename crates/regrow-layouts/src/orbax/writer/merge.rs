//! Process 0 merges the shares of several processes into one checkpoint. It checks that each chunk
//! has one writer, and writes one database that refers to the data files of the processes. It reads
//! and writes no array data.

use std::sync::Arc;

use bytes::Bytes;

use super::arrays_ocdbt::{Entries, process_folder};
use super::encode::PlannedArray;
use super::plan::Plan;
use super::share::Share;
use crate::coverage::{Coverage, CutLeaf};
use regrow_base::error::{Error, Result, ResultExt};
use regrow_base::text::counted;
use regrow_base::threads::pool;
use regrow_ocdbt::{EntryValue, MANIFEST_KEY, OcdbtStore};
use regrow_storage::NewFolder;
use regrow_store::{Located, MemoryStore, StoreExt};

/// The entries of the databases of all processes, below `item`; empty if arrays are in plain
/// folders. Checks that every chunk has one writer.
///
/// # Errors
/// `NotFound` for a process that has written nothing; `Corrupt` for a database that cannot be read;
/// `InvalidArgument` with region and leaf for a chunk that two processes have written, or none.
pub(super) fn gather(plan: &Plan<'_>, writers: u32, staged: &dyn NewFolder, item: &str) -> Result<Entries> {
    let mut coverage = Coverage::new(cut_leaves(plan))?;
    let mut entries = Entries::new();
    let read = |rank: u32| {
        let share = Share::read(rank, staged)?;
        let entries = match &share.node_file {
            Some(node_file) => entries_of(rank, node_file, staged, item)?,
            None => Entries::new(),
        };
        Ok((rank, share, entries))
    };
    pool::map_ordered(
        pool::thread_count(),
        0..writers,
        u64::MAX,
        |_| 1,
        read,
        |(rank, share, theirs)| {
            let source = coverage.add_source(rank);
            for (leaf, chunk) in share.chunks() {
                coverage.take(source, leaf, chunk)?;
            }
            entries.extend(theirs);
            Ok(())
        },
    )?;
    coverage.check_whole()?;
    let expected = coverage.piece_count() + plan.arrays.len();
    if !entries.is_empty() && entries.len() != expected {
        return Err(Error::corrupt("the databases of the processes have unknown keys")
            .in_file(staged.target())
            .expected(counted(expected, "key", "keys"), entries.len()));
    }
    Ok(entries)
}

fn cut_leaves<'p>(plan: &'p Plan<'_>) -> impl Iterator<Item = Result<CutLeaf>> + 'p {
    let mut arrays = plan.arrays.iter().peekable();
    plan.names().enumerate().map(move |(at, name)| {
        let name = name.to_owned();
        match arrays.next_if(|array| array.leaf as usize == at) {
            Some(PlannedArray { form, .. }) => {
                let (shape, piece_shape) = (form.meta.shape().clone(), form.chunks.outer.clone());
                Ok(CutLeaf { name, shape, piece_shape })
            }
            None => CutLeaf::nothing(name),
        }
    })
}

/// The entries of one process' database. Names of data files are relative to the folder above.
fn entries_of(rank: u32, node_file: &str, staged: &dyn NewFolder, item: &str) -> Result<Entries> {
    let folder = process_folder(rank);
    let database = Arc::new(MemoryStore::new());
    for file in [MANIFEST_KEY, node_file] {
        let bytes = staged.written(&format!("{item}{folder}{file}"))?;
        database.put(file.as_bytes(), Bytes::from(bytes))?;
    }
    let read = OcdbtStore::open(database).and_then(|database| database.entries());
    let base: Arc<[u8]> = folder.as_bytes().into();
    let refer = |(key, located)| {
        let value = match located {
            Located::Inline(bytes) => EntryValue::Inline(bytes),
            Located::At(span) => EntryValue::Indirect {
                base: base.clone(),
                relative: span.key,
                offset_bytes: span.offset_bytes,
                len_bytes: span.len_bytes,
            },
        };
        (key, value)
    };
    let entries =
        read.map_err(|error| told_by(rank, error)).in_file(staged.target().join(item).join(&folder))?;
    Ok(entries.into_iter().map(refer).collect())
}

fn told_by(rank: u32, error: Error) -> Error {
    error.help(format!(
        "check that every process sees the same files: process {rank} just wrote this database"
    ))
}
