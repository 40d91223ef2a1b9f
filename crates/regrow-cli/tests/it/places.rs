//! `cp`, `rm`, and `ls` of a folder of checkpoints.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{command, orbax, regrow, saved, text};

/// The files below a folder, by what follows its path.
fn files(folder: &Path) -> Vec<PathBuf> {
    let (mut folders, mut files) = (vec![folder.to_owned()], Vec::new());
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path.strip_prefix(folder).unwrap().to_owned()),
            }
        }
    }
    files
}

fn count(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn cp_copies_and_says_what() {
    let (folder, path) = saved();
    let target = folder.path().join("new");
    let run = regrow(["cp", text(&path), text(&target)]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
    let names = files(&path);
    let files = names.len();
    assert!(run.stdout.starts_with(&format!("{}: {files} files, ", text(&target))), "{run:?}");
    for name in &names {
        assert_eq!(fs::read(path.join(name)).unwrap(), fs::read(target.join(name)).unwrap(), "{name:?}");
    }
    assert_eq!(regrow(["verify", text(&target)]).code, 0);
    let again = regrow(["cp", text(&path), text(&target)]);
    assert!(again.code == 2 && again.stderr.contains("already exists"), "{again:?}");
    let run =
        regrow(["cp", text(&path), text(&target), "--overwrite", "--no-verify", "--jobs", "2", "--json"]);
    let json = run.json();
    assert_eq!(
        (run.code, json["file_count"].as_u64(), json["verified"].as_bool()),
        (0, Some(files as u64), Some(false))
    );
    assert!(
        json["bytes"].as_u64().unwrap() > 0 && json["reused_bytes"] == 0 && json["stages"].is_array(),
        "{json}"
    );
    let run = regrow(["cp", text(&path), text(&folder.path().join("b")), "--verbose", "--no-sync"]);
    assert!(run.code == 0 && run.stderr.contains("ms\n") && run.stderr.contains("compare"), "{run:?}");
    // To and from memory, which is another storage and gone with the process.
    let run = regrow(["cp", text(&path), "memory://cli/x"]);
    assert!(run.code == 0 && run.stdout.starts_with("memory://cli/x: "), "{run:?}");
    assert_eq!(count(folder.path()), 3);
}

#[test]
fn cp_of_a_folder_of_steps_takes_all_steps_or_one() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("run");
    assert_eq!(regrow(["cp", text(&orbax("manager_default")), text(&target)]).code, 0);
    let info = regrow(["info", "--json", text(&target)]).json();
    assert_eq!(info["steps"], serde_json::json!([0, 10, 20]));
    let (one, none) = (folder.path().join("b"), folder.path().join("c"));
    let run = regrow(["cp", "--step", "10", text(&target), text(&one)]);
    assert!(run.code == 0 && run.stdout.contains("step 10"), "{run:?}");
    assert_eq!(regrow(["verify", text(&one)]).code, 0);
    let run = regrow(["cp", "--step", "11", text(&target), text(&none)]);
    assert!(run.code == 3 && run.stderr.contains("step 11") && !none.exists(), "{run:?}");
}

/// Of a folder of several steps `cp` takes all, `verify` the newest, and `convert` asks.
#[test]
fn commands_name_the_steps_that_they_take() {
    let folder = tempfile::tempdir().unwrap();
    let root = orbax("manager_default");
    let target = |name: &str| text(&folder.path().join(name)).to_owned();
    let run = regrow(["convert", text(&root), &target("a"), "--step", "10"]);
    assert!(run.code == 0 && run.stdout.contains(": step 10: "), "{run:?}");
    let run = regrow(["convert", text(&root), &target("b"), "--step", "10", "--json"]);
    assert_eq!(run.json()["step"], 10);
    let run = regrow(["cp", text(&root), &target("c")]);
    assert!(run.code == 0 && run.stdout.ends_with(", steps 0, 10, 20\n"), "{run:?}");
    let run = regrow(["verify", text(&root)]);
    assert!(run.code == 0 && run.stderr.starts_with("note: step 20 of 3 steps is verified"), "{run:?}");
    assert!(run.stdout.contains(": step 20: sound"), "{run:?}");
    // The newest of one is all there are.
    assert_eq!(regrow(["cp", "--step", "10", text(&root), &target("one/step_10")]).code, 0);
    let run = regrow(["verify", &target("one")]);
    assert!(run.stdout.contains(": step 10: sound") && !run.stderr.contains("all-steps"), "{run:?}");
    let run = regrow(["convert", &target("one"), &target("d")]);
    assert!(run.code == 0 && run.stdout.contains(": step 10: "), "{run:?}");
    // All steps of what is no folder of steps.
    let one = target("a");
    for arguments in
        [&["verify", one.as_str()][..], &["cp", &one, &target("e")], &["convert", &one, &target("f")]]
    {
        let run = regrow(arguments.iter().copied().chain(["--all-steps"]));
        assert!(run.code == 2 && run.stderr.contains("this is not a folder of steps"), "{run:?}");
        assert!(run.stderr.contains("help: leave out `--all-steps`"), "{run:?}");
    }
}

#[test]
fn mistakes_of_cp_and_rm_end_with_their_numbers() {
    let (folder, path) = saved();
    let inside = |name: &str| folder.path().join(name);
    fs::create_dir(inside("notes")).unwrap();
    fs::write(inside("notes/a.txt"), "x").unwrap();
    let [none, notes, b, below] = [inside("none"), inside("notes"), inside("b"), path.join("below")];
    let [none, notes, b, below, path_text] = [&none, &notes, &b, &below, &path].map(|path| text(path));
    let cases: [(&[&str], i32); 14] = [
        (&["cp", path_text], 2),
        (&["cp", none, b], 3),
        (&["cp", notes, b], 3),
        (&["cp", path_text, path_text], 2),
        (&["cp", path_text, below], 2),
        (&["cp", path_text, notes, "--overwrite"], 2),
        (&["cp", path_text, b, "--jobs", "0"], 2),
        (&["cp", path_text, "hdfs://host/x"], 3),
        (&["rm", none, "--yes"], 3),
        (&["rm", notes, "--yes"], 3),
        (&["rm", path_text, "--force", "--yes"], 2),
        (&["rm", path_text, "--unfinished", "--yes"], 3),
        (&["rm", "hdfs://host/x", "--yes"], 3),
        // There is no terminal for the question.
        (&["rm", path_text], 2),
    ];
    for (arguments, code) in cases {
        let run = regrow(arguments);
        assert_eq!((run.code, run.stdout.as_str()), (code, ""), "{arguments:?}: {run:?}");
        assert!(!run.stderr.is_empty());
    }
    assert_eq!(regrow(["verify", text(&path)]).code, 0);
    assert_eq!(count(folder.path()), 2);
}

#[test]
fn rm_removes_one_checkpoint() {
    let (folder, path) = saved();
    assert_eq!(regrow(["cp", text(&path), text(&folder.path().join("step_2"))]).code, 0);
    let names = files(&path);
    let files = names.len();
    let run = regrow(["rm", text(folder.path()), "--yes"]);
    assert!(run.code != 0 && count(folder.path()) == 2, "{run:?}");
    let run = regrow(["rm", text(&path), "--yes"]);
    assert!(run.code == 0 && run.stdout.contains(&format!(": removed {files} files, ")), "{run:?}");
    assert_eq!(count(folder.path()), 1);
    let run = regrow(["rm", text(&folder.path().join("step_2")), "-y", "--json"]);
    assert_eq!((run.code, run.json()["file_count"].as_u64()), (0, Some(files as u64)));
    assert_eq!(count(folder.path()), 0);
    let left = folder.path().join("x.orbax-checkpoint-tmp-1-0123456789abcdef");
    fs::create_dir(&left).unwrap();
    let run = regrow(["rm", text(&folder.path().join("x")), "--unfinished", "--yes"]);
    assert!(run.code == 0 && !left.exists(), "{run:?}");
}

#[test]
fn ls_of_a_folder_lists_its_checkpoints() {
    let (folder, path) = saved();
    let inside = |name: &str| folder.path().join(name);
    let convert = |name: &str, layout: &str| {
        let run = regrow(["convert", text(&path), text(&inside(name)), "--layout", layout, "--lossy"]);
        assert_eq!(run.code, 0, "{run:?}");
    };
    convert("step_10", "orbax");
    let list = |arguments: &[&str]| {
        let run = regrow(["ls"].iter().chain(arguments).copied().chain([text(folder.path())]));
        assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
        run
    };
    let stdout = list(&[]).stdout;
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(lines[0].starts_with("NAME     LAYOUT  STATE      BYTES  WHEN"), "{stdout}");
    assert!(lines[1].starts_with("step_1   regrow  committed  "), "{stdout}");
    assert!(lines[2].starts_with("step_10  orbax   committed  "), "{stdout}");
    assert!(lines[3].starts_with("2 checkpoints, ") && lines.len() == 4, "{stdout}");
    // A step is still listed by its leaves.
    let run = regrow(["ls", text(folder.path()), "--step", "1"]);
    assert!(run.stdout.starts_with("KEY PATH"), "{run:?}");
    let run = regrow(["ls", text(folder.path()), "params"]);
    assert!(run.stdout.starts_with("KEY PATH"), "{run:?}");

    convert("b.npz", "npy");
    convert("pair", "pytree_data");
    fs::create_dir(inside("step_11.orbax-checkpoint-tmp-1")).unwrap();
    fs::create_dir(inside("notes")).unwrap();
    fs::write(inside("readme.md"), "x").unwrap();
    fs::create_dir(inside("bad")).unwrap();
    fs::write(inside("bad/regrow.json"), "{").unwrap();
    let json = list(&["--json"]).json();
    let rows = json["checkpoints"].as_array().unwrap();
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap_or(&serde_json::Value::Null);
    assert_eq!(rows.len(), 6, "{json}");
    assert_eq!(
        (row("pair")["layout"].as_str(), row("pair")["file_count"].as_u64()),
        (Some("pytree_data"), Some(2))
    );
    assert_eq!(row("b.npz")["layout"], "npy");
    assert_eq!(row("step_11.orbax-checkpoint-tmp-1")["state"], "unfinished");
    assert_eq!(
        (row("bad")["state"].as_str(), row("bad")["error"]["kind"].as_str()),
        (Some("damaged"), Some("corrupt"))
    );
    let bytes: u64 = files(&path).iter().map(|name| path.join(name).metadata().unwrap().len()).sum();
    assert_eq!(row("step_1")["bytes"].as_u64(), Some(bytes));
    assert!(row("step_1")["modified"].as_f64().unwrap() > 1.7e9);
    // A run among others.
    let run = regrow(["ls", text(&orbax("manager_default"))]);
    assert!(run.code == 0 && run.stdout.contains("orbax") && run.stdout.contains("3 checkpoints"), "{run:?}");
}

/// However a copy is killed, the target is no checkpoint or a whole one, and the same command ends
/// it.
#[test]
fn a_killed_cp_goes_on() {
    let (folder, path) = saved();
    // Long enough to be killed in the midst of it.
    let long = folder.path().join("long.npy");
    let mut npy = b"\x93NUMPY\x01\x00".to_vec();
    let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({},), }}", 48 << 20);
    npy.extend(118_u16.to_le_bytes());
    npy.extend(format!("{header:<117}\n").bytes());
    npy.extend((0..48 << 20).map(|at: u32| (at % 251) as u8));
    fs::write(&long, npy).unwrap();
    for (source, name) in [(&path, "a"), (&long, "b.npy")] {
        let target = folder.path().join(name);
        let mut killed = 0;
        for wait in (0..).map(|attempt| attempt * 40) {
            let mut child = std::process::Command::new(command().get_program())
                .args(["cp", text(source), text(&target)])
                .stderr(std::process::Stdio::null())
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(std::time::Duration::from_millis(wait));
            child.kill().unwrap();
            let ended = child.wait().unwrap();
            if ended.success() || target.exists() {
                break;
            }
            killed += 1;
            assert_eq!(regrow(["ls", text(&target)]).code, 3);
        }
        assert!(killed > 0);
        let same = |name: &str| fs::read(source.join(name)).ok() == fs::read(target.join(name)).ok();
        assert!(fs::read(source).ok() == fs::read(&target).ok() && same("model.safetensors"), "{name}");
        assert_eq!(regrow(["verify", text(&target)]).code, 0);
        // What a kill after the rename may have left goes with the next save or copy.
        let _ = regrow(["rm", "--unfinished", "--yes", text(&target)]);
    }
    assert_eq!(count(folder.path()), 4);
}

#[test]
fn a_name_in_the_working_folder_has_its_seal() {
    let (folder, path) = saved();
    let file = folder.path().join("model.msgpack");
    let converted = regrow(["convert", "--layout", "flax", "--lossy", text(&path), text(&file)]);
    assert_eq!(converted.code, 0, "{converted:?}");
    let ends_well = |arguments: [&str; 2]| {
        command().current_dir(folder.path()).args(arguments).output().unwrap().status.success()
    };
    assert!(ends_well(["seal", "model.msgpack"]) && ends_well(["verify", "model.msgpack"]));
    let seal = folder.path().join("regrow.seal.model.msgpack.json");
    assert!(file.is_file() && seal.is_file());
    // No checksum of its own tells.
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    assert!(!ends_well(["verify", "model.msgpack"]));
    fs::remove_file(seal).unwrap();
    assert!(ends_well(["verify", "model.msgpack"]));
}
