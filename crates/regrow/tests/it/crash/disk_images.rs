//! Power cuts of real file systems. A child saves on a file system in an image. At random moments
//! the test clones the image. Later the test mounts each clone, as after a power cut, and the
//! kernel replays the journal. The path holds the old or the new checkpoint, complete. The next
//! save works, and removes temporary files.
//!
//! ```text
//! outer.img   XFS, where a file is cloned at one moment (reflink), also during writes to it
//! disk.img    ext4, XFS or btrfs, mounted by a loop device, on which the child saves 0.img ..
//! its clones
//! ```
//! A clone has all blocks that the file system has sent to the disk, and no data that is only in
//! memory. So a clone equals a disk after a power cut, if the cache of the disk loses nothing. The
//! model of `power_cuts` also covers losses of such caches.
//!
//! Needs the right to mount, and mkfs of XFS and of the tested file system. `make test-long` prints
//! which tests it leaves out. The test starts itself as the child.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::child::child;
use crate::common::cuts::{bytes_of, dict};
use crate::common::layouts;
use regrow::array::{Array, Dtype, Shape};
use regrow::location::Location;
use regrow::tree::{Leaf, Tree};
use regrow::{SaveOptions, load, save_with, verify};

const ROOT: &str = "REGROW_TEST_IMAGES_ROOT";
const NOT_DURABLE: &str = "REGROW_TEST_IMAGES_NOT_DURABLE";

const OUTER_LEN_BYTES: u64 = 16 << 30;
/// No smaller XFS is made.
const DISK_LEN_BYTES: u64 = 320 << 20;

/// In the names of what a save has not brought to its end.
const TEMPORARY: &str = "-tmp-";

/// Arrays that all have the number of their save in them, one of them some blocks of the disk long.
fn tree(number: u32) -> Tree<Leaf> {
    let array = |len: u32| {
        let bytes: Vec<u8> = (0..len).flat_map(|at| (number ^ at << 16).to_le_bytes()).collect();
        Array::new(Dtype::UInt32, Shape::new([u64::from(len)]).unwrap(), bytes.into()).unwrap()
    };
    dict([("b".to_owned(), array(3)), ("number".to_owned(), array(1)), ("w".to_owned(), array(20_000))])
}

fn path(root: &Path, layout: usize) -> Location {
    Location::local(root.join("run").join(format!("{layout}{}", layouts()[layout].1)))
}

fn save(root: &Path, layout: usize, number: u32, not_durable: bool) -> regrow::Result<()> {
    let options = SaveOptions {
        layout: layouts()[layout].0.clone(),
        overwrite: true,
        not_durable,
        ..SaveOptions::default()
    };
    save_with(path(root, layout), &tree(number), &options).map(drop)
}

/// The child: does nothing unless it was started by one of the tests below. Saves in each layout
/// again and again, and says what it begins and what has returned.
#[test]
fn child_saves_until_killed() {
    let Some(root) = env::var_os(ROOT) else { return };
    let not_durable = env::var_os(NOT_DURABLE).is_some();
    for number in 1.. {
        for layout in 0..layouts().len() {
            println!("\nbegun {layout} {number}");
            save(Path::new(&root), layout, number, not_durable).unwrap();
            println!("\ndone {layout} {number}");
        }
    }
}

/// The save of each layout that has begun last, and the one that has returned last.
type Said = BTreeMap<usize, (u32, u32)>;

/// A child that saves, until this is dropped.
struct Saver {
    child: Child,
    said: Arc<Mutex<Said>>,
}

impl Saver {
    fn start(root: &Path, not_durable: bool) -> Self {
        let mut command = child("crash::disk_images::child_saves_until_killed");
        command.env(ROOT, root).stdout(Stdio::piped());
        if not_durable {
            command.env(NOT_DURABLE, "1");
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = Arc::new(Mutex::new(Said::new()));
        let own = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let words: Vec<&str> = line.split(' ').collect();
                let [what @ ("begun" | "done"), layout, number] = words.as_slice() else { continue };
                let (layout, number): (usize, u32) = (layout.parse().unwrap(), number.parse().unwrap());
                let mut said = own.lock().unwrap();
                let (begun, done) = said.entry(layout).or_default();
                *if *what == "begun" { begun } else { done } = number;
            }
        });
        Self { child, said }
    }

    fn said(&self) -> Said {
        self.said.lock().unwrap().clone()
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// An image that is mounted, until this is dropped.
struct Mount(PathBuf);

impl Mount {
    fn new(image: &Path, at: &Path) -> Self {
        fs::create_dir_all(at).unwrap();
        ran(Command::new("mount").args(["-o", "loop"]).args([image, at]));
        Self(at.to_owned())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Who fails has said why; who does not finds out here that something still has it open.
        let ended = Command::new("umount").arg(&self.0).status();
        assert!(std::thread::panicking() || ended.unwrap().success(), "{} stays mounted", self.0.display());
    }
}

fn ran(command: &mut Command) {
    let ended = command.output().unwrap();
    assert!(ended.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ended.stderr));
}

fn image(path: &Path, len_bytes: u64, kind: &str) {
    File::create(path).unwrap().set_len(len_bytes).unwrap();
    ran(Command::new(format!("mkfs.{kind}")).arg("-q").arg(path));
}

/// The disk at one moment: what had returned before it, and what had begun by then.
struct Cut {
    image: PathBuf,
    done: Said,
    begun: Said,
}

/// Saves on a disk whose power is cut so often. Of how many cuts something was lost, what, and in
/// how many a save was under way.
fn cuts(kind: &str, count: usize, not_durable: bool) -> (Vec<String>, usize) {
    // Not in memory: a loop device may ask its file for more than tmpfs does.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let outer_image = folder.path().join("outer.img");
    image(&outer_image, OUTER_LEN_BYTES, "xfs");
    let outer = Mount::new(&outer_image, &folder.path().join("outer"));
    let disk = outer.0.join("disk.img");
    image(&disk, DISK_LEN_BYTES, kind);
    let mut random = regrow_seed();
    println!("{kind}: REGROW_SEED={random}");
    let mut cuts = Vec::new();
    {
        let mounted = Mount::new(&disk, &folder.path().join("disk"));
        let saver = Saver::start(&mounted.0, not_durable);
        while saver.said().values().filter(|(_, done)| *done > 0).count() < layouts().len() {
            std::thread::sleep(Duration::from_millis(5));
        }
        for number in 0..count {
            // Of Marsaglia: enough to choose by.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            std::thread::sleep(Duration::from_micros(random % 60_000));
            let image = outer.0.join(format!("{number}.img"));
            let done = saver.said();
            ran(Command::new("cp").arg("--reflink=always").args([&disk, &image]));
            cuts.push(Cut { image, done, begun: saver.said() });
        }
    }
    let mut lost = Vec::new();
    let mut under_way = 0;
    for (number, cut) in cuts.iter().enumerate() {
        let mounted = Mount::new(&cut.image, &folder.path().join("cut"));
        under_way += usize::from(names(&mounted.0).iter().any(|name| name.contains(TEMPORARY)));
        for layout in 0..layouts().len() {
            if let Err(wrong) = check(&mounted.0, layout, cut.done[&layout].1, cut.begun[&layout].0) {
                lost.push(format!("{kind}, cut {number}, {}: {wrong}", layouts()[layout].0.name()));
            }
        }
        for name in names(&mounted.0).into_iter().filter(|name| name.contains(TEMPORARY)) {
            lost.push(format!("{kind}, cut {number}: the next saves have left {name}"));
        }
        drop(mounted);
        fs::remove_file(&cut.image).unwrap();
    }
    println!("{kind}: {count} cuts, {under_way} of them during a save, {} lost", lost.len());
    (lost, under_way)
}

/// What is where the child saves; nothing, if that is lost.
fn names(root: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(root.join("run")) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// What holds of a layout's path after a cut.
fn check(root: &Path, layout: usize, done: u32, begun: u32) -> Result<(), String> {
    let path = path(root, layout);
    let number = |loaded: &Tree<Leaf>| {
        let leaf = loaded.iter().find(|(at, _)| at.to_string().contains("number")).unwrap().1;
        u32::from_le_bytes(leaf.as_array().unwrap().to_c_order().unwrap()[..].try_into().unwrap())
    };
    let loaded: Tree<Leaf> = load(&path).map_err(|error| format!("load: {error}"))?;
    let found = number(&loaded);
    if !(done..=begun).contains(&found) {
        return Err(format!("save {found} is there; {done} had returned, {begun} had begun"));
    }
    if bytes_of(&loaded) != bytes_of(&tree(found)) {
        return Err(format!("parts of other saves than {found}"));
    }
    let report = verify(&path).map_err(|error| format!("verify: {error}"))?;
    if !report.is_ok() {
        return Err(format!("it does not verify: {:?}", report.findings));
    }
    save(root, layout, begun + 1, false).map_err(|error| format!("the next save: {error}"))?;
    let next: Tree<Leaf> = load(&path).map_err(|error| format!("load of the next save: {error}"))?;
    if number(&next) == begun + 1 { Ok(()) } else { Err("the next save is not there".to_owned()) }
}

/// `REGROW_SEED`, or the time.
fn regrow_seed() -> u64 {
    let given = env::var("REGROW_SEED").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64 | 1
    })
}

/// Cuts of each file system.
const COUNT: usize = 60;

fn lose_nothing(kind: &str) {
    let (lost, under_way) = cuts(kind, COUNT, false);
    assert!(lost.is_empty(), "{} of {COUNT} cuts:\n{}", lost.len(), lost.join("\n"));
    assert!(under_way > COUNT / 10, "only {under_way} cuts came during a save");
}

#[test]
#[ignore = "mounts images of disks, which needs root: run make test-long"]
fn ext4_loses_nothing() {
    lose_nothing("ext4");
}

#[test]
#[ignore = "mounts images of disks, which needs root: run make test-long"]
fn xfs_loses_nothing() {
    lose_nothing("xfs");
}

#[test]
#[ignore = "mounts images of disks, which needs root: run make test-long"]
fn btrfs_loses_nothing() {
    lose_nothing("btrfs");
}

/// That these tests can see a loss: without syncs there are some.
#[test]
#[ignore = "mounts images of disks, which needs root: run make test-long"]
fn without_syncs_ext4_loses_checkpoints() {
    let (lost, _) = cuts("ext4", 20, true);
    assert!(!lost.is_empty(), "nothing was lost without syncs");
}
