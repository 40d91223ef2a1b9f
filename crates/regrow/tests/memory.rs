//! The memory that calls need in addition to the arrays: at most a budget and a constant, for any
//! length of the checkpoint.
//!
//! Each call runs in its own child process, on checkpoints of two lengths in every layout. A thread
//! of the child measures the memory of the process that is not mapped from files. Both lengths must
//! need the same memory, up to a few MiB. A call that returns arrays may hold the arrays once.
//! `opening_memory.rs` measures the memory of opening.
//!
//! The test needs the numbers that Linux reports. The portable form of the engine is not tested,
//! because it makes maps and pages in other ways.
#![cfg(all(target_os = "linux", not(feature = "portable")))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test's failure is a panic")]

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use std::{env, fs, thread};

use regrow::array::{Array, Dtype, Shape};
use regrow::engine::{Compression, Layout, TemplateLeaf};
use regrow::location::Location;
use regrow::tree::{Key, Leaf, NodeKind, PathPattern, Tree, TreeBuilder};
use regrow::{
    ConvertOptions, CopyOptions, DiffOptions, LoadOptions, OpenOptions, ParityOptions, RepairOptions,
    SaveOptions, SealOptions, StatisticsOptions,
};

/// What the child does: a call, a layout's name, and the folder with its checkpoints.
const TASK: &str = "REGROW_TEST_MEMORY";

/// Bytes of the arrays that it saves.
const LEN: &str = "REGROW_TEST_MEMORY_LEN";

const BUDGET_BYTES: u64 = 16 << 20;

/// What the longer checkpoint may take more than the shorter one: more threads have something to do
/// at once.
const GROWTH_MAX_MIB: u64 = 16;

/// The long array is so much of a checkpoint.
const LONG_PART: (u64, u64) = (3, 4);

fn lens_mib() -> [u64; 2] {
    if env::var_os("REGROW_LONG").is_some() { [128, 512] } else { [32, 96] }
}

/// What of the arrays a call has in memory when it ends, or needs to.
#[derive(Clone, Copy)]
enum Holds {
    Nothing,
    /// Once.
    Arrays,
    /// Cast to a dtype of half the size.
    Halves,
    /// Where they are stored in chunks; views of the file are none of the process's memory.
    Decoded,
    /// Where the layout reads files whole and there are no maps (`docs/limits.md`).
    WholeFiles,
}

struct Call {
    name: &'static str,
    holds: Holds,
    /// The most that the call takes beside what it holds.
    extra_max_mib: u64,
    run: fn(&Case, &Path),
}

/// Copies, seals and parity are there for the calls after them.
fn calls() -> Vec<Call> {
    let call = |name, holds, extra_max_mib, run| Call { name, holds, extra_max_mib, run };
    vec![
        call("save", Holds::Nothing, 28, save),
        call("load", Holds::Arrays, 24, load),
        call("load into memory", Holds::Nothing, 24, load_into_memory),
        call("load by maps", Holds::Decoded, 16, load_by_maps),
        // What a load takes, and a piece for each of two threads.
        call("load with a cast", Holds::Halves, 28, load_with_a_cast),
        call("verify", Holds::Nothing, 32, verify),
        call("convert to regrow", Holds::Nothing, 40, convert_to_regrow),
        call("convert from regrow", Holds::Nothing, 36, convert_from_regrow),
        call("diff", Holds::Nothing, 20, diff),
        call("statistics", Holds::Nothing, 16, statistics),
        call("copy", Holds::Nothing, 40, copy),
        call("parity and repair", Holds::Nothing, 96, parity_and_repair),
        call("seal", Holds::Nothing, 32, seal),
        call("verify under a seal", Holds::WholeFiles, 32, verify),
    ]
}

struct Case {
    name: &'static str,
    layout: &'static str,
    options: &'static str,
    compression: Option<Compression>,
    file: &'static str,
    /// Whether arrays lie there in one piece.
    is_raw: bool,
}

/// Layouts whose arrays are raw, or in chunks that are shorter than the budget.
fn cases() -> Vec<Case> {
    let case =
        |name, layout, options, file| Case { name, layout, options, compression: None, file, is_raw: true };
    let chunked = |case: Case| Case { is_raw: false, ..case };
    let zstd = Some(Compression::Zstd(1));
    vec![
        case("regrow", "regrow", "null", "own"),
        chunked(Case {
            compression: zstd,
            ..case("regrow, zstd", "regrow", r#"{"chunk_byte_size": 4194304}"#, "zstd")
        }),
        chunked(case("orbax, ocdbt, zarr2", "orbax", r#"{"chunk_byte_size": 4194304}"#, "ocdbt")),
        chunked(case(
            "orbax, folders, zarr3",
            "orbax",
            r#"{"ocdbt": false, "zarr3": true, "chunk_byte_size": 4194304}"#,
            "folders",
        )),
        Case {
            compression: Some(Compression::None),
            ..case("orbax, raw", "orbax", r#"{"zarr3": true}"#, "raw")
        },
        case("flax", "flax", "null", "x.msgpack"),
        case("equinox", "equinox", "null", "x.eqx"),
        case("pytree_data", "pytree_data", "null", "pair"),
        case("safetensors", "safetensors", "null", "x.safetensors"),
        case("safetensors, sharded", "safetensors", r#"{"max_shard_bytes": 20000000}"#, "sharded"),
        case("npz", "npy", "null", "x.npz"),
        chunked(case("npz, deflated", "npy", r#"{"compress": 1}"#, "deflated.npz")),
        case("npy", "npy", "null", "folder"),
    ]
}

impl Case {
    fn save_options(&self) -> SaveOptions {
        SaveOptions {
            layout: Layout::from_name(self.layout, serde_json::from_str(self.options).unwrap()).unwrap(),
            compression: self.compression,
            budget_bytes: Some(BUDGET_BYTES),
            not_durable: true,
            ..SaveOptions::default()
        }
    }

    fn path(&self, folder: &Path) -> PathBuf {
        folder.join(self.file)
    }

    /// What a call holds of so many bytes.
    fn held_bytes(&self, holds: Holds, len_bytes: u64) -> u64 {
        match holds {
            Holds::Arrays => len_bytes,
            Holds::Halves => len_bytes / 2,
            Holds::Decoded if !self.is_raw => len_bytes,
            Holds::WholeFiles if matches!(self.layout, "flax" | "equinox") => len_bytes,
            _ => 0,
        }
    }
}

/// One long array and eight shorter ones.
fn tree(len_bytes: u64) -> Tree<Leaf> {
    let array = |len_bytes: u64| {
        let pattern: Vec<u8> =
            (0..1_000_003_u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 27) as u8).collect();
        let mut bytes = Vec::with_capacity(len_bytes as usize);
        while bytes.len() < len_bytes as usize {
            let len = pattern.len().min(len_bytes as usize - bytes.len());
            bytes.extend_from_slice(&pattern[..len]);
        }
        let shape = Shape::new([len_bytes / 4096, 1024]).unwrap();
        Leaf::array(Array::new(Dtype::Float32, shape, bytes.into()).unwrap())
    };
    let long_len_bytes = len_bytes / LONG_PART.1 * LONG_PART.0;
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("long"), array(long_len_bytes)).unwrap();
    for number in 0..8 {
        build.leaf(Key::dict(format!("part_{number}")), array((len_bytes - long_len_bytes) / 8)).unwrap();
    }
    build.close().unwrap();
    build.finish().unwrap()
}

fn open(mapped: bool) -> OpenOptions {
    OpenOptions { mapped, ..OpenOptions::default() }
}

fn load_options(mapped: bool) -> LoadOptions {
    LoadOptions { open: open(mapped), mapped, budget_bytes: Some(BUDGET_BYTES), ..LoadOptions::default() }
}

/// Every page is there then.
fn touch(tree: &Tree<Leaf>) -> u64 {
    let sum = |leaf: &Leaf| {
        let bytes = leaf.as_array().unwrap().to_c_order().unwrap();
        bytes.iter().step_by(512).map(|&byte| u64::from(byte)).sum::<u64>()
    };
    let sum = tree.leaves().iter().map(sum).sum();
    look();
    sum
}

fn save(case: &Case, folder: &Path) {
    let len_bytes = env::var(LEN).unwrap().parse().unwrap();
    let tree = tree(len_bytes);
    begin();
    regrow::save_with(case.path(folder), &tree, &case.save_options()).unwrap();
}

fn load(case: &Case, folder: &Path) {
    let tree = regrow::engine::load_with(case.path(folder), &load_options(false)).unwrap();
    assert!(touch(&tree) > 0);
}

fn load_by_maps(case: &Case, folder: &Path) {
    let tree = regrow::engine::load_with(case.path(folder), &load_options(true)).unwrap();
    assert!(touch(&tree) > 0);
}

fn load_with_a_cast(case: &Case, folder: &Path) {
    let cast = vec![(PathPattern::new("**").unwrap(), Dtype::BFloat16)];
    let options = LoadOptions { cast, ..load_options(false) };
    let tree = regrow::engine::load_with(case.path(folder), &options).unwrap();
    assert!(touch(&tree) > 0);
}

/// The caller's own memory counts for nothing.
fn load_into_memory(case: &Case, folder: &Path) {
    let checkpoint = regrow::open(case.path(folder)).unwrap();
    let infos = checkpoint.tree();
    let mut outs: Vec<Vec<u8>> =
        infos.leaves().iter().map(|info| vec![1; info.len_bytes() as usize]).collect();
    let wanted = infos.leaves().iter().map(|_| TemplateLeaf { dtype: None, shape: None, skip: false });
    let template = Some(infos.with_leaves(wanted.collect()).unwrap());
    begin();
    let outs = outs.iter_mut().map(|out| Some(out.as_mut_slice())).collect();
    checkpoint.load_into_memory(&LoadOptions { template, ..load_options(false) }, outs).unwrap();
}

fn verify(case: &Case, folder: &Path) {
    let report = regrow::verify(case.path(folder)).unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
}

fn convert_to_regrow(case: &Case, folder: &Path) {
    let save = SaveOptions {
        layout: Layout::from_name("regrow", serde_json::Value::Null).unwrap(),
        ..case.save_options()
    };
    convert(&case.path(folder), &folder.join("converted"), save);
}

fn convert_from_regrow(case: &Case, folder: &Path) {
    let target = folder.join("to");
    fs::create_dir(&target).unwrap();
    convert(&folder.join("own"), &target.join(case.file), case.save_options());
}

fn convert(from: &Path, to: &Path, save: SaveOptions) {
    let options = ConvertOptions { save, lossy: true, ..ConvertOptions::default() };
    regrow::convert(from, to, &options).unwrap();
}

fn diff(case: &Case, folder: &Path) {
    let options = DiffOptions { budget_bytes: Some(BUDGET_BYTES), ..DiffOptions::default() };
    let report = regrow::diff_with(case.path(folder), folder.join("own"), &options).unwrap();
    assert!(
        report.leaves.iter().all(|leaf| leaf.distance.as_ref().is_none_or(|far| far.differing_count() == 0))
    );
}

fn statistics(case: &Case, folder: &Path) {
    let options = StatisticsOptions { budget_bytes: Some(BUDGET_BYTES), ..StatisticsOptions::default() };
    let report = regrow::statistics_with(case.path(folder), &options).unwrap();
    assert!(report.leaves.iter().all(|leaf| leaf.stats.is_some()));
}

fn copy(case: &Case, folder: &Path) {
    let target = folder.join("copied");
    fs::create_dir(&target).unwrap();
    let options =
        CopyOptions { budget_bytes: Some(BUDGET_BYTES), not_durable: true, ..CopyOptions::default() };
    regrow::copy(case.path(folder), target.join(case.file), &options).unwrap();
}

fn seal(case: &Case, folder: &Path) {
    regrow::seal(case.path(folder), &SealOptions::default()).unwrap();
}

/// A part of the longest file is lost, and comes back.
fn parity_and_repair(case: &Case, folder: &Path) {
    let home = folder.join("parity");
    fs::create_dir(&home).unwrap();
    let path = case.path(&home);
    let whole = CopyOptions { not_durable: true, ..CopyOptions::default() };
    regrow::copy(case.path(folder), Location::local(&path), &whole).unwrap();
    begin();
    let options = ParityOptions { ratio: "1/8".parse().unwrap(), ..ParityOptions::default() };
    regrow::add_parity(&path, &options).unwrap();
    let mut files = files_below(&home);
    files.retain(|(file, _)| !file.to_string_lossy().contains("parity."));
    let (longest, len_bytes) = files.into_iter().max_by_key(|(_, len_bytes)| *len_bytes).unwrap();
    let file = fs::File::options().write(true).open(longest).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xa5; 4096], len_bytes / 2).unwrap();
    let report = regrow::repair(&path, &RepairOptions::default()).unwrap();
    assert!(report.is_sound() && report.healed.len() == 1, "{report}");
}

fn files_below(folder: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        match entry.metadata().unwrap() {
            state if state.is_dir() => found.extend(files_below(&entry.path())),
            state => found.push((entry.path(), state.len())),
        }
    }
    found
}

/// What the process had when the call began, and the most of its own that it has had since.
static BEFORE_BYTES: AtomicU64 = AtomicU64::new(0);
static MOST_BYTES: AtomicU64 = AtomicU64::new(0);

/// Memory of this process that is no file's.
fn own_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// What counts from now on.
fn begin() {
    let before = own_bytes();
    BEFORE_BYTES.store(before, Ordering::SeqCst);
    MOST_BYTES.store(before, Ordering::SeqCst);
}

/// The thread that looks may not get its turn on a busy machine: what is held to the end is looked
/// at by who holds it.
fn look() {
    MOST_BYTES.fetch_max(own_bytes(), Ordering::SeqCst);
}

/// The child: does nothing unless it was started by the tests below. It says what it took.
#[test]
fn a_child_does_its_task() {
    let Ok(task) = env::var(TASK) else { return };
    let parts: Vec<&str> = task.split('|').collect();
    let [call, case, folder] = parts[..] else { panic!("{task}") };
    let case = cases().into_iter().find(|found| found.name == case).unwrap();
    let call = calls().into_iter().find(|found| found.name == call).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                look();
                thread::sleep(Duration::from_micros(500));
            }
        });
        begin();
        // The other thread ends also where this one panics.
        let ran = catch_unwind(|| (call.run)(&case, Path::new(folder)));
        over.store(true, Ordering::SeqCst);
        ran.unwrap();
    });
    println!("TOOK {}", MOST_BYTES.load(Ordering::SeqCst) - BEFORE_BYTES.load(Ordering::SeqCst));
}

/// What a call took in a child of its own, in MiB.
fn took_mib(call: &str, case: &Case, len_bytes: u64, folder: &Path) -> u64 {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "a_child_does_its_task", "--nocapture"])
        .env(TASK, format!("{call}|{}|{}", case.name, folder.display()))
        .env(LEN, len_bytes.to_string())
        // What is freed goes back to the system, and not to a store that each thread has.
        .env("MALLOC_MMAP_THRESHOLD_", "131072")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let took = told.lines().find_map(|line| line.strip_prefix("TOOK "));
    let took = took.unwrap_or_else(|| {
        panic!("{call} of {}: {told}{}", case.name, String::from_utf8_lossy(&output.stderr))
    });
    took.parse::<u64>().unwrap() >> 20
}

/// All calls on the checkpoints of some layouts, at both lengths.
fn take_the_same_at_both_lengths(is_wanted: impl Fn(&Case) -> bool) {
    let mut too_much = Vec::new();
    let own = cases().remove(0);
    for case in cases().into_iter().filter(is_wanted) {
        let mut extras: Vec<Vec<u64>> = Vec::new();
        for len_bytes in lens_mib().map(|len_mib| len_mib << 20) {
            let folder = tempfile::tempdir().unwrap();
            if case.name != own.name {
                took_mib("save", &own, len_bytes, folder.path());
            }
            let mut of_len = Vec::new();
            for call in calls() {
                let took_mib = took_mib(call.name, &case, len_bytes, folder.path());
                let held_mib = case.held_bytes(call.holds, len_bytes) >> 20;
                // What is held to the end is seen, or nothing else would be.
                let is_seen = matches!(call.holds, Holds::WholeFiles) || took_mib + 4 >= held_mib;
                assert!(is_seen, "{}, {}: {took_mib} MiB", case.name, call.name);
                of_len.push(took_mib.saturating_sub(held_mib));
                for made in ["converted", "to", "copied", "parity"] {
                    let _ = fs::remove_dir_all(folder.path().join(made));
                }
            }
            extras.push(of_len);
        }
        for (at, call) in calls().iter().enumerate() {
            let [short, long] = [extras[0][at], extras[1][at]];
            println!("{}, {}: {short} and {long} MiB beside what it holds", case.name, call.name);
            if short.max(long) > call.extra_max_mib || long > short + GROWTH_MAX_MIB {
                too_much.push(format!("{}, {}: {short} and {long} MiB", case.name, call.name));
            }
        }
    }
    assert!(too_much.is_empty(), "{}", too_much.join("\n"));
}

#[test]
fn calls_on_the_default_layout_take_their_budget() {
    take_the_same_at_both_lengths(|case| case.layout == "regrow");
}

#[test]
fn calls_on_orbax_take_their_budget() {
    take_the_same_at_both_lengths(|case| case.layout == "orbax");
}

#[test]
fn calls_on_streams_take_their_budget() {
    take_the_same_at_both_lengths(|case| matches!(case.layout, "flax" | "equinox" | "pytree_data"));
}

#[test]
fn calls_on_safetensors_take_their_budget() {
    take_the_same_at_both_lengths(|case| case.layout == "safetensors");
}

#[test]
fn calls_on_npy_take_their_budget() {
    take_the_same_at_both_lengths(|case| case.layout == "npy");
}
