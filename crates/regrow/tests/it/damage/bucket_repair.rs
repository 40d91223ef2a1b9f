//! Repair in a bucket: lost objects come back, and a network failure is an error, not damage.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::buckets::s3;
use crate::common::{bytes_of, tree};
use regrow::engine::{ItemsOptions, ItemsSave, Layout};
use regrow::location::Location;
use regrow::{ErrorKind, RepairOptions, RepairReport, SaveOptions};
use regrow_testkit::memory_folder;
use regrow_testkit::object_server::{Fault, ObjectServer, Op, Refusal};

const BUCKET: &str = "repair";

fn bucket() -> (ObjectServer, Location) {
    let server = ObjectServer::start().unwrap();
    server.create_bucket(BUCKET);
    let options = s3(server.endpoint()).with("max_retries", "2").with("retry_timeout", "2");
    let root = Location::with_options(Path::new(&format!("s3://{BUCKET}/runs")), &options).unwrap();
    (server, root)
}

fn options(layout: &str) -> SaveOptions {
    let layout = Layout::from_name(layout, serde_json::Value::Null).unwrap();
    SaveOptions { layout, ..SaveOptions::default() }
}

fn objects(server: &ObjectServer) -> BTreeMap<String, Vec<u8>> {
    let keys = server.keys(BUCKET, "").into_iter();
    keys.map(|key| (key.clone(), server.get(BUCKET, &key).unwrap().to_vec())).collect()
}

fn repair(at: &Location) -> RepairReport {
    regrow::repair(at, &RepairOptions::default()).unwrap()
}

#[test]
fn a_network_that_fails_is_an_error_and_no_damage() {
    let (server, root) = bucket();
    let path = root.join("x");
    regrow::save_with(
        &path,
        &tree(1),
        &SaveOptions { parity: Some("1/4".parse().unwrap()), ..options("regrow") },
    )
    .unwrap();
    let model = "runs/x/model.safetensors";
    let good = objects(&server);
    for is_damaged in [false, true] {
        if is_damaged {
            assert!(server.flip_byte(BUCKET, model, 100_000));
        }
        let before = objects(&server);
        // Of the data, and of the parity, in turn: both are read with retries, and then given up.
        for key in ["*/model.safetensors", "*/regrow.parity.blocks"] {
            server.fault(Fault::refuse(Refusal::InternalError).on(Op::Get).key(key));
            let error = regrow::repair(&path, &RepairOptions::default()).unwrap_err();
            assert!(!matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound), "{key}: {error}");
            server.clear_faults();
            assert!(objects(&server) == before, "{key}: something was written");
        }
    }
    let report = repair(&path);
    assert!(report.is_sound() && report.healed.len() == 1, "{report} {:?}", report.findings);
    assert!(objects(&server)[model] == good[model]);
}

#[test]
fn lost_objects_come_back_without_parity() {
    let (server, root) = bucket();
    let good = bytes_of(&tree(1));
    let near = memory_folder().unwrap();
    for (layout, lost) in [
        ("regrow", &["regrow.json"][..]),
        ("regrow", &["_METADATA", "manifest.ocdbt", "commit_success.txt"]),
        (
            "regrow",
            &["regrow.json", "_METADATA", "manifest.ocdbt", "_CHECKPOINT_METADATA", "commit_success.txt"],
        ),
        ("orbax", &["manifest.ocdbt"]),
        ("orbax", &["_METADATA", "manifest.ocdbt", "commit_success.txt"]),
    ] {
        let path = root.join(format!("{layout}{}", lost.len()));
        regrow::save_with(&path, &tree(1), &options(layout)).unwrap();
        for name in lost {
            assert!(server.delete(BUCKET, &format!("runs/{layout}{}/{name}", lost.len())), "{name}");
        }
        let report = repair(&path);
        assert!(
            report.is_sound() && !report.recovered.is_empty(),
            "{layout} {lost:?}: {report} {:?}",
            report.findings
        );
        assert_eq!(bytes_of(&regrow::load(&path).unwrap()), good, "{layout} {lost:?}");
    }
    // Of a replica on a disk.
    let copy = near.path().join("copy");
    let path = root.join("copied");
    regrow::save_with(&copy, &tree(1), &options("regrow")).unwrap();
    regrow::copy(&copy, &path, &regrow::CopyOptions::default()).unwrap();
    assert!(server.truncate(BUCKET, "runs/copied/model.safetensors", 9000));
    let from = Some(Location::local(&copy));
    let report = regrow::repair(&path, &RepairOptions { from, ..RepairOptions::default() }).unwrap();
    assert!(report.is_sound() && report.healed.len() == 1, "{report} {:?}", report.findings);
    assert_eq!(bytes_of(&regrow::load(&path).unwrap()), good);
}

/// The marker says that all else is there: with any other object lost, too, it comes back only if
/// that one does.
#[test]
fn a_lost_marker_returns_only_to_a_whole_checkpoint() {
    let (server, root) = bucket();
    let good = bytes_of(&tree(1));
    let check = RepairOptions { check: true, ..RepairOptions::default() };
    let (mut whole, mut not_whole) = (0, 0);
    for (number, layout) in ["null", r#"{"ocdbt": false}"#, r#"{"ocdbt": false, "zarr3": true}"#, "regrow"]
        .into_iter()
        .enumerate()
    {
        let layout = match layout {
            "regrow" => Layout::from_name("regrow", serde_json::Value::Null).unwrap(),
            options => Layout::from_name("orbax", serde_json::from_str(options).unwrap()).unwrap(),
        };
        let name = format!("marked{number}");
        let path = root.join(&name);
        regrow::save_with(&path, &tree(1), &SaveOptions { layout, ..SaveOptions::default() }).unwrap();
        let prefix = format!("runs/{name}/");
        let marker = format!("{prefix}commit_success.txt");
        let all: BTreeMap<String, Vec<u8>> =
            objects(&server).into_iter().filter(|(key, _)| key.starts_with(&prefix)).collect();
        assert!(all.contains_key(&marker), "{all:?}");
        for lost in all.keys() {
            let say = format!("without the marker and {lost}");
            server.delete(BUCKET, &marker);
            server.delete(BUCKET, lost);
            // A check names the files that would be rebuilt; it does not know what can be rebuilt
            // from those.
            let is_promised = regrow::repair(&path, &check)
                .is_ok_and(|report| report.lost.is_empty() && !report.recovered.is_empty());
            let repaired = regrow::repair(&path, &RepairOptions::default());
            let is_whole = repaired.as_ref().is_ok_and(RepairReport::is_sound);
            assert_eq!(server.get(BUCKET, &marker).is_some(), is_whole, "{say}: {repaired:?}");
            if is_whole {
                assert!(is_promised, "{say}: the check has not said so");
                assert_eq!(bytes_of(&regrow::load(&path).unwrap()), good, "{say}");
                whole += 1;
            } else {
                match repaired {
                    Ok(report) => {
                        let said = format!("{:?} {:?}", report.lost, report.findings);
                        assert!(said.contains("commit_success.txt"), "{say}: {said}");
                    }
                    // There was nothing to be done.
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Uncommitted, "{say}"),
                }
                assert_eq!(regrow::open(&path).unwrap_err().kind(), ErrorKind::Uncommitted, "{say}");
                not_whole += 1;
            }
            for key in objects(&server).into_keys().filter(|key| key.starts_with(&prefix)) {
                server.delete(BUCKET, &key);
            }
            all.iter().for_each(|(key, bytes)| server.put(BUCKET, key, bytes.clone()));
        }
    }
    assert!(whole >= 8 && not_whole >= 8, "{whole} {not_whole}");
}

/// So it is where blocks come from parity, from a copy that lacks as much, and from one that lacks
/// nothing, with a seal or without one.
#[test]
fn a_marker_from_parity_or_a_replica_returns_only_to_a_whole_checkpoint() {
    let (server, root) = bucket();
    let good = bytes_of(&tree(1));
    let (mut whole, mut not_whole) = (0, 0);
    let copies = [("poor", false), ("poor", true), ("full", false), ("full", true)];
    for (number, layout) in ["orbax", "regrow"].into_iter().enumerate() {
        for (help, seal) in [("parity", false), ("parity", true)].into_iter().chain(copies) {
            let name = format!("{help}{number}{seal}");
            let (path, copy) = (root.join(&name), root.join(format!("copy-{name}")));
            let parity = (help == "parity").then(|| "1/64".parse().unwrap());
            regrow::save_with(&path, &tree(1), &SaveOptions { parity, seal, ..options(layout) }).unwrap();
            let (prefix, of_copy) = (format!("runs/{name}/"), format!("runs/copy-{name}/"));
            let all: BTreeMap<String, Vec<u8>> =
                objects(&server).into_iter().filter(|(key, _)| key.starts_with(&prefix)).collect();
            let marker = format!("{prefix}commit_success.txt");
            let largest = all.iter().filter(|(key, _)| !key.contains("regrow.parity"));
            let largest = largest.max_by_key(|(_, bytes)| bytes.len()).unwrap().0.clone();
            for lost in [&marker, &largest] {
                let say = format!("{layout}, {help}, sealed: {seal}, without the marker and {lost}");
                for key in objects(&server).into_keys() {
                    server.delete(BUCKET, &key);
                }
                for (key, bytes) in &all {
                    if *key != marker && key != lost {
                        server.put(BUCKET, key, bytes.clone());
                    }
                    if help != "parity" && (help == "full" || key != lost) {
                        server.put(BUCKET, &key.replace(&prefix, &of_copy), bytes.clone());
                    }
                }
                let from = (help != "parity").then(|| copy.clone());
                let with = |check| RepairOptions { check, from: from.clone(), ..RepairOptions::default() };
                let checked = regrow::repair(&path, &with(true));
                let is_promised = checked.as_ref().is_ok_and(|report| report.lost.is_empty());
                let repaired = regrow::repair(&path, &with(false));
                let is_whole = repaired.as_ref().is_ok_and(RepairReport::is_sound);
                assert_eq!(server.get(BUCKET, &marker).is_some(), is_whole, "{say}: {repaired:?}");
                // The marker of this layout holds the nonce of its save, which only a seal records.
                let is_lost_for_good = layout == "orbax" && help == "poor" && seal;
                // Without a seal it has no checksums, and nothing is taken from a copy.
                let is_there = help == "full" && (layout == "regrow" || seal);
                let is_expected = is_there || *lost == marker && !is_lost_for_good;
                assert_eq!(is_whole, is_expected, "{say}: {repaired:?}");
                assert_eq!(is_promised, is_whole, "{say}: {checked:?}");
                if is_whole {
                    assert_eq!(bytes_of(&regrow::load(&path).unwrap()), good, "{say}");
                    whole += 1;
                } else {
                    let kind = regrow::open(&path).unwrap_err().kind();
                    assert!(matches!(kind, ErrorKind::Uncommitted | ErrorKind::Corrupt), "{say}: {kind:?}");
                    not_whole += 1;
                }
            }
        }
    }
    assert!(whole >= 12 && not_whole >= 8, "{whole} {not_whole}");
}

/// What parity heals it heals by stripes: that of the marker may be one that heals, where another
/// does not.
#[test]
fn a_marker_stays_away_if_another_stripe_is_lost() {
    let (server, root) = bucket();
    let path = root.join("x");
    let parity = Some("1/64".parse().unwrap());
    regrow::save_with(&path, &vec![1_f32; 10 << 20], &SaveOptions { parity, ..options("regrow") }).unwrap();
    let (model, marker, small) =
        ("runs/x/model.safetensors", "runs/x/commit_success.txt", "runs/x/_CHECKPOINT_METADATA");
    let good = objects(&server);
    for (first, is_cut) in [(0, false), (1, false), (0, true), (1, true)] {
        good.iter().for_each(|(key, bytes)| server.put(BUCKET, key, bytes.clone()));
        // A cut file with lost blocks is not written at all, and so another file is healed beside
        // blocks that could be.
        if is_cut {
            server.put(BUCKET, model, good[model][..good[model].len() - 100].to_vec());
        }
        assert!(server.delete(BUCKET, marker) && server.delete(BUCKET, small));
        // Every second block of 32 KiB is of the same stripe, which heals eleven.
        for block in (first..first + 24).step_by(2) {
            assert!(server.flip_byte(BUCKET, model, (200 + block) * (32 << 10)));
        }
        let report = repair(&path);
        assert!(!report.lost.is_empty(), "{first} {is_cut}: {report}");
        assert!(server.get(BUCKET, marker).is_none(), "{first} {is_cut}: {report}");
    }
    good.iter().for_each(|(key, bytes)| server.put(BUCKET, key, bytes.clone()));
    assert!(server.delete(BUCKET, marker));
    let report = repair(&path);
    assert!(report.is_sound() && server.get(BUCKET, marker).is_some(), "{report}");
}

#[test]
fn the_markers_of_a_checkpoint_and_of_its_item_come_back_together() {
    let (server, root) = bucket();
    let path = root.join("items");
    let items = ItemsSave::begin(&path, ItemsOptions::default()).unwrap();
    items.tree("a", &tree(1), &options("regrow")).unwrap();
    items.tree("b", &tree(2), &options("regrow")).unwrap();
    items.commit().unwrap();
    let markers: Vec<String> =
        objects(&server).into_keys().filter(|key| key.ends_with("/commit_success.txt")).collect();
    assert_eq!(markers.len(), 3, "{markers:?}");
    markers.iter().for_each(|marker| assert!(server.delete(BUCKET, marker)));
    for check in [true, false] {
        let report = regrow::repair(&path, &RepairOptions { check, ..RepairOptions::default() }).unwrap();
        assert!(report.lost.is_empty() && report.recovered.len() == markers.len(), "{check}: {report:?}");
    }
    assert!(markers.iter().all(|marker| server.get(BUCKET, marker).is_some()));
    let load = |item: &str| bytes_of(&regrow::load(path.join(item)).unwrap());
    assert_eq!((load("a"), load("b")), (bytes_of(&tree(1)), bytes_of(&tree(2))));
}

/// A process that was killed while saving, copying or removing has left a claim: the files are not
/// a checkpoint that has lost its marker.
#[test]
fn repair_does_not_commit_an_unfinished_save() {
    let (server, root) = bucket();
    for layout in ["orbax", "regrow", "safetensors", "npy"] {
        let path = root.join(format!("unfinished-{layout}"));
        regrow::save_with(&path, &tree(1), &options(layout)).unwrap();
        let prefix = format!("runs/unfinished-{layout}/");
        for marker in ["commit_success.txt", "regrow-committed.txt"] {
            server.delete(BUCKET, &format!("{prefix}{marker}"));
        }
        server.put(
            BUCKET,
            &format!("{prefix}regrow-writing.json"),
            r#"{"nonce":"00","host":"elsewhere 0","pid":1,"since":1}"#,
        );
        let before = objects(&server);
        for check in [true, false] {
            let error =
                regrow::repair(&path, &RepairOptions { check, ..RepairOptions::default() }).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Uncommitted, "{layout}: {error}");
            assert!(objects(&server) == before, "{layout}: something was written");
        }
        // So it is of a step of a run that is being copied, and of an item of that.
        let claim = server.get(BUCKET, &format!("{prefix}regrow-writing.json")).unwrap().to_vec();
        server.delete(BUCKET, &format!("{prefix}regrow-writing.json"));
        for above in [format!("runs/unfinished-{layout}/1"), format!("runs/unfinished-{layout}/1/item")] {
            for (key, bytes) in before.iter().filter(|(key, _)| key.starts_with(&prefix)) {
                server.put(BUCKET, &key.replace(prefix.trim_end_matches('/'), &above), bytes.clone());
            }
            server.delete(BUCKET, &format!("{above}/regrow-writing.json"));
            server.put(BUCKET, &format!("{prefix}regrow-writing.json"), claim.clone());
            let part = root.join(above.trim_start_matches("runs/"));
            let error = regrow::repair(&part, &RepairOptions::default()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Uncommitted, "{layout}, {above}: {error}");
        }
        // The error says what to do.
        let unfinished = regrow::RemoveOptions { unfinished: true, ..regrow::RemoveOptions::default() };
        regrow::remove(&path, &unfinished).unwrap();
        assert!(!objects(&server).keys().any(|key| key.starts_with(&prefix)), "{layout}");
    }
}

/// Another process saves to the path, or removes it, when all damage has been found, and before any
/// of it is repaired.
#[test]
fn repair_keeps_other_writers_out() {
    let (server, root) = bucket();
    let near = memory_folder().unwrap();
    let cases = [("regrow", true), ("npy", true), ("orbax", true), ("regrow", false), ("safetensors", true)];
    for (number, (layout, by_parity)) in cases.into_iter().enumerate() {
        let name = format!("{number}");
        let (path, copy) = (root.join(&name), Location::local(near.path().join(&name)));
        let parity = by_parity.then(|| "1/4".parse().unwrap());
        regrow::save_with(&path, &tree(1), &SaveOptions { parity, ..options(layout) }).unwrap();
        regrow::copy(&path, &copy, &regrow::CopyOptions::default()).unwrap();
        let prefix = format!("runs/{name}/");
        let largest = objects(&server)
            .into_iter()
            .filter(|(key, _)| key.starts_with(&prefix) && !key.contains("regrow.parity"))
            .max_by_key(|(_, bytes)| bytes.len());
        let (key, bytes) = largest.unwrap();
        assert!(server.flip_byte(BUCKET, &key, bytes.len() as u64 - 50));
        let refused = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let disturb = {
            let (path, save, refused) = (path.clone(), options(layout), std::sync::Arc::clone(&refused));
            move |progress: regrow::monitor::Progress| {
                // It is called 20 times a second at most.
                std::thread::sleep(std::time::Duration::from_millis(51));
                let is_read = progress.done_bytes > 0 && progress.done_bytes >= progress.total_bytes;
                let mut refused = refused.lock().unwrap();
                if is_read && refused.is_empty() {
                    let wait = Some(std::time::Duration::ZERO);
                    let remove = regrow::engine::RemoveOptions { wait, ..Default::default() };
                    refused.push(regrow::remove(&path, &remove).map(drop));
                    let save = SaveOptions { wait, overwrite: true, ..save.clone() };
                    refused.push(regrow::save_with(&path, &tree(9), &save).map(drop));
                }
                Ok(())
            }
        };
        let repair = RepairOptions {
            from: (!by_parity).then(|| copy.clone()),
            monitor: regrow::Monitor::with_hook(disturb),
            ..RepairOptions::default()
        };
        let said = format!("{layout} {by_parity}");
        let report = regrow::repair(&path, &repair).unwrap();
        assert!(report.is_sound(), "{said}: {report:?}");
        let refused = std::mem::take(&mut *refused.lock().unwrap());
        assert_eq!(refused.len(), 2, "{said}");
        for error in refused.into_iter().map(|done| done.unwrap_err()) {
            assert_eq!(error.kind(), ErrorKind::Busy, "{said}: {error}");
        }
        assert_eq!(bytes_of(&regrow::load(&path).unwrap()), bytes_of(&tree(1)), "{said}");
        assert!(regrow::verify(&path).unwrap().is_ok(), "{said}");
        let left = server.keys(BUCKET, &format!("runs/{name}"));
        assert!(!left.iter().any(|key| key.contains("tmp") || key.contains("state")), "{left:?}");
    }
}

/// Files that a layout does not read may be lost, too: an unread item, and a file of another
/// program.
#[test]
fn a_marker_stays_away_if_a_file_without_a_checksum_is_lost() {
    let (server, root) = bucket();
    let begin = |name: &str| {
        let path = root.join(name);
        let items = ItemsSave::begin(&path, ItemsOptions::default()).unwrap();
        items.tree("a", &tree(1), &options("regrow")).unwrap();
        items.tree("b", &tree(2), &options("regrow")).unwrap();
        items.commit().unwrap();
        path
    };
    let protect = |path: &Location| {
        let ratio = "1/64".parse().unwrap();
        regrow::add_parity(path, &regrow::ParityOptions { ratio, ..regrow::ParityOptions::default() })
            .unwrap();
    };
    let keys_below = |prefix: &str| -> Vec<String> {
        objects(&server).into_keys().filter(|key| key.starts_with(prefix)).collect()
    };
    for has_parity in [true, false] {
        // An item is gone as a whole.
        let name = format!("items-{has_parity}");
        let path = begin(&name);
        if has_parity {
            protect(&path);
        }
        let marker = format!("runs/{name}/commit_success.txt");
        keys_below(&format!("runs/{name}/b/")).iter().for_each(|key| assert!(server.delete(BUCKET, key)));
        assert!(server.delete(BUCKET, &marker));
        for check in [true, false] {
            let report = regrow::repair(&path, &RepairOptions { check, ..RepairOptions::default() }).unwrap();
            assert!(!report.is_sound() && !report.lost.is_empty(), "{name} {check}: {report:?}");
            let said: Vec<String> = report.lost.iter().map(ToString::to_string).collect();
            assert!(said.iter().any(|said| said.contains(&format!("{name}/b"))), "{check}: {said:?}");
            assert!(server.get(BUCKET, &marker).is_none(), "{name} {check}: {report:?}");
        }
        let parity = keys_below(&format!("runs/{name}/regrow.parity"));
        assert_eq!(!parity.is_empty(), has_parity, "the parity stays");
    }
    // A file beside the arrays, longer than what the parity heals; in a folder that has the name of
    // those of databases.
    let path = root.join("d");
    regrow::save_with(&path, &tree(1), &options("regrow")).unwrap();
    let beside = "runs/d/notes.bin";
    server.put(BUCKET, beside, (0..1_u32 << 20).map(|at| (at % 251) as u8).collect::<Vec<u8>>());
    protect(&path);
    let marker = "runs/d/commit_success.txt";
    assert!(server.delete(BUCKET, beside) && server.delete(BUCKET, marker));
    let report = repair(&path);
    assert!(!report.is_sound() && server.get(BUCKET, marker).is_none(), "{report:?}");
    assert!(!keys_below("runs/d/regrow.parity").is_empty());
}

/// A copy of a run that was killed: what was to be a part of it is refused, and steps that are
/// whole are repaired.
#[test]
fn a_killed_copy_of_a_run_accepts_no_new_steps() {
    let (server, root) = bucket();
    let save = |step: &str, generation: u8| {
        regrow::save_with(root.join(step), &tree(generation), &options("regrow")).map(drop)
    };
    save("run/1", 1).unwrap();
    server.put(
        BUCKET,
        "runs/run/regrow-writing.json",
        r#"{"nonce":"00","host":"elsewhere 0","pid":1,"since":1}"#,
    );
    let error = save("run/2", 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Uncommitted, "{error}");
    assert!(error.place().file.as_ref().unwrap().ends_with("runs/run"), "{error}");
    assert!(!objects(&server).keys().any(|key| key.starts_with("runs/run/2")));
    // The first step has its own marker.
    assert!(server.delete(BUCKET, "runs/run/1/_METADATA"));
    let report = repair(&root.join("run/1"));
    assert!(report.is_sound() && !report.recovered.is_empty(), "{report:?}");
    regrow::seal(root.join("run/1"), &regrow::SealOptions::default()).unwrap();
    assert_eq!(bytes_of(&regrow::load(root.join("run/1")).unwrap()), bytes_of(&tree(1)));
    // As the error says.
    let unfinished = regrow::RemoveOptions { unfinished: true, ..regrow::RemoveOptions::default() };
    regrow::remove(root.join("run"), &unfinished).unwrap();
    save("run/2", 2).unwrap();
    // Credentials for this folder alone are enough.
    server.fault(Fault::refuse(Refusal::AccessDenied).key("runs/regrow-writing.json"));
    save("run/3", 3).unwrap();
    assert!(server.struck()[0] > 0, "there was no request");
}
