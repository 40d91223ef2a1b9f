//! The files to copy, each with its version at the time of the plan.

use std::path::PathBuf;
use std::sync::Arc;

use super::read::read_piece;
use crate::engine::Checkpoint;
use crate::engine::names::{is_left_out, names_in, not_text};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::container::step_number;
use crate::formats::siblings::refuse_part;
use crate::formats::{COMMIT_MARKERS, FileNames, Siblings, format_named};
use crate::location::Location;
use crate::storage::{EntryKind, Marker, Target, TransferFile};
use crate::store::{Blob, Store, StoreExt};

/// The file with which Orbax marks a committed checkpoint.
const MARKER: &str = COMMIT_MARKERS[0];

const MARKER_LEN_MAX_BYTES: u64 = 1 << 20;

/// The files to copy, and the marker to write at the end.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) kind: Target,
    pub(super) files: Vec<SourceFile>,
    pub(super) marker: Marker,
}

/// One file of the source, and its version at the time of the plan.
#[derive(Debug)]
pub(super) struct SourceFile {
    pub(super) transfer: TransferFile,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Stored {
        store: Arc<dyn Store>,
        key: Vec<u8>,
    },
    /// A marker that the copy needs and the source does not have.
    Made(Vec<u8>),
}

impl Plan {
    pub(super) fn of(checkpoint: &Checkpoint, target: &Location) -> Result<Self> {
        let layout = checkpoint.description().layout.as_str();
        let format = format_named(layout);
        let names = format.map_or(FileNames::NONE, |format| format.file_names());
        if names.needs_local_disk && target.local_path().is_err() {
            return Err(Error::unsupported(format!("checkpoints of the layout {layout} need a local disk"))
                .in_file(target)
                .help("copy it to a local disk, or convert it"));
        }
        let reading = checkpoint.location().for_reading()?;
        let mut at = reading.location;
        while let Some(entry) = at.only_entry() {
            at = entry;
        }
        let (at, before) = (&at, at.identity());
        let plan = match at.is_folder() {
            true => Self::of_folder(at, checkpoint, target, names.needs_marker)?,
            false => match format.and_then(|format| format.roles().siblings) {
                Some(siblings) => Self::of_siblings(at, siblings, names.pair_suffixes)?,
                None => Self::of_file(at)?,
            },
        };
        match before != at.identity() || checkpoint.is_replaced() {
            true => Err(replaced(at)),
            false => Ok(plan),
        }
    }

    pub(super) fn len_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.transfer.len_bytes).fold(0, u64::saturating_add)
    }

    pub(super) fn transfer_files(&self) -> Vec<TransferFile> {
        self.files.iter().map(|file| file.transfer.clone()).collect()
    }

    fn of_folder(
        at: &Location,
        checkpoint: &Checkpoint,
        target: &Location,
        needs_marker: Option<fn(&Location) -> bool>,
    ) -> Result<Self> {
        let has_steps = !checkpoint.description().steps.is_empty();
        let mut files = match has_steps && needs_marker.is_some() {
            true => files_of_steps(at, target)?,
            false => files_in(at, "")?,
        };
        let own = files.iter().position(|file| file.transfer.name == MARKER);
        let marker = match own {
            _ if has_steps => Marker::OfSteps,
            // If a rename commits the target, the source's marker is copied like other files.
            Some(own) if target.commits_by_marker() => Marker::Own(files.remove(own).read_short()?),
            None if needs_marker.is_some_and(|needs| needs(at)) => Marker::Own(Vec::new()),
            _ => Marker::Other,
        };
        // Copy the marker of a step or item last: it shows that all files beside it are complete.
        files.sort_by(|a, b| {
            let key = |file: &SourceFile| (file.is_marker(), file.transfer.name.clone());
            key(a).cmp(&key(b))
        });
        Ok(Self { kind: Target::Folder, files, marker })
    }

    fn of_siblings(at: &Location, siblings: &dyn Siblings, suffixes: &[&str]) -> Result<Self> {
        let files = siblings.files_now(at);
        if let Some(name) = siblings.other_name(at)? {
            let main = files.last().unwrap_or(at);
            return Err(Error::unsupported(
                "the checkpoint names a data file with another name than its own",
            )
            .in_file(main)
            .expected(format_args!("*{}", suffixes.first().unwrap_or(&"")), format_args!("{name:?}"))
            .help("convert it to its own layout, which writes the names again"));
        }
        let files = files.iter().zip(suffixes).map(|(file, suffix)| single(file, suffix));
        let files = files.collect::<Result<_>>()?;
        let suffixes = suffixes.iter().map(|&suffix| suffix.to_owned()).collect();
        Ok(Self { kind: Target::Siblings { suffixes }, files, marker: Marker::Other })
    }

    fn of_file(at: &Location) -> Result<Self> {
        refuse_part(at, "copy the folder that holds them")?;
        Ok(Self { kind: Target::File, files: vec![single(at, "file")?], marker: Marker::Other })
    }
}

impl SourceFile {
    pub(super) fn is_marker(&self) -> bool {
        self.transfer.name.rsplit('/').next() == Some(MARKER)
    }

    fn made(name: String, text: &str) -> Self {
        let (bytes, version) = (text.as_bytes().to_vec(), format!("made: {text}"));
        let transfer = TransferFile { name, len_bytes: bytes.len() as u64, version };
        Self { transfer, content: Content::Made(bytes) }
    }

    /// Reads the whole file, which must be a marker.
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

    /// Opens the file. `Replaced` if the file has another length than in the plan, or was removed.
    /// `check_version` finds other changes.
    pub(super) fn open(&self) -> Result<Arc<dyn Blob>> {
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

    pub(super) fn check_version(&self) -> Result<()> {
        if self.is_changed()? { Err(replaced(self.describe())) } else { Ok(()) }
    }

    fn is_changed(&self) -> Result<bool> {
        let Content::Stored { store, key } = &self.content else { return Ok(false) };
        Ok(store.version(key)?.is_none_or(|now| now.text != self.transfer.version))
    }

    /// An error of reading the file. If the file has changed since the plan, the result is
    /// `Replaced`.
    pub(super) fn blame(&self, error: Error) -> Error {
        match self.is_changed() {
            Ok(true) if error.kind() != ErrorKind::Cancelled => replaced(self.describe()),
            _ => error,
        }
    }
}

fn replaced(file: impl Into<PathBuf>) -> Error {
    Error::replaced("the checkpoint was changed while it was being copied")
        .in_file(file)
        .help("copy again when no program writes to it")
}

/// A file of a checkpoint without a folder, or a file beside the steps of a folder.
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

/// All files of a folder of steps: those of the committed steps, and those beside the steps.
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
            // These files belong to a save that did not finish.
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

/// All files below a folder. `prefix` comes before each name.
fn files_in(at: &Location, prefix: &str) -> Result<Vec<SourceFile>> {
    let store = at.opened()?;
    let names = names_in(at, &*store)?;
    names
        .into_iter()
        .map(|key| {
            let name = format!("{prefix}{key}");
            stored(Arc::clone(&store), key.into_bytes(), name)
        })
        .collect()
}
