//! The msgpack files of the oldest checkpoints, through the front door: opened, and every leaf
//! read.

#![no_main]

use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

/// In memory where the system has such a folder: the disk would be the slowest part.
static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
});

fuzz_target!(|file: &[u8]| {
    let path = FOLDER.path().join("checkpoint");
    fs::write(&path, file).unwrap();
    if let Ok(checkpoint) = regrow::open(FOLDER.path()) {
        for leaf in 0..checkpoint.tree().len() {
            let _ = checkpoint.read(leaf);
        }
    }
});
