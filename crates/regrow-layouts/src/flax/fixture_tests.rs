//! Tests with files that Flax wrote, and files that it refuses: `fixtures/flax/README.md`.

use regrow_base::error::{Error, Result};
use regrow_layouts::flax::Flax;
use regrow_layouts::flax::decode::decode;
use regrow_layouts::flax::encode::{Encoder, Part};
use regrow_layouts::flax::writer::encode;
use regrow_layouts::options::{Compression, FlaxOptions, Layout, OpenOptions, SaveOptions};
use regrow_layouts::{Fidelity, Format, LossKind, Reader, ReaderExt};
use regrow_storage::location::Location;
use regrow_tree::tree::{Leaf, LeafInfo, Tree};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use regrow_base::error::ErrorKind;
use regrow_tree::array::{Array, ArraySource, Dtype, Region, Shape};
use regrow_tree::tree::{Key, KeyPath, LeafData, LeafKind, NodeKind, Scalar, TreeBuilder};

fn fixture(name: &str) -> PathBuf {
    regrow_testkit::fixtures().join("flax").join(name)
}

fn cases(kind: &str) -> Vec<(String, Value)> {
    let expected = regrow_testkit::expected("flax");
    let of_kind = expected["cases"].as_array().unwrap().iter().filter(|case| case["kind"] == kind);
    of_kind.map(|case| (case["file"].as_str().unwrap().to_owned(), case.clone())).collect()
}

fn open_at(path: &Path, options: &OpenOptions) -> Result<Box<dyn Reader>> {
    assert!(Flax.recognise(&Location::local(path)).unwrap(), "{}", path.display());
    Flax.open(&Location::local(path), options)
}

fn open(path: &Path) -> Result<Box<dyn Reader>> {
    open_at(path, &OpenOptions::default())
}

/// The whole leaf, read both ways.
fn read(reader: &dyn Reader, leaf: usize) -> Vec<u8> {
    let info = &reader.tree().leaves()[leaf];
    let mut out = vec![0xee; info.len_bytes() as usize];
    reader.read_region(leaf, &Region::whole(&info.shape), &mut out).unwrap();
    if let Some(view) = reader.view(leaf).unwrap() {
        assert_eq!(view, out);
    }
    out
}

fn whole(encoder: &Encoder) -> Vec<u8> {
    let mut out = Vec::new();
    for part in encoder.parts() {
        match part {
            Part::Bytes(bytes) => out.extend_from_slice(bytes),
            Part::Bulk(bulk) => {
                let at = out.len();
                out.resize(at + (bulk.range.end - bulk.range.start) as usize, 0);
                bulk.array.copy_c_order(bulk.range.start, &mut out[at..]).unwrap();
            }
        }
    }
    assert_eq!(out.len() as u64, encoder.len_bytes());
    out
}

/// A key path in the form of `expected.json`.
fn plain_path(path: &KeyPath) -> Value {
    let key = |key: &Key| match key {
        Key::Index(index) => json!({"index": index}),
        Key::DictInt(number) => json!(number),
        other => json!(other.text()),
    };
    path.keys().iter().map(key).collect()
}

/// A float as Python's `float.hex` prints it.
fn float_hex(number: f64) -> String {
    let (bits, sign) = (number.to_bits(), if number.is_sign_negative() { "-" } else { "" });
    let (exponent, fraction) = (bits >> 52 & 0x7ff, bits & ((1 << 52) - 1));
    match (exponent, fraction) {
        (0x7ff, 0) => format!("{sign}inf"),
        (0x7ff, _) => "nan".to_owned(),
        (0, 0) => format!("{sign}0x0.0p+0"),
        (0, _) => format!("{sign}0x0.{fraction:013x}p-1022"),
        _ => format!("{sign}0x1.{fraction:013x}p{:+}", exponent as i64 - 1023),
    }
}

fn float_at(bytes: &[u8], at: usize) -> String {
    float_hex(f64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()))
}

/// The leaves of a tree, and its containers without children, in the form of `expected.json`.
fn plain_leaves(reader: &dyn Reader) -> Vec<Value> {
    let mut out = Vec::new();
    let mut leaf = 0;
    for (path, node) in reader.tree().walk() {
        let path = plain_path(&path);
        let plain = match node.kind {
            NodeKind::None => json!({"path": path, "kind": "none"}),
            NodeKind::Dict if node.child_count == 0 => json!({"path": path, "kind": "empty-map"}),
            NodeKind::List if node.child_count == 0 => json!({"path": path, "kind": "empty-list"}),
            NodeKind::Leaf => {
                leaf += 1;
                plain_leaf(reader, leaf - 1, path)
            }
            _ => continue,
        };
        out.push(plain);
    }
    out
}

fn plain_leaf(reader: &dyn Reader, leaf: usize, path: Value) -> Value {
    let info = &reader.tree().leaves()[leaf];
    let array = |kind: &str, dtype: &str, dims: &[u64]| {
        let bytes = read(reader, leaf);
        let sha256: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        json!({"path": path, "kind": kind, "dtype": dtype, "shape": dims, "nbytes": bytes.len(), "sha256": sha256})
    };
    match (&info.kind, info.dtype) {
        (LeafKind::NumpyArray, dtype) => array("array", dtype.name(), info.shape.dims()),
        (LeafKind::NumpyScalar, dtype) => array("npscalar", dtype.name(), info.shape.dims()),
        (LeafKind::NumpyOther(descr) | LeafKind::NumpyOtherScalar(descr), _) => {
            let (name, _) = crate::flax::dtypes::to_name(descr).unwrap();
            let is_array = matches!(info.kind, LeafKind::NumpyOther(_));
            let kind = if is_array { "array" } else { "npscalar" };
            array(kind, &name, info.shape.dims().split_last().unwrap().1)
        }
        (LeafKind::Str, _) => json!({"path": path, "kind": "str", "value": *reader.read_text(leaf).unwrap()}),
        (LeafKind::Bytes, _) => {
            let hex: String = read(reader, leaf).iter().map(|byte| format!("{byte:02x}")).collect();
            json!({"path": path, "kind": "bytes", "hex": hex})
        }
        (LeafKind::Scalar, Dtype::Bool) => {
            json!({"path": path, "kind": "bool", "value": read(reader, leaf) == [1]})
        }
        (LeafKind::Scalar, Dtype::Float64) => {
            json!({"path": path, "kind": "float", "hex": float_at(&read(reader, leaf), 0)})
        }
        (LeafKind::Scalar, Dtype::Complex128) => {
            let bytes = read(reader, leaf);
            json!({"path": path, "kind": "complex", "hex": [float_at(&bytes, 0), float_at(&bytes, 8)]})
        }
        (LeafKind::Scalar, dtype) => {
            let bytes: [u8; 8] = read(reader, leaf).try_into().unwrap();
            let value = match dtype {
                Dtype::UInt64 => u64::from_le_bytes(bytes).to_string(),
                _ => i64::from_le_bytes(bytes).to_string(),
            };
            json!({"path": path, "kind": "int", "value": value})
        }
        (LeafKind::Unknown(name), _) => {
            json!({"path": path, "kind": "ext", "code": name.strip_prefix("msgpack ext ")})
        }
        (kind, _) => panic!("{kind:?} in a file of Flax'"),
    }
}

#[test]
fn every_sound_file_holds_what_flax_wrote() {
    let mut seen = 0;
    for (name, case) in cases("valid") {
        let reader = open(&fixture(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(reader.description().layout, "flax", "{name}");
        let Some(leaves) = case["leaves"].as_array() else {
            assert!(name.starts_with("unreadable_"), "{name}");
            continue;
        };
        let found = plain_leaves(&*reader);
        let expected: Vec<Value> = leaves
            .iter()
            .map(|leaf| {
                let mut leaf = leaf.clone();
                leaf.as_object_mut().unwrap().remove("descr");
                match leaf["kind"].as_str().unwrap() {
                    // The engine has no leaf of unknown bytes, so the value is not compared.
                    "ext" => json!({"path": leaf["path"], "kind": "ext", "code": leaf["code"].to_string()}),
                    // The array would be in another folder, which the fixture lacks.
                    "str" if leaf["value"].as_str().unwrap().starts_with("//GDA") => {
                        json!({"path": leaf["path"], "kind": "ext", "code": null})
                    }
                    _ => leaf,
                }
            })
            .collect();
        assert_eq!(found, expected, "{name}");
        seen += found.len();
    }
    assert!(seen > 600, "{seen} leaves");
}

#[test]
fn what_flax_writes_and_cannot_read_is_read_and_never_written() {
    for (name, descr, size, first) in [
        ("unreadable_str_array", "<U3", 12, &b"a\0\0\0b\0\0\0"[..]),
        ("unreadable_bytes_array", "|S3", 3, b"ab\0"),
        ("unreadable_void_array", "|V3", 3, b"\0\0\0"),
        ("unreadable_struct_array", "|V6", 6, b"\0\0\0\0\0\0"),
    ] {
        let path = fixture(&format!("{name}.msgpack"));
        let reader = open(&path).unwrap();
        let info = &reader.tree().leaves()[0];
        assert_eq!(info.kind, LeafKind::NumpyOther(descr.into()), "{name}");
        assert_eq!(info.shape.dims(), [2, size], "{name}");
        assert!(read(&*reader, 0).starts_with(first), "{name}");
        assert_eq!(read(&*reader, 1), 1_i64.to_le_bytes(), "{name}: the leaf after it");
        let error = encode(&regrow::load(&path).unwrap(), &FlaxOptions::default());
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(descr), "{error}");
    }
}

#[test]
fn files_are_rewritten_byte_for_byte_in_both_orders() {
    let mut rewritten = 0;
    for (name, case) in cases("valid") {
        let bytes = std::fs::read(fixture(&name)).unwrap();
        let options = FlaxOptions {
            sort_keys: case["api"] == "msgpack_serialize",
            integer_keys: name == "nnx_int_keys.msgpack",
            max_chunk_bytes: if name.starts_with("chunked") { 728 } else { 1 << 30 },
        };
        let has_lists = name == "lowlevel_lists.msgpack" || name == "chunked_list_not.msgpack";
        let is_refused =
            ["foreign_ext", "mp_placeholder", "unreadable_"].iter().any(|start| name.starts_with(start));
        let tree = regrow::load(fixture(&name)).unwrap();
        let found = encode(&tree, &options);
        if is_refused {
            assert!(found.is_err(), "{name}");
            continue;
        }
        let found = whole(&found.unwrap());
        if has_lists || name == "npscalars.msgpack" {
            // Lists become dicts with numbers as keys, and some scalars become arrays without axes.
            assert_eq!(decode(&found.into()).unwrap().len(), tree.len(), "{name}");
            continue;
        }
        assert!(found == bytes, "{name} changes");
        rewritten += 1;
    }
    assert!(rewritten > 30, "{rewritten} files");
    let tree = regrow::load(fixture("params_insertion.msgpack")).unwrap();
    let sorted = FlaxOptions { sort_keys: true, ..FlaxOptions::default() };
    let found = whole(&encode(&tree, &sorted).unwrap());
    assert_eq!(found, std::fs::read(fixture("params_sorted.msgpack")).unwrap());
}

#[test]
fn every_damaged_file_is_an_error_with_its_place() {
    for (name, _) in cases("corrupt") {
        // msgpack has no checksums, so no reader can find a flipped bit in array data.
        let is_seen = name != "bitflip_data.msgpack";
        match open(&fixture(&name)) {
            Ok(_) => assert!(!is_seen, "{name}"),
            Err(error) => {
                assert!(is_seen, "{name}: {error}");
                assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Limit), "{name}: {error:?}");
                assert!(
                    error.place().file.is_some() && error.place().offset_bytes.is_some(),
                    "{name}: {error}"
                );
            }
        }
    }
    let leaf = |name: &str| open(&fixture(name)).unwrap_err().place().leaf.as_ref().map(ToString::to_string);
    assert_eq!(leaf("dup_keys.msgpack").as_deref(), Some("a"));
    assert_eq!(leaf("chunk_gap.msgpack").as_deref(), Some("x"));
    assert_eq!(leaf("ext3_multi.msgpack").as_deref(), Some("a"));
}

/// Most memory that this process ever had, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn no_damage_panics_or_takes_memory() {
    let before = peak_kib();
    let mut tried = 0;
    for (name, _) in cases("valid") {
        let sound = std::fs::read(fixture(&name)).unwrap();
        if sound.len() > 1100 {
            continue;
        }
        let sound = Bytes::from(sound);
        for len in 0..sound.len() {
            assert!(decode(&sound.slice(..len)).is_err(), "{name}, cut at {len}");
            tried += 1;
        }
        for at in 0..sound.len() {
            for flip in [0x01, 0xff] {
                let mut damaged = sound.to_vec();
                damaged[at] ^= flip;
                if let Ok(tree) = decode(&damaged.into()) {
                    let bytes: u64 = tree.leaves().iter().map(|leaf| leaf.info.len_bytes()).sum();
                    assert!(bytes <= 8 * sound.len() as u64, "{name}: {bytes} bytes of data from nowhere");
                }
                tried += 1;
            }
        }
    }
    assert!(tried > 15_000, "{tried}");
    assert!(peak_kib() < before + (64 << 10), "{before} KiB before, {} KiB after", peak_kib());
}

#[test]
fn folders_are_steps() {
    let expected = regrow_testkit::expected("flax");
    for folder in expected["checkpoint_dirs"].as_array().unwrap() {
        let name = folder["dir"].as_str().unwrap();
        let checkpoint = regrow::open(fixture(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let about = checkpoint.description();
        assert_eq!(about.layout, "flax", "{name}");
        let (step, steps): (u64, &[u64]) = match name {
            "ckpt_keep2" => (10, &[3, 10]),
            "ckpt_every3" => (8, &[1, 4, 7, 8]),
            "ckpt_float" => (2, &[2]),
            "ckpt_overwrite" => (5, &[1, 5]),
            "ckpt_outdated" => (5, &[5]),
            // Flax would open `checkpoint_99.bak` as the latest step.
            "ckpt_leftovers" | "ckpt_stray" => (2, &[2]),
            other => panic!("{other} is new"),
        };
        assert_eq!((about.step, &about.steps[..]), (Some(step), steps), "{name}");
        let notes = about.notes.join("\n");
        match name {
            "ckpt_stray" => assert!(notes.contains("checkpoint_99.bak is not a step"), "{notes}"),
            "ckpt_leftovers" => {
                assert!(notes.contains("checkpoint_tmp belongs to an unfinished save"), "{notes}")
            }
            "ckpt_float" => assert!(notes.contains("0.25, 0.5, 2.0"), "{notes}"),
            _ => assert_eq!(about.notes.len(), 1, "{notes}"),
        }
    }
    let step = |step| OpenOptions { step: Some(step), ..OpenOptions::default() };
    let third = regrow::open_with(fixture("ckpt_keep2"), &step(3)).unwrap();
    assert_eq!(third.description().step, Some(3));
    let error = regrow::open_with(fixture("ckpt_keep2"), &step(4)).unwrap_err();
    assert_eq!((error.kind(), error.help_text()), (ErrorKind::NotFound, Some("the steps are 3, 10")));
    assert!(regrow::open(fixture("ckpt_keep2/checkpoint_3")).is_ok());
}

#[test]
fn arrays_of_several_processes_lie_beside_the_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("mp_placeholder.msgpack"), folder.path().join("checkpoint_7")).unwrap();
    let checkpoint = regrow::open(folder.path()).unwrap();
    assert!(checkpoint.description().notes.iter().any(|note| note.ends_with("checkpoint_7_gda/params/w")));
    let array = folder.path().join("checkpoint_7_gda/params/w");
    std::fs::create_dir_all(&array).unwrap();
    let document = json!({
        "zarr_format": 2, "shape": [3], "chunks": [2], "dtype": "<f4", "compressor": null,
        "fill_value": null, "filters": null, "order": "C",
    });
    std::fs::write(array.join(".zarray"), document.to_string()).unwrap();
    let bytes = |numbers: [f32; 2]| numbers.map(f32::to_le_bytes).concat();
    std::fs::write(array.join("0"), bytes([1.0, 2.0])).unwrap();
    std::fs::write(array.join("1"), bytes([3.0, 0.0])).unwrap();
    let checkpoint = regrow::open(folder.path()).unwrap();
    let leaf = checkpoint.read(checkpoint.find("w").unwrap()).unwrap();
    let found = leaf.as_array().unwrap().to_c_order().unwrap();
    assert_eq!(&found[..], [1.0_f32, 2.0, 3.0].map(f32::to_le_bytes).concat());
}

fn array(dtype: Dtype, dims: &[u64], data: Vec<u8>) -> Leaf {
    Leaf::array(Array::new(dtype, Shape::new(dims).unwrap(), data.into()).unwrap())
}

/// A tree `{"key": leaf, …}`.
fn dict(leaves: Vec<(Key, Leaf)>) -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for (key, leaf) in leaves {
        build.leaf(key, leaf).unwrap();
    }
    build.close().unwrap();
    build.finish().unwrap()
}

fn infos(tree: &Tree<Leaf>) -> Tree<LeafInfo> {
    tree.clone().map(|leaf| LeafInfo {
        kind: leaf.kind.clone(),
        dtype: leaf.as_array().map_or(Dtype::UInt8, Array::dtype),
        shape: leaf.as_array().map_or(Shape::scalar(), |array| array.shape().clone()),
        name: "".into(),
        chunk_shape: None,
        write_shape: None,
        sharding: leaf.sharding,
        coding: "".into(),
    })
}

fn flax_options(flax: FlaxOptions) -> SaveOptions {
    SaveOptions { layout: Layout::Flax(flax), ..SaveOptions::default() }
}

#[test]
fn containers_become_state_dicts() {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::NamedTuple("State".into())).unwrap();
    build.open(Key::attr("opt"), NodeKind::Tuple).unwrap();
    for i in 0..11 {
        build.leaf(Key::Index(i), Leaf::scalar(Scalar::Int(i as i64))).unwrap();
    }
    build.close().unwrap();
    build.open(Key::attr("empty"), NodeKind::List).unwrap();
    build.close().unwrap();
    build.open(Key::attr("none"), NodeKind::None).unwrap();
    build.close().unwrap();
    build.open(Key::attr("by_number"), NodeKind::OrderedDict).unwrap();
    build.leaf(Key::DictInt(10), Leaf::text("ten")).unwrap();
    build.leaf(Key::DictInt(9), array(Dtype::Int8, &[2], vec![1, 2])).unwrap();
    build.close().unwrap();
    build.close().unwrap();
    let tree = build.finish().unwrap();
    let paths = |flax: &FlaxOptions| -> Vec<String> {
        let bytes = whole(&encode(&tree, flax).unwrap());
        let decoded = decode(&bytes.into()).unwrap();
        decoded.walk().map(|(path, node)| format!("{}:{}", path, node.kind.name())).collect()
    };
    let plain = paths(&FlaxOptions::default());
    assert_eq!(plain[..3], [".:dict", "opt:dict", "opt/0:leaf"]);
    assert_eq!(
        plain[12..],
        ["opt/10:leaf", "empty:dict", "none:none", "by_number:dict", "by_number/10:leaf", "by_number/9:leaf"]
    );
    let sorted = paths(&FlaxOptions { sort_keys: true, ..FlaxOptions::default() });
    assert_eq!(sorted[1..4], ["by_number:dict", "by_number/10:leaf", "by_number/9:leaf"]);
    assert_eq!(sorted[7..10], ["opt/0:leaf", "opt/1:leaf", "opt/10:leaf"]);
    let numbers = paths(&FlaxOptions { sort_keys: true, integer_keys: true, ..FlaxOptions::default() });
    assert_eq!(numbers[1..4], ["by_number:dict", "by_number/9:leaf", "by_number/10:leaf"]);
    let losses = Flax.losses(&infos(&tree), &[], &SaveOptions::default());
    let lost: Vec<String> = losses.iter().map(|loss| format!("{loss}")).collect();
    assert_eq!(lost.len(), 6, "{lost:?}");
    assert!(losses.iter().all(|loss| loss.kind == LossKind::Structure));
    let kept = FlaxOptions { integer_keys: true, ..FlaxOptions::default() };
    assert_eq!(Flax.losses(&infos(&tree), &[], &flax_options(kept)).len(), 4);
}

#[test]
fn everything_that_cannot_be_written_is_named_at_once() {
    let key_data = || Array::new(Dtype::UInt32, Shape::new(vec![2]).unwrap(), vec![0; 8].into()).unwrap();
    let leaf = |kind: LeafKind, data: LeafData| Leaf { kind, data, sharding: None };
    let tree = dict(vec![
        (Key::dict("key"), leaf(LeafKind::PrngKey(None), LeafData::Array(key_data()))),
        (Key::dict("gone"), leaf(LeafKind::Placeholder, LeafData::Absent)),
        (Key::dict("fine"), Leaf::scalar(Scalar::Float(1.5))),
        (Key::dict("names"), leaf(LeafKind::NumpyOther("<U2".into()), LeafData::Array(key_data()))),
        (Key::dict("__msgpack_chunked_array__"), Leaf::text("x")),
        (Key::DictInt(7), Leaf::text("x")),
        (Key::dict("7"), Leaf::text("x")),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.msgpack");
    let error = regrow::save_with(&path, &tree, &flax_options(FlaxOptions::default())).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("5 leaves"), "{text}");
    for name in ["key:", "gone:", "names:", "__msgpack_chunked_array__:", "7:"] {
        assert!(text.contains(name), "{text}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let mixed = FlaxOptions { sort_keys: true, integer_keys: true, ..FlaxOptions::default() };
    assert!(encode(&tree, &mixed).unwrap_err().to_string().contains("no order"));
    let compressed = SaveOptions { custom_metadata: Some(json!(1)), ..flax_options(FlaxOptions::default()) };
    let error = regrow::save_with(&path, &dict(Vec::new()), &compressed).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_text_that_stands_for_an_array_is_a_loss() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("regrow"), folder.path().join("flax"));
    let tree = dict(vec![
        (Key::dict("kept"), Leaf::text("see //GDAPlaceholder:w")),
        (Key::dict("lost"), Leaf::text("//GDAPlaceholder:w")),
    ]);
    regrow::save(&source, &tree).unwrap();
    let options = regrow::ConvertOptions {
        save: SaveOptions { compression: Some(Compression::None), ..flax_options(FlaxOptions::default()) },
        ..Default::default()
    };
    let plan = regrow::open(&source).unwrap().plan_convert(&options).unwrap();
    let losses: Vec<_> = plan.losses.iter().map(|loss| (loss.kind, loss.path.to_string())).collect();
    assert_eq!(losses, [(LossKind::Value, "lost".to_owned())]);
    let error = plan.run(&target, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn no_compression_may_be_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.msgpack");
    let options =
        |compression| SaveOptions { compression: Some(compression), ..flax_options(FlaxOptions::default()) };
    regrow::save_with(&path, &dict(Vec::new()), &options(Compression::None)).unwrap();
    let error = regrow::save_with(&path, &dict(Vec::new()), &options(Compression::Zstd(3))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[derive(Debug)]
struct Counting;

impl ArraySource for Counting {
    fn read_c_order(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        assert!(out.len() <= 256 << 10, "read piece by piece");
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = (offset_bytes as usize + i) as u8;
        }
        Ok(())
    }

    fn read_region(&self, _region: &Region, _out: &mut [u8]) -> Result<()> {
        Err(Error::invalid("not asked for"))
    }
}

#[test]
fn strided_and_deferred_arrays_are_streamed() {
    const LEN: usize = 1 << 20;
    let shape = Shape::new(vec![LEN as u64]).unwrap();
    let deferred = Array::deferred(Dtype::UInt8, shape.clone(), std::sync::Arc::new(Counting)).unwrap();
    let data: Bytes = (0..LEN).map(|i| (i / 2) as u8).collect::<Vec<u8>>().into();
    let half = Shape::new(vec![LEN as u64 / 2]).unwrap();
    let strided = Array::with_strides(Dtype::UInt8, half, vec![2], 0, data).unwrap();
    let numbers: Vec<u8> = (0..1000_i32).flat_map(i32::to_le_bytes).collect();
    let tree = dict(vec![
        (Key::dict("deferred"), Leaf::array(deferred)),
        (Key::dict("strided"), Leaf::array(strided)),
        (Key::dict("cast"), array(Dtype::Int32, &[1000], numbers)),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.msgpack");
    let mut options = flax_options(FlaxOptions { max_chunk_bytes: 400_000, ..FlaxOptions::default() });
    options.cast = vec![(regrow_tree::tree::PathPattern::new("cast").unwrap(), Dtype::Float64)];
    let report = regrow::save_with(&path, &tree, &options).unwrap();
    assert_eq!(report.stored_bytes, std::fs::metadata(&path).unwrap().len());
    let checkpoint = regrow::open(&path).unwrap();
    assert_eq!(checkpoint.description().layout, "flax");
    let bytes = |name: &str| {
        let leaf = checkpoint.read(checkpoint.find(name).unwrap()).unwrap();
        leaf.as_array().unwrap().to_c_order().unwrap()
    };
    assert_eq!(bytes("deferred").len(), LEN);
    assert!(bytes("deferred").iter().enumerate().all(|(i, &byte)| byte == i as u8));
    assert!(bytes("strided").iter().enumerate().all(|(i, &byte)| byte == i as u8));
    assert_eq!(bytes("cast"), (0..1000_u32).flat_map(|i| f64::from(i).to_le_bytes()).collect::<Vec<u8>>());
    let deferred = checkpoint.find("deferred").unwrap();
    assert!(checkpoint.reader().view(deferred).unwrap().is_none(), "it lies in three chunks");
    let region = Region::new(vec![399_990], vec![20]).unwrap();
    let part = checkpoint.region(deferred, &region).unwrap().to_c_order().unwrap();
    assert_eq!(part, (399_990..400_010).map(|i| i as u8).collect::<Vec<u8>>());
}
