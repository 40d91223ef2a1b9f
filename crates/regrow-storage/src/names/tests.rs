//! A layout for the tests of this crate, and tests of foreign files.

use std::fs;

use super::*;

/// The layout of this crate's tests: `_METADATA` beside a folder `d`, or files of one model.
#[derive(Debug)]
pub(crate) struct Toy;

impl Names for Toy {
    fn markers(&self) -> &[&'static str] {
        &["_METADATA"]
    }

    fn first_files(&self) -> &[&'static str] {
        &["_CHECKPOINT_METADATA"]
    }

    fn beginnings(&self) -> &[&'static str] {
        &["regrow.json", "_METADATA", "model.safetensors"]
    }

    fn are_of_one(&self, files: &[&str]) -> bool {
        let stem = |name: &&str| {
            let stem = name.strip_suffix(".safetensors")?;
            Some(stem.split('-').next().unwrap_or(stem).to_owned())
        };
        let first = files.first().and_then(stem);
        files.iter().all(|name| stem(name).is_some_and(|stem| Some(stem) == first))
    }

    fn pair_suffixes(&self) -> &[&'static str] {
        &[".data", ".manifest"]
    }

    fn own_in<'f>(&self, _folder: &'f Location) -> IsOwn<'f> {
        Box::new(|name| {
            Ok(match name.is_folder {
                true => name.text == "d",
                false => name.text == "_METADATA",
            })
        })
    }
}

#[test]
fn the_storages_own_files_are_not_foreign() {
    let folder = tempfile::tempdir().unwrap();
    let foreign = || foreign_files_in(&Location::local(folder.path())).unwrap();
    for name in [
        COMMITTED_MARKER,
        side_files::SEAL.in_folder,
        "regrow.damaged.seal.json",
        ".nfs0001",
        ".0123.__lock",
        "x.orbax-checkpoint-tmp-7",
    ] {
        fs::write(folder.path().join(name), "x").unwrap();
    }
    assert_eq!(foreign(), Vec::<String>::new());
    // Folders with such names are foreign: they belong to a user.
    for name in ["regrow.damaged.d", "mine.__lock"] {
        fs::create_dir(folder.path().join(name)).unwrap();
        assert_eq!(foreign(), [name]);
        fs::remove_dir(folder.path().join(name)).unwrap();
    }
}

#[test]
fn the_number_of_named_foreign_files_is_bounded() {
    let root = tempfile::tempdir().unwrap();
    for (count, named) in [(0, 0), (SHOWN_MAX, SHOWN_MAX), (SHOWN_MAX + 9, SHOWN_MAX + 1)] {
        let folder = root.path().join(count.to_string());
        fs::create_dir(&folder).unwrap();
        (0..count).for_each(|at| fs::write(folder.join(format!("{at}.txt")), "x").unwrap());
        assert_eq!(foreign_files_in(&Location::local(&folder)).unwrap().len(), named);
    }
}

#[test]
fn without_layouts_no_file_is_known() {
    let at = Location::local("x");
    assert!(Unknown.markers().is_empty() && Unknown.beginnings().is_empty());
    assert!(Unknown.first_files().is_empty());
    assert!(Unknown.are_of_one(&[]) && !Unknown.are_of_one(&["a"]));
    assert!(!Unknown.own_in(&at)(&Name { text: "_METADATA", is_folder: false }).unwrap());
}
