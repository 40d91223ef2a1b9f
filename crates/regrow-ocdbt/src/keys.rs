//! The keys of one node, each without the prefix that it shares with the previous key.

use crate::bytes::varint::write_varint;

use super::table::common_prefix_len;

/// The keys of one node without their first `excluded_len` bytes. Each key has the length that it
/// shares with the previous key, and its other bytes.
pub(super) struct Keys {
    excluded_len: usize,
    before: Vec<u8>,
    shared: Vec<u32>,
    suffix_lens: Vec<u32>,
    suffixes: Vec<u8>,
}

impl Keys {
    pub(super) fn new(excluded_len: usize) -> Self {
        let (shared, suffix_lens, suffixes) = (Vec::new(), Vec::new(), Vec::new());
        Self { excluded_len, before: Vec::new(), shared, suffix_lens, suffixes }
    }

    pub(super) fn push(&mut self, key: &[u8]) {
        let relative = key.get(self.excluded_len..).unwrap_or_default();
        let shared = common_prefix_len(&self.before, relative);
        let suffix = relative.get(shared..).unwrap_or_default();
        // A key has at most 65535 bytes.
        self.shared.push(shared as u32);
        self.suffix_lens.push(suffix.len() as u32);
        self.suffixes.extend_from_slice(suffix);
        self.before.truncate(shared);
        self.before.extend_from_slice(suffix);
    }

    /// Appends the number of keys and the keys. `common_lens` has the prefix lengths of children,
    /// in an interior node.
    pub(super) fn write(&self, out: &mut Vec<u8>, common_lens: impl Iterator<Item = usize>) {
        write_varint(out, self.shared.len() as u64);
        self.shared.iter().skip(1).for_each(|&len| write_varint(out, len.into()));
        self.suffix_lens.iter().for_each(|&len| write_varint(out, len.into()));
        common_lens.for_each(|len| write_varint(out, len as u64));
        out.extend_from_slice(&self.suffixes);
    }
}
