//! Makes seals for checkpoints of layouts without checksums. [`mod@crate::seal`] describes a seal.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::checks::change_at;
use super::digests::Digest;
use super::locked::{Change, part_of, take_away};
use super::names::names_in;
use super::{Checkpoint, OpenOptions, SaveOptions, open_with};
use crate::bytes::checksum::Crc32;
use crate::error::Result;
use crate::formats::siblings::refuse_part;
use crate::formats::{container, format_named};
use crate::location::{Location, ToLocation};
use crate::monitor::Monitor;
use crate::seal::{BLOCK_LEN_BYTES, FILE_NAME, Place, SealDocument};
use crate::storage::NewFolder;
use crate::storage::side_files::is_name_of_side_file;
use crate::store::{Store, StoreExt};
use crate::text::{counted, format_bytes, printable};

/// The options of sealing.
#[derive(Debug, Clone, Default)]
pub struct SealOptions {
    /// The step to seal in a folder of steps; the newest committed one if `None`.
    pub step: Option<u64>,
    /// Remove the seal instead of making it.
    pub remove: bool,
    /// Watches the work, and can cancel it.
    pub monitor: Monitor,
    /// How long to wait for another process that changes the checkpoint, before the error `Busy`; a
    /// minute if `None`.
    pub wait: Option<Duration>,
}

/// The result of sealing.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SealReport {
    /// The path of the seal. For a checkpoint in the default layout, which needs no seal: its own
    /// path.
    pub path: PathBuf,
    /// The number of sealed files; 0 if the seal was removed or is not needed.
    pub file_count: usize,
    /// The bytes of the sealed files.
    pub bytes: u64,
    /// Whether a seal was made or removed.
    pub has_changed: bool,
}

impl fmt::Display for SealReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.to_string_lossy();
        let path = printable(&path);
        match (self.has_changed, self.file_count) {
            (true, 0) => write!(f, "{path}: removed"),
            (true, count) => {
                write!(f, "{path}: {}, {}", counted(count, "file", "files"), format_bytes(self.bytes))
            }
            (false, _) => write!(f, "{path}: nothing to do"),
        }
    }
}

/// Writes a seal beside the checkpoint at a path or URL: a checksum of each 32 KiB of its files.
/// From then on `open`, `load`, `verify` and `diff` check every byte that they read. The checkpoint
/// itself is verified first, and not changed.
///
/// A checkpoint in the default layout already has such checksums, so nothing is written.
///
/// # Errors
/// Errors of opening; `Corrupt` if the checkpoint is damaged; `InvalidArgument` for a single file
/// of a checkpoint of several files; `Busy` if another process changes the checkpoint;
/// `Unsupported` in an archive and on a web server; `PermissionDenied` and other errors of the
/// storage. After an error an earlier seal is unchanged.
pub fn seal(path: impl ToLocation, options: &SealOptions) -> Result<SealReport> {
    let help = "seal the checkpoint before it goes into the archive";
    let change = Change { name: "seal", wait: options.wait, monitor: &options.monitor };
    change_at(path, help, &options.monitor, |at| match options.remove {
        true => unseal(at, options, &change),
        false => {
            change.opened(at, || open(at, options), |checkpoint, part, _| make(checkpoint, part, options))
        }
    })
}

fn open(at: &Location, options: &SealOptions) -> Result<Checkpoint> {
    open_with(at, &OpenOptions { step: options.step, ignore_seal: true, ..OpenOptions::default() })
}

fn unseal(at: &Location, options: &SealOptions, change: &Change<'_>) -> Result<SealReport> {
    let part = match open(at, options) {
        Ok(checkpoint) => part_of(at, &checkpoint),
        // Remove the seal even if the checkpoint itself no longer exists.
        Err(_) if options.step.is_none() && Place::of(at).file.is_file() => at.clone(),
        Err(error) => return Err(error),
    };
    let _lock = change.lock(&part)?;
    let file = Place::of(&part).file;
    let has_changed = file.is_file();
    if has_changed {
        take_away([&file])?;
    }
    Ok(SealReport { path: file.describe(), file_count: 0, bytes: 0, has_changed })
}

/// Seals an opened checkpoint, whose lock the caller has.
fn make(checkpoint: &Checkpoint, part: &Location, options: &SealOptions) -> Result<SealReport> {
    let layout = checkpoint.description().layout.clone();
    let has_record = format_named(&layout).is_some_and(|format| format.file_names().record.is_some());
    // Items may be in other layouts, or not be pytrees, so they need a seal in any case.
    if has_record && checkpoint.reader().standing().items.is_none() {
        let path = checkpoint.path().to_owned();
        return Ok(SealReport { path, file_count: 0, bytes: 0, has_changed: false });
    }
    let report = checkpoint.verify()?;
    if let Some(first) = report.findings.into_iter().next() {
        return Err(first
            .error
            .help("the checkpoint is damaged, so it gets no seal: `regrow verify` lists the damage"));
    }
    let place = Place::of(part);
    let (document, bytes) = document_of(part, &place, &layout, &options.monitor)?;
    let path = write(&place, &document)?;
    Ok(SealReport { path, file_count: document.names.len(), bytes, has_changed: true })
}

/// Writes a seal to its place in one step. Returns its path.
fn write(place: &Place, document: &SealDocument) -> Result<PathBuf> {
    let file = &place.file;
    file.parent().store().put(file.name().as_encoded_bytes(), document.to_bytes()?.into())?;
    Ok(file.describe())
}

/// Makes the seal of a checkpoint. Also returns the number of bytes in the sealed files.
fn document_of(at: &Location, place: &Place, layout: &str, monitor: &Monitor) -> Result<(SealDocument, u64)> {
    let mut document = SealDocument::new(layout, place.covers_folder);
    let (store, names) = files_of(at, place, layout)?;
    let digest = Digest { block_len_bytes: BLOCK_LEN_BYTES, of_block: Crc32::of, doing: "sealed" };
    let mut bytes = 0_u64;
    for file in digest.files(&*store, names, monitor)? {
        bytes = bytes.saturating_add(file.len_bytes);
        document.push(file.name, file.len_bytes, &file.blocks);
    }
    Ok((document, bytes))
}

/// The files of a checkpoint that a seal or a signature covers, as a store and the keys in it.
pub(super) fn files_of(at: &Location, place: &Place, layout: &str) -> Result<(Arc<dyn Store>, Vec<String>)> {
    if !place.covers_folder {
        return Ok((place.folder.store(), names_beside(at, layout)?));
    }
    let store = at.opened()?;
    let mut names = names_in(at, &*store)?;
    names.retain(|name| !is_name_of_side_file(name));
    Ok((store, names))
}

fn names_beside(at: &Location, layout: &str) -> Result<Vec<String>> {
    if let Some(siblings) = format_named(layout).and_then(|format| format.roles().siblings) {
        let mut names: Vec<String> = siblings.files_now(at).iter().map(Location::name_text).collect();
        if let (Some(first), Some(other)) = (names.first_mut(), siblings.other_name(at)?) {
            *first = other;
        }
        return Ok(names);
    }
    refuse_part(at, "give the folder that has them")?;
    Ok(vec![at.name_text()])
}

/// The seal of a save. The seal of a folder on a disk is written before the commit, any other seal
/// directly after the commit.
#[derive(Debug)]
pub(super) struct SealOfSave {
    layout: &'static str,
    is_wanted: bool,
}

impl SealOfSave {
    /// The seal that the options request. A layout with its own record of checksums needs none.
    pub fn of(options: &SaveOptions) -> Self {
        let format = options.layout.format();
        let is_wanted = options.seal && format.file_names().record.is_none();
        Self { layout: format.name(), is_wanted }
    }

    /// The seal of a checkpoint of items, which covers all files of all items.
    pub fn of_items(options: &SaveOptions) -> Self {
        Self { layout: container::LAYOUT, is_wanted: options.seal }
    }

    pub fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Before the commit: seals a folder on a disk while it is still temporary.
    pub fn before(&mut self, publication: &dyn NewFolder) -> Result<()> {
        if let Some(folder) = publication.local_folder().filter(|_| self.is_wanted) {
            let at = Location::local(folder);
            let (document, _) = document_of(&at, &Place::of(&at), self.layout, &Monitor::new())?;
            publication.write(FILE_NAME, &document.to_bytes()?)?;
            self.is_wanted = false;
        }
        Ok(())
    }

    /// After the commit: writes the seal if `before` could not. The caller has the lock.
    /// After an error the checkpoint exists without its seal.
    pub fn after(self, at: &Location) -> Result<()> {
        if !self.is_wanted {
            return Ok(());
        }
        let place = Place::of(at);
        let sealed = document_of(at, &place, self.layout, &Monitor::new());
        sealed.and_then(|(document, _)| write(&place, &document)).map(drop).map_err(|error| {
            error.help("the checkpoint was saved without its seal: `regrow seal` tries again")
        })
    }
}
