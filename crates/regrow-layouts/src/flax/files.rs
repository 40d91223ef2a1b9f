//! Recognises Flax' single files: by their names, or by the structure of their bytes.

use std::ffi::OsStr;

use super::msgpack::{begins_one_object, begins_tree, is_one_object};
use super::step_names::{PREFIX, split};
use super::streamed::begins_record;
use crate::Preview;
use crate::npy::header::MAGIC;
use regrow_base::bytes::limits::work_space;
use regrow_base::error::Result;
use regrow_storage::location::Location;
use regrow_store::{ReadPath, StoreExt};

pub(super) const ENDING: &str = ".msgpack";

/// The most tokens that are read to recognise msgpack. Checkpoints of Flax' users have fewer, and
/// the first few tokens show most other files to be something else.
const TOKENS_MAX: usize = 1 << 20;

/// The number of bytes read to recognise a file without memory maps, so that not the whole file is
/// fetched.
const LOOKED_AT_BYTES: u64 = 64 << 10;

/// The number of bytes read of a record: a key path and the start of its value.
const RECORD_LOOKED_AT_BYTES: u64 = 4 << 10;

/// Whether the file `at` a location is one of Flax': by its name, or because the whole file is one
/// msgpack object, or records.
pub(super) fn is_flax_file(at: &Location) -> bool {
    is_named_so(at.name()) || holds_one_object(at) || holds_records(at)
}

pub(super) fn is_named_so(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let is_step = split(&name).is_some_and(|(prefix, _)| prefix == PREFIX);
    name.ends_with(ENDING) || is_step
}

/// Whether the file `at` a location is exactly one map, array or extension. Reads its structure, no
/// data. Without memory maps, reads only the first bytes.
pub(crate) fn holds_one_object(at: &Location) -> bool {
    let first = at.read_beginning(1).ok().flatten();
    let begins = first.and_then(|first| first.first().copied()).is_some_and(begins_tree);
    begins && shows_structure(at).unwrap_or(false)
}

fn shows_structure(at: &Location) -> Result<bool> {
    let (store, key) = (at.parent().store(), at.name().as_encoded_bytes());
    if let Some(map) = store.map(key)? {
        return Ok(is_one_object(&map, TOKENS_MAX));
    }
    let Some(blob) = store.open(key)? else { return Ok(false) };
    let mut start = work_space(blob.len_bytes().min(LOOKED_AT_BYTES))?;
    blob.read(0, &mut start, ReadPath::Cached)?;
    Ok(begins_one_object(&start, blob.len_bytes(), TOKENS_MAX))
}

fn holds_records(at: &Location) -> bool {
    let start = at.read_beginning(RECORD_LOOKED_AT_BYTES).ok().flatten();
    start.is_some_and(|start| begins_record(&start))
}

/// Whether a file that is not yet written will be one object. Of all files that regrow writes, only
/// msgpack files and npy records can begin like an object. The magic shows the npy records.
pub(super) fn shows_one_object(preview: &Preview) -> bool {
    let start = preview.read_at(0, MAGIC.len() as u64);
    start.first().is_some_and(|&first| begins_tree(first)) && start != MAGIC
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_are_left_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            is_flax_file(&Location::local(path))
        };
        for (name, bytes) in [
            ("a.txt", &b"text"[..]),
            ("b.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"),
            ("c.npy", b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}"),
            ("d", b""),
            ("e", b"\x07"),
            ("f.zip", b"PK\x03\x04"),
            ("g", b"\x80\x80"),
            ("h.gz", b"\x1f\x8b\x08"),
        ] {
            assert!(!write(name, bytes), "{name}");
        }
        for (name, bytes) in [
            ("i", &[0x80][..]),
            ("j.bin", &[0x81, 0xa1, b'a', 0x92, 1, 2]),
            ("k.msgpack", b"anything"),
            ("checkpoint_7", b""),
        ] {
            assert!(write(name, bytes), "{name}");
        }
        assert!(!is_flax_file(&Location::local(folder.path())));
    }
}
