//! Reads an npy file, an archive of npy files, or a folder of npy files as a checkpoint.

use bytes::Bytes;

use super::descr::Descr;
use super::detect::{FIRST_LEN_BYTES, ZIP_BEGINNINGS};
use super::header::{Header, MAGIC, PREFIX_LEN_BYTES};
use super::names::SUFFIX;
use super::pytree::{self, Content, Item, Placed, Unreadable};
use super::record::Record;
use super::sidecar::{self, Pointer, Sidecar};
use super::source::{Files, Stored};
use super::walk;
use super::zip::{
    Directory, Inflater, Member, Method, beginning_len_bytes, begins_member, find_members, read_directory,
};
use crate::options::OpenOptions;
use crate::structure::Regrown;
use crate::{ARRAYS_ONLY_HELP, Description, Reader, Rest, Standing};
use regrow_base::bytes::glance::Language;
use regrow_base::bytes::limits::allocate;
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_base::text::counted;
use regrow_storage::Found;
use regrow_storage::location::Location;
use regrow_store::reads::{Source, Text};
use regrow_tree::array::Region;
use regrow_tree::tree::{LeafInfo, Tree};

/// An opened file, archive or folder.
#[derive(Debug)]
pub(super) struct NpyReader {
    description: Description,
    placed: Placed,
    files: Files,
    is_archive: bool,
    /// Whether this is a folder without a stored pytree. False if the caller asked for
    /// `arrays_only`.
    is_of_arrays_alone: bool,
}

impl NpyReader {
    /// Reads the header of every array `at` a location. With `arrays_only`, ignores a stored
    /// pytree. In a salvage, arrays with unreadable headers become leaves without data.
    pub(super) fn open(at: &Location, options: &OpenOptions) -> Result<Self> {
        let arrays_only = options.arrays_only;
        let description = Description { layout: "npy".to_owned(), ..Description::default() };
        if at.is_folder() {
            return Self::open_folder(at, options, description);
        }
        let mut files = Files::new(at.parent().store());
        let (file, file_len_bytes) = files.add(at.name().as_encoded_bytes())?;
        let first = files.read(file, 0, file_len_bytes.min(MAGIC.len() as u64))?;
        if ZIP_BEGINNINGS.iter().any(|beginning| first.starts_with(beginning)) {
            return Self::open_archive(files, file, file_len_bytes, options, description).in_file(at);
        }
        let stored = plain(&files, file, file_len_bytes, arrays_only)
            .and_then(|content| content.map_err(|content| content.why))
            .in_file(at)?;
        let description =
            Description { variant: "one array".to_owned(), notes: vec![no_checksums()], ..description };
        Ok(Self {
            description,
            placed: pytree::single(stored),
            files,
            is_archive: false,
            is_of_arrays_alone: false,
        })
    }

    fn open_folder(at: &Location, options: &OpenOptions, mut description: Description) -> Result<Self> {
        let &OpenOptions { arrays_only, salvage, .. } = options;
        let mut files = Files::new(at.store());
        let mut items = Vec::new();
        for found in walk::npy_files(at)? {
            let (file, len_bytes) = files.add(&found.path)?;
            let content = match plain(&files, file, len_bytes, arrays_only).in_file(files.describe(file)) {
                Err(why) if salvage && why.kind().is_damage() => Err(Unreadable { stored: None, why }),
                content => content?,
            };
            let name = String::from_utf8_lossy(&found.path);
            let name = name.get(..name.len() - SUFFIX.len()).unwrap_or(&name).to_owned();
            items.push(Item { name, keys: found.keys, content });
        }
        description.variant = format!("a folder of {}", counted(items.len(), "array", "arrays"));
        description.notes.push(no_checksums());
        let beside = at.join(sidecar::FILE_NAME);
        let json = if arrays_only || !has_sidecar(&beside)? { None } else { read_sidecar(&beside)? };
        let is_of_arrays_alone = !arrays_only && json.is_none();
        let placed = match json {
            Some(json) => {
                let (regrown, metadata) = Sidecar::read(&json).map_err(or_arrays_only).in_file(&beside)?;
                description.custom_metadata = metadata;
                pytree::kept(regrown, items, salvage.then_some(&*at.describe()), &mut description.notes)
            }
            None => pytree::nested(items, &mut description.notes),
        };
        let placed = placed.in_file(at)?;
        let files = files.for_leaves(&placed.stored)?;
        Ok(Self { description, placed, files, is_archive: false, is_of_arrays_alone })
    }

    fn open_archive(
        files: Files,
        file: usize,
        file_len_bytes: u64,
        options: &OpenOptions,
        mut description: Description,
    ) -> Result<Self> {
        let &OpenOptions { arrays_only, salvage, .. } = options;
        let read = |offset_bytes, len_bytes| files.read(file, offset_bytes, len_bytes);
        let directory = match read_directory(file_len_bytes, &read) {
            Err(error) if salvage && error.kind().is_damage() => {
                pointed_to(find_members(file_len_bytes, &read)?)
            }
            directory => directory?,
        };
        let is_array = |member: &Member| member.name.ends_with(SUFFIX);
        if !directory.members.is_empty() && !directory.members.iter().any(is_array) {
            return Err(Error::unsupported("this zip archive has no arrays of NumPy")
                .expected("names that end in .npy", format_args!("{:?}", directory.members[0].name))
                .help("if another program wrote it, unpack it"));
        }
        let items = directory.members.iter().map(|member| item_of(&files, file, member, salvage));
        let mut items: Vec<Item> = items.collect::<Result<_>>()?;
        let deflated = directory.members.iter().filter(|member| member.method == Method::Deflated).count();
        description.variant = match deflated {
            0 => format!("an archive of {}", counted(items.len(), "array", "arrays")),
            _ => format!(
                "an archive of {}, {deflated} of them deflated",
                counted(items.len(), "array", "arrays")
            ),
        };
        let kept =
            if arrays_only { None } else { kept_in_archive(&directory, &read).map_err(or_arrays_only)? };
        let placed = match kept {
            Some((regrown, metadata)) => {
                description.custom_metadata = metadata;
                pytree::kept(
                    regrown,
                    items,
                    salvage.then_some(&*files.describe(file)),
                    &mut description.notes,
                )?
            }
            None => {
                if !arrays_only {
                    name_bfloat16(&mut items, &mut description.notes)?;
                }
                pytree::nested(items, &mut description.notes)?
            }
        };
        let files = files.for_leaves(&placed.stored)?;
        Ok(Self { description, placed, files, is_archive: true, is_of_arrays_alone: false })
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

    fn source(&self, leaf: usize) -> Result<Source<'_>> {
        if let Some(Unreadable { stored, why }) = self.placed.unreadable.get(&leaf) {
            let help = "`only` selects the other leaves";
            let help = why.help_text().map_or(help.to_owned(), |why| format!("{help}; {why}"));
            return Ok(self.files.unreadable(stored.as_ref(), why.duplicate().help(help)));
        }
        match self.stored(leaf) {
            Ok(stored) => self.files.source(leaf, stored),
            Err(_) => {
                let text = self.placed.texts.get(&leaf);
                Ok(text.map_or(Source::Nothing, |text| Source::Text(Text::Known(text))))
            }
        }
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        if let Some(Unreadable { stored, why }) = self.placed.unreadable.get(&leaf) {
            let why = why.duplicate();
            return Err(match stored {
                Some(stored) => why.in_file(self.files.describe(stored.file)),
                None => why,
            });
        }
        self.files.read_region(leaf, self.stored(leaf)?, region, out)
    }

    fn read_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.placed.tree.len()).collect();
        let place = |leaf: usize| self.placed.stored.get(leaf).and_then(Option::as_ref);
        order.sort_by_key(|&leaf| place(leaf).map(|stored| (stored.file, stored.offset_bytes)));
        order
    }

    fn check_rest(&self) -> Result<Rest> {
        let checks = self.placed.others.iter().map(|(name, stored)| {
            let checked = self.files.check(stored);
            checked.map_err(|error| named(error, &format!("{name}{SUFFIX}")))
        });
        let note = "the file stores no pytree: texts and containers are unknown";
        let note = self.is_of_arrays_alone.then(|| note.to_owned());
        Ok(Rest::noted(note).found(checks.filter_map(Result::err)))
    }

    fn standing(&self) -> Standing<'_> {
        Standing { has_data_checksums: self.is_archive, ..Standing::default() }
    }
}

fn item_of(files: &Files, file: usize, member: &Member, salvage: bool) -> Result<Item> {
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
    let header = member_content(files, &mut stored);
    let content = match header.and_then(|header| check_end(&stored, "member").map(|()| header)) {
        Ok(header) => Ok((stored, header)),
        Err(error) => {
            // Report damage first, before errors about the contents.
            let checked = files.check(&stored).map_err(|error| named(error, &member.name));
            let error =
                checked.err().unwrap_or_else(|| named(error.shift(member.offset_bytes), &member.name));
            match unreadable(error, stored) {
                Err(why) if salvage && why.kind().is_damage() => {
                    Err(Unreadable { stored: None, why: why.in_file(files.describe(file)) })
                }
                unreadable => Err(unreadable?),
            }
        }
    };
    let name = member.name.strip_suffix(SUFFIX).unwrap_or(&member.name).to_owned();
    Ok(Item { keys: vec![name.clone()], name, content })
}

fn plain(files: &Files, file: usize, file_len_bytes: u64, arrays_only: bool) -> Result<Content> {
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
    let header = match member_content(files, &mut stored) {
        Ok(None) => return Err(Error::corrupt("this is not an npy file").at_byte(0)),
        Ok(header) => header,
        Err(error) => return unreadable(error, stored).map(Err),
    };
    if !arrays_only {
        check_end(&stored, "npy file").map_err(or_arrays_only)?;
    }
    Ok(Ok((stored, header)))
}

/// Returns an error if bytes follow an array's data. No reader would use these bytes, and a damaged
/// header may be the cause.
fn check_end(stored: &Stored, what: &str) -> Result<()> {
    let end = stored.data_at.saturating_add(stored.record.len_bytes());
    match end == stored.len_bytes {
        true => Ok(()),
        false => Err(Error::corrupt(format!("the {what} has bytes after its array"))
            .at_byte(end)
            .expected(format_args!("{end} bytes, by its header"), stored.len_bytes)),
    }
}

/// Reads `|V2` as bfloat16, as big_vision does. NumPy writes `|V2` for arrays that it has read as
/// `<V2`, and no other source of `|V2` is known.
fn name_bfloat16(items: &mut [Item], notes: &mut Vec<String>) -> Result<()> {
    let mut count = 0;
    for item in items {
        let Ok((stored, Some(header))) = &mut item.content else { continue };
        if header.descr == (Descr::Void { item_len_bytes: 2, is_nameless: false }) {
            header.descr = Descr::Void { item_len_bytes: 2, is_nameless: true };
            stored.record = Record::of(header)?;
            count += 1;
        }
    }
    if count > 0 {
        let arrays = counted(
            count,
            "array of untyped two-byte elements (V2) is",
            "arrays of untyped two-byte elements (V2) are",
        );
        notes.push(format!("{arrays} read as bfloat16; `arrays_only` keeps the bytes"));
    }
    Ok(())
}

/// Reads the header at the start of a member, and sets the record in `stored`. `None` if the member
/// is not an npy file: then it is bytes. Offsets in errors count from the member's first byte.
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
    // Deflate lengthens data by a few bytes at most. Reading the last byte also needs the end of
    // the deflated data.
    let enough = match len_bytes == stored.len_bytes {
        true => stored.stored_len_bytes,
        false => stored.stored_len_bytes.min(2 * len_bytes + 1024),
    };
    let deflated = files.read(stored.file, stored.offset_bytes, enough)?;
    let mut out = allocate(len_bytes)?;
    Inflater::new(stored.len_bytes, stored.crc32.unwrap_or_default()).read(&deflated, &mut out)?;
    Ok(out.into())
}

/// An array of a kind that cannot be read becomes a leaf without data, with the reason, so that the
/// other arrays can be read. Any other error is returned.
fn unreadable(error: Error, stored: Stored) -> Result<Unreadable> {
    match error.kind() {
        ErrorKind::Unsupported => Ok(Unreadable { stored: Some(stored), why: error }),
        _ => Err(error),
    }
}

fn or_arrays_only(error: Error) -> Error {
    error.help(ARRAYS_ONLY_HELP)
}

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

/// The stored pytree in an archive; `None` for archives of other programs.
fn kept_in_archive(
    directory: &Directory,
    read: &dyn Fn(u64, u64) -> Result<Bytes>,
) -> Result<Option<(Regrown, Option<serde_json::Value>)>> {
    let end = directory.offset_bytes;
    let Some(pointer) = Pointer::from_comment(&directory.comment)? else {
        // No checksum covers the comment, so it may be damaged. A pytree after the last member
        // shows that regrow wrote the archive.
        let beginning_len = beginning_len_bytes(sidecar::FILE_NAME);
        let is_ours = end - directory.members_end_bytes >= beginning_len
            && begins_member(&read(directory.members_end_bytes, beginning_len)?, sidecar::FILE_NAME);
        return match is_ours {
            false => Ok(None),
            true => Err(Error::corrupt("the comment of the archive no longer says where its pytree is")
                .at_byte(directory.members_end_bytes)
                .expected(
                    "a comment that begins \"regrow structure at\"",
                    format_args!("\"{}\"", directory.comment.escape_ascii()),
                )),
        };
    };
    let fits = pointer.offset_bytes.checked_add(pointer.len_bytes).is_some_and(|after| after <= end);
    if !fits || pointer.len_bytes > sidecar::LEN_MAX_BYTES {
        return Err(Error::corrupt("the stored pytree is outside the archive").expected(
            format_args!("an end before byte {end}"),
            format_args!("{} bytes from byte {} on", pointer.len_bytes, pointer.offset_bytes),
        ));
    }
    let json = read(pointer.offset_bytes, pointer.len_bytes)?;
    pointer.check(&json)?;
    Sidecar::read(&json).map(Some)
}

/// Turns members that were found without a directory into a directory. A member with the pytree is
/// removed from the list, and the comment points to it.
fn pointed_to(mut directory: Directory) -> Directory {
    let is_pytree = |member: &Member| member.name == sidecar::FILE_NAME && member.method == Method::Stored;
    if let Some(at) = directory.members.iter().position(is_pytree) {
        let Member { offset_bytes, len_bytes, crc32, .. } = directory.members.remove(at);
        directory.comment = Pointer { offset_bytes, len_bytes, crc32 }.to_comment().into_bytes();
    }
    directory
}

/// Whether a pytree is stored beside the arrays of a folder. If the entry with the pytree's name is
/// not a file, this is an error: without the pytree, the reader would build another tree.
fn has_sidecar(at: &Location) -> Result<bool> {
    let not_a_file = |found: &str| {
        Err(or_arrays_only(
            Error::corrupt("the stored pytree is not a file").in_file(at).expected("a file", found),
        ))
    };
    match at.look() {
        Ok(Some(Found::File { .. })) => Ok(true),
        Ok(Some(Found::Folder)) => not_a_file("a folder"),
        Ok(Some(Found::Other(_))) => not_a_file("something else"),
        Ok(None) | Err(_) if at.is_link() => not_a_file("a broken link"),
        Ok(None) => Ok(false),
        Err(error) => Err(error),
    }
}

fn read_sidecar(at: &Location) -> Result<Option<Vec<u8>>> {
    at.read_document("the kept pytree", Language::Json, sidecar::LEN_MAX_BYTES)
}

fn no_checksums() -> String {
    "npy files have no checksums: regrow cannot detect damage of their data".to_owned()
}
