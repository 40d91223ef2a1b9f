//! An npy file, an archive or a folder of them, as a checkpoint.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::header::{Header, MAGIC, PREFIX_LEN_BYTES};
use super::names::SUFFIX;
use super::pytree::{self, Content, Item, Placed};
use super::record::Record;
use super::sidecar::{self, Pointer, Sidecar};
use super::source::{Files, Stored};
use super::walk;
use super::zip::{Inflater, Method, read_directory};
use crate::array::Region;
use crate::engine::pool;
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::formats::regrow::structure::Regrown;
use crate::formats::{Description, Reader, Sketch};
use crate::monitor::Monitor;
use crate::store::LocalStore;
use crate::tree::{LeafInfo, Tree};

/// How an archive begins: with a member, or with its end if there is none.
const ZIP_BEGINNINGS: [&[u8]; 2] = [b"PK\x03\x04", b"PK\x05\x06"];

/// Below this, threads cost more than they save.
const ALONE_LEN_MAX_BYTES: usize = 4 << 20;

/// As much is read of a file at first: nearly every header is shorter.
const FIRST_LEN_BYTES: u64 = 256;

/// Whether `path` is one of these: by its suffix and first bytes, or by what lies in it.
pub(super) fn is_one(path: &Path) -> Result<bool> {
    if path.is_dir() {
        return walk::is_one(path);
    }
    let suffix = suffix(path);
    if !matches!(suffix.as_deref(), Some("npy" | "npz")) || !path.is_file() {
        return Ok(false);
    }
    let cannot_read = |source| Error::io("cannot read", path, source);
    let mut first = Vec::new();
    let file = File::open(path).map_err(cannot_read)?;
    let file_len = file.metadata().map_err(cannot_read)?.len();
    file.take(FIRST_LEN_BYTES).read_to_end(&mut first).map_err(cannot_read)?;
    Ok(shows_one(suffix.as_deref(), &first, file_len))
}

/// The same for a file that has not been written yet.
pub(super) fn is_sketch_of_one(name: &Path, sketch: &Sketch) -> bool {
    shows_one(suffix(name).as_deref(), &sketch.read_at(0, FIRST_LEN_BYTES), sketch.len_bytes())
}

fn suffix(path: &Path) -> Option<String> {
    path.extension().map(|suffix| suffix.to_string_lossy().to_ascii_lowercase())
}

/// Whether a file is one of these by its suffix and first bytes.
fn shows_one(suffix: Option<&str>, first: &[u8], file_len: u64) -> bool {
    match suffix {
        Some("npz") => ZIP_BEGINNINGS.iter().any(|beginning| first.starts_with(beginning)),
        Some("npy") => {
            // More records behind the first: a stream of leaves, which is another layout's.
            let ends = Header::parse(first)
                .ok()
                .and_then(|(header, len)| Some((len as u64).saturating_add(header.data_len_bytes().ok()?)));
            first.starts_with(&MAGIC) && ends.is_none_or(|end| end >= file_len)
        }
        _ => false,
    }
}

/// An opened file, archive or folder.
#[derive(Debug)]
pub(super) struct NpyReader {
    description: Description,
    placed: Placed,
    files: Files,
    is_archive: bool,
}

impl NpyReader {
    /// Reads the header of every array at `path`.
    ///
    /// # Errors
    /// `Corrupt`, `Unsupported`, `Limit`; `NameCollision` for two arrays of one name.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let description = Description { layout: "npy".to_owned(), ..Description::default() };
        if path.is_dir() {
            return Self::open_folder(path, description);
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut files = Files::new(LocalStore::new(folder.unwrap_or(Path::new("."))));
        let (file, file_len_bytes) = files.add(path.file_name().unwrap_or_default().as_bytes())?;
        let first = files.read(file, 0, file_len_bytes.min(MAGIC.len() as u64))?;
        if ZIP_BEGINNINGS.iter().any(|beginning| first.starts_with(beginning)) {
            return Self::open_archive(files, file, file_len_bytes, description).in_file(path);
        }
        let stored = plain(&files, file, file_len_bytes).in_file(path)?;
        Ok(Self {
            description: Description {
                variant: "one array".to_owned(),
                notes: vec![no_checksums()],
                ..description
            },
            placed: pytree::single(stored),
            files,
            is_archive: false,
        })
    }

    fn open_folder(path: &Path, mut description: Description) -> Result<Self> {
        let mut files = Files::new(LocalStore::new(path));
        let mut items = Vec::new();
        for found in walk::npy_files(path)? {
            let (file, len_bytes) = files.add(&found.path)?;
            let content = plain(&files, file, len_bytes).in_file(files.describe(file));
            let name = String::from_utf8_lossy(&found.path);
            let name = name.get(..name.len() - SUFFIX.len()).unwrap_or(&name).to_owned();
            items.push(Item { name, keys: found.keys, content: known_or_not(content)? });
        }
        description.variant = format!("a folder of {} arrays", items.len());
        description.notes.push(no_checksums());
        let sidecar_path = path.join(sidecar::FILE_NAME);
        let placed = match read_sidecar(&sidecar_path)? {
            Some(json) => {
                let (regrown, metadata) = Sidecar::read(&json).in_file(&sidecar_path)?;
                description.custom_metadata = metadata;
                pytree::kept(regrown, items, &mut description.notes)
            }
            None => pytree::nested(items, &mut description.notes),
        };
        Ok(Self { description, placed: placed.in_file(path)?, files, is_archive: false })
    }

    fn open_archive(
        files: Files,
        file: usize,
        file_len_bytes: u64,
        mut description: Description,
    ) -> Result<Self> {
        let read = |offset_bytes, len_bytes| files.read(file, offset_bytes, len_bytes);
        let directory = read_directory(file_len_bytes, &read)?;
        let mut items = Vec::with_capacity(directory.members.len());
        let mut deflated = 0;
        for member in &directory.members {
            let mut stored = Stored {
                file,
                offset_bytes: member.offset_bytes,
                stored_len_bytes: member.stored_len_bytes,
                method: member.method,
                crc32: Some(member.crc32),
                len_bytes: member.len_bytes,
                data_at: 0,
                record: Record::of_bytes(member.len_bytes)?,
            };
            deflated += usize::from(member.method == Method::Deflated);
            let content = member_content(&files, &mut stored)
                .map(|header| (stored, header))
                .map_err(|error| named(error, &member.name).shift(member.offset_bytes));
            let name = member.name.strip_suffix(SUFFIX).unwrap_or(&member.name).to_owned();
            items.push(Item { keys: vec![name.clone()], name, content: known_or_not(content)? });
        }
        description.variant = match deflated {
            0 => format!("an archive of {} arrays", items.len()),
            _ => format!("an archive of {} arrays, {deflated} of them deflated", items.len()),
        };
        let kept = match Pointer::from_comment(&directory.comment) {
            Some(pointer) => match kept_in_archive(&pointer, directory.offset_bytes, &read) {
                Ok(kept) => Some(kept),
                Err(error) => {
                    let note = format!("its pytree cannot be read, only its arrays: {}", error.what());
                    description.notes.push(note);
                    None
                }
            },
            None => None,
        };
        let placed = match kept {
            Some((regrown, metadata)) => {
                description.custom_metadata = metadata;
                pytree::kept(regrown, items, &mut description.notes)?
            }
            None => pytree::nested(items, &mut description.notes)?,
        };
        Ok(Self { description, placed, files, is_archive: true })
    }

    fn stored(&self, leaf: usize) -> Result<&Stored> {
        let stored = self.placed.stored.get(leaf).and_then(Option::as_ref);
        stored.ok_or_else(|| Error::invalid("the leaf has no elements that can be read"))
    }
}

impl Reader for NpyReader {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tree(&self) -> &Tree<LeafInfo> {
        &self.placed.tree
    }

    fn read_text(&self, leaf: usize) -> Result<Arc<str>> {
        self.placed.texts.get(&leaf).cloned().ok_or_else(|| Error::invalid("the leaf is no text"))
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        self.files.read_region(leaf, self.stored(leaf)?, region, out)
    }

    fn working_len_bytes(&self, leaf: usize, band_len_bytes: u64) -> u64 {
        match self.placed.stored.get(leaf) {
            Some(Some(stored)) => stored.working_len_bytes(band_len_bytes),
            _ => band_len_bytes,
        }
    }

    fn view(&self, leaf: usize) -> Result<Option<Bytes>> {
        match self.placed.stored.get(leaf) {
            Some(Some(stored)) => self.files.view(stored),
            _ => Ok(None),
        }
    }

    fn check_view(&self, leaf: usize) -> Result<()> {
        self.files.check(self.stored(leaf)?)
    }

    /// Members of archives, one a thread: a checksum is of all of one.
    fn read_raw<'a>(
        &self,
        leaves: Vec<(usize, &'a mut [u8])>,
        unverified: bool,
        monitor: &Monitor,
    ) -> Result<Vec<(usize, &'a mut [u8])>> {
        let is_raw_member = |&(leaf, ref out): &(usize, &mut [u8])| {
            let is_raw = |stored: &&Stored| stored.is_raw() && stored.record.len_bytes() == out.len() as u64;
            self.is_archive && self.stored(leaf).ok().filter(is_raw).is_some()
        };
        let (members, others): (Vec<_>, Vec<_>) = leaves.into_iter().partition(is_raw_member);
        let len_bytes: usize = members.iter().map(|(_, out)| out.len()).sum();
        let threads = if len_bytes < ALONE_LEN_MAX_BYTES { 1 } else { pool::thread_count() };
        pool::for_each_parallel(
            threads,
            members,
            1,
            |_| 0,
            |(leaf, out)| {
                let read = self.files.read_raw(self.stored(leaf)?, out, unverified, monitor);
                read.map_err(|error| error.at_leaf(&self.placed.tree.path_of(leaf)))
            },
        )?;
        Ok(others)
    }

    fn read_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.placed.tree.len()).collect();
        let place = |leaf: usize| self.placed.stored.get(leaf).and_then(Option::as_ref);
        order.sort_by_key(|&leaf| place(leaf).map(|stored| (stored.file, stored.offset_bytes)));
        order
    }

    fn has_data_checksums(&self) -> bool {
        self.is_archive
    }
}

/// A file that is one array.
fn plain(files: &Files, file: usize, file_len_bytes: u64) -> Result<(Stored, Option<Header>)> {
    let mut stored = Stored {
        file,
        offset_bytes: 0,
        stored_len_bytes: file_len_bytes,
        method: Method::Stored,
        crc32: None,
        len_bytes: file_len_bytes,
        data_at: 0,
        record: Record::of_bytes(file_len_bytes)?,
    };
    let header = member_content(files, &mut stored)?;
    match header {
        Some(_) => Ok((stored, header)),
        None => Err(Error::corrupt("this is no npy file").at_byte(0)),
    }
}

/// Reads the header at the start of a member, and says in `stored` what its data is; `None` if it is no npy file,
/// and its data just bytes. Errors count from its first byte.
fn member_content(files: &Files, stored: &mut Stored) -> Result<Option<Header>> {
    let mut first = front(files, stored, stored.len_bytes.min(FIRST_LEN_BYTES))?;
    if !first.starts_with(&MAGIC) {
        return Ok(None);
    }
    let header_len = Header::len_bytes(&first)?;
    if header_len > first.len() {
        if header_len as u64 > stored.len_bytes {
            return Err(cut_short(header_len as u64, stored.len_bytes));
        }
        first = front(files, stored, header_len as u64)?;
    }
    let (header, data_at) = Header::parse(&first)?;
    let end = (data_at as u64).saturating_add(header.data_len_bytes()?);
    if end > stored.len_bytes {
        return Err(cut_short(end, stored.len_bytes));
    }
    stored.record = Record::of(&header)?;
    stored.data_at = data_at as u64;
    Ok(Some(header))
}

fn cut_short(expected: u64, found: u64) -> Error {
    Error::corrupt("an npy file is shorter than its header says")
        .at_byte(found)
        .expected(format_args!("{expected} bytes"), found)
        .help("it was cut short; copy it again")
}

/// The first bytes of a member, unpacked.
fn front(files: &Files, stored: &Stored, len_bytes: u64) -> Result<Bytes> {
    debug_assert!(
        len_bytes
            <= FIRST_LEN_BYTES.max(super::header::HEADER_LEN_MAX_BYTES as u64 + PREFIX_LEN_BYTES as u64)
    );
    if stored.method == Method::Stored {
        return files.read(stored.file, stored.offset_bytes, len_bytes);
    }
    // Deflate makes nothing longer by more than a few bytes; its end is asked for with the last byte.
    let enough = match len_bytes == stored.len_bytes {
        true => stored.stored_len_bytes,
        false => stored.stored_len_bytes.min(2 * len_bytes + 1024),
    };
    let deflated = files.read(stored.file, stored.offset_bytes, enough)?;
    let mut out = vec![0; len_bytes as usize];
    Inflater::new(stored.len_bytes, stored.crc32.unwrap_or_default()).read(&deflated, &mut out)?;
    Ok(out.into())
}

/// An array that cannot be read does not keep the others from it: it becomes a leaf without data, with the reason.
fn known_or_not(content: Result<(Stored, Option<Header>)>) -> Result<Content> {
    match content {
        Ok(content) => Ok(Ok(content)),
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Err(Arc::from(error.what()))),
        Err(error) => Err(error),
    }
}

/// The error with the member's name in it.
fn named(error: Error, member: &str) -> Error {
    let what = format!("{} (member {member:?})", error.what());
    let mut out = Error::new(error.kind(), what);
    if let Some((expected, found)) = error.expected_found() {
        out = out.expected(expected, found);
    }
    if let Some(at) = error.place().offset_bytes {
        out = out.at_byte(at);
    }
    if let Some(help) = error.help_text() {
        out = out.help(help);
    }
    out
}

fn kept_in_archive(
    pointer: &Pointer,
    end: u64,
    read: &dyn Fn(u64, u64) -> Result<Bytes>,
) -> Result<(Regrown, Option<serde_json::Value>)> {
    let fits = pointer.offset_bytes.checked_add(pointer.len_bytes).is_some_and(|after| after <= end);
    if !fits || pointer.len_bytes > sidecar::LEN_MAX_BYTES {
        return Err(Error::corrupt("the kept pytree does not lie in the archive"));
    }
    let json = read(pointer.offset_bytes, pointer.len_bytes)?;
    pointer.check(&json)?;
    Sidecar::read(&json)
}

fn read_sidecar(path: &Path) -> Result<Option<Vec<u8>>> {
    let cannot_read = |source| Error::io("cannot read", path, source);
    let len_bytes = match std::fs::metadata(path) {
        Ok(found) => found.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(cannot_read(error)),
    };
    if len_bytes > sidecar::LEN_MAX_BYTES {
        return Err(Error::new(ErrorKind::Limit, "the kept pytree is too large")
            .in_file(path)
            .expected(format_args!("at most {} bytes", sidecar::LEN_MAX_BYTES), len_bytes));
    }
    std::fs::read(path).map(Some).map_err(cannot_read)
}

fn no_checksums() -> String {
    "npy files have no checksums: damage to their data goes unseen".to_owned()
}
