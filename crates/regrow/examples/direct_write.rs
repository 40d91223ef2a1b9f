//! How fast a file gets onto the disk: `DirectWriter` against ordinary writes with one fsync, and
//! against the disk's own limit (direct writes of one buffer, without copy, checksum or thread).
//!
//!     cargo run --release --example direct_write -- [folder] [MiB] [rounds]
//!
//! They take turns in one run, since disks and machines vary more between runs than they differ.
//! The source is touched first: fresh memory would be measured instead of the disk.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use memmap2::MmapMut;
use rustix::fs::{FallocateFlags, OFlags, fallocate};

use regrow_store::{DirectWriter, WriteOptions};

const MIB: usize = 1 << 20;
const LIMIT_WRITE_LEN_BYTES: usize = 8 * MIB;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let len_mib: usize = arguments.next().map_or(Ok(1024), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let source: Vec<u8> = (0..len_mib * MIB).map(|i| (i ^ (i >> 9)) as u8).collect();
    let path = folder.join(format!("regrow-direct-write-{}", std::process::id()));

    let mut out = io::stdout();
    writeln!(out, "{len_mib} MiB into {}, GB/s", folder.display())?;
    writeln!(
        out,
        "{:>6} {:>7} {:>7} {:>9} {:>7} {:>7} {:>12}",
        "round", "limit", "direct", "unsynced", "cached", "filler", "write+fsync"
    )?;
    let mut buffer = MmapMut::map_anon(LIMIT_WRITE_LEN_BYTES)?;
    buffer.fill(1);
    for round in 1..=rounds {
        let limit = timed(&path, source.len(), || limit(&path, &buffer, source.len()))?;
        let direct = timed(&path, source.len(), || write(&path, &source, true, false))?;
        let unsynced = timed(&path, source.len(), || write(&path, &source, false, false))?;
        let cached = timed(&path, source.len(), || write(&path, &source, true, true))?;
        let filler = timed(&path, source.len(), || filled(&path, &source))?;
        let buffered = timed(&path, source.len(), || buffered(&path, &source))?;
        writeln!(
            out,
            "{round:>6} {limit:>7.2} {direct:>7.2} {unsynced:>9.2} {cached:>7.2} {filler:>7.2} {buffered:>12.2}"
        )?;
    }
    Ok(())
}

fn timed(path: &Path, len_bytes: usize, act: impl FnOnce() -> regrow::Result<()>) -> io::Result<f64> {
    let start = Instant::now();
    act().map_err(|error| io::Error::other(error.to_string()))?;
    let seconds = start.elapsed().as_secs_f64();
    fs::remove_file(path)?;
    Ok(len_bytes as f64 / 1e9 / seconds)
}

fn write(path: &Path, source: &[u8], durable: bool, keep_cached: bool) -> regrow::Result<()> {
    let options = WriteOptions {
        expected_len_bytes: source.len() as u64,
        durable,
        keep_cached,
        ..WriteOptions::default()
    };
    let mut writer = DirectWriter::create_with(path, &options)?;
    writer.write(source)?;
    writer.finish().map(drop)
}

fn limit(path: &Path, buffer: &[u8], len_bytes: usize) -> regrow::Result<()> {
    let write = || -> io::Result<()> {
        let flags = OFlags::DIRECT.bits().cast_signed();
        let file = File::options().write(true).create_new(true).custom_flags(flags).open(path)?;
        fallocate(&file, FallocateFlags::empty(), 0, len_bytes as u64)?;
        for offset in (0..len_bytes).step_by(buffer.len()) {
            file.write_all_at(buffer, offset as u64)?;
        }
        file.sync_all()
    };
    write().map_err(|error| regrow::Error::io("cannot write", path, error))
}

fn filled(path: &Path, source: &[u8]) -> regrow::Result<()> {
    let mut writer = DirectWriter::create(path, source.len() as u64, 0)?;
    writer.write_with(source.len() as u64, &mut |offset, piece| {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let from = source.get(start..).unwrap_or_default();
        piece.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        Ok(())
    })?;
    writer.finish().map(drop)
}

fn buffered(path: &Path, source: &[u8]) -> regrow::Result<()> {
    let write = || -> io::Result<()> {
        let mut file = File::create_new(path)?;
        source.chunks(MIB).try_for_each(|block| file.write_all(block))?;
        file.sync_all()
    };
    write().map_err(|error| regrow::Error::io("cannot write", path, error))
}
