//! Writes the parity blocks of a run of files, with checksums.

use std::sync::{Mutex, PoisonError};

use super::run::{Run, RunReader};
use crate::bytes::checksum::Crc32;
use crate::bytes::limits::work_space;
use crate::error::Result;
use crate::monitor::{Monitor, Stage};
use crate::parity::{Encoder, Geometry, ParityDocument, closing};
use crate::store::FileWriter;
use crate::threads::{map_ordered, thread_count};

/// How to read the rows of a group.
#[derive(Debug, Clone, Copy)]
struct Reads {
    /// The usual length of a row. Neighbouring stripes are read together.
    row_len_bytes: u64,
    /// Concurrent reads of each group.
    at_once: usize,
}

/// Shorter reads halve the speed of a disk. With one read at a time a disk is often idle, and a
/// bucket almost always (`docs/performance.md`).
const FROM_STORAGE: Reads = Reads { row_len_bytes: 128 << 10, at_once: 8 };

/// A single stripe stays in the processor's cache between its checksums and its parity.
const FROM_MEMORY: Reads = Reads { row_len_bytes: 32 << 10, at_once: 1 };

const HELD_LEN_BYTES: u64 = 128 << 20;

/// A run of neighbouring stripes, which are encoded together.
#[derive(Debug, Clone, Copy)]
struct Group {
    first: u64,
    count: u64,
}

/// The checksums and the parity of one group.
struct Encoded {
    /// Checksums of data blocks, by their numbers.
    checksums: Vec<(u64, u32)>,
    parity: Vec<u8>,
}

/// Writes the parity blocks of a run, then the completed index, then the closing bytes of the file.
/// Reads the whole run once, or takes it from memory.
pub(super) fn write_blocks(
    run: &Run,
    document: &mut ParityDocument,
    out: &mut FileWriter,
    monitor: &Monitor,
) -> Result<()> {
    let geometry = document.geometry();
    monitor.enter(Stage::Read);
    let stripe_len_bytes =
        geometry.data_blocks.saturating_add(geometry.parity_blocks) * geometry.block_len_bytes;
    let is_in_memory = run.memory_len_bytes() > geometry.len_bytes / 2;
    let reads = if is_in_memory { FROM_MEMORY } else { FROM_STORAGE };
    let count_max =
        (reads.row_len_bytes / geometry.block_len_bytes).min(HELD_LEN_BYTES / 2 / stripe_len_bytes).max(1);
    let stripes = geometry.stripes();
    let groups = (0..stripes)
        .step_by(count_max as usize)
        .map(|first| Group { first, count: count_max.min(stripes - first) });
    let mut checksums = vec![0; geometry.blocks() as usize];
    let mut parity_checksums = Vec::with_capacity(geometry.all_parity_blocks() as usize);
    // Groups reuse their buffers, because new memory costs as much time as the encoding.
    let idle = Mutex::new(Vec::new());
    map_ordered(
        thread_count(),
        groups,
        HELD_LEN_BYTES,
        |group| group.count * stripe_len_bytes,
        |group| {
            let worker = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut worker = match worker {
                Some(worker) => worker,
                None => Worker::new(run, &geometry, count_max, reads.at_once)?,
            };
            let encoded = worker.encode(&geometry, group)?;
            idle.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
            let blocks = encoded.checksums.len() as u64;
            monitor.done(Stage::Read, blocks * geometry.block_len_bytes)?;
            Ok(encoded)
        },
        |encoded| {
            for (block, checksum) in encoded.checksums {
                checksums[block as usize] = checksum;
            }
            parity_checksums.extend(encoded.parity.chunks(geometry.block_len_bytes as usize).map(Crc32::of));
            out.write(&encoded.parity)
        },
    )?;
    document.block_crc32 = checksums;
    document.parity_crc32 = parity_checksums;
    let index = document.to_bytes()?;
    out.write(&index)?;
    out.write(&closing(index.len() as u64))
}

/// Encodes groups, one after another, on one thread.
struct Worker<'r> {
    /// Each reader reads several neighbouring rows.
    readers: Vec<RunReader<'r>>,
    encoder: Encoder,
    /// Room for one row of the group's blocks for each block of a stripe. Rows in memory need none.
    room: Vec<u8>,
}

impl<'r> Worker<'r> {
    fn new(run: &'r Run, geometry: &Geometry, count_max: u64, reads_at_once: usize) -> Result<Self> {
        let room = work_space(geometry.data_blocks * count_max * geometry.block_len_bytes)?;
        let readers = (0..reads_at_once).map(|_| run.reader()).collect();
        Ok(Self { readers, encoder: Encoder::new(geometry)?, room })
    }

    /// Reads the stripes of a group, one row of neighbouring blocks at a time, and encodes them.
    fn encode(&mut self, geometry: &Geometry, group: Group) -> Result<Encoded> {
        let block_len = geometry.block_len_bytes as usize;
        let row_len = group.count as usize * block_len;
        let room = &mut self.room[..geometry.data_blocks as usize * row_len];
        let mut rows = Vec::with_capacity(geometry.data_blocks as usize);
        let mut checksums = Vec::with_capacity((geometry.data_blocks * group.count) as usize);
        let reads_at_once = self.readers.len();
        let band_rows = geometry.data_blocks.div_ceil(reads_at_once as u64).max(1);
        let bands = room.chunks_mut(band_rows as usize * row_len).zip(&mut self.readers);
        let bands = (0..).step_by(band_rows as usize).zip(bands);
        map_ordered(
            reads_at_once,
            bands,
            u64::MAX,
            |_| 0,
            |(first_row, (room, reader))| {
                read_rows(geometry, group, first_row, room.chunks_mut(row_len), reader)
            },
            |of_band| {
                rows.extend(of_band.rows);
                checksums.extend(of_band.checksums);
                Ok(())
            },
        )?;
        let mut parity =
            Vec::with_capacity((group.count * geometry.parity_blocks * geometry.block_len_bytes) as usize);
        for stripe in 0..group.count as usize {
            let blocks = rows.iter().map(|row| &row[stripe * block_len..][..block_len]);
            self.encoder.stripe(blocks, &mut parity)?;
        }
        Ok(Encoded { checksums, parity })
    }
}

/// Rows of a group, and the checksums of their blocks by block number.
struct Rows<'w> {
    rows: Vec<&'w [u8]>,
    checksums: Vec<(u64, u32)>,
}

/// Reads rows of a group into `room`, from row `first_row` on. Rows in memory are not copied.
fn read_rows<'w, 'r: 'w>(
    geometry: &Geometry,
    group: Group,
    first_row: u64,
    room: impl Iterator<Item = &'w mut [u8]>,
    reader: &mut RunReader<'r>,
) -> Result<Rows<'w>> {
    let mut found = Rows { rows: Vec::new(), checksums: Vec::new() };
    for (at, room) in (first_row..).zip(room) {
        let bytes = match geometry.block(group.first, at) {
            Some(first) => {
                let count = group.count.min(geometry.blocks() - first);
                geometry.range(first).start..geometry.range(first + count - 1).end
            }
            None => 0..0,
        };
        let len = (bytes.end - bytes.start) as usize;
        let in_memory = if len == room.len() { reader.in_memory(bytes.clone()) } else { None };
        let row = match in_memory {
            Some(row) => row,
            None => {
                // Fill the missing part of a stripe with zeros: the reused buffer holds bytes of
                // another group.
                let (read, missing) = room.split_at_mut(len);
                missing.fill(0);
                reader.read(bytes.start, read)?;
                &*room
            }
        };
        let first = bytes.start / geometry.block_len_bytes;
        let blocks = row[..len].chunks(geometry.block_len_bytes as usize);
        found.checksums.extend((first..).zip(blocks.map(Crc32::of)));
        found.rows.push(row);
    }
    Ok(found)
}
