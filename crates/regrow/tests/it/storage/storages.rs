//! Every layout in every storage: a checkpoint loads as saved, bit for bit, and each promise of a
//! save holds.

use std::path::Path;

use crate::common::{bytes_of, layouts, tree};
use regrow::array::Region;
use regrow::engine::{AsyncOptions, Layout, load, save_async_with};
use regrow::location::Location;
use regrow::{
    ConvertOptions, ErrorKind, LoadOptions, OpenOptions, SaveOptions, convert, open, open_with, save_with,
    verify,
};
use regrow_store::StoreExt;

/// Storages, each with a place of its own for a test.
fn storages(test: &str) -> Vec<(Location, Option<tempfile::TempDir>)> {
    let mut storages = crate::common::storages(test);
    storages.extend(crate::common::buckets::buckets(test).into_iter().map(|bucket| (bucket, None)));
    storages
}

fn assert_sound(path: &Location) {
    let report = verify(path).unwrap();
    assert!(report.is_ok(), "{path}: {:?}", report.findings);
}

fn options(layout: &Layout) -> SaveOptions {
    SaveOptions { layout: layout.clone(), ..SaveOptions::default() }
}

#[test]
fn every_layout_loads_as_saved_from_every_storage() {
    for (root, _folder) in storages("comes-back") {
        for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
            let path = root.join(format!("x{at}{suffix}"));
            let say = |what: &dyn std::fmt::Display| format!("{} at {path}: {what}", layout.name());
            let tree = tree(at as u8);
            let report =
                save_with(&path, &tree, &options(&layout)).unwrap_or_else(|error| panic!("{}", say(&error)));
            assert_eq!(report.path, path.describe());
            assert!(report.stored_bytes > 0, "{}", say(&report));
            let loaded = load(&path).unwrap_or_else(|error| panic!("{}", say(&error)));
            assert!(bytes_of(&loaded) == bytes_of(&tree), "{}", say(&"other bytes"));
            let report = verify(&path).unwrap();
            assert!(report.is_ok(), "{}", say(&format!("{:?}", report.findings)));
            let checkpoint = open(&path).unwrap();
            assert_eq!(checkpoint.path(), path.describe());
            let leaf = checkpoint.find("kernel").unwrap();
            let region = Region::new(vec![100, 7], vec![3, 1000]).unwrap();
            let slice = checkpoint.region(leaf, &region).unwrap().to_c_order().unwrap();
            let whole = &bytes_of(&tree)[2].1;
            let row = |at: usize| &whole[(at * 1500 + 7) * 4..(at * 1500 + 1007) * 4];
            assert!(slice[..] == [row(100), row(101), row(102)].concat(), "{}", say(&"another slice"));
            // A second save is refused, and changes nothing.
            let error = save_with(&path, &self::tree(99), &options(&layout)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{}", say(&error));
            assert!(bytes_of(&load(&path).unwrap()) == bytes_of(&tree));
        }
    }
}

#[test]
fn an_overwrite_replaces_the_whole_checkpoint() {
    for (root, _folder) in storages("overwrite") {
        for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
            let path = root.join(format!("x{at}{suffix}"));
            save_with(&path, &tree(1), &options(&layout)).unwrap();
            let before = open(&path).unwrap();
            let overwrite = SaveOptions { overwrite: true, ..options(&layout) };
            match save_with(&path, &tree(2), &overwrite) {
                Ok(_) => assert!(bytes_of(&load(&path).unwrap()) == bytes_of(&tree(2)), "{path}"),
                Err(error) => {
                    assert!(layout.name() == "pytree_data" && path.commits_by_marker(), "{path}: {error}");
                    assert_eq!(error.kind(), ErrorKind::Unsupported);
                    assert!(bytes_of(&load(&path).unwrap()) == bytes_of(&tree(1)));
                    continue;
                }
            }
            // A reader that had it open sees the old one, or that it was replaced.
            match before.load(&LoadOptions::default()) {
                Ok(old) => {
                    assert!(bytes_of(&old) == bytes_of(&tree(1)), "{path}: {} is a mixture", layout.name())
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Replaced, "{path}: {error}"),
            }
            save_with(&path, &tree(3), &overwrite).unwrap();
            assert!(bytes_of(&load(&path).unwrap()) == bytes_of(&tree(3)));
            assert_sound(&path);
        }
        let names: Vec<_> = root.entries().unwrap().into_iter().map(|entry| entry.name).collect();
        let left = names.iter().filter(|name| name.to_string_lossy().contains("tmp")).count();
        assert_eq!(left, 0, "{names:?}");
    }
}

#[test]
fn a_base_is_reused_and_each_checkpoint_is_whole_without_the_other() {
    for (root, _folder) in storages("base") {
        let (first, second, third) = (root.join("1"), root.join("2"), root.join("3"));
        save_with(&first, &tree(1), &SaveOptions::default()).unwrap();
        let based = |base: &Location| SaveOptions { base: Some(base.clone()), ..SaveOptions::default() };
        let report = save_with(&second, &tree(1), &based(&first)).unwrap();
        assert!(report.reused_bytes >= report.data_bytes, "{report}");
        let report = save_with(&third, &tree(2), &based(&second)).unwrap();
        assert_eq!(report.reused_bytes, 0);
        let overwrite = SaveOptions { overwrite: true, ..SaveOptions::default() };
        save_with(&first, &tree(9), &overwrite).unwrap();
        assert!(bytes_of(&load(&second).unwrap()) == bytes_of(&tree(1)));
        assert_sound(&second);
    }
}

#[test]
fn steps_are_found_and_unfinished_ones_are_not() {
    for (root, _folder) in storages("steps") {
        for (step, fill) in [(1, 1), (2, 2), (10, 3)] {
            save_with(root.join(step.to_string()), &tree(fill), &SaveOptions::default()).unwrap();
        }
        let newest = open(&root).unwrap();
        assert_eq!(newest.description().steps, [1, 2, 10]);
        assert!(bytes_of(&newest.load(&LoadOptions::default()).unwrap()) == bytes_of(&tree(3)));
        let second = open_with(&root, &OpenOptions { step: Some(2), ..OpenOptions::default() }).unwrap();
        assert!(bytes_of(&second.load(&LoadOptions::default()).unwrap()) == bytes_of(&tree(2)));
        if root.commits_by_marker() {
            root.join("2").store().delete(b"commit_success.txt").unwrap();
            assert_eq!(open(&root).unwrap().description().steps, [1, 10]);
            assert_eq!(open(root.join("2")).unwrap_err().kind(), ErrorKind::Uncommitted);
        }
    }
}

#[test]
fn convert_goes_from_any_storage_to_any_other() {
    let storages = storages("convert");
    for (number, (from, _folder)) in storages.iter().enumerate() {
        for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
            let source = from.join(format!("s{at}{suffix}"));
            save_with(&source, &tree(5), &options(&layout)).unwrap();
            for (to, _folder) in &storages {
                let target = to.join(format!("t{at}-{number}"));
                convert(&source, &target, &ConvertOptions { lossy: true, ..ConvertOptions::default() })
                    .unwrap();
                assert!(bytes_of(&load(&target).unwrap()) == bytes_of(&tree(5)), "{source} to {target}");
            }
        }
    }
}

#[test]
fn saves_in_the_background_go_anywhere() {
    for (root, _folder) in storages("background") {
        let path = root.join("x");
        let handle = save_async_with(&path, &tree(4), &AsyncOptions::default()).unwrap();
        assert_eq!(handle.path(), path.describe());
        handle.wait().unwrap();
        assert!(bytes_of(&load(&path).unwrap()) == bytes_of(&tree(4)));
    }
}

#[test]
fn every_flipped_byte_of_the_default_layout_is_found() {
    for (root, _folder) in storages("flips") {
        let path = root.join("x");
        save_with(&path, &tree(6), &SaveOptions::default()).unwrap();
        let store = path.store();
        for key in store.list(b"").unwrap() {
            let name = String::from_utf8(key.clone()).unwrap();
            if name.ends_with("commit_success.txt") {
                continue;
            }
            let whole = store.get(&key, regrow_store::ByteRange::Full).unwrap().unwrap();
            for at in [0, whole.len() / 2, whole.len().saturating_sub(1)] {
                let mut bytes = whole.to_vec();
                let Some(byte) = bytes.get_mut(at) else { continue };
                *byte ^= 0x10;
                path.store().put(&key, bytes.into()).unwrap();
                let found = verify(&path).map(|report| report.is_ok());
                assert!(!matches!(found, Ok(true)), "byte {at} of {name} in {root}");
            }
            path.store().put(&key, whole).unwrap();
        }
        assert_sound(&path);
    }
}

#[test]
fn a_missing_checkpoint_is_not_found() {
    for (root, _folder) in storages("missing") {
        let error = open(root.join("nothing")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("nothing"), "{error}");
    }
    let error = open(Path::new("hdfs://host/x")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("memory://"), "{error}");
}

#[cfg(feature = "cloud")]
mod requests {
    use regrow::array::{Array, Dtype, Shape};
    use regrow::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};
    use regrow_testkit::object_server::{Fault, ObjectServer, Op};

    use super::*;
    use crate::common::buckets::s3;

    fn bucket(server: &ObjectServer) -> Location {
        server.create_bucket("requests");
        let options = s3(server.endpoint());
        Location::with_options(Path::new("s3://requests/runs"), &options).unwrap()
    }

    /// So many leaves of one byte.
    fn scalars(count: usize, first: u8) -> Tree<Leaf> {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        for at in 0..count {
            let array = Array::new(
                Dtype::UInt8,
                Shape::new(vec![1]).unwrap(),
                vec![first.wrapping_add(at as u8)].into(),
            )
            .unwrap();
            build.leaf(Key::dict(format!("leaf_{at:04}")), Leaf::array(array)).unwrap();
        }
        build.close().unwrap();
        build.finish().unwrap()
    }

    /// What a piece of work asks of the bucket, in order.
    fn asked(server: &ObjectServer, work: impl FnOnce()) -> Vec<String> {
        server.clear_requests();
        work();
        server.requests().iter().map(|request| format!("{:?} {}", request.op, request.key)).collect()
    }

    #[test]
    fn the_default_layout_opens_with_one_list_and_one_read() {
        let server = ObjectServer::start().unwrap();
        let path = bucket(&server).join("x");
        save_with(&path, &tree(1), &SaveOptions::default()).unwrap();
        // Both at once.
        let mut opening = asked(&server, || drop(open(&path).unwrap()));
        opening.sort();
        assert_eq!(opening, ["Get runs/x/regrow.json", "List runs/x/"]);
        let checkpoint = open(&path).unwrap();
        let leaf = checkpoint.find("kernel").unwrap();
        let slice = Region::new(vec![3, 0], vec![1, 1500]).unwrap();
        let slicing = asked(&server, || drop(checkpoint.region(leaf, &slice).unwrap()));
        assert_eq!(slicing, ["Get runs/x/model.safetensors"]);
        // 4.2 MB in pieces of 4 MiB.
        let loading = asked(&server, || drop(checkpoint.load(&LoadOptions::default()).unwrap()));
        assert_eq!(loading, ["Get runs/x/model.safetensors", "Get runs/x/model.safetensors"]);
    }

    #[test]
    fn other_layouts_open_with_few_requests_for_any_number_of_leaves() {
        let server = ObjectServer::start().unwrap();
        let root = bucket(&server);
        for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
            let path = root.join(format!("x{at}{suffix}"));
            save_with(&path, &tree(1), &options(&layout)).unwrap();
            let opening = asked(&server, || drop(open(&path).unwrap()));
            let lists = opening.iter().filter(|request| request.starts_with("List")).count();
            let most = if layout.name() == "pytree_data" { 30 } else { 11 };
            assert!(opening.len() <= most, "{} {at}: {opening:?}", layout.name());
            assert!(lists <= 6 && server.count(Op::Put) == 0, "{} {at}: {opening:?}", layout.name());
        }
    }

    #[test]
    fn orbax_checkpoint_opens_with_each_document_read_once() {
        let server = ObjectServer::start().unwrap();
        let root = bucket(&server);
        let layout = Layout::from_name("orbax", serde_json::json!({})).unwrap();
        save_with(root.join("x"), &tree(1), &options(&layout)).unwrap();
        save_with(root.join("steps/7"), &tree(1), &options(&layout)).unwrap();
        for path in [root.join("x"), root.join("steps")] {
            let opening = asked(&server, || drop(open(&path).unwrap()));
            // The last list tells whether the checkpoint was replaced.
            let mut documents: Vec<_> = opening.iter().filter(|request| request.starts_with("Get")).collect();
            let count = documents.len();
            documents.sort();
            documents.dedup();
            assert_eq!(documents.len(), count, "{opening:?}");
        }
    }

    #[test]
    fn a_killed_save_is_found_in_lists_of_several_pages() {
        let server = ObjectServer::builder().page_keys_max(3).start().unwrap();
        let root = bucket(&server);
        let layout = Layout::from_name("orbax", serde_json::json!({"ocdbt": false})).unwrap();
        let path = root.join("x");
        save_with(&path, &tree(1), &options(&layout)).unwrap();
        assert!(bytes_of(&load(&path).unwrap()) == bytes_of(&tree(1)));
        let overwrite = SaveOptions { overwrite: true, ..options(&layout) };
        save_with(&path, &tree(2), &overwrite).unwrap();
        assert!(bytes_of(&load(&path).unwrap()) == bytes_of(&tree(2)));
        // As a killed writer leaves it.
        server.delete("requests", "runs/x/commit_success.txt");
        server.put(
            "requests",
            "runs/x/regrow-writing.json",
            r#"{"nonce":"1","host":"other","pid":1,"since":1}"#,
        );
        assert_eq!(open(&path).unwrap_err().kind(), ErrorKind::Uncommitted);
        save_with(&path, &tree(3), &options(&layout)).unwrap();
        assert!(bytes_of(&load(&path).unwrap()) == bytes_of(&tree(3)));
    }

    #[test]
    fn a_checkpoint_of_several_list_pages_is_listed_once() {
        let server = ObjectServer::start().unwrap();
        let root = bucket(&server);
        let many = scalars(1100, 0);
        let layout = Layout::from_name("npy", serde_json::json!({})).unwrap();
        let path = root.join("many");
        save_with(&path, &many, &options(&layout)).unwrap();
        let opening = asked(&server, || {
            let checkpoint = open(&path).unwrap();
            assert_eq!(checkpoint.tree().len(), 1100);
            assert!(!checkpoint.is_replaced());
        });
        let count = |op: &str| opening.iter().filter(|request| request.starts_with(op)).count();
        let counts = (count("List"), count("Head"), count("Get"));
        // Each leaf, what it is looked at by, and the record that another layout would have.
        assert!(counts.0 < 20 && counts.1 < 20 && counts.2 == 1102, "{counts:?}");
        let before = open(&path).unwrap();
        let overwrite = SaveOptions { overwrite: true, ..options(&layout) };
        save_with(&path, &scalars(1100, 1), &overwrite).unwrap();
        // Not one leaf, of the second page either, is read of another save.
        for at in [0, 500, 1050, 1099] {
            match before.read(at) {
                Ok(leaf) => assert_eq!(leaf.as_array().unwrap().to_c_order().unwrap()[..], [at as u8]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Replaced, "{error}"),
            }
        }
        assert_eq!(before.read(1000).unwrap_err().kind(), ErrorKind::Replaced);
    }

    #[test]
    fn lists_without_tags_suffice() {
        let server = ObjectServer::builder().lists_without_etags().start().unwrap();
        let root = bucket(&server);
        for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
            let path = root.join(format!("x{at}{suffix}"));
            save_with(&path, &tree(1), &options(&layout)).unwrap();
            let opening = asked(&server, || {
                let checkpoint = open(&path).unwrap();
                assert!(!checkpoint.is_replaced(), "{path}");
                assert!(bytes_of(&checkpoint.load(&LoadOptions::default()).unwrap()) == bytes_of(&tree(1)));
            });
            assert!(opening.len() < 120, "{path}: {} requests", opening.len());
        }
        let path = root.join("x0");
        let before = open(&path).unwrap();
        let overwrite = SaveOptions { overwrite: true, ..SaveOptions::default() };
        save_with(&path, &tree(2), &overwrite).unwrap();
        assert!(before.is_replaced());
        assert_eq!(before.load(&LoadOptions::default()).unwrap_err().kind(), ErrorKind::Replaced);
        assert!(bytes_of(&load(&path).unwrap()) == bytes_of(&tree(2)));
    }

    #[test]
    fn a_commit_during_a_look_is_not_taken_for_temporary_files() {
        let server = ObjectServer::start().unwrap();
        let path = bucket(&server).join("x");
        save_with(&path, &tree(1), &SaveOptions::default()).unwrap();
        // The other writer lists before the marker exists, and finds that the owner of the claim
        // has ended.
        let marker = server.get("requests", "runs/x/commit_success.txt").unwrap();
        let claim = r#"{"nonce":"1","host":"other","pid":1,"since":1}"#;
        server.put("requests", "runs/x/regrow-writing.json", claim);
        server.delete("requests", "runs/x/commit_success.txt");
        server.put("requests", "runs/x/commit_success.txt", marker);
        server.fault(Fault::stale_list(1).key("runs/x/").first(1));
        let error = save_with(&path, &tree(2), &SaveOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        assert_eq!(server.struck(), [1]);
        assert!(bytes_of(&load(&path).unwrap()) == bytes_of(&tree(1)));
    }

    #[test]
    fn a_commit_between_look_and_claim_stays() {
        let server = ObjectServer::start().unwrap();
        let path = bucket(&server).join("x");
        save_with(&path, &tree(1), &SaveOptions::default()).unwrap();
        // The other writer has looked before all of that, and claims the place after it.
        server.fault(Fault::stale_list(4096).key("runs/x/").first(1));
        let error = save_with(&path, &tree(2), &SaveOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        assert_eq!(server.struck(), [1]);
        assert!(bytes_of(&load(&path).unwrap()) == bytes_of(&tree(1)));
        assert!(server.keys("requests", "runs/x/").iter().all(|key| !key.contains("writing")));
    }

    #[test]
    fn a_live_writer_is_not_disturbed() {
        let server = ObjectServer::start().unwrap();
        let path = bucket(&server).join("x");
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let claim = format!(r#"{{"nonce":"1","host":"other","pid":1,"since":{since}}}"#);
        server.put("requests", "runs/x/regrow-writing.json", claim);
        server.put("requests", "runs/x/model.safetensors", "half");
        let overwrite = SaveOptions { overwrite: true, ..SaveOptions::default() };
        for options in [SaveOptions::default(), overwrite] {
            let options = SaveOptions { wait: Some(std::time::Duration::ZERO), ..options };
            let error = save_with(&path, &tree(1), &options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        }
        assert_eq!(server.keys("requests", "runs/x/").len(), 2, "nothing has changed");
        assert_eq!(open(&path).unwrap_err().kind(), ErrorKind::Uncommitted);
    }

    #[test]
    fn two_writers_of_one_target_are_distinguished() {
        let server = ObjectServer::start().unwrap();
        let path = bucket(&server).join("x");
        let saves: Vec<_> = std::thread::scope(|scope| {
            let save = |fill| {
                let path = path.clone();
                scope.spawn(move || (fill, save_with(&path, &tree(fill), &SaveOptions::default())))
            };
            let threads: Vec<_> = (1..5).map(save).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let won: Vec<u8> = saves.iter().filter(|(_, saved)| saved.is_ok()).map(|(fill, _)| *fill).collect();
        assert_eq!(won.len(), 1, "{saves:?}");
        assert!(bytes_of(&load(&path).unwrap()) == bytes_of(&tree(won[0])));
    }
}
