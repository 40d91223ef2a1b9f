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
//! | module | holds |
//! |---|---|
//! | `plan` | what every leaf becomes |
//! | `names` | by which name it is known |
//! | `reuse` | which leaves share a file, and which files an earlier checkpoint has |
//! | `split` | where one file ends and the next begins |
//! | `base` | that earlier checkpoint |
//! | `compare` | which leaves have the same bytes there |
//! | `place` | name, header and length of every file; offset of every leaf |
//! | `header` | what stands before the data of a file |
//! | `write` | the bytes, and `regrow.json` last |
//! | `digest` | by what the next save knows leaves that rest |
//! | `index`, `database` | what the database says of raw leaves; the database |
//! | `chunks` | compressed leaves |
//! | `small_files`, `orbax_documents` | what is read whole, and what Orbax reads |
//! | `data_file` | the record of a file that was written |

use self::base::Base;
use self::orbax_documents::orbax_documents;
use self::place::place;
use self::plan::Plan;
use self::reuse::{reuse, reuse_nothing};
use self::split::HEADER_LEN_MAX_BYTES;
use crate::error::Result;
use crate::formats::orbax::writer::documents::Document;
use crate::options::{BUDGET_DEFAULT_BYTES, SaveOptions};
use crate::storage::Publication;
use crate::tree::{Leaf, Tree};

mod base;
mod chunks;
mod compare;
mod data_file;
mod database;
mod digest;
mod header;
mod index;
mod names;
mod orbax_documents;
mod place;
mod plan;
mod reuse;
mod small_files;
mod split;
#[cfg(test)]
mod tests;
mod write;

/// Saves a tree.
pub(super) fn save(tree: &Tree<Leaf>, staged: &dyn Publication, options: &SaveOptions) -> Result<()> {
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
            let budget_bytes = options.budget_bytes.unwrap_or(BUDGET_DEFAULT_BYTES);
            reuse(plan, base, header_len_max_bytes, budget_bytes, staged.monitor())?
        }
        None => reuse_nothing(plan, header_len_max_bytes),
    };
    write::write(place(reused)?, staged, options)
}

/// Says what [`save`] would refuse, and writes nothing.
pub(super) fn check(tree: &Tree<Leaf>, options: &SaveOptions) -> Result<()> {
    options.base.as_ref().map(Base::open).transpose()?;
    let plan = Plan::new(tree, options)?;
    let placed = place(reuse_nothing(plan, HEADER_LEN_MAX_BYTES))?;
    orbax_documents(&placed.plan, options, &mut Vec::<Document>::new())
}
