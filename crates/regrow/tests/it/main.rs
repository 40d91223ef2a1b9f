//! Tests of the engine from outside, in one program, which is linked once. Each test runs in its
//! own process (`cargo nextest`), because some tests count open files, threads or memory. A test
//! that needs its own allocator is a program beside this one.
//!
//! | folder | rules about |
//! |---|---|
//! | [`api`] | reads, comparisons, statistics, progress |
//! | [`concurrent`] | threads, processes, ranks |
//! | [`crash`] | kills, power cuts, failing calls and requests |
//! | [`damage`] | damaged and missing files, salvage, repair |
//! | [`layouts`] | layouts, conversions, files of other tools |
//! | [`manager`] | folders of steps: their list, retention, deletions and restores |
//! | [`protection`] | seals and signatures |
//! | [`source`] | the source itself |
//! | [`storage`] | disks, buckets, web servers, targets of saves |
//! | `common` | shared: trees, layouts, buckets, damage, children |
//!
//! The first lines of each folder's `mod.rs` list its files with their rules.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test's failure is a panic")]

mod api;
mod common;
mod concurrent;
mod crash;
mod damage;
mod layouts;
mod manager;
mod protection;
mod source;
mod storage;

#[test]
fn every_file_here_is_one_of_these_modules() {
    let main = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/main.rs");
    assert_eq!(
        regrow_testkit::files_without_a_module(&main).expect("the sources are here"),
        Vec::<std::path::PathBuf>::new()
    );
}
