//! A checkpoint that is itself one item: files of a handler, a JSON document, or a pytree, with
//! metadata beside the item.

use std::fs;

use regrow::engine::{ItemsOptions, ItemsSave, WHOLE};
use regrow::location::Location;
use regrow::{ErrorKind, Result, SaveOptions};
use regrow_store::StoreExt;
use serde_json::json;

use super::{in_layout, names_in, overwriting, places, tree};
use crate::common::bytes_of;

fn read(at: &Location, name: &str) -> Option<Vec<u8>> {
    let file = at.join(name);
    let found = file.parent().store().get(file.name_text().as_bytes(), regrow_store::ByteRange::Full);
    found.unwrap().map(Into::into)
}

fn about(at: &Location) -> serde_json::Value {
    serde_json::from_slice(&read(at, "_CHECKPOINT_METADATA").unwrap()).unwrap()
}

/// Files of a handler, as the checkpoint itself.
fn save_files(at: &Location, files: &[(&str, &[u8])], options: ItemsOptions) -> Result<regrow::SaveReport> {
    let save = ItemsSave::begin(at, options)?;
    let folder = save.folder(WHOLE)?;
    for (name, bytes) in files {
        fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
        fs::write(folder.join(name), bytes).unwrap();
    }
    save.handler(WHOLE, "my.module.Handler");
    let report = save.commit()?;
    assert!(!folder.exists());
    Ok(report)
}

#[test]
fn a_handler_writes_a_whole_checkpoint() {
    let (_folder, places) = places("whole");
    for place in places {
        let at = place.join("x");
        let custom = json!({"by": "me"}).as_object().unwrap().clone();
        let options = ItemsOptions { custom_metadata: custom, ..ItemsOptions::default() };
        // What a save within has written for itself is not that of the whole.
        let files: [(&str, &[u8]); 4] = [
            ("own.txt", b"1"),
            ("deep/er/x", b"2"),
            ("_CHECKPOINT_METADATA", b"{}"),
            ("commit_success.txt", b""),
        ];
        save_files(&at, &files, options).unwrap();
        assert_eq!(names_in(&at), ["_CHECKPOINT_METADATA", "commit_success.txt", "deep", "own.txt"]);
        assert_eq!(read(&at, "deep/er/x").unwrap(), b"2");
        assert_eq!(about(&at)["item_handlers"], "my.module.Handler");
        assert_eq!(about(&at)["custom_metadata"], json!({"by": "me"}));
        let opened = regrow::open(&at).unwrap();
        assert!(opened.tree().is_empty() && opened.description().variant == "files");
        let notes = opened.description().notes.join("\n");
        assert!(notes.contains("my.module.Handler") && notes.contains("deep/, own.txt"), "{notes}");
        let report = regrow::verify(&at).unwrap();
        assert!(report.is_ok() && report.notes.iter().any(|note| note.contains("own.txt")), "{report:?}");
        assert_eq!(
            save_files(&at, &[], ItemsOptions::default()).unwrap_err().kind(),
            ErrorKind::AlreadyExists
        );

        // It knows its own files, wherever it was copied to, and no others.
        let copied = place.join("copied");
        regrow::copy(&at, &copied, &regrow::CopyOptions::default()).unwrap();
        copied.store().put(b"notes.txt", "mine".into()).unwrap();
        let error = save_files(&copied, &[("other", b"3")], overwriting()).unwrap_err();
        assert!(error.to_string().contains("notes.txt") && !error.to_string().contains("own.txt"), "{error}");
        assert_eq!(read(&copied, "notes.txt").unwrap(), b"mine");
        save_files(&at, &[("other", b"3")], overwriting()).unwrap();
        assert_eq!(names_in(&at), ["_CHECKPOINT_METADATA", "commit_success.txt", "other"]);
        at.store().delete(b"other").unwrap();
        assert_eq!(regrow::open(&at).unwrap_err().kind(), ErrorKind::Corrupt);
        save_files(&at, &[], overwriting()).unwrap();
        assert!(regrow::open(&at).unwrap().tree().is_empty());
    }
}

#[test]
fn a_json_document_or_a_pytree_is_a_checkpoint_with_metadata_beside_it() {
    let (_folder, places) = places("whole_tree");
    for place in places {
        let at = place.join("x");
        let begin = || {
            let custom_metadata = json!({"by": "me"}).as_object().unwrap().clone();
            ItemsSave::begin(&at, ItemsOptions { custom_metadata, ..overwriting() }).unwrap()
        };
        for options in [in_layout("orbax", json!(null)), SaveOptions::default()] {
            let save = begin();
            save.handler(WHOLE, "x.StandardCheckpointHandler");
            let own = SaveOptions { custom_metadata: Some(json!({"of": "the tree"})), ..options };
            save.tree(WHOLE, &tree(3), &own).unwrap();
            assert_eq!(save.json("beside", &json!({})).unwrap_err().kind(), ErrorKind::AlreadyExists);
            drop(save);
            let save = begin();
            save.handler(WHOLE, "x.StandardCheckpointHandler");
            save.tree(WHOLE, &tree(3), &own).unwrap();
            assert_eq!(save.commit().unwrap().leaf_count, 3);
            assert_eq!(about(&at)["item_handlers"], "x.StandardCheckpointHandler");
            assert_eq!(about(&at)["custom_metadata"], json!({"by": "me"}));
            let opened = regrow::open(&at).unwrap();
            assert_eq!(opened.description().custom_metadata, Some(json!({"of": "the tree"})));
            assert_eq!(bytes_of(&regrow::engine::load(&at).unwrap()), bytes_of(&tree(3)));
            assert!(regrow::verify(&at).unwrap().is_ok());

            let save = begin();
            save.json(WHOLE, &json!({"width": 3})).unwrap();
            save.commit().unwrap();
            assert_eq!(
                names_in(&at),
                ["_CHECKPOINT_METADATA", "commit_success.txt", "metadata", "regrow.items.json"]
            );
            assert!(about(&at)["item_handlers"].as_str().unwrap().ends_with(".JsonCheckpointHandler"));
            assert_eq!(regrow::open(&at).unwrap().tree().len(), 1);
        }
        let save = begin();
        let refused = save.tree(WHOLE, &tree(3), &in_layout("flax", json!(null))).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        let v1 = ItemsSave::begin(&at, ItemsOptions { v1: true, ..overwriting() }).unwrap();
        assert_eq!(v1.folder(WHOLE).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

#[test]
fn an_overwrite_replaces_json_of_orbax() {
    let folder = tempfile::tempdir().unwrap();
    let at = Location::local(folder.path().join("x"));
    fs::create_dir(folder.path().join("x")).unwrap();
    let about = json!({"item_handlers": "orbax.checkpoint._src.handlers.json_checkpoint_handler.JsonCheckpointHandler"});
    at.store().put(b"_CHECKPOINT_METADATA", about.to_string().into()).unwrap();
    at.store().put(b"commit_success.txt", "Checkpoint commit was successful to x".into()).unwrap();
    at.store().put(b"metadata", "{}".into()).unwrap();
    save_files(&at, &[("own", b"1")], overwriting()).unwrap();
    assert_eq!(names_in(&at), ["_CHECKPOINT_METADATA", "commit_success.txt", "own"]);
}

#[test]
fn folders_get_the_requested_mode() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let at = Location::local(folder.path().join("x"));
    let mode_of = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o777;
    for mode in [0o750, 0o705] {
        let save = ItemsSave::begin(&at, ItemsOptions { mode: Some(mode), ..overwriting() }).unwrap();
        save.json("config", &json!({})).unwrap();
        save.commit().unwrap();
        assert_eq!((mode_of("x"), mode_of("x/config")), (mode, mode));
    }
}
