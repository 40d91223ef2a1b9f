//! Regions of many leaves in one call: the elements are right in every layout, and no byte is read
//! twice.

use crate::common::{bytes_of, dict, layouts, tree};
use regrow::array::{Array, Dtype, Region, Shape, cast_bytes, copy_region};
use regrow::engine::Layout;
use regrow::tree::{Leaf, LeafData, Tree};
use regrow::{Checkpoint, ErrorKind, LeafRegion, LoadOptions, RegionOptions, SaveOptions};

fn array(dtype: Dtype, dims: &[u64], seed: u64) -> Leaf {
    let shape = Shape::new(dims).unwrap();
    let len = shape.len_elements();
    // Small numbers, so that casts keep them.
    let bytes: Vec<u8> = match dtype {
        Dtype::Float32 => (0..len).flat_map(|at| (((at * 7 + seed) % 251) as f32).to_le_bytes()).collect(),
        _ => (0..shape.len_bytes(dtype).unwrap()).map(|at| (at * 7 + seed) as u8 ^ (at >> 8) as u8).collect(),
    };
    Leaf::array(Array::new(dtype, shape, bytes.into()).unwrap())
}

/// Matrices of several forms, small arrays that share blocks, a scalar, and one without elements.
fn mixed_leaves() -> Vec<(String, Leaf)> {
    let mut leaves = vec![
        ("bias".to_owned(), array(Dtype::Float32, &[48], 1)),
        ("count".to_owned(), array(Dtype::Int32, &[], 2)),
        ("cube".to_owned(), array(Dtype::Int16, &[6, 20, 10], 3)),
        ("empty".to_owned(), array(Dtype::Float32, &[0, 4], 4)),
        ("flat".to_owned(), array(Dtype::Float32, &[1, 1, 5000], 5)),
        ("kernel".to_owned(), array(Dtype::Float32, &[160, 240], 6)),
    ];
    leaves.extend((0..20).map(|at| (format!("small_{at:02}"), array(Dtype::UInt8, &[at * 3, 5], at))));
    leaves.push(("tall".to_owned(), array(Dtype::UInt8, &[12_000, 7], 7)));
    leaves.sort_by(|one, other| one.0.cmp(&other.0));
    leaves
}

/// The elements of a region of the tree that was saved.
fn expected(tree: &Tree<Leaf>, want: &LeafRegion) -> Vec<u8> {
    let leaf = tree.leaves()[want.leaf].as_array().unwrap();
    let (dtype, target) = (leaf.dtype(), want.region.shape());
    let mut out = vec![0; target.len_bytes(dtype).unwrap() as usize];
    let origin = vec![0; target.rank()];
    let bytes = leaf.to_c_order().unwrap();
    copy_region(dtype.size_bytes(), &bytes, leaf.shape(), &want.region, &mut out, &target, &origin).unwrap();
    match want.dtype {
        Some(to) if to != dtype => {
            let mut cast = vec![0; target.len_bytes(to).unwrap() as usize];
            cast_bytes(&out, dtype, to, &mut cast).unwrap();
            cast
        }
        _ => out,
    }
}

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end.max(1)
    }

    fn region(&mut self, shape: &Shape) -> Region {
        let axes = shape.dims().iter().map(|&dim| {
            let start = self.below(dim);
            (start, 1 + self.below(dim - start))
        });
        let (starts, lens): (Vec<u64>, Vec<u64>) =
            axes.zip(shape.dims()).map(|((start, len), &dim)| (start, len.min(dim - start))).unzip();
        Region::new(starts, lens).unwrap()
    }
}

/// Whole leaves, grids of them, any regions (which overlap), and some twice.
fn wishes(tree: &Tree<Leaf>, seed: u64) -> Vec<LeafRegion> {
    let mut dice = Dice(seed);
    let mut wanted = Vec::new();
    for (leaf, data) in tree.leaves().iter().enumerate() {
        let shape = data.as_array().unwrap().shape().clone();
        let want = |region| LeafRegion { leaf, region, dtype: None };
        match dice.below(4) {
            0 => wanted.push(want(Region::whole(&shape))),
            1 if shape.rank() == 2 && !shape.is_empty() => {
                let (rows, columns) = (shape.dims()[0], shape.dims()[1]);
                for part in 0..4 {
                    let (start, end) = (columns * part / 4, columns * (part + 1) / 4);
                    wanted.push(want(Region::new([0, start], [rows, end - start]).unwrap()));
                }
            }
            2 if shape.rank() > 0 && !shape.is_empty() => {
                let first = shape.dims()[0];
                for part in 0..3 {
                    let (start, end) = (first * part / 3, first * (part + 1) / 3);
                    let (mut starts, mut lens) = (vec![0; shape.rank()], shape.dims().to_vec());
                    (starts[0], lens[0]) = (start, end - start);
                    wanted.push(want(Region::new(starts, lens).unwrap()));
                }
            }
            _ => (0..4).for_each(|_| wanted.push(want(dice.region(&shape)))),
        }
    }
    let again = wanted[wanted.len() / 2].clone();
    wanted.insert(0, again);
    wanted
}

fn check(checkpoint: &Checkpoint, tree: &Tree<Leaf>, wanted: &[LeafRegion], label: &str) {
    let arrays = checkpoint.load_regions(wanted, &RegionOptions::default()).unwrap();
    assert_eq!(arrays.len(), wanted.len());
    for (array, want) in arrays.iter().zip(wanted) {
        assert!(array.to_c_order().unwrap() == expected(tree, want), "{label}: {want:?}");
        assert_eq!(array.shape(), &want.region.shape());
        let stored = tree.leaves()[want.leaf].as_array().unwrap().dtype();
        assert_eq!(array.dtype(), want.dtype.unwrap_or(stored));
    }
    let mut outs: Vec<Vec<u8>> = wanted.iter().map(|want| vec![0xaa; expected(tree, want).len()]).collect();
    let slices = outs.iter_mut().map(|out| &mut out[..]).collect();
    let tight = RegionOptions { budget_bytes: Some(1), ..RegionOptions::default() };
    checkpoint.load_regions_into(wanted, slices, &tight).unwrap();
    for (out, want) in outs.iter().zip(wanted) {
        assert!(*out == expected(tree, want), "{label}: {want:?}");
    }
}

fn all_layouts() -> Vec<(Layout, &'static str)> {
    let json = |options: &str| Layout::from_name("orbax", serde_json::from_str(options).unwrap()).unwrap();
    let mut all = layouts();
    all.extend([
        (json(r#"{"chunk_byte_size": 9000, "shard_axes": [1]}"#), ""),
        (json(r#"{"chunk_byte_size": 5000, "ocdbt": false, "zarr3": true}"#), ""),
    ]);
    all
}

#[test]
fn regions_are_parts_of_the_leaves_in_every_layout() {
    for (number, (layout, suffix)) in all_layouts().into_iter().enumerate() {
        for compression in [None, Some(regrow::engine::Compression::Zstd(1))] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(format!("x{suffix}"));
            let label = format!("{layout:?} {compression:?}");
            let options = SaveOptions {
                layout: layout.clone(),
                compression,
                not_durable: true,
                ..SaveOptions::default()
            };
            let mut leaves = mixed_leaves();
            if options.layout.name() == "orbax" {
                // Orbax has no arrays without elements.
                leaves.retain(|(_, leaf)| !leaf.as_array().unwrap().shape().is_empty());
            }
            let tree = dict(leaves);
            match regrow::save_with(&path, &tree, &options) {
                Ok(_) => {}
                Err(error) if compression.is_some() && error.kind() != ErrorKind::Io => continue,
                Err(error) => panic!("{label}: {error}"),
            }
            let checkpoint = regrow::open(&path).unwrap_or_else(|error| panic!("{label}: {error}"));
            // Names may come in another order.
            let saved: Vec<Leaf> = checkpoint
                .paths()
                .iter()
                .map(|key| {
                    tree.iter().find(|(path, _)| path.to_string() == key.to_string()).unwrap().1.clone()
                })
                .collect();
            let saved = checkpoint.tree().with_leaves(saved).unwrap();
            for seed in 1..3 {
                let mut wanted = wishes(&saved, seed * 1000 + number as u64);
                check(&checkpoint, &saved, &wanted, &label);
                for want in &mut wanted {
                    let is_float = saved.leaves()[want.leaf].as_array().unwrap().dtype() == Dtype::Float32;
                    let info = checkpoint.info(want.leaf).unwrap();
                    if is_float && info.kind.is_castable() {
                        want.dtype = Some(Dtype::BFloat16);
                    }
                }
                check(&checkpoint, &saved, &wanted, &label);
            }
        }
    }
}

#[test]
fn regions_beyond_one_window_are_read_right() {
    let tree = dict(vec![("a", array(Dtype::UInt8, &[40_000, 8], 1)), ("b", array(Dtype::UInt8, &[3], 2))]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    regrow::save(&path, &tree).unwrap();
    let column = |column: u64, width: u64| LeafRegion {
        leaf: 0,
        region: Region::new([0, column], [40_000, width]).unwrap(),
        dtype: None,
    };
    let mut wanted: Vec<LeafRegion> = (0..8).map(|at| column(at, 1)).collect();
    // One that all the others overlap.
    wanted
        .extend([column(2, 5), LeafRegion { leaf: 1, region: Region::new([0], [3]).unwrap(), dtype: None }]);
    check(&regrow::open(&path).unwrap(), &tree, &wanted, "columns");
}

#[test]
fn regions_equal_in_one_band_are_read_right() {
    // Three bands of 8 MiB: in the second one the regions want the same, in the others not.
    let rows = 5_000;
    let tree = dict(vec![("w", array(Dtype::UInt8, &[rows, 4096], 1))]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let layout = Layout::from_name("orbax", serde_json::json!({"chunk_byte_size": 1_000_000})).unwrap();
    regrow::save_with(&path, &tree, &SaveOptions { layout, ..SaveOptions::default() }).unwrap();
    let of_rows = |start: u64, end: u64| LeafRegion {
        leaf: 0,
        region: Region::new([start, 0], [end - start, 4096]).unwrap(),
        dtype: None,
    };
    let wanted = [of_rows(0, rows), of_rows(700, rows), of_rows(0, rows - 700)];
    check(&regrow::open(&path).unwrap(), &tree, &wanted, "bands");
}

#[test]
fn an_impossible_region_is_refused_with_its_leaf() {
    let mut leaves =
        vec![("text".to_owned(), Leaf::text("words")), ("w".to_owned(), array(Dtype::Float32, &[4, 4], 1))];
    leaves.push((
        "key".to_owned(),
        Leaf { kind: regrow::tree::LeafKind::PrngKey(None), ..array(Dtype::UInt32, &[2], 0) },
    ));
    leaves.sort_by(|one, other| one.0.cmp(&other.0));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    regrow::save(&path, &dict(leaves)).unwrap();
    let checkpoint = regrow::open(&path).unwrap();
    let at = |key: &str| checkpoint.find(key).unwrap();
    let error = |leaf, starts: &[u64], lens: &[u64], dtype| {
        let wanted = LeafRegion { leaf, region: Region::new(starts, lens).unwrap(), dtype };
        checkpoint.load_regions(&[wanted], &RegionOptions::default()).unwrap_err()
    };
    let outside = error(at("w"), &[3, 0], &[2, 4], None);
    assert_eq!(
        (outside.kind(), outside.place().leaf.as_ref().unwrap().to_string()),
        (ErrorKind::InvalidArgument, "w".into())
    );
    assert_eq!(error(at("w"), &[0], &[4], None).kind(), ErrorKind::InvalidArgument);
    assert_eq!(error(at("text"), &[0], &[1], None).kind(), ErrorKind::InvalidArgument);
    assert_eq!(error(at("key"), &[0], &[1], Some(Dtype::Float32)).kind(), ErrorKind::Mismatch);
    assert_eq!(error(77, &[0], &[1], None).kind(), ErrorKind::InvalidArgument);
    let wanted = [LeafRegion { leaf: at("w"), region: Region::new([0, 0], [1, 1]).unwrap(), dtype: None }];
    let mut out = [0; 5];
    let short = checkpoint.load_regions_into(&wanted, vec![&mut out], &RegionOptions::default()).unwrap_err();
    assert_eq!(short.kind(), ErrorKind::Mismatch);
}

#[test]
fn only_regions_that_meet_damage_are_errors() {
    let tree = dict(vec![("w", array(Dtype::UInt8, &[4000, 4096], 1))]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    regrow::save(&path, &tree).unwrap();
    let file = path.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 100;
    bytes[last] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let checkpoint = regrow::open(&path).unwrap();
    let rows = |start: u64, len: u64| LeafRegion {
        leaf: 0,
        region: Region::new([start, 5], [len, 70]).unwrap(),
        dtype: None,
    };
    check(&checkpoint, &tree, &[rows(0, 2000), rows(100, 200)], "sound rows");
    let wanted = [rows(0, 2), rows(3990, 10)];
    let error = checkpoint.load_regions(&wanted, &RegionOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(error.place().leaf.as_ref().unwrap().to_string(), "w");
    let unverified = RegionOptions { unverified: true, ..RegionOptions::default() };
    checkpoint.load_regions(&wanted, &unverified).unwrap();
}

#[test]
fn unread_leaves_come_without_data_and_their_regions_have_it() {
    let tree = tree(3);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    regrow::save(&path, &tree).unwrap();
    let checkpoint = regrow::open(&path).unwrap();
    let loaded = checkpoint.load(&LoadOptions { unread: vec![0, 2], ..LoadOptions::default() }).unwrap();
    let is_absent = loaded.leaves().iter().map(|leaf| matches!(leaf.data, LeafData::Absent));
    assert_eq!(is_absent.collect::<Vec<_>>(), [true, false, true, false]);
    let selected = checkpoint.select(&LoadOptions::default()).unwrap();
    let wanted: Vec<LeafRegion> = selected
        .iter()
        .flatten()
        .map(|selected| LeafRegion {
            leaf: selected.leaf,
            region: Region::whole(&checkpoint.info(selected.leaf).unwrap().shape),
            dtype: Some(selected.dtype),
        })
        .collect();
    let arrays = checkpoint.load_regions(&wanted, &RegionOptions::default()).unwrap();
    for (array, (path, bytes)) in arrays.iter().zip(bytes_of(&tree)) {
        assert!(array.to_c_order().unwrap() == bytes, "{path}");
    }
}

#[cfg(feature = "cloud")]
mod requests {
    use std::collections::HashMap;
    use std::path::Path;

    use regrow::location::Location;
    use regrow_testkit::object_server::{ObjectServer, Op};

    use super::*;
    use crate::common::buckets::s3;

    fn bucket(server: &ObjectServer) -> Location {
        server.create_bucket("regions");
        let options = s3(server.endpoint());
        Location::with_options(Path::new("s3://regions/runs"), &options).unwrap()
    }

    /// The ranges that were asked of each object, in order.
    fn asked(server: &ObjectServer, work: impl FnOnce()) -> HashMap<String, Vec<(u64, u64)>> {
        server.clear_requests();
        work();
        let mut ranges: HashMap<String, Vec<(u64, u64)>> = HashMap::new();
        for request in server.requests().iter().filter(|request| request.op == Op::Get) {
            let range = request.range.as_deref().map_or((0, u64::MAX), |range| {
                let (start, end) = range.trim_start_matches("bytes=").split_once('-').unwrap();
                (start.parse().unwrap(), end.parse::<u64>().unwrap() + 1)
            });
            ranges.entry(request.key.clone()).or_default().push(range);
        }
        ranges.values_mut().for_each(|ranges| ranges.sort_unstable());
        ranges
    }

    fn assert_once(ranges: &[(u64, u64)]) -> u64 {
        for pair in ranges.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "{pair:?} were read twice");
        }
        ranges.iter().map(|range| range.1 - range.0).sum()
    }

    fn columns(leaf: usize, shape: &Shape, count: u64) -> Vec<LeafRegion> {
        let (rows, width) = (shape.dims()[0], shape.dims()[1]);
        let column = |part: u64| {
            let (start, end) = (width * part / count, width * (part + 1) / count);
            LeafRegion { leaf, region: Region::new([0, start], [rows, end - start]).unwrap(), dtype: None }
        };
        (0..count).map(column).collect()
    }

    #[test]
    fn blocks_that_regions_and_leaves_share_are_read_once() {
        let server = ObjectServer::start().unwrap();
        let path = bucket(&server).join("x");
        let tree = dict(mixed_leaves());
        regrow::save_with(&path, &tree, &SaveOptions::default()).unwrap();
        let checkpoint = regrow::open(&path).unwrap();
        // Overlapping regions of all leaves, in no order.
        let mut wanted = wishes(&tree, 77);
        wanted.extend(wishes(&tree, 78));
        wanted.reverse();
        let ranges =
            asked(&server, || drop(checkpoint.load_regions(&wanted, &RegionOptions::default()).unwrap()));
        let read = assert_once(&ranges["runs/x/model.safetensors"]);
        let total: usize = bytes_of(&tree).iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(read as usize <= total + 4096, "{read} of {total} bytes");
        // More runs than a window has.
        let tall = checkpoint.find("tall").unwrap();
        let shape = checkpoint.info(tall).unwrap().shape.clone();
        let wanted = columns(tall, &shape, 7);
        let ranges =
            asked(&server, || drop(checkpoint.load_regions(&wanted, &RegionOptions::default()).unwrap()));
        assert_once(&ranges["runs/x/model.safetensors"]);
    }

    #[test]
    fn of_a_long_leaf_only_the_blocks_are_read_that_a_region_meets() {
        let server = ObjectServer::start().unwrap();
        let path = bucket(&server).join("x");
        let tree = dict(vec![("w", array(Dtype::UInt8, &[4096, 4096], 1))]);
        for (layout, file, slack) in
            [("regrow", "x/model.safetensors", 2 << 20), ("safetensors", "y.safetensors", 128 << 10)]
        {
            let path = if layout == "regrow" { path.clone() } else { bucket(&server).join("y.safetensors") };
            let layout = Layout::from_name(layout, serde_json::Value::Null).unwrap();
            regrow::save_with(&path, &tree, &SaveOptions { layout, ..SaveOptions::default() }).unwrap();
            let checkpoint = regrow::open(&path).unwrap();
            let region = Region::new([1000, 0], [512, 4096]).unwrap();
            let wanted = [LeafRegion { leaf: 0, region, dtype: None }];
            let ranges =
                asked(&server, || drop(checkpoint.load_regions(&wanted, &RegionOptions::default()).unwrap()));
            let read = assert_once(&ranges[&format!("runs/{file}")]);
            assert!(((512 * 4096)..=(512 * 4096 + slack)).contains(&read), "{file}: {read}");
        }
    }

    #[test]
    fn chunks_that_regions_share_are_read_once() {
        let server = ObjectServer::start().unwrap();
        let path = bucket(&server).join("x");
        let tree = dict(vec![("w", array(Dtype::Float32, &[600, 500], 1))]);
        let options = r#"{"ocdbt": false, "chunk_byte_size": 100000, "shard_axes": [1]}"#;
        let layout = Layout::from_name("orbax", serde_json::from_str(options).unwrap()).unwrap();
        regrow::save_with(&path, &tree, &SaveOptions { layout, ..SaveOptions::default() }).unwrap();
        let checkpoint = regrow::open(&path).unwrap();
        let info = checkpoint.info(0).unwrap();
        let chunks: u64 = info
            .shape
            .dims()
            .iter()
            .zip(info.chunk_shape.as_ref().unwrap().dims())
            .map(|(all, chunk)| all.div_ceil(*chunk))
            .product();
        assert!(chunks > 4, "{info:?}");
        for dtype in [None, Some(Dtype::Float64)] {
            let mut wanted = columns(0, &info.shape, 3);
            wanted.push(LeafRegion {
                leaf: 0,
                region: Region::new([7, 9], [580, 480]).unwrap(),
                dtype: None,
            });
            wanted.iter_mut().for_each(|want| want.dtype = dtype);
            let ranges = asked(&server, || check_once(&checkpoint, &tree, &wanted));
            let read = ranges.iter().filter(|(key, _)| !key.ends_with(".zarray"));
            let read: Vec<_> = read.map(|(key, ranges)| (key, ranges.len())).collect();
            assert_eq!(read.len() as u64, chunks, "{read:?}");
            assert!(read.iter().all(|(_, times)| *times == 1), "{read:?}");
        }
    }

    fn check_once(checkpoint: &Checkpoint, tree: &Tree<Leaf>, wanted: &[LeafRegion]) {
        let arrays = checkpoint.load_regions(wanted, &RegionOptions::default()).unwrap();
        for (array, want) in arrays.iter().zip(wanted) {
            assert!(array.to_c_order().unwrap() == expected(tree, want), "{want:?}");
        }
    }
}
