//! Finds the members of an archive whose directory is lost, from the header of each member,
//! beginning with the first.
//!
//! ```text
//! | header: lengths | data |                                 what most programs write
//! | header: zeros   | data | mark, checksum, lengths |       torch.save, and writers that cannot seek back
//! ```

use bytes::Bytes;

use super::directory::{
    Directory, Header, Headers, IN_ZIP64, Member, method_of, name_of, u16le, zip64_extra,
};
use super::{DEFLATE_RATIO_MAX, FLAGS_UNREADABLE, LOCAL, LOCAL_LEN_BYTES, Method};
use crate::bytes::Cursor;
use crate::error::{Error, Result};

/// Flag: the lengths and the checksum follow the data.
const FLAG_LENGTHS_BEHIND: u16 = 1 << 3;

/// The mark before the lengths and the checksum that follow the data.
const BEHIND: [u8; 4] = *b"PK\x07\x08";

/// The first bytes of every record of an archive.
const MARK: [u8; 2] = *b"PK";

/// Longest record after the data: mark, checksum, and two lengths of eight bytes.
const BEHIND_LEN_MAX_BYTES: u64 = 24;

const PIECE_LEN_BYTES: u64 = 1 << 20;

type Read<'r> = &'r dyn Fn(u64, u64) -> Result<Bytes>;

/// Finds the members of an archive of `file_len_bytes` bytes without its directory. Incomplete
/// members are left out. It is not known whether members are missing at the end.
///
/// # Errors
/// `Corrupt` if no complete member is found; errors of `read`.
pub fn find_members(file_len_bytes: u64, read: Read<'_>) -> Result<Directory> {
    let Headers { headers, comment, offset_bytes } = find_headers(file_len_bytes, read)?;
    let members: Vec<Member> = headers.into_iter().map(|header| header.member).collect();
    let last = members.last().map_or(0, |last| last.offset_bytes + last.stored_len_bytes);
    Ok(Directory { members, comment, members_end_bytes: last, offset_bytes })
}

/// As `find_members`, but returns headers, like [`read_headers`](super::read_headers).
pub fn find_headers(file_len_bytes: u64, read: Read<'_>) -> Result<Headers> {
    let mut headers = Vec::new();
    let mut at = 0;
    while let Some((header, end)) = header_at(at, file_len_bytes, read)? {
        at = end;
        // `read_headers` omits folders, so omit them here, too.
        if !header.member.name.ends_with('/') || header.member.len_bytes > 0 {
            headers.push(header);
        }
    }
    if headers.is_empty() {
        return Err(Error::corrupt(
            "the directory of a zip archive is missing, so its members cannot be found",
        )
        .at_byte(0)
        .help("copy the file again"));
    }
    Ok(Headers { headers, comment: Vec::new(), offset_bytes: file_len_bytes })
}

/// The member whose local header begins at `at`, and the end of the member. `None` if no complete
/// member begins there.
fn header_at(at: u64, file_len_bytes: u64, read: Read<'_>) -> Result<Option<(Header, u64)>> {
    let names_at = at.saturating_add(LOCAL_LEN_BYTES as u64);
    if names_at > file_len_bytes {
        return Ok(None);
    }
    let header = read(at, LOCAL_LEN_BYTES as u64)?;
    let mut input = Cursor::new(&header);
    if input.array::<4>("a member's header")? != LOCAL {
        return Ok(None);
    }
    input.take(2, "the version")?;
    let flags = u16le(&mut input)?;
    let method = method_of(u16le(&mut input)?).filter(|_| flags & FLAGS_UNREADABLE == 0);
    input.take(4, "the date")?;
    let mut crc32 = input.u32le("the checksum")?;
    let stored_len = input.u32le("the stored length")?;
    let len = input.u32le("the length")?;
    let (name_len, extra_len) = (u16le(&mut input)?, u16le(&mut input)?);
    let offset_bytes = names_at + u64::from(name_len) + u64::from(extra_len);
    let Some(method) = method.filter(|_| offset_bytes <= file_len_bytes) else { return Ok(None) };
    let names = read(names_at, offset_bytes - names_at)?;
    let (raw_name, extra) = names.split_at(usize::from(name_len));
    let Ok(name) = name_of(raw_name, flags) else { return Ok(None) };
    let (len_bytes, stored_len_bytes, end);
    if flags & FLAG_LENGTHS_BEHIND != 0 {
        let Some(behind) = find_behind(offset_bytes, file_len_bytes, read)? else { return Ok(None) };
        (crc32, len_bytes, stored_len_bytes, end) =
            (behind.crc32, behind.len_bytes, behind.stored_len_bytes, behind.end);
    } else {
        let Ok(mut zip64) = zip64_extra(extra) else { return Ok(None) };
        let mut wide = |narrow: u32| match narrow {
            IN_ZIP64 if !zip64.is_empty() => zip64.u64le("a number of the zip64 extra"),
            narrow => Ok(narrow.into()),
        };
        let (Ok(wide_len), Ok(wide_stored_len)) = (wide(len), wide(stored_len)) else { return Ok(None) };
        (len_bytes, stored_len_bytes) = (wide_len, wide_stored_len);
        end = offset_bytes.saturating_add(stored_len_bytes);
    }
    let is_possible = match method {
        Method::Stored => len_bytes == stored_len_bytes,
        Method::Deflated => len_bytes <= stored_len_bytes.saturating_mul(DEFLATE_RATIO_MAX),
    };
    if !is_possible || end > file_len_bytes {
        return Ok(None);
    }
    let member =
        Member { name, method, crc32, stored_len_bytes, len_bytes, header_offset_bytes: at, offset_bytes };
    Ok(Some((Header { member, raw_name: raw_name.to_vec(), flags }, end)))
}

/// The record after the data of a member.
struct Behind {
    crc32: u32,
    stored_len_bytes: u64,
    len_bytes: u64,
    end: u64,
}

/// Finds the record after the data that begin at `data_at`. The record must contain the right
/// length of the data. Another record or the end of the file must follow it.
fn find_behind(data_at: u64, file_len_bytes: u64, read: Read<'_>) -> Result<Option<Behind>> {
    let mut at = data_at;
    while at < file_len_bytes {
        let len_bytes = (PIECE_LEN_BYTES + BEHIND_LEN_MAX_BYTES + MARK.len() as u64).min(file_len_bytes - at);
        let piece = read(at, len_bytes)?;
        let is_last = at + len_bytes == file_len_bytes;
        let starts = piece.windows(BEHIND.len()).enumerate().filter(|(_, bytes)| *bytes == BEHIND);
        for (start, _) in starts {
            let data_len_bytes = at + start as u64 - data_at;
            let rest = piece.get(start + BEHIND.len()..).unwrap_or_default();
            if let Some((behind, len)) = parse_behind(rest, data_len_bytes, is_last) {
                let end = at + (start + BEHIND.len() + len) as u64;
                return Ok(Some(Behind { end, ..behind }));
            }
        }
        at += PIECE_LEN_BYTES;
    }
    Ok(None)
}

/// Parses the checksum and the lengths, of eight or four bytes, and returns them with their own
/// length. `None` if they do not match the length of the data.
fn parse_behind(bytes: &[u8], data_len_bytes: u64, is_last: bool) -> Option<(Behind, usize)> {
    let parse = |is_wide: bool| {
        let mut input = Cursor::new(bytes);
        let crc32 = input.u32le("").ok()?;
        let mut number = || match is_wide {
            true => input.u64le("").ok(),
            false => input.u32le("").ok().map(u64::from),
        };
        let (stored_len_bytes, len_bytes) = (number()?, number()?);
        let len = input.offset_bytes() as usize;
        let rest = bytes.get(len..)?;
        let is_followed = rest.starts_with(&MARK) || rest.is_empty() && is_last;
        let behind = Behind { crc32, stored_len_bytes, len_bytes, end: 0 };
        (stored_len_bytes == data_len_bytes && is_followed).then_some((behind, len))
    };
    parse(true).or_else(|| parse(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::zip::read_directory;

    fn has_lengths_behind(path: &std::path::Path) -> bool {
        path.extension().is_some_and(|extension| extension == "pt")
    }

    /// Archives of NumPy and PyTorch are truncated at every offset. The members found before the
    /// cut are those in the directory.
    #[test]
    fn members_before_a_cut_are_found_without_the_directory() {
        let mut seen = 0;
        let folders = ["npy", "torch"].map(|folder| regrow_testkit::fixtures().join(folder));
        for entry in folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap()) {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "npz" && extension != "pt") {
                continue;
            }
            let bytes = Bytes::from(std::fs::read(&path).unwrap());
            let read = |at: u64, len: u64| Ok(bytes.slice(at as usize..(at + len) as usize));
            let Ok(directory) = read_directory(bytes.len() as u64, &read) else { continue };
            seen += usize::from(!directory.members.is_empty());
            for cut in 0..bytes.len() {
                let whole = |member: &&Member| member.offset_bytes + member.stored_len_bytes <= cut as u64;
                let left: Vec<&Member> = directory.members.iter().filter(whole).collect();
                let found = find_members(cut as u64, &read).map(|found| found.members).unwrap_or_default();
                // The record after the data of the last member may be cut off.
                let is_nearly = found.len() + 1 == left.len() && has_lengths_behind(&path);
                assert!(
                    found.len() == left.len() || is_nearly,
                    "{path:?} {cut}: {} of {}",
                    found.len(),
                    left.len()
                );
                assert!(found.iter().zip(left).all(|(found, left)| found == left), "{path:?} {cut}");
            }
        }
        assert!(seen > 5, "{seen} archives among the fixtures");
    }
}
