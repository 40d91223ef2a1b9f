//! Comparison with the output of CPython, which `fixtures/pprint/make.py` wrote.

use proptest::prelude::*;

use super::*;
use regrow_base::bytes::python_literal::{LiteralOptions, parse};

#[test]
fn breaks_lines_where_python_does() {
    let text = std::fs::read(regrow_testkit::fixtures().join("pprint/corpus.json")).unwrap();
    let corpus: Vec<serde_json::Value> = serde_json::from_slice(&text).unwrap();
    assert!(corpus.len() >= 400);
    let mut broken = 0;
    for case in &corpus {
        let repr = case["repr"].as_str().unwrap();
        let expected = case["pprint"].as_str().unwrap();
        let value = parse(repr, LiteralOptions::default()).unwrap_or_else(|error| panic!("{error}: {repr}"));
        assert_eq!(pprint(value), expected);
        broken += usize::from(expected.lines().count() > 1);
    }
    assert!(broken > 200, "{broken}");
}

fn scalar() -> impl Strategy<Value = Literal> {
    prop_oneof![
        "\\PC{0,100}".prop_map(Literal::Str),
        "([a-z]{1,20}[ \n\t]){0,12}".prop_map(Literal::Str),
        any::<i64>().prop_map(|number| Literal::Int(number.into())),
        proptest::collection::vec(any::<u8>(), 0..60).prop_map(Literal::Bytes),
        Just(Literal::None),
    ]
}

fn container() -> impl Strategy<Value = Literal> {
    let inner = scalar().prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Literal::List),
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Literal::Tuple),
            proptest::collection::btree_map("[a-z ]{0,30}", inner, 0..5).prop_map(|entries| {
                Literal::Dict(entries.into_iter().map(|(key, value)| (Literal::Str(key), value)).collect())
            }),
        ]
    });
    proptest::collection::vec(inner, 0..5).prop_map(Literal::List)
}

proptest! {
    #[test]
    fn what_is_printed_reads_as_the_same_value(value in container()) {
        prop_assert_eq!(parse(&pprint(value.clone()), LiteralOptions::default()).unwrap(), value);
    }
}
