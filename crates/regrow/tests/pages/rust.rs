#![allow(warnings, clippy::all, clippy::pedantic, clippy::restriction)]

pub fn run() -> regrow::Result<()> {
let folder = tempfile::tempdir().unwrap();
std::env::set_current_dir(&folder).unwrap();
let model = Model { kernel: vec![0.5; 4], step: 3 };
#[derive(regrow::Pytree)]
struct Model {
    kernel: Vec<f32>,
    step: u64,
}

regrow::save("runs/model", &model)?;
let model: Model = regrow::load("runs/model")?;
use regrow::array::{Array, Dtype, Shape};
use regrow::tree::{Key, Leaf, NodeKind, Scalar, Tree, TreeBuilder};

let shape = Shape::new(vec![2, 3])?;
let kernel = Array::new(Dtype::Float32, shape, vec![0; 24].into())?;
let mut build = TreeBuilder::new();
build.open(Key::Index(0), NodeKind::Dict)?;  // the root's key is ignored
build.leaf(Key::dict("kernel"), Leaf::array(kernel))?;
build.leaf(Key::dict("step"), Leaf::scalar(Scalar::Int(100)))?;
build.close()?;
let tree = build.finish()?;
use regrow::{SaveOptions, engine::{Compression, Layout, OrbaxOptions}};

let zarr3 = OrbaxOptions { zarr3: true, ..Default::default() };
regrow::save("runs/step_100", &tree)?;
regrow::save_with("runs/step_100", &tree, &SaveOptions {
    overwrite: true,
    layout: Layout::Orbax(zarr3),
    compression: Some(Compression::Zstd(3)),
    ..Default::default()
})?;
use regrow::engine::{ItemsOptions, ItemsSave};

let save = ItemsSave::begin("runs/step_300", ItemsOptions::default())?;
save.tree("state", &tree, &SaveOptions::default())?;
save.json("config", &serde_json::json!({"width": 1024}))?;
save.metrics(&serde_json::json!({"loss": 0.25}))?;
save.commit()?;                // a drop before it leaves nothing

let checkpoint = regrow::open("runs/step_300")?;
let item = checkpoint.item("state")?;
let state: Tree<Leaf> = item.load(&Default::default())?;
#[derive(regrow::Pytree)]
struct Params {
    kernel: Vec<[f32; 64]>,
}
#[derive(regrow::Pytree)]
struct State {
    params: Params,
}
let state = State { params: Params { kernel: vec![[0.5; 64]; 32] } };
let replace = SaveOptions { overwrite: true, ..Default::default() };
for path in ["runs/step_100", "runs/step_101"] {
    regrow::save_with(path, &state, &replace)?;
}
let flax = Layout::from_name("flax", serde_json::Value::Null)?;
regrow::save_with("model.msgpack", &state, &SaveOptions { layout: flax, ..Default::default() })?;
use regrow::{LoadOptions, tree::PathPattern};

let all: Tree<Leaf> = regrow::load("runs/step_100")?;
let params = LoadOptions {
    only: vec![PathPattern::new("params/**")?],
    ..Default::default()
};
let params: Tree<Leaf> = regrow::load_with("runs/step_100", &params)?;
use regrow::{LeafRegion, RegionOptions, array::Region};

let checkpoint = regrow::open("runs/step_100")?;   // metadata only
for (path, leaf) in checkpoint.tree().iter() {
    println!("{path} {} {}", leaf.dtype, leaf.shape);
}
let leaf = checkpoint.find("params/kernel")?;
let region = Region::new(vec![0, 0], vec![16, 64])?;
let rows = checkpoint.region(leaf, &region)?;      // these bytes only

// Regions of many leaves: each byte is read once.
let wanted = [LeafRegion { leaf, region, dtype: None }];
let parts = checkpoint.load_regions(&wanted, &RegionOptions::default())?;
use regrow::array::Tolerance;
use regrow::{CopyOptions, DiffOptions, RemoveOptions};

let from = "runs/step_100";
let options = CopyOptions::default();
let report = regrow::copy(from, "backup/step_100", &options)?;
for listed in regrow::list("runs")? {
    println!("{} {} {}", listed.name, listed.layout, listed.state.name());
}
let same = regrow::diff(from, "model.msgpack")?;   // to the bit
let near = DiffOptions {
    tolerance: Tolerance { rtol: Some(1e-6), ..Tolerance::default() },
    ..DiffOptions::default()
};
assert!(regrow::diff_with(from, "runs/step_101", &near)?.is_equal());
regrow::remove(from, &RemoveOptions::default())?;  // nothing else
assert!(params.len() == 1 && rows.shape().dims() == [16, 64] && parts.len() == 1);
assert!(same.is_equal() && report.file_count > 1 && regrow::open(from).is_err());
Ok(())
}
