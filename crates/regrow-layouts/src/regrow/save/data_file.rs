//! Makes the record in `regrow.json` for a data file that was just written.

use super::super::manifest::DataFile;
use regrow_store::{FileWriter, WrittenFile};

/// The record of a written file. `head_crc32c` covers the bytes before `data_offset`.
pub(super) fn data_file(name: String, data_offset: u64, head_crc32c: u32, written: WrittenFile) -> DataFile {
    DataFile {
        name,
        len_bytes: written.len_bytes,
        data_offset,
        head_crc32c,
        block_len_bytes: FileWriter::BLOCK_LEN_BYTES,
        block_crc32c: written.block_crc32c,
        blake3: None,
    }
}
