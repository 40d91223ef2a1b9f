//! Archives for tests: a tar and a zip of any members, and the parts of hostile archives.

use std::io;
use std::path::Path;

/// The name of a member, and its bytes.
pub type Member = (String, Vec<u8>);

/// All files below a folder, sorted, with their paths relative to the folder.
pub fn files_below(folder: &Path) -> io::Result<Vec<Member>> {
    let mut files = Vec::new();
    let mut pending = vec![(folder.to_owned(), String::new())];
    while let Some((at, prefix)) = pending.pop() {
        for entry in std::fs::read_dir(at)? {
            let entry = entry?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            match entry.file_type()?.is_dir() {
                true => pending.push((entry.path(), format!("{name}/"))),
                false => files.push((name, std::fs::read(entry.path())?)),
            }
        }
    }
    files.sort();
    Ok(files)
}

/// A tar of these members, with its end mark.
pub fn tar(members: &[Member]) -> Vec<u8> {
    let mut archive: Vec<u8> =
        members.iter().flat_map(|(name, bytes)| tar_member(name, b'0', bytes)).collect();
    archive.extend(tar_end());
    archive
}

/// The end mark of a tar: two blocks of zeros.
pub fn tar_end() -> Vec<u8> {
    vec![0; 1024]
}

/// A member of a tar with its header. A name that is too long for the header is in a member before
/// it, as in GNU tar.
pub fn tar_member(name: &str, kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut member = Vec::new();
    if name.len() > 100 {
        let long = [name.as_bytes(), b"\0"].concat();
        member.extend(tar_header("././@LongLink", b'L', long.len() as u64, ""));
        member.extend(filled_up(&long));
    }
    let short: String = name.chars().take(25).collect();
    let short = if name.len() > 100 { &short } else { name };
    member.extend(tar_header(short, kind, bytes.len() as u64, ""));
    member.extend(filled_up(bytes));
    member
}

/// A pax header with these records: kind `x` for the next member, `g` for all later members.
pub fn tar_pax(kind: u8, records: &[(&str, &str)]) -> Vec<u8> {
    let mut text = String::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let mut len = rest + 1;
        while len != rest + len.to_string().len() {
            len = rest + len.to_string().len();
        }
        text.push_str(&format!("{len} {key}={value}\n"));
    }
    [tar_header("pax", kind, text.len() as u64, ""), filled_up(text.as_bytes())].concat()
}

/// A header of a tar, with the right checksum.
pub fn tar_header(name: &str, kind: u8, len_bytes: u64, link: &str) -> Vec<u8> {
    let mut header = vec![0; 512];
    let mut put = |at: usize, bytes: &[u8]| {
        for (to, byte) in header.iter_mut().skip(at).zip(bytes) {
            *to = *byte;
        }
    };
    put(0, name.as_bytes());
    put(100, b"0000644\0");
    put(124, format!("{len_bytes:011o}\0").as_bytes());
    put(156, &[kind]);
    put(157, link.as_bytes());
    put(257, b"ustar\x0000");
    with_tar_checksum(header)
}

/// The header with the right checksum.
pub fn with_tar_checksum(mut header: Vec<u8>) -> Vec<u8> {
    if let Some(field) = header.get_mut(148..156) {
        field.fill(b' ');
    }
    let sum: u64 = header.iter().map(|&byte| u64::from(byte)).sum();
    if let Some(field) = header.get_mut(148..156) {
        field.copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    header
}

fn filled_up(bytes: &[u8]) -> Vec<u8> {
    let mut filled = bytes.to_vec();
    filled.resize(bytes.len().next_multiple_of(512), 0);
    filled
}

/// A zip of these members, uncompressed.
pub fn zip(members: &[Member]) -> Vec<u8> {
    let members: Vec<ZipMember<'_>> =
        members.iter().map(|(name, bytes)| ZipMember::stored(name, bytes)).collect();
    zip_of(&members)
}

/// A member of a zip, with the fields of its headers.
#[derive(Debug, Clone)]
pub struct ZipMember<'a> {
    /// The name.
    pub name: &'a str,
    /// The bytes as they are in the archive.
    pub bytes: &'a [u8],
    /// The number of the method; 0 for stored.
    pub method: u16,
    /// The flags: 1 for encrypted, `1 << 11` for a name in UTF-8.
    pub flags: u16,
    /// Length of the extra field before the data.
    pub extra_len: u16,
    /// The offset of the header that the directory gives; `None` for the right offset.
    pub offset: Option<u32>,
}

impl<'a> ZipMember<'a> {
    /// A member that is stored without compression.
    pub fn stored(name: &'a str, bytes: &'a [u8]) -> Self {
        Self { name, bytes, method: 0, flags: 1 << 11, extra_len: 0, offset: None }
    }
}

/// A zip of these members.
pub fn zip_of(members: &[ZipMember<'_>]) -> Vec<u8> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for member in members {
        let at = archive.len() as u32;
        let (len, name_len) = (member.bytes.len() as u32, member.name.len() as u16);
        let mut common = Vec::new();
        for number in [20, member.flags, member.method, 0, 1 << 5 | 1] {
            common.extend(u16::to_le_bytes(number));
        }
        for number in [crc32(member.bytes), len, len] {
            common.extend(u32::to_le_bytes(number));
        }
        common.extend(name_len.to_le_bytes());
        archive.extend(b"PK\x03\x04");
        archive.extend(&common);
        archive.extend(member.extra_len.to_le_bytes());
        archive.extend(member.name.as_bytes());
        archive.extend(std::iter::repeat_n(0, member.extra_len.into()));
        archive.extend(member.bytes);
        directory.extend(b"PK\x01\x02\x14\x03");
        directory.extend(&common);
        directory.extend([0; 12]);
        directory.extend(member.offset.unwrap_or(at).to_le_bytes());
        directory.extend(member.name.as_bytes());
    }
    let at = archive.len() as u32;
    archive.extend(&directory);
    archive.extend(b"PK\x05\x06\0\0\0\0");
    archive.extend((members.len() as u16).to_le_bytes());
    archive.extend((members.len() as u16).to_le_bytes());
    archive.extend((directory.len() as u32).to_le_bytes());
    archive.extend(at.to_le_bytes());
    archive.extend([0; 2]);
    archive
}

/// The checksum of zip files.
pub fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    !bytes.iter().fold(!0, |crc, &byte| {
        let at = usize::from(crc.to_le_bytes()[0] ^ byte);
        TABLE.get(at).copied().unwrap_or_default() ^ crc >> 8
    })
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut at = 0;
    while at < table.len() {
        let (mut crc, mut bit) = (at as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
}
