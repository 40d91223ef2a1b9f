//! An array that cannot be read correctly gives an error. The error is the same for a file, an
//! archive and a folder.

use regrow_layouts::options::{Layout, NpyOptions, OpenOptions, SaveOptions};
use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use regrow::LoadOptions;
use regrow_base::error::ErrorKind;
use regrow_store::{DirectWriter, FileWriter};
use regrow_tree::tree::{LeafKind, PathPattern};

fn fixture(name: &str) -> Vec<u8> {
    fs::read(regrow_testkit::fixtures().join("npy").join(name)).unwrap()
}

/// An archive of these members.
fn archive(path: &Path, level: Option<u32>, members: &[(&str, &[u8])]) {
    let out = FileWriter::new(DirectWriter::create_with(path, &Default::default()).unwrap());
    let mut zip = zip::ZipWriter::new(out);
    for (name, bytes) in members {
        zip.add(name, zip::Listed::Yes, level, bytes.len() as u64, |each| each(bytes)).unwrap();
    }
    zip.finish(b"").unwrap();
}

/// The array `a` and an array `b` of these bytes, in an archive, a deflated archive and a folder.
fn with_another(folder: &Path, bytes: &[u8]) -> Vec<PathBuf> {
    let good = fixture("le_f4.npy");
    let paths = ["x.npz", "y.npz", "x"].map(|name| folder.join(name));
    for (path, level) in paths.iter().zip([None, Some(6)]) {
        archive(path, level, &[("a.npy", &good), ("b.npy", bytes)]);
    }
    fs::create_dir(&paths[2]).unwrap();
    fs::write(paths[2].join("a.npy"), &good).unwrap();
    fs::write(paths[2].join("b.npy"), bytes).unwrap();
    paths.to_vec()
}

fn only_a() -> LoadOptions {
    LoadOptions { only: vec![PathPattern::new("a").unwrap()], ..LoadOptions::default() }
}

#[test]
fn pickled_objects_are_refused_in_any_place() {
    let folder = tempfile::tempdir().unwrap();
    let single = folder.path().join("x.npy");
    fs::write(&single, fixture("bad_object.npy")).unwrap();
    let alone = regrow::engine::load(&single).unwrap_err();
    for path in with_another(folder.path(), &fixture("bad_object.npy")) {
        let error = regrow::engine::load(&path).unwrap_err();
        assert_eq!((error.kind(), alone.kind()), (ErrorKind::Unsupported, ErrorKind::Unsupported));
        assert!(error.what().starts_with(alone.what()), "{error}");
        assert_eq!(error.place().leaf.as_ref().map(ToString::to_string).as_deref(), Some("b"), "{error}");
        assert!(error.help_text().unwrap().contains("`only`"), "{error}");
        let report = regrow::verify(&path).unwrap();
        let findings: Vec<_> = report.findings.iter().map(|finding| finding.error.kind()).collect();
        assert_eq!(findings, [ErrorKind::Unsupported]);
        // An unreadable array that is not requested does not fail the rest.
        let checkpoint = regrow::open(&path).unwrap();
        assert!(matches!(checkpoint.info(1).unwrap().kind, LeafKind::Unknown(_)));
        assert!(checkpoint.read(0).is_ok() && checkpoint.read(1).is_err());
        assert_eq!(checkpoint.load(&only_a()).unwrap().len(), 1);
    }
}

#[test]
fn bytes_behind_an_array_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for (tail, what) in [(&b"junk"[..], "junk"), (&[0; 9][..], "zeros")] {
        let folder = folder.path().join(what);
        fs::create_dir(&folder).unwrap();
        let longer = [&fixture("le_f4.npy"), tail].concat();
        let single = folder.join("x.npy");
        fs::write(&single, &longer).unwrap();
        for (at, path) in std::iter::once(single).chain(with_another(&folder, &longer)).enumerate() {
            assert!(Npy.recognise(&Location::local(&path)).unwrap());
            let error = regrow::engine::load(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.what().contains("has bytes after its array"), "{error}");
            assert!(regrow::verify(&path).map_or(true, |report| !report.is_ok()));
            let arrays_only = OpenOptions { arrays_only: true, ..OpenOptions::default() };
            let opened = regrow::open_with(&path, &arrays_only);
            // In a member of an archive, bytes after the array are always damage.
            assert_eq!(opened.is_ok(), at == 0 || at == 3, "{}", path.display());
        }
    }
    // A file with several records is a leaf file of Equinox, under any name.
    let path = folder.path().join("two.npy");
    fs::write(&path, [fixture("le_f4.npy"), fixture("le_f4.npy")].concat()).unwrap();
    assert_eq!(regrow::open(&path).unwrap().description().layout, "equinox");
}

#[test]
fn a_name_that_was_changed_in_one_place_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npz");
    let raw = fixture("names.npz");
    let (first, last) = (
        raw.windows(4).position(|window| window == b".npy").unwrap(),
        raw.windows(4).rposition(|window| window == b".npy").unwrap(),
    );
    for at in [first - 1, last - 1, last] {
        let mut damaged = raw.clone();
        damaged[at] ^= 1;
        fs::write(&path, damaged).unwrap();
        let error = regrow::open(&path).unwrap_err();
        assert!(error.what().contains("the name of a member"), "{error}");
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_pytree_whose_place_is_lost_is_not_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npz");
    let tree = Tree::single(Leaf::text("text"));
    let layout = Layout::Npy(NpyOptions::default());
    regrow::save_with(&path, &tree, &SaveOptions { layout, ..SaveOptions::default() }).unwrap();
    let raw = fs::read(&path).unwrap();
    let at = raw.windows(20).rposition(|window| window == b"regrow structure at ").unwrap();
    for at in at..raw.len() {
        let mut damaged = raw.clone();
        damaged[at] ^= 2;
        fs::remove_file(&path).unwrap();
        fs::write(&path, damaged).unwrap();
        assert_eq!(regrow::engine::load(&path).unwrap_err().kind(), ErrorKind::Corrupt, "byte {at}");
    }
}

#[test]
fn what_is_left_of_an_orbax_checkpoint_is_no_folder_of_arrays() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.npy"), fixture("le_f4.npy")).unwrap();
    fs::write(folder.path().join("notes.txt"), b"").unwrap();
    assert_eq!(regrow::engine::load(folder.path()).unwrap().len(), 1);
    fs::write(folder.path().join("commit_success.txt"), b"").unwrap();
    assert!(!Npy.recognise(&Location::local(folder.path())).unwrap());
    assert!(regrow::open(folder.path()).is_err());
    fs::create_dir(folder.path().join("inner")).unwrap();
    fs::rename(folder.path().join("commit_success.txt"), folder.path().join("inner/commit_success.txt"))
        .unwrap();
    assert!(regrow::open(folder.path()).is_err());
}
