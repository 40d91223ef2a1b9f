//! A folder in memory, where what a fuzzer has made is put before the front door, and all that goes
//! on behind that.

#![allow(dead_code, reason = "each target uses a part of this")]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::{fs, io};

use tempfile::TempDir;

#[path = "../../crates/regrow/tests/hostile/samples.rs"]
pub mod samples;

/// In memory where the system has such a folder: the disk would be the slowest part.
static FOLDER: LazyLock<TempDir> =
    LazyLock::new(|| tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap());

pub fn folder() -> &'static Path {
    FOLDER.path()
}

/// A new file: one that is written over would change under the maps of it.
pub fn put(name: &str, bytes: &[u8]) -> PathBuf {
    let path = FOLDER.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => panic!("{}: {error}", path.display()),
        _ => fs::write(&path, bytes).unwrap(),
    }
    path
}

/// Opens it and reads all that is not too long.
pub fn open(path: &Path) {
    samples::use_it(path, &mut |_| ());
}

/// The input, cut at bytes that no JSON and no TOML has.
pub fn parts(input: &[u8]) -> impl Iterator<Item = &[u8]> {
    input.split(|&byte| byte == 0).chain(std::iter::repeat(&b""[..]))
}
