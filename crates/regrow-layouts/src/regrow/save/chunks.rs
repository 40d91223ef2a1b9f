//! Compressed leaves: zstd chunks in a separate data file, encoded by several threads.

use std::sync::Arc;

use super::super::manifest::{DataFile, LeafPlace};
use super::super::{stored_dtype, zarr_key};
use super::data_file::data_file;
use super::plan::Plan;
use crate::options::{BUDGET_DEFAULT_BYTES, Compression, SaveOptions};
use regrow_base::bytes::checksum::crc32c;
use regrow_base::bytes::limits::work_space;
use regrow_base::error::Result;
use regrow_base::threads::pool;
use regrow_ocdbt::{EntryValue, random_data_file_name};
use regrow_storage::NewFolder;
use regrow_tree::array::{Array, Casting, Dtype, Region, copy_region};
use regrow_tree::tree::LeafData;
use regrow_zarr::zarr::ArrayMeta;

/// One chunk of a compressed leaf, before it is encoded.
struct ChunkTask<'a> {
    array: &'a Array,
    leaf: usize,
    dtype: Dtype,
    meta: &'a ArrayMeta,
    index: Vec<u64>,
    region: Region,
}

/// Writes the compressed leaves as zstd chunks into one data file, and adds their entries to the
/// database.
pub(super) fn write_chunks(
    plan: &Plan<'_>,
    level: i32,
    staged: &dyn NewFolder,
    options: &SaveOptions,
    entries: &mut Vec<(Vec<u8>, EntryValue)>,
) -> Result<Option<DataFile>> {
    let mut arrays = Vec::new();
    for (leaf, (planned, source)) in plan.leaves.iter().zip(plan.tree.leaves()).enumerate() {
        let (LeafPlace::Chunks, LeafData::Array(array)) = (planned.place, &source.data) else { continue };
        let dtype = stored_dtype(planned.dtype);
        let chunk = plan.chunk_shape(leaf, array).clone();
        let meta = ArrayMeta::v3(array.shape().clone(), dtype, chunk, Compression::Zstd(level))
            .map_err(|error| error.at_leaf(&plan.path(leaf)))?;
        arrays.push((leaf, planned.dtype, array, meta));
    }
    if arrays.is_empty() {
        return Ok(None);
    }
    let name = random_data_file_name()?;
    let mut out = staged.writer(&name, 0, 0)?;
    let (base, relative): (Arc<[u8]>, Arc<[u8]>) = (Arc::from(&b""[..]), Arc::from(name.as_bytes()));
    for (leaf, _, _, meta) in &arrays {
        let key = zarr_key(plan.name(*leaf), meta.metadata_key()).into_bytes();
        entries.push((key, EntryValue::Inline(meta.to_json().into())));
    }
    let tasks = arrays.iter().flat_map(|(leaf, dtype, array, meta)| {
        meta.chunk_indices(&Region::whole(meta.shape())).map(move |(index, region)| ChunkTask {
            array,
            leaf: *leaf,
            dtype: *dtype,
            meta,
            index,
            region,
        })
    });
    let budget_bytes = options.budget_bytes.unwrap_or(BUDGET_DEFAULT_BYTES);
    // Memory holds a chunk uncompressed and compressed at the same time.
    let cost = |task: &ChunkTask<'_>| {
        2 * task.meta.chunk_shape().len_bytes(task.meta.dtype()).unwrap_or(u64::MAX / 2)
    };
    pool::map_ordered(
        pool::thread_count(),
        tasks,
        budget_bytes,
        cost,
        |task| {
            let encoded = chunk_bytes(&task, plan.casting)
                .and_then(|chunk| Ok((task.meta.encode_chunk(&chunk)?, chunk.len())));
            let (encoded, len_bytes) = encoded.map_err(|error| error.at_leaf(&plan.path(task.leaf)))?;
            let saved = len_bytes.saturating_sub(encoded.len()) as u64;
            Ok((zarr_key(plan.name(task.leaf), &task.meta.chunk_key(&task.index)), encoded, saved))
        },
        |(key, encoded, saved)| {
            let offset_bytes = out.offset_bytes();
            out.write(&encoded)?;
            out.saved(saved)?;
            let (base, relative, len_bytes) = (base.clone(), relative.clone(), encoded.len() as u64);
            entries
                .push((key.into_bytes(), EntryValue::Indirect { base, relative, offset_bytes, len_bytes }));
            Ok(())
        },
    )?;
    Ok(Some(data_file(name, 0, crc32c(b""), out.finish()?)))
}

/// The bytes of a chunk in C order, after the cast, with zeros beyond the array's edge.
fn chunk_bytes(task: &ChunkTask<'_>, casting: Casting) -> Result<Vec<u8>> {
    let array = task.array;
    let to = task.dtype;
    let inside = task.region.shape();
    let mut part = work_space(inside.len_bytes(array.dtype())?)?;
    array.copy_region_c_order(&task.region, &mut part)?;
    if array.dtype() != to {
        let mut cast = work_space(inside.len_bytes(to)?)?;
        casting.cast(&part, array.dtype(), to, &mut cast)?;
        part = cast;
    }
    let chunk_shape = task.meta.chunk_shape();
    if inside == *chunk_shape {
        return Ok(part);
    }
    let mut chunk = work_space(chunk_shape.len_bytes(to)?)?;
    let origin = vec![0; inside.rank()];
    copy_region(to.size_bytes(), &part, &inside, &Region::whole(&inside), &mut chunk, chunk_shape, &origin)?;
    Ok(chunk)
}
