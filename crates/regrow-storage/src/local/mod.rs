//! From staged to committed: a checkpoint is written under a temporary name, and gets its final
//! name when it is complete.
//!
//! ```text
//! create   parent/step_100.orbax-checkpoint-tmp-<pid>-<random>/     a locked folder beside the target
//! write    ...  files
//! commit   fsync files and folders  ->  rename to parent/step_100  ->  fsync parent
//!          with overwrite: exchange the two names  ->  fsync parent  ->  remove the old one
//! ```
//! If a writer is killed before the rename, its folder is not a checkpoint for any reader. The lock
//! ends with the writer, and the next save to the same target removes the folder. If the file
//! system cannot exchange two names in one step, an overwrite needs two renames; if the writer dies
//! between them, the next save restores the old checkpoint. A checkpoint of several files has such
//! a moment on every file system, but readers find its files: see `siblings`.
//!
//! The error says which checkpoint the path has. After `NotDurable` it is the new one: the sync of
//! the folder above failed. After any other error it is the old one.
//!
//! During an overwrite only the owner can read the temporary folder. Just before the rename it gets
//! the mode of the old checkpoint.
//!
//! The lock of a temporary folder is a `flock`, and shows that its writer lives. The lock of the
//! target (`lock`) is taken for the commit. On a network file system that keeps locks to one
//! machine (`local_lock`, Lustre's `localflock`), two machines must not save to the same target at
//! once.
//!
//! Several processes may write one folder. The process that began the folder tells its temporary
//! name to the others, which join the folder (`joined_folder`), and commits the folder.

use std::path::Path;

use crate::error::{Error, Result};
use crate::store::local::folders;
use crate::system;

pub(crate) mod disk;
mod files;
mod joined_folder;
mod leftovers;
mod lock;
mod new_file;
mod others;
mod probe;
mod remove;
mod rename;
mod siblings;
mod staged;
mod target;
mod temporary;
mod traces;
mod transfer;

pub use disk::LocalDisk;
pub use leftovers::{Begun, begun, is_locked, reappears, sweep_folder};
pub(crate) use lock::hold;
pub use lock::{Held, Hold, look_at_lock};
pub use new_file::{NewFile, sweep_new_files};
pub use others::keep_others;
pub use probe::Ability;
pub use probe::probe;
pub use remove::remove_folder;
pub(crate) use remove::{finish_unfinished, remove_checkpoint, remove_files, remove_unfinished, stock};
pub(crate) use rename::move_folder;
pub use siblings::where_is;
pub use staged::Staged;
pub(crate) use target::{are_of_one, refuse_foreign_files};
pub(crate) use traces::traces;
pub(crate) use transfer::LocalTransfer;

/// Syncs a folder, so that the names in it survive a power cut. Does nothing on file systems
/// without such a call.
///
/// # Errors
/// Errors of the file system.
pub fn sync_folder(folder: &Path) -> Result<()> {
    folders::sync_folder(folder).map_err(|error| Error::io("cannot sync the folder", folder, error))
}

/// Sets the mode of a file or folder. Does nothing if it already has this mode, because some file
/// systems refuse every change.
///
/// # Errors
/// Errors of the file system.
pub fn set_mode(path: &Path, mode: u32) -> Result<()> {
    system::set_mode(path, mode).map_err(|error| Error::io("cannot change the mode of", path, error))
}

/// Files of at least this length are synced by their writer. `commit` syncs shorter files together.
const SYNC_LATER_LEN_MAX_BYTES: u64 = 64 << 10;

#[cfg(test)]
mod tests;
