//! Targets of saves, in every layout: a target that a save accepts opens again, and every refusal
//! comes before any write.

use std::fs;
use std::path::{Path, PathBuf};

use regrow::array::{Array, Dtype, Shape};
use regrow::engine::{AsyncOptions, AsyncSaver, Layout, load, save_async_with};
use regrow::location::ToLocation as _;
use regrow::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};
use regrow::{
    ConvertOptions, Error, ErrorKind, LoadOptions, OpenOptions, SaveOptions, VerifyOptions, convert, open,
    open_with, save, save_with, verify, verify_with,
};

/// What every layout holds: an array, in a dict.
fn tree() -> Tree<Leaf> {
    let shape = Shape::new(vec![3]).unwrap();
    let array = Array::new(Dtype::Float32, shape, vec![7; 12].into()).unwrap();
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("a"), Leaf::array(array)).unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

/// Every layout, and how the names of its files end.
fn layouts() -> Vec<(Layout, &'static str)> {
    let suffix = |name: &str| match name {
        "safetensors" => ".safetensors",
        "flax" => ".msgpack",
        "equinox" => ".eqx",
        "npy" => ".npz",
        _ => "",
    };
    // A TRAK store is saved as a tree of its own kind.
    let names = Layout::NAMES.into_iter().filter(|&name| name != "trak");
    names.map(|name| (Layout::from_name(name, serde_json::json!({})).unwrap(), suffix(name))).collect()
}

fn options(layout: &Layout, overwrite: bool) -> SaveOptions {
    SaveOptions { layout: layout.clone(), overwrite, not_durable: true, ..SaveOptions::default() }
}

/// Everything below a folder.
fn listing(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path.clone());
            }
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn every_accepted_target_name_opens_again() {
    let long = |len: usize| "n".repeat(len);
    let stems = [
        "plain".to_owned(),
        "run.orbax-checkpoint-tmp".to_owned(),
        "run.orbax-checkpoint-tmp-5".to_owned(),
        "a.orbax-checkpoint-tmp-12-0123456789abcdef".to_owned(),
        "gs:".to_owned(),
        "with space and ü🦀".to_owned(),
        ".hidden".to_owned(),
        "7".to_owned(),
        "step_7".to_owned(),
        "~".to_owned(),
        "a\nb".to_owned(),
        long(190),
        long(214),
        "ü".repeat(119),
        long(243),
    ];
    for (layout, suffix) in layouts() {
        for stem in &stems {
            for overwrite in [false, true] {
                let root = tempfile::tempdir().unwrap();
                let target = root.path().join(format!("{stem}{suffix}"));
                let context = format!("{} at {target:?}", layout.name());
                match save_with(&target, &tree(), &options(&layout, overwrite)) {
                    Ok(_) => {
                        let found = load(&target).unwrap_or_else(|error| panic!("{context}: {error}"));
                        assert_eq!(found.len(), 1, "{context}");
                        assert!(verify(&target).unwrap().is_ok(), "{context}");
                        save_with(&target, &tree(), &options(&layout, true)).unwrap();
                        let left = listing(root.path());
                        let is_left = |path: &PathBuf| {
                            let name = path.strip_prefix(root.path()).unwrap().to_string_lossy();
                            !stem.contains("-tmp") && name.contains(".orbax-checkpoint-tmp")
                        };
                        assert!(!left.iter().any(is_left), "{context}: {left:?}");
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{context}: {error}");
                        assert!(stem.contains("-tmp"), "{context}: {error}");
                        assert!(listing(root.path()).is_empty(), "{context}");
                    }
                }
            }
        }
    }
}

#[test]
fn nothing_is_saved_inside_a_checkpoint() {
    let root = tempfile::tempdir().unwrap();
    let outer = root.path().join("ckpt");
    save(&outer, &tree()).unwrap();
    let before = listing(&outer);
    let inside = ["new", "d/new", "array_metadatas/a/b"].map(|name| outer.join(name));
    for (layout, suffix) in layouts() {
        for place in &inside {
            for overwrite in [false, true] {
                let mut name = place.clone().into_os_string();
                name.push(suffix);
                let error =
                    save_with(PathBuf::from(name), &tree(), &options(&layout, overwrite)).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{}: {error}", layout.name());
                assert!(error.to_string().contains("inside a checkpoint"), "{error}");
                assert_eq!(listing(&outer), before, "{}", layout.name());
            }
        }
        assert!(verify(&outer).unwrap().is_ok());
    }
    // Beside it, and in what Orbax has not committed yet, is another matter.
    save(root.path().join("beside"), &tree()).unwrap();
    let step = root.path().join("1.orbax-checkpoint-tmp");
    fs::create_dir(&step).unwrap();
    fs::write(step.join("_CHECKPOINT_METADATA"), b"{}").unwrap();
    save(step.join("item"), &tree()).unwrap();
}

#[test]
fn an_overwrite_refuses_a_folder_with_files_of_users() {
    for (layout, suffix) in layouts() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join(format!("ckpt{suffix}"));
        save_with(&target, &tree(), &options(&layout, false)).unwrap();
        if !target.is_dir() {
            continue;
        }
        let notes = target.join("notes.txt");
        fs::write(&notes, b"precious").unwrap();
        let before = listing(root.path());
        let error = save_with(&target, &tree(), &options(&layout, true)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{}: {error}", layout.name());
        assert!(error.to_string().contains("notes.txt"), "{error}");
        assert_eq!(listing(root.path()), before);
        fs::remove_file(notes).unwrap();
        save_with(&target, &tree(), &options(&layout, true)).unwrap();
    }
}

#[test]
fn unknown_addresses_are_refused_by_every_call() {
    let root = tempfile::tempdir().unwrap();
    let sound = root.path().join("sound");
    save(&sound, &tree()).unwrap();
    let here = fs::read_dir(".").unwrap().count();
    for address in ["gs:/bucket/x", "az:/c/x.npz", "hdfs://host/x.safetensors", "file://host/x", "x+y://z"] {
        let mut refused: Vec<(String, Error)> = Vec::new();
        for (layout, _) in layouts() {
            let options = options(&layout, true);
            let error = save_with(address, &tree(), &options).unwrap_err();
            refused.push((format!("save {}", layout.name()), error));
            let background = AsyncOptions { save: options.clone(), ..AsyncOptions::default() };
            refused
                .push(("save_async".to_owned(), save_async_with(address, &tree(), &background).unwrap_err()));
            let saver = AsyncSaver::new();
            refused.push(("AsyncSaver".to_owned(), saver.save(address, &tree(), &background).unwrap_err()));
            let convert_options = ConvertOptions { save: options, ..ConvertOptions::default() };
            refused.push(("convert to".to_owned(), convert(&sound, address, &convert_options).unwrap_err()));
            let plan = open(&sound).unwrap().plan_convert(&convert_options).unwrap();
            refused.push(("dry run".to_owned(), plan.check(address, &convert_options).unwrap_err()));
            refused
                .push(("convert from".to_owned(), convert(address, &sound, &convert_options).unwrap_err()));
        }
        refused.push(("base".to_owned(), address.to_location().unwrap_err()));
        refused.push(("open".to_owned(), open(address).unwrap_err()));
        refused.push(("open_with".to_owned(), open_with(address, &OpenOptions::default()).unwrap_err()));
        refused.push(("load".to_owned(), load(address).unwrap_err()));
        let loaded = regrow::engine::load_with(address, &LoadOptions::default());
        refused.push(("load_with".to_owned(), loaded.unwrap_err()));
        refused.push(("verify".to_owned(), verify(address).unwrap_err()));
        refused
            .push(("verify_with".to_owned(), verify_with(address, &VerifyOptions::default()).unwrap_err()));
        for (what, error) in refused {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{what}: {error}");
            let scheme = format!("{}://", address.split(':').next().unwrap());
            assert!(error.to_string().contains(&scheme), "{what}: {error}");
        }
    }
    assert_eq!(fs::read_dir(".").unwrap().count(), here, "nothing was made in the working folder");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    // A folder of such a name can be had.
    let local = root.path().join("gs:/bucket/x");
    save(&local, &tree()).unwrap();
    assert_eq!(load(&local).unwrap().len(), 1);
}

/// What a checkpoint has lost does not keep it from being replaced: a save after a half-finished
/// copy goes through.
#[test]
fn a_checkpoint_that_has_lost_its_record_can_be_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let over = SaveOptions { overwrite: true, ..SaveOptions::default() };
    regrow::save_with(&path, &tree(), &over).unwrap();
    fs::remove_file(path.join("regrow.json")).unwrap();
    regrow::save_with(&path, &tree(), &over).unwrap();
    assert!(regrow::verify(&path).unwrap().is_ok());
    // A user's own file keeps it all the same.
    fs::remove_file(path.join("regrow.json")).unwrap();
    fs::write(path.join("lora.safetensors"), b"mine").unwrap();
    assert_eq!(regrow::save_with(&path, &tree(), &over).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(fs::read(path.join("lora.safetensors")).unwrap(), b"mine");
}
