//! A store that is being worked on, by this process and by others, for days.
//!
//! A process that makes a file or changes JSON holds the lock on `.regrow.lock`; writes of rows
//! take no lock. The content read under the lock is merged and written back whole, so that no
//! addition of another process is lost. The lock is a `flock`: it ends with its process. TRAK
//! ignores it, so a TRAK process on the same folder at the same time has its old races, with
//! itself.
//!
//! Nothing is ever emptied that was not asked to be: an array that is there is kept if it is what
//! the parameters say, and refused if it is not.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

use super::array_file::ArrayFile;
use super::catalog::{Catalog, Subject, model_folders};
use super::documents::{self, ModelFlags};
use super::layout::{
    ArraySpec, CHECKPOINT_FILE, EXPERIMENTS_FILE, LOCK_FILE, MATRIX_TYPE_KEY, METADATA_FILE, PROJ_DIM_KEY,
    Parameters, Precision, SCORES_FOLDER, TRAIN_SET_SIZE_KEY, TrainArray, model_file,
};
use super::lost_writes::LostWrites;
use super::rows::{Rows, SYNC_INTERVAL_DEFAULT};
use crate::commit::sweep_new_files;
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::store::local::folders::{make_folders, sync_folder, sync_made};
use crate::store::local::regular::open_or_make_regular;
use crate::system::has_no_locks;

/// How to open a store.
#[derive(Debug, Clone)]
pub enum Mode {
    /// Make the folder and its JSON files where they are missing; this metadata must be what is
    /// there.
    Create(Map<String, Value>),
    /// Make the folder, but leave `metadata.json` to the process that owns it; if it is there, it
    /// must agree.
    Join(Map<String, Value>),
    /// Change nothing: no folder is made, no lock taken.
    ReadOnly,
}

/// An open store. Cheap to clone; keeps no file open.
#[derive(Debug, Clone)]
pub struct TrakStore {
    root: PathBuf,
    parameters: Parameters,
    pub(super) writable: bool,
    pub(super) sync_interval: Option<Duration>,
    pub(super) lost: LostWrites,
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
    /// `Mismatch` if metadata or arrays on disk say something else than `parameters` and the
    /// metadata given; `Corrupt` if `metadata.json` cannot be used. Damage to the files of single
    /// models or to the experiments is no error here: it shows when they are needed, and in
    /// [`catalog`](Self::catalog).
    pub fn open(root: &Path, parameters: Parameters, mode: &Mode) -> Result<Self> {
        for array in TrainArray::ALL {
            parameters.train(array).len_bytes()?;
        }
        let absolute = std::path::absolute(crate::location::local(root)?)
            .map_err(|error| Error::io("cannot find", root, error))?;
        let writable = !matches!(mode, Mode::ReadOnly);
        let store = Self {
            root: absolute,
            parameters,
            writable,
            sync_interval: Some(SYNC_INTERVAL_DEFAULT),
            lost: LostWrites::default(),
        };
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
                store.sweep_folders()?;
                match documents::read_object(&store.root.join(METADATA_FILE))? {
                    Some(found) => store.check_metadata(metadata, &found)?,
                    None => {
                        store.check_sizes(metadata)?;
                        documents::write_object(&store.root, METADATA_FILE, metadata)?;
                    }
                }
                // A file that is there and damaged stays as it is, for `repair`.
                if !is_there(&store.root.join(EXPERIMENTS_FILE))? {
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

    /// Registers a model: makes its arrays, all zeros, and its flags. One that is there already,
    /// whole or in part (its maker was killed), is kept with all its rows; with `reset` its arrays
    /// become zeros and its flags 0.
    ///
    /// Where an array was lost, the mask and the flags that spoke of it are taken back before zeros
    /// take its place: all rows are then to be done again.
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
        let before = known.unwrap_or_default();
        let (mut flags, rows_are_lost) =
            if reset { (ModelFlags::default(), false) } else { self.after_losses(id, before)? };
        // Flags first, then the mask: neither may speak of rows that are gone.
        if known.is_some_and(|known| known != flags) || reset && known.is_some() {
            documents::write_flags(&self.root, id, flags)?;
        }
        if rows_are_lost {
            self.open_array(id, TrainArray::Mask)?.clear_marks_from(0)?;
        }
        let is_deleted = |array: &TrainArray| *array == TrainArray::Grads && flags.is_finalized;
        self.make_train_arrays(id, TrainArray::ALL.into_iter().filter(|array| !is_deleted(array)), reset)?;
        // An empty train set has all of its rows.
        if known != Some(flags) || reset {
            let mask = self.open_array(id, TrainArray::Mask)?;
            flags.is_featurized = mask.count_marked()? == self.parameters.train_set_size;
            documents::write_flags(&self.root, id, flags)?;
        }
        Ok(flags)
    }

    /// The flags of a model after its missing arrays are made again, as zeros; and whether a mask
    /// covers the lost rows.
    fn after_losses(&self, id: i64, mut flags: ModelFlags) -> Result<(ModelFlags, bool)> {
        let is_there = |array| is_there(&self.array_path(id, array));
        if !is_there(TrainArray::Features)? {
            flags.is_finalized = false;
        }
        let has_grads = is_there(TrainArray::Grads)? || flags.is_finalized;
        let has_mask = is_there(TrainArray::Mask)?;
        let has_rows = has_grads && is_there(TrainArray::OutToLoss)?;
        if !has_rows || !has_mask {
            flags = ModelFlags::default();
        }
        Ok((flags, !has_rows && has_mask))
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
        self.make_train_arrays(id, TrainArray::ALL, true)
    }

    /// Opens the arrays of a model. The gradients of a finalized model may have been deleted; no
    /// other array may be missing.
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

    /// Says on disk how far a model is: featurized if every row of its mask is 1; finalized if that
    /// is asked for, once the features are on disk.
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
            self.open_array(id, TrainArray::Features)?.sync_whole()?;
        }
        documents::write_flags(&self.root, id, flags)?;
        Ok(flags)
    }

    /// Says of every model whose mask is complete that it is featurized, where a writer was killed
    /// before it could.
    ///
    /// # Errors
    /// What the disk says; masks that cannot be read are passed over.
    pub fn refresh_flags(&self) -> Result<()> {
        let unfinished = self.catalog()?.models.into_iter().filter(|(_, flags)| !flags.is_featurized);
        for (id, _) in unfinished {
            let count = self.open_array(id, TrainArray::Mask).and_then(|mask| mask.count_marked());
            if count.is_ok_and(|count| count == self.parameters.train_set_size) {
                let _lock = self.lock()?;
                // Another process may have written more since.
                if let Some(now) = self.catalog()?.models.get(&id) {
                    self.write_flags_locked(id, now.is_finalized)?;
                }
            }
        }
        Ok(())
    }

    /// Before the features of a model are written over: takes back that they are final, if it was
    /// said.
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

    /// Takes back the flag that all rows of a model are done; without `keep_final` also the one
    /// that its features are final. To be called before rows that are done are written again, or
    /// marked as not done.
    ///
    /// # Errors
    /// What the disk says; the rows are then to be left alone.
    pub fn take_back_flags(&self, id: i64, keep_final: bool) -> Result<()> {
        let _lock = self.lock()?;
        let Some(&known) = self.catalog()?.models.get(&id) else { return Ok(()) };
        let flags = ModelFlags { is_featurized: false, is_finalized: known.is_finalized && keep_final };
        if flags == known { Ok(()) } else { documents::write_flags(&self.root, id, flags) }
    }

    /// Deletes a model's gradients, once the features that were made of them are on disk.
    ///
    /// # Errors
    /// `NotFound` if there are none.
    pub fn delete_grads(&self, id: i64) -> Result<()> {
        let _lock = self.lock()?;
        let path = self.array_path(id, TrainArray::Grads);
        if is_there(&path)? {
            self.open_array(id, TrainArray::Features)?.sync_whole()?;
        }
        std::fs::remove_file(&path).map_err(|error| Error::io("cannot delete", &path, error))?;
        let folder = self.root.join(id.to_string());
        sync_folder(&folder).map_err(|error| Error::io("cannot sync the folder", &folder, error))
    }

    /// Ties a model to the checkpoint that its rows are computed from: the first call remembers
    /// `identity` (a digest of the parameters, say), later ones compare.
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
        sweep_new_files(&folder);
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
        self.open_file(&self.array_path(id, array), &self.parameters.train(array))
    }

    pub(super) fn open_file(&self, path: &Path, spec: &ArraySpec) -> Result<ArrayFile> {
        Ok(ArrayFile::open(path, spec, self.writable)?.telling(&self.lost))
    }

    /// As [`make_arrays`](Self::make_arrays), of arrays of a model.
    fn make_train_arrays(
        &self,
        id: i64,
        arrays: impl IntoIterator<Item = TrainArray>,
        reset: bool,
    ) -> Result<()> {
        let folder = self.root.join(id.to_string());
        let all: Vec<(&str, ArraySpec)> =
            arrays.into_iter().map(|array| (array.file_name(), self.parameters.train(array))).collect();
        // A mask that is replaced must be removed before the rows that it covers.
        let (mask, data): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(name, _)| reset && *name == TrainArray::Mask.file_name());
        self.make_arrays(&folder, &mask, reset)?;
        self.make_arrays(&folder, &data, reset)
    }

    /// Makes the arrays of `folder` that are missing; those that are there must fit, or are
    /// replaced with `reset`. New ones get their names together, when all are made: what one says
    /// must not be about another that is replaced.
    pub(super) fn make_arrays(&self, folder: &Path, arrays: &[(&str, ArraySpec)], reset: bool) -> Result<()> {
        let mut new = Vec::with_capacity(arrays.len());
        for (name, spec) in arrays {
            let path = folder.join(name);
            if !reset && is_there(&path)? {
                ArrayFile::open(&path, spec, false)?;
            } else {
                new.push((path, name, spec, ArrayFile::prepare(folder, name, spec)?));
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        // All are written before the first is waited for: the disk then takes them together.
        let mut synced = Vec::with_capacity(new.len());
        for (path, name, spec, file) in new {
            synced.push((path, name, spec, file.sync()?));
        }
        for (path, name, spec, file) in synced {
            match file.give_name_unsynced(name, reset) {
                // A process that knows no lock was faster.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    ArrayFile::open(&path, spec, false)?;
                }
                other => other?,
            }
            self.lost.made_again(&path);
        }
        sync_folder(folder).map_err(|error| Error::io("cannot sync the folder", folder, error))
    }

    /// Holds the store's lock until it is dropped. Removes what killed writers left of JSON files.
    pub(super) fn lock(&self) -> Result<File> {
        let lock = lock(&self.root, self.writable)?;
        sweep_new_files(&self.root);
        Ok(lock)
    }

    /// Removes what killed makers of files left anywhere in the store; the caller holds the lock.
    fn sweep_folders(&self) -> Result<()> {
        sweep_new_files(&self.root.join(SCORES_FOLDER));
        for id in model_folders(&self.root)? {
            sweep_new_files(&self.root.join(id.to_string()));
        }
        Ok(())
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
                // Damage shows when the model is opened; here it must not lock anyone out of the
                // others.
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

/// Whether anything has the name, be it a link that leads nowhere: that is damage, and not a file
/// that was deleted. An answer that cannot be had is an error, since marks depend on it.
pub(super) fn is_there(path: &Path) -> Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::io("cannot look at", path, error)),
    }
}

/// Takes the lock of the store at `root`, and waits for it.
pub(super) fn lock(root: &Path, writable: bool) -> Result<File> {
    if !writable {
        return Err(Error::invalid("the store was opened for reading only").in_file(root));
    }
    let path = root.join(LOCK_FILE);
    let cannot_lock = |error: io::Error| {
        match has_no_locks(&error) {
        true => Error::unsupported("the file system has no locks").in_file(&path).help(
            "without them processes would lose each other's experiments; make the store on another file system, \
             or mount this one with locks",
        ),
        false => Error::io("cannot lock the store", &path, error),
    }
    };
    let file = open_or_make_regular(&path).map_err(|error| match error.kind() {
        ErrorKind::Corrupt => {
            error.help("it is the lock of the store, an empty file: move away what is there")
        }
        _ => error,
    })?;
    file.lock().map_err(cannot_lock)?;
    Ok(file)
}
