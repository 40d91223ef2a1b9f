//! Plans of new shardings, without devices: which process reads which regions, the bytes, and the
//! steps.

use std::collections::HashMap;

use proptest::prelude::*;
use regrow::array::{Dtype, Region, Shape};
use regrow::sharding::{
    AxisSpec, Grid, Layout, Mesh, NamedSharding, PartitionSpec, Pieces, Plan, Replicas, Sharding, Split,
    Wanted, check_tiling, plan, spread,
};

/// Meshes of data, fsdp and tensor, before and after: the first five are what Orbax measures with
/// Llama 8B and 70B, the last does not divide.
const CASES: [([u64; 3], [u64; 3]); 6] = [
    ([8, 2, 1], [1, 16, 1]),
    ([8, 2, 1], [1, 4, 1]),
    ([8, 2, 1], [8, 2, 1]),
    ([4, 8, 4], [1, 32, 1]),
    ([4, 8, 4], [1, 128, 1]),
    ([1, 1, 8], [1, 1, 6]),
];

/// The same on machines of up to 4,096 devices.
const LARGE: [([u64; 3], [u64; 3]); 3] =
    [([64, 16, 4], [1, 1024, 4]), ([4, 256, 4], [16, 64, 4]), ([1, 512, 8], [2, 340, 6])];

const DEVICES_PER_PROCESS: u64 = 8;

/// The arrays of a layer of Llama-3-8B, and what cuts them.
fn llama() -> Vec<(Vec<u64>, PartitionSpec)> {
    let both = || AxisSpec::Axes(vec!["fsdp".into(), "tensor".into()]);
    let axis = |name: &str| AxisSpec::Axis(name.into());
    vec![
        (vec![128_256, 4096], PartitionSpec::new([both(), AxisSpec::Whole])),
        (vec![4096, 4096], PartitionSpec::new([axis("fsdp"), axis("tensor")])),
        (vec![4096, 1024], PartitionSpec::new([axis("fsdp"), axis("tensor")])),
        (vec![4096, 14_336], PartitionSpec::new([axis("fsdp"), axis("tensor")])),
        (vec![14_336, 4096], PartitionSpec::new([axis("tensor"), axis("fsdp")])),
        (vec![4096], PartitionSpec::new([axis("fsdp")])),
        (vec![4096], PartitionSpec::default()),
    ]
}

fn layout(mesh: [u64; 3], spec: &PartitionSpec, shape: &Shape) -> Layout {
    let mesh = Mesh::new(["data", "fsdp", "tensor"].into_iter().zip(mesh));
    Sharding::from(NamedSharding::new(mesh, spec.clone()).with_split(Split::CeilDivision))
        .layout(shape)
        .unwrap()
}

fn positions(process: u64, device_count: u64) -> std::ops::Range<u64> {
    let first = process * DEVICES_PER_PROCESS;
    first.min(device_count)..(first + DEVICES_PER_PROCESS).min(device_count)
}

fn process_count(device_count: u64) -> u64 {
    device_count.div_ceil(DEVICES_PER_PROCESS)
}

fn len_elements(plan: &Plan) -> u64 {
    plan.steps.iter().map(|step| step.from.len_elements()).sum()
}

/// Every element of every wanted region comes once, from the place in the array where it belongs.
fn assert_exact(pieces: &Pieces, wanted: &Wanted, plan: &Plan) {
    let mut of_piece = HashMap::new();
    pieces
        .each_touched(&Region::whole(pieces.shape()), |id, region| drop(of_piece.insert(id, region.clone())))
        .unwrap();
    let moved = |region: &Region, by: &[u64]| {
        let starts: Vec<u64> = region.starts().iter().zip(by).map(|(start, by)| start + by).collect();
        Region::new(starts, region.lens()).unwrap()
    };
    for (number, region) in wanted.regions().iter().enumerate() {
        let mut filled = Vec::new();
        for step in plan.steps.iter().filter(|step| step.wanted == number) {
            let piece = &of_piece[&step.piece];
            assert!(step.from.is_inside(&piece.shape()), "{} of a piece {piece}", step.from);
            assert_eq!(moved(&step.from, piece.starts()), moved(&step.to, region.starts()));
            filled.push(step.to.clone());
        }
        for copy in plan.copies.iter().filter(|copy| copy.wanted == number) {
            assert!(copy.source < number, "a source that is not complete yet");
            let source = &wanted.regions()[copy.source];
            assert!(copy.from.is_inside(&source.shape()));
            assert_eq!(moved(&copy.from, source.starts()), moved(&copy.to, region.starts()));
            filled.push(copy.to.clone());
        }
        check_tiling(&region.shape(), &filled).unwrap();
    }
    assert!(plan.steps.is_sorted_by_key(|step| step.piece));
}

/// The number of elements that lie in at least one of some regions, which lie on the grid of their
/// own bounds.
fn union_len(regions: &[Region]) -> u64 {
    let Some(first) = regions.first() else { return 0 };
    if first.rank() == 0 {
        return 1;
    }
    // Slabs of the first axis, each with the union of what is left of the regions in it.
    let ends = regions.iter().flat_map(|region| [region.starts()[0], region.starts()[0] + region.lens()[0]]);
    let mut bounds: Vec<u64> = ends.collect();
    bounds.sort_unstable();
    bounds.dedup();
    let slab = |bounds: &[u64]| {
        let inside = |region: &&Region| {
            region.starts()[0] <= bounds[0] && bounds[0] < region.starts()[0] + region.lens()[0]
        };
        let rest = |region: &Region| Region::new(&region.starts()[1..], &region.lens()[1..]).unwrap();
        (bounds[1] - bounds[0]) * union_len(&regions.iter().filter(inside).map(rest).collect::<Vec<_>>())
    };
    bounds.windows(2).map(slab).sum()
}

#[test]
fn every_process_reads_the_regions_of_its_devices_once() {
    for (from, to) in CASES {
        for (dims, spec) in llama() {
            let shape = Shape::new(dims).unwrap();
            let (saved, target) = (layout(from, &spec, &shape), layout(to, &spec, &shape));
            let pieces = Pieces::grid(saved.grid().clone());
            let mut loads = Vec::new();
            for process in 0..process_count(target.device_count()) {
                let positions = positions(process, target.device_count());
                let held: Vec<Region> = positions.clone().map(|at| target.region(at).unwrap()).collect();
                let wanted = Wanted::of_devices(&target, positions).unwrap();
                for (region, &number) in held.iter().zip(wanted.region_of()) {
                    assert_eq!(region, &wanted.regions()[number]);
                }
                let plan = plan(&pieces, &wanted).unwrap();
                assert_exact(&pieces, &wanted, &plan);
                assert_eq!(plan.copies, []);
                assert_eq!(len_elements(&plan), union_len(&held), "{from:?} {to:?} {shape} {spec}");
                assert_eq!(len_elements(&plan), wanted.len_elements());
                loads.push(len_elements(&plan));
            }
            // Parts are equal, or one row of the longest part shorter where they do not divide.
            let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
            let is_even = to.iter().all(|size| size.is_power_of_two());
            assert!(
                if is_even { least == most } else { *most < 2 * least },
                "{from:?} {to:?} {shape}: {loads:?}"
            );
        }
    }
}

#[test]
fn a_mesh_that_stays_reads_whole_pieces_and_nothing_twice() {
    let shape = Shape::new([4096, 14_336]).unwrap();
    let spec = PartitionSpec::new([Some("fsdp"), Some("tensor")]);
    for (mesh, process_count) in [([8, 2, 1], 2), ([4, 8, 4], 16)] {
        let layout = layout(mesh, &spec, &shape);
        let pieces = Pieces::grid(layout.grid().clone());
        for process in 0..process_count {
            let wanted = Wanted::of_devices(&layout, positions(process, layout.device_count())).unwrap();
            let plan = plan(&pieces, &wanted).unwrap();
            // A step a distinct region, each a piece as it is.
            assert_eq!(plan.steps.len(), wanted.regions().len());
            assert!(
                plan.steps
                    .iter()
                    .all(|step| step.from == step.to && step.from.shape() == layout.shard_shape())
            );
        }
    }
}

#[test]
fn a_plan_costs_only_the_devices_it_touches() {
    for (from, to) in LARGE {
        let mut loads: Vec<u64> = Vec::new();
        for (dims, spec) in llama() {
            let shape = Shape::new(dims).unwrap();
            let (saved, target) = (layout(from, &spec, &shape), layout(to, &spec, &shape));
            let pieces = Pieces::grid(saved.grid().clone());
            let piece = saved.shard_shape();
            loads.resize(process_count(target.device_count()) as usize, 0);
            for (process, load) in (0..).zip(&mut loads) {
                let wanted = Wanted::of_devices(&target, positions(process, target.device_count())).unwrap();
                let plan = plan(&pieces, &wanted).unwrap();
                assert_eq!(len_elements(&plan), wanted.len_elements());
                // On each axis a region of n elements meets at most n / piece + 2 pieces.
                let most = wanted.regions().iter().map(|region| {
                    let axes = region.lens().iter().zip(piece.dims());
                    axes.map(|(len, step)| len / step.max(&1) + 2).product::<u64>()
                });
                assert!(
                    plan.steps.len() as u64 <= most.sum::<u64>(),
                    "{from:?} {to:?} {shape}: {}",
                    plan.steps.len()
                );
                *load += len_elements(&plan);
            }
        }
        let (sum, most) = (loads.iter().sum::<u64>(), *loads.iter().max().unwrap());
        let share = sum / loads.len() as u64;
        // 340 parts of 4,096 rows are 316 of 13, none of them whole multiples: the last processes
        // have nothing to read.
        let slack = if to[1].is_power_of_two() { share / 100 } else { share / 4 };
        assert!(most <= share + slack, "{from:?} {to:?}: {most} of {share}");
    }
}

#[test]
fn a_plan_of_ten_thousand_leaves_shares_the_steps_of_equal_leaves() {
    let kinds = llama();
    let (from, to) = ([4, 256, 4], [16, 64, 4]);
    let (mut steps, mut expected) = (0, 0);
    for leaf in 0..10_000 {
        let (dims, spec) = &kinds[leaf % kinds.len()];
        let shape = Shape::new(dims.clone()).unwrap();
        let (saved, target) = (layout(from, spec, &shape), layout(to, spec, &shape));
        let wanted = Wanted::of_devices(&target, positions(77, 4096)).unwrap();
        let plan = plan(&Pieces::grid(saved.grid().clone()), &wanted).unwrap();
        assert_eq!(len_elements(&plan), wanted.len_elements());
        steps += plan.steps.len();
        // Four parts of the old mesh make one of the new; the tensor axis stays. Two rows of four
        // devices.
        expected += match spec.axes() {
            [] => 1,
            [AxisSpec::Axes(_), ..] => 8 * 4,
            [_] => 2 * 4,
            _ => 2 * 4 * 4,
        };
    }
    assert_eq!(steps, expected);
}

#[test]
fn writers_have_equal_shares() {
    let kinds = llama();
    for mesh in CASES.iter().flat_map(|(from, to)| [*from, *to]).filter(|mesh| mesh[2] != 6) {
        let device_count: u64 = mesh.iter().product();
        for replicas in [Replicas::First, Replicas::PARALLEL] {
            let mut loads = vec![0_u64; process_count(device_count) as usize];
            for (dims, spec) in &kinds {
                let shape = Shape::new(dims.clone()).unwrap();
                let layout = layout(mesh, spec, &shape);
                let process_of = |device: u64| (device / DEVICES_PER_PROCESS) as usize;
                let writes: Vec<_> = replicas.writes(&layout, Dtype::BFloat16, process_of).collect();
                check_tiling(&shape, writes.iter().map(|write| &write.region)).unwrap();
                for write in writes {
                    loads[write.process] += 2 * write.region.len_elements();
                }
            }
            let (least, most) = (*loads.iter().min().unwrap(), *loads.iter().max().unwrap());
            match replicas {
                // Only those with replica 0 write.
                Replicas::First => {
                    assert!(mesh[0] == 1 && most - least <= 8192 || mesh[0] > 1 && least < most)
                }
                Replicas::Parallel { .. } => assert_eq!(least, most, "{mesh:?}"),
            }
            // What every process has goes to those that have less.
            let whole: Vec<u64> = (0..1000).map(|at| 4096 * (1 + at % 7)).collect();
            let chosen = spread(&whole, &mut loads.clone());
            assert_eq!(chosen, spread(&whole, &mut loads.clone()));
            spread(&whole, &mut loads);
            let share = loads.iter().sum::<u64>() / loads.len() as u64;
            assert!(*loads.iter().max().unwrap() <= most.max(share + 7 * 4096));
        }
    }
}

fn any_regions() -> impl Strategy<Value = Vec<Region>> {
    let region = |((a, b), (c, d)): ((u64, u64), (u64, u64))| {
        Region::new([a, b], [c.min(12 - a), d.min(9 - b)]).unwrap()
    };
    proptest::collection::vec(((0_u64..12, 0_u64..9), (0_u64..8, 0_u64..8)).prop_map(region), 0..9)
}

proptest! {
    #[test]
    fn any_regions_are_read_once_from_any_pieces(regions in any_regions(), chunk in (1_u64..6, 1_u64..6), is_listed in any::<bool>()) {
        let shape = Shape::new([12, 9]).unwrap();
        let grid = Grid::of_chunks(&shape, &Shape::new([chunk.0, chunk.1]).unwrap()).unwrap();
        let mut pieces = Pieces::grid(grid.clone());
        if is_listed {
            // In another order, and two of them as one, so that they lie on no grid.
            let mut listed = Vec::new();
            grid.each_touched(&Region::whole(&shape), |id, region| listed.push((region.clone(), 1000 - id)));
            listed.reverse();
            if let [(first, _), (second, _), ..] = &mut listed[..]
                && first.starts()[0] == second.starts()[0]
            {
                let len = first.lens()[1] + second.lens()[1];
                *second = Region::new(second.starts(), [first.lens()[0], len]).unwrap();
                listed.remove(0);
            }
            pieces = Pieces::listed(&shape, listed).unwrap();
        }
        let wanted = Wanted::of_regions(regions.iter().cloned()).unwrap();
        let plan = plan(&pieces, &wanted).unwrap();
        assert_exact(&pieces, &wanted, &plan);
        prop_assert_eq!(len_elements(&plan), union_len(&regions));
        for (region, &number) in regions.iter().zip(wanted.region_of()) {
            prop_assert_eq!(region, &wanted.regions()[number]);
        }
    }
}

#[test]
fn plans_that_do_not_fit_are_refused() {
    let shape = Shape::new([4, 4]).unwrap();
    let region = |starts: [u64; 2], lens: [u64; 2]| Region::new(starts, lens).unwrap();
    let halves = [(region([0, 0], [2, 4]), 7), (region([2, 0], [2, 4]), 9)];
    let error = Pieces::listed(&shape, halves[..1].to_vec()).unwrap_err();
    assert!(error.what().contains("[2:4,0:4] of [4,4] is missing"), "{error}");
    let pieces = Pieces::listed(&shape, halves).unwrap();
    let beyond = Wanted::of_regions([region([3, 0], [2, 1])]).unwrap();
    assert!(plan(&pieces, &beyond).unwrap_err().what().contains("[3:5,0:1] is outside"));
    let ranks = [Region::new([0], [1]).unwrap(), region([0, 0], [1, 1])];
    assert!(Wanted::of_regions(ranks).unwrap_err().what().contains("do not belong to one array"));
    let layout = layout([1, 2, 1], &PartitionSpec::default(), &shape);
    assert!(Wanted::of_devices(&layout, [2]).unwrap_err().what().contains("device 2 does not exist"));
    assert!(Grid::of_chunks(&shape, &Shape::new([0, 4]).unwrap()).is_err());
    let wanted = Wanted::of_regions([region([1, 0], [2, 4])]).unwrap();
    let steps: Vec<String> = plan(&pieces, &wanted)
        .unwrap()
        .steps
        .iter()
        .map(|step| format!("{} {} {}", step.piece, step.from, step.to))
        .collect();
    assert_eq!(steps, ["7 [1:2,0:4] [0:1,0:4]", "9 [0:1,0:4] [1:2,0:4]"]);
}
