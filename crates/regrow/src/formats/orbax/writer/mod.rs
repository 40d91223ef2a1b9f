//! Writing an Orbax checkpoint, in any of its own forms, as one process.
//!
//! ```text
//! tree ──plan──> names, dtypes, chunk shapes ──documents──> _METADATA, _sharding, ...    in memory
//!        │                    │
//!        └ all refusals       └─arrays──> ocdbt.process_0/d/<hex>, manifest.ocdbt        or  <name>/.zarray, 0.0
//! ```
//!
//! | module | does |
//! |---|---|
//! | `plan` | looks at every leaf; what Orbax could not store is refused here, all of it in one report |
//! | `names` | param names and their collisions |
//! | `chunking` | chunk shapes: Orbax' greedy chooser, or shapes given by hand |
//! | `documents` | the small files |
//! | `source`, `encode` | the bytes of a chunk, from memory of any strides to its stored value |
//! | `workers` | the threads, under the byte budget |
//! | `arrays_ocdbt`, `arrays_files` | where the values go |
//!
//! Documents, zarr metadata, keys and tree match Orbax 0.12.8 byte for byte; what differs is what differs
//! between any two saves (times, random names), and how zstd was built.

mod arrays_files;
mod arrays_ocdbt;
mod chunking;
pub(crate) mod documents;
mod encode;
pub(crate) mod names;
pub(super) mod plan;
mod source;
#[cfg(test)]
mod tests;
mod workers;

use self::documents::{Document, Switches, V1_ITEM, documents};
use self::plan::Plan;
use crate::engine::{OrbaxOptions, SaveOptions};
use crate::error::Result;
use crate::storage::Publication;
use crate::tree::{Leaf, Tree};

/// Adds all files of the checkpoint to the publication.
///
/// Extra memory is the byte budget, at least 16 MiB, and 2 to 3 KiB a leaf for keys and documents, however large
/// leaves are.
///
/// # Errors
/// `NameCollision`, `Unsupported` or `InvalidArgument` before anything is written, naming every leaf that is in
/// the way; then what the disk says.
pub(crate) fn write(
    tree: &Tree<Leaf>,
    staged: &dyn Publication,
    options: &SaveOptions,
    orbax: &OrbaxOptions,
) -> Result<()> {
    let (plan, documents) = prepare(tree, options, orbax)?;
    let item = if orbax.v1 { format!("{V1_ITEM}/") } else { String::new() };
    if orbax.use_ocdbt {
        arrays_ocdbt::write(&plan.arrays, staged, &item, orbax, options.budget_bytes)?;
    } else {
        arrays_files::write(&plan.arrays, staged, &item, options.budget_bytes)?;
    }
    documents.iter().try_for_each(|(name, bytes)| staged.write(name, bytes))
}

/// Says what [`write`] would refuse, and writes nothing.
///
/// # Errors
/// As [`write`], but for what the disk says.
pub(crate) fn check(tree: &Tree<Leaf>, options: &SaveOptions, orbax: &OrbaxOptions) -> Result<()> {
    prepare(tree, options, orbax).map(drop)
}

/// The plan, and the small files: made before the arrays, since they can still be refused; on disk after them.
fn prepare<'a>(
    tree: &'a Tree<Leaf>,
    options: &SaveOptions,
    orbax: &OrbaxOptions,
) -> Result<(Plan<'a>, Vec<Document>)> {
    if orbax.read_chunk_shape.is_some() && !orbax.use_zarr3 {
        return Err(chunking::needs_zarr3());
    }
    let plan = Plan::new(tree, options, orbax)?;
    let switches = Switches {
        use_ocdbt: orbax.use_ocdbt,
        use_zarr3: orbax.use_zarr3,
        rich_types: orbax.rich_types,
        write_sharding: orbax.write_sharding,
        write_array_metadatas: orbax.write_array_metadatas,
        v1: orbax.v1,
        beside_regrow_json: false,
        custom_metadata: options.custom_metadata.as_ref(),
    };
    let mut small: Vec<Document> = Vec::new();
    documents(tree, &|leaf| plan.entry(leaf), switches, &mut small)?;
    Ok((plan, small))
}
