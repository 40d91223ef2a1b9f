//! The storage of a sealed checkpoint, as its layout reads it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::{Governed, Seal};
use super::store::SealedStore;
use regrow_base::error::Result;
use regrow_storage::location::Location;
use regrow_storage::{Capabilities, Document, Entry, Found, Identity, ReadOnly, Reading, Storage};
use regrow_store::{ByteRange, Store};

/// A storage that checks every read of a sealed file of another storage. It accepts no writes.
#[derive(Debug)]
pub(super) struct SealedStorage {
    storage: Arc<dyn Storage>,
    seal: Arc<Seal>,
}

impl Seal {
    /// The same location, with checks of all bytes read from sealed files.
    pub fn location(self: &Arc<Self>, at: &Location) -> Location {
        at.through(Arc::new(SealedStorage::new(Arc::clone(at.storage()), Arc::clone(self))))
    }
}

impl SealedStorage {
    pub fn new(storage: Arc<dyn Storage>, seal: Arc<Seal>) -> Self {
        Self { storage, seal }
    }

    /// A store with a path, and the key of the path in this store; `None` if the seal neither lists
    /// nor forbids the path.
    fn sealed<'p>(&self, path: &'p Path) -> Option<(SealedStore, &'p str)> {
        if matches!(self.seal.governs(path), Governed::Free) {
            return None;
        }
        let folder = self.seal.place.folder.path();
        let (folder, key) = match path.strip_prefix(folder) {
            Ok(key) => (folder, key),
            Err(_) => (path.parent()?, Path::new(path.file_name()?)),
        };
        let store = SealedStore::new(self.storage.store(folder), Arc::clone(&self.seal), folder.to_owned());
        Some((store, key.to_str()?))
    }
}

impl Storage for SealedStorage {
    fn describe(&self, path: &Path) -> PathBuf {
        self.storage.describe(path)
    }

    fn look(&self, path: &Path) -> Result<Option<Found>> {
        self.storage.look(path)
    }

    /// The entries of the folder without its side files.
    fn entries(&self, folder: &Path) -> Result<Vec<Entry>> {
        let mut entries = self.storage.entries(folder)?;
        entries.retain(|entry| !self.seal.is_side_file(&folder.join(&entry.name)));
        Ok(entries)
    }

    fn store(&self, folder: &Path) -> Arc<dyn Store> {
        let store = self.storage.store(folder);
        Arc::new(SealedStore::new(store, Arc::clone(&self.seal), folder.to_owned()))
    }

    fn opened(&self, folder: &Path) -> Result<Arc<dyn Store>> {
        let store = self.storage.opened(folder)?;
        Ok(Arc::new(SealedStore::new(store, Arc::clone(&self.seal), folder.to_owned())))
    }

    fn read_document(&self, path: &Path, document: Document<'_>) -> Result<Option<Vec<u8>>> {
        match self.sealed(path) {
            Some((store, key)) => store.read_document(key, document),
            None => self.storage.read_document(path, document),
        }
    }

    fn read_beginning(&self, path: &Path, len_max_bytes: u64) -> Result<Option<Vec<u8>>> {
        let Some((store, key)) = self.sealed(path) else {
            return self.storage.read_beginning(path, len_max_bytes);
        };
        let Some(Found::File { len_bytes }) = self.look(path)? else { return Ok(None) };
        let span = ByteRange::Span { offset_bytes: 0, len_bytes: len_bytes.min(len_max_bytes) };
        Ok(store.get(key.as_bytes(), span)?.map(Into::into))
    }

    fn identity(&self, path: &Path) -> Option<Identity> {
        self.storage.identity(path)
    }

    fn for_reading(&self, path: &Path) -> Result<Option<Reading>> {
        let reading = self.storage.for_reading(path)?;
        Ok(reading.map(|Reading { location, identity }| Reading {
            location: self.seal.location(&location),
            identity,
        }))
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities { writes: Err(ReadOnly::OPEN), ..self.storage.capabilities() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::{BLOCK_LEN_BYTES, SealDocument};
    use super::super::files::Place;
    use super::*;
    use regrow_base::bytes::checksum::Crc32;
    use regrow_base::error::ErrorKind;
    use regrow_base::monitor::Monitor;
    use regrow_storage::local::LocalDisk;
    use regrow_storage::location::Location;
    use regrow_storage::{PublishOptions, Target};
    use regrow_store::{ByteRange, StoreExt};

    /// A sealed folder with one sealed file, and with a file that was added later.
    fn sealed() -> (tempfile::TempDir, SealedStorage) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.npy"), b"a").unwrap();
        let place = Place::of(&Location::local(folder.path()));
        let mut document = SealDocument::new("npy", true);
        document.push("a.npy".to_owned(), 1, &[Crc32::of(b"a")]);
        let bytes = document.to_bytes().unwrap();
        std::fs::write(place.file.path(), &bytes).unwrap();
        std::fs::write(folder.path().join("later"), b"...").unwrap();
        let seal = Arc::new(Seal::of(&bytes, place).unwrap());
        (folder, SealedStorage::new(Arc::new(LocalDisk), seal))
    }

    #[test]
    fn a_sealed_storage_says_what_its_storage_says_but_of_side_files() {
        let (folder, sealed) = sealed();
        for name in ["", "a.npy", "later", "nothing"] {
            let path = folder.path().join(name);
            assert_eq!(sealed.describe(&path), LocalDisk.describe(&path));
            assert_eq!(sealed.identity(&path), LocalDisk.identity(&path));
            assert_eq!(
                sealed.for_reading(&path).unwrap().is_some(),
                LocalDisk.for_reading(&path).unwrap().is_some()
            );
        }
        let (ours, disk) = (sealed.capabilities(), LocalDisk.capabilities());
        assert_eq!(
            (ours.is_local, ours.has_listings, ours.commits_by_marker, ours.archive.is_some()),
            (disk.is_local, disk.has_listings, disk.commits_by_marker, disk.archive.is_some())
        );
        let mut names: Vec<_> =
            sealed.entries(folder.path()).unwrap().into_iter().map(|entry| entry.name).collect();
        names.sort();
        assert_eq!(names, ["a.npy", "later"]);
        let target = Location::local(folder.path().join("new")).through(Arc::new(sealed));
        let monitor = Monitor::new();
        let options = PublishOptions::of_overwrite(&monitor);
        assert_eq!(target.check_publish(&Target::File, options).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(target.publish_file(options).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_sealed_store_gives_what_was_sealed_and_takes_nothing() {
        let (folder, sealed) = sealed();
        let (store, plain) = (sealed.store(folder.path()), LocalDisk.store(folder.path()));
        assert_eq!(store.list(b"").unwrap(), [b"a.npy".to_vec(), b"later".to_vec()]);
        assert_eq!(store.list(b"l").unwrap(), [b"later".to_vec()]);
        assert_eq!(store.get_whole(b"a.npy").unwrap().unwrap(), "a");
        assert_eq!(store.get_whole(b"later").unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(store.put(b"new", bytes::Bytes::new()).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(store.delete(b"later").unwrap_err().kind(), ErrorKind::Unsupported);
        assert!(folder.path().join("later").exists() && !folder.path().join("new").exists());
        assert_eq!(store.version(b"a.npy").unwrap(), plain.version(b"a.npy").unwrap());
        assert_eq!(store.describe(b"a.npy"), plain.describe(b"a.npy"));
        // The seal itself is not sealed; sealed files have no unchecked maps.
        let own = sealed.seal.place.file.name().as_encoded_bytes();
        assert_eq!(store.map(own).unwrap(), plain.map(own).unwrap());
        assert!(store.map_private(own).unwrap().is_some() == plain.map_private(own).unwrap().is_some());
        assert!(store.map(b"a.npy").unwrap().is_none() && store.map_private(b"a.npy").unwrap().is_none());
        std::fs::write(folder.path().join("a.npy"), b"b").unwrap();
        assert_eq!(store.get_whole(b"a.npy").unwrap_err().kind(), ErrorKind::Corrupt);
    }

    /// A sealed folder with one file of `count` blocks, and the file's bytes. The last block is
    /// short.
    fn sealed_blocks(count: u64) -> (tempfile::TempDir, SealedStorage, Vec<u8>) {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..count * BLOCK_LEN_BYTES - 7).map(|at| (at % 251) as u8).collect();
        std::fs::write(folder.path().join("a.npy"), &bytes).unwrap();
        let mut document = SealDocument::new("npy", true);
        let sums: Vec<u32> = bytes.chunks(BLOCK_LEN_BYTES as usize).map(Crc32::of).collect();
        document.push("a.npy".to_owned(), bytes.len() as u64, &sums);
        let place = Place::of(&Location::local(folder.path()));
        let seal = Arc::new(Seal::of(&document.to_bytes().unwrap(), place).unwrap());
        (folder, SealedStorage::new(Arc::new(LocalDisk), seal), bytes)
    }

    #[test]
    fn of_a_sealed_file_the_blocks_that_are_wanted_count() {
        let (folder, sealed, bytes) = sealed_blocks(3);
        let store = sealed.store(folder.path());
        let mut bad = bytes.clone();
        bad[BLOCK_LEN_BYTES as usize] ^= 1;
        std::fs::write(folder.path().join("a.npy"), &bad).unwrap();
        let block = BLOCK_LEN_BYTES;
        let len_bytes = bytes.len() as u64;
        // Reads before and after the damaged block succeed: they do not read this block.
        for (start, end) in
            [(0, block), (block - 1, block), (2 * block, len_bytes), (2 * block + 5, len_bytes)]
        {
            let range = ByteRange::Span { offset_bytes: start, len_bytes: end - start };
            let found = store.get(b"a.npy", range).unwrap().unwrap();
            assert!(found == bytes[start as usize..end as usize], "{start}..{end}");
        }
        for (start, end) in [(0, block + 1), (block, block + 1), (2 * block - 1, len_bytes)] {
            let range = ByteRange::Span { offset_bytes: start, len_bytes: end - start };
            assert_eq!(store.get(b"a.npy", range).unwrap_err().kind(), ErrorKind::Corrupt, "{start}..{end}");
        }
    }
}
