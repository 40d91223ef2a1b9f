//! The way out of a damaged store: asked for by name, never on the side.
//!
//! What can be known again is made again from what is left, and the more cautious answer wins: rows
//! that may be lost are marked as not done, flags that cannot be known are 0. So the next run
//! computes a little more, and nothing wrong is taken for right. A damaged JSON file or array
//! without a header is kept beside, under a name that neither TRAK nor we look at
//! (`<name>.damaged`).
//!
//! | damage | what is done |
//! |---|---|
//! | `id_<ID>.json` empty, cut, incomplete | featurized if the whole mask is 1; finalized if the gradients were deleted |
//! | `experiments.json` empty, cut, missing, or without a record | records made from the sizes of the arrays; scores not final |
//! | `metadata.json` empty, cut, missing | written from the metadata that the caller gives |
//! | an array is cut or too long | made as long as it should be; rows that were lost are not done, what depends on them not final |
//! | an array is missing or has no header | made again; its rows are not done, what depends on them
//! not final |
//! | rows that are marked as done hold zeros only | nothing, for they may be right; with `recompute_zero_rows` marked as not done |

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::array_file::ArrayFile;
use super::catalog::{Catalog, Fault, Subject, model_folders};
use super::check::{Masked, experiments_of, is_barely_begun, models_without_flags, scores_without_record};
use super::documents::{self, Experiment, ModelFlags};
use super::layout::{
    ArraySpec, CHECKPOINT_FILE, EXPERIMENTS_FILE, ExperimentName, METADATA_FILE, Parameters, Precision,
    SCORES_FOLDER, TrainArray, id_file, model_file,
};
use super::store::{is_there, lock};
use crate::commit::sweep_new_files;
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::store::local::regular::open_regular;
use crate::system::{FileExt, sync};
use crate::text::counted;

/// What to repair with.
#[derive(Debug, Clone, Default)]
pub struct Repair {
    /// The metadata, where `metadata.json` is lost.
    pub metadata: Option<Map<String, Value>>,
    /// The precision, where no array is left to tell it.
    pub precision: Option<Precision>,
    /// Mark rows that hold zeros only as not done. Their gradients may really be zero, so this is
    /// asked for.
    pub recompute_zero_rows: bool,
}

/// Repairs the store at `root`, under its lock; says what was done, a line each. No other process
/// may be working on the models concerned.
///
/// # Errors
/// `Corrupt` if the metadata are lost and not given; what the disk says. What was done so far stays
/// done.
pub fn repair(root: &Path, with: &Repair) -> Result<Vec<String>> {
    let root = std::path::absolute(crate::location::local(root)?)
        .map_err(|error| Error::io("cannot find", root, error))?;
    let found = std::fs::metadata(&root);
    found.map_err(|error| Error::io("cannot open the store", &root, error))?;
    let _lock = lock(&root, true)?;
    sweep_new_files(&root);
    let mut work = Work { root: &root, recompute_zero_rows: with.recompute_zero_rows, done: Vec::new() };
    let mut catalog = Catalog::read(&root)?;
    work.metadata(&mut catalog, with)?;
    let mut parameters = super::reader::parameters_of(&root, &catalog)?;
    parameters.precision = with.precision.unwrap_or(parameters.precision);
    work.unreadable_flags(&catalog)?;
    let ids = work.models_meant(&catalog)?;
    for &id in &ids {
        work.model(id, &catalog, &parameters)?;
    }
    work.spare_flags()?;
    work.experiments(&catalog, &parameters, &ids)?;
    Ok(work.done)
}

struct Work<'a> {
    root: &'a Path,
    recompute_zero_rows: bool,
    done: Vec<String>,
}

impl Work<'_> {
    fn metadata(&mut self, catalog: &mut Catalog, with: &Repair) -> Result<()> {
        let is_sound = catalog.metadata.as_ref().is_some_and(|found| documents::sizes_of(found).is_ok());
        if is_sound {
            return Ok(());
        }
        let Some(given) = &with.metadata else {
            return Err(Error::corrupt(
                "the metadata are lost, and nothing else says what kind of projection it was",
            )
            .in_file(self.root.join(METADATA_FILE))
            .help("give `repair` the metadata that the store was made with"));
        };
        documents::sizes_of(given)?;
        self.put_aside(METADATA_FILE)?;
        documents::write_object(self.root, METADATA_FILE, given)?;
        self.say(METADATA_FILE, "written from what was given");
        catalog.metadata = Some(given.clone());
        Ok(())
    }

    /// Puts aside damaged flags whose file is not named after a model with a folder: they cannot be
    /// rebuilt.
    fn unreadable_flags(&mut self, catalog: &Catalog) -> Result<()> {
        for fault in &catalog.faults {
            let Subject::Model(id) = fault.subject else { continue };
            let file = fault.error.place().file.as_ref().and_then(|file| file.file_name());
            let name = file.unwrap_or_default().to_string_lossy();
            let is_model = |id: i64| id_file(id) == name && self.root.join(id.to_string()).is_dir();
            if !id.is_some_and(is_model) {
                self.put_aside(&name)?;
            }
        }
        Ok(())
    }

    /// Puts aside second files of flags of a model. Every model has a file named after it by now,
    /// and that one counts.
    fn spare_flags(&mut self) -> Result<()> {
        let catalog = Catalog::read(self.root)?;
        let files: BTreeSet<&String> = catalog.spare.iter().map(|spare| &spare.file).collect();
        for file in files {
            let own = catalog.models.iter().find(|(id, _)| id_file(**id) == *file);
            match own {
                Some((&id, &flags)) => {
                    documents::write_flags(self.root, id, flags)?;
                    self.say(file, "says nothing of other models any longer");
                }
                None => self.put_aside(file)?,
            }
        }
        Ok(())
    }

    /// Registered models, those of damaged files that are named after a model with a folder, and
    /// those whose file is lost.
    fn models_meant(&self, catalog: &Catalog) -> Result<Vec<i64>> {
        let mut ids: Vec<i64> = catalog.models.keys().copied().collect();
        let folders = model_folders(self.root)?;
        let damaged = |fault: &Fault| match fault.subject {
            Subject::Model(id) => id.filter(|id| folders.contains(id)),
            _ => None,
        };
        ids.extend(catalog.faults.iter().filter_map(damaged));
        ids.extend(models_without_flags(self.root, catalog)?);
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    fn model(&mut self, id: i64, catalog: &Catalog, parameters: &Parameters) -> Result<()> {
        let folder = self.root.join(id.to_string());
        if !folder.is_dir() {
            std::fs::create_dir(&folder)
                .map_err(|error| Error::io("cannot make the folder", &folder, error))?;
            self.say(&id.to_string(), "folder made");
        }
        sweep_new_files(&folder);
        let checkpoint = model_file(id, CHECKPOINT_FILE);
        if documents::read_object(&self.root.join(&checkpoint)).is_err() {
            self.put_aside(&checkpoint.to_string_lossy())?;
        }
        let known = catalog.models.get(&id).copied();
        let root = self.root;
        let exists = |array: TrainArray| is_there(&root.join(model_file(id, array.file_name())));
        let was_deleted = !exists(TrainArray::Grads)? && exists(TrainArray::Features)?;
        let finalized_before = known.map_or(was_deleted, |flags| flags.is_finalized);
        let mut flags = ModelFlags { is_featurized: false, is_finalized: finalized_before };
        self.array(&model_file(id, TrainArray::Mask.file_name()), &parameters.train(TrainArray::Mask))?;
        let masked: Vec<TrainArray> = [TrainArray::Grads, TrainArray::OutToLoss]
            .into_iter()
            .filter(|&array| !(array == TrainArray::Grads && was_deleted && finalized_before))
            .collect();
        let path_of = |array: TrainArray| self.root.join(model_file(id, array.file_name()));
        let mut lost_from: Option<u64> = None;
        for &array in &masked {
            let lost = lost_from_row(&path_of(array), &parameters.train(array))?;
            lost_from = lost.map_or(lost_from, |row| Some(lost_from.unwrap_or(row).min(row)));
        }
        let open = |array: TrainArray| ArrayFile::open(&path_of(array), &parameters.train(array), true);
        let mask = open(TrainArray::Mask)?;
        // The mask first: at no moment does it speak of rows that are gone.
        let mut undone = Vec::new();
        mask.for_each_number(|row, number| {
            let is_lost = lost_from.is_some_and(|lost| row >= lost);
            if number != 0 && number != 1 && !is_lost {
                undone.push(row);
            }
        })?;
        self.mark_undone(&mask, &undone, lost_from)?;
        for &array in &masked {
            self.array(&model_file(id, array.file_name()), &parameters.train(array))?;
        }
        let features = self.array(
            &model_file(id, TrainArray::Features.file_name()),
            &parameters.train(TrainArray::Features),
        )?;
        let has_zero_rows = match masked.contains(&TrainArray::Grads) {
            true => {
                let (grads, weights) = (open(TrainArray::Grads)?, open(TrainArray::OutToLoss)?);
                self.zero_rows(&Masked { mask: &mask, arrays: &[&grads, &weights] })?
            }
            false => false,
        };
        flags.is_featurized = mask.count_marked()? == mask.spec().rows;
        // Features that were made of lost rows could be right or wrong.
        flags.is_finalized &=
            features.is_none() && lost_from.is_none() && !has_zero_rows && flags.is_featurized;
        if !flags.is_finalized && !exists(TrainArray::Grads)? {
            // Deleted while the features were final: now they are needed again.
            let count = mask.clear_marks_from(0)?;
            if count > 0 {
                self.say_path(mask.path(), &format!("{} marked as not done", counted(count, "row", "rows")));
            }
            flags.is_featurized = mask.spec().rows == 0;
            self.array(&model_file(id, TrainArray::Grads.file_name()), &parameters.train(TrainArray::Grads))?;
        }
        let name = id_file(id);
        let stored = documents::read_object(&self.root.join(&name))
            .and_then(|object| documents::flags_in(&object.unwrap_or_default()));
        if stored.as_ref().is_ok_and(|stored| stored.contains(&(id, flags))) {
            return Ok(());
        }
        if stored.is_err() {
            self.put_aside(&name)?;
        }
        documents::write_flags(self.root, id, flags)?;
        let (a, b) = (u8::from(flags.is_featurized), u8::from(flags.is_finalized));
        self.say(&name, &format!("is_featurized {a}, is_finalized {b}"));
        Ok(())
    }

    fn experiments(&mut self, catalog: &Catalog, parameters: &Parameters, ids: &[i64]) -> Result<()> {
        let mut records = catalog.experiments.clone().unwrap_or_default();
        let before = catalog.experiments.clone();
        sweep_new_files(&self.root.join(SCORES_FOLDER));
        for (name, num_targets) in self.experiments_on_disk(catalog)? {
            let known =
                records.get(name.as_str()).map(|record| Experiment::from_record(name.as_str(), record));
            if !matches!(known, Some(Ok(_))) {
                let experiment = Experiment { num_targets, scores_finalized: false };
                records.insert(
                    name.as_str().to_owned(),
                    experiment.to_record(&self.root.join(name.scores_file())),
                );
                self.say(EXPERIMENTS_FILE, &format!("{:?} added, its scores are not final", name.as_str()));
            }
        }
        let mut kept = Map::new();
        for (name, mut record) in records {
            let Ok(mut experiment) = Experiment::from_record(&name, &record) else {
                self.say(
                    EXPERIMENTS_FILE,
                    &format!("record {name:?} dropped: it says nothing, and no array does"),
                );
                continue;
            };
            if let Ok(valid) = ExperimentName::new(&name) {
                let is_sound = self.experiment_arrays(&valid, &mut experiment, parameters, ids)?;
                if let Some(record) = record.as_object_mut() {
                    record.insert("num_targets".to_owned(), experiment.num_targets.into());
                    if !is_sound {
                        record.insert("scores_finalized".to_owned(), 0.into());
                    }
                }
            }
            kept.insert(name, record);
        }
        if before.as_ref() != Some(&kept) {
            if before.is_none() && is_there(&self.root.join(EXPERIMENTS_FILE))? {
                self.put_aside(EXPERIMENTS_FILE)?;
            }
            documents::write_object(self.root, EXPERIMENTS_FILE, &kept)?;
            self.say(EXPERIMENTS_FILE, "written");
        }
        Ok(())
    }

    /// Makes the arrays of an experiment whole; whether the scores were, and the targets that they
    /// were made of.
    fn experiment_arrays(
        &mut self,
        name: &ExperimentName,
        experiment: &mut Experiment,
        parameters: &Parameters,
        ids: &[i64],
    ) -> Result<bool> {
        // Arrays that agree with each other say more than a record: TRAK changes the number in the
        // record alone.
        let scores_path = self.root.join(name.scores_file());
        if let Ok(found) = ArrayFile::spec_of(&scores_path)
            && found.columns != experiment.num_targets
            && found == parameters.scores(found.columns)
        {
            let told = format!("{:?} has {} targets, as its arrays", name.as_str(), found.columns);
            self.say(EXPERIMENTS_FILE, &told);
            experiment.num_targets = found.columns;
        }
        let targets = experiment.num_targets;
        let mut is_sound = true;
        for &id in ids {
            let (file, mask_file) =
                (model_file(id, &name.grads_file()), model_file(id, &name.targets_file()));
            let (path, mask_path) = (self.root.join(&file), self.root.join(&mask_file));
            let has_mask = is_there(&mask_path)?;
            // Without gradients a mask with marks speaks of what is lost; one without is of a start
            // that was killed.
            if !is_there(&path)? && (!has_mask || is_barely_begun(self.root, id, name)) {
                continue;
            }
            let spec = parameters.target_grads(targets);
            let lost = lost_from_row(&path, &spec)?;
            is_sound &= lost.is_none();
            if !has_mask {
                self.array(&file, &spec)?;
                continue;
            }
            let mask_spec = Parameters::target_mask(targets);
            is_sound &= self.array(&mask_file, &mask_spec)?.is_none();
            let mask = ArrayFile::open(&mask_path, &mask_spec, true)?;
            self.mark_undone(&mask, &[], lost)?;
            self.array(&file, &spec)?;
            let grads = ArrayFile::open(&path, &spec, false)?;
            is_sound &= !self.zero_rows(&Masked { mask: &mask, arrays: &[&grads] })?;
        }
        let lost = self.array(&PathBuf::from(name.scores_file()), &parameters.scores(targets))?;
        Ok(is_sound && lost.is_none())
    }

    /// Experiments that have targets or scores, and how many targets.
    fn experiments_on_disk(&self, catalog: &Catalog) -> Result<Vec<(ExperimentName, u64)>> {
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        for id in model_folders(self.root)? {
            for name in experiments_of(self.root, id)? {
                let files = [name.grads_file(), name.targets_file()].map(|file| model_file(id, &file));
                let spec = files.iter().find_map(|file| ArrayFile::spec_of(&self.root.join(file)).ok());
                let Some(spec) = spec else { continue };
                if seen.insert(name.clone()) {
                    found.push((name, spec.rows));
                }
            }
        }
        let scores = scores_without_record(self.root, catalog)?;
        found.extend(scores.into_iter().filter(|(name, _)| {
            ArrayFile::spec_of(&self.root.join(name.scores_file())).is_ok() && seen.insert(name.clone())
        }));
        Ok(found)
    }

    /// Makes one array whole; the first row that was lost, if any was.
    fn array(&mut self, file: &Path, spec: &ArraySpec) -> Result<Option<u64>> {
        let path = self.root.join(file);
        let (folder, name) = (path.parent().unwrap_or(self.root), file.file_name().unwrap_or_default());
        let make = |replace| {
            crate::store::local::folders::make_folders(folder)
                .map_err(|error| Error::io("cannot make the folder", folder, error))?;
            ArrayFile::create(folder, &name.to_string_lossy(), spec, replace)
        };
        match ArrayFile::open(&path, spec, false) {
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                make(false)?;
                self.say_path(&path, "made again: it was missing");
                Ok(Some(0))
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                if ArrayFile::spec_of(&path).is_err() {
                    self.put_aside(&file.to_string_lossy())?;
                    make(false)?;
                    self.say_path(&path, "made again: it had no header");
                    return Ok(Some(0));
                }
                self.set_len(&path, spec)
            }
            Err(error) => Err(error.help("`repair` cannot tell which of the two is meant")),
        }
    }

    fn set_len(&mut self, path: &Path, spec: &ArraySpec) -> Result<Option<u64>> {
        let cannot = |error| Error::io("cannot repair", path, error);
        let Some(file) = open_regular(path, true)? else { return Ok(Some(0)) };
        let found = file.metadata().map_err(cannot)?.len();
        let start = data_start(&file, spec).in_file(path)?;
        let expected = start + spec.len_bytes()?;
        file.set_len(expected).and_then(|()| sync(&file)).map_err(cannot)?;
        if found > expected {
            self.say_path(
                path,
                &format!("{} after its data cut off", counted(found - expected, "byte", "bytes")),
            );
            return Ok(None);
        }
        self.say_path(
            path,
            &format!(
                "{} zero now",
                counted(expected - found, "byte that was cut off is", "bytes that were cut off are")
            ),
        );
        Ok(Some(found.saturating_sub(start) / row_len_bytes(spec)))
    }

    /// Takes marks back, on disk: those of `rows`, and all from the first row that is lost on.
    fn mark_undone(&mut self, mask: &ArrayFile, rows: &[u64], lost_from: Option<u64>) -> Result<()> {
        let mut count = rows.len() as u64;
        if !rows.is_empty() {
            mask.set_marks(rows, 0)?;
            mask.sync()?;
        }
        if let Some(first) = lost_from {
            count += mask.clear_marks_from(first)?;
        }
        if count > 0 {
            self.say_path(mask.path(), &format!("{} marked as not done", counted(count, "row", "rows")));
        }
        Ok(())
    }

    /// If that is asked for, takes back the marks of rows that hold zeros only; whether there were
    /// any.
    fn zero_rows(&mut self, masked: &Masked<'_>) -> Result<bool> {
        if !self.recompute_zero_rows {
            return Ok(false);
        }
        let (zero, _) = masked.zero_rows()?;
        self.mark_undone(masked.mask, &zero, None)?;
        Ok(!zero.is_empty())
    }

    fn put_aside(&mut self, name: &str) -> Result<()> {
        let from = self.root.join(name);
        let to = self.root.join(format!("{name}.damaged"));
        match std::fs::rename(&from, &to) {
            Ok(()) => {
                self.say(name, "what was there is now beside it, as .damaged");
                Ok(())
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Error::io("cannot put aside", &from, error)),
        }
    }

    fn say(&mut self, name: &str, what: &str) {
        self.done.push(format!("{name}: {what}"));
    }

    fn say_path(&mut self, path: &Path, what: &str) {
        let name = path.strip_prefix(self.root).unwrap_or(path).display().to_string();
        self.say(&name, what);
    }
}

/// The first row of an array that is lost, if any is: the file is missing, has no header, or is
/// cut.
fn lost_from_row(path: &Path, spec: &ArraySpec) -> Result<Option<u64>> {
    match ArrayFile::open(path, spec, false) {
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Some(0)),
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            if ArrayFile::spec_of(path).is_err() {
                return Ok(Some(0));
            }
            let cannot = |error| Error::io("cannot look at", path, error);
            let Some(file) = open_regular(path, false)? else { return Ok(Some(0)) };
            let found = file.metadata().map_err(cannot)?.len();
            let start = data_start(&file, spec).in_file(path)?;
            let is_cut = found < start + spec.len_bytes()?;
            Ok(is_cut.then(|| found.saturating_sub(start) / row_len_bytes(spec)))
        }
        Err(error) => Err(error.help("`repair` cannot tell which of the two is meant")),
    }
}

fn row_len_bytes(spec: &ArraySpec) -> u64 {
    (spec.columns * spec.dtype.size_bytes() as u64).max(1)
}

/// Where the data of an array begins, whose file may end before that. Headers of sound arrays are
/// all as ours.
fn data_start(file: &File, spec: &ArraySpec) -> Result<u64> {
    let header = crate::formats::npy::header::Header::for_array(spec.dtype, spec.shape()?, true).to_bytes();
    header_len(file, header.len())
}

/// Where the data of a file begins.
fn header_len(file: &File, usual: usize) -> Result<u64> {
    let mut prefix = [0; crate::formats::npy::header::PREFIX_LEN_BYTES];
    match file.read_exact_at(&mut prefix, 0) {
        Ok(()) => Ok(crate::formats::npy::header::Header::len_bytes(&prefix)? as u64),
        Err(_) => Ok(usual as u64),
    }
}
