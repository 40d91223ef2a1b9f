//! zarr v3 documents, `zarr.json`.
//!
//! ```text
//! {"chunk_grid":{"configuration":{"chunk_shape":[3,4]},"name":"regular"},
//!  "chunk_key_encoding":{"name":"default"},
//!  "codecs":[{"configuration":{"chunk_shape":[3,4],
//!                              "codecs":[{"configuration":{"endian":"little"},"name":"bytes"},
//!                                        {"configuration":{"checksum":false,"level":3},"name":"zstd"}],
//!                              "index_codecs":[{"configuration":{"endian":"little"},"name":"bytes"},
//!                                              {"name":"crc32c"}]},
//!             "name":"sharding_indexed"}],
//!  "data_type":"float32","fill_value":0.0,"node_type":"array","shape":[3,4],"zarr_format":3}
//! ```
//!
//! (One line, without a space.) Each chunk of Orbax is a shard; arrays of regrow's default layout
//! have the codec `bytes` alone. Reading is as strict as in TensorStore: an unknown member is
//! refused, except with `"must_understand":false`, and extensions are objects, never plain strings.
//! Source: zarr v3 core, "Array metadata".

use serde_json::{Value, json};

use super::json::{self, Members, brief};
use super::{ArrayMeta, ChunkGrid, ChunkKeys, Version, fill, is_storable};
use crate::array::{Dtype, Shape};
use crate::codec::{CodecChain, Decoded, name_and_configuration};
use crate::error::{Error, Result};

/// The document's key, below the array's name.
pub(super) const METADATA_KEY: &str = "zarr.json";

pub(super) fn parse(bytes: &[u8]) -> Result<ArrayMeta> {
    let mut members = Members::of(json::parse(bytes)?, "the zarr.json document")?;
    let format = members.required("zarr_format")?;
    if json::integer(&format) != Some(3) {
        return Err(Error::unsupported(format!("zarr_format {} in a zarr.json document", brief(&format)))
            .expected(3, brief(&format)));
    }
    let node_type = members.required_text("node_type")?;
    if node_type != "array" {
        return Err(
            Error::corrupt("the zarr.json document does not describe an array").expected("array", node_type)
        );
    }
    let shape = Shape::new(members.dims("shape", 0)?)?;
    let dtype = parse_dtype(&members.required("data_type")?)?;
    let chunk_shape = parse_grid(&members.required("chunk_grid")?)?;
    let keys = parse_keys(&members.required("chunk_key_encoding")?)?;
    let fill = fill::parse(&members.required("fill_value")?, dtype, fill::Spelling::V3)?;
    let codecs = members.required("codecs")?;
    check_the_rest(members, shape.rank())?;
    let grid = ChunkGrid::new(shape, chunk_shape.clone())?;
    let chain = CodecChain::from_v3(&codecs, Decoded { shape: chunk_shape, dtype, fill })?;
    Ok(ArrayMeta { version: Version::V3, grid, keys, chain, has_fill: true })
}

pub(super) fn write(meta: &ArrayMeta) -> Vec<u8> {
    json::write(&json!({
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": meta.chunk_shape().dims()}},
        "chunk_key_encoding": spell_keys(meta.keys),
        "codecs": meta.chain.to_v3(),
        "data_type": meta.dtype().name(),
        "fill_value": fill::spell(meta.fill_value(), meta.dtype(), fill::Spelling::V3),
        "node_type": "array",
        "shape": meta.shape().dims(),
        "zarr_format": 3,
    }))
}

fn parse_dtype(value: &Value) -> Result<Dtype> {
    let named = value.as_str().and_then(|name| name.parse().ok()).filter(|&dtype| is_storable(dtype));
    named.ok_or_else(|| Error::unsupported(format!("zarr v3 data_type {}", brief(value))))
}

fn parse_grid(value: &Value) -> Result<Shape> {
    let (name, mut configuration) = name_and_configuration(value, "chunk_grid")?;
    if name != "regular" {
        return Err(Error::unsupported(format!("zarr chunk_grid {name:?}")));
    }
    let chunk_shape = configuration.dims("chunk_shape", 1)?;
    configuration.finish()?;
    Shape::new(chunk_shape)
}

fn parse_keys(value: &Value) -> Result<ChunkKeys> {
    let (name, mut configuration) = name_and_configuration(value, "chunk_key_encoding")?;
    let default = match name.as_str() {
        "default" => ChunkKeys::V3,
        "v2" => ChunkKeys::V2,
        other => return Err(Error::unsupported(format!("zarr chunk_key_encoding {other:?}"))),
    };
    let separator = match configuration.take("separator") {
        None => default.separator,
        Some(Value::String(text)) if text == "." => '.',
        Some(Value::String(text)) if text == "/" => '/',
        Some(other) => return Err(configuration.bad("separator", "\".\" or \"/\"", &other)),
    };
    configuration.finish()?;
    Ok(ChunkKeys { separator, ..default })
}

fn spell_keys(keys: ChunkKeys) -> Value {
    let (name, default) = if keys.prefixed { ("default", ChunkKeys::V3) } else { ("v2", ChunkKeys::V2) };
    if keys == default {
        return json!({"name": name});
    }
    json!({"name": name, "configuration": {"separator": keys.separator.to_string()}})
}

/// Checks the optional members, which regrow does not use. Any further member must contain
/// `"must_understand": false`.
fn check_the_rest(mut members: Members, rank: usize) -> Result<()> {
    if let Some(attributes) = members.take("attributes")
        && !attributes.is_object()
    {
        return Err(members.bad("attributes", "an object", &attributes));
    }
    if let Some(names) = members.take("dimension_names") {
        let is_name = |name: &Value| name.is_string() || name.is_null();
        let fits = names.as_array().is_some_and(|names| names.len() == rank && names.iter().all(is_name));
        if !fits {
            return Err(members.bad("dimension_names", "a name or null for each axis", &names));
        }
    }
    if let Some(transformers) = members.take("storage_transformers")
        && transformers.as_array().is_none_or(|list| !list.is_empty())
    {
        return Err(Error::unsupported(format!("zarr storage_transformers {}", brief(&transformers))));
    }
    for (name, value) in members.take_rest() {
        if value.get("must_understand") != Some(&Value::Bool(false)) {
            return Err(Error::unsupported(format!("the zarr.json document has an unknown member {name:?}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Compression;
    use crate::error::ErrorKind;

    /// A document as Orbax writes it.
    const DOCUMENT: &str = r#"{"chunk_grid":{"configuration":{"chunk_shape":[3,4]},"name":"regular"},"chunk_key_encoding":{"name":"default"},"codecs":[{"configuration":{"chunk_shape":[3,4],"codecs":[{"configuration":{"endian":"little"},"name":"bytes"},{"configuration":{"checksum":false,"level":3},"name":"zstd"}],"index_codecs":[{"configuration":{"endian":"little"},"name":"bytes"},{"name":"crc32c"}]},"name":"sharding_indexed"}],"data_type":"float32","fill_value":0.0,"node_type":"array","shape":[3,4],"zarr_format":3}"#;

    fn shape(dims: &[u64]) -> Shape {
        Shape::new(dims).unwrap()
    }

    fn parse_text(text: &str) -> Result<ArrayMeta> {
        ArrayMeta::parse_v3(text.as_bytes())
    }

    #[test]
    fn every_dtype_comes_out_as_orbax_spells_it() {
        for dtype in Dtype::all() {
            let made = ArrayMeta::v3_sharded(
                shape(&[3, 4]),
                dtype,
                shape(&[3, 4]),
                shape(&[3, 4]),
                Compression::Zstd(3),
            );
            if !is_storable(dtype) {
                assert_eq!(made.unwrap_err().kind(), ErrorKind::Unsupported, "{dtype}");
                continue;
            }
            let name = dtype.name();
            let fill = match name {
                "bool" => "false",
                "complex64" | "complex128" => "[0.0,0.0]",
                name if name.contains("float") => "0.0",
                _ => "0",
            };
            let mut text = DOCUMENT.replace("\"float32\"", &format!("\"{name}\"")).replace("0.0", fill);
            if dtype.size_bytes() == 1 {
                text = text.replacen(
                    r#"{"configuration":{"endian":"little"},"name":"bytes"}"#,
                    r#"{"name":"bytes"}"#,
                    1,
                );
            }
            let made = made.unwrap();
            assert_eq!(String::from_utf8(made.to_json()).unwrap(), text);
            assert_eq!(parse_text(&text).unwrap(), made);
        }
    }

    #[test]
    fn raw_and_scalar_documents() {
        let raw = ArrayMeta::v3_raw(Shape::scalar(), Dtype::Float32).unwrap();
        let text = r#"{"chunk_grid":{"configuration":{"chunk_shape":[]},"name":"regular"},"chunk_key_encoding":{"name":"default"},"codecs":[{"configuration":{"endian":"little"},"name":"bytes"}],"data_type":"float32","fill_value":0.0,"node_type":"array","shape":[],"zarr_format":3}"#;
        assert_eq!(String::from_utf8(raw.to_json()).unwrap(), text);
        assert_eq!((raw.metadata_key(), raw.chunk_key(&[]), raw.version()), ("zarr.json", "c".to_owned(), 3));
        assert!(raw.is_raw());
        let empty = ArrayMeta::v3_raw(shape(&[0, 3]), Dtype::Float32).unwrap();
        assert_eq!(empty.chunk_shape(), &shape(&[1, 3]));
    }

    #[test]
    fn what_tensorstore_writes_comes_out_the_same() {
        let base = |codecs: &str| {
            format!(
                r#"{{"chunk_grid":{{"configuration":{{"chunk_shape":[2,3]}},"name":"regular"}},"chunk_key_encoding":{{"name":"default"}},"codecs":[{codecs}],"data_type":"uint8","fill_value":0,"node_type":"array","shape":[2,3],"zarr_format":3}}"#
            )
        };
        let index =
            r#""index_codecs":[{"configuration":{"endian":"little"},"name":"bytes"},{"name":"crc32c"}]"#;
        for (codecs, coding) in [
            (r#"{"name":"bytes"}"#.to_owned(), "raw"),
            (r#"{"name":"bytes"},{"configuration":{"level":6},"name":"gzip"}"#.to_owned(), "gzip"),
            (r#"{"name":"bytes"},{"configuration":{"checksum":false,"level":3},"name":"zstd"},{"name":"crc32c"}"#.to_owned(), "zstd, crc32c"),
            (r#"{"configuration":{"order":[1,0]},"name":"transpose"},{"name":"bytes"}"#.to_owned(), "transpose"),
            (r#"{"name":"bytes"},{"configuration":{"blocksize":0,"clevel":5,"cname":"zstd","shuffle":"bitshuffle","typesize":2},"name":"blosc"}"#.to_owned(), "blosc"),
            (format!(r#"{{"configuration":{{"chunk_shape":[1,3],"codecs":[{{"name":"bytes"}}],{index},"index_location":"start"}},"name":"sharding_indexed"}}"#), "sharding_indexed(raw)"),
            (r#"{"configuration":{"chunk_shape":[1,3],"codecs":[{"name":"bytes"}],"index_codecs":[{"configuration":{"endian":"big"},"name":"bytes"}]},"name":"sharding_indexed"}"#.to_owned(), "sharding_indexed(raw)"),
        ] {
            let text = base(&codecs);
            let meta = parse_text(&text).unwrap();
            assert_eq!(String::from_utf8(meta.to_json()).unwrap(), text);
            assert_eq!(meta.coding(), coding);
        }
        for keys in [
            r#"{"name":"v2"}"#,
            r#"{"configuration":{"separator":"/"},"name":"v2"}"#,
            r#"{"configuration":{"separator":"."},"name":"default"}"#,
        ] {
            let text = base(r#"{"name":"bytes"}"#).replace(r#"{"name":"default"}"#, keys);
            assert_eq!(String::from_utf8(parse_text(&text).unwrap().to_json()).unwrap(), text);
        }
    }

    #[test]
    fn reads_what_tensorstore_accepts() {
        let plain = parse_text(DOCUMENT).unwrap();
        for (from, to) in [
            (r#"{"name":"default"}"#, r#"{"name":"default","configuration":{"separator":"/"}}"#),
            (
                r#""zarr_format":3"#,
                r#""zarr_format":3,"storage_transformers":[],"attributes":{"a":1},"dimension_names":["x",null]"#,
            ),
            (r#""zarr_format":3"#, r#""zarr_format":3,"odd":{"must_understand":false}"#),
            (r#"{"checksum":false,"level":3}"#, r#"{"level":3}"#),
            (r#""name":"sharding_indexed""#, r#""name":"sharding_indexed" "#),
        ] {
            assert_eq!(parse_text(&DOCUMENT.replace(from, to)).unwrap(), plain, "{to}");
        }
        let bytes = DOCUMENT.replace("float32", "int8").replace("0.0", "0");
        assert_eq!(parse_text(&bytes).unwrap().dtype(), Dtype::Int8);
    }

    #[test]
    fn refuses_the_rest_with_the_right_kind() {
        use ErrorKind::{Corrupt, Limit, Unsupported};
        for (from, to, kind, names) in [
            (r#""chunk_key_encoding":{"name":"default"},"#, "", Corrupt, "chunk_key_encoding"),
            (r#""fill_value":0.0,"#, "", Corrupt, "fill_value"),
            ("0.0", "null", Corrupt, "fill value"),
            ("0.0", "false", Corrupt, "fill value"),
            (r#"{"name":"default"}"#, r#""default""#, Corrupt, "chunk_key_encoding"),
            (r#"{"name":"default"}"#, r#"{"name":"fancy"}"#, Unsupported, "fancy"),
            (r#"{"name":"crc32c"}"#, r#""crc32c""#, Corrupt, "codec"),
            (r#"{"name":"crc32c"}"#, r#"{"name":"gzip"}"#, Unsupported, "gzip"),
            (r#""zstd""#, r#""lzma""#, Unsupported, "lzma"),
            (r#""regular""#, r#""rectilinear""#, Unsupported, "rectilinear"),
            (r#""level":3"#, r#""level":3,"odd":1"#, Unsupported, "odd"),
            (r#""node_type":"array""#, r#""node_type":"group""#, Corrupt, "group"),
            (r#""zarr_format":3"#, r#""zarr_format":4"#, Unsupported, "zarr_format 4"),
            (r#""zarr_format":3"#, r#""zarr_format":3,"odd":{}"#, Unsupported, "odd"),
            (
                r#""zarr_format":3"#,
                r#""zarr_format":3,"storage_transformers":[{}]"#,
                Unsupported,
                "storage_transformers",
            ),
            (r#""zarr_format":3"#, r#""zarr_format":3,"dimension_names":["x"]"#, Corrupt, "dimension_names"),
            (r#""zarr_format":3"#, r#""zarr_format":3,"attributes":[]"#, Corrupt, "attributes"),
            ("\"float32\"", "\"uint4\"", Unsupported, "uint4"),
            ("\"float32\"", "\"r16\"", Unsupported, "r16"),
            ("\"float32\"", "{\"name\":\"numpy.datetime64\"}", Unsupported, "numpy.datetime64"),
            (
                r#"{"configuration":{"endian":"little"},"name":"bytes"},{"conf"#,
                r#"{"name":"bytes"},{"conf"#,
                Corrupt,
                "endian",
            ),
            (r#"{"configuration":{"endian":"little"},"name":"bytes"},{"conf"#, r#"{"conf"#, Corrupt, "zstd"),
            (r#""shape":[3,4]"#, r#""shape":[3]"#, Corrupt, "chunk shape"),
            (
                r#"{"configuration":{"chunk_shape":[3,4],"co"#,
                r#"{"configuration":{"chunk_shape":[2,4],"co"#,
                Corrupt,
                "divide",
            ),
            (
                r#"{"configuration":{"chunk_shape":[3,4],"co"#,
                r#"{"configuration":{"chunk_shape":[3],"co"#,
                Corrupt,
                "chunk shape",
            ),
            (r#"{"chunk_shape":[3,4]},"#, r#"{"chunk_shape":[4611686018427387904,4]},"#, Limit, "shape"),
            (r#"{"chunk_shape":[3,4]},"#, r#"{"chunk_shape":[864691128455135232,4]},"#, Limit, "shard"),
            (
                r#""name":"sharding_indexed"}"#,
                r#""name":"sharding_indexed"},{"name":"crc32c"}"#,
                Unsupported,
                "crc32c",
            ),
            (
                r#""node_type":"array""#,
                r#""node_type":"array","node_type":"array""#,
                Unsupported,
                "node_type",
            ),
        ] {
            let text = DOCUMENT.replacen(from, to, 1);
            assert_ne!(text, DOCUMENT, "{from}");
            let error = parse_text(&text).unwrap_err();
            assert_eq!(error.kind(), kind, "{text}: {error}");
            assert!(error.to_string().contains(names), "{text}: {error}");
        }
        let deep = format!("{}{}", "{\"codecs\":[".repeat(1000), "]}".repeat(1000));
        assert_eq!(parse_text(&deep).unwrap_err().kind(), Corrupt);
    }

    #[test]
    fn a_caller_who_asks_for_nonsense_is_told_so() {
        let raw = Compression::None;
        let uneven = ArrayMeta::v3_sharded(shape(&[4]), Dtype::Int8, shape(&[4]), shape(&[3]), raw);
        let rank = ArrayMeta::v3(shape(&[4]), Dtype::Int8, shape(&[4, 1]), raw);
        let level = ArrayMeta::v2(shape(&[4]), Dtype::Int8, shape(&[4]), Compression::Zstd(23));
        for made in [uneven, rank, level] {
            assert_eq!(made.unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }
}
