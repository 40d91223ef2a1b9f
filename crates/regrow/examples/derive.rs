//! A training state as Rust types: saved, looked into, resumed. `cargo run -p regrow --example
//! derive [FOLDER]`
//!
//! What it leaves in the folder is an Orbax checkpoint too:
//! `orbax.checkpoint.PyTreeCheckpointer().restore(path)` gives Python the same dicts, lists and
//! numbers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use half::bf16;
use regrow::{Pytree, SaveOptions};

#[derive(Pytree, Clone)]
struct TrainState {
    step: u64,
    layers: Vec<Layer>,
    schedule: Schedule,
    metrics: BTreeMap<String, f64>,
    #[pytree(with = "seconds")]
    elapsed: Duration,
    /// Of this run, not of the state: never stored, and never touched by `load_into`.
    #[pytree(skip)]
    device: String,
}

#[derive(Pytree, Clone)]
struct Layer {
    kernel: Vec<[bf16; 4]>,
    bias: Option<[f32; 4]>,
}

#[derive(Pytree, Clone, Debug, PartialEq)]
enum Schedule {
    Constant(f32),
    Cosine { peak: f32, steps: u32 },
}

/// How `Duration`, which is no pytree, becomes one: a number of seconds.
mod seconds {
    use std::time::{Duration, TryFromFloatSecsError};

    pub fn to_pytree(elapsed: &Duration) -> f64 {
        elapsed.as_secs_f64()
    }

    pub fn from_pytree(seconds: f64) -> Result<Duration, TryFromFloatSecsError> {
        Duration::try_from_secs_f64(seconds)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let (step, refusal) = run(&folder.join("regrow_derive_example"))?;
    println!("resumed at step {step}\n{refusal}");
    Ok(())
}

/// Saves and resumes; gives the step, and what is said of a type that does not fit.
pub fn run(path: &Path) -> Result<(u64, String), Box<dyn std::error::Error>> {
    let layer = |bias| Layer { kernel: vec![[bf16::ONE; 4]; 8], bias };
    let state = TrainState {
        step: 100,
        layers: vec![layer(Some([0.5; 4])), layer(None)],
        schedule: Schedule::Cosine { peak: 0.1, steps: 1000 },
        metrics: [("loss".to_owned(), 0.25)].into(),
        elapsed: Duration::from_secs(3600),
        device: "gpu:0".to_owned(),
    };
    let options = SaveOptions { overwrite: true, ..SaveOptions::default() };
    let report = regrow::save_with(path, &state, &options)?;
    println!("saved {} leaves, {} bytes, to {}", report.leaf_count, report.stored_bytes, path.display());

    for (leaf, info) in regrow::open(path)?.tree().iter() {
        println!("  {leaf:<24} {} {}", info.dtype, info.shape);
    }

    // A new run: the same shapes, another device. Data goes into the arrays that are there.
    let mut resumed = TrainState { step: 0, device: "cpu:0".to_owned(), ..state.clone() };
    regrow::load_into(path, &mut resumed)?;
    println!("on {} with {:?}", resumed.device, resumed.schedule);

    // Another type that does not fit: every difference in one error, by key path.
    #[derive(Pytree)]
    struct Older {
        step: String,
        layers: Vec<Vec<f32>>,
    }
    match regrow::load::<Older>(path) {
        Ok(older) => Err(format!("it fits: {} {}", older.step, older.layers.len()).into()),
        Err(error) => Ok((resumed.step, error.to_string())),
    }
}
