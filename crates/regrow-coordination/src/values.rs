//! Values of any length in a service that limits the length of a value: long values are cut into
//! parts. One call can read the first parts of many values.
//!
//! ```text
//! <at>/<name>/0          | length of the value, u64le | its first bytes |     put last, when the other parts exist
//! <at>/parts/<name>/1    | the next bytes |  ...
//! ```
//! The first part is short: the first parts of all processes fit into one message of a service. A
//! listing of `<at>/<name>` does not contain the other parts.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::Coordinator;
use regrow_base::error::{Error, ErrorKind, Result};

const LENGTH_LEN_BYTES: usize = size_of::<u64>();

/// The total length of the first parts of all processes, without their keys: a quarter of the
/// longest message of gRPC.
const FIRST_PARTS_LEN_BYTES: usize = 1 << 20;

/// The shortest and the longest first part of a value.
const FIRST_PART_LEN_BYTES: (usize, usize) = (64, 4096);

/// How long a part may take to appear after the first part, which is put last.
const PART_WAIT: Duration = Duration::from_secs(30);

/// The values below `at`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Values<'a> {
    pub service: &'a dyn Coordinator,
    pub at: &'a str,
}

impl Values<'_> {
    pub(super) fn put(self, name: &str, value: &Bytes) -> Result<bool> {
        let (first_len, part_len) = self.part_lens_bytes();
        let (head, rest) = value.split_at(value.len().min(first_len));
        for (at, part) in rest.chunks(part_len).enumerate() {
            if !self.service.put_if_absent(&self.part_key(name, at + 1), Bytes::copy_from_slice(part))? {
                return Ok(false);
            }
        }
        let mut first = BytesMut::with_capacity(LENGTH_LEN_BYTES + head.len());
        first.put_u64_le(value.len() as u64);
        first.put_slice(head);
        self.service.put_if_absent(&self.first_key(name), first.freeze())
    }

    /// The value under a name; waits for it as [`Coordinator::get`] does.
    pub(super) fn get(self, name: &str, wait: Duration) -> Result<Option<Bytes>> {
        let first = self.service.get(&self.first_key(name), wait)?;
        first.map(|first| self.whole(name, first)).transpose()
    }

    /// The values under these names, in their order, from one call to the service. `None` for the
    /// values that this call cannot give; no vector if the service has no such call.
    pub(super) fn get_many(self, names: &[String]) -> Result<Option<Vec<Option<Bytes>>>> {
        let keys: Vec<String> = names.iter().map(|name| self.first_key(name)).collect();
        let Some(found) = self.service.get_many(&keys)? else { return Ok(None) };
        let whole =
            |(name, first): (&String, Option<Bytes>)| first.map(|first| self.whole(name, first)).transpose();
        names.iter().zip(found).map(whole).collect::<Result<Vec<_>>>().map(Some)
    }

    fn whole(self, name: &str, mut first: Bytes) -> Result<Bytes> {
        let cut_short = |key: &str| Error::new(ErrorKind::Io, format!("the value at {key} was cut short"));
        let key = self.first_key(name);
        let len_bytes = first.try_get_u64_le().map_err(|_| cut_short(&key))?;
        if first.len() as u64 == len_bytes {
            return Ok(first);
        }
        let mut value = BytesMut::from(first);
        for at in 1.. {
            let key = self.part_key(name, at);
            let part = self.service.get(&key, PART_WAIT)?.filter(|part| !part.is_empty());
            value.extend_from_slice(&part.ok_or_else(|| cut_short(&key))?);
            if value.len() as u64 >= len_bytes {
                break;
            }
        }
        if value.len() as u64 == len_bytes { Ok(value.freeze()) } else { Err(cut_short(&key)) }
    }

    /// How many bytes of a value fit into the first part, beside the length, and into each other
    /// part.
    fn part_lens_bytes(self) -> (usize, usize) {
        let (least, most) = FIRST_PART_LEN_BYTES;
        let longest = self.service.value_len_max_bytes();
        let first = (FIRST_PARTS_LEN_BYTES / self.service.size().max(1)).clamp(least, most);
        (first.min(longest.saturating_sub(LENGTH_LEN_BYTES)).max(1), longest.max(1))
    }

    fn first_key(self, name: &str) -> String {
        format!("{}/{name}/0", self.at)
    }

    fn part_key(self, name: &str, at: usize) -> String {
        format!("{}/parts/{name}/{at}", self.at)
    }
}
