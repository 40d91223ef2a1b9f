//! What trees of many small leaves cost: CPU time and peak memory of save, open and load, a leaf.
//!
//!     cargo run --release --example many_leaves -- [leaves] [rounds] [folder] [save|open|load|all]
//!
//! Leaves lie at `m/{i}/{j}/w` in groups of a thousand, 1 KiB each. CPU time of all threads is what
//! counts here: a disk's own time varies more than it differs. Peak memory is the process' own
//! (VmHWM), above what the tree takes.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use regrow::array::{Array, Dtype, Shape};
use regrow::engine::{self, SaveOptions};
use regrow::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};

const GROUP: usize = 1000;
const LEAF_LEN_BYTES: usize = 1024;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let leaves: usize = arguments.next().map_or(Ok(100_000), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let folder = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let what = arguments.next().unwrap_or_else(|| "all".to_owned());
    let path = folder.join(format!("regrow-many-leaves-{leaves}"));
    let mut out = io::stdout();
    let mut report = |name: &str, since: &Since| {
        let (wall, cpu) = since.passed();
        writeln!(
            out,
            "{name:>5} {leaves:>8} leaves: wall {:8.2} ms, cpu {:8.2} ms, {:6.3} us a leaf, peak +{:.1} MiB",
            wall.as_secs_f64() * 1e3,
            cpu.as_secs_f64() * 1e3,
            cpu.as_secs_f64() * 1e6 / leaves as f64,
            peak_bytes().saturating_sub(since.resident_bytes) as f64 / f64::from(1 << 20),
        )
    };
    for _ in 0..rounds {
        if what == "save" || what == "all" {
            let tree = sample(leaves)?;
            let since = Since::now();
            engine::save_with(&path, &tree, &SaveOptions { overwrite: true, ..SaveOptions::default() })?;
            report("save", &since)?;
        }
        if what == "open" || what == "all" {
            let since = Since::now();
            let checkpoint = engine::open(&path)?;
            report("open", &since)?;
            drop(checkpoint);
        }
        if what == "load" || what == "all" {
            let checkpoint = engine::open(&path)?;
            let since = Since::now();
            let tree = checkpoint.load(&engine::LoadOptions::default())?;
            report("load", &since)?;
            drop(tree);
        }
    }
    Ok(())
}

fn sample(leaves: usize) -> Result<Tree<Leaf>, Box<dyn std::error::Error>> {
    let slab =
        bytes::Bytes::from((0..leaves * LEAF_LEN_BYTES).map(|i| (i ^ (i >> 10)) as u8).collect::<Vec<_>>());
    let shape = Shape::new(vec![(LEAF_LEN_BYTES / 4) as u64])?;
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict)?;
    build.open(Key::dict("m"), NodeKind::Dict)?;
    for leaf in 0..leaves {
        if leaf % GROUP == 0 {
            build.open(Key::dict((leaf / GROUP).to_string()), NodeKind::Dict)?;
        }
        build.open(Key::dict((leaf % GROUP).to_string()), NodeKind::Dict)?;
        let data = slab.slice(leaf * LEAF_LEN_BYTES..(leaf + 1) * LEAF_LEN_BYTES);
        build.leaf(Key::dict("w"), Leaf::array(Array::new(Dtype::Float32, shape.clone(), data)?))?;
        build.close()?;
        if leaf % GROUP == GROUP - 1 || leaf + 1 == leaves {
            build.close()?;
        }
    }
    build.close()?;
    build.close()?;
    Ok(build.finish()?)
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

fn peak_bytes() -> u64 {
    status_bytes("VmHWM:")
}

fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0_u64) << 10
}
