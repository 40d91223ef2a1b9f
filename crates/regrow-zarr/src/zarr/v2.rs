//! zarr v2 documents, `.zarray`.
//!
//! ```text
//! {"chunks":[3,4],"compressor":{"id":"zstd","level":1},"dimension_separator":".","dtype":"<f4",
//!  "fill_value":null,"filters":null,"order":"C","shape":[3,4],"zarr_format":2}
//! ```
//!
//! (One line, without a space.) dtypes are NumPy's `<f4`, `|u1`; dtypes that NumPy lacks have their
//! plain name, and are always little endian. Reading is as strict as in TensorStore: only
//! `dimension_separator` may be missing, and unknown members are ignored. Source: zarr v2,
//! "Metadata"; TensorStore `driver/zarr/metadata.cc` as observed.

use serde_json::{Value, json};

use super::json::{self, Members, brief};
use super::{ArrayMeta, ChunkGrid, ChunkKeys, Version, fill, is_storable};
use crate::array::{Dtype, Shape};
use crate::codec::{ArrayCodec, BytesCodec, CodecChain, Decoded, Endian, Order};
use crate::error::{Error, Result};

/// The document's key, below the array's name.
pub(super) const METADATA_KEY: &str = ".zarray";

pub(super) const GROUP_KEY: &str = ".zgroup";

/// NumPy's name of each dtype, without the byte-order mark.
const NUMPY_KINDS: [(Dtype, &str); 14] = [
    (Dtype::Bool, "b1"),
    (Dtype::Int8, "i1"),
    (Dtype::Int16, "i2"),
    (Dtype::Int32, "i4"),
    (Dtype::Int64, "i8"),
    (Dtype::UInt8, "u1"),
    (Dtype::UInt16, "u2"),
    (Dtype::UInt32, "u4"),
    (Dtype::UInt64, "u8"),
    (Dtype::Float16, "f2"),
    (Dtype::Float32, "f4"),
    (Dtype::Float64, "f8"),
    (Dtype::Complex64, "c8"),
    (Dtype::Complex128, "c16"),
];

pub(super) fn parse(bytes: &[u8]) -> Result<ArrayMeta> {
    let mut members = Members::of(json::parse(bytes)?, "the .zarray document")?;
    let format = members.required("zarr_format")?;
    if json::integer(&format) != Some(2) {
        return Err(Error::unsupported(format!("zarr_format {} in a .zarray document", brief(&format)))
            .expected(2, brief(&format)));
    }
    let shape = Shape::new(members.dims("shape", 0)?)?;
    let chunk_shape = Shape::new(members.dims("chunks", 1)?)?;
    let (dtype, endian) = parse_dtype(&members.required("dtype")?)?;
    let compressor = match members.required("compressor")? {
        Value::Null => None,
        value => Some(BytesCodec::from_v2(Members::of(value, "the compressor of a zarr array")?)?),
    };
    let fill_value = members.required("fill_value")?;
    let fill = match &fill_value {
        Value::Null => vec![0; dtype.size_bytes()],
        value => fill::parse(value, dtype, fill::Spelling::V2)?,
    };
    check_filters(&members.required("filters")?)?;
    let order = members.required("order")?;
    let transposes = match order.as_str() {
        Some("C") => Vec::new(),
        Some("F") => vec![Order::reversed(shape.rank())],
        _ => return Err(members.bad("order", "\"C\" or \"F\"", &order)),
    };
    let separator = match members.take("dimension_separator") {
        None => '.',
        Some(Value::String(text)) if text == "." => '.',
        Some(Value::String(text)) if text == "/" => '/',
        Some(other) => return Err(members.bad("dimension_separator", "\".\" or \"/\"", &other)),
    };
    let grid = ChunkGrid::new(shape, chunk_shape.clone())?;
    let decoded = Decoded { shape: chunk_shape, dtype, fill };
    let codecs = compressor.into_iter().collect();
    let chain = CodecChain::new(decoded, transposes, ArrayCodec::Bytes(endian), codecs)?;
    let keys = ChunkKeys { prefixed: false, separator };
    Ok(ArrayMeta { version: Version::V2, grid, keys, chain, has_fill: !fill_value.is_null() })
}

pub(super) fn write(meta: &ArrayMeta) -> Vec<u8> {
    let fill_value = match meta.has_fill {
        false => Value::Null,
        true => fill::spell(meta.fill_value(), meta.dtype(), fill::Spelling::V2),
    };
    json::write(&json!({
        "chunks": meta.chunk_shape().dims(),
        "compressor": meta.chain.bytes_codecs().first().map_or(Value::Null, BytesCodec::to_v2),
        "dimension_separator": meta.keys.separator.to_string(),
        "dtype": spell_dtype(meta.dtype(), meta.chain.endian()),
        "fill_value": fill_value,
        "filters": null,
        "order": if meta.chain.is_column_major() { "F" } else { "C" },
        "shape": meta.shape().dims(),
        "zarr_format": 2,
    }))
}

fn parse_dtype(value: &Value) -> Result<(Dtype, Endian)> {
    let unsupported = || Error::unsupported(format!("zarr v2 dtype {}", brief(value)));
    let text = value.as_str().ok_or_else(unsupported)?;
    let (mark, kind) = text.split_at_checked(1).ok_or_else(unsupported)?;
    if let Some(&(dtype, _)) = NUMPY_KINDS.iter().find(|row| row.1 == kind) {
        match mark {
            "<" | ">" | "|" if dtype.word_bytes() == 1 => return Ok((dtype, Endian::Little)),
            "<" => return Ok((dtype, Endian::Little)),
            ">" => return Ok((dtype, Endian::Big)),
            "|" => {
                return Err(
                    Error::corrupt(format!("the dtype {text:?} has no byte order")).expected("< or >", "|")
                );
            }
            _ => {}
        }
    }
    let named = text.parse::<Dtype>().ok().filter(|&dtype| is_storable(dtype) && numpy_kind(dtype).is_none());
    named.map(|dtype| (dtype, Endian::Little)).ok_or_else(unsupported)
}

fn spell_dtype(dtype: Dtype, endian: Endian) -> String {
    let mark = match endian {
        _ if dtype.word_bytes() == 1 => '|',
        Endian::Little => '<',
        Endian::Big => '>',
    };
    numpy_kind(dtype).map_or_else(|| dtype.name().to_owned(), |kind| format!("{mark}{kind}"))
}

fn numpy_kind(dtype: Dtype) -> Option<&'static str> {
    NUMPY_KINDS.iter().find(|row| row.0 == dtype).map(|row| row.1)
}

fn check_filters(filters: &Value) -> Result<()> {
    match filters {
        Value::Null => Ok(()),
        Value::Array(list) if list.is_empty() => Ok(()),
        Value::Array(list) => {
            let names: Vec<String> =
                list.iter().map(|filter| brief(filter.get("id").unwrap_or(filter))).collect();
            Err(Error::unsupported(format!("zarr v2 filters {}", names.join(", "))))
        }
        other => Err(Error::corrupt("the filters of a zarr array are not valid")
            .expected("null or a list", brief(other))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Compression;
    use crate::error::ErrorKind;

    /// A document as Orbax writes it. Tests replace its dtype.
    const DOCUMENT: &str = r#"{"chunks":[3,4],"compressor":{"id":"zstd","level":1},"dimension_separator":".","dtype":"<f4","fill_value":null,"filters":null,"order":"C","shape":[3,4],"zarr_format":2}"#;

    fn parse_text(text: &str) -> Result<ArrayMeta> {
        ArrayMeta::parse_v2(text.as_bytes())
    }

    #[test]
    fn every_dtype_comes_out_as_orbax_spells_it() {
        let spellings = [
            (Dtype::Bool, "|b1"),
            (Dtype::Int2, "int2"),
            (Dtype::Int4, "int4"),
            (Dtype::Int8, "|i1"),
            (Dtype::Int16, "<i2"),
            (Dtype::Int32, "<i4"),
            (Dtype::Int64, "<i8"),
            (Dtype::UInt8, "|u1"),
            (Dtype::UInt16, "<u2"),
            (Dtype::UInt32, "<u4"),
            (Dtype::UInt64, "<u8"),
            (Dtype::Float16, "<f2"),
            (Dtype::BFloat16, "bfloat16"),
            (Dtype::Float32, "<f4"),
            (Dtype::Float64, "<f8"),
            (Dtype::Float8E3m4, "float8_e3m4"),
            (Dtype::Float8E4m3fn, "float8_e4m3fn"),
            (Dtype::Float8E4m3fnuz, "float8_e4m3fnuz"),
            (Dtype::Float8E4m3b11fnuz, "float8_e4m3b11fnuz"),
            (Dtype::Float8E5m2, "float8_e5m2"),
            (Dtype::Float8E5m2fnuz, "float8_e5m2fnuz"),
            (Dtype::Float8E8m0fnu, "float8_e8m0fnu"),
            (Dtype::Float4E2m1fn, "float4_e2m1fn"),
            (Dtype::Complex64, "<c8"),
            (Dtype::Complex128, "<c16"),
        ];
        let shape = Shape::new([3, 4]).unwrap();
        for dtype in Dtype::all() {
            let made = ArrayMeta::v2(shape.clone(), dtype, shape.clone(), Compression::Zstd(1));
            match spellings.iter().find(|row| row.0 == dtype) {
                None => assert_eq!(made.unwrap_err().kind(), ErrorKind::Unsupported, "{dtype}"),
                Some((_, spelling)) => {
                    let text = DOCUMENT.replace("<f4", spelling);
                    let made = made.unwrap();
                    assert_eq!(String::from_utf8(made.to_json()).unwrap(), text);
                    assert_eq!(parse_text(&text).unwrap(), made);
                }
            }
        }
    }

    #[test]
    fn raw_and_scalar_documents() {
        let raw = ArrayMeta::v2(Shape::scalar(), Dtype::Int64, Shape::scalar(), Compression::None).unwrap();
        let text = r#"{"chunks":[],"compressor":null,"dimension_separator":".","dtype":"<i8","fill_value":null,"filters":null,"order":"C","shape":[],"zarr_format":2}"#;
        assert_eq!(String::from_utf8(raw.to_json()).unwrap(), text);
        assert!(raw.is_raw());
        assert_eq!((raw.metadata_key(), raw.chunk_key(&[]), raw.version()), (".zarray", "0".to_owned(), 2));
        assert_eq!(raw.coding(), "raw");
    }

    #[test]
    fn what_tensorstore_writes_comes_out_the_same() {
        for text in [
            DOCUMENT,
            r#"{"chunks":[2,2],"compressor":{"id":"zstd","level":1},"dimension_separator":".","dtype":"<f4","fill_value":1.5,"filters":null,"order":"F","shape":[5,4],"zarr_format":2}"#,
            r#"{"chunks":[5,4],"compressor":{"blocksize":0,"clevel":5,"cname":"lz4","id":"blosc","shuffle":-1},"dimension_separator":"/","dtype":">f4","fill_value":null,"filters":null,"order":"C","shape":[5,4],"zarr_format":2}"#,
            r#"{"chunks":[2],"compressor":{"id":"zlib","level":1},"dimension_separator":".","dtype":"<c8","fill_value":["NaN",1.0],"filters":null,"order":"C","shape":[2],"zarr_format":2}"#,
            r#"{"chunks":[2],"compressor":{"id":"gzip","level":1},"dimension_separator":".","dtype":"float4_e2m1fn","fill_value":"Bw==","filters":null,"order":"C","shape":[2],"zarr_format":2}"#,
        ] {
            assert_eq!(String::from_utf8(parse_text(text).unwrap().to_json()).unwrap(), text);
        }
    }

    #[test]
    fn reads_what_tensorstore_accepts() {
        let plain = parse_text(DOCUMENT).unwrap();
        for (from, to) in [
            (r#""dimension_separator":".","#, ""),
            (r#""filters":null"#, r#""filters":[]"#),
            (r#""order":"C""#, r#""order":"C","extra":{"a":1}"#),
            ("[3,4]", "[3.0, 4]"),
        ] {
            assert_eq!(parse_text(&DOCUMENT.replace(from, to)).unwrap(), plain, "{to}");
        }
        for spelling in ["<i1", ">i1", "|i1"] {
            let meta = parse_text(&DOCUMENT.replace("<f4", spelling)).unwrap();
            assert!(meta.dtype() == Dtype::Int8 && !meta.is_raw());
        }
        let old = parse_text(&DOCUMENT.replace(r#"{"id":"zstd","level":1}"#, r#"{"id":"gzip"}"#)).unwrap();
        assert_eq!(old.coding(), "gzip");
    }

    #[test]
    fn refuses_the_rest_with_the_right_kind() {
        use ErrorKind::{Corrupt, Limit, Unsupported};
        for (from, to, kind, names) in [
            (r#","filters":null"#, "", Corrupt, "filters"),
            (r#""fill_value":null"#, r#""x":0"#, Corrupt, "fill_value"),
            (r#""order":"C","#, "", Corrupt, "order"),
            (r#""compressor":{"id":"zstd","level":1},"#, "", Corrupt, "compressor"),
            (r#""zarr_format":2"#, r#""zarr_format":3"#, Unsupported, "zarr_format 3"),
            (r#","zarr_format":2"#, "", Corrupt, "zarr_format"),
            (r#""chunks":[3,4]"#, r#""chunks":[3]"#, Corrupt, "chunk shape"),
            (r#""chunks":[3,4]"#, r#""chunks":[3,0]"#, Corrupt, "chunks"),
            (r#""shape":[3,4]"#, r#""shape":[3,-4]"#, Corrupt, "shape"),
            (r#""shape":[3,4]"#, r#""shape":[3,4.5]"#, Corrupt, "shape"),
            (r#""shape":[3,4]"#, r#""shape":[9223372036854775808,4]"#, Corrupt, "shape"),
            (r#""shape":[3,4]"#, r#""shape":[4611686018427387904,4]"#, Limit, "shape"),
            (r#""chunks":[3,4]"#, r#""chunks":[1099511627776,1024]"#, Limit, "chunk"),
            (r#""filters":null"#, r#""filters":[{"id":"delta"}]"#, Unsupported, "delta"),
            (r#""filters":null"#, r#""filters":1"#, Corrupt, "filters"),
            (r#""id":"zstd""#, r#""id":"bz2""#, Unsupported, "bz2"),
            (r#""level":1"#, r#""level":99"#, Corrupt, "zstd"),
            (r#""level":1"#, r#""level":1,"odd":2"#, Unsupported, "odd"),
            ("<f4", "|f4", Corrupt, "|f4"),
            ("<f4", "<U8", Unsupported, "<U8"),
            ("<f4", "<f3", Unsupported, "<f3"),
            ("<f4", "float32", Unsupported, "float32"),
            ("<f4", "uint4", Unsupported, "uint4"),
            ("<f4", "float8_e4m3", Unsupported, "float8_e4m3"),
            ("<f4", "", Unsupported, "dtype"),
            (r#""<f4""#, r#"[["a","<f4"]]"#, Unsupported, "dtype"),
            (r#""order":"C""#, r#""order":"A""#, Corrupt, "order"),
            (r#""fill_value":null"#, r#""fill_value":"0x0""#, Unsupported, "0x0"),
            (r#"separator":".""#, r#"separator":"-""#, Corrupt, "dimension_separator"),
            (r#""order":"C""#, r#""order":"C","order":"F""#, Unsupported, "order"),
        ] {
            let text = DOCUMENT.replace(from, to);
            assert_ne!(text, DOCUMENT);
            let error = parse_text(&text).unwrap_err();
            assert_eq!(error.kind(), kind, "{text}: {error}");
            assert!(error.to_string().contains(names), "{text}: {error}");
        }
        for text in ["", "[]", "null", "{}", "{\"zarr_format\":2}"] {
            assert_eq!(parse_text(text).unwrap_err().kind(), Corrupt, "{text}");
        }
    }
}
