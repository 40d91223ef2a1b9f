//! One process merges the parts of all processes. It writes the database that refers to every
//! piece, Orbax' documents, and `regrow.json` with the names of the parts. It reads and writes no
//! array data.

use std::collections::HashSet;

use super::super::manifest::{self, LeafPlace, PartRecord, Sum};
use super::super::part_columns::PartColumns;
use super::database::Index;
use super::index::to_list;
use super::new_manifest::NewManifest;
use super::orbax_documents::orbax_documents;
use super::part::piece_name;
use super::piece_index::{PieceEntries, PiecePlaces};
use super::plan::Plan;
use super::small_files::SmallFiles;
use crate::options::{Compression, SaveOptions};
use crate::safetensors::index::{INDEX_FILE_NAME, Index as SafetensorsIndex};
use regrow_base::error::{Result, ResultExt};
use regrow_base::threads::pool;
use regrow_storage::{MergedFolder, NewFolder};
use regrow_tree::tree::{Leaf, Tree};

/// Above this number of tensors, there is no `model.safetensors.index.json`: the index would have
/// hundreds of MB, too long to use.
const INDEX_TENSORS_MAX: usize = 1 << 20;

/// The number of parts that are read before their pieces are placed: pieces of one leaf are then
/// close in memory.
const PARTS_AT_A_TIME: usize = 64;

/// Merges the parts of the `writers`, which are ranks. Other ranks below the highest belong to dead
/// processes, whose files are removed.
///
/// # Errors
/// `Corrupt` or `NotFound` for a part that is missing or damaged; `InvalidArgument` for a piece
/// that two processes have written, or no process; errors of a save.
pub(super) fn merge(
    tree: &Tree<Leaf>,
    writers: &[u32],
    staged: &dyn MergedFolder,
    options: &SaveOptions,
) -> Result<()> {
    let plan = &Plan::new(tree, options)?;
    let (parts, places) = gather(plan, writers, staged)?;
    if writers.iter().zip(0..).any(|(&rank, place)| rank != place) {
        remove_left(&parts, staged)?;
    }
    write_rest(plan, &parts, &places, staged, options)
}

/// As [`merge`], for a save by one process.
///
/// # Errors
/// As [`merge`].
pub(super) fn merge_one(tree: &Tree<Leaf>, staged: &dyn NewFolder, options: &SaveOptions) -> Result<()> {
    let plan = &Plan::new(tree, options)?;
    let (parts, places) = gather(plan, &[0], staged)?;
    write_rest(plan, &parts, &places, staged, options)
}

/// Writes all files except the parts.
fn write_rest(
    plan: &Plan<'_>,
    parts: &[PartRecord],
    places: &PiecePlaces,
    staged: &dyn NewFolder,
    options: &SaveOptions,
) -> Result<()> {
    let mut small = SmallFiles::new(staged);
    orbax_documents(plan, true, options, &mut small)?;
    if let Some(index) = safetensors_index_of_pieces(plan, places)? {
        small.write_whole(INDEX_FILE_NAME, &index)?;
    }
    let index = index_of_pieces(plan, places, options.compression.unwrap_or(Compression::None))?;
    let database_uuid = index.write(&mut small)?;
    let manifest = NewManifest {
        structure: plan.structure()?,
        custom_metadata: options.custom_metadata.as_ref(),
        data_files: &[],
        files: &small.files,
        database_uuid: database_uuid.as_deref(),
        parts,
        chunks: Some(&plan.chunk_shapes()),
        pieces: None,
        whole: None,
    };
    // All arrays are in parts, and the database refers to them.
    let json = manifest.to_json(plan.leaves.iter().map(|leaf| match leaf.place {
        LeafPlace::Raw { .. } => LeafPlace::Chunks,
        place => place,
    }))?;
    staged.write(manifest::FILE_NAME, &json)
}

pub(super) fn gather(
    plan: &Plan<'_>,
    writers: &[u32],
    staged: &dyn NewFolder,
) -> Result<(Vec<PartRecord>, PiecePlaces)> {
    let mut places = PiecePlaces::new(plan)?;
    let mut parts = Vec::with_capacity(writers.len());
    let read = |rank: u32| {
        let name = manifest::part_name(rank);
        let bytes = staged.written(&name)?;
        let columns = PartColumns::parse(&bytes).in_file(staged.target().join(&name))?;
        let mut sum = Sum::new();
        sum.update(&bytes);
        let data_files = columns.data_files.iter().map(|file| file.name.clone()).collect();
        let record = PartRecord { file: sum.record(name, bytes.len() as u64), data_files };
        Ok((rank, columns, record))
    };
    let mut batch = Vec::with_capacity(PARTS_AT_A_TIME);
    pool::map_ordered(
        pool::thread_count(),
        writers.iter().copied(),
        u64::MAX,
        |_| 1,
        read,
        |(rank, columns, record)| {
            parts.push(record);
            batch.push((rank, columns));
            if batch.len() == PARTS_AT_A_TIME {
                places.add(&batch)?;
                batch.clear();
            }
            Ok(())
        },
    )?;
    places.add(&batch)?;
    drop(batch);
    places.check_whole()?;
    Ok((parts, places))
}

pub(super) fn index_of_pieces(
    plan: &Plan<'_>,
    places: &PiecePlaces,
    compression: Compression,
) -> Result<Index> {
    let entries = PieceEntries::new(plan, places, compression)?;
    match entries.are_in_order() {
        true => Index::of_sorted(&entries),
        false => Index::of_all(to_list(&entries)),
    }
}

fn remove_left(parts: &[PartRecord], staged: &dyn MergedFolder) -> Result<()> {
    let of_part = |part: &PartRecord| [vec![part.file.name.clone()], part.data_files.clone()].concat();
    let kept: HashSet<String> = parts.iter().flat_map(of_part).collect();
    let is_of_a_process = |name: &str| manifest::is_part_name(name) || manifest::looks_like_data_name(name);
    staged.sweep("", &|name| is_of_a_process(name) && !kept.contains(name))
}

/// `model.safetensors.index.json` of the pieces; `None` for one file, and for more than
/// `INDEX_TENSORS_MAX` pieces.
pub(super) fn safetensors_index_of_pieces(plan: &Plan<'_>, places: &PiecePlaces) -> Result<Option<Vec<u8>>> {
    if places.piece_count() > INDEX_TENSORS_MAX || places.file_count() <= 1 {
        return Ok(None);
    }
    let mut index = SafetensorsIndex::default();
    for (at, leaf) in plan.tree.leaves().iter().enumerate() {
        let Some((array, (planned, _))) = leaf.as_array().zip(plan.leaf(at)) else { continue };
        if plan.is_coded(at) {
            continue;
        }
        let chunk_shape = plan.chunk_shape(at, array);
        let len_bytes = chunk_shape.len_bytes(planned.dtype)?;
        for (number, (file, _)) in places.of_leaf(at).enumerate() {
            let name = piece_name(plan.name(at), number as u64, array.shape(), chunk_shape);
            index.insert(&name, file, len_bytes);
        }
    }
    index.to_json().map(Some)
}
