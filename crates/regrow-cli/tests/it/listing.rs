//! `ls`, `info` and `tree`: what they print, to the byte.

use crate::common::{orbax, regrow, saved, text};
use ::regrow::engine::{ItemsOptions, ItemsSave, WHOLE};

#[test]
fn ls_prints_a_line_for_each_leaf_and_the_totals() {
    let (_folder, path) = saved();
    let run = regrow(["ls", text(&path)]);
    assert_eq!(
        run.stdout,
        "\
KEY PATH                DTYPE     SHAPE  BYTES  CODING
name                    str       [10]      10  -
params/bias             bfloat16  [3]        6  raw
params/kernel           float32   [2,3]     24  raw
params/odd\\u{1b}[2J[0]  bool      [2]        2  raw
step                    int64     []         8  raw
5 leaves, 50 bytes (50 B)
"
    );
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
}

#[test]
fn ls_takes_globs() {
    let (_folder, path) = saved();
    let run = regrow(["ls", text(&path), "*/kernel", "step"]);
    assert_eq!(
        run.stdout,
        "\
KEY PATH       DTYPE    SHAPE  BYTES  CODING
params/kernel  float32  [2,3]     24  raw
step           int64    []         8  raw
2 leaves, 32 bytes (32 B)
"
    );
}

#[test]
fn ls_of_what_orbax_wrote() {
    let run = regrow(["ls", "--long", text(&orbax("md8_ocdbt_zarr3")), "big*"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    let first = run.stdout.lines().nth(1).unwrap();
    assert!(first.starts_with("big "), "{first}");
    assert!(first.ends_with(" [16,48]  P('x', 'y') over x=4,y=2"), "{first}");
}

#[test]
fn ls_as_json_says_the_same_as_the_fixture() {
    let run = regrow(["ls", "--json", text(&orbax("sd_ocdbt_zarr2"))]);
    let found = run.json();
    let expected = regrow_testkit::expected("orbax/sd_ocdbt_zarr2");
    let expected = expected["items"][""]["leaves"].as_array().unwrap();
    let leaves = found["leaves"].as_array().unwrap();
    assert_eq!(leaves.len(), expected.len());
    let mut bytes = 0;
    for leaf in expected {
        let twin = leaves.iter().find(|twin| twin["name"] == leaf["param_name"]).unwrap();
        if leaf["value_type"] != "string" {
            assert_eq!(twin["dtype"], leaf["dtype"]);
            assert_eq!(twin["shape"], leaf["shape"]);
            assert_eq!(twin["bytes"], leaf["nbytes"]);
        }
        bytes += twin["bytes"].as_u64().unwrap();
    }
    assert_eq!(found["totals"]["bytes"].as_u64(), Some(bytes));
    assert_eq!(found["layout"], "orbax");
    assert_eq!(leaves[0]["keys"][0]["dict"], "loss");
}

#[test]
fn info_fits_on_a_page() {
    let (_folder, path) = saved();
    let run = regrow(["info", text(&path)]);
    assert_eq!(
        run.stdout,
        format!(
            "\
path    {}
layout  regrow (one data file)
pytree  5 leaves, 50 B

by dtype
  bfloat16  1 leaf   6 B
  bool      1 leaf   2 B
  float32   1 leaf  24 B
  int64     1 leaf   8 B
  str       1 leaf  10 B

by top-level key
  name    1 leaf    10 B
  params  3 leaves  32 B
  step    1 leaf     8 B

leaves
  name                    str [10]       10 B
  params/bias             bfloat16 [3]    6 B
  params/kernel           float32 [2,3]  24 B
  params/odd\\u{{1b}}[2J[0]  bool [2]        2 B
  step                    int64 []        8 B
",
            text(&path)
        )
    );
    assert_eq!(run.code, 0);
    // Python shows the same text.
    assert_eq!(run.stdout, ::regrow::engine::overview(&::regrow::open(&path).unwrap()));
    assert_eq!(
        regrow(["info", "--json", text(&path)]).json()["largest_leaves"][0]["key_path"],
        "params/kernel"
    );
}

#[test]
fn tree_counts_leaves_and_bytes_of_each_subtree() {
    let (_folder, path) = saved();
    let run = regrow(["tree", text(&path)]);
    assert_eq!(
        run.stdout,
        "\
KEY                  LEAVES  BYTES  DTYPE     SHAPE
.                         5     50
  name                    1     10  str       [10]
  params                  3     32
    bias                  1      6  bfloat16  [3]
    kernel                1     24  float32   [2,3]
    odd\\u{1b}[2J[0]       1      2  bool      [2]
  step                    1      8  int64     []
"
    );
    let cut = regrow(["tree", "--depth", "1", text(&path)]);
    assert_eq!(cut.stdout.lines().count(), 5, "{cut:?}");
    assert!(cut.stdout.contains("\n  params       3     32\n"), "{cut:?}");
    let nodes = regrow(["tree", "--json", text(&path)]).json();
    assert_eq!(nodes["nodes"][2]["key_path"], "params");
    assert_eq!(nodes["nodes"][2]["bytes"], 32);
    assert_eq!(nodes["nodes"][3]["leaf"]["dtype"], "bfloat16");
}

#[test]
fn ls_sorts_and_folds() {
    let (_folder, path) = saved();
    let first = |arguments: &[&str]| {
        let run = regrow(["ls", text(&path)].iter().chain(arguments));
        assert_eq!(run.code, 0, "{run:?}");
        run.stdout.lines().skip(1).map(|line| line.split("  ").next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(first(&["--sort", "bytes"])[..3], ["params/kernel", "name", "step"]);
    assert_eq!(
        first(&["--sort", "name", "name", "step", "params/bias"])[..3],
        ["name", "params/bias", "step"]
    );
    let folded = regrow(["ls", text(&path), "--depth", "1", "--sort", "bytes"]);
    assert_eq!(
        folded.stdout,
        "\
KEY PATH  LEAVES  BYTES
params         3     32
name           1     10
step           1      8
5 leaves, 50 bytes (50 B)
"
    );
    let json = regrow(["ls", text(&path), "--depth", "1", "--json", "params/*"]).json();
    assert_eq!(json["subtrees"], serde_json::json!([{"key_path": "params", "leaf_count": 3, "bytes": 32}]));
    assert_eq!(json["totals"]["leaf_count"], 3);
    assert_eq!(regrow(["ls", text(&path), "--depth", "1", "--long"]).code, 2);
    let human = regrow(["ls", text(&path), "--sizes", "human", "params/kernel"]);
    assert!(human.stdout.contains("[2,3]   24 B  raw"), "{human:?}");
    // Of a folder of checkpoints.
    let run = regrow(["ls", "--sort", "bytes", text(&orbax("manager_default")), "--json"]).json();
    let sizes: Vec<u64> =
        run["checkpoints"].as_array().unwrap().iter().map(|one| one["bytes"].as_u64().unwrap()).collect();
    assert!(sizes.len() == 3 && sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
}

#[test]
fn info_names_steps_and_metadata() {
    let root = orbax("manager_default");
    let newest = regrow(["info", "--json", text(&root)]).json();
    assert_eq!(newest["step"], 20);
    assert_eq!(newest["steps"], serde_json::json!([0, 10, 20]));
    let older = regrow(["--step", "10", "info", text(&root)]);
    assert!(older.stdout.contains("step      10 of 0, 10, 20"), "{}", older.stdout);
    let custom = regrow(["info", text(&orbax("sd_ocdbt_zarr2"))]);
    assert!(custom.stdout.contains(r#"metadata  {"note":"g","n":[1,2.5,null]}"#), "{}", custom.stdout);
}

#[cfg(target_os = "linux")]
#[test]
fn json_takes_no_more_memory_than_the_table() {
    use regrow::array::{Array, Dtype, Shape};
    use regrow::tree::{Key, Leaf, NodeKind, TreeBuilder};
    const LEAVES: usize = 40_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many");
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for leaf in 0..LEAVES {
        let array = Array::new(Dtype::UInt8, Shape::new([1]).unwrap(), vec![1].into()).unwrap();
        build.leaf(Key::dict(format!("layer_{leaf}")), Leaf::array(array)).unwrap();
    }
    build.close().unwrap();
    regrow::save(&path, &build.finish().unwrap()).unwrap();
    let (table, lines) = crate::common::peak_and_output(&["ls", text(&path)]);
    let (json, printed) = crate::common::peak_and_output(&["ls", "--json", text(&path)]);
    assert!(lines > 30 * LEAVES && printed > 300 * LEAVES, "{lines} {printed}");
    assert!(json < table + (8 << 20), "{} MiB for JSON, {} MiB for a table", json >> 20, table >> 20);
}

#[test]
fn files_that_a_handler_has_written_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let save = ItemsSave::begin(&path, ItemsOptions::default()).unwrap();
    std::fs::write(save.folder(WHOLE).unwrap().join("own.txt"), b"1").unwrap();
    save.handler(WHOLE, "my.Handler");
    save.commit().unwrap();
    for (command, says) in [("ls", "0 leaves"), ("verify", "sound: 0 leaves")] {
        let run = regrow([command, text(&path)]);
        assert!(run.code == 0 && run.stdout.contains(says), "{run:?}");
        assert!(run.stderr.contains("files of my.Handler, which reads them: own.txt"), "{run:?}");
    }
}
