//! The members of a tar archive, header by header: v7, ustar, GNU and pax.
//!
//! ```text
//! | header, 512 bytes | data, filled up to 512 | header | data | ... | zeros: at least one block, to the end |
//!
//! header   0 name   124 size   148 checksum   156 type   157 link   257 ustar   345 prefix
//! ```
//! There is no directory: each header leads to the next one. Special members can describe the next
//! member:
//!
//! | type | says |
//! |---|---|
//! | `x` | pax records, `len key=value\n`: path, linkpath, size |
//! | `L`, `K` | GNU's long name, long link |
//! | `g` | pax records for all following members; records that move or rename members are refused |
//!
//! If two members have one name, the later one counts, because tar updates archives in this way. A
//! hard link is the member that it refers to. An archive without its end mark was truncated: the
//! missing members are unknown, so it is refused.
//!
//! Source: POSIX.1-2024, pax, "ustar Interchange Format" and "pax Header Block"; GNU tar manual,
//! "Basic Tar Format".

use super::index::{Index, Member, Place, Value, clean};
use super::window::Window;
use crate::error::{Error, ErrorKind, Result};
use crate::store::Blob;

/// Headers and data begin at multiples of this length.
pub(super) const BLOCK_LEN_BYTES: u64 = 512;

/// Longest pax header, long name or long link.
const EXTRA_LEN_MAX_BYTES: u64 = 1 << 20;

/// How many bytes after the end mark are checked to be zero.
const AFTER_END_LEN_MAX_BYTES: u64 = 1 << 20;

const NAME: (usize, usize) = (0, 100);
const SIZE: (usize, usize) = (124, 12);
const CHECKSUM: (usize, usize) = (148, 8);
const TYPE: usize = 156;
const LINK: (usize, usize) = (157, 100);
const MAGIC: (usize, usize) = (257, 5);
const VERSION: usize = 262;
const PREFIX: (usize, usize) = (345, 155);
/// GNU's sparse files: the bytes that say whether another block of the map follows. `IS_EXTENDED`
/// is its position in the header, `IS_EXTENDED_FURTHER` its position in each block of the map.
const IS_EXTENDED: usize = 482;
const IS_EXTENDED_FURTHER: usize = 504;

const USTAR: &[u8] = b"ustar";

/// Whether these 512 bytes can begin a tar archive: they are a header, possibly a damaged one.
pub(super) fn begins(bytes: &[u8]) -> bool {
    let Some(block) = bytes.get(..BLOCK_LEN_BYTES as usize) else { return false };
    field(block, MAGIC) == USTAR || !is_zero(block) && has_checksum(block).is_ok()
}

pub(super) fn read_index(blob: &dyn Blob) -> Result<Index> {
    let mut input = Window::new(blob);
    let (mut index, mut extra, mut at) = (Index::default(), Extra::default(), 0);
    loop {
        if at == input.len_bytes() {
            return Err(cut_short(at, "the end mark, a block of zeros"));
        }
        let block = input.read(at, BLOCK_LEN_BYTES)?.to_vec();
        if is_zero(&block) {
            break;
        }
        at = read_member(&mut input, at, &block, &mut extra, &mut index).map_err(|error| {
            let is_placed = error.place().offset_bytes.is_some();
            if is_placed { error } else { error.at_byte(at) }
        })?;
    }
    if extra != Extra::default() {
        return Err(Error::corrupt("a tar archive ends between a member's name and the member").at_byte(at));
    }
    refuse_more(&mut input, at)?;
    index.check()?;
    Ok(index)
}

/// What special members say about the next member.
#[derive(Debug, Default, PartialEq, Eq)]
struct Extra {
    /// The name from pax, then from GNU. The first that is present replaces the name in the header.
    path: Option<Vec<u8>>,
    long_name: Option<Vec<u8>>,
    link_path: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
    len_bytes: Option<u64>,
    is_sparse: bool,
}

/// Adds the member at `at` with the header `block` to the index. Returns where the next header is.
fn read_member(
    input: &mut Window<'_>,
    at: u64,
    block: &[u8],
    extra: &mut Extra,
    index: &mut Index,
) -> Result<u64> {
    has_checksum(block)?;
    let kind = block.get(TYPE).copied().unwrap_or_default();
    let mut data_at = at + BLOCK_LEN_BYTES;
    match kind {
        b'x' | b'X' | b'g' | b'L' | b'K' => return extra.read(input, data_at, kind, block),
        b'M' => {
            return Err(Error::unsupported("regrow does not read tar archives of several volumes"));
        }
        _ => {}
    }
    let mut extra = std::mem::take(extra);
    let raw_name = extra.path.take().or(extra.long_name.take()).unwrap_or_else(|| name_of(block));
    let name = clean(&raw_name)?;
    let shown = || format!("{:?}", String::from_utf8_lossy(&raw_name));
    let len_bytes = extra.len_bytes.map_or_else(|| number(block, SIZE), Ok)?;
    let is_sparse = extra.is_sparse || kind == b'S';
    if kind == b'S' {
        data_at = after_sparse_map(input, data_at, block)?;
    }
    let is_folder_by_name = matches!(kind, b'0' | b'\0') && raw_name.ends_with(b"/");
    let (member, stored_len_bytes) = match kind {
        _ if is_folder_by_name => (Member::Folder, 0),
        b'0' | b'\0' | b'7' | b'S' => {
            let place = if is_sparse { Place::Refused("a sparse file") } else { Place::At(data_at) };
            (Member::Value(Value { len_bytes, place }), len_bytes)
        }
        b'5' => (Member::Folder, 0),
        b'D' => (Member::Folder, len_bytes),
        b'1' => (Member::Value(linked(extra, block, len_bytes, index, &shown)?), 0),
        b'2' => (Member::Other("a symbolic link"), 0),
        b'3' | b'4' => (Member::Other("a device"), 0),
        b'6' => (Member::Other("a pipe"), 0),
        _ => (Member::Other("a member of an unknown type"), len_bytes),
    };
    let next = after(data_at, stored_len_bytes, input.len_bytes()).map_err(|error| {
        error
            .expected(format_args!("{stored_len_bytes} bytes of {} from byte {data_at} on", shown()), "fewer")
    })?;
    index.insert(name, member)?;
    Ok(next)
}

/// Where the data of GNU's sparse file begins: behind the blocks of its map.
fn after_sparse_map(input: &mut Window<'_>, mut data_at: u64, block: &[u8]) -> Result<u64> {
    let mut is_extended = block.get(IS_EXTENDED).is_some_and(|&byte| byte != 0);
    while is_extended {
        let more = input.read(data_at, BLOCK_LEN_BYTES)?;
        is_extended = more.get(IS_EXTENDED_FURTHER).is_some_and(|&byte| byte != 0);
        data_at += BLOCK_LEN_BYTES;
    }
    Ok(data_at)
}

/// The earlier member that a hard link refers to.
fn linked(
    extra: Extra,
    block: &[u8],
    len_bytes: u64,
    index: &Index,
    shown: &dyn Fn() -> String,
) -> Result<Value> {
    let raw_link = extra.link_path.or(extra.long_link).unwrap_or_else(|| field(block, LINK).to_vec());
    let leads_to = index.value(&clean(&raw_link)?).cloned();
    leads_to.filter(|_| len_bytes == 0).ok_or_else(|| {
        Error::corrupt(format!("the hard link {} of a tar archive is broken", shown()))
            .expected("an earlier member", format_args!("{:?}", String::from_utf8_lossy(&raw_link)))
    })
}

impl Extra {
    /// Reads a member that describes the next member. Returns the offset of the next header.
    fn read(&mut self, input: &mut Window<'_>, data_at: u64, kind: u8, block: &[u8]) -> Result<u64> {
        let len_bytes = number(block, SIZE)?;
        if len_bytes > EXTRA_LEN_MAX_BYTES {
            let what = "a name or a pax header of a tar archive is too long";
            return Err(Error::new(ErrorKind::Limit, what)
                .expected(format_args!("at most {EXTRA_LEN_MAX_BYTES} bytes"), len_bytes));
        }
        let bytes = input.read(data_at, len_bytes)?;
        match kind {
            b'L' => self.long_name = Some(until_zero(bytes).to_vec()),
            b'K' => self.long_link = Some(until_zero(bytes).to_vec()),
            b'g' => refuse_global(bytes)?,
            _ => self.take_in(bytes)?,
        }
        after(data_at, len_bytes, input.len_bytes())
    }

    /// Takes in pax records: `len key=value\n`, where `len` counts its own digits, too.
    fn take_in(&mut self, bytes: &[u8]) -> Result<()> {
        for_each_record(bytes, &mut |key, value| {
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link_path = Some(value.to_vec()),
                b"size" => self.len_bytes = Some(digits(value, 10).ok_or_else(bad_pax)?),
                b"GNU.sparse.name" => {
                    self.path = Some(value.to_vec());
                    self.is_sparse = true;
                }
                key if key.starts_with(b"GNU.sparse.") => self.is_sparse = true,
                _ => {}
            }
            Ok(())
        })
    }
}

/// Returns an error if a global pax header has a field that only one member can have.
fn refuse_global(bytes: &[u8]) -> Result<()> {
    for_each_record(bytes, &mut |key, _| match key == b"path"
        || key == b"linkpath"
        || key == b"size"
        || key.starts_with(b"GNU.sparse.")
    {
        false => Ok(()),
        true => Err(Error::unsupported(format!(
            "a tar archive gives all of its members one {}",
            String::from_utf8_lossy(key)
        ))),
    })
}

/// A function that receives the name and the value of each record.
type TakeRecord<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

fn for_each_record(mut bytes: &[u8], each: &mut TakeRecord<'_>) -> Result<()> {
    while !bytes.is_empty() {
        let space = bytes.iter().position(|&byte| byte == b' ').ok_or_else(bad_pax)?;
        let len = bytes.get(..space).and_then(|text| digits(text, 10)).ok_or_else(bad_pax)?;
        let len = usize::try_from(len).ok().filter(|&len| len <= bytes.len()).ok_or_else(bad_pax)?;
        let record = bytes.get(space + 1..len).and_then(|record| record.strip_suffix(b"\n"));
        let record = record.ok_or_else(bad_pax)?;
        let equals = record.iter().position(|&byte| byte == b'=').ok_or_else(bad_pax)?;
        let (key, value) = record.split_at(equals);
        each(key, value.get(1..).unwrap_or_default())?;
        bytes = bytes.get(len..).unwrap_or_default();
    }
    Ok(())
}

fn bad_pax() -> Error {
    Error::corrupt("a pax header of a tar archive is not a list of `length key=value`")
}

fn name_of(block: &[u8]) -> Vec<u8> {
    // GNU tar uses the bytes of the prefix for other fields. Its headers have another version.
    let has_prefix = field(block, MAGIC) == USTAR && block.get(VERSION) == Some(&0);
    let (name, prefix) = (field(block, NAME), field(block, PREFIX));
    if has_prefix && !prefix.is_empty() { [prefix, b"/", name].concat() } else { name.to_vec() }
}

/// The position of the next header, after `len_bytes` of data at `data_at`.
fn after(data_at: u64, len_bytes: u64, archive_len_bytes: u64) -> Result<u64> {
    let end = data_at.checked_add(len_bytes).and_then(|end| end.checked_next_multiple_of(BLOCK_LEN_BYTES));
    end.filter(|&end| end <= archive_len_bytes)
        .ok_or_else(|| cut_short(archive_len_bytes, format_args!("{len_bytes} bytes from byte {data_at} on")))
}

fn cut_short(at: u64, wanted: impl std::fmt::Display) -> Error {
    Error::corrupt("the tar archive is cut short")
        .at_byte(at)
        .expected(wanted, "the end of the file")
        .help("it was cut short, or is still being written: copy it again")
}

/// Returns an error if a byte other than zero follows the end mark at `at`. Such bytes belong to an
/// archive that was partly overwritten with zeros, or to a second archive.
fn refuse_more(input: &mut Window<'_>, at: u64) -> Result<()> {
    let mut at = at;
    let end = input.len_bytes().min(at.saturating_add(AFTER_END_LEN_MAX_BYTES));
    while at < end {
        let len_bytes = (end - at).min(16 << 10);
        let piece = input.read(at, len_bytes)?;
        if let Some(found) = piece.iter().position(|&byte| byte != 0) {
            return Err(Error::corrupt("a tar archive has bytes after its end mark")
                .at_byte(at + found as u64)
                .help(
                    "it is damaged, or has two archives in one file: unpack it with `tar --ignore-zeros`",
                ));
        }
        at += len_bytes;
    }
    Ok(())
}

fn is_zero(block: &[u8]) -> bool {
    block.iter().all(|&byte| byte == 0)
}

/// Returns an error unless the header has the right checksum. The checksum is the sum of all bytes
/// of the header, with spaces in the place of the checksum field.
fn has_checksum(block: &[u8]) -> Result<()> {
    let stored = number(block, CHECKSUM)?;
    let (mut sum, mut signed) = (0_u64, 0_i64);
    for (at, &byte) in block.iter().enumerate() {
        let byte = if (CHECKSUM.0..CHECKSUM.0 + CHECKSUM.1).contains(&at) { b' ' } else { byte };
        sum += u64::from(byte);
        // Some old programs added the bytes as signed numbers.
        signed += i64::from(byte.cast_signed());
    }
    if stored == sum || i64::try_from(stored) == Ok(signed) {
        return Ok(());
    }
    Err(Error::corrupt("a header of a tar archive fails its checksum")
        .expected(stored, sum)
        .help("it is damaged, or not a tar archive: copy it again"))
}

/// The bytes of a field up to its first zero byte.
fn field(block: &[u8], (start, len): (usize, usize)) -> &[u8] {
    until_zero(block.get(start..start + len).unwrap_or_default())
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    bytes.get(..end).unwrap_or_default()
}

/// A number in octal digits. If a number is too large for octal digits, GNU tar sets the first bit
/// and writes the number in big endian.
fn number(block: &[u8], (start, len): (usize, usize)) -> Result<u64> {
    let bytes = block.get(start..start + len).unwrap_or_default();
    let number = match bytes.split_first() {
        Some((0x80, rest)) => rest
            .iter()
            .try_fold(0_u64, |number, &byte| number.checked_mul(256).map(|number| number + u64::from(byte))),
        _ => {
            let text = until_zero(bytes).trim_ascii();
            if text.is_empty() { Some(0) } else { digits(text, 8) }
        }
    };
    number.ok_or_else(|| {
        let found = bytes.escape_ascii().to_string();
        Error::corrupt("a number in a header of a tar archive cannot be read").expected("octal digits", found)
    })
}

fn digits(text: &[u8], base: u32) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(text).ok().filter(|_| is_number)?;
    u64::from_str_radix(text, base).ok()
}
