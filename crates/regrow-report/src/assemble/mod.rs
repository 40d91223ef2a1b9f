//! Makes the model from the data of the engine.
//!
//! ```text
//! open       the checkpoint and the other checkpoints       metadata only
//! read       statistics and damage of the checkpoint        one pass, within the budget
//! compare    each other checkpoint with the first           one pass over both
//! steps      of a folder: some of its steps                 one pass over each of these steps
//! ```
//!
//! | module | makes |
//! |---|---|
//! | `overview` | the properties of a checkpoint as numbers and texts, and its damage |
//! | `protection` | the checksums that cover the data, for each leaf and as text |
//! | `leaves` | the columns of leaves: metadata, statistics, histograms |
//! | `shardings` | the shardings of arrays on devices |
//! | `comparisons` | the differences from other checkpoints |
//! | `series` | a folder of steps over time |
//! | `words` | texts for dtypes, shapes and files |

mod comparisons;
mod leaves;
mod overview;
mod protection;
mod series;
mod shardings;
mod words;

use std::time::{SystemTime, UNIX_EPOCH};

use regrow::location::Location;
use regrow::tree::PathPattern;
use regrow::{Checkpoint, Error, ErrorKind, Monitor, OpenOptions, Result, StatisticsOptions};

use crate::model::{Reading, Report};
pub use series::STEPS_READ_MAX;

/// The most leaves with a histogram: with more, no browser could open the page.
const HISTOGRAMS_MAX: usize = 20_000;

/// The checkpoint that a report describes, or a checkpoint that the report compares with it.
#[derive(Debug, Clone)]
pub enum Subject {
    /// The location of a checkpoint. It is opened again if it is replaced during the read.
    At(Location),
    /// A checkpoint that the caller has opened, or that is in memory.
    Opened(Checkpoint),
}

impl From<Location> for Subject {
    fn from(location: Location) -> Self {
        Self::At(location)
    }
}

impl From<Checkpoint> for Subject {
    fn from(checkpoint: Checkpoint) -> Self {
        Self::Opened(checkpoint)
    }
}

/// The options of a report.
#[derive(Debug, Clone, Default)]
pub struct ReportOptions {
    /// The title of the page; the last part of the path if `None`.
    pub title: Option<String>,
    /// The command or the call that made the report, which the page shows.
    pub command: String,
    /// The options to open the checkpoints.
    pub open: OpenOptions,
    /// Read and compare only leaves that match one of these patterns; all leaves if empty. The
    /// report lists all leaves in any case.
    pub only: Vec<PathPattern>,
    /// Read about this many bytes of each longer array; all bytes if `None`.
    pub sample_bytes: Option<u64>,
    /// Read no data of the checkpoint and its steps. The report then has no statistics, and shows
    /// no damage of data. Comparisons still read data.
    pub without_statistics: bool,
    /// Extra memory for reading, in bytes; 64 MiB if `None`. The report itself needs some hundred
    /// more bytes for each leaf.
    pub budget_bytes: Option<u64>,
    /// Watches the work, and can cancel it.
    pub monitor: Monitor,
}

impl ReportOptions {
    fn reading(&self) -> Reading {
        match (self.without_statistics, self.sample_bytes) {
            (true, _) => Reading::Metadata,
            (false, Some(_)) => Reading::Sample,
            (false, None) => Reading::Whole,
        }
    }

    fn statistics(&self, histogram_leaves_max: usize) -> StatisticsOptions {
        StatisticsOptions {
            open: self.open.clone(),
            only: self.only.clone(),
            sample_bytes: self.sample_bytes,
            histogram_leaves_max: Some(histogram_leaves_max),
            budget_bytes: self.budget_bytes,
            monitor: self.monitor.clone(),
        }
    }
}

/// A checkpoint, and the error if only its arrays could be opened.
struct Opened {
    checkpoint: Checkpoint,
    damage: Option<Error>,
}

/// Reads a checkpoint and the checkpoints to compare with, and makes the data of a page.
///
/// Cost: one pass over the checkpoint's data, one pass over both sides of each comparison, and for
/// a folder of steps one pass over each of at most [`STEPS_READ_MAX`](crate::STEPS_READ_MAX) steps.
/// Damage is part of the report, and not an error.
///
/// # Errors
/// The errors of [`regrow::open`] for any of the checkpoints; `NotFound` for patterns that match
/// nothing; `Cancelled`.
pub fn assemble(subject: &Subject, others: &[Subject], options: &ReportOptions) -> Result<Report> {
    regrow::engine::read_unreplaced(|_| assemble_once(subject, others, options))
}

fn assemble_once(subject: &Subject, others: &[Subject], options: &ReportOptions) -> Result<Report> {
    let opened = open(subject, &options.open)?;
    let others = others.iter().map(|other| open(other, &options.open)).collect::<Result<Vec<_>>>()?;
    let checkpoint = &opened.checkpoint;
    let read = match options.without_statistics {
        true => None,
        false => Some(checkpoint.statistics(&options.statistics(HISTOGRAMS_MAX))?),
    };
    let mut report = Report {
        title: options.title.clone().unwrap_or_else(|| words::title(checkpoint)),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        written_seconds: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0.0, |since| since.as_secs_f64()),
        command: options.command.clone(),
        checkpoint: overview::overview(&opened, options.reading())?,
        leaves: leaves::leaves(checkpoint, read.as_ref()),
        shardings: shardings::shardings(checkpoint),
        ..Report::default()
    };
    report.leaves.sharding = shardings::of_leaves(checkpoint);
    if let Some(read) = &read {
        overview::add_findings(&mut report.checkpoint, checkpoint, read);
    }
    for other in &others {
        let comparison = comparisons::comparison(checkpoint, other, options)?;
        report.comparisons.push(comparison);
    }
    report.steps = series::series(checkpoint, read.as_ref(), options)?;
    let mut steps = report.steps.iter().flat_map(|series| &series.steps);
    if let Some(own) = steps.find(|step| Some(step.step) == report.checkpoint.step) {
        report.checkpoint.stored_bytes = own.stored_bytes;
    }
    Ok(report)
}

fn open(subject: &Subject, options: &OpenOptions) -> Result<Opened> {
    let at = match subject {
        Subject::Opened(checkpoint) => return Ok(Opened { checkpoint: checkpoint.clone(), damage: None }),
        Subject::At(location) => location,
    };
    match regrow::open_with(at, options) {
        Ok(checkpoint) => Ok(Opened { checkpoint, damage: None }),
        // If only the pytree is damaged, show the arrays without it.
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
            let arrays_only = OpenOptions { arrays_only: true, ..options.clone() };
            match regrow::open_with(at, &arrays_only) {
                Ok(checkpoint) => Ok(Opened { checkpoint, damage: Some(error) }),
                Err(_) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}
