//! Checkpoints of this writer, read by regrow's reader, and compared with checkpoints of Orbax.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::WriteAs;
use crate::options::{Compression, Layout, LeafChunking, OpenOptions, OrbaxOptions, SaveOptions};
use crate::orbax::Orbax;
use crate::{Format, Reader, ReaderExt};
use regrow_base::error::{ErrorKind, Result};
use regrow_ocdbt::OcdbtStore;
use regrow_storage::local::Staged;
use regrow_storage::location::Location;
use regrow_store::{ByteRange, LocalStore, Located, Store};
use regrow_tree::array::{Array, Dtype, Region, Shape, cast_bytes};
use regrow_tree::tree::{Key, Leaf, LeafData, LeafKind, NodeKind, PathPattern, Scalar, Tree, TreeBuilder};

fn shape(dims: &[u64]) -> Shape {
    Shape::new(dims).unwrap()
}

fn array(dtype: Dtype, dims: &[u64]) -> Array {
    let shape = shape(dims);
    let mask = match dtype {
        Dtype::Bool => 1,
        Dtype::Int2 => 3,
        Dtype::Int4 | Dtype::Float4E2m1fn => 15,
        _ => 255,
    };
    let len = shape.len_bytes(dtype).unwrap();
    let bytes: Vec<u8> = (0..len).map(|i| (i * 31 + i / 250) as u8 & mask).collect();
    Array::new(dtype, shape, bytes.into()).unwrap()
}

fn leaf(kind: LeafKind, array: Array) -> Leaf {
    Leaf { kind, ..Leaf::array(array) }
}

fn dict(children: Vec<(Key, Leaf)>) -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for (key, child) in children {
        build.leaf(key, child).unwrap();
    }
    build.close().unwrap();
    build.finish().unwrap()
}

/// Every dtype and kind that Orbax knows, a strided array, and an array that is streamed.
fn sample() -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for dtype in Dtype::all().filter(|&dtype| super::plan::check_dtype(dtype).is_ok()) {
        build.leaf(Key::dict(dtype.name()), Leaf::array(array(dtype, &[4, 6]))).unwrap();
    }
    let bytes = array(Dtype::Float32, &[6, 8]).to_c_order().unwrap();
    let fortran = Array::with_strides(Dtype::Float32, shape(&[8, 6]), vec![4, 32], 0, bytes).unwrap();
    build.leaf(Key::dict("fortran"), leaf(LeafKind::JaxArray, fortran)).unwrap();
    build.leaf(Key::dict("large"), Leaf::array(array(Dtype::Int32, &[640, 480]))).unwrap();
    build.open(Key::dict("list"), NodeKind::List).unwrap();
    build.leaf(Key::Index(0), Leaf::scalar(Scalar::Int(-3))).unwrap();
    build.leaf(Key::Index(1), Leaf::text("a/b \"中\"")).unwrap();
    build.open(Key::Index(2), NodeKind::None).unwrap();
    build.close().unwrap();
    build.open(Key::Index(3), NodeKind::Dict).unwrap();
    build.close().unwrap();
    build.leaf(Key::Index(4), leaf(LeafKind::Placeholder, array(Dtype::Bool, &[]))).unwrap();
    build.close().unwrap();
    build
        .leaf(Key::dict("prng"), leaf(LeafKind::PrngKey(Some("rbg".into())), array(Dtype::UInt32, &[4])))
        .unwrap();
    build.close().unwrap();
    let mut tree = build.finish().unwrap();
    for leaf in tree.leaves_mut().iter_mut().filter(|leaf| leaf.kind == LeafKind::Placeholder) {
        leaf.data = LeafData::Absent;
    }
    tree
}

fn write_with(tree: &Tree<Leaf>, staged: &Staged, options: &SaveOptions) -> Result<()> {
    let WriteAs::Folder(write) = Orbax.write_as(&Location::local(staged.folder()), options) else {
        panic!("a folder")
    };
    write(tree, staged, options)
}

/// Writes and commits a checkpoint. Dropping the first value removes the folder.
fn write(tree: &Tree<Leaf>, options: &SaveOptions) -> Result<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ckpt");
    let staged = Staged::of_folder(&path, false).unwrap().durable(false);
    write_with(tree, &staged, options)?;
    staged.commit()?;
    Ok((folder, path))
}

fn open(path: &Path) -> Box<dyn Reader> {
    Orbax.open(&Location::local(path), &OpenOptions::default()).unwrap()
}

fn read(reader: &dyn Reader, i: usize) -> Vec<u8> {
    let info = &reader.tree().leaves()[i];
    let mut out = vec![0xee; info.len_bytes() as usize];
    reader.read_region(i, &Region::whole(&info.shape), &mut out).unwrap();
    out
}

fn assert_reads_back(tree: &Tree<Leaf>, path: &Path, what: &str) {
    let reader = open(path);
    let texts =
        |paths: Vec<regrow_tree::tree::KeyPath>| paths.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(texts(reader.tree().paths()), texts(tree.paths()), "{what}");
    for (i, ((leaf_path, leaf), info)) in tree.iter().zip(reader.tree().leaves()).enumerate() {
        assert_eq!(info.kind, leaf.kind, "{what} {leaf_path}");
        match &leaf.data {
            LeafData::Array(array) => {
                assert_eq!((info.dtype, &info.shape), (array.dtype(), array.shape()), "{what} {leaf_path}");
                assert!(read(&*reader, i) == array.to_c_order().unwrap(), "{what} {leaf_path}");
            }
            LeafData::Text(text) => assert_eq!(reader.read_text(i).unwrap(), *text),
            LeafData::Absent => {}
        }
    }
}

fn with(orbax: OrbaxOptions) -> SaveOptions {
    SaveOptions { layout: Layout::Orbax(orbax), ..SaveOptions::default() }
}

#[test]
fn types_of_the_users_own_have_their_names_and_arrays_stay_arrays() {
    let tree = dict(vec![
        (Key::dict("files"), Leaf { kind: LeafKind::Placeholder, ..Leaf::text("") }),
        (Key::dict("halved"), Leaf::array(array(Dtype::Float16, &[3]))),
        (Key::dict("plain"), Leaf::array(array(Dtype::Int8, &[2]))),
    ]);
    let mut tree = tree;
    tree.leaves_mut()[0].data = LeafData::Absent;
    for (ocdbt, rich_types) in [(true, true), (false, false)] {
        let own = |names: &[(&str, &str)]| {
            let value_types = names.iter().map(|(leaf, own)| ((*leaf).to_owned(), (*own).to_owned()));
            with(OrbaxOptions {
                ocdbt,
                rich_types,
                value_types: value_types.collect(),
                ..OrbaxOptions::default()
            })
        };
        let (_folder, path) = write(&tree, &own(&[("files", "Config"), ("halved", "Halved")])).unwrap();
        let reader = open(&path);
        let leaves = reader.tree().leaves();
        assert_eq!(leaves[0].kind, LeafKind::Unknown("Config".into()));
        assert_eq!((&leaves[1].kind, leaves[1].dtype), (&LeafKind::NumpyArray, Dtype::Float16));
        assert!(read(&*reader, 1) == array(Dtype::Float16, &[3]).to_c_order().unwrap());
        let document = std::fs::read_to_string(path.join("_METADATA")).unwrap();
        assert!(document.contains(r#"{"value_type": "Halved", "skip_deserialize": false"#), "{document}");

        let error = write(&tree, &own(&[("unknown", "Config")])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("unknown"), "{error}");
    }
}

#[test]
fn every_form_reads_back() {
    let tree = sample();
    let by_hand = LeafChunking {
        write_chunk_shape: Some(shape(&[320, 480])),
        read_chunk_shape: Some(shape(&[32, 240])),
        ..LeafChunking::default()
    };
    for form in 0..16 {
        let bit = |i: u32| form >> i & 1 == 1;
        let mut orbax = OrbaxOptions { ocdbt: bit(0), zarr3: bit(1), v1: bit(3), ..OrbaxOptions::default() };
        orbax.rich_types = bit(2);
        for chunked in [None, Some(100), Some(500_000)] {
            orbax.chunk_byte_size = chunked;
            orbax.per_leaf.clear();
            if chunked.is_none() && orbax.zarr3 {
                orbax.per_leaf.push((PathPattern::new("large").unwrap(), by_hand.clone()));
            } else if chunked == Some(100) {
                orbax.per_leaf.push((PathPattern::new("large").unwrap(), LeafChunking::default()));
            }
            let compression = bit(2).then_some(Compression::None);
            let options = SaveOptions { compression, ..with(orbax.clone()) };
            let (_folder, path) = write(&tree, &options).unwrap();
            assert_reads_back(&tree, &path, &format!("{orbax:?} {compression:?}"));
        }
    }
}

#[test]
fn a_single_leaf_and_an_empty_tree_read_back() {
    let one = Tree::single(Leaf::array(array(Dtype::Int16, &[3])));
    let (_folder, path) = write(&one, &SaveOptions::default()).unwrap();
    assert_reads_back(&one, &path, "single");
    let none = dict(vec![(Key::dict("t"), Leaf::text("only text"))]);
    let (_folder, path) = write(&none, &SaveOptions::default()).unwrap();
    assert_reads_back(&none, &path, "text");
    assert!(!path.join("manifest.ocdbt").exists());
}

/// The keys of the database or of the array folders at `item`: with its bytes for a document,
/// without bytes for a chunk.
fn stored(item: &Path) -> BTreeMap<String, Vec<u8>> {
    let local: Arc<dyn Store> = Arc::new(LocalStore::new(item));
    let mut found = BTreeMap::new();
    let mut keep = |key: Vec<u8>, value: Vec<u8>| {
        let key = String::from_utf8(key).unwrap();
        let is_document = key.ends_with(".zarray") || key.ends_with("zarr.json");
        found.insert(key, if is_document { value } else { Vec::new() });
    };
    if item.join("manifest.ocdbt").exists() {
        let database = OcdbtStore::open(local).unwrap();
        for (key, located) in database.entries().unwrap() {
            let value = match located {
                Located::Inline(bytes) => bytes.to_vec(),
                Located::At(_) => database.get(&key, ByteRange::Full).unwrap().unwrap().to_vec(),
            };
            keep(key, value);
        }
    } else {
        for key in local.list(b"").unwrap() {
            let is_own =
                ["_", "array_metadatas/", "commit_success"].iter().any(|own| key.starts_with(own.as_bytes()));
            if !is_own {
                let value = local.get(&key, ByteRange::Full).unwrap().unwrap().to_vec();
                keep(key, value);
            }
        }
    }
    found
}

#[test]
fn rewrites_orbax_checkpoints_key_by_key() {
    let chunked = |bytes, axes: &[usize]| OrbaxOptions {
        chunk_byte_size: Some(bytes),
        shard_axes: axes.to_vec(),
        ..OrbaxOptions::default()
    };
    let plain = OrbaxOptions::default;
    let rows = [
        ("sd_ocdbt_zarr2", plain()),
        ("sd_files_zarr2", plain()),
        ("sd_files_zarr3", plain()),
        ("sd_ocdbt_zarr2_chunked_axes", chunked(120, &[1])),
        ("sd_ocdbt_zarr3_chunked", chunked(256, &[])),
        ("dtypes_zarr2", plain()),
        ("dtypes_zarr3", plain()),
        ("structures", plain()),
        ("prng_keys", plain()),
        ("top_level_list", plain()),
        ("weird_keys_ocdbt", plain()),
        ("weird_keys_files", plain()),
        ("no_arrays", plain()),
        ("v1_bare_leaf", OrbaxOptions { v1: true, ..plain() }),
        ("v1_options", OrbaxOptions { v1: true, ..chunked(100, &[]) }),
    ];
    for (fixture, mut orbax) in rows {
        let theirs = regrow_testkit::fixtures().join("orbax").join(fixture).join("ckpt");
        let reader = open(&theirs);
        let mut i = 0;
        let tree = reader.tree().try_map(|_, info| {
            let mut leaf = match &info.kind {
                LeafKind::Str => Leaf::text(reader.read_text(i)?),
                _ => Leaf::array(Array::new(info.dtype, info.shape.clone(), read(&*reader, i).into())?),
            };
            i += 1;
            leaf.kind = info.kind.clone();
            leaf.sharding = info.sharding.clone();
            Ok(leaf)
        });
        let item = if orbax.v1 { "state" } else { "" };
        let metadata = std::fs::read(theirs.join(item).join("_METADATA")).unwrap();
        let metadata: serde_json::Value = serde_json::from_slice(&metadata).unwrap();
        orbax.ocdbt = metadata["use_ocdbt"].as_bool().unwrap();
        orbax.zarr3 = metadata["use_zarr3"].as_bool().unwrap();
        let custom_metadata = Some(metadata["custom_metadata"].clone());
        let options = SaveOptions { custom_metadata, ..with(orbax) };
        let (_folder, ours) = write(&tree.unwrap(), &options).unwrap();
        assert_eq!(stored(&ours.join(item)), stored(&theirs.join(item)), "{fixture}");
        for file in ["_METADATA", "_sharding", "_strings.json", "array_metadatas/process_0"] {
            let text = |root: &Path| std::fs::read_to_string(root.join(item).join(file)).ok();
            assert_eq!(text(&ours), text(&theirs), "{fixture} {file}");
        }
    }
}

#[test]
fn casts_by_the_first_pattern_that_matches() {
    let tree = dict(vec![
        (Key::dict("a"), Leaf::array(array(Dtype::Float32, &[700, 600]))),
        (Key::dict("b"), Leaf::array(array(Dtype::Float32, &[5]))),
        (Key::dict("k"), leaf(LeafKind::PrngKey(Some("rbg".into())), array(Dtype::UInt32, &[4]))),
        (Key::dict("n"), Leaf::scalar(Scalar::Int(300))),
    ]);
    let cast = |pattern: &str, to| (PathPattern::new(pattern).unwrap(), to);
    let options = SaveOptions {
        cast: vec![cast("b", Dtype::Float64), cast("**", Dtype::BFloat16)],
        ..with(OrbaxOptions::default())
    };
    let (_folder, path) = write(&tree, &options).unwrap();
    let reader = open(&path);
    let expect = [Dtype::BFloat16, Dtype::Float64, Dtype::UInt32, Dtype::Int64];
    for (i, (leaf, to)) in tree.leaves().iter().zip(expect).enumerate() {
        let from = leaf.as_array().unwrap();
        let mut cast = vec![0; from.shape().len_bytes(to).unwrap() as usize];
        cast_bytes(&from.to_c_order().unwrap(), from.dtype(), to, &mut cast).unwrap();
        assert_eq!(reader.tree().leaves()[i].dtype, to);
        assert!(read(&*reader, i) == cast, "{i}");
    }
}

#[test]
fn data_files_end_at_their_target_size() {
    let leaves = (0..40).map(|i| (Key::DictInt(i), Leaf::array(array(Dtype::Int8, &[3000]))));
    let tree = dict(leaves.collect());
    let count = |target| {
        let orbax = OrbaxOptions { ocdbt_target_data_file_size: target, ..OrbaxOptions::default() };
        let options = SaveOptions { compression: Some(Compression::None), ..with(orbax) };
        let (_folder, path) = write(&tree, &options).unwrap();
        assert_reads_back(&tree, &path, "target");
        std::fs::read_dir(path.join("ocdbt.process_0/d")).unwrap().count()
    };
    assert_eq!(count(None), 1);
    assert_eq!(count(Some(0)), 1);
    // A data file ends after four chunks, which pass 10000 bytes. The nodes are in the last file.
    assert_eq!(count(Some(10_000)), 11);
}

#[test]
fn many_lanes_and_a_small_budget_change_nothing() {
    let leaves = (0..6).map(|i| (Key::Index(i), Leaf::array(array(Dtype::Float32, &[1 << 20]))));
    let tree = dict(leaves.collect());
    for budget_bytes in [Some(0), Some(1 << 30)] {
        for ocdbt in [true, false] {
            let orbax = OrbaxOptions { ocdbt, zarr3: true, ..OrbaxOptions::default() };
            let options = SaveOptions { budget_bytes, ..with(orbax) };
            let (_folder, path) = write(&tree, &options).unwrap();
            assert_reads_back(&tree, &path, "workers");
        }
    }
}

#[test]
fn refuses_all_at_once_and_writes_nothing() {
    let bad = [
        ("bytes", leaf(LeafKind::Bytes, array(Dtype::UInt8, &[3])), "bytes"),
        ("np_bool", leaf(LeafKind::NumpyScalar, array(Dtype::Bool, &[])), "np.bool_"),
        ("empty", Leaf::array(array(Dtype::Float32, &[0, 3])), "no elements"),
        ("uint4", Leaf::array(array(Dtype::UInt4, &[3])), "dtype uint4"),
        ("e4m3", Leaf::array(array(Dtype::Float8E4m3, &[3])), "dtype float8_e4m3"),
        ("key", leaf(LeafKind::PrngKey(None), array(Dtype::UInt8, &[2])), "PRNG"),
        (
            "own",
            Leaf {
                data: LeafData::Absent,
                ..leaf(LeafKind::Unknown("MyType".into()), array(Dtype::Bool, &[]))
            },
            "MyType",
        ),
        ("t~x", Leaf::text("x"), "~"),
    ];
    let names: Vec<&str> = bad.iter().map(|(name, ..)| *name).collect();
    for (name, leaf, reason) in bad.clone() {
        let tree = dict(vec![(Key::dict(name), leaf)]);
        let error = write(&tree, &SaveOptions::default()).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
        assert!(error.place().leaf.is_some() && error.help_text().is_some(), "{error}");
    }
    let tree = dict(bad.into_iter().map(|(name, leaf, _)| (Key::dict(name), leaf)).collect());
    let folder = tempfile::tempdir().unwrap();
    let staged = Staged::of_folder(&folder.path().join("ckpt"), false).unwrap();
    let error = write_with(&tree, &staged, &SaveOptions::default()).unwrap_err().to_string();
    assert!(names.iter().all(|name| error.contains(&format!("\n  {name}: "))), "{error}");
    assert_eq!(std::fs::read_dir(staged.folder()).unwrap().count(), 0);
}

#[test]
fn refuses_names_that_would_lose_a_leaf() {
    let x = || Leaf::array(array(Dtype::Int8, &[2]));
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.open(Key::dict("a"), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("b"), x()).unwrap();
    build.close().unwrap();
    build.leaf(Key::dict("a.b"), x()).unwrap();
    build.close().unwrap();
    let error = write(&build.finish().unwrap(), &SaveOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NameCollision);
    assert!(error.to_string().contains("a/b"), "{error}");

    let files = with(OrbaxOptions { ocdbt: false, ..OrbaxOptions::default() });
    let up = dict(vec![(Key::dict("../x"), x())]);
    assert_eq!(write(&up, &files).unwrap_err().kind(), ErrorKind::NameCollision);
    let (_folder, path) = write(&up, &SaveOptions::default()).unwrap();
    assert_reads_back(&up, &path, "a key of the database");
}

#[test]
fn refuses_chunks_that_do_not_fit() {
    let tree = dict(vec![
        (Key::dict("a"), Leaf::array(array(Dtype::Int8, &[6]))),
        (Key::dict("b"), Leaf::array(array(Dtype::Int8, &[7]))),
        (Key::dict("s"), Leaf::scalar(Scalar::Int(1))),
    ]);
    let orbax = OrbaxOptions { write_chunk_shape: Some(shape(&[3])), ..OrbaxOptions::default() };
    let error = write(&tree, &with(orbax)).unwrap_err();
    assert_eq!(
        (error.kind(), error.place().leaf.as_ref().unwrap().to_string()),
        (ErrorKind::InvalidArgument, "b".into())
    );
    let orbax = OrbaxOptions { chunk_byte_size: Some(4), ..OrbaxOptions::default() };
    assert!(write(&tree, &with(orbax)).unwrap_err().to_string().contains("smaller than one element"));
    let orbax = OrbaxOptions { read_chunk_shape: Some(shape(&[3])), ..OrbaxOptions::default() };
    assert!(write(&tree, &with(orbax)).unwrap_err().to_string().contains("zarr v3"));
}

#[test]
fn a_complex_number_comes_back_as_what_orbax_makes_of_numpys() {
    let tree = dict(vec![(Key::dict("z"), Leaf::scalar(Scalar::Complex(1.5, -2.0)))]);
    for zarr3 in [false, true] {
        let (_folder, path) = write(&tree, &with(OrbaxOptions { zarr3, ..OrbaxOptions::default() })).unwrap();
        assert_reads_back(&tree, &path, "complex");
    }
}

#[test]
fn a_name_that_no_database_has_room_for_is_refused_with_its_leaf() {
    let leaf = || Leaf::array(array(Dtype::Float32, &[2, 3]));
    let of_len = |len: usize| dict(vec![(Key::dict("x".repeat(len)), leaf()), (Key::dict("y"), leaf())]);
    // A key is the name and "/c/0/0", or the name and "/zarr.json", which is longer.
    let fits = 65535 - "/zarr.json".len();
    let options = with(OrbaxOptions { zarr3: true, ..OrbaxOptions::default() });
    let (_folder, path) = write(&of_len(fits), &options).unwrap();
    assert_reads_back(&of_len(fits), &path, "the longest name");
    let error = write(&of_len(fits + 1), &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(error.expected_found(), Some(("at most 65525 bytes", "65526")));
    assert!(error.place().leaf.is_some() && error.help_text().unwrap().contains("shorten"));
    assert!(error.to_string().len() < 2000, "{error}");
    // `check` returns the same error without a write.
    let said = crate::formats().find(|format| format.name() == "orbax").unwrap();
    let checked = said.check(&of_len(fits + 1), &Location::local("x"), &options).unwrap_err();
    assert_eq!(checked.to_string(), error.to_string());
}
