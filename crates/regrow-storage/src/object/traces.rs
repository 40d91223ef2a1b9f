//! The traces of other processes at a target in a bucket: see [`Trace`].

use std::sync::Arc;

use super::held::{Found, state_at};
use super::listing::Listing;
use super::marker::{STATE, staged_prefix, state_beside};
use super::record::is_here;
use super::run::staged_folders;
use super::state::{Owner, Phase};
use super::{Objects, key_of, old};
use crate::error::{ErrorKind, Result};
use crate::location::Location;
use crate::traces::{Life, Trace, TraceKind};

/// The state object of a target, and the folders of overwrites of the target.
pub(super) fn traces(objects: &Arc<dyn Objects>, at: &Location) -> Result<Vec<Trace>> {
    let key = key_of(objects, at.path())?;
    let mut found = Vec::new();
    if key.is_empty() {
        return Ok(found);
    }
    let below = Listing::of_checkpoint(objects, format!("{key}/"))?;
    let at_folder = below.object(STATE).map_or_else(|| format!("{key}/"), |state| state.key.clone());
    found.extend(trace(objects.url(&at_folder), below.state(objects))?);
    let beside = state_beside(&key);
    let state = state_at(objects, &key, &beside);
    found.extend(trace(objects.url(&beside), state)?);
    let claim = old::claim_of_siblings(&key);
    let state = old::claim_at(objects, &key, &claim, Phase::Writing);
    found.extend(trace(objects.url(&claim), state)?);
    for folder in staged_folders(objects, &staged_prefix(&key))?.into_keys() {
        let url = objects.url(&folder);
        let listing = Listing::of_checkpoint(objects, format!("{folder}/"))?;
        let foreign = unknown(url.clone(), TraceKind::Foreign);
        found.push(trace(url, listing.state(objects))?.unwrap_or(foreign));
    }
    Ok(found)
}

fn unknown(url: String, kind: TraceKind) -> Trace {
    Trace { path: url.into(), kind, owner: None, phase: None, life: Life::Unknown, error: None }
}

/// The trace of a state object; `None` if there is none.
fn trace(url: String, state: Result<Option<Found>>) -> Result<Option<Trace>> {
    let mut trace = unknown(url, TraceKind::Lock);
    match state {
        Ok(None) => return Ok(None),
        // The object was deleted since the listing.
        Err(error) if error.kind() == ErrorKind::Replaced => return Ok(None),
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
            trace.error = Some(error);
        }
        Err(error) => return Err(error),
        Ok(Some(Found { owner, record, .. })) => {
            trace.life = match owner {
                Owner::Dead => Life::Dead,
                _ if is_here(&record.host) => Life::Alive,
                _ => Life::Unknown,
            };
            let holder = record.holder();
            (trace.kind, trace.phase) = match record.phase {
                Phase::Writing if !record.copied.is_empty() => (TraceKind::Copy, Some("writing")),
                Phase::Writing => (TraceKind::Unfinished, Some("writing")),
                Phase::Changing => (TraceKind::Lock, Some("changing")),
                Phase::Moved(_) => (TraceKind::Moved, Some("moved")),
                Phase::Removing => (TraceKind::Unfinished, Some("removing")),
            };
            trace.owner = Some(holder).filter(|holder| holder.pid != 0);
        }
    }
    Ok(Some(trace))
}
