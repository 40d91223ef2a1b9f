//! JSON objects whose first member is a checksum of all that follows it:
//! `{"crc32c":"1b2e9a40",...}`.

use serde::Serialize;

use super::checksum::crc32c;

const OPENING: &str = "{\"crc32c\":\"";
const CLOSING: &str = "\",";
const CRC_HEX_LEN: usize = 8;
const BODY_OFFSET: usize = OPENING.len() + CRC_HEX_LEN + CLOSING.len();

/// Serializes `value`, a struct with at least one member, with the checksum as the first member.
///
/// # Errors
/// Errors of `serde_json`, which do not occur in practice.
pub fn to_bytes(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let json = serde_json::to_vec(value)?;
    let body = json.get(1..).unwrap_or_default();
    let mut bytes = format!("{OPENING}{:08x}{CLOSING}", crc32c(body)).into_bytes();
    bytes.extend_from_slice(body);
    Ok(bytes)
}

/// The error for bytes that do not begin with their checksum.
pub struct Unlike {
    /// The expected beginning.
    pub expected: String,
    /// The actual beginning.
    pub found: String,
}

/// Returns an error unless the bytes begin with their checksum, as [`to_bytes`] writes it.
pub fn check(bytes: &[u8]) -> Result<(), Unlike> {
    let sum = crc32c(bytes.get(BODY_OFFSET..).unwrap_or_default());
    let expected = format!("{OPENING}{sum:08x}{CLOSING}");
    if bytes.get(..BODY_OFFSET) == Some(expected.as_bytes()) {
        return Ok(());
    }
    let found = String::from_utf8_lossy(bytes.get(..BODY_OFFSET).unwrap_or(bytes)).into_owned();
    Err(Unlike { expected, found })
}
