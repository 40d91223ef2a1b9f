//! Checkpoints that have lost some of their files. A load returns the saved data, an error, or data
//! with a warning. It never returns other data unnoticed.
//!
//! The test saves a small tree in every layout of several files, and opens the checkpoint with
//! every subset of its files. Of many files it uses the subsets that lack or have at most two
//! files, and some others. It also replaces each file by an empty file, a folder, a pipe, a socket,
//! and links that no save writes.
//!
//! A read that takes longer than 8 seconds counts as a hang.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use regrow::array::{Array, Dtype, Shape};
use regrow::engine::{Compression, Layout};
use regrow::tree::{Key, Leaf, LeafData, LeafKind, NodeKind, Scalar, Tree, TreeBuilder};
use regrow::{OpenOptions, SaveOptions};
use regrow_testkit::{copy_folder, files_below, fixtures};
use serde_json::{Value, json};

/// All subsets of so many files are looked at.
const EXHAUSTIVE_FILES_MAX: usize = 10;

/// Of more files, so many subsets beside those that lack or have few.
const RANDOM_SUBSETS: u64 = 60;

/// Nothing here takes a hundredth of that. It is less than readers wait for a writer: here is none.
const HANGS_AFTER: Duration = Duration::from_secs(8);

const HANGS: &str = "it panics, or hangs";

/// What a load gives.
#[derive(Debug, Clone, PartialEq)]
struct Loaded {
    /// Containers and kinds of leaves, in flatten order.
    nodes: Vec<String>,
    /// Of each leaf, what it says or holds.
    values: BTreeMap<String, String>,
    metadata: Option<Value>,
}

/// What becomes of a path that is opened, loaded and verified.
#[derive(Debug)]
enum Outcome {
    Hangs,
    Refused,
    Loaded {
        loaded: Loaded,
        /// The step that was opened, of a folder of steps.
        step: Option<u64>,
        layout: String,
        /// What opening warns of.
        warnings: Vec<String>,
        /// Whether verify finds nothing wrong, and whether it has nothing to say at all.
        is_sound: bool,
        is_untold: bool,
    },
}

fn outcome(path: &Path) -> Outcome {
    let (tell, told) = channel();
    let owned = path.to_owned();
    std::thread::spawn(move || drop(tell.send(look(&owned))));
    told.recv_timeout(HANGS_AFTER).unwrap_or(Outcome::Hangs)
}

fn look(path: &Path) -> Outcome {
    let verified = regrow::verify(path);
    let Ok(checkpoint) = regrow::open(path) else {
        assert!(!verified.is_ok_and(|report| report.is_ok()), "sound, and cannot be opened");
        return Outcome::Refused;
    };
    let Ok(tree) = regrow::engine::load(path) else {
        assert!(!verified.is_ok_and(|report| report.is_ok()), "sound, and cannot be loaded");
        return Outcome::Refused;
    };
    let description = checkpoint.description();
    let verified = verified.ok();
    Outcome::Loaded {
        loaded: loaded(&tree, description.custom_metadata.clone()),
        step: description.step,
        layout: description.layout.clone(),
        warnings: description.warnings.clone(),
        is_sound: verified.as_ref().is_some_and(|report| report.is_ok()),
        is_untold: verified.is_some_and(|report| report.is_ok() && report.notes.is_empty()),
    }
}

fn loaded(tree: &Tree<Leaf>, metadata: Option<Value>) -> Loaded {
    let nodes = tree.walk().map(|(path, node)| format!("{path} {}", node.kind.name()));
    let mut nodes: Vec<String> = nodes.collect();
    nodes.extend(tree.leaves().iter().map(|leaf| leaf.kind.name().to_owned()));
    let value = |leaf: &Leaf| match &leaf.data {
        LeafData::Array(array) => {
            let bytes = array.to_c_order().unwrap();
            let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{} {} {bytes}", array.dtype(), array.shape())
        }
        LeafData::Text(text) => format!("{text:?}"),
        LeafData::Absent => "absent".to_owned(),
    };
    let values = tree.iter().map(|(path, leaf)| (path.to_string(), value(leaf))).collect();
    Loaded { nodes, values, metadata }
}

/// Whether an array is another one with zeros for some of its bytes.
fn is_zeros_of(value: &str, right: &str) -> bool {
    let parts =
        |text: &'_ str| text.rsplit_once(' ').map(|(kind, bytes)| (kind.to_owned(), bytes.to_owned()));
    let (Some((kind, bytes)), Some((of, known))) = (parts(value), parts(right)) else { return false };
    let mut pairs = bytes.as_bytes().chunks(2).zip(known.as_bytes().chunks(2));
    kind == of && bytes.len() == known.len() && pairs.all(|(byte, known)| byte == known || byte == b"00")
}

/// A checkpoint of several files, whose names are below `folder`; opened by `name` in there.
struct Case {
    what: String,
    folder: tempfile::TempDir,
    name: String,
    files: Vec<PathBuf>,
    /// By step, for folders of steps; `None` is what opens without one.
    whole: BTreeMap<Option<u64>, Loaded>,
}

impl Case {
    fn new(what: &str, make: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let name = "run".to_owned();
        make(&folder.path().join(&name));
        let mut files = files_below(folder.path()).unwrap();
        files.iter_mut().for_each(|file| *file = file.strip_prefix(folder.path()).unwrap().to_owned());
        files.sort();
        assert!(files.len() > 1, "{what}: {files:?}");
        let path = folder.path().join(&name);
        let about = regrow::open(&path).unwrap().description().clone();
        let mut whole = BTreeMap::new();
        for step in about.steps.iter().copied().map(Some).chain([about.step]) {
            let checkpoint =
                regrow::open_with(&path, &OpenOptions { step, ..OpenOptions::default() }).unwrap();
            let metadata = checkpoint.description().custom_metadata.clone();
            let options = regrow::LoadOptions {
                open: OpenOptions { step, ..OpenOptions::default() },
                ..Default::default()
            };
            whole.insert(step, loaded(&regrow::engine::load_with(&path, &options).unwrap(), metadata));
        }
        assert!(regrow::verify(&path).unwrap().is_ok(), "{what}");
        Self { what: what.to_owned(), folder, name, files, whole }
    }

    /// What is wrong with how `path` is read.
    fn judge(&self, path: &Path) -> Option<String> {
        let (loaded, step, layout, warnings, is_sound, is_untold) = match outcome(path) {
            Outcome::Hangs => return Some(HANGS.to_owned()),
            Outcome::Refused => return None,
            Outcome::Loaded { loaded, step, layout, warnings, is_sound, is_untold } => {
                (loaded, step, layout, warnings, is_sound, is_untold)
            }
        };
        let Some(whole) = self.whole.get(&step) else {
            return Some(format!("step {step:?} was never there"));
        };
        if *whole == loaded {
            return None;
        }
        if loaded.values != whole.values {
            let is_part = loaded.values.iter().all(|(path, value)| whole.values.get(path) == Some(value));
            // A folder of npy files is the list of its files, unless regrow's own record of the
            // pytree is there: verify reports the missing record. Without it a text is the array
            // that it was stored as.
            let is_text = |path: &String| whole.values.get(path).is_some_and(|value| value.starts_with('"'));
            let is_kept = |(path, value)| whole.values.get(path) == Some(value) || is_text(path);
            if layout == "npy" && !is_untold && loaded.values.iter().all(is_kept) {
                return None;
            }
            // A TRAK store is in progress for days, and read as far as it is: verify tells what it
            // lacks. Gradients may be deleted once they are no longer needed, and a store begins
            // with its metadata alone.
            let mut missing = whole.values.keys().filter(|path| !loaded.values.contains_key(*path));
            let is_begun = loaded.values.keys().any(|path| !path.starts_with("metadata/"));
            let is_legal = !is_begun || missing.all(|path| path.ends_with("/grads"));
            if is_part && layout == "trak" && (!is_untold || is_legal) {
                return None;
            }
            // Arrays without any metadata are read as their folders and keys name them, and a chunk
            // that is gone is zeros, as TensorStore reads both. Opening warns, and verify tells.
            let is_below = |path: &String, known: &String| {
                path == known || path.strip_suffix(known.as_str()).is_some_and(|above| above.ends_with('/'))
            };
            let is_known = |(path, value): (&String, &String)| {
                whole.values.iter().any(|(known, right)| {
                    is_below(path, known) && (value == right || is_zeros_of(value, right))
                })
            };
            if loaded.values.iter().all(is_known) && !warnings.is_empty() && !is_untold {
                return None;
            }
            let told = if is_untold { "sound" } else { "verify tells" };
            return Some(format!("other values, {told}: {:?}", loaded.values));
        }
        // A data file alone is a safetensors file, with the metadata of one.
        if layout == "safetensors" && loaded.nodes == whole.nodes {
            return None;
        }
        if layout == "npy" && !is_untold {
            return None;
        }
        let seen = if loaded.nodes == whole.nodes { "other metadata" } else { "other containers" };
        if is_sound {
            return Some(format!("{seen}, sound: {:?} {:?}", loaded.nodes, loaded.metadata));
        }
        warnings.is_empty().then(|| format!("{seen}, and opening warns of nothing"))
    }

    /// Every subset of the files, with the folders of the others or without.
    fn subsets(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for kept in subsets(self.files.len()) {
            for with_folders in [false, true] {
                let part = tempfile::tempdir().unwrap();
                let mut names = Vec::new();
                for (file, kept) in self.files.iter().zip(&kept) {
                    let to = part.path().join(file);
                    if *kept || with_folders {
                        fs::create_dir_all(to.parent().unwrap()).unwrap();
                    }
                    if *kept {
                        fs::copy(self.folder.path().join(file), to).unwrap();
                        names.push(file.display().to_string());
                    }
                }
                if kept.iter().all(|kept| *kept) && with_folders {
                    continue;
                }
                let what = format!("{} of {}", names.join(" "), self.what);
                let judged = self.judge(&part.path().join(&self.name));
                wrong.extend(judged.map(|judged| format!("{what}: {judged}")));
            }
        }
        wrong
    }

    /// Each file replaced by each kind of thing that it is not.
    fn replacements(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        type Put = fn(&Path);
        let kinds: [(&str, Put); 7] = [
            ("empty", |file| fs::write(file, b"").unwrap()),
            ("a folder", |file| fs::create_dir(file).unwrap()),
            ("a pipe", |file| {
                rustix::fs::mknodat(
                    rustix::fs::CWD,
                    file,
                    rustix::fs::FileType::Fifo,
                    rustix::fs::Mode::from_raw_mode(0o600),
                    0,
                )
                .unwrap();
            }),
            ("a socket", |file| drop(std::os::unix::net::UnixListener::bind(file).unwrap())),
            ("a link to an endless device", |file| std::os::unix::fs::symlink("/dev/zero", file).unwrap()),
            ("a link to nothing", |file| std::os::unix::fs::symlink("nothing", file).unwrap()),
            ("a link to itself", |file| {
                std::os::unix::fs::symlink(file.file_name().unwrap(), file).unwrap();
            }),
        ];
        for file in &self.files {
            for (kind, put) in kinds {
                let copy = tempfile::tempdir().unwrap();
                copy_folder(self.folder.path(), copy.path()).unwrap();
                let target = copy.path().join(file);
                if kind == "empty" && fs::metadata(&target).unwrap().len() == 0 {
                    continue;
                }
                fs::remove_file(&target).unwrap();
                put(&target);
                let what = format!("{} of {} is {kind}", file.display(), self.what);
                let judged = self.judge(&copy.path().join(&self.name));
                let hangs = judged.as_deref() == Some(HANGS);
                wrong.extend(judged.map(|judged| format!("{what}: {judged}")));
                if hangs {
                    // One is enough: each takes its time.
                    return wrong;
                }
            }
        }
        wrong
    }

    fn check(&self) {
        let mut wrong = self.subsets();
        wrong.extend(self.replacements());
        assert!(wrong.is_empty(), "{} are read as something else:\n{}", wrong.len(), wrong.join("\n"));
    }
}

/// Which of `count` files are kept.
fn subsets(count: usize) -> Vec<Vec<bool>> {
    let of_bits = |bits: u64| (0..count).map(|at| bits >> at & 1 == 1).collect::<Vec<bool>>();
    if count <= EXHAUSTIVE_FILES_MAX {
        return (0..1 << count).map(of_bits).collect();
    }
    let mut found = vec![vec![true; count], vec![false; count]];
    for a in 0..count {
        for b in a..count {
            for rest in [true, false] {
                let mut kept = vec![rest; count];
                kept[a] = !rest;
                kept[b] = !rest;
                found.push(kept);
            }
        }
    }
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..RANDOM_SUBSETS {
        // SplitMix64: the same subsets each time.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        found.push(of_bits(mixed ^ mixed >> 27));
    }
    found
}

fn array(dtype: Dtype, dims: &[u64], first: u8) -> Leaf {
    let shape = Shape::new(dims).unwrap();
    let len = shape.len_bytes(dtype).unwrap();
    let bytes: Vec<u8> = (0..len).map(|at| (at % 97) as u8 + first).collect();
    Leaf { kind: LeafKind::NumpyArray, ..Leaf::array(Array::new(dtype, shape, bytes.into()).unwrap()) }
}

/// Arrays only, in dicts.
fn arrays(first: u8) -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.open(Key::dict("params"), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("bias"), array(Dtype::Float32, &[4], first)).unwrap();
    build.leaf(Key::dict("kernel"), array(Dtype::Float32, &[8, 4], first)).unwrap();
    build.close().unwrap();
    build.leaf(Key::dict("step"), array(Dtype::Int32, &[], first)).unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

/// Also a tuple, a text and a number.
fn mixed(first: u8) -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("kernel"), array(Dtype::Float32, &[8, 4], first)).unwrap();
    build.leaf(Key::dict("name"), Leaf::text("a text")).unwrap();
    build.open(Key::dict("pair"), NodeKind::Tuple).unwrap();
    build.leaf(Key::Index(0), array(Dtype::BFloat16, &[3], first)).unwrap();
    build.leaf(Key::Index(1), Leaf::scalar(Scalar::Int(i64::from(first)))).unwrap();
    build.close().unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

fn options(layout: &str, own: Value) -> SaveOptions {
    SaveOptions {
        layout: Layout::from_name(layout, own).unwrap(),
        casting: regrow::array::Casting::Lossy,
        ..SaveOptions::default()
    }
}

fn check(what: &str, tree: &Tree<Leaf>, options: &SaveOptions) {
    Case::new(what, |path| {
        regrow::save_with(path, tree, options).unwrap();
    })
    .check();
}

#[test]
fn default_layout() {
    let metadata = SaveOptions { custom_metadata: Some(json!({ "run": 7 })), ..SaveOptions::default() };
    check("regrow", &mixed(1), &metadata);
    check("regrow, arrays", &arrays(1), &SaveOptions::default());
}

#[test]
fn default_layout_compressed() {
    let zstd = SaveOptions { compression: Some(Compression::Zstd(1)), ..SaveOptions::default() };
    let mut leaves = mixed(1).into_leaves();
    leaves[0] = array(Dtype::Float32, &[64, 64], 1);
    check("regrow, zstd", &mixed(1).with_leaves(leaves).unwrap(), &zstd);
}

#[test]
fn default_layout_of_several_data_files() {
    let large = |first| array(Dtype::Float32, &[64, 64], first);
    Case::new("regrow, several data files", |path| {
        let mut bases = Vec::new();
        for step in 1..5 {
            let mut leaves = mixed(1).into_leaves();
            // One changes every time, one never.
            leaves[0] = large(step);
            leaves[2] = large(9);
            let tree = mixed(1).with_leaves(leaves).unwrap();
            let own = if step == 4 { path.to_owned() } else { path.with_file_name(format!("base {step}")) };
            let based =
                SaveOptions { base: bases.last().cloned().map(PathBuf::into), ..SaveOptions::default() };
            regrow::save_with(&own, &tree, &based).unwrap();
            bases.push(own);
        }
        bases.pop();
        bases.iter().for_each(|base| fs::remove_dir_all(base).unwrap());
        let names =
            fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert!(names.filter(|name| name.ends_with(".safetensors")).count() > 1);
    })
    .check();
}

#[test]
fn orbax() {
    for own in [
        json!({}),
        json!({ "zarr3": true }),
        json!({ "rich_types": true, "ocdbt_target_data_file_size": 64, "chunk_byte_size": 32 }),
    ] {
        check(&format!("orbax {own}"), &mixed(1), &options("orbax", own));
    }
}

#[test]
fn orbax_v1() {
    check("orbax v1", &arrays(1), &options("orbax", json!({ "v1": true })));
}

#[test]
fn orbax_folders() {
    for zarr3 in [false, true] {
        for chunk in [Value::Null, json!(64)] {
            let own = json!({ "ocdbt": false, "zarr3": zarr3, "chunk_byte_size": chunk });
            check(&format!("orbax {own}"), &arrays(1), &options("orbax", own));
        }
    }
}

#[test]
fn safetensors() {
    for structure in [true, false] {
        let own = json!({ "max_shard_bytes": 64, "structure": structure });
        check(&format!("safetensors {own}"), &arrays(1), &options("safetensors", own));
    }
}

#[test]
fn data_and_manifest() {
    check("data and manifest", &mixed(1), &options("pytree_data", Value::Null));
}

#[test]
fn npy_folder() {
    check("npy folder", &mixed(1), &options("npy", Value::Null));
    check("npy folder, arrays", &arrays(1), &options("npy", Value::Null));
}

#[test]
fn trak() {
    Case::new("trak", |path| copy_folder(&fixtures().join("trak/half_two_models"), path).unwrap()).check();
}

#[test]
fn steps() {
    for (layout, own) in [("regrow", Value::Null), ("orbax", json!({})), ("orbax", json!({ "v1": true }))] {
        Case::new(&format!("steps of {layout} {own}"), |path| {
            fs::create_dir(path).unwrap();
            for step in [1, 2] {
                regrow::save_with(path.join(step.to_string()), &arrays(step), &options(layout, own.clone()))
                    .unwrap();
            }
        })
        .check();
    }
}

#[test]
fn flax_steps() {
    Case::new("flax steps", |path| {
        fs::create_dir(path).unwrap();
        for step in [1, 2, 10] {
            regrow::save_with(
                path.join(format!("checkpoint_{step}")),
                &arrays(step),
                &options("flax", Value::Null),
            )
            .unwrap();
        }
    })
    .check();
}
