//! What `regrow --version` tells of the build: target, profile, compiler, and the commit where it
//! is known.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let var = |name: &str| env::var(name).unwrap_or_default();
    let profile = var("PROFILE");
    // Development builds are not built again for each commit, so they would name an old one.
    let commit = if profile == "release" { commit() } else { None };
    tell("TARGET", &var("TARGET"));
    tell("PROFILE", &profile);
    tell("COMPILER", &said_by(&var("RUSTC"), &["--version"]).unwrap_or_else(|| "not known".to_owned()));
    tell("COMMIT", &commit.unwrap_or_else(|| "not known".to_owned()));
}

fn tell(name: &str, value: &str) {
    println!("cargo::rustc-env=REGROW_BUILD_{name}={value}");
}

/// The commit of a packaged crate, by the record that `cargo package` adds; of a working tree, by
/// git.
fn commit() -> Option<String> {
    const RECORD: &str = ".cargo_vcs_info.json";
    println!("cargo::rerun-if-changed=Cargo.toml");
    if let Ok(record) = fs::read_to_string(RECORD) {
        let (_, after) = record.split_once("\"sha1\":")?;
        return after.split('"').nth(1).map(str::to_owned);
    }
    // Sources that lie in the working tree of another project are no part of its commits.
    said_by("git", &["ls-files", "--error-unmatch", "build.rs"])?;
    let log = said_by("git", &["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    let commit = said_by("git", &["rev-parse", "HEAD"])?;
    let changed = said_by("git", &["status", "--porcelain", "--untracked-files=no"]);
    Some(if changed.is_some_and(|files| files.is_empty()) { commit } else { format!("{commit}, changed") })
}

/// What a program prints, without the line feed at its end; `None` if it cannot be run or fails.
fn said_by(program: &str, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim_end().to_owned())
}
