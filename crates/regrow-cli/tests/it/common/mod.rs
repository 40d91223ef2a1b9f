//! Running the command, and checkpoints to run it on.

use std::path::{Path, PathBuf};

use regrow::array::{Array, Dtype, Shape};
use regrow::tree::{Key, Leaf, NodeKind, Scalar, Tree, TreeBuilder};
use serde_json::Value;
use tempfile::TempDir;

/// What a run of the command left.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// Its stdout as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

pub fn command() -> assert_cmd::Command {
    assert_cmd::cargo::cargo_bin_cmd!("regrow")
}

pub fn regrow<I: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = I>) -> Run {
    let output = command().args(arguments).output().unwrap();
    Run {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The most memory that a command took, and how much it printed.
#[cfg(target_os = "linux")]
pub fn peak_and_output(arguments: &[&str]) -> (u64, usize) {
    use std::io::Read;
    let mut child = std::process::Command::new(command().get_program())
        .args(arguments)
        // What is freed goes back to the system, and not to a store that each thread has.
        .env("MALLOC_MMAP_THRESHOLD_", "131072")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut stdout = child.stdout.take().unwrap();
    let (mut peak, mut printed, mut piece) = (0, 0, vec![0; 16 << 10]);
    // What fills the pipe waits, so that its memory can be looked at.
    loop {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        peak = line.map_or(peak, |line| line.split_whitespace().next().unwrap().parse().unwrap());
        match stdout.read(&mut piece).unwrap() {
            0 => break,
            len => printed += len,
        }
    }
    assert!(child.wait().unwrap().success());
    (peak * 1024, printed)
}

/// One of the checkpoints that Orbax wrote.
pub fn orbax(name: &str) -> PathBuf {
    regrow_testkit::fixtures().join("orbax").join(name).join("ckpt")
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A small checkpoint in the default layout, in a folder that goes with the first value.
pub fn saved() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step_1");
    regrow::save(&path, &tree()).unwrap();
    (folder, path)
}

fn tree() -> Tree<Leaf> {
    let array = |dtype, dims: &[u64], data: Vec<u8>| {
        Leaf::array(Array::new(dtype, Shape::new(dims).unwrap(), data.into()).unwrap())
    };
    let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("name"), Leaf::text("run \u{1b}[31ma")).unwrap();
    build.open(Key::dict("params"), NodeKind::Dict).unwrap();
    build
        .leaf(Key::dict("bias"), array(Dtype::BFloat16, &[3], vec![0xcd, 0x3d, 0xc0, 0x7f, 0, 0xc0]))
        .unwrap();
    build
        .leaf(Key::dict("kernel"), array(Dtype::Float32, &[2, 3], floats(&[0.0, 1.5, -2.0, 3.0, 0.1, 1e-7])))
        .unwrap();
    build.leaf(Key::dict("odd\u{1b}[2J[0]"), array(Dtype::Bool, &[2], vec![1, 0])).unwrap();
    build.close().unwrap();
    build.leaf(Key::dict("step"), Leaf::scalar(Scalar::Int(7))).unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}
