//! Records the changes of requests, and computes every state in which a killed writer can leave a
//! bucket. A state can then be restored.
//!
//! The requests that a killed writer has in flight may be lost. So a state has all requests that
//! were answered by then, and some of those in flight at the same time. A request is done
//! completely or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::request::{Op, Target};
use super::store::{Object, Store, Upload};

type Place = (String, String);

/// The content of all buckets.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    pub(super) objects: BTreeMap<Place, Arc<Object>>,
    /// Multipart uploads that are neither completed nor aborted, by their ids.
    pub(super) uploads: BTreeMap<String, Upload>,
}

/// The changes of one request.
#[derive(Debug, Clone)]
struct Write {
    op: Op,
    key: String,
    /// The arrival of the request, as a number of the server's clock. The next field is the time
    /// when its answer was ready.
    began: u64,
    ended: u64,
    objects: Vec<(Place, Option<Arc<Object>>)>,
    uploads: Vec<(String, Option<Upload>)>,
}

/// The requests of a writer, in the order of their execution.
#[derive(Debug, Default)]
pub struct History {
    before: Content,
    writes: Vec<Write>,
}

/// A state in which a killed writer can leave the buckets.
#[derive(Debug)]
pub struct BucketState {
    /// The number of requests that were done.
    pub done: usize,
    /// Whether all requests were done, and the writer had received all answers.
    pub is_at_end: bool,
    /// A description for messages: the last request that was done, and earlier ones that were not.
    pub told: String,
    pub(super) content: Content,
}

impl History {
    pub(super) fn of(store: &Store) -> Self {
        Self { before: store.content(), writes: Vec::new() }
    }

    /// Records the changes of a request, if there are any. Returns the number of the record.
    pub(super) fn add(
        &mut self,
        target: &Target,
        began: u64,
        before: &Content,
        after: &Content,
    ) -> Option<usize> {
        let objects = changes(&before.objects, &after.objects, Arc::ptr_eq);
        let uploads = changes(&before.uploads, &after.uploads, |one, other| {
            one.parts.len() == other.parts.len()
                && one
                    .parts
                    .iter()
                    .zip(&other.parts)
                    .all(|(one, other)| one.0 == other.0 && one.1.etag == other.1.etag)
        });
        if objects.is_empty() && uploads.is_empty() {
            return None;
        }
        let (op, key) = (target.op, target.key.clone());
        self.writes.push(Write { op, key, began, ended: u64::MAX, objects, uploads });
        Some(self.writes.len() - 1)
    }

    pub(super) fn end(&mut self, write: usize, now: u64) {
        if let Some(write) = self.writes.get_mut(write) {
            write.ended = now;
        }
    }

    /// The number of requests that changed something.
    pub fn write_count(&self) -> usize {
        self.writes.len()
    }

    /// The number of recorded requests of one kind.
    pub fn count(&self, op: Op) -> usize {
        self.writes.iter().filter(|write| write.op == op).count()
    }

    /// Every state, once. There is a state after each request. Of requests in flight at the same
    /// time, a state may lack one while later ones are done, or have only one of them.
    pub fn states(&self) -> impl Iterator<Item = BucketState> + '_ {
        let count = self.writes.len();
        let mut sets: BTreeSet<BTreeSet<usize>> = (0..=count).map(|done| (0..done).collect()).collect();
        for (at, write) in self.writes.iter().enumerate() {
            // A later request that began before the answer to this request may be done while this
            // request is lost.
            let mut without: BTreeSet<usize> = (0..at).collect();
            for (later, other) in self.writes.iter().enumerate().skip(at + 1) {
                if other.began < write.ended {
                    without.insert(later);
                    sets.insert(without.clone());
                }
            }
            let answered = self.writes.iter().enumerate().filter(|(_, other)| other.ended < write.began);
            sets.insert(answered.map(|(other, _)| other).chain([at]).collect());
        }
        sets.into_iter().map(move |done| self.state(&done))
    }

    fn state(&self, done: &BTreeSet<usize>) -> BucketState {
        let mut content = self.before.clone();
        let mut told = String::new();
        let last = done.last().copied();
        for (at, write) in self.writes.iter().enumerate().take_while(|(at, _)| Some(*at) <= last) {
            if !done.contains(&at) {
                told += &format!("; without {:?} {}", write.op, write.key);
                continue;
            }
            for (place, object) in &write.objects {
                put(&mut content.objects, place, object.as_ref());
            }
            for (id, upload) in &write.uploads {
                put(&mut content.uploads, id, upload.as_ref());
            }
            if Some(at) == last {
                told.insert_str(0, &format!("up to {:?} {}", write.op, write.key));
            }
        }
        BucketState { done: done.len(), is_at_end: done.len() == self.writes.len(), told, content }
    }
}

fn put<K: Ord + Clone, V: Clone>(map: &mut BTreeMap<K, V>, key: &K, value: Option<&V>) {
    match value {
        Some(value) => map.insert(key.clone(), value.clone()),
        None => map.remove(key),
    };
}

/// The entries to put and remove, to change `before` into the other map.
fn changes<K: Ord + Clone, V: Clone>(
    before: &BTreeMap<K, V>,
    after: &BTreeMap<K, V>,
    is_same: impl Fn(&V, &V) -> bool,
) -> Vec<(K, Option<V>)> {
    let gone = before.keys().filter(|key| !after.contains_key(*key)).map(|key| (key.clone(), None));
    let is_new = |key: &K, value: &V| before.get(key).is_none_or(|old| !is_same(old, value));
    let new = after.iter().filter(|(key, value)| is_new(key, value));
    gone.chain(new.map(|(key, value)| (key.clone(), Some(value.clone())))).collect()
}
