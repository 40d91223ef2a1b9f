//! Arrays of the crate `ndarray`, in every order of memory.

use half::bf16;
use ndarray::{ArcArray, Array0, Array1, Array2, Array3, ArrayD, Axis, ShapeBuilder, s};
use regrow::Pytree;
use regrow::engine::Layout;
use regrow::tree::Leaf;

use crate::{refused, round_trip, round_trip_in, tree_of};

#[derive(Pytree, Debug, PartialEq)]
struct Model {
    scalar: Array0<f64>,
    bias: Array1<bf16>,
    kernel: Array2<f32>,
    fortran: Array2<i32>,
    any: ArrayD<f64>,
    shared: ArcArray<f32, ndarray::Ix2>,
}

fn model() -> Model {
    Model {
        scalar: ndarray::arr0(0.5),
        bias: Array1::from_elem(3, bf16::ONE),
        kernel: Array2::from_shape_fn((4, 3), |(i, j)| (i * 3 + j) as f32),
        fortran: Array2::from_shape_vec((2, 3).f(), vec![1, 4, 2, 5, 3, 6]).unwrap(),
        any: ArrayD::ones(vec![1, 2, 1, 2]),
        shared: ArcArray::ones((2, 2)),
    }
}

#[test]
fn arrays_of_every_layout_come_back() {
    round_trip(&model());
    round_trip_in(&Array3::<u8>::zeros((2, 0, 3)), &[Layout::default()]);
    let tree = tree_of(&model());
    let fortran = tree.leaves()[3].as_array().unwrap().to_c_order().unwrap();
    let expected: Vec<u8> = (1..=6_i32).flat_map(i32::to_le_bytes).collect();
    assert_eq!(fortran, expected, "in C order, for any order in memory");
    let mut strided = Array2::from_shape_fn((4, 6), |(i, j)| (i * 6 + j) as i32);
    strided.invert_axis(Axis(0));
    let strided = strided.slice_move(s![..;2, ..;3]);
    round_trip(&strided);
    round_trip(&strided.clone().into_shared());
}

#[test]
fn a_shared_array_is_saved_without_a_copy() {
    let shared = ArcArray::<f32, _>::ones((4, 4));
    let tree = tree_of(&shared);
    let bytes = tree.leaves()[0].as_array().and_then(|array| array.c_order_bytes()).unwrap().clone();
    assert_eq!(bytes.as_ptr().cast::<f32>(), shared.as_ptr());
}

#[test]
fn axes_and_shapes_are_compared() {
    let error = refused::<Array1<i32>>(tree_of(&model().fortran));
    assert!(error.contains("shape     .: wanted 1 axes, stored [2,3]"), "{error}");
    let error = refused::<Array2<f64>>(tree_of(&model().fortran));
    assert!(error.contains("dtype     .: wanted float64, stored int32"), "{error}");
    let error = refused::<Array2<f64>>(regrow::tree::Tree::single(Leaf::text("x")));
    assert!(error.contains("kind      .: wanted an array (float64), stored str"), "{error}");
    let mut value = Array2::<i32>::zeros((3, 2));
    let error = value.load_tree(&tree_of(&model().fortran), Default::default()).unwrap_err().to_string();
    assert!(error.contains("shape     .: wanted [3, 2], stored [2,3]"), "{error}");
}

#[test]
fn loading_in_place_keeps_the_memory_and_its_layout() {
    let mut kernel = Array2::<f32>::zeros((4, 3));
    let memory = kernel.as_ptr();
    kernel.load_tree(&tree_of(&model().kernel), Default::default()).unwrap();
    assert_eq!((kernel.as_ptr(), &kernel), (memory, &model().kernel));
    let mut fortran = Array2::<i32>::zeros((2, 3).f());
    fortran.load_tree(&tree_of(&model().fortran), Default::default()).unwrap();
    assert_eq!(fortran, model().fortran);
    assert_eq!(fortran.strides(), [1, 2]);
    let mut shared = ArcArray::<f32, ndarray::Ix2>::zeros((2, 2));
    let other = shared.clone();
    shared.load_tree(&tree_of(&model().shared), Default::default()).unwrap();
    assert_eq!((shared[(0, 0)], other[(0, 0)]), (1.0, 0.0));
}
