//! A store that several processes work on for days.
//!
//! A process that makes a file or changes JSON holds the lock on `.regrow.lock`; writes of rows
//! take no lock. The process reads a JSON file under the lock, changes the content and writes the
//! whole file again, so that no addition of another process is lost. The lock is a `flock`: it ends
//! with its process.
//! TRAK ignores the lock, so its own processes can still overwrite each other's changes.
//!
//! Nothing is emptied without a request: an existing array is kept if it agrees with the
//! parameters, and refused otherwise.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

use super::array_file::{ArrayFile, SyncFailed};
use super::catalog::{Catalog, model_folders};
use super::documents::{self, CHECKPOINT_KEY, ModelFlags};
use super::layout::{
    CHECKPOINT_FILE, EXPERIMENTS_FILE, LOCK_FILE, MATRIX_TYPE_KEY, METADATA_FILE, PROJ_DIM_KEY, Parameters,
    SCORES_FOLDER, Slot, TRAIN_SET_SIZE_KEY, TrainArray, id_file,
};
use super::rows::{Rows, SYNC_INTERVAL_DEFAULT};
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_base::system::has_no_locks;
use regrow_storage::local::sweep_new_files;
use regrow_store::local::folders::{make_folders, sync_folder, sync_made};
use regrow_store::local::regular::open_or_make_regular;

/// How to open a store.
#[derive(Debug, Clone)]
pub enum Mode {
    /// Make the folder and its JSON files where they are missing; existing metadata must agree with
    /// these.
    Create(Map<String, Value>),
    /// Make the folder, but leave `metadata.json` to the process that owns it; existing metadata
    /// must agree with these.
    Join(Map<String, Value>),
}

/// An open store. Cheap to clone; keeps no file open.
#[derive(Debug, Clone)]
pub struct TrakStore {
    root: PathBuf,
    parameters: Parameters,
    pub(super) sync_interval: Option<Duration>,
    pub(super) failed: SyncFailed,
}

/// The arrays of one model, open.
#[derive(Debug)]
pub struct ModelArrays {
    /// Gradients (unless they were deleted) and weights, with the mask of rows that are done.
    pub rows: Rows,
    /// The features.
    pub features: ArrayFile,
}

impl TrakStore {
    /// Opens the store at `root`, which becomes absolute.
    ///
    /// # Errors
    /// `Mismatch` if metadata or arrays on disk do not agree with `parameters` and the metadata
    /// given; `Corrupt` if `metadata.json` cannot be used. Damage to the files of single models or
    /// to the experiments is no error here: it shows when they are needed, and in
    /// [`catalog`](Self::catalog).
    pub fn open(root: &Path, parameters: Parameters, mode: &Mode) -> Result<Self> {
        for array in TrainArray::ALL {
            parameters.train(0, array).spec.len_bytes()?;
        }
        let root = std::path::absolute(regrow_storage::location::local(root)?)
            .map_err(|error| Error::io("cannot find", root, error))?;
        let (sync_interval, failed) = (Some(SYNC_INTERVAL_DEFAULT), SyncFailed::default());
        let store = Self { root, parameters, sync_interval, failed };
        let root = &store.root;
        make_folder(&root.join(SCORES_FOLDER))?;
        let (Mode::Create(metadata) | Mode::Join(metadata)) = mode;
        let is_owner = matches!(mode, Mode::Create(_));
        let _lock = if is_owner { Some(store.lock()?) } else { None };
        let found = documents::read_object(&root.join(METADATA_FILE))?;
        store.check_metadata(metadata, found.as_ref())?;
        if is_owner {
            let folders = model_folders(root)?.into_iter().map(|id| id.to_string());
            for folder in folders.chain([SCORES_FOLDER.to_owned()]) {
                sweep_new_files(&root.join(folder));
            }
            if found.is_none() {
                documents::write_object(root, METADATA_FILE, metadata)?;
            }
            // A file that is there and damaged stays as it is, for `repair`.
            if !is_there(&root.join(EXPERIMENTS_FILE))? {
                documents::write_object(root, EXPERIMENTS_FILE, &Map::new())?;
            }
        }
        store.check_arrays()?;
        Ok(store)
    }

    /// How long marks of rows may wait for the sync that they share. With zero, each mark has its
    /// own sync.
    #[must_use]
    pub fn with_sync_interval(mut self, interval: Duration) -> Self {
        self.sync_interval = Some(interval);
        self
    }

    /// Syncs no rows, as TRAK's own saver: after a power cut rows may be marked as done and be
    /// zeros.
    #[must_use]
    pub fn without_syncs(mut self) -> Self {
        self.sync_interval = None;
        self
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Models, experiments and damaged files, as they are on disk now.
    pub fn catalog(&self) -> Result<Catalog> {
        Catalog::read(&self.root)
    }

    /// Registers a model: makes its arrays, all zeros, and its flags. A model that is there
    /// already, whole or in part (its maker was killed), keeps all its rows; with `reset` its
    /// arrays become zeros and its flags 0.
    ///
    /// If an array was lost, the mask and the flags that cover it are lowered before zeros take its
    /// place: all its rows must be done again.
    ///
    /// # Errors
    /// `Mismatch` or `Corrupt` if an array is there and is not what the parameters say.
    pub fn register(&self, id: i64, reset: bool) -> Result<ModelFlags> {
        let _lock = self.lock()?;
        if reset {
            self.reset_locked(id)?;
            return self.write_flags_locked(id, false);
        }
        self.refuse_damaged(id)?;
        self.make_model_folder(id)?;
        let known = self.catalog()?.models.get(&id).copied();
        let (flags, rows_are_lost) = self.after_losses(id, known.unwrap_or_default())?;
        // Flags first, then the mask: neither may cover rows that are gone.
        if known.is_some_and(|known| known != flags) {
            documents::write_flags(&self.root, id, flags)?;
        }
        if rows_are_lost {
            self.open_array(id, TrainArray::Mask)?.clear_marks(|_| true)?;
        }
        let mut slots = TrainArray::ALL.map(|array| self.parameters.train(id, array)).to_vec();
        let grads = self.parameters.train(id, TrainArray::Grads);
        slots.retain(|slot| !flags.is_finalized || *slot != grads);
        self.make_arrays(&slots, false)?;
        if known == Some(flags) { Ok(flags) } else { self.write_flags_locked(id, flags.is_finalized) }
    }

    /// The flags of a model after its missing arrays are made again, as zeros; and whether a mask
    /// covers the lost rows.
    fn after_losses(&self, id: i64, mut flags: ModelFlags) -> Result<(ModelFlags, bool)> {
        let is_there = |array| is_there(&self.parameters.train(id, array).path(&self.root));
        flags.is_finalized &= is_there(TrainArray::Features)?;
        let has_grads = is_there(TrainArray::Grads)? || flags.is_finalized;
        let has_mask = is_there(TrainArray::Mask)?;
        let has_rows = has_grads && is_there(TrainArray::OutToLoss)?;
        if !has_rows || !has_mask {
            flags = ModelFlags::default();
        }
        Ok((flags, !has_rows && has_mask))
    }

    /// Fills the four arrays of a model with zeros, and sets its flags, if it has any, to 0.
    pub fn reset_arrays(&self, id: i64) -> Result<()> {
        let _lock = self.lock()?;
        self.reset_locked(id)
    }

    fn reset_locked(&self, id: i64) -> Result<()> {
        self.make_model_folder(id)?;
        if self.catalog()?.models.contains_key(&id) {
            documents::write_flags(&self.root, id, ModelFlags::default())?;
        }
        // The mask is replaced before the rows that it covers.
        let slots = TrainArray::ALL.map(|array| self.parameters.train(id, array));
        let (mask, data) = slots.split_at(1);
        self.make_arrays(mask, true)?;
        self.make_arrays(data, true)
    }

    /// Opens the arrays of a model. The gradients of a finalized model may have been deleted; no
    /// other array may be missing.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt` or `Mismatch`, with file and sizes.
    pub fn model(&self, id: i64) -> Result<ModelArrays> {
        let mut masked = Vec::with_capacity(2);
        match self.open_array(id, TrainArray::Grads) {
            Ok(grads) => masked.push((TrainArray::Grads.key(), grads)),
            Err(error) if error.kind() == ErrorKind::NotFound && self.flags(id)?.is_finalized => {}
            Err(error) => return Err(error),
        }
        masked.push((TrainArray::OutToLoss.key(), self.open_array(id, TrainArray::OutToLoss)?));
        let rows = Rows::new(masked, self.open_array(id, TrainArray::Mask)?, self.sync_interval);
        Ok(ModelArrays { rows, features: self.open_array(id, TrainArray::Features)? })
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

    /// Writes the flags of a model: featurized if every row of its mask is 1; finalized on request,
    /// once the features are on disk.
    pub fn write_flags(&self, id: i64, is_finalized: bool) -> Result<ModelFlags> {
        let _lock = self.lock()?;
        if is_finalized {
            self.open_array(id, TrainArray::Features)?.sync()?;
        }
        self.write_flags_locked(id, is_finalized)
    }

    fn write_flags_locked(&self, id: i64, is_finalized: bool) -> Result<ModelFlags> {
        let flags = ModelFlags { is_featurized: self.is_featurized(id)?, is_finalized };
        documents::write_flags(&self.root, id, flags)?;
        Ok(flags)
    }

    fn is_featurized(&self, id: i64) -> Result<bool> {
        Ok(self.open_array(id, TrainArray::Mask)?.count_marked()? == self.parameters.train_set_size)
    }

    /// Flags every model whose mask is complete as featurized: a writer may have been killed before
    /// it set the flag.
    pub fn refresh_flags(&self) -> Result<()> {
        let unfinished = self.catalog()?.models.into_iter().filter(|(_, flags)| !flags.is_featurized);
        for (id, _) in unfinished {
            if self.is_featurized(id).unwrap_or(false) {
                let _lock = self.lock()?;
                // Another process may have changed the flags since the first look.
                if let Some(now) = self.catalog()?.models.get(&id) {
                    self.write_flags_locked(id, now.is_finalized)?;
                }
            }
        }
        Ok(())
    }

    /// Removes the flags of a registered model that `keep` does not have. Call this function before
    /// you overwrite the features, write rows that are done again, or mark rows as not done.
    ///
    /// # Errors
    /// Errors of the disk; features and rows must then stay as they are.
    pub fn lower_flags(&self, id: i64, keep: ModelFlags) -> Result<()> {
        let _lock = self.lock()?;
        let Some(&before) = self.catalog()?.models.get(&id) else { return Ok(()) };
        let after = ModelFlags {
            is_featurized: before.is_featurized && keep.is_featurized,
            is_finalized: before.is_finalized && keep.is_finalized,
        };
        if after == before { Ok(()) } else { documents::write_flags(&self.root, id, after) }
    }

    /// Deletes a model's gradients, once the features that were computed from them are on disk.
    pub fn delete_grads(&self, id: i64) -> Result<()> {
        let _lock = self.lock()?;
        let path = self.parameters.train(id, TrainArray::Grads).path(&self.root);
        if is_there(&path)? {
            self.open_array(id, TrainArray::Features)?.sync()?;
        }
        std::fs::remove_file(&path).map_err(|error| Error::io("cannot delete", &path, error))?;
        let folder = self.model_folder(id);
        sync_folder(&folder).map_err(|error| Error::io("cannot sync the folder", &folder, error))
    }

    /// Ties a model to the checkpoint that its rows are computed from: the first call remembers
    /// `identity` (a digest of the parameters, say), later calls compare.
    ///
    /// # Errors
    /// `Mismatch` if it is another checkpoint; `NotFound` if the model has no folder.
    pub fn bind_checkpoint(&self, id: i64, identity: &str) -> Result<()> {
        let folder = self.model_folder(id);
        if !folder.is_dir() {
            return Err(Error::new(ErrorKind::NotFound, format!("model {id} has no folder")).in_file(&folder));
        }
        let path = folder.join(CHECKPOINT_FILE);
        let _lock = self.lock()?;
        sweep_new_files(&folder);
        match documents::read_object(&path)? {
            None => {
                let object = Map::from_iter([(CHECKPOINT_KEY.to_owned(), identity.into())]);
                documents::write_object(&folder, CHECKPOINT_FILE, &object)
            }
            Some(found) if found.get(CHECKPOINT_KEY).and_then(Value::as_str) == Some(identity) => Ok(()),
            Some(found) => {
                Err(Error::new(ErrorKind::Mismatch, format!("model {id} comes from another checkpoint"))
                    .in_file(path)
                    .expected(found.get(CHECKPOINT_KEY).unwrap_or(&Value::Null), format_args!("{identity:?}"))
                    .help("give each checkpoint its own model ID"))
            }
        }
    }

    pub(super) fn model_folder(&self, id: i64) -> PathBuf {
        self.root.join(id.to_string())
    }

    fn make_model_folder(&self, id: i64) -> Result<()> {
        let folder = self.model_folder(id);
        make_folder(&folder)?;
        sweep_new_files(&folder);
        Ok(())
    }

    fn open_array(&self, id: i64, array: TrainArray) -> Result<ArrayFile> {
        self.open_slot(&self.parameters.train(id, array))
    }

    pub(super) fn open_slot(&self, slot: &Slot) -> Result<ArrayFile> {
        Ok(ArrayFile::open(&slot.path(&self.root), &slot.spec, true)?.of_store(&self.failed))
    }

    /// Makes the missing arrays among `slots`, which are all in one folder. Existing arrays must
    /// fit; with `reset` they are replaced. New arrays get their names together, when all are made.
    pub(super) fn make_arrays(&self, slots: &[Slot], reset: bool) -> Result<()> {
        let mut new = Vec::with_capacity(slots.len());
        for slot in slots {
            let path = slot.path(&self.root);
            if !reset && is_there(&path)? {
                ArrayFile::open(&path, &slot.spec, false)?;
            } else {
                let (folder, name) = slot.split();
                new.push((slot, ArrayFile::prepare(&self.root.join(folder), name, &slot.spec)?));
            }
        }
        let Some((first, _)) = new.first() else { return Ok(()) };
        let folder = self.root.join(first.split().0);
        // All files are written before the first sync, so that the disk takes them together.
        let synced: Vec<_> =
            new.into_iter().map(|(slot, file)| Ok((slot, file.sync()?))).collect::<Result<_>>()?;
        for (slot, file) in synced {
            let path = slot.path(&self.root);
            match file.give_name_unsynced(slot.split().1, reset) {
                // A process without the lock, such as TRAK, has made the file first.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    ArrayFile::open(&path, &slot.spec, false)?;
                }
                other => other?,
            }
        }
        sync_folder(&folder).map_err(|error| Error::io("cannot sync the folder", &folder, error))
    }

    /// Takes the store's lock, which ends when the returned file is dropped. Removes temporary
    /// files that killed writers left.
    pub(super) fn lock(&self) -> Result<File> {
        self.failed.refuse(&self.root)?;
        let lock = lock(&self.root)?;
        sweep_new_files(&self.root);
        Ok(lock)
    }

    fn refuse_damaged(&self, id: i64) -> Result<()> {
        let faults = self.catalog()?.faults;
        match faults.into_iter().find(|fault| fault.file == id_file(id)) {
            Some(fault) => Err(fault.error),
            None => Ok(()),
        }
    }

    /// Compares the metadata that was given with the parameters and the metadata on disk.
    fn check_metadata(&self, given: &Map<String, Value>, found: Option<&Map<String, Value>>) -> Result<()> {
        let Some(found) = found else { return self.check_sizes(given) };
        documents::sizes_of(found).in_file(self.root.join(METADATA_FILE))?;
        self.check_sizes(given)?;
        self.check_sizes(found)?;
        match (found.get(MATRIX_TYPE_KEY), given.get(MATRIX_TYPE_KEY)) {
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
            .help("open it with its own parameters, or choose another folder")
    }

    /// Errs if an array of a registered model is sound, but of other sizes or another precision.
    /// Damage shows when the model is opened: it must not lock users out of the other models.
    fn check_arrays(&self) -> Result<()> {
        for &id in self.catalog()?.models.keys() {
            for slot in TrainArray::ALL.map(|array| self.parameters.train(id, array)) {
                match ArrayFile::open_of_any_len(&slot.path(&self.root), &slot.spec, false) {
                    Err(error) if error.kind() == ErrorKind::Mismatch => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

pub(super) fn make_folder(folder: &Path) -> Result<()> {
    let made = make_folders(folder).and_then(|made| sync_made(&made));
    made.map_err(|error| Error::io("cannot make the folder", folder, error))
}

/// Whether an entry has the name. A link that leads nowhere counts: it is damage, and not a file
/// that was deleted. If the system gives no answer, that is an error, since marks depend on it.
pub(super) fn is_there(path: &Path) -> Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::io("cannot look at", path, error)),
    }
}

/// Takes the lock of the store at `root`, and waits for it.
pub(super) fn lock(root: &Path) -> Result<File> {
    let path = root.join(LOCK_FILE);
    let file = open_or_make_regular(&path).map_err(|error| match error.kind() {
        ErrorKind::Corrupt => error.help("the lock of the store is an empty file: move this one away"),
        _ => error,
    })?;
    file.lock().map_err(|error| match has_no_locks(&error) {
        true => Error::unsupported("the file system has no locks").in_file(&path).help(
            "use another file system, or mount this one with locks: without locks processes would lose \
             each other's experiments",
        ),
        false => Error::io("cannot lock the store", &path, error),
    })?;
    Ok(file)
}
