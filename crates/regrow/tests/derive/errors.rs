//! A checkpoint that does not fit a type gives one error with all differences. Options allow extra
//! leaves and casts.

use std::collections::BTreeMap;

use half::bf16;
use regrow::tree::{Fit, Key, Leaf, LeafKind, NodeKind, Scalar, Tree, TreeBuilder};
use regrow::{ErrorKind, LoadOptions, Pytree};

use crate::{refused, tree_of};

#[derive(Pytree, Debug)]
struct Stored {
    kernel: Vec<[f32; 3]>,
    bias: Vec<f64>,
    step: u64,
    name: String,
    layers: Vec<Vec<f32>>,
    only_stored: i64,
    deep: BTreeMap<String, (i64, i64, i64)>,
}

#[derive(Pytree, Debug)]
struct Wanted {
    kernel: Vec<[f32; 4]>,
    bias: Vec<f32>,
    step: u8,
    name: i64,
    layers: [Vec<f32>; 3],
    only_wanted: i64,
    deep: BTreeMap<i64, (i64, i64)>,
}

fn stored() -> Stored {
    Stored {
        kernel: vec![[1.0; 3]; 2],
        bias: vec![1.0],
        step: 256,
        name: "n".into(),
        layers: vec![vec![1.0]; 2],
        only_stored: 1,
        deep: [("7".to_owned(), (1, 2, 3)), ("x".to_owned(), (1, 2, 3))].into(),
    }
}

#[test]
fn every_difference_is_in_one_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    regrow::save(&path, &stored()).unwrap();
    let error = regrow::load::<Wanted>(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    assert_eq!(error.place().file.as_deref(), Some(path.as_path()));
    let mut lines: Vec<&str> = error.what().lines().map(str::trim).collect();
    assert_eq!(lines.remove(0), "the checkpoint does not fit the value in 9 places");
    assert_eq!(
        lines,
        [
            "shape     kernel: wanted [n,4], stored [2,3]",
            "dtype     bias: wanted float32, stored float64",
            "value     step: wanted uint8, stored int64 256",
            "kind      name: wanted a number (int64), stored str",
            "length    layers: wanted 3, stored 2",
            "missing   only_wanted: in the value, not in the checkpoint",
            "key       deep/x: wanted an integer in range, stored \"x\"",
            "length    deep/7: wanted 2, stored 3",
            "extra     only_stored: in the checkpoint, not in the value",
        ]
    );
}

#[test]
fn extras_may_be_left_out_when_asked() {
    #[derive(Pytree, Debug)]
    struct Part {
        bias: Vec<f64>,
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    regrow::save(&path, &stored()).unwrap();
    assert_eq!(regrow::load::<Part>(&path).unwrap_err().what().lines().count(), 1 + 12);
    let options = LoadOptions { partial: true, ..LoadOptions::default() };
    assert_eq!(regrow::load_with::<Part>(&path, &options).unwrap().bias, [1.0]);
    let options =
        LoadOptions { only: vec![regrow::tree::PathPattern::new("bias").unwrap()], ..LoadOptions::default() };
    assert_eq!(regrow::load_with::<Part>(&path, &options).unwrap().bias, [1.0]);
    let checkpoint = regrow::open(&path).unwrap();
    assert_eq!(checkpoint.load_value::<Part>(&options).unwrap().bias, [1.0]);
}

#[test]
fn casts_happen_only_when_asked() {
    #[derive(Pytree, Debug, PartialEq)]
    struct Wide {
        w: Vec<f32>,
        lr: f64,
        n: i64,
    }
    #[derive(Pytree, Debug, PartialEq)]
    struct Narrow {
        w: Vec<bf16>,
        lr: f32,
        n: f32,
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    regrow::save(&path, &Wide { w: vec![1.0, 0.1], lr: 0.1, n: 16_777_217 }).unwrap();
    let error = regrow::load::<Narrow>(&path).unwrap_err().to_string();
    for line in
        ["dtype     w: wanted bfloat16", "dtype     lr: wanted float32", "dtype     n: wanted float32"]
    {
        assert!(error.contains(line), "{error}");
    }
    let options = LoadOptions { cast_to_fields: true, ..LoadOptions::default() };
    let error = regrow::load_with::<Narrow>(&path, &options).unwrap_err().to_string();
    assert!(error.contains("16777217 to 16777216"), "{error}");
    let options = LoadOptions { casting: regrow::array::Casting::Lossy, ..options };
    let narrow: Narrow = regrow::load_with(&path, &options).unwrap();
    assert_eq!(narrow, Narrow { w: vec![bf16::ONE, bf16::from_f32(0.1)], lr: 0.1, n: 16_777_216.0 });
    let mut narrow = Narrow { w: vec![bf16::ZERO; 2], lr: 0.0, n: 0.0 };
    regrow::load_into_with(&path, &mut narrow, &options).unwrap();
    assert_eq!(narrow.w[0], bf16::ONE);
}

#[test]
fn a_number_is_taken_where_its_exact_value_fits() {
    fn took<P: Pytree + PartialEq>(leaf: Leaf, value: P) -> bool {
        P::from_tree(Tree::single(leaf)).is_ok_and(|found| found == value)
    }
    let int = |value| Leaf::scalar(Scalar::Int(value));
    let float = |value| Leaf::scalar(Scalar::Float(value));
    let numpy = |leaf: Leaf| Leaf { kind: LeafKind::NumpyScalar, ..leaf };
    assert!(took(int(200), 200_u8) && took(int(-1), -1_i8) && took(int(5), 5_usize));
    assert!(!took(int(200), -56_i8) && !took(int(-1), u64::MAX) && !took(int(256), 0_u8));
    assert!(took(numpy(int(7)), 7_u16), "an integer is an integer");
    assert!(took(int(3), 3.0_f32) && took(float(0.5), bf16::from_f32(0.5)) && took(float(0.5), 0.5_f32));
    assert!(!took(float(0.1), 0.1_f32) && !took(numpy(float(0.5)), 0.5_f32), "NumPy's floats have a width");
    assert!(!took(int(16_777_217), 16_777_216.0_f32) && !took(int(i64::MAX), i64::MAX as f64));
    assert!(
        !took(float(1.0), 1_i64) && !took(int(1), true) && !took(Leaf::scalar(Scalar::Bool(true)), 1_i64)
    );
    assert!(!took(Leaf::scalar(Scalar::Bool(true)), 1.0_f64));
    assert!(took(float(f64::NEG_INFINITY), f32::NEG_INFINITY));
    assert!(!took(tree_of(&vec![1_i64]).leaves()[0].clone(), 1_i64), "an array of one is no number");
}

#[test]
fn placeholders_and_unknown_leaves_are_named() {
    #[derive(Pytree, Debug)]
    struct Two {
        a: i64,
        b: Vec<f32>,
    }
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    let absent = |kind| Leaf { kind, data: regrow::tree::LeafData::Absent, sharding: None };
    build.leaf(Key::dict("a"), absent(LeafKind::Placeholder)).unwrap();
    build.leaf(Key::dict("b"), absent(LeafKind::Unknown("MyType".into()))).unwrap();
    build.close().unwrap();
    let error = refused::<Two>(build.finish().unwrap());
    assert!(error.contains("missing   a: in the value, not in the checkpoint"), "{error}");
    assert!(error.contains("kind      b: wanted an array (float32), stored unknown"), "{error}");
    let error = refused::<i64>(Tree::single(absent(LeafKind::Placeholder)));
    assert!(error.contains("missing   .: the checkpoint has a placeholder"), "{error}");
}

#[test]
fn a_type_that_says_nothing_is_an_error_all_the_same() {
    #[derive(Debug)]
    struct Silent;
    impl Pytree for Silent {
        fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> regrow::Result<()> {
            build.leaf(key, Leaf::text("x"))
        }
        fn unflatten(_: regrow::tree::NodeRef<'_>, _: &mut regrow::tree::Restore) -> Option<Self> {
            None
        }
    }
    assert!(refused::<Silent>(tree_of(&Silent)).contains("without a reason"));
    assert!(
        Silent::from_tree_with(
            tree_of(&Silent),
            Fit { partial: true, cast: true, keep_missing: true, ..Fit::default() }
        )
        .is_err()
    );
}

#[test]
fn values_without_elements_cannot_be_claimed_without_end() {
    use regrow::array::{Array, Dtype, Shape};
    let claim = |count| {
        let shape = Shape::new(vec![count, 0]).unwrap();
        Tree::single(Leaf::array(Array::new(Dtype::Float32, shape, bytes::Bytes::new()).unwrap()))
    };
    assert_eq!(Vec::<[f32; 0]>::from_tree(claim(5)).unwrap().len(), 5);
    assert!(refused::<Vec<[f32; 0]>>(claim(1 << 62)).contains("shape"));
}
