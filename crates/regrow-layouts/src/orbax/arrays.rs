//! The arrays of one pytree: zarr below `<param name>/`, in an OCDBT database or in plain folders.
//!
//! A database is listed once into a table, so that finding a chunk costs one lookup for any number
//! of leaves. Identical `zarr.json` documents are parsed once. Folders are read one array at a
//! time.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::files::{Listed, list};
use super::left::{entries_there, lost_manifest};
use super::marker_files::MANIFEST_FILE;
use super::opened::Wanted;
use super::slot::{Slot, Source};
use super::steps::TMP_MARK;
use super::stored_array::{StoredArray, zarr_key};
use regrow_base::bytes::limits::ZARR_DOCUMENT_LEN_MAX_BYTES;
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_ocdbt::OcdbtStore;
use regrow_storage::location::Location;
use regrow_store::{ByteRange, Located, ReadOnly, Store, StoreCapabilities, resolve_range};
use regrow_tree::tree::{LeafInfo, LeafKind};
use regrow_zarr::zarr::{ArrayMeta, Missing, V2_DOCUMENT, V3_DOCUMENT, ZarrArray};

pub(super) const DOCUMENTS: [&str; 2] = [V2_DOCUMENT, V3_DOCUMENT];

/// Where the arrays of a pytree are, and the documents met so far.
#[derive(Debug)]
pub(super) struct Arrays {
    store: Arc<dyn Store>,
    index: Option<Arc<Index>>,
    use_zarr3: bool,
    missing: Missing,
    wanted: Wanted,
    documents: HashMap<Bytes, Arc<ArrayMeta>>,
    /// The databases in folders below this folder, by path.
    below: HashMap<String, Self>,
}

impl Arrays {
    /// In a salvage, entries below unreadable nodes are missing.
    pub fn in_database(folder: &Location, use_zarr3: bool, missing: Missing, wanted: Wanted) -> Result<Self> {
        let (entries, damage) = match wanted {
            Wanted::Whole | Wanted::Named => (OcdbtStore::open(folder.opened()?)?.entries()?, None),
            Wanted::Intact | Wanted::Arrays => entries_there(folder)?,
        };
        // A missing chunk may be in an unreadable node, so a missing chunk does not mean zeros.
        let missing = if damage.is_some() { Missing::Error } else { missing };
        let entries = entries.into_iter().map(|(key, at)| (key.into_boxed_slice(), at)).collect();
        let index = Arc::new(Index { folder: folder.clone(), entries });
        let store: Arc<dyn Store> = index.clone();
        Ok(Self {
            store,
            index: Some(index),
            use_zarr3,
            missing,
            wanted,
            documents: HashMap::new(),
            below: HashMap::new(),
        })
    }

    pub fn in_folders(folder: &Location, use_zarr3: bool, missing: Missing, wanted: Wanted) -> Result<Self> {
        Ok(Self {
            store: folder.opened()?,
            index: None,
            use_zarr3,
            missing,
            wanted,
            documents: HashMap::new(),
            below: HashMap::new(),
        })
    }

    /// How the arrays are kept, in words: `ocdbt, zarr v3`.
    pub fn variant(&self) -> String {
        let kept = if self.index.is_some() { "ocdbt" } else { "folders" };
        format!("{kept}, zarr v{}", if self.use_zarr3 { 3 } else { 2 })
    }

    /// The leaf stored under `name`.
    ///
    /// # Errors
    /// `Corrupt` if its document is missing or damaged, `Unsupported` if it asks for an unknown
    /// codec or dtype. In a salvage, the leaf is lost instead.
    pub fn leaf(&mut self, name: &str, kind: LeafKind) -> Result<Slot> {
        if let Some((arrays, own)) = self.in_folder_of(name)? {
            let mut slot = arrays.leaf(&own, kind)?;
            slot.info.name = name.into();
            return Ok(slot);
        }
        let document = self.document(name);
        let meta = match self.wanted.or_lost(document)? {
            Ok(meta) => meta,
            Err(why) => return Ok(Slot::lost(name, why)),
        };
        let info = LeafInfo {
            kind,
            dtype: meta.dtype(),
            shape: meta.shape().clone(),
            name: name.into(),
            chunk_shape: Some(meta.inner_chunk_shape().clone()),
            write_shape: None,
            sharding: None,
            coding: meta.coding().into(),
        };
        // Without a fill value, TensorStore stores every chunk, even zeros, so a missing chunk is
        // damage.
        let missing = if meta.has_fill() { self.missing } else { Missing::Error };
        let array = ZarrArray::new(self.store.clone(), name.as_bytes(), meta, missing);
        Ok(Slot {
            info,
            source: Source::Zarr(StoredArray {
                array,
                name: name.to_owned(),
                store: self.store.clone(),
                is_indexed: self.index.is_some(),
                missing,
            }),
        })
    }

    /// For a name with slashes: the database in the folder that the first parts name, and the last
    /// part. Orbax before 0.4.2 saved such names.
    fn in_folder_of(&mut self, name: &str) -> Result<Option<(&mut Self, String)>> {
        let Some((index, (above, own))) = self.index.as_ref().zip(name.rsplit_once('/')) else {
            return Ok(None);
        };
        // A name must not lead out of the folder.
        let is_safe = !above.split('/').any(|part| matches!(part, "" | "." | ".."));
        let folder = index.folder.join(above);
        if self.has(name) || !is_safe || !folder.is_folder() {
            return Ok(None);
        }
        if !folder.join(MANIFEST_FILE).is_file() {
            return lost_manifest(&folder, &list(&folder)?)?.map_or(Ok(None), Err);
        }
        if !self.below.contains_key(above) {
            let arrays = Self::in_database(&folder, self.use_zarr3, self.missing, self.wanted)?;
            self.below.insert(above.to_owned(), arrays);
        }
        Ok(self.below.get_mut(above).map(|arrays| (arrays, own.to_owned())))
    }

    /// The names of all arrays in the database, and the first key that belongs to no array.
    pub fn names(&self) -> (Vec<String>, Option<String>) {
        let keys = || self.index.iter().flat_map(|index| index.entries.keys().map(AsRef::as_ref));
        let (names, _) = names_of_keys(keys());
        let is_of_array = |key: &[u8]| {
            let ends = key.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
            let mut above = ends.filter_map(|end| std::str::from_utf8(key.get(..end)?).ok());
            names.contains("") || above.any(|name| names.contains(name))
        };
        let foreign = keys().filter(|key| !is_of_array(key)).min();
        let foreign = foreign.map(|key| String::from_utf8_lossy(key).into_owned());
        (names.into_iter().collect(), foreign)
    }

    /// Whether an array is stored under `name`; false also if the storage cannot tell.
    pub fn has(&self, name: &str) -> bool {
        DOCUMENTS
            .iter()
            .any(|document| matches!(self.store.len_bytes(&zarr_key(name, document)), Ok(Some(_))))
    }

    fn document(&mut self, name: &str) -> Result<Arc<ArrayMeta>> {
        let mut documents = DOCUMENTS;
        if self.use_zarr3 {
            documents.reverse();
        }
        for document in documents {
            let key = zarr_key(name, document);
            let Some(len) = self.store.len_bytes(&key).map_err(|error| unsafe_name(error, name))? else {
                continue;
            };
            if len > ZARR_DOCUMENT_LEN_MAX_BYTES as u64 {
                return Err(Error::new(ErrorKind::Limit, "the metadata of an array is too long")
                    .in_file(self.store.describe(&key))
                    .expected(format_args!("at most {ZARR_DOCUMENT_LEN_MAX_BYTES} bytes"), len));
            }
            let Some(bytes) = self.store.get(&key, ByteRange::Full)? else { continue };
            if let Some(meta) = self.documents.get(&bytes) {
                return Ok(meta.clone());
            }
            let parse = if document == V2_DOCUMENT { ArrayMeta::parse_v2 } else { ArrayMeta::parse_v3 };
            let meta = Arc::new(parse(&bytes).map_err(|error| error.in_file(self.store.describe(&key)))?);
            self.documents.insert(bytes, meta.clone());
            return Ok(meta);
        }
        Err(self.document_missing(name))
    }

    pub fn document_missing(&self, name: &str) -> Error {
        Error::corrupt("the metadata of an array is missing")
            .in_file(self.store.describe(&zarr_key(name, DOCUMENTS[usize::from(self.use_zarr3)])))
            .help("the leaf is listed but its array is missing; copy the whole checkpoint again")
    }

    pub fn folder_of(&self, name: &str) -> PathBuf {
        self.store.describe(name.as_bytes())
    }
}

/// The names of the arrays that have a document among `keys`, and whether a document is of zarr v3.
pub(super) fn names_of_keys<'k>(keys: impl Iterator<Item = &'k [u8]>) -> (BTreeSet<String>, bool) {
    let mut use_zarr3 = false;
    let names = keys.filter_map(|key| {
        let key = std::str::from_utf8(key).ok()?;
        // If one array is the whole database, its keys have no folder.
        let (name, document) = key.rsplit_once('/').unwrap_or(("", key));
        use_zarr3 |= document == DOCUMENTS[1];
        DOCUMENTS.contains(&document).then(|| name.to_owned())
    });
    (names.collect(), use_zarr3)
}

/// The names of the arrays in folders directly below `at`, and whether a document is of zarr v3.
pub(super) fn names_of_folders(at: &Location, listed: &[Listed]) -> (BTreeSet<String>, bool) {
    let (mut names, mut use_zarr3) = (BTreeSet::new(), false);
    for folder in listed.iter().filter(|entry| entry.is_dir && !entry.name.contains(TMP_MARK)) {
        if let Some(document) = at.join(&folder.name).first_file(&DOCUMENTS) {
            use_zarr3 |= document == DOCUMENTS[1];
            names.insert(folder.name.clone());
        }
    }
    (names, use_zarr3)
}

fn unsafe_name(error: Error, name: &str) -> Error {
    if error.kind() != ErrorKind::InvalidArgument {
        return error;
    }
    Error::corrupt(format!("the stored name {name:?} of a leaf is not a path inside the checkpoint"))
        .help("regrow refuses absolute names and names with `..` or empty parts")
}

/// Every key of a database with the position of its value.
#[derive(Debug)]
struct Index {
    folder: Location,
    entries: HashMap<Box<[u8]>, Located>,
}

impl Store for Index {
    fn get(&self, key: &[u8], range: ByteRange) -> Result<Option<Bytes>> {
        let Some(located) = self.entries.get(key) else { return Ok(None) };
        let part =
            resolve_range(range, located.len_bytes()).map_err(|error| error.in_file(self.describe(key)))?;
        match located {
            Located::Inline(bytes) => Ok(Some(bytes.slice(part.start as usize..part.end as usize))),
            Located::At(span) => {
                let mut span = span.clone();
                span.offset_bytes = span.offset_bytes.saturating_add(part.start);
                span.len_bytes = part.end - part.start;
                span.read().map(Some)
            }
        }
    }

    fn list(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut keys: Vec<Vec<u8>> =
            self.entries.keys().filter(|key| key.starts_with(prefix)).map(|key| key.to_vec()).collect();
        keys.sort_unstable();
        Ok(keys)
    }

    fn len_bytes(&self, key: &[u8]) -> Result<Option<u64>> {
        Ok(self.entries.get(key).map(Located::len_bytes))
    }

    fn locate(&self, key: &[u8]) -> Result<Option<Located>> {
        Ok(self.entries.get(key).cloned())
    }

    fn describe(&self, key: &[u8]) -> PathBuf {
        self.folder.join(format!("{MANIFEST_FILE}:{}", String::from_utf8_lossy(key))).describe()
    }

    fn capabilities(&self) -> StoreCapabilities<'_> {
        let what = "a database that was opened for reading cannot be changed";
        StoreCapabilities { writes: Err(ReadOnly { what, help: None }), maps: None, versions: None }
    }
}
