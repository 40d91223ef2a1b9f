//! A save in the default layout, in four stages. Each stage uses the result of the previous one.
//!
//! ```text
//! tree ──plan──> Plan ──reuse──> Reused ──place──> Placed ──write──> files
//!        names,          which leaves     names, headers,
//!        dtypes,         share a file,    offsets
//!        refusals        which are linked
//! ```
//!
//! Only the last stage writes, and no stage depends on a later one.
//!
//! Sharded arrays and checkpoints of several processes are saved in parts: every process saves its
//! pieces with these stages (`part`), and one of them merges the parts (`merge`).
//!
//! | module | holds |
//! |---|---|
//! | `plan` | the stored form of every leaf |
//! | `names` | the stored names of leaves |
//! | `cut` | the chunk shapes of an array |
//! | `reuse` | groups leaves into files, and finds files of an earlier checkpoint |
//! | `split` | divides leaves between files |
//! | `base` | the earlier checkpoint |
//! | `compare` | finds leaves with the same bytes in the earlier checkpoint |
//! | `place` | name, header and length of every file; offset of every leaf |
//! | `header` | the header of a file |
//! | `write` | the bytes, and `regrow.json` last |
//! | `new_manifest` | builds `regrow.json` |
//! | `digest` | digests with which the next save finds unchanged leaves |
//! | `index`, `database` | the database's entries for raw leaves; the database |
//! | `chunks` | compressed leaves |
//! | `small_files`, `orbax_documents` | small files, and Orbax' documents |
//! | `part`, `coded_part` | the part of one process; its compressed pieces |
//! | `merge`, `piece_index` | the merge of the parts; the position of every piece |
//! | `remake` | rebuilds small files of an existing checkpoint |
//! | `data_file` | the record of a new file |

use self::base::Base;
use self::merge::{merge, merge_one};
use self::orbax_documents::orbax_documents;
use self::part::write_part;
use self::place::{FileNames, place};
use self::plan::Plan;
use self::reuse::{HowReused, reuse, reuse_nothing};
use self::split::HEADER_LEN_MAX_BYTES;
use crate::WriterRank;
use crate::options::{Compression, Layout, SaveOptions};
use crate::orbax::writer::documents::Document;
use regrow_base::error::Result;
use regrow_storage::{MergedFolder, NewFolder};
use regrow_tree::array::Array;
use regrow_tree::tree::{Leaf, Tree};

mod base;
mod chunks;
mod coded_part;
mod compare;
mod cut;
mod data_file;
mod database;
mod digest;
mod header;
mod index;
mod merge;
mod names;
mod new_manifest;
mod orbax_documents;
mod part;
mod piece_index;
mod place;
mod plan;
mod remake;
mod reuse;
mod small_files;
mod split;
#[cfg(test)]
mod tests;
mod write;

pub(super) use remake::{Found, Remade, record_again, remake};

pub(super) fn save(tree: &Tree<Leaf>, staged: &dyn NewFolder, options: &SaveOptions) -> Result<()> {
    let is_cut = |leaf: &Leaf| {
        let shards = leaf.as_array().and_then(Array::shards);
        shards.is_some_and(|shards| shards.chunk_shape() != shards.shape())
    };
    let asks_for_chunks = matches!(&options.layout, Layout::Regrow(regrow) if regrow.asks_for_chunks());
    // With compression, leaves are stored in chunks without parts.
    if !is_compressed(options) && (asks_for_chunks || tree.leaves().iter().any(is_cut)) {
        write_part(tree, WriterRank::ALONE, staged, options)?;
        return merge_one(tree, staged, options);
    }
    save_split(tree, staged, options, HEADER_LEN_MAX_BYTES)
}

/// Saves in enough safetensors files to keep each header below the limit.
fn save_split(
    tree: &Tree<Leaf>,
    staged: &dyn NewFolder,
    options: &SaveOptions,
    header_len_max_bytes: usize,
) -> Result<()> {
    // Open the base first, so that its error comes before others.
    let base = options.base.as_ref().map(Base::open).transpose()?;
    let plan = Plan::new(tree, options)?;
    let reused = match base {
        Some(base) => {
            let how = HowReused::of(options);
            reuse(plan, base, header_len_max_bytes, how, staged.monitor())?
        }
        None => reuse_nothing(plan, header_len_max_bytes),
    };
    write::write(place(reused, FileNames::OfAll)?, staged, options)
}

pub(super) fn check(tree: &Tree<Leaf>, options: &SaveOptions) -> Result<()> {
    options.base.as_ref().map(Base::open).transpose()?;
    let plan = Plan::new(tree, options)?;
    let placed = place(reuse_nothing(plan, HEADER_LEN_MAX_BYTES), FileNames::OfAll)?;
    orbax_documents(&placed.plan, false, options, &mut Vec::<Document>::new())
}

pub(super) fn write_share(
    tree: &Tree<Leaf>,
    writer: WriterRank,
    staged: &dyn NewFolder,
    options: &SaveOptions,
) -> Result<()> {
    write_part(tree, writer, staged, options)
}

pub(super) fn merge_shares(
    tree: &Tree<Leaf>,
    writers: &[u32],
    staged: &dyn MergedFolder,
    options: &SaveOptions,
) -> Result<()> {
    merge(tree, writers, staged, options)
}

fn is_compressed(options: &SaveOptions) -> bool {
    matches!(options.compression, Some(Compression::Zstd(_)))
}
