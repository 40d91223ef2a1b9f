//! `regrow overview`: what a checkpoint is, on one page.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use regrow::Checkpoint;
use regrow::text::{counted, printable};
use regrow::tree::{KeyPath, LeafInfo};
use serde_json::{Value, json};

use super::{Share, data_bytes, dtype_text, leaf_json};
use crate::Globals;
use crate::exit::{Exit, Failure};
use crate::out::{self, Align};

/// As many of the largest leaves as an overview shows.
const LARGEST_SHOWN: usize = 5;

/// As many top-level keys as an overview shows: a root with 10,000 keys is no page.
const TOP_LEVEL_SHOWN: usize = 20;

/// As many ways to lie on devices as an overview shows.
const SHARDINGS_SHOWN: usize = 20;

/// Show what a checkpoint is: layout, steps, sizes, how it lay on devices, largest leaves.
#[derive(Debug, clap::Args)]
pub struct Overview {
    /// The checkpoint.
    path: PathBuf,
}

impl Overview {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn run(&self, globals: &Globals, out: &mut impl Write) -> Result<Exit, Failure> {
        let checkpoint = globals.open(&self.path)?;
        let summary = Summary::of(&checkpoint);
        if globals.json {
            out::json(out, &summary.as_json(&checkpoint))?;
        } else {
            summary.print(out, &checkpoint)?;
        }
        Ok(Exit::Fine)
    }
}

/// What one walk over the leaves tells.
struct Summary<'a> {
    all: Share,
    by_dtype: BTreeMap<String, Share>,
    /// By their layout on devices, in words; without leaves that record none.
    by_sharding: BTreeMap<String, Share>,
    /// In the order in which the keys come.
    by_top_level: Vec<(String, Share)>,
    largest: Vec<(KeyPath, &'a LeafInfo)>,
}

impl<'a> Summary<'a> {
    fn of(checkpoint: &'a Checkpoint) -> Self {
        let mut all = Share::default();
        let mut by_dtype = BTreeMap::<_, Share>::new();
        let mut by_sharding = BTreeMap::<_, Share>::new();
        let mut by_top_level: Vec<(String, Share)> = Vec::new();
        let mut largest: Vec<(KeyPath, &LeafInfo)> = Vec::new();
        for (path, leaf) in checkpoint.tree().iter() {
            all.add(leaf);
            by_dtype.entry(dtype_text(leaf).into_owned()).or_default().add(leaf);
            if let Some(sharding) = &leaf.sharding {
                by_sharding.entry(sharding.to_string()).or_default().add(leaf);
            }
            // Flatten order keeps the leaves of one top-level key together.
            let top = KeyPath::from_iter(path.keys().first().cloned()).to_string();
            match by_top_level.last_mut() {
                Some((key, share)) if *key == top => share.add(leaf),
                _ => {
                    let mut share = Share::default();
                    share.add(leaf);
                    by_top_level.push((top, share));
                }
            }
            let rank = largest.partition_point(|(_, other)| data_bytes(other) >= data_bytes(leaf));
            if rank < LARGEST_SHOWN {
                largest.insert(rank, (path, leaf));
                largest.truncate(LARGEST_SHOWN);
            }
        }
        Self { all, by_dtype, by_sharding, by_top_level, largest }
    }

    fn print(&self, out: &mut impl Write, checkpoint: &Checkpoint) -> io::Result<()> {
        let about = checkpoint.description();
        let layout = match about.variant.as_str() {
            "" => about.layout.clone(),
            variant => format!("{} ({variant})", about.layout),
        };
        let mut facts =
            vec![["path".to_owned(), checkpoint.path().display().to_string()], ["layout".to_owned(), layout]];
        if let Some(step) = about.step {
            let steps: Vec<String> = about.steps.iter().map(u64::to_string).collect();
            facts.push(["step".to_owned(), format!("{step} of {}", steps.join(", "))]);
        }
        facts.extend(about.items.iter().map(|(name, kind)| ["item".to_owned(), format!("{name}: {kind}")]));
        if let Some(custom) = &about.custom_metadata {
            facts.push(["metadata".to_owned(), custom.to_string()]);
        }
        if let Some(metrics) = &about.metrics {
            facts.push(["metrics".to_owned(), metrics.to_string()]);
        }
        let leaves = counted(self.all.leaf_count, "leaf", "leaves");
        facts.push([
            "pytree".to_owned(),
            format!("{leaves}, {} bytes ({})", self.all.bytes, out::size(self.all.bytes)),
        ]);
        out::columns(out, "", None, [Align::Left, Align::Left], &facts)?;

        let dtypes: Vec<_> = self.by_dtype.iter().map(|(name, share)| share_row(name, *share)).collect();
        table(out, "by dtype", &dtypes)?;
        let shardings = self.by_sharding.iter().take(SHARDINGS_SHOWN);
        table(
            out,
            "by sharding",
            &shardings.map(|(words, share)| share_row(words, *share)).collect::<Vec<_>>(),
        )?;
        more(out, self.by_sharding.len(), SHARDINGS_SHOWN)?;
        let shown = self.by_top_level.iter().take(TOP_LEVEL_SHOWN);
        table(
            out,
            "by top-level key",
            &shown.map(|(key, share)| share_row(key, *share)).collect::<Vec<_>>(),
        )?;
        more(out, self.by_top_level.len(), TOP_LEVEL_SHOWN)?;
        let largest = self.largest.iter().map(|(path, leaf)| {
            let mut what = format!("{} {}", dtype_text(leaf), leaf.shape);
            if let Some(shard) = leaf.shard_shape().filter(|shard| *shard != leaf.shape) {
                what += &format!(" in shards of {shard}");
            }
            [path.to_string(), what, out::size(data_bytes(leaf))]
        });
        table(out, "largest leaves", &largest.collect::<Vec<_>>())?;
        if !about.notes.is_empty() {
            writeln!(out, "\nnotes")?;
            about.notes.iter().try_for_each(|note| writeln!(out, "  {}", printable(note)))?;
        }
        Ok(())
    }

    fn as_json(&self, checkpoint: &Checkpoint) -> Value {
        let about = checkpoint.description();
        let items: Vec<Value> =
            about.items.iter().map(|(name, kind)| json!({ "name": name, "kind": kind })).collect();
        let by_dtype: serde_json::Map<String, Value> =
            self.by_dtype.iter().map(|(name, share)| (name.clone(), share.as_json())).collect();
        let by_sharding: serde_json::Map<String, Value> =
            self.by_sharding.iter().map(|(words, share)| (words.clone(), share.as_json())).collect();
        let by_top_level: Vec<Value> = self
            .by_top_level
            .iter()
            .map(|(key, share)| json!({ "key": key, "leaf_count": share.leaf_count, "bytes": share.bytes }))
            .collect();
        let largest: Vec<Value> = self.largest.iter().map(|(path, leaf)| leaf_json(path, leaf)).collect();
        json!({
            "path": checkpoint.path().to_string_lossy(),
            "layout": about.layout,
            "variant": about.variant,
            "step": about.step,
            "steps": about.steps,
            "items": items,
            "custom_metadata": about.custom_metadata,
            "metrics": about.metrics,
            "leaf_count": self.all.leaf_count,
            "bytes": self.all.bytes,
            "by_dtype": by_dtype,
            "by_sharding": by_sharding,
            "by_top_level_key": by_top_level,
            "largest_leaves": largest,
            "notes": about.notes,
            "warnings": about.warnings,
        })
    }
}

fn share_row(name: &str, share: Share) -> [String; 3] {
    [name.to_owned(), counted(share.leaf_count, "leaf", "leaves"), out::size(share.bytes)]
}

/// How many rows of a table were left out, if any.
fn more(out: &mut impl Write, count: usize, shown: usize) -> io::Result<()> {
    match count.checked_sub(shown) {
        Some(more @ 1..) => writeln!(out, "  ... and {more} more"),
        _ => Ok(()),
    }
}

fn table(out: &mut impl Write, title: &str, rows: &[[String; 3]]) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}")?;
    out::columns(out, "  ", None, [Align::Left, Align::Left, Align::Right], rows)
}
