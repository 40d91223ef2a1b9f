//! A store that is being worked on, by this process and by others, for days.
//!
//! Whoever makes a file or changes JSON holds the lock on `.regrow.lock`; writing rows takes no lock at all. What
//! is read under the lock is merged and put back whole, so that nothing another process has added is lost. The
//! lock is a `flock`: it dies with its process. TRAK knows nothing of it, so a TRAK process on the same folder at
//! the same time has its old races, with itself.
//!
//! Nothing is ever emptied that was not asked to be: an array that is there is kept if it is what the parameters
//! say, and refused if it is not.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

use super::array_file::ArrayFile;
use super::catalog::{Catalog, Subject};
use super::documents::{self, Experiment, ModelFlags};
use super::layout::{
    ArraySpec, CHECKPOINT_FILE, EXPERIMENTS_FILE, ExperimentName, LOCK_FILE, MATRIX_TYPE_KEY, METADATA_FILE,
    PROJ_DIM_KEY, Parameters, Precision, SCORES_FOLDER, TRAIN_SET_SIZE_KEY, TrainArray, model_file,
};
use super::rows::{Rows, SYNC_INTERVAL_DEFAULT};
use crate::commit::sweep_new_files;
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::store::local::folders::{make_folders, sync_folder, sync_made};

/// How to open a store.
#[derive(Debug, Clone)]
pub enum Mode {
    /// Make the folder and its JSON files where they are missing; this metadata must be what is there.
    Create(Map<String, Value>),
    /// Make the folder, but leave `metadata.json` to the process that owns it; if it is there, it must agree.
    Join(Map<String, Value>),
    /// Change nothing: no folder is made, no lock taken.
    ReadOnly,
}

/// An open store. Cheap to clone; keeps no file open.
#[derive(Debug, Clone)]
pub struct TrakStore {
    root: PathBuf,
    parameters: Parameters,
    writable: bool,
    sync_interval: Duration,
}

/// The arrays of one model, open.
#[derive(Debug)]
pub struct ModelArrays {
    /// Gradients (unless they were deleted) and weights, with the mask of rows that are done.
    pub rows: Rows,
    /// The features.
    pub features: ArrayFile,
}

/// The arrays of one experiment for one model, open.
#[derive(Debug)]
pub struct ExperimentArrays {
    /// The targets' gradients, with the mask of those that are done.
    pub targets: Rows,
    /// The scores, which all models share.
    pub scores: ArrayFile,
}

impl TrakStore {
    /// Opens the store at `root`, which becomes absolute.
    ///
    /// # Errors
    /// `Mismatch` if metadata or arrays on disk say something else than `parameters` and the metadata given;
    /// `Corrupt` if `metadata.json` cannot be used. Damage to the files of single models or to the experiments is
    /// no error here: it shows when they are needed, and in [`catalog`](Self::catalog).
    pub fn open(root: &Path, parameters: Parameters, mode: &Mode) -> Result<Self> {
        for array in TrainArray::ALL {
            parameters.train(array).len_bytes()?;
        }
        let absolute = std::path::absolute(root).map_err(|error| Error::io("cannot find", root, error))?;
        let writable = !matches!(mode, Mode::ReadOnly);
        let store = Self { root: absolute, parameters, writable, sync_interval: SYNC_INTERVAL_DEFAULT };
        match mode {
            Mode::ReadOnly => {
                let found = std::fs::metadata(&store.root);
                found.map_err(|error| Error::io("cannot open the store", &store.root, error))?;
                if let Some(found) = documents::read_object(&store.root.join(METADATA_FILE))? {
                    store.check_sizes(&found)?;
                }
            }
            Mode::Create(metadata) => {
                store.make_folders()?;
                let _lock = store.lock()?;
                sweep_new_files(&store.root);
                match documents::read_object(&store.root.join(METADATA_FILE))? {
                    Some(found) => store.check_metadata(metadata, &found)?,
                    None => {
                        store.check_sizes(metadata)?;
                        documents::write_object(&store.root, METADATA_FILE, metadata)?;
                    }
                }
                // A file that is there and damaged stays as it is, for `repair`.
                if !store.root.join(EXPERIMENTS_FILE).exists() {
                    documents::write_object(&store.root, EXPERIMENTS_FILE, &Map::new())?;
                }
            }
            Mode::Join(metadata) => {
                store.make_folders()?;
                store.check_sizes(metadata)?;
                if let Some(found) = documents::read_object(&store.root.join(METADATA_FILE))? {
                    store.check_metadata(metadata, &found)?;
                }
            }
        }
        store.check_arrays()?;
        Ok(store)
    }

    /// How long marks of rows may wait for the sync that they share; zero syncs each.
    #[must_use]
    pub fn with_sync_interval(mut self, interval: Duration) -> Self {
        self.sync_interval = interval;
        self
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What every array follows from.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Models, experiments and what is wrong with their files, as they are on disk now.
    ///
    /// # Errors
    /// If the folder cannot be listed.
    pub fn catalog(&self) -> Result<Catalog> {
        Catalog::read(&self.root)
    }

    /// Registers a model: makes its arrays, all zeros, and its flags. One that is there already, whole or in part
    /// (its maker was killed), is kept with all its rows; with `reset` its arrays become zeros and its flags 0.
    ///
    /// # Errors
    /// `Mismatch` or `Corrupt` if an array is there and is not what the parameters say.
    pub fn register(&self, id: i64, reset: bool) -> Result<ModelFlags> {
        let _lock = self.lock()?;
        let known = self.catalog()?.models.get(&id).copied();
        if !reset {
            self.refuse_damaged(id)?;
        }
        let folder = self.root.join(id.to_string());
        self.make_folder(&folder)?;
        sweep_new_files(&folder);
        let mut flags = known.unwrap_or_default();
        if reset {
            // Flags first, then the mask: neither may speak of rows that are gone.
            flags = ModelFlags::default();
            if known.is_some() {
                documents::write_flags(&self.root, id, flags)?;
            }
        }
        for array in TrainArray::ALL {
            let spec = self.parameters.train(array);
            let deleted = array == TrainArray::Grads && flags.is_finalized;
            if !deleted {
                self.make_array(&folder, array.file_name(), &spec, reset)?;
            }
        }
        // An empty train set has all of its rows.
        let is_complete = self.parameters.train_set_size == 0;
        if known.is_none() || reset {
            let mask = self.open_array(id, TrainArray::Mask)?;
            flags.is_featurized = is_complete || mask.count_marked()? == self.parameters.train_set_size;
            documents::write_flags(&self.root, id, flags)?;
        }
        Ok(flags)
    }

    /// Makes the four arrays of a model zeros, and its flags, if it has any, 0.
    ///
    /// # Errors
    /// What the file system says.
    pub fn reset_arrays(&self, id: i64) -> Result<()> {
        let _lock = self.lock()?;
        let folder = self.root.join(id.to_string());
        self.make_folder(&folder)?;
        sweep_new_files(&folder);
        if self.catalog()?.models.contains_key(&id) {
            documents::write_flags(&self.root, id, ModelFlags::default())?;
        }
        for array in TrainArray::ALL {
            self.make_array(&folder, array.file_name(), &self.parameters.train(array), true)?;
        }
        Ok(())
    }

    /// Opens the arrays of a model. The gradients of a finalized model may have been deleted; no other array may
    /// be missing.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt` or `Mismatch`, with file and sizes.
    pub fn model(&self, id: i64) -> Result<ModelArrays> {
        let grads = match self.open_array(id, TrainArray::Grads) {
            Ok(grads) => Some(grads),
            Err(error) if error.kind() == ErrorKind::NotFound && self.flags(id)?.is_finalized => None,
            Err(error) => return Err(error),
        };
        let out_to_loss = self.open_array(id, TrainArray::OutToLoss)?;
        let mask = self.open_array(id, TrainArray::Mask)?;
        let features = self.open_array(id, TrainArray::Features)?;
        let mut masked = Vec::with_capacity(2);
        masked.extend(grads.map(|grads| (TrainArray::Grads.key(), grads)));
        masked.push((TrainArray::OutToLoss.key(), out_to_loss));
        Ok(ModelArrays { rows: Rows::new(masked, mask, self.sync_interval), features })
    }

    /// The flags of a model.
    ///
    /// # Errors
    /// `NotFound` if it is not registered; `Corrupt` if its file cannot be used.
    pub fn flags(&self, id: i64) -> Result<ModelFlags> {
        self.refuse_damaged(id)?;
        self.catalog()?.models.get(&id).copied().ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("model {id} is not registered")).in_file(&self.root)
        })
    }

    /// Says on disk how far a model is: featurized if every row of its mask is 1; finalized if that is asked for,
    /// once the features are on disk.
    ///
    /// # Errors
    /// What the disk says; the flags are then as they were.
    pub fn write_flags(&self, id: i64, is_finalized: bool) -> Result<ModelFlags> {
        let _lock = self.lock()?;
        self.write_flags_locked(id, is_finalized)
    }

    /// As [`write_flags`](Self::write_flags), under the lock that the caller holds.
    fn write_flags_locked(&self, id: i64, is_finalized: bool) -> Result<ModelFlags> {
        let count = self.open_array(id, TrainArray::Mask)?.count_marked()?;
        let flags = ModelFlags { is_featurized: count == self.parameters.train_set_size, is_finalized };
        if is_finalized {
            self.open_array(id, TrainArray::Features)?.sync()?;
        }
        documents::write_flags(&self.root, id, flags)?;
        Ok(flags)
    }

    /// Says of every model whose mask is complete that it is featurized, where a writer was killed before it could.
    ///
    /// # Errors
    /// What the disk says; masks that cannot be read are passed over.
    pub fn refresh_flags(&self) -> Result<()> {
        let unfinished = self.catalog()?.models.into_iter().filter(|(_, flags)| !flags.is_featurized);
        for (id, _) in unfinished {
            let count = self.open_array(id, TrainArray::Mask).and_then(|mask| mask.count_marked());
            if count.is_ok_and(|count| count == self.parameters.train_set_size) {
                let _lock = self.lock()?;
                // Somebody may have said more since.
                if let Some(now) = self.catalog()?.models.get(&id) {
                    self.write_flags_locked(id, now.is_finalized)?;
                }
            }
        }
        Ok(())
    }

    /// Before the features of a model are written over: takes back that they are final, if it was said.
    ///
    /// # Errors
    /// What the disk says.
    pub fn unfinalize(&self, id: i64) -> Result<()> {
        let _lock = self.lock()?;
        match self.catalog()?.models.get(&id) {
            Some(flags) if flags.is_finalized => {
                documents::write_flags(&self.root, id, ModelFlags { is_finalized: false, ..*flags })
            }
            _ => Ok(()),
        }
    }

    /// Deletes a model's gradients, once the features that were made of them are on disk.
    ///
    /// # Errors
    /// `NotFound` if there are none.
    pub fn delete_grads(&self, id: i64) -> Result<()> {
        let _lock = self.lock()?;
        let path = self.array_path(id, TrainArray::Grads);
        if path.exists() {
            self.open_array(id, TrainArray::Features)?.sync()?;
        }
        std::fs::remove_file(&path).map_err(|error| Error::io("cannot delete", &path, error))?;
        let folder = self.root.join(id.to_string());
        sync_folder(&folder).map_err(|error| Error::io("cannot sync the folder", &folder, error))
    }

    /// Starts an experiment, or joins one: its record, the gradients of its targets for this model, the scores that
    /// all models share. What is there is kept, finished scores and their flag too; with `reset` this model's
    /// gradients and the scores become zeros.
    ///
    /// # Errors
    /// `NotFound` if the model has no folder; `InvalidArgument` for a name that no file can have; `Mismatch` if the
    /// experiment has another number of targets; `Corrupt` if `experiments.json` cannot be used: it is never
    /// written over.
    pub fn init_experiment(
        &self,
        name: &ExperimentName,
        num_targets: u64,
        id: i64,
        reset: bool,
    ) -> Result<Experiment> {
        let folder = self.root.join(id.to_string());
        if !folder.is_dir() {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("model {id} has no folder, it cannot be scored"),
            )
            .in_file(&folder)
            .help("register the model first"));
        }
        self.parameters.scores(num_targets).len_bytes()?;
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
            sweep_new_files(&self.root.join(SCORES_FOLDER));
            let record = wanted.to_record(&self.root.join(name.scores_file()));
            let arrays = || {
                // The mask first: it must never speak of gradients that are gone.
                let mask = Parameters::target_mask(num_targets);
                self.make_array(&folder, &name.targets_file(), &mask, reset)?;
                self.make_array(
                    &folder,
                    &name.grads_file(),
                    &self.parameters.target_grads(num_targets),
                    reset,
                )?;
                let scores = self.root.join(name.scores_file());
                let file_name = scores.file_name().unwrap_or_default().to_string_lossy();
                let scores_folder = self.root.join(SCORES_FOLDER);
                self.make_array(&scores_folder, &file_name, &self.parameters.scores(num_targets), reset)
            };
            // A flag must not speak of scores that are gone; an array that does not fit leaves no record.
            if reset && records.contains_key(name.as_str()) {
                records.insert(name.as_str().to_owned(), record.clone());
                documents::write_object(&self.root, EXPERIMENTS_FILE, records)?;
            }
            arrays()?;
            records.insert(name.as_str().to_owned(), record);
            Ok(())
        })?;
        Ok(wanted)
    }

    /// Opens the arrays of an experiment for one model. A folder that TRAK wrote has no mask of targets: it is made,
    /// and says that none is known to be done.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt` or `Mismatch`, with file and sizes.
    pub fn experiment(&self, name: &ExperimentName, num_targets: u64, id: i64) -> Result<ExperimentArrays> {
        let spec = self.parameters.target_grads(num_targets);
        let path = self.root.join(model_file(id, &name.grads_file()));
        let grads = ArrayFile::open(&path, &spec, self.writable)?;
        let mask_path = self.root.join(model_file(id, &name.targets_file()));
        let mask_spec = Parameters::target_mask(num_targets);
        if self.writable && !mask_path.exists() {
            let _lock = self.lock()?;
            self.make_array(&self.root.join(id.to_string()), &name.targets_file(), &mask_spec, false)?;
        }
        let mask = ArrayFile::open(&mask_path, &mask_spec, self.writable)?;
        let targets = Rows::new(vec![(TrainArray::Grads.key(), grads)], mask, self.sync_interval);
        Ok(ExperimentArrays { targets, scores: self.scores(name, num_targets)? })
    }

    /// Opens the scores of an experiment.
    ///
    /// # Errors
    /// As [`experiment`](Self::experiment).
    pub fn scores(&self, name: &ExperimentName, num_targets: u64) -> Result<ArrayFile> {
        let path = self.root.join(name.scores_file());
        ArrayFile::open(&path, &self.parameters.scores(num_targets), self.writable)
    }

    /// Says on disk whether the scores of an experiment are final; all other experiments stay as they are on disk.
    /// To be called with `false` before scores are written over, and with `true` afterwards: then the scores are
    /// put on disk first.
    ///
    /// # Errors
    /// `NotFound` for an experiment that is not there; `Corrupt` for NaN or infinite scores, unless they are
    /// allowed; what the disk says.
    pub fn finalize_scores(
        &self,
        name: &ExperimentName,
        is_final: bool,
        allow_non_finite: bool,
    ) -> Result<()> {
        let known = self.catalog()?.experiment(&self.root, name.as_str())?;
        if known.scores_finalized == is_final && !is_final {
            return Ok(());
        }
        if is_final {
            let scores = self.scores(name, known.num_targets)?;
            if !allow_non_finite {
                super::check::refuse_non_finite(&scores)?;
            }
            scores.sync()?;
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

    /// Ties a model to the checkpoint that its rows are computed from: the first call remembers `identity` (a digest
    /// of the parameters, say), later ones compare.
    ///
    /// # Errors
    /// `Mismatch` if it is another checkpoint; `NotFound` if the model has no folder.
    pub fn bind_checkpoint(&self, id: i64, identity: &str) -> Result<()> {
        const KEY: &str = "checkpoint";
        let folder = self.root.join(id.to_string());
        if !folder.is_dir() {
            return Err(Error::new(ErrorKind::NotFound, format!("model {id} has no folder")).in_file(&folder));
        }
        let path = folder.join(CHECKPOINT_FILE);
        let _lock = self.lock()?;
        match documents::read_object(&path)? {
            None => {
                let object = Map::from_iter([(KEY.to_owned(), identity.into())]);
                documents::write_object(&folder, CHECKPOINT_FILE, &object)
            }
            Some(found) if found.get(KEY).and_then(Value::as_str) == Some(identity) => Ok(()),
            Some(found) => {
                Err(Error::new(ErrorKind::Mismatch, format!("model {id} was made of another checkpoint"))
                    .in_file(path)
                    .expected(found.get(KEY).unwrap_or(&Value::Null), format_args!("{identity:?}"))
                    .help("give each checkpoint a model ID of its own"))
            }
        }
    }

    fn array_path(&self, id: i64, array: TrainArray) -> PathBuf {
        self.root.join(model_file(id, array.file_name()))
    }

    fn open_array(&self, id: i64, array: TrainArray) -> Result<ArrayFile> {
        ArrayFile::open(&self.array_path(id, array), &self.parameters.train(array), self.writable)
    }

    /// Makes an array that is missing; one that is there must fit, or is replaced with `reset`.
    fn make_array(&self, folder: &Path, name: &str, spec: &ArraySpec, reset: bool) -> Result<()> {
        let path = folder.join(name);
        if path.exists() && !reset {
            return ArrayFile::open(&path, spec, false).map(|_| ());
        }
        match ArrayFile::create(folder, name, spec, reset) {
            // A process that knows no lock was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                ArrayFile::open(&path, spec, false).map(|_| ())
            }
            other => other,
        }
    }

    /// Reads `experiments.json` under the lock, lets it be changed, and puts it back whole.
    fn change_experiments(&self, change: impl FnOnce(&mut Map<String, Value>) -> Result<()>) -> Result<()> {
        let _lock = self.lock()?;
        let path = self.root.join(EXPERIMENTS_FILE);
        let mut records = documents::read_object(&path)?.unwrap_or_default();
        change(&mut records).in_file(&path)?;
        documents::write_object(&self.root, EXPERIMENTS_FILE, &records)
    }

    /// Holds the store's lock until it is dropped.
    fn lock(&self) -> Result<File> {
        lock(&self.root, self.writable)
    }

    fn make_folders(&self) -> Result<()> {
        self.make_folder(&self.root.join(SCORES_FOLDER))
    }

    fn make_folder(&self, folder: &Path) -> Result<()> {
        let made = make_folders(folder).and_then(|made| sync_made(&made));
        made.map_err(|error| Error::io("cannot make the folder", folder, error))
    }

    fn refuse_damaged(&self, id: i64) -> Result<()> {
        let faults = self.catalog()?.faults;
        match faults.into_iter().find(|fault| fault.subject == Subject::Model(Some(id))) {
            Some(fault) => Err(fault.error),
            None => Ok(()),
        }
    }

    /// The metadata that was given against that on disk.
    fn check_metadata(&self, given: &Map<String, Value>, found: &Map<String, Value>) -> Result<()> {
        documents::sizes_of(found).in_file(self.root.join(METADATA_FILE))?;
        self.check_sizes(given)?;
        self.check_sizes(found)?;
        let types = (found.get(MATRIX_TYPE_KEY), given.get(MATRIX_TYPE_KEY));
        match types {
            (Some(found), Some(given)) if found != given => Err(self.differs(MATRIX_TYPE_KEY, found, given)),
            _ => Ok(()),
        }
    }

    fn check_sizes(&self, metadata: &Map<String, Value>) -> Result<()> {
        let (train_set_size, proj_dim) =
            documents::sizes_of(metadata).in_file(self.root.join(METADATA_FILE))?;
        let pairs = [
            (PROJ_DIM_KEY, proj_dim, self.parameters.proj_dim),
            (TRAIN_SET_SIZE_KEY, train_set_size, self.parameters.train_set_size),
        ];
        match pairs.into_iter().find(|(_, found, given)| found != given) {
            Some((key, found, given)) => Err(self.differs(key, found, given)),
            None => Ok(()),
        }
    }

    fn differs(&self, key: &str, found: impl std::fmt::Display, given: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Mismatch, format!("the store was made with another {key}"))
            .in_file(self.root.join(METADATA_FILE))
            .expected(found, given)
            .help("open it with the parameters that it was made with, or choose another folder")
    }

    /// Errs if an array of a registered model is sound, but of other sizes or another precision.
    fn check_arrays(&self) -> Result<()> {
        for &id in self.catalog()?.models.keys() {
            for array in TrainArray::ALL {
                let path = self.array_path(id, array);
                // Damage shows when the model is opened; here it must not lock anyone out of the others.
                let Ok(found) = ArrayFile::spec_of(&path) else { continue };
                let expected = self.parameters.train(array);
                if found != expected {
                    let other_precision = Precision::of(found.dtype)
                        .filter(|_| ArraySpec { dtype: found.dtype, ..expected } == found)
                        .map_or("sizes", |_| "precision");
                    return Err(Error::new(
                        ErrorKind::Mismatch,
                        format!("the store holds arrays of another {other_precision}"),
                    )
                    .in_file(path)
                    .expected(found, expected)
                    .help("open it with the parameters that it was made with, or choose another folder"));
                }
            }
        }
        Ok(())
    }
}

/// Takes the lock of the store at `root`, and waits for it.
pub(super) fn lock(root: &Path, writable: bool) -> Result<File> {
    if !writable {
        return Err(Error::invalid("the store was opened for reading only").in_file(root));
    }
    let path = root.join(LOCK_FILE);
    let cannot_lock = |error: io::Error| match error.kind() {
        io::ErrorKind::Unsupported => Error::unsupported("the file system has no locks")
            .in_file(&path)
            .help("without them processes would lose each other's experiments; mount it with locks"),
        _ => Error::io("cannot lock the store", &path, error),
    };
    let opened = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let file = opened.map_err(cannot_lock)?;
    file.lock().map_err(cannot_lock)?;
    Ok(file)
}
