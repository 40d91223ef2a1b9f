//! A seal in use.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::document::{BESIDE, FILE_NAME, HELP, SealDocument};
use super::storage::SealedStorage;
use crate::bytes::glance::Language;
use crate::bytes::limits::JSON_LEN_MAX_BYTES;
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::location::Location;
use crate::options::{DATA_SUFFIX, MANIFEST_SUFFIX};
use crate::reads::{BlockTable, Checksum, Words};
use crate::storage::Found;
use crate::threads::{map_ordered, thread_count};

/// What is said of a block that fails.
const WORDS: Words = Words {
    what: |_, block| format!("block {block} of a sealed file is not what was sealed"),
    help: HELP,
    help_if_zeros: "the block is all zeros: a write that never reached the disk; copy the checkpoint again; `ignore_seal` \
                    reads it as it is",
};

/// Longest name of a file.
const NAME_LEN_MAX_BYTES: usize = 255;

/// Where a seal lies, and which names it covers.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The folder below which its names are.
    pub folder: Location,
    /// The file.
    pub file: Location,
    /// Whether it covers all files of the folder.
    pub covers_folder: bool,
}

impl Place {
    /// Where the seal of the checkpoint at a location lies: in its folder, or beside its files.
    pub(crate) fn of(at: &Location) -> Self {
        if at.is_folder() {
            return Self { folder: at.clone(), file: at.join(FILE_NAME), covers_folder: true };
        }
        // Data and manifest have one seal, whichever of the three names is given.
        let name = at.name_text();
        let stem = [DATA_SUFFIX, MANIFEST_SUFFIX].iter().find_map(|suffix| name.strip_suffix(suffix));
        let stem = stem.filter(|stem| !stem.is_empty()).unwrap_or(&name);
        let (before, behind) = BESIDE;
        let file = at.with_name(format!("{before}{stem}{behind}"));
        Self { folder: at.parent(), file, covers_folder: false }
    }
}

/// Whether a file of this name is a seal.
pub(crate) fn is_name_of_seal(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or_default();
    name == FILE_NAME || name.starts_with(BESIDE.0) && name.ends_with(BESIDE.1)
}

/// The seal of a checkpoint, and its files.
#[derive(Debug)]
pub(crate) struct Seal {
    pub place: Place,
    pub files: Vec<Arc<SealedFile>>,
    by_name: HashMap<String, usize>,
}

/// A file under a seal.
#[derive(Debug)]
pub(crate) struct SealedFile {
    /// Below the folder of the seal.
    pub name: String,
    pub len_bytes: u64,
    pub table: BlockTable,
}

/// What a seal has to say of a path.
#[derive(Debug, Clone, Copy)]
pub(super) enum Governed<'s> {
    /// Nothing: it lies elsewhere, or is the seal itself.
    Free,
    /// It is one of its files.
    Listed(&'s Arc<SealedFile>),
    /// It lies in the folder, and was not there when that was sealed.
    Unlisted,
}

impl Seal {
    /// The seal of what is at a location, if it has one; else, on a disk, that of the folder which holds it.
    ///
    /// # Errors
    /// `Corrupt` and `Unsupported` for a seal that cannot be used; what the storage says.
    pub(crate) fn found(at: &Location) -> Result<Option<Self>> {
        let own = Self::read(Place::of(at))?;
        // Elsewhere each look is a request.
        if own.is_some() || at.local_path().is_err() || at.name().is_empty() {
            return Ok(own);
        }
        let folder = at.parent();
        let place = Place { file: folder.join(FILE_NAME), folder, covers_folder: true };
        Ok(Self::read(place)?.filter(|seal| seal.has_any_below(at)))
    }

    /// The seal at a place, if there is one.
    ///
    /// # Errors
    /// As [`found`](Self::found).
    fn read(place: Place) -> Result<Option<Self>> {
        // Neither is a reason for an error of its own: what is to be opened has one then, or is nothing that was sealed.
        // The folder of a bare name is the working folder, whose path is empty.
        let folder = &place.folder;
        let is_here = folder.path().as_os_str().is_empty();
        let is_nowhere = || folder.local_path().is_ok() && !is_here && !folder.is_folder();
        if place.file.name().len() > NAME_LEN_MAX_BYTES || is_nowhere() {
            return Ok(None);
        }
        let document = match place.file.read_document("the seal", Language::Json, JSON_LEN_MAX_BYTES) {
            // Web servers and buckets say so of what is not there, too.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && folder.local_path().is_err() => None,
            other => other?,
        };
        let Some(bytes) = document else { return Ok(None) };
        Self::of(&bytes, place.clone()).in_file(&place.file).map(Some)
    }

    fn of(bytes: &[u8], place: Place) -> Result<Self> {
        let document = SealDocument::parse(bytes)?;
        if document.covers_folder != place.covers_folder {
            return Err(Error::corrupt("the seal is one of another kind of checkpoint")
                .expected(
                    if place.covers_folder { "that of a folder" } else { "that of single files" },
                    if document.covers_folder { "that of a folder" } else { "that of single files" },
                )
                .help(HELP));
        }
        let block_len_bytes = document.block_len_bytes;
        let mut left = document.block_crc32.as_slice();
        let mut files = Vec::with_capacity(document.names.len());
        for (number, (name, len_bytes)) in document.names.into_iter().zip(document.len_bytes).enumerate() {
            let count = usize::try_from(len_bytes.div_ceil(block_len_bytes)).unwrap_or(usize::MAX);
            let too_few = || Error::corrupt("the seal has not one checksum for each block").help(HELP);
            let (expected, rest) = left.split_at_checked(count).ok_or_else(too_few)?;
            left = rest;
            let (range, expected) = (0..len_bytes, expected.to_vec());
            let table = BlockTable::new(range, block_len_bytes, Checksum::Crc32, expected, WORDS)?;
            files.push(Arc::new(SealedFile { name, len_bytes, table: table.labelled(number) }));
        }
        let by_name = files.iter().enumerate().map(|(at, file)| (file.name.clone(), at)).collect();
        Ok(Self { place, files, by_name })
    }

    fn has_any_below(&self, at: &Location) -> bool {
        let below = at.below(&self.place.folder);
        self.files.iter().any(|file| Path::new(&file.name).starts_with(below))
    }

    /// What the seal has to say of a path of its storage.
    pub(super) fn governs(&self, path: &Path) -> Governed<'_> {
        let folder = self.place.folder.path();
        let Ok(below) = path.strip_prefix(folder) else { return Governed::Free };
        if path == self.place.file.path() {
            return Governed::Free;
        }
        match below.to_str().and_then(|name| self.by_name.get(name)).and_then(|&at| self.files.get(at)) {
            Some(file) => Governed::Listed(file),
            None if self.place.covers_folder => Governed::Unlisted,
            None => Governed::Free,
        }
    }

    /// The same location, where all that is read of the sealed files is checked.
    pub(crate) fn location(self: &Arc<Self>, at: &Location) -> Location {
        Location::new(Arc::new(SealedStorage::new(Arc::clone(at.storage()), Arc::clone(self))), at.path())
    }

    /// The files that are gone or have another length: what is wrong with each.
    ///
    /// # Errors
    /// What the storage says.
    pub(crate) fn misfits(&self) -> Result<Vec<Error>> {
        let mut found = Vec::new();
        let is_far = self.place.folder.local_path().is_err();
        let threads = if is_far { thread_count().max(8) } else { 1 };
        map_ordered(
            threads,
            &self.files,
            u64::MAX,
            |_| 0,
            |file| {
                let at = self.place.folder.join(&file.name);
                let is = match at.look()? {
                    Some(Found::File { len_bytes }) if len_bytes == file.len_bytes => return Ok(None),
                    Some(Found::File { len_bytes }) => format!("{len_bytes} bytes"),
                    Some(_) => "no file".to_owned(),
                    None => "nothing".to_owned(),
                };
                Ok(Some(misfit().in_file(at).expected(format_args!("{} bytes", file.len_bytes), is)))
            },
            |error: Option<Error>| {
                found.extend(error);
                Ok(())
            },
        )?;
        Ok(found)
    }
}

/// The error for a file that is not as long as the seal says.
pub(super) fn misfit() -> Error {
    Error::corrupt("the checkpoint is not what was sealed: a file is gone, or has another length").help(HELP)
}

/// The error for a file that is not in the seal.
pub(super) fn unlisted() -> Error {
    Error::corrupt("the checkpoint is not what was sealed: a file was added").help(HELP)
}
