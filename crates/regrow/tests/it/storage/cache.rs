//! The read-through cache. Reads return the bytes of the bucket, even if cached files are damaged,
//! and the cache stays within its bound.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::common::buckets::s3;
use crate::common::{bytes_of, layouts, tree};
use regrow::array::Region;
use regrow::engine::{Layout, load};
use regrow::location::{Location, ToLocation};
use regrow::{Cache, ErrorKind, SaveOptions, open, save_with};
use regrow_testkit::object_server::{ObjectServer, Op};
use tempfile::TempDir;

struct Setting {
    server: ObjectServer,
    root: Location,
    folder: TempDir,
}

impl Setting {
    fn new() -> Self {
        let server = ObjectServer::start().unwrap();
        server.create_bucket("bucket");
        let root = bucket(&server);
        Self { server, root, folder: tempfile::tempdir().unwrap() }
    }

    fn cache(&self) -> Cache {
        Cache::at(self.folder.path().join("cache")).unwrap()
    }

    /// The files of the blocks.
    fn blocks(&self) -> Vec<PathBuf> {
        let entries =
            |folder: &Path| fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
        let mut blocks: Vec<PathBuf> = entries(&self.folder.path().join("cache/blocks"))
            .flat_map(|folder| entries(&folder).collect::<Vec<_>>())
            .collect();
        blocks.sort();
        blocks
    }

    fn blocks_len_bytes(&self) -> u64 {
        self.blocks().iter().map(|path| fs::metadata(path).unwrap().len()).sum()
    }
}

fn bucket(server: &ObjectServer) -> Location {
    let options = s3(server.endpoint());
    Location::with_options(Path::new("s3://bucket/runs"), &options).unwrap()
}

fn options(layout: &Layout) -> SaveOptions {
    SaveOptions { layout: layout.clone(), overwrite: true, ..SaveOptions::default() }
}

#[test]
fn a_second_load_of_any_layout_fetches_no_bytes() {
    let setting = Setting::new();
    for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
        let path = setting.root.join(format!("x{at}{suffix}"));
        save_with(&path, &tree(at as u8), &options(&layout)).unwrap();
        let want = bytes_of(&tree(at as u8));
        assert!(bytes_of(&load(path.cached(&setting.cache())).unwrap()) == want, "{path}");
        setting.server.clear_requests();
        // Another process has another `Cache` of the same folder.
        let cache = setting.cache();
        assert!(bytes_of(&load(path.cached(&cache)).unwrap()) == want, "{path}");
        let gets: Vec<_> =
            setting.server.requests().into_iter().filter(|asked| asked.op == Op::Get).collect();
        assert!(gets.is_empty(), "{path}: {gets:?}");
        assert_eq!((cache.report().miss_bytes, cache.report().damaged), (0, 0), "{path}");
        assert!(cache.report().hit_bytes > 0, "{path}");
    }
}

#[test]
fn a_slice_fetches_its_blocks_alone_and_by_one_request() {
    let setting = Setting::new();
    let path = setting.root.join("x");
    save_with(&path, &tree(1), &SaveOptions::default()).unwrap();
    let cache = setting.cache();
    let checkpoint = open(path.cached(&cache)).unwrap();
    let leaf = checkpoint.find("kernel").unwrap();
    let before = cache.report();
    setting.server.clear_requests();
    let slice = Region::new(vec![3, 0], vec![1, 1500]).unwrap();
    let first = checkpoint.region(leaf, &slice).unwrap().to_c_order().unwrap();
    assert_eq!(setting.server.count(Op::Get), 1);
    let fetched = cache.report().miss_bytes - before.miss_bytes;
    assert!(fetched > 0 && fetched <= 5 << 20, "{fetched}");
    let again =
        open(path.cached(&setting.cache())).unwrap().region(leaf, &slice).unwrap().to_c_order().unwrap();
    assert_eq!(setting.server.count(Op::Get), 1);
    assert!(first == again && first[..] == bytes_of(&tree(1))[2].1[3 * 6000..4 * 6000]);
}

#[test]
fn a_replaced_object_is_read_again() {
    let setting = Setting::new();
    for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
        let path = setting.root.join(format!("x{at}{suffix}"));
        if layout.name() == "pytree_data" {
            continue; // An overwrite of a pair in a bucket is refused.
        }
        for fill in [1, 2, 1, 3] {
            save_with(&path, &tree(fill), &options(&layout)).unwrap();
            let loaded = load(path.cached(&setting.cache())).unwrap();
            assert!(bytes_of(&loaded) == bytes_of(&tree(fill)), "{path}: {fill}");
        }
    }
}

#[test]
fn damage_to_any_block_is_found_and_mended() {
    let setting = Setting::new();
    let path = setting.root.join("x.npz");
    save_with(&path, &tree(1), &options(&Layout::from_name("npy", serde_json::Value::Null).unwrap()))
        .unwrap();
    let want = bytes_of(&tree(1));
    let reload = || {
        let cache = setting.cache();
        assert!(bytes_of(&load(path.cached(&cache)).unwrap()) == want);
        cache.report()
    };
    reload();
    let blocks = setting.blocks();
    assert!(blocks.len() > 10);
    type Damage<'a> = (&'a str, Box<dyn Fn(usize, &Path) + 'a>);
    let change = |at: usize, path: &Path, change: &dyn Fn(usize, &mut Vec<u8>)| {
        let mut bytes = fs::read(path).unwrap();
        change(at, &mut bytes);
        fs::write(path, bytes).unwrap();
    };
    let whole: Vec<Vec<u8>> = blocks.iter().map(|path| fs::read(path).unwrap()).collect();
    let damages: Vec<Damage<'_>> = vec![
        (
            "cannot detect damage",
            Box::new(|at, path| {
                change(at, path, &|at, bytes| {
                    let byte = at * 7919 % bytes.len();
                    bytes[byte] ^= 1 << (at % 8);
                })
            }),
        ),
        (
            "cannot detect damage of the header",
            Box::new(|at, path| change(at, path, &|at, bytes| bytes[at * 5 % 60] ^= 4)),
        ),
        (
            "the end is missing",
            Box::new(|at, path| change(at, path, &|_, bytes| bytes.truncate(bytes.len() - 1 - at))),
        ),
        ("all of it is missing", Box::new(|at, path| change(at, path, &|_, bytes| bytes.clear()))),
        ("more than it was", Box::new(|at, path| change(at, path, &|_, bytes| bytes.push(0)))),
        ("zeros, as after a power cut", Box::new(|at, path| change(at, path, &|_, bytes| bytes.fill(0)))),
        ("another block", Box::new(|at, path| fs::write(path, &whole[(at + 1) % whole.len()]).unwrap())),
    ];
    for (what, damage) in damages {
        for (at, block) in blocks.iter().enumerate() {
            damage(at, block);
        }
        let report = reload();
        assert_eq!(report.damaged, blocks.len() as u64, "{what}");
        assert_eq!(reload().damaged, 0, "{what}");
        assert_eq!(setting.blocks(), blocks, "{what}");
    }
    // Something that is no file.
    for block in &blocks {
        fs::remove_file(block).unwrap();
        fs::create_dir(block).unwrap();
    }
    reload();
}

#[test]
fn the_cache_stays_within_its_bound() {
    let setting = Setting::new();
    let bound = 2 << 20;
    let cache = || setting.cache().with_len_max_bytes(bound);
    for at in 0..3 {
        let path = setting.root.join(format!("x{at}"));
        save_with(&path, &tree(at), &SaveOptions::default()).unwrap();
        assert!(bytes_of(&load(path.cached(&cache())).unwrap()) == bytes_of(&tree(at)));
        let held = setting.blocks_len_bytes();
        assert!(held <= bound && held > bound / 2, "{held} of {bound}");
    }
}

#[test]
fn the_least_recently_used_block_goes_first() {
    let setting = Setting::new();
    let store = setting.root.cached(&setting.cache().with_len_max_bytes(900 << 10)).store();
    let read = |name: &str| {
        let key = format!("runs/{name}");
        setting.server.put("bucket", &key, name.repeat(256 << 10));
        let bytes = store.get(name.as_bytes(), regrow_store::ByteRange::Full).unwrap().unwrap();
        assert!(bytes.iter().all(|&byte| byte == name.as_bytes()[0]));
    };
    let held = || -> std::collections::BTreeMap<u8, PathBuf> {
        setting.blocks().into_iter().map(|path| (fs::read(&path).unwrap()[64], path)).collect()
    };
    for name in ["a", "b", "c"] {
        read(name);
    }
    let hours_ago = |hours: u64| std::time::SystemTime::now() - std::time::Duration::from_secs(3600 * hours);
    for (name, hours) in [(b'a', 2), (b'b', 3), (b'c', 1)] {
        let file = fs::File::options().append(true).open(&held()[&name]).unwrap();
        file.set_modified(hours_ago(hours)).unwrap();
    }
    read("d");
    assert_eq!(held().into_keys().collect::<Vec<_>>(), *b"acd");
    // Use makes a block young.
    read("a");
    read("e");
    assert_eq!(held().into_keys().collect::<Vec<_>>(), *b"ade");
}

#[test]
fn a_block_above_the_bound_is_not_kept() {
    let setting = Setting::new();
    let path = setting.root.join("x");
    save_with(&path, &tree(1), &SaveOptions::default()).unwrap();
    let loaded = load(path.cached(&setting.cache().with_len_max_bytes(100))).unwrap();
    assert!(bytes_of(&loaded) == bytes_of(&tree(1)));
    assert_eq!(setting.blocks_len_bytes(), 0);
}

#[test]
fn a_cache_that_cannot_be_written_costs_only_speed() {
    let setting = Setting::new();
    let path = setting.root.join("x");
    save_with(&path, &tree(1), &SaveOptions::default()).unwrap();
    let cache = setting.cache();
    let blocks = setting.folder.path().join("cache/blocks");
    fs::remove_dir(&blocks).unwrap();
    fs::write(&blocks, "in the way").unwrap();
    for _ in 0..2 {
        assert!(bytes_of(&load(path.cached(&cache)).unwrap()) == bytes_of(&tree(1)));
    }
    assert_eq!(cache.report().hit_bytes, 0);
    assert_eq!(fs::read(&blocks).unwrap(), b"in the way");
}

#[test]
fn many_readers_share_a_folder() {
    let setting = Setting::new();
    let path = setting.root.join("x");
    save_with(&path, &tree(1), &SaveOptions::default()).unwrap();
    let want = bytes_of(&tree(1));
    std::thread::scope(|scope| {
        for reader in 0..6 {
            let (setting, path, want) = (&setting, &path, &want);
            scope.spawn(move || {
                for _ in 0..3 {
                    let len_max_bytes = if reader % 2 == 0 { 1 << 30 } else { 3 << 20 };
                    let cache = setting.cache().with_len_max_bytes(len_max_bytes);
                    assert!(bytes_of(&load(path.cached(&cache)).unwrap()) == *want);
                    assert_eq!(cache.report().damaged, 0);
                }
            });
        }
    });
    let left: Vec<_> = setting.blocks().into_iter().filter(|path| path.extension().is_some()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_world_writable_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let error = Cache::at(folder.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("mode 1777"), "{error}");
    let inside = Cache::at(folder.path().join("mine")).unwrap();
    let mode = fs::metadata(inside.folder()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(Cache::at(&file).unwrap_err().to_string().contains("cannot make the cache"));
}

#[test]
fn local_paths_and_memory_are_not_cached() {
    let setting = Setting::new();
    let folder = tempfile::tempdir().unwrap();
    for path in [Location::local(folder.path().join("x")), "memory://cache/x".to_location().unwrap()] {
        save_with(&path, &tree(1), &SaveOptions::default()).unwrap();
        let cached = path.cached(&setting.cache());
        assert!(bytes_of(&load(&cached).unwrap()) == bytes_of(&tree(1)));
    }
    assert!(setting.blocks().is_empty());
}

#[test]
fn web_servers_are_read_through_it_too() {
    let setting = Setting::new();
    save_with(setting.root.join("x"), &tree(1), &SaveOptions::default()).unwrap();
    let url = format!("{}/bucket/runs/x", setting.server.endpoint()).to_location().unwrap();
    assert!(bytes_of(&load(url.cached(&setting.cache())).unwrap()) == bytes_of(&tree(1)));
    let cache = setting.cache();
    setting.server.clear_requests();
    assert!(bytes_of(&load(url.cached(&cache)).unwrap()) == bytes_of(&tree(1)));
    assert_eq!(cache.report().miss_bytes, 0);
    let sent: Vec<_> = setting.server.requests().into_iter().filter(|asked| asked.range.is_some()).collect();
    assert!(sent.is_empty(), "{sent:?}");
}
