//! Repairs a damaged store, on request: applies the remedies of all [faults](super::faults) of the
//! store.
//!
//! A damaged JSON file or an array without a header is kept as `<name>.damaged`. Neither TRAK nor
//! regrow reads such a file.

use std::path::Path;

use super::arrays::{Faults, Repair};
use super::catalog::Catalog;
use super::layout::SCORES_FOLDER;
use super::store::lock;
use super::survey::Survey;
use regrow_base::error::{Error, Result};
use regrow_storage::local::sweep_new_files;

/// Each step needs the files that the previous step has repaired.
const STEPS: [fn(&mut Faults<'_>) -> Result<()>; 3] =
    [|faults| faults.metadata(), |faults| faults.models(), |faults| faults.experiments()];

/// Repairs the store at `root`, under its lock; returns a line for each change. No other process
/// may be working on the models concerned.
///
/// # Errors
/// `Corrupt` if the metadata are lost and not given; errors of the disk. Earlier changes stay.
pub fn repair(root: &Path, with: &Repair) -> Result<Vec<String>> {
    let root = std::path::absolute(regrow_storage::location::local(root)?)
        .map_err(|error| Error::io("cannot find", root, error))?;
    let found = std::fs::metadata(&root);
    found.map_err(|error| Error::io("cannot open the store", &root, error))?;
    let _lock = lock(&root)?;
    sweep_new_files(&root);
    sweep_new_files(&root.join(SCORES_FOLDER));
    let mut done = Vec::new();
    for step in STEPS {
        let mut survey = Survey::of(&root, Catalog::read(&root)?)?;
        survey.parameters.precision = with.precision.unwrap_or(survey.parameters.precision);
        let mut faults = Faults { survey: &survey, with: Some(with), findings: Vec::new(), done };
        step(&mut faults)?;
        done = faults.done;
    }
    Ok(done)
}
