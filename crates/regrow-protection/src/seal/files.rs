//! The files under an opened seal, and their checks.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::document::{HELP, NAMES, SealDocument};
use crate::PublicKey;
use regrow_base::bytes::glance::Language;
use regrow_base::bytes::limits::JSON_LEN_MAX_BYTES;
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_base::threads::{map_ordered, thread_count};
use regrow_storage::Found;
use regrow_storage::location::Location;
use regrow_storage::side_files::{KINDS, SideNames, is_name_of_side_file};
use regrow_store::reads::{BlockTable, Checksum, Words};

const WORDS: Words = Words {
    what: |_, block| format!("block {block} of a sealed file differs from the seal"),
    help: HELP,
    help_if_zeros: "the block is all zeros, because a write never reached the disk: copy the checkpoint \
        again; `ignore_seal` reads it anyway",
};

const SAID: Said = Said {
    misfit: || {
        Error::corrupt("the checkpoint differs from its seal: a file is missing, or has another length")
            .help(HELP)
    },
    unlisted: || Error::corrupt("the checkpoint differs from its seal: a file was added").help(HELP),
    changed: || Error::corrupt("a sealed file changed while it was read").help(HELP),
};

const NAME_LEN_MAX_BYTES: usize = 255;

/// The errors for files that do not match a seal or a signature.
#[derive(Debug, Clone, Copy)]
pub struct Said {
    /// A file is missing, or has another length.
    pub misfit: fn() -> Error,
    /// A file is not listed.
    pub unlisted: fn() -> Error,
    /// A file has changed since it was opened.
    pub changed: fn() -> Error,
}

/// The place of a side file, and the names of files that it may cover.
#[derive(Debug, Clone)]
pub struct Place {
    /// The folder that the names in the document are relative to.
    pub folder: Location,
    /// The side file itself.
    pub file: Location,
    /// Whether the side file covers all files of the folder.
    pub covers_folder: bool,
    /// The prefix of the names of a checkpoint of single files; empty for a folder.
    pub stem: String,
}

impl Place {
    /// The place of the seal of the checkpoint at a location: in its folder, or beside its files.
    pub fn of(at: &Location) -> Self {
        Self::named(at, NAMES)
    }

    /// The place of another side file.
    pub fn named(at: &Location, names: SideNames) -> Self {
        if at.is_folder() { Self::in_folder(at.clone(), names) } else { Self::beside(at, names) }
    }

    /// The place for a checkpoint of single files.
    fn beside(at: &Location, names: SideNames) -> Self {
        // The two files of a pytree_data checkpoint share one seal. `at` has the name of one of the
        // files, or their name without a suffix.
        let name = at.name_text();
        let stem = regrow_storage::stem_of(&name);
        let file = at.with_name(name_beside(stem, names));
        Self { folder: at.parent(), file, covers_folder: false, stem: stem.to_owned() }
    }

    /// Another side file of the same checkpoint.
    pub fn other(&self, names: SideNames) -> Location {
        match self.covers_folder {
            true => self.folder.join(names.in_folder),
            false => self.file.with_name(name_beside(&self.stem, names)),
        }
    }

    /// Returns an error if a side file of single files was copied by hand and describes other
    /// files.
    pub fn check_names(&self, names: &[String]) -> Result<()> {
        match names.iter().find(|name| !self.covers_folder && !name.starts_with(&self.stem)) {
            None => Ok(()),
            Some(other) => Err(Error::corrupt("the side file belongs to another file")
                .expected(format_args!("{:?}", self.stem), format_args!("{other:?}"))
                .help(
                    "remove the side file and make it again (`regrow seal`, `regrow parity`); `regrow \
                    cp` copies a file with its seal",
                )),
        }
    }

    fn in_folder(folder: Location, names: SideNames) -> Self {
        Self { file: folder.join(names.in_folder), folder, covers_folder: true, stem: String::new() }
    }

    /// Calls `read` at the place for `at`. If there is no seal, and `at` is on a disk, calls `read`
    /// at the place in the folder above, and returns that seal if it covers a file below `at`.
    pub fn search(
        at: &Location,
        names: SideNames,
        read: &dyn Fn(Self) -> Result<Option<Seal>>,
    ) -> Result<Option<Seal>> {
        let own = read(Self::named(at, names))?;
        // Beyond the local disk each look costs a request, so skip the folder above.
        if own.is_some() || at.local_path().is_err() || at.name().is_empty() {
            return Ok(own);
        }
        Ok(read(Self::in_folder(at.parent(), names))?.filter(|seal| seal.has_any_below(at)))
    }

    /// The bytes of the file, if there is one.
    pub fn read(&self, what: &str) -> Result<Option<Vec<u8>>> {
        // If the name is too long or the folder is missing, there is no seal; the open of the
        // checkpoint reports the error. The folder of a bare name is the working folder, whose path
        // is empty.
        let folder = &self.folder;
        let is_here = folder.path().as_os_str().is_empty();
        let is_nowhere = || folder.local_path().is_ok() && !is_here && !folder.is_folder();
        if self.file.name().len() > NAME_LEN_MAX_BYTES || is_nowhere() {
            return Ok(None);
        }
        match self.file.read_document(what, Language::Json, JSON_LEN_MAX_BYTES) {
            // Web servers and buckets also deny access to files that do not exist.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && folder.local_path().is_err() => {
                Ok(None)
            }
            other => other,
        }
    }
}

fn name_beside(stem: &str, names: SideNames) -> String {
    let (before, behind) = names.beside;
    format!("{before}{stem}{behind}")
}

/// The places of all side files of a checkpoint of single files.
pub fn side_files_of(at: &Location) -> impl Iterator<Item = Location> + '_ {
    KINDS.into_iter().map(|names| Place::beside(at, names).file)
}

/// The seal of a checkpoint, or its signature, and its files.
#[derive(Debug)]
pub struct Seal {
    /// The location of the seal.
    pub place: Place,
    /// The files that the seal covers.
    pub files: Vec<Arc<SealedFile>>,
    /// The errors for files that do not match the seal or signature.
    pub said: Said,
    /// The key that signed; `None` for a seal.
    pub signer: Option<PublicKey>,
    by_name: HashMap<String, usize>,
}

/// A file under a seal.
#[derive(Debug)]
pub struct SealedFile {
    /// The path of the file below the folder of the seal.
    pub name: String,
    /// The length that the seal lists.
    pub len_bytes: u64,
    /// The checksums of its blocks.
    pub table: BlockTable,
}

/// The relation of a seal to a path.
#[derive(Debug, Clone, Copy)]
pub(super) enum Governed<'s> {
    /// The path lies elsewhere, or is the seal itself.
    Free,
    Listed(&'s Arc<SealedFile>),
    /// The path lies in a sealed folder, and the seal does not list it. For a signature: any path
    /// that the signature does not list.
    Unlisted,
}

impl Seal {
    /// The seal of a location. If a location on a disk has none, the seal of the folder above.
    ///
    /// # Errors
    /// `Corrupt` and `Unsupported` for a seal that cannot be used; errors of the storage.
    pub fn found(at: &Location) -> Result<Option<Self>> {
        Place::search(at, NAMES, &Self::read)
    }

    fn read(place: Place) -> Result<Option<Self>> {
        let Some(bytes) = place.read("the seal")? else { return Ok(None) };
        Self::of(&bytes, place.clone()).in_file(&place.file).map(Some)
    }

    /// Parses a seal that was read at a place.
    ///
    /// # Errors
    /// `Corrupt` and `Unsupported` for an unusable seal.
    pub fn of(bytes: &[u8], place: Place) -> Result<Self> {
        let document = SealDocument::parse(bytes)?;
        if document.covers_folder != place.covers_folder {
            return Err(Error::corrupt("the seal belongs to another kind of checkpoint")
                .expected(
                    if place.covers_folder { "one of a folder" } else { "one of single files" },
                    if document.covers_folder { "one of a folder" } else { "one of single files" },
                )
                .help(HELP));
        }
        place.check_names(&document.names)?;
        let block_len_bytes = document.block_len_bytes;
        let mut left = document.block_crc32.as_slice();
        let mut files = Vec::with_capacity(document.names.len());
        for (number, (name, len_bytes)) in document.names.into_iter().zip(document.len_bytes).enumerate() {
            let count = usize::try_from(len_bytes.div_ceil(block_len_bytes)).unwrap_or(usize::MAX);
            let too_few = || Error::corrupt("the seal lacks the checksum of a block").help(HELP);
            let (expected, rest) = left.split_at_checked(count).ok_or_else(too_few)?;
            left = rest;
            let (range, expected) = (0..len_bytes, expected.to_vec());
            let table = BlockTable::new(range, block_len_bytes, Checksum::Crc32, expected, WORDS)?;
            files.push(Arc::new(SealedFile { name, len_bytes, table: table.labelled(number) }));
        }
        Ok(Self::new(place, files, SAID, None))
    }

    /// A seal or signature with these files.
    pub fn new(place: Place, files: Vec<Arc<SealedFile>>, said: Said, signer: Option<PublicKey>) -> Self {
        let by_name = files.iter().enumerate().map(|(at, file)| (file.name.clone(), at)).collect();
        Self { place, files, said, signer, by_name }
    }

    fn has_any_below(&self, at: &Location) -> bool {
        let below = at.below(&self.place.folder);
        self.files.iter().any(|file| Path::new(&file.name).starts_with(below))
    }

    /// The relation of the seal to a path of its storage.
    pub(super) fn governs(&self, path: &Path) -> Governed<'_> {
        // A reader of a signed checkpoint reads only signed files, in any folder.
        let other = if self.signer.is_some() { Governed::Unlisted } else { Governed::Free };
        let Ok(below) = path.strip_prefix(self.place.folder.path()) else { return other };
        if path == self.place.file.path() {
            return Governed::Free;
        }
        match below.to_str().and_then(|name| self.by_name.get(name)).and_then(|&at| self.files.get(at)) {
            Some(file) => Governed::Listed(file),
            None if self.place.covers_folder => Governed::Unlisted,
            None => other,
        }
    }

    pub(super) fn is_side_file(&self, path: &Path) -> bool {
        let folder = self.place.folder.path();
        let name = path.file_name().and_then(|name| name.to_str());
        path.parent() == Some(folder) && name.is_some_and(is_name_of_side_file)
    }

    /// The sealed files that are missing or have another length, as errors.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn misfits(&self) -> Result<Vec<Error>> {
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
                Ok(Some(
                    (self.said.misfit)().in_file(at).expected(format_args!("{} bytes", file.len_bytes), is),
                ))
            },
            |error: Option<Error>| {
                found.extend(error);
                Ok(())
            },
        )?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regrow_storage::location::ToLocation;

    /// The seal of a checkpoint, of two files of a byte each.
    fn seal(place: Place, signer: Option<PublicKey>) -> Seal {
        let mut document = SealDocument::new("npy", place.covers_folder);
        for name in ["a.data", "a.manifest"] {
            document.push(name.to_owned(), 1, &[7]);
        }
        Seal { signer, ..Seal::of(&document.to_bytes().unwrap(), place).unwrap() }
    }

    #[test]
    fn what_a_seal_and_a_signature_let_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
        let signer = PublicKey::parse(key).unwrap();
        let pair = folder.path().join("a");
        // The seal file, a sealed file, another file in the folder, and a file in another folder.
        let paths = |own: &Place| {
            let at = |name: &str| folder.path().join(name);
            [own.file.path().to_owned(), at("a.data"), at("b.data"), "/elsewhere/a.data".into()]
        };
        for (at, signer, expected) in [
            (folder.path(), None, "free listed unlisted free"),
            (folder.path(), Some(signer), "free listed unlisted unlisted"),
            (&pair, None, "free listed free free"),
            (&pair, Some(signer), "free listed unlisted unlisted"),
        ] {
            let place = Place::of(&at.to_location().unwrap());
            assert_eq!(place.covers_folder, at == folder.path());
            let seal = seal(place, signer);
            let found = paths(&seal.place).map(|path| match seal.governs(&path) {
                Governed::Free => "free",
                Governed::Listed(file) => {
                    assert_eq!(file.name, "a.data");
                    "listed"
                }
                Governed::Unlisted => "unlisted",
            });
            assert_eq!(found.join(" "), expected, "{at:?} {signer:?}");
        }
    }

    #[test]
    fn a_side_file_is_looked_for_where_one_can_be() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| Location::local(folder.path().join(name));
        let read = |place: &Place| place.read("a seal").unwrap();
        // The longest name that a file can have, and one byte more.
        let around = NAMES.beside.0.len() + NAMES.beside.1.len();
        for (extra, is_found) in [(0, true), (1, false)] {
            let place = Place::beside(&at(&"x".repeat(NAME_LEN_MAX_BYTES - around + extra)), NAMES);
            let made = std::fs::write(place.file.path(), b"{}");
            assert_eq!(made.is_ok(), is_found);
            assert_eq!(read(&place).is_some(), is_found);
        }
        // A path below a file or below a missing folder has no seal. This is not an error.
        std::fs::write(folder.path().join("file"), b"").unwrap();
        for name in ["file/x.npz", "nowhere/x.npz"] {
            assert_eq!(read(&Place::beside(&at(name), NAMES)), None, "{name}");
        }
        // A bare name is a name in the working folder, which exists.
        let (before, behind) = NAMES.beside;
        let seal = tempfile::Builder::new().prefix(before).suffix(behind).tempfile_in("").unwrap();
        std::fs::write(seal.path(), b"{}").unwrap();
        let name = seal.path().file_name().unwrap().to_str().unwrap();
        let name = name.strip_prefix(before).unwrap().strip_suffix(behind).unwrap();
        for (name, is_found) in [(name, true), ("an-unused-name", false)] {
            assert_eq!(
                read(&Place::beside(&name.to_location().unwrap(), NAMES)).is_some(),
                is_found,
                "{name}"
            );
        }
    }

    #[test]
    fn files_of_another_length_do_not_fit() {
        let folder = tempfile::tempdir().unwrap();
        let seal = seal(Place::of(&Location::local(folder.path())), None);
        let said = || seal.misfits().unwrap().iter().map(ToString::to_string).collect::<Vec<_>>();
        std::fs::write(folder.path().join("a.data"), b"1").unwrap();
        std::fs::write(folder.path().join("a.manifest"), b"1").unwrap();
        assert_eq!(said(), Vec::<String>::new());
        std::fs::write(folder.path().join("a.data"), b"12").unwrap();
        std::fs::remove_file(folder.path().join("a.manifest")).unwrap();
        let said = said();
        assert!(said.len() == 2 && said[0].contains("2 bytes") && said[1].contains("nothing"), "{said:?}");
        std::fs::create_dir(folder.path().join("a.manifest")).unwrap();
        assert!(seal.misfits().unwrap()[1].to_string().contains("no file"));
    }
}
