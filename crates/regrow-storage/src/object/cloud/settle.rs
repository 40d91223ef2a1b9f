//! Conditional writes that find out their outcome. If it stays unknown after a few tries, they
//! return an error.
//!
//! A create may be retried after its answer was lost. The second try then reports that the object
//! exists, although the first try made it. S3 may answer 409 to simultaneous creates and deletes,
//! and write nothing. After a time-out the result is unknown. So regrow compares the content, which
//! must be unique: callers put a random number into it.
//!
//! | put says | object holds | outcome |
//! |---|---|---|
//! | done | | ours |
//! | anything else | our bytes | ours |
//! | anything else | bytes of another writer | theirs |
//! | a replace: its condition failed | no object | gone |
//! | an error that cannot pass | no object, or the old bytes | that error |
//! | every other answer | no object, or the old bytes | try again, a few times |

use bytes::Bytes;

use super::error::Failure;
use super::{Bucket, Put, PutMode, Tag, runtime};
use crate::error::{Error, ErrorKind, Result};

/// Tries of a write whose result is unknown. Each try includes the retries of the layer below.
const TRIES: u32 = 4;

/// The result of [`Bucket::create_settled`].
#[derive(Debug, Clone)]
pub(crate) enum Created {
    /// The object has our bytes.
    Ours(Tag),
    /// Another writer's object exists. Its bytes and tag.
    Theirs(Bytes, Tag),
}

/// The result of [`Bucket::replace_settled`].
#[derive(Debug, Clone)]
pub(crate) enum Replaced {
    /// The object has our bytes.
    Ours(Tag),
    /// Another writer has replaced the object. Its bytes and tag.
    Theirs(Bytes, Tag),
    /// The object was removed.
    Gone,
}

impl Bucket {
    /// Creates an object if none exists, and finds out the result for certain. `bytes` must contain
    /// something unique to this writer.
    ///
    /// # Errors
    /// Errors of the store. If the result stays unknown, the error says so.
    pub(crate) fn create_settled(&self, key: &str, bytes: &Bytes) -> Result<Created> {
        match self.settled(key, bytes, None)? {
            Replaced::Ours(tag) => Ok(Created::Ours(tag)),
            Replaced::Theirs(bytes, tag) => Ok(Created::Theirs(bytes, tag)),
            Replaced::Gone => {
                Err(Error::new(ErrorKind::Internal, "a create that replaces").in_file(self.url_of(key)))
            }
        }
    }

    /// Replaces the object with the tag `old`, and finds out the result for certain. `bytes` must
    /// contain something unique to this writer.
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
                // The first try may have written the object although a retry failed for certain (no
                // right to write, for example).
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
