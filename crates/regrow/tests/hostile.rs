//! Checkpoints of every layout that were changed by hostile hands, with checksums that are right again: opened, listed, read,
//! verified. What comes of it is free, but for panics, memory and errors that name no file.
//!
//! `make fuzz` does the same with a fuzzer's choices.

#![expect(clippy::unwrap_used, reason = "a test's failure is a panic")]

#[path = "common/hostile.rs"]
mod hostile;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use hostile::{Reached, samples, use_it};
use regrow_testkit::hostile::choices;
use regrow_testkit::memory_folder;

/// Changes to each checkpoint, unless the environment says otherwise.
const CHANGES: u64 = 60;
const CHANGES_VARIABLE: &str = "REGROW_TEST_CHANGES";

/// What may be taken at once, beyond what was there before: checkpoints are of some KiB, and files stay below a MiB.
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
