//! Arrays in plain folders, one for each leaf: the kvstore's keys are paths.
//!
//! ```text
//! params.dense.kernel/.zarray        zarr.json in v3
//! params.dense.kernel/0.0  0.1 ...   c/0/0  c/0/1 ... in v3
//! ```
//!
//! Each chunk and each document is a file. This form suits large leaves. For many small leaves it
//! is slow, and the database is faster.

use super::encode::{Encoded, PlannedArray};
use super::held::Chunk;
use super::names::kvstore_key;
use super::workers::{self, Batch};
use crate::WriterRank;
use crate::coverage::{inside, twice};
use crate::options::Compression;
use regrow_base::error::{ErrorKind, Result, ResultExt};
use regrow_storage::NewFolder;

/// Writes the arrays of this process below `item`, which is empty or a folder name that ends in
/// `/`. Process 0 writes the documents of all arrays.
///
/// # Errors
/// Errors of the disk; errors of a cast or a codec; `InvalidArgument` with region and leaf for a
/// chunk that another process has written, if the storage reports it.
pub(super) fn write(
    arrays: &[PlannedArray<'_>],
    writer: WriterRank,
    staged: &dyn NewFolder,
    item: &str,
    budget_bytes: Option<u64>,
) -> Result<()> {
    workers::run(arrays, workers::worker_count(arrays, budget_bytes), |queue| {
        while let Some(batch) = queue.next() {
            write_batch(&batch, writer, staged, item)?;
        }
        Ok(())
    })?;
    Ok(())
}

fn write_batch(batch: &Batch<'_, '_>, writer: WriterRank, staged: &dyn NewFolder, item: &str) -> Result<()> {
    let array = batch.array;
    let file = |key: &str| format!("{item}{}", kvstore_key(&array.name, key));
    if batch.chunks.start == 0 && writer.rank == 0 {
        staged.write(&file(array.form.meta.metadata_key()), &array.form.document)?;
    }
    for number in batch.chunks.clone() {
        let chunk = array.chunk(number)?;
        let name = file(&array.form.meta.chunk_key(&chunk.index));
        write_chunk(array, &chunk, staged, &name).map_err(|error| {
            if error.kind() != ErrorKind::AlreadyExists || writer.count == 1 {
                return error;
            }
            let at = array.number_in_array(&chunk);
            let region = inside(at, array.form.meta.shape(), &array.form.chunks.outer);
            twice(&format!("process {} and another one", writer.rank), &region, &array.name).in_file(&name)
        })?;
    }
    Ok(())
}

fn write_chunk(
    array: &PlannedArray<'_>,
    chunk: &Chunk<'_>,
    staged: &dyn NewFolder,
    name: &str,
) -> Result<()> {
    match array.encode(chunk).in_file(name)? {
        Encoded::Value(value) => {
            staged.write(name, &value)?;
            staged.monitor().advance(array.chunk_len_bytes().saturating_sub(value.len() as u64))
        }
        Encoded::TooLarge => {
            let is_raw = array.form.compression == Compression::None;
            let expected = if is_raw { array.chunk_len_bytes() } else { 0 };
            let mut writer = staged.writer(name, expected, 0)?;
            array.stream(chunk, &mut |part| writer.write(part)).in_file(name)?;
            writer.saved(array.chunk_len_bytes().saturating_sub(writer.offset_bytes()))?;
            writer.finish().map(drop)
        }
    }
}
