//! Times a save and a load of a made-up tree: `save_load FOLDER LEAVES BYTES_A_LEAF`.
use std::time::Instant;

use regrow::array::{Array, Dtype, Shape};
use regrow::tree::{Key, Leaf, NodeKind, TreeBuilder};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let (folder, leaves, bytes) = (&args[1], args[2].parse::<usize>()?, args[3].parse::<u64>()?);
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict)?;
    for i in 0..leaves {
        let data: Vec<u8> = (0..bytes).map(|b| (b as u8).wrapping_mul(i as u8)).collect();
        let array = Array::new(Dtype::Float32, Shape::new(vec![bytes / 4])?, data.into())?;
        build.leaf(Key::dict(format!("layer_{i}")), Leaf::array(array))?;
    }
    build.close()?;
    let tree = build.finish()?;
    let path = format!("{folder}/step");
    let _ = std::fs::remove_dir_all(&path);
    for round in 0..3 {
        let options = regrow::SaveOptions { overwrite: true, ..Default::default() };
        let start = Instant::now();
        regrow::save_with(&path, &tree, &options)?;
        let saved = start.elapsed();
        let start = Instant::now();
        let checkpoint = regrow::open(&path)?;
        let opened = start.elapsed();
        let start = Instant::now();
        let loaded = checkpoint.load(&Default::default())?;
        println!(
            "round {round}: save {saved:?}, open {opened:?}, load {:?}, {} leaves",
            start.elapsed(),
            loaded.len()
        );
    }
    Ok(())
}
