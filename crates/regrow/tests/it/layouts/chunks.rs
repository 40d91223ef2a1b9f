//! Chunks of the default layout that are smaller than arrays and shards, and compressed: the arrays
//! load as saved.

use std::path::Path;

use regrow::array::{Array, Region, Shape};
use regrow::engine::{Compression, Layout};
use regrow::tree::{Leaf, Tree};
use regrow::{ErrorKind, SaveOptions};
use serde_json::{Value, json};

use crate::common::cuts::{Cut, bytes_of, dict, options, save_by};

fn cut(shape: &[u64], chunk: &[u64], boxes: &[u64]) -> Cut {
    Cut { shape: shape.to_vec(), chunk: chunk.to_vec(), boxes: boxes.to_vec() }
}

/// Arrays whose last shards are smaller, in shards of one chunk and of several; and their names.
fn cuts() -> Vec<(&'static str, Cut)> {
    vec![
        ("uneven", cut(&[70, 30], &[40, 30], &[1, 1])),
        ("both", cut(&[33, 50], &[12, 26], &[1, 1])),
        ("boxes", cut(&[24, 40], &[4, 10], &[2, 2])),
        ("line", cut(&[1001], &[334], &[1])),
        ("small", cut(&[6, 4], &[3, 4], &[1, 1])),
    ]
}

fn whole() -> Cut {
    cut(&[32, 48], &[32, 48], &[1, 1])
}

/// As one process of several holds it.
fn tree(rank: usize, count: usize) -> Tree<Leaf> {
    let arrays = cuts().into_iter().map(|(name, cut)| (name.to_owned(), cut.held_by(rank, count)));
    dict(arrays.chain([
        ("whole".to_owned(), whole().whole()),
        ("number".to_owned(), cut(&[], &[], &[]).whole()),
        ("empty".to_owned(), cut(&[0, 3], &[0, 3], &[1, 1]).whole()),
        ("replicated".to_owned(), whole().replicated()),
    ]))
}

fn with(options_of_layout: Value, compression: Option<Compression>) -> SaveOptions {
    let layout = Layout::from_name("regrow", options_of_layout).unwrap();
    SaveOptions { layout, compression, ..options() }
}

/// Chunk shape, shape of what was written at once, coding.
fn stored(path: &Path, name: &str) -> (Option<Shape>, Option<Shape>, String) {
    let checkpoint = regrow::open(path).unwrap();
    let found = checkpoint.tree().iter().find(|(path, _)| path.to_string() == name).unwrap().1;
    (found.chunk_shape.clone(), found.write_shape.clone(), found.coding.to_string())
}

fn shape(dims: &[u64]) -> Option<Shape> {
    Some(Shape::new(dims.to_vec()).unwrap())
}

#[test]
fn chunked_arrays_load_as_saved() {
    let ways = [
        json!({}),
        json!({"chunk_byte_size": 600}),
        json!({"shard_axes": [0]}),
        json!({"per_leaf": [["uneven", {"write_chunk_shape": [8, 15]}], ["line", {"chunk_byte_size": 2}]]}),
    ];
    for way in ways {
        for compression in [None, Some(Compression::Zstd(1))] {
            let count = if compression.is_some() { 3 } else { 2 };
            let folder = tempfile::tempdir().unwrap();
            let target = folder.path().join("checkpoint");
            let trees: Vec<Tree<Leaf>> = (0..count).map(|rank| tree(rank, count)).collect();
            save_by(count, &target, &trees, &with(way.clone(), compression)).unwrap();
            let loaded: Tree<Leaf> = regrow::load(&target).unwrap();
            assert_eq!(bytes_of(&loaded), bytes_of(&tree(0, 1)), "{way} {compression:?}");
            assert!(regrow::verify(&target).unwrap().is_ok(), "{way} {compression:?}");
            // A box that meets several chunks.
            let region = Region::new([30, 4], [33, 20]).unwrap();
            let checkpoint = regrow::open(&target).unwrap();
            let leaf = checkpoint.tree().iter().position(|(path, _)| path.to_string() == "uneven").unwrap();
            let found = checkpoint.region(leaf, &region).unwrap();
            let mut wanted = vec![0; region.len_elements() as usize * 2];
            cuts()[0].1.whole().copy_region_c_order(&region, &mut wanted).unwrap();
            assert_eq!(&found.to_c_order().unwrap()[..], &wanted[..], "{way} {compression:?}");
        }
    }
}

#[test]
fn chunks_have_the_requested_shape() {
    let folder = tempfile::tempdir().unwrap();
    let saved = |name: &str, way: Value, compression: Option<Compression>, count: usize| {
        let path = folder.path().join(name);
        let trees: Vec<Tree<Leaf>> = (0..count).map(|rank| tree(rank, count)).collect();
        save_by(count, &path, &trees, &with(way, compression)).unwrap();
        path
    };
    let zstd = Some(Compression::Zstd(3));
    let path = saved("sizes", json!({"chunk_byte_size": 600}), None, 2);
    // 300 elements: of a shard of 40 rows first the axis that is cut, down to a divisor.
    assert_eq!(stored(&path, "uneven"), (shape(&[10, 30]), shape(&[40, 30]), "raw".to_owned()));
    assert_eq!(stored(&path, "small"), (shape(&[3, 4]), shape(&[3, 4]), "raw".to_owned()));
    assert_eq!(stored(&path, "whole"), (shape(&[16, 16]), shape(&[32, 48]), "raw".to_owned()));
    let path = saved("axes", json!({"shard_axes": [1]}), zstd, 2);
    assert_eq!(stored(&path, "uneven"), (shape(&[40, 1]), shape(&[40, 30]), "zstd".to_owned()));
    // Too short to be worth it; and of one axis alone, so it stays whole.
    assert_eq!(stored(&path, "small"), (shape(&[3, 1]), shape(&[3, 4]), "raw".to_owned()));
    assert_eq!(stored(&path, "line").0, shape(&[334]));
    let path = saved("compressed", json!({}), zstd, 1);
    assert_eq!(stored(&path, "uneven"), (shape(&[40, 30]), shape(&[40, 30]), "zstd".to_owned()));
    let plain = saved("plain", json!({}), None, 1);
    let len_bytes = |path: &Path| -> u64 {
        let files = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
        let data = files.filter(|file| {
            let name = file.file_name().into_string().unwrap();
            name.ends_with(".safetensors") || name.ends_with(".zstd")
        });
        data.map(|file| file.metadata().unwrap().len()).sum()
    };
    assert!(len_bytes(&path) < len_bytes(&plain), "nothing was compressed");
}

#[test]
fn one_process_cuts_and_compresses_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let arrays: Vec<(String, Array)> = vec![
        ("whole".to_owned(), whole().whole()),
        ("small".to_owned(), cut(&[6, 4], &[6, 4], &[1, 1]).whole()),
    ];
    let tree = dict(arrays);
    for compression in [None, Some(Compression::Zstd(1))] {
        let path = folder.path().join(format!("{}", compression.is_some()));
        regrow::save_with(&path, &tree, &with(json!({"chunk_byte_size": 600}), compression)).unwrap();
        assert_eq!(bytes_of(&regrow::load(&path).unwrap()), bytes_of(&tree));
        assert!(regrow::verify(&path).unwrap().is_ok());
    }
    let raw = folder.path().join("false");
    assert_eq!(stored(&raw, "whole"), (shape(&[16, 16]), shape(&[32, 48]), "raw".to_owned()));
    // Raw chunks are linked, chunk by chunk; compressed ones cannot be a base, and do not fail the
    // save.
    for base in ["false", "true"] {
        let path = folder.path().join(format!("on_{base}"));
        let options = SaveOptions {
            base: Some(folder.path().join(base).into()),
            ..with(json!({"chunk_byte_size": 600}), None)
        };
        let report = regrow::save_with(&path, &tree, &options).unwrap();
        assert_eq!(report.reused_bytes > 3000, base == "false", "{report:?}");
        assert_eq!(bytes_of(&regrow::load(&path).unwrap()), bytes_of(&tree));
    }
}

#[test]
fn impossible_chunks_are_refused_before_a_write() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("checkpoint");
    for (way, said) in [
        (json!({"write_chunk_shape": [7, 5]}), "does not divide"),
        (json!({"write_chunk_shape": [0, 5]}), "does not divide"),
        (json!({"chunk_byte_size": 1}), "smaller than one element"),
        (json!({"chunk_byte_size": 64, "write_chunk_shape": [8, 8]}), "exclude each other"),
        (json!({"per_leaf": [["whole", {"read_chunk_shape": [8, 8]}]]}), "cannot nest chunks"),
        (json!({"per_leaf": [["whole", {"shard_axes": [2]}]]}), "shard axis 2"),
        (json!({"per_leaf": [["unknown", {"shard_axes": [0]}]]}), "unknown"),
    ] {
        let options = with(way.clone(), None);
        let error = regrow::save_with(&target, &tree(0, 1), &options).unwrap_err();
        assert!(error.to_string().contains(said), "{way}: {error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{way}");
    }
    let error = regrow::save_with(&target, &tree(0, 1), &with(json!({"write_chunk_shape": [7, 5]}), None));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let error = Layout::from_name("regrow", json!({"zarr3": true})).unwrap_err();
    assert!(error.to_string().contains("zarr3"), "{error}");
}

#[test]
fn an_option_name_of_another_tool_is_an_error_with_the_right_name() {
    for (layout, other, own, value) in [
        ("orbax", "use_ocdbt", "ocdbt", json!(false)),
        ("orbax", "use_zarr3", "zarr3", json!(true)),
        ("regrow", "data_format", "format", json!("np")),
        ("regrow", "strict_orbax", "strict", json!(true)),
        ("safetensors", "metadata", "format", json!("np")),
        ("safetensors", "max_shard_size", "max_shard_bytes", json!("5GB")),
        ("safetensors", "sep", "separator", json!("/")),
        ("flax", "max_chunk_size", "max_chunk_bytes", json!(5)),
        ("equinox", "strict_upstream", "strict", json!(true)),
    ] {
        let error = Layout::from_name(layout, json!({ other: value.clone() })).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.help_text(), Some(&*format!("the option is called `{own}`")), "{layout}");
        Layout::from_name(layout, json!({ own: value })).unwrap();
    }
}
