//! `load_into` loads into an existing value. Array data is written in place. After an error the
//! value is unchanged.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use regrow::array::{Array, Dtype, Shape};
use regrow::tree::PathPattern;
use regrow::{LoadOptions, Pytree};

use crate::tree_of;

#[derive(Pytree, Debug, Clone, PartialEq)]
struct State {
    kernel: Vec<f32>,
    fixed: [[i8; 2]; 2],
    layers: Vec<Layer>,
    named: HashMap<String, Vec<f32>>,
    best: Option<f64>,
    shared: Rc<Vec<f32>>,
    atomic: Arc<[f32]>,
    pair: (i64, String),
    #[pytree(skip)]
    device: String,
}

#[derive(Pytree, Debug, Clone, PartialEq)]
struct Layer {
    w: Vec<f32>,
    #[pytree(skip)]
    id: usize,
}

fn state(value: f32, device: &str) -> State {
    let layer = |id| Layer { w: vec![value; 2], id };
    State {
        kernel: vec![value; 3],
        fixed: [[value as i8; 2]; 2],
        layers: vec![layer(device.len()), layer(device.len() + 1)],
        named: [("a".to_owned(), vec![value])].into(),
        best: (value > 0.0).then(|| value.into()),
        shared: Rc::new(vec![value]),
        atomic: Arc::from([value]),
        pair: (value as i64, value.to_string()),
        device: device.to_owned(),
    }
}

#[test]
fn data_goes_into_the_arrays_that_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    regrow::save(&path, &state(5.0, "gpu")).unwrap();
    let mut value = state(0.0, "cpu:0");
    let before = (value.kernel.as_ptr(), value.layers[1].w.as_ptr(), value.atomic.as_ptr());
    regrow::load_into(&path, &mut value).unwrap();
    let skipped = |mut state: State| {
        state.device = "cpu:0".to_owned();
        state.layers[0].id = 5;
        state.layers[1].id = 6;
        state
    };
    assert_eq!(value, skipped(state(5.0, "gpu")), "data is loaded, what is skipped stays");
    assert_eq!(before, (value.kernel.as_ptr(), value.layers[1].w.as_ptr(), value.atomic.as_ptr()));
    regrow::open(&path).unwrap().load_into(&mut value, &Default::default()).unwrap();
}

#[test]
fn what_others_hold_is_not_changed_under_them() {
    let mut value = state(0.0, "");
    let (shared, atomic) = (Rc::clone(&value.shared), Arc::clone(&value.atomic));
    value.load_tree(&tree_of(&state(2.0, "")), Default::default()).unwrap();
    assert_eq!((shared[0], atomic[0]), (0.0, 0.0));
    assert_eq!((value.shared[0], value.atomic[0]), (2.0, 2.0));
}

#[test]
fn nothing_changes_unless_everything_fits() {
    let stored = State {
        kernel: vec![1.0; 4],
        layers: vec![Layer { w: vec![1.0; 2], id: 0 }; 3],
        named: [("b".to_owned(), vec![1.0])].into(),
        ..state(1.0, "")
    };
    let mut value = state(0.0, "");
    let error = value.load_tree(&tree_of(&stored), Default::default()).unwrap_err();
    assert_eq!(value, state(0.0, ""));
    let lines: Vec<&str> = error.what().lines().skip(1).map(str::trim).collect();
    assert_eq!(
        lines,
        [
            "shape     kernel: wanted [3], stored [4]",
            "length    layers: wanted 2, stored 3",
            "missing   named/a: in the value, not in the checkpoint",
            "extra     named/b: in the checkpoint, not in the value",
        ]
    );
}

#[test]
fn what_is_not_selected_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    regrow::save(&path, &state(5.0, "")).unwrap();
    let only = ["layers/1", "named", "pair/0"].map(|text| PathPattern::new(text).unwrap()).to_vec();
    let options = LoadOptions { only, ..LoadOptions::default() };
    let mut value = state(1.0, "");
    regrow::load_into_with(&path, &mut value, &options).unwrap();
    let mut expected = state(1.0, "");
    expected.layers[1].w = vec![5.0; 2];
    expected.named = state(5.0, "").named;
    expected.pair.0 = 5;
    assert_eq!(value, expected);
    let error = regrow::load_with::<State>(&path, &options).unwrap_err().to_string();
    assert!(error.contains("missing   kernel") && error.contains("missing   pair/1"), "{error}");
}

#[test]
fn arrays_of_any_dtype_keep_theirs() {
    let array = |dtype: Dtype, len: u64| {
        let shape = Shape::new(vec![len]).unwrap();
        let bytes = vec![0; shape.len_bytes(dtype).unwrap() as usize];
        Array::new(dtype, shape, bytes.into()).unwrap()
    };
    let mut value = array(Dtype::Float32, 2);
    value.load_tree(&tree_of(&array(Dtype::Float32, 2)), Default::default()).unwrap();
    let error =
        value.load_tree(&tree_of(&array(Dtype::Int8, 3)), Default::default()).unwrap_err().to_string();
    assert!(error.contains("dtype     .: wanted float32, stored int8"), "{error}");
    assert!(error.contains("shape     .: wanted [2], stored [3]"), "{error}");
    let cast = regrow::tree::Fit { cast: true, ..Default::default() };
    value.load_tree(&tree_of(&array(Dtype::Int8, 2)), cast).unwrap();
    assert_eq!(value.dtype(), Dtype::Float32);
}
