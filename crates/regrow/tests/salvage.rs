//! Salvage, by one rule over every layout: each file in turn is removed, cut or damaged, and what comes back is what was saved,
//! or is listed as lost.

#![expect(clippy::unwrap_used, reason = "a test's failure is a panic")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use common::damage::{checkpoints, contents, files, put};
use regrow::tree::{Leaf, LeafData, LeafKind, Tree};
use regrow::{ErrorKind, LoadOptions, SealOptions};
use regrow_testkit::memory_folder;

/// What a leaf is, by its key path.
fn leaves(tree: &Tree<Leaf>) -> BTreeMap<String, String> {
    let text = |leaf: &Leaf| match &leaf.data {
        LeafData::Array(array) => {
            format!(
                "{:?} {} {} {:?}",
                leaf.kind,
                array.dtype(),
                array.shape(),
                &array.to_c_order().unwrap()[..]
            )
        }
        other => format!("{:?} {other:?}", leaf.kind),
    };
    tree.iter().map(|(path, leaf)| (path.to_string(), text(leaf))).collect()
}

#[test]
fn what_is_intact_comes_back_and_the_rest_is_listed() {
    let root = memory_folder().unwrap();
    let options = LoadOptions::default();
    let (mut partly, mut nothing) = (0, 0);
    for (name, path) in checkpoints(root.path()) {
        let Ok(whole) = regrow::engine::load_with(&path, &options) else { continue };
        let plain = regrow::salvage(&path, &options).unwrap();
        assert!(plain.is_whole() && contents(&plain.tree) == contents(&whole), "{name}");
        regrow::seal(&path, &SealOptions::default()).unwrap();
        let good = leaves(&whole);
        let folder = path.parent().unwrap();
        let (mut here, mut none_here) = (0, 0);
        for (file, bytes) in files(folder) {
            for kind in 0..3 {
                let what = format!("{name}, {} {kind}", file.display());
                match kind {
                    0 => fs::remove_file(&file).unwrap(),
                    1 => put(&file, &bytes[..bytes.len() * 2 / 3]),
                    _ if bytes.is_empty() => {}
                    _ => {
                        let mut bytes = bytes.clone();
                        let at = bytes.len() * 3 / 4;
                        bytes[at] ^= 16;
                        put(&file, &bytes);
                    }
                }
                match regrow::salvage(&path, &options) {
                    Ok(salvaged) => {
                        let lost: BTreeSet<String> = salvaged
                            .lost
                            .iter()
                            .map(|error| error.place().leaf.as_ref().unwrap().to_string())
                            .collect();
                        assert_eq!(lost.len(), salvaged.lost.len(), "{what}");
                        for (path, leaf) in leaves(&salvaged.tree) {
                            if lost.contains(&path) {
                                assert!(
                                    leaf.starts_with(&format!("{:?}", LeafKind::Placeholder)),
                                    "{what} {path}"
                                );
                            } else {
                                // Opened bare, it is its arrays alone: names and kinds of leaves may be others.
                                let data = |leaf: &str| leaf.split_once(' ').map(|(_, data)| data.to_owned());
                                let is_bare = !salvaged.damage.is_empty();
                                let is_same = good.get(&path).is_none_or(|good| data(good) == data(&leaf));
                                assert!(
                                    good.get(&path) == Some(&leaf) || is_bare && is_same,
                                    "{what}: {path} is not what was saved"
                                );
                            }
                        }
                        here += usize::from(!lost.is_empty());
                    }
                    Err(error) => {
                        none_here += 1;
                        assert!(regrow::engine::load_with(&path, &options).is_err(), "{what}: {error}");
                    }
                }
                let _ = fs::write(&file, b"");
                put(&file, &bytes);
            }
        }
        println!("{name}: {here} partly, {none_here} not at all");
        partly += here;
        nothing += none_here;
        assert!(regrow::salvage(&path, &options).unwrap().is_whole(), "{name}");
    }
    println!("{partly} partly, {nothing} not at all");
    assert!(partly > 50, "of {partly} something is lost and something given");
}

#[test]
fn what_is_not_verified_or_not_there_is_an_error() {
    let root = memory_folder().unwrap();
    let (_, path) = checkpoints(root.path()).remove(0);
    let unverified = LoadOptions { unverified: true, ..LoadOptions::default() };
    assert_eq!(regrow::salvage(&path, &unverified).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let nowhere = regrow::salvage(root.path().join("nowhere"), &LoadOptions::default()).unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::NotFound);
}
