//! Objects in memory: for tests, and for checkpoints that live as long as the process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::{Conditional, Extent, Facts, Keys, Object, ObjectWrites, Objects, Tag, Upload, held};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Suits;

/// Length of the parts of an upload. Memory works with any length.
const PART_LEN_BYTES: usize = 8 << 20;

/// A bucket of objects in memory. Cheap to clone; clones share the bucket.
#[derive(Debug, Clone)]
pub(crate) struct MemoryObjects {
    name: Arc<str>,
    state: Arc<Mutex<State>>,
    copy_len_max_bytes: u64,
    renewed_every: Duration,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, (Bytes, Object)>,
    generation: u64,
}

impl MemoryObjects {
    /// An empty bucket with this name.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: Arc::from(name),
            state: Arc::default(),
            copy_len_max_bytes: u64::MAX,
            renewed_every: held::RENEWED_EVERY,
        }
    }

    /// A bucket whose writers renew their state objects at this interval.
    #[cfg(test)]
    pub(super) fn with_renewals_every(name: &str, renewed_every: Duration) -> Self {
        Self { renewed_every, ..Self::new(name) }
    }

    /// A bucket that cannot copy longer objects than this.
    #[cfg(test)]
    pub(super) fn with_copies_up_to(name: &str, copy_len_max_bytes: u64) -> Self {
        Self { copy_len_max_bytes, ..Self::new(name) }
    }

    // Every change is one call on the map, so a panic elsewhere cannot leave it half changed.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bytes_of(&self, object: &Object) -> Result<Bytes> {
        match self.state().objects.get(&object.key) {
            Some((bytes, found)) if found.tag.is_same(&object.tag) => Ok(bytes.clone()),
            _ => Err(Error::new(ErrorKind::Replaced, "an object was replaced or removed while it was read")
                .in_file(self.url(&object.key))
                .help("open the checkpoint again")),
        }
    }
}

impl State {
    fn put(&mut self, key: &str, bytes: Bytes) -> Tag {
        self.generation += 1;
        let tag = Tag::new(None, Some(self.generation.to_string()));
        let object = Object {
            key: key.to_owned(),
            len_bytes: bytes.len() as u64,
            tag: tag.clone(),
            modified: SystemTime::now(),
        };
        self.objects.insert(key.to_owned(), (bytes, object));
        tag
    }
}

impl Objects for MemoryObjects {
    fn url(&self, key: &str) -> String {
        format!("memory://{}/{key}", self.name)
    }

    fn facts(&self) -> Facts {
        Facts {
            suits: Suits { requests_min: 1, requests_max: usize::MAX },
            ahead_len_max_bytes: 0,
            copy_len_max_bytes: self.copy_len_max_bytes,
            renewed_every: self.renewed_every,
        }
    }

    fn head(&self, key: &str) -> Result<Option<Object>> {
        Ok(self.state().objects.get(key).map(|(_, object)| object.clone()))
    }

    fn get_up_to(&self, key: &str, len_max_bytes: u64) -> Result<Option<(Bytes, Object)>> {
        let found = self.state().objects.get(key).cloned();
        Ok(found.filter(|(_, object)| object.len_bytes <= len_max_bytes))
    }

    fn read(&self, object: &Object, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        let bytes = self.bytes_of(object)?;
        let start = usize::try_from(offset_bytes).unwrap_or(usize::MAX);
        let part = bytes.get(start..start.saturating_add(out.len())).ok_or_else(|| {
            Error::corrupt("the object is too short for the wanted bytes")
                .in_file(self.url(&object.key))
                .at_byte(offset_bytes)
        })?;
        out.copy_from_slice(part);
        Ok(())
    }

    fn whole(&self, object: &Object) -> Result<Option<Bytes>> {
        self.bytes_of(object).map(Some)
    }

    fn keys(&self, begins: &str, extent: Extent) -> Result<Keys> {
        let state = self.state();
        let below = state.objects.range(begins.to_owned()..).take_while(|(key, _)| key.starts_with(begins));
        let mut keys = Keys { is_whole: true, ..Keys::default() };
        for (key, (_, object)) in below {
            match key.get(begins.len()..).unwrap_or_default().split_once('/') {
                Some((folder, _)) if extent == Extent::Level => {
                    if keys.folders.last().is_none_or(|last| last != folder) {
                        keys.folders.push(folder.to_owned());
                    }
                }
                _ => keys.objects.push(object.clone()),
            }
        }
        Ok(keys)
    }

    fn writes(&self, _key: &str) -> Result<&dyn ObjectWrites> {
        Ok(self)
    }

    #[cfg(feature = "cloud")]
    fn cache_name(&self) -> Option<String> {
        None
    }
}

impl ObjectWrites for MemoryObjects {
    fn now(&self) -> Option<SystemTime> {
        Some(SystemTime::now())
    }

    fn put(&self, key: &str, bytes: Bytes) -> Result<Tag> {
        Ok(self.state().put(key, bytes))
    }

    fn create(&self, key: &str, bytes: Bytes) -> Result<Conditional> {
        let mut state = self.state();
        Ok(match state.objects.get(key) {
            Some((found, object)) => Conditional::Lost(found.clone(), object.tag.clone()),
            None => Conditional::Done(state.put(key, bytes)),
        })
    }

    fn replace(&self, old: &Object, bytes: Bytes) -> Result<Conditional> {
        let mut state = self.state();
        Ok(match state.objects.get(&old.key) {
            Some((_, object)) if object.tag.is_same(&old.tag) => {
                Conditional::Done(state.put(&old.key, bytes))
            }
            Some((found, object)) => Conditional::Lost(found.clone(), object.tag.clone()),
            None => Conditional::Lost(Bytes::new(), Tag::new(None, None)),
        })
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        let mut state = self.state();
        for key in keys {
            state.objects.remove(key);
        }
        Ok(())
    }

    fn copy(&self, from: &Object, to: &str) -> Result<Tag> {
        let bytes = self.bytes_of(from)?;
        Ok(self.state().put(to, bytes))
    }

    fn upload(&self, key: &str, _expected_len_bytes: u64) -> Result<Box<dyn Upload>> {
        Ok(Box::new(MemoryUpload { bucket: self.clone(), key: key.to_owned(), bytes: Vec::new() }))
    }
}

#[derive(Debug)]
struct MemoryUpload {
    bucket: MemoryObjects,
    key: String,
    bytes: Vec<u8>,
}

impl Upload for MemoryUpload {
    fn part_len_bytes(&self) -> usize {
        PART_LEN_BYTES
    }

    fn part(&mut self, bytes: Bytes) -> Result<()> {
        self.bytes.extend_from_slice(&bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Tag> {
        self.bucket.put(&self.key, self.bytes.into())
    }

    fn finish_in_place_of(self: Box<Self>, before: Option<&Tag>) -> Result<Option<Tag>> {
        let old =
            self.bucket.head(&self.key)?.filter(|old| before.is_some_and(|before| old.tag.is_same(before)));
        let done = match old {
            Some(old) => self.bucket.replace(&old, self.bytes.into())?,
            None if before.is_some() => return Ok(None),
            None => self.bucket.create(&self.key, self.bytes.into())?,
        };
        match done {
            Conditional::Done(tag) => Ok(Some(tag)),
            Conditional::Lost(..) => Ok(None),
        }
    }
}
