//! The properties of a checkpoint, and its damage.

use std::collections::HashMap;

use regrow::engine::StatisticsReport;
use regrow::tree::KeyPath;
use regrow::{Checkpoint, Error, Result};

use super::words::below;
use super::{Opened, protection};
use crate::model::{Finding, Overview, Reading};

pub(super) fn overview(opened: &Opened, reading: Reading) -> Result<Overview> {
    let checkpoint = &opened.checkpoint;
    let about = checkpoint.description();
    let mut overview = Overview {
        location: checkpoint.path().to_string_lossy().into_owned(),
        layout: about.layout.clone(),
        variant: about.variant.clone(),
        step: about.step,
        items: about.items.clone(),
        custom_metadata: about.custom_metadata.clone(),
        metrics: about.metrics.clone(),
        leaf_count: checkpoint.tree().len() as u64,
        stored_bytes: stored_bytes(checkpoint),
        protection: protection::of_checkpoint(checkpoint),
        reading,
        findings: opened.damage.iter().map(|error| finding(checkpoint, error)).collect(),
        warnings: about.warnings.clone(),
        notes: about.notes.clone(),
        ..Overview::default()
    };
    for info in checkpoint.tree().leaves() {
        if info.kind.is_array() {
            overview.array_count += 1;
            overview.element_count = overview.element_count.saturating_add(info.shape.len_elements());
        }
        overview.data_bytes = overview.data_bytes.saturating_add(info.data_len_bytes());
    }
    Ok(overview)
}

/// The bytes of all files; `None` for a step of a folder, for a pytree in memory, and if unknown.
fn stored_bytes(checkpoint: &Checkpoint) -> Option<u64> {
    let is_a_step_of_several = !checkpoint.description().steps.is_empty();
    let at = checkpoint.location();
    if is_a_step_of_several || at.path().as_os_str().is_empty() {
        return None;
    }
    at.stock().ok()?.map(|stock| stock.bytes)
}

pub(super) fn add_findings(overview: &mut Overview, checkpoint: &Checkpoint, read: &StatisticsReport) {
    overview.notes.extend(read.notes.iter().cloned());
    let mut positions: HashMap<&KeyPath, u64> = HashMap::new();
    if !read.findings.is_empty() {
        positions.extend(checkpoint.paths().iter().zip(0..));
    }
    overview.findings.extend(read.findings.iter().map(|found| Finding {
        leaf: found.error.place().leaf.as_ref().and_then(|path| positions.get(path).copied()),
        ..finding(checkpoint, &found.error)
    }));
}

/// An error as data. Its file is relative to the checkpoint.
pub(super) fn finding(checkpoint: &Checkpoint, error: &Error) -> Finding {
    let place = error.place();
    let (expected, found) = error.expected_found().unzip();
    Finding {
        leaf: None,
        key_path: place.leaf.as_ref().map(ToString::to_string),
        file: place.file.as_ref().map(|file| below(file, checkpoint)),
        offset_bytes: place.offset_bytes,
        what: error.what().to_owned(),
        expected: expected.map(str::to_owned),
        found: found.map(str::to_owned),
        help: error.help_text().map(str::to_owned),
    }
}
