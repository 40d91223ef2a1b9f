//! `regrow info`: shows a checkpoint on one page.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use regrow::engine::{Overview, Share};
use serde_json::{Map, Value, json};

use super::{leaf_json, share_json};
use crate::Globals;
use crate::exit::{Exit, Failure};
use crate::out;

const EXAMPLES: &str = "\
Examples:
  regrow info step_100
  regrow info run --step 100 --json";

/// Show a checkpoint on one page: layout, step, sizes, leaves.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Info {
    /// The checkpoint.
    path: PathBuf,
}

impl Info {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn run(&self, globals: &Globals, out: &mut impl Write) -> Result<Exit, Failure> {
        let checkpoint = globals.open(&self.path)?;
        let overview = Overview::of(&checkpoint);
        match globals.json {
            true => out::json(out, &as_json(&overview))?,
            false => write!(out, "{overview}")?,
        }
        Ok(Exit::Fine)
    }
}

fn as_json(overview: &Overview<'_>) -> Value {
    let about = overview.checkpoint.description();
    let items = about.items.iter().map(|(name, kind)| json!({ "name": name, "kind": kind }));
    let by_top_level = overview
        .by_top_level
        .iter()
        .map(|(key, share)| json!({ "key": key, "leaf_count": share.leaf_count, "bytes": share.bytes }));
    let shares = |shares: &BTreeMap<String, Share>| -> Map<String, Value> {
        shares.iter().map(|(name, share)| (name.clone(), share_json(*share))).collect()
    };
    let mut largest: Vec<_> = overview.leaves.iter().collect();
    largest.sort_by_key(|(_, leaf)| std::cmp::Reverse(leaf.data_len_bytes()));
    json!({
        "path": overview.checkpoint.path().to_string_lossy(),
        "layout": about.layout,
        "variant": about.variant,
        "step": about.step,
        "steps": about.steps,
        "items": items.collect::<Vec<_>>(),
        "custom_metadata": about.custom_metadata,
        "metrics": about.metrics,
        "leaf_count": overview.all.leaf_count,
        "bytes": overview.all.bytes,
        "by_dtype": shares(&overview.by_dtype),
        "by_sharding": shares(&overview.by_sharding),
        "by_top_level_key": by_top_level.collect::<Vec<_>>(),
        "largest_leaves": largest.into_iter().map(|(path, leaf)| leaf_json(path, leaf)).collect::<Vec<_>>(),
        "notes": about.notes,
        "warnings": about.warnings,
    })
}
