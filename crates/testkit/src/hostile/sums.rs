//! Corrects checksums after a change.
//!
//! | checksum | of |
//! |---|---|
//! | `{"crc32c":"........",` | documents of regrow, seals: all bytes that follow |
//! | in `regrow.json` and its parts | heads and blocks of data files; other files whole |
//! | in `regrow.seal.json` | blocks of all files, CRC-32 |
//! | `,"crc32":"........"}` | `regrow-structure.json`: all bytes before |
//! | the last four bytes | nodes and manifests of OCDBT |
//! | the last four bytes, if the original ends in its checksum | chunks and shard indexes of zarr v3 |
//! | in the directory of a zip file | its stored members |
//! | in each header of a tar file | the header |
//! | in the trailer of an Equinox file | the JSON before it |

use serde_json::Value;

use super::{Files, Repair};
use crate::archives::{crc32, with_tar_checksum};

const OPENING: &[u8] = b"{\"crc32c\":\"";
const HEX_LEN: usize = 8;
const BODY_OFFSET: usize = OPENING.len() + HEX_LEN + 2;
const LAST: &[u8] = b",\"crc32\":\"";
const MAGICS: [[u8; 4]; 3] =
    [0x0cdb_3a2a_u32.to_be_bytes(), 0x0cdb_1234_u32.to_be_bytes(), 0x0cdb_20de_u32.to_be_bytes()];
const FRAME_LEN_MIN: usize = 16;
const SEAL: &str = "regrow.seal";
const TRAILER_END: &[u8] = b"\nworger\xff";
/// Largest number of chunks in a shard whose index is found by its checksum.
const SHARD_CHUNKS_MAX: usize = 64;

/// The positions of checksums in the original checkpoint.
#[derive(Debug, Clone, Default)]
pub struct Sums {
    /// Files whose last four bytes are a CRC-32C, with the number of bytes that it covers; `None`
    /// for all bytes before it.
    tails: Vec<(String, Option<usize>)>,
}

impl Sums {
    /// Finds the files that end in a checksum.
    pub fn of(files: &Files) -> Self {
        let ends = |bytes: &[u8], len: usize| {
            let (covered, sum) = bytes.split_last_chunk::<4>()?;
            let covered = covered.get(covered.len().checked_sub(len)?..)?;
            (len > 0 && crc32c(covered).to_le_bytes() == *sum).then_some(())
        };
        let mut tails = Vec::new();
        for (name, bytes) in files.iter().filter(|(_, bytes)| bytes.len() > 4 && frames(bytes).is_empty()) {
            if ends(bytes, bytes.len() - 4).is_some() {
                tails.push((name.clone(), None));
            } else if let Some(count) = (1..=SHARD_CHUNKS_MAX).find(|count| ends(bytes, 16 * count).is_some())
            {
                tails.push((name.clone(), Some(16 * count)));
            }
        }
        Self { tails }
    }

    /// Computes the checksums again.
    pub fn put_right(&self, files: &mut Files, repair: Repair) {
        if repair == Repair::Nothing {
            return;
        }
        for (name, len) in &self.tails {
            let Some(bytes) = files.get_mut(name) else { continue };
            let Some(end) = bytes.len().checked_sub(4) else { continue };
            let start = len.map_or(0, |len| end.saturating_sub(len));
            let sum = crc32c(bytes.get(start..end).unwrap_or_default());
            put(bytes, end, &sum.to_le_bytes());
        }
        for bytes in files.values_mut() {
            frame_sums(bytes);
            zip_sums(bytes);
            tar_sums(bytes);
            trailer_sum(bytes);
            structure_sum(bytes);
        }
        // First the parts, then the manifest that lists them, then a seal that covers all of them.
        let mut documents: Vec<String> = files
            .iter()
            .filter(|(_, bytes)| bytes.starts_with(OPENING))
            .map(|(name, _)| name.clone())
            .collect();
        documents.sort_by_key(|name| (name.contains(SEAL), name.ends_with("regrow.json")));
        for name in documents {
            let mut bytes = files.get(&name).cloned().unwrap_or_default();
            if repair == Repair::All
                && let Some(recorded) = recorded_again(&name, &bytes, files)
            {
                bytes = recorded;
            }
            let sum = crc32c(bytes.get(BODY_OFFSET..).unwrap_or_default());
            put(&mut bytes, OPENING.len(), format!("{sum:08x}").as_bytes());
            files.insert(name, bytes);
        }
    }
}

/// Removes digests that this module cannot compute. They are optional in a manifest.
pub(super) fn forget_digests(files: &mut Files) {
    let names: Vec<String> =
        files.iter().filter(|(_, bytes)| bytes.starts_with(OPENING)).map(|(name, _)| name.clone()).collect();
    for name in names {
        let Some(mut document) = files.get(&name).and_then(|bytes| parse(bytes)) else { continue };
        for list in ["data_files", "files", "parts"] {
            for record in document.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                record.as_object_mut().map(|record| record.shift_remove("blake3"));
            }
        }
        files.insert(name, bytes_of(&document));
    }
    Sums::default().put_right(files, Repair::All);
}

fn parse(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes).ok().filter(Value::is_object)
}

fn bytes_of(document: &Value) -> Vec<u8> {
    serde_json::to_vec(document).unwrap_or_default()
}

/// The document with the new lengths and checksums of its files; `None` if it can no longer be
/// parsed.
fn recorded_again(name: &str, bytes: &[u8], files: &Files) -> Option<Vec<u8>> {
    let mut document = parse(bytes)?;
    let folder = name.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
    let file = |name: &Value| files.get(&format!("{folder}{}", name.as_str()?));
    if name.contains(SEAL) {
        let block_len =
            usize::try_from(document.get("block_len_bytes")?.as_u64()?).ok().filter(|&len| len > 0)?;
        let named: Vec<&Vec<u8>> = document.get("names")?.as_array()?.iter().filter_map(file).collect();
        let lens = named.iter().map(|bytes| bytes.len()).collect::<Vec<_>>();
        let sums = named
            .iter()
            .flat_map(|bytes| bytes.chunks(block_len))
            .map(|block| format!("{:08x}", crc32(block)));
        let sums: String = sums.collect();
        *document.get_mut("len_bytes")? = lens.into();
        *document.get_mut("block_crc32")? = sums.into();
        return Some(bytes_of(&document));
    }
    for record in document.get_mut("data_files").and_then(Value::as_array_mut).into_iter().flatten() {
        let number = |name: &str| usize::try_from(record.get(name)?.as_u64()?).ok();
        let Some(bytes) = record.get("name").and_then(file) else { continue };
        let (Some(start), Some(block_len)) =
            (number("data_offset"), number("block_len_bytes").filter(|&len| len > 0))
        else {
            continue;
        };
        let (head, data) = bytes.split_at(start.min(bytes.len()));
        let sums: String = data.chunks(block_len).map(|block| format!("{:08x}", crc32c(block))).collect();
        set(record, "len_bytes", bytes.len().into());
        set(record, "head_crc32c", format!("{:08x}", crc32c(head)).into());
        set(record, "block_crc32c", sums.into());
    }
    for list in ["files", "parts"] {
        for record in document.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(bytes) = record.get("name").and_then(file) else { continue };
            set(record, "len_bytes", bytes.len().into());
            set(record, "crc32c", format!("{:08x}", crc32c(bytes)).into());
        }
    }
    Some(bytes_of(&document))
}

fn set(record: &mut Value, name: &str, value: Value) {
    if let Some(record) = record.as_object_mut() {
        record.insert(name.to_owned(), value);
    }
}

fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
    if let Some(to) = bytes.get_mut(at..at + what.len()) {
        to.copy_from_slice(what);
    }
}

/// The offsets of complete manifests and nodes of OCDBT.
fn frames(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for at in 0..bytes.len().saturating_sub(FRAME_LEN_MIN - 1) {
        let Some((magic, rest)) = bytes.get(at..).and_then(|bytes| bytes.split_first_chunk::<4>()) else {
            break;
        };
        let Some(len) = rest.first_chunk().map(|len| u64::from_le_bytes(*len)) else { break };
        let is_whole = len >= FRAME_LEN_MIN as u64 && len <= (bytes.len() - at) as u64;
        if MAGICS.contains(magic) && is_whole {
            found.push((at, len as usize));
        }
    }
    found
}

fn frame_sums(bytes: &mut [u8]) {
    // A manifest is a whole file, so its length is the length of the file.
    if bytes.first_chunk() == MAGICS.first() {
        let len = bytes.len() as u64;
        put(bytes, 4, &len.to_le_bytes());
    }
    for (at, len) in frames(bytes) {
        let end = at + len - 4;
        let sum = crc32c(bytes.get(at..end).unwrap_or_default());
        put(bytes, end, &sum.to_le_bytes());
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?).into())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?)).ok()
}

/// Corrects stored members. Does nothing for several archives in one file, because their beginnings
/// are unknown.
fn zip_sums(bytes: &mut [u8]) {
    let ends = bytes.windows(4).filter(|bytes| *bytes == b"PK\x05\x06").count();
    if !bytes.starts_with(b"PK") || ends != 1 {
        return;
    }
    for at in 0..bytes.len().saturating_sub(46) {
        if bytes.get(at..at + 4) != Some(b"PK\x01\x02") {
            continue;
        }
        let member = |bytes: &[u8]| {
            let local = u32_at(bytes, at + 42)?;
            let start = local + 30 + u16_at(bytes, local + 26)? + u16_at(bytes, local + 28)?;
            let stored = bytes.get(start..start.checked_add(u32_at(bytes, at + 20)?)?)?;
            (u16_at(bytes, at + 10)? == 0 && bytes.get(local..local + 4)? == b"PK\x03\x04")
                .then(|| (local, crc32(stored)))
        };
        if let Some((local, sum)) = member(bytes) {
            put(bytes, at + 16, &sum.to_le_bytes());
            // If the checksum follows the data, the local header has none.
            if u16_at(bytes, local + 6).is_some_and(|flags| flags & 8 == 0) {
                put(bytes, local + 14, &sum.to_le_bytes());
            }
        }
    }
}

fn tar_sums(bytes: &mut [u8]) {
    for block in bytes.chunks_exact_mut(512).filter(|block| block.get(257..262) == Some(b"ustar")) {
        let right = with_tar_checksum(block.to_vec());
        block.copy_from_slice(&right);
    }
}

/// Corrects the length and checksum of the JSON at the end of an Equinox file.
fn trailer_sum(bytes: &mut [u8]) {
    let Some(end) = bytes.len().checked_sub(TRAILER_END.len() + 12).filter(|_| bytes.ends_with(TRAILER_END))
    else {
        return;
    };
    let Some(len) =
        bytes.get(end..).and_then(|bytes| bytes.first_chunk()).map(|len| u64::from_le_bytes(*len))
    else {
        return;
    };
    let start = usize::try_from(len).ok().and_then(|len| end.checked_sub(len));
    // If the JSON has another length now, search for the first brace of the trailer.
    let begins = |at: usize| bytes.get(at..at + 11) == Some(b"{\"version\":");
    let start = start.filter(|&start| begins(start)).or_else(|| (0..end).rev().find(|&at| begins(at)));
    let Some(start) = start else { return };
    let sum = crc32c(bytes.get(start..end).unwrap_or_default());
    put(bytes, end, &((end - start) as u64).to_le_bytes());
    put(bytes, end + 8, &sum.to_le_bytes());
}

fn structure_sum(bytes: &mut [u8]) {
    let Some(at) = bytes.len().checked_sub(LAST.len() + HEX_LEN + 2) else { return };
    if bytes.get(at..at + LAST.len()) == Some(LAST) {
        let sum = crc32(bytes.get(..at).unwrap_or_default());
        put(bytes, at + LAST.len(), format!("{sum:08x}").as_bytes());
    }
}

/// CRC-32C, with the polynomial 0x1edc6f41.
fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    !bytes.iter().fold(!0, |crc: u32, &byte| {
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
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_standard() {
        assert_eq!((crc32c(b"123456789"), crc32(b"123456789")), (0xe306_9283, 0xcbf4_3926));
    }

    #[test]
    fn what_was_right_stays_as_it_is() {
        for fixture in ["regrow/early", "ocdbt/small_raw", "npy/plain.npz", "archives/python_gnu.tar"] {
            let path = crate::fixtures().join(fixture);
            let files: Files = match path.is_dir() {
                true => crate::archives::files_below(&path).unwrap_or_default().into_iter().collect(),
                false => [("x".to_owned(), std::fs::read(path).unwrap_or_default())].into(),
            };
            assert!(!files.is_empty(), "{fixture}");
            let mut again = files.clone();
            Sums::of(&files).put_right(&mut again, Repair::All);
            assert!(files == again, "{fixture}");
        }
    }
}
