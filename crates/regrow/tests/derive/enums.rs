//! Enums: a variant loads as saved, and an unknown variant is an error that lists the known ones.

use std::collections::BTreeMap;

use regrow::Pytree;
use regrow::tree::{Key, Leaf, NodeKind, StateDict, TreeBuilder};

use crate::{refused, round_trip, shape_of, tree_of};

#[derive(Pytree, Debug, PartialEq, Clone)]
enum Schedule<T> {
    Constant,
    Rate(f32),
    Steps(u8, Vec<T>),
    Cosine {
        low: f64,
        high: Option<T>,
    },
    #[pytree(rename = "warm-up")]
    WarmUp {
        inner: Box<Schedule<T>>,
        #[pytree(skip)]
        cache: u8,
    },
    Empty {},
}

fn all() -> Vec<Schedule<i64>> {
    vec![
        Schedule::Constant,
        Schedule::Rate(0.5),
        Schedule::Steps(2, vec![3, 4]),
        Schedule::Cosine { low: 0.5, high: None },
        Schedule::Cosine { low: 0.5, high: Some(1) },
        Schedule::WarmUp {
            inner: Box::new(Schedule::WarmUp { inner: Box::new(Schedule::Constant), cache: 0 }),
            cache: 0,
        },
        Schedule::Empty {},
    ]
}

#[test]
fn variants_come_back_and_their_representation_stays() {
    round_trip(&all());
    for schedule in all() {
        round_trip(&schedule);
        assert_eq!(Schedule::from_state_dict(schedule.to_state_dict().unwrap()).unwrap(), schedule);
    }
    assert_eq!(shape_of(&all()[0]), [".:leaf"]);
    assert_eq!(shape_of(&all()[1]), [".:dict", "Rate:leaf"]);
    assert_eq!(shape_of(&all()[2]), [".:dict", "Steps:tuple", "Steps/0:leaf", "Steps/1:leaf"]);
    assert_eq!(
        shape_of(&all()[3]),
        [".:dict", "Cosine:dataclass Schedule::Cosine", "Cosine/low:leaf", "Cosine/high:none"]
    );
    let deep = [
        ".:dict",
        "warm-up:dataclass Schedule::warm-up",
        "warm-up/inner:dict",
        "warm-up/inner/warm-up:dataclass Schedule::warm-up",
        "warm-up/inner/warm-up/inner:leaf",
    ];
    assert_eq!(shape_of(&all()[5]), deep);
}

#[test]
fn a_wrong_variant_is_named_with_those_that_are_known() {
    let error = refused::<Schedule<i64>>(tree_of(&"Linear"));
    assert!(
        error.contains("variant   .: wanted one of Constant, Rate, Steps, Cosine, warm-up, Empty of Schedule, stored \"Linear\""),
        "{error}"
    );
    let error = refused::<Schedule<i64>>(tree_of(&"Rate"));
    assert!(error.contains("wanted Schedule::Rate with data, stored its name alone"), "{error}");
    let error = refused::<Schedule<i64>>(tree_of(&BTreeMap::from([("Constant".to_owned(), 1_i64)])));
    assert!(error.contains("wanted Schedule::Constant with no data, stored some"), "{error}");
    let error = refused::<Schedule<i64>>(tree_of(&vec![1_i64]));
    assert!(
        error.contains("kind      .: wanted a variant of Schedule, stored numpy_array (int64 [1])"),
        "{error}"
    );
    let error =
        refused::<Vec<Schedule<i64>>>(tree_of(&vec![Schedule::Cosine { low: 1.0, high: Some(0.5_f64) }]));
    assert!(error.contains("dtype     0/Cosine/high: wanted int64, stored float64"), "{error}");
}

#[test]
fn a_variant_without_data_may_be_a_dict_with_nothing_in_it() {
    let mut build = TreeBuilder::<Leaf>::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.open(Key::dict("Constant"), NodeKind::None).unwrap();
    build.close().unwrap();
    build.close().unwrap();
    assert_eq!(Schedule::<i64>::from_tree(build.finish().unwrap()).unwrap(), Schedule::Constant);
}

#[test]
fn loading_in_place_keeps_the_variant_or_changes_it() {
    for before in all() {
        for after in all() {
            let mut value = before.clone();
            value.load_tree(&tree_of(&after), Default::default()).unwrap_or_else(|error| {
                // The same variant with an array of another length: only Steps has one, and only
                // one.
                unreachable!("{before:?} <- {after:?}: {error}")
            });
            assert_eq!(value, after, "into {before:?}");
        }
    }
    let inner = |cache| Schedule::<i64>::WarmUp { inner: Box::new(Schedule::Constant), cache };
    let mut value = inner(7);
    value.load_tree(&tree_of(&inner(0)), Default::default()).unwrap();
    assert_eq!(value, inner(7), "what is skipped stays");
}

#[test]
fn all_variants_change_their_case() {
    #[derive(Pytree, Debug, PartialEq)]
    #[pytree(rename_all = "snake_case")]
    enum Activation {
        Relu,
        LeakyRelu { negative_slope: f64 },
    }
    assert_eq!(
        shape_of(&Activation::LeakyRelu { negative_slope: 0.01 }),
        [".:dict", "leaky_relu:dataclass Activation::leaky_relu", "leaky_relu/negative_slope:leaf"]
    );
    round_trip(&vec![Activation::Relu, Activation::LeakyRelu { negative_slope: 0.01 }]);
}
