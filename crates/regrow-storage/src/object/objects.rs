//! The requests of a bucket, which each kind of bucket implements.

use std::fmt::Debug;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::error::Result;
use crate::store::{EachChunk, Suits};

/// One version of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Object {
    pub key: String,
    pub len_bytes: u64,
    /// Distinguishes this version from others: the entity tag, or the generation.
    pub tag: Tag,
    pub modified: SystemTime,
}

/// Identifies the content of an object: different contents have different tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tag {
    /// The entity tag in quotes, as in HTTP.
    pub(super) e_tag: Option<String>,
    /// Version (S3, Azure) or generation (GCS). Listings have none.
    pub(super) version: Option<String>,
}

impl Tag {
    pub(crate) fn new(e_tag: Option<String>, version: Option<String>) -> Self {
        // Some stores omit the quotes in listings.
        let e_tag = e_tag.map(|tag| if tag.ends_with('"') { tag } else { format!("\"{tag}\"") });
        Self { e_tag, version }
    }

    #[cfg(feature = "cloud")]
    pub(crate) fn e_tag(&self) -> Option<&str> {
        self.e_tag.as_deref()
    }

    /// Whether both tags mean the same content, as far as their known fields show.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (&self.e_tag, &other.e_tag, &self.version, &other.version) {
            (Some(ours), Some(theirs), ..) => ours == theirs,
            (_, _, Some(ours), Some(theirs)) => ours == theirs,
            _ => false,
        }
    }

    /// Whether the tag has any field.
    #[cfg(feature = "cloud")]
    pub(super) fn is_known(&self) -> bool {
        self.e_tag.is_some() || self.version.is_some()
    }

    /// The field that a listing and a request for the object both return.
    pub(super) fn text(&self) -> &str {
        self.e_tag.as_deref().or(self.version.as_deref()).unwrap_or("none")
    }
}

impl std::fmt::Display for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

/// The result of a conditional write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Conditional {
    /// The object has the given bytes and this tag.
    Done(Tag),
    /// Another writer was faster. The bytes and the tag of its object.
    Lost(Bytes, Tag),
}

/// Facts about all objects of a bucket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    /// How objects are read fastest.
    pub suits: Suits,
    /// Objects up to this length are requested before regrow knows that it needs them.
    pub ahead_len_max_bytes: u64,
    /// Longest object that [`ObjectWrites::copy`] can copy.
    pub copy_len_max_bytes: u64,
    /// The interval at which the owner of a state object renews it.
    pub renewed_every: Duration,
}

/// The keys that a listing contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All keys with the prefix.
    All,
    /// The keys that fit into one request.
    Page,
    /// The keys directly below the prefix, and the names of the folders there.
    Level,
}

/// The result of a listing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keys {
    /// The objects, sorted by key.
    pub objects: Vec<Object>,
    /// The names of folders, for [`Extent::Level`].
    pub folders: Vec<String>,
    /// Whether the listing has all keys.
    pub is_whole: bool,
}

/// Requests to one bucket. Each call returns after the answer. Any number of threads may call at
/// once.
pub(crate) trait Objects: Debug + Send + Sync {
    fn url(&self, key: &str) -> String;

    fn facts(&self) -> Facts;

    /// The object at `key`; `None` if it does not exist.
    fn head(&self, key: &str) -> Result<Option<Object>>;

    /// All bytes of the object at `key`; `None` if it does not exist or is longer than
    /// `len_max_bytes`.
    fn get_up_to(&self, key: &str, len_max_bytes: u64) -> Result<Option<(Bytes, Object)>>;

    /// Fills `out` with bytes of this version of an object.
    ///
    /// # Errors
    /// `Replaced` if the key has another version by now, or no object.
    fn read(&self, object: &Object, offset_bytes: u64, out: &mut [u8]) -> Result<()>;

    /// Passes bytes of this version of an object to `each` as they arrive. Returns `false`, without
    /// a call of `each`, if the storage cannot stream.
    ///
    /// # Errors
    /// The same as for [`read`](Self::read); errors of `each`.
    fn stream(
        &self,
        _object: &Object,
        _offset_bytes: u64,
        _len_bytes: u64,
        _each: EachChunk<'_>,
    ) -> Result<bool> {
        Ok(false)
    }

    /// All bytes of an object that is already in memory, without a copy; `None` for other storages.
    fn whole(&self, _object: &Object) -> Result<Option<Bytes>> {
        Ok(None)
    }

    /// The objects whose keys begin with this text, which may end inside a name. For
    /// [`Extent::Level`] the text is empty or ends in `/`.
    fn keys(&self, begins: &str, extent: Extent) -> Result<Keys>;

    /// # Errors
    /// `Unsupported` for a storage that is read only.
    fn writes(&self, key: &str) -> Result<&dyn ObjectWrites>;

    /// A name without secrets that distinguishes this storage from all others. A cache on disk
    /// stores blocks under it. `None` if nothing of this storage is to be cached.
    #[cfg(feature = "cloud")]
    fn cache_name(&self) -> Option<String>;
}

/// Requests that change the objects of a bucket.
pub(crate) trait ObjectWrites {
    /// The time by the clock of the store, which gives objects their times; `None` if it is
    /// unknown.
    fn now(&self) -> Option<SystemTime>;

    /// Writes an object, and replaces an existing one.
    fn put(&self, key: &str, bytes: Bytes) -> Result<Tag>;

    /// Writes an object if the key has none yet. The bytes must contain a nonce, so that after an
    /// unclear answer a look at the object shows which writer made it.
    fn create(&self, key: &str, bytes: Bytes) -> Result<Conditional>;

    /// Replaces this version of an object. `Lost` means that the version no longer exists. The
    /// bytes must contain a nonce, as for [`create`](Self::create).
    fn replace(&self, old: &Object, bytes: Bytes) -> Result<Conditional>;

    /// Removes objects. Missing objects are not an error.
    fn delete(&self, keys: &[String]) -> Result<()>;

    /// Makes `to` a copy of this version of an object, within the bucket.
    ///
    /// # Errors
    /// `Replaced` as for [`Objects::read`]: the object at `to` is then not a valid copy.
    /// `Unsupported` if the bucket cannot copy.
    fn copy(&self, from: &Object, to: &str) -> Result<Tag>;

    /// Starts to upload a large object of about `expected_len_bytes` bytes, 0 if unknown.
    fn upload(&self, key: &str, expected_len_bytes: u64) -> Result<Box<dyn Upload>>;
}

/// Methods on top of the required ones.
impl dyn Objects + '_ {
    pub(crate) fn suits(&self) -> Suits {
        self.facts().suits
    }

    /// All bytes of the object at `key`; `None` if it does not exist.
    pub(crate) fn get(&self, key: &str) -> Result<Option<(Bytes, Object)>> {
        self.get_up_to(key, u64::MAX)
    }

    /// As `get`, for an object that may not be needed: `None` if it is long, or if the request
    /// fails.
    pub(super) fn get_ahead(&self, key: &str) -> Option<(Bytes, Object)> {
        let len_max_bytes = Some(self.facts().ahead_len_max_bytes).filter(|&len_max| len_max > 0)?;
        self.get_up_to(key, len_max_bytes).ok().flatten()
    }

    /// The objects whose keys begin with this text, sorted by key.
    pub(super) fn list(&self, begins: &str) -> Result<Vec<Object>> {
        Ok(self.keys(begins, Extent::All)?.objects)
    }

    /// The objects of one page, and whether these are all.
    pub(super) fn list_page(&self, begins: &str) -> Result<(Vec<Object>, bool)> {
        let Keys { objects, is_whole, .. } = self.keys(begins, Extent::Page)?;
        Ok((objects, is_whole))
    }

    pub(super) fn put(&self, key: &str, bytes: Bytes) -> Result<Tag> {
        self.writes(key)?.put(key, bytes)
    }

    pub(super) fn create(&self, key: &str, bytes: Bytes) -> Result<Conditional> {
        self.writes(key)?.create(key, bytes)
    }

    pub(super) fn replace(&self, old: &Object, bytes: Bytes) -> Result<Conditional> {
        self.writes(&old.key)?.replace(old, bytes)
    }

    pub(super) fn delete(&self, keys: &[String]) -> Result<()> {
        self.writes(keys.first().map_or("", String::as_str))?.delete(keys)
    }

    pub(super) fn copy(&self, from: &Object, to: &str) -> Result<Tag> {
        self.writes(to)?.copy(from, to)
    }

    pub(super) fn upload(&self, key: &str, expected_len_bytes: u64) -> Result<Box<dyn Upload>> {
        self.writes(key)?.upload(key, expected_len_bytes)
    }
}

/// The upload of a large object, part by part. If it is dropped unfinished, no part stays.
pub(crate) trait Upload: Debug + Send {
    /// Length of every part except the last.
    fn part_len_bytes(&self) -> usize;

    /// Adds the next part. Waits only if too many parts are in flight.
    fn part(&mut self, bytes: Bytes) -> Result<()>;

    /// Waits for all parts and completes the object.
    fn finish(self: Box<Self>) -> Result<Tag>;

    /// As `finish`, but replaces only the version `before`, or no object. `None` if another object
    /// is there, which stays. Of several writers one succeeds. Exception: if the object has several
    /// parts, another writer can still write between the check and the end.
    fn finish_in_place_of(self: Box<Self>, before: Option<&Tag>) -> Result<Option<Tag>>;
}
