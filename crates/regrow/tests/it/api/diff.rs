//! Comparisons of two checkpoints in any layouts: the report lists all differences, and no others.

use std::fs;

use crate::common::dict;
use regrow::array::{Array, Dtype, Shape, Tolerance};
use regrow::engine::{LeafStatus, Side};
use regrow::tree::{Key, Leaf, LeafData, LeafKind, NodeKind, PathPattern, Tree, TreeBuilder};
use regrow::{DiffOptions, DiffReport, ErrorKind, SaveOptions, diff, diff_with, save, save_with};

fn floats(values: &[f32]) -> Leaf {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Leaf::array(Array::new(Dtype::Float32, Shape::new([values.len() as u64]).unwrap(), bytes.into()).unwrap())
}

/// What `options` make of two trees in the default layout.
fn of(a: &Tree<Leaf>, b: &Tree<Leaf>, options: &DiffOptions) -> DiffReport {
    let folder = tempfile::tempdir().unwrap();
    let (path_a, path_b) = (folder.path().join("a"), folder.path().join("b"));
    save(&path_a, a).unwrap();
    save(&path_b, b).unwrap();
    diff_with(path_a, path_b, options).unwrap()
}

/// Status and key path of each leaf that differs.
fn said(report: &DiffReport) -> Vec<(&'static str, String)> {
    report.leaves.iter().map(|leaf| (leaf.status.name(), leaf.path.to_string())).collect()
}

#[test]
fn one_element_is_found_between_any_two_layouts() {
    // In chunks, in one piece, deflated.
    const CHANGED: [usize; 3] = [3, 5, 11];
    let folder = tempfile::tempdir().unwrap();
    let layouts = crate::common::layouts();
    let same = crate::common::tree(0);
    // The last element of the one array that is read in two pieces.
    let mut changed = same.clone();
    let kernel =
        changed.leaves_mut().iter_mut().find(|leaf| leaf.as_array().unwrap().shape().rank() == 2).unwrap();
    let array = kernel.as_array().unwrap().clone();
    let mut bytes = array.to_c_order().unwrap().to_vec();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&2.0_f32.to_le_bytes());
    let was = f32::from_le_bytes(array.to_c_order().unwrap()[last..].try_into().unwrap());
    kernel.data = LeafData::Array(Array::new(array.dtype(), array.shape().clone(), bytes.into()).unwrap());
    let path = |at: usize, name: &str| folder.path().join(format!("{name}{at}{}", layouts[at].1));
    for (at, (layout, _)) in layouts.iter().enumerate() {
        let options = SaveOptions { layout: layout.clone(), not_durable: true, ..SaveOptions::default() };
        save_with(path(at, "same"), &same, &options).unwrap();
        if CHANGED.contains(&at) {
            save_with(path(at, "changed"), &changed, &options).unwrap();
        }
    }
    for at in 0..layouts.len() {
        let next = (at + 1) % layouts.len();
        let (a, b) = (path(at, "same"), path(next, "same"));
        let report =
            diff_with(&a, &b, &DiffOptions { equality_only: true, ..DiffOptions::default() }).unwrap();
        assert!(report.is_equal(), "{report}");
        assert_eq!((report.counts.total(), report.leaves.len()), (4, 0), "{report}");
        if CHANGED.contains(&next) {
            let report = diff(&a, path(next, "changed")).unwrap();
            assert_eq!(said(&report), [("values", "kernel".to_owned())], "{report}");
            let leaf = &report.leaves[0];
            let distance = leaf.distance.as_ref().unwrap();
            assert_eq!((distance.differing_count(), distance.count()), (1, 700 * 1500), "{report}");
            assert_eq!(distance.max_abs(), Some(f64::from(2.0 - was)), "{report}");
            assert_eq!(leaf.worst().unwrap().0, [699, 1499], "{report}");
        }
    }
}

#[test]
fn a_trak_store_equals_its_conversion() {
    let folder = tempfile::tempdir().unwrap();
    let store = regrow_testkit::fixtures().join("trak/half_two_models");
    let converted = folder.path().join("converted");
    regrow::convert(&store, &converted, &regrow::ConvertOptions::default()).unwrap();
    let report = diff(&store, &converted).unwrap();
    assert!(report.is_equal() && report.counts.total() > 2, "{report}");
}

#[test]
fn each_kind_of_difference_has_its_name() {
    let typed = |kind| Leaf { kind, ..floats(&[1.0, 2.0]) };
    let half =
        Leaf::array(Array::new(Dtype::BFloat16, Shape::new([1]).unwrap(), vec![0x80, 0x3f].into()).unwrap());
    let a = dict([
        ("alone", floats(&[])),
        ("dtype", half),
        ("jax", typed(LeafKind::JaxArray)),
        ("kind", Leaf::text("12345678")),
        ("same", floats(&[f32::NAN, -0.0])),
        ("shape", floats(&[1.0, 2.0])),
        ("text", Leaf::text("one")),
        ("value", floats(&[1.0, 2.0, 3.0])),
    ]);
    // In another order: that is no difference.
    let b = dict([
        ("value", floats(&[1.0, 2.5, 3.0])),
        ("text", Leaf::text("two")),
        ("shape", floats(&[1.0])),
        ("same", floats(&[f32::NAN, -0.0])),
        ("new", floats(&[1.0])),
        ("kind", floats(&[1.0, 2.0])),
        ("jax", typed(LeafKind::NumpyArray)),
        ("dtype", floats(&[1.0])),
    ]);
    let report = of(&a, &b, &DiffOptions::default());
    let expected = [
        ("only_a", "alone"),
        ("dtype", "dtype"),
        ("kind", "kind"),
        ("shape", "shape"),
        ("values", "text"),
        ("values", "value"),
        ("only_b", "new"),
    ];
    assert_eq!(said(&report), expected.map(|(status, path)| (status, path.to_owned())));
    assert_eq!((report.counts.of(LeafStatus::Equal), report.counts.different()), (2, 7));
    assert_eq!(report.other_kind_count, 1);
    assert!(!report.is_equal());
    let worst: Vec<&str> = report.worst_first().iter().map(|leaf| leaf.status.name()).collect();
    assert_eq!(worst, ["only_b", "only_a", "shape", "kind", "values", "dtype", "values"]);
    assert!(
        report.to_string().contains("7 of 9 leaves (2 values, 1 dtype, 1 kind, 1 shape, 1 only_a, 1 only_b)")
    );

    let strict =
        DiffOptions { check_types: true, ignore_dtype: true, list_equal: true, ..DiffOptions::default() };
    let report = of(&a, &b, &strict);
    let status = |path: &str| report.leaves.iter().find(|leaf| leaf.path.to_string() == path).unwrap().status;
    assert_eq!(
        (status("jax"), status("dtype"), status("same")),
        (LeafStatus::Kind, LeafStatus::Equal, LeafStatus::Equal)
    );
    assert_eq!(report.leaves.len(), 9);
}

#[test]
fn tolerances_decide_and_are_refused_where_they_mean_nothing() {
    let (a, b) = (dict([("w", floats(&[1.0, 0.0, -0.0]))]), dict([("w", floats(&[1.001, 0.0, 0.0]))]));
    let under = |tolerance| of(&a, &b, &DiffOptions { tolerance, ..DiffOptions::default() });
    assert!(!under(Tolerance::default()).is_equal());
    let near = under(Tolerance { rtol: Some(0.01), ..Tolerance::default() });
    assert!(near.is_equal() && near.counts.of(LeafStatus::Within) == 1, "{near}");
    assert!(!under(Tolerance { atol: Some(1e-4), ..Tolerance::default() }).is_equal());
    assert!(under(Tolerance { max_ulp: Some(10_000), ..Tolerance::default() }).is_equal());
    let nothing = DiffOptions {
        tolerance: Tolerance { atol: Some(0.0), ..Tolerance::default() },
        equality_only: true,
        ..DiffOptions::default()
    };
    let folder = tempfile::tempdir().unwrap();
    save(folder.path().join("a"), &a).unwrap();
    let refused = diff_with(folder.path().join("a"), folder.path().join("a"), &nothing).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn containers_are_listed_and_count_on_request() {
    let with = |kind: NodeKind, keys: [Key; 2], extra: bool| {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        build.open(Key::dict("layers"), kind).unwrap();
        for key in keys {
            build.leaf(key, floats(&[1.0])).unwrap();
        }
        build.close().unwrap();
        if extra {
            build.open(Key::dict("none"), NodeKind::None).unwrap();
            build.close().unwrap();
        }
        build.close().unwrap();
        build.finish().unwrap()
    };
    let list = with(NodeKind::List, [Key::Index(0), Key::Index(1)], true);
    let texts = with(NodeKind::Dict, [Key::dict("1"), Key::dict("0")], false);
    let report = of(&list, &texts, &DiffOptions::default());
    assert!(report.is_equal(), "{report}");
    let told: Vec<String> =
        report.containers.iter().map(|one| format!("{} {:?} {:?}", one.path, one.a, one.b)).collect();
    assert_eq!(told, [r#"layers Some("list") Some("dict")"#, r#"none Some("none") None"#]);
    let strict = of(&list, &texts, &DiffOptions { check_types: true, ..DiffOptions::default() });
    assert!(!strict.is_equal());
    assert!(strict.to_string().contains("(2 containers)"), "{strict}");
    // Keys that print as the same text stay apart.
    let numbers = with(NodeKind::Dict, [Key::DictInt(0), Key::dict("0")], false);
    let report = of(&list, &numbers, &DiffOptions::default());
    assert_eq!(said(&report).len(), 4, "{report}");
}

#[test]
fn globs_select_leaves_and_must_match() {
    let (a, b) = (
        dict([("x", floats(&[1.0])), ("y", floats(&[1.0]))]),
        dict([("x", floats(&[2.0])), ("z", floats(&[1.0]))]),
    );
    let only = |texts: &[&str]| DiffOptions {
        only: texts.iter().map(|text| PathPattern::new(text).unwrap()).collect(),
        ..DiffOptions::default()
    };
    assert_eq!(
        said(&of(&a, &b, &only(&["y", "z"]))),
        [("only_a", "y".to_owned()), ("only_b", "z".to_owned())]
    );
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    save(path("a"), &a).unwrap();
    save(path("b"), &b).unwrap();
    let error = diff_with(path("a"), path("b"), &only(&["x", "w*"])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("no leaf matches \"w*\""), "{error}");
}

#[test]
fn empty_checkpoints_are_equal() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    save(path("empty"), &dict::<&str>([])).unwrap();
    save(path("copy"), &dict::<&str>([])).unwrap();
    let report = diff(path("empty"), path("copy")).unwrap();
    assert!(report.is_equal() && report.counts.total() == 0, "{report}");
    let scalar = |value: f64| {
        let one = Array::new(Dtype::Float64, Shape::scalar(), value.to_le_bytes().to_vec().into()).unwrap();
        dict([("none", floats(&[])), ("one", Leaf::array(one))])
    };
    let report = of(&scalar(1.0), &scalar(1.5), &DiffOptions { list_equal: true, ..DiffOptions::default() });
    assert_eq!(said(&report), [("equal", "none".to_owned()), ("values", "one".to_owned())]);
    assert_eq!(report.leaves[1].worst().unwrap().0, [0_u64; 0]);
    assert_eq!(report.leaves[0].distance.as_ref().unwrap().max_abs(), None);
    assert!(diff(path("empty"), path("nowhere")).is_err_and(|error| error.kind() == ErrorKind::NotFound));
}

#[test]
fn a_shared_file_is_read_at_most_once() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("1"), folder.path().join("2"));
    save(&first, &crate::common::tree(0)).unwrap();
    let based = SaveOptions {
        base: Some(regrow::location::Location::parse(&first).unwrap()),
        ..SaveOptions::default()
    };
    let report = save_with(&second, &crate::common::tree(0), &based).unwrap();
    assert!(report.reused_bytes > 0);
    let bytes = report.data_bytes;
    let known = diff_with(
        &first,
        &second,
        &DiffOptions { equality_only: true, list_equal: true, ..DiffOptions::default() },
    )
    .unwrap();
    assert!(known.is_equal() && known.leaves.iter().all(|leaf| leaf.is_same_file), "{known}");
    assert_eq!(known.read_bytes, 0);
    assert_eq!(diff(&first, &second).unwrap().read_bytes, bytes);
    let copy = folder.path().join("3");
    save(&copy, &crate::common::tree(0)).unwrap();
    assert_eq!(diff(&first, &copy).unwrap().read_bytes, 2 * bytes);
}

#[test]
fn a_damaged_leaf_names_its_file_and_the_rest_is_compared() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let leaves = |far: f32| {
        dict([("a", floats(&[1.0; 1000])), ("b", floats(&[far; 300_000])), ("c", floats(&[far; 1000]))])
    };
    save(path("a"), &leaves(1.0)).unwrap();
    save(path("b"), &leaves(2.0)).unwrap();
    let file = path("b").join("model.safetensors");
    let sound = fs::read(&file).unwrap();
    // In the middle, where the long leaf lies, or a part of it has gone.
    let mut flipped = sound.clone();
    flipped[sound.len() / 2] ^= 1;
    for (damage, is_cut) in [(flipped, false), (sound[..sound.len() / 2].to_vec(), true)] {
        fs::write(&file, damage).unwrap();
        let report = diff(path("a"), path("b")).unwrap();
        assert!(!report.is_equal());
        let finding = report
            .findings
            .iter()
            .find(|finding| finding.error.place().leaf.as_ref().unwrap().to_string() == "b")
            .unwrap();
        assert_eq!((finding.side, finding.error.kind()), (Side::B, ErrorKind::Corrupt), "{report}");
        assert_eq!(finding.error.place().file.as_deref(), Some(&*file), "{report}");
        if !is_cut {
            assert_eq!(said(&report), [("unread", "b".to_owned()), ("values", "c".to_owned())], "{report}");
        }
        // The damage is on the other side then.
        let other = diff(path("b"), path("a")).unwrap();
        assert!(other.findings.iter().all(|finding| finding.side == Side::A), "{other}");
    }
}

#[test]
fn opaque_leaves_never_compare_equal() {
    let unknown = || {
        dict([(
            "u",
            Leaf { kind: LeafKind::Unknown("acme.Thing".into()), data: LeafData::Absent, sharding: None },
        )])
    };
    let held = |tree| regrow::Checkpoint::of_tree(tree).unwrap();
    let report = held(unknown()).diff(&held(unknown()), &DiffOptions::default()).unwrap();
    assert!(!report.is_equal() && report.counts.of(LeafStatus::Unread) == 1, "{report}");
    assert!(report.findings.iter().all(|finding| finding.error.kind() == ErrorKind::Unsupported), "{report}");
    // Nor the same as anything else.
    let report = held(unknown()).diff(&held(dict([("u", floats(&[1.0]))])), &DiffOptions::default()).unwrap();
    assert_eq!(said(&report), [("kind", "u".to_owned())]);
}
