//! Writes the parity of a checkpoint. [`mod@crate::parity`] describes parity, and `engine::repair`
//! uses it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::checks::change_at;
use super::locked::{Change, part_of, take_away};
use super::seal::files_of;
use super::{Checkpoint, OpenOptions, SaveOptions, open_with};
use crate::engine::names::check_no_links;
use crate::error::{Error, Result};
use crate::location::{Location, ToLocation};
use crate::monitor::Monitor;
use crate::parity::{BLOCKS_FILE_NAME, FILE_NAME, ParityDocument, ParityPlace, ParityRatio};
use crate::seal::Place;
use crate::storage::{FilesInMemory, MergedFolder, PublishOptions, TargetLock};
use crate::store::{FileWriter, Store, StoreExt, Version};
use crate::text::{counted, format_bytes, printable};

mod run;
mod write;

pub(super) use run::{Run, RunFile, is_damage};

/// The options of writing parity.
#[derive(Debug, Clone, Default)]
pub struct ParityOptions {
    /// The size of the parity relative to the checkpoint; the default is 1/16.
    pub ratio: ParityRatio,
    /// The step to protect in a folder of steps; the newest committed one if `None`.
    pub step: Option<u64>,
    /// Remove the parity instead of writing it.
    pub remove: bool,
    /// Watches the work, and can cancel it.
    pub monitor: Monitor,
    /// How long to wait for another process that changes the checkpoint, before the error `Busy`; a
    /// minute if `None`.
    pub wait: Option<Duration>,
}

/// The result of writing or removing parity.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ParityReport {
    /// The path of the parity's index.
    pub path: PathBuf,
    /// The number of files that the parity covers; 0 if the parity was removed.
    pub file_count: usize,
    /// The bytes of these files.
    pub bytes: u64,
    /// Bytes of the parity: about `bytes` times the ratio.
    pub parity_bytes: u64,
    /// Whether parity was written or removed.
    pub has_changed: bool,
}

impl fmt::Display for ParityReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.to_string_lossy();
        let path = printable(&path);
        match (self.has_changed, self.file_count) {
            (true, 0) => write!(f, "{path}: removed"),
            (true, count) => {
                let files = counted(count, "file", "files");
                let (bytes, parity) = (format_bytes(self.bytes), format_bytes(self.parity_bytes));
                write!(f, "{path}: {files}, {bytes}, {parity} of parity")
            }
            (false, _) => write!(f, "{path}: nothing to do"),
        }
    }
}

/// Writes parity beside the checkpoint at a path or URL, in any layout. Parity consists of
/// Reed-Solomon blocks, with which [`repair`](super::repair) restores damaged and lost files, up to
/// the amount of parity. First verifies the checkpoint, which is not changed. Reads its files
/// twice, and replaces existing parity.
///
/// # Errors
/// Errors of opening; `Corrupt` if the checkpoint is damaged; `InvalidArgument` for a single file
/// of a checkpoint of several files; `Busy` if another process changes the checkpoint;
/// `Unsupported` in an archive and on a web server; `PermissionDenied`, `StorageFull` and other
/// errors of the storage.
pub fn add_parity(path: impl ToLocation, options: &ParityOptions) -> Result<ParityReport> {
    let help = "add parity before the checkpoint goes into the archive";
    let change = Change { name: "parity", wait: options.wait, monitor: &options.monitor };
    change_at(path, help, &options.monitor, |at| match options.remove {
        true => remove(at, options, &change),
        false => change.opened(
            at,
            || open(at, options.step),
            |checkpoint, part, lock| make(checkpoint, part, options, lock),
        ),
    })
}

fn open(at: &Location, step: Option<u64>) -> Result<Checkpoint> {
    open_with(at, &OpenOptions { step, ..OpenOptions::default() })
}

/// Makes the parity of an opened checkpoint, whose lock the caller has.
fn make(
    checkpoint: &Checkpoint,
    part: &Location,
    options: &ParityOptions,
    lock: &TargetLock,
) -> Result<ParityReport> {
    if let Some(first) = checkpoint.verify()?.findings.into_iter().next() {
        return Err(first
            .error
            .help("the checkpoint is damaged, so it gets no parity: `regrow verify` lists the damage"));
    }
    let layout = checkpoint.description().layout.clone();
    put(part, &layout, options.ratio, &options.monitor, lock)
}

/// Writes the parity of a checkpoint, whose lock the caller has.
pub(super) fn put(
    at: &Location,
    layout: &str,
    ratio: ParityRatio,
    monitor: &Monitor,
    lock: &TargetLock,
) -> Result<ParityReport> {
    let ParityPlace { place, blocks } = ParityPlace::of(at);
    if place.covers_folder {
        check_no_links(&place.folder)?;
    }
    let files = files_of(at, &place, layout)?;
    let publication = blocks.publish_file(PublishOptions::of_overwrite(&Monitor::new()))?;
    let mut writer = publication.single_writer(0, 0)?;
    let made = Made::of(files, layout, ratio, &place, &FilesInMemory::default(), &mut writer, monitor)?;
    monitor.finish()?;
    let file = &place.file;
    // In a bucket the end of the upload is the commit.
    writer.finish()?;
    publication.commit_under(Some(lock))?;
    file.parent().store().put(file.name().as_encoded_bytes(), made.index.into())?;
    Ok(ParityReport { path: file.describe(), ..made.report })
}

/// Parity that has been computed: the content of its index, and the report.
struct Made {
    index: Vec<u8>,
    report: ParityReport,
}

impl Made {
    fn of(
        (store, names): (Arc<dyn Store>, Vec<String>),
        layout: &str,
        ratio: ParityRatio,
        place: &Place,
        in_memory: &FilesInMemory,
        writer: &mut FileWriter,
        monitor: &Monitor,
    ) -> Result<Self> {
        let versions = |names: &[String]| -> Result<Vec<Version>> {
            names.iter().map(|name| version(&*store, name)).collect()
        };
        let before = versions(&names)?;
        let files: Vec<_> =
            names.iter().cloned().zip(before.iter().map(|version| version.len_bytes)).collect();
        let mut document = ParityDocument::new(layout, ratio, place.covers_folder, files);
        let geometry = document.geometry();
        monitor.expect(geometry.blocks().saturating_mul(geometry.block_len_bytes));
        let run = Run::new(&place.folder, Arc::clone(&store), &document).with_memory(in_memory);
        write::write_blocks(&run, &mut document, writer, monitor)?;
        if versions(&names)? != before {
            return Err(changed(&*store, ""));
        }
        let report = ParityReport {
            path: PathBuf::new(),
            file_count: names.len(),
            bytes: geometry.len_bytes,
            parity_bytes: geometry.parity_len_bytes(),
            has_changed: true,
        };
        Ok(Self { index: document.to_bytes()?, report })
    }
}

fn version(store: &dyn Store, name: &str) -> Result<Version> {
    store.version(name.as_bytes())?.ok_or_else(|| changed(store, name))
}

fn changed(store: &dyn Store, name: &str) -> Error {
    Error::replaced("the checkpoint was changed while its parity was made")
        .in_file(store.describe(name.as_bytes()))
        .help("try again when no program writes to it")
}

fn remove(at: &Location, options: &ParityOptions, change: &Change<'_>) -> Result<ParityReport> {
    let has_any = |at: &Location| {
        let parity = ParityPlace::of(at);
        parity.place.file.is_file() || parity.blocks.is_file()
    };
    let part = match open(at, options.step) {
        Ok(checkpoint) => part_of(at, &checkpoint),
        // Remove the parity even if the checkpoint itself no longer exists.
        Err(_) if options.step.is_none() && has_any(at) => at.clone(),
        Err(error) => return Err(error),
    };
    let _lock = change.lock(&part)?;
    let ParityPlace { place, blocks } = ParityPlace::of(&part);
    // Remove the index first: without it, the blocks are not used and only take space.
    let files: Vec<&Location> = [&place.file, &blocks].into_iter().filter(|file| file.is_file()).collect();
    let has_changed = !files.is_empty();
    take_away(files)?;
    Ok(ParityReport { path: place.file.describe(), file_count: 0, bytes: 0, parity_bytes: 0, has_changed })
}

/// The parity of a save. The parity of a folder on a disk is written before the commit, all other
/// parity directly after the commit.
#[derive(Debug)]
pub(super) struct ParityOfSave {
    layout: &'static str,
    ratio: Option<ParityRatio>,
    /// The new files whose bytes the parity takes from memory.
    in_memory: FilesInMemory,
}

impl ParityOfSave {
    pub fn of(options: &SaveOptions) -> Self {
        let (layout, in_memory) = (options.layout.name(), FilesInMemory::default());
        Self { layout, ratio: options.parity, in_memory }
    }

    /// The list for the new files whose bytes are in memory; `None` without parity.
    pub fn in_memory(&self) -> Option<&FilesInMemory> {
        self.is_wanted().then_some(&self.in_memory)
    }

    pub fn is_wanted(&self) -> bool {
        self.ratio.is_some()
    }

    /// Before the commit: writes the parity of a folder on a disk.
    pub fn before(&mut self, publication: &dyn MergedFolder) -> Result<()> {
        let Some((folder, ratio)) = publication.local_folder().zip(self.ratio) else { return Ok(()) };
        let at = Location::local(folder);
        let place = ParityPlace::of(&at).place;
        let make = |in_memory: &FilesInMemory| -> Result<Made> {
            let files = files_of(&at, &place, self.layout)?;
            let mut writer = publication.writer(BLOCKS_FILE_NAME, 0, 0)?;
            // The files were listed before the file of blocks existed, so the parity does not cover
            // itself.
            let made = Made::of(files, self.layout, ratio, &place, in_memory, &mut writer, &Monitor::new())?;
            writer.finish()?;
            Ok(made)
        };
        let mut made = make(&self.in_memory)?;
        if !self.in_memory.are_unchanged() {
            // The program changed an array after it was written. The parity must fit the files.
            publication.withdraw(BLOCKS_FILE_NAME)?;
            made = make(&FilesInMemory::default())?;
        }
        publication.write(FILE_NAME, &made.index)?;
        self.ratio = None;
        Ok(())
    }

    /// After the commit: writes the parity if `before` could not. The caller has the lock.
    /// After an error the checkpoint exists without its parity.
    pub fn after(self, at: &Location, lock: &TargetLock) -> Result<()> {
        let Some(ratio) = self.ratio else { return Ok(()) };
        put(at, self.layout, ratio, &Monitor::new(), lock).map(drop).map_err(|error| {
            error.help("the checkpoint was saved without parity: `regrow parity` tries again")
        })
    }
}
