//! Lists the checkpoints in a folder, steps or others, with their layout, state and size.

use std::path::PathBuf;

use crate::error::{Error, ErrorKind, Result};
use crate::formats::located;
use crate::formats::{siblings, suggestions};
use crate::location::{Location, ToLocation};
use crate::storage::{Entry, Stock, UNCOMMITTED_MARK, archive};
use crate::threads::{map_ordered, thread_count};

/// One checkpoint in a folder.
#[derive(Debug)]
#[non_exhaustive]
pub struct Listed {
    /// The name of the file or folder.
    pub name: String,
    /// The path or URL.
    pub path: PathBuf,
    /// The layout; empty if the checkpoint cannot be opened.
    pub layout: String,
    /// The numbers of the steps, if this is a folder of steps; otherwise empty.
    pub steps: Vec<u64>,
    /// Whether the checkpoint is complete and can be opened.
    pub state: ListedState,
    /// The count and bytes of the checkpoint's files; `None` if the storage cannot list the files.
    pub stock: Option<Stock>,
}

/// The state of a checkpoint in a list.
#[derive(Debug)]
pub enum ListedState {
    /// The checkpoint is committed, and its metadata are complete.
    Committed,
    /// A save or a copy is in progress, or was interrupted.
    Unfinished,
    /// The checkpoint cannot be opened.
    Damaged(Error),
}

impl ListedState {
    /// The state as a lower-case word: `committed`, `unfinished`, `damaged`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::Unfinished => "unfinished",
            Self::Damaged(_) => "damaged",
        }
    }
}

/// The checkpoints directly in a folder, finished or not. They are sorted by name, with numbers at
/// the end of names in numeric order. Empty if there are none.
///
/// Opens each checkpoint, which reads its metadata.
///
/// # Errors
/// `NotFound` if there is no folder; `Uncommitted` for a folder that is itself being written;
/// errors of the storage.
pub fn list(folder: impl ToLocation) -> Result<Vec<Listed>> {
    let at = located(folder)?;
    let at = archive::find(&at)?.unwrap_or(at);
    crate::formats::refuse_uncommitted(&at)?;
    let root = at.for_reading()?.location;
    let entries = root.entries()?;
    let mut names: Vec<String> = entries.into_iter().filter_map(|entry| candidate(&at, entry)).collect();
    names.sort_by_cached_key(|name| {
        let digits = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = name.get(digits.len()..).and_then(|number| number.parse::<u64>().ok());
        (digits.to_owned(), number, name.clone())
    });
    names.dedup();
    let mut listed = Vec::new();
    map_ordered(
        thread_count(),
        names,
        u64::MAX,
        |_| 1,
        |name| Ok(look(&at, name)),
        |found| {
            listed.extend(found);
            Ok(())
        },
    )?;
    Ok(listed)
}

/// The name of an entry that may be a checkpoint; `None` for other entries.
fn candidate(folder: &Location, entry: Entry) -> Option<String> {
    let is_file = entry.is_file();
    let is_folder = entry.is_folder();
    let name = entry.name.into_string().ok().filter(|name| !name.starts_with('.'))?;
    if is_folder {
        return Some(name);
    }
    if let Some(stem) = siblings::stem_of(&name)
        && siblings::are_at(&folder.join(stem)).unwrap_or(false)
    {
        return Some(stem.to_owned());
    }
    (is_file && suggestions::may_be_listed(&name)).then_some(name)
}

fn look(folder: &Location, name: String) -> Option<Listed> {
    let at = folder.join(&name);
    let mut listed = Listed {
        path: at.describe(),
        layout: String::new(),
        steps: Vec::new(),
        state: ListedState::Committed,
        stock: stock(&at),
        name,
    };
    if listed.name.contains(UNCOMMITTED_MARK) {
        listed.state = ListedState::Unfinished;
        return Some(listed);
    }
    match super::open(&at) {
        Ok(checkpoint) => {
            let about = checkpoint.description();
            listed.layout.clone_from(&about.layout);
            listed.steps.clone_from(&about.steps);
        }
        Err(error) => match error.kind() {
            // Another process removed the entry, or the entry is not a checkpoint.
            ErrorKind::NotACheckpoint | ErrorKind::NotFound => return None,
            ErrorKind::Uncommitted => listed.state = ListedState::Unfinished,
            _ => listed.state = ListedState::Damaged(error),
        },
    }
    Some(listed)
}

/// The count and bytes of the files; for a checkpoint of several files, the sum over its files.
fn stock(at: &Location) -> Option<Stock> {
    if at.exists() {
        return at.stock().ok()?;
    }
    let mut files = siblings::layouts().find_map(|(format, siblings)| {
        format.recognise(at).unwrap_or(false).then(|| siblings.files_now(at))
    })?;
    let of = |file: &Location| file.stock().ok()?;
    let main = of(&files.pop()?)?;
    Some(files.iter().filter_map(of).fold(main, |sum, file| Stock {
        file_count: sum.file_count + file.file_count,
        bytes: sum.bytes + file.bytes,
        modified: sum.modified.max(file.modified),
    }))
}
