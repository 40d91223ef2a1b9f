//! Experiments of a store: their records, which all processes share, their targets and their
//! scores.

use serde_json::{Map, Value};

use super::array_file::ArrayFile;
use super::documents::{self, Experiment};
use super::layout::{EXPERIMENTS_FILE, ExperimentName, Parameters, SCORES_FOLDER, TrainArray, model_file};
use super::rows::Rows;
use super::store::{TrakStore, is_there};
use crate::commit::sweep_new_files;
use crate::error::{Error, ErrorKind, Result, ResultExt};

/// The arrays of one experiment for one model, open.
#[derive(Debug)]
pub struct ExperimentArrays {
    /// The targets' gradients, with the mask of those that are done.
    pub targets: Rows,
    /// The scores, which all models share.
    pub scores: ArrayFile,
}

impl TrakStore {
    /// Starts an experiment, or joins one: its record, the gradients of its targets for this model,
    /// the scores that all models share. What is there is kept, finished scores and their flag too;
    /// with `reset` this model's gradients and the scores become zeros.
    ///
    /// If gradients are lost whose targets are marked as done, the marks and the flag of the scores
    /// are removed before zeros take their place: all targets must be done again. Lost scores lose
    /// their flag too.
    ///
    /// # Errors
    /// `NotFound` if the model has no folder; `InvalidArgument` for a name that no file can have;
    /// `Mismatch` if the experiment has another number of targets; `Corrupt` if `experiments.json`
    /// cannot be used: it is never written over.
    pub fn init_experiment(
        &self,
        name: &ExperimentName,
        num_targets: u64,
        id: i64,
        reset: bool,
    ) -> Result<Experiment> {
        let root = self.root();
        let folder = root.join(id.to_string());
        if !folder.is_dir() {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("model {id} has no folder, it cannot be scored"),
            )
            .in_file(&folder)
            .help("register the model first"));
        }
        self.parameters().scores(num_targets).len_bytes()?;
        let mut wanted = Experiment { num_targets, scores_finalized: false };
        self.change_experiments(|records| {
            match records.get(name.as_str()).map(|record| Experiment::from_record(name.as_str(), record)) {
                Some(known) if !reset => {
                    let known = known?;
                    if known.num_targets != num_targets {
                        return Err(Error::new(
                            ErrorKind::Mismatch,
                            format!("experiment {:?} has another number of targets", name.as_str()),
                        )
                        .expected(known.num_targets, num_targets)
                        .help("give another set of targets another name"));
                    }
                    wanted = known;
                }
                _ => {}
            }
            sweep_new_files(&folder);
            sweep_new_files(&root.join(SCORES_FOLDER));
            let targets_path = folder.join(name.targets_file());
            let mask_spec = Parameters::target_mask(num_targets);
            let orphan =
                match !reset && is_there(&targets_path)? && !is_there(&folder.join(name.grads_file()))? {
                    true => Some(self.open_file(&targets_path, &mask_spec)?),
                    false => None,
                };
            let lost = orphan.as_ref().map_or(Ok(0), ArrayFile::count_marked)?;
            let scores_path = root.join(name.scores_file());
            // Final scores are not computed again; TRAK, too, removes the flag when it makes these
            // files.
            if lost > 0 || !is_there(&scores_path)? {
                wanted.scores_finalized = false;
            }
            let record = wanted.to_record(&scores_path);
            let arrays = || {
                // The mask first: it must never speak of gradients that are gone.
                if let Some(mask) = orphan {
                    mask.clear_marks_from(0)?;
                }
                let mask = [(&*name.targets_file(), mask_spec)];
                self.make_arrays(&folder, &mask, reset)?;
                let grads = [(&*name.grads_file(), self.parameters().target_grads(num_targets))];
                self.make_arrays(&folder, &grads, reset)?;
                let file_name = scores_path.file_name().unwrap_or_default().to_string_lossy();
                let scores = [(&*file_name, self.parameters().scores(num_targets))];
                self.make_arrays(&root.join(SCORES_FOLDER), &scores, reset)
            };
            // A flag must not speak of scores that are gone; an array that does not fit leaves no
            // record.
            let is_taken_back = records.get(name.as_str()).is_some_and(|known| {
                reset || known.get("scores_finalized") != record.get("scores_finalized")
            });
            if is_taken_back {
                records.insert(name.as_str().to_owned(), record.clone());
                documents::write_object(root, EXPERIMENTS_FILE, records)?;
            }
            arrays()?;
            records.insert(name.as_str().to_owned(), record);
            Ok(())
        })?;
        Ok(wanted)
    }

    /// Opens the arrays of an experiment for one model. A folder that TRAK wrote has no mask of
    /// targets: it is made, and says that none is known to be done.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt` or `Mismatch`, with file and sizes.
    pub fn experiment(&self, name: &ExperimentName, num_targets: u64, id: i64) -> Result<ExperimentArrays> {
        let spec = self.parameters().target_grads(num_targets);
        let path = self.root().join(model_file(id, &name.grads_file()));
        let grads = self.open_file(&path, &spec)?;
        let mask_path = self.root().join(model_file(id, &name.targets_file()));
        let mask_spec = Parameters::target_mask(num_targets);
        if self.writable && !is_there(&mask_path)? {
            let _lock = self.lock()?;
            let mask = [(&*name.targets_file(), mask_spec)];
            self.make_arrays(&self.root().join(id.to_string()), &mask, false)?;
        }
        let mask = self.open_file(&mask_path, &mask_spec)?;
        let targets = Rows::new(vec![(TrainArray::Grads.key(), grads)], mask, self.sync_interval);
        Ok(ExperimentArrays { targets, scores: self.scores(name, num_targets)? })
    }

    /// Opens the scores of an experiment.
    ///
    /// # Errors
    /// As [`experiment`](Self::experiment).
    pub fn scores(&self, name: &ExperimentName, num_targets: u64) -> Result<ArrayFile> {
        let path = self.root().join(name.scores_file());
        self.open_file(&path, &self.parameters().scores(num_targets))
    }

    /// Says on disk whether the scores of an experiment are final; all other experiments stay as
    /// they are on disk. To be called with `false` before scores are written over, and with `true`
    /// afterwards: then the scores are put on disk first.
    ///
    /// # Errors
    /// `NotFound` for an experiment that is not there; `Corrupt` for NaN or infinite scores, unless
    /// they are allowed; what the disk says.
    pub fn finalize_scores(
        &self,
        name: &ExperimentName,
        is_final: bool,
        allow_non_finite: bool,
    ) -> Result<()> {
        let known = self.catalog()?.experiment(self.root(), name.as_str())?;
        if known.scores_finalized == is_final && !is_final {
            return Ok(());
        }
        if is_final {
            let scores = self.scores(name, known.num_targets)?;
            if !allow_non_finite {
                super::check::refuse_non_finite(&scores)?;
            }
            scores.sync_whole()?;
        }
        self.change_experiments(|records| {
            let record = records.get_mut(name.as_str()).and_then(Value::as_object_mut);
            let record = record.ok_or_else(|| {
                Error::new(ErrorKind::NotFound, format!("there is no experiment {:?}", name.as_str()))
            })?;
            record.insert("scores_finalized".to_owned(), u8::from(is_final).into());
            Ok(())
        })
    }

    /// Reads `experiments.json` under the lock, lets it be changed, and puts it back whole.
    fn change_experiments(&self, change: impl FnOnce(&mut Map<String, Value>) -> Result<()>) -> Result<()> {
        let _lock = self.lock()?;
        let path = self.root().join(EXPERIMENTS_FILE);
        let mut records = documents::read_object(&path)?.unwrap_or_default();
        change(&mut records).in_file(&path)?;
        documents::write_object(self.root(), EXPERIMENTS_FILE, &records)
    }
}
