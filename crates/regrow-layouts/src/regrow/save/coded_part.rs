//! The compressed pieces of one process: zstd chunks in a separate data file, encoded by several
//! threads.
//!
//! ```text
//! regrow.process_<k>.zstd    | frame of piece 4 | frame of piece 5 | frame of piece 9 | ...
//! regrow.process_<k>.json    "coded":{"file":1,"pieces":[4,5,9],"offsets":[0,812,...],"lens":[812,...]}
//! ```

use std::sync::Arc;

use super::super::manifest::{self, CodedPieces, DataFile, LeafPlace, Pieces};
use super::super::stored_dtype;
use super::data_file::data_file;
use super::plan::Plan;
use crate::options::{BUDGET_DEFAULT_BYTES, Compression, SaveOptions};
use regrow_base::bytes::checksum::crc32c;
use regrow_base::error::{Error, Result, ResultExt};
use regrow_base::threads::pool;
use regrow_storage::NewFolder;
use regrow_tree::array::Shape;
use regrow_zarr::zarr::ArrayMeta;

/// Writes the compressed pieces of process `rank`, and records their positions in `pieces`. `own`
/// is the plan of the pieces of this process. Returns `None` if no piece is compressed. The new
/// file has number `file` among the data files.
pub(super) fn write_coded(
    plan: &Plan<'_>,
    own: &Plan<'_>,
    pieces: &mut Pieces,
    (rank, file): (u32, usize),
    staged: &dyn NewFolder,
    options: &SaveOptions,
) -> Result<Option<DataFile>> {
    let Some(Compression::Zstd(level)) = options.compression else { return Ok(None) };
    let coded = (0..own.leaves.len()).filter(|&piece| own.is_coded(piece));
    let mut tasks: Vec<(usize, u32, Arc<ArrayMeta>)> = Vec::new();
    for piece in coded {
        let Some(&leaf) = pieces.leaves.get(piece) else { continue };
        let known = tasks.last().filter(|(_, last, _)| *last == leaf).map(|(.., meta)| Arc::clone(meta));
        let meta = match known {
            Some(meta) => meta,
            None => Arc::new(
                coded_meta(plan, leaf as usize, Compression::Zstd(level))
                    .at_leaf(&plan.path(leaf as usize))?,
            ),
        };
        tasks.push((piece, leaf, meta));
    }
    if tasks.is_empty() {
        return Ok(None);
    }
    let name = manifest::coded_name(rank);
    let mut out = staged.writer(&name, 0, 0)?;
    let mut places = CodedPieces { file: u32::try_from(file).unwrap_or(u32::MAX), ..CodedPieces::default() };
    let budget_bytes = options.budget_bytes.unwrap_or(BUDGET_DEFAULT_BYTES);
    let len_bytes = |piece: usize| own.leaves.get(piece).map_or(0, |planned| planned.len_bytes);
    pool::map_ordered(
        pool::thread_count(),
        tasks,
        budget_bytes,
        // Memory holds a chunk uncompressed and compressed at the same time.
        |&(piece, ..)| len_bytes(piece).saturating_mul(2),
        |(piece, leaf, meta)| {
            let array = own.stored_array(piece).ok_or_else(|| Error::invalid("a piece has no array"))?;
            let encoded = array.and_then(|array| meta.encode_chunk(&array.to_c_order()?));
            Ok((piece, encoded.at_leaf(&plan.path(leaf as usize))?))
        },
        |(piece, encoded)| {
            places.pieces.push(piece as u32);
            places.offsets.push(out.offset_bytes());
            places.lens.push(encoded.len() as u64);
            out.write(&encoded)?;
            out.saved(len_bytes(piece).saturating_sub(encoded.len() as u64))
        },
    )?;
    pieces.coded = Some(places);
    Ok(Some(data_file(name, 0, crc32c(b""), out.finish()?)))
}

pub(super) fn coded_meta(plan: &Plan<'_>, leaf: usize, compression: Compression) -> Result<ArrayMeta> {
    let (planned, source) = plan.leaf(leaf).ok_or_else(|| Error::invalid(format!("no leaf {leaf}")))?;
    let (shape, chunk) = match source.as_array() {
        Some(array) => (array.shape().clone(), plan.chunk_shape(leaf, array).clone()),
        None => (Shape::scalar(), Shape::scalar()),
    };
    ArrayMeta::v3(shape, stored_dtype(planned.dtype), chunk, compression)
}

/// Marks the compressed pieces as chunks. The data files of uncompressed pieces then leave them
/// out.
pub(super) fn set_coded_apart(plan: &Plan<'_>, own: &mut Plan<'_>, pieces: &Pieces) {
    for (planned, &leaf) in own.leaves.iter_mut().zip(&pieces.leaves) {
        if plan.is_coded(leaf as usize) {
            planned.place = LeafPlace::Chunks;
        }
    }
}
