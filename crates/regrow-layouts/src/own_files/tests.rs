//! A user's files keep a checkpoint from being replaced; a checkpoint's own files do not.

use std::fs;
use std::path::Path;

use super::*;
use regrow_base::error::ErrorKind;
use regrow_storage::NewFolder;
use regrow_storage::local::Staged;

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn save(target: &Path, overwrite: bool, content: &str) -> Result<()> {
    tell_storage();
    let staged = Staged::of_folder(target, overwrite)?;
    staged.write("_METADATA", content.as_bytes())?;
    staged.write("d/data", content.as_bytes())?;
    staged.commit()
}

fn saved(target: &Path) -> String {
    let content = fs::read_to_string(target.join("_METADATA")).unwrap();
    assert_eq!(fs::read_to_string(target.join("d/data")).unwrap(), content);
    content
}

fn foreign_files_in(folder: &Path) -> Vec<String> {
    tell_storage();
    regrow_storage::foreign_files_in(&Location::local(folder)).unwrap()
}

#[test]
fn what_is_beside_a_checkpoint_is_told_from_what_is_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    put("_METADATA", "{\"tree_metadata\": {}, \"what\": \"an Orbax checkpoint\"}");
    for own in ["manifest.0123456789abcdef", ".nfs0001", "x.orbax-checkpoint-tmp-7"] {
        put(own, "...");
    }
    let strangers = || foreign_files_in(folder.path());
    assert_eq!(strangers(), Vec::<String>::new());
    for stranger in ["manifest.0123", "manifest.not_hexadecimal_", "model.safetensors", "a.npy"] {
        put(stranger, "...");
        assert_eq!(strangers(), [stranger]);
        fs::remove_file(folder.path().join(stranger)).unwrap();
    }
    // `_METADATA` says that the checkpoint had a `regrow.json`, which is lost. So
    // `model.safetensors` is a data file of regrow.
    put("_METADATA", "{\"custom_metadata\": {\"beside_regrow_json\": true}}");
    put("model.safetensors", "...");
    assert_eq!(strangers(), Vec::<String>::new());
}

fn part(folder: &Path, has_npy: bool) -> bool {
    let top = tempfile::tempdir().unwrap();
    if has_npy {
        fs::write(top.path().join("regrow-structure.json"), "{}").unwrap();
    }
    let top = Location::local(top.path());
    let names = formats().map(|format| format.file_names());
    let own: Vec<_> = names.filter_map(|names| Some(names.own_in?(&top, false))).collect();
    is_part(&Location::local(folder), &own, DEPTH_MAX).unwrap()
}

#[test]
fn a_folder_belongs_only_if_all_in_it_does() {
    let root = tempfile::tempdir().unwrap();
    let folder = |files: &[&str]| {
        let folder = root.path().join(format!("case{}", fs::read_dir(root.path()).unwrap().count()));
        fs::create_dir(&folder).unwrap();
        for file in files {
            fs::create_dir_all(folder.join(file).parent().unwrap()).unwrap();
            fs::write(folder.join(file), "x").unwrap();
        }
        folder
    };
    assert!(part(&folder(&[]), false));
    assert!(part(&folder(&["metadata"]), false));
    let named = folder(&[]);
    fs::write(named.join(named.file_name().unwrap()), "x").unwrap();
    assert!(part(&named, false));
    assert!(part(&folder(&[".zarray", "thesis.txt"]), false));
    assert!(part(&folder(&["a.npy", "b/c.npy"]), true));
    for (files, has_npy) in [
        (&["thesis.txt"][..], false),
        (&["metadata", "thesis.txt"], false),
        (&["a.npy"], false),
        (&["a.npy", "thesis.txt"], true),
        (&["a/b/thesis.txt"], true),
    ] {
        assert!(!part(&folder(files), has_npy), "{files:?} {has_npy}");
    }
    let linked = folder(&[]);
    std::os::unix::fs::symlink("/etc/hostname", linked.join("metadata")).unwrap();
    assert!(!part(&linked, false));
    let linked = folder(&[]);
    std::os::unix::fs::symlink("/tmp", linked.join("inner")).unwrap();
    assert!(!part(&linked, false));
    // The greatest depth that the search reaches, and one level more.
    for (depth, belongs) in [(DEPTH_MAX, true), (DEPTH_MAX + 1, false)] {
        let top = folder(&[]);
        fs::create_dir_all(top.join(vec!["a"; depth].join("/"))).unwrap();
        assert_eq!(part(&top, false), belongs, "{depth}");
    }
}

#[test]
fn long_documents_are_not_read() {
    let root = tempfile::tempdir().unwrap();
    let file = Location::local(root.path().join("x"));
    assert_eq!(read_short(&file, 10), None);
    for (len, is_read) in [(10, true), (11, false)] {
        fs::write(root.path().join("x"), vec![b'x'; len]).unwrap();
        assert_eq!(read_short(&file, 10).is_some(), is_read, "{len}");
    }
}

#[test]
fn every_marker_makes_a_folder_replaceable() {
    let root = tempfile::tempdir().unwrap();
    for marker in checkpoint_markers() {
        let target = root.path().join(format!("with {marker}"));
        fs::create_dir(&target).unwrap();
        fs::write(target.join(marker), b"").unwrap();
        save(&target, true, marker).unwrap();
        assert_eq!(saved(&target), *marker);
    }
}

#[test]
fn folders_that_only_look_like_checkpoints_are_kept() {
    let root = tempfile::tempdir().unwrap();
    for (name, is_folder) in
        [("checkpoint", true), ("checkpoint", false), ("zarr.json", false), ("_METADATA", true)]
    {
        let target = root.path().join(format!("{name} {is_folder}"));
        fs::create_dir(&target).unwrap();
        match is_folder {
            true => fs::create_dir(target.join(name)).unwrap(),
            false => fs::write(target.join(name), b"{}").unwrap(),
        }
        fs::write(target.join("thesis.txt"), b"...").unwrap();
        let error = Staged::of_folder(&target, true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}");
        assert!(target.join("thesis.txt").is_file());
    }
}

#[test]
fn what_a_user_has_put_beside_a_checkpoint_keeps_it() {
    let root = tempfile::tempdir().unwrap();
    for (stranger, is_folder) in [
        ("notes.txt", false),
        ("tokenizer.json", false),
        ("config.yaml", false),
        (".hidden", false),
        ("manifest.txt", false),
        ("logs", true),
        ("wandb/run/files", true),
    ] {
        for marker in checkpoint_markers() {
            let target = root.path().join(format!("{} {marker}", stranger.replace('/', " ")));
            fs::create_dir(&target).unwrap();
            fs::write(target.join(marker), b"").unwrap();
            let stranger = target.join(stranger);
            let stranger = if is_folder { stranger.join("events") } else { stranger };
            fs::create_dir_all(stranger.parent().unwrap()).unwrap();
            fs::write(&stranger, b"precious").unwrap();
            let error = save(&target, true, "x").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            let first = stranger.strip_prefix(&target).unwrap().iter().next().unwrap();
            assert!(error.to_string().contains(first.to_str().unwrap()), "{error}");
            assert_eq!(fs::read(&stranger).unwrap(), b"precious");
        }
    }
}

#[test]
fn arrays_of_a_users_own_beside_a_checkpoint_keep_it() {
    let root = tempfile::tempdir().unwrap();
    let put = |path: &Path| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"precious").unwrap();
    };
    let listed = br#"{"data_files":[{"name":"model.safetensors"}],"files":[{"name":"_METADATA"}]}"#;
    for (case, marker, content, strangers) in [
        (
            "listed",
            "regrow.json",
            &listed[..],
            &["lora.safetensors", "model-00001-of-00002.safetensors", "emb.npy", "d/mine", "emb/emb.npy"][..],
        ),
        ("unlisted", "regrow.json", b"{", &["lora.safetensors", "model_b.safetensors", "emb.npy"]),
        ("orbax", "_METADATA", b"{}", &["lora.safetensors", "model.safetensors", "emb.npy", "emb/emb.npy"]),
        ("npy", "regrow-structure.json", b"{}", &["lora.safetensors", "model.safetensors", "d/mine"]),
    ] {
        for stranger in strangers {
            let target = root.path().join(case).join(stranger.replace('/', " "));
            put(&target.join(stranger));
            fs::write(target.join(marker), content).unwrap();
            let error = save(&target, true, "x").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{case} {stranger}");
            let first = stranger.split('/').next().unwrap();
            assert!(error.to_string().contains(first), "{case} {stranger}: {error}");
            assert_eq!(fs::read(target.join(stranger)).unwrap(), b"precious");
        }
    }
    for (case, marker, content, own) in [
        ("listed", "regrow.json", &listed[..], &["model.safetensors", "_METADATA"][..]),
        ("database", "regrow.json", &listed[..], &["manifest.ocdbt", "d/0123"]),
        ("unlisted", "regrow.json", b"{", &["model.safetensors", "model-00001-of-00002.safetensors", "d/1"]),
        ("orbax", "_METADATA", b"{}", &["manifest.ocdbt", "d/0123", "array_metadatas/process_0"]),
        ("npy", "regrow-structure.json", b"{}", &["emb.npy", "emb/emb.npy", "d/x.npy"]),
    ] {
        let target = root.path().join("own").join(case);
        own.iter().for_each(|name| put(&target.join(name)));
        fs::write(target.join(marker), content).unwrap();
        save(&target, true, "x").unwrap();
        assert_eq!(saved(&target), "x", "{case}");
    }
}

#[test]
fn a_folder_of_safetensors_is_replaced_if_it_is_one_model() {
    let root = tempfile::tempdir().unwrap();
    for (case, files, is_one) in [
        ("one", &["any.safetensors"][..], true),
        ("shards", &["m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"], true),
        ("indexed", &["model-00001-of-00001.safetensors", "model.safetensors.index.json"], true),
        ("another", &["model.safetensors", "lora.safetensors"], false),
        ("both", &["model-00001-of-00001.safetensors", "lora-00001-of-00001.safetensors"], false),
        ("more", &["model.safetensors", "tokenizer.json"], false),
    ] {
        let target = root.path().join(case);
        fs::create_dir(&target).unwrap();
        files.iter().for_each(|name| fs::write(target.join(name), b"x").unwrap());
        assert_eq!(save(&target, true, "x").is_ok(), is_one, "{case}");
        assert!(is_one || names(&target).len() == files.len());
    }
}

#[test]
fn nothing_of_any_checkpoint_in_the_fixtures_is_a_stranger_to_it() {
    let mut folders = vec![regrow_testkit::fixtures()];
    let mut checked = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            // Files of killed writers are no complete checkpoints.
            if entry.file_type().unwrap().is_dir() && entry.file_name() != "left_behind" {
                folders.push(entry.path());
            }
        }
        let is_marked = |marker: &&str| folder.join(marker).is_file();
        if checkpoint_markers().iter().any(is_marked) {
            checked += 1;
            let mut strangers = foreign_files_in(&folder);
            // The script of the fixtures writes `expected.json` beside each checkpoint.
            strangers.retain(|name| name != "expected.json");
            assert_eq!(strangers, [""; 0], "{}", folder.display());
        }
    }
    assert!(checked > 200, "{checked}");
}
