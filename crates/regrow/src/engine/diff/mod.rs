//! Compares two checkpoints of any layouts: finds leaves that only one checkpoint has. For a leaf
//! that both checkpoints have, computes the distance between the two values.
//!
//! ```text
//! pair      leaves of one key path; containers that differ             metadata alone
//! judge     kinds, shapes and dtypes: must data be read?               metadata alone
//! compare   pieces of both leaves, side by side, and their distance    a few threads, one byte budget
//! beside    files of items byte by byte; metrics and metadata as JSON values
//! report    the differences, the verdict, and what could not be read
//! ```
//!
//! Leaves are paired by their key paths. Leaves without a partner are then paired by the texts of
//! the keys, so that a list of one layout matches a dict of another layout with the keys `"0"`,
//! `"1"`. The order of keys is not a difference.
//!
//! A leaf is read in pieces of 4 MiB of both sides. Pieces begin at chunks. If one checksum covers
//! the whole leaf, the pieces are read front to back. Several threads share a long leaf. If both
//! sides have raw data in the same file (saves with a [base](super::SaveOptions::base)), the data
//! is read once. Small raw leaves are read many at a time. A leaf that is damaged on one side is a
//! finding that names the damaged file, and the comparison of the remaining leaves continues.

mod beside;
mod compare;
mod gather;
mod judge;
mod pair;
mod report;

use super::{Checkpoint, OpenOptions};
use crate::array::Tolerance;
use crate::error::{Error, Result};
use crate::formats::located;
use crate::location::ToLocation;
use crate::monitor::{Monitor, Stage};
use crate::storage::Retries;
use crate::tree::PathPattern;
use compare::Comparison;
use pair::Pairs;
pub use report::{ContainerDiff, DiffCounts, DiffFinding, DiffReport, LeafDiff, LeafStatus, Side};

/// The options of a comparison.
#[derive(Debug, Clone, Default)]
pub struct DiffOptions {
    /// The options to open the first checkpoint.
    pub open_a: OpenOptions,
    /// The options to open the second checkpoint.
    pub open_b: OpenOptions,
    /// Compare only leaves that match one of these patterns; all leaves if empty. A pattern that
    /// matches nothing in either checkpoint is an error.
    pub only: Vec<PathPattern>,
    /// The distance up to which two elements count as equal.
    pub tolerance: Tolerance,
    /// Different dtypes do not count as a difference: only the values are compared.
    pub ignore_dtype: bool,
    /// Count as differences: another kind of leaf (a NumPy array, a JAX array, a number), and
    /// another container (list, tuple, dict). If false, the report only mentions them.
    pub check_types: bool,
    /// Only find out which leaves differ: the report has no distances. The read of a leaf ends at
    /// its first difference, unless one checksum covers the whole leaf.
    pub equality_only: bool,
    /// Also list equal leaves in the report.
    pub list_equal: bool,
    /// Extra memory in bytes; 64 MiB if `None`.
    pub budget_bytes: Option<u64>,
    /// Watches the comparison, and can cancel it.
    pub monitor: Monitor,
}

/// Compares the checkpoints at two paths or URLs, bit by bit.
///
/// # Errors
/// The errors of [`Checkpoint::diff`] and of [`open`](super::open).
pub fn diff(a: impl ToLocation, b: impl ToLocation) -> Result<DiffReport> {
    diff_with(a, b, &DiffOptions::default())
}

/// Like [`diff`], with options: a tolerance, steps or items, some of the leaves.
///
/// # Errors
/// The errors of [`diff`]. If a checkpoint is replaced during the comparison, the comparison starts
/// again with the new one.
pub fn diff_with(a: impl ToLocation, b: impl ToLocation, options: &DiffOptions) -> Result<DiffReport> {
    let (a, b) = (located(a)?, located(b)?);
    Retries::until_unreplaced(|| {
        let a = super::open_with(&a, &options.open_a)?;
        a.diff(&super::open_with(&b, &options.open_b)?, options)
    })
}

impl Checkpoint {
    /// Compares this checkpoint with another one: structure, dtypes, shapes and every element.
    ///
    /// In checkpoints of items, files, metrics and metadata are compared too, and are reported like
    /// leaves. The extra memory stays within the budget.
    ///
    /// # Errors
    /// `NotFound` for patterns that match nothing; `InvalidArgument` for a tolerance that is not
    /// valid; `Replaced` if one of the checkpoints was replaced during the comparison; `Cancelled`.
    /// Leaves that cannot be read are findings.
    pub fn diff(&self, other: &Self, options: &DiffOptions) -> Result<DiffReport> {
        let monitor = &options.monitor;
        let _running = monitor.begin()?;
        options.tolerance.check()?;
        if options.equality_only && !options.tolerance.is_exact() {
            return Err(Error::invalid("a tolerance has no effect on a comparison for equality")
                .help("leave out the tolerance, or `equality_only`"));
        }
        let pairs = Pairs::of(self, other, &options.only)?;
        monitor.enter(Stage::Read);
        let compared = Comparison { a: self, b: other, pairs: &pairs, options }.run();
        let report = compared.and_then(|outcomes| gather::report(self, other, &pairs, outcomes, options));
        let report = report.and_then(|report| {
            self.unless_missing(!report.findings.is_empty())?;
            other.unless_missing(!report.findings.is_empty())?;
            monitor.finish().map(|()| report)
        });
        monitor.conclude(report)
    }
}
