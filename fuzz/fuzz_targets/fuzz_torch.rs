//! PyTorch's files: opened, and every leaf read. The input is a file, or the pickle of a file in
//! the legacy form.

#![no_main]

use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

/// In memory where the system has such a folder: the disk would be the slowest part.
static FOLDER: LazyLock<TempDir> =
    LazyLock::new(|| tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap());

/// Magic number, version and system of a file in the legacy form.
const BEFORE: &[u8] =
    b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}X\r\0\0\0little_endian\x88s.";

/// The keys of no storages.
const AFTER: &[u8] = b"\x80\x02].";

fuzz_target!(|input: &[u8]| {
    let path = FOLDER.path().join("x.pt");
    for file in [input.to_vec(), [BEFORE, input, AFTER].concat()] {
        fs::write(&path, file).unwrap();
        let Ok(checkpoint) = regrow::open(&path) else { continue };
        for leaf in 0..checkpoint.tree().len() {
            if checkpoint.info(leaf).is_ok_and(|info| info.len_bytes() < 1 << 20) {
                let _ = checkpoint.read(leaf);
            }
        }
    }
});
