//! A save in the default layout, in four stages; each takes what the one before gives.
//!
//! ```text
//! tree ──plan──> Plan ──reuse──> Reused ──place──> Placed ──write──> files
//!        names,          which leaves     names, headers,
//!        dtypes,         share a file,    offsets
//!        refusals        which are linked
//! ```
//!
//! Nothing is written before the last stage, and a stage knows nothing of those behind it.
//!
//! An array in shards, and a checkpoint that several processes write, is saved in parts: every
//! process takes the pieces that it holds through these stages (`part`), and one of them puts the
//! parts together (`merge`).
//!
//! | module | holds |
//! |---|---|
//! | `plan` | what every leaf becomes |
//! | `names` | by which name it is known |
//! | `cut` | into which chunks an array is cut |
//! | `reuse` | which leaves share a file, and which files an earlier checkpoint has |
//! | `split` | where one file ends and the next begins |
//! | `base` | that earlier checkpoint |
//! | `compare` | which leaves have the same bytes there |
//! | `place` | name, header and length of every file; offset of every leaf |
//! | `header` | what stands before the data of a file |
//! | `write` | the bytes, and `regrow.json` last |
//! | `new_manifest` | `regrow.json` in the making |
//! | `digest` | by what the next save knows leaves that rest |
//! | `index`, `database` | what the database says of raw leaves; the database |
//! | `chunks` | compressed leaves |
//! | `small_files`, `orbax_documents` | what is read whole, and what Orbax reads |
//! | `part`, `coded_part` | what one process of several writes; of that, what is compressed |
//! | `merge`, `piece_index` | the parts put together; where every piece lies |
//! | `remake` | rebuilds small files of an existing checkpoint |
//! | `data_file` | the record of a file that was written |

use self::base::Base;
use self::merge::merge;
use self::orbax_documents::orbax_documents;
use self::part::write_part;
use self::place::{FileNames, place};
use self::plan::Plan;
use self::reuse::{HowReused, reuse, reuse_nothing};
use self::split::HEADER_LEN_MAX_BYTES;
use crate::array::Array;
use crate::error::Result;
use crate::formats::WriterRank;
use crate::formats::orbax::writer::documents::Document;
use crate::options::{Compression, Layout, SaveOptions};
use crate::storage::Publication;
use crate::tree::{Leaf, Tree};

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

/// Saves a tree.
pub(super) fn save(tree: &Tree<Leaf>, staged: &dyn Publication, options: &SaveOptions) -> Result<()> {
    let is_cut = |leaf: &Leaf| {
        let shards = leaf.as_array().and_then(Array::shards);
        shards.is_some_and(|shards| shards.chunk_shape() != shards.shape())
    };
    let asks_for_chunks = matches!(&options.layout, Layout::Regrow(regrow) if regrow.asks_for_chunks());
    // What is compressed is cut into chunks of its own.
    if !is_compressed(options) && (asks_for_chunks || tree.leaves().iter().any(is_cut)) {
        write_part(tree, WriterRank::ALONE, staged, options)?;
        return merge(tree, &[0], staged, options);
    }
    save_split(tree, staged, options, HEADER_LEN_MAX_BYTES)
}

/// Saves with as many safetensors files as keep each header below the limit.
fn save_split(
    tree: &Tree<Leaf>,
    staged: &dyn Publication,
    options: &SaveOptions,
    header_len_max_bytes: usize,
) -> Result<()> {
    // A base that cannot be opened is told first.
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

/// Says what [`save`] would refuse, and writes nothing.
pub(super) fn check(tree: &Tree<Leaf>, options: &SaveOptions) -> Result<()> {
    options.base.as_ref().map(Base::open).transpose()?;
    let plan = Plan::new(tree, options)?;
    let placed = place(reuse_nothing(plan, HEADER_LEN_MAX_BYTES), FileNames::OfAll)?;
    orbax_documents(&placed.plan, false, options, &mut Vec::<Document>::new())
}

/// Writes what falls to one process of several.
pub(super) fn write_share(
    tree: &Tree<Leaf>,
    writer: WriterRank,
    staged: &dyn Publication,
    options: &SaveOptions,
) -> Result<()> {
    write_part(tree, writer, staged, options)
}

/// Puts together what several processes have written, each of these ranks.
pub(super) fn merge_shares(
    tree: &Tree<Leaf>,
    writers: &[u32],
    staged: &dyn Publication,
    options: &SaveOptions,
) -> Result<()> {
    merge(tree, writers, staged, options)
}

fn is_compressed(options: &SaveOptions) -> bool {
    matches!(options.compression, Some(Compression::Zstd(_)))
}
