//! Wherever a commit stops, a manifest is never found with the data of another save.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::leftovers::{Begun, begun};
use super::super::*;
use super::{finish, has_begun, staged_path, where_is};
use crate::NewSiblings;
use crate::Publication;
use crate::error::{ErrorKind, Result};

const SUFFIXES: [&str; 2] = [".data", ".manifest"];

fn suffixes() -> Vec<String> {
    SUFFIXES.map(str::to_owned).to_vec()
}

fn stage(stem: &Path, overwrite: bool, content: &str) -> Result<Staged> {
    let staged = Staged::of_siblings(stem, &suffixes(), overwrite)?;
    for at in 0..SUFFIXES.len() {
        let mut writer = staged.sibling_writer(at, 0, 0)?;
        writer.write(content.as_bytes())?;
        writer.finish()?;
    }
    Ok(staged)
}

fn save(stem: &Path, overwrite: bool, content: &str) -> Result<()> {
    stage(stem, overwrite, content)?.commit()
}

fn file(stem: &Path, suffix: &str) -> PathBuf {
    let mut name = stem.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The content of the checkpoint; `None` if there is no checkpoint. Both files must be of the same
/// save.
fn saved(stem: &Path) -> Option<String> {
    let manifest = fs::read_to_string(file(stem, ".manifest")).ok()?;
    assert_eq!(fs::read_to_string(file(stem, ".data")).unwrap(), manifest);
    Some(manifest)
}

fn count(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn both_files_are_committed_and_nothing_else_is_left() {
    let root = tempfile::tempdir().unwrap();
    let stem = root.path().join("new/model");
    save(&stem, false, "first").unwrap();
    assert_eq!(saved(&stem).unwrap(), "first");
    assert_eq!(save(&stem, false, "second").unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(saved(&stem).unwrap(), "first");
    save(&stem, true, "third").unwrap();
    assert_eq!(saved(&stem).unwrap(), "third");
    drop(stage(&stem, true, "never").unwrap());
    assert_eq!(saved(&stem).unwrap(), "third");
    assert_eq!(count(stem.parent().unwrap()), 2);
}

#[test]
fn what_is_stored_is_the_length_of_all_files() {
    let root = tempfile::tempdir().unwrap();
    let staged = stage(&root.path().join("a"), false, "seven b").unwrap();
    assert_eq!(staged.stored_bytes().unwrap(), 14);
}

#[test]
fn one_of_the_files_is_enough_to_be_in_the_way() {
    for suffix in SUFFIXES {
        let root = tempfile::tempdir().unwrap();
        let stem = root.path().join("model");
        fs::write(file(&stem, suffix), "precious").unwrap();
        let error = save(&stem, false, "x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(error.place().file.as_deref(), Some(file(&stem, suffix).as_path()));
        save(&stem, true, "y").unwrap();
        assert_eq!(saved(&stem).unwrap(), "y");
        assert_eq!(count(root.path()), 2);
        fs::remove_file(file(&stem, suffix)).unwrap();
        fs::create_dir(file(&stem, suffix)).unwrap();
        assert_eq!(save(&stem, true, "z").unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(count(root.path()), 2);
    }
}

#[test]
fn suffixes_lead_nowhere_else() {
    let root = tempfile::tempdir().unwrap();
    for bad in [["/../x", ".m"], [".d", "a/b"], [".d", ".d"]] {
        let error = Staged::of_siblings(&root.path().join("a"), &bad.map(str::to_owned), true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{bad:?}");
    }
    assert!(Staged::of_siblings(&root.path().join("a"), &[], true).is_err());
    let bare = Staged::of_siblings(&root.path().join("a"), &[String::new(), ".m".to_owned()], false).unwrap();
    for at in 0..2 {
        bare.sibling_writer(at, 0, 0).unwrap().finish().unwrap();
    }
    assert!(bare.sibling_writer(2, 0, 0).is_err());
    bare.commit().unwrap();
    assert!(root.path().join("a").is_file() && root.path().join("a.m").is_file());
}

/// Stages a checkpoint, and ends its commit after `moves` moves, as if the process had died.
fn die(stem: &Path, overwrite: bool, content: &str, moves: usize) {
    let mut staged = stage(stem, overwrite, content).unwrap();
    assert_eq!(staged.die_after(moves).is_ok(), moves >= 4);
}

#[test]
fn a_writer_that_dies_at_any_step_leaves_the_old_the_new_or_nothing() {
    let root = tempfile::tempdir().unwrap();
    for moves in 0..=4 {
        let stem = root.path().join(format!("over_{moves}"));
        save(&stem, false, "old").unwrap();
        die(&stem, true, "new", moves);
        let expected = match moves {
            0 => Some("old"),
            4 => Some("new"),
            _ => None,
        };
        assert_eq!(saved(&stem).as_deref(), expected, "after {moves} moves");
        let is_dead = matches!(begun(&stem), Some(Begun::Dead(_)));
        assert_eq!(is_dead, (1..4).contains(&moves), "after {moves} moves");
        if let Some(Begun::Dead(folder)) = begun(&stem) {
            for suffix in SUFFIXES {
                let found = where_is(&file(&stem, suffix), &folder);
                assert_eq!(fs::read_to_string(found).unwrap(), "new", "{suffix} after {moves} moves");
            }
        }
        if moves % 2 == 1 {
            assert!(super::super::remove::finish_unfinished(&stem, None).unwrap(), "{moves}");
            assert!(
                !super::super::remove::finish_unfinished(&stem, None).unwrap(),
                "there is nothing left to finish"
            );
            assert_eq!(saved(&stem).as_deref(), Some("new"));
        }
        // The next save finishes a commit that has begun, and leaves no temporary files.
        drop(Staged::of_siblings(&stem, &suffixes(), true).unwrap());
        assert_eq!(saved(&stem).as_deref(), Some(if moves == 0 { "old" } else { "new" }), "{moves}");
        assert!(begun(&stem).is_none());
    }
    assert_eq!(count(root.path()), 2 * 5);
}

#[test]
fn readers_of_what_a_dead_writer_left_are_not_in_each_others_way() {
    const READERS: usize = 8;
    const LOOKS: usize = 200;
    let root = tempfile::tempdir().unwrap();
    for moves in 1..4 {
        let stem = root.path().join(format!("model_{moves}"));
        save(&stem, false, "old").unwrap();
        die(&stem, true, "new", moves);
        std::thread::scope(|scope| {
            for _ in 0..READERS {
                scope.spawn(|| {
                    for _ in 0..LOOKS {
                        let Some(Begun::Dead(folder)) = begun(&stem) else {
                            panic!("after {moves} moves a reader takes another for a writer")
                        };
                        let found = where_is(&file(&stem, ".manifest"), &folder);
                        assert_eq!(fs::read_to_string(found).unwrap(), "new");
                    }
                });
            }
        });
    }
}

#[test]
fn a_first_save_that_dies_is_finished_or_gone() {
    let root = tempfile::tempdir().unwrap();
    // The first two steps find nothing to move aside.
    for moves in 0..=4 {
        let stem = root.path().join(format!("first_{moves}"));
        die(&stem, false, "new", moves);
        assert_eq!(saved(&stem).is_some(), moves == 4, "after {moves} moves");
        let again = save(&stem, false, "again");
        match moves {
            0..=2 => assert_eq!(saved(&stem).as_deref(), Some("again"), "{again:?}"),
            _ => {
                assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
                assert_eq!(saved(&stem).as_deref(), Some("new"));
            }
        }
    }
    assert_eq!(count(root.path()), 2 * 5);
}

#[test]
fn a_step_that_fails_is_undone() {
    let root = tempfile::tempdir().unwrap();
    let stem = root.path().join("model");
    save(&stem, false, "old").unwrap();
    let staged = stage(&stem, true, "new").unwrap();
    // The staged manifest is missing, so the last step fails after all other steps.
    fs::remove_file(staged_path(&staged.own.path, 1, &file(&stem, ".manifest"))).unwrap();
    assert_eq!(staged.commit().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(saved(&stem).as_deref(), Some("old"));
    assert_eq!(count(root.path()), 2);
}

#[test]
fn a_folder_that_is_half_removed_never_looks_begun() {
    let root = tempfile::tempdir().unwrap();
    let stem = root.path().join("model");
    // The writer dies after it has made the folder for replaced files, before the first move.
    die(&stem, false, "new", 0);
    let entries = fs::read_dir(root.path()).unwrap();
    let folder = entries.map(|entry| entry.unwrap().path()).find(|path| path.is_dir()).unwrap();
    assert!(folder.join(".regrow-replaced").is_dir());
    super::forget(&folder).unwrap();
    // The process that removes the temporary folder dies after it has removed the data.
    fs::remove_dir_all(folder.join(".regrow-0")).unwrap();
    fs::create_dir(folder.join(".regrow-0")).unwrap();
    assert!(!has_begun(&folder) && begun(&stem).is_none());
    drop(Staged::of_siblings(&stem, &suffixes(), false).unwrap());
    assert_eq!(count(root.path()), 0);
}

#[test]
fn files_that_appear_during_a_save_are_not_replaced() {
    let root = tempfile::tempdir().unwrap();
    let stem = root.path().join("model");
    let staged = stage(&stem, false, "late").unwrap();
    save(&stem, false, "early").unwrap();
    assert_eq!(staged.commit().unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(saved(&stem).as_deref(), Some("early"));
    assert_eq!(count(root.path()), 2);
}

#[test]
fn overwriters_never_mix_their_files() {
    let root = tempfile::tempdir().unwrap();
    let stem = root.path().join("model");
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let stem = &stem;
            scope.spawn(move || {
                for round in 0..15 {
                    let staged = stage(stem, true, &format!("{writer} {round}")).unwrap().durable(false);
                    staged.commit().unwrap();
                }
            });
        }
    });
    assert!(saved(&stem).unwrap().ends_with(" 14"));
    assert_eq!(count(root.path()), 2);
}

/// Users with permission to read all of the files can read the files of a dead writer. Other users
/// cannot open the folder.
#[test]
fn the_temporary_folder_is_as_open_as_its_files() {
    use crate::system::{mode_of, set_mode};

    for (first, second, folder) in [
        (0o644, 0o644, 0o755),
        (0o640, 0o644, 0o750),
        (0o644, 0o640, 0o750),
        (0o604, 0o644, 0o705),
        (0o600, 0o644, 0o700),
        (0o644, 0o600, 0o700),
        (0o600, 0o600, 0o700),
    ] {
        let root = tempfile::tempdir().unwrap();
        let staged = root.path().join("staged");
        let targets = [".data", ".manifest"].map(|suffix| root.path().join(format!("x{suffix}")));
        let files: Vec<PathBuf> =
            targets.iter().enumerate().map(|(at, target)| staged_path(&staged, at, target)).collect();
        for (path, mode) in files.iter().zip([first, second]) {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
            set_mode(path, mode).unwrap();
        }
        super::open_to_readers(&staged, &files).unwrap();
        assert_eq!(mode_of(&fs::metadata(&staged).unwrap()) & 0o777, folder, "{first:o} {second:o}");
    }
}

#[test]
fn a_folder_that_cannot_be_listed_is_an_error_and_stays() {
    let root = tempfile::tempdir().unwrap();
    let stem = root.path().join("model");
    let staged = stage(&stem, false, "new").unwrap();
    let own = staged.own.path.clone();
    // The state after a death between two moves, but with a file in the place of a staged folder.
    fs::create_dir(own.join(".regrow-replaced")).unwrap();
    fs::rename(staged_path(&own, 0, &file(&stem, ".data")), file(&stem, ".data")).unwrap();
    fs::remove_dir_all(own.join(".regrow-1")).unwrap();
    fs::write(own.join(".regrow-1"), b"no folder").unwrap();
    assert!(has_begun(&own));
    finish(&own, root.path()).unwrap_err();
    assert!(own.join(".regrow-1").exists() && file(&stem, ".data").exists());
}

#[test]
fn a_file_whose_mode_cannot_be_looked_up_is_not_replaced() {
    let root = tempfile::tempdir().unwrap();
    let stem = root.path().join("a");
    let staged = stage(&stem, true, "new").unwrap();
    staged.files.sync(&staged.own.path).unwrap();
    // A link that leads to itself has no mode.
    let target = file(&stem, SUFFIXES[0]);
    std::os::unix::fs::symlink(&target, &target).unwrap();
    let error = staged.take_names(usize::MAX).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(fs::symlink_metadata(&target).unwrap().is_symlink());
    assert_eq!(count(&staged.own.path), SUFFIXES.len(), "nothing has moved");
}
