//! The part of one process: its pieces in its own data files, and their record.
//!
//! A part is saved like a tree whose leaves are the pieces: planned, compared with the same part of
//! the base, placed, written. So each process links unchanged files of the base, like a save of one
//! process.
//!
//! ```text
//! params.w, shards [0:4,0:8] and [4:8,0:8]  ──▶  {"params.w[0:4,0:8]": ..., "params.w[4:8,0:8]": ...}
//! step, whole                               ──▶  {"step": ...}       if this process is the one that writes it
//! ```

use super::super::manifest::{self, Pieces};
use super::base::Base;
use super::coded_part::{set_coded_apart, write_coded};
use super::new_manifest::NewManifest;
use super::place::{FileNames, place};
use super::plan::Plan;
use super::reuse::{HowReused, reuse, reuse_nothing};
use super::split::HEADER_LEN_MAX_BYTES;
use super::write::write_files;
use crate::WriterRank;
use crate::options::{Layout, RegrowOptions, SaveOptions};
use crate::spread::writers_of_whole;
use regrow_base::error::Result;
use regrow_storage::NewFolder;
use regrow_tree::array::{Array, Losses, Region, Shape, Shard, Shards, chunk_counts, chunk_starts};
use regrow_tree::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};

pub(super) fn write_part(
    tree: &Tree<Leaf>,
    writer: WriterRank,
    staged: &dyn NewFolder,
    options: &SaveOptions,
) -> Result<()> {
    let plan = Plan::new(tree, options)?;
    let (pieces_tree, mut pieces) = pieces_of(&plan, writer)?;
    let base = match &options.base {
        Some(base) => Base::open_part(base, writer.rank)?,
        None => None,
    };
    // The options for leaves were already applied to the whole tree.
    let own_options = SaveOptions {
        layout: Layout::Regrow(RegrowOptions { format: plan.data_format, ..RegrowOptions::default() }),
        cast: Vec::new(),
        compression: None,
        base: None,
        ..options.clone()
    };
    let mut own_plan = Plan::new(&pieces_tree, &own_options)?;
    set_coded_apart(&plan, &mut own_plan, &pieces);
    let reused = match base {
        Some(base) => {
            let how = HowReused::of(options);
            reuse(own_plan, base, HEADER_LEN_MAX_BYTES, how, staged.monitor())?
        }
        None => reuse_nothing(own_plan, HEADER_LEN_MAX_BYTES),
    };
    let placed = place(reused, FileNames::OfProcess(writer))?;
    let mut data_files = write_files(&placed, staged)?;
    let coded = (writer.rank, data_files.len());
    data_files.extend(write_coded(&plan, &placed.plan, &mut pieces, coded, staged, options)?);
    // A replacement for a dead process may replace the first process.
    let is_first = writer.rank == 0 || writer.rank >= writer.count;
    let chunks = is_first.then(|| plan.chunk_shapes());
    let manifest = NewManifest {
        structure: placed.plan.structure()?,
        custom_metadata: None,
        data_files: &data_files,
        files: &[],
        database_uuid: None,
        parts: &[],
        chunks: chunks.as_ref(),
        pieces: Some(&pieces),
        whole: is_first.then(|| plan.structure()).transpose()?,
    };
    let json = manifest.to_json(placed.plan.leaves.iter().map(|leaf| leaf.place))?;
    staged.write(&manifest::part_name(writer.rank), &json)
}

/// The pieces of a process, as a tree, with the leaf and index of each piece.
fn pieces_of(plan: &Plan<'_>, writer: WriterRank) -> Result<(Tree<Leaf>, Pieces)> {
    let writers = writers_of_whole(plan.tree, writer.count);
    let mut build = TreeBuilder::new();
    let mut pieces = Pieces::default();
    build.open(Key::Index(0), NodeKind::Dict)?;
    for (at, leaf) in plan.tree.leaves().iter().enumerate() {
        let Some(array) = leaf.as_array() else { continue };
        let dtype = plan.leaf(at).map_or(array.dtype(), |(planned, _)| planned.dtype);
        let mut add = |chunk: u64, name: String, array: &Array| {
            pieces.leaves.push(at as u32);
            pieces.chunks.push(chunk);
            let losses = Losses::of(plan.casting, &plan.path(at));
            build.leaf(Key::dict(name), Leaf::array(array.cast_as(dtype, losses)?))
        };
        let is_own = writers.get(at) == Some(&writer.rank);
        let added = match array.shards() {
            Some(shards) if shards.is_replicated() && !is_own => Ok(()),
            None if !is_own => Ok(()),
            None if plan.chunk_shape(at, array) == array.shape() => add(0, plan.name(at).to_owned(), array),
            shards => {
                let cut = plan.chunk_shape(at, array);
                chunks_of(array, shards, cut).and_then(|chunks| {
                    chunks.iter().try_for_each(|(number, chunk)| {
                        add(*number, piece_name(plan.name(at), *number, array.shape(), cut), chunk)
                    })
                })
            }
        };
        // The caller knows the leaf by its path in the whole tree.
        added.map_err(|error| error.at_leaf(&plan.path(at)))?;
    }
    build.close()?;
    Ok((build.finish()?, pieces))
}

/// The chunks of an array that this process holds, by their numbers.
fn chunks_of(array: &Array, shards: Option<&Shards>, chunk: &Shape) -> Result<Vec<(u64, Array)>> {
    if let Some(shards) = shards.filter(|shards| shards.chunk_shape() == chunk) {
        return shards.chunks();
    }
    let whole = || vec![Shard { region: Region::whole(array.shape()), array: array.clone() }];
    let held = shards.map_or_else(whole, |shards| shards.held().to_vec());
    let is_replicated = shards.is_some_and(Shards::is_replicated);
    let cut = Array::sharded(array.dtype(), array.shape().clone(), chunk.clone(), held, is_replicated)?;
    cut.shards().map_or_else(|| Ok(Vec::new()), Shards::chunks)
}

/// The tensor name of a chunk: the name of the leaf if the chunk is the whole array; otherwise the
/// name with the chunk's region, which may reach beyond the array: `params.w[0:4,8:16]`.
pub(super) fn piece_name(name: &str, number: u64, shape: &Shape, chunk_shape: &Shape) -> String {
    if chunk_counts(shape, chunk_shape).iter().product::<u64>() <= 1 {
        return name.to_owned();
    }
    let starts = chunk_starts(number, shape, chunk_shape);
    let axes: Vec<String> = starts
        .iter()
        .zip(chunk_shape.dims())
        .map(|(start, len)| format!("{start}:{}", start.saturating_add(*len)))
        .collect();
    format!("{name}[{}]", axes.join(","))
}
