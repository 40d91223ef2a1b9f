//! Checkpoints inside archives: a tar, or a zip with uncompressed members. They are read only, and
//! never unpacked.
//!
//! | address | is |
//! |---|---|
//! | `/data/runs.zip/step_100` | the folder or file `step_100` in the archive |
//! | `/data/runs.tar` | the top of the archive, or its only entry if the top is not a checkpoint |
//! | `s3://bucket/runs.tar/step_100` | `step_100` in an archive in a bucket |
//! | `/data/all.zip/runs.tar/step_100` | `step_100` in an archive that is in another archive |
//!
//! The name ends in `.tar` or `.zip`, in upper or lower case. A folder with such a name is an
//! ordinary folder. If a file with such a name does not begin like an archive, it is read as a
//! checkpoint itself. If everything in an archive lies in one folder, that folder need not be
//! named.
//!
//! ```text
//! | header | regrow.json | header | model.safetensors | ...  the archive: one value in the storage that it lies in
//!          ^ offset, length           ^ the bytes: a slice of the archive's map, or a ranged read
//! ```
//!
//! | module | does |
//! |---|---|
//! | `mod` | finds the archive in a path; `ArchiveStorage` |
//! | `index` | names, and the positions of their bytes |
//! | `tar`, `zip` | the index of each kind |
//! | `window` | combines small reads into long ones |
//! | `keys` | a folder in an archive as a [`Store`], a member as a [`Blob`] |
//!
//! The index is read once, when a checkpoint is opened: the header of each member of a tar, the
//! directory at the end of a zip. An opened archive stays the same archive, even if another file
//! takes its path. A checkpoint in an archive is checked by its own checksums, as outside of an
//! archive.

use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::{Capabilities, Document, Entry, Found, Identity, ReadOnly, Reading, Storage};
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::location::Location;
use crate::store::{Blob, Store};
use crate::system::{key_of_path, not_found};

mod index;
mod keys;
mod tar;
mod window;
mod zip;

use index::{Index, Member, clean};
use keys::ArchiveStore;

/// Length of the beginning of a file that is read to recognize an archive.
const BEGINNING_LEN_BYTES: u64 = tar::BLOCK_LEN_BYTES;

const READ_ONLY: ReadOnly = ReadOnly {
    what: "archives are read only",
    help: Some("save to a folder, then pack it with `tar -cf` or `zip -0 -r`"),
};

const BESIDE: [&str; 2] = ["__MACOSX", ".DS_Store"];

/// The first bytes of compressed files, and the program that compressed them.
const COMPRESSED: [(&[u8], &str); 4] =
    [(b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2"), (b"\xfd7zXZ\0", "xz")];

/// Returns the location inside an archive if the path is an archive or leads through one; `None`
/// for all other paths. The storage is asked only if a name in the path ends in `.tar` or `.zip`.
///
/// # Errors
/// `Corrupt` if the path leads through a file that is not an archive; `Unsupported` if the archive
/// is compressed; errors of the storage.
pub fn find(at: &Location) -> Result<Option<Location>> {
    let mut found = None;
    while let Some(next) = find_first(found.as_ref().unwrap_or(at))? {
        found = Some(next);
    }
    Ok(found)
}

/// Returns an error if the location is inside an archive: nothing can be saved there.
///
/// # Errors
/// `Unsupported`.
pub fn refuse_inside(target: &Location) -> Result<()> {
    match find(target) {
        Ok(Some(inside)) if !inside.path().as_os_str().is_empty() => Err(READ_ONLY.error(target)),
        _ => Ok(()),
    }
}

fn find_first(at: &Location) -> Result<Option<Location>> {
    let is_named_so =
        |part: &Component<'_>| matches!(part, Component::Normal(name) if Kind::of(name).is_some());
    if !at.path().components().any(|part| is_named_so(&part)) {
        return Ok(None);
    }
    let mut parts = at.path().components();
    let mut path = PathBuf::new();
    while let Some(part) = parts.next() {
        path.push(part);
        let Some(kind) = path.file_name().filter(|_| is_named_so(&part)).and_then(Kind::of) else { continue };
        let file = Location::new(Arc::clone(at.storage()), &path);
        match file.look() {
            Ok(Some(Found::File { .. })) => {}
            Ok(Some(Found::Folder)) => continue,
            // The caller opens the path next, and the open reports the error.
            _ => return Ok(None),
        }
        let rest = parts.as_path();
        let beginning = file.read_beginning(BEGINNING_LEN_BYTES)?.unwrap_or_default();
        if kind.begins(&beginning) {
            let storage = ArchiveStorage { file, kind, opened: None };
            return Ok(Some(Location::new(Arc::new(storage), rest)));
        }
        if let Some((_, by)) = COMPRESSED.iter().find(|(magic, _)| beginning.starts_with(magic)) {
            return Err(Error::unsupported(format!("the whole archive is compressed with {by}"))
                .in_file(&file)
                .help("unpack the archive: a compressed archive cannot be read in parts"));
        }
        if rest.as_os_str().is_empty() {
            return Ok(None);
        }
        return Err(Error::corrupt(format!(
            "the path goes through a file that is not a {} archive",
            kind.name()
        ))
        .in_file(&file)
        .help("if it is one, it is damaged: copy it again"));
    }
    Ok(None)
}

/// The kinds of archives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tar,
    Zip,
}

impl Kind {
    /// The kind of archive that a file name suggests, by its suffix.
    fn of(name: &OsStr) -> Option<Self> {
        let name = name.as_encoded_bytes();
        let (stem, suffix) = name.split_at(name.len().checked_sub(".tar".len())?);
        match suffix.to_ascii_lowercase().as_slice() {
            b".tar" if !stem.is_empty() => Some(Self::Tar),
            b".zip" if !stem.is_empty() => Some(Self::Zip),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Tar => "tar",
            Self::Zip => "zip",
        }
    }

    fn begins(self, bytes: &[u8]) -> bool {
        match self {
            Self::Tar => tar::begins(bytes),
            Self::Zip => zip::begins(bytes),
        }
    }
}

/// An archive as a storage. Its paths are the names of members.
#[derive(Debug, Clone)]
pub struct ArchiveStorage {
    /// The archive itself, in the storage that it lies in.
    file: Location,
    kind: Kind,
    /// The archive that a checkpoint was opened from; `None` to open the archive again for each
    /// access.
    opened: Option<Arc<Opened>>,
}

/// An open archive and its index.
#[derive(Debug)]
struct Opened {
    blob: Arc<dyn Blob>,
    index: Index,
    /// The name of the archive in messages.
    name: PathBuf,
}

impl Opened {
    /// Opens the archive and reads its index. Also returns the identity of the archive that was
    /// read.
    fn open(file: &Location, kind: Kind) -> Result<(Self, Option<Identity>)> {
        let reading = file.for_reading()?;
        let identity = reading.identity.or_else(|| file.identity());
        let gone = || Error::io("cannot open the archive", file, not_found());
        let name = reading.location.name().as_encoded_bytes();
        let blob = reading.location.parent().store().open(name)?.ok_or_else(gone)?;
        let index = match kind {
            Kind::Tar => tar::read_index(&*blob),
            Kind::Zip => zip::read_index(&*blob),
        };
        Ok((Self { blob, index: index.in_file(file)?, name: file.describe() }, identity))
    }

    fn only_name(&self) -> Option<Entry> {
        let is_beside = |entry: &Entry| {
            let name = entry.name.to_string_lossy();
            BESIDE.contains(&&*name) || name.starts_with("._")
        };
        let mut entries = self.index.entries(b"").into_iter().filter(|entry| !is_beside(entry));
        entries.next().filter(|_| entries.next().is_none())
    }
}

impl ArchiveStorage {
    fn opened(&self) -> Result<Arc<Opened>> {
        match &self.opened {
            Some(opened) => Ok(Arc::clone(opened)),
            None => Ok(Arc::new(Opened::open(&self.file, self.kind)?.0)),
        }
    }

    pub(crate) fn file(&self) -> &Location {
        &self.file
    }

    /// The name of the only entry at the top; `None` if there are several.
    pub(crate) fn only_name(&self) -> Option<OsString> {
        Some(self.opened().ok()?.only_name()?.name)
    }

    /// The name in the archive for a path.
    fn key_of(&self, path: &Path) -> Result<Vec<u8>> {
        clean(&key_of_path(path)).map_err(|error| {
            Error::invalid(format!("this is not a path in an archive: {}", error.what()))
                .in_file(self.describe(path))
        })
    }
}

impl Storage for ArchiveStorage {
    fn describe(&self, path: &Path) -> PathBuf {
        let file = self.file.describe();
        if path.as_os_str().is_empty() { file } else { file.join(path) }
    }

    fn look(&self, path: &Path) -> Result<Option<Found>> {
        let member = self.opened()?.index.member(&self.key_of(path)?);
        Ok(member.map(|member| match member {
            Member::Value(value) => Found::File { len_bytes: value.len_bytes },
            Member::Folder => Found::Folder,
            Member::Other(what) => Found::Other(what),
        }))
    }

    fn entries(&self, folder: &Path) -> Result<Vec<Entry>> {
        let (opened, key) = (self.opened()?, self.key_of(folder)?);
        match opened.index.member(&key) {
            Some(Member::Folder) => Ok(opened.index.entries(&key)),
            _ => Err(no_such_folder(self.describe(folder))),
        }
    }

    fn store(&self, folder: &Path) -> Arc<dyn Store> {
        Arc::new(ArchiveStore::new(self.clone(), folder))
    }

    fn opened(&self, folder: &Path) -> Result<Arc<dyn Store>> {
        let opened = self.opened()?;
        match opened.index.member(&self.key_of(folder)?) {
            Some(Member::Folder) => {
                let storage = Self { opened: Some(opened), ..self.clone() };
                Ok(Arc::new(ArchiveStore::new(storage, folder)))
            }
            _ => Err(no_such_folder(self.describe(folder))),
        }
    }

    fn read_document(&self, path: &Path, document: Document<'_>) -> Result<Option<Vec<u8>>> {
        ArchiveStore::new(self.clone(), Path::new("")).document(&self.key_of(path)?, document)
    }

    fn read_beginning(&self, path: &Path, len_max_bytes: u64) -> Result<Option<Vec<u8>>> {
        ArchiveStore::new(self.clone(), Path::new("")).beginning(&self.key_of(path)?, len_max_bytes)
    }

    /// The identity of the archive: the content of a member changes only if the archive changes.
    fn identity(&self, _path: &Path) -> Option<Identity> {
        self.file.identity()
    }

    fn for_reading(&self, path: &Path) -> Result<Option<Reading>> {
        let (opened, identity) = match &self.opened {
            Some(opened) => (Arc::clone(opened), self.file.identity()),
            None => {
                let (opened, identity) = Opened::open(&self.file, self.kind)?;
                (Arc::new(opened), identity)
            }
        };
        // A path may omit the folder that holds the whole archive.
        let first = path.components().next();
        let only = first.and_then(|first| {
            let only = opened.only_name().filter(Entry::is_folder)?;
            (only.name != first.as_os_str()).then(|| Path::new(&only.name).join(path))
        });
        let storage = Self { opened: Some(opened), ..self.clone() };
        let path = only.unwrap_or_else(|| path.to_owned());
        Ok(Some(Reading { location: Location::new(Arc::new(storage), path), identity }))
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            is_local: false,
            has_listings: true,
            commits_by_marker: false,
            archive: Some(self),
            writes: Err(READ_ONLY),
            #[cfg(feature = "cloud")]
            cacheable: None,
        }
    }
}

fn no_such_folder(name: PathBuf) -> Error {
    Error::new(ErrorKind::NotFound, "the archive has no such folder").in_file(name)
}

fn refused(what: &str, name: PathBuf) -> Error {
    let help = match what {
        "compressed" => "pack it again without compression (`zip -0`, `zipfile.ZIP_STORED`), or unpack it",
        _ => "unpack the archive, or pack it again without `--sparse`",
    };
    Error::unsupported(format!("the member of the archive is {what}")).in_file(name).help(help)
}

#[cfg(test)]
mod tests;
