//! How fast a checkpoint is read, cold and warm, against what the disk and the memory can do at
//! all.
//!
//!     cargo run --release --example direct_read -- [folder] [MiB] [rounds]
//!
//! All take turns in one run, since disks and machines vary more between runs than they differ; the
//! page cache of the file is dropped before each cold turn, and destinations are touched first. For
//! each: GB/s, and the CPU time of the process in ms, which other users of the machine disturb
//! less.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use memmap2::MmapMut;
use rustix::fs::{Advice, OFlags, fadvise};

use regrow::array::{Array, Dtype, Shape};
use regrow::engine::TemplateLeaf;
use regrow::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};
use regrow::{LoadOptions, Result};

const MIB: usize = 1 << 20;
const LIMIT_READ_LEN_BYTES: usize = 8 * MIB;
/// As in a real model, leaves do not begin where blocks do.
const LEAF_LEN_BYTES: usize = 2_386_092;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let len_mib: usize = arguments.next().map_or(Ok(1024), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let path = folder.join(format!("regrow-direct-read-{}", std::process::id()));
    let leaf_count = (len_mib * MIB / LEAF_LEN_BYTES).max(1);
    let len_bytes = leaf_count * LEAF_LEN_BYTES;
    let mut source: Vec<u8> = (0..len_bytes).map(|i| (i ^ (i >> 9)) as u8).collect();
    regrow::save(&path, &tree(&source)?)?;
    let data = path.join("model.safetensors");
    let template = template(&path)?;

    let mut out = io::stdout();
    let mut destination = vec![1; len_bytes];
    let mut buffer = MmapMut::map_anon(LIMIT_READ_LEN_BYTES)?;
    let _ = buffer.advise(memmap2::Advice::HugePage);
    buffer.fill(1);
    for round in 1..=rounds {
        writeln!(out, "round {round}: {} MiB in {leaf_count} leaves   GB/s  CPU ms", len_bytes / MIB)?;
        let mut turn = |name: &str, cold: bool, act: &mut dyn FnMut() -> io::Result<()>| {
            if cold {
                drop_pages(&data)?;
            }
            let (start, cpu) = (Instant::now(), cpu_ms());
            act()?;
            let seconds = start.elapsed().as_secs_f64();
            let speed = len_bytes as f64 / 1e9 / seconds;
            writeln!(out, "  {name:<36} {speed:>7.2} {:>7.0}", cpu_ms() - cpu)
        };
        turn("cold  limit: direct reads", true, &mut || limit(&data, &mut buffer))?;
        turn("cold  verify", true, &mut || told(regrow::verify(&path).map(|_| ())))?;
        turn("cold  into memory", true, &mut || told(fill(&path, &template, &mut destination, false)))?;
        turn("cold  views", true, &mut || told(regrow::engine::load(&path).map(|_| ())))?;
        turn("warm  limit: memcpy", false, &mut || {
            destination.copy_from_slice(&source);
            Ok(())
        })?;
        turn("warm  into memory", false, &mut || told(fill(&path, &template, &mut destination, false)))?;
        turn("warm  into memory, unverified", false, &mut || {
            told(fill(&path, &template, &mut destination, true))
        })?;
        turn("warm  views", false, &mut || told(regrow::engine::load(&path).map(|_| ())))?;
        turn("warm  verify", false, &mut || told(regrow::verify(&path).map(|_| ())))?;
        turn("open", false, &mut || told(regrow::open(&path).map(|_| ())))?;
        source.fill(round as u8);
    }
    fs::remove_dir_all(&path)?;
    Ok(())
}

fn tree(source: &[u8]) -> Result<Tree<Leaf>> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict)?;
    for (i, bytes) in source.chunks(LEAF_LEN_BYTES).enumerate() {
        let shape = Shape::new([bytes.len() as u64])?;
        let array = Array::new(Dtype::UInt8, shape, bytes.to_vec().into())?;
        build.leaf(Key::dict(format!("leaf_{i:06}")), Leaf::array(array))?;
    }
    build.close()?;
    build.finish()
}

fn template(path: &Path) -> Result<Tree<TemplateLeaf>> {
    let checkpoint = regrow::open(path)?;
    let count = checkpoint.tree().len();
    checkpoint.tree().with_leaves(vec![TemplateLeaf::default(); count])
}

fn fill(path: &Path, template: &Tree<TemplateLeaf>, destination: &mut [u8], unverified: bool) -> Result<()> {
    let options = LoadOptions { template: Some(template.clone()), unverified, ..LoadOptions::default() };
    let places = destination.chunks_mut(LEAF_LEN_BYTES).map(Some).collect();
    regrow::open(path)?.load_into_memory(&options, places).map(|_| ())
}

fn limit(data: &Path, buffer: &mut [u8]) -> io::Result<()> {
    let file = File::options().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(data)?;
    let mut at = 0;
    loop {
        match file.read_at(buffer, at)? {
            0 => return Ok(()),
            len => at += len as u64,
        }
        if at % 512 != 0 {
            return Ok(());
        }
    }
}

fn drop_pages(data: &Path) -> io::Result<()> {
    let file = File::open(data)?;
    file.sync_all()?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}

fn told(result: Result<()>) -> io::Result<()> {
    result.map_err(|error| io::Error::other(error.to_string()))
}

/// User and system time of all threads, from the kernel's record of hundredths of a second.
fn cpu_ms() -> f64 {
    const UTIME_AFTER_NAME: usize = 11;
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit(')').next().unwrap_or_default().split_ascii_whitespace();
    fields.skip(UTIME_AFTER_NAME).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() * 10.0
}
