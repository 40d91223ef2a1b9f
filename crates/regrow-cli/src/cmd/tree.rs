//! `regrow tree`: shows the pytree, with the leaves and bytes of each subtree.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Subtree, leaf_json, subtrees};
use crate::Globals;
use crate::exit::{Exit, Failure};
use crate::out::{self, Align, Table};

const EXAMPLES: &str = "\
Examples:
  regrow tree step_100 --depth 2";

/// Show the pytree with the leaves and bytes of each subtree.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Tree {
    /// The checkpoint.
    path: PathBuf,
    /// Show at most N levels of keys.
    #[arg(short, long, value_name = "N")]
    depth: Option<usize>,
}

impl Tree {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn run(&self, globals: &Globals, out: &mut impl Write) -> Result<Exit, Failure> {
        let checkpoint = globals.open(&self.path)?;
        let subtrees = subtrees(checkpoint.tree().iter(), self.depth.unwrap_or(usize::MAX));
        if globals.json {
            let nodes: Vec<Value> = subtrees.iter().map(as_json).collect();
            out::json(out, &json!({ "path": checkpoint.path().to_string_lossy(), "nodes": nodes }))?;
        } else {
            let mut table = Table::new();
            table.titles(["KEY", "LEAVES", "BYTES", "DTYPE", "SHAPE"]);
            for subtree in &subtrees {
                let keys = subtree.path.keys();
                let name = keys.last().map_or(".".to_owned(), ToString::to_string);
                table.cell(format_args!("{}{name}", "  ".repeat(keys.len())));
                table.cell(subtree.share.leaf_count);
                table.cell(globals.size(subtree.share.bytes));
                table.cell(subtree.leaf.map_or("".into(), |leaf| leaf.dtype_text()));
                table.cell(subtree.leaf.map_or(String::new(), |leaf| leaf.shape.to_string()));
            }
            use Align::{Left, Right};
            table.print(out, "", [Left, Right, Right, Left, Left])?;
        }
        Ok(Exit::Fine)
    }
}

fn as_json(subtree: &Subtree<'_>) -> Value {
    json!({
        "key_path": subtree.path.to_string(),
        "keys": subtree.path.keys().iter().map(super::key_json).collect::<Vec<_>>(),
        "leaf_count": subtree.share.leaf_count,
        "bytes": subtree.share.bytes,
        "leaf": subtree.leaf.map(|leaf| leaf_json(&subtree.path, leaf)),
    })
}
