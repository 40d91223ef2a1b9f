//! All or nothing, whoever else is there.

use std::os::unix::fs::symlink;
use std::sync::Barrier;

use super::*;

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn save(target: &Path, overwrite: bool, content: &str) -> Result<PathBuf> {
    let staged = Staged::create(target, overwrite)?;
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
    let staged = Staged::create(&target, false).unwrap();
    assert_eq!(staged.made_parents(), [root.path().join("runs"), root.path().join("runs/a")]);
    assert!(staged.folder().to_string_lossy().contains("step_1.orbax-checkpoint-tmp-"));
    staged.write("_METADATA", b"m").unwrap();
    let mut writer = staged.writer("d/data", 3, 0).unwrap();
    writer.write(b"abc").unwrap();
    writer.finish().unwrap();
    assert!(!target.exists());
    assert_eq!(staged.commit().unwrap(), target);
    assert_eq!(names(target.parent().unwrap()), ["step_1"]);
    assert_eq!(fs::read(target.join("d/data")).unwrap(), b"abc");
}

#[test]
fn many_small_files_are_synced_at_once() {
    let root = tempfile::tempdir().unwrap();
    let staged = Staged::create(&root.path().join("a"), false).unwrap();
    for i in 0..300 {
        staged.write(&format!("leaf{i}/0.0"), b"x").unwrap();
    }
    let target = staged.commit().unwrap();
    assert_eq!(names(&target).len(), 300);
}

#[test]
fn dropped_it_leaves_no_trace() {
    let root = tempfile::tempdir().unwrap();
    let staged = Staged::create(&root.path().join("a/b/c"), false).unwrap();
    staged.write("x/y", b"z").unwrap();
    drop(staged);
    assert!(names(root.path()).is_empty());
}

#[test]
fn relative_targets_are_beside_the_working_folder_of_the_time() {
    // The tests' working folder is the crate's own; nothing is committed there.
    let staged = Staged::create(Path::new("a/relative"), false).unwrap();
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
fn a_target_that_became_precious_meanwhile_is_not_replaced() {
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("step");
    let staged = Staged::create(&target, true).unwrap();
    fs::create_dir(&target).unwrap();
    fs::write(target.join("thesis.tex"), b"...").unwrap();
    assert_eq!(staged.commit().unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(names(root.path()), ["step"]);
    assert_eq!(names(&target), ["thesis.tex"]);
}

#[test]
fn every_marker_makes_a_folder_replaceable() {
    let root = tempfile::tempdir().unwrap();
    for marker in CHECKPOINT_MARKERS {
        let target = root.path().join(format!("with {marker}"));
        fs::create_dir(&target).unwrap();
        fs::write(target.join(marker), b"").unwrap();
        save(&target, true, marker).unwrap();
        assert_eq!(saved(&target), marker);
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
        let error = Staged::create(&target, true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}");
        assert!(target.join("thesis.txt").is_file());
    }
}

#[test]
fn targets_without_a_name_are_refused() {
    for target in ["", "/", "..", "a/.."] {
        let error = Staged::create(Path::new(target), true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{target:?}");
    }
    let root = tempfile::tempdir().unwrap();
    let staged = Staged::create(&root.path().join("a"), false).unwrap();
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
        let staged = Staged::for_file(&target, overwrite)?;
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
    let folder = Staged::for_file(&root.path().join("new"), true).unwrap_err();
    assert_eq!(folder.kind(), ErrorKind::InvalidArgument);
    let nothing = Staged::for_file(&root.path().join("other"), false).unwrap();
    assert_eq!(nothing.commit().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(names(root.path()), ["new"]);
}

#[test]
fn a_file_that_became_precious_meanwhile_is_not_replaced() {
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("x");
    let is_empty = |path: &Path| match fs::read(path) {
        Ok(bytes) if bytes.is_empty() => Ok(()),
        _ => Err(crate::error::Error::invalid("precious")),
    };
    fs::write(&target, b"").unwrap();
    let staged = Staged::for_file(&target, true).unwrap().replacing_only(is_empty).unwrap();
    fs::write(staged.single_file(), b"new").unwrap();
    fs::write(&target, b"thesis").unwrap();
    assert_eq!(staged.commit().unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(Staged::for_file(&target, true).unwrap().replacing_only(is_empty).is_err());
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
            let staged = Staged::create(&target, false).unwrap();
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
            // The exchange leaves no moment without a target; what was in it may go while we look at it.
            assert!(target.exists());
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
    let staged = Staged::create(&root.path().join("a"), false).unwrap().durable(false);
    assert!(!staged.is_durable());
    staged.write("_METADATA", b"m").unwrap();
    let mut writer = staged.writer("data", 100_000, 0).unwrap();
    writer.write(&[7; 100_000]).unwrap();
    writer.finish().unwrap();
    let target = staged.commit().unwrap();
    assert_eq!(fs::metadata(target.join("data")).unwrap().len(), 100_000);
}
