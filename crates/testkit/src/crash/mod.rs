//! The possible states of a disk after a power cut. The calls of a child are recorded, and every
//! possible state is written to a folder, for a test that reads the checkpoints in it.
//!
//! ```text
//! record    a child under ptrace: which bytes, which names, which syncs, in their order     record.rs
//! disk      folders and files as inodes                                                     disk.rs
//! states    after each call: what was not synced is lost, torn or kept                      states.rs
//! ```
//! There are two sets of rules, each looser than real file systems ([`Rules`]). The content of the
//! folder at the first mark counts as synced. The model assumes nothing about the program.

mod disk;
mod record;
mod states;

pub use disk::Disk;
pub use record::{Recording, record};
pub use states::{CrashState, Rules, States};
