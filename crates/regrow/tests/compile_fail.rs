//! The compiler's messages for a wrong `#[derive(Pytree)]`. Each message says how to mend the
//! program.
//!
//! `REGROW_WRITE_MESSAGES=1 cargo test -p regrow --test compile_fail` writes the expected messages
//! again.

#![expect(clippy::unwrap_used, reason = "a test's failure is a panic")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

#[test]
fn mistakes_are_explained() {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_fail");
    let engine = newest_engine();
    let mut wrong = String::new();
    let mut count = 0;
    for entry in fs::read_dir(programs).unwrap() {
        let program = entry.unwrap().path();
        if program.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let said = messages(&program, &engine);
        let file = program.with_extension("stderr");
        if std::env::var_os("REGROW_WRITE_MESSAGES").is_some() {
            fs::write(&file, &said).unwrap();
        }
        let expected = fs::read_to_string(&file).unwrap_or_default();
        if said.is_empty() || said != expected {
            write!(wrong, "{}\nexpected:\n{expected}\nfound:\n{said}\n", program.display()).unwrap();
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert_eq!(count, 7);
}

/// The library of `regrow` that cargo built last, beside this program.
fn newest_engine() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let libraries = fs::read_dir(program.parent().unwrap()).unwrap().map(|entry| entry.unwrap());
    let engines = libraries.filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("libregrow-") && name.ends_with(".rlib")
    });
    engines.max_by_key(|entry| entry.metadata().unwrap().modified().unwrap()).unwrap().path()
}

/// The errors of one program: the message, where it points, and the first lines of its notes.
fn messages(program: &Path, engine: &Path) -> String {
    let out = tempfile::tempdir().unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let run = Command::new(rustc)
        .args(["--edition", "2024", "--emit", "metadata", "--error-format", "json", "--out-dir"])
        .arg(out.path())
        .arg("--extern")
        .arg(format!("regrow={}", engine.display()))
        .arg("-L")
        .arg(format!("dependency={}", engine.parent().unwrap().display()))
        .arg(program)
        .output()
        .unwrap();
    let mut said = String::new();
    for line in String::from_utf8(run.stderr).unwrap().lines() {
        let message: Value = serde_json::from_str(line).unwrap();
        let spans = message["spans"].as_array().unwrap();
        // The compiler also counts its errors.
        if message["level"] != "error" || spans.is_empty() {
            continue;
        }
        said += &first_line("error", &message);
        for span in spans.iter().filter(|span| Path::new(text(&span["file_name"])) == program) {
            let place = format!("  {}:{} {}", span["line_start"], span["column_start"], text(&span["label"]));
            writeln!(said, "{}", place.trim_end()).unwrap();
        }
        for note in message["children"].as_array().unwrap() {
            said += "  ";
            said += &first_line(text(&note["level"]), note);
        }
    }
    said
}

fn first_line(level: &str, message: &Value) -> String {
    format!("{level}: {}\n", text(&message["message"]).lines().next().unwrap_or_default())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
