//! Parity blocks and checksums of a run of files.

use super::run::Run;
use crate::bytes::checksum::Crc32;
use crate::bytes::limits::work_space;
use crate::error::Result;
use crate::monitor::{Monitor, Stage};
use crate::parity::{Encoder, Geometry, ParityDocument, closing};
use crate::store::FileWriter;
use crate::threads::{map_ordered, thread_count};

/// Bytes of stripes that one thread holds at once, about: neighbouring stripes are read together.
const GROUP_LEN_BYTES: u64 = 16 << 20;

/// Most stripes that are read together: longer reads are not faster.
const GROUP_STRIPES_MAX: u64 = 16;

/// Stripes beside each other.
#[derive(Debug, Clone, Copy)]
struct Group {
    first: u64,
    count: u64,
}

/// What has become of a group.
struct Encoded {
    /// Checksums of data blocks, by their numbers.
    checksums: Vec<(u64, u32)>,
    /// The parity blocks, one after another.
    parity: Vec<u8>,
}

/// Writes the parity blocks of a run, then the index, which is filled in, then what closes the file. All of the run is read
/// once.
///
/// # Errors
/// `Corrupt` if a file is gone or too short; what the storages say; `Cancelled`.
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
    let count_max = (GROUP_LEN_BYTES / stripe_len_bytes).clamp(1, GROUP_STRIPES_MAX);
    let stripes = geometry.stripes();
    let groups = (0..stripes)
        .step_by(count_max as usize)
        .map(|first| Group { first, count: count_max.min(stripes - first) });
    let mut checksums = vec![0; geometry.blocks() as usize];
    let mut parity_checksums = Vec::with_capacity(geometry.all_parity_blocks() as usize);
    map_ordered(
        thread_count(),
        groups,
        2 * thread_count() as u64 * count_max * stripe_len_bytes,
        |group| group.count * stripe_len_bytes,
        |group| {
            let encoded = encode(run, &geometry, group)?;
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

/// Reads the stripes of a group, a row of neighbouring blocks at a time, and encodes them.
fn encode(run: &Run, geometry: &Geometry, group: Group) -> Result<Encoded> {
    let block_len = geometry.block_len_bytes as usize;
    let row_len = group.count as usize * block_len;
    let mut rows = work_space(geometry.data_blocks * row_len as u64)?;
    let mut checksums = Vec::with_capacity((geometry.data_blocks * group.count) as usize);
    for (at, row) in (0..).zip(rows.chunks_mut(row_len)) {
        let Some(first) = geometry.block(group.first, at) else { break };
        let count = group.count.min(geometry.blocks() - first);
        let bytes = geometry.range(first).start..geometry.range(first + count - 1).end;
        let row = row.split_at_mut((bytes.end - bytes.start) as usize).0;
        run.read(bytes.start, row)?;
        checksums.extend((first..).zip(row.chunks(block_len).map(Crc32::of)));
    }
    let mut encoder = Encoder::new(geometry)?;
    let mut parity =
        Vec::with_capacity((group.count * geometry.parity_blocks * geometry.block_len_bytes) as usize);
    for stripe in 0..group.count as usize {
        let blocks = rows.chunks(row_len).map(|row| &row[stripe * block_len..][..block_len]);
        encoder.stripe(blocks, |block| parity.extend_from_slice(block))?;
    }
    Ok(Encoded { checksums, parity })
}
