//! The committed steps of a folder of steps, for commands that take all of them.

use super::{OpenOptions, VerifyOptions, VerifyReport, verify_with};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::{container, located};
use crate::location::{Location, ToLocation};

/// A committed step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommittedStep {
    /// The number.
    pub number: u64,
    /// The name of its folder or file.
    pub name: String,
}

/// The committed steps in a folder, by number; none if the location is one checkpoint.
///
/// # Errors
/// `InvalidArgument` for steps of Flax whose numbers are not whole; errors of the storage.
pub fn committed_steps(at: impl ToLocation, options: &OpenOptions) -> Result<Vec<CommittedStep>> {
    let at = located(at)?;
    let steps = container::steps_in(&at, options)?;
    steps
        .into_iter()
        .map(|(number, name)| match number {
            Some(number) => Ok(CommittedStep { number, name }),
            None => Err(Error::invalid("name a step with a fraction by its file").in_file(at.join(name))),
        })
        .collect()
}

/// Like [`committed_steps`], but an error if there are none.
///
/// # Errors
/// The errors of [`committed_steps`]; `NotFound`; `InvalidArgument` for a single checkpoint, and if
/// the options choose a step.
pub(super) fn all_steps(at: &Location, options: &OpenOptions) -> Result<Vec<CommittedStep>> {
    if options.step.is_some() {
        return Err(Error::invalid("`step` and `all_steps` exclude each other").in_file(at));
    }
    if !at.exists() {
        return Err(Error::new(ErrorKind::NotFound, "the folder does not exist").in_file(at));
    }
    let steps = committed_steps(at, options)?;
    match steps.is_empty() {
        true => Err(Error::invalid("this is not a folder of steps")
            .in_file(at)
            .expected("committed steps", "none")
            .help("leave out `all_steps`")),
        false => Ok(steps),
    }
}

/// Verifies each committed step of a folder. Returns the number of each step, with the report or
/// the error of its opening.
///
/// # Errors
/// `InvalidArgument` if the path is not a folder of steps; `Cancelled`; errors of the storage for
/// the folder.
pub fn verify_steps(
    path: impl ToLocation,
    options: &VerifyOptions,
) -> Result<Vec<(u64, Result<VerifyReport>)>> {
    let at = located(path)?;
    let mut reports = Vec::new();
    for CommittedStep { number, .. } in all_steps(&at, &options.open)? {
        let open = OpenOptions { step: Some(number), ..options.open.clone() };
        let report = verify_with(&at, &VerifyOptions { open, monitor: options.monitor.clone() });
        match report {
            Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
            report => reports.push((number, report)),
        }
    }
    Ok(reports)
}
