//! Arrays that Orbax and TensorStore wrote, read and compared with their expected values.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{ArrayMeta, Missing, ZarrArray};
use crate::array::Region;
use regrow_store::{MemoryStore, StoreExt};

fn hex_of_sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of_hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// All files below a folder, under their relative paths.
fn load_folder(store: &MemoryStore, folder: &Path, prefix: &str) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let key = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            load_folder(store, &entry.path(), &format!("{key}/"));
        } else {
            store.put(key.as_bytes(), std::fs::read(entry.path()).unwrap().into()).unwrap();
        }
    }
}

fn open(store: Arc<MemoryStore>, name: &str, missing: Missing) -> ZarrArray {
    let prefix = if name.is_empty() { String::new() } else { format!("{name}/") };
    let v2 = store.get_text_key(&format!("{prefix}.zarray")).unwrap();
    let v3 = store.get_text_key(&format!("{prefix}zarr.json")).unwrap();
    let (document, meta) = match (v2, v3) {
        (Some(document), _) => (document.clone(), ArrayMeta::parse_v2(&document).unwrap()),
        (None, Some(document)) => (document.clone(), ArrayMeta::parse_v3(&document).unwrap()),
        (None, None) => panic!("no document for {name}"),
    };
    assert_eq!(meta.to_json(), document, "{name}");
    ZarrArray::new(store, name.as_bytes(), Arc::new(meta), missing)
}

/// Compares dtype, shape, the hash of all elements, and one part with the same part of the whole.
fn check(array: &ZarrArray, name: &str, expected: &Value) {
    let meta = array.meta();
    assert_eq!(meta.dtype().name(), expected["dtype"], "{name}");
    assert_eq!(Value::from(meta.shape().dims()), expected["shape"], "{name}");
    let mut whole = vec![0xee; meta.shape().len_bytes(meta.dtype()).unwrap() as usize];
    array
        .read_region(&Region::whole(meta.shape()), &mut whole)
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(hex_of_sha256(&whole), expected["sha256"], "{name}");
    let dims = meta.shape().dims();
    let starts: Vec<u64> = dims.iter().map(|dim| dim / 3).collect();
    let lens: Vec<u64> = dims.iter().zip(&starts).map(|(dim, start)| (dim - start).div_ceil(2)).collect();
    let part = Region::new(starts, lens).unwrap();
    let size = meta.dtype().size_bytes();
    let mut found = vec![0xee; part.len_elements() as usize * size];
    let mut wanted = found.clone();
    array.read_region(&part, &mut found).unwrap();
    let origin = vec![0; part.rank()];
    crate::array::copy_region(size, &whole, meta.shape(), &part, &mut wanted, &part.shape(), &origin)
        .unwrap();
    assert_eq!(found, wanted, "{name} {part}");
}

#[test]
fn orbax_checkpoints_in_plain_folders() {
    let mut count = 0;
    for fixture in [
        "sd_files_zarr2",
        "sd_files_zarr3",
        "md8_files_zarr2",
        "mp2_files_zarr2",
        "weird_keys_files",
        "legacy_zarr2_variants",
    ] {
        let folder = regrow_testkit::fixtures().join("orbax").join(fixture).join("ckpt");
        let store = Arc::new(MemoryStore::new());
        load_folder(&store, &folder, "");
        let expected = regrow_testkit::expected(&format!("orbax/{fixture}"));
        let leaves = expected["items"][""]["leaves"].as_array().unwrap();
        for leaf in leaves.iter().filter(|leaf| leaf.get("sha256").is_some()) {
            let name = leaf["param_name"].as_str().unwrap();
            // One array has a fill value and leaves out a chunk.
            let missing = if name == "fill_one" { Missing::Fill } else { Missing::Error };
            let array = open(store.clone(), name, missing);
            check(&array, &format!("{fixture}/{name}"), leaf);
            if let Some(chunk_shape) = leaf.get("chunk_shape") {
                assert_eq!(
                    &Value::from(array.meta().inner_chunk_shape().dims()),
                    chunk_shape,
                    "{fixture}/{name}"
                );
            }
            count += 1;
        }
    }
    assert!(count > 50, "{count} arrays");
}

#[test]
fn tensorstore_arrays_of_every_dtype_codec_and_fill_value() {
    let arrays = regrow_testkit::expected("zarr");
    let arrays = arrays["arrays"].as_array().unwrap();
    for expected in arrays {
        let store = Arc::new(MemoryStore::new());
        for (key, value) in expected["store"].as_object().unwrap() {
            store.put(key.as_bytes(), bytes_of_hex(value.as_str().unwrap()).into()).unwrap();
        }
        let array = open(store, "", Missing::Fill);
        check(&array, expected["name"].as_str().unwrap(), expected);
    }
    assert!(arrays.len() > 100, "{} arrays", arrays.len());
}

/// A damaged chunk of TensorStore gives a value or an error. A chunk with a checksum gives an
/// error.
#[test]
fn damaged_chunks_of_tensorstore_never_panic() {
    let arrays = regrow_testkit::expected("zarr");
    for expected in arrays["arrays"].as_array().unwrap() {
        let name = expected["name"].as_str().unwrap();
        let values = expected["store"].as_object().unwrap();
        let document = |key: &str| values.get(key).map(|value| bytes_of_hex(value.as_str().unwrap()));
        let meta = match (document(".zarray"), document("zarr.json")) {
            (Some(text), _) => ArrayMeta::parse_v2(&text).unwrap(),
            (_, text) => ArrayMeta::parse_v3(&text.unwrap()).unwrap(),
        };
        let chunk = values.iter().find(|(key, _)| !key.ends_with(".zarray") && !key.ends_with("zarr.json"));
        let Some((_, stored)) = chunk else { continue };
        let stored = bytes_of_hex(stored.as_str().unwrap());
        for step in 0..64 {
            let at = ((step * 2_654_435_761_usize) >> 3) % stored.len();
            assert!(meta.decode_chunk(&stored[..at]).is_err(), "{name} cut at {at}");
            let mut flipped = stored.clone();
            flipped[at] ^= 1 << (step % 8);
            let decoded = meta.decode_chunk(&flipped);
            assert!(decoded.is_err() || !meta.coding().ends_with("crc32c"), "{name} flipped at {at}");
        }
    }
}

/// The bytes that Orbax stores for chunks of a few small arrays.
#[test]
fn chunks_byte_by_byte() {
    use crate::array::{Dtype, Shape};
    use crate::codec::Compression::{None, Zstd};
    let shape = |dims: &[u64]| Shape::new(dims).unwrap();
    let frame = "28b52ffd2008410000d204000000000000";
    let floats: Vec<u8> = [0_f32, 1., 2., 6., 7., 8.].iter().flat_map(|value| value.to_le_bytes()).collect();
    for (meta, chunk, stored) in [
        (
            ArrayMeta::v2(shape(&[]), Dtype::Int64, shape(&[]), Zstd(1)),
            1234_i64.to_le_bytes().to_vec(),
            frame.to_owned(),
        ),
        (
            ArrayMeta::v3_sharded(shape(&[]), Dtype::Int64, shape(&[]), shape(&[]), Zstd(3)),
            1234_i64.to_le_bytes().to_vec(),
            format!("{frame}0000000000000000110000000000000079ee3a8f"),
        ),
        (
            ArrayMeta::v2(shape(&[4]), Dtype::Int4, shape(&[4]), Zstd(1)),
            vec![8, 15, 0, 7],
            "28b52ffd2004210000080f0007".to_owned(),
        ),
        (
            ArrayMeta::v3_sharded(shape(&[4, 6]), Dtype::Float32, shape(&[2, 3]), shape(&[2, 3]), Zstd(3)),
            floats,
            "28b52ffd2018c10000000000000000803f000000400000c0400000e04000000041\
             00000000000000002100000000000000\
             54824c06"
                .replace(' ', ""),
        ),
        (
            ArrayMeta::v2(shape(&[3, 5]), Dtype::UInt8, shape(&[2, 3]), None),
            vec![14, 15, 0, 0, 0, 0],
            "0e0f00000000".to_owned(),
        ),
    ] {
        let meta = meta.unwrap();
        let stored = bytes_of_hex(&stored);
        assert_eq!(meta.decode_chunk(&stored).unwrap(), chunk);
        assert_eq!(meta.encode_chunk(&chunk).unwrap(), stored);
        assert!(meta.decode_chunk(&stored[..stored.len() - 1]).is_err());
        assert!(meta.decode_chunk(&[&stored[..], &[0]].concat()).is_err());
    }
    // Unused bits of sub-byte elements are written as zero and ignored on reading; odd bools are
    // refused.
    let int4 = ArrayMeta::v3_raw(shape(&[4]), Dtype::Int4).unwrap();
    assert_eq!(int4.encode_chunk(&[0xff, 0xf8, 0x17, 0]).unwrap(), [15, 8, 7, 0]);
    assert_eq!(int4.decode_chunk(&[0xff, 0xf8, 0x17, 0]).unwrap(), [15, 8, 7, 0]);
    let flags = ArrayMeta::v3_raw(shape(&[2]), Dtype::Bool).unwrap();
    assert_eq!(flags.decode_chunk(&[1, 2]).unwrap_err().kind(), crate::error::ErrorKind::Corrupt);
    assert_eq!(flags.encode_chunk(&[1, 2]).unwrap_err().kind(), crate::error::ErrorKind::InvalidArgument);
}
