//! `regrow ls`: the leaves as a table, from metadata alone.

use std::io::Write;
use std::path::PathBuf;

use regrow::tree::{KeyPath, LeafInfo, PathPattern};
use regrow::{Checkpoint, Error, ErrorKind};
use serde_json::{Value, json};

use super::{data_bytes, dtype_text, has_data, leaf_json};
use crate::Globals;
use crate::exit::{Exit, Failure};
use crate::out::{self, Align};

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
    pub fn run(&self, globals: &Globals, out: &mut impl Write) -> Result<Exit, Failure> {
        let patterns =
            self.globs.iter().map(|glob| PathPattern::new(glob)).collect::<Result<Vec<_>, Error>>()?;
        let checkpoint = regrow::open_with(&self.path, &globals.open_options())?;
        let leaves: Vec<(KeyPath, &LeafInfo)> = checkpoint
            .tree()
            .iter()
            .filter(|(path, _)| patterns.is_empty() || patterns.iter().any(|glob| glob.matches(path)))
            .collect();
        if leaves.is_empty() && !patterns.is_empty() {
            let text = format!("no leaf of {} matches {}", self.path.display(), self.globs.join(" "));
            let help = "list the leaves with `regrow ls`, without a glob; `**` spans keys, `*` does not";
            return Err(Failure::Usage(Error::new(ErrorKind::NotFound, text).help(help)));
        }
        if globals.json {
            out::json(out, &as_json(&checkpoint, &leaves))?;
        } else {
            print(out, &leaves, self.long)?;
        }
        Ok(Exit::Fine)
    }
}

fn print(out: &mut impl Write, leaves: &[(KeyPath, &LeafInfo)], long: bool) -> std::io::Result<()> {
    use Align::{Left, Right};
    if long {
        let rows: Vec<[String; 8]> = leaves
            .iter()
            .map(|(path, leaf)| {
                let [path, dtype, shape, bytes, coding] = row(path, leaf);
                let chunk = leaf.chunk_shape.as_ref().map_or("-".to_owned(), ToString::to_string);
                let sharding =
                    leaf.sharding.as_ref().map_or("-".to_owned(), |sharding| sharding_text(sharding));
                [path, dtype, shape, bytes, coding, leaf.kind.name().to_owned(), chunk, sharding]
            })
            .collect();
        let header = ["KEY PATH", "DTYPE", "SHAPE", "BYTES", "CODING", "KIND", "CHUNK", "SHARDING"];
        out::columns(out, "", Some(header), [Left, Left, Left, Right, Left, Left, Left, Left], &rows)?;
    } else {
        let rows: Vec<[String; 5]> = leaves.iter().map(|(path, leaf)| row(path, leaf)).collect();
        let header = ["KEY PATH", "DTYPE", "SHAPE", "BYTES", "CODING"];
        out::columns(out, "", Some(header), [Left, Left, Left, Right, Left], &rows)?;
    }
    let total = total_bytes(leaves);
    let leaves = out::count(leaves.len(), "leaf", "leaves");
    writeln!(out, "{leaves}, {total} bytes ({})", out::size(total))
}

fn row(path: &KeyPath, leaf: &LeafInfo) -> [String; 5] {
    let bytes = if has_data(leaf) { leaf.len_bytes().to_string() } else { "-".to_owned() };
    let coding = if leaf.coding.is_empty() { "-".to_owned() } else { leaf.coding.to_string() };
    [path.to_string(), dtype_text(leaf), leaf.shape.to_string(), bytes, coding]
}

fn total_bytes(leaves: &[(KeyPath, &LeafInfo)]) -> u64 {
    leaves.iter().fold(0, |sum, (_, leaf)| sum.saturating_add(data_bytes(leaf)))
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

fn as_json(checkpoint: &Checkpoint, leaves: &[(KeyPath, &LeafInfo)]) -> Value {
    let about = checkpoint.description();
    let rows: Vec<Value> = leaves.iter().map(|(path, leaf)| leaf_json(path, leaf)).collect();
    json!({
        "path": checkpoint.path().to_string_lossy(),
        "layout": about.layout,
        "variant": about.variant,
        "step": about.step,
        "leaves": rows,
        "totals": { "leaf_count": leaves.len(), "bytes": total_bytes(leaves) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
