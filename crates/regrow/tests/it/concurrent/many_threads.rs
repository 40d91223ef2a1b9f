//! 64 threads use one opened checkpoint, in every layout, with and without a seal. Each thread gets
//! the same bits during any call of another thread. No thread waits forever, and no thread remains.
//!
//! The test counts the threads of its process, so it needs its own process. `cargo nextest` starts
//! one for each test; with `cargo test`, run this module alone.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::damage::{checkpoints, contents};
use regrow::array::Region;
use regrow::engine::LeafRegion;
use regrow::tree::{Leaf, LeafKind, Tree};
use regrow::{Checkpoint, LoadOptions, OpenOptions, RegionOptions, SealOptions};
use regrow_testkit::memory_folder;

const THREADS: usize = 64;

/// What each thread does with each checkpoint.
fn rounds() -> usize {
    if std::env::var_os("REGROW_LONG").is_some() { 40 } else { 3 }
}

/// Everything that is known of a checkpoint, read by one thread.
struct Known {
    contents: String,
    tree: Tree<Leaf>,
    /// Arrays that have an inside, with the bytes of a part of them.
    parts: Vec<(LeafRegion, Vec<u8>)>,
}

fn know(checkpoint: &Checkpoint) -> Known {
    let tree = checkpoint.load(&LoadOptions::default()).unwrap();
    let mut parts = Vec::new();
    for (leaf, info) in checkpoint.tree().leaves().iter().enumerate() {
        let dims = info.shape.dims();
        let is_array = matches!(info.kind, LeafKind::NumpyArray | LeafKind::JaxArray);
        if !is_array || dims.is_empty() || dims.contains(&0) {
            continue;
        }
        let starts: Vec<u64> = dims.iter().map(|dim| dim / 3).collect();
        let lens = dims.iter().zip(&starts).map(|(dim, start)| (dim - start).div_ceil(2));
        let region = Region::new(starts.clone(), lens.collect::<Vec<_>>()).unwrap();
        let bytes = checkpoint.region(leaf, &region).unwrap().to_c_order().unwrap().to_vec();
        parts.push((LeafRegion { leaf, region, dtype: None }, bytes));
    }
    Known { contents: contents(&tree), tree, parts }
}

/// One of the things that a reader does, which must give what is known.
fn act(kind: usize, checkpoint: &Checkpoint, known: &Known, what: &str) {
    let options = |mapped: bool| LoadOptions { mapped, ..LoadOptions::default() };
    let open = || regrow::open(checkpoint.location()).unwrap();
    match kind % 8 {
        0 | 1 => {
            let loaded = checkpoint.load(&options(kind.is_multiple_of(2))).unwrap();
            assert!(contents(&loaded) == known.contents, "{what}: a load of other bits");
        }
        2 => {
            for (leaf, expected) in known.tree.leaves().iter().enumerate() {
                let Some(expected) = expected.as_array() else { continue };
                let found = checkpoint.read(leaf).unwrap();
                let found = found.as_array().unwrap().to_c_order().unwrap();
                assert!(found == expected.to_c_order().unwrap(), "{what}: leaf {leaf} has other bits");
            }
        }
        3 => {
            for (part, expected) in &known.parts {
                let found = checkpoint.region(part.leaf, &part.region).unwrap().to_c_order().unwrap();
                assert!(found[..] == expected[..], "{what}: a slice of leaf {} has other bits", part.leaf);
            }
        }
        4 => {
            let wanted: Vec<LeafRegion> = known.parts.iter().map(|(part, _)| part.clone()).collect();
            let found = checkpoint.load_regions(&wanted, &RegionOptions::default()).unwrap();
            for (found, (part, expected)) in found.iter().zip(&known.parts) {
                let found = found.to_c_order().unwrap();
                assert!(found[..] == expected[..], "{what}: a region of leaf {} has other bits", part.leaf);
            }
        }
        5 => {
            let report = checkpoint.verify().unwrap();
            assert!(report.is_ok(), "{what}: {:?}", report.findings);
        }
        6 => {
            assert!(
                contents(&open().load(&options(false)).unwrap()) == known.contents,
                "{what}: opened again"
            )
        }
        _ => {
            let report = checkpoint.diff(&open(), &regrow::DiffOptions::default()).unwrap();
            assert!(report.is_equal(), "{what}: {report}");
        }
    }
}

fn thread_count() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn sixty_four_threads_get_the_same_bits() {
    let root = memory_folder().unwrap();
    let before = thread_count();
    let mut acts = 0;
    for (name, path) in checkpoints(root.path()) {
        for sealed in [false, true] {
            if sealed {
                regrow::seal(&path, &SealOptions::default()).unwrap();
            }
            for mapped in [false, true] {
                let what = format!("{name}, sealed: {sealed}, by maps: {mapped}");
                let options = OpenOptions { mapped, ..OpenOptions::default() };
                let known = know(&regrow::open_with(&path, &options).unwrap());
                // Nothing of it has been read yet: the first to come meet each other.
                let checkpoint = regrow::open_with(&path, &options).unwrap();
                let barrier = Barrier::new(THREADS);
                thread::scope(|scope| {
                    for number in 0..THREADS {
                        let (barrier, checkpoint, known, what) = (&barrier, &checkpoint, &known, &what);
                        scope.spawn(move || {
                            barrier.wait();
                            (0..rounds()).for_each(|round| act(number + round, checkpoint, known, what));
                        });
                    }
                });
                acts += THREADS * rounds();
            }
        }
    }
    // A thread that has been joined may stay in the list for a moment.
    let begin = Instant::now();
    while thread_count() > before && begin.elapsed() < Duration::from_secs(20) {
        thread::sleep(Duration::from_millis(10));
    }
    assert!(thread_count() <= before, "{} threads, and {before} before", thread_count());
    println!("{acts} acts of {THREADS} threads");
}
