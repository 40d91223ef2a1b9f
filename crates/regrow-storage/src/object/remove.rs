//! The lock of a target; removals of a checkpoint, and of the files of an unfinished save.

use std::sync::Arc;

use super::held::{Held, Owned, of_ticket};
use super::listing::Listing;
use super::refusals::{NOT_ENDED_AROUND, not_ended, refused, whole_bucket};
use super::run::{Doing, Place, Run, end_dead, staged_folders};
use super::state::{Operation, Phase, Step};
use super::target::{check_replaceable, unfinished_around};
use super::{Objects, key_of};
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::{RESPECTED_FOR, Removal, Removed, TargetLock, UNCOMMITTED_MARK, is_recent};

/// Takes the lock of a target. First finishes the overwrite of a dead process.
///
/// # Errors
/// `Busy` if another process changes the target for longer than the wait; `NotFound` if it is a
/// folder without a checkpoint; errors of the bucket.
pub(super) fn lock(objects: &Arc<dyn Objects>, at: &Location, doing: Doing) -> Result<Owned> {
    let key = key_of(objects, at.path())?;
    if key.is_empty() {
        return Err(whole_bucket(at));
    }
    let place = match objects.list_page(&format!("{key}/"))?.0.is_empty() {
        true => Place::Beside { key, suffixes: Vec::new() },
        false => Place::Folder(key),
    };
    lock_place(objects, at, place, doing)
}

pub(super) fn lock_place(
    objects: &Arc<dyn Objects>,
    at: &Location,
    place: Place,
    doing: Doing,
) -> Result<Owned> {
    let mut may_clean = matches!(place, Place::Beside { .. });
    loop {
        let mut run = Run::new(objects, at, place.clone(), doing.clone());
        match run.advance(&Operation::Change { is_written: false })? {
            // Files of a dead save are there, and perhaps side files that the caller may remove. If
            // another process cleans at the same time, the next look waits for its lock.
            Step::Refuse(_) if may_clean => {
                may_clean = clean(objects, at, place.clone(), false)?.is_some();
            }
            Step::Refuse(refusal) => {
                check_finished(objects, at)?;
                return Err(refused(refusal, at));
            }
            _ => return run.into_owned(),
        }
    }
}

/// Removes a checkpoint. The caller has the lock, and releases it.
pub(super) fn remove(
    objects: &Arc<dyn Objects>,
    at: &Location,
    what: &Removal,
    lock: &TargetLock,
) -> Result<Removed> {
    let key = key_of(objects, at.path())?;
    let lock = &of_ticket(&lock.nonce)
        .filter(|lock| lock.record().target == key)
        .ok_or_else(|| Error::new(ErrorKind::Internal, "a removal without its lock").in_file(at))?;
    lock.check()?;
    match what {
        Removal::Folder if lock.is_beside() => {
            // Nothing was there when the lock was taken.
            Err(Error::new(ErrorKind::Replaced, "another process has just saved this checkpoint").in_file(at))
        }
        Removal::Folder => remove_folder(objects, at, key, lock),
        Removal::Files { files, beside } => {
            // A folder may have the name of the files.
            let own = match lock.is_beside() {
                true => None,
                false => {
                    let place = Place::Beside { key, suffixes: Vec::new() };
                    Some(lock_place(objects, at, place, Doing::cleanup())?)
                }
            };
            let lock = own.as_ref().map_or(lock, |own| own);
            let mut removed = remove_files(lock, beside)?;
            // A pytree of a data file and a manifest is named by a path that neither file has.
            if !files.iter().any(|file| file.is_same(at)) {
                // After the first file, which makes the checkpoint, the others are temporary files.
                let suffix =
                    |file: &Location| Some(file.name_text().strip_prefix(&*at.name_text())?.to_owned());
                let suffixes = files.iter().rev().map(suffix).collect::<Option<Vec<_>>>().unwrap_or_default();
                lock.set(|record| {
                    record.phase = Phase::Removing;
                    record.suffixes.clone_from(&suffixes);
                })?;
            }
            removed.merge(remove_files(lock, files)?);
            lock.set_ended();
            Ok(removed)
        }
    }
}

fn remove_files(lock: &Held, files: &[Location]) -> Result<Removed> {
    let mut removed = Removed::default();
    for file in files {
        let objects = lock.objects()?;
        let key = key_of(objects, file.path())?;
        let Some(object) = objects.head(&key)? else { continue };
        lock.objects()?.delete(&[key])?;
        removed.add(object.len_bytes);
    }
    Ok(removed)
}

fn remove_folder(
    objects: &Arc<dyn Objects>,
    at: &Location,
    key: String,
    lock: &Arc<Held>,
) -> Result<Removed> {
    check_replaceable(objects, at, &key).map_err(|error| match error.kind() {
        ErrorKind::InvalidArgument => {
            error.help("a removal would delete them too: move them elsewhere, or remove the folder yourself")
        }
        _ => error,
    })?;
    let place = Place::Folder(key);
    let mut run = Run::new(objects, at, place, Doing::cleanup()).with(Some(Arc::clone(lock)));
    match run.advance(&Operation::Remove)? {
        Step::End => {
            let removed = run.end(None)?;
            lock.set_ended();
            Ok(removed)
        }
        Step::Refuse(refusal) => Err(refused(refusal, at)),
        _ => Err(Error::new(ErrorKind::Internal, "a removal without an end").in_file(at)),
    }
}

/// Returns an error if a save, copy or removal in a folder, or of a checkpoint around it, has not
/// ended.
pub(super) fn check_finished(objects: &Arc<dyn Objects>, at: &Location) -> Result<()> {
    let key = key_of(objects, at.path())?;
    if key.is_empty() {
        return Ok(());
    }
    let below = Listing::of_checkpoint(objects, format!("{key}/"))?;
    let run = Run::new(objects, at, Place::Folder(key), Doing::cleanup());
    if !below.is_empty() && run.finds_nothing()? {
        return Err(not_ended("a save, copy or removal of this checkpoint has not ended", at));
    }
    // A checkpoint with its own marker is complete, even if files around it are removed.
    match unfinished_around(objects, at)?.filter(|_| !below.is_marked()) {
        Some(around) => Err(not_ended(NOT_ENDED_AROUND, &around)),
        None => Ok(()),
    }
}

/// Moves a checkpoint to its target if its writer died before the move. Returns whether there was
/// such a checkpoint.
pub(super) fn finish_unfinished(objects: &Arc<dyn Objects>, at: &Location) -> Result<bool> {
    let key = key_of(objects, at.path())?;
    if key.is_empty() {
        return Ok(false);
    }
    let found = Listing::of_checkpoint(objects, format!("{key}/"))?.state(objects)?;
    let is_moved = found.is_some_and(|found| matches!(found.record.phase, Phase::Moved(_)));
    if is_moved {
        finish(objects, at, &key, Doing::new("cleanup", None, &Monitor::new()))?;
    }
    Ok(is_moved)
}

/// Finishes the overwrite of a dead process, and deletes the folders of dead overwrites.
pub(super) fn finish(objects: &Arc<dyn Objects>, at: &Location, key: &str, doing: Doing) -> Result<()> {
    let mut run = Run::new(objects, at, Place::Folder(key.to_owned()), doing);
    match run.advance(&Operation::Change { is_written: false })? {
        Step::Write => run.end(None).map(drop),
        _ => Ok(()),
    }
}

pub(super) fn remove_unfinished(objects: &Arc<dyn Objects>, at: &Location, force: bool) -> Result<Removed> {
    let key = key_of(objects, at.path())?;
    if key.is_empty() {
        return Err(whole_bucket(at));
    }
    if let Some((target, _)) = at.name_text().split_once(UNCOMMITTED_MARK) {
        // An overwrite that was killed at its end has its checkpoint in this folder.
        finish_unfinished(objects, &at.with_name(target))?;
        return remove_folder_of_dead(objects, at, &key, force);
    }
    let mut removed = clean(objects, at, Place::Folder(key.clone()), force)?;
    let mut add = |part: Removed| removed.get_or_insert_default().merge(part);
    // Orbax' own folders have no `-` after the mark.
    for folder in staged_folders(objects, &format!("{key}{UNCOMMITTED_MARK}"))?.into_keys() {
        let at = Location::new(Arc::clone(at.storage()), &*folder);
        match remove_folder_of_dead(objects, &at, &folder, force) {
            // Another process has deleted it since the listing.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Replaced) => {}
            part => add(part?),
        }
    }
    clean(objects, at, Place::Beside { key, suffixes: Vec::new() }, force)?.map(add);
    removed.ok_or_else(|| nothing_unfinished(at))
}

fn nothing_unfinished(at: &Location) -> Error {
    Error::new(ErrorKind::NotFound, "there is no unfinished save").in_file(at)
}

/// Finishes the save, copy or removal of a dead process, or removes its files. Returns the removed
/// files; `None` if there is no such operation.
fn clean(
    objects: &Arc<dyn Objects>,
    at: &Location,
    place: Place,
    is_forced: bool,
) -> Result<Option<Removed>> {
    // A forced cleanup takes no complete checkpoint from a living owner, who may be copying it.
    let has_checkpoint = match &place {
        Place::Folder(key) if is_forced => {
            let found = Listing::of_checkpoint(objects, format!("{key}/"))?.state(objects)?;
            found.is_some_and(|found| matches!(found.record.phase, Phase::Changing | Phase::Moved(_)))
        }
        _ => false,
    };
    end_dead(objects, at, place, &Operation::Clean, is_forced && !has_checkpoint)
}

/// Removes a folder of an overwrite whose owner is dead.
fn remove_folder_of_dead(
    objects: &Arc<dyn Objects>,
    at: &Location,
    key: &str,
    force: bool,
) -> Result<Removed> {
    match Listing::of_checkpoint(objects, format!("{key}/"))?.state(objects)? {
        Some(_) => end_dead(objects, at, Place::Folder(key.to_owned()), &Operation::Remove, force)?
            .ok_or_else(|| nothing_unfinished(at)),
        None => {
            let all = objects.list(&format!("{key}/"))?;
            if all.is_empty() {
                return Err(nothing_unfinished(at));
            }
            if !force && is_recent(all.iter().map(|object| object.modified).max()) {
                return Err(Error::new(ErrorKind::AlreadyExists, "its writer may still be running")
                    .in_file(at)
                    .expected(
                        format_args!("no change for {} minutes", RESPECTED_FOR.as_secs() / 60),
                        "a later one",
                    )
                    .help("wait until it ends; if that process is dead, pass `force`"));
            }
            let mut removed = Removed::default();
            all.iter().for_each(|object| removed.add(object.len_bytes));
            objects.delete(&all.into_iter().map(|object| object.key).collect::<Vec<_>>())?;
            Ok(removed)
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::marker::{STATE, state_beside};
    use super::super::record::Record;
    use super::super::{MemoryObjects, ObjectStorage};
    use super::*;
    use crate::PublishOptions;

    const STAGED: &str = "x.orbax-checkpoint-tmp-of-it";

    /// The state object of a process that has ended, or of a living one on another machine.
    fn record(target: &str, phase: Phase, is_dead: bool) -> Record {
        let record = Record::new(target, "of-it", "save", phase);
        if is_dead { record } else { Record { host: "elsewhere 1".to_owned(), ..record } }
    }

    fn bucket() -> (Arc<dyn Objects>, Location) {
        let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::new("b"));
        let at = Location::new(Arc::new(ObjectStorage::new(Arc::clone(&objects))), "x");
        (objects, at)
    }

    /// A folder in which a process has started a save.
    fn begun(folder: &str, is_dead: bool) -> (Arc<dyn Objects>, Location) {
        let (objects, at) = bucket();
        let state = record(folder, Phase::Writing, is_dead);
        objects.put(&format!("{folder}/{STATE}"), state.to_bytes()).unwrap();
        objects.put(&format!("{folder}/data"), Bytes::from_static(b"...")).unwrap();
        (objects, at)
    }

    fn names(objects: &Arc<dyn Objects>) -> Vec<String> {
        objects.list("").unwrap().into_iter().map(|object| object.key).collect()
    }

    #[test]
    fn files_of_a_dead_writer_are_removed_and_those_of_a_living_one_only_by_force() {
        for (folder, is_dead, force) in
            [("x", true, false), ("x", false, true), (STAGED, true, false), (STAGED, false, true)]
        {
            let (objects, at) = begun(folder, is_dead);
            if !is_dead {
                let error = remove_unfinished(&objects, &at, false).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Busy, "{folder}: {error}");
                assert_eq!(names(&objects).len(), 2);
            }
            assert_eq!(remove_unfinished(&objects, &at, force).unwrap().file_count, 1);
            assert_eq!(names(&objects), Vec::<String>::new(), "{folder}");
        }
    }

    #[test]
    fn bad_state_objects_lose_nothing() {
        let newer = br#"{"regrow_state": 9}"#;
        let copied = record("y", Phase::Moved("y.orbax-checkpoint-tmp-1".to_owned()), true).to_bytes();
        let cases =
            [(&b"{"[..], ErrorKind::Corrupt), (newer, ErrorKind::Unsupported), (&copied, ErrorKind::Corrupt)];
        let monitor = Monitor::new();
        for (bytes, kind) in cases {
            let (objects, at) = bucket();
            for (name, bytes) in [("data", &b"..."[..]), (super::super::marker::MARKER, b""), (STATE, bytes)]
            {
                objects.put(&format!("x/{name}"), Bytes::copy_from_slice(bytes)).unwrap();
            }
            let errors = [
                at.for_reading().map(drop),
                at.publish_folder(PublishOptions::of_overwrite(&monitor)).map(drop),
                remove_unfinished(&objects, &at, true).map(drop),
                lock(&objects, &at, Doing::cleanup()).map(drop),
            ];
            for error in errors.map(|done| done.unwrap_err()) {
                assert_eq!(error.kind(), kind, "{error}");
                assert!(error.to_string().contains("x/regrow-state.json"), "{error}");
            }
            assert_eq!(names(&objects).len(), 3);
        }
    }

    #[test]
    fn files_of_one_stem_that_may_belong_to_others_stay() {
        let suffixes = |all: &[&str]| all.iter().map(|suffix| (*suffix).to_owned()).collect::<Vec<_>>();
        let (pair, data) = (suffixes(&[".data", ".manifest"]), suffixes(&[".data"]));
        let other = suffixes(&[".data", ".json"]);
        // For each case: the suffixes in the state object, the files that exist, and whether the
        // data counts as a file of the dead writer.
        let cases = [
            (&pair, vec![".data"], true),
            (&pair, vec![".data", ".manifest"], false),
            (&data, vec![".data"], false),
            (&other, vec![".data", ".json"], false),
            (&other, vec![".data"], true),
            (&Vec::new(), vec![".data"], false),
            (&suffixes(&["/data", ".data", ".manifest"]), vec![".data"], false),
        ];
        for (number, (named, there, is_left)) in cases.into_iter().enumerate() {
            let begin = || {
                let (objects, at) = bucket();
                let state = Record { suffixes: named.clone(), ..record("x", Phase::Writing, true) };
                objects.put(&state_beside("x"), state.to_bytes()).unwrap();
                for suffix in &there {
                    objects.put(&format!("x{suffix}"), Bytes::from_static(b"...")).unwrap();
                }
                (objects, at)
            };
            let has_data = |objects: &Arc<dyn Objects>| objects.head("x.data").unwrap().is_some();
            let (objects, at) = begin();
            remove_unfinished(&objects, &at, false).unwrap();
            assert_eq!(has_data(&objects), !is_left, "{number}");
            assert!(objects.head(&state_beside("x")).unwrap().is_none(), "{number}");
            // A save without `overwrite` replaces only files of a dead writer.
            let (objects, at) = begin();
            let monitor = Monitor::new();
            let begun = at.publish_siblings(&pair, PublishOptions::of_new(&monitor));
            assert_eq!(begun.is_ok(), is_left, "{number}: {begun:?}");
            if let Err(error) = begun {
                assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{number}");
                assert!(has_data(&objects), "{number}");
            }
        }
    }

    /// The folder `x` around the target has the state object of a dead writer. The folder `x/1` has
    /// a marker or not.
    #[test]
    fn a_part_of_an_unfinished_checkpoint_is_complete_only_with_its_own_marker() {
        for (is_marked, nested) in [(false, "x/1"), (true, "x/1"), (false, "x/1/item"), (true, "x/1/item")] {
            let (objects, x) = begun("x", true);
            objects.put(&format!("{nested}/data"), Bytes::from_static(b"...")).unwrap();
            if is_marked {
                objects.put("x/1/commit_success.txt", Bytes::new()).unwrap();
            }
            let said = |error: Error| (error.kind(), error.place().file.clone());
            let around = Some((ErrorKind::Uncommitted, Some(x.describe())));
            let at = Location::new(Arc::clone(x.storage()), nested);
            let expected = around.clone().filter(|_| !is_marked);
            assert_eq!(check_finished(&objects, &at).err().map(said), expected, "{nested} {is_marked}");
            // A new step in the folder `x` is refused in all cases. A new file in the complete
            // checkpoint `x/1` is accepted.
            let monitor = Monitor::new();
            let terms = PublishOptions::of_overwrite(&monitor);
            let step = Location::new(Arc::clone(x.storage()), "x/2");
            assert_eq!(step.publish_folder(terms).err().map(said), around, "{nested} {is_marked}");
            let file = at.with_name("file").publish_file(terms);
            let expected = if nested == "x/1" { around } else { expected };
            assert_eq!(file.err().map(said), expected, "{nested} {is_marked}");
        }
    }
}
