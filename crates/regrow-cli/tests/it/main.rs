//! Tests of the command, one program: it is linked once. `common` is what they share; every other
//! module is tests of one thing, and says which.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test's failure is a panic")]

mod common;
mod convert;
mod diff;
mod doctor;
mod exits;
mod listing;
mod locks;
mod places;
mod report;
mod shell;
mod signing;
mod starved;
mod steps;
mod terminal;
mod urls;
mod values;

#[test]
fn every_file_here_is_one_of_these_modules() {
    let main = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/main.rs");
    assert_eq!(
        regrow_testkit::files_without_a_module(&main).expect("the sources are here"),
        Vec::<std::path::PathBuf>::new()
    );
}
