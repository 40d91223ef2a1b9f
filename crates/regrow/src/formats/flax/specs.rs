//! TensorStore specs in msgpack: a dict, or a JSON text, that says where an array is, in the place of the array.
//!
//! ```text
//! {"driver": "zarr", "dtype": "float32",                      what opens it
//!  "kvstore": {"driver": "file", "path": "target.w/"},        where it is, below the folder of the file
//!  "metadata": {"shape": [4, 3], "chunks": [4, 3], …}}        what it has to be
//! ```
//!
//! T5X writes them, and reads `file`, `gfile` and `gcs` as the folder that the file lies in, whatever the bucket was
//! called. A spec that says anything else is refused by name: read as the dict that it looks like, its array would be lost.
//!
//! Source: t5x `checkpoints.py`; TensorStore 0.1.86, drivers `zarr` and `zarr3`.

use serde_json::{Map, Number, Value};

use super::decode::{Data, Decoded};
use crate::array::Dtype;
use crate::error::{Error, Result};
use crate::text::brief;
use crate::tree::{LeafKind, Node, NodeKind, Tree, TreeBuilder};

const DRIVER: &str = "driver";
const KVSTORE: &str = "kvstore";
/// What a driver that changes other arrays has instead of a place.
const BASE: &str = "base";

const DRIVERS: [&str; 2] = ["zarr", "zarr3"];
/// Places that mean the folder of the file.
const PLACES: [&str; 3] = ["file", "gfile", "gcs"];
/// Members that say nothing of the numbers.
const MEMBERS: [&str; 7] =
    [DRIVER, KVSTORE, "dtype", "metadata", "path", "recheck_cached_data", "recheck_cached_metadata"];

/// Containers inside each other in a spec: TensorStore's have fewer.
const NESTED_MAX: usize = 16;

/// The array that a spec names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ArraySpec {
    /// Its path below the folder of the file.
    pub name: String,
    /// Where it was written, as a person would say it.
    pub place: String,
    pub dtype: Option<String>,
    pub dims: Option<Vec<u64>>,
}

impl ArraySpec {
    /// Reads a spec.
    ///
    /// # Errors
    /// `Unsupported` for all that T5X does not write; `Corrupt` if a member is missing.
    pub fn parse(spec: &Value) -> Result<Self> {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let driver = text(spec.get(DRIVER)).unwrap_or_default();
        if !DRIVERS.contains(&driver.as_str()) {
            return Err(unknown("it opens an array of another kind", &DRIVERS.join(" or "), &driver));
        }
        if let Some(Value::String(url)) = spec.get(KVSTORE) {
            return Err(unknown("it names a place of its own", "a path below the folder of the file", url));
        }
        let place_driver = text(spec.pointer("/kvstore/driver")).unwrap_or_default();
        if !PLACES.contains(&place_driver.as_str()) {
            return Err(unknown("its array is in another kind of place", &PLACES.join(", "), &place_driver));
        }
        let members = spec.as_object().into_iter().flat_map(Map::keys);
        if let Some(other) = members.into_iter().find(|member| !MEMBERS.contains(&member.as_str())) {
            return Err(unknown("a member of it is not known here", &MEMBERS.join(", "), other));
        }
        // Releases before 0.1.14 have the path outside.
        let path = text(spec.pointer("/kvstore/path")).or_else(|| text(spec.get("path")));
        let path = path.ok_or_else(|| Error::corrupt("a TensorStore spec has no path"))?;
        let name = path.trim_end_matches('/');
        let place = match text(spec.pointer("/kvstore/bucket")) {
            Some(bucket) => format!("gs://{bucket}/{path}"),
            None => path.clone(),
        };
        if name.is_empty() || name.starts_with('/') {
            return Err(unknown("its path is not one below the folder of the file", "target.w", &place));
        }
        let dims = spec.pointer("/metadata/shape").map(|shape| {
            let dims = match shape {
                Value::Array(dims) => dims.iter().map(Value::as_u64).collect(),
                // Flax writes some lists as dicts of their positions.
                Value::Object(dims) => {
                    (0..dims.len()).map(|at| dims.get(&at.to_string())?.as_u64()).collect()
                }
                _ => None,
            };
            dims.ok_or_else(|| Error::corrupt("the shape in a TensorStore spec is no list of numbers"))
        });
        Ok(Self { name: name.to_owned(), place, dtype: text(spec.get("dtype")), dims: dims.transpose()? })
    }

    /// The error for an array that is not beside the file.
    pub fn is_missing(&self, why: &Error) -> Error {
        let what =
            format!("the array of a leaf is missing: a TensorStore spec puts it at {}", brief(&self.place));
        let error = Error::corrupt(what).help(
            "copy the folders of the arrays, too, into the folder of the msgpack file (from the bucket that they were \
             written to)",
        );
        match why.place().file.clone() {
            Some(file) => error.in_file(file),
            None => error,
        }
    }
}

fn unknown(why: &str, expected: &str, found: &str) -> Error {
    Error::unsupported(format!("a leaf is a TensorStore spec, which stands for an array, and {why}"))
        .expected(expected, format_args!("{:?}", brief(found)))
        .help("load it with TensorStore (ts.open), and save the arrays with regrow.save")
}

/// The error for a spec in a file that has no arrays beside it.
pub(super) fn refused(spec: &Value) -> Error {
    match ArraySpec::parse(spec) {
        Err(error) => error,
        Ok(spec) => Error::unsupported(format!(
            "a leaf is a TensorStore spec, which stands for the array at {}, and no array",
            brief(&spec.place)
        ))
        .help("T5X writes them into a file called `checkpoint`, and the arrays beside it: open that, or its folder"),
    }
}

/// A text that is a spec in JSON.
pub(super) fn in_text(text: &str) -> Option<Value> {
    let may_be =
        text.starts_with('{') && text.contains(DRIVER) && (text.contains(KVSTORE) || text.contains(BASE));
    let value: Value = if may_be { serde_json::from_str(text).ok()? } else { return None };
    let is_spec = value.get(DRIVER).is_some_and(Value::is_string)
        && (value.get(KVSTORE).is_some() || value.get(BASE).is_some());
    is_spec.then_some(value)
}

/// The tree with each spec as one leaf.
///
/// # Errors
/// `Unsupported` for a spec that is nested too deeply; what the builder says.
pub(super) fn gathered(tree: Tree<Decoded>) -> Result<Tree<Decoded>> {
    let is_spec = spec_nodes(&tree);
    if is_spec.is_empty() {
        return Ok(tree);
    }
    let nodes = tree.nodes().to_vec();
    let mut rest = Rest { nodes: &nodes, at: 0, leaves: tree.into_leaves().into_iter() };
    let mut build = TreeBuilder::new();
    let mut open: Vec<usize> = Vec::new();
    while let Some(node) = nodes.get(rest.at) {
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        if is_spec.contains(&rest.at) {
            let mut name = String::new();
            let value = rest.value(0, &mut name)?;
            build.leaf(node.key.clone(), Decoded::spec(&name, value))?;
        } else if node.kind == NodeKind::Leaf {
            build.leaf(node.key.clone(), rest.leaf()?)?;
        } else {
            rest.at += 1;
            build.open(node.key.clone(), node.kind.clone())?;
            open.push(node.child_count);
        }
        while open.last() == Some(&0) {
            open.pop();
            build.close()?;
        }
    }
    build.finish()
}

/// The dicts with a driver and a place.
fn spec_nodes(tree: &Tree<Decoded>) -> std::collections::HashSet<usize> {
    let mut found = std::collections::HashSet::new();
    // Of each open container: its position, children to come, whether it has a driver and a place.
    let mut open: Vec<(usize, usize, bool, bool)> = Vec::new();
    let mut leaves = tree.leaves().iter();
    for (at, node) in tree.nodes().iter().enumerate() {
        let leaf = if node.kind == NodeKind::Leaf { leaves.next() } else { None };
        if let Some((_, left, has_driver, has_place)) = open.last_mut() {
            *left -= 1;
            let key = node.key.text();
            *has_driver |= key == DRIVER && leaf.is_some_and(|leaf| leaf.info.kind == LeafKind::Str);
            *has_place |= key == KVSTORE || key == BASE;
        }
        if node.child_count > 0 {
            open.push((at, node.child_count, false, node.kind != NodeKind::Dict));
        }
        while let Some(&(at, 0, has_driver, has_place)) = open.last() {
            if has_driver && has_place {
                found.insert(at);
            }
            open.pop();
        }
    }
    found
}

/// What has not been taken of a tree.
struct Rest<'a> {
    nodes: &'a [Node],
    at: usize,
    leaves: std::vec::IntoIter<Decoded>,
}

impl Rest<'_> {
    fn leaf(&mut self) -> Result<Decoded> {
        self.at += 1;
        self.leaves.next().ok_or_else(|| Error::corrupt("a tree has fewer leaves than leaf nodes"))
    }

    /// The node as JSON. `name` becomes that of the container whose driver this is.
    fn value(&mut self, depth: usize, name: &mut String) -> Result<Value> {
        let Some(node) = self.nodes.get(self.at) else { return Ok(Value::Null) };
        if depth > NESTED_MAX {
            return Err(unknown("it is nested too deeply", &format!("{NESTED_MAX} levels"), "more"));
        }
        if node.kind == NodeKind::Leaf {
            let leaf = self.leaf()?;
            if let (1, Some(above)) = (depth, leaf.info.name.strip_suffix(DRIVER)) {
                *name = above.trim_end_matches('.').to_owned();
            }
            return Ok(plain(&leaf));
        }
        self.at += 1;
        let (count, mut items, mut members) = (node.child_count, Vec::new(), Map::new());
        for _ in 0..count {
            let key = self.nodes.get(self.at).map(|child| child.key.text().into_owned()).unwrap_or_default();
            let value = self.value(depth + 1, name)?;
            if node.kind == NodeKind::List {
                items.push(value);
            } else {
                members.insert(key, value);
            }
        }
        Ok(match node.kind {
            NodeKind::None => Value::Null,
            NodeKind::List => items.into(),
            _ => members.into(),
        })
    }
}

/// A leaf as JSON: text or a number; anything else is no part of a spec that is understood.
fn plain(leaf: &Decoded) -> Value {
    match &leaf.data {
        Data::Text(text) => text.to_string().into(),
        Data::Pieces(pieces) => {
            let bytes: Option<[u8; 8]> = pieces.first().and_then(|piece| piece.as_ref().try_into().ok());
            match (leaf.info.dtype, bytes) {
                (Dtype::Int64, Some(bytes)) => i64::from_le_bytes(bytes).into(),
                (Dtype::UInt64, Some(bytes)) => u64::from_le_bytes(bytes).into(),
                (Dtype::Float64, Some(bytes)) => {
                    Number::from_f64(f64::from_le_bytes(bytes)).map_or(Value::Null, Value::Number)
                }
                (Dtype::Bool, _) => pieces.iter().any(|piece| piece.iter().any(|&byte| byte != 0)).into(),
                _ => Value::Null,
            }
        }
        _ => Value::Null,
    }
}
