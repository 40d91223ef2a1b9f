//! Makes the report from the results of all pairs.

use super::DiffOptions;
use super::beside;
use super::compare::{Comparison, Outcome, Outcomes};
use super::pair::Pairs;
use super::report::{DiffCounts, DiffFinding, DiffReport, LeafDiff, LeafStatus, Side};
use crate::engine::Checkpoint;
use crate::error::Result;

pub(super) fn report(
    a: &Checkpoint,
    b: &Checkpoint,
    pairs: &Pairs,
    mut outcomes: Outcomes,
    options: &DiffOptions,
) -> Result<DiffReport> {
    let mut report = DiffReport {
        a: a.path().to_owned(),
        b: b.path().to_owned(),
        leaves: Vec::new(),
        counts: DiffCounts::default(),
        containers: pairs.containers.clone(),
        other_kind_count: 0,
        findings: Vec::new(),
        read_bytes: outcomes.read_bytes,
        is_equal: false,
    };
    report.counts.add(LeafStatus::Equal, outcomes.equal_count);
    let info = |checkpoint: &Checkpoint, leaf: usize| checkpoint.tree().leaves().get(leaf).cloned();
    let path =
        |checkpoint: &Checkpoint, leaf: usize| checkpoint.paths().get(leaf).cloned().unwrap_or_default();
    let mut only_a = pairs.only_a.iter().copied().peekable();
    let alone = |checkpoint: &Checkpoint, leaf: usize, side: Side| LeafDiff {
        path: path(checkpoint, leaf),
        status: if side == Side::A { LeafStatus::OnlyA } else { LeafStatus::OnlyB },
        a: info(checkpoint, leaf).filter(|_| side == Side::A),
        b: info(checkpoint, leaf).filter(|_| side == Side::B),
        distance: None,
        is_same_file: false,
    };
    let comparison = Comparison { a, b, pairs, options };
    for (number, &(leaf_a, _)) in pairs.both.iter().enumerate() {
        while let Some(leaf) = only_a.next_if(|&leaf| leaf < leaf_a) {
            report.leaves.push(alone(a, leaf, Side::A));
        }
        let Some(pair) = comparison.pair(number) else { continue };
        let (info_a, info_b) = (pair.a.info, pair.b.info);
        let outcome = outcomes.outcomes.remove(&number);
        let status = outcome.as_ref().map_or(LeafStatus::Equal, |outcome| comparison.status(outcome, pair));
        report.other_kind_count += u64::from(status.is_same() && info_a.kind != info_b.kind);
        let Some(outcome) = outcome else { continue };
        report.counts.add(status, 1);
        let (distance, is_same_file) = match outcome {
            // With `equality_only` the read ends at the first difference, so there is no distance.
            Outcome::Numbers { distance, is_same_file } => {
                (Some(distance).filter(|_| !options.equality_only), is_same_file)
            }
            Outcome::Failed(errors) => {
                report.findings.extend(errors.into_iter().map(|(side, error)| DiffFinding { side, error }));
                (None, false)
            }
            Outcome::Status(_) | Outcome::Opaque(_) => (None, false),
        };
        let (own, other) = (Some(info_a.clone()), Some(info_b.clone()));
        report.leaves.push(LeafDiff {
            path: path(a, leaf_a),
            status,
            a: own,
            b: other,
            distance,
            is_same_file,
        });
    }
    report.leaves.extend(only_a.map(|leaf| alone(a, leaf, Side::A)));
    report.leaves.extend(pairs.only_b.iter().map(|&leaf| alone(b, leaf, Side::B)));
    report.counts.add(LeafStatus::OnlyA, pairs.only_a.len() as u64);
    report.counts.add(LeafStatus::OnlyB, pairs.only_b.len() as u64);
    beside::compare(a, b, options, &mut report)?;
    report.is_equal =
        report.counts.different() == 0 && (!options.check_types || report.containers.is_empty());
    Ok(report)
}
