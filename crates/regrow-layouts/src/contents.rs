//! Recognises the layout of a file by its contents, for any name: files in the cache of the Hugging
//! Face hub have no suffix, and some files have a wrong suffix.

use super::{Format, equinox, flax, npy, safetensors, torch};
use regrow_base::bytes::zip::first_member;
use regrow_base::error::Result;
use regrow_storage::Found;
use regrow_storage::location::Location;

/// The number of bytes read from the start of a file. It covers the header and the name of a zip
/// archive's first member.
const LOOKED_AT_BYTES: u64 = 512;

/// The layout of the file `at` a location, by its contents; `None` if no layout has such contents.
/// Most layouts need only the first bytes.
///
/// # Errors
/// Errors of the storage.
pub fn layout_of(at: &Location) -> Result<Option<&'static dyn Format>> {
    let Ok(Some(Found::File { len_bytes })) = at.look() else { return Ok(None) };
    let first = at.read_beginning(LOOKED_AT_BYTES)?.unwrap_or_default();
    if safetensors::begins_file(&first, len_bytes) {
        return Ok(Some(&safetensors::Safetensors));
    }
    if equinox::shows_records(npy::read_of(at, len_bytes))? {
        return Ok(Some(&equinox::Equinox));
    }
    if first.starts_with(&npy::header::MAGIC) {
        return Ok(Some(&npy::Npy));
    }
    if torch::is_one_by_content(&first) {
        return Ok(Some(&torch::Torch));
    }
    if first_member(&first).is_some_and(|name| name.ends_with(npy::SUFFIX.as_bytes())) {
        return Ok(Some(&npy::Npy));
    }
    Ok(flax::holds_one_object(at).then_some(&flax::Flax as &dyn Format))
}
