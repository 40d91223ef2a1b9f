//! Code that only tests need: fixtures and their damaged copies, hostile files, traced child
//! processes, and an object server.
//!
//! This crate does not depend on `regrow`, so that the engine's own unit tests can use this crate.

use std::path::{Path, PathBuf};

pub mod archives;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod crash;
mod damage;
pub mod hostile;
#[cfg(feature = "object-server")]
pub mod object_server;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod trace;

pub use damage::{Damage, damages, flipped_bits};

/// The folder `fixtures/` at the root of the repository.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// The parsed `expected.json` of a fixture such as `orbax/sd_files_zarr2`.
///
/// # Panics
/// If the fixture does not exist or is not JSON: a test cannot continue without it.
#[expect(clippy::panic, reason = "a test without its fixture must stop at once and say which one")]
pub fn expected(fixture: &str) -> serde_json::Value {
    let path = fixtures().join(fixture).join("expected.json");
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A temporary folder in memory, if the system has such a file system. For tests that write files
/// but do not need a disk, because waiting for the disk would take most of their time.
///
/// # Errors
/// Errors of the file system.
pub fn memory_folder() -> std::io::Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }
}

/// Copies a folder, so that a test can damage the copy.
///
/// # Errors
/// Errors of the file system.
pub fn copy_folder(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// All files below a folder, sorted by their paths. For a file, only this file.
///
/// # Errors
/// Errors of the file system.
pub fn files_below(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path)? {
        files.extend(files_below(&entry?.path())?);
    }
    files.sort();
    Ok(files)
}

/// The files of a test program that are no module of it, beginning at its `main.rs`. Such files are
/// not compiled, and their tests never run.
///
/// # Errors
/// Errors of the file system.
pub fn files_without_a_module(main: &Path) -> std::io::Result<Vec<PathBuf>> {
    let text = std::fs::read_to_string(main)?;
    let names = text
        .lines()
        .filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';'));
    let named: Vec<&str> = names.collect();
    let mut without = Vec::new();
    for entry in std::fs::read_dir(main.parent().unwrap_or(main))? {
        let path = entry?.path();
        let is_named =
            path.file_stem().and_then(|name| name.to_str()).is_some_and(|name| named.contains(&name));
        let module = path.join("mod.rs");
        match (path.is_dir(), is_named) {
            (true, true) if module.is_file() => without.extend(files_without_a_module(&module)?),
            (false, false) if path != main && path.extension().is_some_and(|ending| ending == "rs") => {
                without.push(path)
            }
            (true, false) => without.push(path),
            _ => {}
        }
    }
    Ok(without)
}
