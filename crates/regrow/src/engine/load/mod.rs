//! Loads a whole checkpoint or a selection.
//!
//! ```text
//! select    which leaves, with which dtype and destination          patterns, template, casts, memory of the caller
//! plan      a step for each leaf, in disk order                     data: the place of its bytes, and how they are read
//! run       checks and returns views; reads other leaves            the one executor, a few threads, one budget
//! hand out  the tree of the leaves
//! ```
//!
//! Leaves stored raw and whole in files without other writers are returned as views of the map,
//! after a check in disk order. If such leaves are not in the page cache and there is enough
//! memory, they are read into memory without the page cache, which is faster. Leaves in files that
//! other programs may write in place are read into memory, unless the caller asks for maps. A few
//! threads decode all other leaves directly into their destination. An array of many chunks is
//! divided into bands along its first axis, so that one leaf can keep all threads busy. Memory of
//! the caller is filled in place, and the data is checked during the read.

mod band;
mod plan;
mod prune;
mod run;
mod select;

pub(super) use run::short_blocks;
#[doc(hidden)]
pub use select::Selected;

use super::{Checkpoint, LoadOptions, read_unreplaced};
use crate::error::{Error, Result};
use crate::formats::located;
use crate::location::ToLocation;
use crate::monitor::Stage;
use crate::text::counted;
use crate::tree::{Leaf, Tree};

/// Loads the whole checkpoint at `path` as a tree. Every block is checked.
///
/// [`regrow::load`](crate::load) makes a value of any [`Pytree`](crate::Pytree) type from the tree.
///
/// # Errors
/// The errors of [`open`](super::open), and `Corrupt` with file, leaf and offset.
pub fn load(path: impl ToLocation) -> Result<Tree<Leaf>> {
    load_with(path, &LoadOptions::default())
}

/// Loads the leaves that `options` select.
///
/// # Errors
/// The errors of [`load`]; `Mismatch`, with all differences, if a template does not fit.
pub fn load_with(path: impl ToLocation, options: &LoadOptions) -> Result<Tree<Leaf>> {
    let at = located(path)?;
    let mut open = options.open.clone();
    open.by_names |= options.template.is_some();
    read_unreplaced(|attempt| attempt.watch(super::open_with(&at, &open)?).load(options))
}

impl Checkpoint {
    /// Loads the leaves that `options` select.
    ///
    /// # Errors
    /// The errors of [`load_with`]; `NotFound` also for patterns that match nothing, with all of
    /// them listed.
    pub fn load(&self, options: &LoadOptions) -> Result<Tree<Leaf>> {
        self.load_watched(options, Vec::new())
    }

    /// Loads into memory of the caller. For each leaf of the template, `outs` has the destination
    /// of its bytes in C order, or `None`. Leaves with a filled destination are returned
    /// as [absent](crate::tree::LeafData::Absent), other leaves as from [`load`](Self::load). Texts
    /// are never written to `outs`.
    ///
    /// Raw leaves are read directly into their destination and checked in the same pass, by several
    /// threads.
    ///
    /// # Errors
    /// The errors of `load`; `InvalidArgument` without a template; `Mismatch` if a destination has
    /// another length than its leaf (after the cast), or the template another dtype. After an error
    /// the contents of all destinations are unspecified.
    pub fn load_into_memory(
        &self,
        options: &LoadOptions,
        outs: Vec<Option<&mut [u8]>>,
    ) -> Result<Tree<Leaf>> {
        let template_len = options.template.as_ref().map(Tree::len);
        if template_len != Some(outs.len()) {
            return Err(Error::invalid(
                "a load into memory needs a template and a destination for each of its leaves",
            )
            .expected(counted(template_len.unwrap_or(0), "place", "places"), outs.len()));
        }
        self.load_watched(options, outs)
    }

    fn load_watched(&self, options: &LoadOptions, outs: Vec<Option<&mut [u8]>>) -> Result<Tree<Leaf>> {
        let monitor = &options.monitor;
        let running = monitor.begin();
        let loaded = running.and_then(|_running| {
            monitor.timed(Stage::Read, 0, || self.unless_replaced(self.load_selected(options, outs)))
        });
        monitor.conclude(loaded)
    }
}
