//! Several items in one checkpoint. All items are committed together or not at all, and each item
//! equals a separate save.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use regrow::array::{Array, Dtype, Shape};
use regrow::coordination::{Folder, Job};
use regrow::engine::{AsyncOptions, AsyncSaver, BeforeCommit, ItemsOptions, ItemsSave, Layout, WHOLE};
use regrow::location::{Location, ToLocation};
use regrow::tree::{Leaf, Tree};
use regrow::{ErrorKind, OpenOptions, Result, SaveOptions};
use serde_json::json;

mod damage;
mod whole;

use crate::common::bytes_of;
use crate::common::cuts::{Cut, dict};

/// Three arrays.
fn tree(fill: u8) -> Tree<Leaf> {
    let array = |dims: &[u64]| {
        let shape = Shape::new(dims.to_vec()).unwrap();
        let len = shape.len_bytes(Dtype::Float32).unwrap() as usize;
        Array::new(
            Dtype::Float32,
            shape,
            (0..len).map(|at| (at as u8 & 0x3f) ^ fill).collect::<Vec<_>>().into(),
        )
    };
    let arrays = [("bias", [7].as_slice()), ("kernel", &[70, 150]), ("scale", &[])];
    dict(arrays.map(|(name, dims)| (name.to_owned(), array(dims).unwrap())))
}

fn in_layout(name: &str, options: serde_json::Value) -> SaveOptions {
    SaveOptions { layout: Layout::from_name(name, options).unwrap(), ..SaveOptions::default() }
}

/// The layouts that items can be in, and what reads them.
fn layouts() -> Vec<(SaveOptions, &'static str)> {
    vec![
        (SaveOptions::default(), "regrow"),
        (in_layout("orbax", json!(null)), "orbax"),
        (in_layout("orbax", json!({"ocdbt": false})), "orbax"),
        (in_layout("orbax", json!({"zarr3": true, "v1": true})), "orbax"),
        (in_layout("safetensors", json!(null)), "safetensors"),
        (in_layout("safetensors", json!({"one_file": true})), "safetensors"),
        (in_layout("flax", json!(null)), "flax"),
        (in_layout("equinox", json!({"trailer": true})), "equinox"),
        (in_layout("npy", json!(null)), "npy"),
        (in_layout("npy", json!({"form": "npz"})), "npy"),
    ]
}

fn begin(at: impl ToLocation) -> Result<ItemsSave> {
    ItemsSave::begin(at, ItemsOptions::default())
}

fn overwriting() -> ItemsOptions {
    ItemsOptions { overwrite: true, ..ItemsOptions::default() }
}

fn item(name: &str) -> OpenOptions {
    OpenOptions { item: Some(name.to_owned()), ..OpenOptions::default() }
}

fn load_item(at: impl ToLocation, name: &str) -> Tree<Leaf> {
    let opened = regrow::open_with(at, &item(name)).unwrap();
    let leaves = (0..opened.tree().len()).map(|leaf| opened.read(leaf).unwrap()).collect();
    opened.tree().with_leaves(leaves).unwrap()
}

fn names_in(at: &Location) -> Vec<String> {
    let entries = at.entries().unwrap();
    let mut names: Vec<String> = entries.into_iter().map(|entry| entry.name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// A place on a disk and one in a bucket.
fn places(test: &str) -> (tempfile::TempDir, [Location; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let bucket = format!("memory://items-{test}/run").to_location().unwrap();
    let local = Location::local(folder.path().join("run"));
    (folder, [local, bucket])
}

#[test]
fn the_suffix_of_an_items_name_does_not_choose_the_form_of_the_item() {
    let (folder, _) = places("suffixes");
    let at = Location::local(folder.path().join("7"));
    let save = begin(&at).unwrap();
    let mut names = Vec::new();
    for suffix in [".npy", ".npz", ".safetensors", ".eqx", ".msgpack", ".data"] {
        for (number, (options, _)) in layouts().iter().enumerate() {
            let name = format!("item_{number}{suffix}");
            save.tree(&name, &tree(number as u8), options).unwrap_or_else(|error| panic!("{name}: {error}"));
            names.push((name, number as u8));
        }
    }
    save.commit().unwrap();
    for (name, fill) in names {
        assert_eq!(bytes_of(&load_item(&at, &name)), bytes_of(&tree(fill)), "{name}");
    }
}

#[test]
fn every_layout_is_an_item_beside_others() {
    let (_folder, places) = places("layouts");
    for place in places {
        let at = place.join("7");
        let save = begin(&at).unwrap();
        for (number, (options, _)) in layouts().iter().enumerate() {
            save.tree(&format!("item_{number}"), &tree(number as u8), options).unwrap();
        }
        save.json("config", &json!({"width": 3, "name": "x"})).unwrap();
        save.metrics(&json!({"loss": 0.5})).unwrap();
        save.file("iterator", "process_0.json", b"{}").unwrap();
        let report = save.commit().unwrap();
        assert_eq!(report.leaf_count, 3 * layouts().len());

        for (number, (_, layout)) in layouts().iter().enumerate() {
            let name = format!("item_{number}");
            let opened = regrow::open_with(&at, &item(&name)).unwrap();
            assert_eq!(opened.description().layout, *layout, "{name}");
            assert_eq!(opened.description().items.len(), layouts().len() + 3);
            let found = bytes_of(&load_item(&at, &name));
            assert_eq!(found, bytes_of(&tree(number as u8)), "{name} in {at}");
            // The item alone, and in the checkpoint of the folder of steps.
            let step = OpenOptions { step: Some(7), ..item(&name) };
            assert_eq!(regrow::open_with(&place, &step).unwrap().description().step, Some(7));
            let whole = regrow::open(&at).unwrap();
            let leaf = whole.find(&format!("{name}/kernel")).unwrap();
            assert_eq!(whole.read(leaf).unwrap().as_array().unwrap().to_c_order().unwrap(), found[1].1);
        }
        let whole = regrow::open(&place).unwrap();
        assert_eq!(whole.description().metrics, Some(json!({"loss": 0.5})));
        assert_eq!(whole.tree().len(), 3 * layouts().len() + 2);
        let report = regrow::verify(&at).unwrap();
        assert!(report.is_ok(), "{:?}", report.findings);
        assert!(!report.has_data_checksums, "Orbax' own files have none");
        let regrow_alone =
            regrow::verify_with(&at, &regrow::VerifyOptions { open: item("item_0"), ..Default::default() });
        assert!(regrow_alone.unwrap().has_data_checksums);
    }
}

#[test]
fn damage_to_an_item_is_found_under_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("1");
    let save = begin(&path).unwrap();
    save.json("config", &json!({"a": 1})).unwrap();
    save.tree("state", &tree(1), &SaveOptions::default()).unwrap();
    save.tree("ema", &tree(1), &in_layout("orbax", json!({"ocdbt": false}))).unwrap();
    save.commit().unwrap();
    let file = path.join("state/model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();
    let report = regrow::verify(&path).unwrap();
    let leaves: Vec<String> =
        report.findings.iter().map(|found| found.error.place().leaf.as_ref().unwrap().to_string()).collect();
    assert_eq!(leaves, ["state/kernel"]);
    assert!(regrow::load::<Tree<Leaf>>(&path).unwrap_err().to_string().contains("state/kernel"));
    fs::write(path.join("ema/kernel/0.0"), b"not a zstd").unwrap();
    let opened = regrow::open(&path).unwrap();
    let error = opened.read(opened.find("ema/kernel").unwrap()).unwrap_err();
    assert_eq!(error.place().leaf.as_ref().unwrap().to_string(), "ema/kernel");
}

#[test]
fn an_uncommitted_save_leaves_no_files() {
    let (_folder, places) = places("dropped");
    for place in places {
        let at = place.join("1");
        let save = begin(&at).unwrap();
        save.tree("state", &tree(1), &SaveOptions::default()).unwrap();
        fs::write(save.folder("own").unwrap().join("x"), b"x").unwrap();
        assert!(regrow::open(&at).is_err());
        drop(save);
        assert!(!at.exists() && !place.exists(), "{at}");

        // An item that fails is not left out: nothing is committed.
        let save = begin(&at).unwrap();
        save.tree("state", &tree(1), &SaveOptions::default()).unwrap();
        let refused = save.tree("other", &tree(1), &in_layout("pytree_data", json!(null)));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(save.commit().unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert!(!at.exists() && !place.exists(), "{at}");
        assert_eq!(begin(&at).unwrap().commit().unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn an_item_name_is_used_once() {
    let folder = tempfile::tempdir().unwrap();
    let begin = || begin(folder.path().join("1")).unwrap();
    let again = |save: &ItemsSave, name: &str| save.json(name, &json!({})).unwrap_err().kind();
    let save = begin();
    // Parts of an item are for its handler, which is named first.
    assert_eq!(again(&begin(), "a/b"), ErrorKind::InvalidArgument);
    save.handler("a", "my.module.Handler");
    save.json("a/b", &json!({})).unwrap();
    save.json("a/c", &json!({})).unwrap();
    for name in ["a", "a/b", "a/b/c", WHOLE] {
        assert_eq!(again(&save, name), ErrorKind::AlreadyExists, "{name}");
    }
    let save = begin();
    save.file("files", "x", b"").unwrap();
    save.file("files", "y/z", b"").unwrap();
    assert_eq!(save.file("files", "x", b"").unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(again(&save, "files"), ErrorKind::AlreadyExists);
    for name in ["../x", "/", "_CHECKPOINT_METADATA", "x.orbax-checkpoint-tmp"] {
        assert_eq!(again(&save, name), ErrorKind::InvalidArgument, "{name}");
    }
    assert_eq!(save.file("ok", "../../x", b"").unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn files_of_handlers_are_part_of_the_checkpoint() {
    let (_folder, places) = places("lent");
    let own = tempfile::tempdir().unwrap();
    fs::create_dir_all(own.path().join("deep/er")).unwrap();
    fs::write(own.path().join("deep/er/file"), vec![7; 1_500_000]).unwrap();
    for place in places {
        let at = place.join("1");
        let save = begin(&at).unwrap();
        let lent = save.folder("custom").unwrap();
        fs::create_dir(lent.join("below")).unwrap();
        fs::write(lent.join("below/data"), b"bytes").unwrap();
        fs::write(lent.join("commit_success.txt"), b"its own").unwrap();
        save.copy_of("copied", own.path()).unwrap();
        save.copy_of("one", &own.path().join("deep/er/file")).unwrap();
        save.handler("custom", "my.module.Handler");
        save.commit().unwrap();
        assert!(!lent.exists(), "{}", lent.display());
        let read = |name: &str| {
            at.join(name)
                .parent()
                .store()
                .get(at.join(name).name_text().as_bytes(), regrow_store::ByteRange::Full)
        };
        assert_eq!(read("custom/below/data").unwrap().unwrap(), "bytes");
        assert_eq!(read("custom/commit_success.txt").unwrap().unwrap(), "its own");
        assert_eq!(read("copied/deep/er/file").unwrap().unwrap(), vec![7; 1_500_000]);
        assert_eq!(read("one/file").unwrap().unwrap(), vec![7; 1_500_000]);
        let about: serde_json::Value =
            serde_json::from_slice(&read("_CHECKPOINT_METADATA").unwrap().unwrap()).unwrap();
        assert_eq!(
            about["item_handlers"],
            json!({"custom": "my.module.Handler", "copied": null, "one": null})
        );

        // A checkpoint of items is replaced as a whole, and not if other files lie beside the
        // items.
        let again = ItemsSave::begin(&at, overwriting()).unwrap();
        again.json("config", &json!({})).unwrap();
        again.commit().unwrap();
        assert_eq!(
            names_in(&at),
            ["_CHECKPOINT_METADATA", "commit_success.txt", "config", "regrow.items.json"],
            "{at}"
        );
        assert_eq!(begin(&at).unwrap_err().kind(), ErrorKind::AlreadyExists);
    }
}

#[test]
fn links_in_the_folder_of_a_handler_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let save = begin(folder.path().join("1")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", save.folder("own").unwrap().join("link")).unwrap();
    let error = save.commit().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("link"), "{error}");
    assert!(!folder.path().join("1").exists());
}

#[test]
fn an_overwrite_refuses_a_folder_with_files_of_users() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("1");
    let save = begin(&path).unwrap();
    save.tree("state", &tree(1), &SaveOptions::default()).unwrap();
    save.file("iterator", "x", b"").unwrap();
    save.commit().unwrap();
    fs::write(path.join("notes.txt"), b"mine").unwrap();
    let error = ItemsSave::begin(&path, overwriting()).unwrap_err();
    assert!(error.to_string().contains("notes.txt"), "{error}");
    assert_eq!(fs::read(path.join("notes.txt")).unwrap(), b"mine");
    assert!(regrow::verify(&path).unwrap().is_ok());
}

#[test]
fn an_unchanged_item_is_linked() {
    let (_folder, places) = places("base");
    for place in places {
        let save = |step: u64, fill: u8, base: Option<u64>| {
            let base = base.map(|base| place.join(base.to_string()));
            let save =
                ItemsSave::begin(place.join(step.to_string()), ItemsOptions { base, ..Default::default() });
            let save = save.unwrap();
            save.tree("frozen", &tree(1), &SaveOptions::default()).unwrap();
            save.tree("state", &tree(fill), &SaveOptions::default()).unwrap();
            save.tree("orbax", &tree(fill), &in_layout("orbax", json!(null))).unwrap();
            save.commit().unwrap()
        };
        let frozen_bytes: u64 = 70 * 150 * 4 + 32;
        assert_eq!(save(1, 2, None).reused_bytes, 0);
        let report = save(2, 3, Some(1));
        assert!((frozen_bytes..frozen_bytes + 10_000).contains(&report.reused_bytes), "{report}");
        // The base may go.
        regrow::remove(place.join("1"), &regrow::RemoveOptions::default()).unwrap();
        assert!(regrow::verify(place.join("2")).unwrap().is_ok());
        assert_eq!(bytes_of(&load_item(place.join("2"), "frozen")), bytes_of(&tree(1)));
        assert_eq!(bytes_of(&load_item(place.join("2"), "state")), bytes_of(&tree(3)));
    }
}

#[test]
fn all_processes_of_a_job_write_their_shards() {
    let cut = || Cut { shape: vec![40, 64], chunk: vec![20, 64], boxes: vec![1, 1] };
    let (_folder, places) = places("job");
    for place in places {
        let at = place.join("1");
        let meet = tempfile::tempdir().unwrap();
        let on_rank = |rank: usize| {
            let service = Folder::new(Location::local(meet.path()), rank, 2).unwrap();
            let options = ItemsOptions { job: Some(Job::new(Arc::new(service))), ..ItemsOptions::default() };
            let save = ItemsSave::begin(&at, options).unwrap();
            let tree = dict([("w".to_owned(), cut().held_by(rank, 2))]);
            save.tree("state", &tree, &SaveOptions::default()).unwrap();
            save.tree("orbax", &tree, &in_layout("orbax", json!(null))).unwrap();
            save.json("config", &json!({"a": 1})).unwrap();
            save.commit().unwrap();

            // Checkpoints that are themselves one item: of a tree, and of files to which each
            // process adds its own.
            let service = Folder::new(Location::local(meet.path()), rank, 2).unwrap();
            let job = Some(Job::new(Arc::new(service)));
            let begin = |name: &str| {
                ItemsSave::begin(place.join(name), ItemsOptions { job: job.clone(), ..Default::default() })
            };
            let save = begin("tree").unwrap();
            save.tree(WHOLE, &tree, &SaveOptions::default()).unwrap();
            save.commit().unwrap();
            let save = begin("files").unwrap();
            fs::write(save.folder(WHOLE).unwrap().join(format!("of_{rank}")), b"x").unwrap();
            save.commit().unwrap();
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| on_rank(1));
            on_rank(0);
            other.join().unwrap();
        });
        let whole: Tree<Leaf> = regrow::engine::load(place.join("tree")).unwrap();
        assert_eq!(bytes_of(&whole)[0].1, cut().whole().to_c_order().unwrap());
        assert!(regrow::verify(place.join("tree")).unwrap().is_ok());
        let of_files = if place.is_folder() && !place.commits_by_marker() { 4 } else { 3 };
        assert_eq!(names_in(&place.join("files")).len(), of_files, "{place}");
        for name in ["state", "orbax"] {
            let found = bytes_of(&load_item(&at, name));
            assert_eq!(found[0].1, cut().whole().to_c_order().unwrap(), "{name} in {at}");
        }
        assert!(regrow::verify(&at).unwrap().is_ok());
        assert_eq!(
            names_in(&at),
            ["_CHECKPOINT_METADATA", "commit_success.txt", "config", "orbax", "regrow.items.json", "state"]
        );
        let of_a_share =
            names_in(&at.join("orbax")).into_iter().filter(|name| name.contains("share")).count();
        assert_eq!(of_a_share, 0);
    }
}

#[test]
fn an_error_of_one_process_ends_all() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("run/1");
    let on_rank = |rank: usize| {
        let service = Folder::new(Location::local(folder.path().join("meet")), rank, 2).unwrap();
        let options = ItemsOptions { job: Some(Job::new(Arc::new(service))), ..ItemsOptions::default() };
        let save = ItemsSave::begin(&at, options)?;
        save.tree("state", &tree(1), &SaveOptions::default())?;
        if rank == 1 {
            save.file("own", "../x", b"")?;
        }
        // Rank 0 does not wait for the other one until its patience ends.
        save.tree("ema", &tree(1), &SaveOptions::default())?;
        save.commit()
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| on_rank(1));
        let first = on_rank(0).unwrap_err();
        assert!(first.kind() != ErrorKind::TimedOut && first.to_string().contains("rank 1"), "{first}");
        assert_eq!(other.join().unwrap().unwrap_err().kind(), ErrorKind::InvalidArgument);
    });
    assert!(!at.exists());
}

#[test]
fn a_background_save_commits_the_items_of_the_caller() {
    let folder = tempfile::tempdir().unwrap();
    let saver = AsyncSaver::new();
    let save = |name: &str, layout: SaveOptions| {
        let items = begin(folder.path().join(name)).unwrap();
        items.json("config", &json!({"a": 1})).unwrap();
        let trees =
            vec![("state".to_owned(), tree(1), SaveOptions::default()), ("b".to_owned(), tree(2), layout)];
        saver.save_items(items, trees, &AsyncOptions::default()).unwrap()
    };
    let report = save("1", in_layout("orbax", json!(null))).wait().unwrap();
    assert_eq!(report.leaf_count, 6);
    assert_eq!(bytes_of(&load_item(folder.path().join("1"), "b")), bytes_of(&tree(2)));
    let failed = save("2", in_layout("pytree_data", json!(null)));
    assert_eq!(failed.wait().unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(!Path::new(&folder.path().join("2")).exists());
    saver.wait().unwrap();
}

#[test]
fn whole_checkpoints_are_converted_and_copied() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("1");
    let save = begin(&path).unwrap();
    save.tree("state", &tree(1), &SaveOptions::default()).unwrap();
    save.tree("ema", &tree(2), &in_layout("orbax", json!(null))).unwrap();
    save.file("iterator", "x", b"1").unwrap();
    save.commit().unwrap();
    let copied = folder.path().join("copied");
    regrow::copy(&path, &copied, &regrow::CopyOptions::default()).unwrap();
    assert_eq!(fs::read(copied.join("iterator/x")).unwrap(), b"1");
    assert_eq!(bytes_of(&load_item(&copied, "ema")), bytes_of(&tree(2)));
    assert!(regrow::verify(&copied).unwrap().is_ok());
    let converted = folder.path().join("converted");
    let report = regrow::convert(&path, &converted, &regrow::ConvertOptions::default()).unwrap();
    assert_eq!(report.losses, []);
    let files = regrow::open(&converted).unwrap().item_files("iterator").unwrap();
    assert_eq!(files, [("x".to_owned(), b"1".as_slice().into())]);
    let rules = regrow::ConvertOptions {
        rename: vec![regrow::engine::Rename::new("^ema/(.*)$", "average/$1").unwrap()],
        ..regrow::ConvertOptions::default()
    };
    let error = regrow::convert(&path, folder.path().join("one_tree"), &rules).unwrap_err();
    assert!(error.to_string().contains("\"iterator\" (files: x) is left out"), "{error}");
    let found = regrow::open(&converted).unwrap();
    assert_eq!(found.tree().len(), 6);
    found.find("ema/kernel").unwrap();
    assert!(regrow::engine::overview(&regrow::open(&path).unwrap()).contains("state/kernel"));
}

#[test]
fn a_background_commit_waits_for_handlers() {
    let folder = tempfile::tempdir().unwrap();
    let saver = AsyncSaver::new();
    let save = |name: &str, fails: bool| {
        let items = begin(folder.path().join(name)).unwrap();
        let (own, at) = (items.folder("own").unwrap(), folder.path().join(name));
        let before_commit = BeforeCommit::new(move || {
            assert!(!at.exists());
            if fails {
                return Err(regrow::Error::new(ErrorKind::Io, "it could not be written"));
            }
            fs::write(own.join("x"), b"late").map_err(|error| regrow::Error::io("cannot write", &own, error))
        });
        let options = AsyncOptions { before_commit: Some(before_commit), ..AsyncOptions::default() };
        let trees = vec![("state".to_owned(), tree(1), SaveOptions::default())];
        saver.save_items(items, trees, &options).unwrap().wait()
    };
    save("1", false).unwrap();
    assert_eq!(fs::read(folder.path().join("1/own/x")).unwrap(), b"late");
    assert_eq!(save("2", true).unwrap_err().kind(), ErrorKind::Io);
    assert!(!folder.path().join("2").exists());
}
