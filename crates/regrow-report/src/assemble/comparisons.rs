//! Compares the report's checkpoint with another one.

use regrow::engine::{DiffFinding, LeafDiff, LeafStatus, Side};
use regrow::tree::LeafInfo;
use regrow::{Checkpoint, DiffOptions, Result};

use super::overview::{finding, overview};
use super::words::form;
use super::{Opened, ReportOptions};
use crate::model::Reading;
use crate::model::comparison::{Comparison, LeafDifferences};

pub(super) fn comparison(own: &Checkpoint, other: &Opened, options: &ReportOptions) -> Result<Comparison> {
    let report = own.diff(
        &other.checkpoint,
        &DiffOptions {
            only: options.only.clone(),
            budget_bytes: options.budget_bytes,
            monitor: options.monitor.clone(),
            ..DiffOptions::default()
        },
    )?;
    let mut about = overview(other, Reading::Whole)?;
    about.findings.extend(report.findings.iter().map(|DiffFinding { side, error }| match side {
        Side::A => finding(own, error),
        Side::B => finding(&other.checkpoint, error),
    }));
    let counts = LeafStatus::ALL.into_iter().filter(|status| report.counts.of(*status) > 0);
    let kind = |kind: &Option<String>| kind.clone().unwrap_or_default();
    let words = report.to_string();
    Ok(Comparison {
        other: about,
        is_equal: report.is_equal(),
        words: words.lines().next().unwrap_or_default().to_owned(),
        counts: counts.map(|status| (status.name().to_owned(), report.counts.of(status))).collect(),
        read_bytes: report.read_bytes,
        containers: report
            .containers
            .iter()
            .map(|one| (one.path.to_string(), kind(&one.a), kind(&one.b)))
            .collect(),
        leaves: differences(&report.worst_first()),
    })
}

fn differences(leaves: &[&LeafDiff]) -> LeafDifferences {
    let mut columns = LeafDifferences::default();
    for leaf in leaves {
        let form = |info: &Option<LeafInfo>| info.as_ref().map(form).unwrap_or_default();
        let distance = leaf.distance.as_deref();
        columns.node.push(columns.keys.add(&leaf.path));
        columns.status.push(leaf.status.name());
        columns.form_a.push(&form(&leaf.a));
        columns.form_b.push(&form(&leaf.b));
        columns.count.push(distance.map_or(0, |distance| distance.count()));
        columns.differing_count.push(distance.map_or(0, |distance| distance.differing_count()));
        columns.max_abs.push(distance.and_then(|distance| distance.max_abs()));
        columns.max_relative.push(distance.and_then(|distance| distance.max_relative()));
        columns.max_ulp.push(distance.and_then(|distance| distance.max_ulp()));
        columns.cosine.push(distance.and_then(|distance| distance.cosine()));
    }
    columns
}
