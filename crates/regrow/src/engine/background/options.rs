//! The options of background saves, and the time for which a save blocks its caller.

use std::fmt;
use std::sync::Arc;

use super::{QUEUE_LEN_MAX, State};
use crate::engine::SaveOptions;
use crate::error::Result;
use crate::monitor::{Stage, StageReport};
use crate::tree::{Leaf, LeafData, LeafKind};

/// What to do when an earlier save is still running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenBusy {
    /// Wait for the earlier save, then take the snapshot. At most one snapshot is in memory.
    #[default]
    Wait,
    /// Do not save.
    Skip,
    /// Take the snapshot now, and save it after the earlier saves. Each queued save has a snapshot
    /// in memory.
    Queue,
}

impl WhenBusy {
    pub(super) fn has_room(self, state: &State) -> bool {
        match self {
            Self::Wait => !state.is_busy(),
            Self::Skip => true,
            Self::Queue => state.queue.len() < QUEUE_LEN_MAX,
        }
    }
}

/// Which leaves the snapshot copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CopyLeaves {
    /// Copy no leaf. The caller guarantees that the memory does not change until the save is done;
    /// for memory that Rust shares, this is always true.
    #[default]
    Nothing,
    /// Copy leaves that are not immutable arrays: all kinds but [`LeafKind::JaxArray`], and JAX
    /// arrays below [`REFER_FROM_BYTES`].
    Mutable,
    /// Copy all leaves.
    All,
}

/// A JAX array below this size is copied too. While a reference to its memory exists, JAX cannot
/// reuse the memory for the result of a computation (donation). So small a copy costs less than the
/// reference.
pub const REFER_FROM_BYTES: u64 = 4 << 10;

impl CopyLeaves {
    pub(super) fn chooses(self, leaf: &Leaf) -> bool {
        match self {
            Self::Nothing => false,
            Self::All => true,
            Self::Mutable => {
                let is_immutable = leaf.kind == LeafKind::JaxArray;
                let len_bytes = match &leaf.data {
                    LeafData::Array(array) => array.len_bytes(),
                    _ => 0,
                };
                !is_immutable || len_bytes < REFER_FROM_BYTES
            }
        }
    }
}

/// Options of a save in the background.
#[derive(Debug, Clone, Default)]
pub struct AsyncOptions {
    /// The options of the save itself. [`SaveOptions::monitor`] watches the save.
    pub save: SaveOptions,
    /// What to do when an earlier save is still running.
    pub when_busy: WhenBusy,
    /// Which leaves to copy.
    pub copy: CopyLeaves,
    /// For debugging: hash the shared data at the snapshot and again before the commit. If a leaf
    /// has changed in between, the save fails with an error that names the leaf. Costs two passes
    /// over the data, the first while the caller waits.
    pub check_source: bool,
    /// Called on the saving thread when all files are written, before the commit. If the function
    /// returns an error, nothing is committed. Use it to wait for other writers of the checkpoint.
    #[doc(hidden)]
    pub before_commit: Option<BeforeCommit>,
    /// Called on the saving thread when the save has ended, with or without an error, and has
    /// dropped its references to the data.
    #[doc(hidden)]
    pub on_end: Option<OnEnd>,
    /// The time that the caller spent on this save before the call, for the report.
    #[doc(hidden)]
    pub before: Blocked,
}

/// A function to be called before a save is committed.
#[derive(Clone)]
pub struct BeforeCommit(pub(super) Arc<dyn Fn() -> Result<()> + Send + Sync>);

impl BeforeCommit {
    /// Wraps `call`, which must not wait for the save.
    pub fn new(call: impl Fn() -> Result<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(call))
    }
}

impl fmt::Debug for BeforeCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BeforeCommit")
    }
}

/// A function to be called when a save has ended.
#[derive(Clone)]
pub struct OnEnd(pub(super) Arc<dyn Fn() + Send + Sync>);

impl OnEnd {
    /// Wraps `call`, which must not wait for the save.
    pub fn new(call: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(call))
    }
}

impl fmt::Debug for OnEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnEnd")
    }
}

/// The time for which a save blocked its caller.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Blocked {
    /// From the call to its return, with everything in between.
    pub seconds: f64,
    /// The part of `seconds` for which the call waited for an earlier save.
    pub waited_seconds: f64,
    /// Bytes that the snapshot copied.
    pub copied_bytes: u64,
}

impl Blocked {
    /// The times as stages of the report, to put before all other stages.
    pub(super) fn stages(&self) -> impl Iterator<Item = StageReport> {
        let &Self { seconds, waited_seconds, copied_bytes } = self;
        let wait = StageReport { stage: Stage::WaitForSave, seconds: waited_seconds, bytes: 0 };
        let snapshot =
            StageReport { stage: Stage::Snapshot, seconds: seconds - waited_seconds, bytes: copied_bytes };
        [wait, snapshot].into_iter()
    }
}
