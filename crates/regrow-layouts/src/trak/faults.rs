//! The faults of a store: each with the finding of `verify` and the remedy of `repair`.
//!
//! A remedy never guesses: rows that may be lost become not done, and flags that cannot be known
//! become 0. So the next run computes a little more, and no wrong value counts as right. A remedy
//! first clears flags, then marks, then changes arrays. So no flag or mark ever claims rows that
//! are gone.
//!
//! | fault | finding | remedy |
//! |---|---|---|
//! | `metadata.json` missing, empty, cut | yes | written from the metadata that the caller gives |
//! | `id_<ID>.json` empty, cut, incomplete | when opened | put aside; flags from the mask and the arrays |
//! | a model without a file of flags | yes | the same |
//! | a second file of flags of a model | if it differs | put aside |
//! | a mask with other numbers than 0 and 1 | yes | these rows are not done |
//! | flags say more than the mask | yes | flags from the mask |
//! | `experiments.json` empty, cut | when opened | put aside; records from the arrays, not final |
//! | an experiment without a record | yes | the same |
//! | a record with another number of targets than its arrays | yes | the number of the arrays |
//! | an array is cut or too long | when read | made whole; lost rows are not done |
//! | an array is missing or has no header | when read | made again; its rows are not done |
//! | an array has another dtype or other sizes | yes | none: `repair` refuses |
//! | rows that are done hold zeros only | a note | with `recompute_zero_rows`: not done |
//! | final features of zeros, final scores with NaN or without targets | yes | none |

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::array_file::{ArrayFile, Condition};
use super::catalog::{Catalog, DamagedFile, Subject, model_folders, names_in};
use super::documents::{self, Experiment, ModelFlags};
use super::finite::is_finite;
use super::layout::{
    ARRAY_SUFFIX, ArraySpec, CHECKPOINT_FILE, EXPERIMENTS_FILE, ExperimentName, METADATA_FILE, Parameters,
    Precision, SCORES_FOLDER, Slot, TrainArray, id_file,
};
use super::store::is_there;
use crate::Finding;
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_base::text::counted;

/// Rows named in one note.
const NAMED_MAX: usize = 10;

/// One fault of a store.
#[derive(Debug)]
pub(super) struct Fault {
    /// `None` where opening the store or reading the array reports it.
    finding: Option<Error>,
    /// `None` where only a new run of TRAK helps.
    pub(super) remedy: Option<Remedy>,
}

/// A step of `repair`.
#[derive(Debug)]
pub(super) enum Remedy {
    /// From the metadata that the caller gives.
    WriteMetadata,
    /// Of a model.
    MakeFolder(i64),
    /// The file gets a name that neither TRAK nor regrow looks at.
    PutAside(String),
    WriteFlags(i64, ModelFlags),
    /// The file also holds flags of other models, which do not count.
    RemoveOtherFlags(i64, ModelFlags),
    /// These rows, and all rows from the first lost row on.
    Unmark {
        mask: Slot,
        rows: Vec<u64>,
        first_lost: Option<u64>,
    },
    MakeWhole(Slot, Condition),
    /// `experiments.json` starts empty; a damaged one is put aside.
    NoRecords,
    /// `None` drops the record.
    SetRecord {
        name: String,
        record: Option<Value>,
        said: Option<String>,
    },
    /// `repair` stops, and changes nothing more.
    Refuse(Error),
}

impl Fault {
    /// A fault that `verify` reports and `repair` cannot mend.
    fn found(finding: Error) -> Self {
        Self { finding: Some(finding), remedy: None }
    }

    /// A fault that opening or reading reports.
    fn silent(remedy: Remedy) -> Self {
        Self { finding: None, remedy: Some(remedy) }
    }

    fn new(finding: Option<Error>, remedy: Remedy) -> Self {
        Self { finding, remedy: Some(remedy) }
    }
}

/// A store as it lies on disk, without its lock.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) root: PathBuf,
    pub(super) catalog: Catalog,
    pub(super) parameters: Parameters,
    /// Models with a folder, registered or not.
    pub(super) folders: Vec<i64>,
    /// Whether rows that are done and hold zeros only are a fault.
    pub(super) recompute_zero_rows: bool,
}

impl Survey {
    /// # Errors
    /// If the folder cannot be listed.
    pub(super) fn of(root: &Path, catalog: Catalog) -> Result<Self> {
        let folders = model_folders(root)?;
        let parameters = parameters_of(root, &catalog, &folders);
        Ok(Self { root: root.to_owned(), catalog, parameters, folders, recompute_zero_rows: false })
    }

    /// All findings but those of reading arrays.
    ///
    /// # Errors
    /// If a folder cannot be listed.
    pub(super) fn findings(&self) -> Result<Vec<Finding>> {
        let mut faults = self.metadata();
        for id in self.models()? {
            faults.extend(self.model(id)?);
        }
        faults.extend(self.experiments()?);
        faults.extend(self.results().map(Fault::found));
        faults.extend(self.spare_flags());
        Ok(faults.into_iter().filter_map(|fault| fault.finding).map(|error| Finding { error }).collect())
    }

    pub(super) fn metadata(&self) -> Vec<Fault> {
        let is_sound = |found| documents::sizes_of(found).is_ok();
        if self.catalog.metadata.as_ref().is_some_and(is_sound) {
            return Vec::new();
        }
        let finding = self.corrupt(METADATA_FILE, "the metadata are missing");
        let help = "give `repair` the metadata that the store was made with";
        vec![Fault::new(Some(finding.help(help)), Remedy::WriteMetadata)]
    }

    /// Damaged files of flags whose name does not belong to a folder: they cannot be rebuilt.
    pub(super) fn damaged_flags(&self) -> Vec<Fault> {
        let aside = |fault: &DamagedFile| {
            let Subject::Model(id) = fault.subject else { return None };
            let name = fault.error.place().file.as_ref()?.file_name()?.to_string_lossy().into_owned();
            let is_model = |id: &i64| id_file(*id) == name && self.folders.contains(id);
            let remedy = id.filter(is_model).is_none().then_some(Remedy::PutAside(name))?;
            Some(Fault::silent(remedy))
        };
        self.catalog.faults.iter().filter_map(aside).collect()
    }

    /// Second files of flags. Only the first fault of a file has a remedy.
    pub(super) fn spare_flags(&self) -> Vec<Fault> {
        let mut seen = HashSet::new();
        let fault = |spare: &super::catalog::SpareFlags| {
            let counts = self.catalog.models.get(&spare.id).copied().unwrap_or_default();
            let finding = (counts != spare.flags).then(|| {
                let expected = format!("{} (in {})", counts.to_record(), spare.counts);
                self.corrupt(&spare.file, format!("two files differ about model {}", spare.id))
                    .expected(expected, spare.flags.to_record())
                    .help("TRAK uses the file that it reads last; `repair` moves this one aside")
            });
            let own = self.catalog.models.iter().find(|(id, _)| id_file(**id) == spare.file);
            let remedy = seen.insert(spare.file.clone()).then(|| match own {
                Some((&id, &flags)) => Remedy::RemoveOtherFlags(id, flags),
                None => Remedy::PutAside(spare.file.clone()),
            });
            Fault { finding, remedy }
        };
        self.catalog.spare.iter().map(fault).collect()
    }

    /// Registered models, models of damaged files of flags, and models whose file is lost.
    pub(super) fn models(&self) -> Result<BTreeSet<i64>> {
        let mut ids: BTreeSet<i64> = self.catalog.models.keys().copied().collect();
        for &id in &self.folders {
            let is_damaged = |fault: &DamagedFile| fault.subject == Subject::Model(Some(id));
            if self.catalog.faults.iter().any(is_damaged) || !ids.contains(&id) && self.has_work(id)? {
                ids.insert(id);
            }
        }
        Ok(ids)
    }

    /// Whether a model has arrays, and a mask that is not empty. A process that is killed while it
    /// registers a model leaves an empty mask.
    fn has_work(&self, id: i64) -> Result<bool> {
        let names = names_in(&self.root.join(id.to_string()))?;
        let mask = self.parameters.train(id, TrainArray::Mask);
        Ok(names.iter().any(|name| name.ends_with(ARRAY_SUFFIX)) && self.marked_rows(&mask.file) != Some(0))
    }

    /// The faults of a model's flags and arrays, in the order in which to mend them. If the mask is
    /// not whole, the faults of the rows show once it is.
    pub(super) fn model(&self, id: i64) -> Result<Vec<Fault>> {
        let mut faults = Vec::new();
        if !self.folders.contains(&id) {
            return Ok(vec![Fault::silent(Remedy::MakeFolder(id))]);
        }
        let checkpoint = format!("{id}/{CHECKPOINT_FILE}");
        if documents::read_object(&self.root.join(&checkpoint)).is_err() {
            faults.push(Fault::silent(Remedy::PutAside(checkpoint)));
        }
        let [mask, grads, weights, features] = TrainArray::ALL.map(|array| self.parameters.train(id, array));
        let rows = self.rows(&mask, [&grads, &weights], &mut faults)?;
        let features_condition = self.condition(&features, &mut faults);
        let known = self.catalog.models.get(&id).copied();
        let finding = if known.is_none() {
            let error = self.corrupt(&id_file(id), format!("model {id} has arrays, but no file of flags"));
            Some(error.help("the file was lost; `repair` adds it again"))
        } else if rows.is_known && known.is_some_and(|known| known.is_featurized) && rows.done < rows.count {
            let what = format!("model {id} is flagged as featurized, but rows are missing");
            let expected = format!("{} rows done", rows.count);
            let found = format!("{} in its mask", rows.done);
            Some(self.corrupt(&id_file(id), what).expected(expected, found))
        } else {
            None
        };
        if !rows.is_known {
            faults.extend(finding.map(Fault::found));
            return Ok(faults);
        }
        let [grads_condition, weights_condition] = rows.conditions;
        let has_grads = grads_condition != Condition::Missing;
        let was_deleted = !has_grads && features_condition != Condition::Missing;
        let was_finalized = known.map_or(was_deleted, |flags| flags.is_finalized);
        let wanted = |first_lost: Option<u64>| {
            let is_featurized = rows.zero.is_empty() && rows.kept(first_lost) == rows.count;
            let is_whole = first_lost.or(features_condition.first_lost()).is_none();
            // Features that were computed from lost rows could be right or wrong.
            ModelFlags { is_featurized, is_finalized: was_finalized && is_featurized && is_whole }
        };
        let of_grads = grads_condition.first_lost().filter(|_| has_grads);
        let mut first_lost = of_grads.into_iter().chain(weights_condition.first_lost()).min();
        let mut flags = wanted(first_lost);
        if !has_grads && !flags.is_finalized {
            // They were deleted while the features were final: now they are needed again.
            first_lost = Some(0);
            flags = wanted(first_lost);
        }
        let stored = documents::read_flags(&self.root.join(id_file(id)));
        if stored.is_err() {
            faults.push(Fault::silent(Remedy::PutAside(id_file(id))));
        }
        if !stored.is_ok_and(|stored| stored.contains(&(id, flags))) {
            faults.push(Fault::new(finding, Remedy::WriteFlags(id, flags)));
        }
        self.unmark(mask, rows, first_lost, &mut faults);
        if has_grads || !flags.is_finalized {
            make_whole(grads, grads_condition, &mut faults);
        }
        make_whole(weights, weights_condition, &mut faults);
        make_whole(features, features_condition, &mut faults);
        Ok(faults)
    }

    /// The faults of `experiments.json` and of the arrays of all experiments.
    pub(super) fn experiments(&self) -> Result<Vec<Fault>> {
        let mut faults = Vec::new();
        if self.catalog.experiments.is_none() {
            faults.push(Fault::silent(Remedy::NoRecords));
        }
        let unrecorded = self.unrecorded()?;
        for (name, record) in self.catalog.experiments.iter().flatten() {
            match (Experiment::from_record(name, record), ExperimentName::new(name)) {
                (Ok(experiment), Ok(valid)) => self.experiment(&valid, experiment, record, &mut faults)?,
                (Ok(_), Err(_)) => {}
                (Err(_), _) if unrecorded.iter().any(|lost| lost.name.as_str() == name) => {}
                (Err(_), _) => {
                    let said = format!("record {name:?} removed: it is empty and has no arrays");
                    let (name, said) = (name.clone(), Some(said));
                    faults.push(Fault::silent(Remedy::SetRecord { name, record: None, said }));
                }
            }
        }
        for lost in unrecorded {
            let name = lost.name.as_str();
            let what = if lost.has_targets { "targets" } else { "scores" };
            let finding = (lost.has_targets || lost.has_scores).then(|| {
                let error =
                    self.corrupt(EXPERIMENTS_FILE, format!("experiment {name:?} has {what} and no record"));
                error.help(match lost.num_targets {
                    Some(_) => "another process has lost it; `repair` adds it again",
                    None => "and they are no arrays of a store: move their files away",
                })
            });
            let Some(num_targets) = lost.num_targets else {
                faults.extend(finding.map(Fault::found));
                continue;
            };
            let experiment = Experiment { num_targets, scores_finalized: false };
            let record = experiment.to_record(&self.root.join(lost.name.scores_file()));
            let said = Some(format!("{name:?} added, its scores are not final"));
            let remedy = Remedy::SetRecord { name: name.to_owned(), record: Some(record.clone()), said };
            faults.push(Fault::new(finding, remedy));
            self.experiment(&lost.name, experiment, &record, &mut faults)?;
        }
        Ok(faults)
    }

    fn experiment(
        &self,
        name: &ExperimentName,
        experiment: Experiment,
        record: &Value,
        faults: &mut Vec<Fault>,
    ) -> Result<()> {
        let mut wanted = experiment.clone();
        let mut scores = self.parameters.scores(name, experiment.num_targets);
        let (mut finding, mut said) = (None, None);
        // Arrays that agree with each other count more than a record: TRAK changes the number in
        // the record alone.
        if let Ok(found) = ArrayFile::spec_of(&scores.path(&self.root))
            && found.columns != experiment.num_targets
            && found == self.parameters.scores(name, found.columns).spec
        {
            finding = Some(self.other_sizes(&scores, found));
            said = Some(format!("{:?} has {} targets, as its arrays", name.as_str(), found.columns));
            wanted.num_targets = found.columns;
            scores.spec = found;
        }
        let targets = wanted.num_targets;
        let mut of_arrays = Vec::new();
        let mut is_sound = true;
        for (&id, flags) in &self.catalog.models {
            let grads = self.parameters.target_grads(id, name, targets);
            let mask = self.parameters.target_mask(id, name, targets);
            let has_mask = is_there(&mask.path(&self.root))?;
            if !is_there(&grads.path(&self.root))? && (!has_mask || self.is_barely_begun(id, name)) {
                continue;
            }
            if !has_mask {
                let condition = self.condition(&grads, &mut of_arrays);
                is_sound &= condition.first_lost().is_none();
                make_whole(grads, condition, &mut of_arrays);
                continue;
            }
            let rows = self.rows(&mask, [&grads], &mut of_arrays)?;
            let [condition] = rows.conditions;
            is_sound &= !rows.mask_is_lost && condition.first_lost().is_none() && rows.zero.is_empty();
            if !rows.is_known {
                continue;
            }
            // No mark at all: TRAK wrote the targets, and does not record which.
            let is_partial = rows.done > 0 && rows.done < rows.count;
            if experiment.scores_finalized && flags.is_finalized && is_partial {
                let what =
                    format!("scores of {:?} are flagged as final, but targets are missing", name.as_str());
                let expected = format!("{targets} targets done");
                let error = self.corrupt(&mask.file, what).expected(expected, rows.done);
                of_arrays.push(Fault::found(error));
            }
            self.unmark(mask, rows, condition.first_lost(), &mut of_arrays);
            make_whole(grads, condition, &mut of_arrays);
        }
        let condition = self.condition(&scores, &mut of_arrays);
        make_whole(scores, condition, &mut of_arrays);
        wanted.scores_finalized &= is_sound && condition.first_lost().is_none();
        if wanted != experiment {
            let mut record = record.clone();
            if let Some(record) = record.as_object_mut() {
                record.insert("num_targets".to_owned(), wanted.num_targets.into());
                record.insert("scores_finalized".to_owned(), u8::from(wanted.scores_finalized).into());
            }
            let (name, record) = (name.as_str().to_owned(), Some(record));
            faults.push(Fault::new(finding, Remedy::SetRecord { name, record, said }));
        }
        faults.append(&mut of_arrays);
        Ok(())
    }

    /// Final features and scores that cannot be right.
    fn results(&self) -> impl Iterator<Item = Error> {
        let finalized = self.catalog.models.iter().filter(|(_, flags)| flags.is_finalized);
        let features = finalized.filter_map(move |(&id, _)| {
            let features = self.open(&self.parameters.train(id, TrainArray::Features)).ok()?;
            let mut is_zero = self.parameters.train_set_size > 0;
            if let Err(error) = features.for_each_row(|_, bytes| is_zero &= is_all_zero(bytes)) {
                return Some(error);
            }
            is_zero.then(|| {
                let error =
                    Error::corrupt(format!("model {id} is flagged as finalized, but has no features"));
                error.in_file(features.path()).expected("features", "zeros only")
            })
        });
        let scores = self.recorded().filter(|(_, experiment)| experiment.scores_finalized);
        let scores = scores.filter_map(move |(name, experiment)| {
            let scores = self.open(&self.parameters.scores(&name, experiment.num_targets)).ok()?;
            refuse_non_finite(&scores).err()
        });
        features.chain(scores)
    }

    /// For each mask with rows that are done and hold zeros only: where, which, how many.
    ///
    /// They need not be wrong: a gradient can be zero, or too small for half precision. A power cut
    /// in a run of TRAK's own saver looks the same.
    pub(super) fn notes(&self) -> Vec<String> {
        let train = self.catalog.models.keys().map(|&id| {
            let [mask, grads, weights, _] = TrainArray::ALL.map(|array| self.parameters.train(id, array));
            (mask, vec![grads, weights])
        });
        let targets = self.catalog.models.keys().flat_map(|&id| {
            self.recorded().map(move |(name, Experiment { num_targets, .. })| {
                let mask = self.parameters.target_mask(id, &name, num_targets);
                (mask, vec![self.parameters.target_grads(id, &name, num_targets)])
            })
        });
        let note = |(mask, arrays): (Slot, Vec<Slot>)| {
            // Arrays that cannot be read are findings already.
            let (zero, done) = self.zero_rows(&mask, &arrays.iter().collect::<Vec<_>>()).ok()?;
            let named: Vec<String> = zero.iter().take(NAMED_MAX).map(u64::to_string).collect();
            let more = if zero.len() > NAMED_MAX { ", ..." } else { "" };
            (!zero.is_empty()).then(|| {
                format!(
                    "{}: {} of {} done hold zeros only: {}{more}; their gradients are zero, or a power \
                     cut took them while TRAK's own saver ran: then `repair` with `recompute_zero_rows` marks them as \
                     not done",
                    mask.file,
                    zero.len(),
                    counted(done, "row that is", "rows that are"),
                    named.join(", "),
                )
            })
        };
        train.chain(targets).filter_map(note).collect()
    }

    /// The error for an array that is missing; rows that its mask marks as done are lost.
    pub(super) fn missing(&self, slot: &Slot, mask: Option<&str>) -> Error {
        let found = match mask.and_then(|mask| Some((mask, self.marked_rows(mask)?))) {
            Some((mask, count)) if count > 0 => {
                format!("no file, while {mask} says that {count} of its rows are done")
            }
            _ => "no file".to_owned(),
        };
        Error::new(ErrorKind::NotFound, "an array of the store is missing")
            .in_file(slot.path(&self.root))
            .expected(slot.spec, found)
            .help(
                "copy it again if there is another copy; else `repair` makes it again, and marks its \
                 rows as not done",
            )
    }

    /// Experiments with a sound record.
    pub(super) fn recorded(&self) -> impl Iterator<Item = (ExperimentName, Experiment)> {
        self.catalog.experiments.iter().flatten().filter_map(|(name, record)| {
            Some((ExperimentName::new(name).ok()?, Experiment::from_record(name, record).ok()?))
        })
    }

    /// Experiments that have arrays and no sound record.
    pub(super) fn unrecorded(&self) -> Result<Vec<Unrecorded>> {
        let recorded: HashSet<ExperimentName> = self.recorded().map(|(name, _)| name).collect();
        let mut found: Vec<Unrecorded> = Vec::new();
        let mut add = |new: Unrecorded| match found.iter_mut().find(|known| known.name == new.name) {
            Some(known) => {
                known.num_targets = known.num_targets.or(new.num_targets);
                known.has_targets |= new.has_targets;
                known.has_scores |= new.has_scores;
            }
            None if recorded.contains(&new.name) => {}
            None => found.push(new),
        };
        for &id in &self.folders {
            for name in self.experiments_of(id)? {
                let (grads, mask) = (name.grads_file(id), name.targets_file(id));
                let spec = [&grads, &mask].into_iter().find_map(|file| self.spec_of(file).ok());
                let has_targets = !self.is_barely_begun(id, &name)
                    && (is_there(&self.root.join(&grads))? || self.marked_rows(&mask).is_some());
                let num_targets = spec.map(|spec| spec.rows);
                add(Unrecorded { name, num_targets, has_targets, has_scores: false });
            }
        }
        let scores = self.root.join(SCORES_FOLDER);
        let files = if scores.is_dir() { names_in(&scores)? } else { Vec::new() };
        for name in files.iter().filter_map(|file| ExperimentName::of_scores_file(file)) {
            if !self.folders.iter().any(|&id| self.is_barely_begun(id, &name)) {
                let num_targets = self.spec_of(&name.scores_file()).ok().map(|spec| spec.columns);
                add(Unrecorded { name, num_targets, has_targets: false, has_scores: true });
            }
        }
        Ok(found)
    }

    /// Experiments that have targets in a model's folder: first those with gradients, then those
    /// whose gradients are lost, as the mask of done targets tells.
    pub(super) fn experiments_of(&self, id: i64) -> Result<Vec<ExperimentName>> {
        let files = names_in(&self.root.join(id.to_string()))?;
        let mut names: Vec<ExperimentName> =
            files.iter().filter_map(|file| ExperimentName::of_grads_file(file)).collect();
        let masked = files.iter().filter_map(|file| ExperimentName::of_targets_file(file));
        let is_lost = |name: &ExperimentName| !names.contains(name) && !self.is_barely_begun(id, name);
        let lost: Vec<ExperimentName> = masked.filter(is_lost).collect();
        names.extend(lost);
        Ok(names)
    }

    /// Whether a process was killed while it started an experiment: it makes the arrays, the mask
    /// first, and adds the record last. No target is done then, and a new start goes on from there.
    fn is_barely_begun(&self, id: i64, name: &ExperimentName) -> bool {
        self.marked_rows(&name.targets_file(id)) == Some(0)
    }

    pub(super) fn spec_of(&self, file: &str) -> Result<ArraySpec> {
        ArrayFile::spec_of(&self.root.join(file))
    }

    /// The condition of an array. An array that cannot be mended is a fault that `repair` refuses.
    fn condition(&self, slot: &Slot, faults: &mut Vec<Fault>) -> Condition {
        Condition::of(&self.root, slot).unwrap_or_else(|error| {
            let found = self.spec_of(&slot.file).ok().filter(|found| *found != slot.spec);
            let finding = found.map(|found| self.other_sizes(slot, found));
            faults.push(Fault::new(finding, Remedy::Refuse(error)));
            Condition::Whole
        })
    }

    fn other_sizes(&self, slot: &Slot, found: ArraySpec) -> Error {
        let what = "the size of an array differs from the JSON files of the store";
        self.corrupt(&slot.file, what).expected(slot.spec, found)
    }

    /// The rows of a mask and the arrays that it covers.
    fn rows<const N: usize>(
        &self,
        mask: &Slot,
        covered: [&Slot; N],
        faults: &mut Vec<Fault>,
    ) -> Result<MaskedRows<N>> {
        let condition = self.condition(mask, faults);
        let conditions = covered.map(|slot| self.condition(slot, faults));
        let mut rows = MaskedRows {
            is_known: false,
            mask_is_lost: condition.first_lost().is_some(),
            conditions,
            count: mask.spec.rows,
            done: 0,
            done_before_loss: 0,
            odd: Vec::new(),
            zero: Vec::new(),
        };
        if condition != Condition::Whole {
            make_whole(mask.clone(), condition, faults);
            return Ok(rows);
        }
        // A mask of other sizes is a fault already.
        let Ok(array) = self.open(mask) else { return Ok(rows) };
        let first_lost = conditions.into_iter().filter_map(Condition::first_lost).min();
        let read = array.for_each_number(|row, number| match number {
            0 => {}
            1 => {
                rows.done += 1;
                rows.done_before_loss += u64::from(first_lost.is_none_or(|lost| row < lost));
            }
            _ => rows.odd.push(row),
        });
        if let Err(error) = read {
            faults.push(Fault::new(Some(error.duplicate()), Remedy::Refuse(error)));
            return Ok(rows);
        }
        rows.is_known = true;
        if self.recompute_zero_rows && rows.conditions.iter().all(|found| *found == Condition::Whole) {
            rows.zero = self.zero_rows(mask, &covered)?.0;
        }
        Ok(rows)
    }

    /// Faulty rows of a mask, and rows from the first lost row on.
    fn unmark<const N: usize>(
        &self,
        mask: Slot,
        rows: MaskedRows<N>,
        first_lost: Option<u64>,
        faults: &mut Vec<Fault>,
    ) {
        let finding = (!rows.odd.is_empty()).then(|| {
            let found = format!("{} other rows", rows.odd.len());
            let error = self.corrupt(&mask.file, "a mask has values other than 0 and 1");
            error.expected("0 or 1 in each row", found)
        });
        let rows = [rows.odd, rows.zero].concat();
        if !rows.is_empty() || first_lost.is_some() {
            faults.push(Fault::new(finding, Remedy::Unmark { mask, rows, first_lost }));
        }
    }

    fn corrupt(&self, file: &str, what: impl Into<String>) -> Error {
        Error::corrupt(what).in_file(self.root.join(file))
    }

    fn open(&self, slot: &Slot) -> Result<ArrayFile> {
        ArrayFile::open(&slot.path(&self.root), &slot.spec, false)
    }

    /// How many rows a mask marks as done; `None` if it cannot be read.
    fn marked_rows(&self, mask: &str) -> Option<u64> {
        let (path, spec) = (self.root.join(mask), self.spec_of(mask).ok()?);
        ArrayFile::open(&path, &spec, false).and_then(|mask| mask.count_marked()).ok()
    }

    /// Rows that are done and zero in all of the arrays, ascending; how many are done.
    fn zero_rows(&self, mask: &Slot, arrays: &[&Slot]) -> Result<(Vec<u64>, usize)> {
        let arrays: Vec<ArrayFile> = arrays.iter().map(|slot| self.open(slot)).collect::<Result<_>>()?;
        let mut zero = Vec::new();
        self.open(mask)?.for_each_number(|row, number| {
            if number == 1 {
                zero.push(row);
            }
        })?;
        let done = zero.len();
        for array in &arrays {
            if array.spec().columns == 0 {
                return Ok((Vec::new(), done));
            }
            let mut found = HashSet::new();
            array.for_each_row(|row, bytes| {
                if is_all_zero(bytes) {
                    found.insert(row);
                }
            })?;
            zero.retain(|row| found.contains(row));
        }
        Ok((zero, done))
    }
}

/// The rows of a mask, and the arrays that it covers.
#[derive(Debug)]
struct MaskedRows<const N: usize> {
    /// Whether the mask could be read.
    is_known: bool,
    mask_is_lost: bool,
    /// Of the covered arrays.
    conditions: [Condition; N],
    /// Rows of the mask.
    count: u64,
    /// Rows that are marked as done.
    done: u64,
    /// Those before the first row that is lost of any array.
    done_before_loss: u64,
    /// Rows that hold neither 0 nor 1.
    odd: Vec<u64>,
    /// Rows that are done, hold zeros only, and are to be computed again.
    zero: Vec<u64>,
}

impl<const N: usize> MaskedRows<N> {
    /// How many rows stay done. Lost arrays have `first_lost` 0, or the first lost row of all.
    fn kept(&self, first_lost: Option<u64>) -> u64 {
        match first_lost {
            None => self.done,
            Some(0) => 0,
            Some(_) => self.done_before_loss,
        }
    }
}

fn make_whole(slot: Slot, condition: Condition, faults: &mut Vec<Fault>) {
    if condition != Condition::Whole {
        faults.push(Fault::silent(Remedy::MakeWhole(slot, condition)));
    }
}

/// An experiment that has arrays and no sound record.
#[derive(Debug)]
pub(super) struct Unrecorded {
    pub(super) name: ExperimentName,
    /// By the first array that can be read.
    pub(super) num_targets: Option<u64>,
    /// Of a model for which the experiment is not barely begun.
    pub(super) has_targets: bool,
    pub(super) has_scores: bool,
}

/// Errs if an array of floats holds NaN or an infinity.
pub(super) fn refuse_non_finite(array: &ArrayFile) -> Result<()> {
    let mut bad = None;
    array.for_each_row(|row, bytes| {
        if bad.is_none() && !is_finite(bytes, array.spec().dtype) {
            bad = Some(row);
        }
    })?;
    match bad {
        None => Ok(()),
        Some(row) => Err(Error::corrupt("scores hold NaN or infinity: they are not final")
            .in_file(array.path())
            .expected("finite numbers", format_args!("row {row}"))
            .help(
                "no model was finalized, or half precision overflowed; finalize again, in single precision or by \
                 `finalize_scores`, which adds up in float32",
            )),
    }
}

/// The parameters by the metadata, or else by the first array that can be read.
fn parameters_of(root: &Path, catalog: &Catalog, folders: &[i64]) -> Parameters {
    let mut found = None;
    let mut precision = None;
    for &id in catalog.models.keys().chain(folders) {
        for array in [TrainArray::Features, TrainArray::Grads, TrainArray::OutToLoss] {
            let path = root.join(id.to_string()).join(array.file_name());
            let Ok(spec) = ArrayFile::spec_of(&path) else { continue };
            precision = precision.or(Precision::of(spec.dtype));
            if array != TrainArray::OutToLoss {
                found = found.or(Some((spec.rows, spec.columns)));
            }
        }
        if found.is_some() && precision.is_some() {
            break;
        }
    }
    let by_metadata = catalog.metadata.as_ref().and_then(|metadata| documents::sizes_of(metadata).ok());
    let (train_set_size, proj_dim) = by_metadata.or(found).unwrap_or_default();
    Parameters { train_set_size, proj_dim, precision: precision.unwrap_or(Precision::Half) }
}

fn is_all_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}
