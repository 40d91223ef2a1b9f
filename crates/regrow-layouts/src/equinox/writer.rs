//! Writes leaves to a file: line, records, trailer.
//!
//! The writer computes the checksums of a record while the data is in the CPU cache.

use serde_json::Value;

use super::trailer::{BLOCK_LEN_BYTES, Trailer};
use crate::Preview;
use crate::npy::header::{Header, TRAILER_MAGIC};
use crate::orbax::json_text::to_python_json;
use regrow_base::bytes::checksum::{BlockSums, Crc32c, crc32c};
use regrow_base::error::{Error, Result};
use regrow_storage::NewFile;
use regrow_store::FileWriter;
use regrow_tree::array::Array;

/// The length of the pieces that are checksummed and written: small enough to stay in the CPU cache
/// in between.
const PIECE_LEN_BYTES: usize = 256 << 10;

/// A record to be written.
#[derive(Debug)]
pub struct RecordOut {
    /// The npy header of the record.
    pub header: Header,
    /// The elements in file order, as a C-order array: transposed if the header says Fortran order.
    pub array: Array,
}

/// The contents of a file to write.
#[derive(Debug)]
pub struct Contents {
    /// The line of hyperparameters in front of the leaves, with its newline; empty for none.
    pub line: Vec<u8>,
    /// The records in file order.
    pub records: Vec<RecordOut>,
    /// regrow's index, and the leaves that are stored in the trailer, each with its position in the
    /// pytree.
    pub trailer: Option<(Trailer, Vec<(usize, Array)>)>,
}

impl Contents {
    pub(super) fn preview(&self) -> Result<Preview> {
        let mut preview = Preview::default();
        preview.bytes(&self.line);
        for record in &self.records {
            preview.bytes(&record.header.to_bytes());
            preview.data(record.header.data_len_bytes()?);
        }
        if self.trailer.is_some() {
            preview.bytes(&TRAILER_MAGIC);
        }
        Ok(preview)
    }
}

/// The line before the leaves, as Python's `json.dumps` writes it.
///
/// # Errors
/// `InvalidArgument` for a value that is neither a dict nor a list: a reader would not recognise
/// its line.
pub fn line_of(value: &Value) -> Result<Vec<u8>> {
    if !(value.is_object() || value.is_array()) {
        return Err(Error::invalid("hyperparameters must be a dict or a list")
            .expected("a line that begins with `{` or `[`", value));
    }
    // JSON escapes line breaks, so this is one line.
    let mut line = to_python_json(value)?;
    line.push(b'\n');
    Ok(line)
}

/// Writes the one file of a checkpoint; the caller commits. Takes the trailer out of `contents`,
/// but leaves the records there, so that the caller can drop the arrays itself.
///
/// # Errors
/// `StorageFull` and other errors of the storage; errors of reading a deferred array.
pub fn write(new: &dyn NewFile, contents: &mut Contents) -> Result<()> {
    let trailer = contents.trailer.take();
    let Contents { line, records, .. } = contents;
    let mut expected_len_bytes = line.len() as u64;
    for record in records.iter() {
        let len = record.header.data_len_bytes()?.saturating_add(record.header.to_bytes().len() as u64);
        expected_len_bytes = expected_len_bytes.saturating_add(len);
    }
    let blobs_len: u64 =
        trailer.iter().flat_map(|trailer| &trailer.1).map(|(_, blob)| blob.len_bytes()).sum();
    let mut out = new.single_writer(expected_len_bytes.saturating_add(blobs_len), u64::MAX)?;
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
            let offset_bytes = out.offset_bytes() - start;
            let sum = write_blob(&mut out, &blob)?;
            trailer.blobs.insert(leaf, (offset_bytes, blob.len_bytes(), sum));
        }
        out.write(&trailer.to_bytes()?)?;
    }
    out.finish()?;
    Ok(())
}

fn write_record(out: &mut FileWriter, record: &RecordOut, sums: Option<&mut Vec<u32>>) -> Result<()> {
    let mut blocks = sums.is_some().then(|| BlockSums::new(BLOCK_LEN_BYTES as usize));
    let mut write = |bytes: &[u8]| {
        if let Some(blocks) = &mut blocks {
            blocks.update(bytes);
        }
        out.write(bytes)
    };
    write(&record.header.to_bytes())?;
    record.array.for_each_piece(PIECE_LEN_BYTES, write)?;
    if let (Some(sums), Some(mut blocks)) = (sums, blocks) {
        sums.extend(blocks.finish());
    }
    Ok(())
}

fn write_blob(out: &mut FileWriter, blob: &Array) -> Result<u32> {
    let mut sum = Crc32c::new();
    blob.for_each_piece(PIECE_LEN_BYTES, |piece| {
        sum.update(piece);
        out.write(piece)
    })?;
    Ok(sum.value())
}
