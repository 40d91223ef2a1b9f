//! Runs the planned jobs, and merges the results of each leaf.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::super::pieces::{self, read_elements};
use super::super::small::SmallLeaves;
use super::super::verify::{refused_leaf, refused_note};
use super::plan::{LeafJob, Task};
use super::report::{LeafReading, LeafStatistics, StatisticsReport};
use super::{Checkpoint, StatisticsOptions};
use crate::array::Stats;
use crate::bytes::limits::allocate;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::ReaderExt;
use crate::monitor::{Monitor, Stage};
use crate::report::Finding;

/// The results of all jobs so far.
#[derive(Debug, Default)]
struct Found {
    leaves: Vec<LeafStatistics>,
    failed: BTreeMap<usize, Error>,
    refused: BTreeMap<usize, Error>,
    read_bytes: u64,
}

/// The result of a job.
enum Outcome {
    Read(Option<Box<Stats>>),
    Refused(Error),
    Failed(Error),
}

pub(super) fn run(
    checkpoint: &Checkpoint,
    jobs: Vec<LeafJob>,
    options: &StatisticsOptions,
) -> Result<StatisticsReport> {
    let monitor = &options.monitor;
    monitor.expect(jobs.iter().map(pieces::Job::len_bytes).fold(0, u64::saturating_add));
    let rest = checkpoint.reader().check_rest()?;
    let leaves = vec![LeafStatistics::default(); checkpoint.tree().len()];
    let found = Mutex::new(Found { leaves, ..Found::default() });
    pieces::for_each_batch(jobs, options.budget_bytes, |batch| {
        let is_small =
            |job: &&LeafJob| job.is_whole && job.count > 0 && !matches!(job.task, Task::Text | Task::Unknown);
        let small = SmallLeaves::read(checkpoint, batch.iter().filter(is_small).map(|job| job.leaf));
        let outcomes = batch.iter().map(|job| match read(checkpoint, job, &small, monitor)? {
            Outcome::Failed(error) if error.kind() == ErrorKind::Cancelled => Err(error),
            outcome => Ok(outcome),
        });
        let outcomes = outcomes.collect::<Result<Vec<_>>>()?;
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        batch.iter().zip(outcomes).try_for_each(|(job, outcome)| found.add(job, outcome))
    })?;
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut findings = rest.findings;
    for (leaf, error) in found.failed {
        findings.push(Finding { error: error.at_leaf(&checkpoint.key_path(leaf)?) });
    }
    let mut notes = rest.notes;
    if !found.refused.is_empty() {
        let paths = checkpoint.paths();
        let refused = found.refused.into_iter().filter_map(|(leaf, why)| Some((paths.get(leaf)?, why)));
        notes.extend(refused_note(refused.collect()));
    }
    Ok(StatisticsReport { leaves: found.leaves, findings, notes, read_bytes: found.read_bytes })
}

impl Found {
    fn add(&mut self, job: &LeafJob, outcome: Outcome) -> Result<()> {
        let Some(own) = self.leaves.get_mut(job.leaf) else { return Ok(()) };
        match outcome {
            // If one part of a leaf failed, ignore the other parts.
            _ if own.reading == LeafReading::Failed => {}
            Outcome::Failed(error) => {
                *own = LeafStatistics { reading: LeafReading::Failed, stats: None };
                self.failed.insert(job.leaf, error);
            }
            Outcome::Refused(why) => {
                own.reading = LeafReading::Refused;
                self.refused.insert(job.leaf, why);
            }
            Outcome::Read(stats) => {
                own.reading = if job.is_sample { LeafReading::Sample } else { LeafReading::Whole };
                self.read_bytes += pieces::Job::len_bytes(job);
                match (&mut own.stats, stats) {
                    (Some(known), Some(more)) => known.merge(&more)?,
                    (None, more) => own.stats = more,
                    (Some(_), None) => {}
                }
            }
        }
        Ok(())
    }
}

/// Runs a job. An error that concerns only its leaf becomes part of the outcome.
fn read(checkpoint: &Checkpoint, job: &LeafJob, small: &SmallLeaves, monitor: &Monitor) -> Result<Outcome> {
    monitor.check()?;
    let reader = checkpoint.reader();
    if let Some(why) = refused_leaf(reader, job.leaf) {
        monitor.advance(pieces::Job::len_bytes(job))?;
        return Ok(Outcome::Refused(why));
    }
    let read = match job.task {
        Task::Text => reader.read_text(job.leaf).map(|_| None),
        Task::Unknown => reader.check_unknown(job.leaf).map(|()| None),
        Task::Numbers | Task::Histogram | Task::Opaque => return read_array(checkpoint, job, small, monitor),
    };
    monitor.done(Stage::Read, pieces::Job::len_bytes(job))?;
    Ok(read.map_or_else(Outcome::Failed, Outcome::Read))
}

fn read_array(
    checkpoint: &Checkpoint,
    job: &LeafJob,
    small: &SmallLeaves,
    monitor: &Monitor,
) -> Result<Outcome> {
    let whole = checkpoint.info(job.leaf)?;
    let info = &*pieces::once(checkpoint, job.leaf, whole);
    if let Err(error) = pieces::check_claim(checkpoint, job.leaf, info) {
        return Ok(Outcome::Failed(error));
    }
    let mut stats = match job.task {
        Task::Numbers => Some(Box::new(Stats::new(info.dtype))),
        Task::Histogram => Some(Box::new(Stats::with_histogram(info.dtype))),
        _ => None,
    };
    let small = small.get(job.leaf).filter(|_| job.is_whole);
    let mut buffer = match small {
        Some(_) => Vec::new(),
        None => allocate(job.step.saturating_mul(info.dtype.size_bytes() as u64))?,
    };
    let (mut first, end) = (job.first, job.first + job.count);
    let mut told_bytes = 0;
    loop {
        monitor.check()?;
        let run = (first, job.step.min(end - first));
        // A small leaf has only one part.
        let piece = match small {
            Some(bytes) => Ok(bytes),
            None => read_elements(checkpoint, job.leaf, info, run, &mut buffer),
        };
        let piece = match piece {
            Ok(piece) => piece,
            Err(error) => {
                monitor.advance(pieces::Job::len_bytes(job) - told_bytes)?;
                return Ok(Outcome::Failed(error));
            }
        };
        if let Some(stats) = &mut stats {
            stats.update(piece)?;
        }
        monitor.done(Stage::Read, piece.len() as u64)?;
        told_bytes += piece.len() as u64;
        first += run.1;
        if first >= end {
            if let Some(stats) = &mut stats {
                stats.repeat(whole.shape.len_elements() / info.shape.len_elements().max(1));
            }
            return Ok(Outcome::Read(stats));
        }
    }
}
