//! The end of an overwrite: the new checkpoint comes to the name of the old one, within the bucket.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::listing::Listing;
use super::marker::{CLAIM, Claim, MARKER, MOVED, OTHER_MARKER, is_bookkeeping, moved_to};
use super::{Object, Objects};
use crate::error::Result;
use crate::storage::UNCOMMITTED_MARK;
use crate::threads::for_each_parallel;

/// Finishes an overwrite whose writer died: its checkpoint is where the pointer says.
pub(super) fn settle_moved(objects: &Arc<dyn Objects>, key: &str, old: Listing) -> Result<Listing> {
    let Some(pointer) = old.object(MOVED) else { return Ok(old) };
    let folder = moved_to(objects, pointer)?;
    settle(objects, key, &folder, old.prefix())?;
    Listing::of(objects, format!("{key}/"))
}

/// Brings the checkpoint that has `moved` to `key`, within the bucket. Whenever it stops, the pointer or the marker at
/// `key` leads to the whole of it.
pub(super) fn settle(objects: &Arc<dyn Objects>, key: &str, folder: &str, old_prefix: &str) -> Result<()> {
    let (staged, _) = objects.list(&format!("{folder}/"), false)?;
    let name_of = |object: &Object| object.key.get(folder.len() + 1..).unwrap_or_default().to_owned();
    let is_marker = |object: &Object| matches!(name_of(object).as_str(), MARKER | OTHER_MARKER);
    let (markers, files): (Vec<Object>, Vec<Object>) = staged
        .into_iter()
        .filter(|object| is_marker(object) || !is_bookkeeping(&name_of(object)))
        .partition(is_marker);
    let Some(marker) = markers.first() else {
        // Somebody else has settled it.
        return Ok(());
    };
    let (old, _) = objects.list(old_prefix, false)?;
    // Orbax is to see no checkpoint while it is half the one and half the other.
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
        |file| objects.copy(file, &format!("{key}/{}", name_of(file))).map(drop),
    )?;
    objects.delete(&stale)?;
    objects.copy(marker, &format!("{key}/{}", name_of(marker)))?;
    objects.delete(&[format!("{key}/{MOVED}"), format!("{key}/{CLAIM}")])?;
    // The marker goes last: what is left without one is nobody's checkpoint.
    objects.delete(&files.into_iter().map(|file| file.key).collect::<Vec<_>>())?;
    objects.delete(&[marker.key.clone(), format!("{folder}/{CLAIM}")])
}

/// Removes what overwrites of a target have left whose writers are gone.
pub(super) fn sweep(objects: &Arc<dyn Objects>, key: &str) -> Result<()> {
    let staged = objects.list_beginning(&format!("{key}{UNCOMMITTED_MARK}-"), false)?.0;
    let folder_of = |object: &Object| {
        let name =
            object.key.get(key.len() + 1..).and_then(|rest| rest.split('/').next()).unwrap_or_default();
        format!("{}.{name}", key)
    };
    for folder in staged.iter().map(folder_of).collect::<BTreeSet<_>>() {
        let is_gone = match objects.get(&format!("{folder}/{CLAIM}"))? {
            Some((claim, _)) => Claim::parse(&claim).is_some_and(|claim| claim.is_gone()),
            // A claim goes after all else: what has none was never begun by regrow, or is settled.
            None => false,
        };
        if is_gone {
            let inside =
                staged.iter().filter(|object| folder_of(object) == folder).map(|object| object.key.clone());
            let (claim, others): (Vec<String>, Vec<String>) = inside.partition(|key| key.ends_with(CLAIM));
            objects.delete(&others)?;
            objects.delete(&claim)?;
        }
    }
    Ok(())
}
