//! The state object of another process.

use std::sync::Arc;

use super::held::is_ours;
use super::record::Record;
use super::state::Owner;
use super::{Object, Objects};
use crate::error::Result;

/// A state object, as another process sees it.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) owner: Owner,
    pub(super) record: Record,
    /// The state object; `None` if control objects of an earlier version show the state.
    pub(super) object: Option<Object>,
}

/// The state object at a key, of the target `target`.
pub(super) fn state_at(objects: &Arc<dyn Objects>, target: &str, key: &str) -> Result<Option<Found>> {
    let Some((bytes, object)) = objects.get(key)? else { return Ok(None) };
    let record = Record::parse(&bytes, &objects.url(key), target)?;
    let now = objects.writes(key).ok().and_then(|writes| writes.now());
    let owner = record.owner(object.modified, now, is_ours(&record.nonce));
    Ok(Some(Found { owner, record, object: Some(object) }))
}
