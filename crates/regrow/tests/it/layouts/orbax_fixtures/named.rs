//! Golden checkpoints without their `_METADATA`: a template gives the lost tree.

use std::fs;

use regrow::engine::{LoadOptions, TemplateLeaf, load_with};
use regrow::tree::{Key, Leaf, LeafData, LeafInfo, LeafKind, NodeKind, Tree, TreeBuilder};
use regrow::{ErrorKind, open};
use regrow_testkit::copy_folder;

use super::{checkpoint, fixture_names};

#[test]
fn a_template_gives_the_tree_that_is_lost() {
    let root = tempfile::tempdir().unwrap();
    let (mut compared, mut leaves) = (0, 0);
    for fixture in fixture_names() {
        let path = root.path().join(&fixture);
        // What is damaged already is no measure.
        if fixture.starts_with("bad_") || !checkpoint(&fixture).join("_METADATA").is_file() {
            continue;
        }
        let whole = open(checkpoint(&fixture)).unwrap();
        let whole_leaves = load_with(checkpoint(&fixture), &LoadOptions::default()).unwrap().into_leaves();
        let has_arrays = whole.tree().leaves().iter().any(|info| info.kind.is_array());
        copy_folder(&checkpoint(&fixture), &path).unwrap();
        fs::remove_file(path.join("_METADATA")).unwrap();
        let options =
            |tree: Tree<TemplateLeaf>| LoadOptions { template: Some(tree), ..LoadOptions::default() };
        let loaded = load_with(&path, &options(template(whole.tree())));
        if !has_arrays {
            assert_eq!(loaded.unwrap_err().kind(), ErrorKind::Corrupt, "{fixture}");
            continue;
        }
        let loaded = loaded.unwrap_or_else(|error| panic!("{fixture}: {error}"));
        for ((path, got), want) in loaded.iter().zip(whole_leaves) {
            let has_data = !matches!(want.kind, LeafKind::Placeholder | LeafKind::Unknown(_));
            assert!(!has_data || data_of(got) == data_of(&want), "{fixture} {path}");
            leaves += usize::from(has_data);
        }
        compared += 1;
        // What is not there is missed by its name.
        let more = template(whole.tree());
        let error = load_with(&path, &options(with_one_more(more))).unwrap_err();
        assert!(error.to_string().contains("missing   absent"), "{fixture}: {error}");
    }
    assert!(compared >= 20 && leaves >= 300, "{compared} checkpoints, {leaves} leaves");
}

fn data_of(leaf: &Leaf) -> Vec<u8> {
    match &leaf.data {
        LeafData::Array(array) => array.to_c_order().unwrap().to_vec(),
        LeafData::Text(text) => text.as_bytes().to_vec(),
        LeafData::Absent => Vec::new(),
    }
}

fn template(tree: &Tree<LeafInfo>) -> Tree<TemplateLeaf> {
    tree.clone().map(|info| match info.kind {
        LeafKind::Str => TemplateLeaf::default(),
        LeafKind::Placeholder | LeafKind::Unknown(_) => {
            TemplateLeaf { skip: true, ..TemplateLeaf::default() }
        }
        _ => TemplateLeaf { dtype: Some(info.dtype), shape: Some(info.shape), skip: false },
    })
}

/// The tree beside a leaf that no checkpoint has.
fn with_one_more(tree: Tree<TemplateLeaf>) -> Tree<TemplateLeaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for (path, leaf) in tree.iter() {
        let key = if path.is_root() { "root".to_owned() } else { path.join(".") };
        build.leaf(Key::dict(key), leaf.clone()).unwrap();
    }
    build.leaf(Key::dict("absent"), TemplateLeaf::default()).unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}
