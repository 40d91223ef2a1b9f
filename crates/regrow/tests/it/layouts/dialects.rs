//! Checkpoints that other programs wrote with the same tools (`fixtures/dialects`). The expected
//! values come from the readers of these programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use regrow::engine::{
    ConvertOptions, LoadOptions, SaveOptions, TemplateLeaf, convert, diff, load, load_with,
};
use regrow::tree::{Leaf, LeafKind, NodeKind, PathPattern, Tree};
use regrow::{Error, ErrorKind, open, verify};
use regrow_testkit::{copy_folder, files_below, fixtures};
use serde_json::Value;

/// Each dialect: its fixture, what is opened in it, what its variant is called.
const DIALECTS: [(&str, &str, &str); 15] = [
    ("t5x", "checkpoint_7", "t5x"),
    ("t5x", "", "t5x"),
    ("t5x_gcs", "checkpoint_7", "t5x"),
    ("easylm", "streaming_params", "streamed"),
    ("flax_sharded", "", "by an index"),
    ("torch_sharded", "", "by an index"),
    ("jax_paths", "", "no metadata"),
    ("jax_ocdbt", "", "ocdbt, no metadata"),
    ("ocdbt_alone", "", "ocdbt, no metadata"),
    ("jax_tree", "", "jax array_serialization"),
    ("levanter", "", "levanter"),
    ("big_vision", "", "no metadata"),
    ("big_vision_npz", "checkpoint.npz", "archive"),
    ("orbax_040", "ckpt", "msgpack"),
    ("zarr_fill_zero", "", "no metadata"),
];

/// What no reader can miss: a file that only says more, or a chunk of an array whose absent chunks
/// are zeros.
const NOT_MISSED: [(&str, &str); 4] = [
    ("flax_sharded", "config.json"),
    ("levanter", "metadata.json"),
    ("orbax_040", "_sharding"),
    ("zarr_fill_zero", "w/"),
];

fn fixture(name: &str) -> PathBuf {
    fixtures().join("dialects").join(name)
}

fn expected(name: &str) -> Value {
    let said: Value = serde_json::from_slice(&fs::read(fixture("expected.json")).unwrap()).unwrap();
    said[name].clone()
}

type Leaves = BTreeMap<String, (String, Vec<u64>, Vec<u8>)>;

fn leaves_said(expected: &Value) -> Leaves {
    let hex = |text: &str| {
        let digits = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    };
    let leaf = |entry: &Value| {
        let dims = entry[1].as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap()).collect();
        (entry[0].as_str().unwrap().to_owned(), dims, hex(entry[2].as_str().unwrap()))
    };
    expected["leaves"].as_object().unwrap().iter().map(|(path, entry)| (path.clone(), leaf(entry))).collect()
}

fn leaves_of(tree: &Tree<Leaf>) -> Leaves {
    let leaf = |path: &str, leaf: &Leaf| {
        let array = leaf.as_array().unwrap_or_else(|| panic!("{path}: {leaf:?}"));
        let bytes = array.to_c_order().unwrap().to_vec();
        (array.dtype().name().to_owned(), array.shape().dims().to_vec(), bytes)
    };
    let has_data = |(_, leaf): &(_, &Leaf)| leaf.kind != LeafKind::Placeholder;
    tree.iter()
        .filter(has_data)
        .map(|(path, found)| (path.to_string(), leaf(&path.to_string(), found)))
        .collect()
}

fn nones_of(tree: &Tree<Leaf>) -> Vec<String> {
    let nones = tree.walk().filter(|(_, node)| node.kind == NodeKind::None);
    nones.map(|(path, _)| path.to_string()).collect()
}

#[test]
fn every_leaf_is_what_the_original_reader_gives() {
    let root = tempfile::tempdir().unwrap();
    for (name, inner, variant) in DIALECTS {
        let (path, said) = (fixture(name).join(inner), expected(name));
        let wanted = leaves_said(&said);
        let opened = open(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(opened.description().variant.contains(variant), "{name}: {:?}", opened.description());
        let loaded = load(&path).unwrap();
        assert_eq!(leaves_of(&loaded), wanted, "{name}");
        let nones: Vec<String> = serde_json::from_value(said["nones"].clone()).unwrap();
        assert_eq!(nones_of(&loaded), nones, "{name}");
        let report = verify(&path).unwrap();
        assert!(report.is_ok(), "{name}: {:?}", report.findings);
        for leaf in wanted.keys() {
            let only = vec![PathPattern::new(leaf).unwrap()];
            let one = load_with(&path, &LoadOptions { only, ..LoadOptions::default() }).unwrap();
            assert_eq!(leaves_of(&one), Leaves::from([(leaf.clone(), wanted[leaf].clone())]), "{name}");
        }
        let template = opened.tree().clone().map(|info| TemplateLeaf {
            dtype: Some(info.dtype),
            shape: Some(info.shape),
            skip: false,
        });
        let options = LoadOptions { template: Some(template), ..LoadOptions::default() };
        assert_eq!(leaves_of(&load_with(&path, &options).unwrap()), wanted, "{name}");
        let target = root.path().join(format!("{name}{}", inner.len()));
        let save = SaveOptions { not_durable: true, ..SaveOptions::default() };
        convert(&path, &target, &ConvertOptions { save, ..ConvertOptions::default() }).unwrap();
        assert_eq!(leaves_of(&load(&target).unwrap()), wanted, "{name}");
        assert_eq!(diff(&path, &target).unwrap().counts.different(), 0, "{name}");
    }
}

#[test]
fn a_file_that_is_missing_or_cut_is_named_and_nothing_is_loaded() {
    let root = tempfile::tempdir().unwrap();
    let mut tried = 0;
    for (name, inner, _) in DIALECTS {
        if name == "t5x" && inner.is_empty() {
            continue;
        }
        let wanted = leaves_said(&expected(name));
        let copy = root.path().join(name);
        copy_folder(&fixture(name), &copy).unwrap();
        let path = copy.join(inner);
        for file in files_below(&path).unwrap() {
            let whole = fs::read(&file).unwrap();
            let below = file.strip_prefix(&copy).unwrap().to_str().unwrap();
            let is_alone = file == path;
            let mut check = |what: &str| {
                tried += 1;
                let missed = NOT_MISSED.iter().any(|(of, file)| *of == name && below.contains(file));
                match load(&path) {
                    // Data that no key refers to is not needed.
                    Ok(tree) if leaves_of(&tree) == wanted => {}
                    Ok(_) if missed => {}
                    Ok(tree) => panic!("{name}: {below} {what}: {:?}", leaves_of(&tree)),
                    Err(error) => assert!(names(&error, &file), "{name}: {below} {what}: {error}"),
                }
            };
            if !is_alone {
                fs::remove_file(&file).unwrap();
                check("missing");
            }
            for len in [0, whole.len() / 2, whole.len().saturating_sub(1)] {
                fs::write(&file, &whole[..len]).unwrap();
                // Of a file that ends between two records nothing is known to be missing.
                check("cut");
            }
            fs::write(&file, whole).unwrap();
        }
        assert_eq!(leaves_of(&load(&path).unwrap()), wanted, "{name}");
    }
    assert!(tried > 150, "{tried}");
}

/// Whether an error names a file, or what of it a reader asks for: the root record of its database,
/// the folder of an array.
fn names(error: &Error, file: &Path) -> bool {
    let text = error.to_string();
    let folder = file.parent().unwrap();
    let is_data = folder.ends_with("d");
    let database = if is_data { folder.parent().unwrap() } else { folder };
    text.contains(file.to_str().unwrap())
        || (is_data && text.contains(database.to_str().unwrap()))
        || (file.ends_with(".zarray") && text.contains(folder.file_name().unwrap().to_str().unwrap()))
}

#[test]
fn specs_of_something_else_are_refused_by_name() {
    let mut refused = 0;
    for entry in fs::read_dir(fixture("refused")).unwrap() {
        let path = entry.unwrap().path();
        for error in [load(&path).unwrap_err(), verify_error(&path)] {
            let text = error.to_string();
            let is_said = matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Corrupt)
                && text.contains("a TensorStore spec")
                && text.contains("leaf optimizer/target/w")
                && error.help_text().is_some();
            assert!(is_said, "{}: {text}", path.display());
        }
        refused += 1;
    }
    assert_eq!(refused, 20);
}

fn verify_error(path: &Path) -> Error {
    match verify(path) {
        Err(error) => error,
        Ok(report) => panic!("{}: {report:?}", path.display()),
    }
}

#[test]
fn a_streamed_file_cut_anywhere_else_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let whole = fs::read(fixture("easylm").join("streaming_params")).unwrap();
    let path = root.path().join("streaming_params");
    let mut between = Vec::new();
    for len in 1..whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        match load(&path) {
            Ok(tree) => between.push(tree.len()),
            Err(error) => assert!(names(&error, &path), "{len}: {error}"),
        }
    }
    // Five records have an end before the last, and `None` is no leaf.
    assert_eq!(between.len(), 5, "{between:?}");
    assert!(
        open(fixture("easylm").join("streaming_params"))
            .unwrap()
            .description()
            .notes
            .iter()
            .any(|note| note.contains("between two leaves"))
    );
}

#[test]
fn the_arrays_of_t5x_alone_load_into_a_template() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("checkpoint_7");
    copy_folder(&fixture("t5x").join("checkpoint_7"), &path).unwrap();
    fs::remove_file(path.join("checkpoint")).unwrap();
    assert_eq!(load(&path).unwrap_err().kind(), ErrorKind::Corrupt);
    let template = Tree::single(()).map(|()| TemplateLeaf::default());
    let mut build = regrow::tree::TreeBuilder::new();
    build.open(regrow::tree::Key::Index(0), NodeKind::Dict).unwrap();
    build.open(regrow::tree::Key::dict("target"), NodeKind::Dict).unwrap();
    build.leaf(regrow::tree::Key::dict("encoder.kernel"), template.leaves()[0].clone()).unwrap();
    build.close().unwrap();
    build.close().unwrap();
    let options =
        LoadOptions { template: Some(build.finish().unwrap()), partial: true, ..LoadOptions::default() };
    let loaded = load_with(&path, &options).unwrap();
    let wanted = leaves_said(&expected("t5x"));
    assert_eq!(leaves_of(&loaded)["target/encoder.kernel"], wanted["optimizer/target/encoder/kernel"]);
    assert!(loaded.leaves().iter().all(|leaf| leaf.kind != LeafKind::Placeholder));
}
