//! The examples of the documentation, run.

use std::process::Command;

/// Runs an example that `cargo test` has built beside this test.
fn run(name: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let built = std::env::current_exe().unwrap();
    let program = built.ancestors().nth(2).unwrap().join("examples").join(name);
    let done = Command::new(&program).arg(folder.path()).output().unwrap();
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{name}: {said}{}", String::from_utf8_lossy(&done.stderr));
    said
}

#[test]
fn a_training_state_of_rust_types_is_resumed() {
    let said = run("derive");
    assert!(said.contains("resumed at step 100"), "{said}");
}
