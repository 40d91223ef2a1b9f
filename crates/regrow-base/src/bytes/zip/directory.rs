//! Reads the members of an archive from its end record and its directory.

use bytes::Bytes;

use super::{
    CENTRAL, CENTRAL_LEN_BYTES, DEFLATE_RATIO_MAX, END, END_LEN_BYTES, END64, END64_LEN_BYTES, END64_LOCATOR,
    END64_LOCATOR_LEN_BYTES, EXTRA_ZIP64, FLAG_UTF8, FLAGS_UNREADABLE, LOCAL, LOCAL_LEN_BYTES, Method,
};
use crate::bytes::Cursor;
use crate::error::{Error, ErrorKind, Result};
use crate::text::counted;

/// Longest directory that is read; enough for ten million members.
const DIRECTORY_LEN_MAX_BYTES: u64 = 1 << 30;

const DIRECTORY_PIECE_LEN_BYTES: u64 = 4 << 20;

/// Longest header of a directory: name, extra field and comment have 16 bits for their lengths.
const HEADER_LEN_MAX_BYTES: usize = CENTRAL_LEN_BYTES + 3 * u16::MAX as usize;

/// Longest comment at the end of an archive: its length has 16 bits.
const COMMENT_LEN_MAX_BYTES: usize = u16::MAX as usize;

/// The last version of the zip specification, times ten. Python refuses members that need a later
/// one.
const VERSION_MAX: u8 = 63;

/// A field with this value has its number in the zip64 extra field.
pub(super) const IN_ZIP64: u32 = u32::MAX;

/// The members of an archive.
#[derive(Debug)]
pub struct Directory {
    /// The members in the order of the directory, without folders.
    pub members: Vec<Member>,
    /// The comment at the end of the archive.
    pub comment: Vec<u8>,
    /// The end of the last member.
    pub members_end_bytes: u64,
    /// The beginning of the directory. All members lie before it.
    pub offset_bytes: u64,
}

/// One member. Its data lies before the directory, and does not overlap other members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The name of the member in the archive.
    pub name: String,
    /// The compression of its bytes.
    pub method: Method,
    /// The checksum of the uncompressed content.
    pub crc32: u32,
    /// The length in the archive, compressed.
    pub stored_len_bytes: u64,
    /// The length after decompression.
    pub len_bytes: u64,
    /// The offset of the member's local header.
    pub header_offset_bytes: u64,
    /// The offset of the member's data.
    pub offset_bytes: u64,
}

/// Reads the directory of an archive of `file_len_bytes` bytes. `read` returns `len` bytes from an
/// offset on.
///
/// # Errors
/// `Corrupt`; `Unsupported` for features that no `.npz` file uses (encryption, other methods,
/// several disks); `Limit`.
pub fn read_directory(file_len_bytes: u64, read: &dyn Fn(u64, u64) -> Result<Bytes>) -> Result<Directory> {
    let listed = read_headers(file_len_bytes, read)?;
    let mut members = Vec::with_capacity(listed.headers.len());
    for header in listed.headers {
        let at = header.member.header_offset_bytes;
        members.push(header.find_data(listed.offset_bytes, read).map_err(|error| error.shift(at))?);
    }
    refuse_overlaps(&members)?;
    let ends = members.iter().map(|member| member.offset_bytes + member.stored_len_bytes);
    let members_end_bytes = ends.max().unwrap_or(0);
    Ok(Directory { members, comment: listed.comment, members_end_bytes, offset_bytes: listed.offset_bytes })
}

/// Reads only the directory. [`Header::find_data`] later finds the beginning of a member's data.
pub fn read_headers(file_len_bytes: u64, read: &dyn Fn(u64, u64) -> Result<Bytes>) -> Result<Headers> {
    let end = find_end(file_len_bytes, read)?;
    let fits = end.offset_bytes.checked_add(end.len_bytes).is_some_and(|after| after <= end.at);
    if !fits || end.count > end.len_bytes / CENTRAL_LEN_BYTES as u64 {
        return Err(Error::corrupt("the directory of a zip archive does not fit in its file")
            .at_byte(end.at)
            .expected(
                format_args!("{} members before byte {}", end.count, end.at),
                format_args!("{} bytes from byte {}", end.len_bytes, end.offset_bytes),
            )
            .help("the file was cut short or something was put before it; copy it again"));
    }
    if end.len_bytes > DIRECTORY_LEN_MAX_BYTES {
        return Err(Error::new(ErrorKind::Limit, "the directory of a zip archive is too long")
            .expected(format_args!("at most {DIRECTORY_LEN_MAX_BYTES} bytes"), end.len_bytes));
    }
    let mut headers = Vec::new();
    // Read the directory in pieces, so that garbage is refused early. Each piece begins at a
    // header.
    let (mut at, mut left) = (0, end.count);
    while at < end.len_bytes {
        let base = end.offset_bytes + at;
        let len_bytes = DIRECTORY_PIECE_LEN_BYTES.min(end.len_bytes - at);
        let is_last = at + len_bytes == end.len_bytes;
        let bytes = read(base, len_bytes)?;
        let mut input = Cursor::new(&bytes);
        while left > 0 && (is_last || input.remaining_bytes() >= HEADER_LEN_MAX_BYTES) {
            headers.extend(central_header(&mut input).map_err(|error| error.shift(base))?);
            left -= 1;
        }
        if left == 0 {
            let rest = end.len_bytes - at - input.offset_bytes();
            if rest > 0 {
                return Err(Error::corrupt(format!(
                    "{} left over after the directory of a zip archive",
                    counted(rest, "byte is", "bytes are")
                ))
                .at_byte(base + input.offset_bytes()));
            }
        }
        at += input.offset_bytes();
    }
    Ok(Headers { headers, comment: end.comment, offset_bytes: end.offset_bytes })
}

/// The entries of the directory.
#[derive(Debug)]
pub struct Headers {
    /// The headers in the order of the directory, without folders.
    pub headers: Vec<Header>,
    /// The comment at the end of the archive.
    pub comment: Vec<u8>,
    /// The beginning of the directory. All members lie before it.
    pub offset_bytes: u64,
}

/// A member according to the directory, with the original bytes of its name. The beginning of its
/// data is not known yet.
#[derive(Debug, Clone)]
pub struct Header {
    /// The member; its `offset_bytes` is not valid yet.
    pub member: Member,
    pub(super) raw_name: Vec<u8>,
    pub(super) flags: u16,
}

impl Header {
    /// The bytes of the name in the archive. Many programs write UTF-8 without setting the flag.
    pub fn raw_name(&self) -> &[u8] {
        &self.raw_name
    }

    /// The smallest length of the member in the archive. Its local header may be longer than
    /// assumed here.
    pub fn len_min_bytes(&self) -> u64 {
        self.member.stored_len_bytes.saturating_add((LOCAL_LEN_BYTES + self.raw_name.len()) as u64)
    }

    /// Finds the beginning of the member's data. Checks that the data ends before `end_bytes`,
    /// usually the offset of the directory, and that both headers have the same name, because no
    /// checksum covers the names.
    ///
    /// Returns `Corrupt` for headers that differ. Offsets in errors count from the member's local
    /// header.
    pub fn find_data(self, end_bytes: u64, read: &dyn Fn(u64, u64) -> Result<Bytes>) -> Result<Member> {
        let Self { mut member, raw_name, flags } = self;
        let outside =
            || Error::corrupt("a member of a zip archive is not in front of the directory").at_byte(0);
        let header_len_bytes = (LOCAL_LEN_BYTES + raw_name.len()) as u64;
        let header_end = member.header_offset_bytes.checked_add(header_len_bytes);
        if header_end.is_none_or(|end| end > end_bytes) {
            return Err(outside());
        }
        let bytes = read(member.header_offset_bytes, header_len_bytes)?;
        let mut input = Cursor::new(&bytes);
        if input.array::<4>("a member's header")? != LOCAL {
            return Err(Error::corrupt("a member of a zip archive is not at its position in the directory")
                .at_byte(0));
        }
        input.take(2, "the version")?;
        let own_flags = u16le(&mut input)?;
        input.take(LOCAL_LEN_BYTES - LOCAL.len() - 8, "a member's header")?;
        let (name_len, extra_len) = (u16le(&mut input)?, u16le(&mut input)?);
        let is_same_name = usize::from(name_len) == raw_name.len() && input.rest() == raw_name;
        // The flag gives the encoding of the name, which matters only for names that are not ASCII.
        let is_same_coding = raw_name.is_ascii() || (flags ^ own_flags) & FLAG_UTF8 == 0;
        if !is_same_name || !is_same_coding {
            let found = input.rest().escape_ascii().to_string();
            return Err(Error::corrupt("the name of a member of a zip archive differs from the directory")
                .at_byte(0)
                .expected(
                    format_args!("{:?}", member.name),
                    format_args!("\"{found}\", {name_len} bytes long"),
                )
                .help("the name was damaged in one of the two places; copy the file again"));
        }
        let start = member
            .header_offset_bytes
            .checked_add(header_len_bytes + u64::from(extra_len))
            .ok_or_else(outside)?;
        let end = start.checked_add(member.stored_len_bytes).ok_or_else(outside)?;
        if end > end_bytes {
            return Err(outside().expected(format_args!("an end before byte {end_bytes}"), end));
        }
        member.offset_bytes = start;
        Ok(member)
    }
}

/// The content of an archive's end record.
struct End {
    /// The offset of the record; with zip64, the offset of the zip64 end record.
    at: u64,
    count: u64,
    len_bytes: u64,
    offset_bytes: u64,
    comment: Vec<u8>,
}

fn find_end(file_len_bytes: u64, read: &dyn Fn(u64, u64) -> Result<Bytes>) -> Result<End> {
    let not_zip = || {
        Error::corrupt("a zip archive has no end record")
            .at_byte(file_len_bytes)
            .help("the file was cut short; copy it again")
    };
    let tail_len = file_len_bytes.min((END_LEN_BYTES + COMMENT_LEN_MAX_BYTES) as u64);
    let tail_at = file_len_bytes - tail_len;
    let tail = read(tail_at, tail_len)?;
    // Search from the back for the first record whose comment ends where the file ends.
    let is_end = |at: &usize| {
        let mut input = Cursor::new(tail.get(*at..).unwrap_or_default());
        let has_mark = input.array::<4>("").is_ok_and(|mark| mark == END);
        let comment = has_mark.then(|| input.take(END_LEN_BYTES - 6, "").and_then(|_| input.array("")));
        matches!(comment, Some(Ok(len)) if input.remaining_bytes() == usize::from(u16::from_le_bytes(len)))
    };
    let last = tail.len().checked_sub(END_LEN_BYTES).ok_or_else(not_zip)?;
    let start = (0..=last).rev().find(is_end).ok_or_else(not_zip)?;
    let mut input = Cursor::new(tail.get(start..).unwrap_or_default());
    let at = tail_at + start as u64;
    let mut end = plain_end(&mut input, at).map_err(|error| error.shift(at))?;
    let needs_zip64 = end.count == u64::from(u16::MAX)
        || end.len_bytes == u64::from(IN_ZIP64)
        || end.offset_bytes == u64::from(IN_ZIP64);
    if needs_zip64 && let Some(locator_at) = at.checked_sub(END64_LOCATOR_LEN_BYTES as u64) {
        let locator = read(locator_at, END64_LOCATOR_LEN_BYTES as u64)?;
        let mut input = Cursor::new(&locator);
        // Without a locator, the numbers of the plain record count.
        if input.array::<4>("a zip64 locator")? == END64_LOCATOR {
            refuse_disks(input.u32le("a disk number")? == 0, locator_at)?;
            let end64_at = input.u64le("the offset of the zip64 end")?;
            let fits = end64_at.checked_add(END64_LEN_BYTES as u64).is_some_and(|after| after <= locator_at);
            if !fits {
                return Err(Error::corrupt("the zip64 end of an archive is not before its locator")
                    .at_byte(locator_at)
                    .expected(format_args!("before byte {locator_at}"), end64_at));
            }
            let bytes = read(end64_at, END64_LEN_BYTES as u64)?;
            let comment = std::mem::take(&mut end.comment);
            end = zip64_end(&bytes, end64_at, comment).map_err(|error| error.shift(end64_at))?;
        }
    }
    Ok(end)
}

fn plain_end(input: &mut Cursor<'_>, at: u64) -> Result<End> {
    input.take(END.len(), "the mark")?;
    let disks = (u16le(input)?, u16le(input)?);
    let (count_here, count) = (u16le(input)?, u16le(input)?);
    refuse_disks(disks == (0, 0) && count_here == count, at)?;
    let len_bytes = input.u32le("the length of the directory")?.into();
    let offset_bytes = input.u32le("the offset of the directory")?.into();
    let comment_len = u16le(input)?;
    let comment = input.take(comment_len.into(), "the comment")?.to_vec();
    Ok(End { at, count: count.into(), len_bytes, offset_bytes, comment })
}

fn zip64_end(bytes: &[u8], at: u64, comment: Vec<u8>) -> Result<End> {
    let mut input = Cursor::new(bytes);
    if input.array::<4>("the mark")? != END64 {
        return Err(
            Error::corrupt("the zip64 end of an archive is not at the position of its locator").at_byte(0)
        );
    }
    input.u64le("the length of the zip64 end")?;
    input.take(4, "the versions")?;
    let disks = (input.u32le("a disk number")?, input.u32le("a disk number")?);
    let (count_here, count) = (input.u64le("the count")?, input.u64le("the count")?);
    refuse_disks(disks == (0, 0) && count_here == count, at)?;
    let len_bytes = input.u64le("the length of the directory")?;
    let offset_bytes = input.u64le("the offset of the directory")?;
    Ok(End { at, count, len_bytes, offset_bytes, comment })
}

fn refuse_disks(is_whole: bool, at: u64) -> Result<()> {
    match is_whole {
        true => Ok(()),
        false => Err(Error::unsupported("regrow does not read zip archives of several disks").at_byte(at)),
    }
}

fn central_header(input: &mut Cursor<'_>) -> Result<Option<Header>> {
    let at = input.offset_bytes();
    if input.array::<4>("a header of the directory")? != CENTRAL {
        return Err(Error::corrupt("the directory of a zip archive is damaged").at_byte(at));
    }
    let versions = input.array::<4>("the versions")?;
    let flags = u16le(input)?;
    let method_code = u16le(input)?;
    input.take(4, "the date")?;
    let crc32 = input.u32le("the checksum")?;
    let stored_len = input.u32le("the stored length")?;
    let len = input.u32le("the length")?;
    let (name_len, extra_len, comment_len) = (u16le(input)?, u16le(input)?, u16le(input)?);
    let disk = u16le(input)?;
    input.take(6, "the attributes")?;
    let offset = input.u32le("the offset")?;
    let raw_name = input.take(name_len.into(), "a name")?;
    let extra = input.take(extra_len.into(), "an extra field")?;
    input.take(comment_len.into(), "a comment")?;
    let name = name_of(raw_name, flags).map_err(|error| error.at_byte(at))?;
    if versions[2] > VERSION_MAX {
        return Err(Error::unsupported(format!("the member {name:?} of a zip archive needs a newer reader"))
            .at_byte(at)
            .expected(format_args!("at most version {VERSION_MAX}"), versions[2]));
    }
    // regrow cannot read patches and encrypted members.
    if flags & FLAGS_UNREADABLE != 0 {
        return Err(
            Error::unsupported(format!("the member {name:?} of a zip archive is encrypted")).at_byte(at)
        );
    }
    let method = method_of(method_code).ok_or_else(|| {
        Error::unsupported(format!("the member {name:?} of a zip archive is of method {method_code}"))
            .at_byte(at)
            .expected("0 (stored) or 8 (deflated)", method_code)
    })?;
    refuse_disks(disk == 0 || disk == u16::MAX, at)?;
    let mut zip64 = zip64_extra(extra)?;
    let mut wide = |narrow: u32| match narrow {
        IN_ZIP64 if !zip64.is_empty() => zip64.u64le("a number of the zip64 extra"),
        narrow => Ok(narrow.into()),
    };
    let len_bytes = wide(len)?;
    let stored_len_bytes = wide(stored_len)?;
    let header_offset_bytes = wide(offset)?;
    if name.ends_with('/') && len_bytes == 0 {
        return Ok(None);
    }
    let possible = match method {
        Method::Stored => len_bytes == stored_len_bytes,
        Method::Deflated => len_bytes <= stored_len_bytes.saturating_mul(DEFLATE_RATIO_MAX),
    };
    if !possible {
        return Err(Error::corrupt(format!(
            "the length of member {name:?} of a zip archive is not possible"
        ))
        .at_byte(at)
        .expected(format_args!("what {stored_len_bytes} bytes can hold"), len_bytes));
    }
    let offset_bytes = 0;
    let member =
        Member { name, method, crc32, stored_len_bytes, len_bytes, header_offset_bytes, offset_bytes };
    Ok(Some(Header { member, raw_name: raw_name.to_vec(), flags }))
}

/// The name of the first member of an archive that begins with the bytes `first`. `None` if `first`
/// does not begin an archive, or ends within the name.
pub fn first_member(first: &[u8]) -> Option<&[u8]> {
    let mut input = Cursor::new(first.strip_prefix(b"PK\x03\x04")?);
    input.take(22, "").ok()?;
    let len = u16::from_le_bytes(input.array("").ok()?);
    input.take(2, "").ok()?;
    input.take(len.into(), "").ok()
}

pub(super) fn method_of(code: u16) -> Option<Method> {
    match code {
        0 => Some(Method::Stored),
        8 => Some(Method::Deflated),
        _ => None,
    }
}

/// The content of the zip64 extra field; empty if there is no such field.
pub(super) fn zip64_extra(extra: &[u8]) -> Result<Cursor<'_>> {
    let mut input = Cursor::new(extra);
    // Some writers end extras with a few stray bytes; ignore bytes that are not a field.
    while input.remaining_bytes() >= 4 {
        let (id, len) = (u16le(&mut input)?, u16le(&mut input)?);
        let Ok(field) = input.take(len.into(), "an extra field") else { break };
        if id == EXTRA_ZIP64 {
            return Ok(Cursor::new(field));
        }
    }
    Ok(Cursor::new(&[]))
}

/// Whether a member of this name begins with these bytes.
pub fn begins_member(bytes: &[u8], name: &str) -> bool {
    bytes.starts_with(&LOCAL) && bytes.get(LOCAL_LEN_BYTES..) == Some(name.as_bytes())
}

/// Number of bytes that [`begins_member`] compares.
pub fn beginning_len_bytes(name: &str) -> u64 {
    (LOCAL_LEN_BYTES + name.len()) as u64
}

fn refuse_overlaps(members: &[Member]) -> Result<()> {
    let mut order: Vec<&Member> = members.iter().collect();
    order.sort_by_key(|member| member.header_offset_bytes);
    for pair in order.windows(2) {
        if let [first, second] = pair
            && first.offset_bytes + first.stored_len_bytes > second.header_offset_bytes
        {
            return Err(Error::corrupt(format!(
                "the members {:?} and {:?} of a zip archive overlap",
                first.name, second.name
            ))
            .at_byte(second.header_offset_bytes));
        }
    }
    Ok(())
}

pub(super) fn name_of(raw: &[u8], flags: u16) -> Result<String> {
    if flags & FLAG_UTF8 != 0 {
        return match std::str::from_utf8(raw) {
            Ok(name) => Ok(name.to_owned()),
            Err(_) => {
                Err(Error::corrupt(format!("the name {:?} is not UTF-8", raw.escape_ascii().to_string())))
            }
        };
    }
    let high: Vec<char> = CODE_PAGE_437_HIGH.chars().collect();
    Ok(raw
        .iter()
        .map(|&byte| match byte.checked_sub(0x80) {
            None => char::from(byte),
            Some(at) => high.get(usize::from(at)).copied().unwrap_or('\u{fffd}'),
        })
        .collect())
}

/// Characters 0x80 to 0xff of IBM's code page 437, the encoding of names without the UTF-8 flag.
const CODE_PAGE_437_HIGH: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";

pub(super) fn u16le(input: &mut Cursor<'_>) -> Result<u16> {
    input.array("a number of a zip archive").map(u16::from_le_bytes)
}
