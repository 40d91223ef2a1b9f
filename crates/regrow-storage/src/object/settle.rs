//! The end of an overwrite: copies the new checkpoint from its folder to the target, within the
//! bucket.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::copy::copy_within;
use super::marker::{MARKER, OTHER_MARKER, STATE, is_bookkeeping, is_marker};
use super::{Object, Objects};
use crate::error::{Error, Result};
use crate::threads::for_each_parallel;

/// Copies the checkpoint in `folder` to `key`, and deletes all other objects there except the state
/// object. The caller has the state object, which names the folder, so readers read the folder.
/// Another process can repeat this from any moment on.
pub(super) fn bring(objects: &Arc<dyn Objects>, key: &str, folder: &str) -> Result<()> {
    let staged = objects.list(&format!("{folder}/"))?;
    let name_of = |object: &Object| object.key.get(folder.len() + 1..).unwrap_or_default().to_owned();
    let (markers, files): (Vec<Object>, Vec<Object>) = staged
        .into_iter()
        .filter(|object| is_marker(&name_of(object)) || !is_bookkeeping(&name_of(object)))
        .partition(|object| is_marker(&name_of(object)));
    let marker = markers.first().ok_or_else(|| {
        Error::corrupt("the folder that the state object names has no complete checkpoint")
            .in_file(objects.url(folder))
    })?;
    let old = objects.list(&format!("{key}/"))?;
    // Without markers, Orbax sees no checkpoint while files of the old and the new checkpoint are
    // mixed.
    objects.delete(&[format!("{key}/{MARKER}"), format!("{key}/{OTHER_MARKER}")])?;
    let names: BTreeSet<String> = files.iter().map(name_of).collect();
    let stale = old.into_iter().map(|object| object.key).filter(|old| {
        let name = old.get(key.len() + 1..).unwrap_or_default();
        !names.contains(name) && name != STATE && !is_marker(name)
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
    copy_within(objects, marker, &format!("{key}/{}", name_of(marker))).map(drop)
}
