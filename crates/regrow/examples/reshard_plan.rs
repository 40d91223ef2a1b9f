//! The cost of planning how a model is distributed again, and the quality of the plans. No devices,
//! no data.
//!
//!     cargo run --release --example reshard_plan
//!
//! The arrays are those of Llama-3-8B, layer by layer, 9 of a layer; their axes are cut by the mesh
//! axes data, fsdp and tensor. 8 devices are a process. Bytes are what the processes read; the
//! bound is the union of what the devices of a process hold, so that nothing is read twice in one
//! process. Balance is the busiest process against the mean. Time is one thread's, for the layouts
//! before and after, the pieces, what is wanted and the steps.

use std::collections::HashSet;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use regrow::array::{Region, Shape};
use regrow::sharding::{
    AxisSpec, Layout, Mesh, NamedSharding, PartitionSpec, Pieces, Sharding, Split, Wanted, plan,
};

const DEVICES_PER_PROCESS: u64 = 8;
const LAYERS: usize = 32;

/// Bytes of an element: bfloat16.
const ELEMENT_LEN_BYTES: u64 = 2;

type Axes = [u64; 3];

const CASES: [(Axes, Axes); 9] = [
    ([8, 2, 1], [1, 16, 1]),
    ([8, 2, 1], [1, 4, 1]),
    ([8, 2, 1], [8, 2, 1]),
    ([4, 8, 4], [1, 32, 1]),
    ([4, 8, 4], [1, 128, 1]),
    ([1, 1, 8], [1, 1, 6]),
    ([16, 16, 4], [1, 256, 4]),
    ([32, 16, 4], [1, 512, 4]),
    ([64, 16, 4], [1, 1024, 4]),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = &mut io::stdout().lock();
    let model = llama()?;
    writeln!(out, "{} leaves, every process", model.len())?;
    writeln!(out, "from         to             processes  steps  read GB  of bound  balance  us a process")?;
    for (from, to) in CASES {
        let process_count = (to.iter().product::<u64>()).div_ceil(DEVICES_PER_PROCESS);
        let mut all = Cost::default();
        let mut most_bytes = 0;
        for process in 0..process_count {
            let cost = cost(&model, from, to, process)?;
            most_bytes = most_bytes.max(cost.bytes);
            all.add(&cost);
        }
        writeln!(
            out,
            "{:<12} {:<12} {process_count:>11} {:>6} {:>8.2} {:>9.4} {:>8.3} {:>13.0}",
            format!("{from:?}").replace(", ", "x"),
            format!("{to:?}").replace(", ", "x"),
            all.steps,
            all.bytes as f64 / 1e9,
            all.bytes as f64 / all.bound_bytes as f64,
            (most_bytes * process_count) as f64 / all.bytes as f64,
            all.time.as_secs_f64() * 1e6 / process_count as f64,
        )?;
    }
    writeln!(out, "\none process of many devices; data x 16 x 4 becomes 1 x fsdp x 4")?;
    writeln!(out, "devices  leaves   steps  read GB  of bound       ms  ns a step")?;
    for (device_count, leaf_count) in
        [(1024, 10_000), (2048, 10_000), (4096, 10_000), (4096, 5000), (4096, 2500)]
    {
        let leaves: Vec<_> = model.iter().cycle().take(leaf_count).cloned().collect();
        let (from, to) = ([device_count / 64, 16, 4], [1, device_count / 4, 4]);
        // The best of three: a plan takes milliseconds.
        let mut best: Option<Cost> = None;
        for _ in 0..3 {
            let cost = cost(&leaves, from, to, 3)?;
            best = Some(best.filter(|best| best.time < cost.time).unwrap_or(cost));
        }
        let best = best.unwrap_or_default();
        writeln!(
            out,
            "{device_count:>7} {leaf_count:>7} {:>7} {:>8.3} {:>9.4} {:>8.2} {:>10.0}",
            best.steps,
            best.bytes as f64 / 1e9,
            best.bytes as f64 / best.bound_bytes as f64,
            best.time.as_secs_f64() * 1e3,
            best.time.as_secs_f64() * 1e9 / best.steps as f64,
        )?;
    }
    Ok(())
}

#[derive(Default)]
struct Cost {
    time: Duration,
    steps: usize,
    bytes: u64,
    bound_bytes: u64,
}

impl Cost {
    fn add(&mut self, other: &Self) {
        self.time += other.time;
        self.steps += other.steps;
        self.bytes += other.bytes;
        self.bound_bytes += other.bound_bytes;
    }
}

/// The plans of one process for all leaves.
fn cost(leaves: &[(Shape, PartitionSpec)], from: Axes, to: Axes, process: u64) -> regrow::Result<Cost> {
    let mut cost = Cost::default();
    let mesh =
        |sizes: Axes| std::sync::Arc::new(Mesh::new(["data", "fsdp", "tensor"].into_iter().zip(sizes)));
    let (from, to) = (mesh(from), mesh(to));
    let layout =
        |mesh: &std::sync::Arc<Mesh>, spec: &PartitionSpec, shape: &Shape| -> regrow::Result<Layout> {
            let named = NamedSharding::new(mesh.clone(), spec.clone()).with_split(Split::CeilDivision);
            Sharding::from(named).layout(shape)
        };
    let first = process * DEVICES_PER_PROCESS;
    for (shape, spec) in leaves {
        let begun = Instant::now();
        let target = layout(&to, spec, shape)?;
        let positions = first..(first + DEVICES_PER_PROCESS).min(target.device_count());
        let pieces = Pieces::grid(layout(&from, spec, shape)?.grid().clone());
        let plan = plan(&pieces, &Wanted::of_devices(&target, positions.clone())?)?;
        cost.time += begun.elapsed();
        cost.steps += plan.steps.len();
        cost.bytes += plan.steps.iter().map(|step| step.from.len_elements()).sum::<u64>() * ELEMENT_LEN_BYTES;
        let held: HashSet<Region> = positions.map(|at| target.region(at)).collect::<regrow::Result<_>>()?;
        cost.bound_bytes += held.iter().map(Region::len_elements).sum::<u64>() * ELEMENT_LEN_BYTES;
    }
    Ok(cost)
}

/// Shapes of Llama-3-8B, with what cuts them.
fn llama() -> regrow::Result<Vec<(Shape, PartitionSpec)>> {
    let both = || PartitionSpec::new([AxisSpec::Axes(vec!["fsdp".into(), "tensor".into()]), AxisSpec::Whole]);
    let wide = || PartitionSpec::new([Some("fsdp"), Some("tensor")]);
    let tall = || PartitionSpec::new([Some("tensor"), Some("fsdp")]);
    let norm = || PartitionSpec::new([Some("fsdp")]);
    let mut leaves = vec![(Shape::new([128_256, 4096])?, both()), (Shape::new([128_256, 4096])?, both())];
    leaves.push((Shape::new([4096])?, norm()));
    for _ in 0..LAYERS {
        for (dims, spec) in [
            ([4096, 4096], wide()),
            ([4096, 1024], wide()),
            ([4096, 1024], wide()),
            ([4096, 4096], tall()),
            ([4096, 14_336], wide()),
            ([4096, 14_336], wide()),
            ([14_336, 4096], tall()),
        ] {
            leaves.push((Shape::new(dims)?, spec));
        }
        leaves.push((Shape::new([4096])?, norm()));
        leaves.push((Shape::new([4096])?, norm()));
    }
    Ok(leaves)
}
