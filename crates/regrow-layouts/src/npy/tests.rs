//! Written files are read correctly. Damage never causes a panic, and never changes the data that a
//! read of an archive returns.

use regrow_layouts::npy::Npy;
use regrow_layouts::options::{Layout, OpenOptions, SaveOptions};
use regrow_layouts::{Fidelity, Format, ReaderExt};
use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use regrow_base::error::ErrorKind;
use regrow_tree::array::{Array, Dtype, Region, Shape};
use regrow_tree::tree::{Key, LeafData, LeafKind, NodeKind, Scalar, TreeBuilder};

fn array(dtype: Dtype, dims: &[u64]) -> Array {
    let shape = Shape::new(dims).unwrap();
    let len = shape.len_bytes(dtype).unwrap();
    let limit = if dtype == Dtype::Bool { 2 } else { 120 };
    Array::new(dtype, shape, (0..len).map(|i| (i % limit) as u8).collect::<Vec<_>>().into()).unwrap()
}

fn of_kind(kind: LeafKind, array: Array) -> Leaf {
    Leaf { kind, data: LeafData::Array(array), sharding: None }
}

/// A leaf of every kind in a container of every kind.
fn rich() -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("text"), Leaf::text("λ\u{0}")).unwrap();
    build.leaf(Key::dict("empty text"), Leaf::text("")).unwrap();
    build.open(Key::dict("a/b"), NodeKind::Tuple).unwrap();
    build.leaf(Key::Index(0), of_kind(LeafKind::JaxArray, array(Dtype::BFloat16, &[2, 3]))).unwrap();
    build.leaf(Key::Index(1), Leaf::scalar(Scalar::Int(-3))).unwrap();
    build.open(Key::Index(2), NodeKind::None).unwrap();
    build.close().unwrap();
    build.leaf(Key::Index(3), of_kind(LeafKind::Bytes, array(Dtype::UInt8, &[5]))).unwrap();
    build.close().unwrap();
    build.open(Key::DictInt(7), NodeKind::NamedTuple("optax.State".into())).unwrap();
    build.leaf(Key::attr("x.npy"), of_kind(LeafKind::NumpyScalar, array(Dtype::Float8E4m3fn, &[]))).unwrap();
    build
        .leaf(Key::attr(".."), of_kind(LeafKind::PrngKey(Some("rbg".into())), array(Dtype::UInt32, &[4])))
        .unwrap();
    let skip = Leaf { kind: LeafKind::Placeholder, data: LeafData::Absent, sharding: None };
    build.leaf(Key::attr("later"), skip).unwrap();
    build.close().unwrap();
    build.open(Key::dict("none"), NodeKind::List).unwrap();
    build.close().unwrap();
    let dates = of_kind(LeafKind::NumpyOther("<M8[ns]".into()), array(Dtype::UInt8, &[2, 0, 8]));
    build.leaf(Key::dict("dates"), dates).unwrap();
    let record = LeafKind::NumpyOther("[('a', '<f4'), ('b', '|u1', (2,))]".into());
    build.leaf(Key::dict("record"), of_kind(record, array(Dtype::UInt8, &[3, 6]))).unwrap();
    build.leaf(Key::dict("big"), Leaf::array(array(Dtype::Float32, &[70, 100]))).unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

fn options(json: &str) -> SaveOptions {
    let layout = Layout::from_name("npy", serde_json::from_str(json).unwrap()).unwrap();
    SaveOptions {
        layout,
        not_durable: true,
        casting: regrow_tree::array::Casting::Lossy,
        ..SaveOptions::default()
    }
}

fn save(path: &Path, tree: &Tree<Leaf>, json: &str) -> Result<()> {
    regrow::save_with(path, tree, &options(json)).map(|_| ())
}

fn assert_same(found: &Tree<Leaf>, expected: &Tree<Leaf>) {
    assert_eq!(found.nodes(), expected.nodes());
    for ((path, a), b) in found.iter().zip(expected.leaves()) {
        assert_eq!(a.kind, b.kind, "{path}");
        match (&a.data, &b.data) {
            (LeafData::Array(a), LeafData::Array(b)) => {
                assert_eq!((a.dtype(), a.shape()), (b.dtype(), b.shape()), "{path}");
                assert_eq!(a.to_c_order().unwrap(), b.to_c_order().unwrap(), "{path}");
            }
            (LeafData::Text(a), LeafData::Text(b)) => assert_eq!(a, b, "{path}"),
            (LeafData::Absent, LeafData::Absent) => {}
            other => panic!("{path}: {other:?}"),
        }
    }
}

#[test]
fn the_exact_tree_comes_back_from_archives_and_folders() {
    let folder = tempfile::tempdir().unwrap();
    let tree = rich();
    let all =
        ["{}", r#"{"named_dtypes":false}"#, r#"{"compress":true}"#, r#"{"compress":9,"separator":"."}"#];
    for (i, json) in all.into_iter().enumerate() {
        let path = folder.path().join(format!("{i}.npz"));
        save(&path, &tree, json).unwrap();
        let losses = Npy.losses(&regrow::open(&path).unwrap().tree().clone(), &[], &options(json));
        assert!(losses.iter().all(|loss| loss.what.ends_with(", but for regrow")), "{losses:?}");
        assert_same(&regrow::load(&path).unwrap(), &tree);
        let report = regrow::verify(&path).unwrap();
        assert!(report.is_ok() && report.has_data_checksums, "{report:?}");
        if i < 2 {
            let path = folder.path().join(i.to_string());
            save(&path, &tree, json).unwrap();
            assert_same(&regrow::load(&path).unwrap(), &tree);
            assert!(path.join("a%2Fb/0.npy").is_file() && path.join("7/%2E..npy").is_file());
            regrow::save_with(&path, &tree, &SaveOptions { overwrite: true, ..options(json) }).unwrap();
        }
    }
}

#[test]
fn stored_members_are_views_at_aligned_places() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npz");
    save(&path, &rich(), "{}").unwrap();
    let raw = fs::read(&path).unwrap();
    let reader = Npy.open(&Location::local(&path), &OpenOptions::default()).unwrap();
    let leaf = reader.tree().leaves().iter().position(|info| &*info.name == "big").unwrap();
    let view = reader.view(leaf).unwrap().unwrap();
    let at = raw.windows(view.len()).position(|window| window == view).unwrap();
    assert_eq!(at % header::ALIGNMENT_BYTES, 0);
}

#[test]
fn the_same_tree_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = |name: &str| {
        let path = folder.path().join(name);
        save(&path, &rich(), "{}").unwrap();
        fs::read(path).unwrap()
    };
    assert!(bytes("a.npz") == bytes("b.npz"));
}

#[test]
fn without_the_structure_there_are_dicts_of_names() {
    let folder = tempfile::tempdir().unwrap();
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.open(Key::dict("a"), NodeKind::List).unwrap();
    build.leaf(Key::Index(0), Leaf::scalar(Scalar::Bool(true))).unwrap();
    build.leaf(Key::Index(1), Leaf::text("abc")).unwrap();
    build.close().unwrap();
    build.close().unwrap();
    let tree = build.finish().unwrap();
    let json = r#"{"structure":false}"#;
    let paths = |path: &Path| {
        let opened = regrow::open(path).unwrap();
        opened.paths().iter().map(|path| format!("{:?}", path.keys())).collect::<Vec<_>>()
    };
    save(&folder.path().join("x.npz"), &tree, json).unwrap();
    assert_eq!(paths(&folder.path().join("x.npz")), [r#"[Dict("a/0")]"#, r#"[Dict("a/1")]"#]);
    save(&folder.path().join("x"), &tree, json).unwrap();
    assert_eq!(paths(&folder.path().join("x")), [r#"[Dict("a"), Dict("0")]"#, r#"[Dict("a"), Dict("1")]"#]);
    let infos = regrow::open(folder.path().join("x")).unwrap().tree().clone();
    let other = LeafKind::NumpyOther("<U3".into());
    assert_eq!(infos.leaves()[1].kind, other);
    let folder_json = r#"{"structure":false,"form":"folder"}"#;
    assert!(Npy.losses(&infos, &[], &options(folder_json)).is_empty());
    let flat = Npy.losses(&infos, &[], &options(json));
    assert!(flat.iter().any(|loss| loss.path.to_string() == "a"), "{flat:?}");
    let error = regrow::save_with(
        folder.path().join("m.npz"),
        &tree,
        &SaveOptions { custom_metadata: Some(1.into()), ..options(json) },
    );
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn losses_name_what_would_come_back_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npz");
    save(&path, &rich(), "{}").unwrap();
    let infos = regrow::open(&path).unwrap().tree().clone();
    let json = r#"{"structure":false,"form":"folder","named_dtypes":false}"#;
    let losses: Vec<String> =
        Npy.losses(&infos, &[], &options(json)).iter().map(ToString::to_string).collect();
    for expected in [
        "text: a str comes back as a 0-d array of text",
        "a/b: a tuple comes back as a dict of names",
        "a/b/2: None is lost",
        "7: a named_tuple comes back as a dict of names",
        "7: its integer key comes back as text",
        "7/later: a placeholder is lost",
        "none: an empty list is lost",
    ] {
        assert!(losses.iter().any(|loss| loss == expected), "{expected}: {losses:#?}");
    }
}

#[test]
fn what_cannot_be_written_is_refused_all_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    let unknown = || Leaf { kind: LeafKind::Unknown("x.Y".into()), data: LeafData::Absent, sharding: None };
    build.leaf(Key::dict("one"), unknown()).unwrap();
    build.leaf(Key::dict("a/b"), Leaf::text("x")).unwrap();
    build.leaf(Key::dict("nul\0"), Leaf::text("x")).unwrap();
    build.open(Key::dict("a"), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("b"), Leaf::text("y")).unwrap();
    build.close().unwrap();
    build.close().unwrap();
    let tree = build.finish().unwrap();
    let path = folder.path().join("x.npz");
    let error = save(&path, &tree, "{}").unwrap_err().to_string();
    for part in ["3 leaves", "one: a leaf of the unknown type", "a/b: its name \"a/b\"", "nul"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(fs::read_dir(folder.path()).unwrap().next().is_none());
    let npy = save(&folder.path().join("x.npy"), &rich(), "{}").unwrap_err();
    assert!(npy.to_string().contains("one array"), "{npy}");
    for bad in [r#"{"compress":10}"#, r#"{"compress":0}"#, r#"{"form":"zip"}"#, r#"{"unknown":1}"#] {
        assert!(Layout::from_name("npy", serde_json::from_str(bad).unwrap()).is_err(), "{bad}");
    }
    assert!(save(&folder.path().join("y"), &Tree::single(Leaf::text("x")), r#"{"compress":true}"#).is_err());
}

#[test]
fn one_array_is_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npy");
    let leaf = Leaf::array(array(Dtype::Float8E5m2, &[2, 3]));
    save(&path, &Tree::single(leaf.clone()), "{}").unwrap();
    assert_same(&regrow::load(&path).unwrap(), &Tree::single(leaf.clone()));
    for name in ["x", "x.npz"] {
        let path = folder.path().join(name);
        save(&path, &Tree::single(leaf.clone()), "{}").unwrap();
        assert_same(&regrow::load(&path).unwrap(), &Tree::single(leaf.clone()));
    }
    assert!(folder.path().join("x/arr_0.npy").is_file());
}

/// Opens a checkpoint and reads all its arrays. An error is allowed, a panic is not.
fn read_all(path: &Path) -> Result<Vec<Vec<u8>>> {
    let reader = Npy.open(&Location::local(path), &OpenOptions::default())?;
    let mut leaves = Vec::new();
    for (leaf, info) in reader.tree().leaves().iter().enumerate() {
        assert!(info.len_bytes() < 1 << 20 || info.shape.is_empty());
        let mut out = vec![0; info.len_bytes() as usize];
        if info.kind.is_array() {
            if reader.view(leaf)?.is_some() {
                reader.check_view(leaf)?;
            }
            reader.read_region(leaf, &Region::whole(&info.shape), &mut out)?;
            leaves.push(out);
        }
    }
    Ok(leaves)
}

/// Small archives and files of every form.
fn small() -> Vec<(&'static str, Vec<u8>)> {
    let folder = tempfile::tempdir().unwrap();
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::List).unwrap();
    build.leaf(Key::Index(0), Leaf::array(array(Dtype::Int16, &[3, 2]))).unwrap();
    build.leaf(Key::Index(1), Leaf::text("abc")).unwrap();
    build.close().unwrap();
    let tree = build.finish().unwrap();
    let mut out = Vec::new();
    for (name, json) in [("stored.npz", "{}"), ("deflated.npz", r#"{"compress":true}"#)] {
        save(&folder.path().join(name), &tree, json).unwrap();
        out.push((name, fs::read(folder.path().join(name)).unwrap()));
    }
    let npy = regrow_testkit::fixtures().join("npy/fortran_big.npy");
    out.push(("one.npy", fs::read(npy).unwrap()));
    out
}

#[test]
fn every_truncation_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, raw) in small() {
        let path = folder.path().join(name);
        for len in 0..raw.len() {
            fs::write(&path, &raw[..len]).unwrap();
            assert!(read_all(&path).is_err(), "{name}: {len} bytes");
        }
    }
}

#[test]
fn every_changed_byte_of_an_archive_is_refused_or_of_no_consequence() {
    let folder = tempfile::tempdir().unwrap();
    for (name, raw) in small() {
        let path = folder.path().join(name);
        fs::write(&path, &raw).unwrap();
        let good = read_all(&path).unwrap();
        for at in 0..raw.len() {
            for flip in [1, 0x80, 0xff] {
                let mut damaged = raw.clone();
                damaged[at] ^= flip;
                fs::write(&path, &damaged).unwrap();
                // Padding, dates and names are under no checksum; the data is.
                if let Ok(found) = read_all(&path)
                    && name.ends_with(".npz")
                {
                    assert!(good.iter().all(|leaf| found.contains(leaf)), "{name}: byte {at}");
                }
            }
        }
    }
}

/// A member whose recorded length is more than deflate can reach, and two members that share their
/// bytes.
#[test]
fn bombs_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deflated.npz");
    let (_, raw) = small().remove(1);
    let central = raw.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    let mut bomb = raw.clone();
    bomb[central + 24..central + 28].copy_from_slice(&0x7fff_0000_u32.to_le_bytes());
    fs::write(&path, &bomb).unwrap();
    let error = read_all(&path).unwrap_err();
    assert!(error.to_string().contains("is not possible"), "{error}");
    let mut overlap = raw.clone();
    let second =
        central + 4 + raw[central + 4..].windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    overlap.copy_within(central + 42..central + 46, second + 42);
    // Both entries of the directory have the name in the first header.
    overlap.copy_within(central + 46..central + 51, second + 46);
    fs::write(&path, &overlap).unwrap();
    let error = read_all(&path).unwrap_err();
    assert!(error.to_string().contains("overlap"), "{error}");
}

#[test]
fn a_file_that_shrinks_under_its_reader_is_no_fault() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npz");
    save(&path, &rich(), "{}").unwrap();
    let reader = Npy.open(&Location::local(&path), &OpenOptions::default()).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    let leaf = reader.tree().leaves().iter().position(|info| &*info.name == "big").unwrap();
    assert!(reader.view(leaf).is_err());
    let info = &reader.tree().leaves()[leaf];
    let mut out = vec![0; info.len_bytes() as usize];
    assert!(reader.read_region(leaf, &Region::whole(&info.shape), &mut out).is_err());
}

#[test]
fn a_sidecar_that_lies_is_found_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    save(&path, &rich(), "{}").unwrap();
    fs::copy(path.join("big.npy"), path.join("record.npy")).unwrap();
    let error = Npy.open(&Location::local(&path), &OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("leaf record"), "{error}");
    fs::remove_file(path.join("record.npy")).unwrap();
    let error = Npy.open(&Location::local(&path), &OpenOptions::default()).unwrap_err();
    assert!(error.to_string().contains("\"record\" is missing"), "{error}");
    fs::write(path.join("regrow-structure.json"), "{}").unwrap();
    assert_eq!(
        Npy.open(&Location::local(&path), &OpenOptions::default()).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
}

/// Pieces that are read in order go through one inflater, in any shape.
#[test]
fn deflated_arrays_are_read_piece_by_piece() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npz");
    let whole = array(Dtype::UInt16, &[40, 7, 3]);
    save(&path, &Tree::single(Leaf::array(whole.clone())), r#"{"compress":1}"#).unwrap();
    let reader = Npy.open(&Location::local(&path), &OpenOptions::default()).unwrap();
    for (starts, lens) in
        [([0, 0, 0], [10, 7, 3]), ([10, 0, 0], [30, 7, 3]), ([5, 2, 1], [7, 3, 2]), ([0, 0, 0], [1, 1, 1])]
    {
        let region = Region::new(starts, lens).unwrap();
        let len = region.shape().len_bytes(Dtype::UInt16).unwrap() as usize;
        let (mut found, mut expected) = (vec![0; len], vec![1; len]);
        reader.read_region(0, &region, &mut found).unwrap();
        whole.copy_region_c_order(&region, &mut expected).unwrap();
        assert_eq!(found, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_flat_dict_comes_back(
        leaves in proptest::collection::btree_map(any::<String>(), (0_usize..30, proptest::collection::vec(0_u64..4, 0..4)), 0..6),
        form in 0..3_usize,
    ) {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        for (key, (dtype, dims)) in &leaves {
            let dtype = Dtype::all().nth(*dtype).unwrap();
            build.leaf(Key::dict(key.as_str()), Leaf::array(array(dtype, dims))).unwrap();
        }
        build.close().unwrap();
        let tree = build.finish().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (name, json) = [("x.npz", "{}"), ("x.npz", r#"{"compress":1}"#), ("x", "{}")][form];
        let path = folder.path().join(name);
        match save(&path, &tree, json) {
            Ok(()) => assert_same(&regrow::load(&path).unwrap(), &tree),
            // A key with NUL has no name in an archive, and a long key has no name in a folder.
            Err(error) => prop_assert!(leaves.keys().any(|key| key.contains('\0') || key.len() > 80), "{error}"),
        }
    }

    #[test]
    fn random_bytes_never_panic(raw in proptest::collection::vec(any::<u8>(), 0..200), zip: bool) {
        let folder = tempfile::tempdir().unwrap();
        let beginning: &[u8] = if zip { b"PK\x03\x04" } else { b"\x93NUMPY\x01\x00" };
        let path = folder.path().join("x.npz");
        fs::write(&path, [beginning, &raw].concat()).unwrap();
        let _ = Npy.open(&Location::local(&path), &OpenOptions::default());
    }
}

/// Each read of a deflated member in Fortran order unpacks the whole member. So a load must read
/// the member at once.
#[test]
fn a_deflated_member_in_fortran_order_is_one_chunk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npz");
    let (rows, columns) = (3_u64, 500_u64);
    let shape = Shape::new([rows, columns]).unwrap();
    let header = |fortran_order| header::Header {
        fortran_order,
        ..header::Header::for_array(Dtype::Float32, shape.clone(), true)
    };
    let data: Vec<u8> = (0..rows * columns).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let out = regrow_store::DirectWriter::create_with(&path, &Default::default()).unwrap();
    let mut zip = zip::ZipWriter::new(regrow_store::FileWriter::new(out));
    for (name, fortran_order) in [("c.npy", false), ("f.npy", true)] {
        let head = header(fortran_order).to_bytes();
        let len_bytes = (head.len() + data.len()) as u64;
        zip.add(name, zip::Listed::Yes, Some(6), len_bytes, |each| {
            each(&head)?;
            each(&data)
        })
        .unwrap();
    }
    zip.finish(b"").unwrap();
    let checkpoint = regrow::open(&path).unwrap();
    let info = |name: &str| &checkpoint.tree().leaves()[checkpoint.find(name).unwrap()];
    assert_eq!(info("c").chunk_shape, None);
    assert_eq!(info("f").chunk_shape, Some(shape.clone()));
    assert_eq!(&*info("f").coding, "deflate, fortran order");
    let found = checkpoint.read(checkpoint.find("f").unwrap()).unwrap();
    let strides = vec![4, 4 * rows as i64];
    let expected = Array::with_strides(Dtype::Float32, shape, strides, 0, data.into()).unwrap();
    assert_eq!(found.as_array().unwrap().to_c_order().unwrap(), expected.to_c_order().unwrap());
}
