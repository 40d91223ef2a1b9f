//! Conversions by several workers, on disks, in memory and in buckets. The result equals the result
//! of one worker, even if a worker dies or writes a share twice. A replaced source is an error.

use std::collections::BTreeMap;
use std::thread;

use crate::common::{buckets, bytes_of, layouts, tree};
use regrow::engine::{ConvertShare, ConvertedShare, Layout, SharedConvert, convert_share};
use regrow::location::{Location, ToLocation};
use regrow::tree::{Key, NodeKind, TreeBuilder};
use regrow::{ConvertOptions, ErrorKind, SaveOptions};
use regrow_store::ByteRange;
use regrow_testkit::memory_folder;

/// Places to write to; the folder goes with the test.
fn places(test: &str) -> (tempfile::TempDir, Vec<Location>) {
    let folder = memory_folder().unwrap();
    let mut places =
        vec![Location::local(folder.path()), format!("memory://{test}/runs").to_location().unwrap()];
    places.extend(buckets::buckets(test));
    (folder, places)
}

fn save(at: &Location, fill: u8, layout: &Layout) {
    let options =
        SaveOptions { layout: layout.clone(), overwrite: true, not_durable: true, ..Default::default() };
    regrow::save_with(at, &tree(fill), &options).unwrap();
}

/// Everything below a place, by its key.
fn files_at(at: &Location) -> BTreeMap<String, Vec<u8>> {
    let store = at.store();
    let keys = store.list(b"").unwrap().into_iter();
    keys.map(|key| {
        let bytes = store.get(&key, ByteRange::Full).unwrap().unwrap().to_vec();
        (String::from_utf8(key).unwrap(), bytes)
    })
    .collect()
}

/// Keys beside or in a checkpoint that are useless once it is committed.
fn leftovers(at: &Location) -> Vec<String> {
    let marks = ["checkpoint-tmp", "regrow-state", ".claim"];
    let keys = at.parent().store().list(b"").unwrap().into_iter().map(|key| String::from_utf8(key).unwrap());
    keys.filter(|key| key.starts_with(&at.name_text()) && marks.iter().any(|mark| key.contains(mark)))
        .collect()
}

// ---- converting ----------------------------------------------------------------------

fn converting() -> ConvertOptions {
    ConvertOptions { save: SaveOptions { not_durable: true, ..Default::default() }, ..Default::default() }
}

fn convert_all(begun: &SharedConvert, from: &Location, to: &Location, count: u32) -> Vec<ConvertedShare> {
    let options = converting();
    thread::scope(|scope| {
        let work = |share| {
            let (ticket, options) = (begun.ticket(), &options);
            scope.spawn(move || {
                convert_share(from, to, options, &ConvertShare { ticket, share, count }).unwrap()
            })
        };
        let threads: Vec<_> = (0..count).map(work).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn a_shared_conversion_equals_a_single_one() {
    let (_folder, places) = places("shares-convert");
    for to in &places {
        for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
            // From the disk, and from the place itself.
            let from = if at % 2 == 0 { &places[0] } else { to };
            let (source, target) = (from.join(format!("s{at}{suffix}")), to.join(format!("t{at}")));
            save(&source, at as u8, &layout);
            let count = [1, 2, 3, 7][at % 4];
            let begun = SharedConvert::begin(&source, &target, &converting()).unwrap();
            let bytes: u64 = begun.share_len_bytes(count).iter().sum();
            assert_eq!(bytes, bytes_of(&tree(0)).iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>());
            let shares = convert_all(&begun, &source, &target, count);
            let numbers: Vec<u32> = shares.iter().map(|share| share.writer).collect();
            assert_eq!(numbers, (0..count).collect::<Vec<u32>>());
            let report = begun.finish(&shares).unwrap();
            assert_eq!(report.save.leaf_count, 4, "{target}");
            assert_eq!(bytes_of(&regrow::load(&target).unwrap()), bytes_of(&tree(at as u8)), "{target}");
            assert!(regrow::verify(&target).unwrap().is_ok(), "{target}");
            assert_eq!(leftovers(&target), Vec::<String>::new());
            // The pytree, too.
            let plain = to.join(format!("p{at}"));
            regrow::convert(&source, &plain, &converting()).unwrap();
            assert!(regrow::diff(&target, &plain).unwrap().is_equal(), "{target}");
        }
    }
}

#[test]
fn shares_link_unchanged_leaves_of_a_base() {
    let (_folder, places) = places("shares-base");
    for to in &places {
        let (source, base, target) = (to.join("s"), to.join("b"), to.join("t"));
        save(&source, 1, &Layout::default());
        let begun = SharedConvert::begin(&source, &base, &converting()).unwrap();
        let shares = convert_all(&begun, &source, &base, 2);
        begun.finish(&shares).unwrap();
        let save = SaveOptions { base: Some(base.clone()), ..converting().save };
        let options = ConvertOptions { save, ..converting() };
        let begun = SharedConvert::begin(&source, &target, &options).unwrap();
        let share = |share| ConvertShare { ticket: begun.ticket(), share, count: 2 };
        let shares = [0, 1].map(|at| convert_share(&source, &target, &options, &share(at)).unwrap());
        let reused: u64 = shares.iter().map(|share| share.reused_bytes).sum();
        let len_bytes: u64 = files_at(&base)
            .iter()
            .filter(|(name, _)| name.ends_with(".safetensors"))
            .map(|(_, it)| it.len() as u64)
            .sum();
        assert_eq!(reused, len_bytes, "{to}");
        let report = begun.finish(&shares).unwrap();
        assert_eq!(report.save.reused_bytes, len_bytes, "{to}");
        assert_eq!(bytes_of(&regrow::load(&target).unwrap()), bytes_of(&tree(1)), "{to}");
    }
}

#[test]
fn a_share_written_twice_counts_once() {
    let (_folder, places) = places("shares-twice");
    for to in &places {
        let (source, target) = (to.join("s"), to.join("t"));
        save(&source, 1, &Layout::default());
        let begun = SharedConvert::begin(&source, &target, &converting()).unwrap();
        let ticket = begun.ticket().to_owned();
        let share = |share| ConvertShare { ticket: &ticket, share, count: 2 };
        let write = |number| convert_share(&source, &target, &converting(), &share(number));
        // The first to write it was thought dead.
        let (lost, first) = (write(0).unwrap(), write(0).unwrap());
        assert_eq!((lost.writer, first.writer), (0, 2));
        let shares = [first, write(1).unwrap()];
        begun.finish(&shares).unwrap();
        assert_eq!(bytes_of(&regrow::load(&target).unwrap()), bytes_of(&tree(1)), "{target}");
        assert!(regrow::verify(&target).unwrap().is_ok(), "{target}");
        // It goes on when the checkpoint is there: nothing of it changes.
        let before = files_at(&target);
        let error = write(0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{target}: {error}");
        assert!(files_at(&target) == before, "{target}");
    }
}

#[test]
fn a_conversion_that_ends_early_leaves_nothing() {
    let (_folder, places) = places("shares-early");
    for to in &places {
        let (source, target) = (to.join("s"), to.join("t"));
        save(&source, 1, &Layout::default());
        let begin = || SharedConvert::begin(&source, &target, &converting()).unwrap();
        let empty = |what: &str| {
            let keys = to.store().list(b"").unwrap();
            assert!(keys.iter().all(|key| key.starts_with(b"s/")), "{to} {what}: {keys:?}");
        };
        let begun = begin();
        let ticket = begun.ticket().to_owned();
        let shares = convert_all(&begun, &source, &target, 2);
        drop(begun);
        empty("dropped");
        let late = ConvertShare { ticket: &ticket, share: 1, count: 2 };
        let error = convert_share(&source, &target, &converting(), &late).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{to}: {error}");
        empty("late");
        // A share that was not written, and one of another conversion.
        for written in [&shares[..0], &shares[..1]] {
            let begun = begin();
            convert_all(&begun, &source, &target, 2);
            begun.finish(written).unwrap_err();
            empty("a share is missing");
        }
        let begun = begin();
        begun.finish(&shares).unwrap_err();
        empty("unwritten share");
    }
}

#[test]
fn a_source_that_is_replaced_is_not_mixed() {
    let (_folder, places) = places("shares-replaced");
    for to in &places {
        let (source, target) = (to.join("s"), to.join("t"));
        save(&source, 1, &Layout::default());
        let begun = SharedConvert::begin(&source, &target, &converting()).unwrap();
        let shares = convert_all(&begun, &source, &target, 2);
        // Leaves of the same names and shapes: only the process that planned can tell.
        save(&source, 2, &Layout::default());
        assert_eq!(begun.finish(&shares).unwrap_err().kind(), ErrorKind::Replaced, "{to}");
        let begun = SharedConvert::begin(&source, &target, &converting()).unwrap();
        let leaf = tree(1).leaves()[0].clone();
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        build.leaf(Key::dict("only"), leaf).unwrap();
        build.close().unwrap();
        let overwrite = SaveOptions { overwrite: true, not_durable: true, ..Default::default() };
        regrow::save_with(&source, &build.finish().unwrap(), &overwrite).unwrap();
        let share = ConvertShare { ticket: begun.ticket(), share: 0, count: 1 };
        let error = convert_share(&source, &target, &converting(), &share).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Replaced, "{to}: {error}");
        drop(begun);
        assert!(!target.exists(), "{to}");
    }
}

#[test]
fn impossible_tickets_and_conversions_are_refused() {
    let (_folder, places) = places("shares-tickets");
    for to in &places {
        let (source, target) = (to.join("s"), to.join("t"));
        save(&source, 1, &Layout::default());
        let begun = SharedConvert::begin(&source, &target, &converting()).unwrap();
        let (version, rest) = begun.ticket().split_once(' ').unwrap();
        let (digest, _) = rest.split_once(' ').unwrap();
        let tickets = [
            String::new(),
            version.to_owned(),
            format!("0.0.0 {rest}"),
            format!("{version} {digest} ../s"),
            format!("{version} {digest} ../s.orbax-checkpoint-tmp-1"),
            format!("{version} {digest} /etc"),
            format!("{version} {digest} s"),
            format!("{version} {digest} nonce s"),
        ];
        let before = files_at(&source);
        for ticket in &tickets {
            let share = ConvertShare { ticket, share: 0, count: 1 };
            let error = convert_share(&source, &target, &converting(), &share).unwrap_err();
            let kinds = [ErrorKind::InvalidArgument, ErrorKind::NotFound];
            assert!(kinds.contains(&error.kind()), "{to} {ticket:?}: {error}");
            // On a disk no ticket leads out of the folder, with any files there.
            let is_elsewhere =
                ticket.contains('/') && to.local_path().is_ok() && !ticket.starts_with("0.0.0");
            assert!(!is_elsewhere || error.kind() == ErrorKind::InvalidArgument, "{ticket:?}: {error}");
        }
        assert!(files_at(&source) == before);
        drop(begun);
        let salvage = ConvertOptions { salvage: true, ..converting() };
        let npy = Layout::from_name("npy", serde_json::Value::Null).unwrap();
        let npy = ConvertOptions { save: SaveOptions { layout: npy, ..converting().save }, ..converting() };
        for (options, kind) in [(salvage, ErrorKind::InvalidArgument), (npy, ErrorKind::Unsupported)] {
            let error = SharedConvert::begin(&source, &target, &options).unwrap_err();
            assert_eq!(error.kind(), kind, "{to}: {error}");
        }
        assert!(!target.exists() && leftovers(&target).is_empty(), "{to}");
    }
}

#[test]
fn a_share_can_be_begun_at_most_64_times() {
    let (_folder, places) = places("shares-claims");
    for to in &places[..2] {
        let (source, target) = (to.join("s"), to.join("t"));
        save(&source, 1, &Layout::default());
        let begun = SharedConvert::begin(&source, &target, &converting()).unwrap();
        let share = ConvertShare { ticket: begun.ticket(), share: 3, count: 4 };
        let write = || convert_share(&source, &target, &converting(), &share);
        let numbers: Vec<u32> = (0..64).map(|_| write().unwrap().writer).collect();
        assert_eq!(numbers, (0..64).map(|at| 3 + 4 * at).collect::<Vec<u32>>());
        assert_eq!(write().unwrap_err().kind(), ErrorKind::InvalidArgument, "{to}");
    }
}
