//! Makes the model from the data of the engine.
//!
//! ```text
//! open       the checkpoint, the others                     metadata alone
//! read       statistics and damage of the checkpoint        one pass, within the budget
//! compare    each other with the first                      one pass over both
//! steps      of a folder: some of its steps                 one pass over each of these
//! ```
//!
//! | module | makes |
//! |---|---|
//! | `overview` | the properties of a checkpoint in numbers and words, and its damage |
//! | `protection` | what checksums protect, leaf by leaf and in words |
//! | `leaves` | the columns: metadata, statistics, histograms |
//! | `shardings` | how arrays lie on devices |
//! | `comparisons` | the differences |
//! | `series` | a folder of steps over time |
//! | `words` | dtypes, shapes and files as texts |

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

/// How often to start again if a checkpoint is replaced while it is read.
const ATTEMPTS_MAX: usize = 4;

/// Histograms of more leaves than this would make a page that no browser can open.
const HISTOGRAMS_MAX: usize = 20_000;

/// What a report can be about.
#[derive(Debug, Clone)]
pub enum Subject {
    /// A checkpoint at a place; opened again if it is replaced in between.
    At(Location),
    /// What the caller has opened, or has in memory.
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

/// What goes into a report.
#[derive(Debug, Clone, Default)]
pub struct ReportOptions {
    /// What the page is called; the last part of the path if `None`.
    pub title: Option<String>,
    /// The command or the call that asked for it, for the page to say.
    pub command: String,
    /// How to open the checkpoints.
    pub open: OpenOptions,
    /// Read and compare only leaves that one of these matches; all if empty. All leaves are listed
    /// in any case.
    pub only: Vec<PathPattern>,
    /// Look at about so many bytes of each longer array; at all of them if `None`.
    pub sample_bytes: Option<u64>,
    /// Read no data of the checkpoint and its steps: no statistics, and damage is not seen. What is
    /// compared is read.
    pub without_statistics: bool,
    /// Extra memory for reading, in bytes; 64 MiB if `None`. The report itself takes some hundred
    /// bytes a leaf beside it.
    pub budget_bytes: Option<u64>,
    /// Watches the work, and stops it.
    pub monitor: Monitor,
}

impl ReportOptions {
    /// How much of each leaf is read.
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

/// A checkpoint, and why it could not be opened with all that belongs to it.
struct Opened {
    checkpoint: Checkpoint,
    damage: Option<Error>,
}

/// Reads a checkpoint, and what it is compared with, and says all that a page shows.
///
/// Cost: one pass over the checkpoint's data, one over both sides of each comparison, and of a
/// folder of steps one over each of at most [`STEPS_READ_MAX`](crate::STEPS_READ_MAX) steps. Damage
/// is a part of the report, and no error.
///
/// # Errors
/// Those of [`regrow::open`], of any of the checkpoints; `NotFound` for patterns that match
/// nothing; `Cancelled`.
pub fn assemble(subject: &Subject, others: &[Subject], options: &ReportOptions) -> Result<Report> {
    let mut attempts = 1;
    loop {
        match assemble_once(subject, others, options) {
            Err(error) if error.kind() == ErrorKind::Replaced && attempts < ATTEMPTS_MAX => attempts += 1,
            report => return report,
        }
    }
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
        // Where only the pytree beside the arrays is damaged, they are shown all the same.
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
