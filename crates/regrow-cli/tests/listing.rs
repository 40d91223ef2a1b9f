//! `ls` and `overview`: what they print, to the byte.

#[cfg(test)]
mod common;

use common::{orbax, regrow, saved, text};

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
    assert!(first.ends_with("{x:4,y:2} (x,y)"), "{first}");
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
fn overview_fits_on_a_page() {
    let (_folder, path) = saved();
    let run = regrow(["overview", text(&path)]);
    let (head, rest) = run.stdout.split_once("\n\n").unwrap();
    assert!(head.contains("layout  regrow"), "{head}");
    assert!(head.ends_with("pytree  5 leaves, 50 bytes (50 B)"), "{head}");
    assert!(
        rest.starts_with(
            "\
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

largest leaves
  params/kernel           float32 [2,3]  24 B
  name                    str [10]       10 B
"
        ),
        "{rest}"
    );
    assert_eq!(run.code, 0);
}

#[test]
fn overview_names_steps_and_metadata() {
    let root = orbax("manager_default");
    let newest = regrow(["overview", "--json", text(&root)]).json();
    assert_eq!(newest["step"], 20);
    assert_eq!(newest["steps"], serde_json::json!([0, 10, 20]));
    let older = regrow(["--step", "10", "overview", text(&root)]);
    assert!(older.stdout.contains("step      10 of 0, 10, 20"), "{}", older.stdout);
    let custom = regrow(["overview", text(&orbax("sd_ocdbt_zarr2"))]);
    assert!(custom.stdout.contains(r#"metadata  {"note":"g","n":[1,2.5,null]}"#), "{}", custom.stdout);
}
