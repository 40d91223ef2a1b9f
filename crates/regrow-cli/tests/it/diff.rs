//! `regrow diff`: verdict, table, JSON, exit codes.

use std::fs;
use std::path::PathBuf;

use crate::common::{regrow, saved, text};
use regrow::array::{Array, Dtype, Shape};
use regrow::tree::{Key, Leaf, NodeKind, TreeBuilder};
use tempfile::TempDir;

/// Two checkpoints of a list of vectors. The second differs in the given element.
fn pair(second: [f32; 3]) -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let save = |name: &str, values: [f32; 3], kind: NodeKind| {
        let path = folder.path().join(name);
        let bytes = values.map(f32::to_le_bytes).concat();
        let array = |bytes: Vec<u8>| {
            Leaf::array(Array::new(Dtype::Float32, Shape::new([3]).unwrap(), bytes.into()).unwrap())
        };
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), kind).unwrap();
        build.leaf(Key::Index(0), array(bytes)).unwrap();
        build.leaf(Key::Index(1), array(vec![0; 12])).unwrap();
        build.close().unwrap();
        regrow::save(&path, &build.finish().unwrap()).unwrap();
        path
    };
    let a = save("a", [1.0, 2.0, 4.0], NodeKind::List);
    let b = save("b", second, NodeKind::Tuple);
    (folder, a, b)
}

#[test]
fn the_same_is_0_and_a_difference_is_1() {
    let (_folder, path) = saved();
    let run = regrow(["diff", text(&path), text(&path)]);
    assert_eq!(run.stdout, format!("A  {0}\nB  {0}\nthe same: 5 leaves, 60 B read\n", text(&path)));
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));

    let (_folder, a, b) = pair([1.0, 2.0, 4.5]);
    let run = regrow(["diff", text(&a), text(&b)]);
    assert_eq!(run.code, 1);
    let lines: Vec<&str> = run.stdout.lines().skip(2).collect();
    assert_eq!(lines[0], "different: 1 of 2 leaves (1 values), 48 B read");
    assert_eq!(
        lines[1..],
        [
            "STATUS  KEY PATH  DTYPE    SHAPE  DIFFER  NAN/INF  MAX ABS  MAX REL  MAX ULP    COSINE",
            "values  0         float32  [3]    1 of 3        -  5.00e-1  1.11e-1  1048576  0.998821",
        ]
    );
    assert_eq!(run.stderr, "note: . is list in A and tuple in B\n");
    assert_eq!(regrow(["diff", "--quiet", text(&a), text(&b)]).stdout, "");
    let all = regrow(["diff", "--all", text(&a), text(&b)]);
    assert!(
        all.stdout.contains(
            "equal   1         float32  [3]    0 of 3        -        0        0        0         -"
        ),
        "{all:?}"
    );
}

#[test]
fn what_has_no_distance_is_counted_in_the_table() {
    let (_folder, a, b) = pair([1.0, f32::INFINITY, f32::NAN]);
    let run = regrow(["diff", text(&a), text(&b)]);
    assert!(run.stdout.contains("values  0         float32  [3]    2 of 3        2        0"), "{run:?}");
}

#[test]
fn tolerances_and_types_decide() {
    let (_folder, a, b) = pair([1.0, 2.0, 4.5]);
    let code = |options: &[&str]| {
        let run = regrow([&["diff", text(&a), text(&b)], options].concat());
        (run.code, run.stdout.lines().nth(2).unwrap_or_default().to_owned())
    };
    let within = "the same within the tolerance: 2 leaves, 1 of them not bit-identical, 48 B read".to_owned();
    assert_eq!(code(&["--atol", "0.5"]), (0, within));
    assert_eq!(code(&["--atol", "0.4"]).0, 1);
    assert_eq!(code(&["--rtol", "0.2"]).0, 0);
    assert_eq!(code(&["--max-ulp", "1048576"]).0, 0);
    assert_eq!(code(&["--only", "1", "--brief"]).0, 0);
    assert_eq!(code(&["--only", "1", "--check-types"]).0, 0);
    assert_eq!(code(&["--only", "1", "--only", ".", "--check-types"]).0, 1);
    // Wrong usage.
    for options in
        [&["--only", "x"][..], &["--brief", "--atol", "1"], &["--atol", "nan"], &["--quiet", "--json"]]
    {
        assert_eq!(code(options).0, 2, "{options:?}");
    }
    let run = regrow(["diff", text(&a), text(&a.with_file_name("nowhere"))]);
    assert_eq!(run.code, 3, "{run:?}");
}

#[test]
fn two_steps_of_a_run_take_one_path() {
    let (folder, a, b) = pair([1.0, 2.0, 4.5]);
    std::fs::rename(a, folder.path().join("step_30")).unwrap();
    std::fs::rename(b, folder.path().join("step_40")).unwrap();
    let root = text(folder.path());
    let run = regrow(["diff", root, "--step", "30", "--step-b", "40"]);
    assert!(run.code == 1 && run.stdout.contains("different: 1 of 2 leaves"), "{run:?}");
    assert_eq!(regrow(["diff", root, "--step", "30", "--step-b", "30"]).code, 0);
    assert_eq!(regrow(["diff", root, "--step", "30"]).code, 2);
    assert_eq!(regrow(["diff", root, "--step", "30", "--step-b", "41"]).code, 3);
}

#[test]
fn json_has_every_number() {
    let (_folder, a, b) = pair([f32::NAN, 2.0, f32::INFINITY]);
    let run = regrow(["diff", "--json", text(&a), text(&b)]);
    assert_eq!(run.code, 1);
    let report = run.json();
    assert_eq!((&report["equal"], &report["different_count"]), (&false.into(), &1.into()));
    assert_eq!(report["counts"]["values"], 1);
    assert_eq!(report["containers"][0]["a"], "list");
    let leaf = &report["leaves"][0];
    assert_eq!(
        (&leaf["key_path"], &leaf["status"], &leaf["a"]["shape"][0]),
        (&"0".into(), &"values".into(), &3.into())
    );
    let distance = &leaf["distance"];
    assert_eq!(distance["nan_counts"], serde_json::json!([0, 1]));
    assert_eq!(distance["infinity_counts"], serde_json::json!([0, 1]));
    assert_eq!((&distance["incomparable_count"], &distance["max_abs"]), (&2.into(), &0.0.into()));
    assert_eq!(distance["worst_index"], serde_json::json!([0]));
    assert_eq!(distance["worst_values"], serde_json::json!([1.0, "NaN"]));
}

#[test]
fn damage_is_1_and_the_rest_is_compared() {
    let (_folder, a, b) = pair([1.0, 2.0, 4.0]);
    let file = b.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let run = regrow(["diff", text(&a), text(&b)]);
    assert_eq!(run.code, 1);
    assert!(run.stdout.contains("unread") && run.stderr.contains("error: b: "), "{run:?}");
    assert!(run.stderr.contains("model.safetensors"), "{run:?}");
    let run = regrow(["diff", "--json", text(&a), text(&b)]);
    assert_eq!(
        (&run.json()["findings"][0]["side"], &run.json()["findings"][0]["kind"]),
        (&"b".into(), &"corrupt".into())
    );
}
