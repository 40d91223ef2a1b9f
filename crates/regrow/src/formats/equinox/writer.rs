//! Leaves to a file: line, records, trailer.
//!
//! What a record costs beside its own bytes is its checksum: data is looked at once more while it is in cache.

use bytes::Bytes;
use serde_json::Value;

use super::trailer::{BLOCK_LEN_BYTES, TRAILER_MAGIC, Trailer};
use crate::array::Array;
use crate::bytes::checksum::{Crc32c, crc32c};
use crate::commit::Staged;
use crate::error::{Error, Result};
use crate::formats::npy::header::Header;
use crate::formats::orbax::json_text::to_python_json;
use crate::store::{DirectWriter, WriteOptions};

/// Bytes that are summed and written at a time: small enough to stay in cache from one to the next.
const PIECE_LEN_BYTES: usize = 256 << 10;

/// A record to be written.
#[derive(Debug)]
pub struct RecordOut {
    /// What it says of its data.
    pub header: Header,
    /// The elements in the order in which they are to lie in the file, as a C-order array: transposed where the
    /// header says Fortran order.
    pub array: Array,
}

/// Everything that makes a file.
#[derive(Debug)]
pub struct Contents {
    /// The line of hyperparameters in front of the leaves, with its newline; empty for none.
    pub line: Vec<u8>,
    /// The records in file order.
    pub records: Vec<RecordOut>,
    /// regrow's index, with the leaves that have no record and lie in it: for each its position in the pytree.
    pub trailer: Option<(Trailer, Vec<(usize, Bytes)>)>,
}

/// The line in front of the leaves, as Python's `json.dumps` writes it.
///
/// # Errors
/// `InvalidArgument` for a value that a reader would not take for such a line.
pub fn line_of(value: &Value) -> Result<Vec<u8>> {
    if !(value.is_object() || value.is_array()) {
        return Err(Error::invalid("hyperparameters are a dict or a list")
            .expected("a line that begins with `{` or `[`", value));
    }
    // JSON escapes line breaks, so this is one line.
    let mut line = to_python_json(value)?;
    line.push(b'\n');
    Ok(line)
}

/// Writes the one file of a checkpoint; the caller commits. Takes the trailer out of `contents`, and leaves the
/// records, which may own what their owner wants to drop itself.
///
/// # Errors
/// `StorageFull` and its like; what reading a deferred array says.
pub fn write(staged: &Staged, contents: &mut Contents) -> Result<()> {
    let trailer = contents.trailer.take();
    let Contents { line, records, .. } = contents;
    let mut expected_len_bytes = line.len() as u64;
    for record in records.iter() {
        let len = record.header.data_len_bytes()?.saturating_add(record.header.to_bytes().len() as u64);
        expected_len_bytes = expected_len_bytes.saturating_add(len);
    }
    let blobs_len: u64 =
        trailer.iter().flat_map(|trailer| &trailer.1).map(|(_, blob)| blob.len() as u64).sum();
    let options = WriteOptions {
        expected_len_bytes: expected_len_bytes.saturating_add(blobs_len),
        checksums_from: u64::MAX,
        durable: staged.is_durable(),
    };
    let mut out = DirectWriter::create_with(&staged.single_file(), &options)?;
    out.write(line)?;
    let start = out.offset_bytes();
    let (mut offsets, mut sums) = (Vec::with_capacity(records.len()), Vec::with_capacity(records.len()));
    for record in records.iter() {
        offsets.push(out.offset_bytes() - start);
        write_record(&mut out, record, trailer.is_some().then_some(&mut sums))?;
    }
    if let Some((mut trailer, blobs)) = trailer {
        trailer.offsets = offsets;
        trailer.crc32c = sums;
        trailer.line = (!line.is_empty()).then(|| (line.len() as u64, crc32c(line)));
        let start = out.offset_bytes();
        out.write(&TRAILER_MAGIC)?;
        for (leaf, blob) in blobs {
            let place = (out.offset_bytes() - start, blob.len() as u64, crc32c(&blob));
            trailer.blobs.insert(leaf, place);
            out.write(&blob)?;
        }
        out.write(&trailer.to_bytes()?)?;
    }
    out.finish()?;
    Ok(())
}

fn write_record(out: &mut DirectWriter, record: &RecordOut, sums: Option<&mut Vec<u32>>) -> Result<()> {
    let mut blocks = Blocks::default();
    let is_summed = sums.is_some();
    let mut write = |out: &mut DirectWriter, bytes: &[u8]| {
        if is_summed {
            blocks.update(bytes);
        }
        out.write(bytes)
    };
    write(out, &record.header.to_bytes())?;
    record.array.for_each_piece(PIECE_LEN_BYTES, |piece| write(out, piece))?;
    if let Some(sums) = sums {
        blocks.finish(sums);
    }
    Ok(())
}

/// Checksums of the blocks of one record.
#[derive(Default)]
struct Blocks {
    done: Vec<u32>,
    current: Crc32c,
    filled_bytes: u64,
}

impl Blocks {
    fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.filled_bytes == BLOCK_LEN_BYTES {
                self.done.push(std::mem::take(&mut self.current).value());
                self.filled_bytes = 0;
            }
            let left = usize::try_from(BLOCK_LEN_BYTES - self.filled_bytes).unwrap_or(usize::MAX);
            let (now, rest) = bytes.split_at(left.min(bytes.len()));
            self.current.update(now);
            self.filled_bytes += now.len() as u64;
            bytes = rest;
        }
    }

    fn finish(self, sums: &mut Vec<u32>) {
        sums.extend(self.done);
        sums.push(self.current.value());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::equinox::trailer::block_count;

    #[test]
    fn every_started_block_has_a_checksum() {
        for len in [0, 1, BLOCK_LEN_BYTES - 1, BLOCK_LEN_BYTES, BLOCK_LEN_BYTES + 1, 2 * BLOCK_LEN_BYTES] {
            let bytes = vec![7; len as usize];
            let (mut blocks, mut sums) = (Blocks::default(), Vec::new());
            bytes.chunks(100_001).for_each(|piece| blocks.update(piece));
            blocks.finish(&mut sums);
            assert_eq!(sums.len() as u64, block_count(len, BLOCK_LEN_BYTES), "{len}");
            let last = bytes.chunks(BLOCK_LEN_BYTES as usize).last().unwrap_or_default();
            assert_eq!(sums.last(), Some(&crc32c(last)), "{len}");
        }
    }
}
