//! Buckets, objects and uploads in memory, and the conditions under which they change.
//!
//! One lock covers the condition and the write of each request, so that of several conditional
//! writers exactly one wins.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crc_fast::CrcAlgorithm;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::blob::Blob;
use super::history::Content;
use super::refusal::Refusal;

/// Largest number of writes by which a list can be out of date.
const JOURNAL_WRITES_MAX: usize = 4096;

/// Default for the smallest part that is not the last.
///
/// Source: AWS, "Amazon S3 multipart upload limits".
pub(super) const PART_BYTES_MIN: u64 = 5 << 20;

#[derive(Debug)]
pub(super) struct Object {
    pub(super) blob: Blob,
    pub(super) listed: Listed,
    pub(super) generation: u64,
    /// Content type, user metadata and similar headers, which answers repeat.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
}

/// The facts about an object in a list.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub(super) size_bytes: u64,
    /// The ETag, with its quotes.
    pub(super) etag: String,
    pub(super) modified: SystemTime,
}

#[derive(Debug, Clone)]
pub(super) struct Upload {
    pub(super) bucket: String,
    pub(super) key: String,
    pub(super) initiated: SystemTime,
    pub(super) parts: BTreeMap<u32, Part>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) blob: Blob,
    pub(super) etag: String,
}

/// The entry of a key before a write.
#[derive(Debug)]
struct Undo {
    bucket: String,
    key: String,
    before: Option<Listed>,
}

#[derive(Debug)]
pub(super) struct Store {
    buckets: BTreeMap<String, BTreeMap<String, Arc<Object>>>,
    uploads: BTreeMap<String, Upload>,
    /// Completed uploads, for servers that answer a second completion like the first.
    completed: HashMap<String, Arc<Object>>,
    journal: VecDeque<Undo>,
    /// The last generation. Generations only increase.
    generation: u64,
}

impl Default for Store {
    fn default() -> Self {
        // As many digits as in GCS, whose generations are microseconds.
        let generation = 1_700_000_000_000_000;
        Self {
            buckets: BTreeMap::new(),
            uploads: BTreeMap::new(),
            completed: HashMap::new(),
            journal: VecDeque::new(),
            generation,
        }
    }
}

impl Store {
    pub(super) fn create_bucket(&mut self, bucket: &str) {
        self.buckets.entry(bucket.to_owned()).or_default();
    }

    pub(super) fn delete_bucket(&mut self, bucket: &str) -> Result<(), Refusal> {
        if !self.bucket(bucket)?.is_empty() {
            return Err(Refusal::BucketNotEmpty);
        }
        self.buckets.remove(bucket);
        Ok(())
    }

    pub(super) fn bucket_names(&self) -> impl Iterator<Item = &str> {
        self.buckets.keys().map(String::as_str)
    }

    pub(super) fn bucket(&self, bucket: &str) -> Result<&BTreeMap<String, Arc<Object>>, Refusal> {
        self.buckets.get(bucket).ok_or(Refusal::NoSuchBucket)
    }

    pub(super) fn get(&self, bucket: &str, key: &str) -> Result<Arc<Object>, Refusal> {
        self.bucket(bucket)?.get(key).cloned().ok_or(Refusal::NoSuchKey)
    }

    /// Replaces the object at `key` if the existing object meets `conditions`. `etag` is the ETag
    /// of `blob`.
    pub(super) fn put(
        &mut self,
        bucket: &str,
        key: &str,
        (blob, etag): (Blob, String),
        headers: Vec<(HeaderName, HeaderValue)>,
        conditions: &Conditions,
    ) -> Result<Arc<Object>, Refusal> {
        conditions.check_write(self.bucket(bucket)?.get(key).map(Arc::as_ref))?;
        let listed = Listed { size_bytes: blob.len_bytes(), etag, modified: SystemTime::now() };
        self.generation += 1;
        let object = Arc::new(Object { blob, listed, generation: self.generation, headers });
        let objects = self.buckets.get_mut(bucket).ok_or(Refusal::NoSuchBucket)?;
        let before = objects.insert(key.to_owned(), Arc::clone(&object));
        self.remember(bucket, key, before.as_deref());
        Ok(object)
    }

    /// Removes the object at `key`. Returns whether it existed.
    pub(super) fn delete(
        &mut self,
        bucket: &str,
        key: &str,
        conditions: &Conditions,
    ) -> Result<bool, Refusal> {
        let current = self.bucket(bucket)?.get(key).map(Arc::as_ref);
        if current.is_some() {
            conditions.check_write(current)?;
        }
        let objects = self.buckets.get_mut(bucket).ok_or(Refusal::NoSuchBucket)?;
        let before = objects.remove(key);
        if before.is_some() {
            self.remember(bucket, key, before.as_deref());
        }
        Ok(before.is_some())
    }

    /// Changes the bytes of an object without changing its ETag and generation.
    pub(super) fn damage(
        &mut self,
        bucket: &str,
        key: &str,
        damage: impl FnOnce(&Blob) -> Blob,
    ) -> Result<(), Refusal> {
        let before = self.get(bucket, key)?;
        let blob = damage(&before.blob);
        let listed = Listed { size_bytes: blob.len_bytes(), ..before.listed.clone() };
        let object = Object { blob, listed, generation: before.generation, headers: before.headers.clone() };
        let objects = self.buckets.get_mut(bucket).ok_or(Refusal::NoSuchBucket)?;
        objects.insert(key.to_owned(), Arc::new(object));
        Ok(())
    }

    /// Moves the time of the last change of every object into the past.
    pub(super) fn age(&mut self, by: Duration) {
        for object in self.buckets.values_mut().flat_map(BTreeMap::values_mut) {
            let modified = object.listed.modified.checked_sub(by).unwrap_or(SystemTime::UNIX_EPOCH);
            *object = Arc::new(Object {
                blob: object.blob.clone(),
                listed: Listed { modified, ..object.listed.clone() },
                generation: object.generation,
                headers: object.headers.clone(),
            });
        }
    }

    pub(super) fn empty(&mut self) {
        self.buckets.values_mut().for_each(BTreeMap::clear);
        self.uploads.clear();
        self.completed.clear();
        self.journal.clear();
    }

    pub(super) fn content(&self) -> Content {
        let objects = self.buckets.iter().flat_map(|(bucket, objects)| {
            objects.iter().map(|(key, object)| ((bucket.clone(), key.clone()), Arc::clone(object)))
        });
        Content { objects: objects.collect(), uploads: self.uploads.clone() }
    }

    pub(super) fn put_back(&mut self, content: &Content) {
        self.empty();
        for ((bucket, key), object) in &content.objects {
            self.buckets.entry(bucket.clone()).or_default().insert(key.clone(), Arc::clone(object));
        }
        self.uploads.clone_from(&content.uploads);
    }

    fn remember(&mut self, bucket: &str, key: &str, before: Option<&Object>) {
        if self.journal.len() == JOURNAL_WRITES_MAX {
            self.journal.pop_front();
        }
        let before = before.map(|object| object.listed.clone());
        self.journal.push_back(Undo { bucket: bucket.to_owned(), key: key.to_owned(), before });
    }

    /// The list of `bucket` before the last `writes` changes of any bucket.
    pub(super) fn listing_before(
        &self,
        bucket: &str,
        writes: usize,
    ) -> Result<BTreeMap<String, Listed>, Refusal> {
        let objects = self.bucket(bucket)?;
        let mut listing: BTreeMap<_, _> =
            objects.iter().map(|(key, object)| (key.clone(), object.listed.clone())).collect();
        for undo in self.journal.iter().rev().take(writes).filter(|undo| undo.bucket == bucket) {
            match &undo.before {
                Some(listed) => listing.insert(undo.key.clone(), listed.clone()),
                None => listing.remove(&undo.key),
            };
        }
        Ok(listing)
    }

    /// Returns the id of the upload.
    pub(super) fn create_upload(
        &mut self,
        bucket: &str,
        key: &str,
        headers: Vec<(HeaderName, HeaderValue)>,
    ) -> Result<String, Refusal> {
        self.bucket(bucket)?;
        self.generation += 1;
        let id = format!("upload-{}", self.generation);
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let upload = Upload { bucket, key, initiated: SystemTime::now(), parts: BTreeMap::new(), headers };
        self.uploads.insert(id.clone(), upload);
        Ok(id)
    }

    pub(super) fn uploads(&self) -> impl Iterator<Item = (&str, &Upload)> {
        self.uploads.iter().map(|(id, upload)| (id.as_str(), upload))
    }

    pub(super) fn upload(&mut self, bucket: &str, key: &str, id: &str) -> Result<&mut Upload, Refusal> {
        let upload = self.uploads.get_mut(id);
        upload.filter(|upload| upload.bucket == bucket && upload.key == key).ok_or(Refusal::NoSuchUpload)
    }

    pub(super) fn abort_upload(&mut self, bucket: &str, key: &str, id: &str) -> Result<(), Refusal> {
        self.upload(bucket, key, id)?;
        self.uploads.remove(id);
        Ok(())
    }

    /// The object that an earlier completion of this upload has made.
    pub(super) fn completed(&self, id: &str) -> Option<Arc<Object>> {
        self.completed.get(id).cloned()
    }

    /// Joins `parts`, each with its number and the ETag that the client has for it. A refused
    /// upload stays open.
    pub(super) fn complete_upload(
        &mut self,
        (bucket, key, id): (&str, &str, &str),
        parts: &[(u32, String)],
        part_bytes_min: u64,
        conditions: &Conditions,
    ) -> Result<Arc<Object>, Refusal> {
        let upload = self.upload(bucket, key, id)?;
        if parts.is_empty() {
            return Err(Refusal::MalformedXML);
        }
        if !parts.is_sorted_by(|(before, _), (after, _)| before < after) {
            return Err(Refusal::InvalidPartOrder);
        }
        let mut blob = Blob::default();
        for (place, (number, etag)) in parts.iter().enumerate() {
            let part = upload.parts.get(number).filter(|part| same_etag(&part.etag, etag));
            let part = part.ok_or(Refusal::InvalidPart)?;
            if place + 1 < parts.len() && part.blob.len_bytes() < part_bytes_min {
                return Err(Refusal::EntityTooSmall);
            }
            blob.append(&part.blob);
        }
        let headers = upload.headers.clone();
        let etag = etag_of(&blob);
        let etag = format!("{}-{}\"", etag.trim_end_matches('"'), parts.len());
        let object = self.put(bucket, key, (blob, etag), headers, conditions)?;
        self.uploads.remove(id);
        self.completed.insert(id.to_owned(), Arc::clone(&object));
        Ok(object)
    }
}

/// The ETag for some bytes: 32 hex digits in quotes. Like S3's MD5, it is equal for equal bytes,
/// but it is much faster.
pub(super) fn etag_of(blob: &Blob) -> String {
    format!("\"{:016x}{:016x}\"", blob.checksum(CrcAlgorithm::Crc64Nvme), blob.len_bytes())
}

fn same_etag(held: &str, asked: &str) -> bool {
    let bare = |etag: &str| etag.trim().trim_start_matches("W/").trim_matches('"').to_owned();
    bare(held) == bare(asked)
}

/// The conditions of a request on its object.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    if_match: Option<String>,
    if_none_match: Option<String>,
    if_modified_since: Option<SystemTime>,
    if_unmodified_since: Option<SystemTime>,
    if_generation_match: Option<u64>,
    if_generation_not_match: Option<u64>,
}

impl Conditions {
    /// Reads the conditions from headers. Conditions on the source of a copy have the prefix
    /// `x-amz-copy-source-`.
    pub(super) fn of(headers: &HeaderMap, prefix: &str) -> Result<Self, Refusal> {
        let value = |name: &str| headers.get(format!("{prefix}{name}")).and_then(|value| value.to_str().ok());
        let date = |name| value(name).and_then(|text| httpdate::parse_http_date(text).ok());
        let google = if prefix.is_empty() { "x-goog-" } else { "x-goog-copy-source-" };
        let generation = |name: &str| {
            let value = headers.get(format!("{google}{name}"));
            let number = value.map(|value| value.to_str().ok().and_then(|text| text.parse().ok()));
            number.map(|number| number.ok_or(Refusal::InvalidArgument)).transpose()
        };
        Ok(Self {
            if_match: value(header::IF_MATCH.as_str()).map(str::to_owned),
            if_none_match: value(header::IF_NONE_MATCH.as_str()).map(str::to_owned),
            if_modified_since: date(header::IF_MODIFIED_SINCE.as_str()),
            if_unmodified_since: date(header::IF_UNMODIFIED_SINCE.as_str()),
            if_generation_match: generation("if-generation-match")?,
            if_generation_not_match: generation("if-generation-not-match")?,
        })
    }

    /// Adds the condition that the object does not exist, which R2 accepts on copies under its own
    /// name.
    pub(super) fn or_absent(mut self, absent: bool) -> Self {
        if absent {
            self.if_none_match = Some("*".to_owned());
        }
        self
    }

    /// Adds the conditions on generations from the query of a request to GCS's JSON API.
    pub(super) fn with_generations(
        mut self,
        is: Option<&str>,
        is_not: Option<&str>,
    ) -> Result<Self, Refusal> {
        let number = |text: Option<&str>| {
            text.map(|text| text.parse().map_err(|_| Refusal::InvalidArgument)).transpose()
        };
        self.if_generation_match = number(is)?.or(self.if_generation_match);
        self.if_generation_not_match = number(is_not)?.or(self.if_generation_not_match);
        Ok(self)
    }

    /// Whether a write may replace `current`. If there is no object, S3 answers `If-Match` with
    /// 404.
    pub(super) fn check_write(&self, current: Option<&Object>) -> Result<(), Refusal> {
        if self.if_match.is_some() && current.is_none() {
            return Err(Refusal::NoSuchKey);
        }
        let exists = current.is_some_and(|object| matches(self.if_none_match.as_deref(), object));
        if exists || !self.generations_hold(current) {
            return Err(Refusal::PreconditionFailed);
        }
        match current {
            Some(object) if self.if_match.is_some() && !matches(self.if_match.as_deref(), object) => {
                Err(Refusal::PreconditionFailed)
            }
            _ => Ok(()),
        }
    }

    /// Whether a read may return `object`.
    pub(super) fn check_read(&self, object: &Object) -> Result<(), Refusal> {
        // Dates in headers have no fractions of seconds.
        let seconds = |time: SystemTime| {
            time.duration_since(SystemTime::UNIX_EPOCH).map(|since| since.as_secs()).unwrap_or(0)
        };
        let modified = seconds(object.listed.modified);
        let matched = self.if_match.is_none() || matches(self.if_match.as_deref(), object);
        let too_new = self.if_match.is_none()
            && self.if_unmodified_since.is_some_and(|since| modified > seconds(since));
        let generation = Some(object.generation);
        if !matched || too_new || self.if_generation_match.is_some_and(|wanted| Some(wanted) != generation) {
            return Err(Refusal::PreconditionFailed);
        }
        let not_newer = self.if_none_match.is_none()
            && self.if_modified_since.is_some_and(|since| modified <= seconds(since));
        let same = self.if_generation_not_match == generation;
        if matches(self.if_none_match.as_deref(), object) || not_newer || same {
            return Err(Refusal::NotModified);
        }
        Ok(())
    }

    /// Whether the conditions on generations are met. A missing object has generation 0.
    fn generations_hold(&self, current: Option<&Object>) -> bool {
        let generation = current.map_or(0, |object| object.generation);
        self.if_generation_match.is_none_or(|wanted| wanted == generation)
            && self.if_generation_not_match.is_none_or(|unwanted| unwanted != generation)
    }
}

/// Whether one of the ETags in a header is the ETag of `object`.
fn matches(etags: Option<&str>, object: &Object) -> bool {
    etags.is_some_and(|etags| {
        etags.split(',').any(|etag| etag.trim() == "*" || same_etag(&object.listed.etag, etag))
    })
}
