//! A bucket in memory in which chosen requests fail, or in which something happens after them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::super::{
    Conditional, Extent, Facts, Keys, MemoryObjects, Object, ObjectWrites, Objects, Tag, Upload,
};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Suits;

/// How a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Fault {
    /// The bucket does not perform it.
    NotPerformed,
    /// The bucket performs it, and the answer is lost.
    NoAnswer,
    /// As `NoAnswer`, but the bucket deletes only the first of several objects.
    First,
}

/// A function that is called after each request, with the number of the request.
type Hook = Box<dyn FnMut(usize) + Send>;

#[derive(Default)]
struct Script {
    count: usize,
    /// The numbers of the requests that write.
    writes: Vec<usize>,
    faults: BTreeMap<usize, Fault>,
    /// From this request on, all requests fail.
    from: Option<(usize, Fault)>,
    hook: Option<Hook>,
}

/// The bucket. Clones share the script.
#[derive(Clone)]
pub(in super::super) struct Scripted {
    pub(super) inner: MemoryObjects,
    script: Arc<Mutex<Script>>,
    /// Whether the store has conditional writes.
    pub(super) has_conditions: bool,
    /// How far the clock of the bucket is ahead.
    pub(super) ahead: Duration,
}

impl std::fmt::Debug for Scripted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scripted")
    }
}

impl Scripted {
    pub(in super::super) fn new(inner: &MemoryObjects) -> Self {
        Self { inner: inner.clone(), script: Arc::default(), has_conditions: true, ahead: Duration::ZERO }
    }

    /// Requests with these numbers fail.
    pub(in super::super) fn fail(&self, faults: impl IntoIterator<Item = (usize, Fault)>) {
        self.script.lock().unwrap().faults.extend(faults);
    }

    pub(in super::super) fn fail_from(&self, number: usize, fault: Fault) {
        self.script.lock().unwrap().from = Some((number, fault));
    }

    pub(in super::super) fn after_each(&self, hook: impl FnMut(usize) + Send + 'static) {
        self.script.lock().unwrap().hook = Some(Box::new(hook));
    }

    /// The number of requests so far.
    pub(in super::super) fn count(&self) -> usize {
        self.script.lock().unwrap().count
    }

    /// The numbers of the requests that write.
    pub(in super::super) fn writes(&self) -> Vec<usize> {
        self.script.lock().unwrap().writes.clone()
    }

    fn request<T>(&self, is_write: bool, perform: impl FnOnce(Option<Fault>) -> Result<T>) -> Result<T> {
        let (number, fault) = {
            let mut script = self.script.lock().unwrap();
            let number = script.count;
            script.count += 1;
            if is_write {
                script.writes.push(number);
            }
            let from = script.from.filter(|(from, _)| number >= *from).map(|(_, fault)| fault);
            (number, script.faults.get(&number).copied().or(from))
        };
        let lost = || Error::new(ErrorKind::Io, format!("request {number} fails"));
        let done = match fault {
            Some(Fault::NotPerformed) => Err(lost()),
            Some(_) => perform(fault).and_then(|_| Err(lost())),
            None => perform(None),
        };
        let hook = self.script.lock().unwrap().hook.take();
        if let Some(mut hook) = hook {
            hook(number);
            self.script.lock().unwrap().hook.get_or_insert(hook);
        }
        done
    }

    fn read_only<T>(&self, perform: impl FnOnce() -> Result<T>) -> Result<T> {
        self.request(false, |_| perform())
    }

    fn condition(&self) -> Result<()> {
        match self.has_conditions {
            true => Ok(()),
            false => Err(Error::unsupported("no conditional writes")),
        }
    }
}

impl Objects for Scripted {
    fn url(&self, key: &str) -> String {
        self.inner.url(key)
    }

    /// One request at a time, so that each run has the same order of requests.
    fn facts(&self) -> Facts {
        Facts { suits: Suits { requests_min: 1, requests_max: 1 }, ..self.inner.facts() }
    }

    fn head(&self, key: &str) -> Result<Option<Object>> {
        self.read_only(|| self.inner.head(key))
    }

    fn get_up_to(&self, key: &str, len_max_bytes: u64) -> Result<Option<(Bytes, Object)>> {
        self.read_only(|| self.inner.get_up_to(key, len_max_bytes))
    }

    fn read(&self, object: &Object, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        self.read_only(|| self.inner.read(object, offset_bytes, out))
    }

    fn keys(&self, begins: &str, extent: Extent) -> Result<Keys> {
        self.read_only(|| self.inner.keys(begins, extent))
    }

    fn writes(&self, _key: &str) -> Result<&dyn ObjectWrites> {
        Ok(self)
    }

    #[cfg(feature = "cloud")]
    fn cache_name(&self) -> Option<String> {
        None
    }
}

impl ObjectWrites for Scripted {
    fn now(&self) -> Option<SystemTime> {
        Some(SystemTime::now() + self.ahead)
    }

    fn put(&self, key: &str, bytes: Bytes) -> Result<Tag> {
        self.request(true, |_| self.inner.put(key, bytes))
    }

    fn create(&self, key: &str, bytes: Bytes) -> Result<Conditional> {
        self.condition()?;
        self.request(true, |_| self.inner.create(key, bytes))
    }

    fn replace(&self, old: &Object, bytes: Bytes) -> Result<Conditional> {
        self.condition()?;
        self.request(true, |_| self.inner.replace(old, bytes))
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        let first = keys.get(..1).unwrap_or_default();
        self.request(true, |fault| self.inner.delete(if fault == Some(Fault::First) { first } else { keys }))
    }

    fn copy(&self, from: &Object, to: &str) -> Result<Tag> {
        self.request(true, |_| self.inner.copy(from, to))
    }

    fn upload(&self, key: &str, expected_len_bytes: u64) -> Result<Box<dyn Upload>> {
        let upload = self.inner.upload(key, expected_len_bytes)?;
        Ok(Box::new(ScriptedUpload { bucket: self.clone(), upload }))
    }
}

#[derive(Debug)]
struct ScriptedUpload {
    bucket: Scripted,
    upload: Box<dyn Upload>,
}

impl Upload for ScriptedUpload {
    fn part_len_bytes(&self) -> usize {
        self.upload.part_len_bytes()
    }

    fn part(&mut self, bytes: Bytes) -> Result<()> {
        self.upload.part(bytes)
    }

    fn finish(self: Box<Self>) -> Result<Tag> {
        let Self { bucket, upload } = *self;
        bucket.request(true, |_| upload.finish())
    }

    fn finish_in_place_of(self: Box<Self>, before: Option<&Tag>) -> Result<Option<Tag>> {
        let Self { bucket, upload } = *self;
        bucket.request(true, |_| upload.finish_in_place_of(before))
    }
}
