//! The control objects of earlier versions, for one more version. Nothing writes them any more.
//!
//! ```text
//! T/regrow-writing.json         a claim: phase `writing`; beside a marker it has no meaning
//! T/regrow-moved.json           a pointer: phase `moved`
//! T/regrow-settling.json        a lock: phase `changing`
//! T.orbax-checkpoint-tmp-copy   the claim of several files of one stem
//! ```
//! If there is a state object too, these objects have no meaning. The next owner of the state
//! object deletes them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;

use super::held::Found;
use super::marker::{COPY, OLD_CLAIM, OLD_CONTROLS, OLD_LOCK, OLD_POINTER, staged_folder};
use super::record::{Copied, Record, is_here};
use super::state::{Owner, Phase};
use super::{Object, Objects};
use crate::error::{Error, Result};
use crate::system::has_ended;

/// Earlier versions respected a claim for this time, by the clock of its owner.
const CLAIM_TIME_MAX: Duration = Duration::from_secs(60 * 60);

/// The keys of all old control objects in the folder of a target.
pub(super) fn keys_in(folder: &str) -> Vec<String> {
    OLD_CONTROLS.map(|name| format!("{folder}/{name}")).into()
}

pub(super) fn claim_of_siblings(target: &str) -> String {
    staged_folder(target, COPY)
}

#[derive(Deserialize)]
struct Claim {
    nonce: String,
    host: String,
    pid: u32,
    since: u64,
    #[serde(default)]
    renewed: u64,
    #[serde(default)]
    is_released: bool,
    #[serde(default)]
    suffixes: Vec<String>,
    #[serde(default)]
    copied: BTreeMap<String, Copied>,
}

#[derive(Deserialize)]
struct Moved {
    nonce: String,
    folder: String,
}

/// The state that the old control objects in a folder show. `target` is the key of the folder.
pub(super) fn found_in<'o>(
    objects: &Arc<dyn Objects>,
    target: &str,
    is_marked: bool,
    object: impl Fn(&str) -> Option<&'o Object>,
) -> Result<Option<Found>> {
    let at = |object: &Object, phase| claim_at(objects, target, &object.key, phase);
    let lock = object(OLD_LOCK);
    if let Some(pointer) = object(OLD_POINTER) {
        let locked = lock.map(|lock| at(lock, Phase::Changing)).transpose()?.flatten();
        let owner = locked.map_or(Owner::Dead, |found| found.owner);
        let record = pointer_at(objects, target, pointer)?;
        return Ok(record.map(|record| Found { owner, record, object: None }));
    }
    match (object(OLD_CLAIM).filter(|_| !is_marked), lock) {
        (Some(claim), _) => at(claim, Phase::Writing),
        (None, Some(lock)) => at(lock, Phase::Changing),
        (None, None) => Ok(None),
    }
}

/// The state that an old claim or lock shows.
pub(super) fn claim_at(
    objects: &Arc<dyn Objects>,
    target: &str,
    key: &str,
    phase: Phase,
) -> Result<Option<Found>> {
    let Some((bytes, _)) = objects.get(key)? else { return Ok(None) };
    let mut record = Record::new(target, "", "save of an earlier version", phase);
    let Ok(claim) = serde_json::from_slice::<Claim>(&bytes) else {
        // An owner that is not known may live.
        record.pid = 0;
        return Ok(Some(Found { owner: Owner::Living, record, object: None }));
    };
    let last = UNIX_EPOCH + Duration::from_secs(claim.since.max(claim.renewed));
    let is_late = SystemTime::now().duration_since(last).is_ok_and(|age| age > CLAIM_TIME_MAX);
    let has_ended = || claim.pid == std::process::id() || has_ended(claim.pid);
    let is_dead = claim.is_released || is_late || is_here(&claim.host) && has_ended();
    (record.nonce, record.host, record.pid, record.since) = (claim.nonce, claim.host, claim.pid, claim.since);
    (record.suffixes, record.copied) = (claim.suffixes, claim.copied);
    Ok(Some(Found { owner: if is_dead { Owner::Dead } else { Owner::Living }, record, object: None }))
}

fn pointer_at(objects: &Arc<dyn Objects>, target: &str, pointer: &Object) -> Result<Option<Record>> {
    let Some((bytes, _)) = objects.get(&pointer.key)? else { return Ok(None) };
    let url = objects.url(&pointer.key);
    let moved: Moved = serde_json::from_slice(&bytes).map_err(|error| {
        Error::corrupt(format!("the pointer to the checkpoint cannot be read: {error}")).in_file(&url)
    })?;
    let record = Record::new(target, &moved.nonce, "save of an earlier version", Phase::Moved(moved.folder));
    record.check_folder(&url)?;
    Ok(Some(record))
}
