//! Tests of background saves: the snapshot, the order, the errors and the files.

use std::fs;
use std::sync::mpsc;

use bytes::Bytes;

use super::*;
use crate::array::{Array, ArraySource, Dtype, Region, Shape};
use crate::monitor::Monitor;
use crate::tree::{Key, LeafData, LeafKind, NodeKind, TreeBuilder};

fn tree_of(arrays: Vec<(LeafKind, Array)>) -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::List).unwrap();
    for (at, (kind, array)) in arrays.into_iter().enumerate() {
        build.leaf(Key::Index(at), Leaf { kind, data: LeafData::Array(array), sharding: None }).unwrap();
    }
    build.close().unwrap();
    build.finish().unwrap()
}

fn array_of(len: usize, value: u8) -> Array {
    Array::new(Dtype::UInt8, Shape::new(vec![len as u64]).unwrap(), vec![value; len].into()).unwrap()
}

fn one(len: usize, value: u8) -> Tree<Leaf> {
    tree_of(vec![(LeafKind::NumpyArray, array_of(len, value))])
}

/// An array whose bytes are available only when the test opens the gate. A save of it runs until
/// then.
#[derive(Debug)]
struct Gate(Mutex<mpsc::Receiver<()>>);

fn gated(len: u64) -> (Tree<Leaf>, mpsc::Sender<()>) {
    let (open, gate) = mpsc::channel();
    let shape = Shape::new(vec![len]).unwrap();
    let array = Array::deferred(Dtype::UInt8, shape, Arc::new(Gate(Mutex::new(gate)))).unwrap();
    (tree_of(vec![(LeafKind::NumpyArray, array)]), open)
}

impl ArraySource for Gate {
    fn read_c_order(&self, _offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        // If the sender was dropped, the gate is open.
        let _ = self.0.lock().unwrap().recv();
        out.fill(7);
        Ok(())
    }

    fn read_region(&self, _region: &Region, out: &mut [u8]) -> Result<()> {
        self.read_c_order(0, out)
    }
}

/// Memory that is written without Rust's knowledge, like memory of NumPy.
#[derive(Clone)]
struct Foreign(Arc<Vec<std::sync::atomic::AtomicU8>>);

impl Foreign {
    fn new(len: usize) -> Self {
        Self(Arc::new((0..len).map(|_| 1.into()).collect()))
    }

    fn set(&self, value: u8) {
        self.0[0].store(value, std::sync::atomic::Ordering::Relaxed);
    }
}

/// After a call of `set`, reads return another first byte.
impl std::fmt::Debug for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Foreign")
    }
}

impl ArraySource for Foreign {
    fn read_c_order(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = self.0[offset_bytes as usize + at].load(std::sync::atomic::Ordering::Relaxed);
        }
        Ok(())
    }

    fn read_region(&self, _region: &Region, out: &mut [u8]) -> Result<()> {
        self.read_c_order(0, out)
    }
}

fn foreign(memory: &Foreign) -> Tree<Leaf> {
    let shape = Shape::new(vec![memory.0.len() as u64]).unwrap();
    let array = Array::deferred(Dtype::UInt8, shape, Arc::new(memory.clone())).unwrap();
    tree_of(vec![(LeafKind::NumpyArray, array)])
}

fn first_byte(path: &Path) -> u8 {
    let tree = crate::engine::load(path).unwrap();
    match &tree.leaves()[0].data {
        LeafData::Array(array) => array.to_c_order().unwrap()[0],
        _ => panic!("no array"),
    }
}

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn options(when_busy: WhenBusy) -> AsyncOptions {
    let save = SaveOptions { not_durable: true, ..SaveOptions::default() };
    AsyncOptions { save, when_busy, ..AsyncOptions::default() }
}

#[test]
fn what_is_copied_may_change_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let saver = AsyncSaver::new();
    let memory = Foreign::new(100_000);
    let (blocker, open) = gated(100_000);
    let _blocker = saver.save(folder.path().join("blocker"), &blocker, &options(WhenBusy::Queue)).unwrap();
    let copy = AsyncOptions { copy: CopyLeaves::Mutable, ..options(WhenBusy::Queue) };
    let handle = saver.save(folder.path().join("copy"), &foreign(&memory), &copy).unwrap().unwrap();
    assert_eq!(handle.blocked().copied_bytes, 100_000);
    let by_reference = saver
        .save(folder.path().join("reference"), &foreign(&memory), &options(WhenBusy::Queue))
        .unwrap()
        .unwrap();
    assert_eq!(by_reference.blocked().copied_bytes, 0);
    memory.set(9);
    drop(open);
    handle.wait().unwrap();
    by_reference.wait().unwrap();
    assert_eq!(first_byte(&folder.path().join("copy")), 1);
    assert_eq!(first_byte(&folder.path().join("reference")), 9);
}

#[test]
fn jax_arrays_are_referred_to_unless_they_are_small() {
    let leaf = |kind: LeafKind, len: u64| Leaf {
        kind,
        data: LeafData::Array(array_of(len as usize, 0)),
        sharding: None,
    };
    let chooses = |kind, len| CopyLeaves::Mutable.chooses(&leaf(kind, len));
    assert!(!chooses(LeafKind::JaxArray, REFER_FROM_BYTES));
    assert!(chooses(LeafKind::JaxArray, REFER_FROM_BYTES - 1));
    assert!(chooses(LeafKind::NumpyArray, 10 * REFER_FROM_BYTES));
    assert!(CopyLeaves::All.chooses(&leaf(LeafKind::JaxArray, 10 * REFER_FROM_BYTES)));
    assert!(!CopyLeaves::Nothing.chooses(&leaf(LeafKind::NumpyArray, 1)));
}

#[test]
fn a_changed_source_is_named_and_not_saved() {
    let folder = tempfile::tempdir().unwrap();
    let saver = AsyncSaver::new();
    let (blocker, open) = gated(100_000);
    let _blocker = saver.save(folder.path().join("blocker"), &blocker, &options(WhenBusy::Queue)).unwrap();
    let checked = AsyncOptions { check_source: true, ..options(WhenBusy::Queue) };
    let memory = Foreign::new(100_000);
    let changed = saver.save(folder.path().join("changed"), &foreign(&memory), &checked).unwrap().unwrap();
    let sound =
        saver.save(folder.path().join("sound"), &foreign(&Foreign::new(9)), &checked).unwrap().unwrap();
    memory.set(9);
    drop(open);
    let error = changed.wait().unwrap_err();
    assert_eq!(
        (error.kind(), error.place().leaf.as_ref().unwrap().to_string()),
        (ErrorKind::SourceChanged, "0".into())
    );
    sound.wait().unwrap();
    saver.wait().unwrap();
    assert_eq!(entries(folder.path()), ["blocker", "sound"]);
}

#[test]
fn waits_skips_or_queues_when_busy() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let saver = AsyncSaver::new();
    let (blocker, open) = gated(100_000);
    let first = saver.save(path("0"), &blocker, &options(WhenBusy::Wait)).unwrap().unwrap();
    assert!(saver.save(path("1"), &one(10, 1), &options(WhenBusy::Skip)).unwrap().is_none());
    let queued = saver.save(path("2"), &one(10, 2), &options(WhenBusy::Queue)).unwrap().unwrap();
    assert!(saver.is_busy() && !first.is_done() && !queued.is_done());
    assert!(!saver.wait_for(Duration::from_millis(20)).unwrap());
    assert!(queued.wait_for(Duration::from_millis(20)).is_none());
    std::thread::scope(|scope| {
        let waiting =
            scope.spawn(|| saver.save(path("3"), &one(10, 3), &options(WhenBusy::Wait)).unwrap().unwrap());
        std::thread::sleep(Duration::from_millis(30));
        assert!(!waiting.is_finished());
        drop(open);
        let waited = waiting.join().unwrap();
        assert!(first.is_done() && queued.is_done(), "it waited for both");
        assert!(waited.blocked().waited_seconds > 0.01);
        waited.wait().unwrap();
    });
    let before = Blocked { seconds: 7.0, waited_seconds: 5.0, copied_bytes: 3 };
    let late = AsyncOptions { before, ..options(WhenBusy::Wait) };
    let late = saver.save(path("5"), &one(10, 5), &late).unwrap().unwrap().blocked();
    assert!((7.0..8.0).contains(&late.seconds) && (5.0..6.0).contains(&late.waited_seconds), "{late:?}");
    assert_eq!(late.copied_bytes, 3);
    saver.wait().unwrap();
    assert_eq!((first_byte(&path("0")), first_byte(&path("2")), first_byte(&path("3"))), (7, 2, 3));
    assert!(saver.save(path("4"), &one(10, 4), &options(WhenBusy::Skip)).unwrap().is_some());
    saver.wait().unwrap();
    assert_eq!(entries(folder.path()), ["0", "2", "3", "4", "5"]);
}

#[test]
fn the_queue_does_not_grow_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let saver = AsyncSaver::new();
    let (blocker, open) = gated(100_000);
    let queue = |name: usize, tree: &Tree<Leaf>| {
        saver.save(folder.path().join(name.to_string()), tree, &options(WhenBusy::Queue)).unwrap().unwrap()
    };
    let _first = queue(1000, &blocker);
    while saver.running().is_none() {
        std::thread::yield_now();
    }
    let has_room = |when_busy| saver.wait_for_room(when_busy, Duration::from_millis(10)).unwrap();
    for name in 0..QUEUE_LEN_MAX {
        assert!(has_room(WhenBusy::Queue));
        let _queued = queue(name, &one(10, 0));
    }
    assert!(!has_room(WhenBusy::Queue) && !has_room(WhenBusy::Wait) && has_room(WhenBusy::Skip));
    std::thread::scope(|scope| {
        let more = scope.spawn(|| {
            let _more = queue(2000, &one(10, 0));
        });
        std::thread::sleep(Duration::from_millis(30));
        assert!(!more.is_finished());
        drop(open);
    });
    saver.wait().unwrap();
    assert_eq!(entries(folder.path()).len(), QUEUE_LEN_MAX + 2);
    assert!(has_room(WhenBusy::Queue) && has_room(WhenBusy::Wait));
}

/// A leaf that the default layout cannot store.
fn refused() -> Tree<Leaf> {
    tree_of(vec![(LeafKind::Unknown("x".into()), array_of(1, 0))])
}

#[test]
fn the_first_call_gets_a_failure_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let saver = AsyncSaver::new();
    let handle = saver.save(path("bad"), &refused(), &options(WhenBusy::Wait)).unwrap().unwrap();
    let first = handle.wait().unwrap_err();
    assert_eq!(first.kind(), ErrorKind::Unsupported);
    assert_eq!(handle.wait().unwrap_err().to_string(), first.to_string());
    saver.wait().unwrap();

    let _unwatched = saver.save(path("bad"), &refused(), &options(WhenBusy::Wait)).unwrap();
    let error = saver.save(path("good"), &one(1, 1), &options(WhenBusy::Wait)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("bad in the background failed"), "{error}");
    saver.wait().unwrap();
    assert!(entries(folder.path()).is_empty(), "the save that told of the failure saved nothing");

    let _unwatched = saver.save(path("bad"), &refused(), &options(WhenBusy::Wait)).unwrap();
    assert_eq!(saver.wait().unwrap_err().kind(), ErrorKind::Unsupported);
    saver.wait().unwrap();
}

#[test]
fn what_is_there_already_is_said_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("taken");
    save_async_with(&path, &one(1, 1), &options(WhenBusy::Wait)).unwrap().wait().unwrap();
    let again = save_async_with(&path, &one(1, 2), &options(WhenBusy::Wait));
    assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
    let mut replace = options(WhenBusy::Wait);
    replace.save.overwrite = true;
    save_async_with(&path, &one(1, 3), &replace).unwrap().wait().unwrap();
    assert_eq!(first_byte(&path), 3);
}

#[test]
fn a_cancelled_save_leaves_nothing_and_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let saver = AsyncSaver::new();
    // Larger than the writer's buffers, so that the save can stop at a buffer.
    let (blocker, open) = gated(32 << 20);
    let with_monitor = || {
        let mut options = options(WhenBusy::Queue);
        options.save.monitor = Monitor::new();
        options
    };
    let running = saver.save(folder.path().join("a"), &blocker, &with_monitor()).unwrap().unwrap();
    let waiting = saver.save(folder.path().join("b"), &one(10, 1), &with_monitor()).unwrap().unwrap();
    waiting.cancel();
    running.cancel();
    drop(open);
    assert_eq!(running.wait().unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(waiting.wait().unwrap_err().kind(), ErrorKind::Cancelled);
    let unwatched = saver.save(folder.path().join("c"), &one(10, 1), &with_monitor()).unwrap().unwrap();
    unwatched.cancel();
    saver.wait().unwrap();
    assert!(entries(folder.path()).iter().all(|name| name == "c"));
}

#[test]
fn a_dropped_handle_of_its_own_saver_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    drop(save_async_with(&path, &one(1 << 20, 5), &options(WhenBusy::Wait)).unwrap());
    assert_eq!(first_byte(&path), 5);
}

#[test]
fn data_is_let_go_when_the_save_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let saver = AsyncSaver::new();
    struct Owner {
        _alive: Arc<()>,
    }
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &[1; 16]
        }
    }
    let alive = Arc::new(());
    let data = Bytes::from_owner(Owner { _alive: alive.clone() });
    let array = Array::new(Dtype::UInt8, Shape::new(vec![16]).unwrap(), data).unwrap();
    let tree = tree_of(vec![(LeafKind::NumpyArray, array)]);
    let handle = saver.save(folder.path().join("x"), &tree, &options(WhenBusy::Wait)).unwrap().unwrap();
    drop(tree);
    handle.wait().unwrap();
    saver.wait().unwrap();
    assert_eq!(Arc::strong_count(&alive), 1, "held only by this test");
}
