//! The blocks of a blob: their expected checksums, and the blocks that have passed.
//!
//! ```text
//! blob    | head |  block 0  |  block 1  | b. 2 |  rest |      only the last block may be shorter than the others
//!                start                         end
//! ```

use std::fmt::{self, Display};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Blob;
use crate::bytes::checksum::{Crc32, Crc32c, crc32c};
use crate::error::{Error, Result};

/// Blocks up to this length are read whole, many at once. Longer blocks are read one at a time, in
/// steps.
const SHORT_BLOCK_LEN_MAX_BYTES: u64 = 1 << 20;

/// A block of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The index of the block in the table.
    pub number: usize,
    /// First byte in the blob.
    pub start: u64,
    /// The offset after the last byte.
    pub end: u64,
}

/// A blob with the checksums of its blocks.
#[derive(Debug, Clone, Copy)]
pub struct Checked<'f> {
    /// The blob.
    pub blob: &'f dyn Blob,
    /// The checksums of its blocks.
    pub table: &'f BlockTable,
}

impl Block {
    /// The length of the block in bytes.
    pub fn len_bytes(&self) -> usize {
        (self.end - self.start) as usize
    }
}

/// The kind of a checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    /// CRC-32C, which most layouts use.
    Crc32c,
    /// CRC-32, which zip uses.
    Crc32,
}

/// The expected checksum or digest of each block.
#[derive(Debug)]
enum Expected {
    Crc32c(Vec<u32>),
    Crc32(Vec<u32>),
    Blake3(Vec<blake3::Hash>),
    Nothing,
}

impl Expected {
    fn len(&self) -> usize {
        match self {
            Self::Crc32c(sums) | Self::Crc32(sums) => sums.len(),
            Self::Blake3(digests) => digests.len(),
            Self::Nothing => 0,
        }
    }

    fn get(&self, number: usize) -> Option<Sum> {
        match self {
            Self::Crc32c(sums) | Self::Crc32(sums) => sums.get(number).copied().map(Sum::Crc),
            Self::Blake3(digests) => digests.get(number).copied().map(Sum::Blake3),
            Self::Nothing => None,
        }
    }
}

/// A checksum or a digest of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sum {
    Crc(u32),
    Blake3(blake3::Hash),
}

impl Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crc(sum) => write!(f, "{sum:08x}"),
            Self::Blake3(digest) => write!(f, "{digest}"),
        }
    }
}

/// The texts of a layout for the error of a bad block.
#[derive(Debug, Clone, Copy)]
pub struct Words {
    /// Names the bad block, from the label of the table and the index of the block.
    pub what: fn(usize, usize) -> String,
    /// The help text.
    pub help: &'static str,
    /// The help text for a block that is all zeros.
    pub help_if_zeros: &'static str,
}

/// The checksums of the blocks in a range of a blob.
#[derive(Debug)]
pub struct BlockTable {
    range: Range<u64>,
    block_len_bytes: u64,
    expected: Expected,
    passed: Vec<AtomicBool>,
    words: Words,
    label: usize,
    is_never_rewritten: bool,
}

impl BlockTable {
    /// A table of blocks of this length in `range`, with one checksum each.
    ///
    /// # Errors
    /// `Corrupt` if the number of checksums is not the number of blocks.
    pub fn new(
        range: Range<u64>,
        block_len_bytes: u64,
        checksum: Checksum,
        expected: Vec<u32>,
        words: Words,
    ) -> Result<Self> {
        let expected = match checksum {
            Checksum::Crc32c => Expected::Crc32c(expected),
            Checksum::Crc32 => Expected::Crc32(expected),
        };
        Self::of(range, block_len_bytes, expected, words)
    }

    /// As `new`, with a BLAKE3 digest of each block. Signatures have such digests.
    pub fn of_digests(
        range: Range<u64>,
        block_len_bytes: u64,
        expected: Vec<blake3::Hash>,
        words: Words,
    ) -> Result<Self> {
        Self::of(range, block_len_bytes, Expected::Blake3(expected), words)
    }

    fn of(range: Range<u64>, block_len_bytes: u64, expected: Expected, words: Words) -> Result<Self> {
        let len_bytes = range.end.checked_sub(range.start);
        let count = len_bytes.filter(|_| block_len_bytes > 0).map(|len| len.div_ceil(block_len_bytes));
        if count != Some(expected.len() as u64) {
            return Err(Error::corrupt("the number of checksums does not fit the number of blocks")
                .expected(format_args!("{count:?}"), expected.len()));
        }
        let passed = (0..expected.len()).map(|_| AtomicBool::new(false)).collect();
        Ok(Self { range, block_len_bytes, expected, passed, words, label: 0, is_never_rewritten: false })
    }

    /// Blocks without checksums. The table only defines which bytes are read together, and `check`
    /// accepts any bytes.
    pub fn without_checksums(range: Range<u64>, block_len_bytes: u64) -> Self {
        let words = Words { what: |_, _| String::new(), help: "", help_if_zeros: "" };
        Self {
            range,
            block_len_bytes: block_len_bytes.max(1),
            expected: Expected::Nothing,
            passed: Vec::new(),
            words,
            label: 0,
            is_never_rewritten: true,
        }
    }

    /// For a blob that never changes: a block that has passed for one reader stays passed.
    #[must_use]
    pub fn never_rewritten(self) -> Self {
        Self { is_never_rewritten: true, ..self }
    }

    /// Whether the blob never changes.
    pub fn is_never_rewritten(&self) -> bool {
        self.is_never_rewritten
    }

    /// Sets the label of the table, for errors.
    #[must_use]
    pub fn labelled(self, label: usize) -> Self {
        Self { label, ..self }
    }

    /// The bytes that have checksums.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// The length of every block except the last, which may be shorter.
    pub fn block_len_bytes(&self) -> u64 {
        self.block_len_bytes
    }

    /// The block with the byte at `offset_bytes`.
    pub fn block_at(&self, offset_bytes: u64) -> Block {
        let number = offset_bytes.saturating_sub(self.range.start) / self.block_len_bytes;
        let start = self.range.start + number * self.block_len_bytes;
        let end = start.saturating_add(self.block_len_bytes).min(self.range.end);
        Block { number: number as usize, start, end }
    }

    /// The blocks from the one with byte `start` to the one with the byte before `end`.
    pub fn blocks(&self, start: u64, end: u64) -> impl Iterator<Item = Block> + '_ {
        let (start, end) = (start.max(self.range.start), end.min(self.range.end));
        let first = Some(self.block_at(start)).filter(|_| start < end);
        std::iter::successors(first, move |block| (block.end < end).then(|| self.block_at(block.end)))
    }

    /// Whether the block was checked and has passed.
    pub fn has_passed(&self, block: Block) -> bool {
        self.passed.get(block.number).is_some_and(|passed| passed.load(Ordering::Acquire))
    }

    /// Marks blocks as not checked.
    pub fn forget(&self, start: u64, end: u64) {
        for block in self.blocks(start, end) {
            if let Some(passed) = self.passed.get(block.number) {
                passed.store(false, Ordering::Release);
            }
        }
    }

    /// Whether blocks are short enough to be read whole.
    pub fn is_short(&self) -> bool {
        self.block_len_bytes <= SHORT_BLOCK_LEN_MAX_BYTES
    }

    /// Checks the bytes of a block, and records whether they passed. `Corrupt` has the file and
    /// offset.
    pub fn check(&self, blob: &dyn Blob, block: Block, bytes: &[u8]) -> Result<()> {
        match self.sum_of(bytes) {
            Some(found) => self.conclude(blob, block, found, || bytes.iter().all(|&byte| byte == 0)),
            None => Ok(()),
        }
    }

    /// Whether these bytes, which may come from another source, have the length and checksum of the
    /// block. Does not record the result.
    pub fn is_good(&self, block: Block, bytes: &[u8]) -> bool {
        let is_whole = bytes.len() as u64 == block.end - block.start;
        is_whole && self.sum_of(bytes).is_none_or(|sum| self.expected.get(block.number) == Some(sum))
    }

    fn sum_of(&self, bytes: &[u8]) -> Option<Sum> {
        match self.expected {
            Expected::Crc32c(_) => Some(Sum::Crc(crc32c(bytes))),
            Expected::Crc32(_) => Some(Sum::Crc(Crc32::of(bytes))),
            Expected::Blake3(_) => Some(Sum::Blake3(blake3::hash(bytes))),
            Expected::Nothing => None,
        }
    }

    /// Starts the check of a block whose bytes arrive in steps.
    pub fn begin(&self, block: Block) -> Running<'_> {
        let hasher = match self.expected {
            Expected::Crc32c(_) | Expected::Nothing => Hasher::Crc32c(Crc32c::new()),
            Expected::Crc32(_) => Hasher::Crc32(Crc32::new()),
            Expected::Blake3(_) => Hasher::Blake3(Box::new(blake3::Hasher::new())),
        };
        Running { table: self, block, hasher, is_zeros: true }
    }

    fn conclude(
        &self,
        blob: &dyn Blob,
        block: Block,
        found: Sum,
        is_zeros: impl FnOnce() -> bool,
    ) -> Result<()> {
        let (Some(passed), Some(expected)) = (self.passed.get(block.number), self.expected.get(block.number))
        else {
            return Err(Error::invalid("the block does not exist"));
        };
        passed.store(found == expected, Ordering::Release);
        if found == expected {
            return Ok(());
        }
        let help = if is_zeros() { self.words.help_if_zeros } else { self.words.help };
        Err(Error::corrupt((self.words.what)(self.label, block.number))
            .expected(expected, found)
            .in_file(blob.describe())
            .at_byte(block.start)
            .help(help))
    }
}

/// A block that is being read: some of its bytes have arrived.
pub struct Running<'t> {
    table: &'t BlockTable,
    block: Block,
    hasher: Hasher,
    is_zeros: bool,
}

enum Hasher {
    Crc32c(Crc32c),
    Crc32(Crc32),
    Blake3(Box<blake3::Hasher>),
}

impl Running<'_> {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.is_zeros = self.is_zeros && bytes.iter().all(|&byte| byte == 0);
        match &mut self.hasher {
            Hasher::Crc32c(sum) => sum.update(bytes),
            Hasher::Crc32(sum) => sum.update(bytes),
            Hasher::Blake3(hasher) => drop(hasher.update(bytes)),
        }
    }

    /// Compares the checksum after the last byte, and records the result, as [`BlockTable::check`].
    pub fn finish(self, blob: &dyn Blob) -> Result<()> {
        let found = match self.hasher {
            Hasher::Crc32c(sum) => Sum::Crc(sum.value()),
            Hasher::Crc32(sum) => Sum::Crc(sum.value()),
            Hasher::Blake3(hasher) => Sum::Blake3(hasher.finalize()),
        };
        self.table.conclude(blob, self.block, found, || self.is_zeros)
    }
}
