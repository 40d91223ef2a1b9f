//! npy headers, and archives of npy files: opened, and every array read.

#![no_main]

use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use regrow_layouts::npy::header::Header;
use tempfile::TempDir;

/// In memory where the system has such a folder: the disk would be the slowest part.
static FOLDER: LazyLock<TempDir> =
    LazyLock::new(|| tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap());

fuzz_target!(|input: &[u8]| {
    if let Ok((header, len)) = Header::parse(input) {
        assert!(len <= input.len());
        let written = header.to_bytes();
        assert_eq!(Header::parse(&written).unwrap(), (header, written.len()));
    }
    for name in ["x.npy", "x.npz"] {
        let path = FOLDER.path().join(name);
        fs::write(&path, input).unwrap();
        let Ok(checkpoint) = regrow::open(&path) else { continue };
        for leaf in 0..checkpoint.tree().len() {
            let _ = checkpoint.read(leaf);
        }
    }
});
