//! Scenes: operations on a place, and the rules that hold after a cut at any moment. `power_cuts`
//! cuts the scenes in a folder, `bucket_cuts` in a bucket.
//!
//! A child runs each scene. It finds the scene by its name.

#![cfg_attr(not(feature = "cloud"), allow(dead_code, reason = "some of it is for tests of buckets"))]

pub mod beside;
pub mod items;
pub mod random;
pub mod saves;
pub mod steps;

use regrow::location::Location;
use regrow::{Error, ErrorKind, RemoveOptions};

/// Something that is done to a place.
pub trait Scene {
    /// By this the child knows it.
    fn name(&self) -> String;

    /// What is there before, and lasts.
    fn prepare(&self, root: &Location);

    /// What the child does.
    fn act(&self, root: &Location) -> regrow::Result<()>;

    /// What holds of the place after a cut; it may be changed. `is_done`: the child had been told
    /// that all is well.
    fn check(&self, root: &Location, is_done: bool) -> Result<(), String>;
}

/// All scenes that can be done anywhere.
pub fn scenes() -> Vec<Box<dyn Scene>> {
    let mut scenes = saves::scenes();
    scenes.extend(items::scenes());
    scenes.extend(steps::scenes());
    scenes.extend(beside::scenes());
    scenes
}

/// The scene that a child is to do.
pub fn named(name: &str) -> Option<Box<dyn Scene>> {
    let scene = scenes().into_iter().find(|scene| scene.name() == name);
    scene.or_else(|| random::Random::named(name).map(|scene| Box::new(scene) as Box<dyn Scene>))
}

/// An error as the checks tell it.
pub fn told<T>(what: &str, result: regrow::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

/// Whether an error means that there is no checkpoint: no files, or in a bucket uncommitted ones.
pub fn is_nothing(at: &Location, error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound || at.commits_by_marker() && error.kind() == ErrorKind::Uncommitted
}

/// Makes space for a save of a layout. Files of one stem are not replaced in a bucket: they are
/// removed first.
pub fn make_room(target: &Location, layout: &str) -> Result<(), String> {
    if layout != "pytree_data" || !target.commits_by_marker() {
        return Ok(());
    }
    match regrow::remove(target, &RemoveOptions::default()) {
        Err(error) if is_nothing(target, &error) => Ok(()),
        removed => told("room for the next save", removed).map(drop),
    }
}

/// Errs if there is something in a folder that is not its own.
pub fn check_names(folder: &Location, is_own: impl Fn(&str) -> bool) -> Result<(), String> {
    let entries = told("the names", folder.entries())?;
    let names = entries.into_iter().map(|entry| entry.name.into_string().unwrap());
    let strangers: Vec<String> = names.filter(|name| !is_own(name)).collect();
    if strangers.is_empty() { Ok(()) } else { Err(format!("left in {folder}: {strangers:?}")) }
}
