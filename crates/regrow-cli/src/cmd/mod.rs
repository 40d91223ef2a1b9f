//! A file for each command.

use std::borrow::Cow;

use regrow::monitor::StageReport;
use regrow::tree::{Key, KeyPath, LeafInfo, LeafKind};
use serde_json::{Value, json};

pub mod cat;
pub mod completions;
pub mod convert;
pub mod cp;
pub mod demo;
pub mod diff;
pub mod doctor;
pub mod ls;
pub mod man;
pub mod overview;
pub mod parity;
pub mod repair;
pub mod report;
pub mod rm;
pub mod seal;
pub mod sign;
pub mod steps;
pub mod verify;

/// A leaf as JSON, one form in every command. `keys` is exact where `key_path` is for people.
fn leaf_json(path: &KeyPath, leaf: &LeafInfo) -> Value {
    let keys: Vec<Value> = path.keys().iter().map(key_json).collect();
    json!({
        "key_path": path.to_string(),
        "keys": keys,
        "name": &*leaf.name,
        "kind": leaf.kind.name(),
        "dtype": leaf.dtype.name(),
        "shape": leaf.shape.dims(),
        "bytes": data_bytes(leaf),
        "coding": &*leaf.coding,
        "chunk_shape": leaf.chunk_shape.as_ref().map(|shape| shape.dims()),
        "write_shape": leaf.write_shape.as_ref().map(|shape| shape.dims()),
        "sharding": leaf.sharding.as_ref().map(|sharding| sharding.to_json()),
        "shard_shape": leaf.shard_shape().as_ref().map(|shape| shape.dims()),
    })
}

/// What a part of the work took, as JSON.
fn stage_json(stage: &StageReport) -> Value {
    json!({
        "stage": stage.stage.name(),
        "seconds": stage.seconds,
        "bytes": stage.bytes,
        "gb_per_s": stage.gb_per_s(),
    })
}

/// Whether there are bytes behind the leaf.
fn has_data(leaf: &LeafInfo) -> bool {
    !matches!(leaf.kind, LeafKind::Placeholder | LeafKind::Unknown(_))
}

/// Bytes of the decoded leaf; none for a leaf that has no data.
fn data_bytes(leaf: &LeafInfo) -> u64 {
    if has_data(leaf) { leaf.len_bytes() } else { 0 }
}

/// Leaves and bytes of a part of the tree.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    leaf_count: usize,
    bytes: u64,
}

impl Share {
    fn add(&mut self, leaf: &LeafInfo) {
        self.leaf_count += 1;
        self.bytes = self.bytes.saturating_add(data_bytes(leaf));
    }

    fn as_json(self) -> Value {
        json!({ "leaf_count": self.leaf_count, "bytes": self.bytes })
    }
}

/// The dtype in a table: text has none, and a PRNG key is more than its integers.
fn dtype_text(leaf: &LeafInfo) -> Cow<'_, str> {
    match &leaf.kind {
        LeafKind::Str => "str".into(),
        LeafKind::PrngKey(Some(implementation)) => format!("key<{implementation}>").into(),
        LeafKind::NumpyOther(dtype) | LeafKind::NumpyOtherScalar(dtype) => (&**dtype).into(),
        LeafKind::Placeholder => "-".into(),
        LeafKind::Unknown(type_name) => format!("unknown<{type_name}>").into(),
        _ => leaf.dtype.name().into(),
    }
}

fn key_json(key: &Key) -> Value {
    match key {
        Key::Dict(text) => json!({ "dict": &**text }),
        Key::DictInt(number) => json!({ "dict": number }),
        Key::Index(index) => json!({ "index": index }),
        Key::Attr(name) => json!({ "attr": &**name }),
    }
}
