//! The second stage of a save: it groups raw leaves into files, and finds files that need not be
//! written.
//!
//! Without a base, the save writes all leaves. A base is an earlier checkpoint. With a base, the
//! save links the unchanged data files of the base:
//!
//! ```text
//! save 1                 model.safetensors                          everything
//! save 2, base = 1       model-00001-of-00002  model-00002-of-00002
//!                        what changed          what did not, with a digest
//! save 3, base = 2       model-00001-of-00002  model-00002-of-00002
//!                        what changed          another name of save 2's file: not a byte is written
//! ```
//!
//! All leaves are compared before the first write, because a file is linked only if all its leaves
//! are unchanged. A leaf that is read on demand, as in a conversion, is read twice, except if its
//! file is linked.
//!
//! A file is linked if all its leaves are unchanged, and its header has the same bytes as the new
//! header: names, offsets and, in the first file, the structure. The other unchanged leaves are
//! gathered in separate files, so that the next save can link these files. If a link is not
//! possible, the file is written.

use std::cmp::Reverse;
use std::panic::resume_unwind;
use std::thread;
use std::time::Instant;

use super::base::{Base, Link, OldFile};
use super::compare::Unchanged;
use super::header::structure_in_header;
use super::plan::Plan;
use super::split::{raw_order, split_by_header};
use crate::options::{BUDGET_DEFAULT_BYTES, SaveOptions};
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_base::monitor::{Monitor, Stage};

/// Unchanged leaves below this size and larger unchanged leaves go into separate files. If a small
/// leaf, such as a counter, changes later, the save need not rewrite the large leaves.
const SMALL_LEAF_LEN_BYTES: u64 = 64 << 10;

/// The shortest total length of small unchanged leaves for which a separate file is made.
const GATHERED_LEN_MIN_BYTES: u64 = 1 << 10;

/// The most files that a save links, besides the first file. If the base has more, the leaves of
/// its smallest files are gathered again.
pub(super) const LINKS_MAX: usize = 64;

/// A plan whose raw leaves are divided over files.
pub(super) struct Reused<'t> {
    pub plan: Plan<'t>,
    /// The safetensors files; there is always one.
    pub files: Vec<ReusedFile>,
}

/// One safetensors file of the save.
pub(super) struct ReusedFile {
    pub leaves: Vec<u32>,
    pub origin: Origin,
}

/// The source of a file's bytes.
pub(super) enum Origin {
    Written,
    /// The save writes the file, and hashes its leaves for the next save.
    Gathered,
    Linked(Link),
}

/// Reuses nothing: all files are written.
pub(super) fn reuse_nothing(plan: Plan<'_>, header_len_max_bytes: usize) -> Reused<'_> {
    let files = split_by_header(&plan, &raw_order(&plan), header_len_max_bytes);
    let files = files.into_iter().map(|leaves| ReusedFile { leaves, origin: Origin::Written }).collect();
    Reused { plan, files }
}

/// The options for using a base.
#[derive(Debug, Clone, Copy)]
pub(super) struct HowReused {
    /// The most memory that leaves [keep](regrow_tree::array::Array::kept_len_bytes) while they are
    /// compared; one leaf may keep more.
    pub budget_bytes: u64,
    /// Whether files are linked without reading them, so that their blocks are not checked.
    pub trusted: bool,
}

impl HowReused {
    pub fn of(options: &SaveOptions) -> Self {
        let budget_bytes = options.budget_bytes.unwrap_or(BUDGET_DEFAULT_BYTES);
        Self { budget_bytes, trusted: options.trust_base }
    }
}

pub(super) fn reuse<'t>(
    plan: Plan<'t>,
    base: Base,
    header_len_max_bytes: usize,
    how: HowReused,
    monitor: &Monitor,
) -> Result<Reused<'t>> {
    let began = Instant::now();
    monitor.enter(Stage::Compare);
    let mut old_files = base.match_leaves(&plan);
    // Check the files of the base in a second thread: the disk reads while this thread hashes.
    let (unchanged, rotten) = thread::scope(|threads| {
        let files = &old_files;
        let checking = (!how.trusted).then(|| threads.spawn(move || rotten(files, monitor)));
        let unchanged = Unchanged::find(&plan, files, how.budget_bytes, monitor);
        let rotten = checking.map_or(Ok(Vec::new()), |checking| match checking.join() {
            Ok(rotten) => rotten,
            Err(panic) => resume_unwind(panic),
        });
        Ok::<_, Error>((unchanged?, rotten?))
    })?;
    for (at, error) in rotten {
        monitor.note(format!("a file of the base is damaged, so its leaves were written again: {error}"));
        old_files.retain(|old| old.at != at);
    }
    monitor.add(Stage::Compare, began.elapsed(), 0);
    monitor.enter(Stage::Prepare);
    old_files.retain(|old| old.is_whole && old.leaves.iter().all(|leaf| unchanged.has(leaf.leaf)));
    let files = arrange(&plan, old_files, &unchanged, header_len_max_bytes)?;
    Ok(Reused { plan, files })
}

/// Reads and checks the files that may be linked by their digests alone. Returns the numbers of
/// damaged files, with their errors. Files that are compared byte by byte are read anyway.
fn rotten(old_files: &[OldFile], monitor: &Monitor) -> Result<Vec<(usize, Error)>> {
    let mut rotten = Vec::new();
    for old in old_files.iter().filter(|old| old.is_whole && old.record.blake3.is_some() && !old.is_far()) {
        match old.check(monitor) {
            Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
            checked => rotten.extend(checked.err().map(|error| (old.at, error))),
        }
    }
    Ok(rotten)
}

/// The files of the save, in this order: the first file of the base, if it is linked; files of
/// changed leaves; other linked files; files of gathered leaves. `old_files` are the files without
/// changes.
fn arrange(
    plan: &Plan<'_>,
    old_files: Vec<OldFile>,
    unchanged: &Unchanged,
    header_len_max_bytes: usize,
) -> Result<Vec<ReusedFile>> {
    let structure = structure_in_header(plan.structure()?);
    let (first, mut links): (Vec<_>, Vec<_>) =
        old_files.into_iter().partition(|old| old.at == 0 && old.would_be_written(plan, structure));
    links.retain(|old| !old.leaves.is_empty() && old.would_be_written(plan, None));
    links.sort_by_key(|old| (Reverse(old.record.len_bytes), old.at));
    links.truncate(LINKS_MAX);
    links.sort_by_key(|old| old.at);

    let mut is_linked = vec![false; plan.leaves.len()];
    for leaf in first.iter().chain(&links).flat_map(|old| &old.leaves) {
        if let Some(is_linked) = is_linked.get_mut(leaf.leaf as usize) {
            *is_linked = true;
        }
    }
    let mut to_write = raw_order(plan);
    to_write.retain(|&leaf| is_linked.get(leaf as usize) == Some(&false));
    let len_bytes = |leaf: u32| plan.leaves.get(leaf as usize).map_or(0, |leaf| leaf.len_bytes);
    let is_small = |leaf: u32| len_bytes(leaf) < SMALL_LEAF_LEN_BYTES;
    let at_rest = to_write.iter().copied().filter(|&leaf| unchanged.has(leaf));
    let gathers_small =
        at_rest.filter(|&leaf| is_small(leaf)).map(len_bytes).sum::<u64>() >= GATHERED_LEN_MIN_BYTES;
    let is_gathered = |leaf: u32| unchanged.has(leaf) && (gathers_small || !is_small(leaf));
    let those = |which: &dyn Fn(u32) -> bool| -> Vec<Vec<u32>> {
        let leaves: Vec<u32> = to_write.iter().copied().filter(|&leaf| which(leaf)).collect();
        split_by_header(plan, &leaves, header_len_max_bytes)
    };
    let changed = those(&|leaf| !is_gathered(leaf));
    let gathered = [
        those(&|leaf| is_gathered(leaf) && !is_small(leaf)),
        those(&|leaf| is_gathered(leaf) && is_small(leaf)),
    ];

    // The first file has the structure, so it exists even without leaves.
    let needs_changed = first.is_empty();
    let linked = |old: OldFile| ReusedFile { leaves: old.order(), origin: Origin::Linked(old.into_link()) };
    let written = |leaves| ReusedFile { leaves, origin: Origin::Written };
    let gather = |leaves| ReusedFile { leaves, origin: Origin::Gathered };
    let changed = changed.into_iter().filter(|leaves| needs_changed || !leaves.is_empty());
    let gathered = gathered.into_iter().flatten().filter(|leaves| !leaves.is_empty());
    let first = first.into_iter().map(linked).chain(changed.map(written));
    Ok(first.chain(links.into_iter().map(linked)).chain(gathered.map(gather)).collect())
}
