//! Saves with a base: after any changes of the tree, the new checkpoint has the tree's bytes, and
//! the base is unchanged.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use regrow::array::{Array, ArraySource, Dtype, Region, Shape};
use regrow::engine::{Compression, ConvertOptions, Layout};
use regrow::monitor::{Progress, Stage};
use regrow::tree::{Leaf, PathPattern, Tree};
use regrow::{Error, ErrorKind, Monitor, Result, SaveOptions, SaveReport};

/// The bytes of each leaf.
type Leaves = BTreeMap<String, Vec<u8>>;

fn tree(leaves: &Leaves) -> Tree<Leaf> {
    let arrays = leaves.iter().map(|(name, bytes)| {
        let shape = Shape::new(vec![bytes.len() as u64]).unwrap();
        (name.as_str(), Array::new(Dtype::UInt8, shape, bytes.clone().into()).unwrap())
    });
    dict(arrays)
}

fn dict<'a>(arrays: impl Iterator<Item = (&'a str, Array)>) -> Tree<Leaf> {
    crate::common::dict(arrays.map(|(name, array)| (name, Leaf::array(array))))
}

fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}

fn with_base(base: &Path) -> SaveOptions {
    SaveOptions { base: Some(base.to_owned().into()), ..SaveOptions::default() }
}

fn save(path: &Path, leaves: &Leaves, base: Option<&Path>) -> SaveReport {
    let options = SaveOptions {
        base: base.map(|base| base.to_owned().into()),
        not_durable: true,
        ..SaveOptions::default()
    };
    regrow::save_with(path, &tree(leaves), &options).unwrap()
}

fn assert_holds(path: &Path, leaves: &Leaves) {
    let loaded: Tree<Leaf> = regrow::load(path).unwrap();
    let loaded: Leaves = loaded
        .iter()
        .map(|(path, leaf)| (path.to_string(), leaf.as_array().unwrap().to_c_order().unwrap().to_vec()))
        .collect();
    assert!(&loaded == leaves, "{} does not hold what was saved", path.display());
    let verified = regrow::verify(path).unwrap();
    assert!(verified.is_ok(), "{:?}", verified.findings);
}

fn data_files(path: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        files.filter(|file| file.extension().is_some_and(|end| end == "safetensors")).collect();
    files.sort();
    files
}

fn inodes(path: &Path) -> Vec<u64> {
    data_files(path).iter().map(|file| file.metadata().unwrap().ino()).collect()
}

#[test]
fn unchanged_leaves_are_gathered_then_linked() {
    let folder = tempfile::tempdir().unwrap();
    let path = |step: u8| folder.path().join(format!("step_{step}"));
    let leaves = |step: u8| -> Leaves {
        [("frozen", bytes(0, 3 << 20)), ("small", bytes(1, 5000)), ("trained", bytes(step, 100_000))]
            .map(|(name, bytes)| (name.to_owned(), bytes))
            .into()
    };
    assert_eq!(save(&path(0), &leaves(0), None).reused_bytes, 0);
    for step in 1..5 {
        let report = save(&path(step), &leaves(step), Some(&path(step - 1)));
        let (new, old) = (inodes(&path(step)), inodes(&path(step - 1)));
        assert_eq!(new.len(), 3);
        let linked: Vec<&u64> = new.iter().filter(|inode| old.contains(inode)).collect();
        assert_eq!(linked.len(), if step == 1 { 0 } else { 2 }, "step {step}");
        let lens = data_files(&path(step));
        let lens = lens.iter().map(|file| file.metadata().unwrap());
        let reused: u64 = lens.filter(|file| linked.contains(&&file.ino())).map(|file| file.len()).sum();
        assert_eq!(report.reused_bytes, reused);
        assert_eq!(report.to_string().contains("reused"), step > 1, "{report}");
    }
    for step in 0..4 {
        assert_holds(&path(step), &leaves(step));
        fs::remove_dir_all(path(step)).unwrap();
    }
    assert_holds(&path(4), &leaves(4));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn every_checkpoint_holds_its_tree(
        lens in prop::collection::vec(prop_oneof![0_usize..3000, 60_000_usize..70_000, 250_000_usize..300_000], 1..8),
        steps in prop::collection::vec(prop::collection::vec((0_usize..8, 0_usize..300_000, 0_u8..5), 0..5), 1..6),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut leaves: Leaves =
            lens.iter().enumerate().map(|(at, &len)| (format!("leaf_{at}"), bytes(at as u8, len))).collect();
        let mut saved = Vec::new();
        for (step, changes) in std::iter::once(&Vec::new()).chain(&steps).enumerate() {
            let before = leaves.clone();
            for &(leaf, at, how) in changes {
                let name = format!("leaf_{leaf}");
                let is_only = leaves.len() == 1;
                match (how, leaves.get_mut(&name)) {
                    (0, Some(_)) if !is_only => drop(leaves.remove(&name)),
                    (1, Some(bytes)) => bytes.push(0),
                    (_, Some(bytes)) => {
                        let at = at % bytes.len().max(1);
                        bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = byte.wrapping_add(1));
                    }
                    (_, None) => drop(leaves.insert(name, bytes(leaf as u8, at))),
                }
            }
            let is_same = step > 0 && leaves == before;
            let path = folder.path().join(step.to_string());
            let base = step.checked_sub(1).map(|step| folder.path().join(step.to_string()));
            let report = save(&path, &leaves, base.as_deref());
            if is_same {
                prop_assert_eq!(inodes(&path), inodes(base.as_ref().unwrap()), "nothing changed in step {}", step);
                prop_assert!(report.reused_bytes > 0);
            }
            prop_assert!(data_files(&path).len() <= 1 + 2 * (step + 1));
            saved.push((path, leaves.clone()));
        }
        for (path, leaves) in &saved {
            assert_holds(path, leaves);
        }
        for (path, _) in &saved[..saved.len() - 1] {
            fs::remove_dir_all(path).unwrap();
        }
        assert_holds(&saved[saved.len() - 1].0, &leaves);
    }
}

/// Of one value, and counts what is read of it.
#[derive(Debug)]
struct Counting {
    value: u8,
    len_bytes: u64,
    read_bytes: AtomicU64,
    /// What it keeps from its first byte to its last, or until it is released; 0 for nothing.
    kept_len_bytes: u64,
    keeps: Mutex<bool>,
    /// What all of them keep now, and the most that they kept.
    kept: Arc<(AtomicU64, AtomicU64)>,
}

impl Counting {
    fn new(value: u8, len_bytes: u64, kept_len_bytes: u64) -> Self {
        let (read_bytes, keeps, kept) = (AtomicU64::new(0), Mutex::new(false), Arc::default());
        Self { value, len_bytes, read_bytes, kept_len_bytes, keeps, kept }
    }
}

impl ArraySource for Counting {
    fn read_c_order(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        if !std::mem::replace(&mut *self.keeps.lock().unwrap(), true) {
            let now = self.kept.0.fetch_add(self.kept_len_bytes, Ordering::Relaxed) + self.kept_len_bytes;
            self.kept.1.fetch_max(now, Ordering::Relaxed);
        }
        self.read_bytes.fetch_add(out.len() as u64, Ordering::Relaxed);
        out.fill(self.value);
        if offset_bytes + out.len() as u64 == self.len_bytes {
            self.release();
        }
        Ok(())
    }

    fn kept_len_bytes(&self) -> u64 {
        self.kept_len_bytes
    }

    fn release(&self) {
        if std::mem::replace(&mut *self.keeps.lock().unwrap(), false) {
            self.kept.0.fetch_sub(self.kept_len_bytes, Ordering::Relaxed);
        }
    }

    fn read_region(&self, _region: &Region, out: &mut [u8]) -> Result<()> {
        self.read_c_order(0, out)
    }
}

#[test]
fn a_changed_leaf_costs_one_write_and_a_linked_leaf_one_lookup() {
    const LEN_BYTES: u64 = 4 << 20;
    const PIECE_LEN_BYTES: u64 = 256 << 10;
    let folder = tempfile::tempdir().unwrap();
    let save_keeping = |step: u8, value: u8, kept_len_bytes: u64| {
        let source = Arc::new(Counting::new(value, LEN_BYTES, kept_len_bytes));
        let shape = Shape::new(vec![LEN_BYTES]).unwrap();
        let deferred = Array::deferred(Dtype::UInt8, shape.clone(), source.clone()).unwrap();
        let other = Array::new(Dtype::UInt8, Shape::new(vec![9]).unwrap(), vec![step; 9].into()).unwrap();
        let tree = dict([("deferred", deferred), ("other", other)].into_iter());
        let base = step.checked_sub(1).map(|step| folder.path().join(step.to_string()));
        let options = SaveOptions { base: base.map(Into::into), ..SaveOptions::default() };
        regrow::save_with(folder.path().join(step.to_string()), &tree, &options).unwrap();
        source.read_bytes.load(Ordering::Relaxed)
    };
    let save = |step: u8, value: u8| save_keeping(step, value, 0);
    assert_eq!(save(0, 7), LEN_BYTES);
    assert_eq!(save(1, 8), LEN_BYTES + PIECE_LEN_BYTES, "compared up to the first piece, and written");
    assert_eq!(save(2, 8), 3 * LEN_BYTES, "compared, written and hashed");
    assert_eq!(save(3, 8), LEN_BYTES, "hashed, and linked");
    assert_eq!(save(4, 9), 2 * LEN_BYTES + PIECE_LEN_BYTES, "hashed in vain, compared, and written");
    assert_eq!(save_keeping(5, 9, 1), 2 * LEN_BYTES, "compared, and hashed on its way into the file");
    assert_eq!(save(6, 9), LEN_BYTES, "by the digest of that, linked");
    assert_eq!(inodes(&folder.path().join("6")).len(), 2);
    let loaded: Tree<Leaf> = regrow::load(folder.path().join("6")).unwrap();
    assert!(loaded.leaves()[0].as_array().unwrap().to_c_order().unwrap().iter().all(|&byte| byte == 9));
    assert!(regrow::verify(folder.path().join("6")).unwrap().is_ok());
}

/// What differs early is not read on: what it keeps must go, or memory would be that of all leaves.
#[test]
fn comparing_keeps_no_more_than_the_budget() {
    const LEN_BYTES: u64 = 2 << 20;
    const LEAVES: usize = 24;
    let folder = tempfile::tempdir().unwrap();
    let save = |step: u8, value: u8, base: Option<PathBuf>| {
        let kept: Arc<(AtomicU64, AtomicU64)> = Arc::default();
        let names: Vec<String> = (0..LEAVES).map(|at| format!("leaf_{at:02}")).collect();
        let arrays = names.iter().map(|name| {
            let source = Counting { kept: kept.clone(), ..Counting::new(value, LEN_BYTES, 1 << 20) };
            let shape = Shape::new([LEN_BYTES]).unwrap();
            (name.as_str(), Array::deferred(Dtype::UInt8, shape, Arc::new(source)).unwrap())
        });
        let budget_bytes = Some(3 << 20);
        let options = SaveOptions {
            base: base.map(Into::into),
            budget_bytes,
            not_durable: true,
            ..SaveOptions::default()
        };
        regrow::save_with(folder.path().join(step.to_string()), &dict(arrays), &options).unwrap();
        assert_eq!(kept.0.load(Ordering::Relaxed), 0);
        kept.1.load(Ordering::Relaxed)
    };
    assert_eq!(save(0, 1, None), 1 << 20, "one after the other");
    let base = |step: u8| Some(folder.path().join(step.to_string()));
    for (step, value) in [(1, 2), (2, 2), (3, 2), (4, 3)] {
        let most = save(step, value, base(step - 1));
        assert!(most <= 3 << 20, "step {step}: {most}");
    }
}

/// Told to the hook, in their order, of a save or a conversion that goes on for long enough.
fn told_by(work: impl FnOnce(Monitor)) -> Vec<Progress> {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    work(Monitor::with_hook(move |progress| {
        tell.lock().unwrap().push(progress);
        Ok(())
    }));
    let told = told.lock().unwrap().clone();
    assert!(told.iter().all(|now| now.done_bytes <= now.total_bytes), "{told:?}");
    assert!(told.is_sorted_by_key(|now| now.done_bytes), "{told:?}");
    told
}

/// Slow enough for a hook to be called while it is compared.
#[derive(Debug)]
struct Slow(u8);

impl ArraySource for Slow {
    fn read_c_order(&self, _offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        std::thread::sleep(std::time::Duration::from_millis(20));
        out.fill(self.0);
        Ok(())
    }

    fn read_region(&self, _region: &Region, out: &mut [u8]) -> Result<()> {
        self.read_c_order(0, out)
    }
}

#[test]
fn comparing_counts_bytes() {
    const LEN_BYTES: u64 = 4 << 20;
    let folder = tempfile::tempdir().unwrap();
    let path = |step: u8| folder.path().join(step.to_string());
    let tree = |rests: u8, value: u8| {
        let slow = |value: u8| {
            Array::deferred(Dtype::UInt8, Shape::new([LEN_BYTES]).unwrap(), Arc::new(Slow(value))).unwrap()
        };
        dict([("rests", slow(rests)), ("trained", slow(value))].into_iter())
    };
    let save = |step: u8, rests: u8, value: u8, monitor: Monitor| {
        let base = step.checked_sub(1).map(path);
        let options =
            SaveOptions { base: base.map(Into::into), monitor, not_durable: true, ..SaveOptions::default() };
        regrow::save_with(path(step), &tree(rests, value), &options)
    };
    save(0, 1, 0, Monitor::new()).unwrap();
    // Of a file of two, one changed; then of two files, by digest and by bytes; then a digest in
    // vain: what rested is gone through twice.
    for (step, rests, value, again) in [(1, 1, 1, 0), (2, 1, 2, 0), (3, 1, 2, 0), (4, 9, 3, 1)] {
        let mut report = None;
        let told = told_by(|monitor| report = Some(save(step, rests, value, monitor).unwrap()));
        let total = (2 + 2 + again) * LEN_BYTES;
        assert_eq!(
            told.last().map(|last| (last.done_bytes, last.total_bytes)),
            Some((total, total)),
            "{step}"
        );
        let compares: Vec<&Progress> = told.iter().filter(|now| now.stage == Stage::Compare).collect();
        assert!(compares.len() > 2, "step {step}: {told:?}");
        assert!(compares.first().unwrap().done_bytes < compares.last().unwrap().done_bytes);
        assert!(compares.iter().all(|now| now.done_bytes <= (2 + again) * LEN_BYTES), "{compares:?}");
        let report = report.unwrap();
        let stage = report.stages.iter().find(|stage| stage.stage == Stage::Compare).unwrap();
        let seconds: f64 = report
            .stages
            .iter()
            .filter(|stage| ![Stage::Write, Stage::Read].contains(&stage.stage))
            .map(|stage| stage.seconds)
            .sum();
        assert!((seconds - report.seconds).abs() < 0.01 * report.seconds, "{report}");
        assert!(stage.bytes > 0 && stage.seconds > 0.05, "{report}");
        assert!(report.to_string().contains("\n  compare "), "{report}");
    }
    let monitor = Monitor::with_hook(|progress| match progress.stage {
        Stage::Compare => Err(Error::invalid("no more")),
        _ => Ok(()),
    });
    assert!(save(5, 9, 3, monitor).unwrap_err().to_string().contains("no more"));
    assert!(!path(5).exists());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 5, "nothing is left");
}

/// From another layout, and from one that is decoded in bands.
#[test]
fn a_conversion_links_unchanged_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: String| folder.path().join(name);
    let leaves = |step: u8| -> Leaves {
        [("frozen", bytes(0, 20 << 20)), ("small", bytes(1, 5000)), ("trained", bytes(step, 100_000))]
            .map(|(name, bytes)| (name.to_owned(), bytes))
            .into()
    };
    for (layout, compression) in [("orbax", Some(Compression::Zstd(1))), ("flax", None)] {
        let source = |step: u8| path(format!("{layout}_{step}"));
        let target = |step: u8| path(format!("from_{layout}_{step}"));
        for step in 0..4 {
            let to = SaveOptions {
                layout: Layout::from_name(layout, serde_json::Value::Null).unwrap(),
                compression,
                not_durable: true,
                ..SaveOptions::default()
            };
            regrow::save_with(source(step), &tree(&leaves(step)), &to).unwrap();
            let base = step.checked_sub(1).map(target);
            let mut options = ConvertOptions {
                save: SaveOptions { base: base.map(Into::into), not_durable: true, ..SaveOptions::default() },
                ..ConvertOptions::default()
            };
            let mut report = None;
            let told = told_by(|monitor| {
                options.save.monitor = monitor;
                report = Some(regrow::convert(source(step), target(step), &options).unwrap());
            });
            let data_bytes = (20 << 20) + 105_000;
            let total = if step == 0 { data_bytes } else { 2 * data_bytes };
            assert_eq!(told.last().unwrap().total_bytes, total, "{layout} {step}");
            let reused_bytes = report.unwrap().save.reused_bytes;
            assert_eq!(reused_bytes > 20 << 20, step > 1, "{layout} {step}: {reused_bytes}");
            assert_holds(&target(step), &leaves(step));
        }
        for step in 0..3 {
            fs::remove_dir_all(target(step)).unwrap();
        }
        assert_holds(&target(3), &leaves(3));
    }
}

#[test]
fn a_conversion_refuses_a_base_as_a_save_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    save(&path("source"), &[("x".to_owned(), bytes(0, 1000))].into(), None);
    let refused = |save: SaveOptions| {
        let options = ConvertOptions { save, ..ConvertOptions::default() };
        let plan = regrow::open(path("source")).unwrap().plan_convert(&options).unwrap();
        let check = plan.check(path("target"), &options).unwrap_err();
        let run = regrow::convert(path("source"), path("target"), &options).unwrap_err();
        assert_eq!((check.kind(), check.to_string()), (run.kind(), run.to_string()));
        assert!(run.to_string().contains("base") && !path("target").exists(), "{run}");
        run.kind()
    };
    let npy = Layout::from_name("npy", serde_json::Value::Null).unwrap();
    assert_eq!(
        refused(SaveOptions { layout: npy, ..with_base(&path("source")) }),
        ErrorKind::InvalidArgument
    );
    let compression = Some(Compression::Zstd(1));
    assert_eq!(
        refused(SaveOptions { compression, ..with_base(&path("source")) }),
        ErrorKind::InvalidArgument
    );
    assert_eq!(refused(with_base(&path("missing"))), ErrorKind::NotFound);
    assert_eq!(refused(with_base(folder.path())), ErrorKind::InvalidArgument);
    let save = with_base(&path("source"));
    let report = regrow::convert(
        path("source"),
        path("target"),
        &ConvertOptions { save, ..ConvertOptions::default() },
    );
    assert!(report.unwrap().save.reused_bytes > 1000, "the source itself can be the base");
}

#[test]
fn casts_are_compared_as_they_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let path = |step: usize| folder.path().join(step.to_string());
    let values: Vec<u8> = (0..20_000_u32).flat_map(|i| (i as f32 / 3.0).to_le_bytes()).collect();
    let array = Array::new(Dtype::Float32, Shape::new(vec![20_000]).unwrap(), values.into()).unwrap();
    let tree = dict([("x", array)].into_iter());
    let cast = vec![(PathPattern::new("**").unwrap(), Dtype::BFloat16)];
    let mut options = SaveOptions { cast, ..SaveOptions::default() };
    regrow::save_with(path(0), &tree, &options).unwrap();
    options.base = Some(path(0).into());
    let again = regrow::save_with(path(1), &tree, &options).unwrap();
    assert_eq!(inodes(&path(1)), inodes(&path(0)));
    assert!(again.reused_bytes > 2 * 20_000);
    options.cast.clear();
    let other = regrow::save_with(path(2), &tree, &options).unwrap();
    assert_eq!(other.reused_bytes, 0, "another dtype is another leaf");
}

#[test]
fn on_another_file_system_everything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    // In memory, where the system has that.
    let elsewhere = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let is_other =
        fs::metadata(folder.path()).unwrap().dev() != fs::metadata(elsewhere.path()).unwrap().dev();
    let (first, second, third) =
        (folder.path().join("first"), elsewhere.path().join("second"), elsewhere.path().join("third"));
    let leaves: Leaves = [("x".to_owned(), bytes(0, 1 << 20)), ("y".to_owned(), bytes(1, 10))].into();
    save(&first, &leaves, None);
    let report = save(&second, &leaves, Some(&first));
    assert_eq!(report.reused_bytes == 0, is_other);
    assert_eq!(inodes(&second) != inodes(&first), is_other);
    assert_holds(&second, &leaves);
    save(&third, &leaves, Some(&second));
    assert_eq!(inodes(&third), inodes(&second));
}

#[test]
fn impossible_bases_are_refused_before_a_write() {
    let folder = tempfile::tempdir().unwrap();
    let (base, target) = (folder.path().join("base"), folder.path().join("new/target"));
    let leaves: Leaves = [("x".to_owned(), bytes(0, 10_000))].into();
    let tree = tree(&leaves);
    save(&base, &leaves, None);
    let refused = |options: SaveOptions| {
        let error = regrow::save_with(&target, &tree, &options).unwrap_err();
        assert!(!folder.path().join("new").exists(), "nothing is left: {error}");
        assert!(error.to_string().contains("base"), "{error}");
        assert!(error.help_text().is_some() || error.kind() == ErrorKind::NotFound, "{error}");
        error.kind()
    };
    let compressed = SaveOptions { compression: Some(Compression::Zstd(1)), ..with_base(&base) };
    assert_eq!(refused(compressed), ErrorKind::InvalidArgument);
    for name in Layout::NAMES.into_iter().filter(|&name| name != "regrow") {
        let layout = Layout::from_name(name, serde_json::Value::Null).unwrap();
        assert_eq!(refused(SaveOptions { layout, ..with_base(&base) }), ErrorKind::InvalidArgument, "{name}");
    }
    assert_eq!(refused(with_base(&folder.path().join("missing"))), ErrorKind::NotFound);
    assert_eq!(refused(with_base(folder.path())), ErrorKind::InvalidArgument);
    assert_holds(&base, &leaves);
    let uncompressed = SaveOptions { compression: Some(Compression::None), ..with_base(&base) };
    assert!(regrow::save_with(&target, &tree, &uncompressed).unwrap().reused_bytes > 10_000);
}

/// A file that is linked by its digest alone is read first: what is rotten in it does not go on,
/// and is written from memory.
#[test]
fn damaged_files_of_a_base_are_rewritten() {
    let folder = tempfile::tempdir().unwrap();
    let at = |step: u32| folder.path().join(step.to_string());
    let leaves: Leaves = [("rests".to_owned(), bytes(1, 300_000)), ("other".to_owned(), bytes(2, 9))].into();
    let step = |number: u8| {
        let mut leaves = leaves.clone();
        leaves.insert("other".to_owned(), bytes(number, 9));
        leaves
    };
    save(&at(0), &step(0), None);
    save(&at(1), &step(1), Some(&at(0)));
    let report = save(&at(2), &step(2), Some(&at(1)));
    assert!(report.reused_bytes > 300_000 && report.notes.is_empty(), "{report}");

    let linked = data_files(&at(2)).into_iter().max_by_key(|file| fs::metadata(file).unwrap().len()).unwrap();
    let good = fs::read(&linked).unwrap();
    for offset in [9, good.len() / 2, good.len() - 1] {
        let mut rotten = good.clone();
        rotten[offset] ^= 1;
        fs::write(&linked, &rotten).unwrap();
        let report = save(&at(3), &step(3), Some(&at(2)));
        assert_eq!(report.reused_bytes, 0, "byte {offset}: {report}");
        // The head is compared with the one that would be written: there was nothing to link.
        let is_told = report.notes.len() == 1 && report.notes[0].contains(linked.to_str().unwrap());
        assert!(is_told && report.to_string().contains("the base is damaged"), "byte {offset}: {report}");
        assert_holds(&at(3), &step(3));
        assert!(regrow::verify(at(3)).unwrap().is_ok(), "byte {offset}");

        // Told not to look, it links what is there.
        let trusting = SaveOptions { trust_base: true, not_durable: true, ..with_base(&at(2)) };
        let report = regrow::save_with(at(4), &tree(&step(4)), &trusting).unwrap();
        let is_in_head = offset == 9;
        assert_eq!(report.reused_bytes == 0, is_in_head, "byte {offset}: {report}");
        assert_eq!(regrow::verify(at(4)).unwrap().is_ok(), is_in_head, "byte {offset}");
        fs::write(&linked, &good).unwrap();
        fs::remove_dir_all(at(3)).unwrap();
        fs::remove_dir_all(at(4)).unwrap();
    }
}
