//! Exit codes and where reports go: 0 fine, 1 found something wrong, 2 wrong usage, 3 could not
//! read.

use std::fs;

use crate::common::{command, orbax, regrow, saved, text};

#[test]
fn sound_checkpoints_verify_with_0() {
    let (_folder, path) = saved();
    let run = regrow(["verify", text(&path)]);
    assert_eq!(run.stdout, format!("{}: sound: 5 leaves, 50 B read\n", text(&path)));
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
}

#[test]
fn damage_is_1_and_names_leaf_and_file() {
    let (_folder, path) = saved();
    let file = path.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();

    let run = regrow(["verify", text(&path)]);
    assert_eq!(run.code, 1);
    assert!(run.stdout.starts_with(&format!("{}: damaged: ", text(&path))), "{run:?}");
    assert!(
        run.stderr.starts_with("error: leaf params/bias is damaged: block 0 fails its crc32c"),
        "{run:?}"
    );
    assert!(run.stderr.contains("model.safetensors"), "{run:?}");

    let run = regrow(["verify", "--json", text(&path)]);
    let report = &run.json()[0];
    assert_eq!(run.code, 1);
    assert_eq!(report["sound"], false);
    assert_eq!(report["findings"][0]["kind"], "corrupt");
}

#[test]
fn what_orbax_wrote_and_time_damaged_is_1() {
    for name in ["bad_manifest_crc", "bad_node_crc", "bad_truncated_data", "bad_missing_chunk"] {
        let run = regrow(["verify", text(&orbax(name))]);
        assert_eq!(run.code, 1, "{name}: {run:?}");
        assert!(run.stderr.starts_with("error: "), "{name}: {run:?}");
        assert!(run.stderr.contains("\n  in "), "{name}: {run:?}");
    }
}

#[test]
fn notes_are_0() {
    use regrow_layouts::trak::{Mode, Parameters, Precision, TrakStore};
    let folder = tempfile::tempdir().unwrap();
    let parameters = Parameters { train_set_size: 2, proj_dim: 1, precision: Precision::Single };
    let metadata = serde_json::json!({"JL dimension": 1, "JL matrix type": "normal", "train set size": 2});
    let mode = Mode::Create(metadata.as_object().unwrap().clone());
    let store = TrakStore::open(folder.path(), parameters, &mode).unwrap();
    store.register(0, false).unwrap();
    store.model(0).unwrap().rows.mark_done(&[1]).unwrap();

    let run = regrow(["verify", text(folder.path())]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stdout.contains(": sound: "), "{run:?}");
    assert!(run.stderr.starts_with("note: 0/_is_featurized.mmap: 1 of 1 row that is done"), "{run:?}");
    let report = &regrow(["verify", "--json", text(folder.path())]).json()[0];
    assert_eq!(report["notes"].as_array().unwrap().len(), 1);
}

#[test]
fn verify_goes_on_after_a_bad_path() {
    let (folder, path) = saved();
    let absent = folder.path().join("absent");
    let run = regrow(["verify", text(&absent), text(&path)]);
    assert_eq!(run.code, 3);
    assert!(run.stdout.contains("absent: not read\n"), "{run:?}");
    assert!(run.stdout.contains("step_1: sound"), "{run:?}");
}

#[test]
fn wrong_usage_is_2() {
    let (_folder, path) = saved();
    let path = text(&path);
    for arguments in [
        &["ls"][..],
        &["no-such-command"],
        &["verify"],
        &["ls", path, "--no-such-option"],
        &["ls", path, "a["],
        &["ls", path, "no/such/leaf"],
        &["cat", path, "params"],
        &["cat", path, "no/such/leaf"],
        &["cat", path, "params/kernel[5]"],
        &["cat", path, "params/kernel[0:2:2]"],
        &["cat", path, "params/kernel[0,0,0]"],
        &["cat", path, "name[0]"],
        &["cat", path, "step", "--raw", "--json"],
        &["--step", "x", "ls", path],
    ] {
        let run = regrow(arguments);
        assert_eq!(run.code, 2, "{arguments:?}: {run:?}");
        assert_eq!(run.stdout, "", "{arguments:?}");
        assert!(run.stderr.starts_with("error: ") || run.stderr.contains("Usage: "), "{run:?}");
    }
}

/// Every option and argument that has a value, with values that make no sense for it.
#[test]
fn every_senseless_value_is_2() {
    let (folder, path) = saved();
    let path = text(&path);
    let target = folder.path().join("target");
    let target = text(&target);
    let senseless: [(&[&str], &str, &[&str]); 16] = [
        (&["ls", path], "--step", &["x", "-1", "1.5", "", "99999999999999999999"]),
        (&["ls", path], "", &["a[", "{a", "no/such"]),
        (
            &["cat", path],
            "",
            &["nope", "step[0]", "step[", "params/kernel[x]", "params/kernel[0:2:-1]", "params"],
        ),
        (&["info", path], "--step", &["x"]),
        (&["verify", path], "--step", &["x"]),
        (&["completions"], "", &["nope", ""]),
        (&["demo"], "--keep", &[path]),
        (&["convert", path, target], "--layout", &["nope", "", "Regrow"]),
        (&["convert", path, target], "--option", &["nope", "nope=1", "=", "ocdbt=true", "data_format=np"]),
        (&["convert", path, target, "--layout", "orbax"], "--option", &["ocdbt=3", "nope=1"]),
        (&["convert", path, target], "--only", &["a[", "no/such"]),
        (&["convert", path, target], "--rename", &["a", "(=b", "nope=b", "step="]),
        (&["convert", path, target], "--cast", &["nope", "**=nope", "a[=int8", "=", "", "int8=**"]),
        (
            &["convert", path, target],
            "--transpose",
            &["**", "**=x", "a[=0", "params/kernel=0,0", "params/kernel=5"],
        ),
        (
            &["convert", path, target],
            "--reshape",
            &["**", "**=x", "a[=1", "params/kernel=-1,-1", "params/kernel=5"],
        ),
        (&["convert", path], "", &[path]),
    ];
    let mut wrong = Vec::new();
    for (arguments, option, values) in senseless {
        for value in values {
            let option = (!option.is_empty()).then(|| format!("{option}={value}"));
            let last = option.unwrap_or_else(|| (*value).to_owned());
            let run = regrow(arguments.iter().copied().chain([last.as_str()]));
            if run.code != 2 || run.stderr.is_empty() || !run.stdout.is_empty() {
                wrong.push(format!("{arguments:?} {last:?}: {run:?}"));
            }
            assert!(!std::path::Path::new(target).exists(), "{arguments:?} {last:?}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_cannot_be_read_is_3() {
    let (folder, path) = saved();
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let unfinished = folder.path().join("step_2.orbax-checkpoint-tmp-1");
    fs::rename(&path, &unfinished).unwrap();
    for (place, kind) in [(&path, "not_found"), (&empty, "not_a_checkpoint"), (&unfinished, "uncommitted")] {
        for command in ["ls", "info"] {
            let run = regrow([command, "--json", text(place)]);
            assert_eq!((run.code, run.stdout.as_str()), (3, ""), "{run:?}");
            let report: serde_json::Value = serde_json::from_str(&run.stderr).unwrap();
            assert_eq!(report["error"]["kind"], kind);
        }
    }
}

#[test]
fn steps_and_items_that_are_not_there_are_3() {
    let (_folder, path) = saved();
    assert_eq!(regrow(["ls", "--step", "4", text(&path)]).code, 3);
    assert_eq!(regrow(["ls", "--step", "4", text(&orbax("manager_default"))]).code, 3);
    assert_eq!(regrow(["ls", "--item", "absent", text(&orbax("manager_composite"))]).code, 3);
}

#[test]
fn file_names_in_reports_cannot_steer_a_terminal() {
    let run = regrow(["ls", "no\u{1b}[2Jsuch"]);
    assert_eq!(run.code, 3);
    assert!(!run.stderr.contains('\u{1b}'), "{run:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_under_stdout_is_an_error() {
    let (_folder, path) = saved();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut program = std::process::Command::new(command().get_program());
    let output = program.args(["ls", text(&path)]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write to stdout"));
}

#[test]
fn a_limit_on_file_sizes_is_an_error_and_leaves_nothing() {
    let (folder, path) = saved();
    for (layout, name) in [
        ("regrow", "copy"),
        ("safetensors", "copy.safetensors"),
        ("npy", "copy.npz"),
        ("pytree_data", "copy"),
    ] {
        let target = folder.path().join(name);
        let ended = std::process::Command::new("sh")
            .args([
                "-c",
                "ulimit -f 0; exec \"$@\"",
                "sh",
                env!("CARGO_BIN_EXE_regrow"),
                "convert",
                "--lossy",
            ])
            .args(["--layout", layout, text(&path), text(&target)])
            .output()
            .unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(3), "{layout}: killed, or another error: {said}");
        assert!(said.contains("ulimit -f"), "{layout}: {said}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{layout}");
    }
}

#[test]
fn addresses_are_refused_by_every_command() {
    let (folder, path) = saved();
    // Of a storage that no build has.
    let address = "hdfs://host/x";
    let commands: [&[&str]; 8] = [
        &["ls", address],
        &["info", address],
        &["cat", address, "a"],
        &["verify", address],
        &["convert", address, text(&path)],
        &["convert", text(&path), address],
        &["convert", "--dry-run", text(&path), address],
        &["demo", "--keep", address],
    ];
    for arguments in commands {
        let ended = command().current_dir(folder.path()).args(arguments).output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_ne!(ended.status.code(), Some(0), "{arguments:?}");
        assert!(said.contains("scheme hdfs://"), "{arguments:?}: {said}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
