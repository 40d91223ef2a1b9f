//! The traces of other processes at a target on a disk: see [`Trace`].

use std::fs;
use std::path::{Path, PathBuf};

use super::leftovers::{leftovers_of, trace_of};
use super::lock::{is_lock, lock_path, look_at_lock, trace_of_lock};
use crate::UNCOMMITTED_MARK;
use crate::traces::Trace;

/// The lock and the temporary files of a target and, if the target is a folder of checkpoints,
/// those of the checkpoints.
pub(crate) fn traces(target: &Path) -> Vec<Trace> {
    let absolute = std::path::absolute(target).unwrap_or_else(|_| target.to_owned());
    let mut found = traces_of(&absolute);
    let entries = fs::read_dir(&absolute).into_iter().flatten().flatten();
    let mut inside: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    inside.sort();
    for path in inside {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if is_lock(&path) {
            found.extend(trace_of_lock(&path));
        } else if let Some((stem, _)) = name.split_once(UNCOMMITTED_MARK).filter(|_| path.is_dir()) {
            let held = look_at_lock(&absolute.join(stem));
            found.push(trace_of(path.clone(), &held));
        }
    }
    found
}

fn traces_of(target: &Path) -> Vec<Trace> {
    let held = look_at_lock(target);
    let lock = lock_path(target).ok().flatten().and_then(|file| trace_of_lock(&file));
    let left = match (target.parent(), target.file_name()) {
        (Some(parent), Some(name)) => leftovers_of(parent, name),
        _ => Vec::new(),
    };
    lock.into_iter().chain(left.into_iter().map(|folder| trace_of(folder, &held))).collect()
}
