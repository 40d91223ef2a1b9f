//! Repair of a damaged store, on request: applies the remedies of all its [faults](super::faults).
//!
//! A damaged JSON file or an array without a header is kept as `<name>.damaged`. Neither TRAK nor
//! regrow reads such a file.

use std::path::Path;

use serde_json::{Map, Value};

use super::array_file::{ArrayFile, Condition};
use super::catalog::Catalog;
use super::faults::{Faults, Masked};
use super::layout::{Precision, SCORES_FOLDER, Slot};
use super::store::{lock, make_folder};
use super::survey::Survey;
use regrow_base::error::{Error, Result};
use regrow_base::text::counted;
use regrow_storage::local::sweep_new_files;

/// Each step needs what the step before has mended.
const STEPS: [fn(&mut Faults<'_>) -> Result<()>; 3] =
    [|faults| faults.metadata(), |faults| faults.models(), |faults| faults.experiments()];

/// Options of a repair.
#[derive(Debug, Clone, Default)]
pub struct Repair {
    /// The metadata, where `metadata.json` is lost.
    pub metadata: Option<Map<String, Value>>,
    /// The precision, where no array is left to tell it.
    pub precision: Option<Precision>,
    /// Mark rows that hold zeros only as not done. Their gradients may really be zero, so this is
    /// off by default.
    pub recompute_zero_rows: bool,
}

/// Repairs the store at `root`, under its lock; returns a line for each change. No other process
/// may be working on the models concerned.
///
/// # Errors
/// `Corrupt` if the metadata are lost and not given; what the disk says. Earlier changes stay.
pub fn repair(root: &Path, with: &Repair) -> Result<Vec<String>> {
    let root = std::path::absolute(regrow_storage::location::local(root)?)
        .map_err(|error| Error::io("cannot find", root, error))?;
    let found = std::fs::metadata(&root);
    found.map_err(|error| Error::io("cannot open the store", &root, error))?;
    let _lock = lock(&root, true)?;
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

impl Faults<'_> {
    /// Removes the marks of rows that are not done, then makes the arrays whole.
    pub(super) fn mend(&mut self, rows: Masked) -> Result<()> {
        let first_lost = rows.first_lost();
        if let Some((mask, condition)) = rows.mask {
            self.make_whole(&mask, condition)?;
            if !rows.undone.is_empty() || first_lost.is_some() {
                let is_lost = |row| {
                    first_lost.is_some_and(|first| row >= first) || rows.undone.binary_search(&row).is_ok()
                };
                let array = ArrayFile::open(&mask.path(&self.survey.root), &mask.spec, true)?;
                let count = array.clear_marks(is_lost)?;
                if count > 0 {
                    self.say(&mask.file, &format!("{} marked as not done", counted(count, "row", "rows")));
                }
            }
        }
        rows.arrays.into_iter().try_for_each(|(slot, condition)| self.make_whole(&slot, condition))
    }

    pub(super) fn make_whole(&mut self, slot: &Slot, condition: Condition) -> Result<()> {
        let root = &self.survey.root;
        let said = match condition {
            Condition::Whole => return Ok(()),
            Condition::Missing => "rebuilt: it was missing".to_owned(),
            Condition::Headless => {
                self.put_aside(&slot.file)?;
                "rebuilt: it had no header".to_owned()
            }
            Condition::Longer { by_bytes } => {
                format!("{} after its data removed", counted(by_bytes, "byte", "bytes"))
            }
            Condition::Cut { by_bytes, .. } => {
                format!("{} zero now", counted(by_bytes, "missing byte is", "missing bytes are"))
            }
        };
        if matches!(condition, Condition::Missing | Condition::Headless) {
            let (folder, name) = slot.split();
            make_folder(&root.join(folder))?;
            ArrayFile::create(&root.join(folder), name, &slot.spec, false)?;
        } else {
            ArrayFile::mend_len(&slot.path(root), &slot.spec)?;
        }
        self.say(&slot.file, &said);
        Ok(())
    }

    pub(super) fn put_aside(&mut self, name: &str) -> Result<()> {
        let from = self.survey.root.join(name);
        match std::fs::rename(&from, self.survey.root.join(format!("{name}.damaged"))) {
            Ok(()) => self.say(name, "the old file is now beside it, as .damaged"),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("cannot move aside", &from, error)),
        }
        Ok(())
    }
}
