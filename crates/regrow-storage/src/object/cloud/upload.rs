//! An object that is uploaded while it is produced.
//!
//! ```text
//! part(bytes) ──> pieces until a part is full ──> up to 6 parts on their way ──> finish: one object
//! ```
//!
//! All parts except the last have one size, because some stores require this. The size is chosen at
//! the start, because an object may have at most 10 000 parts. Pieces are sent without copying them
//! together. An object of at most one part is a single put. An upload that is dropped before its
//! end is aborted: none of its parts stay in the store.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path as StorePath;
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

use super::error::{Action, Failure};
use super::{Bucket, Created, Put, PutMode, Replaced, Tag, path_of, runtime};
use crate::error::{Error, ErrorKind, Result};

/// Smallest part. Six parts of this size in flight hide the time until an answer.
const PART_LEN_BYTES_MIN: u64 = 8 << 20;
/// Default for the bytes in flight. Together with the part that is being filled, they stay below
/// the budget of a save, which is 64 MiB.
const IN_FLIGHT_LEN_BYTES: usize = 48 << 20;
const IN_FLIGHT_MAX: usize = 6;
/// Smallest number of parts in flight, even for long parts.
const IN_FLIGHT_MIN: usize = 2;
/// Length of the parts of an object whose length is not known.
const PART_LEN_BYTES_UNKNOWN: u64 = 16 << 20;
/// Largest number of parts on S3 and GCS.
const PARTS_MAX: u64 = 10_000;
/// Time limit for the abort of a dropped upload.
const ABORT_LIMIT: Duration = Duration::from_secs(20);

/// An object that is being uploaded. It exists only after [`finish`](Self::finish) has returned.
pub(crate) struct Upload {
    bucket: Bucket,
    key: String,
    path: StorePath,
    part_len_bytes: usize,
    /// Whether more than one part is expected.
    is_long: bool,
    /// Number of parts in flight at once.
    in_flight: usize,
    /// Bytes that are not sent yet.
    pieces: Vec<Bytes>,
    pieces_len_bytes: usize,
    /// Copied bytes, which follow `pieces` and are not sent yet.
    tail: Vec<u8>,
    written_len_bytes: u64,
    parts: u64,
    multipart: Option<Box<dyn MultipartUpload>>,
    /// The version of the object when the first part was sent; `None` if there was none.
    before: Option<Tag>,
    /// The uploads in flight. Each returns its failure, if any.
    sending: JoinSet<Result<(), Failure>>,
    /// Whether parts were lost, so that the upload can only be aborted.
    is_broken: bool,
    is_finished: bool,
}

impl Upload {
    pub(super) fn new(bucket: &Bucket, key: &str, expected_len_bytes: Option<u64>) -> Result<Self> {
        let path = path_of(bucket, key)?;
        let tuning = &bucket.0.settings.tuning;
        let part_len_bytes = part_len_bytes(expected_len_bytes, tuning.part_len_bytes);
        Ok(Self {
            part_len_bytes,
            in_flight: tuning.parts_in_flight.unwrap_or_else(|| in_flight(part_len_bytes)),
            is_long: expected_len_bytes.is_some_and(|len| len > part_len_bytes as u64),
            bucket: bucket.clone(),
            key: key.to_owned(),
            path,
            pieces: Vec::new(),
            pieces_len_bytes: 0,
            tail: Vec::new(),
            written_len_bytes: 0,
            parts: 0,
            multipart: None,
            before: None,
            sending: JoinSet::new(),
            is_broken: false,
            is_finished: false,
        })
    }

    pub(crate) fn part_len_bytes(&self) -> usize {
        self.part_len_bytes
    }

    /// Adds bytes without copying them. Waits while the allowed number of parts is in flight.
    ///
    /// # Errors
    /// The error of any earlier part. The upload is then over.
    pub(crate) fn part(&mut self, bytes: Bytes) -> Result<()> {
        self.take_tail();
        self.push(bytes)
    }

    #[cfg(test)]
    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let room = self.part_len_bytes.saturating_sub(self.pieces_len_bytes + self.tail.len()).max(1);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            if self.tail.capacity() == 0 {
                self.tail.reserve_exact(room.min(bytes.len().max(1 << 20)));
            }
            self.tail.extend_from_slice(now);
            bytes = later;
            if self.pieces_len_bytes + self.tail.len() >= self.part_len_bytes {
                self.take_tail();
                self.push(Bytes::new())?;
            }
        }
        Ok(())
    }

    fn take_tail(&mut self) {
        if !self.tail.is_empty() {
            let tail = Bytes::from(std::mem::take(&mut self.tail));
            self.pieces_len_bytes += tail.len();
            self.written_len_bytes += tail.len() as u64;
            self.pieces.push(tail);
        }
    }

    fn push(&mut self, mut bytes: Bytes) -> Result<()> {
        if self.is_broken {
            return Err(Error::new(ErrorKind::Io, "the upload has failed before")
                .in_file(self.bucket.url_of(&self.key)));
        }
        self.written_len_bytes += bytes.len() as u64;
        // A full first part waits: if no more bytes follow, the object needs no multipart upload.
        while self.pieces_len_bytes + bytes.len() > self.part_len_bytes {
            let room = self.part_len_bytes.saturating_sub(self.pieces_len_bytes);
            let first = bytes.split_to(room.min(bytes.len()));
            self.pieces_len_bytes += first.len();
            if !first.is_empty() {
                self.pieces.push(first);
            }
            self.send()?;
        }
        if !bytes.is_empty() {
            self.pieces_len_bytes += bytes.len();
            self.pieces.push(bytes);
        }
        let is_full = self.pieces_len_bytes == self.part_len_bytes;
        if is_full && (self.is_long || self.multipart.is_some()) { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> Result<()> {
        let sent = self.try_send();
        self.is_broken |= sent.is_err();
        sent
    }

    fn try_send(&mut self) -> Result<()> {
        if self.parts == PARTS_MAX {
            return Err(Error::new(ErrorKind::Limit, "an object has at most 10000 parts")
                .in_file(self.bucket.url_of(&self.key))
                .help("give a larger part_size"));
        }
        let payload: PutPayload = std::mem::take(&mut self.pieces).into_iter().collect();
        let len_bytes = std::mem::take(&mut self.pieces_len_bytes) as u64;
        if self.multipart.is_none() {
            let path = self.path.clone();
            let begun = self.bucket.run(Action::Write, &self.key, 0, |client| async move {
                client.store.put_multipart(&path).await
            })?;
            self.multipart = Some(begun);
            self.before = self.bucket.head(&self.key)?.map(|found| found.tag);
        }
        while self.sending.len() >= self.in_flight {
            self.wait_for_one()?;
        }
        let permit = self.permit(len_bytes)?;
        let Some(multipart) = &mut self.multipart else {
            return Err(Error::new(ErrorKind::Internal, "an upload that was not begun"));
        };
        let part = multipart.put_part(payload);
        self.parts += 1;
        let (bucket, key) = (self.bucket.clone(), self.key.clone());
        let task = async move {
            let sent = bucket.limited(Action::Write, key, len_bytes, part).await;
            drop(permit);
            sent
        };
        self.sending.spawn_on(task, runtime::state()?.handle());
        Ok(())
    }

    /// A share of the budget that all uploads of the process have. Waits for it: each part in
    /// flight returns its share when it is sent.
    fn permit(&self, len_bytes: u64) -> Result<Option<OwnedSemaphorePermit>> {
        let state = runtime::state()?;
        let share = u32::try_from(len_bytes >> 10).unwrap_or(u32::MAX).min(runtime::UPLOAD_BUDGET_KIB);
        let budget: Arc<_> = state.budget.clone();
        // The budget is never closed.
        Ok(state.block_on(budget.acquire_many_owned(share))?.ok())
    }

    fn wait_for_one(&mut self) -> Result<()> {
        match runtime::state()?.block_on(self.sending.join_next())? {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(failure))) => Err(failure.error),
            Some(Err(_)) => Err(Error::new(ErrorKind::Internal, "a task that sends a part ended early")
                .in_file(self.bucket.url_of(&self.key))),
        }
    }

    /// Sends the rest and completes the object, which exists when this returns.
    ///
    /// # Errors
    /// The error of any part. The store then deletes the parts.
    pub(crate) fn finish(mut self) -> Result<Tag> {
        self.take_tail();
        self.push(Bytes::new())?;
        let tag = if self.multipart.is_none() {
            let payload = std::mem::take(&mut self.pieces).into_iter().collect();
            self.put(payload)?
        } else {
            self.send_rest()?;
            self.complete()?
        };
        self.is_finished = true;
        Ok(tag)
    }

    /// As `finish`, but replaces only the version `before`, or no object; `None` if another object
    /// is there. Stores have no such condition for several parts. Then another writer could write
    /// between the check and the end.
    ///
    /// # Errors
    /// The same as for [`finish`](Self::finish).
    pub(crate) fn finish_in_place_of(mut self, before: Option<&Tag>) -> Result<Option<Tag>> {
        self.take_tail();
        self.push(Bytes::new())?;
        if self.multipart.is_none() {
            let pieces = std::mem::take(&mut self.pieces);
            let bytes = match <[Bytes; 1]>::try_from(pieces) {
                Ok([whole]) => whole,
                Err(pieces) => pieces.concat().into(),
            };
            return match before {
                None => self.create(bytes),
                Some(before) => self.replace(before, bytes),
            };
        }
        self.send_rest()?;
        if !self.is_still(before)? {
            return Ok(None);
        }
        let tag = self.complete()?;
        self.is_finished = true;
        Ok(Some(tag))
    }

    fn create(&self, bytes: Bytes) -> Result<Option<Tag>> {
        match self.bucket.create_settled(&self.key, &bytes) {
            Ok(Created::Ours(tag)) => Ok(Some(tag)),
            Ok(Created::Theirs(..)) => Ok(None),
            // The store has no conditional writes.
            Err(error) if error.kind() == ErrorKind::Unsupported => match self.is_still(None)? {
                false => Ok(None),
                true => self.put(bytes.into()).map(Some),
            },
            Err(error) => Err(error),
        }
    }

    fn replace(&self, before: &Tag, bytes: Bytes) -> Result<Option<Tag>> {
        match self.bucket.replace_settled(&self.key, before, &bytes) {
            Ok(Replaced::Ours(tag)) => Ok(Some(tag)),
            Ok(Replaced::Theirs(..) | Replaced::Gone) => Ok(None),
            // Some stores do not know this condition.
            Err(error) => match self.is_still(Some(before))? {
                false => Err(error),
                true => self.put(bytes.into()).map(Some),
            },
        }
    }

    /// Whether the object still has the version `before`, or still does not exist.
    fn is_still(&self, before: Option<&Tag>) -> Result<bool> {
        let now = self.bucket.head(&self.key)?;
        Ok(match (now, before) {
            (None, None) => true,
            (Some(now), Some(before)) => now.tag.is_same(before),
            (None, Some(_)) | (Some(_), None) => false,
        })
    }

    fn put(&self, payload: PutPayload) -> Result<Tag> {
        match self.bucket.try_put(&self.key, payload, PutMode::Overwrite)? {
            Put::Done(tag) => Ok(tag),
            Put::Exists | Put::Conflict => {
                Err(Error::new(ErrorKind::Io, "the store refuses to replace an object")
                    .in_file(self.bucket.url_of(&self.key)))
            }
        }
    }

    fn send_rest(&mut self) -> Result<()> {
        if self.pieces_len_bytes > 0 {
            self.send()?;
        }
        while !self.sending.is_empty() {
            self.wait_for_one()?;
        }
        Ok(())
    }

    fn complete(&mut self) -> Result<Tag> {
        let Some(multipart) = &mut self.multipart else {
            return Err(Error::new(ErrorKind::Internal, "an upload that was not begun"));
        };
        // The store assembles the parts before it answers, so a longer object gets more time.
        let completed =
            self.bucket.run(Action::Write, &self.key, self.written_len_bytes / 64, |_| async move {
                multipart.complete().await
            });
        let failure = match completed {
            Ok(put) => return Ok(Tag::from(put)),
            Err(failure) => failure,
        };
        // The first try may have succeeded although its answer got lost; a second try finds no
        // upload.
        if (failure.may_pass || failure.is_upload_gone)
            && let Ok(Some(found)) = self.bucket.try_head(&self.key)
            && found.len_bytes == self.written_len_bytes
            && !self.before.as_ref().is_some_and(|before| before.is_same(&found.tag))
        {
            return Ok(found.tag);
        }
        Err(failure.error)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        let Some(multipart) = &mut self.multipart else { return };
        let sending = &mut self.sending;
        // If this fails, invisible parts stay until a lifecycle rule of the bucket removes them.
        if let Ok(state) = runtime::state() {
            let _ = state.block_on(tokio_timeout(async move {
                sending.shutdown().await;
                let _ = multipart.abort().await;
            }));
        }
    }
}

async fn tokio_timeout(future: impl Future<Output = ()>) {
    let _ = tokio::time::timeout(ABORT_LIMIT, future).await;
}

/// The part length for an object: whole MiB, and so long that 10 000 parts are enough.
fn part_len_bytes(expected_len_bytes: Option<u64>, by_hand: Option<u64>) -> usize {
    let least = by_hand.unwrap_or(match expected_len_bytes {
        Some(_) => PART_LEN_BYTES_MIN,
        None => PART_LEN_BYTES_UNKNOWN,
    });
    let needed = expected_len_bytes.unwrap_or(0).div_ceil(PARTS_MAX);
    // Allow 5 % more bytes than expected.
    let needed = needed.saturating_add(needed / 20).div_ceil(1 << 20) << 20;
    usize::try_from(least.max(needed)).unwrap_or(usize::MAX)
}

/// How many parts of this length are in flight at once.
fn in_flight(part_len_bytes: usize) -> usize {
    (IN_FLIGHT_LEN_BYTES / part_len_bytes.max(1)).clamp(IN_FLIGHT_MIN, IN_FLIGHT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_on_their_way_and_the_one_that_is_filled_keep_within_the_budget() {
        for part_mib in 8..=21 {
            let held_mib = (in_flight(part_mib << 20) + 1) * part_mib;
            assert!((40..=64).contains(&held_mib), "{part_mib}: {held_mib}");
        }
        assert_eq!((in_flight(1), in_flight(usize::MAX)), (IN_FLIGHT_MAX, IN_FLIGHT_MIN));
    }

    #[test]
    fn no_object_needs_more_than_ten_thousand_parts() {
        assert_eq!(part_len_bytes(Some(1), None), 8 << 20);
        assert_eq!(part_len_bytes(Some(80 << 30), None), 9 << 20);
        assert_eq!(part_len_bytes(None, None), 16 << 20);
        assert_eq!(part_len_bytes(Some(1), Some(5 << 20)), 5 << 20);
        for len in [1_u64 << 30, 100 << 30, 5 << 40] {
            let part = part_len_bytes(Some(len), None) as u64;
            assert!(len.div_ceil(part) <= PARTS_MAX, "{len}: {part}");
        }
    }
}
