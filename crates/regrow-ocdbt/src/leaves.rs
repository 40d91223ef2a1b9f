//! Turns entries into leaves: first it checks all entries, then it makes the body of each leaf.

use std::ops::Range;

use crate::bytes::varint::write_varint;
use crate::error::{Error, ErrorKind, Result};
use crate::threads::pool;

use super::entries::{Entries, FileName, ValueRef};
use super::keys::Keys;
use super::node::{INLINE_LEN_MAX_BYTES, KEY_LEN_MAX_BYTES, Stats};
use super::table::{self, is_safe};

/// The estimated length of an entry in addition to its key and its value or path.
const LEAF_ENTRY_ESTIMATE_BYTES: usize = 16;

const CHECKED_AT_A_TIME: usize = 1 << 15;

/// The files with values, and their order in tables.
pub(super) struct Files<'e> {
    names: &'e [FileName],
    /// The number of each file among the distinct names.
    ranks: Vec<u32>,
    /// For each distinct name, in order: the number of one file with this name.
    sorted: Vec<u32>,
    is_safe: Vec<bool>,
}

impl<'e> Files<'e> {
    pub(super) fn new(names: &'e [FileName]) -> Self {
        let name = |id: u32| names.get(id as usize);
        let mut order: Vec<u32> = (0..names.len() as u32).collect();
        order.sort_unstable_by_key(|&id| name(id));
        let mut ranks = vec![0; names.len()];
        let mut sorted: Vec<u32> = Vec::with_capacity(names.len());
        for id in order {
            if sorted.last().is_none_or(|&last| name(last) != name(id)) {
                sorted.push(id);
            }
            if let Some(rank) = ranks.get_mut(id as usize) {
                *rank = sorted.len() as u32 - 1;
            }
        }
        let is_safe = names.iter().map(|(base, relative)| is_safe_pair(base, relative)).collect();
        Self { names, ranks, sorted, is_safe }
    }

    /// Checks every entry and their order, on a few threads, and returns the estimated size of
    /// each.
    pub(super) fn check_entries(&self, entries: &impl Entries) -> Result<Vec<u32>> {
        let count = entries.count();
        let mut sizes = Vec::with_capacity(count);
        let ranges =
            (0..count).step_by(CHECKED_AT_A_TIME).map(|start| start..count.min(start + CHECKED_AT_A_TIME));
        pool::map_ordered(
            pool::thread_count(),
            ranges,
            u64::MAX,
            |_| 0,
            |range| self.check_range(entries, range),
            |range_sizes: Vec<u32>| {
                sizes.extend_from_slice(&range_sizes);
                Ok(())
            },
        )?;
        Ok(sizes)
    }

    fn check_range(&self, entries: &impl Entries, range: Range<usize>) -> Result<Vec<u32>> {
        let mut sizes = Vec::with_capacity(range.len());
        let (mut before, mut key) = (Vec::new(), Vec::new());
        if let Some(last) = range.start.checked_sub(1) {
            entries.push_key(last, &mut before);
        }
        for at in range {
            key.clear();
            entries.push_key(at, &mut key);
            sizes.push(self.check_entry(&key, &entries.value(at))?);
            if at > 0 && before >= key {
                return Err(if before == key {
                    let what = format!("the key {} is given twice", key.escape_ascii());
                    Error::new(ErrorKind::NameCollision, what)
                } else {
                    Error::invalid(format!("the key {} is not in order", key.escape_ascii()))
                });
            }
            std::mem::swap(&mut before, &mut key);
        }
        Ok(sizes)
    }

    /// Checks an entry, and returns its estimated size.
    fn check_entry(&self, key: &[u8], value: &ValueRef<'_>) -> Result<u32> {
        let refuse = |what: String| Err(Error::invalid(format!("{what} (key {})", key.escape_ascii())));
        if key.len() > KEY_LEN_MAX_BYTES {
            let start = key.get(..KEY_SHOWN_BYTES).unwrap_or_default().escape_ascii();
            return Err(Error::invalid(format!("the OCDBT key {start}... is too long"))
                .expected(format_args!("at most {KEY_LEN_MAX_BYTES} bytes"), key.len())
                .help("give it a shorter name"));
        }
        let value_bytes = match value {
            ValueRef::Inline(bytes) if bytes.len() as u64 > INLINE_LEN_MAX_BYTES => {
                return refuse(format!(
                    "an inline value has at most {INLINE_LEN_MAX_BYTES} bytes, not {}",
                    bytes.len()
                ));
            }
            ValueRef::Inline(bytes) => bytes.len(),
            ValueRef::Indirect { file, offset_bytes, len_bytes } => {
                let ends = offset_bytes.checked_add(*len_bytes).is_some_and(|end| end <= i64::MAX as u64);
                if !ends {
                    return refuse(format!(
                        "{len_bytes} bytes from byte {offset_bytes} on end beyond 2^63 - 1"
                    ));
                }
                let at = *file as usize;
                match (self.names.get(at), self.is_safe.get(at)) {
                    (Some((base, relative)), Some(true)) => base.len() + relative.len(),
                    (Some((base, relative)), _) => {
                        let (base, relative) = (base.escape_ascii(), relative.escape_ascii());
                        return refuse(format!("{base}{relative} is not a valid name of a data file"));
                    }
                    (None, _) => return refuse(format!("data file {file} does not exist")),
                }
            }
        };
        // A key and a path have at most 64 KiB each, and an inline value has at most 1 MiB.
        Ok((LEAF_ENTRY_ESTIMATE_BYTES + key.len() + value_bytes) as u32)
    }
}

/// The number of bytes of an overlong key that a message shows.
const KEY_SHOWN_BYTES: usize = 80;

fn is_safe_pair(base: &[u8], relative: &[u8]) -> bool {
    if base.is_empty() { is_safe(relative) } else { is_safe(&[base, relative].concat()) }
}

/// The body and the statistics of a leaf with the entries of `range`. Its keys omit their first
/// `excluded_len` bytes.
pub(super) fn leaf_body(
    entries: &impl Entries,
    range: Range<usize>,
    files: &Files<'_>,
    excluded_len: usize,
) -> (Vec<u8>, Stats) {
    let count = range.len();
    let mut keys = Keys::new(excluded_len);
    let mut key = Vec::new();
    let (mut lens, mut kinds) = (Vec::with_capacity(count), Vec::with_capacity(count));
    let (mut ranks, mut offsets) = (Vec::with_capacity(count), Vec::with_capacity(4 * count));
    let mut inline = Vec::new();
    let mut stats = Stats::default();
    for at in range {
        key.clear();
        entries.push_key(at, &mut key);
        keys.push(&key);
        let (len_bytes, num_indirect_value_bytes) = match entries.value(at) {
            ValueRef::Inline(bytes) => {
                kinds.push(0);
                inline.extend_from_slice(bytes);
                (bytes.len() as u64, 0)
            }
            ValueRef::Indirect { file, offset_bytes, len_bytes } => {
                kinds.push(1);
                ranks.push(files.ranks.get(file as usize).copied().unwrap_or_default());
                write_varint(&mut offsets, offset_bytes);
                (len_bytes, len_bytes)
            }
        };
        stats = stats.plus(Stats { num_keys: 1, num_tree_bytes: 0, num_indirect_value_bytes });
        write_varint(&mut lens, len_bytes);
    }
    let (table, numbers) = files.table_of(&ranks);
    let mut body = Vec::with_capacity(inline.len() + offsets.len() + 16 * count);
    body.push(0);
    table::write(&mut body, &table);
    keys.write(&mut body, std::iter::empty());
    body.append(&mut lens);
    body.append(&mut kinds);
    for &rank in &ranks {
        let number = numbers.get(rank as usize).copied().unwrap_or_default();
        write_varint(&mut body, number.into());
    }
    body.append(&mut offsets);
    body.append(&mut inline);
    (body, stats)
}

/// Base path and relative path, as in a table.
type PathPair<'a> = (&'a [u8], &'a [u8]);

impl Files<'_> {
    /// The files of these ranks, in order, and for each rank the number of its file in the table.
    fn table_of(&self, ranks: &[u32]) -> (Vec<PathPair<'_>>, Vec<u32>) {
        let mut numbers = vec![UNUSED; self.sorted.len()];
        for &rank in ranks {
            if let Some(number) = numbers.get_mut(rank as usize) {
                *number = 0;
            }
        }
        let mut table: Vec<PathPair<'_>> = Vec::new();
        for (number, &id) in numbers.iter_mut().zip(&self.sorted) {
            if *number != UNUSED
                && let Some((base, relative)) = self.names.get(id as usize)
            {
                *number = table.len() as u32;
                table.push((base, relative));
            }
        }
        (table, numbers)
    }
}

const UNUSED: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries with numbers as keys, and with all values in one file. Two neighbouring keys may be
    /// swapped.
    struct Numbers {
        count: usize,
        swapped: Option<usize>,
        files: Vec<FileName>,
    }

    impl Entries for Numbers {
        fn count(&self) -> usize {
            self.count
        }

        fn files(&self) -> &[FileName] {
            &self.files
        }

        fn push_key(&self, at: usize, out: &mut Vec<u8>) {
            let number = match self.swapped {
                Some(first) if at == first => at + 1,
                Some(first) if at == first + 1 => first,
                _ => at,
            };
            out.extend_from_slice(format!("{number:08}").as_bytes());
        }

        fn value(&self, _at: usize) -> ValueRef<'_> {
            ValueRef::Indirect { file: 0, offset_bytes: 0, len_bytes: 1 }
        }
    }

    fn numbers(swapped: Option<usize>, file: &str) -> Numbers {
        let name = ((*b"").as_slice().into(), file.as_bytes().into());
        Numbers { count: 3 * CHECKED_AT_A_TIME + 5, swapped, files: vec![name] }
    }

    #[test]
    fn entries_out_of_order_are_found_at_any_border_of_threads() {
        let check = |numbers: &Numbers| Files::new(numbers.files()).check_entries(numbers);
        let sizes = check(&numbers(None, "a")).unwrap();
        assert_eq!(sizes, vec![(LEAF_ENTRY_ESTIMATE_BYTES + 9) as u32; 3 * CHECKED_AT_A_TIME + 5]);
        for first in
            [0, CHECKED_AT_A_TIME - 2, CHECKED_AT_A_TIME - 1, CHECKED_AT_A_TIME, 3 * CHECKED_AT_A_TIME + 3]
        {
            let error = check(&numbers(Some(first), "a")).unwrap_err();
            assert!(error.to_string().contains(&format!("{first:08} is not in order")), "{error}");
        }
        let error = check(&numbers(None, "../a")).unwrap_err();
        assert!(
            error.to_string().contains("../a is not a valid name of a data file (key 00000000)"),
            "{error}"
        );
    }

    #[test]
    fn a_leaf_has_a_table_of_the_files_that_it_refers_to() {
        let name = |relative: &str| ((*b"").as_slice().into(), relative.as_bytes().into());
        let names: Vec<FileName> = ["c", "a", "b", "a"].map(name).into();
        let files = Files::new(&names);
        assert_eq!(files.ranks, [2, 0, 1, 0]);
        let (table, numbers) = files.table_of(&[2, 0, 2]);
        assert_eq!(table, [(&b""[..], &b"a"[..]), (b"", b"c")]);
        assert_eq!(numbers, [0, UNUSED, 1]);
    }
}
