//! Overwrites in a bucket: which objects an overwrite may replace, and how another process finishes
//! an interrupted overwrite.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::buckets::s3;
use crate::common::{bytes_of, layouts, tree};
use regrow::engine::{Layout, load};
use regrow::location::Location;
use regrow::tree::{Key, Leaf, Scalar, TreeBuilder};
use regrow::{ErrorKind, SaveOptions, save_with};
use regrow_testkit::object_server::{Fault, ObjectServer, Op, Refusal};

const STAGED: &str = "runs/x.orbax-checkpoint-tmp-";
const STATE: &str = "runs/x/regrow-state.json";

fn bucket() -> (ObjectServer, Location) {
    let server = ObjectServer::start().unwrap();
    server.create_bucket("bucket");
    let options = s3(server.endpoint()).with("max_retries", "1");
    let root = Location::with_options(Path::new("s3://bucket/runs"), &options).unwrap();
    (server, root)
}

fn options(layout: &str) -> SaveOptions {
    let layout = Layout::from_name(layout, serde_json::Value::Null).unwrap();
    SaveOptions { layout, overwrite: true, casting: regrow::array::Casting::Lossy, ..SaveOptions::default() }
}

fn holds(path: &Location, fill: u8) -> bool {
    bytes_of(&load(path).unwrap()) == bytes_of(&tree(fill))
}

/// A checkpoint that is committed, but not yet copied to its own name.
fn unsettled(server: &ObjectServer, path: &Location) {
    save_with(path, &tree(1), &options("regrow")).unwrap();
    server.fault(Fault::refuse(Refusal::InternalError).on(Op::Copy));
    save_with(path, &tree(2), &options("regrow")).unwrap();
    server.clear_faults();
    assert_eq!(state(server)["phase"], "moved");
}

/// The state object of the target.
fn state(server: &ObjectServer) -> serde_json::Value {
    serde_json::from_slice(&server.get("bucket", STATE).unwrap()).unwrap()
}

#[test]
fn one_process_at_a_time_finishes_an_overwrite() {
    let (server, root) = bucket();
    let path = root.join("x");
    unsettled(&server, &path);
    let keys = || server.keys("bucket", "");
    let before = keys();
    // A process on another machine finishes it.
    let mut owned = state(&server);
    (owned["host"], owned["pid"]) = ("elsewhere 1".into(), 7.into());
    server.put("bucket", STATE, owned.to_string());
    let hurried = SaveOptions { wait: Some(Duration::ZERO), ..options("regrow") };
    let error = save_with(&path, &tree(3), &hurried).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains("process 7 on elsewhere: save, since"), "{error}");
    assert!(holds(&path, 2));
    assert_eq!(before, keys());
    // That process has not renewed the state object for long.
    server.age(Duration::from_secs(181));
    save_with(&path, &tree(3), &options("regrow")).unwrap();
    assert!(holds(&path, 3));
    let left = server.keys("bucket", STAGED);
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn processes_that_finish_one_overwrite_lose_nothing() {
    for _ in 0..5 {
        let (server, root) = bucket();
        let path = root.join("x");
        unsettled(&server, &path);
        std::thread::scope(|scope| {
            for fill in 3..7 {
                let path = &path;
                scope.spawn(move || match save_with(path, &tree(fill), &options("regrow")) {
                    Ok(_) => {}
                    Err(error) => assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}"),
                });
            }
        });
        let found = bytes_of(&load(&path).unwrap());
        assert!((2..7).any(|fill| found == bytes_of(&tree(fill))));
        assert!(regrow::verify(&path).unwrap().is_ok());
        save_with(&path, &tree(9), &options("regrow")).unwrap();
        assert!(holds(&path, 9));
        let left = server.keys("bucket", STAGED);
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn an_overwrite_keeps_files_of_users() {
    let (server, root) = bucket();
    let path = root.join("x");
    for (at, stranger) in ["notes.txt", "tokenizer.json", "other/model.safetensors"].into_iter().enumerate() {
        save_with(&path, &tree(at as u8), &options("regrow")).unwrap();
        let key = format!("runs/x/{stranger}");
        server.put("bucket", &key, "mine");
        let error = save_with(&path, &tree(9), &options("regrow")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{stranger}: {error}");
        assert_eq!(server.get("bucket", &key).unwrap(), "mine");
        assert!(server.delete("bucket", &key));
        assert!(holds(&path, at as u8), "{stranger}");
    }
    for (at, names) in [["a.safetensors", "b.safetensors"], ["a/model.safetensors", "b/model.safetensors"]]
        .into_iter()
        .enumerate()
    {
        let folder = root.join(format!("models{at}"));
        for name in names {
            server.put("bucket", &format!("runs/models{at}/{name}"), "mine");
        }
        let error = save_with(&folder, &tree(1), &options("safetensors")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{names:?}: {error}");
        for name in names {
            assert_eq!(server.get("bucket", &format!("runs/models{at}/{name}")).unwrap(), "mine");
        }
    }
}

#[test]
fn a_refused_file_name_replaces_no_file() {
    let (server, root) = bucket();
    let path = root.join("x.npz");
    save_with(&path, &tree(1), &options("npy")).unwrap();
    let before = server.get("bucket", "runs/x.npz").unwrap();
    let mut refused = 0;
    for (layout, suffix) in layouts() {
        if matches!(suffix, "" | ".npz") {
            continue;
        }
        let name = layout.name();
        let options = SaveOptions {
            layout,
            overwrite: true,
            casting: regrow::array::Casting::Lossy,
            ..SaveOptions::default()
        };
        match save_with(&path, &tree(2), &options) {
            // It is recognised by its content, under any name.
            Ok(_) => {
                assert!(holds(&path, 2), "{name}");
                server.put("bucket", "runs/x.npz", before.clone());
            }
            Err(error) => {
                refused += 1;
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}: {error}");
                assert!(server.get("bucket", "runs/x.npz").unwrap() == before, "{name}");
                assert!(holds(&path, 1), "{name}");
            }
        }
    }
    assert!(refused > 0);
}

/// A single number has nothing by which its file would be known again under a name of no layout.
#[test]
fn a_file_that_would_not_open_again_is_not_written() {
    let (server, root) = bucket();
    let path = root.join("x.bin");
    let mut build = TreeBuilder::new();
    build.leaf(Key::Index(0), Leaf::scalar(Scalar::Int(7))).unwrap();
    let number = build.finish().unwrap();
    save_with(&path, &tree(1), &options("flax")).unwrap();
    let before = server.get("bucket", "runs/x.bin").unwrap();
    server.clear_requests();
    let error = save_with(&path, &number, &options("flax")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("would not be recognised"), "{error}");
    assert!(server.get("bucket", "runs/x.bin").unwrap() == before);
    assert_eq!(server.count(Op::Put), 0);
    assert!(holds(&path, 1));
    // Under a name that tells the layout it is.
    save_with(root.join("x.msgpack"), &number, &options("flax")).unwrap();
}

/// The monitor refuses at any of its calls. The last call comes when all is written.
#[test]
fn a_cancelled_save_of_a_file_changes_nothing() {
    let (_server, root) = bucket();
    for overwrite in [false, true] {
        let (mut stopped, mut saved) = (0, 0);
        for refused in 1.. {
            let path = root.join(format!("{overwrite}{refused}.msgpack"));
            if overwrite {
                save_with(&path, &tree(1), &options("flax")).unwrap();
            }
            let told = Arc::new(AtomicU64::new(0));
            let count = Arc::clone(&told);
            let monitor = regrow::Monitor::with_hook(move |_| {
                // It is told 20 times a second at most.
                std::thread::sleep(Duration::from_millis(51));
                match count.fetch_add(1, Ordering::Relaxed) + 1 == refused {
                    true => Err(regrow::Error::new(ErrorKind::Cancelled, "stop")),
                    false => Ok(()),
                }
            });
            let done = save_with(&path, &tree(2), &SaveOptions { monitor, overwrite, ..options("flax") });
            match &done {
                Ok(_) => saved += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
                    stopped += 1;
                }
            }
            let say = format!("{overwrite}, refused at {refused}");
            match (done.is_ok(), overwrite) {
                (true, _) => assert!(holds(&path, 2), "{say}"),
                (false, true) => assert!(holds(&path, 1), "{say}"),
                (false, false) => assert!(!path.exists(), "{say}"),
            }
            if told.load(Ordering::Relaxed) < refused {
                break;
            }
        }
        // The last call was not refused: it comes right before the file exists.
        assert!(stopped >= 1 && saved == 1, "{overwrite}: {stopped} {saved}");
    }
}
