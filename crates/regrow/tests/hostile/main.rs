//! Hostile checkpoints of every layout. A reader opens, lists, reads and verifies each checkpoint:
//! - Changed bytes, with checksums that match again: the result is an answer, or an error with a
//!   file.
//! - Pipes, sockets, links and folders in place of files: no read waits for them.
//! - Names in documents that lead out of the folder: no such file is read unnoticed.
//! - Files that are cut while the checkpoint is open: later reads are errors.
//!
//! The memory of the first two tests is bounded. `make fuzz` makes the changes of the first test
//! with a fuzzer.

#![expect(clippy::unwrap_used, reason = "a test's failure is a panic")]

mod samples;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use regrow::{LoadOptions, OpenOptions};
use regrow_testkit::hostile::{Files, Repair, Sums, choices};
use regrow_testkit::memory_folder;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use samples::{Reached, samples, use_it};

/// Changes to each checkpoint, unless the environment says otherwise.
const CHANGES: u64 = 40;
const CHANGES_VARIABLE: &str = "REGROW_TEST_CHANGES";

/// What may be taken at once, beyond what was there before: checkpoints are of some KiB, and files
/// stay below a MiB.
const MEMORY_MAX_BYTES: usize = 96 << 20;

/// Counts what is asked of it, not what is touched: zeroed memory costs nothing until then.
struct Counting;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

fn taken(len: usize) {
    PEAK_BYTES.fetch_max(LIVE_BYTES.fetch_add(len, Relaxed) + len, Relaxed);
}

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller's promises are those that it wants.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        taken(new_size);
        LIVE_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Most memory that was taken at once while it was called.
fn peak_bytes<T>(call: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE_BYTES.load(Relaxed);
    PEAK_BYTES.store(before, Relaxed);
    let out = call();
    (out, PEAK_BYTES.load(Relaxed).saturating_sub(before))
}

#[test]
fn changes_that_pass_the_checksums_end_in_an_answer_or_an_error() {
    let folder = memory_folder().unwrap();
    let changes = std::env::var(CHANGES_VARIABLE).map_or(CHANGES, |text| text.parse().unwrap());
    let mut wrong = Vec::new();
    println!(
        "| checkpoint | changes | refused | opened | read | most memory, KiB |\n|---|---|---|---|---|---|"
    );
    for mut sample in samples(folder.path()) {
        let mut says = |error: &regrow::Error| panic!("{} is no good sample: {error}", sample.name);
        assert_eq!(use_it(&sample.path, &mut says), Reached::Read, "{} is no good sample", sample.name);
        let (mut reached, mut most) = ([0; 3], 0);
        for seed in 0..changes {
            // As many as make one change or two.
            let choices = choices(seed, 6 + 2 * (seed as usize % 4));
            sample.victim.change(&choices).unwrap();
            let mut unplaced = None;
            let mut says = |error: &regrow::Error| {
                if error.place().file.is_none() {
                    unplaced = Some(error.to_string());
                }
            };
            let (found, peak) = peak_bytes(|| use_it(&sample.path, &mut says));
            reached[found as usize] += 1;
            most = most.max(peak);
            if peak > MEMORY_MAX_BYTES {
                wrong.push(format!("{}, seed {seed}: {} MiB", sample.name, peak >> 20));
            }
            if let Some(error) = unplaced {
                wrong.push(format!("{}, seed {seed}: an error without a file: {error}", sample.name));
            }
        }
        let [refused, opened, read] = reached;
        println!("| {} | {changes} | {refused} | {opened} | {read} | {} |", sample.name, most >> 10);
        sample.victim.restore().unwrap();
        assert_eq!(use_it(&sample.path, &mut |_| ()), Reached::Read, "{} is not as it was", sample.name);
    }
    assert!(wrong.is_empty(), "{} findings:\n{}", wrong.len(), wrong.join("\n"));
}

/// Eight files or fewer, of all that there are.
fn some(files: &Files) -> impl Iterator<Item = (&String, &Vec<u8>)> {
    files.iter().step_by(files.len().div_ceil(8))
}

fn make(file: &Path, kind: FileType) {
    mknodat(CWD, file, kind, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// The name of a thing, and what puts it at a path.
type Special = (&'static str, fn(&Path));

/// What a name may lead to that is no regular file.
fn specials() -> [Special; 6] {
    [
        ("a pipe", |file| make(file, FileType::Fifo)),
        ("a socket", |file| make(file, FileType::Socket)),
        ("a link to an endless device", |file| symlink("/dev/zero", file).unwrap()),
        ("a link to nothing", |file| symlink("nothing", file).unwrap()),
        ("a link to itself", |file| symlink(file.file_name().unwrap(), file).unwrap()),
        ("a folder", |file| fs::create_dir(file).unwrap()),
    ]
}

#[test]
fn what_is_no_regular_file_is_never_read_and_never_waited_for() {
    let folder = memory_folder().unwrap();
    let mut wrong = Vec::new();
    for sample in samples(folder.path()) {
        let root = sample.path.parent().unwrap();
        let (mut tried, mut refused) = (0, 0);
        for (name, bytes) in some(sample.victim.files()) {
            for (what, make) in specials() {
                let path = root.join(name);
                fs::remove_file(&path).unwrap();
                make(&path);
                let (found, peak) = peak_bytes(|| use_it(&sample.path, &mut |_| ()));
                tried += 1;
                refused += usize::from(found != Reached::Read);
                if peak > MEMORY_MAX_BYTES {
                    wrong.push(format!("{}, {name}: {what}: {} MiB", sample.name, peak >> 20));
                }
                if path.is_dir() {
                    fs::remove_dir(&path).unwrap()
                } else {
                    fs::remove_file(&path).unwrap()
                }
                fs::write(&path, bytes).unwrap();
            }
        }
        assert!(refused > 0, "{}: {tried} were read as if nothing were there", sample.name);
        assert_eq!(use_it(&sample.path, &mut |_| ()), Reached::Read, "{} is not as it was", sample.name);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Each file in turn is moved out of the checkpoint, and all documents are told its new name, which
/// is as long as the old one: who reads it has left the folder.
#[test]
fn names_in_documents_never_lead_out_of_the_folder() {
    let folder = memory_folder().unwrap();
    let mut renamed = Vec::new();
    for mut sample in samples(folder.path()) {
        let root = sample.path.parent().unwrap().to_owned();
        let top = sample.path.file_name().unwrap().to_str().unwrap().to_owned();
        let files = sample.victim.files().clone();
        for (name, bytes) in &files {
            let Some(below) = name.strip_prefix(&format!("{top}/")) else { continue };
            // The name of a marker is that of a module, too, which documents have.
            let (Some(kept), true) = (below.get(3..), below.len() > 3 && below != "orbax.checkpoint") else {
                continue;
            };
            // Left of a name `d/0123` is `../123`.
            let outside = format!("../{}", kept.replace('/', "_"));
            let mut others = files.clone();
            others.remove(name);
            let mut count = 0;
            for other in others.values_mut() {
                count += replace(other, below.as_bytes(), outside.as_bytes());
            }
            if count == 0 {
                continue;
            }
            Sums::of(&files).put_right(&mut others, Repair::All);
            others.insert(outside.trim_start_matches("../").to_owned(), bytes.clone());
            sample.victim.replace(others).unwrap();
            let mut said = String::new();
            let found = use_it(&sample.path, &mut |error| said = error.to_string());
            // Of some files only `verify` wants anything; then it has to say so.
            assert!(
                found != Reached::Read || !said.is_empty(),
                "{}: {below} was read as {outside}",
                sample.name
            );
            renamed.push(format!("{}: {below}", sample.name));
        }
        sample.victim.restore().unwrap();
        assert!(root.exists());
    }
    for layout in
        ["regrow null", "orbax {\"zarr3\"", "safetensors/sharded", "torch/dcp_sharded", "orbax under a seal"]
    {
        assert!(renamed.iter().any(|name| name.starts_with(layout)), "{layout} names no file: {renamed:#?}");
    }
}

fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) -> usize {
    let mut count = 0;
    for at in 0..bytes.len().saturating_sub(from.len() - 1) {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
            count += 1;
        }
    }
    count
}

/// A map of a file that was cut ends the program by a signal where it is touched. What was handed
/// out before is the caller's; what is asked for afterwards is an error.
#[test]
fn a_file_that_is_cut_while_a_checkpoint_is_open_is_an_error() {
    let folder = memory_folder().unwrap();
    let (mut tried, mut refused) = (0, 0);
    for sample in samples(folder.path()) {
        let root = sample.path.parent().unwrap();
        for parts in [0, 2] {
            for (name, bytes) in some(sample.victim.files()).filter(|(_, bytes)| !bytes.is_empty()) {
                let checkpoint = regrow::open_with(&sample.path, &OpenOptions::default()).unwrap();
                // Maps that are kept are made.
                let before = checkpoint.load(&LoadOptions::default()).unwrap();
                let len = bytes.len() as u64;
                let cut = fs::File::options().write(true).open(root.join(name)).unwrap();
                cut.set_len(len.checked_div(parts).unwrap_or(0)).unwrap();
                let mut failed = checkpoint.load(&LoadOptions::default()).is_err();
                for leaf in 0..checkpoint.tree().len() {
                    failed |= checkpoint.read(leaf).is_err();
                }
                failed |= checkpoint.verify().map_or(true, |report| !report.is_ok());
                tried += 1;
                refused += usize::from(failed);
                drop((before, checkpoint));
                fs::remove_file(root.join(name)).unwrap();
                fs::write(root.join(name), bytes).unwrap();
            }
        }
    }
    // Times and marks are read once.
    assert!(4 * refused > tried, "{refused} of {tried} were noticed");
}
