//! Plans which elements are read and in which order. Reads no data.

use super::super::patterns::check_patterns;
use super::super::pieces::{self, is_sealed, working_len_bytes};
use super::{Checkpoint, StatisticsOptions};
use crate::error::Result;
use crate::tree::{LeafInfo, LeafKind};

/// The number of blocks in a sample. Each block may need a whole chunk to be decoded.
const SAMPLE_BLOCKS: u64 = 16;

/// How a leaf is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    Numbers,
    Histogram,
    /// Only read an array whose elements are not numbers.
    Opaque,
    Text,
    /// Data of another program, which cannot be read.
    Unknown,
}

/// A run of elements of a leaf that one thread reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeafJob {
    pub leaf: usize,
    pub task: Task,
    pub first: u64,
    pub count: u64,
    /// The number of elements that are read at once.
    pub step: u64,
    /// Whether the job covers the whole leaf.
    pub is_whole: bool,
    pub is_sample: bool,
    len_bytes: u64,
    cost_bytes: u64,
}

impl pieces::Job for LeafJob {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn cost_bytes(&self) -> u64 {
        self.cost_bytes
    }
}

/// The jobs for the chosen leaves, in disk order.
pub(super) fn jobs(checkpoint: &Checkpoint, options: &StatisticsOptions) -> Result<Vec<LeafJob>> {
    check_patterns(checkpoint.tree(), options.only.iter())
        .map_err(|error| error.in_file(checkpoint.path()))?;
    let mut leaves: Vec<usize> = (0..checkpoint.tree().len()).collect();
    if !options.only.is_empty() {
        let paths = checkpoint.paths();
        leaves.retain(|&leaf| {
            paths.get(leaf).is_some_and(|path| options.only.iter().any(|glob| glob.matches(path)))
        });
    }
    let histogram_elements_min = elements_of_longest(checkpoint, &leaves, options.histogram_leaves_max);
    checkpoint.sort_by_place(&mut leaves);
    let mut jobs = Vec::with_capacity(leaves.len());
    for leaf in leaves {
        let Some(info) = checkpoint.tree().leaves().get(leaf) else { continue };
        let task = match &info.kind {
            LeafKind::Placeholder => continue,
            LeafKind::Str => Task::Text,
            LeafKind::Unknown(_) => Task::Unknown,
            LeafKind::NumpyOther(_) | LeafKind::NumpyOtherScalar(_) => Task::Opaque,
            LeafKind::PrngKey(_) | LeafKind::Bytes => Task::Opaque,
            _ if info.shape.len_elements() >= histogram_elements_min => Task::Histogram,
            _ => Task::Numbers,
        };
        push_jobs(&mut jobs, checkpoint, (leaf, info, task), options.sample_bytes);
    }
    Ok(jobs)
}

/// The number of elements from which a leaf is one of the `count` longest leaves. If the next leaf
/// is as long as some of these leaves, leaves of this length do not count.
fn elements_of_longest(checkpoint: &Checkpoint, leaves: &[usize], count: Option<usize>) -> u64 {
    let Some(count) = count.filter(|count| *count < leaves.len()) else { return 0 };
    let infos = leaves.iter().filter_map(|&leaf| checkpoint.tree().leaves().get(leaf));
    let mut elements: Vec<u64> = infos.map(|info| info.shape.len_elements()).collect();
    elements.sort_unstable_by(|a, b| b.cmp(a));
    elements.get(count).map_or(0, |next| next.saturating_add(1))
}

fn push_jobs(
    jobs: &mut Vec<LeafJob>,
    checkpoint: &Checkpoint,
    (leaf, info, task): (usize, &LeafInfo, Task),
    sample_bytes: Option<u64>,
) {
    let whole = LeafJob {
        leaf,
        task,
        first: 0,
        count: 0,
        step: 0,
        is_whole: true,
        is_sample: false,
        len_bytes: info.len_bytes(),
        cost_bytes: 0,
    };
    match task {
        Task::Text => return jobs.push(whole),
        Task::Unknown => return jobs.push(LeafJob { len_bytes: 0, ..whole }),
        Task::Numbers | Task::Histogram | Task::Opaque => {}
    }
    // A leaf with a refused claim is one job, which reports the refusal.
    let once = pieces::once(checkpoint, leaf, info);
    if pieces::check_claim(checkpoint, leaf, &once).is_err() {
        return jobs.push(LeafJob { len_bytes: 0, ..whole });
    }
    let total = once.shape.len_elements();
    let size = info.dtype.size_bytes() as u64;
    let step = pieces::piece_elements(checkpoint, leaf, info);
    let working = working_len_bytes(checkpoint, leaf, info, step);
    let is_sealed = is_sealed(checkpoint, leaf);
    let mut push = |first: u64, count: u64, is_sample: bool| {
        let step = step.min(count);
        let cost_bytes = working.saturating_add(step.saturating_mul(size));
        let len_bytes = count.saturating_mul(size);
        let is_whole = count == total;
        jobs.push(LeafJob { first, count, step, is_whole, is_sample, len_bytes, cost_bytes, ..whole });
    };
    match sample_bytes.map(|bytes| (bytes / size).max(1)) {
        // A leaf under one checksum is read as a whole, because its parts cannot be checked alone.
        Some(wanted) if wanted < total && !is_sealed => {
            let blocks = SAMPLE_BLOCKS.min(wanted);
            let count = wanted / blocks;
            let apart = (total - count) / (blocks - 1).max(1);
            (0..blocks).for_each(|block| push(block * apart, count, true));
        }
        _ => {
            let count = if is_sealed { total.max(1) } else { pieces::job_elements(step) };
            let mut first = 0;
            loop {
                push(first, count.min(total - first), false);
                first += count;
                if first >= total {
                    break;
                }
            }
        }
    }
}
