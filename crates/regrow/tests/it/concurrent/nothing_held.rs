//! After thousands of opens, loads, conversions and failures in every layout, no file is open or
//! mapped, and no thread remains.
//!
//! The test counts the files, maps and threads of its process, so it needs its own process. `cargo
//! nextest` starts one for each test; with `cargo test`, run this module alone.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::damage::{checkpoints, files, options, put};
use regrow::array::Region;
use regrow::engine::Layout;
use regrow::tree::{Key, Leaf, LeafInfo, NodeKind, TreeBuilder};
use regrow::{ConvertOptions, ErrorKind, LoadOptions, OpenOptions, RegionOptions, SealOptions};
use regrow_testkit::{damages, memory_folder};

/// A damaged shape may be a valid one, larger than any useful read.
const READ_LEN_MAX_BYTES: u64 = 64 << 20;

/// Opens of each checkpoint, sealed and not, with and without maps.
fn opens() -> usize {
    if std::env::var_os("REGROW_LONG").is_some() { 1000 } else { 40 }
}

/// Damages of each kind to each file.
fn each_max() -> usize {
    if std::env::var_os("REGROW_LONG").is_some() { 40 } else { 2 }
}

/// What this process has of the files below `folder`, and of everything.
#[derive(Debug)]
struct Held {
    files: usize,
    files_below: usize,
    maps_below: usize,
    threads: usize,
}

impl Held {
    fn is_no_more_than(&self, before: &Self) -> bool {
        self.files <= before.files
            && self.files_below <= before.files_below
            && self.maps_below <= before.maps_below
            && self.threads <= before.threads
    }
}

fn held(folder: &Path) -> Held {
    let links: Vec<_> = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .collect();
    let name = folder.to_str().unwrap();
    Held {
        files: links.len(),
        files_below: links.iter().filter(|link| link.starts_with(folder)).count(),
        // What was deleted since keeps its name there.
        maps_below: fs::read_to_string("/proc/self/maps").unwrap().matches(name).count(),
        threads: fs::read_dir("/proc/self/task").unwrap().count(),
    }
}

/// Opens, reads in every way and drops; whether all of it worked.
fn use_it(path: &Path, mapped: bool) -> bool {
    let open = OpenOptions { mapped, ..OpenOptions::default() };
    let Ok(checkpoint) = regrow::open_with(path, &open) else { return false };
    let infos = checkpoint.tree().leaves();
    if infos.iter().map(LeafInfo::len_bytes).fold(0, u64::saturating_add) > READ_LEN_MAX_BYTES {
        return false;
    }
    let load = LoadOptions { mapped, ..LoadOptions::default() };
    let mut is_whole = checkpoint.load(&load).is_ok();
    let leaves: Vec<usize> = (0..checkpoint.tree().len()).collect();
    // What cannot be mapped says so.
    drop(checkpoint.map_private(&leaves, &RegionOptions::default()));
    for leaf in leaves {
        let info = &checkpoint.tree().leaves()[leaf];
        let dims = info.shape.dims();
        if info.kind.is_array() && !dims.is_empty() && !dims.contains(&0) {
            let one = Region::new(vec![0; dims.len()], vec![1; dims.len()]).unwrap();
            is_whole &= checkpoint.region(leaf, &one).is_ok();
        }
    }
    is_whole & checkpoint.verify().is_ok_and(|report| report.is_ok())
}

/// Converts to the default layout and away with it.
fn convert(path: &Path, target: &Path) -> bool {
    let save = options(&Layout::from_name("regrow", serde_json::Value::Null).unwrap());
    let options = ConvertOptions { save, lossy: true, ..ConvertOptions::default() };
    let converted = regrow::convert(path, target, &options);
    if converted.is_ok() {
        fs::remove_dir_all(target).unwrap();
    }
    converted.is_ok()
}

/// All of it with one checkpoint: as it is, damaged, under a seal, and in the way of a save.
fn live(path: &Path, root: &Path, opens: usize) -> (usize, usize) {
    let home = path.parent().unwrap();
    let (mut good, mut bad) = (0, 0);
    let mut count = |is_good: bool| if is_good { good += 1 } else { bad += 1 };
    for number in 0..opens {
        drop(regrow::open(path).unwrap());
        count(use_it(path, number.is_multiple_of(2)));
    }
    count(convert(path, &root.join("converted")));
    for (file, bytes) in files(home) {
        for (number, damage) in damages(&bytes, each_max()).enumerate() {
            put(&file, &damage.bytes);
            count(use_it(path, number.is_multiple_of(2)));
            if number.is_multiple_of(8) {
                count(convert(path, &root.join("converted")));
            }
        }
        fs::remove_file(&file).unwrap();
        count(use_it(path, true));
        fs::write(&file, &bytes).unwrap();
    }
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("text"), Leaf::text("text")).unwrap();
    build.close().unwrap();
    let tree = build.finish().unwrap();
    let in_the_way = regrow::save(path, &tree);
    // Data and manifest have a name each, and the path itself is unused.
    let is_refused = in_the_way.as_ref().is_err_and(|error| error.kind() == ErrorKind::AlreadyExists);
    if in_the_way.is_ok() {
        fs::remove_dir_all(path).unwrap();
    }
    count(!is_refused);
    (good, bad)
}

#[test]
fn closed_checkpoints_hold_no_files_maps_or_threads() {
    let root = memory_folder().unwrap();
    let all = checkpoints(root.path());
    // What the first call makes for all others is not counted.
    let first = &all[0].1;
    assert!(use_it(first, true) && use_it(first, false));
    let before = held(root.path());
    let (mut good, mut bad) = (0, 0);
    for (name, path) in &all {
        for sealed in [false, true] {
            if sealed {
                regrow::seal(path, &SealOptions::default()).unwrap();
            }
            let (more_good, more_bad) = live(path, root.path(), opens());
            assert!(more_good >= opens() && more_bad > 0, "{name}: {more_good} good, {more_bad} bad");
            (good, bad) = (good + more_good, bad + more_bad);
            // A thread that has been joined may stay in the list for a moment.
            let begin = Instant::now();
            while !held(root.path()).is_no_more_than(&before) && begin.elapsed() < Duration::from_secs(20) {
                thread::sleep(Duration::from_millis(10));
            }
            let now = held(root.path());
            assert!(now.is_no_more_than(&before), "{name}, sealed: {sealed}: {now:?}, and before {before:?}");
        }
    }
    assert!(good + bad > 4000, "{good} and {bad}");
    println!("{good} that worked and {bad} that failed");
}
