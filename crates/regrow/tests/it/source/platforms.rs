//! Which machines are compile errors, and that only one module checks the operating system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The refusals stand in a file of their own, which is compiled here for each machine. No `std` of
/// it is needed: the crate has none, and brings the one macro that the file uses.
const WITHOUT_STD: &str = "#![feature(no_core, rustc_attrs)]\n#![no_core]\n#![allow(internal_features, unused_macros)]\n\
     #[rustc_builtin_macro]\nmacro_rules! compile_error { ($text:expr $(,)?) => {}; }\n";

/// The crates that the engine is made of.
const CRATES: [&str; 7] =
    ["regrow", "regrow-base", "regrow-tree", "regrow-store", "regrow-storage", "regrow-ocdbt", "regrow-zarr"];

/// The module that asks which system it is.
fn system() -> PathBuf {
    crates().join("regrow-base/src/system")
}

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// What the compiler says of the refusals on a machine; nothing if there is none.
fn refusal(target: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("supported.rs");
    let refusals = fs::read_to_string(system().join("supported.rs")).unwrap();
    fs::write(&file, [WITHOUT_STD, &refusals].concat()).unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let compiled = Command::new(rustc)
        .args(["--crate-type=lib", "--emit=metadata", "--target", target, "--out-dir"])
        .args([folder.path(), &file])
        // `no_core` is not stable; what is looked at here is.
        .env("RUSTC_BOOTSTRAP", "1")
        .output()
        .unwrap();
    let said = String::from_utf8(compiled.stderr).unwrap();
    assert_eq!(compiled.status.success(), !said.contains("error"), "{target}: {said}");
    said
}

#[test]
fn big_endian_and_32_bit_machines_are_compile_errors() {
    for target in ["s390x-unknown-linux-gnu", "powerpc64-unknown-linux-gnu"] {
        assert!(refusal(target).contains("regrow does not build for big-endian machines"), "{target}");
    }
    for target in ["i686-unknown-linux-gnu", "armv7-unknown-linux-gnueabihf", "wasm32-unknown-unknown"] {
        assert!(refusal(target).contains("addresses of 64 bits alone"), "{target}");
    }
    for target in [
        "x86_64-unknown-linux-gnu",
        "aarch64-unknown-linux-gnu",
        "aarch64-apple-darwin",
        "x86_64-pc-windows-msvc",
        "aarch64-pc-windows-msvc",
    ] {
        assert_eq!(refusal(target), "", "{target}");
    }
}

#[test]
fn only_one_module_checks_the_operating_system() {
    const SIGNS: [&str; 10] = [
        "std::os::",
        "rustix",
        "libc::",
        "windows_sys",
        "target_os",
        "cfg(unix)",
        "cfg(windows)",
        "cfg(not(unix))",
        "target_family",
        "feature = \"portable\"",
    ];
    let mut left: Vec<PathBuf> = CRATES.iter().map(|name| crates().join(name).join("src")).collect();
    let mut found = Vec::new();
    while let Some(path) = left.pop() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if path == system() || name == "tests" || name.ends_with("_tests") {
            continue;
        }
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            if SIGNS.iter().any(|sign| line.contains(sign)) {
                found.push(format!("{}: {}", path.display(), line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "take it from crate::system:\n{}", found.join("\n"));
}
