//! A killed writer of a data file and its manifest. A reader gets the old pair or the new pair. A
//! manifest never lies beside data of another save, for regrow and for the original reader.
//!
//! The test starts itself as a child that saves without end, and kills the child (`SIGKILL`) at
//! random moments.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use std::{env, fs, thread};

use crate::common::child::child;
use regrow::array::{Array, Dtype, Shape};
use regrow::engine::Layout;
use regrow::engine::load;
use regrow::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};
use regrow::{ErrorKind, SaveOptions, save_with};
use regrow_storage::NewSiblings;
use regrow_storage::local::Staged;

const FOLDER: &str = "REGROW_TEST_PAIR_SAVES_INTO";
const KILLS: u64 = 15;

fn options() -> SaveOptions {
    // Without checksums: nothing but the order of the steps keeps the two files together.
    let layout = Layout::from_name("pytree_data", serde_json::json!({"extra_keys": false})).unwrap();
    SaveOptions { layout, overwrite: true, ..SaveOptions::default() }
}

/// Two arrays full of one value; their sizes differ from one generation to the next.
fn tree(generation: u8) -> Tree<Leaf> {
    let full = |len: usize| {
        let shape = Shape::new(vec![len as u64]).unwrap();
        Leaf::array(Array::new(Dtype::UInt8, shape, vec![generation; len].into()).unwrap())
    };
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("a"), full((1 << 18) + usize::from(generation))).unwrap();
    build.leaf(Key::dict("b"), full(100)).unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

/// The generation of the pair; all of its bytes must be of one generation. `None` if there is none.
fn generation(stem: &Path) -> Option<u8> {
    let found = match load(stem) {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        other => other.unwrap(),
    };
    let bytes: Vec<_> =
        found.leaves().iter().map(|leaf| leaf.as_array().unwrap().to_c_order().unwrap()).collect();
    let first = bytes[0][0];
    assert_eq!(bytes[0].len(), (1 << 18) + usize::from(first));
    assert!(bytes.iter().all(|bytes| bytes.iter().all(|&byte| byte == first)), "a mixture of generations");
    Some(first)
}

/// The child: does nothing unless it was started by the test below.
#[test]
fn child_saves_pairs_until_killed() {
    let Some(folder) = env::var_os(FOLDER) else { return };
    println!("READY");
    for generation in (1..=250_u8).cycle() {
        save_with(Path::new(&folder).join("latest"), &tree(generation), &options()).unwrap();
    }
}

#[test]
fn a_killed_save_never_mixes_two_pairs() {
    let folder = tempfile::tempdir().unwrap();
    let stem = folder.path().join("latest");
    let (mut ended, mut left) = (0, 0);
    for kill in 0..KILLS {
        let mut child = child("crash::killed_pair_saves::child_saves_pairs_until_killed")
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.map(Result::unwrap).find(|line| line.contains("READY")).expect("the child saves");
        thread::sleep(Duration::from_micros(kill * 7919 % 60_000));
        child.kill().unwrap();
        child.wait().unwrap();
        let now = generation(&stem);
        assert!(ended == 0 || now.is_some(), "neither the old pair nor the new one can be read");
        ended += usize::from(now.is_some());
        left += fs::read_dir(folder.path()).unwrap().count().saturating_sub(2);
        let suffixes = [".data".to_owned(), ".manifest".to_owned()];
        drop(Staged::of_siblings(&stem, &suffixes, true).unwrap());
        assert_eq!(generation(&stem), now, "ending what was begun changes nothing for a reader");
    }
    assert!(ended > 0, "no save ever ended");
    assert!(left > 0, "no save was ever interrupted");
}

/// The whole way of `open`, by the stem of a pair and by its manifest.
#[test]
fn a_dead_writers_pair_is_opened_by_many_at_once() {
    const READERS: usize = 8;
    const OPENS: usize = 200;
    let suffixes = [".data", ".manifest"];
    let file = |stem: &Path, suffix: &str| PathBuf::from(format!("{}{suffix}", stem.display()));
    let root = tempfile::tempdir().unwrap();
    let source = root.path().join("source");
    save_with(&source, &tree(7), &SaveOptions { not_durable: true, ..options() }).unwrap();
    for moves in 1..4 {
        let stem = root.path().join(format!("model_{moves}"));
        save_with(&stem, &tree(1), &options()).unwrap();
        let staged = Staged::of_siblings(&stem, &suffixes.map(str::to_owned), true).unwrap();
        let mut staged = staged.durable(false);
        for (at, suffix) in suffixes.into_iter().enumerate() {
            let mut writer = staged.sibling_writer(at, 0, 0).unwrap();
            writer.write(&fs::read(file(&source, suffix)).unwrap()).unwrap();
            writer.finish().unwrap();
        }
        assert!(staged.die_after(moves).is_err());
        drop(staged);
        thread::scope(|scope| {
            for _ in 0..READERS {
                scope.spawn(|| {
                    for at in 0..OPENS {
                        let path = if at % 2 == 0 { stem.clone() } else { file(&stem, ".manifest") };
                        let opened = regrow::open(&path);
                        assert!(opened.is_ok(), "{} after {moves} moves: {opened:?}", path.display());
                    }
                });
            }
        });
    }
}
