//! Tests of saves to a local disk: a reader sees a whole checkpoint or none, also while other
//! processes write.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Barrier;

use super::target::Goal;
use super::*;
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::store::DirectWriter;
use crate::{NewFolder, Publish, PublishOptions, Target};

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn save(target: &Path, overwrite: bool, content: &str) -> Result<()> {
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

#[test]
fn commits_all_of_it_and_makes_the_folders_above() {
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("runs/a/step_1");
    let staged = Staged::of_folder(&target, false).unwrap();
    assert!(root.path().join("runs/a").is_dir());
    assert!(staged.folder().to_string_lossy().contains("step_1.orbax-checkpoint-tmp-"));
    staged.write("_METADATA", b"m").unwrap();
    let mut writer = staged.writer("d/data", 3, 0).unwrap();
    writer.write(b"abc").unwrap();
    writer.finish().unwrap();
    assert!(!target.exists());
    staged.commit().unwrap();
    assert_eq!(names(target.parent().unwrap()), ["step_1"]);
    assert_eq!(fs::read(target.join("d/data")).unwrap(), b"abc");
}

#[test]
fn many_small_files_are_synced_at_once() {
    let root = tempfile::tempdir().unwrap();
    let staged = Staged::of_folder(&root.path().join("a"), false).unwrap();
    for i in 0..300 {
        staged.write(&format!("leaf{i}/0.0"), b"x").unwrap();
    }
    staged.commit().unwrap();
    assert_eq!(names(&root.path().join("a")).len(), 300);
}

#[test]
fn dropped_it_leaves_no_trace() {
    let root = tempfile::tempdir().unwrap();
    let staged = Staged::of_folder(&root.path().join("a/b/c"), false).unwrap();
    staged.write("x/y", b"z").unwrap();
    drop(staged);
    assert!(names(root.path()).is_empty());
}

#[test]
fn relative_targets_are_beside_the_working_folder_of_the_time() {
    // The working folder of the tests is the folder of the crate, so nothing is committed.
    let staged = Staged::of_folder(Path::new("a/relative"), false).unwrap();
    assert_eq!(staged.folder().parent().unwrap(), std::env::current_dir().unwrap().join("a"));
    drop(staged);
    assert!(!Path::new("a").exists());
}

#[test]
fn what_is_there_is_replaced_only_when_asked() {
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("step");
    save(&target, false, "first").unwrap();
    let error = save(&target, false, "second").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(error.place().file.as_deref(), Some(target.as_path()));
    assert!(error.help_text().unwrap().contains("overwrite"));
    assert_eq!(saved(&target), "first");
    save(&target, true, "second").unwrap();
    assert_eq!(saved(&target), "second");
    assert_eq!(names(root.path()), ["step"]);
}

#[test]
fn what_is_no_checkpoint_is_not_replaced() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("home");
    fs::create_dir(&folder).unwrap();
    save(&folder, true, "into an empty folder").unwrap();
    assert_eq!(saved(&folder), "into an empty folder");
    let precious = root.path().join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("thesis.tex"), b"...").unwrap();
    fs::write(root.path().join("file"), b"...").unwrap();
    for target in [precious.clone(), root.path().join("file")] {
        assert_eq!(save(&target, true, "x").unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(save(&target, false, "x").unwrap_err().kind(), ErrorKind::AlreadyExists);
    }
    assert_eq!(names(&precious), ["thesis.tex"]);
    assert_eq!(fs::read(root.path().join("file")).unwrap(), b"...");
    let below_a_file = save(&root.path().join("file/x"), true, "x").unwrap_err();
    assert_eq!(below_a_file.kind(), ErrorKind::Io);
}

#[test]
fn a_target_that_gains_other_files_is_not_replaced() {
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("step");
    let staged = Staged::of_folder(&target, true).unwrap();
    fs::create_dir(&target).unwrap();
    fs::write(target.join("thesis.tex"), b"...").unwrap();
    assert_eq!(staged.commit().unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(names(root.path()), ["step"]);
    assert_eq!(names(&target), ["thesis.tex"]);
}

#[test]
fn targets_without_a_name_are_refused() {
    for target in ["", "/", "..", "a/.."] {
        let error = Staged::of_folder(Path::new(target), true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{target:?}");
    }
    let root = tempfile::tempdir().unwrap();
    let staged = Staged::of_folder(&root.path().join("a"), false).unwrap();
    for name in ["", "/x", "../x", "x/../../y"] {
        assert_eq!(staged.write(name, b"").unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    staged.write("x", b"").unwrap();
    assert_eq!(staged.write("x", b"").unwrap_err().kind(), ErrorKind::AlreadyExists);
}

#[test]
fn overwriting_through_a_link_keeps_the_link() {
    let root = tempfile::tempdir().unwrap();
    save(&root.path().join("step_1"), false, "old").unwrap();
    let latest = root.path().join("latest");
    symlink("step_1", &latest).unwrap();
    assert_eq!(save(&latest, false, "x").unwrap_err().kind(), ErrorKind::AlreadyExists);
    save(&latest, true, "new").unwrap();
    assert!(fs::symlink_metadata(&latest).unwrap().is_symlink());
    assert_eq!(saved(&root.path().join("step_1")), "new");
    symlink("nowhere", root.path().join("dangling")).unwrap();
    assert_eq!(save(&root.path().join("dangling"), true, "x").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_single_file_is_committed_like_a_folder() {
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("new/model.safetensors");
    let save = |overwrite: bool, content: &[u8]| {
        let staged = Staged::of_file(&target, overwrite)?;
        let mut writer = DirectWriter::create(&staged.single_file(), 0, 0)?;
        writer.write(content)?;
        writer.finish()?;
        staged.commit()
    };
    save(false, b"first").unwrap();
    assert_eq!(save(false, b"second").unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&target).unwrap(), b"first");
    save(true, b"third").unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"third");
    assert_eq!(names(&root.path().join("new")), ["model.safetensors"]);
    let folder = Staged::of_file(&root.path().join("new"), true).unwrap_err();
    assert_eq!(folder.kind(), ErrorKind::InvalidArgument);
    let nothing = Staged::of_file(&root.path().join("other"), false).unwrap();
    assert_eq!(nothing.commit().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(names(root.path()), ["new"]);
}

fn check_publish(target: &Path, kind: &Target, options: PublishOptions<'_>) -> Result<()> {
    LocalDisk.check_publish(&Location::local(target), kind, options)
}

fn begin_file(target: &Path, options: &PublishOptions<'_>) -> Result<Staged> {
    Staged::begin(Goal::of(&Location::local(target), &Target::File, options)?, options, false)
}

#[test]
fn a_file_that_the_check_refuses_at_the_commit_is_not_replaced() {
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("x");
    let is_empty = |at: &Location| match fs::read(at.path()) {
        Ok(bytes) if bytes.is_empty() => Ok(()),
        _ => Err(crate::error::Error::invalid("precious")),
    };
    fs::write(&target, b"").unwrap();
    let monitor = Monitor::new();
    let options = PublishOptions { may_replace: Some(is_empty), ..PublishOptions::of_overwrite(&monitor) };
    let staged = begin_file(&target, &options).unwrap();
    fs::write(staged.single_file(), b"new").unwrap();
    fs::write(&target, b"thesis").unwrap();
    assert_eq!(staged.commit().unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(begin_file(&target, &options).is_err());
    assert_eq!(fs::read(&target).unwrap(), b"thesis");
    assert_eq!(names(root.path()), ["x"]);
}

#[test]
fn of_two_writers_one_wins() {
    let root = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let target = root.path().join(format!("step_{round}"));
        let start = Barrier::new(4);
        let save = |content: String| {
            let staged = Staged::of_folder(&target, false).unwrap();
            start.wait();
            staged.write("_METADATA", content.as_bytes()).unwrap();
            staged.write("d/data", content.as_bytes()).unwrap();
            staged.commit()
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4).map(|i| scope.spawn(move || save(i.to_string()))).collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        let winner = results.iter().position(Result::is_ok).unwrap();
        assert_eq!(saved(&target), winner.to_string());
        let losers = results.iter().filter_map(|result| result.as_ref().err());
        assert_eq!(losers.map(Error::kind).collect::<Vec<_>>(), [ErrorKind::AlreadyExists; 3]);
    }
    assert_eq!(names(root.path()).len(), 20);
}

#[test]
fn two_overwriters_succeed_in_turn() {
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("step");
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let target = &target;
            scope.spawn(move || {
                for round in 0..20 {
                    save(target, true, &format!("{writer} {round}")).unwrap();
                }
            });
        }
        while !target.exists() {
            std::thread::yield_now();
        }
        for _ in 0..200 {
            // With an exchange the target always exists, but its old content may be removed during
            // the read. With two renames the target is missing for a moment.
            assert!(cfg!(feature = "portable") || target.exists());
            match fs::read_to_string(target.join("_METADATA")) {
                Ok(content) => assert!(content.contains(' ')),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
            }
        }
    });
    assert!(saved(&target).ends_with(" 19"));
    assert_eq!(names(root.path()), ["step"]);
}

#[test]
fn a_checkpoint_that_is_not_durable_is_still_whole() {
    let root = tempfile::tempdir().unwrap();
    let staged = Staged::of_folder(&root.path().join("a"), false).unwrap().durable(false);
    assert!(!staged.is_durable());
    staged.write("_METADATA", b"m").unwrap();
    let mut writer = staged.writer("data", 100_000, 0).unwrap();
    writer.write(&[7; 100_000]).unwrap();
    writer.finish().unwrap();
    staged.commit().unwrap();
    assert_eq!(fs::metadata(root.path().join("a/data")).unwrap().len(), 100_000);
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The modes that a new folder and a new file get.
fn modes_of_new(root: &Path) -> (u32, u32) {
    let (folder, file) = (root.join("new folder"), root.join("new file"));
    fs::create_dir(&folder).unwrap();
    fs::write(&file, b"").unwrap();
    let modes = (mode(&folder), mode(&file));
    fs::remove_dir(folder).unwrap();
    fs::remove_file(file).unwrap();
    modes
}

#[test]
fn a_replacement_is_private_until_its_commit() {
    let root = tempfile::tempdir().unwrap();
    let (folder, file) = (root.path().join("folder"), root.path().join("file"));
    let (new_folder, new_file) = modes_of_new(root.path());
    save(&folder, false, "old").unwrap();
    let save_file = |overwrite| {
        let staged = Staged::of_file(&file, overwrite)?;
        fs::write(staged.single_file(), b"x").unwrap();
        if overwrite {
            assert_eq!(mode(staged.single_file().parent().unwrap()), 0o700);
        }
        staged.commit()
    };
    save_file(false).unwrap();
    assert_eq!((mode(&folder), mode(&file)), (new_folder, new_file), "new ones have the modes of new ones");
    for (folder_mode, file_mode) in [(0o700, 0o600), (0o750, 0o640), (0o755, 0o644), (0o2775, 0o664)] {
        set_mode(&folder, folder_mode);
        set_mode(&file, file_mode);
        let staged = Staged::of_folder(&folder, true).unwrap();
        assert_eq!(mode(staged.folder()), 0o700);
        staged.write("_METADATA", b"new").unwrap();
        staged.commit().unwrap();
        save_file(true).unwrap();
        assert_eq!((mode(&folder), mode(&file)), (folder_mode, file_mode));
    }
    // A checkpoint that was removed in between comes back with its mode.
    for (folder_mode, file_mode) in [(0o700, 0o600), (0o750, 0o640)] {
        set_mode(&folder, folder_mode);
        set_mode(&file, file_mode);
        let staged = Staged::of_folder(&folder, true).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        staged.write("_METADATA", b"new").unwrap();
        staged.commit().unwrap();
        let staged = Staged::of_file(&file, true).unwrap();
        fs::remove_file(&file).unwrap();
        fs::write(staged.single_file(), b"x").unwrap();
        staged.commit().unwrap();
        assert_eq!((mode(&folder), mode(&file)), (folder_mode, file_mode));
    }
}

#[test]
fn names_of_any_length_are_saved_to_and_swept() {
    let root = tempfile::tempdir().unwrap();
    for len in [196, 197, 213, 214, 240, 255] {
        let target = root.path().join("n".repeat(len));
        let dead =
            leftovers::OwnFolder::make(root.path(), target.file_name().unwrap(), false, false).unwrap().path;
        save(&target, false, "first").unwrap();
        assert!(!dead.exists(), "what a killed writer of a name of {len} bytes has left");
        save(&target, true, "second").unwrap();
        assert_eq!(saved(&target), "second");
        let file = root.path().join("f".repeat(len));
        let staged = Staged::of_file(&file, false).unwrap();
        fs::write(staged.single_file(), b"x").unwrap();
        staged.commit().unwrap();
    }
    assert_eq!(names(root.path()).len(), 12);
}

#[test]
fn names_of_unfinished_saves_are_refused() {
    let root = tempfile::tempdir().unwrap();
    for name in ["run.orbax-checkpoint-tmp", "run.orbax-checkpoint-tmp-5", "a.orbax-checkpoint-tmp.npy"] {
        let target = root.path().join("made").join(name);
        for refused in [
            Staged::of_folder(&target, true).unwrap_err(),
            Staged::of_file(&target, true).unwrap_err(),
            check_publish(&target, &Target::Folder, PublishOptions::of_overwrite(&Monitor::new()))
                .unwrap_err(),
        ] {
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
            assert!(refused.to_string().contains(".orbax-checkpoint-tmp"));
        }
    }
    assert!(names(root.path()).is_empty(), "refused before anything is made");
    // Orbax makes its temporary folder before it calls a handler, and renames it afterwards.
    let of_orbax = root.path().join("item.orbax-checkpoint-tmp");
    fs::create_dir(&of_orbax).unwrap();
    save(&of_orbax, true, "x").unwrap();
}

#[test]
fn addresses_are_not_saved_into_folders() {
    for address in ["hdfs://bucket/x", "memory://bucket/x", "gs:/bucket/x", "file://tmp/x"] {
        let suffixes = [".data".to_owned()];
        for refused in [
            Staged::of_folder(Path::new(address), true).unwrap_err(),
            Staged::of_file(Path::new(address), true).unwrap_err(),
            Staged::of_siblings(Path::new(address), &suffixes, true).unwrap_err(),
        ] {
            assert_eq!(refused.kind(), ErrorKind::Unsupported);
        }
    }
    assert!(!Path::new("gs:").exists());
}

#[test]
fn what_may_not_be_replaced_is_refused_before_anything_begins() {
    let root = tempfile::tempdir().unwrap();
    let target = Location::local(root.path().join("x"));
    let is_empty: fn(&Location) -> Result<()> = |at| match fs::read(at.path()) {
        Ok(bytes) if bytes.is_empty() => Ok(()),
        Ok(_) => Err(Error::invalid("precious")),
        Err(_) => Err(Error::invalid("asked about nothing")),
    };
    let monitor = Monitor::new();
    let may_begin = |overwrite, may_replace| {
        let options = PublishOptions { overwrite, may_replace, ..PublishOptions::of_new(&monitor) };
        check_publish(target.path(), &Target::File, options)
    };
    // The target does not exist, so `may_replace` is not called.
    for overwrite in [false, true] {
        may_begin(overwrite, Some(is_empty)).unwrap();
    }
    fs::write(target.path(), b"").unwrap();
    may_begin(true, Some(is_empty)).unwrap();
    assert_eq!(may_begin(false, Some(is_empty)).unwrap_err().kind(), ErrorKind::AlreadyExists);
    fs::write(target.path(), b"thesis").unwrap();
    let error = may_begin(true, Some(is_empty)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    may_begin(true, None).unwrap();
    assert_eq!(names(root.path()), ["x"]);
}

#[test]
fn what_a_living_writer_has_is_removed_by_force_alone() {
    use super::remove::remove_unfinished;

    let root = tempfile::tempdir().unwrap();
    for by_its_own_name in [true, false] {
        let target = root.path().join("x");
        let staged = Staged::of_folder(&target, false).unwrap();
        staged.write("_METADATA", b"m").unwrap();
        let at = if by_its_own_name { staged.folder().to_owned() } else { target.clone() };
        let error = remove_unfinished(&at, false).unwrap_err();
        assert!(staged.folder().join("_METADATA").is_file(), "{error}");
        let removed = remove_unfinished(&at, true).unwrap();
        assert!(!removed.is_finished && removed.file_count == 1, "{removed:?}");
        assert!(names(root.path()).is_empty());
        drop(staged);
    }
}

#[test]
fn every_kind_says_what_it_was_told() {
    let root = tempfile::tempdir().unwrap();
    for durable in [false, true] {
        let suffixes = [".m".to_owned()];
        let kinds = [
            Staged::of_folder(&root.path().join("folder"), false).unwrap(),
            Staged::of_file(&root.path().join("file"), false).unwrap(),
            Staged::of_siblings(&root.path().join("pair"), &suffixes, false).unwrap(),
        ];
        for kind in kinds {
            let kind = kind.durable(durable);
            assert_eq!(kind.files.durable, durable, "{kind:?}");
            kind.files.monitor.cancel();
            assert_eq!(kind.commit().unwrap_err().kind(), ErrorKind::Cancelled);
        }
    }
    assert!(names(root.path()).is_empty());
}

#[test]
fn of_those_who_claim_a_name_one_gets_it() {
    let root = tempfile::tempdir().unwrap();
    let staged = Staged::of_folder(&root.path().join("x"), false).unwrap();
    assert!(staged.files.claim("mine").unwrap());
    assert!(!staged.files.claim("mine").unwrap());
    // A name that is too long is an error, and does not count as the claim of another process.
    staged.files.claim(&"x".repeat(300)).unwrap_err();
}

#[test]
fn a_file_is_asked_about_only_if_it_is_there() {
    let root = tempfile::tempdir().unwrap();
    let monitor = Monitor::new();
    let refuse = |_: &Location| Err(Error::invalid("it may not be replaced"));
    for (name, is_there) in [("new", false), ("old", true)] {
        let path = root.path().join(name);
        let options = PublishOptions { may_replace: Some(refuse), ..PublishOptions::of_overwrite(&monitor) };
        let staged = begin_file(&path, &options);
        if !is_there {
            let staged = staged.unwrap();
            fs::write(staged.single_file(), b"new").unwrap();
            staged.commit().unwrap();
            continue;
        }
        fs::write(&path, b"precious").unwrap();
        // The check happens at the start or at the commit.
        let refused = staged.and_then(|staged| {
            fs::write(staged.single_file(), b"new").unwrap();
            staged.commit()
        });
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }
}

#[test]
fn a_file_replaces_a_checkpoint_folder_and_no_other_folder() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("x");
    let save = |text: &str| {
        let staged = Staged::of_file_over_any(&path, true)?;
        fs::write(staged.single_file(), text).unwrap();
        staged.sync_later();
        staged.commit()
    };
    fs::create_dir(&path).unwrap();
    fs::write(path.join("_METADATA"), b"{}").unwrap();
    fs::write(path.join("thesis.tex"), b"...").unwrap();
    assert_eq!(save("new").unwrap_err().kind(), ErrorKind::InvalidArgument);
    fs::remove_file(path.join("thesis.tex")).unwrap();
    // A plain staged file refuses every folder.
    assert_eq!(Staged::of_file(&path, true).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(Staged::of_file_over_any(&path, false).is_err());
    save("new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(crate::system::mode_of(&fs::metadata(&path).unwrap()) & 0o111, 0, "no program");
    std::os::unix::fs::symlink("x", root.path().join("link")).unwrap();
    let staged = Staged::of_file_over_any(&root.path().join("link"), true).unwrap();
    fs::write(staged.single_file(), "other").unwrap();
    staged.commit().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert!(!fs::symlink_metadata(root.path().join("link")).unwrap().is_symlink());
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2, "nothing is left");
}
