//! Paths whose cost does not depend on how many bytes there are, one at a time, for counting their
//! instructions.
//!
//!     guard NAME FOLDER          prepares in FOLDER, then does NAME once, inside `measured`
//!     guard --list               the names
//!
//! `benches/guard.py` runs this under callgrind, which counts what [`measured`] does on its own
//! thread and nothing else: not what is prepared, not what the engine's other threads do while this
//! one waits.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use regrow::SaveOptions;
use regrow::array::{Array, Dtype, Shape};
use regrow::engine::Layout;
use regrow::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};
use regrow_ocdbt::OcdbtStore;
use regrow_store::{ByteRange, LocalStore, Store};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

const LEAF_LEN_BYTES: usize = 64;
const FEW: usize = 10;
const SOME: usize = 450;
const MANY: usize = 10_000;
const LOOKUPS: usize = 100;

/// A name, and what is counted in a folder.
type Counted = (&'static str, fn(&Path) -> Outcome);

const PATHS: [Counted; 11] = [
    ("save 10 leaves", |folder| save(folder, FEW, Layout::default())),
    ("open 10 leaves", |folder| open(folder, FEW)),
    ("load 10 leaves", |folder| load(folder, FEW, Layout::default())),
    ("open 450 leaves", |folder| open(folder, SOME)),
    ("open 10,000 leaves", |folder| open(folder, MANY)),
    ("load 10,000 leaves", |folder| load(folder, MANY, Layout::default())),
    ("save 10,000 leaves", |folder| save(folder, MANY, Layout::default())),
    ("write flax msgpack, 10 leaves", |folder| save(folder, FEW, Layout::Flax(Default::default()))),
    ("read flax msgpack, 10 leaves", |folder| load(folder, FEW, Layout::Flax(Default::default()))),
    ("load orbax, 10 leaves", |folder| load(folder, FEW, Layout::Orbax(Default::default()))),
    ("look up 100 keys of an OCDBT database", look_up),
];

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--list"] => {
            let mut out = io::stdout();
            for (name, _) in PATHS {
                writeln!(out, "{name}")?;
            }
            Ok(())
        }
        [name, folder] => {
            let found = PATHS.iter().find(|(known, _)| known == name);
            let (_, run) = found.ok_or_else(|| format!("{name:?} is none of the paths"))?;
            run(Path::new(folder))
        }
        _ => Err("guard NAME FOLDER, or guard --list".into()),
    }
}

/// What is counted, and nothing else. Its name is what callgrind looks for.
#[inline(never)]
fn measured(action: &mut dyn FnMut() -> Outcome) -> Outcome {
    action()
}

fn save(folder: &Path, leaf_count: usize, layout: Layout) -> Outcome {
    let tree = tree(leaf_count)?;
    let path = folder.join("step");
    measured(&mut || save_as(&path, &tree, layout.clone()))
}

fn open(folder: &Path, leaf_count: usize) -> Outcome {
    let path = folder.join("step");
    save_as(&path, &tree(leaf_count)?, Layout::default())?;
    measured(&mut || {
        let checkpoint = regrow::open(&path)?;
        same(checkpoint.tree().len(), leaf_count)
    })
}

fn load(folder: &Path, leaf_count: usize, layout: Layout) -> Outcome {
    let path = folder.join("step");
    save_as(&path, &tree(leaf_count)?, layout)?;
    let checkpoint = regrow::open(&path)?;
    measured(&mut || same(checkpoint.load(&Default::default())?.len(), leaf_count))
}

fn look_up(folder: &Path) -> Outcome {
    let path = folder.join("step");
    save_as(&path, &tree(SOME)?, Layout::Orbax(Default::default()))?;
    let base = if path.join("manifest.ocdbt").exists() { path } else { path.join("default") };
    let database = OcdbtStore::open(Arc::new(LocalStore::new(base)))?;
    let keys: Vec<Vec<u8>> = database.entries()?.into_iter().map(|(key, _)| key).take(LOOKUPS).collect();
    same(keys.len(), LOOKUPS)?;
    measured(&mut || {
        for key in &keys {
            database.get(key, ByteRange::Full)?.ok_or("a key that is listed is not found")?;
        }
        Ok(())
    })
}

fn save_as(path: &Path, tree: &Tree<Leaf>, layout: Layout) -> Outcome {
    let _ = fs::remove_dir_all(path);
    let options = SaveOptions { layout, not_durable: true, ..Default::default() };
    regrow::save_with(path, tree, &options)?;
    Ok(())
}

fn tree(leaf_count: usize) -> Outcome<Tree<Leaf>> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict)?;
    for at in 0..leaf_count {
        let data: Vec<u8> = (0..LEAF_LEN_BYTES).map(|byte| (byte * at) as u8).collect();
        let shape = Shape::new(vec![LEAF_LEN_BYTES as u64 / 4])?;
        let array = Array::new(Dtype::Float32, shape, data.into())?;
        build.leaf(Key::dict(format!("layer_{at}")), Leaf::array(array))?;
    }
    build.close()?;
    Ok(build.finish()?)
}

fn same(found: usize, expected: usize) -> Outcome {
    if found == expected { Ok(()) } else { Err(format!("expected {expected} of them, found {found}").into()) }
}
