//! `regrow.items.json`: the kind of each item of a checkpoint, and checksums of files without
//! another checksum.
//!
//! ```text
//! {"crc32c":"1b2e9a40",                                        of all bytes after this comma
//!  "format":"regrow-items", "version":1, "writer":"regrow 0.1.0", "created_unix_ns":...,
//!  "items":[{"name":"state","kind":"tree","layout":"regrow"},  in the order of the calls
//!           {"name":"config","kind":"json","file":"metadata"},
//!           {"name":"metrics","kind":"metrics","file":"metrics"},
//!           {"name":"iterator","kind":"files"},
//!           {"name":"own","kind":"handler"}],                  the handler in _CHECKPOINT_METADATA reads it
//!  "files":[{"name":"config/metadata","len_bytes":15,"crc32c":"...","blake3":"..."}]}
//! ```
//!
//! `files` lists the files of the items of kind `json`, `metrics` and `files`; the file
//! `_CHECKPOINT_METADATA`; the markers of items; and the `regrow.json` of each tree in the default
//! layout. `regrow.json` has the checksums of the tree's other files. `files` has no checksums of
//! the files of handlers, nor of the arrays of other layouts.
//!
//! If a checkpoint has this file, a reader takes the kinds of items from the file, and not from the
//! names of the items' files.

use serde::{Deserialize, Serialize};

use super::SummedFile;
use super::own_files::first_files;
pub use super::regrow::manifest::SmallFile;
use super::regrow::manifest::Sum;
use super::regrow::{open_whole, summed_whole};
use regrow_base::bytes::glance::Language;
use regrow_base::bytes::limits::JSON_LEN_MAX_BYTES;
use regrow_base::bytes::side_document::{SideDocument, now_unix_ns, writer};
use regrow_base::bytes::summed;
use regrow_base::error::{Error, Result, ResultExt};
use regrow_storage::location::Location;
use regrow_store::{ReadPath, Scratch, Store};

/// Name of the file.
pub const FILE_NAME: &str = "regrow.items.json";

/// A checkpoint's commit marker has this line if the checkpoint has this file.
pub const MARKER_LINE: &str = "regrow items";

const KIND: SideDocument = SideDocument {
    what: "the record of the items",
    format: "regrow-items",
    version: 1,
    help_if_newer: "a newer regrow wrote it: update regrow",
    error: |what| Error::corrupt(what).help(HELP),
};

const HELP: &str = "open another step, or heal this one: `regrow repair --from COPY`; `salvage` reads the \
    checkpoint without its record";

const PIECE_LEN_BYTES: usize = 1 << 20;

/// The kind of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ItemKind {
    /// A pytree, in a layout.
    Tree,
    /// A JSON document.
    Json,
    /// Metrics.
    Metrics,
    /// Plain files.
    Files,
    /// Files for a user's own handler, whose name is in `_CHECKPOINT_METADATA`.
    Handler,
}

impl ItemKind {
    /// Whether the item is JSON, metrics or plain files: neither a tree nor files for a handler.
    pub fn is_no_tree(self) -> bool {
        matches!(self, Self::Json | Self::Metrics | Self::Files)
    }
}

/// The record of one item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemRecord {
    /// The name of the item; empty for a checkpoint that is itself one item.
    pub name: String,
    /// The kind of the item.
    pub kind: ItemKind,
    /// The layout, for a tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<String>,
    /// The name of the file, for JSON and metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Whether the item's `commit_success.txt` is one of the user's files, not a commit marker.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_own_marker: bool,
}

impl ItemRecord {
    /// The record of an item without a layout or a file.
    pub fn new(name: &str, kind: ItemKind) -> Self {
        Self { name: name.to_owned(), kind, layout: None, file: None, has_own_marker: false }
    }
}

/// The contents of `regrow.items.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ItemsRecord {
    format: String,
    version: u32,
    writer: String,
    created_unix_ns: u64,
    /// The items of the checkpoint.
    pub items: Vec<ItemRecord>,
    /// The files with checksums, by their paths below the checkpoint.
    pub files: Vec<SmallFile>,
}

impl ItemsRecord {
    /// The record for a checkpoint that is being written.
    pub fn new(items: Vec<ItemRecord>, files: Vec<SmallFile>) -> Self {
        let format = KIND.format.to_owned();
        Self { format, version: KIND.version, writer: writer(), created_unix_ns: now_unix_ns(), items, files }
    }

    /// Reads the record of the checkpoint in a folder; `None` if the checkpoint has no record.
    ///
    /// # Errors
    /// `Corrupt` for a damaged record; `Unsupported` for a later version; errors of the storage.
    pub fn of(folder: &Location) -> Result<Option<Self>> {
        let file = folder.join(FILE_NAME);
        let bytes = file.read_document(KIND.what, Language::Json, JSON_LEN_MAX_BYTES)?;
        bytes.map(|bytes| Self::parse(&bytes)).transpose().in_file(&file)
    }

    /// Parses and checks the file's bytes.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        summed::check(bytes).map_err(|unlike| {
            Error::corrupt("the record of the items fails its crc32c")
                .at_byte(0)
                .expected(unlike.expected, unlike.found)
                .help(HELP)
        })?;
        let parsed: Self = KIND.parse(bytes)?;
        let names: Vec<String> = parsed.files.iter().map(|file| file.name.clone()).collect();
        let lens: Vec<u64> = parsed.files.iter().map(|file| file.len_bytes).collect();
        KIND.check_files(&names, &lens)?;
        let leads_out = |name: &str| matches!(name, "." | "..") || name.contains(['/', '\0']);
        let is_twice = |at: usize, name: &str| parsed.items.iter().take(at).any(|item| item.name == name);
        let wrong = |(at, item): &(usize, &ItemRecord)| leads_out(&item.name) || is_twice(*at, &item.name);
        match parsed.items.iter().enumerate().find(wrong) {
            Some((_, item)) => Err(KIND
                .contradiction("it names an invalid item, or names an item twice")
                .expected("each once", &item.name)),
            None => Ok(parsed),
        }
    }

    /// The bytes of the file.
    ///
    /// # Errors
    /// None in practice.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        summed::to_bytes(self)
            .map_err(|error| Error::invalid(format!("{} cannot be written: {error}", KIND.what)))
    }

    /// The record of the item with this name.
    pub fn item(&self, name: &str) -> Option<&ItemRecord> {
        self.items.iter().find(|item| item.name == name)
    }

    /// The record of a file, by its path below the checkpoint.
    pub fn file(&self, path: &str) -> Option<&SmallFile> {
        self.files.iter().find(|file| file.name == path)
    }

    /// The files of an item, each with its path below the item. Omits commit markers, unless the
    /// item's marker is one of the user's files.
    pub fn files_of<'r>(&'r self, item: &'r ItemRecord) -> impl Iterator<Item = (&'r str, &'r SmallFile)> {
        let below = |file: &'r SmallFile| match item.name.as_str() {
            "" => Some(file.name.as_str()),
            name => file.name.strip_prefix(name)?.strip_prefix('/'),
        };
        self.files.iter().filter_map(move |file| Some((below(file)?, file))).filter(|(name, _)| {
            item.has_own_marker || !super::COMMIT_MARKERS.contains(name) && !first_files().contains(name)
        })
    }

    /// Checks the bytes of a file against its record. Any bytes pass if the file has no record.
    ///
    /// # Errors
    /// `Corrupt`, with the file.
    pub fn check(&self, folder: &Location, path: &str, bytes: &[u8]) -> Result<()> {
        let Some(record) = self.file(path) else { return Ok(()) };
        let mut sum = record.sum();
        sum.update(bytes);
        let found_len = bytes.len() as u64;
        let differs = match found_len == record.len_bytes {
            true => sum.differs_from(record),
            false => Some((format!("{} bytes", record.len_bytes), format!("{found_len} bytes"))),
        };
        match differs {
            None => Ok(()),
            Some((expected, found)) => Err(changed().in_file(folder.join(path)).expected(expected, found)),
        }
    }

    /// Reads a recorded file front to back, and returns the error of a damaged file; `None` for an
    /// undamaged file.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn look(folder: &dyn Store, record: &SmallFile) -> Result<Option<Error>> {
        match open_whole(folder, record) {
            Err(error) if !error.kind().is_damage() => Err(error),
            Ok(Ok(_)) => Ok(None),
            Ok(Err(error)) | Err(error) => Ok(Some(error.help(HELP))),
        }
    }

    /// The files with their checksums, for a repair.
    ///
    /// # Errors
    /// `Corrupt` if the record contradicts itself.
    pub fn summed_files(&self) -> Result<Vec<SummedFile>> {
        self.files.iter().map(summed_whole).collect()
    }
}

fn changed() -> Error {
    Error::corrupt("a file of an item differs from its record").help(HELP)
}

/// The record of a file, under another name.
///
/// # Errors
/// `NotFound`; errors of the storage.
pub fn sum_of_file(file: &Location, name: String) -> Result<SmallFile> {
    let blob = file.parent().store().open(file.name().as_encoded_bytes())?;
    let blob = blob.ok_or_else(|| Error::io("cannot read", file, regrow_base::system::not_found()))?;
    let (len_bytes, mut at) = (blob.len_bytes(), 0);
    let (mut sum, mut scratch) = (Sum::new(), Scratch::default());
    while at < len_bytes {
        let len = (len_bytes - at).min(PIECE_LEN_BYTES as u64);
        sum.update(blob.fetch(at, len as usize, ReadPath::Cached, &mut scratch)?);
        at += len;
    }
    Ok(sum.record(name, len_bytes))
}

/// Whether the marker of a checkpoint says that the checkpoint has a record of its items.
pub(crate) fn is_noted(marker: &[u8]) -> bool {
    marker.split(|byte| *byte == b'\n').any(|line| line == MARKER_LINE.as_bytes())
}
