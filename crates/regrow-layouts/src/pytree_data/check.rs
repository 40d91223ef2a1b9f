//! Checks a manifest against its data file, before any data is read.

use super::manifest::{BLOCK_LEN_BYTES, Entry};
use super::paths::{about, path_text};
use regrow_base::error::{Error, Result};

/// Checks that the size of every entry fits its shape and dtype, and that its range is in the data
/// file.
pub(super) fn check_ranges(entries: &[Entry], data_len_bytes: u64) -> Result<()> {
    for entry in entries {
        check_entry(entry, data_len_bytes).map_err(|error| about(error, &entry.path))?;
    }
    let mut by_offset: Vec<&Entry> = entries.iter().filter(|entry| entry.len_bytes > 0).collect();
    by_offset.sort_by_key(|entry| entry.offset_bytes);
    for pair in by_offset.windows(2) {
        let [first, second] = pair else { continue };
        // No overflow: the check above has seen both ends inside the file.
        if first.offset_bytes + first.len_bytes > second.offset_bytes {
            let error = Error::corrupt(format!(
                "two arrays overlap in the data file: the other is {}",
                path_text(&first.path)
            ))
            .expected(
                format_args!("offset {} or more", first.offset_bytes + first.len_bytes),
                second.offset_bytes,
            );
            return Err(about(error, &second.path));
        }
    }
    Ok(())
}

fn check_entry(entry: &Entry, data_len_bytes: u64) -> Result<()> {
    let item = entry.descr.item_len_bytes();
    let expected = entry.shape.dims().iter().try_fold(item, |len, &dim| len.checked_mul(dim));
    // A shape with a zero in it may have other sizes whose product overflows.
    let expected = if entry.shape.is_empty() { Some(0) } else { expected };
    if expected != Some(entry.len_bytes) {
        let shape = format!("{} of dtype {}", entry.shape, entry.descr.text());
        let expected = expected.map_or("more than can be counted".to_owned(), |len| len.to_string());
        return Err(Error::corrupt(format!("nbytes is not the size of an array of shape {shape}"))
            .expected(expected, entry.len_bytes));
    }
    let end = entry.offset_bytes.checked_add(entry.len_bytes);
    if end.is_none_or(|end| end > data_len_bytes) {
        return Err(Error::corrupt("an array reaches beyond the end of the data file")
            .expected(format_args!("{data_len_bytes} bytes or less"), end.unwrap_or(u64::MAX))
            .help("the data file is cut short, or belongs to another manifest: copy both again"));
    }
    match &entry.crc32c {
        Some(sums) if sums.len() as u64 != entry.len_bytes.div_ceil(BLOCK_LEN_BYTES) => {
            Err(Error::corrupt("an array lacks the crc32c of a block")
                .expected(entry.len_bytes.div_ceil(BLOCK_LEN_BYTES), sums.len()))
        }
        _ => Ok(()),
    }
}
