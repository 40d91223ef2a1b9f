//! A monitor counts the bytes of a call, and can cancel the call at any moment. In every layout a
//! cancelled save leaves no files, and a cancelled overwrite leaves the old checkpoint.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use regrow::array::{Array, ArraySource, Dtype, Region, Shape};
use regrow::engine::Layout;
use regrow::monitor::{IoPath, Progress, Stage, StageReport};
use regrow::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};
use regrow::{
    ConvertOptions, Error, ErrorKind, LoadOptions, Monitor, Result, SaveOptions, SaveReport, VerifyOptions,
};
use serde_json::json;

/// Elements of each of the three large leaves: with them a file has a few of the writer's buffers.
const LEN_ELEMENTS: u64 = 1 << 20;

const DATA_LEN_BYTES: u64 = 3 * 4 * LEN_ELEMENTS + 12;

/// What a source does when it is read.
#[derive(Clone)]
struct Act(Arc<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Act")
    }
}

/// An array that does something when it is read beyond a byte, and takes its time.
#[derive(Debug)]
struct Acting {
    at_bytes: u64,
    act: Act,
    pause: Duration,
}

impl ArraySource for Acting {
    fn read_c_order(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = ((offset_bytes + at as u64) / 4 % 251) as u8;
        }
        if offset_bytes + out.len() as u64 > self.at_bytes {
            (self.act.0)();
        }
        std::thread::sleep(self.pause);
        Ok(())
    }

    fn read_region(&self, region: &Region, out: &mut [u8]) -> Result<()> {
        let first = region.starts().first().copied().unwrap_or(0);
        self.read_c_order(4 * first, out)
    }
}

fn leaf(at_bytes: u64, act: &Act, pause: Duration) -> Leaf {
    let source = Acting { at_bytes, act: act.clone(), pause };
    Leaf::array(
        Array::deferred(Dtype::Float32, Shape::new([LEN_ELEMENTS]).unwrap(), Arc::new(source)).unwrap(),
    )
}

/// Three large leaves and a small one; `act` happens when the large ones have been read up to
/// `at_bytes`.
fn tree(at_bytes: u64, act: impl Fn() + Send + Sync + 'static, pause: Duration) -> Tree<Leaf> {
    let act = Act(Arc::new(act));
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for (number, name) in ["a", "b", "c"].into_iter().enumerate() {
        let at_bytes = at_bytes.saturating_sub(number as u64 * 4 * LEN_ELEMENTS);
        build.leaf(Key::dict(name), leaf(at_bytes, &act, pause)).unwrap();
    }
    let small = Array::new(Dtype::Float32, Shape::new([3]).unwrap(), vec![1; 12].into()).unwrap();
    build.leaf(Key::dict("small"), Leaf::array(small)).unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

pub(super) fn plain_tree() -> Tree<Leaf> {
    tree(u64::MAX, || {}, Duration::ZERO)
}

/// Every layout that takes any tree, in every form that has a writer of its own; and what its path
/// ends in.
pub(super) fn layouts() -> Vec<(&'static str, SaveOptions, &'static str)> {
    let of = |name: &str, options| SaveOptions {
        layout: Layout::from_name(name, options).unwrap(),
        overwrite: true,
        ..SaveOptions::default()
    };
    let zstd = |options: SaveOptions| SaveOptions {
        compression: Some(regrow::engine::Compression::Zstd(1)),
        ..options
    };
    vec![
        ("regrow", of("regrow", json!(null)), ""),
        ("regrow, zstd", zstd(of("regrow", json!(null))), ""),
        ("orbax, ocdbt", of("orbax", json!(null)), ""),
        ("orbax, zarr v3", of("orbax", json!({"zarr3": true})), ""),
        ("orbax, files", of("orbax", json!({"ocdbt": false, "chunk_byte_size": 300_000})), ""),
        ("flax", of("flax", json!(null)), ""),
        ("equinox", of("equinox", json!(null)), ".eqx"),
        ("pytree_data", of("pytree_data", json!(null)), ""),
        ("safetensors, file", of("safetensors", json!(null)), ".safetensors"),
        ("safetensors, folder", of("safetensors", json!(null)), ""),
        ("npy, folder", of("npy", json!({"form": "folder"})), ""),
        ("npz", of("npy", json!({"form": "npz"})), ".npz"),
        ("npz, deflated", of("npy", json!({"form": "npz", "compress": true})), ".npz"),
    ]
}

/// Every file below a folder, with its bytes.
fn snapshot(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                found.insert(path.clone(), b"a folder".to_vec());
                folders.push(path);
            } else {
                let bytes = fs::read(&path).unwrap();
                found.insert(path, bytes);
            }
        }
    }
    found
}

/// Saves, and cancels when `at_bytes` of the data have been read.
fn cancelled_save(path: &Path, options: &SaveOptions, at_bytes: u64) -> Result<SaveReport> {
    let monitor = Monitor::new();
    let cancel = monitor.clone();
    let options = SaveOptions { monitor, ..options.clone() };
    regrow::save_with(path, &tree(at_bytes, move || cancel.cancel(), Duration::ZERO), &options)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]
    #[test]
    fn a_cancelled_save_leaves_nothing(at_bytes in 0..3 * 4 * LEN_ELEMENTS) {
        for (name, options, suffix) in layouts() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(format!("runs/step_1{suffix}"));
            let error = cancelled_save(&path, &options, at_bytes).unwrap_err();
            prop_assert_eq!(error.kind(), ErrorKind::Cancelled, "{}: {}", name, error);
            prop_assert!(snapshot(folder.path()).is_empty(), "{}: {:?}", name, snapshot(folder.path()).keys());
        }
    }

    #[test]
    fn a_cancelled_overwrite_leaves_the_old_checkpoint(at_bytes in 0..3 * 4 * LEN_ELEMENTS) {
        let small: BTreeMap<String, Vec<f32>> = BTreeMap::from([("a".to_owned(), vec![1.0; 10])]);
        for (name, options, suffix) in layouts() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(format!("step_1{suffix}"));
            regrow::save_with(&path, &small, &options).unwrap();
            let before = snapshot(folder.path());
            prop_assert!(cancelled_save(&path, &options, at_bytes).is_err());
            prop_assert!(before == snapshot(folder.path()), "{}", name);
        }
    }
}

#[test]
fn every_layout_counts_its_bytes() {
    for (name, options, suffix) in layouts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(format!("step_1{suffix}"));
        let monitor = Monitor::new();
        // What is known to be done when the last piece is read: all but a few buffers. Where
        // several threads are at work, the others may lag behind.
        let (watch, seen) = (monitor.clone(), Arc::new(AtomicU64::new(0)));
        let last = seen.clone();
        let act = move || {
            last.fetch_max(watch.progress().done_bytes, Ordering::Relaxed);
        };
        let options = SaveOptions { monitor: monitor.clone(), ..options };
        let tree = tree(3 * 4 * LEN_ELEMENTS - 4, act, Duration::ZERO);
        let report = regrow::save_with(&path, &tree, &options).unwrap();
        let Progress { done_bytes, total_bytes, stage } = monitor.progress();
        assert_eq!(
            (done_bytes, total_bytes, stage),
            (DATA_LEN_BYTES, DATA_LEN_BYTES, Stage::Commit),
            "{name}"
        );
        assert_eq!(report.data_bytes, DATA_LEN_BYTES, "{name}");
        if !name.starts_with("orbax") && name != "regrow, zstd" {
            assert!(seen.load(Ordering::Relaxed) >= 4 * LEN_ELEMENTS, "{name}: {seen:?}");
        }
        assert!(regrow::load::<Tree<Leaf>>(&path).unwrap().len() == 4, "{name}");
    }
}

#[test]
fn the_error_of_the_hook_is_returned() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step_1");
    let refuse_at = |at: u64| {
        Monitor::with_hook(move |progress| {
            if progress.done_bytes < at {
                return Ok(());
            }
            Err(Error::invalid("the caller has had enough"))
        })
    };
    let is_refusal = |error: &Error| {
        error.kind() == ErrorKind::InvalidArgument && error.to_string().contains("had enough")
    };
    for at in [0, DATA_LEN_BYTES] {
        let options = SaveOptions { monitor: refuse_at(at), ..SaveOptions::default() };
        let error = regrow::save_with(&path, &plain_tree(), &options).unwrap_err();
        assert!(is_refusal(&error), "{error}");
        assert!(options.monitor.is_cancelled());
        assert!(snapshot(folder.path()).is_empty());
    }
    regrow::save(&path, &plain_tree()).unwrap();
    for at in [0, DATA_LEN_BYTES] {
        let options = LoadOptions { monitor: refuse_at(at), ..LoadOptions::default() };
        assert!(is_refusal(&regrow::load_with::<Tree<Leaf>>(&path, &options).unwrap_err()));
        let options = VerifyOptions { monitor: refuse_at(at), ..VerifyOptions::default() };
        assert!(is_refusal(&regrow::verify_with(&path, &options).unwrap_err()));
        let save = SaveOptions { monitor: refuse_at(at), ..SaveOptions::default() };
        let options = ConvertOptions { save, ..ConvertOptions::default() };
        assert!(is_refusal(&regrow::convert(&path, folder.path().join("other"), &options).unwrap_err()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn the_hook_is_called_at_most_twenty_times_a_second_and_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    let monitor = Monitor::with_hook(move |progress| {
        tell.lock().unwrap().push(progress);
        Ok(())
    });
    let options = SaveOptions { monitor, ..SaveOptions::default() };
    let began = Instant::now();
    let tree = tree(u64::MAX, || {}, Duration::from_millis(5));
    regrow::save_with(folder.path().join("step_1"), &tree, &options).unwrap();
    let most = began.elapsed().as_millis() / 50 + 3;
    let told = told.lock().unwrap();
    assert!((2..=most as usize).contains(&told.len()), "{} of {most}", told.len());
    assert!(told.is_sorted_by_key(|progress| progress.done_bytes));
    assert_eq!(told.last().unwrap().done_bytes, DATA_LEN_BYTES);
    assert!(told.iter().all(|progress| progress.total_bytes == DATA_LEN_BYTES));
}

#[test]
fn cancelled_before_the_start_no_work_begins() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step_1");
    regrow::save(&path, &plain_tree()).unwrap();
    let monitor = Monitor::new();
    monitor.cancel();
    let save = SaveOptions { monitor: monitor.clone(), overwrite: true, ..SaveOptions::default() };
    let error = regrow::save_with(&path, &plain_tree(), &save).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    let load = LoadOptions { monitor: monitor.clone(), ..LoadOptions::default() };
    assert_eq!(regrow::load_with::<Tree<Leaf>>(&path, &load).unwrap_err().kind(), ErrorKind::Cancelled);
    let verify = VerifyOptions { monitor: monitor.clone(), ..VerifyOptions::default() };
    assert_eq!(regrow::verify_with(&path, &verify).unwrap_err().kind(), ErrorKind::Cancelled);
    let convert = ConvertOptions { save, ..ConvertOptions::default() };
    let error = regrow::convert(&path, folder.path().join("other"), &convert).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

fn stage(report: &SaveReport, stage: Stage) -> StageReport {
    *report.stages.iter().find(|report| report.stage == stage).unwrap()
}

#[test]
fn the_report_says_where_the_time_went() {
    let folder = tempfile::tempdir().unwrap();
    let options = SaveOptions::default();
    for step in ["step_1", "step_2"] {
        let report = regrow::save_with(folder.path().join(step), &plain_tree(), &options).unwrap();
        let own = [Stage::Prepare, Stage::Copy, Stage::WaitForDisk, Stage::Sync, Stage::Commit];
        let sum: f64 = own.map(|name| stage(&report, name).seconds).iter().sum();
        assert!((sum - report.seconds).abs() < 0.01 * report.seconds, "{report}");
        // The same for both: the second report does not hold the first.
        for name in [Stage::Copy, Stage::Write] {
            let bytes = stage(&report, name).bytes;
            assert!((DATA_LEN_BYTES..DATA_LEN_BYTES + 100_000).contains(&bytes), "{name}: {bytes}\n{report}");
        }
        assert!(stage(&report, Stage::Copy).gb_per_s() > 0.0);
        assert_eq!(stage(&report, Stage::Sync).gb_per_s(), 0.0);
        assert!(report.gb_per_s() > 0.0 && report.reused_bytes == 0);
        assert_ne!(report.io_path, IoPath::PageCache);
        let text = report.to_string();
        for part in
            [step, "4 leaves, 12.0 MiB of data", "GB/s", "wait_for_disk", "(while the other stages run)"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    let small = regrow::save(folder.path().join("small"), &vec![1.0_f32; 5]).unwrap();
    assert_eq!((small.io_path, small.data_bytes), (IoPath::PageCache, 20));
    assert_eq!(IoPath::Direct.to_string(), "direct");
    let refused = |os_error| IoPath::Buffered { os_error }.to_string();
    // Without Linux' calls no error is that of a file system that has no direct I/O.
    let is_usual = !cfg!(feature = "portable");
    assert_eq!(refused(22) == "buffered (the file system refuses direct I/O)", is_usual, "{}", refused(22));
    assert!(refused(1).contains("Operation not permitted"));
}

#[test]
fn loads_and_verifications_count_all_they_read() {
    let folder = tempfile::tempdir().unwrap();
    for (name, options, suffix) in layouts() {
        let path = folder.path().join(format!("{name}{suffix}"));
        regrow::save_with(&path, &plain_tree(), &options).unwrap();
        for is_load in [true, false] {
            let monitor = Monitor::new();
            if is_load {
                let options = LoadOptions { monitor: monitor.clone(), ..LoadOptions::default() };
                regrow::load_with::<Tree<Leaf>>(&path, &options).unwrap();
            } else {
                let options = VerifyOptions { monitor: monitor.clone(), ..VerifyOptions::default() };
                assert!(regrow::verify_with(&path, &options).unwrap().is_ok());
            }
            let read = monitor.stages();
            assert_eq!(
                read.first().map(|read| (read.stage, read.bytes)),
                Some((Stage::Read, DATA_LEN_BYTES)),
                "{name}"
            );
            assert_eq!(monitor.progress().done_bytes, DATA_LEN_BYTES, "{name}");
        }
    }
}

#[test]
fn a_damaged_leaf_is_a_finding_also_under_a_monitor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step_1");
    regrow::save(&path, &plain_tree()).unwrap();
    let file = path.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, bytes).unwrap();
    let report = regrow::verify_with(&path, &VerifyOptions::default()).unwrap();
    assert_eq!(report.findings.len(), 1);
}
