//! Shardings: regrow writes each entry of Orbax again byte for byte, and computes the shards that
//! JAX and Orbax compute.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use regrow::array::{Dtype, Region, Shape};
use regrow::sharding::{
    AxisSpec, AxisType, Layout, Mesh, NamedSharding, PartitionSpec, Replicas, Sharding, Split, check_tiling,
    chunk_shape,
};
use regrow::{Error, ErrorKind};
use serde_json::{Map, Value, json};

/// Every `_sharding` below a folder.
fn sharding_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            sharding_files(&entry, found);
        } else if entry.ends_with("_sharding") {
            found.push(entry);
        }
    }
}

/// JSON with Python's spaces, of text without any outside of its own strings.
fn python_spaces(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            format!("[{}]", items.iter().map(python_spaces).collect::<Vec<_>>().join(", "))
        }
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                format!("{}: {}", Value::from(name.as_str()), python_spaces(value))
            };
            format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

#[test]
fn the_axis_types_of_a_mesh_are_read_back() {
    let types = [AxisType::Auto, AxisType::Explicit];
    let mesh = Mesh::new([("x", 2), ("y", 1)]).with_device_ids([0, 1]).with_axis_types(types.clone());
    let recorded = json!({"sharding_type": "NamedSharding", "shape": [2, 1], "axis_names": ["x", "y"], "partition_spec": ["x"]});
    let Sharding::Named(recorded) = Sharding::from_json(recorded) else { panic!("not named") };
    let sharding = Sharding::from(NamedSharding::new(mesh, recorded.spec().clone()));
    let Sharding::Named(read) = Sharding::from_json(sharding.to_json()) else { panic!("not named") };
    assert_eq!(read.mesh().axis_types(), Some(types.as_slice()));
}

#[test]
fn every_entry_that_orbax_wrote_is_written_again_to_the_byte() {
    let mut files = Vec::new();
    sharding_files(&regrow_testkit::fixtures().join("orbax"), &mut files);
    assert!(files.len() > 40, "{}", files.len());
    let mut kinds = std::collections::BTreeMap::<String, usize>::new();
    for file in files {
        let entries: Map<String, Value> = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        for text in entries.values().map(|text| text.as_str().unwrap()).filter(|text| !text.is_empty()) {
            let sharding = Sharding::from_json(serde_json::from_str(text).unwrap());
            assert_eq!(python_spaces(&sharding.to_json()), text, "{}", file.display());
            *kinds.entry(sharding.type_name().to_owned()).or_default() += 1;
        }
    }
    let kinds: Vec<&str> = kinds.keys().map(String::as_str).collect();
    assert_eq!(kinds, ["GSPMDSharding", "NamedSharding", "PositionalSharding", "SingleDeviceSharding"]);
}

#[test]
fn unknown_members_and_their_order_are_kept() {
    for text in [
        r#"{"shape":[2],"sharding_type":"NamedSharding","axis_names":["x"],"partition_spec":["x"]}"#,
        r#"{"sharding_type":"NamedSharding","shape":[2],"axis_names":["x"],"partition_spec":[["x"],[],null],"memory_kind":"device"}"#,
        r#"{"sharding_type":"NamedSharding","shape":[2,2],"axis_names":["x","y"],"partition_spec":[],"device_mesh":{"mesh":[{"id":0},{"id":3}]}}"#,
        r#"{"sharding_type":"NamedSharding","shape":[2],"axis_names":["x"],"axis_types":["AxisType.New"],"partition_spec":["x"],"device_mesh":null}"#,
        r#"{"sharding_type":"NamedSharding","shape":[],"axis_names":[],"partition_spec":[],"device_mesh":{"mesh":{"id":7}}}"#,
        r#"{"sharding_type":"NamedSharding","shape":[1],"axis_names":["x"],"partition_spec":["x"],"device_mesh":{"mesh":[{"id":7,"kind":"TPU v4"}]}}"#,
        r#"{"sharding_type":"NamedSharding","shape":"2","axis_names":["x"],"partition_spec":["x"]}"#,
        r#"{"sharding_type":"NamedSharding","shape":[2.5],"axis_names":["x"],"partition_spec":[5]}"#,
        r#"{"sharding_type":"CeilDivisionSharding","shape":[3],"axis_names":["x"],"partition_spec":["x"]}"#,
        r#"{"sharding_type":"SingleDeviceSharding","device_str":null}"#,
        r#"{"device_str":"cpu:0","sharding_type":"SingleDeviceSharding"}"#,
        r#"{"sharding_type":"PositionalSharding","memory_kind":"device","shape":[2]}"#,
        r#"{"sharding_type":"PositionalSharding","shape":[2],"memory_kind":null}"#,
        r#"{"sharding_type":5}"#,
        "null",
        r#"[1,{"id":2}]"#,
    ] {
        let sharding = Sharding::from_json(serde_json::from_str(text).unwrap());
        assert_eq!(sharding.to_json().to_string(), text);
        assert_eq!(Sharding::from_json(sharding.to_json()), sharding);
    }
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

/// `[starts, ends]` as a region.
fn region(starts: &Value, ends: &Value) -> Region {
    let starts = numbers(starts);
    let lens: Vec<u64> = numbers(ends).iter().zip(&starts).map(|(end, start)| end - start).collect();
    Region::new(starts, lens).unwrap()
}

#[test]
fn devices_hold_and_write_the_shards_of_jax_and_orbax() {
    let file = regrow_testkit::fixtures().join("sharding/jax.json");
    let told: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let limits: Vec<Replicas> = told["limits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|limit| Replicas::Parallel {
            slice_len_min_bytes: limit[0].as_u64().unwrap_or(0),
            replicas_max: limit[1].as_u64(),
        })
        .collect();
    let (mut laid_out, mut refused) = (0, 0);
    for mesh in told["meshes"].as_array().unwrap() {
        let axes = mesh["axes"].as_array().unwrap().iter();
        let own = Mesh::new(axes.map(|axis| (axis[0].as_str().unwrap(), axis[1].as_u64().unwrap())))
            .with_device_ids(numbers(&mesh["devices"]));
        for told in mesh["specs"].as_array().unwrap() {
            let at = format!("{} {}", mesh["name"], told["spec"]);
            let recorded = json!({"sharding_type": "NamedSharding", "shape": own.shape(), "axis_names": [], "partition_spec": told["spec"]});
            let Sharding::Named(recorded) = Sharding::from_json(recorded) else { panic!("{at}") };
            let built = NamedSharding::new(own.clone(), recorded.spec().clone());
            if told["refused"] == "sharding" {
                // JAX refuses these for any array.
                assert!(Sharding::from(built).layout(&Shape::new([8, 8, 8, 8]).unwrap()).is_err(), "{at}");
                refused += 1;
                continue;
            }
            let text = told["json"].as_str().unwrap();
            let sharding = Sharding::from_json(serde_json::from_str(text).unwrap());
            assert_eq!(python_spaces(&sharding.to_json()), text);
            let Sharding::Named(read) = &sharding else { panic!("{at}") };
            assert_eq!((read.spec(), read.mesh().device_ids()), (built.spec(), own.device_ids()), "{at}");
            for told in told["shapes"].as_array().unwrap() {
                let shape = Shape::new(numbers(&told["shape"])).unwrap();
                let layout = sharding.layout(&shape);
                if told["refused"] == "shape" {
                    assert_eq!(layout.unwrap_err().kind(), ErrorKind::InvalidArgument, "{at} {shape}");
                    refused += 1;
                    continue;
                }
                let layout = layout.unwrap();
                let expected = told["devices"].as_array().unwrap();
                let found: Vec<Value> = layout
                    .placements()
                    .map(|found| {
                        let (starts, lens) = (found.region.starts(), found.region.lens());
                        let ends: Vec<u64> =
                            starts.iter().zip(lens).map(|(start, len)| start + len).collect();
                        json!([found.device, starts, ends, found.replica])
                    })
                    .collect();
                assert_eq!(&found, expected, "{at} {shape}");
                for (replicas, writes) in limits.iter().zip(told["parallel"].as_array().unwrap()) {
                    let writes = writes.as_array().unwrap().iter();
                    let mut expected: Vec<(u64, Region)> =
                        writes.map(|told| (told[0].as_u64().unwrap(), region(&told[1], &told[2]))).collect();
                    // Orbax lists empty parts too, and has no order of its own.
                    expected.retain(|(_, region)| !region.is_empty());
                    expected.sort_by_key(|(device, _)| *device);
                    let mut found: Vec<(u64, Region)> = replicas
                        .writes(&layout, Dtype::Float32, |_| 0)
                        .map(|write| (write.device, write.region))
                        .collect();
                    found.sort_by_key(|(device, _)| *device);
                    assert_eq!(found, expected, "{at} {shape} {replicas:?}");
                }
                laid_out += 1;
            }
        }
    }
    assert!(laid_out > 500 && refused > 200, "{laid_out} {refused}");
}

fn named(axes: &[(&str, u64)], spec: PartitionSpec) -> NamedSharding {
    NamedSharding::new(Mesh::new(axes.iter().copied()), spec)
}

fn error_of(sharding: impl Into<Sharding>, shape: &[u64]) -> Error {
    sharding.into().layout(&Shape::new(shape).unwrap()).unwrap_err()
}

#[test]
fn an_impossible_sharding_is_an_error_only_when_regions_are_asked() {
    let entry = |text: &str| Sharding::from_json(serde_json::from_str(text).unwrap());
    for (text, shape, what) in [
        (
            r#"{"sharding_type":"NamedSharding","shape":[2],"axis_names":["x"],"partition_spec":["z"]}"#,
            &[4][..],
            "names an axis that the mesh does not have",
        ),
        (
            r#"{"sharding_type":"NamedSharding","shape":[2],"axis_names":["x"],"partition_spec":["x","x"]}"#,
            &[4, 4],
            "uses the axis \"x\" twice",
        ),
        (
            r#"{"sharding_type":"NamedSharding","shape":[2],"axis_names":["x"],"partition_spec":[["x","x"]]}"#,
            &[4, 4],
            "uses the axis \"x\" twice",
        ),
        (
            r#"{"sharding_type":"NamedSharding","shape":[2],"axis_names":["x"],"partition_spec":["x",null]}"#,
            &[4],
            "more axes than the array",
        ),
        (
            r#"{"sharding_type":"NamedSharding","shape":[3],"axis_names":["x"],"partition_spec":["x"]}"#,
            &[4],
            "unequal parts",
        ),
        (
            r#"{"sharding_type":"NamedSharding","shape":[2,2],"axis_names":["x"],"partition_spec":["x"]}"#,
            &[4],
            "one name for each",
        ),
        (
            r#"{"sharding_type":"NamedSharding","shape":[2,2],"axis_names":["x","x"],"partition_spec":["x"]}"#,
            &[4],
            "two axes with the name \"x\"",
        ),
        (
            r#"{"sharding_type":"NamedSharding","shape":[0],"axis_names":["x"],"partition_spec":[]}"#,
            &[4],
            "size 0",
        ),
        (
            r#"{"sharding_type":"NamedSharding","shape":[4294967296,4294967296],"axis_names":["x","y"],"partition_spec":[]}"#,
            &[4],
            "more than 16777216 devices",
        ),
        (
            r#"{"sharding_type":"NamedSharding","shape":[2],"axis_names":["x"],"partition_spec":["x"],"device_mesh":{"mesh":[{"id":1},{"id":1}]}}"#,
            &[4],
            "device 1 occurs twice",
        ),
        (
            r#"{"sharding_type":"NamedSharding","shape":[2],"axis_names":["x"],"partition_spec":["x"],"device_mesh":{"mesh":[{"id":1}]}}"#,
            &[4],
            "number of devices does not fit",
        ),
        (
            r#"{"sharding_type":"NamedSharding","shape":[2],"axis_names":["x"],"partition_spec":[{"unconstrained":true}]}"#,
            &[4],
            "does not say how axis 0 is sharded",
        ),
        (r#"{"sharding_type":"PositionalSharding","shape":[2]}"#, &[4, 4], "does not fit"),
        (r#"{"sharding_type":"PositionalSharding","shape":[3]}"#, &[4], "does not fit"),
        (
            r#"{"sharding_type":"PositionalSharding","shape":[18446744073709551615,18446744073709551615]}"#,
            &[0, 0],
            "more than 16777216 devices",
        ),
        (r#"{"sharding_type":"GSPMDSharding"}"#, &[4], "GSPMDSharding"),
        (r#"{"sharding_type":"NamedSharding","shape":"x"}"#, &[4], "unknown kind or invalid values"),
    ] {
        let error = error_of(entry(text), shape);
        assert!(error.what().contains(what), "{text}\n{error}");
    }
}

#[test]
fn uneven_shards_equal_those_of_torch() {
    let uneven = |axes: &[(&str, u64)], spec: PartitionSpec, shape: &[u64]| {
        let sharding = Sharding::from(named(axes, spec).with_split(Split::CeilDivision));
        sharding.layout(&Shape::new(shape).unwrap()).unwrap()
    };
    let texts =
        |layout: &Layout| layout.placements().map(|placed| placed.region.to_string()).collect::<Vec<_>>();
    let layout = uneven(&[("x", 4)], PartitionSpec::new([Some("x")]), &[5]);
    assert_eq!(texts(&layout), ["[0:2]", "[2:4]", "[4:5]", "[5:5]"]);
    assert_eq!(layout.shard_shape().dims(), [2]);
    let spec = PartitionSpec::new([AxisSpec::Axes(vec!["x".into(), "y".into()])]);
    let layout = uneven(&[("x", 2), ("y", 2)], spec.clone(), &[10]);
    assert_eq!(texts(&layout), ["[0:3]", "[3:5]", "[5:8]", "[8:10]"]);
    let layout = uneven(&[("y", 2), ("r", 2), ("x", 2)], PartitionSpec::new([None, Some("x")]), &[2, 3]);
    assert_eq!(texts(&layout)[..3], ["[0:2,0:2]", "[0:2,2:3]", "[0:2,0:2]"]);
    assert_eq!(
        layout.placements().map(|placed| placed.replica).collect::<Vec<_>>(),
        [0, 0, 1, 1, 2, 2, 3, 3]
    );
    assert!(
        error_of(named(&[("x", 2), ("y", 2)], spec), &[10]).help_text().unwrap().contains("ceil division")
    );
    // Orbax has no name for it: written as an entry, it would keep Orbax from restoring the leaf.
    let own = Sharding::from(named(&[("x", 2)], PartitionSpec::default()).with_split(Split::CeilDivision));
    let text = regrow_layouts::orbax::sharding::to_json([("a", Some(&own))]).unwrap();
    assert_eq!(String::from_utf8(text).unwrap(), r#"{"YQ==":""}"#);
    assert_eq!(Sharding::from_json(own.to_json()), own);
}

#[test]
fn shardings_read_like_jax() {
    let spec = PartitionSpec::new([
        AxisSpec::Axis("x".into()),
        AxisSpec::Axes(vec!["y".into(), "z".into()]),
        AxisSpec::Whole,
        AxisSpec::Axes(vec!["w".into()]),
        AxisSpec::Unconstrained,
    ]);
    let sharding = named(&[("x", 4), ("y", 2)], spec);
    assert_eq!(
        Sharding::from(sharding.clone()).to_string(),
        "P('x', ('y', 'z'), None, ('w',), UNCONSTRAINED) over x=4,y=2"
    );
    assert!(
        Sharding::from(sharding.with_split(Split::CeilDivision))
            .to_string()
            .ends_with(" over x=4,y=2, uneven parts")
    );
    for (value, words) in [
        (
            json!({"sharding_type": "SingleDeviceSharding", "device_str": "TFRT_CPU_0"}),
            "one device (TFRT_CPU_0)",
        ),
        (json!({"sharding_type": "PositionalSharding", "shape": [2, 4]}), "grid of 2x4 devices"),
        (json!({"sharding_type": "GSPMDSharding"}), "GSPMDSharding"),
        (json!("odd"), "\"odd\""),
        (
            json!({"sharding_type": "NamedSharding", "shape": [], "axis_names": [], "partition_spec": []}),
            "P() over one device",
        ),
    ] {
        assert_eq!(Sharding::from_json(value).to_string(), words);
    }
}

/// A mesh of up to three axes and a spec over it, for an array of up to three axes.
fn any_sharding() -> impl Strategy<Value = (Sharding, Shape)> {
    let sizes = proptest::collection::vec(1_u64..5, 1..4);
    // Each axis of the mesh cuts one axis of the array, or none.
    (
        sizes,
        proptest::collection::vec(0_usize..4, 3),
        proptest::collection::vec(0_u64..14, 1..4),
        any::<bool>(),
    )
        .prop_map(|(sizes, cuts, dims, reversed)| {
            let names = ["x", "y", "z"];
            let mut by: Vec<Vec<std::sync::Arc<str>>> = vec![Vec::new(); dims.len()];
            for (at, _) in sizes.iter().enumerate() {
                if let Some(axis) = by.get_mut(cuts[at]) {
                    axis.push(names[at].into());
                }
            }
            if reversed {
                by.iter_mut().for_each(|axes| axes.reverse());
            }
            let mesh = Mesh::new(names.into_iter().zip(sizes));
            let spec = PartitionSpec::new(by.into_iter().map(AxisSpec::Axes));
            (NamedSharding::new(mesh, spec).with_split(Split::CeilDivision).into(), Shape::new(dims).unwrap())
        })
}

proptest! {
    #[test]
    fn all_devices_together_write_every_element_once((sharding, shape) in any_sharding(), replicas_max in proptest::option::of(0_u64..4)) {
        let layout = sharding.layout(&shape).unwrap();
        for replicas in [Replicas::First, Replicas::PARALLEL, Replicas::Parallel { slice_len_min_bytes: 8, replicas_max }] {
            let writes: Vec<Region> = replicas.writes(&layout, Dtype::Int16, |_| 0).map(|write| write.region).collect();
            check_tiling(&shape, &writes).unwrap();
        }
        // Every part is held by as many devices as there are replicas.
        let mut counts = std::collections::HashMap::<Region, Vec<u64>>::new();
        for placed in layout.placements().filter(|placed| !placed.region.is_empty()) {
            counts.entry(placed.region).or_default().push(placed.replica);
        }
        for replicas in counts.values() {
            prop_assert_eq!(replicas, &(0..layout.replica_count()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_tiling_is_one_exactly_if_every_element_is_held_once(
        dims in proptest::collection::vec(1_u64..5, 1..4),
        boxes in proptest::collection::vec(proptest::collection::vec((0_u64..5, 0_u64..5), 3), 0..6),
        damage in 0_usize..4,
    ) {
        let shape = Shape::new(dims.clone()).unwrap();
        // Random regions, or the cells of a grid with one changed.
        let clipped = |bounds: &Vec<(u64, u64)>| {
            let starts: Vec<u64> = bounds.iter().zip(&dims).map(|(bound, dim)| bound.0.min(*dim)).collect();
            let lens: Vec<u64> = bounds.iter().zip(&dims).zip(&starts).map(|((bound, dim), start)| bound.1.min(dim - start)).collect();
            Region::new(starts, lens).unwrap()
        };
        let mut regions: Vec<Region> = boxes.iter().map(clipped).collect();
        if damage < 3 {
            let chunk = Shape::new(dims.iter().map(|dim| dim.div_ceil(2)).collect::<Vec<_>>()).unwrap();
            let grid = regrow::sharding::Grid::of_chunks(&shape, &chunk).unwrap();
            let mut cells = Vec::new();
            grid.each_touched(&Region::whole(&shape), |_, cell| cells.push(cell.clone()));
            if let Some(cell) = cells.first_mut().filter(|_| damage > 0) {
                *cell = regions.pop().unwrap_or_else(|| Region::whole(&shape));
            }
            regions = cells;
        }
        let mut held = std::collections::HashMap::<Vec<u64>, usize>::new();
        let points = |region: &Region| {
            let mut points = vec![Vec::new()];
            for (&start, &len) in region.starts().iter().zip(region.lens()) {
                points = points.into_iter().flat_map(|point: Vec<u64>| (start..start + len).map(move |at| [point.clone(), vec![at]].concat())).collect();
            }
            points
        };
        regions.iter().flat_map(points).for_each(|point| *held.entry(point).or_default() += 1);
        let exact = points(&Region::whole(&shape)).iter().all(|point| held.get(point) == Some(&1));
        prop_assert_eq!(check_tiling(&shape, &regions).is_ok(), exact);
    }
}

#[test]
fn holes_and_overlaps_are_named() {
    let shape = Shape::new([64, 64, 64]).unwrap();
    let grid = regrow::sharding::Grid::of_chunks(&shape, &Shape::new([4, 4, 4]).unwrap()).unwrap();
    let mut cells = Vec::new();
    grid.each_touched(&Region::whole(&shape), |_, cell| cells.push(cell.clone()));
    assert_eq!(cells.len(), 4096);
    check_tiling(&shape, &cells).unwrap();
    let lost = cells.remove(2500);
    let error = check_tiling(&shape, &cells).unwrap_err();
    assert!(error.what().contains(&format!("{lost} of [64,64,64] is missing")), "{error}");
    cells.push(Region::new([36, 48, 16], [4, 5, 4]).unwrap());
    let error = check_tiling(&shape, &cells).unwrap_err();
    assert!(error.what().ends_with("overlap: [36:40,52:53,16:20] of [64,64,64] is in both"), "{error}");
    assert!(
        error.what().contains("[36:40,48:53,16:20]") && error.what().contains("[36:40,52:56,16:20]"),
        "{error}"
    );
    let beyond = Region::new([60, 0, 0], [5, 1, 1]).unwrap();
    assert!(check_tiling(&shape, [&beyond]).unwrap_err().what().contains("outside"));
    // The same number of elements as the array, and yet both a hole and an overlap.
    let shape = Shape::new([4]).unwrap();
    let halves = [Region::new([0], [2]).unwrap(), Region::new([1], [2]).unwrap()];
    assert!(check_tiling(&shape, &halves).unwrap_err().what().contains("overlap: [1:2]"));
    let nothing: [Region; 0] = [];
    assert!(check_tiling(&shape, &nothing).unwrap_err().what().contains("[0:4] of [4] is missing"));
    check_tiling(&Shape::new([0, 4]).unwrap(), &nothing).unwrap();
    check_tiling(&Shape::scalar(), [&Region::whole(&Shape::scalar())]).unwrap();
    assert!(check_tiling(&Shape::scalar(), &nothing).is_err());
    // Strips that lie crosswise: no grid holds them, and none are compared in pairs.
    let shape = Shape::new([4000, 2000]).unwrap();
    let rows = (0..2000).map(|row| Region::new([row, 0], [1, 2000]).unwrap());
    let columns = (0..2000).map(|column| Region::new([2000, column], [2000, 1]).unwrap());
    check_tiling(&shape, &rows.chain(columns).collect::<Vec<_>>()).unwrap();
}

#[test]
fn regular_grids_of_regions_are_recognised() {
    let regions = |axes: &[&[u64]]| {
        let mut all: Vec<(Vec<u64>, Vec<u64>)> = vec![(Vec::new(), Vec::new())];
        for bounds in axes {
            all = all
                .into_iter()
                .flat_map(|(starts, lens)| {
                    bounds
                        .windows(2)
                        .map(move |part| {
                            (
                                [starts.clone(), vec![part[0]]].concat(),
                                [lens.clone(), vec![part[1] - part[0]]].concat(),
                            )
                        })
                        .collect::<Vec<_>>()
                })
                .collect();
        }
        all.into_iter().map(|(starts, lens)| Region::new(starts, lens).unwrap()).collect::<Vec<_>>()
    };
    for (dims, axes, chunks_max, expected) in [
        (&[16, 8][..], &[&[0, 4, 8, 12, 16][..], &[0, 8]][..], 0, Some(vec![4, 8])),
        (&[10], &[&[0, 3, 6, 9, 10]], 0, Some(vec![3])),
        (&[5], &[&[0, 2, 4, 5, 5]], 0, Some(vec![2])),
        (&[10], &[&[0, 3, 5, 8, 10]], 10, Some(vec![1])),
        (&[10], &[&[0, 3, 5, 8, 10]], 9, None),
        (&[12, 3], &[&[0, 4, 6, 12], &[0, 3]], 6, Some(vec![2, 3])),
        (&[0, 6], &[&[0, 0], &[0, 2, 4, 6]], 3, Some(vec![1, 6])),
        (&[], &[], 1, Some(vec![])),
    ] {
        let shape = Shape::new(dims).unwrap();
        let found = chunk_shape(&shape, &regions(axes), chunks_max);
        assert_eq!(found, expected.map(|dims: Vec<u64>| Shape::new(dims).unwrap()), "{axes:?}");
    }
}
