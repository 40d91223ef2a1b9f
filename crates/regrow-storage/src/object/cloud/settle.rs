//! Conditional writes whose outcome is certain.
//!
//! A store may report that an object exists although the same create made it: the answer to its
//! first try was lost, and the second try found the first. If a create and a delete come at the
//! same time, S3 may also answer 409, and write nothing. After a time-out the result is unknown. So
//! the content decides, and it must be unique: callers put a random number into it.
//!
//! | put says | object holds | outcome |
//! |---|---|---|
//! | done | | ours |
//! | there already, conflict, broken connection, busy | our bytes | ours |
//! | | other bytes | theirs |
//! | | nothing, or still what it held before | try again, a few times |

use bytes::Bytes;

use super::error::Failure;
use super::{Bucket, Put, PutMode, Tag, runtime};
use crate::error::{Error, ErrorKind, Result};

/// Tries of a write whose outcome was not clear. Each holds the tries of the layer below.
const TRIES: u32 = 4;

/// The result of [`Bucket::create_settled`].
#[derive(Debug, Clone)]
pub(crate) enum Created {
    /// The object is there and holds our bytes.
    Ours(Tag),
    /// Another writer's object exists.
    Theirs(Bytes, Tag),
}

/// The result of [`Bucket::replace_settled`].
#[derive(Debug, Clone)]
pub(crate) enum Replaced {
    /// The object holds our bytes.
    Ours(Tag),
    /// Another writer has replaced it.
    Theirs(Bytes, Tag),
    /// It was removed.
    Gone,
}

impl Bucket {
    /// Writes an object where none is, for certain. `bytes` must hold something that only this
    /// writer writes.
    ///
    /// # Errors
    /// Those of the store. If the outcome stayed unknown, the error says so.
    pub(crate) fn create_settled(&self, key: &str, bytes: &Bytes) -> Result<Created> {
        match self.settled(key, bytes, None)? {
            Replaced::Ours(tag) => Ok(Created::Ours(tag)),
            Replaced::Theirs(bytes, tag) => Ok(Created::Theirs(bytes, tag)),
            Replaced::Gone => {
                Err(Error::new(ErrorKind::Internal, "a create that replaces").in_file(self.url_of(key)))
            }
        }
    }

    /// Writes an object in the place of the one with the tag `old`, for certain. `bytes` must hold
    /// something that only this writer writes.
    ///
    /// # Errors
    /// As for [`create_settled`](Self::create_settled).
    pub(crate) fn replace_settled(&self, key: &str, old: &Tag, bytes: &Bytes) -> Result<Replaced> {
        self.settled(key, bytes, Some(old))
    }

    fn settled(&self, key: &str, bytes: &Bytes, old: Option<&Tag>) -> Result<Replaced> {
        let mut last = None;
        for tried in 1..=TRIES {
            let mode = old.map_or(PutMode::CreateNew, |old| PutMode::Replace(old.clone()));
            let refused: Option<Failure> = match self.try_put(key, bytes.clone().into(), mode) {
                Ok(Put::Done(tag)) => return Ok(Replaced::Ours(tag)),
                Ok(Put::Exists | Put::Conflict) => None,
                Err(failure) => Some(failure),
            };
            let may_pass = refused.as_ref().is_none_or(|failure| failure.may_pass);
            let looked = match self.try_get(key, None) {
                // A certain failure (no right to write, for example) may follow a first try that
                // did write.
                Err(_) if !may_pass => {
                    return Err(refused.map_or_else(|| self.unsettled(key, None), Error::from));
                }
                looked => looked,
            };
            match (looked, refused) {
                (Ok(Some((found, info))), _) if found == *bytes => return Ok(Replaced::Ours(info.tag)),
                (Ok(Some((_, info))), refused) if old.is_some_and(|old| old.is_same(&info.tag)) => {
                    if let (Some(failure), false) = (refused, may_pass) {
                        return Err(failure.error);
                    }
                }
                (Ok(Some((found, info))), _) => return Ok(Replaced::Theirs(found, info.tag)),
                (Ok(None), Some(failure)) if !may_pass => return Err(failure.error),
                // The store found that the condition fails, and the object is gone.
                (Ok(None), None) if old.is_some() => return Ok(Replaced::Gone),
                (Ok(None), refused) => last = refused.map(Error::from).or(last),
                (Err(failure), refused) => {
                    if !failure.may_pass {
                        return Err(failure.error);
                    }
                    last = Some(refused.map_or(failure.error, Error::from));
                }
            }
            if tried < TRIES {
                runtime::state()?.block_on(runtime::pause(tried))?;
            }
        }
        Err(self.unsettled(key, last))
    }

    fn unsettled(&self, key: &str, last: Option<Error>) -> Error {
        let (kind, why) = match &last {
            Some(error) => (error.kind(), error.what().to_owned()),
            None => (ErrorKind::Io, "the store refuses, and the object does not exist".to_owned()),
        };
        let error = Error::new(kind, format!("the object may or may not have been written: {why}"))
            .in_file(self.url_of(key));
        error.help("check whether it exists before you try again")
    }
}
