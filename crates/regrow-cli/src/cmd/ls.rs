//! `regrow ls`: the leaves as a table, from metadata alone.

use std::cell::Cell;
use std::io::Write;
use std::path::{Path, PathBuf};

use regrow::text::counted;
use regrow::tree::{KeyPath, LeafInfo, PathPattern};
use regrow::{Checkpoint, Error, ErrorKind};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

use super::{Share, dtype_text, has_data, leaf_json};
use crate::Globals;
use crate::exit::{Exit, Failure};
use crate::out::{self, Align, Table};

/// List the leaves of a checkpoint without reading their data.
///
/// One line a leaf, in flatten order: key path, dtype, shape, bytes, and how its bytes are coded; then the totals.
#[derive(Debug, clap::Args)]
pub struct Ls {
    /// The checkpoint.
    path: PathBuf,
    /// Only leaves that one of these matches: `params/**`, `*/kernel`; all of them if none is given.
    #[arg(value_name = "GLOB")]
    globs: Vec<String>,
    /// Also what kind of leaf it is, its chunks, and how it was sharded.
    #[arg(long, short)]
    long: bool,
}

impl Ls {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn run(&self, globals: &Globals, out: &mut impl Write) -> Result<Exit, Failure> {
        let patterns =
            self.globs.iter().map(|glob| PathPattern::new(glob)).collect::<Result<Vec<_>, Error>>()?;
        let checkpoint = globals.open(&self.path)?;
        // Gone through anew each time: so many key paths at once would cost more than to build them twice.
        let leaves = || {
            let leaves = checkpoint.tree().iter();
            leaves.filter(|(path, _)| patterns.is_empty() || patterns.iter().any(|glob| glob.matches(path)))
        };
        if !patterns.is_empty() && leaves().next().is_none() {
            let text = format!("no leaf of {} matches {}", self.path.display(), self.globs.join(" "));
            let help = "list the leaves with `regrow ls`, without a glob; `**` spans keys, `*` does not";
            return Err(Failure::Usage(Error::new(ErrorKind::NotFound, text).help(help)));
        }
        if globals.json {
            let totals = Cell::new(Share::default());
            out::json(out, &Listing { checkpoint: &checkpoint, leaves, totals })?;
        } else {
            print(out, leaves(), self.long)?;
        }
        // The process ends here, and with it goes the memory, at once instead of leaf by leaf.
        std::mem::forget(checkpoint);
        Ok(Exit::Fine)
    }
}

fn print<'a>(
    out: &mut impl Write,
    leaves: impl Iterator<Item = (KeyPath, &'a LeafInfo)>,
    long: bool,
) -> std::io::Result<()> {
    use Align::{Left, Right};
    const HEADER: [&str; 5] = ["KEY PATH", "DTYPE", "SHAPE", "BYTES", "CODING"];
    let mut totals = Share::default();
    if long {
        let mut table = Table::new();
        HEADER.iter().chain(&["KIND", "CHUNK", "SHARDING"]).for_each(|title| table.cell(title));
        for (path, leaf) in leaves {
            totals.add(leaf);
            row(&mut table, &path, leaf);
            table.cell(leaf.kind.name());
            match &leaf.chunk_shape {
                Some(shape) => table.cell(shape),
                None => table.cell("-"),
            }
            match &leaf.sharding {
                Some(sharding) => table.cell(sharding_text(sharding)),
                None => table.cell("-"),
            }
        }
        table.print(out, "", [Left, Left, Left, Right, Left, Left, Left, Left])?;
    } else {
        let mut table = Table::new();
        HEADER.iter().for_each(|title| table.cell(title));
        for (path, leaf) in leaves {
            totals.add(leaf);
            row(&mut table, &path, leaf);
        }
        table.print(out, "", [Left, Left, Left, Right, Left])?;
    }
    let Share { leaf_count, bytes } = totals;
    writeln!(out, "{}, {bytes} bytes ({})", counted(leaf_count, "leaf", "leaves"), out::size(bytes))
}

/// The cells that every list has.
fn row<const N: usize>(table: &mut Table<N>, path: &KeyPath, leaf: &LeafInfo) {
    table.cell(path);
    table.cell(dtype_text(leaf));
    table.cell(&leaf.shape);
    if has_data(leaf) {
        table.cell(leaf.len_bytes());
    } else {
        table.cell("-");
    }
    table.cell(if leaf.coding.is_empty() { "-" } else { &*leaf.coding });
}

/// A sharding in few words: `{x:4,y:2} (x,y)`, mesh and partition, where it is a named one; its type otherwise.
fn sharding_text(sharding: &Value) -> String {
    let list = |name: &str| sharding.get(name).and_then(Value::as_array);
    match (list("axis_names"), list("shape"), list("partition_spec")) {
        (Some(names), Some(sizes), Some(spec)) => {
            let mesh: Vec<String> =
                names.iter().zip(sizes).map(|(name, size)| format!("{}:{size}", axis_text(name))).collect();
            let spec: Vec<String> = spec.iter().map(axis_text).collect();
            format!("{{{}}} ({})", mesh.join(","), spec.join(","))
        }
        _ => match sharding.get("sharding_type").and_then(Value::as_str) {
            Some(kind) => kind.to_owned(),
            None => sharding.to_string(),
        },
    }
}

/// A mesh axis by its name, several as `a+b`, none as `-`.
fn axis_text(axis: &Value) -> String {
    match axis {
        Value::String(name) => name.clone(),
        Value::Null => "-".to_owned(),
        Value::Array(names) => names.iter().map(axis_text).collect::<Vec<_>>().join("+"),
        other => other.to_string(),
    }
}

/// The leaves as JSON, each written when its turn comes: a document of a million leaves would take gigabytes.
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
        // The rows have counted themselves.
        map.serialize_entry("totals", &self.totals.get().as_json())?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn shardings_read_like_jax() {
        let named = json!({
            "sharding_type": "NamedSharding", "shape": [4, 2], "axis_names": ["x", "y"],
            "partition_spec": ["x", ["x", "y"], null],
        });
        assert_eq!(sharding_text(&named), "{x:4,y:2} (x,x+y,-)");
        assert_eq!(sharding_text(&json!({"sharding_type": "SingleDeviceSharding"})), "SingleDeviceSharding");
        assert_eq!(sharding_text(&json!("odd")), "\"odd\"");
    }
}
