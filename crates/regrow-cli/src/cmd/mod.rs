//! The commands, one file for each.

use regrow::engine::Share;
use regrow::monitor::StageReport;
use regrow::tree::{Key, KeyPath, LeafInfo};
use serde_json::{Value, json};

pub mod cat;
pub mod completions;
pub mod convert;
pub mod cp;
pub mod demo;
pub mod diff;
pub mod doctor;
pub mod info;
pub mod ls;
pub mod man;
pub mod options;
pub mod parity;
pub mod repair;
pub mod report;
pub mod rm;
pub mod seal;
pub mod sign;
pub mod steps;
pub mod tree;
pub mod verify;

/// A leaf as JSON, the same in every command. `keys` is exact; `key_path` is the printed form.
fn leaf_json(path: &KeyPath, leaf: &LeafInfo) -> Value {
    let keys: Vec<Value> = path.keys().iter().map(key_json).collect();
    json!({
        "key_path": path.to_string(),
        "keys": keys,
        "name": &*leaf.name,
        "kind": leaf.kind.name(),
        "dtype": leaf.dtype.name(),
        "shape": leaf.shape.dims(),
        "bytes": leaf.data_len_bytes(),
        "coding": &*leaf.coding,
        "chunk_shape": leaf.chunk_shape.as_ref().map(|shape| shape.dims()),
        "write_shape": leaf.write_shape.as_ref().map(|shape| shape.dims()),
        "sharding": leaf.sharding.as_ref().map(|sharding| sharding.to_json()),
        "shard_shape": leaf.shard_shape().as_ref().map(|shape| shape.dims()),
    })
}

fn stage_json(stage: &StageReport) -> Value {
    json!({
        "stage": stage.stage.name(),
        "seconds": stage.seconds,
        "bytes": stage.bytes,
        "gb_per_s": stage.gb_per_s(),
    })
}

fn share_json(share: Share) -> Value {
    json!({ "leaf_count": share.leaf_count, "bytes": share.bytes })
}

/// A part of the pytree that may be a single leaf.
struct Subtree<'a> {
    path: KeyPath,
    share: Share,
    /// The leaf; `None` for a container.
    leaf: Option<&'a LeafInfo>,
}

/// The root and all subtrees at most `depth` keys below it, each before its children. The leaves
/// must come in flatten order.
fn subtrees<'a>(leaves: impl Iterator<Item = (KeyPath, &'a LeafInfo)>, depth: usize) -> Vec<Subtree<'a>> {
    let mut all = Vec::<Subtree<'_>>::new();
    // The subtrees that contain the previous leaf, from the root down.
    let mut open = Vec::<usize>::new();
    for (path, leaf) in leaves {
        let keys = path.keys();
        let same = |&at: &usize| all.get(at).is_some_and(|around| keys.starts_with(around.path.keys()));
        let kept = open.iter().take_while(|at| same(at)).count();
        open.truncate(kept);
        for level in kept..=keys.len().min(depth) {
            let path = keys.get(..level).unwrap_or(keys).iter().cloned().collect();
            open.push(all.len());
            all.push(Subtree { path, share: Share::default(), leaf: (level == keys.len()).then_some(leaf) });
        }
        for &around in &open {
            all.get_mut(around).into_iter().for_each(|around| around.share.add(leaf));
        }
    }
    all
}

fn key_json(key: &Key) -> Value {
    match key {
        Key::Dict(text) => json!({ "dict": &**text }),
        Key::DictInt(number) => json!({ "dict": number }),
        Key::Index(index) => json!({ "index": index }),
        Key::Attr(name) => json!({ "attr": &**name }),
    }
}
