//! Reads the metadata of an object, a whole object, or a range.

use std::time::Instant;

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::path::Path as StorePath;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};

use super::error::{self, Action, Failure};
use super::{Bucket, ObjectInfo, Tag, path_of, transport};
use crate::error::{Error, ErrorKind, Result};
use crate::store::EachChunk;

impl Bucket {
    /// The metadata of an object; `None` if the object does not exist.
    ///
    /// # Errors
    /// Errors of the store. All methods here have them.
    pub(crate) fn head(&self, key: &str) -> Result<Option<ObjectInfo>> {
        let failure = match self.try_head(key) {
            Ok(found) => return Ok(found),
            Err(failure) => failure,
        };
        if failure.is_mute {
            // The answer to a HEAD has no body, so a GET asks for the reason of the failure.
            let path = path_of(self, key)?;
            let why = self.run(Action::Look, key, 0, |client| async move {
                client.store.get_range(&path, 0..1).await.map(drop)
            });
            if let Err(why) = why
                && why.error.kind() != ErrorKind::NotFound
            {
                return Err(why.error);
            }
        }
        Err(failure.error)
    }

    pub(super) fn try_head(&self, key: &str) -> Result<Option<ObjectInfo>, Failure> {
        let path = path_of(self, key).map_err(Failure::certain)?;
        let found = self.run(Action::Look, key, 0, |client| async move {
            unless_missing(client.store.head(&path).await)
        })?;
        Ok(found.map(ObjectInfo::of))
    }

    /// A whole object of modest size; `None` if it does not exist.
    ///
    /// # Errors
    /// `Replaced` if the object does not have the tag `if_match`.
    pub(crate) fn get(&self, key: &str, if_match: Option<&Tag>) -> Result<Option<(Bytes, ObjectInfo)>> {
        Ok(self.try_get(key, if_match)?)
    }

    pub(super) fn try_get(
        &self,
        key: &str,
        if_match: Option<&Tag>,
    ) -> Result<Option<(Bytes, ObjectInfo)>, Failure> {
        let path = path_of(self, key).map_err(Failure::certain)?;
        let found = self.run(Action::Read, key, 0, |client| async move {
            let options =
                GetOptions { if_match: if_match.and_then(|tag| tag.e_tag.clone()), ..GetOptions::default() };
            let Some(got) = unless_missing(client.store.get_opts(&path, options).await)? else {
                return Ok(None);
            };
            let meta = got.meta.clone();
            Ok(Some((got.bytes().await?, meta)))
        })?;
        let Some((bytes, meta)) = found else { return Ok(None) };
        let info = ObjectInfo::of(meta);
        if let Some(tag) = if_match
            && !tag.is_same(&info.tag)
        {
            return Err(Failure::certain(self.replaced(key)));
        }
        if bytes.len() as u64 != info.len_bytes {
            let error = Error::new(ErrorKind::Io, "the store sent a wrong number of bytes")
                .in_file(self.url_of(key))
                .expected(info.len_bytes, bytes.len());
            return Err(Failure::passing(error));
        }
        Ok(Some((bytes, info)))
    }

    /// A whole object of at most `len_max_bytes`; `None` if it does not exist or is longer.
    pub(super) fn get_short(&self, key: &str, len_max_bytes: u64) -> Result<Option<(Bytes, ObjectInfo)>> {
        let path = path_of(self, key)?;
        let found = self.run(Action::Read, key, len_max_bytes, |client| async move {
            let range = Some(GetRange::Bounded(0..len_max_bytes));
            let options = GetOptions { range, ..GetOptions::default() };
            let Some(got) = unless_missing(client.store.get_opts(&path, options).await)? else {
                return Ok(None);
            };
            let meta = got.meta.clone();
            if meta.size > len_max_bytes {
                return Ok(None);
            }
            Ok(Some((got.bytes().await?, meta)))
        })?;
        let whole = found.filter(|(bytes, meta)| bytes.len() as u64 == meta.size);
        Ok(whole.map(|(bytes, meta)| (bytes, ObjectInfo::of(meta))))
    }

    /// Fills `out` from byte `offset` of the object on, directly from the body.
    pub(crate) fn read_range(
        &self,
        key: &str,
        offset: u64,
        out: &mut [u8],
        if_match: Option<&Tag>,
    ) -> Result<()> {
        let (wanted, mut room) = (out.len() as u64, out);
        self.receive_range(key, offset, wanted, if_match, &mut |bytes| {
            let (now, later) = std::mem::take(&mut room).split_at_mut(bytes.len());
            now.copy_from_slice(bytes);
            room = later;
            Ok(())
        })
    }

    /// Passes `wanted` bytes from byte `offset` on to `each`, in order, as they arrive. If the
    /// connection breaks, another request continues at the next byte of the same version.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` if the object is too short; `Replaced` if its tag is not `if_match`,
    /// or changes; errors of `each`.
    pub(crate) fn receive_range(
        &self,
        key: &str,
        offset: u64,
        wanted: u64,
        if_match: Option<&Tag>,
        each: EachChunk<'_>,
    ) -> Result<()> {
        if wanted == 0 {
            return Ok(());
        }
        let path = path_of(self, key)?;
        let too_short = |len: u64| {
            Error::corrupt("the object is too short")
                .in_file(self.url_of(key))
                .at_byte(offset)
                .expected(
                    format_args!("{wanted} bytes from there on"),
                    format_args!("an object of {len} bytes"),
                )
                .help("the object was cut short or replaced: copy it again")
        };
        let Some(end) = offset.checked_add(wanted) else { return Err(too_short(u64::MAX)) };
        let until = Instant::now() + self.0.settings.tuning.operation_limit(wanted);
        let mut reading = Reading { at: offset, end, each, tag: if_match.cloned() };
        loop {
            let before = reading.at;
            let (reading_now, path) = (&mut reading, &path);
            let outcome = self.run(Action::Read, key, end - before, |client| async move {
                receive(&*client.store, path, reading_now).await
            });
            let failure = match outcome {
                Ok(Received::All) => return Ok(()),
                Ok(Received::Replaced) => return Err(self.replaced(key)),
                Ok(Received::TooShort(len)) => return Err(too_short(len)),
                Ok(Received::Refused(error)) => return Err(error),
                Ok(Received::BrokeOff) => Failure::passing(
                    Error::new(ErrorKind::Io, "cannot read an object: the answer broke off")
                        .in_file(self.url_of(key))
                        .at_byte(reading.at)
                        .help("check the network, then try again"),
                ),
                Err(failure) => failure,
            };
            // Some servers do not answer 416 to a range behind the end.
            if failure.error.kind() == ErrorKind::Io
                && !failure.may_pass
                && let Ok(Some(info)) = self.head(key)
                && info.len_bytes < end
            {
                return Err(too_short(info.len_bytes));
            }
            // The layers below have already retried a read without progress.
            if !failure.may_pass || reading.at == before || Instant::now() >= until {
                return Err(failure.error);
            }
        }
    }

    fn replaced(&self, key: &str) -> Error {
        Error::new(ErrorKind::Replaced, "the object was replaced by another")
            .in_file(self.url_of(key))
            .help("open the checkpoint again")
    }
}

/// A range that is being read, perhaps by several requests.
struct Reading<'a> {
    /// The offset of the next byte.
    at: u64,
    end: u64,
    each: EachChunk<'a>,
    /// The tag that all answers must have.
    tag: Option<Tag>,
}

enum Received {
    All,
    BrokeOff,
    Replaced,
    TooShort(u64),
    /// `each` returned this error.
    Refused(Error),
}

/// Sends one request for the rest of `reading`, and receives its bytes.
async fn receive(
    store: &dyn ObjectStore,
    path: &StorePath,
    reading: &mut Reading<'_>,
) -> object_store::Result<Received> {
    let options = GetOptions {
        range: Some(GetRange::Bounded(reading.at..reading.end)),
        if_match: reading.tag.as_ref().and_then(|tag| tag.e_tag.clone()),
        ..GetOptions::default()
    };
    let got = match store.get_opts(path, options).await {
        Err(error) if error::is_precondition(&error) => return Ok(Received::Replaced),
        got => got?,
    };
    let tag = Tag::new(got.meta.e_tag.clone(), got.meta.version.clone());
    // Some servers ignore conditions, so compare the tag here, too.
    match &reading.tag {
        Some(wanted) if !wanted.is_same(&tag) => return Ok(Received::Replaced),
        Some(_) => {}
        None => reading.tag = Some(tag),
    }
    if got.range.end < reading.end {
        return Ok(Received::TooShort(got.meta.size));
    }
    let mut body = got.into_stream();
    while let Some(chunk) = body.next().await {
        let chunk = match chunk {
            Err(error) if error::is_precondition(&error) => return Ok(Received::Replaced),
            chunk => chunk?,
        };
        let len = (reading.end - reading.at).min(chunk.len() as u64);
        if let Err(error) = (reading.each)(chunk.get(..len as usize).unwrap_or_default()) {
            return Ok(Received::Refused(error));
        }
        reading.at += len;
    }
    Ok(if reading.at == reading.end { Received::All } else { Received::BrokeOff })
}

/// Turns a missing object into `None`. A missing bucket stays an error, because the notes record
/// it.
fn unless_missing<T>(result: object_store::Result<T>) -> object_store::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(object_store::Error::NotFound { .. }) if !transport::is_bucket_missing() => Ok(None),
        Err(error) => Err(error),
    }
}
