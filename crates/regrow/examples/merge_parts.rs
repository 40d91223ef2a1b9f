//! What it costs one process to put together what many have written: the metadata of P processes
//! times L leaves.
//!
//!     cargo run --release --example merge_parts -- [processes] [leaves] [folder] [rounds]
//!
//! Every leaf is a row of P numbers. Each process holds one of them: P times L pieces, each with
//! its own place in the record of its process and in the database. The records are written first,
//! by other processes. Then the merge alone is measured, in each of the rounds: wall time, CPU
//! time, and the peak of resident memory (VmHWM) above what the tree takes. Nothing is synced. In
//! the end the last process opens the checkpoint and reads its own pieces.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use regrow::array::{Array, Dtype, Region, Shape, Shard};
use regrow::engine::Layout;
use regrow::error::{Error, Result};
use regrow::location::{Location, ToLocation};
use regrow::monitor::Monitor;
use regrow::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};
use regrow::{RemoveOptions, SaveOptions};
use regrow_layouts::{ManyWriters, WriterRank};
use regrow_storage::{MergedFolder, PublishOptions};

type AnyResult<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const LEAVES_A_LAYER: u32 = 10;

fn main() -> AnyResult<()> {
    let mut arguments = std::env::args().skip(1);
    let processes: u32 = arguments.next().map_or(Ok(1024), |text| text.parse())?;
    let leaves: u32 = arguments.next().map_or(Ok(10_000), |text| text.parse())?;
    let folder = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let at = folder.join(format!("regrow-merge-{processes}x{leaves}")).to_location()?;
    let rounds = arguments.next().unwrap_or_else(|| "3".to_owned());
    let monitor = Monitor::new();
    let size = Size { processes, leaves };
    match (rounds.as_str(), arguments.next(), arguments.next()) {
        ("write", Some(ticket), Some(first)) => write(size, &at, &monitor, &ticket, first.parse()?),
        ("restore", ..) => restore(size, &at),
        _ => run(size, &folder, &at, &monitor, rounds.parse()?),
    }
}

#[derive(Clone, Copy)]
struct Size {
    processes: u32,
    leaves: u32,
}

/// Every so many processes are written by one.
const WRITERS: u32 = 2;

fn run(size: Size, folder: &std::path::Path, at: &Location, monitor: &Monitor, rounds: u32) -> AnyResult<()> {
    let own = at.publish_folder(how(monitor))?;
    let ticket = own.ticket()?;
    let program = std::env::current_exe()?;
    let command = |what: &str, first: u32| {
        let mut command = Command::new(&program);
        command.arg(size.processes.to_string()).arg(size.leaves.to_string()).arg(folder);
        command.args([what, &ticket, &first.to_string()]);
        command
    };
    let writers: Vec<_> =
        (0..WRITERS).map(|first| command("write", first).spawn()).collect::<io::Result<_>>()?;
    for mut writer in writers {
        if !writer.wait()?.success() {
            return Err("a process that writes has failed".into());
        }
    }
    let mut out = io::stdout();
    writeln!(out, "{} processes, {} leaves: {} bytes", size.processes, size.leaves, own.stored_bytes()?)?;
    for round in 1..=rounds {
        merge(size, &*own)?;
        if round == rounds {
            break;
        }
        // For the next round, which writes the same names.
        for entry in std::fs::read_dir(own.local_folder().ok_or("no folder of a disk")?)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_dir() {
                std::fs::remove_dir_all(entry.path())?;
            } else if !name.starts_with("regrow.process_") && !name.ends_with(".safetensors") {
                let is_lock = name.contains("lock");
                if !is_lock {
                    std::fs::remove_file(entry.path())?;
                }
            }
        }
    }
    own.commit()?;
    let restored = command("restore", 0).status()?;
    regrow::remove(at, &RemoveOptions::default())?;
    if restored.success() { Ok(()) } else { Err("the process that restores has failed".into()) }
}

/// What the last process reads to restore its own pieces.
fn restore(size: Size, at: &Location) -> AnyResult<()> {
    let since = Since::now();
    let checkpoint = regrow::open(at)?;
    let (opened, _) = since.passed();
    let region = Region::new(vec![u64::from(size.processes - 1)], vec![1_u64])?;
    for leaf in 0..checkpoint.tree().len() {
        checkpoint.region(leaf, &region)?;
    }
    let (wall, cpu) = since.passed();
    writeln!(
        io::stdout(),
        "one process opens in {:.3} s and reads its {} pieces: wall {:6.3} s, cpu {:6.2} s, peak +{:.1} MiB",
        opened.as_secs_f64(),
        size.leaves,
        wall.as_secs_f64(),
        cpu.as_secs_f64(),
        status_bytes("VmHWM:").saturating_sub(since.resident_bytes) as f64 / f64::from(1 << 20),
    )?;
    Ok(())
}

fn write(size: Size, at: &Location, monitor: &Monitor, ticket: &str, first: u32) -> AnyResult<()> {
    let joined = at.join_publication(ticket, how(monitor))?;
    for rank in (first..size.processes).step_by(WRITERS as usize) {
        let writer = WriterRank { rank, count: size.processes };
        writers()?.write_share(&sample(size, rank)?, writer, &*joined, &options())?;
    }
    joined.finish_share()?;
    Ok(())
}

fn merge(size: Size, own: &dyn MergedFolder) -> AnyResult<()> {
    let tree = sample(size, 0)?;
    let since = Since::now();
    writers()?.merge(&tree, &(0..size.processes).collect::<Vec<_>>(), own, &options())?;
    let (wall, cpu) = since.passed();
    let pieces = u64::from(size.processes) * u64::from(size.leaves);
    writeln!(
        io::stdout(),
        "merge of {pieces:>9} pieces: wall {:6.3} s, cpu {:6.2} s, {:4.0} ns a piece, peak +{:.1} MiB",
        wall.as_secs_f64(),
        cpu.as_secs_f64(),
        wall.as_secs_f64() * 1e9 / pieces as f64,
        status_bytes("VmHWM:").saturating_sub(since.resident_bytes) as f64 / f64::from(1 << 20),
    )?;
    Ok(())
}

fn writers() -> Result<&'static dyn ManyWriters> {
    Layout::default().format().roles().many_writers.ok_or_else(|| Error::unsupported("many writers"))
}

fn options() -> SaveOptions {
    SaveOptions { not_durable: true, ..SaveOptions::default() }
}

fn how(monitor: &Monitor) -> PublishOptions<'_> {
    PublishOptions { durable: false, ..PublishOptions::of_overwrite(monitor) }
}

/// The tree as process `rank` holds it.
fn sample(size: Size, rank: u32) -> Result<Tree<Leaf>> {
    let (shape, chunk) = (Shape::new(vec![u64::from(size.processes)])?, Shape::new(vec![1])?);
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict)?;
    build.open(Key::dict("params"), NodeKind::Dict)?;
    for leaf in 0..size.leaves {
        if leaf % LEAVES_A_LAYER == 0 {
            build.open(Key::dict(format!("layers_{}", leaf / LEAVES_A_LAYER)), NodeKind::Dict)?;
        }
        let region = Region::new(vec![u64::from(rank)], vec![1_u64])?;
        let shard =
            Shard { array: Array::new(Dtype::UInt8, chunk.clone(), vec![rank as u8].into())?, region };
        let array = Array::sharded(Dtype::UInt8, shape.clone(), chunk.clone(), vec![shard], false)?;
        build.leaf(Key::dict(format!("kernel_{}", leaf % LEAVES_A_LAYER)), Leaf::array(array))?;
        if leaf % LEAVES_A_LAYER == LEAVES_A_LAYER - 1 || leaf + 1 == size.leaves {
            build.close()?;
        }
    }
    build.close()?;
    build.close()?;
    build.finish()
}

/// A moment, and what the process had used by then.
struct Since {
    wall: Instant,
    cpu: Duration,
    resident_bytes: u64,
}

impl Since {
    /// Now; the kernel's mark of peak memory starts again.
    fn now() -> Self {
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        Self { wall: Instant::now(), cpu: cpu_time(), resident_bytes: status_bytes("VmRSS:") }
    }

    fn passed(&self) -> (Duration, Duration) {
        (self.wall.elapsed(), cpu_time().saturating_sub(self.cpu))
    }
}

/// User and system time of the process so far, threads that have ended included; in steps of 10 ms.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok());
    Duration::from_millis(10 * ticks.sum::<u64>())
}

fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0_u64) << 10
}
