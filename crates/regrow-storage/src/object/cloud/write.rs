//! Writes whole objects of modest size under a condition, removes objects, and copies them within
//! the store.

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::path::Path as StorePath;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, PutResult, UpdateVersion};

use super::error::{self, Action, Failure};
use super::settings::Service;
use super::{Bucket, Tag, path_of, runtime};
use crate::error::Result;

/// Tries of a deletion. The layer below does not retry deletions of many keys.
const DELETE_TRIES: u32 = 3;

/// The condition under which an object is written.
#[derive(Debug, Clone)]
pub(crate) enum PutMode {
    /// No condition: an existing object is replaced.
    Overwrite,
    /// The object must not exist.
    CreateNew,
    /// The object must have this tag.
    Replace(Tag),
}

/// The result of a put.
#[derive(Debug, Clone)]
pub(crate) enum Put {
    /// The object was written and has this tag.
    Done(Tag),
    /// Refused: the store says that the object exists. The put itself may have made it, which
    /// [`Bucket::create_settled`] finds out.
    Exists,
    /// Refused: the object has another tag, or does not exist.
    Conflict,
}

impl Bucket {
    /// Writes a whole object of modest size, on a condition.
    ///
    /// After an error the object may still have been written. [`Put::Exists`] may mean that this
    /// call wrote it. [`create_settled`](Self::create_settled) and
    /// [`replace_settled`](Self::replace_settled) find this out.
    pub(crate) fn put(&self, key: &str, bytes: Bytes, mode: PutMode) -> Result<Put> {
        Ok(self.try_put(key, bytes.into(), mode)?)
    }

    pub(super) fn try_put(&self, key: &str, payload: PutPayload, mode: PutMode) -> Result<Put, Failure> {
        let path = path_of(self, key).map_err(Failure::certain)?;
        let condition = match mode {
            PutMode::Overwrite => object_store::PutMode::Overwrite,
            PutMode::CreateNew => object_store::PutMode::Create,
            PutMode::Replace(tag) => {
                let mut tag = tag;
                if self.service() == Service::Gcs && tag.version.is_none() {
                    // GCS compares generations, which listings omit.
                    match self.try_head(key)? {
                        Some(info) if info.tag.is_same(&tag) => tag = info.tag,
                        _ => return Ok(Put::Conflict),
                    }
                }
                object_store::PutMode::Update(UpdateVersion { e_tag: tag.e_tag, version: tag.version })
            }
        };
        let len = payload.content_length() as u64;
        self.run(Action::Write, key, len, |client| async move {
            match client.store.put_opts(&path, payload, condition.into()).await {
                Ok(put) => Ok(Put::Done(Tag::from(put))),
                Err(object_store::Error::AlreadyExists { .. }) => Ok(Put::Exists),
                Err(error) if error::is_precondition(&error) => Ok(Put::Conflict),
                Err(error) => Err(error),
            }
        })
    }

    /// Removes objects. A missing object is not an error.
    pub(crate) fn delete(&self, keys: &[String]) -> Result<()> {
        let mut left: Vec<StorePath> = keys.iter().map(|key| path_of(self, key)).collect::<Result<_>>()?;
        let first = keys.first().map_or("", String::as_str);
        for tried in 1.. {
            if left.is_empty() {
                break;
            }
            let asked = left.clone();
            let mut failed = Vec::new();
            let failed_now = &mut failed;
            let outcome = self.run(Action::Delete, first, left.len() as u64 * 1024, |client| async move {
                let paths = futures_util::stream::iter(asked.clone().into_iter().map(Ok)).boxed();
                let results: Vec<_> = client.store.delete_stream(paths).collect().await;
                let mut worst = Ok(());
                let mut gone = std::collections::HashSet::new();
                for result in results {
                    match result {
                        Ok(path) => drop(gone.insert(path)),
                        Err(object_store::Error::NotFound { path, .. }) => {
                            gone.extend(StorePath::parse(path));
                        }
                        Err(error) => worst = Err(error),
                    }
                }
                *failed_now = asked;
                // Delete a key again if its result is unknown: a second delete does no harm.
                failed_now.retain(|path| !gone.contains(path));
                worst
            });
            match outcome {
                Ok(()) => break,
                Err(failure) if failure.may_pass && tried < DELETE_TRIES => {
                    if !failed.is_empty() {
                        left = failed;
                    }
                    runtime::state()?.block_on(runtime::pause(tried))?;
                }
                Err(failure) => return Err(failure.error),
            }
        }
        Ok(())
    }

    /// Copies an object within the store, up to 5 GiB on S3. Replaces an object at `to`.
    pub(crate) fn copy(&self, from: &str, to: &str) -> Result<()> {
        let (from_path, to_path) = (path_of(self, from)?, path_of(self, to)?);
        // The store itself copies the bytes, which takes long for a large object.
        let len = 1 << 24;
        self.run(
            Action::Copy,
            from,
            len,
            |client| async move { client.store.copy(&from_path, &to_path).await },
        )?;
        Ok(())
    }
}

impl From<PutResult> for Tag {
    fn from(put: PutResult) -> Self {
        Self::new(put.e_tag, put.version)
    }
}
