//! Damage: the fixtures that each break one rule, and random changes under a valid checksum.

use proptest::prelude::*;

use super::*;
use crate::bytes::checksum::crc32c;
use regrow_store::Located;

#[test]
fn each_damaged_database_shows_the_rule_it_breaks() {
    let mut count = 0;
    for entry in std::fs::read_dir(fixtures().join("ocdbt/corrupt")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let expected = regrow_testkit::expected(&format!("ocdbt/corrupt/{name}"));
        let errors = check(load(&format!("corrupt/{name}")));
        let first = errors.first().unwrap_or_else(|| panic!("{name}: nothing found"));
        assert_eq!(Rule::of(first).map(Rule::name), expected["rule"].as_str(), "{name}: {first}");
        assert!(first.place().file.is_some() || Rule::of(first) == Some(Rule::Path), "{name}: {first}");
        let no_offset = [Rule::NoManifest, Rule::Short, Rule::Path, Rule::Config, Rule::VersionTree];
        let rule = Rule::of(first).unwrap();
        assert!(first.place().offset_bytes.is_some() || no_offset.contains(&rule), "{name}: {first}");
        count += 1;
    }
    assert_eq!(count, 50);
}

#[test]
fn damage_on_the_way_shows_when_the_newest_version_is_read() {
    // Only the full check finds these errors.
    let unseen = ["node_stats", "version_node_flip", "version_node_height", "value_past_end"];
    for entry in std::fs::read_dir(fixtures().join("ocdbt/corrupt")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let expected = regrow_testkit::expected(&format!("ocdbt/corrupt/{name}"));
        let read = || {
            let database = OcdbtStore::open(load(&format!("corrupt/{name}")))?;
            for (key, located) in database.entries()? {
                let value = database.get_whole(&key)?.expect("an entry has a value");
                if let Located::At(span) = located {
                    assert_eq!(span.read()?, value);
                }
            }
            crate::error::Result::Ok(())
        };
        match read() {
            Ok(()) => assert!(unseen.contains(&name.as_str()), "{name} reads without an error"),
            Err(error) => {
                assert_eq!(Rule::of(&error).map(Rule::name), expected["rule"].as_str(), "{name}: {error}")
            }
        }
    }
}

#[test]
fn a_missing_value_is_an_error_with_its_place() {
    let database = OcdbtStore::open(load("corrupt/value_file_missing")).unwrap();
    let error = database.get_text_key("w/1.0").unwrap_err();
    assert_eq!(error.kind(), crate::error::ErrorKind::Corrupt);
    assert_eq!(Rule::of(&error), Some(Rule::FileMissing));
    assert!(
        error.place().file.as_ref().unwrap().to_str().unwrap().contains("ocdbt.process_1/d/e4d639"),
        "{error}"
    );
    assert!(error.place().offset_bytes.is_some());
}

/// Calls the functions of a reader. No call may panic or run without end.
fn exercise(base: Arc<dyn Store>) {
    check(base.clone());
    let Ok(database) = OcdbtStore::open(base) else { return };
    let _ = database.list(b"layer_3");
    let _ = database.locate(b"layer_3/w");
    if let Ok(entries) = database.entries() {
        for (key, _) in entries {
            let _ = database.get_whole(&key);
        }
    }
}

fn reseal(bytes: &mut [u8]) {
    if bytes.len() < 16 {
        return;
    }
    let (len, end) = (bytes.len() as u64, bytes.len() - 4);
    bytes[4..12].copy_from_slice(&len.to_le_bytes());
    let crc = crc32c(&bytes[..end]);
    bytes[end..].copy_from_slice(&crc.to_le_bytes());
}

/// The places of structures in a data file: their magic numbers begin with the same bytes.
fn structures(file: &[u8]) -> Vec<std::ops::Range<usize>> {
    let starts = (0..file.len().saturating_sub(15)).filter(|&at| file[at..].starts_with(&[0x0c, 0xdb]));
    let len_at = |at: usize| u64::from_le_bytes(file[at + 4..at + 12].try_into().unwrap()) as usize;
    starts.filter(|&at| len_at(at) <= file.len() - at).map(|at| at..at + len_at(at)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn changed_and_sealed_again_nothing_panics(
        name in prop::sample::select(vec!["interior_raw", "versions_arity1", "small_raw", "merged_v2", "small_zstd"]),
        file: prop::sample::Index,
        structure: prop::sample::Index,
        changes in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(vec![
            0_u8, 1, 2, 0x7f, 0x80, 0xff, 0x10, b'/', b'.',
        ])), 1..4),
    ) {
        let base = load(name);
        let keys: Vec<_> = base.list(b"").unwrap().into_iter().filter(|key| !key.ends_with(b".json")).collect();
        let key = file.get(&keys);
        let mut bytes = base.get_whole(key).unwrap().unwrap().to_vec();
        let places = structures(&bytes);
        prop_assume!(!places.is_empty());
        let place = structure.get(&places).clone();
        let mut part = bytes[place.clone()].to_vec();
        for (at, byte) in changes {
            let at = 12 + at.index(part.len() - 16);
            part[at] = byte;
        }
        reseal(&mut part);
        bytes.splice(place, part);
        base.put(key, bytes.into()).unwrap();
        exercise(base);
    }

    #[test]
    fn bytes_from_anywhere_under_a_seal_do_not_panic(body in prop::collection::vec(any::<u8>(), 0..200), node: bool) {
        let mut part = vec![0x0c, 0xdb];
        part.extend_from_slice(if node { &[0x20, 0xde] } else { &[0x3a, 0x2a] });
        part.extend_from_slice(&[0; 8]);
        part.extend_from_slice(&[0, 0]);
        part.extend_from_slice(&body);
        part.extend_from_slice(&[0; 4]);
        reseal(&mut part);
        let base = load("small_raw");
        if node {
            let key = base.list(b"d/").unwrap().remove(0);
            let mut file = base.get_whole(&key).unwrap().unwrap()[..104].to_vec();
            part.resize(112, 0);
            reseal(&mut part);
            file.extend_from_slice(&part);
            base.put(&key, file.into()).unwrap();
        } else {
            base.put(b"manifest.ocdbt", part.into()).unwrap();
        }
        exercise(base);
    }
}

/// A search uses the keys of interior nodes, and a listing uses the keys of leaves. A byte is
/// changed under a valid checksum: then the reader refuses the database, or a search finds every
/// listed key.
#[test]
fn what_a_changed_database_lists_it_finds() {
    use super::written::{NODE_FILE, small_nodes, write};

    // The keys have gaps, so that a changed key of an interior node can lie inside the previous
    // child.
    let entries = (b'a'..=b'z').step_by(2).map(|key| (vec![key], inline(&[key]))).collect();
    let base = write(&small_nodes(None), entries);
    let good = base.get_text_key(NODE_FILE).unwrap().unwrap().to_vec();
    let places = structures(&good);
    assert!(places.len() > 3, "several leaves and an inner node");
    let mut refused = 0;
    for place in places {
        for at in place.start + 12..place.end - 4 {
            for by in [1_u8, 2, 3, 4, 5, 251, 252, 253, 254, 255] {
                let mut bytes = good.clone();
                bytes[at] = bytes[at].wrapping_add(by);
                reseal(&mut bytes[place.clone()]);
                base.put(NODE_FILE.as_bytes(), bytes.into()).unwrap();
                let listed = OcdbtStore::open(base.clone()).and_then(|database| {
                    let listed = database.entries()?;
                    Ok((database, listed))
                });
                let Ok((database, listed)) = listed else {
                    assert!(
                        !check(base.clone()).is_empty(),
                        "byte {at} by {by}: what a reader meets a check finds"
                    );
                    refused += 1;
                    continue;
                };
                assert!(listed.is_sorted_by(|(a, _), (b, _)| a < b), "byte {at} by {by}");
                for (key, _) in listed {
                    let found = database.locate(&key).unwrap();
                    assert!(found.is_some(), "byte {at} by {by}: {} is listed alone", key.escape_ascii());
                }
            }
        }
    }
    assert!(refused > 100, "{refused}");
}
