//! `regrow doctor PATH`: the process that changes a checkpoint, the files that killed processes
//! left, and the way to end each. Locks that no operation can use.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process;

use crate::common::{Run, command, regrow, saved, text};
use regrow::location::Location;
use regrow::{Monitor, SaveOptions};
use serde_json::Value;

/// The user `nobody`.
const NOBODY: u32 = 65534;

fn traces(at: &str) -> (Run, Vec<Value>) {
    let run = regrow(["doctor", "--json", at]);
    let traces = run.json()["traces"].as_array().unwrap().clone();
    (run, traces)
}

fn lock_file(target: &Path) -> PathBuf {
    target.with_file_name(format!(".{}.regrow.__lock", text(target.file_name().unwrap().as_ref())))
}

#[test]
fn doctor_names_the_process_that_has_the_lock() {
    let (folder, path) = saved();
    let (run, found) = traces(text(&path));
    assert_eq!((run.code, found), (0, Vec::new()));

    let lock = Location::local(&path).lock("repair", None, &Monitor::new()).unwrap();
    // Also by the folder of the checkpoint.
    for at in [&path, folder.path()] {
        let (run, found) = traces(text(at));
        assert_eq!((run.code, found.len()), (0, 1), "{run:?}");
        assert_eq!((&found[0]["kind"], &found[0]["life"]), (&"lock".into(), &"alive".into()), "{run:?}");
        assert_eq!(found[0]["path"], text(&lock_file(&path.canonicalize().unwrap())));
        assert_eq!(found[0]["owner"]["pid"], process::id());
        assert_eq!(found[0]["owner"]["operation"], "repair");
    }
    let told = regrow(["doctor", text(&path)]).stdout;
    assert!(told.contains(&format!("process {} on ", process::id())), "{told}");
    assert!(told.contains("wait until the process ends"), "{told}");
    drop(lock);
    assert_eq!(traces(text(&path)).1, Vec::<Value>::new());
}

#[test]
fn doctor_lists_what_killed_processes_left_and_how_to_end_it() {
    let left = regrow_testkit::fixtures().join("left_behind/disk");
    for (fixture, kind, remedy) in [
        ("save", "unfinished save or removal", "rm --unfinished"),
        ("overwrite", "unfinished save or removal", "rm --unfinished"),
        ("copy", "unfinished copy", "the next copy"),
        ("overwrite_between", "old checkpoint of an unfinished overwrite", "puts it back"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        regrow_testkit::copy_folder(&left.join(fixture), folder.path()).unwrap();
        for at in [folder.path().join("ckpt"), folder.path().to_owned()] {
            let (run, found) = traces(text(&at));
            assert!(run.code == 0 && found.iter().all(|each| each["life"] == "dead"), "{fixture}: {run:?}");
            let found = found.iter().find(|each| each["kind"] == kind).unwrap();
            assert!(found["remedy"].as_str().unwrap().contains(remedy), "{fixture}: {found}");
        }
    }
    // Orbax writes this name, and takes no lock.
    let (_folder, path) = saved();
    fs::create_dir(path.with_file_name("step_1.orbax-checkpoint-tmp-1700000000000000")).unwrap();
    let (_, found) = traces(text(&path));
    assert_eq!(found[0]["kind"], "unfinished save of another tool");
}

/// A lock file that is no text of ours is that of a dead process.
#[test]
fn a_lock_file_with_any_text_keeps_no_process_out() {
    let mut lines = vec!["{\"host\": \"x\", \"pid\": 1, \"operation\": \"save\", \"since\": 9}\n"];
    lines.extend(["", "no JSON", "{\"pid\": -1}", "[1, 2]"]);
    for line in lines {
        let (_folder, path) = saved();
        fs::write(lock_file(&path), line).unwrap();
        let (run, found) = traces(text(&path));
        assert_eq!((run.code, found.len(), &found[0]["life"]), (0, 1, &"dead".into()), "{line}: {run:?}");
        assert_eq!(found[0]["owner"].is_null(), !line.contains("host"), "{line}");
        assert!(found[0]["remedy"].as_str().unwrap().contains("nothing to do"), "{line}");
        overwrite(&path).unwrap();
        assert!(!lock_file(&path).exists(), "{line}");
    }
}

fn overwrite(path: &Path) -> regrow::Result<()> {
    let tree = regrow::load::<regrow::tree::Tree<regrow::tree::Leaf>>(path)?;
    regrow::save_with(path, &tree, &SaveOptions { overwrite: true, ..SaveOptions::default() }).map(drop)
}

/// Checks that operations refuse the lock file of a checkpoint, change nothing, and that `doctor`
/// says how to end it.
fn check_refused(path: &Path, found: &str) {
    let before = regrow(["ls", "--json", text(path)]).stdout;
    let error = overwrite(path).unwrap_err().to_string();
    assert!(error.contains("lock") && error.contains(text(&lock_file(path))), "{error}");
    let (run, traces) = traces(text(path));
    assert_eq!((run.code, traces.len()), (1, 1), "{run:?}");
    let error = &traces[0]["error"];
    assert!(error["found"].as_str().unwrap().contains(found), "{error}");
    assert_eq!(traces[0]["remedy"], error["help"]);
    let run = regrow(["doctor", text(path)]);
    assert!(run.code == 1 && run.stderr.contains(error["what"].as_str().unwrap()), "{run:?}");
    assert_eq!(regrow(["ls", "--json", text(path)]).stdout, before);
}

#[test]
fn a_lock_file_that_is_a_folder_is_refused() {
    let (_folder, path) = saved();
    fs::create_dir(lock_file(&path)).unwrap();
    fs::write(lock_file(&path).join("file"), "mine").unwrap();
    check_refused(&path, "a folder");
    assert_eq!(fs::read(lock_file(&path).join("file")).unwrap(), b"mine");
}

#[test]
fn a_lock_file_that_is_a_link_is_refused_and_its_end_is_unchanged() {
    let (folder, path) = saved();
    let end = folder.path().join("mine");
    fs::write(&end, "mine").unwrap();
    symlink(&end, lock_file(&path)).unwrap();
    check_refused(&path, "a link");
    assert_eq!(fs::read(&end).unwrap(), b"mine");
    // A link to nothing makes no file.
    fs::remove_file(&end).unwrap();
    check_refused(&path, "a link");
    assert!(!end.exists());
}

/// Another user has made the lock file, and does not let others write to it.
#[test]
fn a_lock_file_that_cannot_be_written_is_refused() {
    let (folder, path) = saved();
    fs::write(lock_file(&path), "").unwrap();
    fs::set_permissions(lock_file(&path), fs::Permissions::from_mode(0o444)).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let mut child = process::Command::new(command().get_program());
    child.args(["doctor", "--json", text(&path)]);
    // Root may write everywhere.
    if fs::OpenOptions::new().write(true).open(lock_file(&path)).is_ok() {
        child.uid(NOBODY);
    }
    let Ok(output) = child.output() else {
        return eprintln!("not tested: another user cannot run the command");
    };
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let trace = &found["traces"][0];
    assert_eq!((&trace["kind"], &trace["life"]), (&"lock".into(), &"dead".into()), "{trace}");
    assert_eq!(trace["error"]["kind"], "permission_denied", "{trace}");
    assert!(trace["remedy"].as_str().unwrap().contains("writable"), "{trace}");
}
