//! Reads pairs of leaves side by side, one piece at a time, and compares them.
//!
//! A short pair is one job. A long pair is several jobs if its parts can be read alone. Threads get
//! jobs in the disk order of the first checkpoint, and small jobs in batches.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::super::pieces::{self, is_sealed, read_elements, working_len_bytes};
use super::super::small::SmallLeaves;
use super::judge::{Task, status, task};
use super::pair::Pairs;
use super::report::{LeafStatus, Side};
use super::{Checkpoint, DiffOptions};
use crate::array::{Distance, Dtype, Shape};
use crate::bytes::limits::allocate;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::ReaderExt;
use crate::monitor::Stage;
use crate::reads::Source;
use crate::tree::LeafInfo;

/// The result for a pair.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The status of a pair of texts, or of a pair that needs no read.
    Status(LeafStatus),
    /// A pair of number arrays. `is_same_file`: both sides are the same bytes of one file.
    Numbers { distance: Box<Distance>, is_same_file: bool },
    /// A pair of arrays that are compared as bytes.
    Opaque(Box<Distance>),
    /// One or both sides cannot be read.
    Failed(Vec<(Side, Error)>),
}

/// The results for all pairs.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    /// The outcomes by pair number, without equal pairs that the options leave out.
    pub outcomes: BTreeMap<usize, Outcome>,
    /// The pairs that are equal and not in `outcomes`.
    pub equal_count: u64,
    /// Decoded bytes that were read, of both sides.
    pub read_bytes: u64,
}

/// The inputs of a running comparison.
pub(super) struct Comparison<'c> {
    pub a: &'c Checkpoint,
    pub b: &'c Checkpoint,
    pub pairs: &'c Pairs,
    pub options: &'c DiffOptions,
}

/// The two leaves of a pair.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair<'c> {
    pub a: Half<'c>,
    pub b: Half<'c>,
}

/// The leaf of one side of a pair.
#[derive(Debug, Clone, Copy)]
pub(super) struct Half<'c> {
    checkpoint: &'c Checkpoint,
    leaf: usize,
    pub info: &'c LeafInfo,
}

/// A run of elements of a pair, which one thread compares.
#[derive(Debug, Clone, Copy)]
struct PairJob {
    pair: usize,
    task: Task,
    first: u64,
    count: u64,
    is_whole: bool,
    /// Whether both sides are the same bytes of one file.
    is_same_file: bool,
    /// Whether one checksum covers the whole leaf. The leaf is then read to its end.
    is_sealed: bool,
    /// Bytes to read, of both sides.
    len_bytes: u64,
    cost_bytes: u64,
}

impl<'c> Comparison<'c> {
    pub fn run(&self) -> Result<Outcomes> {
        let mut order: Vec<usize> = (0..self.pairs.both.len()).collect();
        let mut ranks = vec![usize::MAX; self.a.tree().len()];
        for (rank, leaf) in self.a.reader().read_order().into_iter().enumerate() {
            if let Some(slot) = ranks.get_mut(leaf) {
                *slot = rank;
            }
        }
        order.sort_by_key(|&pair| self.pairs.both.get(pair).and_then(|(leaf, _)| ranks.get(*leaf)));
        let jobs = self.jobs(&order);
        self.options.monitor.expect(jobs.iter().map(|job| job.len_bytes).fold(0, u64::saturating_add));
        let outcomes = Mutex::new(Outcomes::default());
        pieces::for_each_batch(jobs, self.options.budget_bytes, |batch| {
            let mut own = Outcomes::default();
            let small = self.small(&batch);
            for job in batch {
                let Some(pair) = self.pair(job.pair) else { continue };
                let outcome = self.outcome(&job, pair, &small)?;
                own.read_bytes += job.len_bytes;
                own.add(job.pair, outcome, |outcome| self.is_dull(&job, outcome, pair))?;
            }
            let mut all = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
            all.equal_count += own.equal_count;
            all.read_bytes += own.read_bytes;
            own.outcomes.into_iter().try_for_each(|(pair, outcome)| all.add(pair, outcome, |_| false))
        })?;
        let mut outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
        if !self.options.list_equal {
            let before = outcomes.outcomes.len();
            outcomes.outcomes.retain(|&pair, outcome| {
                self.pair(pair).is_none_or(|pair| self.status(outcome, pair) != LeafStatus::Equal)
            });
            outcomes.equal_count += (before - outcomes.outcomes.len()) as u64;
        }
        Ok(outcomes)
    }

    pub fn pair(&self, pair: usize) -> Option<Pair<'c>> {
        let &(a, b) = self.pairs.both.get(pair)?;
        let half = |checkpoint: &'c Checkpoint, leaf: usize| {
            Some(Half { checkpoint, leaf, info: checkpoint.tree().leaves().get(leaf)? })
        };
        Some(Pair { a: half(self.a, a)?, b: half(self.b, b)? })
    }

    pub fn status(&self, outcome: &Outcome, pair: Pair<'_>) -> LeafStatus {
        let (a, b) = (pair.a.info, pair.b.info);
        match outcome {
            Outcome::Status(LeafStatus::Equal) => status(a, b, (0, 0), self.options),
            Outcome::Status(known) => *known,
            Outcome::Failed(_) => LeafStatus::Unread,
            Outcome::Numbers { distance, .. } => {
                status(a, b, (distance.differing_count(), distance.outside_count()), self.options)
            }
            Outcome::Opaque(distance) => {
                status(a, b, (distance.differing_count(), distance.differing_count()), self.options)
            }
        }
    }

    /// Whether a pair is equal, and the options do not list equal pairs.
    fn is_dull(&self, job: &PairJob, outcome: &Outcome, pair: Pair<'_>) -> bool {
        job.is_whole && !self.options.list_equal && self.status(outcome, pair) == LeafStatus::Equal
    }

    fn small(&self, batch: &[PairJob]) -> [SmallLeaves; 2] {
        let read = |job: &&PairJob| matches!(job.task, Task::Numbers | Task::Opaque) && job.len_bytes > 0;
        let leaves = |job: &PairJob| self.pairs.both.get(job.pair).copied();
        let of_a = batch.iter().filter(read).filter_map(leaves).map(|(a, _)| a);
        let of_b =
            batch.iter().filter(read).filter(|job| !job.is_same_file).filter_map(leaves).map(|(_, b)| b);
        [SmallLeaves::read(self.a, of_a), SmallLeaves::read(self.b, of_b)]
    }

    fn jobs(&self, order: &[usize]) -> Vec<PairJob> {
        let mut jobs = Vec::with_capacity(order.len());
        for &number in order {
            let Some(pair) = self.pair(number) else { continue };
            let (a, b) = (pair.a.info, pair.b.info);
            let task = task(a, b);
            let mut job = PairJob {
                pair: number,
                task,
                first: 0,
                count: 0,
                is_whole: true,
                is_same_file: false,
                is_sealed: false,
                len_bytes: 0,
                cost_bytes: 0,
            };
            if !matches!(task, Task::Numbers | Task::Opaque) {
                if task == Task::Texts {
                    job.len_bytes = a.len_bytes().saturating_add(b.len_bytes());
                }
                jobs.push(job);
                continue;
            }
            job.is_same_file = pair.is_same_file();
            job.is_sealed = is_sealed(self.a, pair.a.leaf) || is_sealed(self.b, pair.b.leaf);
            let (a, b) = (&*pair.once(pair.a), &*pair.once(pair.b));
            if pair.check_claims().is_err() {
                // The job itself reports the refused claim.
                jobs.push(job);
                continue;
            }
            let total = a.shape.len_elements();
            let per_element = match (job.is_same_file, self.options.equality_only) {
                (true, true) => 0,
                (true, false) => a.dtype.size_bytes(),
                (false, _) => a.dtype.size_bytes() + b.dtype.size_bytes(),
            } as u64;
            let step = pair.piece_elements();
            let working = working_len_bytes(self.a, pair.a.leaf, a, step).saturating_add(working_len_bytes(
                self.b,
                pair.b.leaf,
                b,
                step,
            ));
            job.cost_bytes = working.saturating_add(step.saturating_mul(per_element));
            let job_elements = match job.is_sealed {
                // One job reads all of the leaf, because the checksum needs the leaf from front to
                // back.
                true => total.max(1),
                false => pieces::job_elements(step),
            };
            loop {
                job.count = job_elements.min(total - job.first);
                job.is_whole = job.count == total;
                job.len_bytes = job.count.saturating_mul(per_element);
                jobs.push(job);
                job.first += job.count;
                if job.first >= total {
                    break;
                }
            }
        }
        jobs
    }

    fn outcome(&self, job: &PairJob, pair: Pair<'_>, small: &[SmallLeaves; 2]) -> Result<Outcome> {
        let failed = |errors: Vec<(Side, Error)>| -> Result<Outcome> {
            let named = |(side, error): (Side, Error)| {
                let half = pair.half(side);
                match error.kind() {
                    ErrorKind::Cancelled => Err(error),
                    _ => Ok((side, error.at_leaf(&half.checkpoint.key_path(half.leaf)?))),
                }
            };
            errors.into_iter().map(named).collect::<Result<_>>().map(Outcome::Failed)
        };
        match job.task {
            Task::Known(known) => Ok(Outcome::Status(known)),
            Task::Unknown => {
                let unread = |half: Half<'_>| match half.checkpoint.reader().check_unknown(half.leaf) {
                    Err(error) => error,
                    Ok(()) => Error::unsupported("this leaf needs the program that wrote it"),
                };
                failed(vec![(Side::A, unread(pair.a)), (Side::B, unread(pair.b))])
            }
            Task::Texts => {
                let text = |half: Half<'_>| half.checkpoint.reader().read_text(half.leaf);
                let texts = (text(pair.a), text(pair.b));
                self.options.monitor.done(Stage::Read, job.len_bytes)?;
                match texts {
                    (Ok(a), Ok(b)) if a == b => Ok(Outcome::Status(LeafStatus::Equal)),
                    (Ok(_), Ok(_)) => Ok(Outcome::Status(LeafStatus::Values)),
                    (a, b) => failed(errors(a.err(), b.err())),
                }
            }
            Task::Numbers | Task::Opaque => match self.distance(job, pair, small)? {
                Err(errors) => failed(errors),
                Ok(distance) if job.task == Task::Opaque => Ok(Outcome::Opaque(Box::new(distance))),
                Ok(distance) => {
                    Ok(Outcome::Numbers { distance: Box::new(distance), is_same_file: job.is_same_file })
                }
            },
        }
    }

    /// Reads the elements of a job on both sides and compares them. If a read fails, returns the
    /// errors of both sides.
    fn distance(
        &self,
        job: &PairJob,
        pair: Pair<'_>,
        small: &[SmallLeaves; 2],
    ) -> Result<std::result::Result<Distance, Vec<(Side, Error)>>> {
        if let Err(errors) = pair.check_claims() {
            return Ok(Err(errors));
        }
        let whole = &pair.a.info.shape;
        let (a, b) = (&*pair.once(pair.a), &*pair.once(pair.b));
        let mut distance = Distance::new(a.dtype, b.dtype, self.options.tolerance);
        if job.is_same_file && self.options.equality_only {
            return Ok(Ok(distance));
        }
        let step = pair.piece_elements().min(job.count);
        let small = [small[0].get(pair.a.leaf), small[1].get(pair.b.leaf)];
        let buffer = |dtype: Dtype, is_needed: bool| match is_needed {
            true => allocate(step.saturating_mul(dtype.size_bytes() as u64)),
            false => Ok(Vec::new()),
        };
        let mut of_a = buffer(a.dtype, small[0].is_none())?;
        let mut of_b = buffer(b.dtype, small[1].is_none() && !job.is_same_file)?;
        let (mut first, end) = (job.first, job.first + job.count);
        let mut told_bytes = 0;
        loop {
            self.options.monitor.check()?;
            let run = (first, step.min(end - first));
            let piece_a = piece_of(pair.a, a, small[0], run, &mut of_a);
            let piece_b = match job.is_same_file {
                true => Ok(&[][..]),
                false => piece_of(pair.b, b, small[1], run, &mut of_b),
            };
            let (piece_a, piece_b) = match (piece_a, piece_b) {
                (Ok(a), Ok(b)) => (a, b),
                (a, b) => {
                    self.options.monitor.done(Stage::Read, job.len_bytes - told_bytes)?;
                    return Ok(Err(errors(a.err(), b.err())));
                }
            };
            let read_bytes = (piece_a.len() + piece_b.len()) as u64;
            let piece_b = if job.is_same_file { piece_a } else { piece_b };
            // If `equality_only` is set, equal bytes need no more work.
            if !self.options.equality_only || a.dtype != b.dtype || piece_a != piece_b {
                distance.update(first, piece_a, piece_b)?;
            }
            self.options.monitor.done(Stage::Read, read_bytes)?;
            told_bytes += read_bytes;
            first += run.1;
            let is_settled = self.options.equality_only && distance.differing_count() > 0 && !job.is_sealed;
            if is_settled && first < end {
                self.options.monitor.advance(job.len_bytes - told_bytes)?;
            }
            if is_settled || first >= end {
                distance.repeat(&a.shape, whole);
                return Ok(Ok(distance));
            }
        }
    }
}

impl<'c> Pair<'c> {
    fn half(self, side: Side) -> Half<'c> {
        match side {
            Side::A => self.a,
            Side::B => self.b,
        }
    }

    /// The number of elements in a piece: whole rows of the larger chunks.
    fn piece_elements(self) -> u64 {
        self.a.piece_elements().max(self.b.piece_elements())
    }

    /// The part of a leaf to read: an axis along which the elements of both leaves repeat has
    /// length 1.
    fn once(self, half: Half<'c>) -> Cow<'c, LeafInfo> {
        let [a, b] = [self.a, self.b].map(|half| pieces::once(half.checkpoint, half.leaf, half.info));
        let dims = a.shape.dims().iter().zip(b.shape.dims()).map(|(a, b)| *a.max(b));
        match Shape::new(dims.collect::<Vec<u64>>()) {
            Ok(shape) if shape != half.info.shape => Cow::Owned(LeafInfo { shape, ..half.info.clone() }),
            _ => Cow::Borrowed(half.info),
        }
    }

    fn check_claims(self) -> std::result::Result<(), Vec<(Side, Error)>> {
        let check = |half: Half<'c>| pieces::check_claim(half.checkpoint, half.leaf, &self.once(half)).err();
        let errors = errors(check(self.a), check(self.b));
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    fn is_same_file(self) -> bool {
        if self.a.info.dtype != self.b.info.dtype {
            return false;
        }
        match (self.a.checkpoint.reader().source(self.a.leaf), self.b.checkpoint.reader().source(self.b.leaf))
        {
            (Ok(Source::Raw(a)), Ok(Source::Raw(b))) => {
                (a.offset_bytes, a.len_bytes) == (b.offset_bytes, b.len_bytes)
                    && a.blob.identity().is_some_and(|identity| Some(identity) == b.blob.identity())
            }
            _ => false,
        }
    }
}

impl Half<'_> {
    fn piece_elements(self) -> u64 {
        pieces::piece_elements(self.checkpoint, self.leaf, self.info)
    }

    fn read<'o>(self, info: &LeafInfo, run: (u64, u64), out: &'o mut [u8]) -> Result<&'o [u8]> {
        read_elements(self.checkpoint, self.leaf, info, run, out)
    }
}

/// The elements of a run. `small` has all elements of a small leaf, which is one run. The elements
/// of other leaves are read into `out`.
fn piece_of<'o>(
    half: Half<'_>,
    info: &LeafInfo,
    small: Option<&'o [u8]>,
    run: (u64, u64),
    out: &'o mut [u8],
) -> Result<&'o [u8]> {
    match small {
        Some(bytes) => Ok(bytes),
        None => half.read(info, run, out),
    }
}

impl pieces::Job for PairJob {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn cost_bytes(&self) -> u64 {
        self.cost_bytes
    }
}

impl Outcomes {
    fn add(&mut self, pair: usize, outcome: Outcome, is_dull: impl Fn(&Outcome) -> bool) -> Result<()> {
        if is_dull(&outcome) {
            self.equal_count += 1;
            return Ok(());
        }
        match (self.outcomes.get_mut(&pair), outcome) {
            (None, outcome) => drop(self.outcomes.insert(pair, outcome)),
            (Some(Outcome::Failed(known)), Outcome::Failed(more)) => {
                // Keep only the first error of each side: other parts of the leaf fail for the same
                // reason.
                for (side, error) in more {
                    if !known.iter().any(|(other, _)| *other == side) {
                        known.push((side, error));
                    }
                }
            }
            (Some(Outcome::Failed(_)), _) => {}
            (Some(known), Outcome::Failed(errors)) => *known = Outcome::Failed(errors),
            (
                Some(Outcome::Numbers { distance, .. } | Outcome::Opaque(distance)),
                Outcome::Numbers { distance: more, .. } | Outcome::Opaque(more),
            ) => distance.merge(&more)?,
            (Some(_), _) => return Err(Error::invalid("parts of one leaf were compared in two ways")),
        }
        Ok(())
    }
}

fn errors(a: Option<Error>, b: Option<Error>) -> Vec<(Side, Error)> {
    let a = a.map(|error| (Side::A, error));
    a.into_iter().chain(b.map(|error| (Side::B, error))).collect()
}
