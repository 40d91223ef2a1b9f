//! Random values: a saved value loads as saved, any tree gives a value or an error, and a loaded
//! value outlives its files.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use regrow::Pytree;
use regrow::tree::StateDict;

use crate::tree_of;

/// Every container, itself among them.
#[derive(Pytree, Debug, Clone, PartialEq)]
enum Value {
    Nothing,
    Text(String),
    Numbers(Vec<i32>),
    Points(Vec<[u16; 2]>),
    Pair(Box<Value>, Option<Box<Value>>),
    List(Vec<Value>),
    Map(HashMap<String, Value>),
    Steps { by_step: BTreeMap<i64, Value>, last: (bool, u64) },
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nothing),
        ".{0,6}".prop_map(Value::Text),
        prop::collection::vec(any::<i32>(), 0..5).prop_map(Value::Numbers),
        prop::collection::vec(any::<[u16; 2]>(), 0..3).prop_map(Value::Points),
    ];
    leaf.prop_recursive(4, 40, 4, |inner| {
        let boxed = inner.clone().prop_map(Box::new);
        prop_oneof![
            (boxed.clone(), prop::option::of(boxed)).prop_map(|(a, b)| Value::Pair(a, b)),
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
            prop::collection::hash_map(".{0,4}", inner.clone(), 0..4).prop_map(Value::Map),
            (prop::collection::btree_map(any::<i64>(), inner, 0..3), any::<(bool, u64)>())
                .prop_map(|(by_step, last)| Value::Steps { by_step, last }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_value_is_its_tree(value in value()) {
        let tree = tree_of(&value);
        prop_assert_eq!(&Value::from_tree(tree.clone()).unwrap(), &value);
        let state = value.to_state_dict().unwrap();
        prop_assert_eq!(&Value::from_state_dict(state).unwrap(), &value);
        let mut same = value.clone();
        same.load_tree(&tree, Default::default()).unwrap();
        prop_assert_eq!(&same, &value);
    }

    #[test]
    fn any_tree_is_a_value_or_an_error(value in value()) {
        // Of a type that has nothing to do with it: no panic, and never a value without its leaves.
        let tree = tree_of(&value);
        let leaves = tree.len();
        if let Ok(wrong) = <Vec<Option<(String, Vec<i32>)>>>::from_tree(tree) {
            prop_assert_eq!(tree_of(&wrong).len(), leaves);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_value_outlives_its_files(value in value()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("step");
        let options = regrow::SaveOptions { not_durable: true, ..Default::default() };
        regrow::save_with(&path, &value, &options).unwrap();
        prop_assert_eq!(regrow::load::<Value>(&path).unwrap(), value);
    }
}
