#![allow(warnings, clippy::all, clippy::pedantic, clippy::restriction)]

pub fn run() -> regrow::Result<()> {
let folder = tempfile::tempdir().unwrap();
std::env::set_current_dir(&folder).unwrap();
let layer = Layer { w: ndarray::Array2::zeros((2, 3)), dropout: Some(0.1) };
let model = Model { kernel: vec![[0.5; 64]; 2], bias: vec![bf16::ONE; 2], layers: vec![layer], name: "a".into() };
use half::bf16;
use regrow::Pytree;

#[derive(Pytree)]
struct Model {
    kernel: Vec<[f32; 64]>,       // float32 [n,64]
    bias: Vec<bf16>,              // bfloat16 [n]
    layers: Vec<Layer>,           // a list
    #[pytree(skip)]
    name: String,                 // not stored
}

#[derive(Pytree)]
struct Layer {
    w: ndarray::Array2<f32>,      // feature ndarray
    dropout: Option<f32>,
}

regrow::save("step_100", &model)?;
let mut model: Model = regrow::load("step_100")?;
regrow::load_into("step_100", &mut model)?;   // into its own arrays
#[derive(Pytree)]
enum Schedule {
    Constant,                          // "Constant"
    Rate(f32),                         // {"Rate": 0.1}
    Warmup(u32, f32),                  // {"Warmup": (100, 0.1)}
    Cosine { peak: f32, steps: u32 },  // {"Cosine": {peak, steps}}
}
mod seconds {
    use std::time::{Duration, TryFromFloatSecsError as Error};

    pub fn to_pytree(elapsed: &Duration) -> f64 {
        elapsed.as_secs_f64()
    }

    pub fn from_pytree(seconds: f64) -> Result<Duration, Error> {
        Duration::try_from_secs_f64(seconds)
    }
}

#[derive(Pytree)]
struct Run {
    #[pytree(with = "seconds")]
    elapsed: std::time::Duration,
}
Ok(())
}
