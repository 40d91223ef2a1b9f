//! Tests of pieces, and of passes over a blob in memory.

use std::path::PathBuf;

use bytes::Bytes;

use super::pieces::cut;
use super::*;
use crate::bytes::checksum::crc32c;
use crate::error::ErrorKind;
use crate::{Blob, EachChunk, FETCH_LEN_MAX_BYTES, MemoryBlob, ReadPath, Suits};

const WORDS: Words =
    Words { what: |label, block| format!("{label}: {block}"), help: "again", help_if_zeros: "zeros" };

const HEAD_LEN_BYTES: u64 = 50;

fn bytes(len: u64) -> Vec<u8> {
    (0..len).map(|at| (at * 7 % 251) as u8).collect()
}

/// The bytes of a blob, which has a head and then `blocks` blocks, and the checksums of the blocks.
fn checked(block_len_bytes: u64, blocks: u64) -> (Vec<u8>, BlockTable) {
    let end = HEAD_LEN_BYTES + block_len_bytes * blocks - 1;
    let bytes = bytes(end);
    let sums = bytes[HEAD_LEN_BYTES as usize..].chunks(block_len_bytes as usize).map(crc32c).collect();
    let range = HEAD_LEN_BYTES..end;
    (bytes, BlockTable::new(range, block_len_bytes, Checksum::Crc32c, sums, WORDS).unwrap())
}

fn blob(bytes: &[u8]) -> MemoryBlob {
    MemoryBlob::new(Bytes::copy_from_slice(bytes), "blob".into())
}

/// Cuts parts `(first byte, length)` into pieces. Returns the start and the end of each piece, and
/// the lengths of its parts.
fn pieces(table: &BlockTable, parts: &[(u64, usize)]) -> Vec<(u64, u64, Vec<usize>)> {
    let blob = blob(b"");
    let checked = Checked { blob: &blob, table };
    let mut outs: Vec<Vec<u8>> = parts.iter().map(|(_, len)| vec![0; *len]).collect();
    let wanted = outs.iter_mut().zip(parts).enumerate().map(|(leaf, (out, (offset_bytes, _)))| {
        (checked, 0..0, Part { offset_bytes: *offset_bytes, out, leaf })
    });
    let cut = cut(wanted).unwrap();
    let shown = cut.iter().map(|piece| {
        (piece.start, piece.end, piece.parts.iter().map(|part| part.out.len()).collect::<Vec<_>>())
    });
    shown.collect()
}

#[test]
fn blocks_of_no_length_are_refused() {
    for sums in [vec![], vec![0]] {
        let error = BlockTable::new(0..10, 0, Checksum::Crc32c, sums, WORDS).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn adjacent_parts_are_one_piece_and_unwanted_ones_in_none() {
    let (_, table) = checked(100, 10);
    let wanted = [(60, 40), (100, 60), (260, 0), (770, 20), (790, 60), (850, 1)];
    assert_eq!(pieces(&table, &wanted), [(50, 250, vec![40, 60]), (750, 950, vec![20, 60, 1])]);
    // The piece reaches to the end of the last block, which is shorter.
    assert_eq!(pieces(&table, &[(1048, 1)]), [(950, 1049, vec![1])]);
}

#[test]
fn pieces_of_short_blocks_end_where_a_buffer_does_and_a_long_block_is_one() {
    let block = 1 << 20;
    let (_, table) = checked(block, 9);
    let whole = 9 * block - 1;
    let most = FETCH_LEN_MAX_BYTES / block * block;
    let found = pieces(&table, &[(HEAD_LEN_BYTES, whole as usize)]);
    assert_eq!(found.first(), Some(&(50, 50 + most, vec![most as usize])));
    assert_eq!(found.iter().flat_map(|piece| &piece.2).sum::<usize>(), whole as usize);
    // A long block is one piece even if a buffer could hold several such blocks.
    let (_, long) = checked(block + 1, 3);
    let found = pieces(&long, &[(HEAD_LEN_BYTES, 3 * block as usize)]);
    assert_eq!(
        found.iter().map(|piece| piece.1 - piece.0).collect::<Vec<_>>(),
        [block + 1, block + 1, block]
    );
    let (_, long) = checked(8 * block, 2);
    let found = pieces(&long, &[(HEAD_LEN_BYTES + 5, 100), (HEAD_LEN_BYTES + 8 * block - 1, 2)]);
    let edge = 50 + 8 * block;
    assert_eq!(found, [(50, edge, vec![100, 1]), (edge, 49 + 16 * block, vec![1])]);
}

#[test]
fn what_lies_outside_the_blocks_is_refused() {
    let (bytes, table) = checked(100, 2);
    let blob = blob(&bytes);
    for (offset_bytes, len) in [(0, 10), (49, 1), (240, 100), (u64::MAX, 1)] {
        let mut out = vec![0; len];
        let part = Part { offset_bytes, out: &mut out, leaf: 0 };
        let error = cut([(Checked { blob: &blob, table: &table }, 0..0, part)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}

/// A blob that supports only `stream`, with chunks of this length.
#[derive(Debug)]
struct Coming {
    blob: MemoryBlob,
    chunk_len_bytes: usize,
}

impl Blob for Coming {
    fn len_bytes(&self) -> u64 {
        self.blob.len_bytes()
    }

    fn describe(&self) -> PathBuf {
        self.blob.describe()
    }

    fn read(&self, _: u64, _: &mut [u8], _: ReadPath) -> crate::Result<()> {
        Err(crate::error::Error::invalid("it is taken as it comes"))
    }

    fn stream(&self, offset_bytes: u64, len_bytes: u64, each: EachChunk<'_>) -> crate::Result<bool> {
        let mut bytes = vec![0; len_bytes as usize];
        self.blob.read(offset_bytes, &mut bytes, ReadPath::Cached)?;
        bytes.chunks(self.chunk_len_bytes).try_for_each(each)?;
        Ok(true)
    }

    fn suits(&self) -> Suits {
        Suits { requests_min: 8, requests_max: 8 }
    }
}

fn read_two(bytes: &[u8], table: &BlockTable, verified: bool) -> crate::Result<Vec<u8>> {
    read_two_of(&blob(bytes), table, verified)
}

/// Reads two parts of a blob. The range that comes with the first part is the part itself. The
/// range that comes with the second part begins one block before the part.
fn read_two_of(blob: &dyn Blob, table: &BlockTable, verified: bool) -> crate::Result<Vec<u8>> {
    let checked = Checked { blob, table };
    let len = table.block_len_bytes();
    let (first, second) = (HEAD_LEN_BYTES + 3, HEAD_LEN_BYTES + 2 * len + 3);
    // The last block is a byte shorter.
    let mut outs = vec![0; 2 * len as usize - 7];
    let (one, two) = outs.split_at_mut(len as usize - 3);
    let wanted = [
        (checked, first..HEAD_LEN_BYTES + len, Part { offset_bytes: first, out: one, leaf: 1 }),
        (checked, HEAD_LEN_BYTES + len..second, Part { offset_bytes: second, out: two, leaf: 2 }),
    ];
    let how = ReadOptions { verified, direct: true };
    let named = |leaf, error: crate::error::Error| error.help(format!("leaf {leaf}"));
    fill(wanted, how, None, named)?;
    Ok(outs)
}

#[test]
fn each_part_comes_checked_and_its_leaf_is_named_where_a_block_fails() {
    for block_len_bytes in [100, 2 << 20] {
        let (bytes, table) = checked(block_len_bytes, 3);
        let len = block_len_bytes as usize;
        let read = read_two(&bytes, &table, true).unwrap();
        assert!(read[..len - 3] == bytes[53..50 + len] && read[len - 3..] == bytes[53 + 2 * len..]);
        // The copied bytes have passed. But other programs may write to the blob, so its blocks
        // must be checked again.
        assert!(table.blocks(0, u64::MAX).all(|block| !table.has_passed(block)));
        let table = table.never_rewritten();
        read_two(&bytes, &table, true).unwrap();
        assert!(table.blocks(0, u64::MAX).all(|block| table.has_passed(block)));
        // One bad byte: in the block of the first part, in the block before the second part, which
        // belongs to the range of that part, and in the block of the second part.
        for (at, leaf) in [(60, 1), (51 + len, 2), (55 + 2 * len, 2)] {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            let error = read_two(&bad, &table, true).unwrap_err();
            let place = error.place();
            let block = (at - 50) / len;
            assert_eq!(place.file.as_deref().unwrap().to_str(), Some("blob"));
            assert_eq!(error.help_text(), Some(&*format!("leaf {leaf}")));
            assert_eq!(place.offset_bytes, Some((50 + block * len) as u64));
            assert_eq!(error.what(), format!("0: {block}"));
            assert!(read_two(&bad, &table, false).is_ok(), "no check was asked for");
        }
    }
}

#[test]
fn pushed_bytes_are_checked_and_delivered_for_any_chunks() {
    let (bytes, table) = checked(100, 3);
    let table = table.never_rewritten();
    for chunk_len_bytes in [1, 3, 99, 100, 101, 250, 1000] {
        let coming = |bytes: &[u8]| Coming { blob: blob(bytes), chunk_len_bytes };
        table.forget(0, u64::MAX);
        let read = read_two_of(&coming(&bytes), &table, true).unwrap();
        assert!(read[..97] == bytes[53..150] && read[97..] == bytes[253..]);
        assert!(table.blocks(0, u64::MAX).all(|block| table.has_passed(block)));
        for (at, leaf) in [(60, 1), (151, 2), (149, 1), (255, 2)] {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            let error = read_two_of(&coming(&bad), &table, true).unwrap_err();
            let block = (at - 50) / 100;
            assert_eq!(error.what(), format!("0: {block}"));
            assert_eq!(error.place().offset_bytes, Some((50 + block * 100) as u64));
            assert_eq!(error.help_text(), Some(&*format!("leaf {leaf}")));
            assert!(read_two_of(&coming(&bad), &table, false).is_ok(), "no check was asked for");
        }
        // A check without copies goes on after a bad block, and records the good blocks as good.
        let mut bad = bytes.clone();
        bad[160] ^= 1;
        let checked = Checked { blob: &coming(&bad), table: &table };
        check_ahead([(checked, 50..u64::MAX, 0..0)], CheckFor::Verify, None).unwrap();
        let passed: Vec<bool> = table.blocks(0, u64::MAX).map(|block| table.has_passed(block)).collect();
        assert_eq!(passed, [true, false, true]);
    }
}

#[test]
fn a_bad_block_does_not_keep_the_others_from_passing() {
    for purpose in [CheckFor::Views, CheckFor::Verify] {
        let (mut bytes, table) = checked(100, 5);
        bytes[50 + 150..50 + 160].fill(0);
        let blob = blob(&bytes);
        let checked = Checked { blob: &blob, table: &table };
        check_ahead([(checked, 50..u64::MAX, 0..0)], purpose, None).unwrap();
        let passed: Vec<bool> = table.blocks(0, u64::MAX).map(|block| table.has_passed(block)).collect();
        assert_eq!(passed, [true, false, true, true, true]);
        assert!(checked.check(250, 549, purpose).is_ok());
        let error = checked.check(50, 549, purpose).unwrap_err();
        assert_eq!((error.place().offset_bytes, error.help_text()), (Some(150), Some("again")));
    }
}

#[test]
fn a_text_is_checked_before_it_is_one() {
    let text = "ein Gärtner".as_bytes();
    let sums = vec![crc32c(text)];
    let table =
        BlockTable::new(0..text.len() as u64, 1 << 24, Checksum::Crc32c, sums, WORDS).unwrap().labelled(4);
    let read = |bytes: &[u8]| {
        let blob = blob(bytes);
        let checks = Checks { table: &table, start_bytes: 0, end_bytes: text.len() as u64 };
        let extent = Extent {
            blob: BlobRef::Kept(&blob as &dyn Blob),
            offset_bytes: 0,
            len_bytes: text.len() as u64,
            checks: Some(checks),
            is_viewable: true,
            working_len_bytes: None,
        };
        table.forget(0, u64::MAX);
        extent.read_text()
    };
    assert_eq!(&*read(text).unwrap(), "ein Gärtner");
    let mut bad = text.to_vec();
    bad[1] ^= 1;
    assert_eq!(read(&bad).unwrap_err().what(), "4: 0");
    assert_eq!(read(&vec![0; text.len()]).unwrap_err().help_text(), Some("zeros"));
}

#[test]
fn a_value_of_a_store_that_has_changed_has_no_map() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("value");
    std::fs::write(&file, bytes(1000)).unwrap();
    let store = std::sync::Arc::new(crate::LocalStore::new(folder.path()));
    let changed = || crate::error::Error::corrupt("it has changed");
    let value = KeyedBlob::new(store, b"value", 1000, changed);
    assert_eq!(value.map().unwrap().unwrap(), bytes(1000));
    let mut out = vec![0; 10];
    value.read(990, &mut out, ReadPath::Cached).unwrap();
    assert_eq!(out, bytes(1000)[990..]);
    std::fs::File::options().write(true).open(&file).unwrap().set_len(900).unwrap();
    let error = value.map().unwrap_err();
    assert_eq!((error.what(), error.place().file.as_deref()), ("it has changed", Some(file.as_path())));
}
