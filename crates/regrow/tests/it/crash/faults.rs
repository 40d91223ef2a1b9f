//! Saves that are killed before one of their system calls, or whose system call fails once. The
//! path holds exactly the previous or the new checkpoint, and the error says which. The next save
//! removes all temporary files.
//!
//! The test starts itself as a child that saves once, and traces the child.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::common::child::child;
use regrow::array::{Array, Dtype, Shape};
use regrow::engine::{ItemsOptions, ItemsSave, Layout, WHOLE, load, verify};
use regrow::location::Location;
use regrow::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};
use regrow::{ErrorKind, SaveOptions, save_with};
use regrow_storage::NewFile;
use regrow_storage::local::Staged;
use regrow_testkit::trace::{Call, Fault, Run, mark, run, touches, writes};

const TARGET: &str = "REGROW_TEST_FAULT_TARGET";
const LAYOUT: &str = "REGROW_TEST_FAULT_LAYOUT";

const OLD: u8 = 1;
const NEW: u8 = 2;

/// The three kinds of target: a folder, a file, files beside each other. And a folder of items.
const LAYOUTS: [&str; 4] = ["regrow", "safetensors", "pytree_data", ITEMS];

/// No layout: several items in one checkpoint.
const ITEMS: &str = "items";

/// No layout: what a handler has written is the checkpoint.
const FILES: &str = "files";

/// No layout: a file takes the place of a checkpoint folder.
const FILE_OVER_FOLDER: &str = "file over folder";

/// Whether a folder is replaced by two renames: between them its path is empty, until the next save
/// puts the old one back.
const TWO_STEPS: bool = cfg!(feature = "portable");

/// EIO, ENOSPC, EACCES, EDQUOT, EINTR.
const ERRORS: [i32; 5] = [5, 28, 13, 122, 4];

/// What `ptrace` says where it is forbidden.
const EPERM: i32 = 1;

fn options(layout: &str, overwrite: bool) -> SaveOptions {
    let layout = Layout::from_name(layout, serde_json::json!({})).unwrap();
    SaveOptions { layout, overwrite, ..SaveOptions::default() }
}

/// Saves a generation.
fn save(target: &Path, layout: &str, generation: u8, overwrite: bool) -> regrow::Result<()> {
    if layout == FILE_OVER_FOLDER && generation == OLD {
        return save_with(target, &tree(generation), &options("regrow", overwrite)).map(drop);
    }
    if layout == FILE_OVER_FOLDER {
        let made = Location::parse(Path::new("memory://faults/ckpt.msgpack"))?;
        save_with(made.clone(), &tree(generation), &options("flax", true))?;
        let bytes = made.read_beginning(u64::MAX)?.unwrap();
        let staged = Staged::of_file_over_any(target, overwrite)?;
        let mut writer = staged.single_writer(bytes.len() as u64, 0)?;
        writer.write(&bytes)?;
        writer.finish()?;
        return staged.commit();
    }
    if layout != ITEMS && layout != FILES {
        return save_with(target, &tree(generation), &options(layout, overwrite)).map(drop);
    }
    let items = ItemsSave::begin(target, ItemsOptions { overwrite, ..ItemsOptions::default() })?;
    if layout == FILES {
        let cannot_write = |error| regrow::Error::io("cannot write", target, error);
        let folder = items.folder(WHOLE)?;
        fs::write(folder.join("own"), [generation]).map_err(cannot_write)?;
        fs::create_dir(folder.join("deep")).map_err(cannot_write)?;
        fs::write(folder.join("deep/own"), [generation]).map_err(cannot_write)?;
        return items.commit().map(drop);
    }
    // Of one file: what the files of a folder need is tried without items.
    items.tree("a", &tree(generation), &options("flax", false))?;
    items.json("b", &serde_json::json!(generation))?;
    fs::write(items.folder("c")?.join("file"), [generation])
        .map_err(|error| regrow::Error::io("cannot write", target, error))?;
    items.commit().map(drop)
}

/// Two arrays full of one value; their sizes differ from one generation to the next.
fn tree(generation: u8) -> Tree<Leaf> {
    let full = |len: usize| {
        let shape = Shape::new(vec![len as u64]).unwrap();
        Leaf::array(Array::new(Dtype::UInt8, shape, vec![generation; len].into()).unwrap())
    };
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("a"), full(3000 + usize::from(generation))).unwrap();
    build.leaf(Key::dict("b"), full(100)).unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

/// The generation that the path opens, loads and verifies as; `None` if nothing is there.
fn generation(path: &Path) -> Option<u8> {
    let found = match load(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        other => other.unwrap(),
    };
    if path.join("own").is_file() {
        let own = fs::read(path.join("own")).unwrap();
        assert_eq!(own, fs::read(path.join("deep/own")).unwrap(), "a mixture of generations");
        assert_eq!(fs::read_dir(path).unwrap().count(), 4);
        assert!(found.is_empty() && verify(path).unwrap().findings.is_empty());
        return Some(own[0]);
    }
    let bytes: Vec<_> =
        found.leaves().iter().map(|leaf| leaf.as_array().unwrap().to_c_order().unwrap()).collect();
    let first = bytes[0][0];
    assert_eq!((bytes[0].len(), bytes[1].len()), (3000 + usize::from(first), 100));
    if path.join("_CHECKPOINT_METADATA").is_file() && path.join("c").is_dir() {
        assert_eq!(fs::read(path.join("c/file")).unwrap(), [first], "a mixture of generations");
        let own = bytes[2].len();
        assert_eq!(bytes[2][..], [&[first], &[0; 7][..own - 1]].concat());
        // Three items, their record, the metadata and the marker.
        assert_eq!(fs::read_dir(path).unwrap().count(), 6);
        assert!(verify(path).unwrap().is_ok());
        return Some(first);
    }
    assert!(bytes.iter().all(|bytes| bytes.iter().all(|&byte| byte == first)), "a mixture of generations");
    let report = verify(path).unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
    Some(first)
}

/// A folder in memory: what is tested is the order of the calls.
fn root() -> tempfile::TempDir {
    regrow_testkit::memory_folder().unwrap()
}

/// A place for a checkpoint, with the old one in it if it is to be overwritten; a new one has
/// folders to be made.
struct Scene {
    root: tempfile::TempDir,
    layout: &'static str,
    target: PathBuf,
    overwrite: bool,
}

impl Scene {
    fn new(layout: &'static str, overwrite: bool) -> Self {
        let root = root();
        let folder = if overwrite { root.path().to_owned() } else { root.path().join("made/twice") };
        let target = folder.join(if layout == "safetensors" { "ckpt.safetensors" } else { "ckpt" });
        if overwrite {
            save(&target, layout, OLD, false).unwrap();
        }
        Self { root, layout, target, overwrite }
    }

    fn child(&self) -> Command {
        let mut child = child("crash::faults::child_saves_once");
        child.env(TARGET, &self.target).env(LAYOUT, self.layout);
        child
    }

    fn previous(&self) -> Option<u8> {
        self.overwrite.then_some(OLD)
    }

    fn suffixes(&self) -> &'static [&'static str] {
        match self.layout {
            "pytree_data" => &[".data", ".manifest"],
            _ => &[""],
        }
    }

    /// What the next save does before it writes.
    fn sweep(&self) {
        regrow_layouts::tell_storage();
        let suffixes: Vec<String> = self.suffixes().iter().map(|&suffix| suffix.to_owned()).collect();
        match self.layout {
            "regrow" | ITEMS | FILES => drop(Staged::of_folder(&self.target, true).unwrap()),
            FILE_OVER_FOLDER => drop(Staged::of_file_over_any(&self.target, true).unwrap()),
            "safetensors" => drop(Staged::of_file(&self.target, true).unwrap()),
            _ => drop(Staged::of_siblings(&self.target, &suffixes, true).unwrap()),
        }
    }

    /// Names beside the target that are not its own.
    fn strangers(&self) -> Vec<String> {
        let name = self.target.file_name().unwrap().to_str().unwrap();
        let own: Vec<String> = self.suffixes().iter().map(|suffix| format!("{name}{suffix}")).collect();
        let Ok(entries) = fs::read_dir(self.target.parent().unwrap()) else { return Vec::new() };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !own.contains(name)).collect()
    }
}

/// The child: does nothing unless it was started by one of the tests below.
#[test]
fn child_saves_once() {
    let (Some(target), Ok(layout)) = (env::var_os(TARGET), env::var(LAYOUT)) else { return };
    // An overwrite also where nothing is: what is refused is not what is tested.
    mark();
    let saved = save(Path::new(&target), &layout, NEW, true);
    mark();
    match saved {
        Ok(()) => println!("\nSAVED"),
        Err(error) => println!("\nFAILED {}\n{error}\nEND", error.kind().name()),
    }
}

#[test]
fn a_killed_save_leaves_the_old_or_the_new() {
    for layout in LAYOUTS {
        for overwrite in [false, true] {
            check_killed(layout, overwrite);
        }
    }
}

/// Checks saves that are killed before each of their calls that write.
fn check_killed(layout: &'static str, overwrite: bool) {
    let (mut seen_new, mut put_back) = (false, 0);
    for at in 0.. {
        let scene = Scene::new(layout, overwrite);
        let Some(ended) = traced(&scene, writes, at, Fault::Kill) else { return };
        let mut now = generation(&scene.target);
        let context = format!("{layout}, overwrite {overwrite}, call {at}, {ended:?}");
        if TWO_STEPS && overwrite && now.is_none() {
            assert!(matches!(ended.hit, Some("rename" | "link" | "linkat")), "{context}");
            put_back += 1;
            scene.sweep();
            now = generation(&scene.target);
        }
        assert!(now == Some(NEW) || now == scene.previous() && !seen_new, "{now:?}: {context}");
        seen_new |= now == Some(NEW);
        scene.sweep();
        assert_eq!(generation(&scene.target), now, "the next save finds another: {context}");
        assert_eq!(scene.strangers(), [""; 0], "{context}");
        if ended.hit.is_none() {
            assert!(ended.stdout.contains("SAVED"), "{context}");
            assert!(at > 10, "{context}");
            break;
        }
    }
    assert!(seen_new);
    let is_folder = matches!(layout, "regrow" | ITEMS | FILES | FILE_OVER_FOLDER);
    assert_eq!(put_back, usize::from(TWO_STEPS && overwrite && is_folder), "{layout}");
}

/// Whether a call syncs or renames.
fn orders(call: &Call) -> bool {
    call.name().is_some_and(|name| name.contains("sync") || name.starts_with("rename"))
}

/// Files and folders below a folder.
fn below(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| 1 + if path.is_dir() { below(&path) } else { 0 }).sum()
}

#[test]
fn a_folder_is_synced_before_its_rename_and_its_parent_after() {
    for overwrite in [false, true] {
        let mut calls = Vec::new();
        // Killed at each of them in turn, which says its name.
        loop {
            let Some(ended) = traced(&Scene::new("regrow", overwrite), orders, calls.len(), Fault::Kill)
            else {
                return;
            };
            let Some(call) = ended.hit else { break };
            calls.push(call);
        }
        let is_rename = |call: &&str| call.starts_with("rename");
        let renames: Vec<&str> = calls.iter().copied().filter(is_rename).collect();
        let expected: &[&str] = match (TWO_STEPS, overwrite) {
            (false, false) => &["renameat2"],
            // The first call finds the name taken, the second exchanges the names.
            (false, true) => &["renameat2", "renameat2"],
            (true, false) => &["rename"],
            (true, true) => &["rename", "rename"],
        };
        assert_eq!(renames, expected, "{calls:?}");
        let first = calls.iter().position(is_rename).unwrap();
        let last = calls.iter().rposition(is_rename).unwrap();
        // Each file and each folder, then those above: the target's, and those that were made for
        // it.
        let scene = Scene::new("regrow", true);
        assert_eq!(first, 1 + below(&scene.target), "{calls:?}");
        assert_eq!(calls.len() - 1 - last, if overwrite { 1 } else { 3 }, "{calls:?}");
    }
}

/// How the child ended; `None` if tracing is not permitted, as in some containers: then the test
/// sees nothing.
fn traced(scene: &Scene, chosen: fn(&Call) -> bool, at: usize, fault: Fault) -> Option<Run> {
    match run(&mut scene.child(), chosen, at, fault) {
        Err(error) if error.raw_os_error() == Some(EPERM) => {
            eprintln!("not tested: this system lets no process be traced ({error})");
            None
        }
        ended => Some(ended.unwrap()),
    }
}

/// What the child says: `None` if it saved, otherwise the error's kind and text.
fn failure(ended: &Run) -> Option<(String, String)> {
    let (kind, text) = ended.stdout.split_once("\nFAILED ")?.1.split_once('\n').unwrap();
    Some((kind.to_owned(), text.split_once("\nEND").unwrap().0.to_owned()))
}

/// Checks one save whose call number `at` fails; whether there was such a call. `None` if tracing
/// is not permitted.
fn check_failing(layout: &'static str, overwrite: bool, at: usize, error: i32) -> Option<bool> {
    let scene = Scene::new(layout, overwrite);
    let ended = traced(&scene, touches, at, Fault::Fail(error))?;
    let now = generation(&scene.target);
    let context = format!("{layout}, overwrite {overwrite}, call {at}, errno {error}, {ended:?}");
    match failure(&ended) {
        None => {
            assert!(ended.stdout.contains("SAVED"), "{context}");
            assert_eq!(now, Some(NEW), "{context}");
        }
        Some((kind, text)) if kind == ErrorKind::NotDurable.name() => {
            assert_eq!(now, Some(NEW), "{context}");
            assert!(!text.contains("existing data did not change"), "{context}");
        }
        Some((_, text)) => {
            assert_eq!(now, scene.previous(), "{context}");
            assert!(!text.contains("the new checkpoint"), "{context}");
        }
    }
    let hit = ended.hit.unwrap_or_default();
    assert_eq!(scene.strangers(), [""; 0], "{context}");
    if !overwrite && now.is_none() {
        assert!(!scene.root.path().join("made").exists() || hit == "rmdir", "half-made folders: {context}");
    }
    scene.sweep();
    assert_eq!(generation(&scene.target), now, "the next save finds another: {context}");
    assert_eq!(scene.strangers(), [""; 0], "after the next save: {context}");
    Some(ended.hit.is_some())
}

fn check_all_failing(layout: &'static str) {
    for overwrite in [false, true] {
        for at in 0.. {
            // Each call fails with one error, and every other call with a second, which goes round.
            let Some(is_hit) = check_failing(layout, overwrite, at, ERRORS[0]) else { return };
            if !is_hit {
                assert!(at > 10);
                break;
            }
            if at % 2 == 0 {
                check_failing(layout, overwrite, at, ERRORS[1 + at / 2 % (ERRORS.len() - 1)]);
            }
        }
    }
}

#[test]
fn one_failing_call_leaves_a_folder_old_or_new() {
    check_all_failing("regrow");
}

#[test]
fn one_failing_call_leaves_a_folder_of_items_old_or_new() {
    check_overwrite_failing(ITEMS);
}

/// What all folders have in common is tried without items: each call fails once.
fn check_overwrite_failing(layout: &'static str) {
    for at in 0.. {
        match check_failing(layout, true, at, ERRORS[at % ERRORS.len()]) {
            Some(true) => {}
            Some(false) => return assert!(at > 10),
            None => return,
        }
    }
}

#[test]
fn one_failing_call_leaves_files_of_a_handler_old_or_new() {
    check_killed(FILES, true);
    check_overwrite_failing(FILES);
}

#[test]
fn a_kill_or_failing_call_leaves_the_folder_or_the_file_that_replaces_it() {
    check_killed(FILE_OVER_FOLDER, true);
    check_overwrite_failing(FILE_OVER_FOLDER);
}

#[test]
fn one_failing_call_leaves_a_file_old_or_new() {
    check_all_failing("safetensors");
}

#[test]
fn one_failing_call_leaves_sibling_files_old_or_new() {
    check_all_failing("pytree_data");
}
