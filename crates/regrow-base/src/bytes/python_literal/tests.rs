use proptest::prelude::*;

use super::*;

fn read(text: &str) -> Result<Literal> {
    parse(text, LiteralOptions::default())
}

/// The value in the form in which `fixtures/npy/make.py` writes values.
fn tagged(value: &Literal) -> serde_json::Value {
    use serde_json::json;
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let all = |items: &[Literal]| items.iter().map(tagged).collect::<Vec<_>>();
    match value {
        Literal::None | Literal::Ellipsis | Literal::Bool(_) => json!(value.repr()),
        Literal::Int(value) => json!({ "int": value.to_string() }),
        Literal::BigInt(digits) => json!({ "int": digits }),
        Literal::Float(value) => json!({ "float": hex(&value.to_le_bytes()) }),
        Literal::Complex(re, im) => json!({ "complex": hex(&[re.to_le_bytes(), im.to_le_bytes()].concat()) }),
        Literal::Str(value) => json!({ "str": value }),
        Literal::Bytes(value) => json!({ "bytes": hex(value) }),
        Literal::Tuple(items) => json!({ "tuple": all(items) }),
        Literal::List(items) => json!({ "list": all(items) }),
        Literal::Dict(entries) => {
            let entries: Vec<_> =
                entries.iter().map(|(key, value)| json!([tagged(key), tagged(value)])).collect();
            json!({ "dict": entries })
        }
        Literal::Set(items) => {
            let mut items = all(items);
            items.sort_by_key(ToString::to_string);
            json!({ "set": items })
        }
    }
}

/// Sorts the items of sets, which have no order. The fixture and `tagged` sort them by different
/// texts.
fn sorted(value: &serde_json::Value) -> serde_json::Value {
    match value {
        serde_json::Value::Array(items) => items.iter().map(sorted).collect(),
        serde_json::Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| {
                let mut value = sorted(value);
                if let ("set", Some(items)) = (key.as_str(), value.as_array_mut()) {
                    items.sort_by_key(ToString::to_string);
                }
                (key.clone(), value)
            })
            .collect(),
        other => other.clone(),
    }
}

fn corpus() -> serde_json::Value {
    let path = regrow_testkit::fixtures().join("npy/literals.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn reads_what_python_reads_and_prints_what_python_prints() {
    let corpus = corpus();
    let literals = corpus["literals"].as_array().unwrap();
    assert!(literals.len() > 1000);
    let mut wrong = Vec::new();
    for entry in literals {
        let text = entry["text"].as_str().unwrap();
        let found = read(text);
        let good = match (entry["result"].as_str().unwrap(), &found) {
            ("refused", Err(error)) => {
                let at = error.place().offset_bytes;
                at.is_some_and(|at| at <= text.len() as u64)
            }
            // Python's tokenizer refuses the ends of these two texts; regrow reads the number.
            ("refused", Ok(value)) => ["1\n ", "1 \\\n"].contains(&text) && *value == Literal::Int(1),
            ("unsupported", Err(error)) => error.kind() == ErrorKind::Unsupported,
            ("value", Ok(value)) => {
                sorted(&tagged(value)) == sorted(&entry["value"])
                    && entry.get("repr").is_none_or(|repr| *repr == value.repr())
            }
            _ => false,
        };
        if !good {
            wrong.push(format!("{entry}\n    {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), literals.len(), wrong.join("\n"));
}

/// The fixture omits characters that its Unicode version does not have.
#[test]
fn characters_are_printable_where_python_says_so() {
    for run in corpus()["printable"].as_array().unwrap() {
        let (first, last) = (run[0].as_u64().unwrap() as u32, run[1].as_u64().unwrap() as u32);
        let printable = run[2].as_bool().unwrap();
        for c in (first..=last).filter_map(char::from_u32) {
            let text = repr_str(&c.to_string());
            assert_eq!(!text.contains('\\') || c == '\\', printable, "U+{:04X}: {text}", u32::from(c));
        }
    }
}

#[test]
fn options_read_a_little_more() {
    let old = LiteralOptions { python2_longs: true, numpy_ints: false };
    let new = LiteralOptions { python2_longs: false, numpy_ints: true };
    assert_eq!(parse("(2L, 0xfl)", old).unwrap().repr(), "(2, 15)");
    for text in ["1.0L", "1jL", "2LL", "np.int64(1)"] {
        assert!(parse(text, old).is_err(), "{text}");
    }
    assert_eq!(parse("[np.int64(24), np.uint8( -0 )]", new).unwrap().repr(), "[24, 0]");
    assert_eq!(parse("np.int64(-9223372036854775808)", new).unwrap().repr(), i64::MIN.to_string());
    for text in [
        "np.int64",
        "np.int64()",
        "np.int64(1.5)",
        "np.int64('1')",
        "np.int64(1, 2)",
        "np.int64(9223372036854775808)",
        "np.uint8(256)",
        "np.uint8(-1)",
        "np.float64(1)",
        "np.int64(True)",
        "-np.int64(1)",
        "np.int64(1)+1j",
        "int64(1)",
        "np . int64(1)",
    ] {
        assert!(parse(text, new).is_err(), "{text}");
        assert!(read(text).is_err(), "{text}");
    }
}

#[test]
fn errors_say_where() {
    for (text, at) in [("(1, 2", 5), ("[1 2]", 3), ("'abc", 0), ("  x", 2), ("{[]: 1}", 1), ("1 + 2", 2)] {
        assert_eq!(read(text).unwrap_err().place().offset_bytes, Some(at), "{text}");
    }
    assert_eq!(read(&"[".repeat(DEPTH_MAX + 1)).unwrap_err().kind(), ErrorKind::Limit);
    assert_eq!(read(&format!("0x{}", "f".repeat(DIGITS_MAX + 1))).unwrap_err().kind(), ErrorKind::Limit);
}

fn literal() -> impl Strategy<Value = Literal> {
    let scalar = prop_oneof![
        Just(Literal::None),
        any::<bool>().prop_map(Literal::Bool),
        any::<i128>().prop_map(Literal::Int),
        any::<f64>()
            .prop_filter("literals have no NaN and no infinity", |v| v.is_finite())
            .prop_map(Literal::Float),
        any::<String>().prop_map(Literal::Str),
        any::<Vec<u8>>().prop_map(Literal::Bytes),
    ];
    scalar.prop_recursive(4, 32, 4, |inner| {
        let items = proptest::collection::vec(inner, 0..4);
        prop_oneof![
            items.clone().prop_map(Literal::Tuple),
            items.clone().prop_map(Literal::List),
            items.prop_map(|items| {
                Literal::Dict(
                    items.into_iter().enumerate().map(|(i, v)| (Literal::Int(i as i128), v)).collect(),
                )
            }),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_printed_is_read(value in literal()) {
        let text = value.repr();
        prop_assert_eq!(read(&text).unwrap(), value, "{}", text);
    }

    #[test]
    fn no_text_makes_it_panic(text in "[-+0-9.eEjJxob_'\"\\\\brufN{}()\\[\\],: \n#LTnNoe\\PC]{0,40}") {
        let options = LiteralOptions { python2_longs: true, numpy_ints: true };
        if let Err(error) = parse(&text, options) {
            prop_assert!(error.place().offset_bytes.unwrap() <= text.len() as u64 + 8);
        }
    }
}
