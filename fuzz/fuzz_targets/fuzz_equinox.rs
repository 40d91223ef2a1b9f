//! Equinox leaf files: opened, every leaf read whole and checked; the walk and the trailer by
//! themselves.

#![no_main]

use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use regrow_layouts::equinox::layout::Scan;
use regrow_layouts::equinox::trailer::Trailer;
use tempfile::TempDir;

/// In memory where the system has such a folder: the disk would be the slowest part.
static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
});

fuzz_target!(|input: &[u8]| {
    let _ = Trailer::parse(input);
    if let Ok(scan) = Scan::of(input) {
        assert!(scan.end_bytes <= input.len() as u64);
    }
    let path = FOLDER.path().join("x.eqx");
    fs::write(&path, input).unwrap();
    let Ok(checkpoint) = regrow::open(&path) else { return };
    for leaf in 0..checkpoint.tree().len() {
        let _ = checkpoint.read(leaf);
    }
    let _ = checkpoint.verify();
});
