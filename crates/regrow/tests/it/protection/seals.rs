//! Seals, in every layout and in every storage. A sealed checkpoint reads as before, the seal finds
//! all damage, and sealing changes no file of the checkpoint.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::common::child::child;
use crate::common::damage::{checkpoints, contents, damaged_in_turn, files, options, put, small_tree};
use crate::common::{bytes_of, layouts, tree};
use regrow::array::{Array, Dtype, Region, Shape};
use regrow::engine::Layout;
use regrow::location::{Location, ToLocation};
use regrow::tree::{Key, Leaf, TreeBuilder};
use regrow::{CopyOptions, ErrorKind, LoadOptions, OpenOptions, SaveOptions, SealOptions, VerifyOptions};
use regrow_store::StoreExt;
use regrow_testkit::{copy_folder, fixtures, memory_folder};

/// Flips in each checkpoint, unless the environment says otherwise: `docs/reliability.md` has the
/// figures of more.
const FLIPS: u64 = 40;
const FLIPS_VARIABLE: &str = "REGROW_TEST_FLIPS";

const SEAL: &str = "regrow.seal.json";

fn unsealed() -> OpenOptions {
    OpenOptions { ignore_seal: true, ..OpenOptions::default() }
}

fn seal(path: impl ToLocation) -> regrow::SealReport {
    regrow::seal(path, &SealOptions::default()).unwrap()
}

/// The checkpoints that a seal adds something to.
fn unprotected(root: &Path) -> Vec<(String, PathBuf)> {
    let mut all = checkpoints(root);
    all.retain(|(name, _)| !name.starts_with("regrow ") || name == "regrow items");
    all
}

fn is_seal(path: &Path) -> bool {
    path.file_name().unwrap().to_string_lossy().starts_with("regrow.seal.")
}

#[test]
fn a_sealed_checkpoint_reads_as_before_in_every_storage() {
    let folder = tempfile::tempdir().unwrap();
    let mut roots = vec![Location::local(folder.path()), "memory://seals/runs".to_location().unwrap()];
    roots.extend(crate::common::buckets::buckets("seals"));
    for root in roots {
        for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
            let path = root.join(format!("x{at}{suffix}"));
            let say = |what: &dyn std::fmt::Display| format!("{} at {path}: {what}", layout.name());
            let tree = tree(at as u8);
            regrow::save_with(&path, &tree, &options(&layout)).unwrap();
            let report = regrow::seal(&path, &SealOptions::default());
            let report = report.unwrap_or_else(|error| panic!("{}", say(&error)));
            if matches!(layout, Layout::Regrow(_)) {
                assert!(!report.has_changed, "{}", say(&report));
                continue;
            }
            assert!(report.has_changed && report.file_count > 0 && report.bytes > 0, "{}", say(&report));
            for mapped in [false, true] {
                let open = OpenOptions { mapped, ..OpenOptions::default() };
                let loaded =
                    regrow::engine::load_with(&path, &LoadOptions { open, ..LoadOptions::default() });
                let loaded = loaded.unwrap_or_else(|error| panic!("{}", say(&error)));
                assert!(bytes_of(&loaded) == bytes_of(&tree), "{}", say(&"other bytes"));
            }
            let verified = regrow::verify(&path).unwrap_or_else(|error| panic!("{}", say(&error)));
            assert!(verified.is_ok(), "{}", say(&format!("{:?}", verified.findings)));
            assert!(verified.has_data_checksums, "{}", say(&"not under checksums"));
            let checkpoint = regrow::open(&path).unwrap();
            assert_eq!(checkpoint.description().layout, layout.name());
            let leaf = checkpoint.find("kernel").unwrap();
            let region = Region::new(vec![100, 7], vec![3, 1000]).unwrap();
            let slice = checkpoint.region(leaf, &region).unwrap().to_c_order().unwrap();
            let whole = &bytes_of(&tree)[2].1;
            let row = |at: usize| &whole[(at * 1500 + 7) * 4..(at * 1500 + 1007) * 4];
            assert!(slice[..] == [row(100), row(101), row(102)].concat(), "{}", say(&"another slice"));
            // Saved over without a seal, no wrong seal is left. A folder with only tensors is not
            // overwritten, of any writer, and in a bucket data and manifest are not.
            let over = SaveOptions { overwrite: true, ..options(&layout) };
            let is_overwritten = match layout {
                Layout::Safetensors(_) => !suffix.is_empty(),
                Layout::PytreeData(_) => root.local_path().is_ok(),
                _ => true,
            };
            if is_overwritten {
                regrow::save_with(&path, &tree, &over).unwrap_or_else(|error| panic!("{}", say(&error)));
                assert!(regrow::verify(&path).unwrap().is_ok(), "{}", say(&"damaged"));
            }
            let path = if is_overwritten { path.clone() } else { root.join(format!("again{at}")) };
            let sealed = SaveOptions { seal: true, ..over };
            regrow::save_with(&path, &tree, &sealed).unwrap_or_else(|error| panic!("{}", say(&error)));
            assert!(regrow::verify(&path).unwrap().has_data_checksums, "{}", say(&"not sealed by the save"));
            let remove = SealOptions { remove: true, ..SealOptions::default() };
            assert!(regrow::seal(&path, &remove).unwrap().has_changed, "{}", say(&"no seal to take away"));
            assert!(!regrow::seal(&path, &remove).unwrap().has_changed, "{}", say(&"still a seal"));
            assert!(bytes_of(&regrow::engine::load(&path).unwrap()) == bytes_of(&tree));
        }
    }
}

#[test]
fn a_seal_changes_no_file_of_the_checkpoint() {
    let folder = memory_folder().unwrap();
    for (name, path) in unprotected(folder.path()) {
        let home = path.parent().unwrap();
        let (before, good) = (files(home), contents(&regrow::engine::load(&path).unwrap()));
        let report = seal(&path);
        let mut after = files(home);
        after.retain(|path, _| !is_seal(path));
        assert!(before == after, "{name}: the files are others");
        assert_eq!(report.file_count, before.len(), "{name}");
        assert!(contents(&regrow::engine::load(&path).unwrap()) == good, "{name}: other bits");
        assert_eq!(regrow::verify(&path).unwrap().findings.len(), 0, "{name}");
    }
}

/// A number that follows from another, with no pattern.
fn scrambled(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// What `load` and `verify` say of damage: whether one of them says so, with a file. What is loaded
/// without a word is what it was.
fn is_seen(path: &Path, good: &str, what: &str) -> bool {
    let speaks = |error: &regrow::Error| {
        assert!(error.place().file.is_some(), "{what}: an error without a file: {error}");
    };
    let loaded = regrow::engine::load(path);
    match &loaded {
        Ok(tree) => assert!(contents(tree) == good, "{what}: loaded as something else"),
        Err(error) => speaks(error),
    }
    match regrow::verify(path) {
        Ok(report) => {
            report.findings.iter().for_each(|finding| speaks(&finding.error));
            loaded.is_err() || !report.findings.is_empty()
        }
        Err(error) => {
            speaks(&error);
            true
        }
    }
}

/// What becomes of damage to a checkpoint that has no seal.
#[derive(Default)]
struct Unsealed {
    seen: u64,
    wrong: u64,
}

impl Unsealed {
    fn count(&mut self, path: &Path, good: &str) {
        let load = LoadOptions { open: unsealed(), ..LoadOptions::default() };
        let loaded = regrow::engine::load_with(path, &load);
        let verify = VerifyOptions { open: unsealed(), ..VerifyOptions::default() };
        let verified = regrow::verify_with(path, &verify);
        if loaded.is_err() || !verified.is_ok_and(|report| report.is_ok()) {
            self.seen += 1;
        } else if loaded.is_ok_and(|tree| contents(&tree) != good) {
            self.wrong += 1;
        }
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let folder = memory_folder().unwrap();
    let flips = std::env::var(FLIPS_VARIABLE).map_or(FLIPS, |text| text.parse().unwrap());
    println!(
        "| checkpoint | flips | seen | of the checkpoint's own files | seen without a seal | wrong numbers without |"
    );
    println!("|---|---|---|---|---|---|");
    for (name, path) in unprotected(folder.path()) {
        let good = contents(&regrow::engine::load(&path).unwrap());
        seal(&path);
        let all: Vec<(PathBuf, Vec<u8>)> =
            files(path.parent().unwrap()).into_iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
        let (mut seen, mut own, mut without) = (0, 0, Unsealed::default());
        for flip in 0..flips {
            // Every file as often, so that short ones are met, too.
            let (file, bytes) = &all[(flip % all.len() as u64) as usize];
            let bit = scrambled(flip) % (bytes.len() as u64 * 8);
            let mut damaged = bytes.clone();
            damaged[(bit / 8) as usize] ^= 1 << (bit % 8);
            put(file, &damaged);
            let what = format!("{name}: bit {bit} of {}", file.display());
            assert!(is_seen(&path, &good, &what), "{what}: unseen");
            seen += 1;
            if !is_seal(file) {
                own += 1;
                without.count(&path, &good);
            }
            put(file, bytes);
        }
        assert!(!is_seen(&path, &good, &name), "{name}: all is well again");
        println!("| {name} | {flips} | {seen} | {own} | {} | {} |", without.seen, without.wrong);
    }
}

#[test]
fn cut_lost_swapped_and_added_files_are_found() {
    let folder = memory_folder().unwrap();
    for (name, path) in unprotected(folder.path()) {
        let good = contents(&regrow::engine::load(&path).unwrap());
        seal(&path);
        let home = path.parent().unwrap();
        let all: Vec<(PathBuf, Vec<u8>)> =
            files(home).into_iter().filter(|(file, _)| !is_seal(file)).collect();
        damaged_in_turn(&all, |what| {
            let what = format!("{name}: {what}");
            assert!(is_seen(&path, &good, &what), "{what}");
        });
        if path.is_dir() {
            let added = path.join("added.npy");
            fs::write(&added, b"something").unwrap();
            assert!(is_seen(&path, &good, &format!("{name}: a file added")), "{name}: a file added");
            fs::remove_file(added).unwrap();
        }
        assert!(!is_seen(&path, &good, &name), "{name}: all is well again");
    }
}

/// Two databases, of the same length and each with a sound checksum of its own, in each other's
/// place: what a CRC-32C of the whole file would not tell apart.
#[test]
fn the_files_of_another_checkpoint_are_found() {
    let folder = memory_folder().unwrap();
    let layout = Layout::from_name("orbax", serde_json::Value::Null).unwrap();
    for name in ["a", "b"] {
        regrow::save_with(folder.path().join(name), &small_tree(), &options(&layout)).unwrap();
        seal(folder.path().join(name));
    }
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    let good = contents(&regrow::engine::load(&a).unwrap());
    let mut swapped = 0;
    for (file, bytes) in files(&a) {
        let other = b.join(file.strip_prefix(&a).unwrap());
        let Ok(others) = fs::read(other) else { continue };
        if others == bytes {
            continue;
        }
        put(&file, &others);
        let what = format!("{} of another checkpoint", file.display());
        assert!(is_seen(&a, &good, &what), "{what}");
        put(&file, &bytes);
        swapped += 1;
    }
    assert!(swapped >= 2, "the root of the database, and the seal");
}

#[test]
fn a_changed_checkpoint_can_be_sealed_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npy");
    let layout = Layout::from_name("npy", serde_json::Value::Null).unwrap();
    let one = |value: u8| {
        Leaf::array(Array::new(Dtype::UInt8, Shape::new([3]).unwrap(), vec![value; 3].into()).unwrap())
    };
    let tree = |value: u8| {
        let mut build = TreeBuilder::new();
        build.leaf(Key::Index(0), one(value)).unwrap();
        build.finish().unwrap()
    };
    let sealed = SaveOptions { seal: true, ..options(&layout) };
    regrow::save_with(&path, &tree(1), &sealed).unwrap();
    // Another program writes an array of the same length.
    let mut bytes = fs::read(&path).unwrap();
    bytes.iter_mut().rev().take(3).for_each(|byte| *byte = 2);
    put(&path, &bytes);
    let error = regrow::engine::load(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(error.place().file.as_deref(), Some(path.as_path()));
    let help = error.help_text().unwrap();
    assert!(
        help.contains("regrow seal") && help.contains("--remove") && help.contains("ignore_seal"),
        "{help}"
    );
    let load = LoadOptions { open: unsealed(), ..LoadOptions::default() };
    let read = regrow::engine::load_with(&path, &load).unwrap();
    assert!(contents(&read) == contents(&tree(2)));
    seal(&path);
    assert!(contents(&regrow::engine::load(&path).unwrap()) == contents(&tree(2)));
    // Saved over by regrow, and removed by it.
    regrow::save_with(&path, &tree(3), &SaveOptions { overwrite: true, ..options(&layout) }).unwrap();
    assert!(contents(&regrow::engine::load(&path).unwrap()) == contents(&tree(3)));
    seal(&path);
    assert_eq!(regrow::remove(&path, &regrow::RemoveOptions::default()).unwrap().file_count, 2);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the seal goes with it");
}

#[test]
fn side_files_of_files_removed_by_hand_go_with_the_next_save() {
    let folder = tempfile::tempdir().unwrap();
    let mut roots = vec![Location::local(folder.path())];
    roots.extend(crate::common::buckets::buckets("stale"));
    for root in roots {
        let mut checked = 0;
        for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
            let say = format!("{} {suffix} in {root}", layout.name());
            let source = root.join(format!("source{at}{suffix}"));
            regrow::save_with(&source, &tree(2), &options(&layout)).unwrap();
            if source.is_folder() {
                continue;
            }
            for is_copy in [false, true] {
                let home = root.join(format!("home{at}{is_copy}"));
                let path = home.join(format!("x{suffix}"));
                let sealed =
                    SaveOptions { seal: true, parity: Some("1/1".parse().unwrap()), ..options(&layout) };
                regrow::save_with(&path, &tree(1), &sealed).unwrap();
                let store = home.store();
                let names = store.list(b"").unwrap();
                let (beside, files): (Vec<_>, Vec<_>) =
                    names.into_iter().partition(|name| name.starts_with(b"regrow."));
                assert_eq!(beside.len(), 3, "{say}");
                files.iter().for_each(|file| store.delete(file).unwrap());
                match is_copy {
                    true => regrow::copy(&source, &path, &CopyOptions::default()).map(drop).unwrap(),
                    false => regrow::save_with(&path, &tree(2), &options(&layout)).map(drop).unwrap(),
                }
                let loaded = regrow::engine::load(&path).unwrap_or_else(|error| panic!("{say}: {error}"));
                assert!(bytes_of(&loaded) == bytes_of(&tree(2)), "{say}");
                let left = store.list(b"").unwrap();
                assert!(!left.iter().any(|name| beside.contains(name)), "{say}: {left:?}");
                checked += 1;
            }
        }
        assert!(checked >= 8, "{checked} in {root}");
    }
}

#[test]
fn copies_take_the_seal_along_under_their_own_names() {
    let folder = tempfile::tempdir().unwrap();
    for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
        let home = folder.path().join(format!("{at}"));
        let (path, copied) = (home.join(format!("x{suffix}")), home.join(format!("another name{suffix}")));
        fs::create_dir_all(&home).unwrap();
        let say = format!("{} {suffix}", layout.name());
        regrow::save_with(&path, &small_tree(), &SaveOptions { seal: true, ..options(&layout) }).unwrap();
        let good = contents(&regrow::engine::load(&path).unwrap());
        let before = files(&home).len();
        let copy = CopyOptions { not_durable: true, ..CopyOptions::default() };
        regrow::copy(&path, &copied, &copy).unwrap();
        assert_eq!(files(&home).len(), 2 * before, "{say}: as many files");
        assert!(contents(&regrow::engine::load(&copied).unwrap()) == good, "{say}");
        assert!(regrow::verify(&copied).unwrap().has_data_checksums, "{say}: under the seal");
        // A folder with only tensors is not replaced, of any writer.
        if !matches!(layout, Layout::Safetensors(_)) || !suffix.is_empty() {
            regrow::copy(&path, &copied, &CopyOptions { overwrite: true, ..copy.clone() }).unwrap();
            assert!(contents(&regrow::engine::load(&copied).unwrap()) == good, "{say}: again");
        }
        // The seal is that of the copy: damage to it is seen.
        let is_seal_of_copy = |file: &Path| is_seal(file) && file.to_string_lossy().contains("another name");
        if !matches!(layout, Layout::Regrow(_)) {
            assert!(files(&home).keys().any(|file| is_seal_of_copy(file)), "{say}");
        }
        let name = copied.to_string_lossy().into_owned();
        let of_copy = |file: &Path| file.to_string_lossy().starts_with(&name) && !is_seal(file);
        let (file, mut bytes) =
            files(&home).into_iter().find(|(file, bytes)| of_copy(file) && !bytes.is_empty()).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        put(&file, &bytes);
        assert!(is_seen(&copied, &good, &say), "{say}");
        // A copy of what was damaged is as damaged.
        let further = home.join(format!("further{suffix}"));
        if regrow::copy(&copied, &further, &copy).is_ok() {
            assert!(is_seen(&further, &good, &say), "{say}: a copy of a damaged file");
        }
    }
}

#[test]
fn a_step_has_a_seal_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::from_name("orbax", serde_json::Value::Null).unwrap();
    for step in ["1", "2"] {
        regrow::save_with(folder.path().join(step), &small_tree(), &options(&layout)).unwrap();
    }
    let report =
        regrow::seal(folder.path(), &SealOptions { step: Some(1), ..SealOptions::default() }).unwrap();
    assert_eq!(report.path, folder.path().join("1").join(SEAL));
    let step = |step| OpenOptions { step: Some(step), ..OpenOptions::default() };
    let is_sealed = |at: u64| {
        let checkpoint = regrow::open_with(folder.path(), &step(at)).unwrap();
        checkpoint.reader().standing().has_data_checksums
    };
    assert!(is_sealed(1), "opened through the folder of steps");
    assert!(!is_sealed(2));
    let file = fs::read_dir(folder.path().join("1/d")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    put(&file, &bytes);
    let open = step(1);
    let load = LoadOptions { open, ..LoadOptions::default() };
    assert_eq!(regrow::engine::load_with(folder.path(), &load).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn damaged_checkpoints_and_failed_writes_give_no_seal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let layout = Layout::from_name("orbax", serde_json::Value::Null).unwrap();
    regrow::save_with(&path, &small_tree(), &options(&layout)).unwrap();
    let manifest = path.join("manifest.ocdbt");
    let good = fs::read(&manifest).unwrap();
    let mut bytes = good.clone();
    *bytes.last_mut().unwrap() ^= 1;
    put(&manifest, &bytes);
    assert!(regrow::seal(&path, &SealOptions::default()).is_err());
    assert!(!path.join(SEAL).exists());
    put(&manifest, &good);
    // Where nothing can be written: an error that says so, and nothing left behind.
    let mode = |mode: u32| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o555);
    // The superuser may write everywhere.
    if fs::write(path.join("probe"), b"").is_err() {
        let error = regrow::seal(&path, &SealOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    }
    mode(0o755);
    let _ = fs::remove_file(path.join("probe"));
    // Two at once: each whole, the last one stays.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| seal(&path));
        }
    });
    assert!(regrow::verify(&path).unwrap().is_ok());
    assert!(!files(&path).keys().any(|file| file.to_string_lossy().ends_with(".__lock")));
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
/// The child: does nothing unless it was started by the test below.
#[test]
fn child_seals() {
    let Some(path) = std::env::var_os(PATH) else { return };
    regrow_testkit::trace::mark();
    seal(Path::new(&path));
    regrow_testkit::trace::mark();
}

const PATH: &str = "REGROW_TEST_SEALS";

/// Killed before any system call that changes something, a seal is there or is not: the checkpoint
/// reads as before, and the next seal is put on it.
#[test]
fn a_killed_seal_is_all_or_nothing() {
    use regrow_testkit::trace::{Fault, run, writes};
    let folder = memory_folder().unwrap();
    let layout = Layout::from_name("orbax", serde_json::Value::Null).unwrap();
    let path = folder.path().join("x");
    regrow::save_with(&path, &small_tree(), &options(&layout)).unwrap();
    let good = contents(&regrow::engine::load(&path).unwrap());
    for is_sealed in [false, true] {
        let mut kills = 0;
        loop {
            let _ = fs::remove_file(path.join(SEAL));
            if is_sealed {
                seal(&path);
            }
            let mut child = child("protection::seals::child_seals");
            child.env(PATH, &path);
            let ended = run(&mut child, writes, kills, Fault::Kill).unwrap();
            assert!(contents(&regrow::engine::load(&path).unwrap()) == good, "killed at call {kills}");
            let report = regrow::verify(&path).unwrap();
            assert!(report.is_ok(), "killed at call {kills}: {:?}", report.findings);
            assert!(!is_sealed || report.has_data_checksums, "the seal before is as it was");
            if ended.hit.is_none() {
                break;
            }
            kills += 1;
        }
        println!("killed at each of {kills} calls");
        assert!(kills >= 4, "made, written, synced, named: {kills}");
    }
}

/// A TRAK store has no room for checksums of ours in its own files; a seal beside them sees every
/// byte of them.
#[test]
fn a_store_of_trak_is_saved_with_a_seal_that_sees_every_file() {
    let folder = memory_folder().unwrap();
    let tree = regrow::engine::load(fixtures().join("trak/half_two_models")).unwrap();
    let path = folder.path().join("store");
    let layout = Layout::from_name("trak", serde_json::Value::Null).unwrap();
    regrow::save_with(&path, &tree, &SaveOptions { seal: true, ..options(&layout) }).unwrap();
    assert!(regrow::verify(&path).unwrap().has_data_checksums);
    let all = files(&path);
    for (file, good) in &all {
        for at in [0, good.len() / 2, good.len() - 1] {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            put(file, &bytes);
            let found = regrow::verify(&path);
            assert!(found.is_err() || !found.unwrap().is_ok(), "byte {at} of {}", file.display());
        }
        put(file, good);
    }
    assert!(all.len() > 10 && regrow::verify(&path).unwrap().is_ok());
}

/// A file of a sealed folder that is opened by itself is under the seal of the folder; one that
/// came later is not.
#[test]
fn the_seal_of_a_folder_is_over_each_file_of_it() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("x");
    copy_folder(&fixtures().join("safetensors/sharded"), &path).unwrap();
    seal(&path);
    let part = files(&path).into_keys().find(|file| file.to_string_lossy().contains("-of-")).unwrap();
    let good = fs::read(&part).unwrap();
    regrow::engine::load_with(&part, &LoadOptions::default()).unwrap();
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    put(&part, &bad);
    let error = regrow::engine::load_with(&part, &LoadOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(!regrow::verify(&part).unwrap().is_ok());
    put(&part, &good);
    let later = path.join("later.safetensors");
    fs::write(&later, &bad).unwrap();
    regrow::engine::load_with(&later, &LoadOptions::default()).unwrap();
}

/// Data and manifest have one seal, and all of their names lead to it.
#[test]
fn the_seal_of_a_pair_is_found_by_each_of_its_names() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let layout = Layout::from_name("pytree_data", serde_json::Value::Null).unwrap();
    regrow::save_with(at("x"), &small_tree(), &options(&layout)).unwrap();
    let data =
        files(root.path()).into_keys().find(|file| !file.to_string_lossy().contains("manifest")).unwrap();
    let names: Vec<PathBuf> = [at("x")].into_iter().chain(files(root.path()).into_keys()).collect();
    assert_eq!(names.len(), 3);
    seal(at("x"));
    assert_eq!(files(root.path()).len(), 3, "one seal");
    let mut bytes = fs::read(&data).unwrap();
    // In the numbers of the last array, which nothing else is over.
    let at = bytes.len() - 1;
    bytes[at] ^= 1;
    put(&data, &bytes);
    for name in &names {
        assert_eq!(
            regrow::engine::load_with(name, &LoadOptions::default()).unwrap_err().kind(),
            ErrorKind::Corrupt
        );
        let sealed = regrow::seal(name, &SealOptions { remove: true, ..SealOptions::default() }).unwrap();
        assert!(sealed.has_changed, "{}", name.display());
        assert_eq!(files(root.path()).len(), 2);
        put(&data, &{
            let mut good = bytes.clone();
            good[at] ^= 1;
            good
        });
        seal(name);
        put(&data, &bytes);
    }
}
