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
//! | `id_<ID>.json` empty, cut, incomplete, of another model | when opened | put aside; flags from the mask and the arrays |
//! | a model without a file of flags | yes | flags from the mask and the arrays |
//! | a mask with other numbers than 0 and 1 | yes | these rows are not done |
//! | flags say more than the mask | yes | flags from the mask |
//! | `experiments.json` empty, cut | when opened | put aside; records from the arrays, not final |
//! | an experiment without a record | yes | a record from the arrays, not final |
//! | a record with another number of targets than its arrays | yes | the number of the arrays |
//! | an array is cut or too long | when read | made whole; lost rows are not done |
//! | an array is missing or has no header | when read | made again; its rows are not done |
//! | an array has another dtype or other sizes | yes | none: `repair` refuses |
//! | rows that are done hold zeros only | a note | with `recompute_zero_rows`: not done |
//! | final features of zeros, final scores with NaN or without targets | yes | none |

use super::array_file::Condition;
use super::arrays::{Faults, Masked};
use super::documents::{self, Experiment, ModelFlags};
use super::layout::{
    CHECKPOINT_FILE, EXPERIMENTS_FILE, ExperimentName, METADATA_FILE, TrainArray, id_file, id_of_file,
    id_text,
};
use super::store::is_there;
use super::survey::Survey;
use crate::Finding;
use regrow_base::error::Result;
use regrow_storage::local::sweep_new_files;

/// All findings, except the errors of reading arrays.
pub(super) fn findings(survey: &Survey) -> Result<Vec<Finding>> {
    let mut faults = Faults { survey, with: None, findings: Vec::new(), done: Vec::new() };
    faults.metadata()?;
    faults.models()?;
    faults.experiments()?;
    faults.findings.extend(survey.wrong_results().map(|error| Finding { error }));
    Ok(faults.findings)
}

impl Faults<'_> {
    pub(super) fn metadata(&mut self) -> Result<()> {
        let is_sound = |found| documents::sizes_of(found).is_ok();
        if self.survey.catalog.metadata.as_ref().is_some_and(is_sound) {
            return Ok(());
        }
        let error = self.corrupt(METADATA_FILE, "the metadata are missing");
        let error = error.help("give `repair` the metadata that the store was made with");
        let Some(with) = self.with else {
            self.found(error);
            return Ok(());
        };
        let given = with.metadata.as_ref().ok_or(error)?;
        documents::sizes_of(given)?;
        self.put_aside(METADATA_FILE)?;
        self.say(METADATA_FILE, "written from the given metadata");
        documents::write_object(&self.survey.root, METADATA_FILE, given)
    }

    /// The faults of all files of flags, and of the arrays of all models.
    pub(super) fn models(&mut self) -> Result<()> {
        let survey = self.survey;
        for file in survey.catalog.faults.iter().map(|fault| &fault.file) {
            let has_folder = id_of_file(file).is_some_and(|id| survey.folders.contains(&id));
            if self.with.is_some() && id_text(file).is_some() && !has_folder {
                self.put_aside(file)?;
            }
        }
        survey.models()?.into_iter().try_for_each(|id| self.model(id))
    }

    fn model(&mut self, id: i64) -> Result<()> {
        let survey = self.survey;
        let [mask, grads, weights, features] =
            TrainArray::ALL.map(|array| survey.parameters.train(id, array));
        let of_features = self.condition(&features)?;
        let mut rows = self.rows(Some(mask), vec![grads.clone(), weights])?;
        let known = survey.catalog.models.get(&id).copied();
        let count = survey.parameters.train_set_size;
        if known.is_none() {
            let error = self.corrupt(&id_file(id), format!("model {id} has arrays, but no file of flags"));
            self.found(error.help("the file was lost; `repair` adds it again"));
        } else if let Some(done) = rows.done.filter(|done| *done < count)
            && known.is_some_and(|known| known.is_featurized)
        {
            let what = format!("model {id} is flagged as featurized, but rows are missing");
            let error = self.corrupt(&id_file(id), what);
            self.found(error.expected(format!("{count} rows done"), format!("{done} in its mask")));
        }
        if self.with.is_none() {
            return Ok(());
        }
        sweep_new_files(&survey.root.join(id.to_string()));
        let checkpoint = format!("{id}/{CHECKPOINT_FILE}");
        if documents::read_object(&survey.root.join(&checkpoint)).is_err() {
            self.put_aside(&checkpoint)?;
        }
        // The gradients of a finalized model may have been deleted.
        let has_grads = is_there(&grads.path(&survey.root))?;
        if !has_grads {
            rows.arrays.remove(0);
        }
        let was_deleted = !has_grads && of_features != Condition::Missing;
        // Features that were computed from lost rows may be wrong, so the remedy clears their flag.
        let was_finalized = known.map_or(was_deleted, |flags| flags.is_finalized);
        let is_whole = rows.is_sound() && rows.done == Some(count);
        let is_finalized = was_finalized && is_whole && of_features.first_lost().is_none();
        if !has_grads && !is_finalized {
            rows.arrays.push((grads, Condition::Missing));
        }
        let is_featurized = count == 0 || is_whole && rows.is_sound();
        let flags = ModelFlags { is_featurized, is_finalized };
        if known != Some(flags) {
            if known.is_none() {
                self.put_aside(&id_file(id))?;
            }
            documents::write_flags(&survey.root, id, flags)?;
            let (a, b) = (u8::from(is_featurized), u8::from(is_finalized));
            self.say(&id_file(id), &format!("is_featurized {a}, is_finalized {b}"));
        }
        self.mend(rows)?;
        self.make_whole(&features, of_features)
    }

    /// The faults of `experiments.json` and of the arrays of all experiments.
    pub(super) fn experiments(&mut self) -> Result<()> {
        let survey = self.survey;
        let mut records = survey.catalog.experiments.clone().unwrap_or_default();
        let unrecorded = survey.unrecorded()?;
        for (name, lost) in &unrecorded {
            if lost.has_targets || lost.has_scores {
                let what = if lost.has_targets { "targets" } else { "scores" };
                let what = format!("experiment {:?} has {what} and no record", name.as_str());
                let help = match lost.num_targets {
                    Some(_) => "another process has lost it; `repair` adds it again",
                    None => "and they are no arrays of a store: move their files away",
                };
                self.found(self.corrupt(EXPERIMENTS_FILE, what).help(help));
            }
            let Some(num_targets) = lost.num_targets else { continue };
            let experiment = Experiment { num_targets, scores_finalized: false };
            let record = experiment.to_record(&survey.root.join(name.scores_file()));
            records.insert(name.as_str().to_owned(), record);
            self.say(EXPERIMENTS_FILE, &format!("{:?} added, its scores are not final", name.as_str()));
        }
        records.retain(|name, record| {
            let is_sound = Experiment::from_record(name, record).is_ok();
            let has_arrays = unrecorded.keys().any(|known| known.as_str() == name);
            if !is_sound && !has_arrays {
                self.say(
                    EXPERIMENTS_FILE,
                    &format!("record {name:?} removed: it is empty and has no arrays"),
                );
            }
            is_sound || has_arrays
        });
        let mut work = Vec::new();
        for (name, record) in &mut records {
            // A damaged record whose arrays cannot be read stays: its number may be all that is
            // left.
            let Ok(experiment) = Experiment::from_record(name, record) else { continue };
            let Ok(name) = ExperimentName::new(name) else { continue };
            let wanted = self.experiment(&name, &experiment, &mut work)?;
            if let Some(record) = record.as_object_mut().filter(|_| wanted != experiment) {
                record.insert("num_targets".to_owned(), wanted.num_targets.into());
                record.insert("scores_finalized".to_owned(), u8::from(wanted.scores_finalized).into());
            }
        }
        if self.with.is_none() {
            return Ok(());
        }
        // Write the records first: no record may flag scores as final while marks of their targets
        // are removed.
        if survey.catalog.experiments.as_ref() != Some(&records) {
            if survey.catalog.experiments.is_none() {
                self.put_aside(EXPERIMENTS_FILE)?;
            }
            documents::write_object(&survey.root, EXPERIMENTS_FILE, &records)?;
            self.say(EXPERIMENTS_FILE, "written");
        }
        work.into_iter().try_for_each(|rows| self.mend(rows))
    }

    /// Adds the arrays of an experiment to `work`, and returns the corrected record.
    fn experiment(
        &mut self,
        name: &ExperimentName,
        experiment: &Experiment,
        work: &mut Vec<Masked>,
    ) -> Result<Experiment> {
        let Survey { root, catalog, parameters, .. } = self.survey;
        let mut wanted = experiment.clone();
        let mut scores = parameters.scores(name, experiment.num_targets);
        // Arrays that agree with each other count more than a record: TRAK changes the number in
        // the record alone.
        if let Ok(found) = self.survey.spec_of(&scores.file)
            && found.columns != experiment.num_targets
            && found == parameters.scores(name, found.columns).spec
        {
            self.found(self.other_sizes(&scores, found));
            let said = format!("{:?} has {} targets, as its arrays", name.as_str(), found.columns);
            self.say(EXPERIMENTS_FILE, &said);
            wanted.num_targets = found.columns;
            scores.spec = found;
        }
        let targets = wanted.num_targets;
        for (&id, flags) in &catalog.models {
            let grads = parameters.target_grads(id, name, targets);
            let mask = parameters.target_mask(id, name, targets);
            let has_mask = is_there(&mask.path(root))?;
            if !is_there(&grads.path(root))? && (!has_mask || self.survey.is_barely_begun(id, name)) {
                continue;
            }
            let rows = self.rows(has_mask.then(|| mask.clone()), vec![grads])?;
            // A mask without marks is correct if TRAK wrote the targets: TRAK marks no targets.
            if let Some(done) = rows.done.filter(|done| (1..targets).contains(done))
                && experiment.scores_finalized
                && flags.is_finalized
            {
                let what =
                    format!("scores of {:?} are flagged as final, but targets are missing", name.as_str());
                let error = self.corrupt(&mask.file, what);
                self.found(error.expected(format!("{targets} targets done"), done));
            }
            wanted.scores_finalized &= rows.is_sound();
            work.push(rows);
        }
        let scores = self.rows(None, vec![scores])?;
        wanted.scores_finalized &= scores.is_sound();
        work.push(scores);
        Ok(wanted)
    }
}
