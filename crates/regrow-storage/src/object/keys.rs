//! A folder of objects as a store of keys, and one object as a blob.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::listing::Listing;
use super::{Conditional, Object, Objects, folder_key};
use crate::Identity;
use crate::bytes::limits::work_space;
use crate::error::Result;
use crate::store::{
    Blob, ByteRange, EachChunk, FETCH_LEN_MAX_BYTES, Located, ReadOnly, ReadPath, Span, Store,
    StoreCapabilities, StoreMaps, StoreVersions, StoreWrites, Suits, Version, missing, resolve_range,
};
use crate::threads::for_each_parallel;

/// Longer reads are split into concurrent requests of this length.
const REQUEST_LEN_BYTES: usize = 8 << 20;

/// Longest read that only looks at a file to recognize it.
const LOOK_LEN_MAX_BYTES: usize = 4 << 10;

/// The keys below a folder of a bucket. Each object is read in the version that was found first.
#[derive(Debug, Clone)]
pub(crate) struct ObjectStore {
    objects: Arc<dyn Objects>,
    prefix: Result<String, Arc<str>>,
    listing: Option<Arc<Listing>>,
    /// Objects that were requested one by one because no list has them; `None` for a missing
    /// object.
    known: Arc<Mutex<HashMap<String, Option<Object>>>>,
}

impl ObjectStore {
    /// The store of a folder that was not listed.
    pub(crate) fn unlisted(objects: Arc<dyn Objects>, folder: &Path) -> Self {
        let prefix = folder_key(&objects, folder).map_err(|error| Arc::from(error.what()));
        Self { objects, prefix, listing: None, known: Arc::default() }
    }

    /// The store of another folder that shares the objects found so far. Web servers need it,
    /// because they have no lists.
    #[cfg(feature = "cloud")]
    pub(crate) fn in_folder(&self, folder: &Path) -> Self {
        let prefix = folder_key(&self.objects, folder).map_err(|error| Arc::from(error.what()));
        Self { prefix, listing: None, ..self.clone() }
    }

    /// The store of a folder that was listed.
    pub(super) fn listed(objects: Arc<dyn Objects>, listing: Listing) -> Self {
        let prefix = Ok(listing.prefix().to_owned());
        Self { objects, prefix, listing: Some(Arc::new(listing)), known: Arc::default() }
    }

    fn key(&self, key: &[u8]) -> Result<String> {
        let invalid = |what: &str| crate::error::Error::invalid(what).in_file(self.describe(key));
        let prefix = self.prefix.as_ref().map_err(|what| invalid(what))?;
        let name = std::str::from_utf8(key).map_err(|_| invalid("a key in a bucket is UTF-8"))?;
        Ok(format!("{prefix}{name}"))
    }

    fn find(&self, key: &[u8]) -> Result<Option<Object>> {
        if let Some(listing) = &self.listing {
            let found = std::str::from_utf8(key).ok().and_then(|name| listing.object(name));
            let is_known = || std::str::from_utf8(key).is_ok_and(|name| listing.knows(name));
            if found.is_some() || is_known() {
                return Ok(found.cloned());
            }
        }
        let full = self.key(key)?;
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known().get(&full) {
            return Ok(found.clone());
        }
        let found = self.objects.head(&full)?;
        known().insert(full, found.clone());
        Ok(found)
    }

    fn forget(&self, full: &str) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(full);
    }
}

impl Store for ObjectStore {
    fn get(&self, key: &[u8], range: ByteRange) -> Result<Option<Bytes>> {
        let Some(object) = self.find(key)? else { return Ok(None) };
        let part =
            resolve_range(range, object.len_bytes).map_err(|error| error.in_file(self.describe(key)))?;
        if let Some(whole) = self.objects.whole(&object)? {
            return Ok(Some(whole.slice(part.start as usize..part.end as usize)));
        }
        if let Some(listing) = &self.listing
            && let Some(bytes) = listing.beginnings().read(&*self.objects, &object, part.clone())?
        {
            return Ok(Some(bytes));
        }
        let mut bytes = work_space(part.end - part.start)?;
        read_at_once(&*self.objects, &object, part.start, &mut bytes)?;
        Ok(Some(bytes.into()))
    }

    fn stream(
        &self,
        key: &[u8],
        range: ByteRange,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<bool> {
        let Some(object) = self.find(key)? else { return Ok(false) };
        let part =
            resolve_range(range, object.len_bytes).map_err(|error| error.in_file(self.describe(key)))?;
        let mut buffer = work_space((part.end - part.start).min(FETCH_LEN_MAX_BYTES))?;
        let mut at = part.start;
        while at < part.end {
            let len = (part.end - at).min(FETCH_LEN_MAX_BYTES) as usize;
            let piece = buffer.get_mut(..len).unwrap_or_default();
            self.objects.read(&object, at, piece)?;
            each(piece)?;
            at += len as u64;
        }
        Ok(true)
    }

    fn list(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
        let whole = self.listing.as_ref().filter(|listing| listing.is_whole());
        let mut keys: Vec<Vec<u8>> = match whole {
            Some(listing) => listing.objects().map(|(name, _)| name.as_bytes().to_vec()).collect(),
            None => {
                let start = self.key(b"")?;
                let listed = self.objects.list(&start)?;
                listed
                    .iter()
                    .filter_map(|object| Some(object.key.get(start.len()..)?.as_bytes().to_vec()))
                    .collect()
            }
        };
        keys.retain(|key| key.starts_with(prefix));
        Ok(keys)
    }

    fn len_bytes(&self, key: &[u8]) -> Result<Option<u64>> {
        Ok(self.find(key)?.map(|object| object.len_bytes))
    }

    fn locate(&self, key: &[u8]) -> Result<Option<Located>> {
        Ok(self.find(key)?.map(|object| {
            let len_bytes = object.len_bytes;
            Located::At(Span { store: Arc::new(self.clone()), key: key.into(), offset_bytes: 0, len_bytes })
        }))
    }

    fn open(&self, key: &[u8]) -> Result<Option<Arc<dyn Blob>>> {
        let objects = Arc::clone(&self.objects);
        let blob = |object| Arc::new(ObjectBlob { objects, object }) as Arc<dyn Blob>;
        Ok(self.find(key)?.map(blob))
    }

    fn read_into(&self, key: &[u8], offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        let object = self.find(key)?.ok_or_else(|| missing(self.describe(key)))?;
        let span = ByteRange::Span { offset_bytes, len_bytes: out.len() as u64 };
        let part =
            resolve_range(span, object.len_bytes).map_err(|error| error.in_file(self.describe(key)))?;
        if let Some(listing) = self.listing.as_ref().filter(|_| out.len() <= LOOK_LEN_MAX_BYTES)
            && let Some(bytes) = listing.beginnings().read(&*self.objects, &object, part)?
        {
            out.copy_from_slice(&bytes);
            return Ok(());
        }
        read_at_once(&*self.objects, &object, offset_bytes, out)
    }

    fn describe(&self, key: &[u8]) -> PathBuf {
        let prefix = self.prefix.as_deref().unwrap_or_default();
        self.objects.url(&format!("{prefix}{}", String::from_utf8_lossy(key))).into()
    }

    fn capabilities(&self) -> StoreCapabilities<'_> {
        let writes: std::result::Result<&dyn StoreWrites, _> =
            if self.listing.is_some() { Err(ReadOnly::OPEN) } else { Ok(self) };
        StoreCapabilities { writes, maps: Some(self), versions: Some(self) }
    }
}

impl StoreWrites for ObjectStore {
    fn put(&self, key: &[u8], value: Bytes) -> Result<()> {
        let full = self.key(key)?;
        self.forget(&full);
        self.objects.put(&full, value).map(drop)
    }

    fn put_if_absent(&self, key: &[u8], value: Bytes) -> Result<bool> {
        let full = self.key(key)?;
        self.forget(&full);
        Ok(matches!(self.objects.create(&full, value)?, Conditional::Done(_)))
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        let full = self.key(key)?;
        self.forget(&full);
        self.objects.delete(&[full])
    }
}

impl StoreMaps for ObjectStore {
    fn map(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self.find(key)? {
            Some(object) => self.objects.whole(&object),
            None => Ok(None),
        }
    }

    fn is_cached(&self, key: &[u8], _offset_bytes: u64, _len_bytes: u64) -> bool {
        let Ok(Some(object)) = self.find(key) else { return true };
        matches!(self.objects.whole(&object), Ok(Some(_)))
    }
}

impl StoreVersions for ObjectStore {
    fn version(&self, key: &[u8]) -> Result<Option<Version>> {
        let version = |object: Object| Version {
            len_bytes: object.len_bytes,
            text: format!("object {} {} {}", self.objects.url(&object.key), object.len_bytes, object.tag),
        };
        Ok(self.find(key)?.map(version))
    }
}

/// Reads a part of an object with several concurrent requests if the part is long.
fn read_at_once(objects: &dyn Objects, object: &Object, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
    if out.len() <= REQUEST_LEN_BYTES {
        return if out.is_empty() { Ok(()) } else { objects.read(object, offset_bytes, out) };
    }
    let threads = objects.suits().requests_max.min(out.len().div_ceil(REQUEST_LEN_BYTES));
    let parts = out.chunks_mut(REQUEST_LEN_BYTES).enumerate();
    for_each_parallel(
        threads,
        parts,
        u64::MAX,
        |_| 0,
        |(at, part)| objects.read(object, offset_bytes + (at * REQUEST_LEN_BYTES) as u64, part),
    )
}

/// The first bytes of the value of a key, at most `len_max_bytes`.
pub(crate) fn read_beginning(store: &dyn Store, name: &str, len_max_bytes: u64) -> Result<Option<Vec<u8>>> {
    let Some(len_bytes) = store.len_bytes(name.as_bytes())? else { return Ok(None) };
    let span = ByteRange::Span { offset_bytes: 0, len_bytes: len_bytes.min(len_max_bytes) };
    Ok(store.get(name.as_bytes(), span)?.map(Into::into))
}

/// One version of one object.
#[derive(Debug)]
pub(super) struct ObjectBlob {
    objects: Arc<dyn Objects>,
    object: Object,
}

impl ObjectBlob {
    pub(super) fn new(objects: Arc<dyn Objects>, object: Object) -> Self {
        Self { objects, object }
    }
}

impl Blob for ObjectBlob {
    fn len_bytes(&self) -> u64 {
        self.object.len_bytes
    }

    fn describe(&self) -> PathBuf {
        self.objects.url(&self.object.key).into()
    }

    fn read(&self, offset_bytes: u64, out: &mut [u8], _way: ReadPath) -> Result<()> {
        read_at_once(&*self.objects, &self.object, offset_bytes, out)
    }

    fn stream(&self, offset_bytes: u64, len_bytes: u64, each: EachChunk<'_>) -> Result<bool> {
        self.objects.stream(&self.object, offset_bytes, len_bytes, each)
    }

    fn map(&self) -> Result<Option<Bytes>> {
        self.objects.whole(&self.object)
    }

    fn is_cached(&self, _offset_bytes: u64, _len_bytes: u64) -> bool {
        matches!(self.objects.whole(&self.object), Ok(Some(_)))
    }

    fn identity(&self) -> Option<Identity> {
        Some(Identity::of_objects((&self.object.key, self.object.tag.text())))
    }

    fn object(&self) -> Option<(String, Identity)> {
        Some((self.object.key.clone(), Identity::of_objects(self.object.tag.text())))
    }

    fn suits(&self) -> Suits {
        self.objects.suits()
    }
}
