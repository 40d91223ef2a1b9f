//! Makes the columns of the leaves.

use regrow::Checkpoint;
use regrow::array::Stats;
use regrow::engine::{LeafReading, LeafStatistics, StatisticsReport};
use regrow::tree::LeafInfo;
use regrow_layouts::ReaderExt;

use super::protection;
use super::words::{below, dtype};
use crate::model::leaves::{Histograms, LeafState, Leaves, Statistics};

pub(super) fn leaves(checkpoint: &Checkpoint, read: Option<&StatisticsReport>) -> Leaves {
    let mut leaves = Leaves::default();
    for (leaf, (path, info)) in checkpoint.tree().iter().enumerate() {
        let is_array = info.kind.is_array();
        leaves.node.push(leaves.keys.add(&path));
        leaves.kind.push(info.kind.name());
        leaves.dtype.push(&dtype(info));
        leaves.shape.push(&if is_array { info.shape.to_string() } else { String::new() });
        leaves.elements.push(if is_array { info.shape.len_elements() } else { 0 });
        leaves.bytes.push(info.data_len_bytes());
        leaves.coding.push(&info.coding);
        leaves.chunk_shape.push(&info.chunk_shape.as_ref().map(ToString::to_string).unwrap_or_default());
        leaves.chunk_count.push(chunk_count(info));
        let checksum = protection::of_leaf(checkpoint, leaf, info);
        leaves.checksum.push(checksum);
        let reading =
            read.and_then(|read| read.leaves.get(leaf)).map(|leaf| leaf.reading).unwrap_or_default();
        leaves.state.push(match (reading, checksum) {
            (LeafReading::Failed, _) => LeafState::Damaged,
            (_, "") if info.data_len_bytes() > 0 => LeafState::Unprotected,
            (LeafReading::Whole, _) => LeafState::Verified,
            _ => LeafState::NotRead,
        });
        let file = checkpoint.reader().span(leaf).ok().flatten().map(|extent| extent.blob.describe());
        leaves.file.push(&file.map(|file| below(&file, checkpoint)).unwrap_or_default());
    }
    leaves.statistics = read.map(|read| statistics(&read.leaves));
    leaves
}

fn chunk_count(info: &LeafInfo) -> u64 {
    let Some(chunk) = &info.chunk_shape else { return 1 };
    let axes = info.shape.dims().iter().zip(chunk.dims());
    axes.map(|(len, chunk)| len.div_ceil((*chunk).max(1))).fold(1, u64::saturating_mul)
}

fn statistics(leaves: &[LeafStatistics]) -> Statistics {
    let mut columns = Statistics {
        histograms: Histograms { first: vec![0], ..Histograms::default() },
        ..Statistics::default()
    };
    for leaf in leaves {
        let stats = leaf.stats.as_deref();
        let count = |of: fn(&Stats) -> u64| stats.map_or(0, of);
        columns.count.push(count(Stats::count));
        columns.nan_count.push(count(Stats::nan_count));
        columns.infinity_count.push(count(Stats::infinity_count));
        columns.zero_count.push(count(Stats::zero_count));
        columns.min.push(stats.and_then(Stats::min));
        columns.max.push(stats.and_then(Stats::max));
        columns.mean.push(stats.and_then(Stats::mean));
        columns.standard_deviation.push(stats.and_then(Stats::std));
        columns.l2_norm.push(stats.and_then(Stats::l2_norm));
        let histograms = &mut columns.histograms;
        if let Some(histogram) = stats.and_then(Stats::histogram) {
            let edges = histogram.edges();
            let bins = edges.iter().zip(edges.iter().skip(1)).zip(histogram.counts());
            for ((lower, upper), count) in bins.filter(|(_, count)| **count > 0) {
                histograms.lower.push(*lower);
                histograms.upper.push(*upper);
                histograms.count.push(*count);
            }
        }
        histograms.first.push(histograms.count.len() as u64);
    }
    columns
}
