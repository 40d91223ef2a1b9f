//! Experiments of a store: their targets, their scores, and their records, which all processes
//! share.

use serde_json::{Map, Value};

use super::array_file::ArrayFile;
use super::documents::{self, Experiment};
use super::layout::{EXPERIMENTS_FILE, ExperimentName, SCORES_FOLDER, TrainArray};
use super::rows::Rows;
use super::store::{TrakStore, is_there};
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_storage::local::sweep_new_files;

/// The arrays of one experiment for one model, open.
#[derive(Debug)]
pub struct ExperimentArrays {
    /// The targets' gradients, with the mask of targets that are done.
    pub targets: Rows,
    /// The scores, which all models share.
    pub scores: ArrayFile,
}

impl TrakStore {
    /// Starts an experiment, or joins one. Makes its record, the gradients of its targets for this
    /// model, and the scores that all models share. Existing arrays and final scores stay; with
    /// `reset` this model's gradients and the scores become zeros.
    ///
    /// If the file of gradients is lost and targets are marked as done, the call first removes the
    /// marks and the flag of the scores, and then makes gradients of zeros: all targets must be
    /// done again. If the scores are lost, the call removes their flag, too.
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
        let (root, folder) = (self.root(), self.model_folder(id));
        if !folder.is_dir() {
            let what = format!("model {id} has no folder, so it cannot be scored");
            return Err(Error::new(ErrorKind::NotFound, what)
                .in_file(&folder)
                .help("register the model first"));
        }
        let scores = self.parameters().scores(name, num_targets);
        let grads = self.parameters().target_grads(id, name, num_targets);
        let mask = self.parameters().target_mask(id, name, num_targets);
        scores.spec.len_bytes()?;
        let mut wanted = Experiment { num_targets, scores_finalized: false };
        self.change_experiments(|records| {
            if let Some(known) = records.get(name.as_str()).filter(|_| !reset) {
                wanted = Experiment::from_record(name.as_str(), known)?;
                if wanted.num_targets != num_targets {
                    let what = format!("experiment {:?} has a different number of targets", name.as_str());
                    return Err(Error::new(ErrorKind::Mismatch, what)
                        .expected(wanted.num_targets, num_targets)
                        .help("give another set of targets another name"));
                }
            }
            sweep_new_files(&folder);
            sweep_new_files(&root.join(SCORES_FOLDER));
            let is_orphan = !reset && is_there(&mask.path(root))? && !is_there(&grads.path(root))?;
            let orphan = if is_orphan { Some(self.open_slot(&mask)?) } else { None };
            let lost = orphan.as_ref().map_or(Ok(0), ArrayFile::count_marked)?;
            // Final scores are not computed again; TRAK, too, removes the flag when it makes these
            // files.
            wanted.scores_finalized &= lost == 0 && is_there(&scores.path(root))?;
            let record = wanted.to_record(&scores.path(root));
            // Remove the flag before the scores: a flag must not cover lost scores. Otherwise write
            // the record last, so that an array that does not fit leaves no record.
            let is_lowered = records.get(name.as_str()).is_some_and(|known| {
                reset || known.get("scores_finalized") != record.get("scores_finalized")
            });
            if is_lowered {
                records.insert(name.as_str().to_owned(), record.clone());
                documents::write_object(root, EXPERIMENTS_FILE, records)?;
            }
            // The mask first: it must never cover gradients that are gone.
            if let Some(mask) = orphan {
                mask.clear_marks(|_| true)?;
            }
            for slot in [mask, grads, scores] {
                self.make_arrays(&[slot], reset)?;
            }
            records.insert(name.as_str().to_owned(), record);
            Ok(())
        })?;
        Ok(wanted)
    }

    /// Opens the arrays of an experiment for one model. TRAK writes no mask of targets: the first
    /// call makes an empty one.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt` or `Mismatch`, with file and sizes.
    pub fn experiment(&self, name: &ExperimentName, num_targets: u64, id: i64) -> Result<ExperimentArrays> {
        let grads = self.open_slot(&self.parameters().target_grads(id, name, num_targets))?;
        let mask = self.parameters().target_mask(id, name, num_targets);
        if !is_there(&mask.path(self.root()))? {
            let _lock = self.lock()?;
            self.make_arrays(std::slice::from_ref(&mask), false)?;
        }
        let masked = vec![(TrainArray::Grads.key(), grads)];
        let targets = Rows::new(masked, self.open_slot(&mask)?, self.sync_interval);
        Ok(ExperimentArrays { targets, scores: self.scores(name, num_targets)? })
    }

    /// Opens the scores of an experiment.
    pub fn scores(&self, name: &ExperimentName, num_targets: u64) -> Result<ArrayFile> {
        self.open_slot(&self.parameters().scores(name, num_targets))
    }

    /// Flags the scores of an experiment as final or not; the records of all other experiments
    /// stay. Call this function with `false` before you write over scores, and with `true`
    /// afterwards. With `true`, it first puts the scores on disk.
    ///
    /// # Errors
    /// `NotFound` for an unknown experiment; `Corrupt` for NaN or infinite scores, unless they are
    /// allowed; errors of the disk.
    pub fn finalize_scores(
        &self,
        name: &ExperimentName,
        is_final: bool,
        allow_non_finite: bool,
    ) -> Result<()> {
        let known = self.catalog()?.experiment(self.root(), name.as_str())?;
        if is_final {
            let scores = self.scores(name, known.num_targets)?;
            if !allow_non_finite {
                super::survey::refuse_non_finite(&scores)?;
            }
            scores.sync()?;
        } else if !known.scores_finalized {
            return Ok(());
        }
        self.change_experiments(|records| {
            let record = records.get_mut(name.as_str()).and_then(Value::as_object_mut);
            let record = record.ok_or_else(|| {
                Error::new(ErrorKind::NotFound, format!("experiment {:?} does not exist", name.as_str()))
            })?;
            record.insert("scores_finalized".to_owned(), u8::from(is_final).into());
            Ok(())
        })
    }

    /// Reads `experiments.json` under the lock, changes it, and replaces it whole.
    fn change_experiments(&self, change: impl FnOnce(&mut Map<String, Value>) -> Result<()>) -> Result<()> {
        let _lock = self.lock()?;
        let path = self.root().join(EXPERIMENTS_FILE);
        let mut records = documents::read_object(&path)?.unwrap_or_default();
        change(&mut records).in_file(&path)?;
        documents::write_object(self.root(), EXPERIMENTS_FILE, &records)
    }
}
