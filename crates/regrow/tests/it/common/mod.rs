//! Shared by the tests: one tree, all layouts, and all storages.

#![cfg_attr(not(feature = "cloud"), allow(dead_code, reason = "some of it is for tests of buckets"))]

pub mod buckets;
pub mod child;
pub mod cuts;
pub mod damage;
pub mod ranks;

use regrow::array::{Array, Dtype, Shape};
use regrow::engine::Layout;
use regrow::location::{Location, ToLocation};
use regrow::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};

/// Arrays of several sizes, one of them of several requests' length.
pub fn tree(fill: u8) -> Tree<Leaf> {
    let array = |dtype: Dtype, dims: &[u64]| {
        let shape = Shape::new(dims.to_vec()).unwrap();
        let len = shape.len_bytes(dtype).unwrap() as usize;
        let bytes: Vec<u8> = (0..len).map(|at| (at as u8 & 0x3f) ^ fill).collect();
        Leaf::array(Array::new(dtype, shape, bytes.into()).unwrap())
    };
    dict([
        ("bias", array(Dtype::Float32, &[7])),
        ("counter", array(Dtype::Int64, &[])),
        ("kernel", array(Dtype::Float32, &[700, 1500])),
        ("small", array(Dtype::UInt8, &[3, 5])),
    ])
}

/// The leaves by their printed key paths.
pub fn bytes_of(tree: &Tree<Leaf>) -> Vec<(String, Vec<u8>)> {
    let leaf = |(path, leaf): (regrow::tree::KeyPath, &Leaf)| {
        (path.to_string(), leaf.as_array().unwrap().to_c_order().unwrap().to_vec())
    };
    tree.iter().map(leaf).collect()
}

/// Every layout that lives anywhere, and how the names of its files end.
pub fn layouts() -> Vec<(Layout, &'static str)> {
    let json =
        |name: &str, options: &str| Layout::from_name(name, serde_json::from_str(options).unwrap()).unwrap();
    vec![
        (json("regrow", "null"), ""),
        (json("orbax", "null"), ""),
        (json("orbax", r#"{"ocdbt": false}"#), ""),
        (json("orbax", r#"{"ocdbt": false, "zarr3": true}"#), ""),
        (json("orbax", r#"{"v1": true}"#), ""),
        (json("flax", "null"), ".msgpack"),
        (json("equinox", "null"), ".eqx"),
        (json("pytree_data", "null"), ""),
        (json("safetensors", "null"), ".safetensors"),
        (json("safetensors", r#"{"max_shard_bytes": 1000000}"#), ""),
        (json("npy", "null"), ".npz"),
        (json("npy", r#"{"compress": 1}"#), ".npz"),
        (json("npy", "null"), ""),
    ]
}

/// A folder on a disk, and one in a bucket in memory that no other test uses.
pub fn storages(test: &str) -> Vec<(Location, Option<tempfile::TempDir>)> {
    let folder = tempfile::tempdir().unwrap();
    vec![
        (Location::local(folder.path()), Some(folder)),
        (format!("memory://{test}/runs").to_location().unwrap(), None),
    ]
}

/// A dict of these leaves.
pub fn dict<K: AsRef<str>>(leaves: impl IntoIterator<Item = (K, Leaf)>) -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    leaves.into_iter().for_each(|(key, leaf)| build.leaf(Key::dict(key.as_ref()), leaf).unwrap());
    build.close().unwrap();
    build.finish().unwrap()
}
