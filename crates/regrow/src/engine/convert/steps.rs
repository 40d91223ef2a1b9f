//! Converts all committed steps of a folder. Each step becomes a step of the target folder, in the
//! target layout.
//!
//! ```text
//! plan and check every step --> for each step: convert, commit
//! ```
//! The writing starts only when every step is known to be convertible. Each step has its own
//! commit. After an interruption the converted steps stay. The next run then returns an error,
//! unless the options allow it to overwrite.

use super::{ConvertOptions, ConvertPlan, ConvertReport, convert, plan_convert};
use crate::engine::names::is_left_out;
use crate::engine::steps::{CommittedStep, all_steps};
use crate::engine::{Layout, OpenOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::container::step_number;
use crate::formats::{Loss, LossKind, located};
use crate::location::{Location, ToLocation};
use crate::storage::UNCOMMITTED_MARK;
use crate::tree::KeyPath;

/// A step of the source, and the location of its conversion.
struct Planned {
    number: u64,
    name: String,
    target: Location,
    options: ConvertOptions,
}

/// Converts each committed step of the folder at `source` into a step of the folder at `target`.
///
/// # Errors
/// The errors of [`convert`](super::convert), with the step; `InvalidArgument` if the source is not
/// a folder of steps, if the target has steps that the source does not have, and for a base.
pub fn convert_steps(
    source: impl ToLocation,
    target: impl ToLocation,
    options: &ConvertOptions,
) -> Result<Vec<(u64, ConvertReport)>> {
    let (source, target) = (located(source)?, located(target)?);
    let planned = planned(&source, &target, options)?;
    for step in &planned {
        let admitted = step.plan(&source).and_then(|plan| plan.admit(&step.target, &step.options));
        admitted.map_err(|error| step.blame(error))?;
    }
    let mut beside = beside(&source, &planned)?;
    let mut reports: Vec<(u64, ConvertReport)> = Vec::with_capacity(planned.len());
    for step in &planned {
        match convert(&source, &step.target, &step.options) {
            Ok(mut report) => {
                report.losses.append(&mut beside);
                reports.push((step.number, report));
            }
            Err(error) => {
                let done: Vec<String> = reports.iter().map(|(number, _)| number.to_string()).collect();
                let error = step.blame(error);
                return Err(match done.is_empty() {
                    true => error,
                    false => error.help(format!(
                        "steps {} are converted: pass `step` to convert another one, or `overwrite` to convert \
                         all of them again",
                        done.join(", ")
                    )),
                });
            }
        }
    }
    Ok(reports)
}

/// Plans [`convert_steps`], and returns the errors that `lossy` does not avoid.
///
/// # Errors
/// The errors of [`convert_steps`].
pub fn plan_convert_steps(
    source: impl ToLocation,
    target: impl ToLocation,
    options: &ConvertOptions,
) -> Result<Vec<(u64, ConvertPlan)>> {
    let (source, target) = (located(source)?, located(target)?);
    let planned = planned(&source, &target, options)?;
    let mut beside = beside(&source, &planned)?;
    let plan = |step: &Planned| {
        let mut plan = step.plan(&source).map_err(|error| step.blame(error))?;
        plan.losses.append(&mut beside);
        Ok((step.number, plan))
    };
    planned.iter().map(plan).collect()
}

impl Planned {
    fn plan(&self, source: &Location) -> Result<ConvertPlan> {
        let plan = plan_convert(source, &self.options)?;
        plan.check(&self.target, &self.options).map(|()| plan)
    }

    fn blame(&self, error: Error) -> Error {
        let what = format!("step {}: {}", self.number, error.what());
        error.reworded(what)
    }
}

fn planned(source: &Location, target: &Location, options: &ConvertOptions) -> Result<Vec<Planned>> {
    if options.save.base.is_some() {
        return Err(Error::invalid("a base is for one checkpoint, but the conversion takes all steps")
            .help("leave out the base, or pass `step` to convert each step by itself"));
    }
    let steps = all_steps(source, &options.open)?;
    refuse_other_steps(target, &steps)?;
    let planned = |step: CommittedStep| {
        let mut options = options.clone();
        options.open = OpenOptions { step: Some(step.number), ..options.open };
        options.keep_items = true;
        let target = target.join(name_of(&step, &options.save.layout));
        Planned { number: step.number, name: step.name, target, options }
    };
    Ok(steps.into_iter().map(planned).collect())
}

/// The files beside the steps, as notes. No conversion copies them.
fn beside(source: &Location, steps: &[Planned]) -> Result<Vec<Loss>> {
    let mut losses = Vec::new();
    for entry in source.entries()? {
        let name = entry.name.to_string_lossy().into_owned();
        let is_step = steps.iter().any(|step| step.name == name);
        if !is_step && !is_left_out(&name) && !name.contains(UNCOMMITTED_MARK) {
            let what = format!("{name:?} beside the steps is left out; `regrow cp` keeps it");
            losses.push(Loss { kind: LossKind::Note, path: KeyPath::root(), what });
        }
    }
    Ok(losses)
}

/// The name of a converted step, by which readers of the target layout recognise it as a step.
fn name_of(step: &CommittedStep, layout: &Layout) -> String {
    let plain = match step_number(&step.name) {
        Some(_) => step.name.clone(),
        None => step.number.to_string(),
    };
    match layout.format().file_names().step_name {
        Some(name_of) => name_of(step.number, &plain, layout),
        None => plain,
    }
}

/// Returns an error if the target has a step that the source does not have: the steps of both would
/// look like one run.
fn refuse_other_steps(target: &Location, steps: &[CommittedStep]) -> Result<()> {
    if !target.is_folder() {
        return Ok(());
    }
    for entry in target.entries()? {
        let name = entry.name.to_string_lossy().into_owned();
        let number = step_number(name.split('.').next().unwrap_or(&name));
        let is_other = |number: u64| !steps.iter().any(|step| step.number == number);
        if !name.contains(UNCOMMITTED_MARK) && number.is_some_and(is_other) {
            return Err(Error::new(ErrorKind::AlreadyExists, "the target has a step that the source lacks")
                .in_file(target.join(name))
                .help("convert into a new folder"));
        }
    }
    Ok(())
}
