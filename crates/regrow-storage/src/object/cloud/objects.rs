//! A bucket as [`Objects`](crate::object::Objects).

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

use super::upload::Upload;
use super::{Bucket, Created, Put, PutMode, Replaced, SCHEMES, Service};
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::object::{
    self, Conditional, Extent, Facts, Keys, Object, ObjectStorage, ObjectWrites, Objects, Tag, held,
};
use crate::store::{EachChunk, Suits};
use crate::threads::map_ordered;
use crate::{StorageKind, StorageOptions, Url};

pub(crate) const KIND: StorageKind = StorageKind { schemes: &SCHEMES, locate };

/// Concurrent requests: enough to fill a network, and the most that are worth their buffers.
const REQUESTS_MIN: usize = 16;
const REQUESTS_MAX: usize = 32;

/// Objects up to this length are fetched before they are known to be needed. A record of about
/// 30,000 leaves is that long.
const AHEAD_LEN_MAX_BYTES: u64 = 4 << 20;

const PAGE_LEN: usize = 1000;

/// S3 does not copy longer objects in one request.
const S3_COPY_LEN_MAX_BYTES: u64 = 5 << 30;

fn locate(url: &Url<'_>, options: &StorageOptions) -> Result<Location> {
    let (bucket, key) = Bucket::of_url(url.text, options)?;
    Ok(Location::new(Arc::new(ObjectStorage::new(Arc::new(bucket))), key))
}

impl Objects for Bucket {
    fn url(&self, key: &str) -> String {
        self.url_of(key)
    }

    fn facts(&self) -> Facts {
        Facts {
            suits: Suits { requests_min: REQUESTS_MIN, requests_max: REQUESTS_MAX },
            ahead_len_max_bytes: AHEAD_LEN_MAX_BYTES,
            copy_len_max_bytes: if self.service() == Service::S3 { S3_COPY_LEN_MAX_BYTES } else { u64::MAX },
            renewed_every: held::RENEWED_EVERY,
        }
    }

    fn cache_name(&self) -> Option<String> {
        self.place_name()
    }

    fn head(&self, key: &str) -> Result<Option<Object>> {
        self.head(key)
    }

    fn get_up_to(&self, key: &str, len_max_bytes: u64) -> Result<Option<(Bytes, Object)>> {
        match len_max_bytes {
            u64::MAX => self.get(key, None),
            _ => self.get_short(key, len_max_bytes),
        }
    }

    fn read(&self, object: &Object, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        self.read_range(&object.key, offset_bytes, out, Some(&object.tag))
            .map_err(|error| missing_is_replaced(self, object, error))
    }

    fn stream(
        &self,
        object: &Object,
        offset_bytes: u64,
        len_bytes: u64,
        each: EachChunk<'_>,
    ) -> Result<bool> {
        self.receive_range(&object.key, offset_bytes, len_bytes, Some(&object.tag), each)
            .map(|()| true)
            .map_err(|error| missing_is_replaced(self, object, error))
    }

    fn keys(&self, begins: &str, extent: Extent) -> Result<Keys> {
        if extent == Extent::Level {
            let (objects, folders) = self.list_level(begins)?;
            let name = |folder: String| folder.get(begins.len()..).unwrap_or_default().to_owned();
            return Ok(Keys { objects, folders: folders.into_iter().map(name).collect(), is_whole: true });
        }
        let is_page = extent == Extent::Page;
        let (objects, is_whole) = match begins.is_empty() || begins.ends_with('/') {
            true => {
                let listing = self.list(begins, is_page.then_some(PAGE_LEN))?;
                (listing.objects, !listing.is_cut)
            }
            false => self.list_beginning(begins, is_page)?,
        };
        Ok(Keys { objects: with_tags(self, objects)?, folders: Vec::new(), is_whole })
    }

    fn writes(&self, _key: &str) -> Result<&dyn ObjectWrites> {
        Ok(self)
    }
}

impl ObjectWrites for Bucket {
    fn now(&self) -> Option<SystemTime> {
        self.client().ok()?.traffic.now()
    }

    fn put(&self, key: &str, bytes: Bytes) -> Result<Tag> {
        match self.put(key, bytes, PutMode::Overwrite)? {
            Put::Done(tag) => Ok(tag),
            Put::Exists | Put::Conflict => {
                Err(Error::new(ErrorKind::Io, "the store refuses to replace an object")
                    .in_file(self.url_of(key)))
            }
        }
    }

    fn create(&self, key: &str, bytes: Bytes) -> Result<Conditional> {
        Ok(match self.create_settled(key, &bytes)? {
            Created::Ours(tag) => Conditional::Done(tag),
            Created::Theirs(bytes, tag) => Conditional::Lost(bytes, tag),
        })
    }

    fn replace(&self, old: &Object, bytes: Bytes) -> Result<Conditional> {
        Ok(match self.replace_settled(&old.key, &old.tag, &bytes)? {
            Replaced::Ours(tag) => Conditional::Done(tag),
            Replaced::Theirs(bytes, tag) => Conditional::Lost(bytes, tag),
            Replaced::Gone => Conditional::Lost(Bytes::new(), Tag::new(None, None)),
        })
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        self.delete(keys)
    }

    fn copy(&self, from: &Object, to: &str) -> Result<Tag> {
        self.copy(&from.key, to)?;
        // A copy has no condition, so the source may have changed before the store copied it.
        let copied = self.head(to)?.filter(|copied| copied.len_bytes == from.len_bytes);
        let is_still = self.head(&from.key)?.is_some_and(|found| found.tag.is_same(&from.tag));
        match copied.filter(|_| is_still) {
            Some(copied) => Ok(copied.tag),
            // The object at `to` stays, since another writer may have replaced it by now.
            None => Err(Error::new(ErrorKind::Replaced, "an object was replaced while it was copied")
                .in_file(self.url_of(&from.key))),
        }
    }

    fn upload(&self, key: &str, expected_len_bytes: u64) -> Result<Box<dyn object::Upload>> {
        Ok(Box::new(self.upload(key, Some(expected_len_bytes).filter(|&len| len > 0))?))
    }
}

/// The error for a listed object that is missing now: it was replaced.
fn missing_is_replaced(bucket: &Bucket, object: &Object, error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => {
            Error::new(ErrorKind::Replaced, "an object was replaced or removed while it was read")
                .in_file(bucket.url_of(&object.key))
                .help("open the checkpoint again")
        }
        _ => error,
    }
}

/// Adds tags to listed objects with one request each, if the server omits tags in its lists.
/// Objects that no longer exist are left out.
fn with_tags(bucket: &Bucket, objects: Vec<Object>) -> Result<Vec<Object>> {
    if objects.iter().all(|object| object.tag.is_known()) {
        return Ok(objects);
    }
    let mut tagged = Vec::with_capacity(objects.len());
    map_ordered(
        REQUESTS_MIN,
        objects,
        u64::MAX,
        |_| 0,
        |object| if object.tag.is_known() { Ok(Some(object)) } else { bucket.head(&object.key) },
        |found| {
            tagged.extend(found);
            Ok(())
        },
    )?;
    Ok(tagged)
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Upload")
    }
}

impl object::Upload for Upload {
    fn part_len_bytes(&self) -> usize {
        self.part_len_bytes()
    }

    fn part(&mut self, bytes: Bytes) -> Result<()> {
        self.part(bytes)
    }

    fn finish(self: Box<Self>) -> Result<Tag> {
        Self::finish(*self)
    }

    fn finish_in_place_of(self: Box<Self>, before: Option<&Tag>) -> Result<Option<Tag>> {
        Self::finish_in_place_of(*self, before)
    }
}
