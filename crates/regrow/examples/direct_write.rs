//! How fast a file gets onto the disk: `DirectWriter` against ordinary writes with one fsync.
//!
//!     cargo run --release --example direct_write -- [folder] [MiB] [rounds]
//!
//! The two take turns in one run, since disks and machines vary more between runs than they differ. The source
//! is touched first: fresh memory would be measured instead of the disk.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use regrow::store::{DirectWriter, WriteOptions};

const MIB: usize = 1 << 20;

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
        "{:>6} {:>8} {:>12} {:>14} {:>15}",
        "round", "direct", "direct, not", "with filler", "write + fsync"
    )?;
    writeln!(out, "{:>6} {:>8} {:>12} {:>14} {:>15}", "", "", "synced", "", "1 MiB each")?;
    for round in 1..=rounds {
        let direct = timed(&path, source.len(), || direct(&path, &source, true))?;
        let unsynced = timed(&path, source.len(), || direct_unsynced(&path, &source))?;
        let filled = timed(&path, source.len(), || filled(&path, &source))?;
        let buffered = timed(&path, source.len(), || buffered(&path, &source))?;
        writeln!(out, "{round:>6} {direct:>8.2} {unsynced:>12.2} {filled:>14.2} {buffered:>15.2}")?;
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

fn direct(path: &Path, source: &[u8], durable: bool) -> regrow::Result<()> {
    let options = WriteOptions { expected_len_bytes: source.len() as u64, checksums_from: 0, durable };
    let mut writer = DirectWriter::create_with(path, &options)?;
    writer.write(source)?;
    writer.finish().map(drop)
}

fn direct_unsynced(path: &Path, source: &[u8]) -> regrow::Result<()> {
    direct(path, source, false)
}

fn filled(path: &Path, source: &[u8]) -> regrow::Result<()> {
    let mut writer = DirectWriter::create(path, source.len() as u64, 0)?;
    writer.write_with(source.len() as u64, &mut |offset, piece| {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (to, from) in piece.iter_mut().zip(source.get(start..).unwrap_or_default()) {
            *to = *from;
        }
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
