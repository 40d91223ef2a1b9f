//! With `keep_cached` the files of a save stay in the page cache.

#![cfg(all(target_os = "linux", not(feature = "portable")))]

use std::fs;
use std::path::{Path, PathBuf};

use regrow::engine::{ItemsOptions, ItemsSave};
use regrow::manager::{Manager, ManagerOptions, SaveStep};
use regrow::monitor::IoPath;
use regrow::{ConvertOptions, SaveOptions};

use super::monitor::{layouts, plain_tree};

/// The files below a folder that are not completely in the page cache.
fn uncached(folder: &Path) -> Vec<PathBuf> {
    let is_cached = |path: &Path| {
        let file = fs::File::open(path).unwrap();
        let cache = regrow_base::system::PageCache::of(&file);
        let pages: Vec<_> = (0..file.metadata().unwrap().len()).step_by(4096).collect();
        let cached = pages.iter().filter(|&&at| cache.has_page(at).unwrap()).count();
        cached * 100 >= pages.len() * 95
    };
    let mut folders = vec![folder.to_owned()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false if !is_cached(&path) => found.push(path),
                false => {}
            }
        }
    }
    found
}

#[test]
fn keep_cached_leaves_the_files_of_a_save_in_the_page_cache() {
    let folder = tempfile::tempdir().unwrap();
    for (name, options, suffix) in layouts() {
        let path = folder.path().join(format!("{name}{suffix}"));
        let options = SaveOptions { keep_cached: true, ..options };
        let report = regrow::save_with(&path, &plain_tree(), &options).unwrap();
        assert_eq!(report.io_path, IoPath::PageCache, "{name}");
    }
    let items = ItemsOptions { keep_cached: true, ..ItemsOptions::default() };
    let save = ItemsSave::begin(folder.path().join("items"), items).unwrap();
    save.tree("state", &plain_tree(), &SaveOptions::default()).unwrap();
    save.commit().unwrap();
    let options = SaveOptions { keep_cached: true, ..SaveOptions::default() };
    let source = folder.path().join("items");
    let convert = ConvertOptions { save: options.clone(), ..ConvertOptions::default() };
    regrow::convert(&source, folder.path().join("converted"), &convert).unwrap();
    let run = ManagerOptions { save: options, ..ManagerOptions::default() };
    let manager = Manager::new(folder.path().join("run"), run).unwrap();
    manager.save(1, &plain_tree(), &SaveStep::default()).unwrap();
    manager.wait().unwrap();
    let uncached = uncached(folder.path());
    assert!(uncached.is_empty(), "{uncached:?}");
}
