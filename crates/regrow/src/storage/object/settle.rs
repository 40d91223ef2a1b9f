//! The end of an overwrite: the new checkpoint comes to the name of the old one, within the bucket.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::copy::copy_within;
use super::listing::Listing;
use super::marker::{
    CLAIM, Claim, MARKER, MOVED, OTHER_MARKER, Running, SETTLING, is_bookkeeping, moved_to, nonce, take_over,
};
use super::renewal::Renewal;
use super::{Conditional, Object, Objects};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::UNCOMMITTED_MARK;
use crate::threads::for_each_parallel;

/// Holds a place against all others who replace or remove what is there, until it is dropped.
#[derive(Debug)]
pub(super) struct Hold {
    objects: Arc<dyn Objects>,
    place: String,
    nonce: String,
    renewal: Option<Renewal>,
    _running: Running,
}

impl Hold {
    /// Takes the place.
    ///
    /// # Errors
    /// `AlreadyExists` if somebody else has it.
    pub(super) fn take(objects: &Arc<dyn Objects>, key: &str) -> Result<Self> {
        Self::at(objects, format!("{key}/{SETTLING}"))
    }

    fn at(objects: &Arc<dyn Objects>, place: String) -> Result<Self> {
        let nonce = nonce()?;
        let running = Running::begin(&nonce);
        let claim = Claim::new(&nonce);
        let is_taken = match objects.get(&place)? {
            None => matches!(objects.create(&place, claim.to_bytes())?, Conditional::Done(_)),
            Some((found, object)) => {
                Claim::parse(&found).is_some_and(|found| found.is_gone())
                    && take_over(objects, &object, &claim)?
            }
        };
        if !is_taken {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                "another process is replacing or removing this checkpoint",
            )
            .in_file(objects.url(&place))
            .help("wait for it, and try again"));
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
        // What is renewed behind the deletion would stay.
        self.renewal = None;
        // Whoever settles removes it with the pointer. What cannot be removed is that of somebody who is gone.
        if matches!(self.is_own(), Ok(true)) {
            let _ = self.objects.delete(std::slice::from_ref(&self.place));
        }
    }
}

/// Finishes an overwrite whose writer died: its checkpoint is where the pointer says.
pub(super) fn settle_moved(objects: &Arc<dyn Objects>, key: &str, old: Listing) -> Result<Listing> {
    let Some(pointer) = old.object(MOVED) else { return Ok(old) };
    match moved_to(objects, pointer) {
        Ok(folder) => settle(objects, key, &folder, old.prefix())?,
        // Somebody else has settled it since that list.
        Err(error) if error.kind() == ErrorKind::Replaced => {}
        Err(error) => return Err(error),
    }
    Listing::of_checkpoint(objects, format!("{key}/"))
}

/// Brings the checkpoint at `folder` to `key`, within the bucket. Whenever it stops, the pointer or the marker at `key`
/// leads to the whole of it. One process does it at a time.
///
/// # Errors
/// `AlreadyExists` while another one is at it; what the bucket says.
pub(super) fn settle(objects: &Arc<dyn Objects>, key: &str, folder: &str, old_prefix: &str) -> Result<()> {
    let _hold = Hold::at(objects, format!("{folder}/{SETTLING}"))?;
    match points_to(objects, key)? {
        Some(found) if found == folder => bring(objects, key, folder, old_prefix),
        // Somebody else has settled it meanwhile.
        _ => Ok(()),
    }
}

/// The folder to which the pointer at `key` leads, if there is one.
pub(super) fn points_to(objects: &Arc<dyn Objects>, key: &str) -> Result<Option<String>> {
    let Some(pointer) = objects.head(&format!("{key}/{MOVED}"))? else { return Ok(None) };
    match moved_to(objects, &pointer) {
        Err(error) if error.kind() == ErrorKind::Replaced => Ok(None),
        found => found.map(Some),
    }
}

fn bring(objects: &Arc<dyn Objects>, key: &str, folder: &str, old_prefix: &str) -> Result<()> {
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
        |file| copy_within(objects, file, &format!("{key}/{}", name_of(file))).map(drop),
    )?;
    objects.delete(&stale)?;
    copy_within(objects, marker, &format!("{key}/{}", name_of(marker)))?;
    // Whoever holds the place has put the pointer there, or gives up when it finds the pointer.
    objects.delete(&[MOVED, CLAIM, SETTLING].map(|name| format!("{key}/{name}")))?;
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
        let has = |name: &str| staged.iter().any(|object| object.key == format!("{folder}/{name}"));
        // What goes last says until then what the others are.
        let last = match objects.get(&format!("{folder}/{CLAIM}"))? {
            // Between that answer and its end it may have committed: then the pointer leads there.
            Some((claim, _)) if Claim::parse(&claim).is_some_and(|claim| claim.is_gone()) => {
                (points_to(objects, key)?.as_deref() != Some(&folder)).then_some(CLAIM)
            }
            Some(_) => None,
            // The claim goes once the pointer is there, and the pointer once all is at its name: what neither of them knows is
            // settled, and whoever did that was killed before the end. Others write folders of such names, too.
            None if has(SETTLING) && points_to(objects, key)?.as_deref() != Some(&folder) => Some(SETTLING),
            None => None,
        };
        if let Some(last) = last {
            let inside =
                staged.iter().filter(|object| folder_of(object) == folder).map(|object| object.key.clone());
            let (last, others): (Vec<String>, Vec<String>) = inside.partition(|key| key.ends_with(last));
            objects.delete(&others)?;
            objects.delete(&last)?;
        }
    }
    Ok(())
}
