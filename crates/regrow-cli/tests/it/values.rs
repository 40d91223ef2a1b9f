//! `cat`: values of a leaf or a slice, as text, JSON and bytes.

use crate::common::{command, orbax, regrow, saved, text};
use serde_json::json;

#[test]
fn prints_like_numpy() {
    let (_folder, path) = saved();
    let cat = |leaf: &str| regrow(["cat", text(&path), leaf]).stdout;
    assert_eq!(cat("params/kernel"), "[[ 0.0  1.5 -2.0]\n [ 3.0  0.1 1e-7]]\n");
    assert_eq!(cat("params.kernel[1,:2]"), "[3.0 0.1]\n");
    assert_eq!(cat("params/kernel[...,-1]"), "[-2.0 1e-7]\n");
    assert_eq!(cat("params/kernel[0,1]"), "1.5\n");
    assert_eq!(cat("params/bias"), "[ 0.1  nan -2.0]\n");
    assert_eq!(cat("step"), "7\n");
}

#[test]
fn text_cannot_steer_a_terminal() {
    let (_folder, path) = saved();
    assert_eq!(regrow(["cat", text(&path), "name"]).stdout, "run \\u{1b}[31ma\n");
    assert_eq!(regrow(["cat", "--raw", text(&path), "name"]).stdout, "run \u{1b}[31ma");
}

#[test]
fn a_key_may_end_in_brackets() {
    let (_folder, path) = saved();
    let leaf = "params/odd\\u{1b}[2J[0]";
    assert_eq!(regrow(["cat", text(&path), leaf]).stdout, "[ True False]\n");
    assert_eq!(regrow(["cat", text(&path), &format!("{leaf}[0]")]).stdout, "True\n");
}

#[test]
fn json_is_nested_lists() {
    let (_folder, path) = saved();
    let cat = |leaf: &str| regrow(["cat", "--json", text(&path), leaf]).json();
    let kernel = cat("params/kernel[:,1:]");
    assert_eq!(kernel["value"], json!([[1.5, -2.0], [0.1, 1e-7]]));
    assert_eq!(kernel["shape"], json!([2, 2]));
    assert_eq!(kernel["dtype"], "float32");
    assert_eq!(cat("params/bias")["value"], json!([0.1, "NaN", -2.0]));
    assert_eq!(cat("name")["value"], "run \u{1b}[31ma");
}

#[test]
fn raw_is_the_bytes() {
    let (_folder, path) = saved();
    let output = command().args(["cat", "--raw", text(&path), "params/kernel[0]"]).output().unwrap();
    let expected: Vec<u8> = [0.0_f32, 1.5, -2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(output.stdout, expected);
}

#[test]
fn the_root_is_a_dot() {
    let run = regrow(["cat", "--json", text(&orbax("v1_bare_leaf")), "."]);
    assert_eq!(run.json()["shape"], json!([5]), "{run:?}");
}
