//! Renews the claim of a living writer.
//!
//! The claim of a writer on another machine is respected for [`CLAIM_TIME_MAX`] after it was
//! written. A save may take longer, and the process that commits may have nothing to write while it
//! waits for the others. So a thread rewrites the claim six times in this period.
//!
//! One case remains: if a writer cannot reach the bucket for this time, it counts as dead, and its
//! commit fails.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Objects;
use super::marker::{CLAIM_TIME_MAX, Claim};
use crate::error::Result;

/// A thread that renews a claim until this value is dropped.
#[derive(Debug)]
pub(super) struct Renewal {
    is_over: Arc<(Mutex<bool>, Condvar)>,
    /// The process that has the thread. A forked child must not wait for it.
    pid: u32,
}

impl Renewal {
    /// Renews the claim at `key`, which was just written. If the system cannot start a thread, the
    /// claim is not renewed and expires after the usual time.
    pub(super) fn begin(objects: &Arc<dyn Objects>, key: &str, claim: &Claim) -> Self {
        let is_over: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let (objects, key, claim) = (Arc::clone(objects), key.to_owned(), claim.clone());
        let told = Arc::clone(&is_over);
        let renew = move || renew(&*objects, &key, &claim, &told);
        let _ = std::thread::Builder::new().name("regrow-claim".to_owned()).spawn(renew);
        Self { is_over, pid: std::process::id() }
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            // The lock waits for a running renewal, which must not write after the claim is
            // deleted.
            *self.is_over.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
            self.is_over.1.notify_all();
        }
    }
}

fn renew(objects: &dyn Objects, key: &str, claim: &Claim, told: &(Mutex<bool>, Condvar)) {
    let every = objects.facts().claim_renewed_every;
    let mut renewed = Instant::now();
    let mut is_over = told.0.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let waited = told.1.wait_timeout_while(is_over, every, |is_over| !*is_over);
        is_over = waited.unwrap_or_else(PoisonError::into_inner).0;
        // After this time another process may take over the claim.
        if *is_over || renewed.elapsed() + every > CLAIM_TIME_MAX {
            return;
        }
        match write(objects, key, claim) {
            Ok(true) => renewed = Instant::now(),
            Ok(false) => return,
            // The next renewal may succeed.
            Err(_) => {}
        }
    }
}

/// Writes the claim with the current time; `false` if the claim was removed or belongs to another
/// writer.
fn write(objects: &dyn Objects, key: &str, claim: &Claim) -> Result<bool> {
    let found = objects.get(key)?.and_then(|(bytes, _)| Claim::parse(&bytes));
    if found.is_none_or(|found| found.nonce != claim.nonce) {
        return Ok(false);
    }
    let now = Claim { renewed: Claim::new("").since, ..claim.clone() };
    objects.put(key, now.to_bytes()).map(|_| true)
}

/// Default interval of the renewals.
pub(super) const EVERY: Duration = Duration::from_secs(CLAIM_TIME_MAX.as_secs() / 6);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PublishOptions;
    use crate::location::Location;
    use crate::monitor::Monitor;
    use crate::object::marker::CLAIM;
    use crate::object::{MemoryObjects, ObjectStorage};

    const SOON: Duration = Duration::from_millis(5);

    fn bucket() -> (Arc<dyn Objects>, Claim) {
        let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::with_claims_renewed_every("b", SOON));
        let claim = Claim { since: 1, host: "elsewhere".to_owned(), ..Claim::new("mine") };
        objects.put("claim", claim.to_bytes()).unwrap();
        (objects, claim)
    }

    fn wait_until(is_so: impl Fn() -> bool) {
        for _ in 0..4000 {
            if is_so() {
                return;
            }
            std::thread::sleep(SOON);
        }
        panic!("the claim was not renewed");
    }

    fn read(objects: &Arc<dyn Objects>) -> Option<Claim> {
        objects.get("claim").unwrap().and_then(|(bytes, _)| Claim::parse(&bytes))
    }

    #[test]
    fn a_claim_of_long_ago_is_respected_while_it_is_renewed() {
        let (objects, claim) = bucket();
        assert!(claim.is_gone());
        let renewal = Renewal::begin(&objects, "claim", &claim);
        wait_until(|| !read(&objects).unwrap().is_gone());
        let renewed = read(&objects).unwrap();
        assert_eq!((renewed.since, renewed.nonce.as_str()), (1, "mine"));
        drop(renewal);
        // After the drop, the thread must not write the claim again.
        objects.delete(&["claim".to_owned()]).unwrap();
        std::thread::sleep(10 * SOON);
        assert_eq!(read(&objects), None);
    }

    #[test]
    fn what_is_another_ones_or_gone_is_left_alone() {
        let (objects, claim) = bucket();
        let anothers = Claim { nonce: "anothers".to_owned(), ..claim.clone() };
        objects.put("claim", anothers.to_bytes()).unwrap();
        let _renewal = Renewal::begin(&objects, "claim", &claim);
        std::thread::sleep(10 * SOON);
        assert_eq!(read(&objects), Some(anothers));
        objects.delete(&["claim".to_owned()]).unwrap();
        let _other = Renewal::begin(&objects, "claim", &claim);
        std::thread::sleep(10 * SOON);
        assert_eq!(read(&objects), None);
    }

    #[test]
    fn a_save_renews_its_claim_until_it_ends() {
        let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::with_claims_renewed_every("b", SOON));
        let target = Location::new(Arc::new(ObjectStorage::new(Arc::clone(&objects))), "runs/step_1");
        let monitor = Monitor::new();
        let renewed = |prefix: &str| {
            let all = objects.list(prefix).unwrap();
            let claim = all.iter().find(|object| object.key.ends_with(CLAIM)).expect("there is a claim");
            objects.get(&claim.key).unwrap().and_then(|(bytes, _)| Claim::parse(&bytes)).unwrap().renewed
        };
        // The second save replaces the first, and the third is dropped.
        for (turn, commits) in [(0, true), (1, true), (2, false)] {
            let publication = target.publish_folder(PublishOptions::of_overwrite(&monitor)).unwrap();
            publication.write("_METADATA", format!("{turn}").as_bytes()).unwrap();
            let prefix = if turn == 0 { "runs/step_1/" } else { "runs/step_1." };
            wait_until(|| renewed(prefix) > 0);
            if commits {
                publication.commit().unwrap();
            } else {
                drop(publication);
            }
            std::thread::sleep(10 * SOON);
            let left = objects.list("runs/").unwrap();
            let names: Vec<&str> = left.iter().map(|object| object.key.as_str()).collect();
            assert_eq!(names, ["runs/step_1/_METADATA", "runs/step_1/regrow-committed.txt"], "turn {turn}");
        }
        let record = objects.get("runs/step_1/_METADATA").unwrap().unwrap().0;
        assert_eq!(record, "1");
    }
}
