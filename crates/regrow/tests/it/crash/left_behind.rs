//! The files and objects that killed writers of version 0.1.0 left behind (`fixtures/left_behind`).
//! A reader finds the old or the new checkpoint, complete, or none. Every next operation works, and
//! leaves only its own checkpoint.

mod make;

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use regrow::array::{Array, Casting, Dtype, Shape};
use regrow::engine::Layout;
use regrow::location::{Location, StorageOptions};
use regrow::tree::{Leaf, Tree};
use regrow::{
    CopyOptions, ErrorKind, RemoveOptions, Result, SaveOptions, copy, load, remove, save_with, verify,
};
use regrow_testkit::object_server::ObjectServer;
use regrow_testkit::{copy_folder, files_below, fixtures, memory_folder};
use tempfile::TempDir;

use crate::common::cuts::{bytes_of, dict};
use crate::crash::scenes::is_nothing;

const OLD: u8 = 1;
const NEW: u8 = 2;
/// The checkpoint of the next operation.
const NEXT: u8 = 3;

/// The bucket of all fixtures. A copy goes on only if its source has the same address.
const BUCKETS: &str = "left";

/// The names of the folders that are empty in a fixture on a disk, a line each.
const EMPTY_FOLDERS: &str = "empty-folders.txt";

/// The objects are so old when a test begins.
const AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// What a reader finds at the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finds {
    Nothing,
    Old,
    New,
    /// The old checkpoint, which may be under a temporary name until the next operation.
    OldAside,
}

struct Case {
    place: &'static str,
    name: &'static str,
    layout: &'static str,
    target: &'static str,
    finds: Finds,
}

impl Case {
    const fn bucket(name: &'static str, layout: &'static str, target: &'static str, finds: Finds) -> Self {
        Self { place: "bucket", name, layout, target, finds }
    }

    const fn disk(name: &'static str, layout: &'static str, target: &'static str, finds: Finds) -> Self {
        Self { place: "disk", name, layout, target, finds }
    }

    /// What the layout adds to a name.
    fn suffix(&self) -> &'static str {
        self.target.strip_prefix("ckpt").unwrap()
    }

    fn is_copy(&self) -> bool {
        self.name.starts_with("copy")
    }

    fn is_pair(&self) -> bool {
        self.layout == "pytree_data"
    }
}

const BUCKET: &[Case] = &[
    Case::bucket("save", "regrow", "ckpt", Finds::Nothing),
    Case::bucket("save_swept", "regrow", "ckpt", Finds::Nothing),
    Case::bucket("save_siblings", "pytree_data", "ckpt", Finds::Nothing),
    Case::bucket("overwrite", "regrow", "ckpt", Finds::Old),
    Case::bucket("overwrite_npy", "npy", "ckpt", Finds::Old),
    Case::bucket("overwrite_locked", "regrow", "ckpt", Finds::Old),
    Case::bucket("overwrite_moved", "regrow", "ckpt", Finds::New),
    Case::bucket("overwrite_moved_npy", "npy", "ckpt", Finds::New),
    Case::bucket("overwrite_settling", "regrow", "ckpt", Finds::New),
    Case::bucket("overwrite_settling_npy", "npy", "ckpt", Finds::New),
    Case::bucket("overwrite_settled", "regrow", "ckpt", Finds::New),
    Case::bucket("remove", "regrow", "ckpt", Finds::Nothing),
    Case::bucket("remove_locked", "regrow", "ckpt", Finds::Old),
    Case::bucket("copy", "regrow", "ckpt", Finds::Nothing),
    Case::bucket("copy_over", "regrow", "ckpt", Finds::Old),
    Case::bucket("copy_file", "flax", "ckpt.msgpack", Finds::Nothing),
    Case::bucket("copy_siblings", "pytree_data", "ckpt", Finds::Nothing),
];

const DISK: &[Case] = &[
    Case::disk("save", "regrow", "ckpt", Finds::Nothing),
    Case::disk("save_file", "flax", "ckpt.msgpack", Finds::Nothing),
    Case::disk("save_siblings", "pytree_data", "ckpt", Finds::New),
    Case::disk("overwrite", "regrow", "ckpt", Finds::Old),
    Case::disk("overwrite_exchanged", "regrow", "ckpt", Finds::New),
    Case::disk("overwrite_between", "regrow", "ckpt", Finds::OldAside),
    Case::disk("overwrite_renamed", "regrow", "ckpt", Finds::New),
    Case::disk("overwrite_siblings_out", "pytree_data", "ckpt", Finds::New),
    Case::disk("overwrite_siblings_in", "pytree_data", "ckpt", Finds::New),
    Case::disk("remove", "regrow", "ckpt", Finds::Nothing),
    Case::disk("copy", "regrow", "ckpt", Finds::Nothing),
    Case::disk("copy_over", "regrow", "ckpt", Finds::Old),
    Case::disk("copy_file", "flax", "ckpt.msgpack", Finds::Nothing),
    Case::disk("copy_siblings", "pytree_data", "ckpt", Finds::Nothing),
];

fn tree(generation: u8) -> Tree<Leaf> {
    let full = |len: usize| {
        let shape = Shape::new(vec![len as u64]).unwrap();
        Array::new(Dtype::UInt8, shape, vec![generation; len].into()).unwrap()
    };
    dict([("a".to_owned(), full(40 + usize::from(generation))), ("b".to_owned(), full(9))])
}

fn options(case: &Case, overwrite: bool) -> SaveOptions {
    let layout = Layout::from_name(case.layout, serde_json::Value::Null).unwrap();
    SaveOptions { layout, overwrite, casting: Casting::Lossy, ..SaveOptions::default() }
}

fn root(endpoint: &str) -> Location {
    let options = StorageOptions::new()
        .with("region", "us-east-1")
        .with("key", "test")
        .with("secret", "testtest")
        .with("endpoint_url", endpoint)
        .with("max_retries", "0");
    Location::with_options(Path::new(&format!("s3://{BUCKETS}/work")), &options).unwrap()
}

/// Replaces the content of the bucket by a fixture.
fn put_fixture(server: &ObjectServer, folder: &Path, case: &Case) {
    for key in server.keys(BUCKETS, "") {
        server.delete(BUCKETS, &key);
    }
    let files = files_below(folder).unwrap();
    assert!(!files.is_empty(), "{}", case.name);
    for file in files {
        let name = file.strip_prefix(folder).unwrap().to_str().unwrap();
        server.put(BUCKETS, &format!("work/{name}"), fs::read(&file).unwrap());
    }
    server.age(AGE);
}

/// A folder on a disk or in a bucket.
enum Place {
    Bucket(Rc<ObjectServer>, &'static str),
    Disk(TempDir),
}

/// Calls `each` with a new copy of the fixture of each case.
fn for_each_case(each: impl Fn(&Case, &Place)) {
    let server = Rc::new(ObjectServer::start().unwrap());
    server.create_bucket(BUCKETS);
    for case in BUCKET {
        println!("bucket/{}", case.name);
        put_fixture(&server, &fixtures().join("left_behind/bucket").join(case.name), case);
        each(case, &Place::Bucket(Rc::clone(&server), "work"));
    }
    for case in DISK {
        println!("disk/{}", case.name);
        let folder = memory_folder().unwrap();
        copy_folder(&fixtures().join("left_behind/disk").join(case.name), folder.path()).unwrap();
        let empty = folder.path().join(EMPTY_FOLDERS);
        if empty.is_file() {
            for name in fs::read_to_string(&empty).unwrap().lines() {
                fs::create_dir_all(folder.path().join(name)).unwrap();
            }
            fs::remove_file(empty).unwrap();
        }
        each(case, &Place::Disk(folder));
    }
}

/// The names of the files below a folder, and those of its empty folders.
fn names_below(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let inside: Vec<PathBuf> = match path.is_dir() {
            true => fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect(),
            false => Vec::new(),
        };
        if inside.is_empty() && path != root {
            found.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
        }
        left.extend(inside);
    }
    found.sort();
    found
}

impl Place {
    fn root(&self) -> Location {
        match self {
            Self::Bucket(server, folder) => root(&server.endpoint()).with_name(folder),
            Self::Disk(folder) => Location::local(folder.path()),
        }
    }

    fn target(&self, case: &Case) -> Location {
        self.root().join(case.target)
    }

    fn source(&self, case: &Case) -> Location {
        self.root().join(format!("source{}", case.suffix()))
    }

    /// The names of all files and objects except those of the source of a copy.
    fn names(&self) -> Vec<String> {
        let mut names = match self {
            Self::Bucket(server, folder) => {
                let keys = server.keys(BUCKETS, &format!("{folder}/")).into_iter();
                keys.map(|key| key[folder.len() + 1..].to_owned()).collect()
            }
            Self::Disk(folder) => names_below(folder.path()),
        };
        names.retain(|name| !name.starts_with("source"));
        // Two saves of one tree give the nodes of OCDBT different names.
        for name in &mut names {
            if let Some((folder, _)) = name.split_once("/d/") {
                *name = format!("{folder}/d/node");
            }
        }
        names
    }

    /// An empty place of the same kind.
    fn fresh(&self) -> Self {
        match self {
            Self::Bucket(server, _) => {
                for key in server.keys(BUCKETS, "fresh/") {
                    server.delete(BUCKETS, &key);
                }
                Self::Bucket(Rc::clone(server), "fresh")
            }
            Self::Disk(_) => Self::Disk(memory_folder().unwrap()),
        }
    }

    fn save(&self, case: &Case, generation: u8, overwrite: bool) -> Result<()> {
        save_with(self.target(case), &tree(generation), &options(case, overwrite)).map(drop)
    }

    /// Copies the source that a killed copy had, or else a new one. Returns the generation of it.
    fn copy(&self, case: &Case, overwrite: bool) -> (u8, Result<()>) {
        let source = self.source(case);
        let generation = if case.is_copy() { NEW } else { NEXT };
        if generation == NEXT {
            save_with(&source, &tree(NEXT), &options(case, false)).unwrap();
        }
        let options = CopyOptions { overwrite, ..CopyOptions::default() };
        (generation, copy(&source, self.target(case), &options).map(drop))
    }

    /// The generation at the target; `None` if there is no checkpoint.
    fn generation(&self, case: &Case) -> Option<u8> {
        let target = self.target(case);
        let loaded: Tree<Leaf> = match load(&target) {
            Err(error) if is_nothing(&target, &error) => return None,
            loaded => loaded.unwrap(),
        };
        let report = verify(&target).unwrap();
        assert!(report.is_ok(), "{:?}", report.findings);
        let found = [OLD, NEW, NEXT].into_iter().find(|&each| bytes_of(&loaded) == bytes_of(&tree(each)));
        Some(found.expect("a mixture"))
    }

    /// Checks that a reader finds the checkpoint of the fixture.
    fn check_found(&self, case: &Case) {
        let found = self.generation(case);
        let is_right = match case.finds {
            Finds::Nothing => found.is_none(),
            Finds::Old => found == Some(OLD),
            Finds::New => found == Some(NEW),
            Finds::OldAside => found.is_none_or(|found| found == OLD),
        };
        assert!(is_right, "{found:?} at the target");
    }

    /// Checks that there is this checkpoint, and no other file except those that `may_stay`.
    fn check_alone_except(&self, case: &Case, generation: u8, may_stay: impl Fn(&str) -> bool) {
        assert_eq!(self.generation(case), Some(generation));
        let fresh = self.fresh();
        fresh.save(case, generation, false).unwrap();
        let expected = fresh.names();
        assert!(!expected.is_empty());
        let found: Vec<String> = self.names().into_iter().filter(|name| !may_stay(name)).collect();
        assert_eq!(found, expected);
    }

    /// Checks that there is this checkpoint, and no other file.
    fn check_alone(&self, case: &Case, generation: u8) {
        self.check_alone_except(case, generation, |_| false);
    }

    fn remove_unfinished(&self, case: &Case) -> Result<()> {
        let options = RemoveOptions { unfinished: true, ..RemoveOptions::default() };
        remove(self.target(case), &options).map(drop)
    }

    /// As [`check_alone`](Self::check_alone), after a save. An interrupted copy stays until the
    /// next copy or `rm --unfinished`.
    fn check_saved(&self, case: &Case, generation: u8) {
        if case.is_copy() {
            let of_copy = format!("{}.orbax-checkpoint-tmp-copy", case.target);
            self.check_alone_except(case, generation, |name| name.starts_with(&of_copy));
            let removed = self.remove_unfinished(case);
            assert!(removed.is_ok() || removed.is_err_and(|error| error.kind() == ErrorKind::NotFound));
        }
        self.check_alone(case, generation);
    }

    /// Checks that an operation has refused to replace a checkpoint, and has changed nothing.
    fn check_refused(&self, case: &Case, refused: Result<()>) {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::AlreadyExists);
        self.check_found(case);
    }

    /// Checks that the next overwrite leaves its checkpoint, and no other file.
    fn check_next_save(&self, case: &Case) {
        if case.is_pair() && matches!(self, Self::Bucket(..)) && self.generation(case).is_some() {
            // A bucket cannot replace two files at once.
            remove(self.target(case), &RemoveOptions::default()).unwrap();
        }
        self.save(case, NEXT, true).unwrap();
        self.check_saved(case, NEXT);
    }
}

#[test]
fn open_finds_the_old_checkpoint_or_the_new_one() {
    for_each_case(|case, place| {
        let before = place.names();
        place.check_found(case);
        assert_eq!(place.names(), before, "a reader changes nothing");
    });
}

#[test]
fn overwrite_leaves_only_the_new_checkpoint() {
    for_each_case(|case, place| place.check_next_save(case));
}

#[test]
fn save_replaces_no_checkpoint() {
    for_each_case(|case, place| {
        let saved = place.save(case, NEXT, false);
        match case.finds {
            Finds::Nothing => {
                saved.unwrap();
                place.check_saved(case, NEXT);
            }
            _ => place.check_refused(case, saved),
        }
        place.check_next_save(case);
    });
}

#[test]
fn copy_leaves_only_the_copied_checkpoint() {
    for_each_case(|case, place| {
        let (generation, copied) = place.copy(case, true);
        copied.unwrap();
        // The next save removes the folder of a dead overwrite.
        let of_overwrite = |name: &str| !case.is_copy() && name.contains(".orbax-checkpoint-tmp-");
        place.check_alone_except(case, generation, of_overwrite);
        place.check_next_save(case);
    });
}

#[test]
fn copy_replaces_no_checkpoint() {
    for_each_case(|case, place| {
        let (generation, copied) = place.copy(case, false);
        match case.finds {
            Finds::Nothing => {
                copied.unwrap();
                place.check_alone(case, generation);
            }
            _ => place.check_refused(case, copied),
        }
        place.check_next_save(case);
    });
}

#[test]
fn remove_leaves_no_checkpoint() {
    for_each_case(|case, place| {
        let target = place.target(case);
        match (remove(&target, &RemoveOptions::default()), case.finds) {
            (Ok(_), Finds::Old | Finds::New | Finds::OldAside) => {
                assert_eq!(place.generation(case), None);
            }
            (Err(error), Finds::Nothing | Finds::OldAside) => {
                assert!(is_nothing(&target, &error), "{error}");
                place.check_found(case);
            }
            (removed, finds) => panic!("{finds:?}: {removed:?}"),
        }
        place.check_next_save(case);
    });
}

#[test]
fn remove_unfinished_leaves_only_the_checkpoint() {
    for_each_case(|case, place| {
        let removed = place.remove_unfinished(case);
        place.check_found(case);
        // The next save removes the lock of a dead process.
        let is_lock = |name: &str| name.ends_with("/regrow-settling.json");
        match (removed, case.finds) {
            (Ok(()), Finds::Nothing) => assert_eq!(place.names(), [""; 0]),
            (Ok(()), Finds::Old) => place.check_alone_except(case, OLD, is_lock),
            (Ok(()), Finds::New) => place.check_alone_except(case, NEW, is_lock),
            // Only the lock is left, or the checkpoint was complete when its writer was killed.
            (Err(error), Finds::Old | Finds::New | Finds::OldAside) => {
                assert!(matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::NotFound), "{error}");
            }
            (removed, finds) => panic!("{finds:?}: {removed:?}"),
        }
        place.check_next_save(case);
    });
}
