//! An opened leaf file: its records and their bytes, which are checked if regrow's trailer has
//! their checksums.

use bytes::Bytes;

use super::layout::{Line, Record, Scan, no_record};
use super::trailer::{Trailer, block_count, is_begun};
use crate::located;
use crate::whole_file::WholeFile;
use regrow_base::bytes::checksum::crc32c;
use regrow_base::bytes::pages::{FreshPages, LARGE_PAGE_LEN_BYTES};
use regrow_base::error::{Error, Result, ResultExt};
use regrow_base::threads::pool;
use regrow_storage::location::{Location, ToLocation};
use regrow_store::reads::{BlobRef, BlockTable, CheckFor, Checked, Checks, Checksum, Extent, Words};
use regrow_store::{Access, advise};

const WORDS: Words = Words {
    what: |record, block| format!("block {block} of record {record} fails its crc32c"),
    help: HELP,
    help_if_zeros: HELP,
};

const HELP: &str = "`regrow repair` heals it with parity or a copy (`--from`); else load the other leaves";

/// Small records are read in batches of this length, each batch by one thread.
const BATCH_LEN_BYTES: u64 = 1 << 20;

/// Up to this length, one thread reads all: more threads cost more than they save.
const ALONE_LEN_MAX_BYTES: u64 = 4 << 20;

/// The length of the pieces of a record that are read, in a file without checksums.
const PIECE_LEN_BYTES: u64 = 4 << 20;

/// A leaf file: the headers are in memory, the data stays on disk. Without memory maps, the whole
/// file is in memory.
#[derive(Debug)]
pub struct LeafFile {
    image: WholeFile,
    scan: Scan,
    trailer: Option<Trailer>,
    /// The blocks of each record, from its header on; empty if the file has no checksums.
    blocks: Vec<BlockTable>,
    /// The error of a damaged trailer, if all records are whole.
    damage: Option<Error>,
    trailing_len_bytes: u64,
}

impl LeafFile {
    /// Reads the headers of all records, and the trailer. A broken record is not yet an error, nor
    /// is a file that begins with no record: see [`broken`](Self::broken).
    ///
    /// # Errors
    /// `Corrupt` if the bytes before the leaves are not a line of JSON, or the trailer describes
    /// other records.
    pub fn open(at: impl ToLocation) -> Result<Self> {
        let (file, damage) = Self::open_front(located(at)?)?;
        damage.map_or(Ok(file), Err)
    }

    /// Opens a file that may have any bytes after its whole records. The returned error describes
    /// these bytes.
    ///
    /// # Errors
    /// `Corrupt` if the bytes before the leaves are not a line of JSON.
    pub(super) fn open_front(at: Location) -> Result<(Self, Option<Error>)> {
        let image = WholeFile::of(at)?;
        let scan = Scan::of(&image.bytes).in_file(&image.at)?;
        let end = usize::try_from(scan.end_bytes).unwrap_or(usize::MAX);
        let mut file =
            Self { image, scan, trailer: None, blocks: Vec::new(), damage: None, trailing_len_bytes: 0 };
        let damage = file.read_trailer(end).err().map(|error| error.in_file(&file.image.at));
        Ok((file, damage))
    }

    fn read_trailer(&mut self, end: usize) -> Result<()> {
        let rest = self.image.bytes.slice(end.min(self.image.bytes.len())..);
        match Trailer::parse(&rest) {
            Ok(Some(trailer)) => {
                self.blocks = self.fit(&trailer)?;
                self.check_blobs(&trailer, rest.len() as u64)?;
                self.trailer = Some(trailer);
                Ok(())
            }
            // The records are whole, so only the trailer is damaged.
            Err(error) if is_begun(&rest) => {
                self.damage = Some(error.shift(end as u64).in_file(&self.image.at));
                Ok(())
            }
            // The file ends like a trailer, but no trailer begins after the last whole record. So a
            // record is damaged.
            Err(error) => Err(match self.scan.broken.take() {
                Some(broken) => broken,
                None => error.at_byte(end as u64).help("a record before it is damaged"),
            }),
            Ok(None) => {
                if self.scan.records.is_empty() && self.scan.broken.is_none() && !rest.is_empty() {
                    self.scan.broken = Some(no_record(&rest).at_byte(end as u64));
                }
                self.trailing_len_bytes = if self.scan.broken.is_some() { 0 } else { rest.len() as u64 };
                Ok(())
            }
        }
    }

    fn fit(&self, trailer: &Trailer) -> Result<Vec<BlockTable>> {
        let other = |what: &str| Error::corrupt(format!("the trailer has other {what} than the file"));
        let records = &self.scan.records;
        let start = records.first().map_or(0, |record| record.offset_bytes);
        let found = records.iter().map(|record| record.offset_bytes - start);
        if !found.eq(trailer.offsets.iter().copied()) {
            return Err(other("records").expected(trailer.offsets.len(), records.len()));
        }
        if trailer.block_len_bytes == 0 {
            return Err(Error::corrupt("the trailer has blocks of length 0").expected("at least 1 byte", 0));
        }
        let block_len_bytes = trailer.block_len_bytes;
        let blocks = |record: &Record| block_count(record.end_bytes() - record.offset_bytes, block_len_bytes);
        let count = records.iter().map(blocks).fold(0, u64::saturating_add);
        if count != trailer.crc32c.len() as u64 {
            return Err(other("blocks").expected(count, trailer.crc32c.len()));
        }
        let line = self.scan.line.as_ref().map(|line| line.len_bytes);
        if line != trailer.line.map(|(len, _)| len) {
            return Err(other("bytes in front of the leaves"));
        }
        let mut rest = trailer.crc32c.as_slice();
        let table = |(at, record): (usize, &Record)| {
            let (sums, later) = rest.split_at_checked(blocks(record) as usize).unwrap_or_default();
            rest = later;
            let range = record.offset_bytes..record.end_bytes();
            let table = BlockTable::new(range, block_len_bytes, Checksum::Crc32c, sums.to_vec(), WORDS);
            table.map(|table| table.labelled(at))
        };
        records.iter().enumerate().map(table).collect()
    }

    fn check_blobs(&self, trailer: &Trailer, trailer_len_bytes: u64) -> Result<()> {
        let is_inside = |&(offset, len, _): &(u64, u64, u32)| {
            offset.checked_add(len).is_some_and(|end| end <= trailer_len_bytes)
        };
        match trailer.blobs.values().all(is_inside) {
            true => Ok(()),
            false => Err(Error::corrupt("a leaf of the trailer is outside of it")
                .expected(format_args!("offsets below {trailer_len_bytes}"), "more")
                .help("copy the file again")),
        }
    }

    /// The location of the file.
    pub fn location(&self) -> &Location {
        &self.image.at
    }

    /// The line of hyperparameters before the leaves; `None` without one.
    pub fn line(&self) -> Option<&Line> {
        self.scan.line.as_ref()
    }

    /// The records that are whole, in file order.
    pub fn records(&self) -> &[Record] {
        &self.scan.records
    }

    /// The error of the record after the whole ones; `None` if no record begins there. A file that
    /// has other bytes but no record at all has an error, too.
    pub fn broken(&self) -> Option<&Error> {
        self.scan.broken.as_ref()
    }

    /// The offset of the end of the last whole record.
    pub fn end_bytes(&self) -> u64 {
        self.scan.end_bytes
    }

    pub(super) fn into_broken(self) -> Option<Error> {
        self.scan.broken.map(|error| error.in_file(self.image.at))
    }

    pub(super) fn into_undamaged(self) -> Result<Self> {
        match self.damage {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }

    /// regrow's index after the leaves; `None` without one.
    pub fn trailer(&self) -> Option<&Trailer> {
        self.trailer.as_ref()
    }

    /// The error of regrow's damaged index, if all records are whole.
    pub fn trailer_damage(&self) -> Option<&Error> {
        self.damage.as_ref()
    }

    /// The number of bytes after the last record that are neither a record nor a trailer.
    pub fn trailing_len_bytes(&self) -> u64 {
        self.trailing_len_bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.image.bytes.is_empty()
    }

    pub(super) fn check_line(&self) -> Result<()> {
        let Some((len, stored)) = self.trailer.as_ref().and_then(|trailer| trailer.line) else {
            return Ok(());
        };
        let found = crc32c(&self.image.slice(0, len)?);
        if found == stored {
            return Ok(());
        }
        Err(Error::corrupt("the line in front of the leaves fails its crc32c")
            .in_file(&self.image.at)
            .at_byte(0)
            .expected(format_args!("{stored:08x}"), format_args!("{found:08x}")))
    }

    /// Reads the data of whole records as it lies in the file, checked, by a few threads. Each
    /// `out` is exactly as long as the record's data.
    ///
    /// The destinations should be fresh memory, whose pages the system has not yet allocated.
    ///
    /// # Errors
    /// `Corrupt` with an offset if a block fails its checksum; `InvalidArgument` for another
    /// length.
    pub fn read(&self, wanted: Vec<(usize, &mut [u8])>) -> Result<()> {
        self.image.check_len()?;
        let (mut batches, mut batch, mut batch_len, mut total_len) = (Vec::new(), Vec::new(), 0, 0);
        for (at, out) in wanted {
            let record = self.record(at)?;
            let stored = self.image.slice(record.offset_bytes, record.end_bytes() - record.offset_bytes)?;
            if self.image.is_map() {
                advise(&stored, Access::Soon);
            }
            if record.data_len_bytes != out.len() as u64 {
                return Err(Error::invalid("the destination and the record differ in size")
                    .expected(record.data_len_bytes, out.len()));
            }
            total_len += record.data_len_bytes;
            let mut rest = out;
            let mut start = 0;
            // Cut at the large pages of the destination, so that one thread faults in each page.
            while !rest.is_empty() {
                let to_page = LARGE_PAGE_LEN_BYTES - rest.as_ptr().addr() % LARGE_PAGE_LEN_BYTES;
                let (out, after) = rest.split_at_mut(to_page.min(rest.len()));
                rest = after;
                let len = out.len() as u64;
                batch.push((at, start, out));
                batch_len += len;
                if batch_len >= BATCH_LEN_BYTES {
                    batches.push(std::mem::take(&mut batch));
                    batch_len = 0;
                }
                start += len;
            }
            if record.data_len_bytes == 0 {
                self.check(at, 0, 0)?;
            }
        }
        batches.push(batch);
        let threads = if total_len <= ALONE_LEN_MAX_BYTES { 1 } else { pool::thread_count() };
        // The copy needs no memory besides the destinations.
        let copy = |batch: Vec<(usize, u64, &mut [u8])>| {
            for (at, mut start, out) in batch {
                let record = self.record(at)?;
                let mut pages = FreshPages::of(out);
                let (mut rest, mut filled) = (out, 0);
                while !rest.is_empty() {
                    let len = (self.block_end(record, start) - start).min(rest.len() as u64);
                    let (out, after) = rest.split_at_mut(len as usize);
                    rest = after;
                    filled += out.len();
                    self.check(at, start, start + len)?;
                    pages.make_to(filled);
                    out.copy_from_slice(&self.data(at, start, len)?);
                    start += len;
                }
            }
            Ok(())
        };
        pool::for_each_parallel(threads, batches, 1, |_| 0, copy)
    }

    /// The offset in the record's data at which the block of byte `start` ends.
    fn block_end(&self, record: &Record, start: u64) -> u64 {
        let header_len = record.data_offset_bytes - record.offset_bytes;
        let end = match self.blocks.first() {
            Some(table) => {
                let block = table.block_len_bytes();
                ((header_len + start) / block + 1).saturating_mul(block).saturating_sub(header_len)
            }
            None => start + PIECE_LEN_BYTES,
        };
        end.min(record.data_len_bytes)
    }

    /// Not checked.
    pub(super) fn data(&self, at: usize, start: u64, len_bytes: u64) -> Result<Bytes> {
        let record = self.record(at)?;
        self.image.slice(record.data_offset_bytes + start, len_bytes)
    }

    /// Checks the blocks of a record's bytes from `start` to `end`, and its first block, which has
    /// the header. Each block is checked once.
    pub(super) fn check(&self, at: usize, start: u64, end: u64) -> Result<()> {
        let Some(table) = self.blocks.get(at) else { return Ok(()) };
        let record = self.record(at)?;
        let checked = Checked { blob: &self.image, table };
        checked.check(record.offset_bytes, record.offset_bytes + 1, CheckFor::Views)?;
        let (start, end) = (record.data_offset_bytes + start, record.data_offset_bytes + end);
        checked.check(start, end, CheckFor::Views)
    }

    /// The data of a record. A view is possible if the data begins at a multiple of `align_bytes`
    /// in memory. The check covers the header, too.
    pub(super) fn extent(&self, at: usize, align_bytes: usize) -> Result<Extent<'_>> {
        let record = self.record(at)?;
        let first = self.image.bytes.as_ptr().addr().wrapping_add(record.data_offset_bytes as usize);
        let end_bytes = record.end_bytes();
        let checks = |table| Checks { table, start_bytes: record.offset_bytes, end_bytes };
        Ok(Extent {
            blob: BlobRef::Kept(&self.image),
            offset_bytes: record.data_offset_bytes,
            len_bytes: record.data_len_bytes,
            checks: self.blocks.get(at).map(checks),
            is_viewable: first.is_multiple_of(align_bytes),
            working_len_bytes: None,
        })
    }

    pub(super) fn check_len(&self) -> Result<()> {
        self.image.check_len()
    }

    /// The bytes of a leaf in the trailer, after a check.
    pub(super) fn blob(&self, (offset, len_bytes, stored): (u64, u64, u32)) -> Result<Bytes> {
        let start = self.scan.end_bytes + offset;
        let bytes = self.image.slice(start, len_bytes)?;
        let found = crc32c(&bytes);
        if found == stored {
            return Ok(bytes);
        }
        Err(Error::corrupt("a leaf in the trailer fails its crc32c")
            .in_file(&self.image.at)
            .at_byte(start)
            .expected(format_args!("{stored:08x}"), format_args!("{found:08x}")))
    }

    fn record(&self, at: usize) -> Result<&Record> {
        self.scan.records.get(at).ok_or_else(|| Error::invalid(format!("record {at} does not exist")))
    }
}
