//! Arrays of a store and the masks that cover them: what is lost, and how `repair` mends them.

use serde_json::{Map, Value};

use super::array_file::{ArrayFile, Condition};
use super::layout::{ArraySpec, Precision, Slot};
use super::store::make_folder;
use super::survey::Survey;
use crate::Finding;
use regrow_base::error::{Error, Result};
use regrow_base::text::counted;

/// Options of a repair.
#[derive(Debug, Clone, Default)]
pub struct Repair {
    /// The metadata, where `metadata.json` is lost.
    pub metadata: Option<Map<String, Value>>,
    /// The precision of the arrays. If `None`, the precision of the first array that can be read,
    /// or half precision if there is none.
    pub precision: Option<Precision>,
    /// Mark rows in which all numbers are zero as not done. Their gradients may really be zero, so
    /// this is off by default.
    pub recompute_zero_rows: bool,
}

/// Goes through the faults of a store: collects the findings, and applies the remedies if it
/// repairs.
pub(super) struct Faults<'a> {
    pub(super) survey: &'a Survey,
    /// `None` for `verify`, which changes nothing.
    pub(super) with: Option<&'a Repair>,
    pub(super) findings: Vec<Finding>,
    /// A line for each change.
    pub(super) done: Vec<String>,
}

/// Arrays, with the mask that covers them if there is one.
pub(super) struct Masked {
    pub(super) mask: Option<(Slot, Condition)>,
    pub(super) arrays: Vec<(Slot, Condition)>,
    /// The number of rows that are marked as done; `None` if there is no mask that can be read.
    pub(super) done: Option<u64>,
    /// Rows whose number in the mask is neither 0 nor 1, and rows of zeros that are to be computed
    /// again.
    pub(super) undone: Vec<u64>,
    has_zero_rows: bool,
}

impl Masked {
    /// The first row that is lost, of any array or of the mask.
    pub(super) fn first_lost(&self) -> Option<u64> {
        self.arrays.iter().chain(&self.mask).filter_map(|(_, condition)| condition.first_lost()).min()
    }

    pub(super) fn is_sound(&self) -> bool {
        self.first_lost().is_none() && !self.has_zero_rows
    }
}

impl Faults<'_> {
    /// A mask and the arrays that it covers.
    pub(super) fn rows(&mut self, mask: Option<Slot>, covered: Vec<Slot>) -> Result<Masked> {
        let mut arrays = Vec::with_capacity(covered.len());
        for slot in covered {
            let condition = self.condition(&slot)?;
            arrays.push((slot, condition));
        }
        let mut rows = Masked { mask: None, arrays, done: None, undone: Vec::new(), has_zero_rows: false };
        let Some(mask) = mask else { return Ok(rows) };
        let condition = self.condition(&mask)?;
        if condition.first_lost().is_none() {
            let (mut done, mut odd) = (0, Vec::new());
            let array = ArrayFile::open_of_any_len(&mask.path(&self.survey.root), &mask.spec, false);
            let read = array.and_then(|array| {
                array.for_each_number(|row, number| match number {
                    0 => {}
                    1 => done += 1,
                    _ => odd.push(row),
                })
            });
            match read {
                Ok(()) => rows.done = Some(done),
                Err(error) if self.with.is_some() => return Err(error),
                // `verify` also reads the mask as a leaf, and that read reports the error.
                Err(_) => {}
            }
            if !odd.is_empty() {
                let error = self.corrupt(&mask.file, "a mask has values other than 0 and 1");
                self.found(error.expected("0 or 1 in each row", format!("{} other rows", odd.len())));
            }
            let mut all = rows.arrays.iter().map(|(_, condition)| condition).chain([&condition]);
            let is_whole = all.all(|condition| *condition == Condition::Whole);
            if is_whole && self.with.is_some_and(|with| with.recompute_zero_rows) {
                let arrays: Vec<&Slot> = rows.arrays.iter().map(|(slot, _)| slot).collect();
                let zero = self.survey.zero_rows(&mask, &arrays)?.0;
                rows.has_zero_rows = !zero.is_empty();
                odd.extend(zero);
                odd.sort_unstable();
            }
            rows.undone = odd;
        }
        rows.mask = Some((mask, condition));
        Ok(rows)
    }

    /// The condition of an array.
    ///
    /// # Errors
    /// In a repair, for an array that cannot be mended. In `verify`, another size becomes a
    /// finding, and the read of the array reports any other damage.
    pub(super) fn condition(&mut self, slot: &Slot) -> Result<Condition> {
        match Condition::of(&self.survey.root, slot) {
            Err(_) if self.with.is_none() => {
                if let Some(found) = self.survey.spec_of(&slot.file).ok().filter(|found| *found != slot.spec)
                {
                    self.found(self.other_sizes(slot, found));
                }
                Ok(Condition::Whole)
            }
            other => other,
        }
    }

    pub(super) fn other_sizes(&self, slot: &Slot, found: ArraySpec) -> Error {
        let what = "the size of an array differs from the JSON files of the store";
        self.corrupt(&slot.file, what).expected(slot.spec, found)
    }

    pub(super) fn corrupt(&self, file: &str, what: impl Into<String>) -> Error {
        Error::corrupt(what).in_file(self.survey.root.join(file))
    }

    pub(super) fn found(&mut self, error: Error) {
        self.findings.push(Finding { error });
    }

    pub(super) fn say(&mut self, name: &str, what: &str) {
        self.done.push(format!("{name}: {what}"));
    }

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
