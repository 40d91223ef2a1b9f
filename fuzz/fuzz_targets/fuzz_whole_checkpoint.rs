//! Whole checkpoints of every layout, changed as the input says, with checksums that are right
//! again: opened, listed, read, verified. The first byte chooses the checkpoint.

#![no_main]

mod door;

use std::sync::{LazyLock, Mutex};

use door::samples::{Sample, samples};
use libfuzzer_sys::fuzz_target;

static SAMPLES: LazyLock<Mutex<Vec<Sample>>> = LazyLock::new(|| Mutex::new(samples(door::folder())));

fuzz_target!(|input: &[u8]| {
    let Some((which, choices)) = input.split_first() else { return };
    let mut samples = SAMPLES.lock().unwrap();
    let count = samples.len();
    let sample = &mut samples[usize::from(*which) % count];
    sample.victim.change(choices).unwrap();
    door::open(&sample.path);
});
