//! What the command does where the system has no threads or no memory to give, and with leaves of
//! odd sizes: it ends, with its work done or with an error, and never with a panic or a signal.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::text;
use regrow::SaveOptions;
use regrow::array::{Array, Dtype, Shape};
use regrow::engine::Layout;
use regrow::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};

const LAYOUTS: [(&str, &str); 7] = [
    ("regrow", "r"),
    ("orbax", "o"),
    ("safetensors", "s"),
    ("pytree_data", "p"),
    ("npy", "n.npz"),
    ("flax", "f.msgpack"),
    ("equinox", "e.eqx"),
];

/// Of the requests for memory of a run, so many are refused in turn.
const REQUESTS_MAX: u32 = 40;

/// The library that is loaded before the command.
fn shim(folder: &Path) -> PathBuf {
    let library = folder.join("starve.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/src/starve.c");
    let mut build = Command::new("cc");
    build.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl");
    assert!(build.status().unwrap().success());
    library
}

struct Starved {
    folder: tempfile::TempDir,
    library: PathBuf,
}

impl Starved {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let library = shim(folder.path());
        let this = Self { folder, library };
        regrow::save(this.path("source"), &sample()).unwrap();
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Whether the command succeeded. It must not have died.
    fn run(&self, what: &str, from: u32, arguments: &[&str]) -> bool {
        let run = crate::common::command()
            .args(arguments)
            .env("LD_PRELOAD", &self.library)
            .env(what, from.to_string())
            .timeout(Duration::from_secs(120))
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&run.stderr);
        let shown = format!("{arguments:?} with {what}={from}: {:?} {stderr}", run.status);
        assert!(!stderr.contains("panicked at"), "{shown}");
        let code = run.status.code();
        assert!(code.is_some_and(|code| code <= 3), "{shown}");
        assert!(code == Some(0) || !stderr.is_empty(), "{shown}");
        code == Some(0)
    }
}

/// Larger than a buffer and than a chunk, and small.
fn sample() -> Tree<Leaf> {
    let array = |dims: &[u64]| {
        let shape = Shape::new(dims).unwrap();
        let len = shape.len_bytes(Dtype::Float32).unwrap();
        let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8 & 0x3f).collect();
        Leaf::array(Array::new(Dtype::Float32, shape, bytes.into()).unwrap())
    };
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("big"), array(&[2500, 1000])).unwrap();
    build.leaf(Key::dict("small"), array(&[3])).unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

#[test]
fn without_threads_everything_is_done() {
    let starved = Starved::new();
    let source = starved.path("source");
    let run = |arguments: &[&str]| assert!(starved.run("STARVE_THREADS", 1, arguments), "{arguments:?}");
    for (layout, name) in LAYOUTS {
        let target = starved.path(name);
        run(&["convert", text(&source), text(&target), "--layout", layout, "--lossy"]);
        run(&["verify", text(&target)]);
        run(&["cat", text(&target), "big", "--raw"]);
        let back = starved.path("back");
        run(&["convert", text(&target), text(&back), "--overwrite", "--cast", "**=float64"]);
        assert!(regrow::verify(&back).unwrap().is_ok());
    }
}

#[test]
fn without_memory_there_is_an_error() {
    let starved = Starved::new();
    let source = starved.path("source");
    for (layout, name) in LAYOUTS {
        let target = starved.path(name);
        let convert = ["convert", text(&source), text(&target), "--layout", layout, "--lossy"];
        for from in 1..REQUESTS_MAX {
            if starved.run("STARVE_MEMORY", from, &convert) {
                break;
            }
            assert!(!target.exists(), "{layout}: something is left");
        }
        if !fs::exists(&target).unwrap() && layout != "pytree_data" {
            regrow_cli_convert(&convert);
        }
        for arguments in [&["verify", text(&target)][..], &["cat", text(&target), "big", "--raw"]] {
            for from in 1..REQUESTS_MAX {
                if starved.run("STARVE_MEMORY", from, arguments) {
                    break;
                }
            }
        }
    }
}

fn regrow_cli_convert(arguments: &[&str]) {
    assert_eq!(crate::common::regrow(arguments).code, 0);
}

#[test]
fn odd_sizes_are_shown_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd");
    let empty = || {
        let shape = Shape::new([1 << 31, 0]).unwrap();
        Leaf::array(Array::new(Dtype::Float32, shape, Vec::new().into()).unwrap())
    };
    // Longer than a formatter's widths, and than the keys of the default layout.
    let long = "k".repeat(70_000);
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("empty"), empty()).unwrap();
    build.leaf(Key::dict(long.as_str()), Leaf::text("a text")).unwrap();
    build.close().unwrap();
    let flax = SaveOptions {
        layout: Layout::from_name("flax", serde_json::Value::Null).unwrap(),
        ..SaveOptions::default()
    };
    let path = path.with_extension("msgpack");
    regrow::save_with(&path, &build.finish().unwrap(), &flax).unwrap();
    let run = |arguments: &[&str]| {
        let run = crate::common::command().args(arguments).timeout(Duration::from_secs(60)).output().unwrap();
        assert_eq!(run.status.code(), Some(0), "{arguments:?}: {}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8(run.stdout).unwrap()
    };
    for command in ["ls", "info", "verify"] {
        run(&[command, text(&path)]);
        run(&[command, text(&path), "--json"]);
    }
    assert_eq!(run(&["cat", text(&path), "empty"]), "[]\n");
    assert_eq!(run(&["cat", text(&path), "empty[5:1000000000]"]), "[]\n");
    assert!(run(&["cat", text(&path), "empty", "--json"]).contains("\"value\":[]"));
    assert!(regrow::engine::overview(&regrow::open(&path).unwrap()).contains(&long));
    // Into every layout and out of it: no loop runs over lists in which there is nothing.
    for (layout, name) in LAYOUTS {
        let target = folder.path().join(name);
        run(&["convert", text(&path), text(&target), "--layout", layout, "--only", "empty", "--lossy"]);
        run(&["verify", text(&target)]);
        let back = regrow::open(&target).unwrap();
        let shapes: Vec<&[u64]> = back.tree().leaves().iter().map(|leaf| leaf.shape.dims()).collect();
        match layout {
            // Orbax has no array without elements: what comes nearest is nothing.
            "orbax" => assert!(shapes.is_empty(), "{shapes:?}"),
            _ => assert_eq!(shapes, [[1 << 31, 0]], "{layout}"),
        }
        regrow::engine::load(&target).unwrap();
    }
}

#[test]
fn a_checkpoint_that_has_lost_its_record_is_warned_of() {
    let (_folder, path) = crate::common::saved();
    assert_eq!(crate::common::regrow(["ls", text(&path)]).stderr, "");
    fs::remove_file(path.join("regrow.json")).unwrap();
    let target = path.with_file_name("target");
    for arguments in [
        &["ls", text(&path)][..],
        &["info", text(&path)],
        &["cat", text(&path), "step"],
        &["convert", text(&path), text(&target)],
    ] {
        let run = crate::common::regrow(arguments);
        assert_eq!(run.code, 0, "{run:?}");
        assert!(run.stderr.contains("regrow.json is missing"), "{run:?}");
        fs::remove_dir_all(&target).ok();
        let failed = crate::common::regrow(arguments.iter().chain(&["--lost-files", "error"]));
        assert_eq!(failed.code, 1, "{failed:?}");
        assert!(failed.stdout.is_empty() && failed.stderr.contains("regrow.json is missing"), "{failed:?}");
    }
    let verified = crate::common::regrow(["verify", text(&path)]);
    assert_eq!(verified.code, 1);
    assert!(verified.stderr.contains("regrow.json is missing"));
}
