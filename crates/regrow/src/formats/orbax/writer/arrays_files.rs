//! Arrays in plain folders, one a leaf: the kvstore's keys are paths.
//!
//! ```text
//! params.dense.kernel/.zarray        zarr.json in v3
//! params.dense.kernel/0.0  0.1 ...   c/0/0  c/0/1 ... in v3
//! ```
//!
//! A file a chunk and two more system calls a leaf: fine for large leaves, slow for many small ones, for which
//! the database is made.

use super::encode::{Encoded, PlannedArray};
use super::names::kvstore_key;
use super::workers::{self, Batch};
use crate::error::{Result, ResultExt};
use crate::options::Compression;
use crate::storage::Publication;

/// Writes all arrays below `item`, a folder name that ends in `/`, or nothing.
///
/// # Errors
/// What the disk says; what a cast or a codec says.
pub(super) fn write(
    arrays: &[PlannedArray<'_>],
    staged: &dyn Publication,
    item: &str,
    budget_bytes: Option<u64>,
) -> Result<()> {
    workers::run(arrays, workers::worker_count(arrays, budget_bytes), |queue| {
        while let Some(batch) = queue.next() {
            write_batch(&batch, staged, item)?;
        }
        Ok(())
    })?;
    Ok(())
}

fn write_batch(batch: &Batch<'_, '_>, staged: &dyn Publication, item: &str) -> Result<()> {
    let array = batch.array;
    let file = |key: &str| format!("{item}{}", kvstore_key(&array.name, key));
    if batch.chunks.start == 0 {
        staged.write(&file(array.form.meta.metadata_key()), &array.form.document)?;
    }
    for number in batch.chunks.clone() {
        let index = array.chunk_index(number);
        let name = file(&array.form.meta.chunk_key(&index));
        match array.encode(&index).in_file(&name)? {
            Encoded::Value(value) => {
                staged.write(&name, &value)?;
                staged.monitor().advance(array.chunk_len_bytes().saturating_sub(value.len() as u64))?;
            }
            Encoded::TooLarge => {
                let is_raw = array.form.compression == Compression::None;
                let expected = if is_raw { array.chunk_len_bytes() } else { 0 };
                let mut writer = staged.writer(&name, expected, 0)?;
                array.stream(&index, &mut |part| writer.write(part)).in_file(&name)?;
                writer.saved(array.chunk_len_bytes().saturating_sub(writer.offset_bytes()))?;
                writer.finish()?;
            }
        }
    }
    Ok(())
}
