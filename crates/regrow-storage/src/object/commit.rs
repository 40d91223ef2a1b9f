//! The commits of saves and copies.

use std::sync::Arc;

use super::held::{Held, Owned};
use super::marker::{MARKER, OTHER_MARKER};
use super::refusals::{finished_first, refused};
use super::run::{Doing, Place, Run, delete_staged};
use super::state::{Operation, Phase, Step};

use super::{Conditional, Object, Objects, Tag};
use crate::error::Result;
use crate::location::Location;

use bytes::Bytes;

/// The objects of a folder that this process has written, before it creates the marker.
///
/// # Errors
/// `AlreadyExists` if the folder has a marker; `Replaced` if another process owns the folder.
pub(super) fn written_in(
    objects: &Arc<dyn Objects>,
    target: &Location,
    folder: &str,
    owned: &Held,
) -> Result<Vec<Object>> {
    let listed = objects.list(&format!("{folder}/"))?;
    owned.check_listed(listed.iter().find(|object| object.key == owned.key()))?;
    let markers = [MARKER, OTHER_MARKER].map(|name| format!("{folder}/{name}"));
    match listed.iter().any(|object| markers.contains(&object.key)) {
        true => Err(finished_first(target)),
        false => Ok(listed),
    }
}

/// Creates the marker.
///
/// # Errors
/// `AlreadyExists` if there is another one.
pub(super) fn mark(objects: &Arc<dyn Objects>, target: &Location, key: &str, bytes: Bytes) -> Result<Tag> {
    match objects.create(key, bytes.clone())? {
        Conditional::Done(tag) => Ok(tag),
        // A copied marker has no nonce.
        Conditional::Lost(found, tag) if found == bytes => Ok(tag),
        Conditional::Lost(..) => Err(finished_first(target)),
    }
}

/// Commits the checkpoint in the folder of `staged`, which is complete, and moves it to the target.
/// If it is committed, or may be, takes `staged`.
///
/// # Errors
/// `Busy` if another process changes the target for longer than the wait; errors of the bucket.
pub(super) fn commit_overwrite(
    objects: &Arc<dyn Objects>,
    mut run: Run<'_>,
    target: &Location,
    staged: &mut Option<Owned>,
) -> Result<()> {
    let Some(owned) = staged.as_ref() else { return Err(finished_first(target)) };
    owned.set(|_| {})?;
    let folder = owned.record().target;
    let operation = |is_committed| Operation::Overwrite { staged: folder.clone(), is_committed };
    match run.advance(&operation(false))? {
        Step::Take(phase) => {
            if let Err(error) = run.take(phase.clone(), None) {
                let found = run.held().map(|held| held.phase());
                // If the write may have been done, the files stay.
                if matches!(found, Some(Err(_))) {
                    staged.take().into_iter().for_each(Owned::leave);
                }
                if !matches!(found, Some(Ok(found)) if found == phase) {
                    return Err(error);
                }
            }
        }
        Step::Refuse(refusal) => return Err(refused(refusal, target)),
        _ => return Err(finished_first(target)),
    }
    // The new checkpoint is committed. If the cleanup fails, the next operation repeats it.
    let Some(owned) = staged.take() else { return Ok(()) };
    match run.advance(&operation(true)) {
        Ok(Step::End) => {
            if run.end(Some(&folder)).is_ok() {
                let _ = delete_staged(objects, owned);
            } else {
                owned.leave();
            }
        }
        _ => owned.leave(),
    }
    Ok(())
}

/// Takes the lock of a single file, whose write is its commit.
pub(super) fn lock_file(
    objects: &Arc<dyn Objects>,
    target: &Location,
    key: &str,
    doing: Doing,
) -> Result<Owned> {
    let place = Place::Beside { key: key.to_owned(), suffixes: vec![String::new()] };
    let mut run = Run::new(objects, target, place, doing);
    // In most cases no other process is there, and one request is enough.
    run.take(Phase::Changing, None)?;
    if run.held().is_none() {
        let step = run.advance(&Operation::Change { is_written: false })?;
        if let Step::Refuse(refusal) = step {
            return Err(refused(refusal, target));
        }
    }
    run.into_owned()
}
