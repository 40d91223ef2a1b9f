//! Tests of the engine from outside, one program: it is linked once. `common` and `scenes` are what
//! they share; every other module is tests of one thing, and says which. Each test has a process of
//! its own (`cargo nextest`), since some count what theirs holds. What needs an allocator of its
//! own, or measures memory, is a program beside this one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test's failure is a panic")]

mod archives;
mod base;
mod bounds;
#[cfg(feature = "cloud")]
mod bucket_cuts;
#[cfg(feature = "cloud")]
mod bucket_faults;
#[cfg(feature = "cloud")]
mod bucket_overwrites;
#[cfg(feature = "cloud")]
mod bucket_repair;
#[cfg(feature = "cloud")]
mod bucket_seals;
#[cfg(feature = "cloud")]
mod cache;
mod chunks;
mod common;
mod conformance;
mod convert_checks;
mod convert_matrix;
mod coordination;
mod coordination_services;
mod copy;
mod default_layout;
mod dialects;
mod diff;
#[cfg(target_os = "linux")]
mod disk_images;
mod examples;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod faults;
mod flipped_bits;
mod full_disk;
#[cfg(feature = "cloud")]
mod http;
mod imports;
mod items;
mod killed_pair_saves;
mod killed_saves;
mod killed_trak;
mod manager;
mod many_threads;
mod many_writers;
mod monitor;
#[cfg(target_os = "linux")]
mod nothing_held;
mod open_and_replace;
mod orbax_fixtures;
mod places;
mod platforms;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod power_cuts;
mod public_api;
mod readers_and_a_writer;
mod reading;
mod recovery;
mod regions;
mod remains;
mod remove;
mod repair;
mod resharding;
mod salvage;
mod scenes;
mod seals;
mod sharding;
mod sharding_words;
mod shards;
mod shares;
mod signatures;
mod statistics;
mod storages;
mod two_at_once;
mod views;

#[test]
fn every_file_here_is_one_of_these_modules() {
    let main = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/main.rs");
    assert_eq!(
        regrow_testkit::files_without_a_module(&main).expect("the sources are here"),
        Vec::<std::path::PathBuf>::new()
    );
}
