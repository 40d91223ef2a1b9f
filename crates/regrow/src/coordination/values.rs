//! Values of any length in keys of limited length.
//!
//! ```text
//! key/0    | length of the value, u64le | its first bytes |     put last: who sees it sees all
//! key/1    | the next bytes |  ...
//! ```

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::Coordinator;
use crate::error::{Error, ErrorKind, Result};

const LENGTH_LEN_BYTES: usize = size_of::<u64>();

/// How long a part may take to be seen when a later one has been.
const PART_WAIT: Duration = Duration::from_secs(30);

/// Puts a value where there is none; false if there is one. Only values of one part may have several writers.
pub(super) fn put(service: &dyn Coordinator, key: &str, value: &Bytes) -> Result<bool> {
    let part_len = part_len_bytes(service);
    let (head, rest) = value.split_at(value.len().min(part_len));
    for (at, part) in rest.chunks(part_len).enumerate() {
        if !service.put_if_absent(&part_key(key, at + 1), Bytes::copy_from_slice(part))? {
            return Ok(false);
        }
    }
    let mut first = BytesMut::with_capacity(LENGTH_LEN_BYTES + head.len());
    first.put_u64_le(value.len() as u64);
    first.put_slice(head);
    service.put_if_absent(&part_key(key, 0), first.freeze())
}

/// The value at a key; waits for it as [`Coordinator::get`] does.
pub(super) fn get(service: &dyn Coordinator, key: &str, wait: Duration) -> Result<Option<Bytes>> {
    let Some(mut first) = service.get(&part_key(key, 0), wait)? else { return Ok(None) };
    let cut_short = |key: &str| Error::new(ErrorKind::Io, format!("the value at {key} was cut short"));
    let len_bytes = first.try_get_u64_le().map_err(|_| cut_short(key))?;
    if first.len() as u64 == len_bytes {
        return Ok(Some(first));
    }
    let mut value = BytesMut::from(first);
    for at in 1.. {
        let key = part_key(key, at);
        let part = service.get(&key, PART_WAIT)?.filter(|part| !part.is_empty());
        value.extend_from_slice(&part.ok_or_else(|| cut_short(&key))?);
        if value.len() as u64 >= len_bytes {
            break;
        }
    }
    if value.len() as u64 == len_bytes { Ok(Some(value.freeze())) } else { Err(cut_short(key)) }
}

/// What fits beside the length, in the first part and, for simplicity, in every other.
fn part_len_bytes(service: &dyn Coordinator) -> usize {
    service.value_len_max_bytes().saturating_sub(LENGTH_LEN_BYTES).max(1)
}

fn part_key(key: &str, at: usize) -> String {
    format!("{key}/{at}")
}
