//! Repair of a damaged store, on request: applies the remedies of all its [faults](super::faults).
//!
//! A damaged JSON file or an array without a header is kept as `<name>.damaged`. Neither TRAK nor
//! regrow reads such a file.

use std::path::Path;

use serde_json::{Map, Value};

use super::array_file::{ArrayFile, Condition};
use super::catalog::Catalog;
use super::documents;
use super::faults::{Fault, Remedy, Survey};
use super::layout::{EXPERIMENTS_FILE, METADATA_FILE, Precision, SCORES_FOLDER, Slot, id_file};
use super::store::{lock, make_folder};
use regrow_base::error::{Error, Result};
use regrow_base::text::counted;
use regrow_storage::local::sweep_new_files;

/// A remedy can uncover further faults: those of rows show once their mask is whole.
const ROUNDS: usize = 4;

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
    let mut work = Work { survey: survey(&root, with)?, with, done: Vec::new() };
    work.mend(work.survey.metadata())?;
    work.survey = survey(&root, with)?;
    work.mend(work.survey.damaged_flags())?;
    for id in work.survey.models()? {
        sweep_new_files(&root.join(id.to_string()));
        work.mend_all(|survey| survey.model(id))?;
    }
    work.survey = survey(&root, with)?;
    work.mend(work.survey.spare_flags())?;
    work.mend_all(Survey::experiments)?;
    Ok(work.done)
}

fn survey(root: &Path, with: &Repair) -> Result<Survey> {
    let mut survey = Survey::of(root, Catalog::read(root)?)?;
    survey.parameters.precision = with.precision.unwrap_or(survey.parameters.precision);
    survey.recompute_zero_rows = with.recompute_zero_rows;
    Ok(survey)
}

struct Work<'a> {
    survey: Survey,
    with: &'a Repair,
    done: Vec<String>,
}

impl Work<'_> {
    fn mend_all(&mut self, faults: impl Fn(&Survey) -> Result<Vec<Fault>>) -> Result<()> {
        for _ in 0..ROUNDS {
            if !self.mend(faults(&self.survey)?)? {
                break;
            }
        }
        Ok(())
    }

    /// Whether any of the faults has a remedy.
    fn mend(&mut self, faults: Vec<Fault>) -> Result<bool> {
        let remedies: Vec<Remedy> = faults.into_iter().filter_map(|fault| fault.remedy).collect();
        let has_any = !remedies.is_empty();
        let (refused, remedies): (Vec<_>, _) =
            remedies.into_iter().partition(|remedy| matches!(remedy, Remedy::Refuse(_)));
        // Records first: no record may call scores final whose targets are being removed.
        let is_of_record = |remedy: &Remedy| matches!(remedy, Remedy::SetRecord { .. } | Remedy::NoRecords);
        let (of_records, others): (Vec<_>, Vec<_>) = remedies.into_iter().partition(is_of_record);
        let has_records = !of_records.is_empty();
        for remedy in refused.into_iter().chain(of_records) {
            self.apply(remedy)?;
        }
        if has_records {
            let records = self.survey.catalog.experiments.clone().unwrap_or_default();
            documents::write_object(&self.survey.root, EXPERIMENTS_FILE, &records)?;
            self.say(EXPERIMENTS_FILE, "written");
        }
        others.into_iter().try_for_each(|remedy| self.apply(remedy))?;
        Ok(has_any)
    }

    fn apply(&mut self, remedy: Remedy) -> Result<()> {
        let root = &self.survey.root.clone();
        match remedy {
            Remedy::Refuse(error) => return Err(error),
            Remedy::WriteMetadata => {
                let Some(given) = &self.with.metadata else {
                    let what = "the metadata is lost, so the kind of projection is unknown";
                    return Err(Error::corrupt(what)
                        .in_file(root.join(METADATA_FILE))
                        .help("give `repair` the metadata that the store was made with"));
                };
                documents::sizes_of(given)?;
                self.put_aside(METADATA_FILE)?;
                documents::write_object(root, METADATA_FILE, given)?;
                self.say(METADATA_FILE, "written from the given metadata");
            }
            Remedy::MakeFolder(id) => {
                make_folder(&root.join(id.to_string()))?;
                self.say(&id.to_string(), "folder made");
                self.survey.folders.push(id);
            }
            Remedy::PutAside(name) => self.put_aside(&name)?,
            Remedy::WriteFlags(id, flags) => {
                documents::write_flags(root, id, flags)?;
                let (a, b) = (u8::from(flags.is_featurized), u8::from(flags.is_finalized));
                self.say(&id_file(id), &format!("is_featurized {a}, is_finalized {b}"));
                self.survey.catalog.models.insert(id, flags);
            }
            Remedy::RemoveOtherFlags(id, flags) => {
                documents::write_flags(root, id, flags)?;
                self.say(&id_file(id), "no longer mentions other models");
            }
            Remedy::Unmark { mask, rows, first_lost } => {
                let array = ArrayFile::open(&mask.path(root), &mask.spec, true)?;
                if !rows.is_empty() {
                    array.set_marks(&rows, 0)?;
                    array.sync()?;
                }
                let lost = first_lost.map_or(Ok(0), |first| array.clear_marks_from(first))?;
                let count = rows.len() as u64 + lost;
                if count > 0 {
                    self.say(&mask.file, &format!("{} marked as not done", counted(count, "row", "rows")));
                }
            }
            Remedy::MakeWhole(slot, condition) => self.make_whole(&slot, condition)?,
            Remedy::NoRecords => {
                self.put_aside(EXPERIMENTS_FILE)?;
                self.survey.catalog.experiments = Some(Map::new());
            }
            Remedy::SetRecord { name, record, said } => {
                let records = self.survey.catalog.experiments.get_or_insert_default();
                match record {
                    Some(record) => drop(records.insert(name, record)),
                    None => drop(records.shift_remove(&name)),
                }
                if let Some(said) = said {
                    self.say(EXPERIMENTS_FILE, &said);
                }
            }
        }
        Ok(())
    }

    fn make_whole(&mut self, slot: &Slot, condition: Condition) -> Result<()> {
        let root = &self.survey.root.clone();
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
                let (one, many) = ("missing byte is", "missing bytes are");
                format!("{} zero now", counted(by_bytes, one, many))
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

    fn put_aside(&mut self, name: &str) -> Result<()> {
        let from = self.survey.root.join(name);
        match std::fs::rename(&from, self.survey.root.join(format!("{name}.damaged"))) {
            Ok(()) => self.say(name, "the old file is now beside it, as .damaged"),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("cannot move aside", &from, error)),
        }
        Ok(())
    }

    fn say(&mut self, name: &str, what: &str) {
        self.done.push(format!("{name}: {what}"));
    }
}
