//! What one process writes of a checkpoint in parts: its pieces, in data files of its own, and a record of them.
//!
//! A part is saved as if its pieces were the leaves of a tree of their own: planned, compared with the same part of the
//! base, placed, written. So a process links the files of the base that still hold, as a save of one process does.
//!
//! ```text
//! params.w, shards [0:4,0:8] and [4:8,0:8]  ──▶  {"params.w[0:4,0:8]": ..., "params.w[4:8,0:8]": ...}
//! step, whole                               ──▶  {"step": ...}       if this process is the one that writes it
//! ```

use super::super::manifest::{self, NewManifest, Pieces};
use super::base::Base;
use super::place::{FileNames, place};
use super::plan::Plan;
use super::reuse::{reuse, reuse_nothing};
use super::split::HEADER_LEN_MAX_BYTES;
use super::write::write_files;
use crate::array::{Array, Shape, chunk_counts, chunk_starts};
use crate::error::Result;
use crate::formats::WriterRank;
use crate::formats::spread::writers_of_whole;
use crate::options::{BUDGET_DEFAULT_BYTES, SaveOptions};
use crate::storage::Publication;
use crate::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};

/// Writes the pieces of `tree` that fall to this process.
///
/// # Errors
/// As a save.
pub(super) fn write_part(
    tree: &Tree<Leaf>,
    writer: WriterRank,
    staged: &dyn Publication,
    options: &SaveOptions,
) -> Result<()> {
    let plan = Plan::new(tree, options)?;
    let (pieces_tree, pieces) = pieces_of(&plan, writer)?;
    let base = match &options.base {
        Some(base) => Base::open_part(base, writer.rank)?,
        None => None,
    };
    // What is asked of leaves was asked of the whole tree.
    let own_options = SaveOptions { cast: Vec::new(), strict_orbax: false, base: None, ..options.clone() };
    let own_plan = Plan::new(&pieces_tree, &own_options)?;
    let reused = match base {
        Some(base) => {
            let budget_bytes = options.budget_bytes.unwrap_or(BUDGET_DEFAULT_BYTES);
            reuse(own_plan, base, HEADER_LEN_MAX_BYTES, budget_bytes, staged.monitor())?
        }
        None => reuse_nothing(own_plan, HEADER_LEN_MAX_BYTES),
    };
    let placed = place(reused, FileNames::OfProcess(writer))?;
    let data_files = write_files(&placed, staged)?;
    let manifest = NewManifest {
        structure: &placed.plan.structure,
        custom_metadata: None,
        data_files: &data_files,
        files: &[],
        database_uuid: None,
        parts: &[],
        chunks: None,
        pieces: Some(&pieces),
    };
    let json = manifest.to_json(placed.plan.leaves.iter().map(|leaf| leaf.place))?;
    staged.write(&manifest::part_name(writer.rank), &json)
}

/// The pieces that fall to a process, as a tree; and which piece of which leaf each is.
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
            build.leaf(Key::dict(name), Leaf::array(array.cast(dtype)?))
        };
        let is_own = writers.get(at) == Some(&writer.rank);
        let added = match array.shards() {
            Some(shards) if shards.is_replicated() && !is_own => Ok(()),
            Some(shards) => shards.chunks().and_then(|chunks| {
                chunks.iter().try_for_each(|(number, chunk)| {
                    add(
                        *number,
                        piece_name(plan.name(at), *number, array.shape(), shards.chunk_shape()),
                        chunk,
                    )
                })
            }),
            None if is_own => add(0, plan.name(at).to_owned(), array),
            None => Ok(()),
        };
        // A path is looked for in the whole tree.
        added.map_err(|error| error.at_leaf(&plan.path(at)))?;
    }
    build.close()?;
    Ok((build.finish()?, pieces))
}

/// The name of a chunk as a tensor: that of the leaf if it is all of it, else with the region that it fills, which may
/// reach beyond the array: `params.w[0:4,8:16]`.
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
