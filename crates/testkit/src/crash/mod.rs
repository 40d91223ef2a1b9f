//! The states that a power cut can leave: the calls of a child are recorded, and every possible
//! state of the disk is written to a folder, for a test that reads such checkpoints.
//!
//! ```text
//! record    a child under ptrace: which bytes, which names, which syncs, in their order     record.rs
//! disk      folders and files as inodes                                                     disk.rs
//! states    after each call: what was not synced is lost, torn or kept                      states.rs
//! ```
//! Two rules, each looser than the file systems that have it ([`Rules`]). What is synced by the
//! first mark is what the folder holds then. Nothing is assumed of what the child wants.

mod disk;
mod record;
mod states;

pub use disk::Disk;
pub use record::{Recording, record};
pub use states::{CrashState, Rules, States};
