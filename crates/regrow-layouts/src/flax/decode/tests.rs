//! Decodes intact, broken and hostile msgpack objects.

use super::super::dtypes::{Elements, from_name};
use super::super::encode::{ArrayHead, Encoder};
use super::*;
use proptest::prelude::*;
use regrow_base::error::ErrorKind;
use regrow_tree::array::{Array, Dtype, Shape};
use regrow_tree::tree::LeafKind;

fn array(encoder: &mut Encoder, code: i8, dims: &[u64], name: &str, data: &[u8], max: Option<u64>) {
    let shape = Shape::new(vec![data.len() as u64]).unwrap();
    let array = Array::new(Dtype::UInt8, shape, Bytes::copy_from_slice(data)).unwrap();
    let size_bytes = match from_name(name) {
        Some(Elements::Known(dtype)) => dtype.size_bytes() as u64,
        Some(Elements::Other(_, size_bytes)) => size_bytes,
        None => 1,
    };
    encoder.ndarray(ArrayHead { code, dims, dtype_name: name, size_bytes }, &array, max).unwrap();
}

fn one(encode: impl FnOnce(&mut Encoder)) -> Result<Tree<Decoded>> {
    let mut encoder = Encoder::new();
    encoder.map(1).unwrap();
    encoder.str("p").unwrap();
    encode(&mut encoder);
    decode(&encoder.whole().into())
}

#[test]
fn keeps_what_each_leaf_was() {
    let mut encoder = Encoder::new();
    encoder.map(9).unwrap();
    for (name, encode) in [
        ("a", &(|e: &mut Encoder| array(e, 1, &[], "bfloat16", &[1, 2], None)) as &dyn Fn(&mut Encoder)),
        ("b", &|e| array(e, 3, &[], "bool", &[1], None)),
        ("c", &|e| e.complex(1.0, 2.0)),
        ("d", &|e| e.uint(u64::MAX)),
        ("f", &|e| {
            e.array(2).unwrap();
            e.float(1.5);
            e.nil();
        }),
        ("g", &|e| array(e, 1, &[1], "str96", &[0; 12], None)),
        ("h", &|e| e.ext(9, &[]).unwrap()),
        ("i", &|e| array(e, 1, &[2], "datetime64[s]", &[0; 16], None)),
        ("j", &|e| array(e, 1, &[3, 1], "int16", &[1, 2, 3, 4, 5, 6], Some(4))),
    ] {
        encoder.str(name).unwrap();
        encode(&mut encoder);
    }
    let tree = decode(&encoder.whole().into()).unwrap();
    let kinds: Vec<String> = tree
        .iter()
        .map(|(path, Decoded { info: LeafInfo { kind, dtype, shape, .. }, .. })| {
            format!("{path}:{}:{dtype}{shape}", kind.name())
        })
        .collect();
    assert_eq!(
        kinds,
        [
            "a:numpy_array:bfloat16[]",
            "b:numpy_scalar:bool[]",
            "c:scalar:complex128[]",
            "d:scalar:uint64[]",
            "f/0:scalar:float64[]",
            "g:numpy_other:uint8[1,12]",
            "h:unknown:uint8[0]",
            "i:numpy_other:uint8[2,8]",
            "j:numpy_array:int16[3,1]",
        ]
    );
    let Data::Pieces(pieces) = &tree.leaves()[8].data else { panic!() };
    assert_eq!(pieces.iter().map(|piece| &piece[..]).collect::<Vec<_>>(), [&[1, 2, 3, 4][..], &[5, 6]]);
}

#[test]
fn names_the_leaf_that_is_broken() {
    type Encode<'a> = &'a dyn Fn(&mut Encoder);
    let broken: [(Encode<'_>, ErrorKind); 6] = [
        (&|e| array(e, 1, &[3], "int16", &[0; 4], None), ErrorKind::Corrupt),
        (&|e| array(e, 1, &[1 << 40, 1 << 40], "int16", &[], None), ErrorKind::Limit),
        (&|e| array(e, 3, &[2], "int8", &[0; 2], None), ErrorKind::Corrupt),
        (&|e| array(e, 1, &[2], ">f4", &[0; 8], None), ErrorKind::Corrupt),
        (&|e| e.ext(1, &[0x93]).unwrap(), ErrorKind::Corrupt),
        (&|e| e.ext(2, &[0x92, 1, 2]).unwrap(), ErrorKind::Corrupt),
    ];
    for (encode, kind) in broken {
        let error = one(encode).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(error.place().leaf.as_ref().unwrap().to_string(), "p", "{error}");
        assert!(error.place().offset_bytes.is_some(), "{error}");
    }
}

#[test]
fn codes_that_msgpack_keeps_are_refused_but_for_timestamps() {
    for code in [-128, -2] {
        let error = one(|e| e.ext(code, &[7]).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{code}");
        assert!(error.to_string().contains(&code.to_string()), "{error}");
    }
    let kind =
        |payload: &[u8]| one(|e| e.ext(-1, payload).unwrap()).map(|tree| tree.leaves()[0].info.kind.clone());
    assert_eq!(kind(&[0, 0, 0, 1]).unwrap(), LeafKind::Unknown("msgpack ext -1".into()));
    // These payloads have too many nanoseconds, and a length that no timestamp has.
    for payload in [&[0xff; 8][..], &[0; 5]] {
        assert_eq!(kind(payload).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn scalars_of_numpys_own_dtypes_are_no_arrays() {
    for (code, kind) in
        [(1, LeafKind::NumpyOther("int1".into())), (3, LeafKind::NumpyOtherScalar("int1".into()))]
    {
        let tree = one(|e| array(e, code, &[], "int1", &[1], None)).unwrap();
        assert_eq!(tree.leaves()[0].info.kind, kind);
    }
}

#[test]
fn a_key_twice_is_named() {
    let error = decode(&Bytes::from_static(&[0x81, 0xa1, b'p', 0x82, 0, 1, 0, 2])).unwrap_err();
    assert_eq!(error.place().leaf.as_ref().unwrap().to_string(), "p/0");
    assert_eq!(error.place().offset_bytes, Some(6));
    assert!(decode(&Bytes::from_static(&[0x82, 0, 1, 0xa1, b'0', 2])).is_ok());
}

#[test]
fn depth_has_an_end() {
    let nested = |levels: usize| {
        let mut bytes = vec![0x91; levels];
        bytes.push(0xc0);
        Bytes::from(bytes)
    };
    assert_eq!(decode(&nested(DEPTH_MAX)).unwrap().len(), 0);
    assert_eq!(decode(&nested(DEPTH_MAX + 1)).unwrap_err().kind(), ErrorKind::Limit);
}

proptest! {
    #[test]
    fn any_bytes_give_a_tree_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&bytes.into());
    }

    #[test]
    fn chunks_of_any_size_are_the_array(
        data in proptest::collection::vec(any::<u8>(), 1..60), max in 1_u64..70,
    ) {
        let tree = one(|e| array(e, 1, &[data.len() as u64], "int8", &data, Some(max))).unwrap();
        let Data::Pieces(pieces) = &tree.leaves()[0].data else { panic!() };
        prop_assert_eq!(pieces.concat(), data.clone());
        prop_assert_eq!(pieces.len() as u64, if data.len() as u64 > max { (data.len() as u64).div_ceil(max) } else { 1 });
    }
}
