//! Removing from a bucket: first what makes the checkpoint one, then the rest.
//!
//! ```text
//! a claim is created    readers take the folder for one that is being written as soon as the marker is gone
//! the markers go        now it is no checkpoint
//! the objects go, and the claim last
//! ```
//! A removal that is killed leaves what a killed save leaves, and the next save to the same place removes it.

use std::sync::Arc;

use super::listing::Listing;
use super::marker::{CLAIM, Claim, MARKER, MOVED, OTHER_MARKER, Running, SETTLING, is_bookkeeping, nonce};
use super::settle::settle_moved;
use super::target::{check_gone, check_replaceable};
use super::{Conditional, Object, Objects, key_of, split};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::pytree_data::{DATA_SUFFIX, MANIFEST_SUFFIX};
use crate::location::Location;
use crate::storage::{RESPECTED_FOR, Removal, Removed, UNCOMMITTED_MARK, is_recent};

/// Removes a checkpoint.
pub(super) fn remove(objects: &Arc<dyn Objects>, at: &Location, what: &Removal) -> Result<Removed> {
    match what {
        Removal::Folder => remove_folder(objects, at),
        Removal::Files(files) => {
            let mut removed = Removed::default();
            for file in files {
                let key = key_of(objects, file.path())?;
                let Some(object) = objects.head(&key)? else { continue };
                objects.delete(&[key])?;
                removed.add(object.len_bytes);
            }
            Ok(removed)
        }
    }
}

fn remove_folder(objects: &Arc<dyn Objects>, at: &Location) -> Result<Removed> {
    let key = key_of(objects, at.path())?;
    if key.is_empty() {
        return Err(Error::invalid("a bucket itself is no checkpoint").in_file(at));
    }
    let below = settle_moved(objects, &key, Listing::of_checkpoint(objects, format!("{key}/"))?)?;
    check_replaceable(objects, at, &below).map_err(|error| match error.kind() {
        ErrorKind::InvalidArgument => {
            error.help("all of it would be removed: move it elsewhere, or remove it yourself")
        }
        _ => error,
    })?;
    let claim = format!("{key}/{CLAIM}");
    // One that is there beside the marker says nothing any more.
    objects.delete(std::slice::from_ref(&claim))?;
    let nonce = nonce()?;
    let _running = Running::begin(&nonce);
    if let Conditional::Lost(..) = objects.create(&claim, Claim::new(&nonce).to_bytes())? {
        return Err(Error::new(ErrorKind::AlreadyExists, "a save to this place has begun").in_file(at));
    }
    objects.delete(&[format!("{key}/{MARKER}"), format!("{key}/{OTHER_MARKER}")])?;
    let (left, _) = objects.list(&format!("{key}/"), false)?;
    let mut removed = delete_all(objects, left)?;
    if let Some(marker) = below.object(MARKER) {
        removed.add(marker.len_bytes);
    }
    Ok(removed)
}

/// Removes objects, claims last; how many of them were no bookkeeping.
fn delete_all(objects: &Arc<dyn Objects>, all: Vec<Object>) -> Result<Removed> {
    let mut removed = Removed::default();
    let (claims, others): (Vec<Object>, Vec<Object>) =
        all.into_iter().partition(|object| [CLAIM, SETTLING].iter().any(|claim| object.key.ends_with(claim)));
    others
        .iter()
        .filter(|object| !is_bookkeeping(object.key.rsplit('/').next().unwrap_or_default()))
        .for_each(|object| removed.add(object.len_bytes));
    for part in [others, claims] {
        objects.delete(&part.into_iter().map(|object| object.key).collect::<Vec<_>>())?;
    }
    Ok(removed)
}

/// Removes what saves and copies to a place have left.
pub(super) fn finish_unfinished(objects: &Arc<dyn Objects>, at: &Location) -> Result<bool> {
    let key = key_of(objects, at.path())?;
    if key.is_empty() {
        return Ok(false);
    }
    let below = Listing::of_checkpoint(objects, format!("{key}/"))?;
    let is_moved = below.object(MOVED).is_some();
    settle_moved(objects, &key, below).map(|_| is_moved)
}

pub(super) fn remove_unfinished(objects: &Arc<dyn Objects>, at: &Location, force: bool) -> Result<Removed> {
    let key = key_of(objects, at.path())?;
    if key.is_empty() {
        return Err(Error::invalid("a bucket itself is no checkpoint").in_file(at));
    }
    if let Some((target, _)) = key.split_once(UNCOMMITTED_MARK) {
        // An overwrite whose writer died at the end has its checkpoint there.
        settle_moved(objects, target, Listing::of_checkpoint(objects, format!("{target}/"))?)?;
    }
    let mut removed = None;
    let mut take = |all: Vec<Object>| -> Result<()> {
        removed.get_or_insert_with(Removed::default).merge(delete_all(objects, all)?);
        Ok(())
    };
    let below = Listing::of_checkpoint(objects, format!("{key}/"))?;
    if !below.is_empty() && (at.name_text().contains(UNCOMMITTED_MARK) || is_begun(&below)) {
        check_dead(objects, at, &below, force)?;
        take(objects.list(below.prefix(), false)?.0)?;
    } else if below.object(MOVED).is_some() {
        // The checkpoint is in one of the folders that are looked at next.
        settle_moved(objects, &key, below)?;
    }
    let (parent, name) = split(key.as_ref());
    let parent = if parent.as_os_str().is_empty() { String::new() } else { format!("{}/", parent.display()) };
    let (files, folders) = objects.list_level(&parent)?;
    let is_left =
        |other: &str| other.strip_prefix(&name).is_some_and(|rest| rest.starts_with(UNCOMMITTED_MARK));
    for folder in folders.iter().filter(|folder| is_left(folder)) {
        let left = Listing::of_checkpoint(objects, format!("{parent}{folder}/"))?;
        check_dead(objects, &at.with_name(folder), &left, force)?;
        take(objects.list(left.prefix(), false)?.0)?;
    }
    for claim in files.into_iter().filter(|file| is_left(file.key.get(parent.len()..).unwrap_or_default())) {
        let found = objects.get(&claim.key)?.and_then(|(bytes, _)| Claim::parse(&bytes));
        if !force {
            check_gone(at, found.as_ref())?;
        }
        let mut all = vec![claim];
        // Without the manifest the data is what a copy has left.
        if objects.head(&format!("{key}{MANIFEST_SUFFIX}"))?.is_none() {
            all.extend(objects.head(&format!("{key}{DATA_SUFFIX}"))?);
        }
        take(all)?;
    }
    removed.ok_or_else(|| Error::new(ErrorKind::NotFound, "no unfinished save is here").in_file(at))
}

/// Whether a listing shows a save that has begun and not ended.
fn is_begun(listing: &Listing) -> bool {
    listing.object(CLAIM).is_some() && !listing.is_marked() && listing.object(MOVED).is_none()
}

/// Errs if the writer of a folder may still be at it.
fn check_dead(objects: &Arc<dyn Objects>, at: &Location, listing: &Listing, force: bool) -> Result<()> {
    if force {
        return Ok(());
    }
    // Whoever finishes an overwrite says so in a claim of its own, when the pointer has led to the folder.
    if let Some(claim) = listing.object(CLAIM).or_else(|| listing.object(SETTLING)) {
        let found = objects.get(&claim.key)?.and_then(|(bytes, _)| Claim::parse(&bytes));
        return check_gone(at, found.as_ref());
    }
    let modified = listing.objects().map(|(_, object)| object.modified).max();
    match is_recent(modified) {
        false => Ok(()),
        true => Err(Error::new(ErrorKind::AlreadyExists, "its writer may still be at it")
            .in_file(at)
            .expected(format_args!("no change for {} minutes", RESPECTED_FOR.as_secs() / 60), "a later one")
            .help("wait for it; if it is dead for sure, say so (`force`)")),
    }
}
