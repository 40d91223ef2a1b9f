//! Starts a test of this program in a child process, which the parent may kill.

use std::process::Command;

/// The test of this name, and no other; what it does the caller tells it by variables of the
/// environment.
pub fn child(test: &str) -> Command {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    child
}
