//! Unusual folders: no checkpoint, a lost part, files of old versions, very large trees, very deep
//! trees.

use regrow::ErrorKind;
use regrow::array::{Dtype, Region, Shape};
use regrow::location::Location;
use regrow::tree::LeafKind;
use regrow_layouts::orbax::Orbax;
use regrow_layouts::orbax::entry::{Entry, KeyType};
use regrow_layouts::orbax::metadata::TreeMetadata;
use regrow_layouts::{Format, ReaderExt};
use regrow_ocdbt::{EntryValue, OcdbtConfig, write_database};
use regrow_zarr::zarr::ArrayMeta;
use serde_json::{Value, json};

use super::{checkpoint, open, open_at, read_whole};

#[test]
fn folders_without_a_checkpoint_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("notes.txt"), "x").unwrap();
    let error = open(folder.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotACheckpoint);
    assert!(error.to_string().contains("notes.txt") && error.to_string().contains("_METADATA"), "{error}");
    assert!(!Orbax.recognise(&Location::local(folder.path())).unwrap());
    assert_eq!(open(&folder.path().join("absent")).unwrap_err().kind(), ErrorKind::NotFound);

    let temporary = checkpoint("bad_uncommitted_step").join("2.orbax-checkpoint-tmp");
    for path in [temporary.clone(), temporary.join("default")] {
        let error = open(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Uncommitted);
        assert!(error.help_text().is_some());
    }
    assert_eq!(
        open_at(&checkpoint("bad_uncommitted_step"), Some(2), None).unwrap_err().kind(),
        ErrorKind::Uncommitted
    );
    std::fs::create_dir(folder.path().join("5.orbax-checkpoint-tmp")).unwrap();
    assert_eq!(open(folder.path()).unwrap_err().kind(), ErrorKind::Uncommitted);
}

#[test]
fn a_lost_metadata_file_is_named() {
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("ckpt");
    regrow_testkit::copy_folder(&checkpoint("sd_ocdbt_zarr2"), &path).unwrap();
    std::fs::remove_file(path.join("_METADATA")).unwrap();
    let error = open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.place().file.as_ref().unwrap().ends_with("_METADATA"));
    assert!(error.help_text().unwrap().contains("power cut"), "{error}");
    std::fs::write(path.join("_METADATA"), [0; 100]).unwrap();
    let error = open(&path).unwrap_err();
    assert!(
        error.place().file.as_ref().unwrap().is_absolute() && error.place().offset_bytes.is_some(),
        "{error}"
    );
    assert!(error.help_text().unwrap().contains("power cut"), "{error}");
}

#[test]
fn the_item_being_deleted_is_hidden() {
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("ckpt");
    regrow_testkit::copy_folder(&checkpoint("v1_checkpointables"), &path).unwrap();
    std::fs::write(path.join("_CHECKPOINT_DELETION"), r#"{"checkpointable_name": "extra"}"#).unwrap();
    let reader = open(&path).unwrap();
    assert!(!reader.tree().paths().iter().any(|path| path.to_string().starts_with("extra")));
    assert_eq!(open_at(&path, None, Some("extra")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn leaves_of_old_orbax_come_from_the_msgpack() {
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("ckpt");
    regrow_testkit::copy_folder(&checkpoint("legacy_aggregate_msgpack"), &path).unwrap();
    let entry = |keys: &[&str], value_type: &str| {
        let keys: Vec<Value> = keys.iter().map(|key| json!({"key": key, "key_type": 2})).collect();
        json!({"key_metadata": keys, "value_metadata": {"value_type": value_type, "skip_deserialize": true}})
    };
    let metadata = json!({"tree_metadata": {
        "1": entry(&["i"], "jax.Array"), "2": entry(&["names", "1"], "string"), "3": entry(&["none"], "None")}});
    std::fs::write(path.join("_METADATA"), metadata.to_string()).unwrap();
    let reader = open(&path).unwrap();
    assert_eq!(reader.tree().leaves()[0].kind, LeafKind::JaxArray);
    assert_eq!(read_whole(&*reader, 0).unwrap().len(), 40);
    assert_eq!(&*reader.read_text(1).unwrap(), "b");
}

#[test]
fn arrays_without_metadata_make_a_tree_of_dicts() {
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("ckpt");
    regrow_testkit::copy_folder(&checkpoint("legacy_placeholders_zarr"), &path).unwrap();
    std::fs::remove_file(path.join("checkpoint")).unwrap();
    let reader = open(&path).unwrap();
    let paths: Vec<String> = reader.tree().paths().iter().map(ToString::to_string).collect();
    assert_eq!(paths, ["a", "b/c"]);
    assert_eq!(read_whole(&*reader, 1).unwrap().len(), 24);
}

#[test]
fn a_hundred_thousand_leaves_open_at_once() {
    const LEAVES: u32 = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let shape = Shape::new(vec![1]).unwrap();
    let meta = ArrayMeta::v3_raw(shape, Dtype::UInt32).unwrap();
    let (document, chunk) = (bytes::Bytes::from(meta.to_json()), meta.chunk_key(&[0]));
    let mut entries = Vec::new();
    let mut tree = TreeMetadata { use_ocdbt: Some(true), use_zarr3: true, ..TreeMetadata::default() };
    for i in 0..LEAVES {
        // As an optimizer state of many layers: the parent's name repeats, the document is always
        // the same.
        let keys = vec![
            (KeyType::Dict, "layers".to_owned()),
            (KeyType::Sequence, i.to_string()),
            (KeyType::Dict, "w".to_owned()),
        ];
        let entry =
            Entry { keys, value_type: "np.ndarray".to_owned(), skip_deserialize: false, write_shape: None };
        let name = entry.param_name();
        entries.push((format!("{name}/zarr.json").into_bytes(), EntryValue::Inline(document.clone())));
        entries.push((
            format!("{name}/{chunk}").into_bytes(),
            EntryValue::Inline(i.to_le_bytes().to_vec().into()),
        ));
        tree.entries.push(entry);
    }
    let database = write_database(&OcdbtConfig::orbax(), entries, "d/nodes", 0).unwrap();
    std::fs::create_dir(folder.path().join("d")).unwrap();
    std::fs::write(folder.path().join("d/nodes"), &database.nodes).unwrap();
    for (name, bytes) in &database.manifests {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    std::fs::write(folder.path().join("_METADATA"), tree.to_json().unwrap()).unwrap();

    let started = std::time::Instant::now();
    let reader = open(folder.path()).unwrap();
    let order = reader.read_order();
    let took = started.elapsed();
    // Anything quadratic takes minutes; a loaded machine may take several times the usual half
    // second.
    assert!(took.as_secs() < 30, "opening took {took:?}");
    assert_eq!((reader.tree().len(), order.len()), (LEAVES as usize, LEAVES as usize));
    for leaf in [0, 77_777, 99_999] {
        assert_eq!(read_whole(&*reader, leaf).unwrap(), (leaf as u32).to_le_bytes());
    }
    println!("opened {LEAVES} leaves in {took:?}");
}

#[test]
fn a_deep_tree_opens_and_blames_the_right_leaf() {
    let folder = tempfile::tempdir().unwrap();
    let mut keys = vec![(KeyType::Dict, "k".to_owned()); 30_000];
    let entry = |keys: &[(KeyType, String)], value_type: &str| Entry {
        keys: keys.to_vec(),
        value_type: value_type.to_owned(),
        skip_deserialize: false,
        write_shape: None,
    };
    let mut tree = TreeMetadata { entries: vec![entry(&keys, "Custom")], ..TreeMetadata::default() };
    std::fs::write(folder.path().join("_METADATA"), tree.to_json().unwrap()).unwrap();
    let reader = open(folder.path()).unwrap();
    assert_eq!(reader.tree().leaves()[0].kind, LeafKind::Unknown("Custom".into()));
    let error = reader.read_region(0, &Region::whole(&Shape::scalar()), &mut [0]).unwrap_err();
    assert_eq!((error.kind(), error.place().leaf.as_ref().unwrap().len()), (ErrorKind::Unsupported, 30_000));
    keys.resize(200_000, (KeyType::Dict, "k".to_owned()));
    tree.entries = vec![entry(&keys, "Custom")];
    std::fs::write(folder.path().join("_METADATA"), tree.to_json().unwrap()).unwrap();
    assert_eq!(open(folder.path()).unwrap_err().kind(), ErrorKind::Limit);
}
