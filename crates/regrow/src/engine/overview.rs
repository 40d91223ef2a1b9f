//! A checkpoint on one page, for people: `regrow info`, `Checkpoint.overview()` in Python.

use std::collections::BTreeMap;
use std::fmt;

use super::Checkpoint;
use crate::text::{brief, counted, format_bytes, printable};
use crate::tree::{KeyPath, LeafInfo};

/// The widest cell that widens its column. A longer cell moves only the rest of its own row.
const COLUMN_WIDTH_MAX: usize = 160;

/// The number of rows of a table. If a checkpoint has at most this many leaves, all are shown.
const ROWS_SHOWN: usize = 20;

/// The number of leaves and of bytes in a part of the pytree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// The number of leaves.
    pub leaf_count: usize,
    /// Bytes of the decoded leaves.
    pub bytes: u64,
}

impl Share {
    /// Adds a leaf.
    #[doc(hidden)]
    pub fn add(&mut self, leaf: &LeafInfo) {
        self.leaf_count += 1;
        self.bytes = self.bytes.saturating_add(leaf.data_len_bytes());
    }
}

/// The sizes of a checkpoint, from one walk over its leaves. It prints as a page of at most about
/// 100 lines:
///
/// ```text
/// path    runs/step_100
/// layout  regrow (one safetensors file)
/// pytree  3 leaves, 2.5 KiB
///
/// by dtype
///   float32  2 leaves  2.5 KiB
///   int64    1 leaf        8 B
///
/// by top-level key
///   params  2 leaves  2.5 KiB
///   step    1 leaf        8 B
///
/// leaves
///   params/bias    float32 [10]        40 B
///   params/kernel  float32 [64,10]  2.5 KiB
///   step           int64 []             8 B
/// ```
#[derive(Debug)]
pub struct Overview<'a> {
    /// The checkpoint that the overview describes.
    pub checkpoint: &'a Checkpoint,
    /// The share of the whole pytree.
    pub all: Share,
    /// Shares by the name of the dtype.
    pub by_dtype: BTreeMap<String, Share>,
    /// Shares by sharding, as text. Leaves without a sharding are not counted.
    pub by_sharding: BTreeMap<String, Share>,
    /// Shares by the first key of the path, in flatten order.
    pub by_top_level: Vec<(String, Share)>,
    /// All leaves in flatten order if there are at most 20; otherwise the 20 largest, the largest
    /// first.
    pub leaves: Vec<(KeyPath, &'a LeafInfo)>,
}

/// The checkpoint as [`Overview`] prints it.
pub fn overview(checkpoint: &Checkpoint) -> String {
    Overview::of(checkpoint).to_string()
}

impl<'a> Overview<'a> {
    /// Walks over the leaves once, without reading their data.
    pub fn of(checkpoint: &'a Checkpoint) -> Self {
        let tree = checkpoint.tree();
        let mut overview = Self {
            checkpoint,
            all: Share::default(),
            by_dtype: BTreeMap::new(),
            by_sharding: BTreeMap::new(),
            by_top_level: Vec::new(),
            leaves: Vec::new(),
        };
        let shows_all = tree.len() <= ROWS_SHOWN;
        for (path, leaf) in tree.iter() {
            overview.all.add(leaf);
            overview.by_dtype.entry(leaf.dtype_text().into_owned()).or_default().add(leaf);
            if let Some(sharding) = &leaf.sharding {
                overview.by_sharding.entry(sharding.to_string()).or_default().add(leaf);
            }
            // In flatten order, leaves with the same top-level key are neighbours.
            let top = KeyPath::from_iter(path.keys().first().cloned()).to_string();
            match overview.by_top_level.last_mut() {
                Some((key, share)) if *key == top => share.add(leaf),
                _ => {
                    let mut share = Share::default();
                    share.add(leaf);
                    overview.by_top_level.push((top, share));
                }
            }
            let rank = match shows_all {
                true => overview.leaves.len(),
                false => overview
                    .leaves
                    .partition_point(|(_, other)| other.data_len_bytes() >= leaf.data_len_bytes()),
            };
            if rank < ROWS_SHOWN {
                overview.leaves.insert(rank, (path, leaf));
                overview.leaves.truncate(ROWS_SHOWN);
            }
        }
        overview
    }

    fn facts(&self) -> Vec<[String; 2]> {
        let about = self.checkpoint.description();
        let layout = match about.variant.as_str() {
            "" => about.layout.clone(),
            variant => format!("{} ({variant})", about.layout),
        };
        let path = self.checkpoint.path().to_string_lossy().into_owned();
        let mut facts = vec![["path".to_owned(), path], ["layout".to_owned(), layout]];
        if let Some(step) = about.step {
            let steps: Vec<String> = about.steps.iter().map(u64::to_string).collect();
            facts.push(["step".to_owned(), format!("{step} of {}", steps.join(", "))]);
        }
        facts.extend(about.items.iter().map(|(name, kind)| ["item".to_owned(), format!("{name}: {kind}")]));
        if let Some(custom) = about.custom_metadata.as_ref().filter(|custom| !custom.is_null()) {
            facts.push(["metadata".to_owned(), brief(&custom.to_string()).into_owned()]);
        }
        if let Some(metrics) = &about.metrics {
            facts.push(["metrics".to_owned(), brief(&metrics.to_string()).into_owned()]);
        }
        let leaves = counted(self.all.leaf_count, "leaf", "leaves");
        facts.push(["pytree".to_owned(), format!("{leaves}, {}", format_bytes(self.all.bytes))]);
        facts
    }
}

impl fmt::Display for Overview<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        rows(f, "", &self.facts())?;
        let shares = |f: &mut fmt::Formatter<'_>, title, shares: Vec<(&String, &Share)>| {
            let shown = shares.iter().take(ROWS_SHOWN).map(|(name, share)| {
                let count = counted(share.leaf_count, "leaf", "leaves");
                [brief(name).into_owned(), count, format_bytes(share.bytes)]
            });
            table(f, title, &shown.collect::<Vec<_>>())?;
            match shares.len().checked_sub(ROWS_SHOWN) {
                Some(more @ 1..) => writeln!(f, "  ... and {more} more"),
                _ => Ok(()),
            }
        };
        shares(f, "by dtype", self.by_dtype.iter().collect())?;
        shares(f, "by sharding", self.by_sharding.iter().collect())?;
        shares(f, "by top-level key", self.by_top_level.iter().map(|(key, share)| (key, share)).collect())?;
        let title = if self.leaves.len() == self.all.leaf_count { "leaves" } else { "largest leaves" };
        let leaves = self.leaves.iter().map(|(path, leaf)| {
            let mut what = format!("{} {}", leaf.dtype_text(), leaf.shape);
            if let Some(shard) = leaf.shard_shape().filter(|shard| *shard != leaf.shape) {
                what += &format!(" in shards of {shard}");
            }
            [path.to_string(), what, format_bytes(leaf.data_len_bytes())]
        });
        table(f, title, &leaves.collect::<Vec<_>>())?;
        let about = self.checkpoint.description();
        for (title, lines) in [("warnings", &about.warnings), ("notes", &about.notes)] {
            let lines: Vec<[String; 1]> = lines.iter().map(|line| [line.clone()]).collect();
            table(f, title, &lines)?;
        }
        Ok(())
    }
}

fn table<const N: usize>(f: &mut fmt::Formatter<'_>, title: &str, cells: &[[String; N]]) -> fmt::Result {
    if cells.is_empty() {
        return Ok(());
    }
    writeln!(f, "\n{title}")?;
    rows(f, "  ", cells)
}

/// Writes the cells in columns, two spaces apart. The third column holds sizes, aligned right.
fn rows<const N: usize>(f: &mut fmt::Formatter<'_>, indent: &str, cells: &[[String; N]]) -> fmt::Result {
    let shown: Vec<[String; N]> =
        cells.iter().map(|row| row.each_ref().map(|cell| printable(cell).into_owned())).collect();
    let mut widths = [0; N];
    for row in &shown {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count().min(COLUMN_WIDTH_MAX));
        }
    }
    for row in &shown {
        let mut line = indent.to_owned();
        for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
            let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
            line += if at > 0 { "  " } else { "" };
            line += &if at == 2 { padding + cell } else { cell.clone() + &padding };
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}
