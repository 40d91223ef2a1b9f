//! A copy to a bucket that another process has begun, joined: this one brings some of its objects.
//!
//! They are written under their final names, as the one who began would; the claim vouches for each
//! when it is told of it, by the tag that was read back. What an earlier copy has left there is for
//! the one who began.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blake3::Hash;

use super::keys::ObjectBlob;
use super::marker::{CLAIM, Claim};
use super::sink::ObjectSink;
use super::{Objects, key_of};
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::storage::{
    Brought, Identity, Left, Target, Transfer, TransferFile, TransferOptions, no_such_file,
};
use crate::store::{Blob, FileWriter, missing};

/// What this process brings to a copy of another one.
#[derive(Debug)]
pub(super) struct JoinedTransfer {
    objects: Arc<dyn Objects>,
    target: Location,
    folder: String,
    /// Whose claim it is.
    nonce: String,
    files: Vec<TransferFile>,
    keys: Vec<String>,
    monitor: Monitor,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tags: BTreeMap<usize, String>,
    brought: Vec<Brought>,
}

impl JoinedTransfer {
    /// Joins the copy to `target`; the options' files are those to be brought.
    ///
    /// # Errors
    /// `NotFound` if whoever began has given up; `InvalidArgument` for a ticket of something else.
    pub(super) fn join(
        objects: &Arc<dyn Objects>,
        target: &Location,
        ticket: &str,
        options: TransferOptions<'_>,
    ) -> Result<Self> {
        let Some((nonce, folder)) = ticket.split_once(' ').filter(|_| *options.kind == Target::Folder) else {
            return Err(Error::invalid(format!("{ticket:?} is no ticket of a copy")).in_file(target));
        };
        let key = |file: &TransferFile| key_of(objects, format!("{folder}/{}", file.name).as_ref());
        let joined = Self {
            objects: Arc::clone(objects),
            target: target.clone(),
            folder: folder.to_owned(),
            nonce: nonce.to_owned(),
            keys: options.files.iter().map(key).collect::<Result<_>>()?,
            files: options.files.to_vec(),
            monitor: options.monitor.clone(),
            state: Mutex::default(),
        };
        joined.check_claim()?;
        Ok(joined)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self, at: usize) -> Result<&str> {
        self.keys.get(at).map(String::as_str).ok_or_else(|| no_such_file("file of this number"))
    }

    /// Errs unless whoever began is still at it.
    fn check_claim(&self) -> Result<()> {
        let found = self.objects.get(&format!("{}/{CLAIM}", self.folder))?;
        let claim = found.and_then(|(bytes, _)| Claim::parse(&bytes));
        match claim.is_some_and(|claim| claim.nonce == self.nonce && !claim.is_released) {
            true => Ok(()),
            false => {
                Err(Error::new(ErrorKind::NotFound, "the copy that this process was to help with has ended")
                    .in_file(&self.target)
                    .help("the process that began it has given up, or writes to another bucket"))
            }
        }
    }
}

impl Transfer for JoinedTransfer {
    fn left(&self, _at: usize) -> Left {
        Left::Nothing
    }

    fn writer(&self, at: usize, offset_bytes: u64) -> Result<FileWriter> {
        let key = self.key(at)?;
        if offset_bytes > 0 {
            return Err(Error::invalid("objects are written whole").in_file(self.objects.url(key)));
        }
        // One that was thought dead does not write into what came after.
        self.check_claim()?;
        let expected = self.files.get(at).map_or(0, |file| file.len_bytes);
        let sink = ObjectSink::begin(&*self.objects, key, expected, 0, &self.monitor, Box::new(|_, _| {}))?;
        Ok(FileWriter::new(sink))
    }

    fn written(&self, at: usize) -> Result<Arc<dyn Blob>> {
        let key = self.key(at)?;
        let object = self.objects.head(key)?.ok_or_else(|| missing(self.objects.url(key).into()))?;
        self.state().tags.insert(at, object.tag.to_string());
        Ok(Arc::new(ObjectBlob::new(Arc::clone(&self.objects), object)))
    }

    fn finished(&self, at: usize, digest: Hash, is_verified: bool) -> Result<()> {
        let noted = self.state().tags.remove(&at);
        let by = match noted {
            Some(tag) => tag,
            None => {
                let key = self.key(at)?;
                let object = self.objects.head(key)?.ok_or_else(|| missing(self.objects.url(key).into()))?;
                object.tag.to_string()
            }
        };
        self.state().brought.push(Brought { at, by, digest, is_verified });
        Ok(())
    }

    fn discard(&self, at: usize) -> Result<()> {
        self.objects.delete(&[self.key(at)?.to_owned()])
    }

    fn finish_share(&self) -> Result<Vec<Brought>> {
        self.monitor.check()?;
        Ok(self.state().brought.clone())
    }

    fn commit(self: Box<Self>) -> Result<Option<Identity>> {
        Err(Error::invalid("the process that began the copy commits it").in_file(&self.target))
    }
}
