//! Writes the data of the page: columns of leaves, and everything else as JSON.

use std::cmp::Reverse;
use std::io::{self, Write};
use std::ops::Range;

use serde::Serialize;

use super::columns::{counts, numbers, optional, texts};
use super::inert::Inert;
use crate::model::Report;
use crate::model::columns::{KeyTree, Words};
use crate::model::comparison::LeafDifferences;
use crate::model::leaves::{Histograms, LeafState, Leaves, Statistics};
use crate::model::sharding::ShardingUse;
use crate::model::steps::StepSeries;

/// The most leaves with a histogram in a page. A million would take hundreds of megabytes.
const HISTOGRAMS_MAX: usize = 50_000;

/// The data that is not in columns.
#[derive(Serialize)]
struct Rest<'r> {
    shardings: &'r [ShardingUse],
    steps: &'r Option<StepSeries>,
    findings: Vec<FindingOfLeaf<'r>>,
    comparison_count: usize,
}

#[derive(Serialize)]
struct FindingOfLeaf<'r> {
    leaf: u64,
    what: &'r str,
}

pub fn write(report: &Report, out: &mut impl Write) -> io::Result<()> {
    leaves(&report.leaves, out)?;
    for (position, comparison) in report.comparisons.iter().enumerate() {
        differences(&comparison.leaves, &format!("comparison{position}"), out)?;
    }
    let findings = report.checkpoint.findings.iter();
    let rest = Rest {
        shardings: &report.shardings,
        steps: &report.steps,
        findings: findings
            .filter_map(|finding| Some(FindingOfLeaf { leaf: finding.leaf?, what: &finding.what }))
            .collect(),
        comparison_count: report.comparisons.len(),
    };
    out.write_all(b"<script type=\"application/json\" id=\"report\">")?;
    serde_json::to_writer(Inert(&mut *out), &rest)?;
    out.write_all(b"</script>\n")
}

fn leaves(leaves: &Leaves, out: &mut impl Write) -> io::Result<()> {
    keys(&leaves.keys, &leaves.node, "leaves", out)?;
    for (name, column) in leaves.words() {
        words(column, &format!("leaves.{name}"), out)?;
    }
    counts(out, "leaves.elements", &leaves.elements)?;
    counts(out, "leaves.bytes", &leaves.bytes)?;
    counts(out, "leaves.chunk_count", &leaves.chunk_count)?;
    numbers(out, "leaves.state", leaves.state.len(), leaves.state.iter().map(|state| state_number(*state)))?;
    let sharding = leaves.sharding.iter().map(|at| at.unwrap_or(u32::MAX));
    numbers(out, "leaves.sharding", leaves.sharding.len(), sharding)?;
    leaves.statistics.as_ref().map_or(Ok(()), |statistics| self::statistics(statistics, &leaves.bytes, out))
}

/// The number of a state in `assets/src/leaves.js`.
fn state_number(state: LeafState) -> u8 {
    match state {
        LeafState::Verified => 0,
        LeafState::Damaged => 1,
        LeafState::NotRead => 2,
        LeafState::Unprotected => 3,
    }
}

fn statistics(statistics: &Statistics, sizes: &[u64], out: &mut impl Write) -> io::Result<()> {
    for (name, column) in statistics.counts() {
        counts(out, &format!("statistics.{name}"), column)?;
    }
    for (name, column) in statistics.values() {
        optional(out, &format!("statistics.{name}"), column)?;
    }
    let shown = ShownHistograms::of(&statistics.histograms, sizes);
    let bins = shown.bins();
    let Histograms { lower, upper, count, .. } = &statistics.histograms;
    let first = shown.first();
    let bin_count = first.last().map_or(0, |end| *end as usize);
    numbers(out, "histograms.first", first.len(), first.iter().copied())?;
    numbers(out, "histograms.lower", bin_count, bins.clone().filter_map(|bin| lower.get(bin).copied()))?;
    numbers(out, "histograms.upper", bin_count, bins.clone().filter_map(|bin| upper.get(bin).copied()))?;
    numbers(out, "histograms.count", bin_count, bins.filter_map(|bin| Some(*count.get(bin)? as f64)))
}

/// The histograms that the page contains.
struct ShownHistograms<'h> {
    first: &'h [u64],
    /// Whether the page contains the histogram of each leaf. Empty if it contains all of them.
    is_shown: Vec<bool>,
}

impl<'h> ShownHistograms<'h> {
    fn of(Histograms { first, .. }: &'h Histograms, sizes: &[u64]) -> Self {
        let mut leaves: Vec<u32> = Vec::new();
        leaves.extend(
            (0..).zip(first.array_windows()).filter(|(_, [from, to])| from < to).map(|(leaf, _)| leaf),
        );
        if leaves.len() <= HISTOGRAMS_MAX {
            return Self { first, is_shown: Vec::new() };
        }
        let size = |leaf: &u32| sizes.get(*leaf as usize).copied().unwrap_or(0);
        leaves.select_nth_unstable_by_key(HISTOGRAMS_MAX, |leaf| Reverse((size(leaf), Reverse(*leaf))));
        leaves.truncate(HISTOGRAMS_MAX);
        let mut is_shown = vec![false; first.len()];
        for leaf in leaves {
            if let Some(is_shown) = is_shown.get_mut(leaf as usize) {
                *is_shown = true;
            }
        }
        Self { first, is_shown }
    }

    /// The range of bins of each leaf; empty for a leaf whose histogram the page does not contain.
    fn ranges(&self) -> impl Iterator<Item = Range<usize>> + Clone + '_ {
        self.first.array_windows().enumerate().map(|(leaf, [from, to])| {
            let is_shown = self.is_shown.get(leaf).copied().unwrap_or(true);
            *from as usize..if is_shown { *to as usize } else { *from as usize }
        })
    }

    fn bins(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        self.ranges().flatten()
    }

    /// The first bin of each leaf among the bins in the page, and at the end the number of these
    /// bins.
    fn first(&self) -> Vec<u32> {
        let mut end = 0_u32;
        let ends = self.ranges().map(|bins| {
            end = end.saturating_add(u32::try_from(bins.len()).unwrap_or(u32::MAX));
            end
        });
        std::iter::once(0).chain(ends).collect()
    }
}

fn differences(leaves: &LeafDifferences, name: &str, out: &mut impl Write) -> io::Result<()> {
    keys(&leaves.keys, &leaves.node, name, out)?;
    for (word, column) in [("status", &leaves.status), ("form_a", &leaves.form_a), ("form_b", &leaves.form_b)]
    {
        words(column, &format!("{name}.{word}"), out)?;
    }
    counts(out, &format!("{name}.count"), &leaves.count)?;
    counts(out, &format!("{name}.differing_count"), &leaves.differing_count)?;
    optional(out, &format!("{name}.max_abs"), &leaves.max_abs)?;
    optional(out, &format!("{name}.max_relative"), &leaves.max_relative)?;
    let ulp = leaves.max_ulp.iter().map(|ulp| ulp.map_or(f64::NAN, |ulp| ulp as f64));
    numbers(out, &format!("{name}.max_ulp"), leaves.max_ulp.len(), ulp)?;
    optional(out, &format!("{name}.cosine"), &leaves.cosine)
}

fn keys(keys: &KeyTree, node: &[u32], name: &str, out: &mut impl Write) -> io::Result<()> {
    texts(out, &format!("{name}.names"), &keys.names)?;
    numbers(out, &format!("{name}.name"), keys.name.len(), keys.name.iter().copied())?;
    numbers(out, &format!("{name}.parent"), keys.parent.len(), keys.parent.iter().copied())?;
    numbers(out, &format!("{name}.node"), node.len(), node.iter().copied())
}

fn words(words: &Words, name: &str, out: &mut impl Write) -> io::Result<()> {
    texts(out, &format!("{name}.values"), &words.values)?;
    numbers(out, &format!("{name}.index"), words.index.len(), words.index.iter().copied())
}
