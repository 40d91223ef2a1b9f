//! Reports of checkpoints of every layout: whole, damaged, empty, compared, of a folder of steps,
//! with hostile keys.

#![expect(clippy::unwrap_used, reason = "a test's failure is a panic")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use regrow::array::{Array, Dtype, Shape};
use regrow::engine::Layout;
use regrow::location::ToLocation;
use regrow::sharding::{Mesh, NamedSharding, PartitionSpec, Sharding};
use regrow::tree::{Key, Leaf, NodeKind, PathPattern, Tree, TreeBuilder};
use regrow::{Checkpoint, ErrorKind, SaveOptions};
use regrow_report::model::leaves::LeafState;
use regrow_report::model::{Reading, Report};
use regrow_report::{ReportOptions, Subject, assemble, page};

fn floats(values: &[f32]) -> Leaf {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Leaf::array(Array::new(Dtype::Float32, Shape::new([values.len() as u64]).unwrap(), bytes.into()).unwrap())
}

fn dict<'k>(leaves: impl IntoIterator<Item = (&'k str, Leaf)>) -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    leaves.into_iter().for_each(|(key, leaf)| build.leaf(Key::dict(key), leaf).unwrap());
    build.close().unwrap();
    build.finish().unwrap()
}

fn at(path: impl AsRef<Path>) -> Subject {
    Subject::At(path.as_ref().to_location().unwrap())
}

fn of(path: impl AsRef<Path>) -> Report {
    report(&at(path), &[], &ReportOptions::default())
}

/// A report with fitting columns that can be made into a page.
fn report(subject: &Subject, others: &[Subject], options: &ReportOptions) -> Report {
    let report = assemble(subject, others, options).unwrap();
    check(&report);
    report
}

fn check(report: &Report) {
    let leaves = &report.leaves;
    let count = report.checkpoint.leaf_count as usize;
    let lens = [
        leaves.node.len(),
        leaves.kind.len(),
        leaves.dtype.len(),
        leaves.shape.len(),
        leaves.elements.len(),
        leaves.bytes.len(),
        leaves.coding.len(),
        leaves.chunk_shape.len(),
        leaves.chunk_count.len(),
        leaves.checksum.len(),
        leaves.state.len(),
        leaves.file.len(),
        leaves.sharding.len(),
    ];
    assert_eq!(lens, [count; 13]);
    if let Some(own) = &leaves.statistics {
        let lens = [
            own.count.len(),
            own.nan_count.len(),
            own.infinity_count.len(),
            own.zero_count.len(),
            own.min.len(),
            own.max.len(),
            own.mean.len(),
            own.standard_deviation.len(),
            own.l2_norm.len(),
            own.histograms.first.len() - 1,
        ];
        assert_eq!(lens, [count; 10]);
        let bins = &own.histograms;
        assert_eq!((bins.lower.len(), bins.upper.len()), (bins.count.len(), bins.count.len()));
        for leaf in 0..count {
            let range = bins.first[leaf] as usize..bins.first[leaf + 1] as usize;
            let binned: u64 = bins.count[range.clone()].iter().sum();
            let finite = own.count[leaf] - own.nan_count[leaf] - own.infinity_count[leaf];
            assert!(range.is_empty() || binned == finite, "{leaf}: {binned} of {finite}");
        }
    }
    assert_eq!(leaves.bytes.iter().sum::<u64>(), report.checkpoint.data_bytes);
    let protection = &report.checkpoint.protection;
    assert_eq!(protection.protected_bytes + protection.unprotected_bytes, report.checkpoint.data_bytes);
    assert!(!protection.words.is_empty());
    let json = serde_json::to_string(report).unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["title"], report.title.as_str());
    let mut html = Vec::new();
    page(report, &mut html).unwrap();
    assert!(html.starts_with(b"<!doctype html>"));
}

/// All that could be a checkpoint in a folder.
fn candidates(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        found.push(path.clone());
        let marks = ["_METADATA", "_CHECKPOINT_METADATA", "metadata.json", "checkpoint"];
        if path.is_dir() && !marks.iter().any(|name| path.join(name).exists()) {
            candidates(&path, found);
        }
    }
}

#[test]
fn every_fixture_that_opens_has_a_report() {
    let mut paths = Vec::new();
    candidates(&regrow_testkit::fixtures(), &mut paths);
    let mut layouts = BTreeMap::new();
    for path in paths {
        let Ok(checkpoint) = regrow::open(&path) else { continue };
        let report = match assemble(&at(&path), &[], &ReportOptions::default()) {
            Ok(report) => report,
            // What cannot even be listed cannot be reported on.
            Err(error) => {
                assert!(regrow::verify(&path).is_err(), "{}: {error}", path.display());
                continue;
            }
        };
        check(&report);
        *layouts.entry(checkpoint.description().layout.clone()).or_insert(0) += 1;
        let verified = regrow::verify(&path).unwrap();
        let found = &report.checkpoint.findings;
        assert_eq!(
            found.is_empty(),
            verified.is_ok(),
            "{}: {found:?} {:?}",
            path.display(),
            verified.findings
        );
        if verified.has_data_checksums {
            assert_eq!(report.checkpoint.protection.unprotected_bytes, 0, "{}", path.display());
        }
    }
    for layout in ["equinox", "flax", "npy", "orbax", "pytree_data", "regrow", "safetensors", "torch", "trak"]
    {
        assert!(layouts.contains_key(layout), "{layout}: {layouts:?}");
    }
}

#[test]
fn damage_is_shown_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let tree = dict([("a", floats(&[1.0; 1000])), ("b", floats(&[2.0; 300_000]))]);
    regrow::save(&path, &tree).unwrap();
    let sound = of(&path);
    assert!(sound.is_sound());
    assert_eq!(sound.leaves.state, [LeafState::Verified; 2]);
    assert!(sound.checkpoint.protection.words.starts_with("Checksums cover all data"));
    let file = path.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();
    let damaged = of(&path);
    assert!(!damaged.is_sound());
    let [finding] = &damaged.checkpoint.findings[..] else { panic!("{damaged:?}") };
    assert_eq!((finding.leaf, finding.key_path.as_deref()), (Some(1), Some("b")));
    assert_eq!(finding.file.as_deref(), Some("model.safetensors"));
    assert!(finding.offset_bytes.is_some() && !finding.what.is_empty());
    assert_eq!(damaged.leaves.state, [LeafState::Verified, LeafState::Damaged]);
    // The data was not read.
    let options = ReportOptions { without_statistics: true, ..ReportOptions::default() };
    let unread = report(&at(&path), &[], &options);
    assert!(unread.is_sound() && unread.leaves.statistics.is_none());
    assert_eq!((unread.checkpoint.reading, unread.leaves.state[0]), (Reading::Metadata, LeafState::NotRead));
    // The other side of a comparison.
    let copy = folder.path().join("copy");
    regrow::save(&copy, &tree).unwrap();
    let compared = report(&at(&copy), &[at(&path)], &ReportOptions::default());
    assert!(!compared.is_sound() && compared.checkpoint.findings.is_empty());
    assert_eq!(compared.comparisons[0].other.findings[0].key_path.as_deref(), Some("b"));
    assert_eq!(compared.comparisons[0].counts, [("equal".to_owned(), 1), ("unread".to_owned(), 1)]);
}

#[test]
fn what_nothing_protects_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let layout = Layout::from_name("safetensors", serde_json::Value::Null).unwrap();
    let options = SaveOptions { layout, ..SaveOptions::default() };
    regrow::save_with(&path, &dict([("a", floats(&[1.0; 1000]))]), &options).unwrap();
    let report = of(&path);
    assert!(report.is_sound());
    assert_eq!(report.leaves.state, [LeafState::Unprotected]);
    assert_eq!(report.checkpoint.protection.unprotected_bytes, 4000);
    let words = &report.checkpoint.protection.words;
    assert!(words.starts_with("No checksum covers the data") && words.contains("safetensors"), "{words}");
    assert_eq!(report.leaves.file.values, ["x.safetensors"]);
}

#[test]
fn nothing_at_all_has_a_page_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    regrow::save(&path, &dict([])).unwrap();
    let report = of(&path);
    assert_eq!((report.checkpoint.leaf_count, report.leaves.keys.len()), (0, 1));
    assert_eq!(report.checkpoint.protection.words, "There is no data.");
    let held = Checkpoint::of_tree(dict([("a", floats(&[]))])).unwrap();
    let report = self::report(&Subject::Opened(held), &[], &ReportOptions::default());
    assert_eq!((report.title.as_str(), report.checkpoint.element_count), ("a pytree in memory", 0));
}

#[test]
fn keys_are_kept_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let long = "l".repeat(300);
    let keys = [
        "</script><script>alert(1)</script>",
        "a/b",
        "\u{202e}rtl",
        "\"><img onerror=x>",
        &long,
        "\u{1b}[2J",
    ];
    regrow::save(&path, &dict(keys.map(|key| (key, floats(&[1.0]))))).unwrap();
    let report = of(&path);
    for key in keys {
        assert!(report.leaves.keys.names.iter().any(|name| name == key), "{key:?}");
    }
    let one_key = |node: &u32| report.leaves.keys.path(*node).keys().len() == 1;
    assert!(report.leaves.node.iter().all(one_key), "a slash is no separator");
}

#[test]
fn three_checkpoints_are_compared_with_the_first() {
    let a = Checkpoint::of_tree(dict([("w", floats(&[1.0, 2.0])), ("x", floats(&[0.0]))])).unwrap();
    let b = Checkpoint::of_tree(dict([("w", floats(&[1.0, 2.5])), ("y", floats(&[0.0]))])).unwrap();
    let report = report(&a.clone().into(), &[b.into(), a.into()], &ReportOptions::default());
    let [first, second] = &report.comparisons[..] else { panic!("{report:?}") };
    assert!(!first.is_equal && second.is_equal);
    let status = &first.leaves.status;
    let said: Vec<&str> = status.index.iter().map(|at| status.values[*at as usize].as_str()).collect();
    assert_eq!(said, ["only_b", "only_a", "values"]);
    assert_eq!(first.leaves.max_abs, [None, None, Some(0.5)]);
    assert!(first.words.contains("differ"), "{}", first.words);
    assert_eq!(second.leaves.node.len(), 0);
}

#[test]
fn a_folder_of_steps_is_told_over_time() {
    let folder = tempfile::tempdir().unwrap();
    let numbers = [1, 2, 5];
    for step in numbers {
        let scale = step as f32;
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        build.open(Key::dict("opt"), NodeKind::Dict).unwrap();
        build.leaf(Key::dict("mu"), floats(&[scale; 4])).unwrap();
        build.close().unwrap();
        build.open(Key::dict("params"), NodeKind::Dict).unwrap();
        build.leaf(Key::dict("b"), floats(&[3.0 * scale])).unwrap();
        build.leaf(Key::dict("w"), floats(&[4.0 * scale])).unwrap();
        build.close().unwrap();
        build.close().unwrap();
        regrow::save(folder.path().join(format!("{step}")), &build.finish().unwrap()).unwrap();
    }
    let file = folder.path().join("2/model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, bytes).unwrap();
    let report = of(folder.path());
    assert_eq!(report.checkpoint.step, Some(5));
    assert!(report.checkpoint.stored_bytes > Some(0));
    let series = report.steps.as_ref().unwrap();
    assert_eq!(series.steps.iter().map(|step| step.step).collect::<Vec<_>>(), numbers);
    let damaged: Vec<_> = series.steps.iter().map(|step| step.is_damaged).collect();
    assert_eq!(damaged, [Some(false), Some(true), Some(false)]);
    assert!(!report.is_sound() && !series.steps[1].note.is_empty());
    assert!(series.steps.iter().all(|step| step.stored_bytes > Some(0) && step.written_seconds > Some(1e9)));
    // That of a save that has just ended.
    assert!(
        series.steps.iter().all(|step| step.save_seconds.is_none_or(|save| (0.0..600.0).contains(&save)))
    );
    let norms: Vec<(&str, Option<f64>, Option<f64>)> =
        series.norms.iter().map(|norm| (norm.name.as_str(), norm.l2_norm[0], norm.l2_norm[2])).collect();
    assert_eq!(norms, [("opt", Some(2.0), Some(10.0)), ("params", Some(5.0), Some(25.0))]);
    // Metadata alone: nothing is read, and nothing is known of damage.
    let options = ReportOptions { without_statistics: true, ..ReportOptions::default() };
    let series = self::report(&at(folder.path()), &[], &options).steps.unwrap();
    assert!(series.norms.is_empty() && series.steps.iter().all(|step| step.is_damaged.is_none()));
}

#[test]
fn arrays_on_devices_are_drawn() {
    let mesh = Mesh::new([("x", 2), ("y", 2)]);
    let sharding = Sharding::from(NamedSharding::new(mesh, PartitionSpec::new([Some("x")])));
    let mut leaf = floats(&[0.0; 8]);
    leaf.sharding = Some(std::sync::Arc::new(sharding));
    let held = Checkpoint::of_tree(dict([("a", leaf.clone()), ("b", floats(&[1.0])), ("c", leaf)])).unwrap();
    let report = report(&held.into(), &[], &ReportOptions::default());
    assert_eq!(report.leaves.sharding, [Some(0), None, Some(0)]);
    let [one] = &report.shardings[..] else { panic!("{report:?}") };
    assert_eq!((one.words.as_str(), one.leaf_count, one.bytes), ("P('x') over x=2,y=2", 2, 64));
    assert_eq!((one.mesh.len(), one.spec.as_slice()), (2, &["x".to_owned()][..]));
    let example = one.example.as_ref().unwrap();
    assert_eq!((example.device_count, example.replica_count, &example.part_shape[..]), (4, 2, &[4][..]));
    let last = example.parts.last().unwrap();
    assert_eq!((&last.coordinates[..], &last.start[..], &last.end[..]), (&[1, 1][..], &[4][..], &[8][..]));
    assert_eq!(last.replica, 1);
}

#[test]
fn a_bucket_and_globs() {
    let url = "memory://report/x";
    regrow::save(url, &dict([("a", floats(&[1.0; 100])), ("b", floats(&[2.0; 100]))])).unwrap();
    let only =
        |glob| ReportOptions { only: vec![PathPattern::new(glob).unwrap()], ..ReportOptions::default() };
    let found = report(&at(url), &[at(url)], &only("a"));
    assert_eq!(found.checkpoint.location, url);
    assert_eq!(found.leaves.statistics.as_ref().unwrap().count, [100, 0]);
    assert_eq!(found.leaves.state, [LeafState::Verified, LeafState::NotRead]);
    assert_eq!(found.comparisons[0].counts, [("equal".to_owned(), 1)]);
    assert_eq!(assemble(&at(url), &[], &only("nothing")).unwrap_err().kind(), ErrorKind::NotFound);
    let nowhere = assemble(&at("memory://report/y"), &[], &ReportOptions::default());
    assert_eq!(nowhere.unwrap_err().kind(), ErrorKind::NotFound);
}
