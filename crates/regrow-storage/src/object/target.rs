//! The allowed targets in a bucket, and the state of a target before a save.

use std::sync::Arc;

use super::listing::Listing;
use super::marker::{
    CLAIM, CLAIM_TIME_MAX, Claim, MARKER, MOVED, SETTLING, claim_at, claim_of_siblings, is_bookkeeping,
    is_commit, take_over,
};
use super::settle::points_to;
use super::{Conditional, Object, Objects, key_of};
use crate::error::{Error, ErrorKind, Result};
use crate::local::{are_of_one, refuse_foreign_files};
use crate::location::Location;
use crate::names::{foreign_files_in, names};
use crate::{PublishOptions, Target, UNCOMMITTED_MARK};

/// Number of looks at a target that keeps changing.
pub(super) const LOOKS_MAX: usize = 16;

/// The state of a target before a save.
#[derive(Debug)]
pub(super) enum Before {
    Nothing,
    /// Files of a dead writer: its claim, and all of its objects.
    Leftovers(Object, Vec<Object>),
    /// An existing checkpoint or file that may be replaced.
    Old(Listing),
    /// Some of several files of one stem, without the last one. They may belong to another program.
    /// The save replaces them.
    Others,
}

/// Checks that the target has a valid name for a checkpoint, and returns its key.
pub(super) fn check_name(objects: &Arc<dyn Objects>, target: &Location) -> Result<String> {
    let key = key_of(objects, target.path())?;
    if key.is_empty() {
        return Err(Error::invalid("a whole bucket cannot be a checkpoint")
            .in_file(target)
            .help("give the path of the checkpoint, such as `bucket/runs/a/step_100`"));
    }
    if target.name_text().contains(UNCOMMITTED_MARK) {
        return Err(Error::invalid(format!("names with {UNCOMMITTED_MARK} mark unfinished saves"))
            .in_file(target)
            .help("choose another name: no reader would open this one"));
    }
    Ok(key)
}

pub(super) fn exists_already(target: &Location) -> Error {
    Error::new(ErrorKind::AlreadyExists, "the target already exists")
        .in_file(target)
        .help("choose another path, or pass `overwrite` to replace it")
}

/// Returns the state of the target, or an error if the target may not be used.
pub(super) fn check(
    objects: &Arc<dyn Objects>,
    target: &Location,
    kind: &Target,
    options: PublishOptions<'_>,
) -> Result<Before> {
    // Files that are written inside an unfinished copy are lost: the copy, when it continues,
    // removes files that it does not know.
    if let Some((around, _)) = claim_around(objects, target)? {
        return Err(not_ended(NOT_ENDED_AROUND, &around));
    }
    for _ in 0..LOOKS_MAX {
        if let Some(before) = look(objects, target, kind, options)? {
            return Ok(before);
        }
    }
    Err(has_begun(target))
}

/// As `check`, but looks once; `None` if the target has changed during the look.
fn look(
    objects: &Arc<dyn Objects>,
    target: &Location,
    kind: &Target,
    options: PublishOptions<'_>,
) -> Result<Option<Before>> {
    let key = check_name(objects, target)?;
    if let Target::Siblings { suffixes } = kind {
        return look_beside(objects, target, suffixes, options.overwrite);
    }
    let other =
        |what: &str| Error::invalid(what).in_file(target).help("choose another path, or remove it yourself");
    match (kind, At::look(objects, &key, kind)?) {
        (_, At::Nothing) => Ok(Some(Before::Nothing)),
        (Target::Folder, At::Folder(below)) => look_in_folder(objects, target, below, options.overwrite),
        _ if !options.overwrite => Err(exists_already(target)),
        (Target::Folder, At::File) => Err(other("the target is a file, but this layout writes a folder")),
        (_, At::Folder(_)) => Err(other("the target is a folder, but this layout writes a file")),
        (_, At::File) => {
            options.may_replace.map_or(Ok(()), |may_replace| may_replace(target))?;
            Ok(Some(Before::Nothing))
        }
    }
}

/// The state of a key.
enum At {
    Nothing,
    File,
    Folder(Listing),
}

impl At {
    fn look(objects: &Arc<dyn Objects>, key: &str, wanted: &Target) -> Result<Self> {
        let below = Listing::of_checkpoint(objects, format!("{key}/"))?;
        // A server that keeps objects in a file system may fail when asked for a folder as an
        // object.
        let is_settled = *wanted == Target::Folder && !below.is_empty();
        if !is_settled && objects.head(key)?.is_some() {
            return Ok(Self::File);
        }
        Ok(if below.is_empty() { Self::Nothing } else { Self::Folder(below) })
    }
}

/// As `look`, for the objects of a folder.
fn look_in_folder(
    objects: &Arc<dyn Objects>,
    target: &Location,
    below: Listing,
    overwrite: bool,
) -> Result<Option<Before>> {
    match leftovers(objects, target, &below)? {
        Left::Nothing => {}
        Left::Gone => return Ok(None),
        Left::These(claim, left) => return Ok(Some(Before::Leftovers(claim, left))),
    }
    if !overwrite {
        return Err(exists_already(target));
    }
    check_replaceable(objects, target, &below)?;
    Ok(Some(Before::Old(below)))
}

/// As `look`, for several files of one stem. The last file makes the checkpoint: without it the
/// others are not a checkpoint of this kind.
fn look_beside(
    objects: &Arc<dyn Objects>,
    target: &Location,
    suffixes: &[String],
    overwrite: bool,
) -> Result<Option<Before>> {
    let there = beside_without_last(objects, target, suffixes, overwrite)?;
    let Some(first) = there.first() else { return Ok(Some(Before::Nothing)) };
    let key = key_of(objects, target.path())?;
    if let Some((found, claim)) = claim_at(objects, &claim_of_siblings(&key))? {
        check_gone(target, found.as_ref())?;
        let left = left_beside(objects, &key, found.as_ref())?;
        if there.iter().all(|suffix| left.contains(suffix)) {
            return Ok(Some(Before::Leftovers(claim, Vec::new())));
        }
    } else if beside_without_last(objects, target, suffixes, overwrite)? != there {
        // The files changed between the two looks: the process that removed them has ended. Look
        // again.
        return Ok(None);
    }
    if overwrite { Ok(Some(Before::Others)) } else { Err(exists_already(&target.with_suffix(first))) }
}

/// The suffixes of the files of one stem that exist, if the last file, which makes the checkpoint,
/// does not exist.
///
/// # Errors
/// An error if the last file exists; errors of the bucket.
pub(super) fn beside_without_last(
    objects: &Arc<dyn Objects>,
    target: &Location,
    suffixes: &[String],
    overwrite: bool,
) -> Result<Vec<String>> {
    let mut there = Vec::new();
    for suffix in suffixes {
        let file = target.with_suffix(suffix);
        if objects.head(&key_of(objects, file.path())?)?.is_some() {
            there.push(suffix.clone());
        }
    }
    match there.first().filter(|_| there.last() == suffixes.last()) {
        Some(first) if overwrite => Err(pair_stays(&target.with_suffix(first))),
        Some(first) => Err(exists_already(&target.with_suffix(first))),
        None => Ok(there),
    }
}

/// The suffixes of the files of one stem that the owner of a claim has left. Empty if the last file
/// exists, because the files are then a checkpoint.
pub(super) fn left_beside(
    objects: &Arc<dyn Objects>,
    key: &str,
    claim: Option<&Claim>,
) -> Result<Vec<String>> {
    // regrow never writes a suffix with a slash.
    let suffixes =
        claim.map(|claim| &*claim.suffixes).filter(|all| !all.iter().any(|suffix| suffix.contains('/')));
    let Some((last, others)) = suffixes.and_then(<[String]>::split_last) else { return Ok(Vec::new()) };
    match objects.head(&format!("{key}{last}"))? {
        Some(_) => Ok(Vec::new()),
        None => Ok(others.to_vec()),
    }
}

/// The error of a save that another save has overtaken.
pub(super) fn has_begun(target: &Location) -> Error {
    Error::new(ErrorKind::AlreadyExists, "another save to this target has begun").in_file(target)
}

pub(super) fn pair_stays(file: &Location) -> Error {
    Error::unsupported("a bucket cannot replace several files at once")
        .in_file(file)
        .help("save under another name, then remove the old files")
}

/// Takes the claim of several files of one stem. The files are written one by one, and a mixture of
/// two saves is not a checkpoint. Files of a dead writer belong to the new owner.
///
/// # Errors
/// `AlreadyExists` if another process has the claim.
pub(super) fn claim_siblings(
    objects: &Arc<dyn Objects>,
    target: &Location,
    key: &str,
    claim: &Claim,
) -> Result<()> {
    match take_claim(objects, target, &claim_of_siblings(key), claim)? {
        true => Ok(()),
        false => Err(has_begun(target)),
    }
}

/// Writes a claim if there is none, or replaces the claim of a dead writer. If several processes
/// try, one succeeds. Returns `false` if another process has the claim.
///
/// # Errors
/// `AlreadyExists` if the owner of the claim may still live; errors of the bucket.
pub(super) fn take_claim(
    objects: &Arc<dyn Objects>,
    target: &Location,
    place: &str,
    claim: &Claim,
) -> Result<bool> {
    for _ in 0..LOOKS_MAX {
        let Some((found, object)) = claim_at(objects, place)? else {
            return Ok(matches!(objects.create(place, claim.to_bytes())?, Conditional::Done(_)));
        };
        check_gone(target, found.as_ref())?;
        if take_over(objects, &object, claim)? {
            return Ok(true);
        }
        // Another process holds the claim, perhaps only to remove the dead writer's files.
    }
    Ok(false)
}

/// Number of folders above a checkpoint that may also be a checkpoint: an item is in a step, and
/// the step is in a run.
const FOLDERS_AROUND: usize = 2;

/// The error text for a place inside an unfinished checkpoint.
pub(super) const NOT_ENDED_AROUND: &str = "a save, copy or removal of a folder above has not ended";

/// The error for a location inside the folder `begun`, in which an operation has not ended.
pub(super) fn not_ended(what: &str, begun: &Location) -> Error {
    Error::new(ErrorKind::Uncommitted, what).in_file(begun).help(
        "wait until it ends; if it was killed, save or copy again, or remove its files with `regrow rm \
         --unfinished` of this folder",
    )
}

/// The folder of an unfinished checkpoint around a location, with its claim; no claim if it cannot
/// be parsed.
pub(super) fn claim_around(
    objects: &Arc<dyn Objects>,
    at: &Location,
) -> Result<Option<(Location, Option<Claim>)>> {
    let mut between = Vec::new();
    for folder in at.folders_above().take(FOLDERS_AROUND) {
        let key = key_of(objects, folder.path())?;
        if key.is_empty() {
            break;
        }
        let found = match objects.get(&format!("{key}/{CLAIM}")) {
            // Credentials may cover only a part of the bucket.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => None,
            found => found?,
        };
        between.push(key);
        let Some((found, _)) = found else { continue };
        // A marker makes its folder complete. So neither the claim beside the marker nor the claim
        // of a folder further out counts.
        for (nth, key) in between.iter().rev().enumerate() {
            let listing = Listing::of_checkpoint(objects, format!("{key}/"))?;
            if listing.is_marked() || nth == 0 && listing.object(MOVED).is_some() {
                return Ok(None);
            }
        }
        return Ok(Some((folder, Claim::parse(&found))));
    }
    Ok(None)
}

/// Returns an error if a process is writing, moving or removing the checkpoint at a location.
pub(super) fn check_unwritten(objects: &Arc<dyn Objects>, at: &Location) -> Result<()> {
    let key = key_of(objects, at.path())?;
    let below = Listing::of_checkpoint(objects, format!("{key}/"))?;
    // A checkpoint with its own marker is complete, also if files around it are removed.
    if let Some((around, claim)) = claim_around(objects, at)?.filter(|_| !below.is_marked()) {
        check_gone(&around, claim.as_ref())?;
    }
    if below.object(MOVED).is_some() {
        return Err(Error::new(ErrorKind::AlreadyExists, "another save to this path is about to finish")
            .in_file(at)
            .help("wait until it ends, then try again"));
    }
    // A claim beside a marker has no meaning.
    let claim = below.object(CLAIM).filter(|_| !below.is_marked());
    for claim in claim.into_iter().chain(below.object(SETTLING)) {
        if let Some((found, _)) = objects.get(&claim.key)? {
            check_gone(at, Claim::parse(&found).as_ref())?;
        }
    }
    Ok(())
}

/// The result of a search for files of an unfinished save.
enum Left {
    Nothing,
    /// The state has changed since the listing.
    Gone,
    /// The claim of a dead writer, and all of its objects.
    These(Object, Vec<Object>),
}

/// The objects of an unfinished save, if the target has some.
fn leftovers(objects: &Arc<dyn Objects>, target: &Location, below: &Listing) -> Result<Left> {
    if below.is_marked() || below.object(MOVED).is_some() {
        return Ok(Left::Nothing);
    }
    // A process may have been killed while it held the lock of an empty target.
    let held = below.object(SETTLING).filter(|_| below.objects().all(|(name, _)| name == SETTLING));
    let Some(claim) = below.object(CLAIM).or(held) else { return Ok(Left::Nothing) };
    let Some((found, claim)) = claim_at(objects, &claim.key)? else { return Ok(Left::Gone) };
    check_gone(target, found.as_ref())?;
    match left_for_good(objects, target, below) {
        Ok(Some(left)) => Ok(Left::These(claim, left)),
        // The writer has committed since that list, or another process has taken the claim. The
        // next look tells which.
        Ok(None) => Ok(Left::Gone),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(Left::Gone),
        Err(error) => Err(error),
    }
}

/// The files of a dead writer in a folder that was listed before; `None` if they are a checkpoint
/// by now. The writer may have committed between that list and its death. A dead writer writes
/// nothing more, so the second list here is final. Every removal of unfinished files calls this
/// first.
///
/// # Errors
/// `AlreadyExists` if another process has taken over the claim in between.
pub(super) fn left_for_good(
    objects: &Arc<dyn Objects>,
    at: &Location,
    before: &Listing,
) -> Result<Option<Vec<Object>>> {
    let folder = before.prefix().trim_end_matches('/');
    let target = folder.split_once(UNCOMMITTED_MARK).map(|(target, _)| target);
    // An overwrite is committed by its pointer, not by its marker.
    if let Some(target) = target
        && points_to(objects, target)?.as_deref() == Some(folder)
    {
        return Ok(None);
    }
    let all = objects.list(before.prefix())?;
    let name_of = |object: &Object| object.key.get(before.prefix().len()..).unwrap_or_default().to_owned();
    if target.is_none() && all.iter().any(|object| is_commit(&name_of(object))) {
        return Ok(None);
    }
    match (before.object(CLAIM), all.iter().find(|object| name_of(object) == CLAIM)) {
        (Some(before), Some(now)) if before.tag.is_known() && !before.tag.is_same(&now.tag) => {
            Err(has_begun(at))
        }
        // Another process has deleted the claim and is about to write here.
        (Some(_), None) => Ok(None),
        _ => Ok(Some(all)),
    }
}

/// Returns an error if the owner of a claim may still live.
pub(super) fn check_gone(target: &Location, claim: Option<&Claim>) -> Result<()> {
    let gone = match claim {
        Some(claim) if claim.is_gone() => Ok(()),
        Some(claim) => Err(format!(
            "process {} on {}, since {} s",
            claim.pid,
            claim.host.split(' ').next().unwrap_or_default(),
            claim.age().as_secs()
        )),
        None => Err("an unknown writer (its claim cannot be read)".to_owned()),
    };
    match gone {
        Ok(()) => Ok(()),
        Err(writer) => Err(Error::new(ErrorKind::AlreadyExists, "another save to this target is running")
            .in_file(target)
            .expected("no other writer", writer)
            .help(format!(
                "wait until it ends; if it was killed, remove its objects, or wait {} minutes",
                CLAIM_TIME_MAX.as_secs() / 60
            ))),
    }
}

/// Returns an error if a folder has files that are not part of a checkpoint.
pub(super) fn check_replaceable(
    objects: &Arc<dyn Objects>,
    target: &Location,
    below: &Listing,
) -> Result<()> {
    // The other marker belongs to layouts without a marker of their own, and says nothing about
    // files beside it.
    if names().markers().iter().chain(&[MARKER]).any(|marker| below.object(marker).is_some()) {
        let foreign = target.for_reading().and_then(|reading| foreign_files_in(&reading.location));
        return refuse_foreign_files(&foreign.map_err(|error| changed_in_between(error, target))?, target);
    }
    let names = names_below(objects, below)?;
    let names: Vec<&str> = names.iter().map(String::as_str).filter(|name| !is_bookkeeping(name)).collect();
    if are_of_one(&names) {
        return Ok(());
    }
    Err(Error::invalid("the target is a folder with files, but not a checkpoint")
        .in_file(target)
        .help("an overwrite would remove them: choose another path, or remove the folder yourself"))
}

/// The error if objects disappeared since the look: another save has moved or replaced them.
fn changed_in_between(error: Error, target: &Location) -> Error {
    if error.kind() != ErrorKind::NotFound {
        return error;
    }
    Error::new(ErrorKind::Replaced, "the checkpoint was replaced or removed during this operation")
        .in_file(target)
        .help("save again")
}

/// The names of all objects of a folder. Lists again if the listing has only one page.
fn names_below(objects: &Arc<dyn Objects>, below: &Listing) -> Result<Vec<String>> {
    if below.is_whole() {
        return Ok(below.objects().map(|(name, _)| name.to_owned()).collect());
    }
    let all = objects.list(below.prefix())?;
    let name = |object: &Object| object.key.get(below.prefix().len()..).unwrap_or_default().to_owned();
    Ok(all.iter().map(name).filter(|name| !name.is_empty() && !name.ends_with('/')).collect())
}
