//! Arrays in shards, saved by one process or by several: the arrays load as saved. Holes and
//! overlaps of shards are errors, and so is a process without shards.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use regrow::array::{Array, Dtype, Region, Shape};
use regrow::engine::{Compression, Layout};
use regrow::location::ToLocation;
use regrow::monitor::Monitor;
use regrow::tree::{KeyPath, Leaf, LeafKind, Tree};
use regrow::{Error, ErrorKind, SaveOptions};
use regrow_layouts::WriterRank;
use regrow_storage::PublishOptions;
use serde_json::json;

use crate::common::cuts::{Cut, bytes_of, dict, options, rows, save_by};

/// A tree of such arrays, and of some in one piece, as one process of several holds it.
fn tree(layout: &Layout, cuts: &[Cut], rank: usize, count: usize) -> Tree<Leaf> {
    let cut = cuts.iter().enumerate().map(|(at, cut)| (format!("cut_{at}"), cut.held_by(rank, count)));
    let all_hold = |shape: Vec<u64>| Cut { chunk: shape.clone(), boxes: vec![1; shape.len()], shape };
    // Orbax has no arrays without elements.
    let shapes = [Vec::new(), vec![5], vec![0, 3]]
        .into_iter()
        .filter(|shape| matches!(layout, Layout::Regrow(_)) || !shape.contains(&0));
    let whole = shapes.enumerate().map(|(at, shape)| (format!("whole_{at}"), all_hold(shape).whole()));
    let replicated = [("replicated".to_owned(), all_hold(vec![4, 3]).replicated())];
    dict(cut.chain(whole).chain(replicated))
}

/// Every form that several processes can write together.
fn layouts() -> Vec<Layout> {
    let orbax = [
        json!({}),
        json!({"zarr3": true, "v1": true}),
        json!({"ocdbt": false}),
        json!({"ocdbt": false, "zarr3": true}),
        json!({"zarr3": true, "chunk_byte_size": 2, "ocdbt_target_data_file_size": 0}),
    ];
    let orbax = orbax.into_iter().map(|options| Layout::from_name("orbax", options).unwrap());
    [Layout::default()].into_iter().chain(orbax).collect()
}

fn in_layout(layout: &Layout) -> SaveOptions {
    SaveOptions { layout: layout.clone(), ..options() }
}

fn cut_strategy() -> impl Strategy<Value = Cut> {
    prop::collection::vec((1..9_u64, 1..4_u64, 1..3_u64), 0..4).prop_map(|axes| Cut {
        shape: axes.iter().map(|axis| axis.0).collect(),
        chunk: axes.iter().map(|axis| axis.1).collect(),
        boxes: axes.iter().map(|axis| axis.2).collect(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]
    #[test]
    fn sharded_arrays_load_as_saved(
        cuts in prop::collection::vec(cut_strategy(), 1..4),
        count in 1..4_usize,
        slice in any::<prop::sample::Index>(),
    ) {
        for layout in layouts() {
            let folder = tempfile::tempdir().unwrap();
            let target = folder.path().join("checkpoint");
            let trees: Vec<Tree<Leaf>> = (0..count).map(|rank| tree(&layout, &cuts, rank, count)).collect();
            save_by(count, &target, &trees, &in_layout(&layout)).unwrap();
            let expected = bytes_of(&tree(&layout, &cuts, 0, 1));
            let loaded: Tree<Leaf> = regrow::load(&target).unwrap();
            prop_assert_eq!(bytes_of(&loaded), expected, "{:?}", layout);
            let verified = regrow::verify(&target).unwrap();
            prop_assert!(verified.is_ok(), "{:?} {:?}", layout, verified);
            // A box of one array, across any chunks.
            let checkpoint = regrow::open(&target).unwrap();
            let cut = slice.get(&cuts);
            let at = cuts.iter().position(|other| std::ptr::eq(other, cut)).unwrap();
            let starts: Vec<u64> = cut.shape.iter().map(|dim| dim / 3).collect();
            let lens: Vec<u64> = cut.shape.iter().zip(&starts).map(|(dim, start)| dim - start).collect();
            let region = Region::new(starts, lens).unwrap();
            let mut wanted = vec![0; region.len_elements() as usize * 2];
            cut.whole().copy_region_c_order(&region, &mut wanted).unwrap();
            let is_it = |(path, _): (KeyPath, _)| path.to_string() == format!("cut_{at}");
            let leaf = checkpoint.tree().iter().position(is_it).unwrap();
            let found = checkpoint.region(leaf, &region).unwrap();
            prop_assert_eq!(&found.to_c_order().unwrap()[..], &wanted[..]);
        }
    }
}

fn refused(layout: &Layout, trees: &[Tree<Leaf>]) -> Error {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("checkpoint");
    let error = save_by(trees.len(), &target, trees, &in_layout(layout)).unwrap_err();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "something was left");
    error
}

#[test]
fn holes_and_overlaps_are_named() {
    let (cut, other) = (rows(3), rows(4));
    let of = |array: Array| dict([("w".to_owned(), array)]);
    for layout in layouts() {
        let is_cut_further = matches!(&layout, Layout::Orbax(orbax) if orbax.chunk_byte_size.is_some());
        let check = |trees: [Tree<Leaf>; 2], whole: &str, part: &str| {
            let error = refused(&layout, &trees);
            let expected = if is_cut_further { part } else { whole };
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{layout:?}: {error}");
            assert!(error.to_string().contains(expected), "{layout:?}: {error}");
        };
        check(
            [of(cut.held_by(0, 2)), of(cut.held_by(0, 2))],
            "have both written [0:2,0:3] of w",
            "have both written [0:1,0:1] of w",
        );
        check(
            [of(cut.held_by(0, 3)), of(cut.held_by(1, 3))],
            "no process has written [2:4,0:3] of w",
            "no process has written [2:3,0:1] of w",
        );
        let unknown = "process 0 does not know";
        check([of(cut.held_by(0, 2)), of(other.held_by(1, 2))], unknown, unknown);
    }
}

#[test]
fn several_processes_save_into_a_bucket() {
    let cuts = [rows(3), Cut { shape: vec![70, 30], chunk: vec![40, 30], boxes: vec![1, 1] }];
    for (at, layout) in layouts().into_iter().enumerate() {
        let target = format!("memory://shards/checkpoint_{at}");
        let trees: Vec<Tree<Leaf>> = (0..3).map(|rank| tree(&layout, &cuts, rank, 3)).collect();
        save_by(3, &*target, &trees, &in_layout(&layout)).unwrap();
        let loaded: Tree<Leaf> = regrow::load(&*target).unwrap();
        assert_eq!(bytes_of(&loaded), bytes_of(&tree(&layout, &cuts, 0, 1)), "{layout:?}");
        assert!(regrow::verify(&*target).unwrap().is_ok(), "{layout:?}");
        let entries = target.to_location().unwrap().entries().unwrap();
        let share = entries.iter().find(|entry| entry.name.to_string_lossy().contains("share_of"));
        assert!(share.is_none(), "{layout:?}: {share:?}");
    }
}

#[test]
fn a_process_without_shards_is_named() {
    for layout in layouts() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("checkpoint").to_location().unwrap();
        let options = in_layout(&layout);
        let monitor = Monitor::new();
        let publish = PublishOptions { durable: false, ..PublishOptions::of_new(&monitor) };
        let own = at.publish_folder(publish).unwrap();
        let tree = dict([("w".to_owned(), rows(3).held_by(0, 2))]);
        let writers = layout.format().roles().many_writers.unwrap();
        writers.write_share(&tree, WriterRank { rank: 0, count: 2 }, &*own, &options).unwrap();
        let error = writers.merge(&tree, &[0, 1], &*own, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{layout:?}: {error}");
        assert!(error.to_string().contains("process_1"), "{layout:?}: {error}");
    }
}

fn names_below(folder: &Path) -> Vec<String> {
    let name = |file: PathBuf| file.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
    regrow_testkit::files_below(folder).unwrap().into_iter().map(name).collect()
}

/// As [`rows`], but with chunks too large for a node of a database; and what Orbax writes
/// `array_metadatas` of.
fn jax_tree(rank: usize) -> Tree<Leaf> {
    let large = Cut { shape: vec![64, 64], chunk: vec![32, 64], boxes: vec![1, 1] };
    let mut tree = dict([("w".to_owned(), large.held_by(rank, 2))]);
    tree.leaves_mut().iter_mut().for_each(|leaf| leaf.kind = LeafKind::JaxArray);
    tree
}

#[test]
fn each_process_writes_orbax_files_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let saved = |options: serde_json::Value| {
        let name = format!("{}", options).replace(|sign: char| !sign.is_alphanumeric(), "_");
        let target = folder.path().join(name);
        let layout = Layout::from_name("orbax", options).unwrap();
        let options = SaveOptions { compression: Some(Compression::None), ..in_layout(&layout) };
        save_by(2, &target, &[jax_tree(0), jax_tree(1)], &options).unwrap();
        (names_below(&target), target)
    };
    let documents = [
        "_CHECKPOINT_METADATA",
        "_METADATA",
        "_sharding",
        "array_metadatas/process_0",
        "array_metadatas/process_1",
        "commit_success.txt",
    ];
    let others = |files: &[String]| -> Vec<String> {
        assert!(documents.iter().all(|document| files.iter().any(|file| file == document)), "{files:?}");
        files.iter().filter(|file| !documents.contains(&file.as_str())).cloned().collect()
    };

    let (files, target) = saved(json!({}));
    let data_files = |folder: &str| files.iter().filter(|file| file.starts_with(folder)).count();
    let databases: Vec<String> = others(&files).into_iter().filter(|file| !file.contains("d/")).collect();
    assert_eq!(
        databases,
        ["manifest.ocdbt", "ocdbt.process_0/manifest.ocdbt", "ocdbt.process_1/manifest.ocdbt"]
    );
    assert_eq!(["d/", "ocdbt.process_0/d/", "ocdbt.process_1/d/"].map(data_files), [1, 2, 2]);
    let metadatas =
        |process: u32| fs::read(target.join(format!("array_metadatas/process_{process}"))).unwrap();
    assert_eq!(metadatas(0), metadatas(1));
    let metadatas: serde_json::Value = serde_json::from_slice(&metadatas(0)).unwrap();
    let expected = json!({
        "param_name": "w", "write_shape": [32, 64], "chunk_shape": [32, 64], "ext_metadata": null
    });
    assert_eq!(metadatas["array_metadatas"][0]["array_metadata"], expected);

    let (files, _) = saved(json!({"ocdbt": false}));
    assert_eq!(others(&files), ["w/.zarray", "w/0.0", "w/1.0"]);
    let (files, _) = saved(json!({"ocdbt": false, "zarr3": true, "chunk_byte_size": 4096}));
    assert_eq!(others(&files), ["w/c/0/0", "w/c/1/0", "w/zarr.json"]);
}

#[test]
fn an_overwrite_replaces_all_parts_and_keeps_foreign_files() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("checkpoint");
    let over = SaveOptions { overwrite: true, ..options() };
    for count in [3, 2, 1] {
        let trees: Vec<Tree<Leaf>> =
            (0..count).map(|rank| tree(&Layout::default(), &[rows(3)], rank, count)).collect();
        save_by(count, &target, &trees, &over).unwrap();
        assert_eq!(
            bytes_of(&regrow::load(&target).unwrap()),
            bytes_of(&tree(&Layout::default(), &[rows(3)], 0, 1))
        );
    }
    fs::remove_file(target.join("regrow.json")).unwrap();
    save_by(1, &target, &[tree(&Layout::default(), &[rows(3)], 0, 1)], &over).unwrap();
    fs::write(target.join("notes.txt"), "mine").unwrap();
    let error = save_by(1, &target, &[tree(&Layout::default(), &[rows(3)], 0, 1)], &over).unwrap_err();
    assert!(error.to_string().contains("notes.txt"), "{error}");
}

#[test]
fn each_process_links_unchanged_shards() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two, three) = (folder.path().join("1"), folder.path().join("2"), folder.path().join("3"));
    let large = Cut { shape: vec![512, 512], chunk: vec![256, 256], boxes: vec![1, 1] };
    let trees = |step: i16| -> Vec<Tree<Leaf>> {
        let step = Array::new(Dtype::Int16, Shape::scalar(), step.to_le_bytes().to_vec().into()).unwrap();
        (0..2)
            .map(|rank| dict([("step".to_owned(), step.clone()), ("w".to_owned(), large.held_by(rank, 2))]))
            .collect()
    };
    let with_base = |base: &Path| SaveOptions { base: Some(base.to_owned().into()), ..options() };
    save_by(2, &one, &trees(1), &options()).unwrap();
    save_by(2, &two, &trees(2), &with_base(&one)).unwrap();
    save_by(2, &three, &trees(3), &with_base(&two)).unwrap();
    let links = |folder: &Path| {
        use std::os::unix::fs::MetadataExt;
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
        files.filter(|file| file.nlink() > 1 && file.len() > 100_000).count()
    };
    assert_eq!(links(&three), 2, "one file of each process");
    fs::remove_dir_all(&one).unwrap();
    fs::remove_dir_all(&two).unwrap();
    let loaded: Tree<Leaf> = regrow::load(&three).unwrap();
    assert_eq!(bytes_of(&loaded)["w"].1, large.whole().to_c_order().unwrap());
    assert_eq!(bytes_of(&loaded)["step"].1, 3_i16.to_le_bytes());
}

#[test]
fn one_process_saves_its_shards_in_every_layout() {
    let cuts = [rows(3), Cut { shape: vec![7], chunk: vec![3], boxes: vec![1] }];
    for (layout, end) in crate::common::layouts() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join(format!("checkpoint{end}"));
        let options = SaveOptions { layout: layout.clone(), ..options() };
        let tree = dict(cuts.iter().enumerate().map(|(at, cut)| (format!("cut_{at}"), cut.held_by(0, 1))));
        let expected = bytes_of(&tree);
        regrow::save_with(&target, &tree, &options).unwrap_or_else(|error| panic!("{layout:?}: {error}"));
        let loaded: Tree<Leaf> = regrow::load(&target).unwrap();
        assert_eq!(bytes_of(&loaded), expected, "{layout:?}");
        let half = dict([("w".to_owned(), cuts[0].held_by(0, 2))]);
        let path = folder.path().join(format!("half{end}"));
        let error = regrow::save_with(&path, &half, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{layout:?}: {error}");
        assert!(!path.exists());
    }
}
