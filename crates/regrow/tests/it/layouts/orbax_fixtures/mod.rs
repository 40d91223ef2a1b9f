//! Every golden Orbax checkpoint, leaf by leaf against the values that Orbax returned. Also damaged
//! golden checkpoints, and unusual ones.

mod damage;
mod golden;
mod named;
mod odd;

use std::path::{Path, PathBuf};

use regrow::Result;
use regrow::array::Region;
use regrow::engine::OpenOptions;
use regrow::location::Location;
use regrow_layouts::orbax::Orbax;
use regrow_layouts::{Format, Reader};
use serde_json::Value;

fn fixture_names() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(regrow_testkit::fixtures().join("orbax"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names.len(), 53, "a fixture was added or lost");
    names
}

fn checkpoint(fixture: &str) -> PathBuf {
    regrow_testkit::fixtures().join("orbax").join(fixture).join("ckpt")
}

fn expected(fixture: &str) -> Value {
    regrow_testkit::expected(&format!("orbax/{fixture}"))
}

fn open(path: &Path) -> Result<Box<dyn Reader>> {
    open_at(path, None, None)
}

fn open_at(path: &Path, step: Option<u64>, item: Option<&str>) -> Result<Box<dyn Reader>> {
    Orbax.open(
        &Location::local(path),
        &OpenOptions { step, item: item.map(str::to_owned), ..OpenOptions::default() },
    )
}

fn read_whole(reader: &dyn Reader, leaf: usize) -> Result<Vec<u8>> {
    let info = &reader.tree().leaves()[leaf];
    let mut out = vec![0; info.len_bytes() as usize];
    reader.read_region(leaf, &Region::whole(&info.shape), &mut out)?;
    Ok(out)
}
