//! The end of an overwrite: copies the new checkpoint to the name of the old one, within the
//! bucket.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::copy::copy_within;
use super::listing::Listing;
use super::marker::{
    CLAIM, Claim, MARKER, MOVED, OTHER_MARKER, Running, SETTLING, Wait, is_bookkeeping, moved_to, nonce,
    take_left, take_over,
};
use super::renewal::Renewal;
use super::{Conditional, Object, Objects};
use crate::UNCOMMITTED_MARK;
use crate::error::{Error, ErrorKind, Result};
use crate::threads::for_each_parallel;

/// The lock of a target against all processes that replace or remove its checkpoint. The lock ends
/// when this value is dropped.
#[derive(Debug)]
pub(super) struct Hold {
    objects: Arc<dyn Objects>,
    place: String,
    nonce: String,
    renewal: Option<Renewal>,
    _running: Running,
}

impl Hold {
    /// Takes the lock of a target. Waits for a limited time if another process has it.
    ///
    /// # Errors
    /// `AlreadyExists` if the other process keeps the lock.
    pub(super) fn take(objects: &Arc<dyn Objects>, key: &str) -> Result<Self> {
        Self::at(objects, format!("{key}/{SETTLING}"))
    }

    fn at(objects: &Arc<dyn Objects>, place: String) -> Result<Self> {
        let nonce = nonce()?;
        let running = Running::begin(&nonce);
        let claim = Claim::new(&nonce);
        let mut wait = Wait::begin(super::HOLD_WAITED_FOR);
        while !try_take(objects, &place, &claim)? {
            if wait.again() {
                continue;
            }
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                "another process is replacing or removing this checkpoint",
            )
            .in_file(objects.url(&place))
            .help("wait until it ends, then try again"));
        }
        let renewal = Some(Renewal::begin(objects, &place, &claim));
        Ok(Self { objects: Arc::clone(objects), place, nonce, renewal, _running: running })
    }

    fn is_own(&self) -> Result<bool> {
        let found = self.objects.get(&self.place)?.and_then(|(bytes, _)| Claim::parse(&bytes));
        Ok(found.is_some_and(|found| found.nonce == self.nonce))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // A renewal after the deletion would write the claim again.
        self.renewal = None;
        // The process that settles deletes the claim with the pointer. A claim that cannot be
        // deleted counts as that of a dead process.
        if matches!(self.is_own(), Ok(true)) {
            let _ = self.objects.delete(std::slice::from_ref(&self.place));
        }
    }
}

/// Tries to take a lock. Returns `false` if a live process has it.
fn try_take(objects: &Arc<dyn Objects>, place: &str, claim: &Claim) -> Result<bool> {
    match objects.get(place)? {
        None => Ok(matches!(objects.create(place, claim.to_bytes())?, Conditional::Done(_))),
        Some((found, object)) => {
            Ok(Claim::parse(&found).is_some_and(|found| found.is_gone())
                && take_over(objects, &object, claim)?)
        }
    }
}

/// Finishes an overwrite whose writer died. The pointer gives the folder of the new checkpoint.
pub(super) fn settle_moved(objects: &Arc<dyn Objects>, key: &str, old: Listing) -> Result<Listing> {
    let Some(pointer) = old.object(MOVED) else { return Ok(old) };
    match moved_to(objects, pointer) {
        Ok(folder) => settle(objects, key, &folder, old.prefix())?,
        // Another process has settled the target since that list.
        Err(error) if error.kind() == ErrorKind::Replaced => {}
        Err(error) => return Err(error),
    }
    Listing::of_checkpoint(objects, format!("{key}/"))
}

/// Moves the checkpoint at `folder` to `key`, within the bucket. Wherever the move stops, the
/// pointer or the marker at `key` leads to a complete checkpoint. Only one process moves at a time.
pub(super) fn settle(objects: &Arc<dyn Objects>, key: &str, folder: &str, old_prefix: &str) -> Result<()> {
    let _hold = Hold::at(objects, format!("{folder}/{SETTLING}"))?;
    match points_to(objects, key)? {
        Some(found) if found == folder => bring(objects, key, folder, old_prefix),
        // Another process has settled the target in between.
        _ => Ok(()),
    }
}

/// The folder in the pointer at `key`; `None` if there is no pointer.
pub(super) fn points_to(objects: &Arc<dyn Objects>, key: &str) -> Result<Option<String>> {
    let Some(pointer) = objects.head(&format!("{key}/{MOVED}"))? else { return Ok(None) };
    match moved_to(objects, &pointer) {
        Err(error) if error.kind() == ErrorKind::Replaced => Ok(None),
        found => found.map(Some),
    }
}

fn bring(objects: &Arc<dyn Objects>, key: &str, folder: &str, old_prefix: &str) -> Result<()> {
    let staged = objects.list(&format!("{folder}/"))?;
    let name_of = |object: &Object| object.key.get(folder.len() + 1..).unwrap_or_default().to_owned();
    let is_marker = |object: &Object| matches!(name_of(object).as_str(), MARKER | OTHER_MARKER);
    let (markers, files): (Vec<Object>, Vec<Object>) = staged
        .into_iter()
        .filter(|object| is_marker(object) || !is_bookkeeping(&name_of(object)))
        .partition(is_marker);
    let Some(marker) = markers.first() else {
        // Another process has settled the target.
        return Ok(());
    };
    let old = objects.list(old_prefix)?;
    // Without markers, Orbax sees no checkpoint while files of the old and the new checkpoint are
    // mixed.
    objects.delete(&[format!("{key}/{MARKER}"), format!("{key}/{OTHER_MARKER}")])?;
    let names: BTreeSet<String> = files.iter().map(name_of).collect();
    let stale = old.into_iter().map(|object| object.key).filter(|old| {
        let name = old.get(old_prefix.len()..).unwrap_or_default();
        !names.contains(name) && !is_bookkeeping(name) && name != MARKER
    });
    let stale: Vec<String> = stale.collect();
    let threads = objects.suits().requests_max.min(files.len()).max(1);
    for_each_parallel(
        threads,
        &files,
        u64::MAX,
        |_| 0,
        |file| copy_within(objects, file, &format!("{key}/{}", name_of(file))).map(drop),
    )?;
    objects.delete(&stale)?;
    copy_within(objects, marker, &format!("{key}/{}", name_of(marker)))?;
    // Deleting the lock is safe: its holder wrote this pointer, or gives up when it finds a
    // pointer.
    objects.delete(&[MOVED, CLAIM, SETTLING].map(|name| format!("{key}/{name}")))?;
    // Delete the marker last: without it the other objects are not a checkpoint.
    objects.delete(&files.into_iter().map(|file| file.key).collect::<Vec<_>>())?;
    objects.delete(&[marker.key.clone(), format!("{folder}/{CLAIM}")])
}

/// Whether a sweep removes an interrupted copy that could still continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copies {
    Go,
    Stay,
}

pub(super) fn sweep(objects: &Arc<dyn Objects>, key: &str, copies: Copies) -> Result<()> {
    let staged = objects.list(&format!("{key}{UNCOMMITTED_MARK}-"))?;
    let folder_of = |object: &Object| {
        let name =
            object.key.get(key.len() + 1..).and_then(|rest| rest.split('/').next()).unwrap_or_default();
        format!("{}.{name}", key)
    };
    for folder in staged.iter().map(folder_of).collect::<BTreeSet<_>>() {
        let claim = |name: &str| -> Result<Option<(Option<Claim>, Object)>> {
            let key = format!("{folder}/{name}");
            if !staged.iter().any(|object| object.key == key) {
                return Ok(None);
            }
            Ok(objects.get(&key)?.map(|(bytes, object)| (Claim::parse(&bytes), object)))
        };
        // The claim or the lock, which is deleted last, shows that the other objects are
        // unfinished. A folder with neither stays: a pointer leads to it, or it belongs to another
        // program.
        let found = match claim(CLAIM)? {
            Some(found) => Some((CLAIM, found)),
            None => claim(SETTLING)?.map(|found| (SETTLING, found)),
        };
        let is_interrupted = |claim: &Claim| copies == Copies::Stay && !claim.copied.is_empty();
        let dead = found.filter(|(_, (claim, _))| {
            claim.as_ref().is_some_and(|claim| claim.is_gone() && !is_interrupted(claim))
        });
        // The writer may have committed before it died; then the pointer names this folder.
        if let Some((last, (_, object))) = dead
            && points_to(objects, key)?.as_deref() != Some(&folder)
            && let Some(_swept) = take_left(objects, &object)?
        {
            let inside =
                staged.iter().filter(|object| folder_of(object) == folder).map(|object| object.key.clone());
            let (last, others): (Vec<String>, Vec<String>) = inside.partition(|key| key.ends_with(last));
            objects.delete(&others)?;
            objects.delete(&last)?;
        }
    }
    Ok(())
}
