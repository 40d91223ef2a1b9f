//! Writes an Orbax checkpoint, in any of Orbax' own forms, as one process or as one of several.
//!
//! ```text
//! tree ──plan──> names, dtypes, chunk shapes ──documents──> _METADATA, _sharding, ...    in memory
//!        │                    │
//!        └ all refusals       └─arrays──> ocdbt.process_0/d/<hex>, manifest.ocdbt        or  <name>/.zarray, 0.0
//! ```
//!
//! | module | does |
//! |---|---|
//! | `plan` | checks every leaf; one error lists all leaves that Orbax cannot store |
//! | `names` | param names and their collisions |
//! | `chunking` | chunk shapes: Orbax' greedy algorithm, or shapes given by the caller |
//! | `documents` | the small files |
//! | `held` | the chunks that this process writes, and their positions |
//! | `source`, `encode` | the bytes of a chunk, from memory of any strides to its stored value |
//! | `workers` | the threads, under the byte budget |
//! | `arrays_ocdbt`, `arrays_files` | the destinations of the values |
//! | `share`, `merge` | the shares of several processes: their lists for process 0, and the merge |
//!
//! Documents, zarr metadata, keys and tree match Orbax 0.12.8 byte for byte. Only times, random
//! names and the build of zstd make a difference.

mod arrays_files;
mod arrays_ocdbt;
pub(crate) mod chunking;
pub mod documents;
mod encode;
mod held;
mod merge;
pub(crate) mod names;
pub(super) mod plan;
mod share;
mod source;
#[cfg(test)]
mod tests;
mod workers;

use self::arrays_ocdbt::{Nodes, ProcessDatabase, referred_from_above, write_merged, write_process};
use self::documents::{Document, Switches, array_metadatas_of, documents};
use self::merge::gather;
use self::plan::Plan;
use self::share::{Share, withdraw};
use crate::WriterRank;
use crate::options::{OrbaxOptions, SaveOptions};
use regrow_base::error::{Error, Result};
use regrow_storage::{MergedFolder, NewFolder};
use regrow_tree::tree::{Leaf, Tree};

/// Extra memory is the byte budget, at least 16 MiB, and 2 to 3 KiB a leaf for keys and documents,
/// however large leaves are.
///
/// # Errors
/// `NameCollision`, `Unsupported` or `InvalidArgument` before anything is written, with every leaf
/// that cannot be written; then errors of the disk.
pub(crate) fn write(
    tree: &Tree<Leaf>,
    staged: &dyn NewFolder,
    options: &SaveOptions,
    orbax: &OrbaxOptions,
) -> Result<()> {
    let (plan, documents) = prepare(tree, WriterRank::ALONE, options, orbax)?;
    let item = switches(options, orbax).item();
    let written = write_arrays(&plan, WriterRank::ALONE, Nodes::BehindData, staged, (options, orbax))?;
    if let Some(database) = written {
        write_merged(referred_from_above(database.entries, 0), staged, &item)?;
    }
    documents.iter().try_for_each(|(name, bytes)| staged.write(name, bytes))
}

/// Adds the files of one of several processes: its chunks, its database, its `array_metadatas`, and
/// the list of its chunks for process 0.
///
/// # Errors
/// As [`write`]; `InvalidArgument` with region and leaf for a chunk file that another process has
/// written.
pub(crate) fn write_share(
    tree: &Tree<Leaf>,
    writer: WriterRank,
    staged: &dyn NewFolder,
    options: &SaveOptions,
    orbax: &OrbaxOptions,
) -> Result<()> {
    let plan = plan(tree, writer, options, orbax)?;
    let written = write_arrays(&plan, writer, Nodes::OwnFile, staged, (options, orbax))?;
    let mut documents: Vec<Document> = Vec::new();
    array_metadatas_of(
        writer.rank,
        tree,
        &|leaf| plan.entry(leaf),
        switches(options, orbax),
        &mut documents,
    )?;
    // Process 0 writes this file among the checkpoint's documents.
    for (name, bytes) in documents.iter().filter(|_| writer.rank > 0) {
        staged.write(name, bytes)?;
    }
    let node_file = written.and_then(|database| database.node_file);
    Share::of(&plan.arrays, node_file)?.write(writer.rank, staged)
}

/// Merges the files of the processes with the ranks `writers` into one checkpoint.
///
/// # Errors
/// `NotFound` for a process that has written nothing; `Corrupt` if the files of a process cannot be
/// read; `InvalidArgument` with region and leaf for a chunk that two processes have written, or
/// none; errors of the disk.
pub(crate) fn merge(
    tree: &Tree<Leaf>,
    writers: &[u32],
    staged: &dyn MergedFolder,
    options: &SaveOptions,
    orbax: &OrbaxOptions,
) -> Result<()> {
    if writers.iter().zip(0..).any(|(&rank, place)| rank != place) {
        // The folders of a dead process would remain, and Orbax counts them.
        return Err(Error::unsupported("processes of an Orbax checkpoint cannot be left out")
            .in_file(staged.target())
            .expected(
                format_args!("ranks 0 to {}", writers.len().saturating_sub(1)),
                format_args!("{writers:?}"),
            ));
    }
    let writers = writers.len() as u32;
    let (plan, documents) = prepare(tree, WriterRank { rank: 0, count: writers }, options, orbax)?;
    let item = switches(options, orbax).item();
    let entries = gather(&plan, writers, staged, &item)?;
    if orbax.ocdbt && !plan.arrays.is_empty() {
        write_merged(entries, staged, &item)?;
    }
    documents.iter().try_for_each(|(name, bytes)| staged.write(name, bytes))?;
    (0..writers).try_for_each(|rank| withdraw(rank, staged))
}

fn write_arrays(
    plan: &Plan<'_>,
    writer: WriterRank,
    nodes: Nodes,
    staged: &dyn NewFolder,
    (options, orbax): (&SaveOptions, &OrbaxOptions),
) -> Result<Option<ProcessDatabase>> {
    let (arrays, item) = (&plan.arrays, switches(options, orbax).item());
    if !orbax.ocdbt {
        arrays_files::write(arrays, writer, staged, &item, options.budget_bytes)?;
        return Ok(None);
    }
    if arrays.is_empty() {
        return Ok(None); // As Orbax: no array, no database.
    }
    write_process(arrays, writer, nodes, staged, &item, (orbax, options.budget_bytes)).map(Some)
}

/// Returns the error that [`write`] would return for this tree. Writes nothing.
///
/// # Errors
/// As [`write`], except errors of the disk.
pub(crate) fn check(tree: &Tree<Leaf>, options: &SaveOptions, orbax: &OrbaxOptions) -> Result<()> {
    prepare(tree, WriterRank::ALONE, options, orbax).map(drop)
}

/// Makes the plan and the small files. The caller writes the small files after the arrays, but a
/// leaf may be refused only before the first write.
fn prepare<'a>(
    tree: &'a Tree<Leaf>,
    writer: WriterRank,
    options: &SaveOptions,
    orbax: &OrbaxOptions,
) -> Result<(Plan<'a>, Vec<Document>)> {
    let plan = plan(tree, writer, options, orbax)?;
    let mut small: Vec<Document> = Vec::new();
    documents(tree, &|leaf| plan.entry(leaf), switches(options, orbax), &mut small)?;
    Ok((plan, small))
}

fn plan<'a>(
    tree: &'a Tree<Leaf>,
    writer: WriterRank,
    options: &SaveOptions,
    orbax: &OrbaxOptions,
) -> Result<Plan<'a>> {
    if orbax.read_chunk_shape.is_some() && !orbax.zarr3 {
        return Err(chunking::needs_zarr3());
    }
    Plan::new(tree, writer, options, orbax)
}

fn switches<'o>(options: &'o SaveOptions, orbax: &OrbaxOptions) -> Switches<'o> {
    Switches {
        use_ocdbt: orbax.ocdbt,
        use_zarr3: orbax.zarr3,
        rich_types: orbax.rich_types,
        write_sharding: orbax.write_sharding,
        write_array_metadatas: orbax.write_array_metadatas,
        v1: orbax.v1,
        beside_regrow_json: false,
        custom_metadata: options.custom_metadata.as_ref(),
        about: &options.about,
    }
}
