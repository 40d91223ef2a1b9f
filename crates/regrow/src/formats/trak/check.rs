//! What can be wrong with a store beyond files that cannot be read: flags, masks and records that
//! contradict the arrays, and arrays that are gone while their mask says that rows of them are
//! done. And what only looks odd: rows that are done and hold zeros.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::array_file::ArrayFile;
use super::catalog::{Catalog, Fault, Subject, model_folders, names_in};
use super::documents::{Experiment, ModelFlags};
use super::finite::is_finite;
use super::layout::{
    ARRAY_SUFFIX, ArraySpec, EXPERIMENTS_FILE, ExperimentName, METADATA_FILE, Parameters, SCORES_FOLDER,
    TrainArray, id_file, model_file,
};
use super::store::is_there;
use crate::bytes::limits::work_space;
use crate::error::{Error, ErrorKind, Result};
use crate::report::Finding;
use crate::text::counted;

/// Bytes of an array that are looked at together.
const PIECE_LEN_BYTES: u64 = 1 << 20;
/// Rows named in one note.
const NAMED_MAX: usize = 10;

/// All contradictions in the store at `root`. Arrays that cannot be read are no matter of this:
/// reading them says so.
///
/// # Errors
/// Only if a folder cannot be listed.
pub(super) fn check(root: &Path, catalog: &Catalog, parameters: &Parameters) -> Result<Vec<Finding>> {
    let mut findings = Findings(Vec::new());
    if catalog.metadata.is_none() {
        findings.add(
            Error::corrupt("the metadata are missing")
                .in_file(root.join(METADATA_FILE))
                .help("give `repair` the metadata that the store was made with"),
        );
    }
    for (&id, &flags) in &catalog.models {
        check_model(root, id, flags, parameters, &mut findings);
    }
    for (name, record) in catalog.experiments.iter().flatten() {
        let Ok(experiment) = Experiment::from_record(name, record) else { continue };
        let Ok(name) = ExperimentName::new(name) else { continue };
        check_experiment(root, catalog, &name, &experiment, parameters, &mut findings);
    }
    for spare in &catalog.spare {
        let counts = catalog.models.get(&spare.id).copied().unwrap_or_default();
        if counts != spare.flags {
            findings.add(
                Error::corrupt(format!("two files say different things of model {}", spare.id))
                    .in_file(root.join(&spare.file))
                    .expected(
                        format_args!("{} (in {})", counts.to_record(), spare.counts),
                        spare.flags.to_record(),
                    )
                    .help("TRAK takes the file that it happens to read last; `repair` puts this one aside"),
            );
        }
    }
    for id in models_without_flags(root, catalog)? {
        findings.add(
            Error::corrupt(format!("model {id} has arrays, and no file of flags for it"))
                .in_file(root.join(id_file(id)))
                .help("the file was lost; `repair` adds it again"),
        );
    }
    let mut without_record = HashSet::new();
    for id in model_folders(root)? {
        for name in experiments_of(root, id)? {
            let has_grads = is_there(&root.join(model_file(id, &name.grads_file())))?;
            if !has_grads && marked_rows(&root.join(model_file(id, &name.targets_file()))).is_none() {
                continue;
            }
            if !has_record(catalog, &name)
                && !is_barely_begun(root, id, &name)
                && without_record.insert(name.clone())
            {
                let fits = fits_together(root, &name, parameters)?;
                findings.add(lost_record(root, &name, "targets", fits));
            }
        }
    }
    for (name, _) in scores_without_record(root, catalog)? {
        let fits = fits_together(root, &name, parameters)?;
        if without_record.insert(name.clone()) {
            findings.add(lost_record(root, &name, "scores", fits));
        }
    }
    Ok(findings.0)
}

/// Models that have arrays in their folders and no flags: the file that said so is lost. One that
/// was being registered when its process was killed has a mask already, and no row is done.
///
/// # Errors
/// If a folder cannot be listed.
pub(super) fn models_without_flags(root: &Path, catalog: &Catalog) -> Result<Vec<i64>> {
    let is_known = |id: i64| {
        let is_damaged = |fault: &Fault| fault.subject == Subject::Model(Some(id));
        catalog.models.contains_key(&id) || catalog.faults.iter().any(is_damaged)
    };
    let mut lost = Vec::new();
    for id in model_folders(root)?.into_iter().filter(|&id| !is_known(id)) {
        let names = names_in(&root.join(id.to_string()))?;
        let has_arrays = names.iter().any(|name| name.ends_with(ARRAY_SUFFIX));
        let mask = root.join(model_file(id, TrainArray::Mask.file_name()));
        if has_arrays && marked_rows(&mask) != Some(0) {
            lost.push(id);
        }
    }
    Ok(lost)
}

fn has_record(catalog: &Catalog, name: &ExperimentName) -> bool {
    catalog.experiments.as_ref().is_some_and(|records| records.contains_key(name.as_str()))
}

fn lost_record(root: &Path, name: &ExperimentName, what: &str, fits: bool) -> Error {
    let error = Error::corrupt(format!("experiment {:?} has {what} and no record", name.as_str()))
        .in_file(root.join(EXPERIMENTS_FILE));
    match fits {
        true => error.help("another process has lost it; `repair` adds it again"),
        false => error.help("and they are no arrays of this store's sizes: move their files away"),
    }
}

/// Whether those arrays of an experiment that can be read are of this store's kind, and of one
/// number of targets: only then can a record be made of them.
fn fits_together(root: &Path, name: &ExperimentName, parameters: &Parameters) -> Result<bool> {
    let scores = ArrayFile::spec_of(&root.join(name.scores_file())).ok();
    let (mut grads, mut masks) = (Vec::new(), Vec::new());
    for id in model_folders(root)? {
        grads.extend(ArrayFile::spec_of(&root.join(model_file(id, &name.grads_file()))));
        masks.extend(ArrayFile::spec_of(&root.join(model_file(id, &name.targets_file()))));
    }
    let by_scores = scores.filter(|scores| *scores == parameters.scores(scores.columns));
    let by_targets = grads.first().or(masks.first()).map(|spec| spec.rows);
    let Some(targets) = by_scores.map(|scores| scores.columns).or(by_targets) else { return Ok(false) };
    Ok(scores.is_none_or(|found| found == parameters.scores(targets))
        && grads.iter().all(|found| *found == parameters.target_grads(targets))
        && masks.iter().all(|found| *found == Parameters::target_mask(targets)))
}

/// Experiments that have scores and no record, and how many targets the scores have: another
/// process has lost the record. One that was being started when its process was killed has no
/// scores yet.
///
/// # Errors
/// If a folder cannot be listed.
pub(super) fn scores_without_record(root: &Path, catalog: &Catalog) -> Result<Vec<(ExperimentName, u64)>> {
    let folder = root.join(SCORES_FOLDER);
    let files = if folder.is_dir() { names_in(&folder)? } else { Vec::new() };
    let names = files.iter().filter_map(|file| ExperimentName::of_scores_file(file));
    let ids = model_folders(root)?;
    let is_lost = |name: &ExperimentName| {
        !has_record(catalog, name) && !ids.iter().any(|&id| is_barely_begun(root, id, name))
    };
    let targets_of = |name: &ExperimentName| {
        // What is no array is also a leaf: reading it says so.
        ArrayFile::spec_of(&root.join(name.scores_file())).map_or(1, |spec| spec.columns)
    };
    Ok(names.filter(is_lost).map(|name| (name.clone(), targets_of(&name))).collect())
}

/// Whether an experiment without a record was being started when its process was killed: the arrays
/// are made, the mask first and the record last, and no target is done. Starting it again goes on
/// from there.
pub(super) fn is_barely_begun(root: &Path, id: i64, name: &ExperimentName) -> bool {
    marked_rows(&root.join(model_file(id, &name.targets_file()))) == Some(0)
}

/// Errs if an array of floats holds NaN or an infinity.
pub(super) fn refuse_non_finite(array: &ArrayFile) -> Result<()> {
    let mut bad = None;
    for_each_row(array, |row, bytes| {
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

struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, error: Error) {
        self.0.push(Finding { error });
    }

    /// What reading an array that can be opened says.
    fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }
}

fn check_model(root: &Path, id: i64, flags: ModelFlags, parameters: &Parameters, findings: &mut Findings) {
    for array in TrainArray::ALL {
        check_spec(&root.join(model_file(id, array.file_name())), &parameters.train(array), findings);
    }
    let open = |array: TrainArray| {
        ArrayFile::open(&root.join(model_file(id, array.file_name())), &parameters.train(array), false).ok()
    };
    if let Some(mask) = open(TrainArray::Mask) {
        let (mut done, mut odd) = (Vec::new(), 0_u64);
        let read = mask.for_each_number(|row, number| match number {
            0 => {}
            1 => done.push(row),
            _ => odd += 1,
        });
        findings.keep(read);
        if odd > 0 {
            findings.add(
                Error::corrupt("a mask holds something else than 0 and 1")
                    .in_file(mask.path())
                    .expected("0 or 1 in each row", format_args!("{odd} other rows")),
            );
        }
        if flags.is_featurized && done.len() as u64 != mask.spec().rows {
            findings.add(
                Error::corrupt(format!("model {id} is flagged as featurized, but rows are missing"))
                    .in_file(root.join(id_file(id)))
                    .expected(
                        format_args!("{} rows done", mask.spec().rows),
                        format_args!("{} in its mask", done.len()),
                    ),
            );
        }
    }
    if flags.is_finalized
        && let Some(features) = open(TrainArray::Features)
        && parameters.train_set_size > 0
    {
        let mut is_zero = true;
        findings.keep(for_each_row(&features, |_, bytes| is_zero &= is_all_zero(bytes)));
        if is_zero {
            findings.add(
                Error::corrupt(format!("model {id} is flagged as finalized, but has no features"))
                    .in_file(features.path())
                    .expected("features", "zeros only"),
            );
        }
    }
}

fn check_experiment(
    root: &Path,
    catalog: &Catalog,
    name: &ExperimentName,
    experiment: &Experiment,
    parameters: &Parameters,
    findings: &mut Findings,
) {
    let targets = experiment.num_targets;
    let scores_path = root.join(name.scores_file());
    check_spec(&scores_path, &parameters.scores(targets), findings);
    if experiment.scores_finalized
        && let Ok(scores) = ArrayFile::open(&scores_path, &parameters.scores(targets), false)
    {
        findings.keep(refuse_non_finite(&scores));
    }
    for (&id, flags) in &catalog.models {
        let path = root.join(model_file(id, &name.grads_file()));
        if !is_there(&path).unwrap_or(true) {
            continue;
        }
        check_spec(&path, &parameters.target_grads(targets), findings);
        let mask_path = root.join(model_file(id, &name.targets_file()));
        check_spec(&mask_path, &Parameters::target_mask(targets), findings);
        let Ok(mask) = ArrayFile::open(&mask_path, &Parameters::target_mask(targets), false) else {
            continue;
        };
        let mut done = Vec::new();
        findings.keep(mask.for_each_number(|row, number| {
            if number == 1 {
                done.push(row);
            }
        }));
        // No mark at all: TRAK wrote the targets, and does not record which.
        let is_partial = !done.is_empty() && (done.len() as u64) < targets;
        if experiment.scores_finalized && flags.is_finalized && is_partial {
            findings.add(
                Error::corrupt(format!(
                    "scores of {:?} are flagged as final, but targets are missing",
                    name.as_str()
                ))
                .in_file(mask.path())
                .expected(format_args!("{targets} targets done"), done.len()),
            );
        }
    }
}

/// A sound array of other sizes than its folder says.
fn check_spec(path: &Path, expected: &ArraySpec, findings: &mut Findings) {
    if let Ok(found) = ArrayFile::spec_of(path)
        && found != *expected
    {
        findings.add(
            Error::new(ErrorKind::Corrupt, "an array has other sizes than the store's JSON files say")
                .in_file(path)
                .expected(expected, found),
        );
    }
}

/// Of rows that are marked as done and hold zeros only: where, which, how many.
///
/// They need not be wrong: a gradient can be zero, or too small for half precision. So this is
/// nothing that is damaged, though a power cut in a run of TRAK's own saver looks the same.
///
/// # Errors
/// Only if a folder cannot be listed.
pub(super) fn notes(root: &Path, catalog: &Catalog, parameters: &Parameters) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    let mut add = |file: PathBuf, masked: Masked<'_>| {
        // Arrays that cannot be read are findings already.
        let Ok((zero, done)) = masked.zero_rows() else { return };
        if !zero.is_empty() {
            let named: Vec<String> = zero.iter().take(NAMED_MAX).map(u64::to_string).collect();
            let more = if zero.len() > NAMED_MAX { ", ..." } else { "" };
            notes.push(format!(
                "{}: {} of {} done hold zeros only: {}{more}; their gradients are zero, or a power \
                 cut took them while TRAK's own saver ran: then `repair` with `recompute_zero_rows` marks them as \
                 not done",
                file.display(),
                zero.len(),
                counted(done, "row that is", "rows that are"),
                named.join(", "),
            ));
        }
    };
    for &id in catalog.models.keys() {
        let open = |array: TrainArray| {
            let path = root.join(model_file(id, array.file_name()));
            ArrayFile::open(&path, &parameters.train(array), false)
        };
        if let (Ok(mask), Ok(grads), Ok(weights)) =
            (open(TrainArray::Mask), open(TrainArray::Grads), open(TrainArray::OutToLoss))
        {
            let masked = Masked { mask: &mask, arrays: &[&grads, &weights] };
            add(model_file(id, TrainArray::Mask.file_name()), masked);
        }
        for (name, record) in catalog.experiments.iter().flatten() {
            let Ok(experiment) = Experiment::from_record(name, record) else { continue };
            let Ok(name) = ExperimentName::new(name) else { continue };
            let targets = experiment.num_targets;
            let open =
                |file: &str, spec: &ArraySpec| ArrayFile::open(&root.join(model_file(id, file)), spec, false);
            if let (Ok(mask), Ok(grads)) = (
                open(&name.targets_file(), &Parameters::target_mask(targets)),
                open(&name.grads_file(), &parameters.target_grads(targets)),
            ) {
                let masked = Masked { mask: &mask, arrays: &[&grads] };
                add(model_file(id, &name.targets_file()), masked);
            }
        }
    }
    Ok(notes)
}

/// An array that is missing, with what its mask says of it: rows that are marked as done are lost.
pub(super) fn missing(root: &Path, file: &str, spec: &ArraySpec) -> Error {
    let path = Path::new(file);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mask_name =
        if [TrainArray::Grads, TrainArray::OutToLoss].iter().any(|array| array.file_name() == name) {
            Some(TrainArray::Mask.file_name().to_owned())
        } else {
            ExperimentName::of_grads_file(&name).map(|name| name.targets_file())
        };
    let mask = mask_name.map(|mask_name| path.with_file_name(mask_name));
    let claim = mask.and_then(|mask| Some((marked_rows(&root.join(&mask))?, mask)));
    let found = match claim {
        Some((count, mask)) if count > 0 => {
            format!("no file, while {} says that {count} of its rows are done", mask.display())
        }
        _ => "no file".to_owned(),
    };
    Error::new(ErrorKind::NotFound, "an array of the store is missing")
        .in_file(root.join(file))
        .expected(spec, found)
        .help(
            "copy it again if there is another copy; else `repair` makes it again, and marks its
            rows as not done",
        )
}

/// How many rows a mask says are done; `None` if it cannot be read.
pub(super) fn marked_rows(mask: &Path) -> Option<u64> {
    let spec = ArrayFile::spec_of(mask).ok()?;
    ArrayFile::open(mask, &spec, false).and_then(|mask| mask.count_marked()).ok()
}

/// Experiments that have targets in a model's folder: those whose gradients are there, then those
/// whose gradients are lost, as the mask of targets that are done tells.
///
/// # Errors
/// If the folder cannot be listed.
pub(super) fn experiments_of(root: &Path, id: i64) -> Result<Vec<ExperimentName>> {
    let files = names_in(&root.join(id.to_string()))?;
    let with_grads = files.iter().filter_map(|file| ExperimentName::of_grads_file(file));
    let mut names: Vec<ExperimentName> = with_grads.collect();
    let masked = files.iter().filter_map(|file| ExperimentName::of_targets_file(file));
    let lost: Vec<ExperimentName> =
        masked.filter(|name| !names.contains(name) && !is_barely_begun(root, id, name)).collect();
    names.extend(lost);
    Ok(names)
}

/// Arrays, and the mask that says which of their rows are done.
pub(super) struct Masked<'a> {
    pub(super) mask: &'a ArrayFile,
    pub(super) arrays: &'a [&'a ArrayFile],
}

impl Masked<'_> {
    /// Rows that are done and zero in all of the arrays, ascending; how many are done.
    ///
    /// # Errors
    /// As [`ArrayFile::read_rows`].
    pub(super) fn zero_rows(&self) -> Result<(Vec<u64>, usize)> {
        let mut zero = Vec::new();
        self.mask.for_each_number(|row, number| {
            if number == 1 {
                zero.push(row);
            }
        })?;
        let done = zero.len();
        for array in self.arrays {
            if array.spec().columns == 0 {
                return Ok((Vec::new(), done));
            }
            let mut found = HashSet::new();
            for_each_row(array, |row, bytes| {
                if is_all_zero(bytes) {
                    found.insert(row);
                }
            })?;
            zero.retain(|row| found.contains(row));
        }
        Ok((zero, done))
    }
}

/// Shows each row's bytes; rows without any are passed over.
fn for_each_row(array: &ArrayFile, mut each: impl FnMut(u64, &[u8])) -> Result<()> {
    let row_len = array.row_len_bytes();
    if row_len == 0 {
        return Ok(());
    }
    let at_once = (PIECE_LEN_BYTES / row_len).max(1).min(array.spec().rows);
    let mut buffer = work_space(at_once * row_len)?;
    let mut first = 0;
    while first < array.spec().rows {
        let count = at_once.min(array.spec().rows - first);
        let now = buffer.get_mut(..(count * row_len) as usize).unwrap_or_default();
        array.read_rows(first, now)?;
        for (row, bytes) in (first..).zip(now.chunks_exact(row_len as usize)) {
            each(row, bytes);
        }
        first += count;
    }
    Ok(())
}

fn is_all_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}
