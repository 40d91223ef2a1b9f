//! `convert`: plans, losses, exit codes.

use crate::common::{orbax, regrow, saved, text};

#[test]
fn a_dry_run_shows_what_would_become_of_each_leaf_and_writes_nothing() {
    let (folder, path) = saved();
    let target = folder.path().join("new");
    let run = regrow([
        "convert",
        text(&path),
        text(&target),
        "--only",
        "params/kernel",
        "--only",
        "step",
        "--rename",
        "params/(.*)=$1/weight",
        "--transpose",
        "**/kernel=1,0",
        "--cast",
        "**/kernel=float16",
        "--dry-run",
    ]);
    assert_eq!(
        run.stdout,
        "\
from           to             is             becomes
step           step           int64 []
params/kernel  kernel/weight  float32 [2,3]  float16 [3,2]
"
    );
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    assert!(!target.exists());
}

#[test]
fn what_the_target_cannot_hold_is_refused_with_1() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("new.msgpack");
    let source = orbax("prng_keys");
    let run = regrow(["convert", text(&source), text(&target), "-l", "flax"]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("PRNG key") && run.stderr.contains("--lossy"), "{run:?}");
    assert!(!target.exists());
    let dry = regrow(["convert", text(&source), text(&target), "-l", "flax", "--dry-run", "--json"]);
    assert_eq!((dry.code, dry.json()["lossless"].as_bool()), (1, Some(false)));
    let run = regrow(["convert", text(&source), text(&target), "-l", "flax", "--lossy", "--json"]);
    assert_eq!(run.code, 0, "{run:?}");
    let losses = run.json()["losses"].as_array().unwrap().clone();
    assert!(losses.iter().any(|loss| loss["kind"] == "kind"), "{losses:?}");
}

#[test]
fn a_gemma_style_checkpoint_becomes_data_and_manifest_in_one_command() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("model");
    let run = regrow([
        "convert",
        text(&orbax("sd_ocdbt_zarr2")),
        text(&target),
        "--layout",
        "pytree_data",
        "--lossy",
    ]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(folder.path().join("model.data").is_file() && folder.path().join("model.manifest").is_file());
    assert_eq!(regrow(["verify", text(&target)]).code, 0);
}

#[test]
fn a_dry_run_fails_as_the_run_does() {
    let (folder, path) = saved();
    let target = folder.path().join("new");
    let rename = ["--rename", "params/kernel=params.bias", "--lossy"];
    let arguments = ["convert", text(&path), text(&target), "--layout", "orbax"].into_iter().chain(rename);
    let (run, dry) = (regrow(arguments.clone()), regrow(arguments.chain(["--dry-run"])));
    assert!(run.code > 0 && run.stderr.contains("its stored name"), "{run:?}");
    assert_eq!((dry.code, dry.stderr, dry.stdout), (run.code, run.stderr, run.stdout));
    assert!(!target.exists());
    let run = regrow(["convert", text(&path), text(&path), "--dry-run"]);
    assert!(run.code == 2 && run.stderr.contains("already exists"), "{run:?}");
}

#[test]
fn mistakes_end_with_their_numbers() {
    let (folder, path) = saved();
    let target = folder.path().join("new");
    let run = |more: &[&str]| {
        let mut arguments = vec!["convert", text(&path), text(&target)];
        arguments.extend(more);
        regrow(arguments)
    };
    assert_eq!(run(&["--layout", "zip"]).code, 2);
    assert_eq!(run(&["--rename", "no rule"]).code, 2);
    assert_eq!(run(&["--rename", "nothing=x"]).code, 2);
    assert_eq!(run(&["--reshape", "params/kernel=a"]).code, 2);
    assert_eq!(run(&["--reshape", "params/kernel=4,-1"]).code, 2);
    assert_eq!(run(&["--layout", "flax", "-o", "nonsense=1"]).code, 2);
    assert_eq!(run(&["--rename", "params/.*=x"]).code, 1);
    assert!(!target.exists());
    assert_eq!(regrow(["convert", text(&folder.path().join("none")), text(&target)]).code, 3);
    assert_eq!(regrow(["convert", text(&path), text(&path)]).code, 2);
}

#[test]
fn the_report_says_where_the_time_went_if_asked() {
    let (folder, path) = saved();
    let run = regrow(["convert", text(&path), text(&folder.path().join("a")), "--verbose", "--no-progress"]);
    assert_eq!(run.code, 0, "{run:?}");
    for part in ["prepare", "copy", "commit", "ms\n"] {
        assert!(run.stderr.contains(part), "{run:?}");
    }
    let quiet = regrow(["convert", text(&path), text(&folder.path().join("b"))]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""));
    let json = regrow(["convert", text(&path), text(&folder.path().join("c")), "--json"]).json();
    let stages: Vec<&str> =
        json["stages"].as_array().unwrap().iter().map(|stage| stage["stage"].as_str().unwrap()).collect();
    assert!(stages.contains(&"copy") && stages.contains(&"commit"), "{json}");
    assert!(json["seconds"].as_f64().unwrap() > 0.0 && json["data_bytes"].as_u64().unwrap() > 0, "{json}");
    assert!(json["io_path"].is_string() && json["reused_bytes"] == 0, "{json}");
    assert_eq!(regrow(["verify", text(&path), "--no-progress"]).stderr, "");
}

#[test]
fn what_did_not_change_since_the_base_is_linked() {
    let (folder, path) = saved();
    let target = |name: &str| folder.path().join(name);
    let run = regrow(["convert", text(&path), text(&target("a"))]);
    assert!(run.stdout.trim_end().ends_with(", regrow"), "{run:?}");
    let run = regrow(["convert", text(&path), text(&target("b")), "--base", text(&target("a"))]);
    assert!(
        run.code == 0 && run.stdout.contains(", regrow, ") && run.stdout.contains(" KiB reused"),
        "{run:?}"
    );
    let json =
        regrow(["convert", text(&path), text(&target("c")), "--base", text(&target("b")), "--json"]).json();
    let inode = |name: &str| {
        use std::os::unix::fs::MetadataExt;
        let file = target(name).join("model.safetensors").metadata().unwrap();
        (file.ino(), file.len())
    };
    assert_eq!(json["reused_bytes"], inode("a").1, "{json}");
    assert!(inode("a") == inode("b") && inode("a") == inode("c"));
    assert_eq!(regrow(["verify", text(&target("c"))]).code, 0);
    for (base, layout) in [("a", "npy"), ("missing", "regrow")] {
        let dry = [&["--dry-run"][..], &[]].map(|dry| {
            let (new, base) = (target("new"), target(base));
            let arguments =
                ["convert", text(&path), text(&new), "--layout", layout, "--lossy", "--base", text(&base)];
            regrow(arguments.iter().chain(dry))
        });
        assert!(dry[0].code > 1 && dry[0].stderr.contains("base"), "{dry:?}");
        assert_eq!((dry[0].code, &dry[0].stderr), (dry[1].code, &dry[1].stderr));
        assert!(!target("new").exists());
    }
}

#[test]
fn a_file_of_rules_does_what_the_same_options_do() {
    let (folder, path) = saved();
    let rules = folder.path().join("rules.toml");
    std::fs::write(
        &rules,
        r#"
        layout = "orbax"
        only = ["params/kernel", "step"]
        [options]
        zarr3 = true
        [[rename]]
        from = 'params/(.*)'
        to = '$1/weight'
        [[transpose]]
        leaves = "**/kernel"
        axes = [1, 0]
        [[cast]]
        leaves = "**/kernel"
        dtype = "float16"
        "#,
    )
    .unwrap();
    let target = folder.path().join("new");
    let shown = regrow(["convert", text(&path), text(&target), "--rules", text(&rules), "--dry-run"]);
    assert_eq!(
        shown.stdout,
        "\
from           to             is             becomes
step           step           int64 []
params/kernel  kernel/weight  float32 [2,3]  float16 [3,2]
"
    );
    let run = regrow(["convert", text(&path), text(&target), "--rules", text(&rules)]);
    assert!(run.code == 0 && run.stdout.trim_end().ends_with("orbax"), "{run:?}");
    // What the command line says comes first; options of the file are not those of another layout.
    let other = folder.path().join("other.npz");
    let first = ["--layout", "npy", "--rename", "step=n", "--cast", "**/kernel=float64"];
    let run =
        regrow(["convert", text(&path), text(&other), "--rules", text(&rules)].into_iter().chain(first));
    assert_eq!(run.code, 0, "{run:?}");
    let listed = regrow(["ls", text(&other)]).stdout;
    assert!(listed.contains("float64") && listed.contains("[3,2]") && listed.contains('n'), "{listed}");
}

#[test]
fn a_file_of_rules_that_is_none_is_wrong_usage_and_says_where() {
    let (folder, path) = saved();
    let (rules, target) = (folder.path().join("rules.toml"), folder.path().join("new"));
    for (written, named) in [
        (None, "the file of rules does not exist"),
        (Some("[[rename]]\nform = 'a'"), "line 2"),
        (Some("layout = 'tape'"), "tape"),
        (Some("[[rename]]\nfrom = 'nothing/here'\nto = 'x'"), "nothing/here"),
    ] {
        if let Some(text) = written {
            std::fs::write(&rules, text).unwrap();
        }
        let run = regrow(["convert", text(&path), text(&target), "--rules", text(&rules)]);
        assert!(run.code == 2 && run.stderr.contains(named), "{written:?}: {run:?}");
        assert!(!target.exists());
    }
}

#[test]
fn a_file_of_rules_without_a_layout_is_of_the_default_one() {
    let (folder, path) = saved();
    let rules = folder.path().join("rules.toml");
    std::fs::write(&rules, "[options]\nchunk_byte_size = 8\n").unwrap();
    let target = folder.path().join("new");
    let run = regrow(["convert", text(&path), text(&target), "--rules", text(&rules), "--layout", "regrow"]);
    assert_eq!(run.code, 0, "{run:?}");
    let listed: serde_json::Value =
        serde_json::from_str(&regrow(["ls", "--json", text(&target)]).stdout).unwrap();
    let is_cut = |leaf: &serde_json::Value| leaf["chunk_shape"] != leaf["shape"];
    assert!(listed["leaves"].as_array().unwrap().iter().any(is_cut), "{listed}");
}
