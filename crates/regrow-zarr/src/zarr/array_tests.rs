//! Laws of reading: any region of any array is read as it was written, no other data is read, and
//! damage is an error with its position.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::array::SHARD_READ_WHOLE_LEN_MAX_BYTES;
use super::{ArrayMeta, Missing, ZarrArray};
use crate::array::{Dtype, Region, Shape, copy_region};
use crate::codec::Compression;
use crate::error::{ErrorKind, Result};
use regrow_store::{ByteRange, Located, MemoryStore, Span, Store, StoreCapabilities, StoreExt};

/// A store in memory that reads values by range, as from files. It counts the bytes that it reads.
#[derive(Debug, Clone, Default)]
struct FileLike {
    values: Arc<MemoryStore>,
    read_bytes: Arc<AtomicU64>,
}

impl Store for FileLike {
    fn get(&self, key: &[u8], range: ByteRange) -> Result<Option<Bytes>> {
        let value = self.values.get(key, range)?;
        let len = value.as_ref().map_or(0, Bytes::len) as u64;
        self.read_bytes.fetch_add(len, Ordering::Relaxed);
        Ok(value)
    }
    fn list(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.values.list(prefix)
    }
    fn len_bytes(&self, key: &[u8]) -> Result<Option<u64>> {
        self.values.len_bytes(key)
    }
    fn locate(&self, key: &[u8]) -> Result<Option<Located>> {
        let len = self.values.len_bytes(key)?;
        Ok(len.map(|len_bytes| {
            Located::At(Span { store: Arc::new(self.clone()), key: key.into(), offset_bytes: 0, len_bytes })
        }))
    }
    fn describe(&self, key: &[u8]) -> PathBuf {
        String::from_utf8_lossy(key).as_ref().into()
    }

    fn capabilities(&self) -> StoreCapabilities<'_> {
        StoreCapabilities { maps: None, versions: None, ..self.values.capabilities() }
    }
}

fn shape(dims: &[u64]) -> Shape {
    Shape::new(dims).unwrap()
}

fn some_bytes(shape: &Shape, dtype: Dtype) -> Vec<u8> {
    let mask = if dtype == Dtype::Bool {
        1
    } else if dtype == Dtype::Int4 {
        15
    } else {
        255
    };
    (0..shape.len_bytes(dtype).unwrap()).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 7) as u8 & mask).collect()
}

/// Writes all chunks of an array of `bytes`, as a writer does.
fn write(store: &dyn Store, name: &str, meta: &ArrayMeta, bytes: &[u8]) {
    let size = meta.dtype().size_bytes();
    for (index, part) in meta.chunk_indices(&Region::whole(meta.shape())) {
        let mut chunk = meta.fill_value().repeat(meta.chunk_shape().len_elements() as usize);
        let origin = vec![0; index.len()];
        copy_region(size, bytes, meta.shape(), &part, &mut chunk, meta.chunk_shape(), &origin).unwrap();
        let stored = meta.encode_chunk(&chunk).unwrap();
        assert_eq!(meta.decode_chunk(&stored).unwrap(), chunk);
        let prefix = if name.is_empty() { String::new() } else { format!("{name}/") };
        store.put((prefix + &meta.chunk_key(&index)).as_bytes(), stored.into()).unwrap();
    }
}

fn array_of(meta: ArrayMeta, bytes: &[u8]) -> (FileLike, ZarrArray) {
    let store = FileLike::default();
    write(&store, "a.b", &meta, bytes);
    (store.clone(), ZarrArray::new(Arc::new(store), b"a.b", Arc::new(meta), Missing::Error))
}

fn read(array: &ZarrArray, region: &Region) -> Result<Vec<u8>> {
    let mut out = vec![0xee; region.shape().len_bytes(array.meta().dtype()).unwrap() as usize];
    array.read_region(region, &mut out).map(|()| out)
}

fn expected(bytes: &[u8], whole: &Shape, region: &Region, dtype: Dtype) -> Vec<u8> {
    let mut out = vec![0; region.shape().len_bytes(dtype).unwrap() as usize];
    let origin = vec![0; region.rank()];
    copy_region(dtype.size_bytes(), bytes, whole, region, &mut out, &region.shape(), &origin).unwrap();
    out
}

/// One axis: its length, the inner chunk, inner chunks in a shard, innermost chunks in an inner
/// chunk, and the start and length of a region.
type Axis = (u64, u64, u64, u64, u64, u64);

fn axes() -> impl Strategy<Value = Vec<Axis>> {
    proptest::collection::vec((1_u64..9, 1_u64..4, 1_u64..3, 1_u64..3, 0_u64..9, 0_u64..9), 0..4)
}

/// The whole shape, outer, inner and innermost chunk shapes, and the region.
fn shapes(axes: &[Axis]) -> (Vec<u64>, Vec<u64>, Vec<u64>, Vec<u64>, Region) {
    let each = |f: &dyn Fn(&Axis) -> u64| axes.iter().map(f).collect::<Vec<_>>();
    let starts = each(&|a| a.4 % a.0);
    let lens = axes.iter().zip(&starts).map(|(a, start)| a.5.min(a.0 - start)).collect::<Vec<_>>();
    (
        each(&|a| a.0),
        each(&|a| a.1 * a.2 * a.3),
        each(&|a| a.1 * a.3),
        each(&|a| a.1),
        Region::new(starts, lens).unwrap(),
    )
}

fn permuted(order: &[usize], dims: &[u64]) -> Vec<u64> {
    order.iter().map(|&axis| dims[axis]).collect()
}

fn v3_document(dtype: Dtype, whole: &[u64], chunk: &[u64], codecs: &Value) -> Vec<u8> {
    let fill = match dtype {
        Dtype::Bool => json!(false),
        Dtype::Complex64 => json!([0.0, 0.0]),
        _ => json!(0),
    };
    json!({
        "zarr_format": 3, "node_type": "array", "shape": whole, "data_type": dtype.name(),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": fill, "codecs": codecs,
    })
    .to_string()
    .into_bytes()
}

const DTYPES: [Dtype; 6] =
    [Dtype::UInt8, Dtype::Int16, Dtype::Complex64, Dtype::Bool, Dtype::Int4, Dtype::Float32];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_region_of_any_v3_chain_comes_back(
        axes in axes(),
        dtype in proptest::sample::select(&DTYPES[..]),
        shuffle in Just((0..3).collect::<Vec<usize>>()).prop_shuffle(),
        (transposed, levels, at_start, index_crc) in (any::<bool>(), 0..3_usize, any::<bool>(), any::<bool>()),
        endian in proptest::sample::select(&["little", "big"][..]),
        compressors in proptest::sample::subsequence(vec!["zstd", "gzip", "crc32c"], 0..3),
    ) {
        let (whole, outer, inner, innermost, region) = shapes(&axes);
        let order: Vec<usize> = shuffle.into_iter().filter(|&axis| axis < whole.len()).collect();
        let turn = |dims: &[u64]| if transposed { permuted(&order, dims) } else { dims.to_vec() };
        let mut codecs = vec![json!({"name": "bytes", "configuration": {"endian": endian}})];
        codecs.extend(compressors.iter().map(|name| json!({"name": name})));
        let mut index_codecs = vec![json!({"name": "bytes", "configuration": {"endian": endian}})];
        if index_crc {
            index_codecs.push(json!({"name": "crc32c"}));
        }
        let location = if at_start { "start" } else { "end" };
        for chunk in [turn(&innermost), turn(&inner)].into_iter().skip(2 - levels) {
            codecs = vec![json!({"name": "sharding_indexed", "configuration": {
                "chunk_shape": chunk, "codecs": codecs, "index_codecs": index_codecs, "index_location": location,
            }})];
        }
        if transposed {
            codecs.insert(0, json!({"name": "transpose", "configuration": {"order": order}}));
        }
        let meta = ArrayMeta::parse_v3(&v3_document(dtype, &whole, &outer, &json!(codecs))).unwrap();
        prop_assert_eq!(&ArrayMeta::parse_v3(&meta.to_json()).unwrap(), &meta);
        let bytes = some_bytes(meta.shape(), dtype);
        let (_, array) = array_of(meta, &bytes);
        prop_assert_eq!(read(&array, &region).unwrap(), expected(&bytes, &shape(&whole), &region, dtype));
        prop_assert_eq!(read(&array, &Region::whole(&shape(&whole))).unwrap(), bytes);
    }

    #[test]
    fn any_region_of_any_v2_array_comes_back(
        axes in axes(),
        (mark, dtype) in proptest::sample::select(vec![
            ("<i2", Dtype::Int16), (">f4", Dtype::Float32), ("|b1", Dtype::Bool), ("int4", Dtype::Int4), (">c8", Dtype::Complex64),
        ]),
        order in proptest::sample::select(&["C", "F"][..]),
        separator in proptest::sample::select(&[".", "/"][..]),
        compressor in proptest::sample::select(vec![Value::Null, json!({"id": "zstd"}), json!({"id": "zlib"}), json!({"id": "gzip"})]),
    ) {
        let (whole, _, _, chunk, region) = shapes(&axes);
        let document = json!({
            "zarr_format": 2, "shape": whole, "chunks": chunk, "dtype": mark, "order": order,
            "dimension_separator": separator, "compressor": compressor, "filters": null, "fill_value": null,
        });
        let meta = ArrayMeta::parse_v2(document.to_string().as_bytes()).unwrap();
        prop_assert_eq!(&ArrayMeta::parse_v2(&meta.to_json()).unwrap(), &meta);
        let bytes = some_bytes(meta.shape(), dtype);
        let (_, array) = array_of(meta, &bytes);
        prop_assert_eq!(read(&array, &region).unwrap(), expected(&bytes, &shape(&whole), &region, dtype));
    }

    #[test]
    fn damaged_chunks_never_panic(
        stored in proptest::collection::vec(any::<u8>(), 0..120),
        codec in proptest::sample::select(vec!["zstd", "gzip", "blosc", "crc32c", "shards"]),
    ) {
        let bytes = json!({"name": "bytes", "configuration": {"endian": "little"}});
        let codecs = match codec {
            "shards" => json!([{"name": "sharding_indexed", "configuration": {
                "chunk_shape": [1, 2], "codecs": [bytes], "index_codecs": [bytes]}}]),
            name => json!([bytes, {"name": name}]),
        };
        let meta = ArrayMeta::parse_v3(&v3_document(Dtype::Int16, &[2, 4], &[2, 4], &codecs)).unwrap();
        let _ = meta.decode_chunk(&stored);
        let store = FileLike::default();
        store.put(b"c/0/0", stored.into()).unwrap();
        let array = ZarrArray::new(Arc::new(store), b"", Arc::new(meta), Missing::Error);
        let _ = read(&array, &Region::new([1, 1], [1, 2]).unwrap());
    }

    #[test]
    fn random_documents_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = ArrayMeta::parse_v2(&bytes);
        let _ = ArrayMeta::parse_v3(&bytes);
    }
}

#[test]
fn only_what_a_region_meets_is_read() {
    let whole = shape(&[1024, 1024]);
    let bytes = some_bytes(&whole, Dtype::Float32);
    let row = Region::new([100, 512], [1, 8]).unwrap();
    let chunk = shape(&[1024, 1024]);
    let raw = ArrayMeta::v3_raw(whole.clone(), Dtype::Float32).unwrap();
    let one =
        ArrayMeta::v3_sharded(whole.clone(), Dtype::Float32, chunk.clone(), chunk.clone(), Compression::None)
            .unwrap();
    let many =
        ArrayMeta::v3_sharded(whole.clone(), Dtype::Float32, chunk, shape(&[64, 64]), Compression::None)
            .unwrap();
    for (meta, at_most) in [(raw, 32), (one, 32 + 20), (many, 64 * 64 * 4 + 256 * 16 + 4)] {
        let (store, array) = array_of(meta, &bytes);
        assert_eq!(read(&array, &row).unwrap(), expected(&bytes, &whole, &row, Dtype::Float32));
        assert_eq!(store.read_bytes.load(Ordering::Relaxed), at_most, "{}", array.meta().coding());
    }
}

#[test]
fn narrow_columns_of_a_raw_chunk_do_not_cost_all_of_it() {
    let whole = shape(&[64, 1 << 16]);
    let bytes = some_bytes(&whole, Dtype::Float32);
    let (store, array) = array_of(ArrayMeta::v3_raw(whole.clone(), Dtype::Float32).unwrap(), &bytes);
    let column = Region::new([3, 1000], [50, 10]).unwrap();
    assert_eq!(read(&array, &column).unwrap(), expected(&bytes, &whole, &column, Dtype::Float32));
    assert_eq!(store.read_bytes.load(Ordering::Relaxed), 50 * 10 * 4);
}

#[test]
fn missing_chunks_are_damage_or_the_fill_value() {
    let document = br#"{"chunks":[2],"compressor":null,"dtype":"<i2","fill_value":7,"filters":null,"order":"C","shape":[5],"zarr_format":2}"#;
    let meta = Arc::new(ArrayMeta::parse_v2(document).unwrap());
    let store = FileLike::default();
    store.put(b"x/1", Bytes::from_static(&[1, 0, 2, 0])).unwrap();
    let array = |missing| ZarrArray::new(Arc::new(store.clone()), b"x", meta.clone(), missing);
    let whole = Region::whole(meta.shape());
    assert_eq!(read(&array(Missing::Fill), &whole).unwrap(), [7, 0, 7, 0, 1, 0, 2, 0, 7, 0]);
    let error = read(&array(Missing::Error), &whole).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(error.what(), "chunk x/0 is missing");
}

#[test]
fn errors_name_the_chunk_the_file_and_the_byte() {
    let meta =
        ArrayMeta::v3_sharded(shape(&[4]), Dtype::Int16, shape(&[4]), shape(&[2]), Compression::Zstd(3))
            .unwrap();
    let (store, array) = array_of(meta, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let good = store.values.get(b"a.b/c/0", ByteRange::Full).unwrap().unwrap();
    let damage = |at: usize| {
        let mut bytes = good.to_vec();
        bytes[at] ^= 1;
        store.put(b"a.b/c/0", bytes.into()).unwrap();
        read(&array, &Region::new([2], [2]).unwrap()).unwrap_err()
    };
    // Two frames of 13 bytes, two index entries of 16, a checksum of 4.
    assert_eq!(good.len(), 2 * 13 + 2 * 16 + 4);
    let magic = damage(13);
    assert_eq!((magic.place().offset_bytes, magic.kind()), (Some(13), ErrorKind::Corrupt));
    assert!(magic.what().starts_with("chunk a.b/c/0 cannot be decoded"), "{magic}");
    assert_eq!(magic.place().file.as_deref(), Some("a.b/c/0".as_ref()));
    let index = damage(30);
    assert_eq!(index.place().offset_bytes, Some(58), "where the checksum is");
    assert!(index.what().contains("crc32c"), "{index}");
    store.put(b"a.b/c/0", good.slice(..19)).unwrap();
    assert!(
        read(&array, &Region::whole(&shape(&[4]))).unwrap_err().what().contains("shorter than its index")
    );
}

#[test]
fn sizes_of_raw_chunks_are_exact() {
    let meta = Arc::new(ArrayMeta::v3_raw(shape(&[4]), Dtype::Int16).unwrap());
    for len in [0, 7, 9] {
        let store = FileLike::default();
        store.put(b"c/0", vec![0; len].into()).unwrap();
        let array = ZarrArray::new(Arc::new(store), b"", meta.clone(), Missing::Error);
        let part = Region::new([0], [1]).unwrap();
        assert_eq!(read(&array, &part).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(array.locate_raw_whole().unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn a_whole_raw_array_is_located_and_nothing_else_is() {
    let whole = shape(&[4]);
    let bytes = some_bytes(&whole, Dtype::Int16);
    let none = Compression::None;
    let raw = ArrayMeta::v3_raw(whole.clone(), Dtype::Int16).unwrap();
    let shard =
        ArrayMeta::v3_sharded(whole.clone(), Dtype::Int16, whole.clone(), whole.clone(), none).unwrap();
    for meta in [raw, shard] {
        let (_, array) = array_of(meta, &bytes);
        let Some(Located::At(span)) = array.locate_raw_whole().unwrap() else { panic!("not located") };
        assert_eq!(span.read().unwrap(), bytes);
    }
    let halves = ArrayMeta::v3(whole.clone(), Dtype::Int16, shape(&[2]), none).unwrap();
    let larger = ArrayMeta::v3(whole.clone(), Dtype::Int16, shape(&[8]), none).unwrap();
    let packed = ArrayMeta::v3(whole.clone(), Dtype::Int16, whole.clone(), Compression::Zstd(1)).unwrap();
    for meta in [halves, larger, packed] {
        let (_, array) = array_of(meta, &bytes);
        assert!(array.locate_raw_whole().unwrap().is_none());
    }
    let flags = ArrayMeta::v3_raw(whole, Dtype::Bool).unwrap();
    assert!(array_of(flags, &[0, 1, 1, 0]).1.locate_raw_whole().unwrap().is_none());
}

#[test]
fn a_small_file_cannot_ask_for_a_large_buffer() {
    // A chunk has 2^45 bytes, and the stored value is far too short for such a chunk.
    for codecs in [json!([{"name": "bytes"}, {"name": "zstd"}]), json!([{"name": "bytes"}, {"name": "gzip"}])]
    {
        let meta = ArrayMeta::parse_v3(&v3_document(Dtype::UInt8, &[2], &[1 << 45], &codecs)).unwrap();
        assert_eq!(meta.decode_chunk(&[0; 100]).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    let nested = json!([{"name": "transpose", "configuration": {"order": [1, 0]}}, {"name": "sharding_indexed",
        "configuration": {"chunk_shape": [1 << 20, 1 << 20], "codecs": [{"name": "bytes"}],
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}}]);
    let error =
        ArrayMeta::parse_v3(&v3_document(Dtype::UInt8, &[2, 2], &[1 << 20, 1 << 20], &nested)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
}

#[test]
fn zero_size_arrays_and_bad_arguments() {
    let (_, array) = array_of(ArrayMeta::v3_raw(shape(&[0, 3]), Dtype::Int16).unwrap(), &[]);
    assert!(read(&array, &Region::whole(&shape(&[0, 3]))).unwrap().is_empty());
    let (_, array) = array_of(ArrayMeta::v3_raw(shape(&[3]), Dtype::Int16).unwrap(), &[0; 6]);
    for (region, len) in [
        (Region::new([2], [2]).unwrap(), 4),
        (Region::new([0], [2]).unwrap(), 5),
        (Region::new([0, 0], [1, 1]).unwrap(), 2),
    ] {
        assert_eq!(
            array.read_region(&region, &mut vec![0; len]).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
    }
}

#[test]
fn long_chunks_are_decoded_as_they_come_in_and_damage_is_an_error_with_a_place() {
    // Two chunks of 600 kB each, which hardly compress: one read does not get a whole chunk.
    let (whole, chunk, dtype) = (shape(&[2, 300_000]), [1, 300_000], Dtype::Int16);
    let bytes = some_bytes(&whole, dtype);
    let zstd = json!({"name": "zstd", "configuration": {"level": 1}});
    let little = json!({"name": "bytes", "configuration": {"endian": "little"}});
    let big = json!({"name": "bytes", "configuration": {"endian": "big"}});
    let shards = json!([{"name": "sharding_indexed", "configuration": {
        "chunk_shape": chunk, "codecs": [little, zstd], "index_codecs": [little, {"name": "crc32c"}],
    }}]);
    for codecs in [json!([little, zstd]), json!([big, zstd]), shards] {
        let meta = ArrayMeta::parse_v3(&v3_document(dtype, &[2, 300_000], &chunk, &codecs)).unwrap();
        let (store, array) = array_of(meta.clone(), &bytes);
        for (starts, lens) in
            [([0, 0], [2, 300_000]), ([1, 0], [1, 300_000]), ([0, 5], [2, 299_990]), ([1, 7], [1, 1])]
        {
            let region = Region::new(starts, lens).unwrap();
            assert!(
                read(&array, &region).unwrap() == expected(&bytes, &whole, &region, dtype),
                "{region} {codecs}"
            );
        }
        let key = b"a.b/c/1/0";
        let stored = store.values.get(key, ByteRange::Full).unwrap().unwrap();
        let all = Region::whole(&whole);
        for cut in [0, 1, stored.len() / 2, stored.len() - 1] {
            store.put(key, stored.slice(..cut)).unwrap();
            let error = read(&array, &all).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{cut} {codecs}");
            assert!(error.what().contains("c/1/0") && error.place().file.is_some(), "{error}");
        }
        store.put(key, [&stored[..], &[0]].concat().into()).unwrap();
        assert!(read(&array, &all).is_err(), "{codecs}");
        // No checksum covers these bytes, so a read may succeed. It must not panic.
        for at in [0, 1, 2, 3, 12, 13] {
            let mut damaged = stored.to_vec();
            damaged[at] ^= 0x81;
            store.put(key, damaged.into()).unwrap();
            let _ = read(&array, &all);
        }
    }
    // The last chunk reaches beyond the array, so it is decoded into a buffer.
    let uneven = v3_document(dtype, &[3, 300_000], &[2, 300_000], &json!([little, zstd]));
    let uneven = ArrayMeta::parse_v3(&uneven).unwrap();
    let bytes = some_bytes(uneven.shape(), dtype);
    let (_, array) = array_of(uneven, &bytes);
    let all = Region::whole(array.meta().shape());
    assert!(read(&array, &all).unwrap() == bytes);
}

#[test]
fn long_chunks_take_memory_only_if_they_are_decoded_by_themselves() {
    let (little, zstd, gzip) = (
        json!({"name": "bytes", "configuration": {"endian": "little"}}),
        json!({"name": "zstd"}),
        json!({"name": "gzip"}),
    );
    let working = |whole: [u64; 2], chunk: [u64; 2], codecs: Value| {
        let meta = ArrayMeta::parse_v3(&v3_document(Dtype::Int16, &whole, &chunk, &codecs)).unwrap();
        let store = Arc::new(MemoryStore::default());
        ZarrArray::new(store, b"a", Arc::new(meta), Missing::Error).working_len_bytes()
    };
    let (whole, half) = ([64, 1 << 20], [32, 1 << 20]);
    let chunk_len = 32 * (2 << 20);
    for codecs in [json!([little]), json!([little, zstd])] {
        assert!(working(whole, half, codecs.clone()) < chunk_len / 4, "{codecs}");
    }
    for (chunk, codecs) in [
        (half, json!([little, gzip])),
        (half, json!([little, zstd, {"name": "crc32c"}])),
        ([40, 1 << 20], json!([little, zstd])),
        ([64, 1 << 19], json!([little, zstd])),
    ] {
        let len = chunk.iter().product::<u64>() * 2;
        assert_eq!(working(whole, chunk, codecs.clone()), 2 * len, "{codecs}");
    }
    assert_eq!(working([4, 4], [4, 4], json!([little, zstd])), 2 * 32, "never more than the chunk");
    let inner = |rows: u64| {
        json!([{"name": "sharding_indexed", "configuration": {
            "chunk_shape": [rows, 1 << 20], "codecs": [little, zstd], "index_codecs": [little],
        }}])
    };
    assert!(working(whole, half, inner(32)) < chunk_len / 4, "one inner chunk is the shard");
    let small = working([64, 1 << 20], [4, 1 << 20], inner(1));
    assert_eq!(small, 2 * (2 << 20) + 4 * (2 << 20), "and the shard, read at once");
    assert_eq!(working(whole, half, inner(1)), 2 * (2 << 20) + SHARD_READ_WHOLE_LEN_MAX_BYTES);
}
