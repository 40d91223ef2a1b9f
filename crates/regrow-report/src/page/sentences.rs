//! The summary of a report in sentences.

use regrow_base::text::{counted, format_bytes};
use serde::Serialize;

use crate::model::comparison::Comparison;
use crate::model::{Overview, Reading, Report};

/// A verdict: a text, a sign that is clear without colour, and a CSS class for the colour.
#[derive(Debug, Serialize)]
pub struct Verdict {
    class: &'static str,
    sign: &'static str,
    words: String,
}

/// Whether the checkpoint is sound, as far as it was read.
pub fn verdict(checkpoint: &Overview) -> Verdict {
    let found = checkpoint.findings.len();
    let (class, sign, words) = match checkpoint.reading {
        _ if found > 0 => ("bad", "✕", format!("Damaged: {}", counted(found, "finding", "findings"))),
        _ if checkpoint.leaf_count == 0 => ("good", "✓", "Empty: no leaves".to_owned()),
        Reading::Metadata => ("warn", "–", "Data not read".to_owned()),
        Reading::Sample => ("warn", "–", "No damage found in a sample".to_owned()),
        Reading::Whole if checkpoint.protection.unprotected_bytes > 0 => {
            ("warn", "○", "Readable, but checksums do not cover all of it".to_owned())
        }
        Reading::Whole => ("good", "✓", "Sound: every byte read, every checksum right".to_owned()),
    };
    Verdict { class, sign, words }
}

pub fn verdict_of(comparison: &Comparison) -> Verdict {
    let (class, sign, words) = match comparison.is_equal {
        true => ("good", "=", "The same"),
        false => ("warn", "≠", "Different"),
    };
    Verdict { class, sign, words: words.to_owned() }
}

pub fn reading(reading: Reading) -> &'static str {
    match reading {
        Reading::Metadata => {
            "Only metadata was read: there are no statistics, and damage of data is not detected."
        }
        Reading::Sample => {
            "A sample of each array was read: statistics are estimates, and damage elsewhere is not \
             detected."
        }
        Reading::Whole => "Every byte of data was read.",
    }
}

pub fn sentences(report: &Report) -> Vec<String> {
    let Overview { layout, variant, step, leaf_count, array_count, data_bytes, .. } = &report.checkpoint;
    let mut what = match step {
        Some(step) => format!("Step {step}, a checkpoint in the layout {layout}"),
        None => format!("A checkpoint in the layout {layout}"),
    };
    if !variant.is_empty() {
        what.push_str(&format!(" ({variant})"));
    }
    if *leaf_count == 0 {
        return vec![format!("{what}. Its pytree has no leaves: there is nothing to show.")];
    }
    let leaves = counted(*leaf_count, "leaf", "leaves");
    let arrays = match array_count == leaf_count {
        true => "all of them arrays".to_owned(),
        false => format!("{} of them", counted(*array_count, "array", "arrays")),
    };
    let mut said = vec![format!("{what}: {leaves}, {arrays}, with {} of data.", format_bytes(*data_bytes))];
    said.push(reading(report.checkpoint.reading).to_owned());
    if !report.checkpoint.protection.words.is_empty() {
        said.push(report.checkpoint.protection.words.clone());
    }
    said.extend(report.leaves.statistics.as_ref().and_then(|statistics| {
        let with = |counts: &[u64]| counts.iter().filter(|count| **count > 0).count();
        let (nan, infinity) = (with(&statistics.nan_count), with(&statistics.infinity_count));
        let leaves = |count| counted(count, "leaf has", "leaves have");
        match (nan, infinity) {
            (0, 0) => None,
            (nan, 0) => Some(format!("{} NaN.", leaves(nan))),
            (0, infinity) => Some(format!("{} infinite elements.", leaves(infinity))),
            (nan, infinity) => Some(format!("{} NaN, {} infinite elements.", leaves(nan), leaves(infinity))),
        }
    }));
    said.extend(report.comparisons.iter().map(|comparison| comparison.words.clone()));
    said
}
