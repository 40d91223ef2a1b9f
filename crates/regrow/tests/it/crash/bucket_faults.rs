//! Saves, overwrites, loads and copies during random faults of a bucket: no checkpoint is lost,
//! none is visible in part, and no byte is wrong.

use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::buckets::s3;
use proptest::prelude::*;
use regrow::array::{Array, Dtype, Shape};
use regrow::engine::{Layout, load};
use regrow::location::Location;
use regrow::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};
use regrow::{CopyOptions, ErrorKind, SaveOptions, copy, open, save_with, verify};
use regrow_testkit::object_server::{Action, Fault, ObjectServer, Op, Refusal, When};

/// No operation takes longer than this, with any faults of the bucket.
const TIME_MAX: Duration = Duration::from_secs(120);

fn start() -> ObjectServer {
    let server = ObjectServer::start().unwrap();
    server.create_bucket("faults");
    server
}

/// A server for each test: its faults hit every client.
static SERVER: LazyLock<ObjectServer> = LazyLock::new(start);
static SERVER_OF_COPIES: LazyLock<ObjectServer> = LazyLock::new(start);

fn root(server: &ObjectServer, case: &str) -> Location {
    let options = s3(server.endpoint())
        .with("max_retries", "3")
        .with("retry_timeout", "4")
        .with("read_timeout", "4")
        .with("connect_timeout", "2");
    Location::with_options(Path::new(&format!("s3://faults/{case}")), &options).unwrap()
}

fn tree(fill: u8) -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for (name, len) in [("a", 40_000_u64), ("b", 3), ("c", 200_000)] {
        let shape = Shape::new(vec![len]).unwrap();
        let bytes = vec![fill; len as usize];
        build
            .leaf(Key::dict(name), Leaf::array(Array::new(Dtype::UInt8, shape, bytes.into()).unwrap()))
            .unwrap();
    }
    build.close().unwrap();
    build.finish().unwrap()
}

/// The one fill of all leaves; panics if the leaves are a mixture.
fn fill_of(tree: &Tree<Leaf>) -> u8 {
    let bytes: Vec<u8> = tree
        .leaves()
        .iter()
        .flat_map(|leaf| leaf.as_array().unwrap().to_c_order().unwrap().to_vec())
        .collect();
    assert_eq!(bytes.len(), 240_003);
    assert!(bytes.iter().all(|&byte| byte == bytes[0]), "a mixture");
    bytes[0]
}

fn fault() -> impl Strategy<Value = Fault> {
    let refusals = prop::sample::select(vec![
        Refusal::SlowDown,
        Refusal::InternalError,
        Refusal::ServiceUnavailable,
        Refusal::ConditionalRequestConflict,
        Refusal::RequestTimeout,
        Refusal::ExpiredToken,
        Refusal::RequestTimeTooSkewed,
        Refusal::AccessDenied,
    ]);
    let action = prop_oneof![
        4 => refusals.prop_map(Action::Refuse),
        2 => Just(Action::Reset),
        1 => (0_u64..5000).prop_map(Action::TruncateBody),
        1 => (0_u64..5000).prop_map(Action::WrongBytes),
        1 => Just(Action::SlowDrip { chunk_bytes: 20_000, pause_ms: 1 }),
        1 => (1_usize..6).prop_map(Action::StaleList),
    ];
    let ops = prop::option::of(prop::sample::select(vec![
        Op::Get,
        Op::Head,
        Op::Put,
        Op::List,
        Op::Delete,
        Op::Copy,
    ]));
    let when = prop_oneof![
        (1_u64..8).prop_map(When::Nth),
        (1_u64..4).prop_map(When::First),
        (0_u64..12).prop_map(When::After),
        any::<u64>().prop_map(|seed| When::Chance { probability: 0.2, seed }),
    ];
    (action, ops, when, any::<bool>()).prop_map(|(action, op, when, applied)| {
        let is_write_of_wrong_bytes = matches!(action, Action::WrongBytes(_));
        let mut fault = Fault::new(action).when(when);
        match op {
            // What a bucket keeps wrongly is found by checksums; it is no matter of commits.
            _ if is_write_of_wrong_bytes => fault = fault.on(Op::Get),
            Some(op) => fault = fault.on(op),
            None => {}
        }
        if applied { fault.applied() } else { fault }
    })
}

fn timed<T>(work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = work();
    assert!(began.elapsed() < TIME_MAX, "it took {:?}", began.elapsed());
    done
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_faults_leave_the_old_or_the_new_checkpoint(
        faults in prop::collection::vec(fault(), 1..4),
        layout in prop::sample::select(vec!["regrow", "orbax", "safetensors", "npy", "flax"]),
    ) {
        // Each run has a place of its own, also while a failure is made smaller.
        static CASES: AtomicU64 = AtomicU64::new(0);
        let case = CASES.fetch_add(1, Ordering::Relaxed);
        let layout_options = if layout == "safetensors" { r#"{"max_shard_bytes": 100000}"# } else { "null" };
        let layout = Layout::from_name(layout, serde_json::from_str(layout_options).unwrap()).unwrap();
        let suffix = if layout.name() == "flax" { ".msgpack" } else { "" };
        let path = root(&SERVER, &format!("{case:016x}")).join(format!("x{suffix}"));
        let options = |overwrite| SaveOptions { layout: layout.clone(), overwrite, casting: regrow::array::Casting::Lossy,  ..SaveOptions::default() };
        SERVER.clear_faults();

        // A first save: whole or not there.
        SERVER.faults(faults.clone());
        let saved = timed(|| save_with(&path, &tree(1), &options(false)));
        SERVER.clear_faults();
        match (&saved, load(&path)) {
            (Ok(_), loaded) => prop_assert_eq!(fill_of(&loaded.unwrap()), 1),
            (Err(_), Ok(loaded)) => prop_assert_eq!(fill_of(&loaded), 1),
            (Err(_), Err(error)) => prop_assert!(
                matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Uncommitted | ErrorKind::NotACheckpoint),
                "{}", error
            ),
        }
        // The next one works, and cleans up.
        save_with(&path, &tree(2), &options(true)).unwrap();
        prop_assert_eq!(fill_of(&load(&path).unwrap()), 2);

        // An overwrite: the old one or the new one.
        SERVER.faults(faults.clone());
        let saved = timed(|| save_with(&path, &tree(3), &options(true)));
        SERVER.clear_faults();
        let found = fill_of(&load(&path).unwrap());
        prop_assert!(found == 3 || saved.is_err() && found == 2, "{} after {:?}", found, saved.map(drop));
        let report = verify(&path).unwrap();
        prop_assert!(report.is_ok(), "{:?}", report.findings);

        // A load: all of it, right, or an error.
        SERVER.faults(faults.clone());
        let loaded = timed(|| load(&path));
        SERVER.clear_faults();
        match loaded {
            // Layouts without checksums cannot tell a byte that the bucket sent wrongly.
            Ok(loaded) if layout.name() == "regrow" => prop_assert_eq!(fill_of(&loaded), found),
            Ok(_) | Err(_) => {}
        }
        // The next save finishes all unfinished work, and leaves no temporary files.
        save_with(&path, &tree(4), &options(true)).unwrap();
        prop_assert_eq!(fill_of(&load(&path).unwrap()), 4);
        let left: Vec<String> = SERVER.keys("faults", &format!("{case:016x}/"));
        let unsettled = left.iter().filter(|key| key.contains("regrow-state"));
        prop_assert_eq!(unsettled.count(), 0, "{:?}", left);
        prop_assert_eq!(open(&path).unwrap().tree().len(), 3);
    }
}

/// From where to where a checkpoint is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    ToBucket,
    FromBucket,
    Within,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases() / 2, max_shrink_iters: 10, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_faults_leave_a_copy_complete_or_the_target_unchanged(
        faults in prop::collection::vec(fault(), 1..4),
        layout in prop::sample::select(vec!["regrow", "orbax", "safetensors", "npy", "flax", "pytree_data"]),
        way in prop::sample::select(vec![Way::ToBucket, Way::FromBucket, Way::Within]),
    ) {
        check_copy(&faults, layout, way)?;
    }
}

/// Every request from the twelfth on is refused, although the server performs it. A dead copy must
/// not leave files without a state object.
#[test]
fn a_copy_that_lost_every_answer_can_be_continued() {
    let refused = Fault::refuse(Refusal::SlowDown).when(When::After(11)).applied();
    check_copy(&[refused], "regrow", Way::ToBucket).unwrap();
}

fn check_copy(faults: &[Fault], layout: &str, way: Way) -> Result<(), TestCaseError> {
    static CASES: AtomicU64 = AtomicU64::new(0);
    let case = format!("copy-{:016x}", CASES.fetch_add(1, Ordering::Relaxed));
    let layout_options = if layout == "safetensors" { r#"{"max_shard_bytes": 100000}"# } else { "null" };
    let layout = Layout::from_name(layout, serde_json::from_str(layout_options).unwrap()).unwrap();
    let suffix = if layout.name() == "flax" { ".msgpack" } else { "" };
    let (disk, bucket) = (tempfile::tempdir().unwrap(), root(&SERVER_OF_COPIES, &case));
    let disk_root = Location::local(disk.path());
    let (from, to) = match way {
        Way::ToBucket => (&disk_root, &bucket),
        Way::FromBucket => (&bucket, &disk_root),
        Way::Within => (&bucket, &bucket),
    };
    let (source, target) = (from.join(format!("s{suffix}")), to.join(format!("t{suffix}")));
    let save = |fill| {
        let options = SaveOptions {
            layout: layout.clone(),
            overwrite: true,
            casting: regrow::array::Casting::Lossy,
            ..SaveOptions::default()
        };
        save_with(&source, &tree(fill), &options).unwrap();
    };
    let copied = |overwrite| {
        let options = CopyOptions { overwrite, ..CopyOptions::default() };
        timed(|| copy(&source, &target, &options))
    };
    // A wrong read of the source arrives as it is: layouts without checksums cannot detect it.
    let may_differ =
        way != Way::ToBucket && faults.iter().any(|fault| format!("{fault:?}").contains("WrongBytes"));
    SERVER_OF_COPIES.clear_faults();
    save(1);

    // A first copy, and again, as a person would: whole or not there.
    for _ in 0..2 {
        if load(&target).is_ok() {
            break;
        }
        SERVER_OF_COPIES.faults(faults.to_vec());
        let first = copied(false);
        SERVER_OF_COPIES.clear_faults();
        match (&first, load(&target)) {
            _ if may_differ => {}
            (_, Ok(loaded)) => prop_assert_eq!(fill_of(&loaded), 1),
            (first, Err(error)) => {
                let is_none = matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::Uncommitted | ErrorKind::NotACheckpoint
                );
                prop_assert!(first.is_err() && is_none, "{} after {:?}", error, first);
            }
        }
    }
    // An unfinished copy is continued to the end, with any files at the target.
    if load(&target).is_err() || may_differ {
        let done = copied(may_differ && layout.name() != "pytree_data");
        prop_assert!(done.is_ok() || may_differ, "{:?}", done);
    }
    if !may_differ {
        prop_assert_eq!(fill_of(&load(&target).unwrap()), 1);
    }

    // An overwrite: the old one or the new one. A pair in a bucket stays as it is.
    if layout.name() == "pytree_data" {
        return Ok(());
    }
    save(2);
    let was_whole = load(&target).is_ok();
    SERVER_OF_COPIES.faults(faults.to_vec());
    let second = copied(true);
    SERVER_OF_COPIES.clear_faults();
    if !may_differ || second.is_err() && was_whole && layout.name() == "regrow" {
        let found = fill_of(&load(&target).unwrap());
        prop_assert!(found == 2 || second.is_err() && found == 1, "{} after {:?}", found, second);
    }
    // The next one ends it, and nothing is left. What was read wrongly before the first one
    // failed is gone on with: then one more.
    let rest = if may_differ && second.is_err() { 2 } else { 1 };
    for _ in 0..rest {
        let done = copied(true);
        prop_assert!(done.is_ok(), "{:?}", done);
    }
    prop_assert_eq!(fill_of(&load(&target).unwrap()), 2);
    let report = verify(&target).unwrap();
    prop_assert!(report.is_ok(), "{:?}", report.findings);
    let left = SERVER_OF_COPIES.keys("faults", &format!("{case}/"));
    let is_left =
        |key: &&String| ["regrow-state", "orbax-checkpoint-tmp"].iter().any(|mark| key.contains(mark));
    prop_assert_eq!(left.iter().filter(is_left).count(), 0, "{:?}", left);
    Ok(())
}

/// `REGROW_LONG=1` runs many more.
fn cases() -> u32 {
    if std::env::var_os("REGROW_LONG").is_some() { 2000 } else { 12 }
}

#[test]
fn stale_lists_lose_no_checkpoint() {
    let sharded = serde_json::json!({ "max_shard_bytes": 100_000 });
    for (name, layout_options) in
        [("regrow", serde_json::Value::Null), ("safetensors", sharded), ("npy", serde_json::Value::Null)]
    {
        for writes in 1..6 {
            let server = ObjectServer::start().unwrap();
            server.create_bucket("faults");
            let path = root(&server, &format!("stale-{name}-{writes}")).join("x");
            let layout = Layout::from_name(name, layout_options.clone()).unwrap();
            let options = |overwrite| SaveOptions {
                layout: layout.clone(),
                overwrite,
                casting: regrow::array::Casting::Lossy,
                ..SaveOptions::default()
            };
            let say = |what: &dyn std::fmt::Display| format!("{name}, {writes} writes: {what}");

            if writes == 1 {
                // A save that cannot show that the target is its own gives up, and leaves nothing
                // that passes for a checkpoint. It asks for several seconds.
                server.fault(Fault::stale_list(writes));
                let refused =
                    Fault::refuse(Refusal::PreconditionFailed).on(Op::Put).key("*/x/regrow-state.json");
                server.fault(refused.when(When::After(1)));
                save_with(&path, &tree(1), &options(false)).unwrap_err();
                server.clear_faults();
                let kind = load(&path).unwrap_err().kind();
                assert!(
                    matches!(kind, ErrorKind::NotFound | ErrorKind::Uncommitted),
                    "{}",
                    say(&format!("{kind:?}"))
                );
            }

            save_with(&path, &tree(2), &options(true)).unwrap();
            server.fault(Fault::stale_list(writes));
            let saved = save_with(&path, &tree(3), &options(true));
            server.clear_faults();
            let found = fill_of(&load(&path).unwrap_or_else(|error| panic!("{}", say(&error))));
            assert!(found == 3 || saved.is_err() && found == 2, "{}", say(&found));
            assert!(verify(&path).unwrap().is_ok(), "{}", say(&"damaged"));
            save_with(&path, &tree(4), &options(true)).unwrap();
            assert_eq!(fill_of(&load(&path).unwrap()), 4);
            let left = server.keys("faults", "");
            assert!(
                !left.iter().any(|key| key.contains("orbax-checkpoint-tmp")),
                "{}",
                say(&format!("{left:?}"))
            );
        }
    }
}

/// An open within a load shares the load's time for retries, instead of starting its own.
#[test]
fn lists_that_stay_stale_are_an_error_in_time() {
    let server = start();
    let mut refused = 0;
    for name in ["regrow", "orbax", "safetensors", "npy"] {
        for writes in 1..6 {
            let path = root(&server, &format!("stale-{name}{writes}")).join("x");
            let layout = Layout::from_name(name, serde_json::Value::Null).unwrap();
            let options = |overwrite| SaveOptions {
                layout: layout.clone(),
                overwrite,
                casting: regrow::array::Casting::Lossy,
                ..SaveOptions::default()
            };
            server.clear_faults();
            save_with(&path, &tree(1), &options(false)).unwrap();
            save_with(&path, &tree(2), &options(true)).unwrap();
            server.faults([Fault::new(Action::StaleList(writes))]);
            match timed(|| load(&path)) {
                Ok(loaded) => assert_eq!(fill_of(&loaded), 2, "{name} {writes}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Replaced, "{name} {writes}: {error}");
                    refused += 1;
                }
            }
            let saved = timed(|| save_with(&path, &tree(3), &options(true)));
            server.clear_faults();
            assert_eq!(fill_of(&load(&path).unwrap()), if saved.is_ok() { 3 } else { 2 }, "{name} {writes}");
        }
    }
    assert!(refused > 0, "nothing was tried again");
}
