//! `regrow doctor PATH`: the process that changes a checkpoint, the files that killed processes
//! left, and the way to end each. Locks that no operation can use.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use crate::common::{Run, command, regrow, saved, text};
use regrow::location::{Location, StorageOptions};
use regrow::{Monitor, SaveOptions};
use regrow_testkit::object_server::ObjectServer;
use serde_json::Value;

/// A user without rights.
const OTHER_USER: u32 = 65534;

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
        child.uid(OTHER_USER);
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

/// A bucket with a checkpoint at `runs/x`.
struct Bucket {
    server: ObjectServer,
    options: [String; 4],
}

impl Bucket {
    fn new() -> Self {
        let server = ObjectServer::start().unwrap();
        server.create_bucket("bucket");
        let endpoint = server.endpoint();
        let options =
            ["region=us-east-1", "key=test", "secret=testtest", &format!("endpoint_url={endpoint}")];
        let bucket = Self { server, options: options.map(str::to_owned) };
        let (_folder, path) = saved();
        let run = bucket.run(&["cp", text(&path), "s3://bucket/runs/x"]);
        assert_eq!(run.code, 0, "{run:?}");
        bucket
    }

    fn run(&self, arguments: &[&str]) -> Run {
        let options = self.options.iter().flat_map(|option| ["--storage-option", option]);
        regrow(arguments.iter().copied().chain(options))
    }

    fn location(&self) -> Location {
        let options = self.options.iter().map(|option| option.split_once('=').unwrap());
        let options = options.fold(StorageOptions::new(), |all, (name, value)| all.with(name, value));
        Location::with_options(Path::new("s3://bucket/runs/x"), &options).unwrap()
    }

    fn traces(&self) -> (Run, Vec<Value>) {
        let run = self.run(&["doctor", "--json", "s3://bucket/runs/x"]);
        let traces = run.json()["traces"].as_array().unwrap().clone();
        (run, traces)
    }
}

#[test]
fn doctor_names_the_process_that_has_the_lock_in_a_bucket() {
    let bucket = Bucket::new();
    assert_eq!(bucket.traces().1, Vec::<Value>::new());
    let lock = bucket.location().lock("repair", None, &Monitor::new()).unwrap();
    let (run, found) = bucket.traces();
    assert_eq!((run.code, found.len()), (0, 1), "{run:?}");
    assert_eq!(found[0]["path"], "s3://bucket/runs/x/regrow-state.json");
    assert_eq!((&found[0]["kind"], &found[0]["phase"]), (&"lock".into(), &"changing".into()));
    assert_eq!((&found[0]["life"], &found[0]["owner"]["operation"]), (&"alive".into(), &"repair".into()));
    assert_eq!(found[0]["owner"]["pid"], process::id());
    drop(lock);
    assert_eq!(bucket.traces().1, Vec::<Value>::new());
}

#[test]
fn doctor_says_how_long_the_lock_of_another_machine_lasts() {
    let bucket = Bucket::new();
    let state = r#"{"regrow_state": 1, "target": "runs/x", "nonce": "1", "host": "node7 1", "pid": 71,
        "operation": "repair", "since": 1764409000, "renewals": 3, "phase": "changing"}"#;
    bucket.server.put("bucket", "runs/x/regrow-state.json", state);
    let (run, found) = bucket.traces();
    assert_eq!(
        (run.code, &found[0]["life"], &found[0]["owner"]["host"]),
        (0, &"not known".into(), &"node7".into())
    );
    assert!(found[0]["remedy"].as_str().unwrap().contains("3 minutes"), "{}", found[0]);
    bucket.server.age(Duration::from_secs(200));
    let (_, found) = bucket.traces();
    assert_eq!(found[0]["life"], "dead");
    assert!(found[0]["remedy"].as_str().unwrap().contains("nothing to do"), "{}", found[0]);
}

#[test]
fn doctor_lists_what_killed_processes_left_in_a_bucket() {
    let left = regrow_testkit::fixtures().join("left_behind/bucket");
    for (fixture, kind, remedy) in [
        ("save", "unfinished save or removal", "rm --unfinished"),
        ("save_siblings", "unfinished save or removal", "rm --unfinished"),
        ("overwrite", "unfinished save or removal", "rm --unfinished"),
        ("overwrite_locked", "lock", "nothing to do"),
        ("overwrite_moved", "overwrite that is copied to its path", "finishes"),
        ("copy", "unfinished copy", "the next copy"),
    ] {
        let bucket = Bucket::new();
        for key in bucket.server.keys("bucket", "") {
            bucket.server.delete("bucket", &key);
        }
        let folder = left.join(fixture);
        for file in regrow_testkit::files_below(&folder).unwrap() {
            let name = text(file.strip_prefix(&folder).unwrap()).to_owned();
            bucket.server.put("bucket", &format!("work/{name}"), fs::read(file).unwrap());
        }
        let run = bucket.run(&["doctor", "--json", "s3://bucket/work/ckpt"]);
        assert_eq!(run.code, 0, "{fixture}: {run:?}");
        let traces = run.json()["traces"].as_array().unwrap().clone();
        let found = traces.iter().find(|each| each["kind"] == kind);
        let found = found.unwrap_or_else(|| panic!("{fixture}: {traces:?}"));
        assert_eq!(found["life"], "dead", "{fixture}: {found}");
        assert!(found["remedy"].as_str().unwrap().contains(remedy), "{fixture}: {found}");
    }
}

/// Checks that operations refuse a state object with this text, delete nothing, and that `doctor`
/// says how to end it.
fn check_refused_in_bucket(state: &str, kind: &str) {
    let bucket = Bucket::new();
    let (_folder, other) = saved();
    let before = bucket.server.keys("bucket", "");
    bucket.server.put("bucket", "runs/x/regrow-state.json", state.to_owned());
    for arguments in [
        &["cp", text(&other), "s3://bucket/runs/x", "--overwrite"][..],
        &["rm", "s3://bucket/runs/x", "--yes"],
        &["seal", "s3://bucket/runs/x"],
    ] {
        let run = bucket.run(arguments);
        assert!(run.code != 0 && run.stderr.contains("regrow-state.json"), "{arguments:?}: {run:?}");
        assert!(run.stderr.contains("help: "), "{arguments:?}: {run:?}");
    }
    // A reader cannot know where the checkpoint is.
    let run = bucket.run(&["ls", "s3://bucket/runs/x"]);
    assert!(run.code != 0 && run.stderr.contains("regrow-state.json"), "{run:?}");
    let (run, found) = bucket.traces();
    assert_eq!((run.code, found.len()), (1, 1), "{run:?}");
    assert_eq!((&found[0]["life"], &found[0]["error"]["kind"]), (&"not known".into(), &kind.into()));
    assert_eq!(found[0]["remedy"], found[0]["error"]["help"]);
    assert!(found[0]["remedy"].is_string(), "{}", found[0]);
    // The checkpoint is there when the object is gone.
    assert!(bucket.server.delete("bucket", "runs/x/regrow-state.json"));
    assert_eq!(bucket.server.keys("bucket", ""), before);
    let run = bucket.run(&["verify", "s3://bucket/runs/x"]);
    assert_eq!(run.code, 0, "{run:?}");
}

#[test]
fn a_state_object_that_is_no_json_is_refused() {
    check_refused_in_bucket("no JSON", "corrupt");
    check_refused_in_bucket("", "corrupt");
}

#[test]
fn a_state_object_of_a_newer_version_is_refused() {
    check_refused_in_bucket(r#"{"regrow_state": 2, "phase": "thinking"}"#, "unsupported");
}

#[test]
fn a_state_object_of_another_target_is_refused() {
    let state = r#"{"regrow_state": 1, "target": "runs/y", "nonce": "1", "host": "node7 1", "pid": 71,
        "operation": "save", "since": 1764409000, "phase": "moved", "folder": "runs/y.orbax-checkpoint-tmp-1"}"#;
    check_refused_in_bucket(state, "corrupt");
}
