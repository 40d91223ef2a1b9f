//! The state object of a target: that of another process, or one that this process owns, and the
//! thread that renews it.
//!
//! The owner renews the state object every 30 s. Other processes take the owner for dead when the
//! object is 3 minutes old. So the owner makes no write for the target when its last renewal is
//! older than 90 s by its own clocks: first it renews the object, or learns that another process
//! has it. Each write asks [`Held::objects`] for the bucket, so no write can miss this check.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

use super::marker::state_beside;
use super::record::Record;
use super::state::{Owner, Phase};
use super::{Conditional, Object, Objects, Tag};
use crate::error::{Error, ErrorKind, Result};

/// Default interval of the renewals.
pub(super) const RENEWED_EVERY: Duration = Duration::from_secs(30);

/// After this time without a renewal, the owner makes no request before it has renewed the object.
const STOPS_AFTER: Duration = Duration::from_secs(90);

/// Number of writes of one change. More than one is necessary if the answer of an earlier write was
/// lost.
const WRITES_MAX: usize = 4;

/// The operations of this process that own a state object, or are about to create one, by nonce.
static ALL: Mutex<BTreeMap<String, Option<Arc<Held>>>> = Mutex::new(BTreeMap::new());

fn all() -> MutexGuard<'static, BTreeMap<String, Option<Arc<Held>>>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A moment by both clocks of the machine: the monotonic clock stops while the machine sleeps, and
/// the other clock may be set.
#[derive(Debug, Clone, Copy)]
struct Moment(Instant, SystemTime);

impl Moment {
    fn now() -> Self {
        #[cfg(test)]
        let (stopped, slept) = (tests::STOPPED.get(), tests::SLEPT.get());
        #[cfg(not(test))]
        let (stopped, slept) = (Duration::ZERO, Duration::ZERO);
        Self(Instant::now() + stopped, SystemTime::now() + stopped + slept)
    }

    /// Whether one of the clocks says so. If the clock was set, the answer costs a renewal.
    fn is_older_than(self, age: Duration) -> bool {
        let now = Self::now();
        now.0.duration_since(self.0) > age || now.1.duration_since(self.1).map_or(true, |passed| passed > age)
    }
}

/// The state object of an operation of this process.
pub(super) fn of_ticket(nonce: &str) -> Option<Arc<Held>> {
    all().get(nonce).cloned().flatten()
}

/// A state object, as another process sees it.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) owner: Owner,
    pub(super) record: Record,
    /// The state object; `None` if control objects of an earlier version show the state.
    pub(super) object: Option<Object>,
}

/// The state object at a key, of the target `target`.
pub(super) fn state_at(objects: &Arc<dyn Objects>, target: &str, key: &str) -> Result<Option<Found>> {
    let Some((bytes, object)) = objects.get(key)? else { return Ok(None) };
    let record = Record::parse(&bytes, &objects.url(key), target)?;
    let now = objects.writes(key).ok().and_then(|writes| writes.now());
    let is_ours = all().contains_key(&record.nonce);
    let owner = record.owner(object.modified, now, is_ours);
    Ok(Some(Found { owner, record, object: Some(object) }))
}

/// A state object that this process owns.
#[derive(Debug)]
pub(super) struct Held {
    objects: Arc<dyn Objects>,
    key: String,
    now: Mutex<Now>,
    is_over: Condvar,
}

#[derive(Debug)]
struct Now {
    record: Record,
    tag: Tag,
    renewed: Moment,
    /// Whether the thread has to end.
    is_over: bool,
    is_lost: bool,
    /// Whether the result of the last write is unknown.
    is_unclear: bool,
    /// Whether the target is in order in any phase.
    is_ended: bool,
    /// Control objects of earlier versions, which are deleted first.
    old: Vec<String>,
}

impl Held {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn record(&self) -> Record {
        self.now().record.clone()
    }

    /// Says that a removal has ended: the drop deletes the state object.
    pub(super) fn set_ended(&self) {
        self.now().is_ended = true;
    }

    /// Whether it is unknown what the last write has done.
    pub(super) fn is_unclear(&self) -> bool {
        let now = self.now();
        now.is_unclear || now.is_lost
    }

    /// Whether the state object has this phase; `None` if it is unknown what the last write has
    /// done.
    pub(super) fn has_phase(&self, phase: &Phase) -> Option<bool> {
        let now = self.now();
        (!now.is_unclear && !now.is_lost).then(|| now.record.phase == *phase)
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Whether it is the state object of files, which lies beside them.
    pub(super) fn is_beside(&self) -> bool {
        self.key == state_beside(&self.now().record.target)
    }

    /// Adds control objects of earlier versions, which the release deletes.
    pub(super) fn add_old(&self, keys: impl IntoIterator<Item = String>) {
        self.now().old.extend(keys);
    }

    /// Replaces the state object by one with this change.
    ///
    /// # Errors
    /// `Replaced` if another process owns it by now; errors of the bucket.
    pub(super) fn set(&self, change: impl Fn(&mut Record)) -> Result<()> {
        self.write(&mut self.now(), change)
    }

    fn write(&self, now: &mut Now, change: impl Fn(&mut Record)) -> Result<()> {
        for _ in 0..WRITES_MAX {
            if now.is_lost {
                break;
            }
            let mut record = now.record.clone();
            change(&mut record);
            record.renewals += 1;
            let asked = Moment::now();
            let was_unclear = std::mem::replace(&mut now.is_unclear, true);
            let done = match swap(&*self.objects, &self.key, Some(&now.tag), record.to_bytes()) {
                // The next write finds out whether this one was done.
                Err(_) if !was_unclear => continue,
                done => done?,
            };
            now.is_unclear = false;
            match done {
                Conditional::Done(tag) => {
                    (now.record, now.tag, now.renewed) = (record, tag, asked);
                    return Ok(());
                }
                // An earlier write whose answer was lost.
                Conditional::Lost(found, tag) => match Record::parse(&found, &self.key, &now.record.target) {
                    Ok(found) if found.nonce == now.record.nonce => (now.record, now.tag) = (found, tag),
                    _ => now.is_lost = true,
                },
            }
        }
        Err(self.lost())
    }

    /// Shows that this process still owns the state object, by a request if the last renewal is too
    /// old.
    ///
    /// # Errors
    /// The same as for [`set`](Self::set).
    pub(super) fn check(&self) -> Result<()> {
        let mut now = self.now();
        match now.is_lost || now.renewed.is_older_than(STOPS_AFTER) {
            true => self.write(&mut now, |_| {}),
            false => Ok(()),
        }
    }

    /// The bucket, for the next request that writes.
    ///
    /// # Errors
    /// The same as for [`check`](Self::check).
    pub(super) fn objects(&self) -> Result<&Arc<dyn Objects>> {
        self.check().map(|()| &self.objects)
    }

    fn lost(&self) -> Error {
        Error::new(ErrorKind::Replaced, "another process has taken over this target")
            .in_file(self.objects.url(&self.key))
            .help("it took this process for dead; try again")
    }
}

/// The right to change a target. If it is dropped, the state object is deleted, or stays as that of
/// a dead process if its phase needs an end.
#[derive(Debug)]
pub(super) struct Owned {
    held: Arc<Held>,
    /// The process that owns it. A forked child does not.
    pid: u32,
    /// Whether files of a dead process are there. Without the state object they would count as
    /// files of another program.
    pub(super) is_of_dead: bool,
}

impl std::ops::Deref for Owned {
    type Target = Arc<Held>;
    fn deref(&self) -> &Arc<Held> {
        &self.held
    }
}

impl Owned {
    /// Creates the state object, or takes over this version of it. `None` if another process was
    /// faster.
    pub(super) fn take(
        objects: &Arc<dyn Objects>,
        key: String,
        record: Record,
        dead: Option<&Tag>,
    ) -> Result<Option<Self>> {
        let nonce = record.nonce.clone();
        let renewed = Moment::now();
        // Other threads must not take this process for dead.
        all().insert(nonce.clone(), None);
        let done = swap(&**objects, &key, dead, record.to_bytes());
        let Ok(Conditional::Done(tag)) = done else {
            all().remove(&nonce);
            return done.map(|_| None);
        };
        let (is_over, is_lost, is_unclear, is_ended, old) = (false, false, false, false, Vec::new());
        let now = Mutex::new(Now { record, tag, renewed, is_over, is_lost, is_unclear, is_ended, old });
        let held = Arc::new(Held { objects: Arc::clone(objects), key, now, is_over: Condvar::new() });
        all().insert(nonce, Some(Arc::clone(&held)));
        let renewing = Arc::clone(&held);
        // If no thread starts, `check` renews the object.
        let _ = std::thread::Builder::new().name("regrow-state".to_owned()).spawn(move || renew(&renewing));
        Ok(Some(Self { held, pid: std::process::id(), is_of_dead: false }))
    }

    /// Deletes the state object: the target is in order.
    pub(super) fn release(self) -> Result<()> {
        self.end(true)
    }

    /// Leaves the state object for the next operation, which finishes the change.
    pub(super) fn leave(self) {
        let _ = self.end(false);
    }

    fn end(&self, deletes: bool) -> Result<()> {
        let ready = match deletes {
            true => self.held.check(),
            // If the last write failed, more of them would only take time: other processes take
            // this one for dead soon.
            false if self.held.is_unclear() => Ok(()),
            false => self.held.set(|record| record.pid = 0),
        };
        // The lock waits for a running renewal, which must not write after the deletion.
        let mut now = self.held.now();
        now.is_over = true;
        let (nonce, old) = (now.record.nonce.clone(), std::mem::take(&mut now.old));
        drop(now);
        self.held.is_over.notify_all();
        let ended = ready.and_then(|()| match deletes {
            true => {
                // Without the state object, the old ones would count again.
                if !old.is_empty() {
                    self.held.objects()?.delete(&old)?;
                }
                self.held.objects()?.delete(std::slice::from_ref(&self.held.key))
            }
            false => Ok(()),
        });
        all().remove(&nonce);
        ended
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // A forked child has no thread, and owns nothing.
        if self.pid != std::process::id() || self.held.now().is_over {
            return;
        }
        let is_in_order = {
            // One look: a renewal may find out what an unclear write has done.
            let now = self.held.now();
            let is_certain = !now.is_unclear && !now.is_lost;
            is_certain && (matches!(now.record.phase, Phase::Writing | Phase::Changing) || now.is_ended)
        };
        let _ = self.end(is_in_order && !self.is_of_dead);
    }
}

/// Replaces the version `old` of an object, or creates the object. A store without conditional
/// writes gets a look and then a plain write: the module `object` says what is promised then.
pub(super) fn swap(objects: &dyn Objects, key: &str, old: Option<&Tag>, bytes: Bytes) -> Result<Conditional> {
    let done = match old.cloned() {
        None => objects.create(key, bytes.clone()),
        Some(tag) => {
            let (key, modified) = (key.to_owned(), SystemTime::UNIX_EPOCH);
            objects.replace(&Object { key, len_bytes: 0, tag, modified }, bytes.clone())
        }
    };
    match done {
        Err(error) if error.kind() == ErrorKind::Unsupported => match (objects.get(key)?, old) {
            (Some((found, now)), old) if old.is_none_or(|old| !now.tag.is_same(old)) => {
                Ok(Conditional::Lost(found, now.tag))
            }
            (None, Some(old)) => Ok(Conditional::Lost(Bytes::new(), old.clone())),
            _ => objects.put(key, bytes).map(Conditional::Done),
        },
        done => done,
    }
}

fn renew(held: &Held) {
    let every = held.objects.facts().renewed_every;
    let mut now = held.now();
    loop {
        let waited = held.is_over.wait_timeout_while(now, every, |now| !now.is_over);
        now = waited.unwrap_or_else(PoisonError::into_inner).0;
        if now.is_over || now.is_lost {
            return;
        }
        // After an error, the next renewal may succeed.
        let _ = held.write(&mut now, |_| {});
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::super::MemoryObjects;
    use super::super::marker::staged_prefix;
    use super::super::record::DEAD_AFTER;
    use super::super::tests::{Fault, Scripted};
    use super::*;

    thread_local! {
        /// How long this thread was stopped, and how long the machine slept.
        pub static STOPPED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
        pub static SLEPT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// Stops this thread, as its operations see it, until other processes take them for dead.
    pub fn stop() {
        STOPPED.set(STOPPED.get() + DEAD_AFTER);
    }

    const SOON: Duration = Duration::from_millis(5);

    fn take(objects: &Arc<dyn Objects>, phase: Phase) -> Owned {
        let record = Record::new("x", &super::super::marker::nonce().unwrap(), "save", phase);
        Owned::take(objects, "x/state".to_owned(), record, None).unwrap().unwrap()
    }

    fn read(objects: &Arc<dyn Objects>) -> Option<Record> {
        let found = objects.get("x/state").unwrap();
        found.map(|(bytes, _)| Record::parse(&bytes, "url", "x").unwrap())
    }

    #[test]
    fn a_state_object_is_renewed_until_it_is_released() {
        let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::with_renewals_every("b", SOON));
        let owned = take(&objects, Phase::Writing);
        let began = Instant::now();
        while read(&objects).unwrap().renewals < 3 {
            assert!(began.elapsed() < Duration::from_secs(20), "no renewal");
            std::thread::sleep(SOON);
        }
        owned.set(|record| record.phase = Phase::Changing).unwrap();
        assert_eq!(read(&objects).unwrap().phase, Phase::Changing);
        let nonce = owned.record().nonce;
        assert!(all().contains_key(&nonce));
        owned.release().unwrap();
        std::thread::sleep(10 * SOON);
        assert!(read(&objects).is_none() && !all().contains_key(&nonce));
    }

    #[test]
    fn the_state_object_of_another_process_stays() {
        let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::with_renewals_every("b", SOON));
        let owned = take(&objects, Phase::Writing);
        let other = Record::new("x", "other", "copy", Phase::Writing);
        objects.put("x/state", other.to_bytes()).unwrap();
        std::thread::sleep(10 * SOON);
        assert_eq!(owned.check().unwrap_err().kind(), ErrorKind::Replaced);
        assert_eq!(owned.set(|_| {}).unwrap_err().kind(), ErrorKind::Replaced);
        drop(owned);
        assert_eq!(read(&objects), Some(other));
    }

    #[test]
    fn an_owner_that_was_stopped_or_slept_renews_before_its_next_request() {
        let bucket = Scripted::new(&MemoryObjects::new("b"));
        let objects: Arc<dyn Objects> = Arc::new(bucket.clone());
        let owned = take(&objects, Phase::Writing);
        let requests = || {
            let before = bucket.count();
            owned.objects().unwrap();
            bucket.count() - before
        };
        assert_eq!(requests(), 0);
        stop();
        assert_eq!([requests(), requests()], [1, 0]);
        SLEPT.set(DEAD_AFTER);
        assert_eq!([requests(), requests()], [1, 0]);
        // The clock was set back.
        SLEPT.set(Duration::ZERO);
        assert_eq!([requests(), requests()], [1, 0]);
    }

    /// A renewal finds out what a write whose answer was lost has done.
    #[test]
    fn a_phase_is_known_only_after_an_answer() {
        for (fault, is_done) in [(Fault::NoAnswer, true), (Fault::NotPerformed, false)] {
            let bucket = Scripted::new(&MemoryObjects::new("b"));
            let objects: Arc<dyn Objects> = Arc::new(bucket.clone());
            let owned = take(&objects, Phase::Changing);
            let moved = Phase::Moved(format!("{}1", staged_prefix("x")));
            assert_eq!(owned.has_phase(&moved), Some(false));
            bucket.fail((1..3).map(|number| (number, fault)));
            owned.set(|record| record.phase = moved.clone()).unwrap_err();
            assert_eq!(owned.has_phase(&moved), None);
            owned.set(|_| {}).unwrap();
            assert_eq!(owned.has_phase(&moved), Some(is_done));
            objects.put("x/state", Record::new("x", "other", "copy", Phase::Writing).to_bytes()).unwrap();
            owned.set(|_| {}).unwrap_err();
            assert_eq!(owned.has_phase(&moved), None);
        }
    }

    #[test]
    fn a_dropped_change_is_released_and_an_unfinished_one_stays() {
        let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::new("b"));
        for (phase, stays) in [(Phase::Writing, false), (Phase::Changing, false), (Phase::Removing, true)] {
            drop(take(&objects, phase.clone()));
            assert_eq!(read(&objects).map(|left| (left.pid, left.phase)), stays.then_some((0, phase)));
        }
    }
}
