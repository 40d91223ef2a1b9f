//! The allowed targets in a bucket.

use std::sync::Arc;

use super::held::state_at;
use super::listing::Listing;
use super::marker::{MARKER, OLD_CLAIM, STATE, is_bookkeeping};
use super::refusals::{
    NOT_ENDED_AROUND, exists_already, finished_first, not_ended, pair_exists, refused, whole_bucket,
};
use super::run::{Doing, LOOKS_MAX, Place, Run};
use super::state::{Phase, Refusal};
use super::{Objects, key_of};
use crate::error::{Error, ErrorKind, Result};
use crate::local::{are_of_one, refuse_foreign_files};
use crate::location::Location;
use crate::names::{foreign_files_in, names};
use crate::{PublishOptions, Target, UNCOMMITTED_MARK};

/// The state of a target before a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// The target has no objects.
    Nothing,
    /// The target has no checkpoint. There may be files of a dead writer.
    Unfinished,
    /// An existing checkpoint or file that may be replaced.
    Old,
}

/// Checks that the target has a valid name for a checkpoint, and returns its key.
pub(super) fn check_name(objects: &Arc<dyn Objects>, target: &Location) -> Result<String> {
    let key = key_of(objects, target.path())?;
    if key.is_empty() {
        return Err(
            whole_bucket(target).help("give the path of the checkpoint, such as `bucket/runs/a/step_100`")
        );
    }
    if target.name_text().contains(UNCOMMITTED_MARK) {
        return Err(Error::invalid(format!("names with {UNCOMMITTED_MARK} mark unfinished saves"))
            .in_file(target)
            .help("choose another name: no reader would open this one"));
    }
    Ok(key)
}

/// Returns the state of the target, or an error if the target may not be used.
pub(super) fn check(
    objects: &Arc<dyn Objects>,
    target: &Location,
    kind: &Target,
    options: PublishOptions<'_>,
) -> Result<Before> {
    let key = check_name(objects, target)?;
    // Files that are written inside an unfinished copy are lost: the copy, when it continues,
    // removes files that it does not know.
    if let Some(around) = unfinished_around(objects, target)? {
        return Err(not_ended(NOT_ENDED_AROUND, &around));
    }
    let mut below = Listing::of_checkpoint(objects, format!("{key}/"))?;
    for _ in 0..LOOKS_MAX {
        let checked = check_listed(objects, target, kind, options, &below);
        if !matches!(&checked, Err(error) if error.kind() != ErrorKind::AlreadyExists) {
            return checked;
        }
        // Another process may have changed the checkpoint during the look.
        let now = Listing::of_checkpoint(objects, format!("{key}/"))?;
        if now.has_objects_of(&below) {
            return checked;
        }
        below = now;
    }
    Err(finished_first(target))
}

/// As `check`, where `below` has the objects below the target.
fn check_listed(
    objects: &Arc<dyn Objects>,
    target: &Location,
    kind: &Target,
    options: PublishOptions<'_>,
    below: &Listing,
) -> Result<Before> {
    let key = key_of(objects, target.path())?;
    let other =
        |what: &str| Error::invalid(what).in_file(target).help("choose another path, or remove it yourself");
    let is_free = |place| Run::new(objects, target, place, Doing::cleanup()).finds_nothing();
    if let Target::Siblings { suffixes } = kind {
        let place = Place::Beside { key, suffixes: suffixes.clone() };
        return match is_free(place)? {
            true => Ok(Before::Unfinished),
            false => Err(pair_exists(target, suffixes, options.overwrite)),
        };
    }
    // A server that keeps objects in a file system may fail when asked for a folder as an object.
    let is_settled = *kind == Target::Folder && !below.is_empty();
    let is_file = !is_settled && objects.head(&key)?.is_some();
    match (kind, is_file) {
        (_, false) if below.is_empty() => Ok(Before::Nothing),
        (Target::Folder, false) if is_free(Place::Folder(key.clone()))? => Ok(Before::Unfinished),
        _ if !options.overwrite => Err(exists_already(target)),
        (Target::Folder, false) => check_replaceable(objects, target, &key).map(|()| Before::Old),
        (Target::Folder, true) => Err(other("the target is a file, but this layout writes a folder")),
        (_, false) => Err(other("the target is a folder, but this layout writes a file")),
        (_, true) => {
            options.may_replace.map_or(Ok(()), |may_replace| may_replace(target))?;
            Ok(Before::Old)
        }
    }
}

/// Number of folders above a checkpoint that may also be a checkpoint: an item is in a step, and
/// the step is in a run.
const FOLDERS_AROUND: usize = 2;

/// The folder of an unfinished checkpoint around a location.
pub(super) fn unfinished_around(objects: &Arc<dyn Objects>, at: &Location) -> Result<Option<Location>> {
    let mut between = Vec::new();
    for folder in at.folders_above().take(FOLDERS_AROUND) {
        let key = key_of(objects, folder.path())?;
        if key.is_empty() {
            break;
        }
        let is_begun = match state_around(objects, &key) {
            // Credentials may cover only a part of the bucket.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => false,
            found => found?,
        };
        between.push(key);
        if !is_begun {
            continue;
        }
        // A marker makes its folder complete. So neither the state beside the marker nor the state
        // of a folder further out counts.
        for key in between.iter().rev() {
            if Listing::of_checkpoint(objects, format!("{key}/"))?.is_marked() {
                return Ok(None);
            }
        }
        return Ok(Some(folder));
    }
    Ok(None)
}

/// Whether an operation that makes or removes the folder `key` has begun.
fn state_around(objects: &Arc<dyn Objects>, key: &str) -> Result<bool> {
    let found = match state_at(objects, key, &format!("{key}/{STATE}"))? {
        Some(found) => Some(found.record.phase),
        None => objects.head(&format!("{key}/{OLD_CLAIM}"))?.map(|_| Phase::Writing),
    };
    Ok(matches!(found, Some(Phase::Writing | Phase::Removing)))
}

/// Returns an error if the folder `key` has files that are not part of a checkpoint.
pub(super) fn check_replaceable(objects: &Arc<dyn Objects>, target: &Location, key: &str) -> Result<()> {
    let below = Listing::of_checkpoint(objects, format!("{key}/"))?.of_readers(objects)?;
    // The other marker belongs to layouts without a marker of their own, and says nothing about
    // files beside it.
    if names().markers().iter().chain(&[MARKER]).any(|marker| below.object(marker).is_some()) {
        return refuse_foreign_files(&foreign_files_in(&target.for_reading()?.location)?, target);
    }
    let names = below.names(objects)?;
    let names: Vec<&str> = names.iter().map(String::as_str).filter(|name| !is_bookkeeping(name)).collect();
    match are_of_one(&names) {
        true => Ok(()),
        false => Err(refused(Refusal::Foreign, target)),
    }
}
