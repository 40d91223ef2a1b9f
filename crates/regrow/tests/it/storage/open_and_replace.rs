//! Which folders are one checkpoint, which files an overwrite may replace, and which names a save
//! accepts. A saved checkpoint opens again. Files of users are not opened as a checkpoint, and are
//! not removed.

use std::fs;
use std::path::{Path, PathBuf};

use regrow::array::{Array, Dtype, Shape};
use regrow::engine::Layout;
use regrow::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};
use regrow::{Error, ErrorKind, SaveOptions, open, save_with};
use regrow_testkit::copy_folder;

fn numbers() -> Leaf {
    Leaf::array(Array::new(Dtype::Float32, Shape::new([2_u64]).unwrap(), vec![1; 8].into()).unwrap())
}

fn tree() -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("w"), numbers()).unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

fn text() -> Tree<Leaf> {
    Tree::single(Leaf::text("text"))
}

fn options(layout: &str) -> SaveOptions {
    SaveOptions {
        layout: Layout::from_name(layout, serde_json::Value::Null).unwrap(),
        not_durable: true,
        casting: regrow::array::Casting::Lossy,
        ..SaveOptions::default()
    }
}

fn over(layout: &str) -> SaveOptions {
    SaveOptions { overwrite: true, ..options(layout) }
}

fn save(path: &Path, layout: &str) {
    save_with(path, &tree(), &options(layout)).unwrap();
}

fn fixture(name: &str) -> PathBuf {
    regrow_testkit::fixtures().join("orbax").join(name).join("ckpt")
}

fn not_a_checkpoint(path: &Path) -> Error {
    let error = open(path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotACheckpoint, "{error}");
    error
}

#[test]
fn a_folder_above_checkpoints_names_them() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    // Beside each other, with arrays in folders: these opened as one tree of what lies in all of
    // them.
    for name in ["md8_files_zarr2", "weird_keys_files", "sd_files_zarr2"] {
        copy_folder(&fixture(name), &path("above/runs").join(name)).unwrap();
        open(path("above/runs").join(name)).unwrap();
    }
    let help = |name: &str| not_a_checkpoint(&path(name)).help_text().unwrap().to_owned();
    for name in ["above", "above/runs"] {
        assert!(help(name).contains("md8_files_zarr2\""), "{}", help(name));
        assert!(help(name).starts_with("open one"));
    }
    // In the default layout, which has a pytree directly below.
    for name in ["best", "last"] {
        save(&path("several").join(name), "regrow");
    }
    assert!(help("several").contains("\"best\", \"last\""), "{}", help("several"));
    // One that is being saved changes nothing.
    fs::create_dir(path("several/next.orbax-checkpoint-tmp-1")).unwrap();
    assert!(help("several").contains("\"best\", \"last\""));
    // One array somewhere in a home.
    fs::create_dir_all(path("home/old/params.w")).unwrap();
    fs::write(path("home/old/params.w/.zarray"), b"{}").unwrap();
    fs::write(path("home/thesis.pdf"), b"%PDF").unwrap();
    not_a_checkpoint(&path("home"));
}

#[test]
fn arrays_alone_are_still_a_checkpoint() {
    let root = tempfile::tempdir().unwrap();
    for name in ["legacy_zarr2_variants", "weird_keys_files", "md8_files_zarr2"] {
        let whole = open(fixture(name)).unwrap();
        let bare = root.path().join(name);
        copy_folder(&fixture(name), &bare).unwrap();
        // What speaks of a pytree shows that one was there: then its loss is an error.
        for file in ["_METADATA", "_CHECKPOINT_METADATA", "commit_success.txt", "_sharding"] {
            let _ = fs::remove_file(bare.join(file));
        }
        let _ = fs::remove_dir_all(bare.join("array_metadatas"));
        let opened = open(&bare).unwrap();
        assert_eq!(opened.description().variant, "folders, no metadata");
        let arrays = whole.tree().leaves().iter().filter(|leaf| leaf.kind.is_array()).count();
        assert!(!opened.tree().is_empty() && opened.tree().len() <= arrays, "{name}");
        fs::write(bare.join("plot.png"), b"").unwrap();
        not_a_checkpoint(&bare);
    }
}

#[test]
fn a_folder_of_several_layouts_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let mix = root.path().join("mix");
    save(&mix.join("a.safetensors"), "safetensors");
    open(&mix).unwrap();
    save(&mix.join("b.msgpack"), "flax");
    let error = not_a_checkpoint(&mix);
    assert_eq!(error.expected_found().unwrap().1, r#""b.msgpack" beside "a.safetensors""#);
    open(mix.join("a.safetensors")).unwrap();
    fs::remove_file(mix.join("a.safetensors")).unwrap();
    save_with(mix.join("c.npy"), &Tree::single(numbers()), &options("npy")).unwrap();
    let error = not_a_checkpoint(&mix);
    assert!(error.help_text().unwrap().contains(r#""b.msgpack", "c.npy""#), "{error}");
    // One pair of files beside safetensors.
    let pair = root.path().join("pair");
    save(&pair.join("a.safetensors"), "safetensors");
    save(&pair.join("model"), "pytree_data");
    assert!(not_a_checkpoint(&pair).expected_found().unwrap().1.contains("model.manifest"));
}

#[test]
fn an_overwrite_refuses_files_that_are_no_checkpoint() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    fs::write(path("thesis.pdf"), b"%PDF-1.7 years of work").unwrap();
    for layout in ["flax", "equinox"] {
        let error = save_with(path("thesis.pdf"), &tree(), &over(layout)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.place().file.as_deref(), Some(path("thesis.pdf").as_path()));
        assert!(error.help_text().unwrap().contains("choose another path"));
    }
    assert_eq!(fs::read(path("thesis.pdf")).unwrap(), b"%PDF-1.7 years of work");
    // A drop-in for a function that replaces any file sets this option.
    let any = SaveOptions { replace_any_file: true, ..over("flax") };
    save_with(path("thesis.pdf"), &tree(), &any).unwrap();

    for (name, layout, old) in [
        ("empty", "flax", &b""[..]),
        ("map", "flax", &[0x81, 0xa1, b'a', 1]),
        ("damaged.msgpack", "flax", b"nothing like it"),
        ("damaged.eqx", "equinox", b"nothing like it"),
        ("damaged.npz", "npy", b"nothing like it"),
        ("damaged.safetensors", "safetensors", b"nothing like it"),
        ("pair.data", "pytree_data", b"nothing like it"),
    ] {
        fs::write(path(name), old).unwrap();
        let target = if layout == "pytree_data" { path("pair") } else { path(name) };
        save_with(&target, &tree(), &over(layout)).unwrap();
        save_with(&target, &tree(), &over(layout)).unwrap();
        open(&target).unwrap();
    }
    for layout in ["flax", "equinox"] {
        save_with(path(layout), &tree(), &options(layout)).unwrap();
        save_with(path(layout), &tree(), &over(layout)).unwrap();
    }
}

#[test]
fn an_overwrite_refuses_a_part_of_a_checkpoint() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    save(&path("ckpt"), "regrow");
    save(&path("arrays"), "npy");
    fs::write(path("ckpt/x.data"), b"").unwrap();
    let data = fs::read_dir(path("ckpt/d")).unwrap().next().unwrap().unwrap().path();
    for (target, layout) in [
        (path("ckpt/regrow.json"), "flax"),
        (path("ckpt/model.safetensors"), "safetensors"),
        (path("ckpt/x"), "pytree_data"),
        (data, "equinox"),
        (path("arrays/w.npy"), "flax"),
    ] {
        let error = save_with(&target, &tree(), &over(layout)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{}", target.display());
        assert!(error.to_string().contains("inside a checkpoint"), "{error}");
        assert!(error.help_text().unwrap().contains("folder of the checkpoint"));
    }
    fs::remove_file(path("ckpt/x.data")).unwrap();
    open(path("ckpt")).unwrap().load(&regrow::LoadOptions::default()).unwrap();
    // A file in a model's folder is no part of a checkpoint that has checks.
    save(&path("hub"), "safetensors");
    save_with(path("hub/model.safetensors"), &tree(), &over("safetensors")).unwrap();
}

#[test]
fn names_that_would_not_open_again_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    for (layout, suffix) in [("flax", ".msgpack"), ("equinox", ".eqx")] {
        let named = path(&format!("named{suffix}"));
        save_with(&named, &text(), &options(layout)).unwrap();
        open(&named).unwrap();
        let error = save_with(path("plain"), &text(), &options(layout)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.help_text().unwrap().contains(suffix), "{error}");
        assert!(!path("plain").exists());
        // What was there stays.
        save(&path(layout), layout);
        save_with(path(layout), &text(), &over(layout)).unwrap_err();
        open(path(layout)).unwrap();
        // Arrays tell.
        save_with(path(&format!("{layout} array")), &Tree::single(numbers()), &options(layout)).unwrap();
        open(path(&format!("{layout} array"))).unwrap();
    }
    for (name, layout) in [("x.eqx", "flax"), ("x.safetensors", "flax"), ("x.safetensors", "equinox")] {
        let error = save_with(path(name), &tree(), &options(layout)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name} {layout}");
        assert!(error.to_string().contains("would be opened in the layout"), "{error}");
    }
    let names: Vec<_> = fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 6, "{names:?}");
}
