//! What can be wrong with a store beyond files that cannot be read: flags, masks and records that contradict the
//! arrays, and rows that are said to be done and never were.

use std::path::Path;

use super::array_file::ArrayFile;
use super::catalog::{Catalog, model_folders, names_in};
use super::documents::{Experiment, ModelFlags};
use super::layout::{
    EXPERIMENTS_FILE, ExperimentName, METADATA_FILE, Parameters, TrainArray, id_file, model_file,
};
use crate::array::Dtype;
use crate::engine::Finding;
use crate::error::{Error, ErrorKind, Result};

/// Bytes of an array that are looked at together.
const PIECE_LEN_BYTES: u64 = 1 << 20;
/// Rows named in one finding.
const NAMED_MAX: usize = 10;

/// All contradictions in the store at `root`. Arrays that cannot be read are no matter of this: reading them says so.
///
/// # Errors
/// Only if a folder cannot be listed.
pub(super) fn check(root: &Path, catalog: &Catalog, parameters: &Parameters) -> Result<Vec<Finding>> {
    let mut findings = Findings(Vec::new());
    if catalog.metadata.is_none() {
        findings.add(Error::corrupt("the metadata are missing").in_file(root.join(METADATA_FILE)));
    }
    for (&id, &flags) in &catalog.models {
        check_model(root, id, flags, parameters, &mut findings);
    }
    for (name, record) in catalog.experiments.iter().flatten() {
        let Ok(experiment) = Experiment::from_record(name, record) else { continue };
        let Ok(name) = ExperimentName::new(name) else { continue };
        check_experiment(root, catalog, &name, &experiment, parameters, &mut findings);
    }
    for id in model_folders(root)? {
        for file in names_in(&root.join(id.to_string()))? {
            let Some(name) = ExperimentName::of_grads_file(&file) else { continue };
            let is_known =
                catalog.experiments.as_ref().is_some_and(|records| records.contains_key(name.as_str()));
            if !is_known && !is_barely_begun(root, id, &name) {
                findings.add(
                    Error::corrupt(format!("experiment {:?} has targets and no record", name.as_str()))
                        .in_file(root.join(EXPERIMENTS_FILE))
                        .help("another process has lost it; `repair` adds it again"),
                );
            }
        }
    }
    Ok(findings.0)
}

/// Whether an experiment without a record was being started when its process was killed: the arrays are made, the
/// mask first and the record last, and no target is done. Starting it again goes on from there.
pub(super) fn is_barely_begun(root: &Path, id: i64, name: &ExperimentName) -> bool {
    let mask = root.join(model_file(id, &name.targets_file()));
    let count = ArrayFile::spec_of(&mask)
        .and_then(|spec| ArrayFile::open(&mask, &spec, false))
        .and_then(|mask| mask.count_marked());
    count.is_ok_and(|count| count == 0)
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
                Error::corrupt(format!("model {id} is said to be featurized and is not"))
                    .in_file(root.join(id_file(id)))
                    .expected(
                        format_args!("{} rows done", mask.spec().rows),
                        format_args!("{} in its mask", done.len()),
                    ),
            );
        }
        if let (Some(grads), Some(weights)) = (open(TrainArray::Grads), open(TrainArray::OutToLoss)) {
            let empty = findings.keep(empty_rows(&grads, &weights, &done));
            add_empty_rows(mask.path(), &empty.unwrap_or_default(), findings);
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
                Error::corrupt(format!("model {id} is said to be finalized and has no features"))
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
        if !path.exists() {
            continue;
        }
        check_spec(&path, &parameters.target_grads(targets), findings);
        let mask_path = root.join(model_file(id, &name.targets_file()));
        let Ok(mask) = ArrayFile::open(&mask_path, &Parameters::target_mask(targets), false) else {
            continue;
        };
        let mut done = Vec::new();
        findings.keep(mask.for_each_number(|row, number| {
            if number == 1 {
                done.push(row);
            }
        }));
        if let Ok(grads) = ArrayFile::open(&path, &parameters.target_grads(targets), false) {
            let empty = findings.keep(empty_rows(&grads, &grads, &done));
            add_empty_rows(mask.path(), &empty.unwrap_or_default(), findings);
        }
        // No mark at all: TRAK wrote the targets, and nobody knows which.
        let is_partial = !done.is_empty() && (done.len() as u64) < targets;
        if experiment.scores_finalized && flags.is_finalized && is_partial {
            findings.add(
                Error::corrupt(format!(
                    "scores of {:?} are said to be final, targets are missing",
                    name.as_str()
                ))
                .in_file(mask.path())
                .expected(format_args!("{targets} targets done"), done.len()),
            );
        }
    }
}

/// A sound array of other sizes than its folder says.
fn check_spec(path: &Path, expected: &super::layout::ArraySpec, findings: &mut Findings) {
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

fn add_empty_rows(mask: &Path, empty: &[u64], findings: &mut Findings) {
    if empty.is_empty() {
        return;
    }
    let named: Vec<String> = empty.iter().take(NAMED_MAX).map(u64::to_string).collect();
    let more = if empty.len() > NAMED_MAX { ", ..." } else { "" };
    findings.add(
        Error::corrupt("rows are marked as done and hold nothing, as after a power cut")
            .in_file(mask)
            .expected("gradients", format_args!("zeros in rows {}{more}", named.join(", ")))
            .help("`repair` marks them as not done"),
    );
}

/// Those of `done` (ascending) in which both arrays are all zeros.
pub(super) fn empty_rows(first: &ArrayFile, second: &ArrayFile, done: &[u64]) -> Result<Vec<u64>> {
    if first.spec().columns == 0 {
        return Ok(Vec::new());
    }
    let zero_rows = |array: &ArrayFile| -> Result<std::collections::HashSet<u64>> {
        let mut rows = std::collections::HashSet::new();
        for_each_row(array, |row, bytes| {
            if is_all_zero(bytes) {
                rows.insert(row);
            }
        })?;
        Ok(rows)
    };
    let (first, second) = (zero_rows(first)?, zero_rows(second)?);
    Ok(done.iter().copied().filter(|row| first.contains(row) && second.contains(row)).collect())
}

/// Shows each row's bytes; rows without any are passed over.
fn for_each_row(array: &ArrayFile, mut each: impl FnMut(u64, &[u8])) -> Result<()> {
    let row_len = array.row_len_bytes();
    if row_len == 0 {
        return Ok(());
    }
    let at_once = (PIECE_LEN_BYTES / row_len).max(1).min(array.spec().rows);
    let mut buffer = vec![0; (at_once * row_len) as usize];
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

/// Whether all exponents are below the one that stands for infinity and NaN.
fn is_finite(bytes: &[u8], dtype: Dtype) -> bool {
    match dtype {
        Dtype::Float16 => {
            bytes.as_chunks::<2>().0.iter().all(|number| u16::from_le_bytes(*number) & 0x7c00 != 0x7c00)
        }
        _ => bytes.as_chunks::<4>().0.iter().all(|number| f32::from_le_bytes(*number).is_finite()),
    }
}
