//! Single files: which are Flax', and their bytes.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use bytes::Bytes;

use super::msgpack::{begins_tree, is_one_object};
use super::steps::split;
use crate::error::{Error, Result};
use crate::formats::Sketch;
use crate::formats::npy::header::MAGIC;
use crate::store::{LocalStore, Store, StoreExt};

/// The ending of names that say what they are.
pub(super) const ENDING: &str = ".msgpack";

/// Steps looked at before something that still makes sense counts as msgpack: the checkpoints of Flax' users have
/// fewer, and most of them are told apart by their first few.
const TOKENS_MAX: usize = 1 << 20;

/// Whether a file is one of Flax': by its name, or because it is one msgpack object from its first byte to its last.
pub(super) fn is_flax_file(path: &Path) -> bool {
    path.is_file() && is_named_so(path) || holds_one_object(path)
}

/// Whether a file is named like one of these.
pub(super) fn is_named_so(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let is_step = split(&name).is_some_and(|(prefix, _)| prefix == "checkpoint_");
    name.ends_with(ENDING) || is_step
}

/// Whether a file is exactly one map, array or extension. Reads its structure, not its data.
pub(super) fn holds_one_object(path: &Path) -> bool {
    if !path.is_file() {
        return false;
    }
    let mut first = [0];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut first));
    read.is_ok()
        && begins_tree(first[0])
        && whole(path).is_ok_and(|(_, _, bytes)| is_one_object(&bytes, TOKENS_MAX))
}

/// The same of a file that has not been written yet. Of the layouts that begin as an object does, msgpack is one from
/// its first byte to its last, and npy records never are.
pub(super) fn shows_one_object(sketch: &Sketch) -> bool {
    let start = sketch.read_at(0, MAGIC.len() as u64);
    start.first().is_some_and(|&first| begins_tree(first)) && start != MAGIC
}

/// The store of a file's folder, its key there, and all of its bytes: mapped if they can be.
///
/// # Errors
/// What the file system says.
pub(super) fn whole(path: &Path) -> Result<(LocalStore, Vec<u8>, Bytes)> {
    let absolute = std::path::absolute(path).map_err(|error| Error::io("cannot open", path, error))?;
    let (Some(folder), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(Error::invalid("the path of a checkpoint has no file name").in_file(path));
    };
    let store = LocalStore::new(folder);
    let key = name.as_encoded_bytes().to_vec();
    let bytes = match store.map(&key)? {
        Some(map) => map,
        None => store
            .get_whole(&key)?
            .ok_or_else(|| Error::io("cannot open", path, std::io::ErrorKind::NotFound.into()))?,
    };
    Ok((store, key, bytes))
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
            is_flax_file(&path)
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
        assert!(!is_flax_file(folder.path()));
    }
}
