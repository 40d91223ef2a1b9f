//! Pickles written by hand. The fixtures have pickles of Python and PyTorch.

use super::*;
use proptest::prelude::*;
use regrow_base::error::ErrorKind;

fn read(bytes: &[u8]) -> Pickle<'_> {
    Pickle::read(bytes).unwrap()
}

/// A value as text, for comparisons.
fn shown(pickle: &Pickle<'_>, id: Id) -> String {
    let all = |items: &[Id]| items.iter().map(|&item| shown(pickle, item)).collect::<Vec<_>>().join(", ");
    match pickle.value(id) {
        Value::None => "None".to_owned(),
        Value::Bool(value) => format!("{value}"),
        Value::Int(value) => format!("{value}"),
        Value::Long(span) => format!("long {:?}", pickle.span(*span)),
        Value::Float(value) => format!("{value:?}"),
        Value::Text(span) => format!("{:?}", pickle.text_of(*span)),
        Value::Bytes(span) => format!("b{:?}", pickle.span(*span)),
        Value::List(items) => format!("[{}]", all(items)),
        Value::Tuple(items) => format!("({})", all(items)),
        Value::Set(items) => format!("{{{}}}", all(items)),
        Value::Dict(pairs) => {
            let pairs =
                pairs.iter().map(|&(key, value)| format!("{}: {}", shown(pickle, key), shown(pickle, value)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
        Value::Global(module, name) => format!("<{}.{}>", pickle.text_of(*module), pickle.text_of(*name)),
        Value::Call(call) => {
            let state = call.state.map_or(String::new(), |state| format!(" state {}", shown(pickle, state)));
            format!("{}{}{state}", shown(pickle, call.callee), shown(pickle, call.args))
        }
        Value::Persistent(id) => format!("persistent {}", shown(pickle, *id)),
    }
}

#[test]
fn every_opcode_makes_its_value() {
    for (bytes, expected) in [
        (&b"N."[..], "None"),
        (b"\x80\x05\x88.", "true"),
        (b"\x80\x02(\x88\x89l.", "[true, false]"),
        (b"(J\xff\xff\xff\xffK\xffM\xff\xfft.", "(-1, 255, 65535)"),
        (b"\x8a\x00.", "0"),
        (b"\x8a\x01\xff.", "-1"),
        (b"\x8b\x08\0\0\0\0\0\0\0\0\0\0\x80.", "-9223372036854775808"),
        (b"\x8a\x09\0\0\0\0\0\0\0\0\x01.", "long [0, 0, 0, 0, 0, 0, 0, 0, 1]"),
        (b"G\x3f\xf8\0\0\0\0\0\0.", "1.5"),
        (b"U\x01aT\x01\0\0\0\xff\x86.", "(\"a\", b[255])"),
        (b"X\x02\0\0\0\xc3\xa4.", "\"\u{e4}\""),
        (b"\x80\x04\x95\x0c\0\0\0\0\0\0\0\x8c\x01a\x8d\x01\0\0\0\0\0\0\0b\x86.", "(\"a\", \"b\")"),
        (b"C\x01aB\x01\0\0\0b\x8e\x01\0\0\0\0\0\0\0c\x87.", "(b[97], b[98], b[99])"),
        (b"\x96\x01\0\0\0\0\0\0\0c\x85.", "(b[99])"),
        (b"]Na(K\x01K\x02e.", "[None, 1, 2]"),
        (b"}K\x01K\x02s(K\x03K\x04u.", "{1: 2, 3: 4}"),
        (b"(K\x01K\x02d.", "{1: 2}"),
        (b"\x8f(K\x01\x90.", "{1}"),
        (b"(K\x01\x91.", "{1}"),
        (b"K\x07q\x000h\x002\x86.", "(7, 7)"),
        (b"K\x07r\x00\x01\0\0j\x00\x01\0\0\x86.", "(7, 7)"),
        (b"K\x07\x94h\x00\x86.", "(7, 7)"),
        (b"K\x01(K\x02K\x031.", "1"),
        (b"cos\nsystem\nK\x01\x85R.", "<os.system>(1)"),
        (b"\x8c\x02os\x8c\x06system\x93)\x81}b.", "<os.system>() state {}"),
        (b"cos\nsystem\n)}\x92.", "<os.system>()"),
        (b"K\x01Q.", "persistent 1"),
    ] {
        let pickle = read(bytes);
        assert_eq!(shown(&pickle, pickle.root()), expected, "{}", bytes.escape_ascii());
        assert_eq!(pickle.len_bytes(), bytes.len());
    }
}

#[test]
fn what_is_no_pickle_is_refused_where_it_goes_wrong() {
    for (bytes, at, kind) in [
        (&b""[..], 0, ErrorKind::Corrupt),
        (b".", 0, ErrorKind::Corrupt),
        (b"\xff", 0, ErrorKind::Corrupt),
        (b"\x80\x06.", 0, ErrorKind::Unsupported),
        (b"I1x\n.", 0, ErrorKind::Corrupt),
        (b"F\n.", 0, ErrorKind::Corrupt),
        (b"Sabc\n.", 0, ErrorKind::Corrupt),
        (b"V\\u12\n.", 0, ErrorKind::Corrupt),
        (b"V abc", 0, ErrorKind::Corrupt),
        (b"g0\n.", 0, ErrorKind::Corrupt),
        (b"\x82\x01.", 0, ErrorKind::Unsupported),
        (b"N0.", 2, ErrorKind::Corrupt),
        (b"NN(0", 3, ErrorKind::Corrupt),
        (b"(N\x86.", 2, ErrorKind::Corrupt),
        (b"t.", 0, ErrorKind::Corrupt),
        (b"Ne.", 1, ErrorKind::Corrupt),
        (b"NNa.", 2, ErrorKind::Corrupt),
        (b"}(Nu.", 3, ErrorKind::Corrupt),
        (b"NNNs.", 3, ErrorKind::Corrupt),
        (b"NNR.", 2, ErrorKind::Corrupt),
        (b"NNb.", 2, ErrorKind::Corrupt),
        (b"NN\x93.", 2, ErrorKind::Corrupt),
        (b"h\x07.", 0, ErrorKind::Corrupt),
        (b"X\xff\xff\xff\xffabc", 5, ErrorKind::Corrupt),
        (b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc", 9, ErrorKind::Corrupt),
        (b"X\x01\0\0\0\xff.", 0, ErrorKind::Corrupt),
        (b"cos", 0, ErrorKind::Corrupt),
        (b"c\xff\nx\n.", 0, ErrorKind::Corrupt),
        (b"\x95\xff\0\0\0\0\0\0\0.", 0, ErrorKind::Corrupt),
    ] {
        let error = Pickle::read(bytes).unwrap_err();
        assert_eq!(error.kind(), kind, "{}: {error}", bytes.escape_ascii());
        assert_eq!(error.place().offset_bytes, Some(at), "{}: {error}", bytes.escape_ascii());
    }
}

#[test]
fn what_only_grows_is_refused() {
    for byte in [b"N", b"(", b"}"] {
        let error = Pickle::read(&byte.repeat(1 << 20)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    }
}

proptest! {
    #[test]
    fn any_bytes_give_values_or_an_error_with_its_place(
        ops in prop::collection::vec((0_usize..40, prop::collection::vec(any::<u8>(), 0..3)), 0..60),
    ) {
        const OPS: &[u8] = b"\x80\x95.(012N\x88\x89JKM\x8a\x8bGUTX\x8cCB])}\x8faeus\x90tdl\x91\x85\x86hq\x94cRQb";
        let mut bytes = Vec::new();
        for (op, more) in ops {
            bytes.push(OPS[op % OPS.len()]);
            bytes.extend(more);
        }
        match Pickle::read(&bytes) {
            Ok(pickle) => prop_assert!(pickle.len_bytes() <= bytes.len()),
            Err(error) => prop_assert!(error.place().offset_bytes.unwrap() <= bytes.len() as u64, "{}", error),
        }
    }
}
