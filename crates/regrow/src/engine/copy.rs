//! Copying a checkpoint to another place, byte for byte: disk to bucket, bucket to disk, or within either.
//!
//! ```text
//! open the source -> its files, each in one version -> for each file: read, hash, write, read back, compare -> commit
//! ```
//! Large files are read in pieces, many at once; small files go many at once. What is read and not yet written stays within
//! the budget. The target is no checkpoint before the commit, and then it is a whole one.
//!
//! A copy that is interrupted, however that happens, leaves what it has under a temporary name (on a disk) or under the
//! claim (in a bucket). The next copy of the same source to the same target takes each file that is there already, if it is
//! of the version that the source has now and has the digest that it had: see [`Transfer`]. Of a large file on a disk, the
//! beginning is taken.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use blake3::{Hash, Hasher};

use super::convert::refuse_target_inside;
use super::retry::Retries;
use super::{BUDGET_DEFAULT_BYTES, Checkpoint, SaveOptions, format_bytes, replace};
use crate::bytes::limits::work_space;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::flax::steps::ARRAYS_SUFFIX;
use crate::formats::orbax::{self, steps::step_number};
use crate::formats::pytree_data::{self, DATA_SUFFIX, Files, MANIFEST_SUFFIX};
use crate::formats::{COMMIT_MARKERS, UNCOMMITTED_MARK};
use crate::location::{Location, ToLocation};
use crate::monitor::{Monitor, Stage, gb_per_s};
use crate::storage::{
    EntryKind, Left, Marker, Target, Transfer, TransferFile, TransferOptions, is_bookkeeping,
};
use crate::store::local::folders::LOCK_SUFFIX;
use crate::store::{Blob, CACHED_LEN_BYTES, FETCH_LEN_MAX_BYTES, ReadPath, Scratch, Store};
use crate::text::{counted, printable};
use crate::threads::{for_each_parallel, map_ordered, thread_count};

/// Orbax' marker of a committed checkpoint.
const MARKER: &str = COMMIT_MARKERS[0];

/// Longest marker that is taken over.
const MARKER_LEN_MAX_BYTES: u64 = 1 << 20;

/// Pieces of a large file; a shorter file is one piece, and many of those go at once.
const PIECE_LEN_BYTES: u64 = 8 << 20;

/// How often the beginning of a large file is noted, so that a later copy can go on from there.
const NOTE_EVERY_BYTES: u64 = PIECE_LEN_BYTES;

/// Folders in folders: what lies deeper is likely a link that leads back.
const DEPTH_MAX: usize = 64;

/// How a network file system names what was removed while it was open.
const REMOVED_PREFIX: &str = ".nfs";

/// How to copy.
#[derive(Debug, Clone, Default)]
pub struct CopyOptions {
    /// Replace a checkpoint that is there, under the rules of [`SaveOptions::overwrite`].
    pub overwrite: bool,
    /// Do not read back what was written.
    pub unverified: bool,
    /// Skip syncing to disk: faster, and a power cut may cost the copy.
    pub not_durable: bool,
    /// Bytes that are read and not yet written, at most about; 64 MiB if `None`.
    pub budget_bytes: Option<u64>,
    /// Requests at once; as many as the machine has threads if `None`, 8 at most.
    pub threads: Option<usize>,
    /// Watches the copy, and stops it.
    pub monitor: Monitor,
}

/// What a copy did.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CopyReport {
    /// Where the copy now is.
    pub path: PathBuf,
    /// Files of the checkpoint.
    pub file_count: usize,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Bytes that an interrupted copy had brought there before; a part of `bytes`.
    pub reused_bytes: u64,
    /// What all of it took.
    pub seconds: f64,
}

impl CopyReport {
    /// Bytes that were moved now, in 10^9 a second.
    pub fn gb_per_s(&self) -> f64 {
        gb_per_s(self.bytes.saturating_sub(self.reused_bytes), self.seconds)
    }
}

impl fmt::Display for CopyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}, {} in {:.3} s ({:.2} GB/s)",
            printable(&self.path.to_string_lossy()),
            counted(self.file_count, "file", "files"),
            format_bytes(self.bytes),
            self.seconds,
            self.gb_per_s(),
        )?;
        match self.reused_bytes {
            0 => Ok(()),
            reused => write!(f, "; {} were there already", format_bytes(reused)),
        }
    }
}

/// Copies the checkpoint at `source` to `target`, byte for byte, whatever its layout: one checkpoint, or a folder of steps
/// with all that are committed. Each file is read back and compared by its BLAKE3 before the target becomes a checkpoint.
///
/// Where a copy to the same target was interrupted, this goes on with it.
///
/// # Errors
/// What opening the source says; `AlreadyExists` if the target is there and is not to be replaced, or another copy to it is
/// under way; `InvalidArgument` if source and target lie inside each other; `Unsupported` for a checkpoint that could not
/// be opened at the target; `Corrupt` if what is read back is not what was written; `Replaced` if somebody keeps changing
/// the source; `Cancelled`; what the storages say. What was copied by then stays under its temporary name, and the target
/// is as it was; only after `NotDurable` it is the copy.
pub fn copy(source: impl ToLocation, target: impl ToLocation, options: &CopyOptions) -> Result<CopyReport> {
    let (source, target) = (source.to_location()?, target.to_location()?);
    let monitor = &options.monitor;
    let began = Instant::now();
    let report = monitor.begin().and_then(|_running| {
        let mut report = Retries::until_unreplaced(|| copy_once(&source, &target, options))?;
        report.seconds = began.elapsed().as_secs_f64();
        Ok(report)
    });
    monitor.conclude(report)
}

fn copy_once(source: &Location, target: &Location, options: &CopyOptions) -> Result<CopyReport> {
    check_apart(source, target)?;
    replace::check_place(target, &SaveOptions::default())?;
    let checkpoint = super::open(source)?;
    let plan = Plan::of(&checkpoint, target)?;
    let has_steps = plan.kind == Target::Folder && !checkpoint.description().steps.is_empty();
    drop(checkpoint);
    if has_steps && options.overwrite && target.is_folder() && target.for_reading().is_ok() {
        return Err(Error::invalid("a folder of steps is not replaced as a whole")
            .in_file(target)
            .help("steps that are only there would be lost: copy step by step, or choose another path"));
    }
    let files: Vec<TransferFile> = plan.files.iter().map(|file| file.transfer.clone()).collect();
    let transfer = target.storage().transfer(
        target,
        TransferOptions {
            kind: &plan.kind,
            files: &files,
            marker: &plan.marker,
            overwrite: options.overwrite,
            may_replace: Some(replace::check_file),
            durable: !options.not_durable,
            monitor: &options.monitor,
        },
    )?;
    let copying = Copying::new(&*transfer, options);
    let bytes = files.iter().map(|file| file.len_bytes).fold(0, u64::saturating_add);
    let passes = if options.unverified { 1 } else { 2 };
    options.monitor.expect(bytes.saturating_mul(passes));
    copying.all(&plan).map_err(|error| stays(error, options))?;
    let reused_bytes = copying.reused_bytes.load(Ordering::Relaxed);
    options.monitor.finish()?;
    transfer.commit()?;
    Ok(CopyReport { path: target.describe(), file_count: files.len(), bytes, reused_bytes, seconds: 0.0 })
}

/// Says what to do about a copy that the storage has stopped.
fn stays(error: Error, options: &CopyOptions) -> Error {
    let is_of_storage = matches!(error.kind(), ErrorKind::Io | ErrorKind::StorageFull);
    match is_of_storage && error.help_text().is_none() && !options.monitor.is_cancelled() {
        true => error.help("what was copied stays: the same copy goes on from there"),
        false => error,
    }
}

fn check_apart(source: &Location, target: &Location) -> Result<()> {
    if source.leads_to(target) || source.is_same(target) {
        return Err(Error::invalid("the source and the target are the same").in_file(target));
    }
    refuse_target_inside(source, target)?;
    match source.folders_above().any(|folder| folder.leads_to(target)) {
        true => Err(Error::invalid("the source lies inside the target").in_file(source)),
        false => Ok(()),
    }
}

/// What is copied.
struct Plan {
    kind: Target,
    files: Vec<SourceFile>,
    marker: Marker,
}

/// One file, in the version that was found.
struct SourceFile {
    transfer: TransferFile,
    content: Content,
}

enum Content {
    Stored {
        store: Arc<dyn Store>,
        key: Vec<u8>,
    },
    /// A marker that the source does without.
    Made(Vec<u8>),
}

impl Plan {
    fn of(checkpoint: &Checkpoint, target: &Location) -> Result<Self> {
        let layout = checkpoint.description().layout.as_str();
        if layout == "trak" && target.local_path().is_err() {
            return Err(Error::unsupported("a TRAK store is read and written on local disks only")
                .in_file(target)
                .help("copy it to a local disk, or convert it"));
        }
        let reading = checkpoint.location().for_reading()?;
        let mut at = reading.location;
        while let Some(path) = at.storage().stands_for(at.path()) {
            at = at.join(path);
        }
        let (at, before) = (&at, at.identity());
        let plan = match at.is_folder() {
            true => Self::of_folder(at, checkpoint, target)?,
            false if layout == "pytree_data" => Self::of_pair(at)?,
            false => Self::of_file(at)?,
        };
        match before != at.identity() || checkpoint.is_replaced() {
            true => Err(replaced(at)),
            false => Ok(plan),
        }
    }

    fn of_folder(at: &Location, checkpoint: &Checkpoint, target: &Location) -> Result<Self> {
        let about = checkpoint.description();
        let (layout, has_steps) = (about.layout.as_str(), !about.steps.is_empty());
        let mut files = match has_steps && matches!(layout, "regrow" | "orbax") {
            true => files_of_steps(at, target)?,
            false => files_in(at, "")?,
        };
        let own = files.iter().position(|file| file.transfer.name == MARKER);
        let needs_one = || layout == "regrow" || layout == "orbax" && orbax::has_documents(at);
        let marker = match own {
            _ if has_steps => Marker::OfSteps,
            // Where the name commits, the marker is a file like the others.
            Some(own) if target.commits_by_marker() => Marker::Own(files.remove(own).read_short()?),
            None if needs_one() => Marker::Own(Vec::new()),
            _ => Marker::Other,
        };
        // A marker within, of a step or an item, says that all files beside it are there.
        files.sort_by(|a, b| {
            let key = |file: &SourceFile| (file.is_marker(), file.transfer.name.clone());
            key(a).cmp(&key(b))
        });
        Ok(Self { kind: Target::Folder, files, marker })
    }

    fn of_pair(at: &Location) -> Result<Self> {
        let files = Files::of(at).located();
        if let Some(name) = pytree_data::other_data_file(&files)? {
            return Err(Error::unsupported("the manifest names a data file of another name than its own")
                .in_file(&files.manifest)
                .expected(format_args!("*{DATA_SUFFIX}"), format_args!("{name:?}"))
                .help("convert it to the layout pytree_data, which writes the manifest anew"));
        }
        let suffixes = vec![DATA_SUFFIX.to_owned(), MANIFEST_SUFFIX.to_owned()];
        let files = vec![single(&files.data, DATA_SUFFIX)?, single(&files.manifest, MANIFEST_SUFFIX)?];
        Ok(Self { kind: Target::Siblings { suffixes }, files, marker: Marker::Other })
    }

    fn of_file(at: &Location) -> Result<Self> {
        let is_index = at.name_text().ends_with(".safetensors.index.json");
        if is_index || at.with_suffix(ARRAYS_SUFFIX).is_folder() {
            return Err(Error::invalid("the file is one of several that are the checkpoint")
                .in_file(at)
                .help("copy the folder that holds them"));
        }
        Ok(Self { kind: Target::File, files: vec![single(at, "file")?], marker: Marker::Other })
    }
}

impl SourceFile {
    fn is_marker(&self) -> bool {
        self.transfer.name.rsplit('/').next() == Some(MARKER)
    }

    fn made(name: String, text: &str) -> Self {
        let (bytes, version) = (text.as_bytes().to_vec(), format!("made: {text}"));
        let transfer = TransferFile { name, len_bytes: bytes.len() as u64, version };
        Self { transfer, content: Content::Made(bytes) }
    }

    /// All of it, of a marker.
    fn read_short(&self) -> Result<Vec<u8>> {
        if self.transfer.len_bytes > MARKER_LEN_MAX_BYTES {
            return Err(Error::new(ErrorKind::Limit, "the marker of the checkpoint is too long")
                .in_file(self.describe())
                .expected(format_args!("at most {MARKER_LEN_MAX_BYTES} bytes"), self.transfer.len_bytes));
        }
        let blob = self.open()?;
        read_piece(&*blob, 0, self.transfer.len_bytes)
    }

    fn describe(&self) -> PathBuf {
        match &self.content {
            Content::Stored { store, key } => store.describe(key),
            Content::Made(_) => PathBuf::from(&self.transfer.name),
        }
    }

    /// The file in the version that was found.
    ///
    /// # Errors
    /// `Replaced` if it has another by now, or is gone.
    fn open(&self) -> Result<Arc<dyn Blob>> {
        match &self.content {
            Content::Stored { store, key } => {
                let opened = store.open(key)?.filter(|blob| blob.len_bytes() == self.transfer.len_bytes);
                opened.ok_or_else(|| replaced(self.describe()))
            }
            Content::Made(bytes) => {
                Ok(Arc::new(crate::store::MemoryBlob::new(bytes.clone().into(), self.describe())))
            }
        }
    }

    /// Errs if the file has another version by now.
    fn check_version(&self) -> Result<()> {
        let Content::Stored { store, key } = &self.content else { return Ok(()) };
        match store.version(key)?.is_some_and(|now| now.text == self.transfer.version) {
            true => Ok(()),
            false => Err(replaced(self.describe())),
        }
    }

    /// An error of reading it; `Replaced` if that is why.
    fn blame(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Cancelled | ErrorKind::Replaced => error,
            _ => self
                .check_version()
                .err()
                .filter(|found| found.kind() == ErrorKind::Replaced)
                .unwrap_or(error),
        }
    }
}

fn replaced(file: impl Into<PathBuf>) -> Error {
    Error::new(ErrorKind::Replaced, "the checkpoint was changed while it was being copied")
        .in_file(file)
        .help("copy it again when nobody writes to it")
}

/// A file that is opened by its own name.
fn single(at: &Location, name: &str) -> Result<SourceFile> {
    let reading = at.for_reading()?;
    let store = reading.location.parent().store();
    let key = at.name().as_encoded_bytes().to_vec();
    stored(store, key, name.to_owned())
}

fn stored(store: Arc<dyn Store>, key: Vec<u8>, name: String) -> Result<SourceFile> {
    let version = store.version(&key)?.ok_or_else(|| replaced(store.describe(&key)))?;
    let transfer = TransferFile { name, len_bytes: version.len_bytes, version: version.text };
    Ok(SourceFile { transfer, content: Content::Stored { store, key } })
}

/// All files of a folder of steps: those of the committed steps, and what lies beside them.
fn files_of_steps(root: &Location, target: &Location) -> Result<Vec<SourceFile>> {
    let mut files = Vec::new();
    for entry in root.entries()? {
        let Ok(name) = entry.name.into_string() else {
            return Err(not_text(&root.describe()));
        };
        if is_left_out(&name) {
            continue;
        }
        let at = root.join(&name);
        if entry.found != EntryKind::Folder {
            files.push(single(&at, &name)?);
            continue;
        }
        let is_step = step_number(&name).is_some();
        let reading = match at.for_reading() {
            Err(error) if error.kind() == ErrorKind::Uncommitted => continue,
            reading => reading?,
        };
        let step = files_in(&reading.location, &format!("{name}/"))?;
        let marker = format!("{name}/{MARKER}");
        let is_marked = step.iter().any(|file| file.transfer.name == marker);
        if is_step && root.commits_by_marker() && !is_marked {
            // A save that never ended.
            continue;
        }
        if is_step && target.commits_by_marker() && !is_marked {
            let text = format!("Checkpoint commit was successful to {}", target.join(&name));
            files.push(SourceFile::made(marker, &text));
        }
        files.extend(step);
    }
    Ok(files)
}

/// Names of what is no part of a checkpoint: the unfinished, locks, the removed, bookkeeping.
fn is_left_out(name: &str) -> bool {
    name.contains(UNCOMMITTED_MARK)
        || name.ends_with(LOCK_SUFFIX)
        || name.starts_with(REMOVED_PREFIX)
        || is_bookkeeping(name)
}

/// All files below a folder, their names behind `prefix`.
fn files_in(at: &Location, prefix: &str) -> Result<Vec<SourceFile>> {
    let store = at.opened()?;
    let keys = match at.local_path() {
        Ok(_) => {
            let mut keys = BTreeSet::new();
            walk(at, "", 0, &mut keys)?;
            keys
        }
        Err(_) => {
            let text = |key: Vec<u8>| String::from_utf8(key).map_err(|_| not_text(&at.describe()));
            store.list(b"")?.into_iter().map(text).collect::<Result<_>>()?
        }
    };
    let kept = keys.into_iter().filter(|key| !key.split('/').any(is_left_out));
    kept.map(|key| {
        let name = format!("{prefix}{key}");
        stored(Arc::clone(&store), key.into_bytes(), name)
    })
    .collect()
}

/// The files below a folder of a disk, through links, as they are read.
fn walk(at: &Location, below: &str, depth: usize, keys: &mut BTreeSet<String>) -> Result<()> {
    if depth > DEPTH_MAX {
        return Err(Error::new(ErrorKind::Limit, "folders lie too deep in each other, or a link leads back")
            .in_file(at)
            .expected(format_args!("at most {DEPTH_MAX} folders"), "more"));
    }
    for entry in at.entries()? {
        let name = entry.name.to_str().ok_or_else(|| not_text(&at.join(&entry.name).describe()))?;
        if is_left_out(name) {
            continue;
        }
        let key = format!("{below}{name}");
        match entry.found {
            EntryKind::Folder => walk(&at.join(name), &format!("{key}/"), depth + 1, keys)?,
            EntryKind::File => drop(keys.insert(key)),
            EntryKind::Other => {
                return Err(Error::unsupported("there is something that is no file and cannot be copied")
                    .in_file(at.join(name))
                    .help("remove it, or what is left of it: a pipe, a device, a link that leads nowhere"));
            }
        }
    }
    Ok(())
}

fn not_text(file: &std::path::Path) -> Error {
    Error::unsupported("a file whose name is no UTF-8 text cannot be copied").in_file(file)
}

/// The work itself.
struct Copying<'a> {
    transfer: &'a dyn Transfer,
    options: &'a CopyOptions,
    threads: usize,
    budget_bytes: u64,
    reused_bytes: AtomicU64,
}

impl<'a> Copying<'a> {
    fn new(transfer: &'a dyn Transfer, options: &'a CopyOptions) -> Self {
        Self {
            transfer,
            options,
            threads: options.threads.unwrap_or_else(thread_count).max(1),
            budget_bytes: options.budget_bytes.unwrap_or(BUDGET_DEFAULT_BYTES),
            reused_bytes: AtomicU64::new(0),
        }
    }

    fn all(&self, plan: &Plan) -> Result<()> {
        self.options.monitor.enter(Stage::Copy);
        let numbered = || plan.files.iter().enumerate();
        if plan.kind != Target::Folder {
            // In their order: the last makes the checkpoint.
            return numbered().try_for_each(|(at, file)| self.one(at, file));
        }
        let is_large = |file: &SourceFile| file.transfer.len_bytes > PIECE_LEN_BYTES;
        for (at, file) in numbered().filter(|(_, file)| !file.is_marker() && is_large(file)) {
            self.one(at, file)?;
        }
        let is_small = |(_, file): &(usize, &SourceFile)| !file.is_marker() && !is_large(file);
        // Twice its length: what is read back lies in memory too.
        let cost = |(_, file): &(usize, &SourceFile)| 2 * file.transfer.len_bytes;
        for_each_parallel(
            self.threads,
            numbered().filter(is_small),
            self.budget_bytes,
            cost,
            |(at, file)| self.one(at, file),
        )?;
        numbered().filter(|(_, file)| file.is_marker()).try_for_each(|(at, file)| self.one(at, file))
    }

    fn one(&self, at: usize, file: &SourceFile) -> Result<()> {
        let monitor = &self.options.monitor;
        monitor.check()?;
        let len_bytes = file.transfer.len_bytes;
        let is_verified = !self.options.unverified;
        let (mut hasher, mut offset) = (Hasher::new(), 0);
        match self.transfer.left(at) {
            Left::Nothing => {}
            Left::Whole { digest, is_proven } => {
                let is_same = is_proven || !is_verified || self.digest_of(at, len_bytes)?.0 == Some(digest);
                if is_same {
                    self.reused_bytes.fetch_add(len_bytes, Ordering::Relaxed);
                    self.transfer.finished(at, digest, is_verified)?;
                    // What was read for this has been counted; what was not counts as done.
                    let was_read = is_verified && !is_proven;
                    return monitor.advance(if is_verified && !was_read { 2 * len_bytes } else { len_bytes });
                }
            }
            Left::Beginning(known) => {
                if let Some(found) = self.longest_beginning(at, known)? {
                    (hasher, offset) = found;
                    self.reused_bytes.fetch_add(offset, Ordering::Relaxed);
                    monitor.advance(offset)?;
                }
            }
        }
        let digest = self.write(at, file, hasher, offset).map_err(|error| file.blame(error))?;
        file.check_version()?;
        if is_verified {
            self.compare(at, len_bytes, digest)?;
        }
        self.transfer.finished(at, digest, is_verified)
    }

    /// Copies a file from `offset` on; the digest of all of it.
    fn write(&self, at: usize, file: &SourceFile, mut hasher: Hasher, offset: u64) -> Result<Hash> {
        let len_bytes = file.transfer.len_bytes;
        let source = file.open()?;
        let mut out = self.transfer.writer(at, offset)?;
        let (mut done, mut noted) = (offset, offset);
        let written = self.each_piece(&*source, offset, len_bytes, &mut |piece| {
            self.options.monitor.timed(Stage::Copy, piece.len() as u64, || {
                hasher.update(piece);
                out.write(piece)
            })?;
            done += piece.len() as u64;
            if done - noted >= NOTE_EVERY_BYTES && done < len_bytes {
                noted = done;
                self.transfer.reached(at, done, hasher.finalize())?;
            }
            self.options.monitor.check()
        });
        written?;
        out.finish()?;
        Ok(hasher.finalize())
    }

    /// Errs unless the target has the bytes that were written.
    fn compare(&self, at: usize, len_bytes: u64, digest: Hash) -> Result<()> {
        let (found, name) = self.digest_of(at, len_bytes)?;
        if found == Some(digest) {
            return Ok(());
        }
        self.transfer.discard(at)?;
        Err(Error::corrupt("what is read back of a file that was copied is not what was written")
            .in_file(name)
            .expected(
                format_args!("{len_bytes} bytes with the BLAKE3 {}", digest.to_hex()),
                found.map_or("another length".to_owned(), |found| found.to_hex().to_string()),
            )
            .help("the disk, the network or the memory of this machine has changed it: copy it again, and look after them"))
    }

    /// The digest of a file at its new place, `None` if it has another length; and its name.
    fn digest_of(&self, at: usize, len_bytes: u64) -> Result<(Option<Hash>, PathBuf)> {
        let blob = self.transfer.written(at)?;
        let name = blob.describe();
        if blob.len_bytes() != len_bytes {
            return Ok((None, name));
        }
        let mut hasher = Hasher::new();
        self.each_piece(&*blob, 0, len_bytes, &mut |piece| {
            self.options.monitor.timed(Stage::Compare, piece.len() as u64, || hasher.update(piece));
            self.options.monitor.advance(piece.len() as u64)
        })?;
        Ok((Some(hasher.finalize()), name))
    }

    /// The longest beginning that an earlier copy has left whole: its digest so far, and its length.
    fn longest_beginning(&self, at: usize, mut known: Vec<(u64, Hash)>) -> Result<Option<(Hasher, u64)>> {
        known.sort_by_key(|(len_bytes, _)| *len_bytes);
        let blob = self.transfer.written(at)?;
        let (mut hasher, mut read, mut found) = (Hasher::new(), 0, None);
        for (len_bytes, digest) in known {
            if len_bytes <= read || len_bytes > blob.len_bytes() {
                continue;
            }
            self.each_piece(&*blob, read, len_bytes, &mut |piece| {
                self.options.monitor.timed(Stage::Compare, piece.len() as u64, || hasher.update(piece));
                self.options.monitor.check()
            })?;
            read = len_bytes;
            if hasher.finalize() != digest {
                break;
            }
            found = Some((hasher.clone(), len_bytes));
        }
        Ok(found)
    }

    /// Hands out the bytes of a value from `start` to `end`, in order; reads ahead.
    fn each_piece(
        &self,
        blob: &dyn Blob,
        start: u64,
        end: u64,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let step = usize::try_from(PIECE_LEN_BYTES).unwrap_or(usize::MAX);
        let pieces = (start..end).step_by(step).map(|from| (from, PIECE_LEN_BYTES.min(end - from)));
        let monitor = &self.options.monitor;
        map_ordered(
            self.threads,
            pieces,
            self.budget_bytes,
            |(_, len_bytes)| *len_bytes,
            |(from, len_bytes)| monitor.timed(Stage::Read, len_bytes, || read_piece(blob, from, len_bytes)),
            |piece| each(&piece),
        )
    }
}

/// Bytes of a value: long requests where there is no cache to go past.
fn read_piece(blob: &dyn Blob, offset_bytes: u64, len_bytes: u64) -> Result<Vec<u8>> {
    let mut out = work_space(len_bytes)?;
    if len_bytes <= CACHED_LEN_BYTES || blob.suits().requests_max > Scratch::KEPT_MAX {
        blob.read(offset_bytes, &mut out, ReadPath::Cached)?;
        return Ok(out);
    }
    let (mut scratch, mut at) = (Scratch::default(), offset_bytes);
    let step = usize::try_from(FETCH_LEN_MAX_BYTES).unwrap_or(usize::MAX);
    for part in out.chunks_mut(step) {
        let len_bytes = part.len() as u64;
        if blob.is_cached(at, len_bytes) {
            blob.read(at, part, ReadPath::Cached)?;
        } else {
            part.copy_from_slice(blob.fetch(at, part.len(), ReadPath::Direct, &mut scratch)?);
        }
        at += len_bytes;
    }
    Ok(out)
}
