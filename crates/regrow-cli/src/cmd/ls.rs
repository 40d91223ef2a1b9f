//! `regrow ls`: lists the leaves of a checkpoint, or the checkpoints in a folder, as a table. Reads
//! only metadata.

use std::cell::Cell;
use std::cmp::Reverse;
use std::io::Write;
use std::path::{Path, PathBuf};

use regrow::engine::{Listed, ListedState, Share};
use regrow::tree::{KeyPath, LeafInfo, PathPattern};
use regrow::{Checkpoint, Error, ErrorKind};
use regrow_base::text::counted;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};

use super::{Subtree, leaf_json, share_json, subtrees};
use crate::Globals;
use crate::exit::{self, Exit, Failure};
use crate::out::{self, Align, Table, Tint};

const EXAMPLES: &str = "\
Examples:
  regrow ls step_100
  regrow ls step_100 'params/**' --sort bytes
  regrow ls step_100 --depth 2
  regrow ls runs";

/// List the leaves of a checkpoint, or the checkpoints in a folder.
///
/// A checkpoint has one line per leaf: key path, dtype, shape, bytes, coding. A folder has one line
/// per checkpoint: name, layout, state, bytes, time of the last change (UTC). To list leaves of a
/// step in a folder, give --step, --item, --depth or a glob. Only metadata is read.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Ls {
    /// The checkpoint, or a folder of checkpoints.
    path: PathBuf,
    /// List only leaves that match one of these: `params/**`, `*/kernel`.
    #[arg(value_name = "GLOB")]
    globs: Vec<String>,
    /// Also show the kind, chunks, shards and sharding of each leaf.
    #[arg(long, short)]
    long: bool,
    /// Show one line per subtree that is N keys deep, with its leaves and bytes.
    #[arg(short, long, value_name = "N", conflicts_with = "long")]
    depth: Option<usize>,
    /// Sort by bytes (largest first) or by name. [default: flatten order]
    #[arg(short, long, value_name = "KEY")]
    sort: Option<Sort>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Sort {
    Bytes,
    Name,
}

impl Ls {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn run(&self, globals: &Globals, out: &mut impl Write) -> Result<Exit, Failure> {
        let patterns =
            self.globs.iter().map(|glob| PathPattern::new(glob)).collect::<Result<Vec<_>, Error>>()?;
        let may_list =
            patterns.is_empty() && globals.step.is_none() && globals.item.is_none() && self.depth.is_none();
        let checkpoint = match globals.open(&self.path) {
            Ok(checkpoint) if may_list && !checkpoint.description().steps.is_empty() => {
                let found = regrow::list(checkpoint.location())?;
                return self.print_folder(globals, out, &found);
            }
            Err(error)
                if may_list && matches!(error.kind(), ErrorKind::NotACheckpoint | ErrorKind::Uncommitted) =>
            {
                // Report the error only if the folder contains no checkpoints.
                let found = globals.locate(&self.path).and_then(regrow::list).unwrap_or_default();
                return if found.is_empty() {
                    Err(error.into())
                } else {
                    self.print_folder(globals, out, &found)
                };
            }
            opened => opened?,
        };
        // Compute the key paths again for each pass: a list of all paths would cost more than two
        // passes.
        let leaves = || {
            let leaves = checkpoint.tree().iter();
            leaves.filter(|(path, _)| patterns.is_empty() || patterns.iter().any(|glob| glob.matches(path)))
        };
        if !patterns.is_empty() && leaves().next().is_none() {
            let text = format!("no leaf of {} matches {}", self.path.display(), self.globs.join(" "));
            let help = "list the leaves with `regrow ls`, without a glob; `**` spans keys, `*` does not";
            return Err(Failure::Usage(Error::new(ErrorKind::NotFound, text).help(help)));
        }
        if let Some(depth) = self.depth {
            self.print_subtrees(globals, out, &checkpoint, subtrees(leaves(), depth))?;
        } else if self.sort.is_some() {
            let mut sorted: Vec<_> = leaves().collect();
            match self.sort {
                Some(Sort::Bytes) => sorted.sort_by_key(|(_, leaf)| Reverse(leaf.data_len_bytes())),
                _ => sorted.sort_by(|(a, _), (b, _)| a.cmp(b)),
            }
            self.print_leaves(globals, out, &checkpoint, || sorted.iter().cloned())?;
        } else {
            self.print_leaves(globals, out, &checkpoint, leaves)?;
        }
        if checkpoint.tree().is_empty() {
            // The notes explain why a checkpoint has no leaves.
            checkpoint.description().notes.iter().for_each(|note| out::warn(&format!("note: {note}")));
        }
        // The process ends after this command, and the system frees its memory faster than the
        // destructors would.
        std::mem::forget(checkpoint);
        Ok(Exit::Fine)
    }
}

impl Ls {
    fn print_leaves<'a, I: Iterator<Item = (KeyPath, &'a LeafInfo)>>(
        &self,
        globals: &Globals,
        out: &mut impl Write,
        checkpoint: &'a Checkpoint,
        leaves: impl Fn() -> I,
    ) -> std::io::Result<()> {
        if globals.json {
            let totals = Cell::new(Share::default());
            return out::json(out, &Listing { checkpoint, leaves, totals });
        }
        print(globals, out, leaves(), self.long)
    }

    fn print_subtrees(
        &self,
        globals: &Globals,
        out: &mut impl Write,
        checkpoint: &Checkpoint,
        mut all: Vec<Subtree<'_>>,
    ) -> std::io::Result<()> {
        let totals = all.first().map(|root| root.share).unwrap_or_default();
        all.retain(|one| one.leaf.is_some() || Some(one.path.keys().len()) == self.depth);
        match self.sort {
            Some(Sort::Bytes) => all.sort_by_key(|one| Reverse(one.share.bytes)),
            Some(Sort::Name) => all.sort_by(|a, b| a.path.cmp(&b.path)),
            None => {}
        }
        if globals.json {
            let subtrees = all.iter().map(|one| {
                json!({
                    "key_path": one.path.to_string(),
                    "leaf_count": one.share.leaf_count,
                    "bytes": one.share.bytes,
                })
            });
            let subtrees: Vec<Value> = subtrees.collect();
            let path = checkpoint.path().to_string_lossy();
            return out::json(
                out,
                &json!({ "path": path, "subtrees": subtrees, "totals": share_json(totals) }),
            );
        }
        let mut table = Table::new();
        table.titles(["KEY PATH", "LEAVES", "BYTES"]);
        for one in &all {
            table.cell(&one.path);
            table.cell(one.share.leaf_count);
            table.cell(globals.size(one.share.bytes));
        }
        table.print(out, "", [Align::Left, Align::Right, Align::Right])?;
        print_totals(out, totals)
    }

    fn print_folder(
        &self,
        globals: &Globals,
        out: &mut impl Write,
        found: &[Listed],
    ) -> Result<Exit, Failure> {
        let mut found: Vec<&Listed> = found.iter().collect();
        if self.sort == Some(Sort::Bytes) {
            found.sort_by_key(|listed| Reverse(listed.stock.map(|stock| stock.bytes)));
        }
        if globals.json {
            let path = globals.locate(&self.path)?.describe();
            let checkpoints: Vec<Value> = found.iter().map(|listed| listed_json(listed)).collect();
            out::json(out, &json!({ "path": path.to_string_lossy(), "checkpoints": checkpoints }))?;
            return Ok(Exit::Fine);
        }
        let mut table = Table::new();
        table.titles(["NAME", "LAYOUT", "STATE", "BYTES", "WHEN"]);
        let mut bytes = 0_u64;
        for listed in &found {
            table.cell(&listed.name);
            table.cell(if listed.layout.is_empty() { "-" } else { &listed.layout });
            match listed.steps.len() {
                0 => table.tinted(state_tint(&listed.state), listed.state.name()),
                steps => table.cell(counted(steps, "step", "steps")),
            }
            match listed.stock {
                Some(stock) => table.cell(globals.size(stock.bytes)),
                None => table.cell("-"),
            }
            match listed.stock.and_then(|stock| stock.modified) {
                Some(modified) => table.cell(out::when(modified)),
                None => table.cell("-"),
            }
            bytes = bytes.saturating_add(listed.stock.map_or(0, |stock| stock.bytes));
        }
        use Align::{Left, Right};
        table.print(out, "", [Left, Left, Left, Right, Left])?;
        let unfinished =
            found.iter().filter(|listed| matches!(listed.state, ListedState::Unfinished)).count();
        let count = counted(found.len() - unfinished, "checkpoint", "checkpoints");
        let beside = if unfinished > 0 { format!(", {unfinished} unfinished") } else { String::new() };
        writeln!(out, "{count}{beside}, {bytes} bytes ({})", out::size(bytes))?;
        Ok(Exit::Fine)
    }
}

fn state_tint(state: &ListedState) -> Tint {
    match state {
        ListedState::Damaged(_) => Tint::Bad,
        ListedState::Unfinished => Tint::Note,
        ListedState::Committed => Tint::Plain,
    }
}

fn listed_json(listed: &Listed) -> Value {
    let error = match &listed.state {
        ListedState::Damaged(error) => Some(exit::error_json(error)),
        _ => None,
    };
    let modified = listed.stock.and_then(|stock| stock.modified);
    let modified = modified.and_then(|modified| modified.duration_since(std::time::UNIX_EPOCH).ok());
    json!({
        "name": listed.name,
        "path": listed.path.to_string_lossy(),
        "layout": Some(&listed.layout).filter(|layout| !layout.is_empty()),
        "state": listed.state.name(),
        "steps": listed.steps,
        "file_count": listed.stock.map(|stock| stock.file_count),
        "bytes": listed.stock.map(|stock| stock.bytes),
        "modified": modified.map(|modified| modified.as_secs_f64()),
        "error": error,
    })
}

fn print<'a>(
    globals: &Globals,
    out: &mut impl Write,
    leaves: impl Iterator<Item = (KeyPath, &'a LeafInfo)>,
    long: bool,
) -> std::io::Result<()> {
    use Align::{Left, Right};
    let mut totals = Share::default();
    if long {
        let mut table = Table::new();
        table.titles(["KEY PATH", "DTYPE", "SHAPE", "BYTES", "CODING", "KIND", "CHUNK", "SHARD", "SHARDING"]);
        for (path, leaf) in leaves {
            totals.add(leaf);
            row(globals, &mut table, &path, leaf);
            table.cell(leaf.kind.name());
            match &leaf.chunk_shape {
                Some(shape) => table.cell(shape),
                None => table.cell("-"),
            }
            match leaf.shard_shape() {
                Some(shape) => table.cell(shape),
                None => table.cell("-"),
            }
            match &leaf.sharding {
                Some(sharding) => table.cell(sharding),
                None => table.cell("-"),
            }
        }
        table.print(out, "", [Left, Left, Left, Right, Left, Left, Left, Left, Left])?;
    } else {
        let mut table = Table::new();
        table.titles(["KEY PATH", "DTYPE", "SHAPE", "BYTES", "CODING"]);
        for (path, leaf) in leaves {
            totals.add(leaf);
            row(globals, &mut table, &path, leaf);
        }
        table.print(out, "", [Left, Left, Left, Right, Left])?;
    }
    print_totals(out, totals)
}

fn print_totals(out: &mut impl Write, Share { leaf_count, bytes }: Share) -> std::io::Result<()> {
    writeln!(out, "{}, {bytes} bytes ({})", counted(leaf_count, "leaf", "leaves"), out::size(bytes))
}

fn row<const N: usize>(globals: &Globals, table: &mut Table<N>, path: &KeyPath, leaf: &LeafInfo) {
    table.cell(path);
    table.cell(leaf.dtype_text());
    table.cell(&leaf.shape);
    if leaf.has_data() {
        table.cell(globals.size(leaf.len_bytes()));
    } else {
        table.cell("-");
    }
    table.cell(if leaf.coding.is_empty() { "-" } else { &*leaf.coding });
}

/// The leaves as JSON. Each leaf is converted only when it is written, because a document of a
/// million leaves would take gigabytes.
struct Listing<'a, F> {
    checkpoint: &'a Checkpoint,
    leaves: F,
    totals: Cell<Share>,
}

impl<'a, F: Fn() -> I, I: Iterator<Item = (KeyPath, &'a LeafInfo)>> Serialize for Listing<'a, F> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let about = self.checkpoint.description();
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("path", &self.checkpoint.path().to_string_lossy())?;
        map.serialize_entry("layout", &about.layout)?;
        map.serialize_entry("variant", &about.variant)?;
        map.serialize_entry("step", &about.step)?;
        map.serialize_entry("leaves", &Rows(self))?;
        // Writing the rows has updated the totals.
        map.serialize_entry("totals", &share_json(self.totals.get()))?;
        map.end()
    }
}

struct Rows<'l, 'a, F>(&'l Listing<'a, F>);

impl<'a, F: Fn() -> I, I: Iterator<Item = (KeyPath, &'a LeafInfo)>> Serialize for Rows<'_, 'a, F> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq((self.0.leaves)().map(|(path, leaf)| {
            let mut totals = self.0.totals.get();
            totals.add(leaf);
            self.0.totals.set(totals);
            leaf_json(&path, leaf)
        }))
    }
}
