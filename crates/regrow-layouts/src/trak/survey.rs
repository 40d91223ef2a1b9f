//! The files of a TRAK store, and the contradictions between them. This module takes no lock.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use super::array_file::ArrayFile;
use super::catalog::{Catalog, model_folders, names_in};
use super::documents::{self, Experiment};
use super::finite::is_finite;
use super::layout::{
    ARRAY_SUFFIX, ArraySpec, ExperimentName, Parameters, Precision, SCORES_FOLDER, Slot, TrainArray, id_file,
};
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_base::text::counted;

/// The most rows that one note lists.
const NAMED_MAX: usize = 10;

/// The content of a store's folder.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) root: PathBuf,
    pub(super) catalog: Catalog,
    pub(super) parameters: Parameters,
    /// Models with a folder, registered or not.
    pub(super) folders: Vec<i64>,
}

/// An experiment that has arrays and no sound record.
#[derive(Debug, Default)]
pub(super) struct Unrecorded {
    /// The number of targets, from the first array that can be read.
    pub(super) num_targets: Option<u64>,
    /// Whether a model has targets of the experiment. A barely begun experiment does not count.
    pub(super) has_targets: bool,
    pub(super) has_scores: bool,
}

impl Survey {
    pub(super) fn of(root: &Path, catalog: Catalog) -> Result<Self> {
        let folders = model_folders(root)?;
        let parameters = parameters_of(root, &catalog, &folders);
        Ok(Self { root: root.to_owned(), catalog, parameters, folders })
    }

    /// Registered models, models with a damaged file of flags, and models whose file of flags is
    /// lost.
    pub(super) fn models(&self) -> Result<BTreeSet<i64>> {
        let mut ids: BTreeSet<i64> = self.catalog.models.keys().copied().collect();
        for &id in &self.folders {
            let is_damaged = self.catalog.faults.iter().any(|fault| fault.file == id_file(id));
            if is_damaged || !ids.contains(&id) && self.has_work(id)? {
                ids.insert(id);
            }
        }
        Ok(ids)
    }

    /// Whether a model has arrays, and a mask that has marks or cannot be read. A process that is
    /// killed while it registers a model leaves a mask without marks.
    fn has_work(&self, id: i64) -> Result<bool> {
        let names = names_in(&self.root.join(id.to_string()))?;
        let mask = self.parameters.train(id, TrainArray::Mask);
        Ok(names.iter().any(|name| name.ends_with(ARRAY_SUFFIX)) && self.marked_rows(&mask.file) != Some(0))
    }

    /// Experiments with a sound record.
    pub(super) fn recorded(&self) -> impl Iterator<Item = (ExperimentName, Experiment)> {
        self.catalog.experiments.iter().flatten().filter_map(|(name, record)| {
            Some((ExperimentName::new(name).ok()?, Experiment::from_record(name, record).ok()?))
        })
    }

    /// Experiments that have arrays and no sound record.
    pub(super) fn unrecorded(&self) -> Result<BTreeMap<ExperimentName, Unrecorded>> {
        let mut found: BTreeMap<ExperimentName, Unrecorded> = BTreeMap::new();
        for &id in &self.folders {
            for name in self.experiments_of(id)? {
                let files = [name.grads_file(id), name.targets_file(id)];
                let spec = files.iter().find_map(|file| self.spec_of(file).ok());
                let has_targets = !self.is_barely_begun(id, &name);
                let known = found.entry(name).or_default();
                known.num_targets = known.num_targets.or(spec.map(|spec| spec.rows));
                known.has_targets |= has_targets;
            }
        }
        let scores = self.root.join(SCORES_FOLDER);
        let files = if scores.is_dir() { names_in(&scores)? } else { Vec::new() };
        for name in files.iter().filter_map(|file| ExperimentName::of_scores_file(file)) {
            if !self.folders.iter().any(|&id| self.is_barely_begun(id, &name)) {
                let spec = self.spec_of(&name.scores_file()).ok();
                let known = found.entry(name).or_default();
                known.num_targets = known.num_targets.or(spec.map(|spec| spec.columns));
                known.has_scores = true;
            }
        }
        let recorded: HashSet<ExperimentName> = self.recorded().map(|(name, _)| name).collect();
        found.retain(|name, _| !recorded.contains(name));
        Ok(found)
    }

    /// Experiments that have targets in a model's folder, or a mask whose targets are lost.
    pub(super) fn experiments_of(&self, id: i64) -> Result<BTreeSet<ExperimentName>> {
        let files = names_in(&self.root.join(id.to_string()))?;
        let masked = files.iter().filter_map(|file| ExperimentName::of_targets_file(file));
        let lost = masked.filter(|name| !self.is_barely_begun(id, name));
        Ok(files.iter().filter_map(|file| ExperimentName::of_grads_file(file)).chain(lost).collect())
    }

    /// Whether a process was killed while it started an experiment. The process makes the arrays,
    /// the mask first, and adds the record last. No target is done at that time, and the next start
    /// completes the experiment.
    pub(super) fn is_barely_begun(&self, id: i64, name: &ExperimentName) -> bool {
        self.marked_rows(&name.targets_file(id)) == Some(0)
    }

    pub(super) fn spec_of(&self, file: &str) -> Result<ArraySpec> {
        ArrayFile::spec_of(&self.root.join(file))
    }

    fn open(&self, slot: &Slot) -> Result<ArrayFile> {
        ArrayFile::open(&slot.path(&self.root), &slot.spec, false)
    }

    /// How many rows a mask marks as done; `None` if it cannot be read.
    fn marked_rows(&self, mask: &str) -> Option<u64> {
        let (path, spec) = (self.root.join(mask), self.spec_of(mask).ok()?);
        ArrayFile::open(&path, &spec, false).and_then(|mask| mask.count_marked()).ok()
    }

    /// The rows that are done and zero in all of the arrays, ascending; and the number of rows that
    /// are done.
    pub(super) fn zero_rows(&self, mask: &Slot, arrays: &[&Slot]) -> Result<(Vec<u64>, usize)> {
        let mut zero = Vec::new();
        self.open(mask)?.for_each_number(|row, number| zero.extend((number == 1).then_some(row)))?;
        let done = zero.len();
        for slot in arrays {
            let mut found = HashSet::new();
            // `for_each_row` visits no row of an array without columns: none of its rows is zero.
            self.open(slot)?.for_each_row(|row, bytes| found.extend(is_all_zero(bytes).then_some(row)))?;
            zero.retain(|row| found.contains(row));
        }
        Ok((zero, done))
    }

    /// A note for each mask that marks rows of zeros as done. The note gives the mask, the rows,
    /// and their number.
    ///
    /// Such rows need not be wrong: a gradient can be zero, or too small for half precision. A
    /// power cut in a run of TRAK's own saver looks the same.
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

    /// Final features and scores that cannot be right.
    pub(super) fn wrong_results(&self) -> impl Iterator<Item = Error> {
        let finalized = self.catalog.models.iter().filter(|(_, flags)| flags.is_finalized);
        let features = finalized.filter_map(move |(&id, _)| {
            let features = self.open(&self.parameters.train(id, TrainArray::Features)).ok()?;
            let mut is_zero = self.parameters.train_set_size > 0;
            if let Err(error) = features.for_each_row(|_, bytes| is_zero &= is_all_zero(bytes)) {
                return Some(error);
            }
            let what = format!("model {id} is flagged as finalized, but has no features");
            let error = || Error::corrupt(what).in_file(features.path()).expected("features", "zeros only");
            is_zero.then(error)
        });
        let scores = self.recorded().filter(|(_, experiment)| experiment.scores_finalized);
        let scores = scores.filter_map(move |(name, experiment)| {
            let scores = self.open(&self.parameters.scores(&name, experiment.num_targets)).ok()?;
            refuse_non_finite(&scores).err()
        });
        features.chain(scores)
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

/// The sizes are from the metadata, or else from the first array that can be read. The precision is
/// from the first array that can be read.
fn parameters_of(root: &Path, catalog: &Catalog, folders: &[i64]) -> Parameters {
    let arrays = [TrainArray::Features, TrainArray::Grads, TrainArray::OutToLoss];
    let ids = catalog.models.keys().chain(folders);
    let mut found = ids.flat_map(|id| arrays.map(|array| (id, array))).filter_map(|(id, array)| {
        let spec = ArrayFile::spec_of(&root.join(id.to_string()).join(array.file_name())).ok()?;
        Some((
            Precision::of(spec.dtype)?,
            (array != TrainArray::OutToLoss).then_some((spec.rows, spec.columns)),
        ))
    });
    let first = found.next();
    let by_metadata = catalog.metadata.as_ref().and_then(|metadata| documents::sizes_of(metadata).ok());
    let by_arrays = || first.into_iter().chain(found).find_map(|(_, sizes)| sizes);
    let (train_set_size, proj_dim) = by_metadata.or_else(by_arrays).unwrap_or_default();
    let precision = first.map_or(Precision::Half, |(precision, _)| precision);
    Parameters { train_set_size, proj_dim, precision }
}

fn is_all_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}
