//! The protocol of a target in a bucket: one pure function decides every step.
//!
//! The module `tests` runs all interleavings of three processes, each killed before any of its
//! requests or not.
//!
//! A process that changes a target first creates the state object of the target, and deletes it at
//! the end. The state object says which process changes the target, and how far the change is
//! ([`Phase`]). Processes replace it only by compare-and-swap, so at most one process changes the
//! target at a time.
//!
//! ```text
//! phase      readers find the checkpoint                      the owner of the state object
//! (absent)   in the target, if the target has a marker        -
//! writing    in the target, if the target has a marker        writes a new checkpoint
//! changing   in the target, if the target has a marker        changes files, or commits an overwrite
//! moved      in the folder that the state object names        copies the checkpoint to the target
//! removing   nowhere                                          deletes the files of the target
//! ```
//! [`next`] returns the next step of an operation from what the process sees of the target. The
//! process performs the step and looks again. A look reads the state object first, and then lists
//! the target: if the owner is dead, the listing is final. If an owner dies, another process takes
//! over the state object, and `next` returns the step that the dead process would have made.
//!
//! The commit points: a save creates the marker, an overwrite sets `moved`, a removal sets
//! `removing`.

use serde::{Deserialize, Serialize};

/// How far the change of a target is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "phase", content = "folder", rename_all = "lowercase")]
pub(super) enum Phase {
    /// A new checkpoint is written into the target.
    Writing,
    /// Single files are changed, or an overwrite is about to commit.
    Changing,
    /// The checkpoint is in this folder.
    Moved(String),
    /// The checkpoint is removed.
    Removing,
}

/// The owner of the state object, as another process sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    /// This process.
    Us,
    /// Another process that lives, or may live.
    Living,
    /// Another process that has ended.
    Dead,
}

/// What a process sees of a target: one listing and, if the listing has it, the state object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    /// The state object.
    pub(super) state: Option<(Owner, Phase)>,
    /// Whether the target has a marker.
    pub(super) is_marked: bool,
    /// Whether the target has other objects than the marker and the state object.
    pub(super) has_files: bool,
}

/// An operation, and how far this process is with it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Operation {
    /// Writes a new checkpoint; `is_written` if all of its files are in the target. With
    /// `continues` the operation keeps the files of a dead one: a copy continues a copy.
    Save { is_written: bool, continues: bool },
    /// Replaces the checkpoint by the one in the folder `staged`; `is_committed` after the pointer.
    Overwrite { staged: String, is_committed: bool },
    /// Changes files of the checkpoint; `is_written` at the end of the changes.
    Change { is_written: bool },
    /// Removes the checkpoint.
    Remove,
    /// Finishes the operation of a dead process, or removes its files.
    Clean,
}

/// The next request, or series of requests, of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// Create the state object, or replace it, with this phase and this process as its owner.
    Take(Phase),
    /// Delete the marker, and then all other objects except the state object.
    Clear,
    /// Copy the checkpoint from this folder to the target, and then set the phase `Changing`.
    Settle(String),
    /// Write the files of this operation.
    Write,
    /// Create the marker.
    Mark,
    /// Delete the state object. The operation has ended.
    End,
    /// Delete the state object, and return this refusal.
    GiveUp(Refusal),
    /// Return this refusal. Nothing has changed.
    Refuse(Refusal),
    /// Wait for the owner.
    Wait,
}

/// Why an operation does not change the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Refusal {
    /// A checkpoint is there.
    Exists,
    /// No checkpoint is there.
    NotFound,
    /// Files of unknown origin are there.
    Foreign,
}

/// The next step of an operation.
pub(super) fn next(seen: &Seen, operation: &Operation) -> Step {
    use Operation::{Change, Clean, Overwrite, Remove, Save};
    use Phase::{Changing, Moved, Removing, Writing};
    let (owner, phase) = match &seen.state {
        None => return begin(seen, operation),
        // A change leaves no unfinished files.
        Some((Owner::Living, Phase::Changing)) if *operation == Operation::Clean => {
            return Step::Refuse(Refusal::NotFound);
        }
        Some((Owner::Living, _)) => return Step::Wait,
        Some((owner, phase)) => (*owner, phase),
    };
    if owner == Owner::Dead {
        return take_over(seen, phase, operation);
    }
    let is_empty = !seen.is_marked && !seen.has_files;
    match (phase, operation) {
        // An overwrite was committed, by this process or by a dead one. First move the checkpoint.
        (Moved(folder), _) => Step::Settle(folder.clone()),

        (Writing, Save { is_written: false, continues: true }) if !seen.is_marked => Step::Write,
        (Writing, Save { is_written: false, .. }) if !is_empty => Step::GiveUp(exists(seen)),
        (Writing, Save { is_written: false, .. }) => Step::Write,
        (Writing, Save { is_written: true, .. }) if seen.is_marked => Step::End,
        (Writing, Save { is_written: true, .. }) => Step::Mark,
        (Writing, _) => Step::Take(Changing),

        (Changing, Save { .. }) if is_empty => Step::Take(Writing),
        (Changing, Save { .. }) => Step::GiveUp(exists(seen)),
        (Changing, Overwrite { is_committed: true, .. }) => Step::End,
        (Changing, Overwrite { .. } | Remove) if !seen.is_marked && seen.has_files => {
            Step::GiveUp(Refusal::Foreign)
        }
        (Changing, Overwrite { staged, .. }) => Step::Take(Moved(staged.clone())),
        (Changing, Change { .. } | Remove) if !seen.is_marked => Step::GiveUp(Refusal::NotFound),
        (Changing, Change { is_written: false }) => Step::Write,
        (Changing, Change { is_written: true }) => Step::End,
        (Changing, Remove) => Step::Take(Removing),
        (Changing, Clean) => Step::End,

        (Removing, _) if !is_empty => Step::Clear,
        (Removing, Save { .. }) => Step::Take(Writing),
        (Removing, Overwrite { .. }) => Step::Take(Changing),
        (Removing, Change { .. }) => Step::GiveUp(Refusal::NotFound),
        (Removing, Remove | Clean) => Step::End,
    }
}

/// Takes over the state object of a dead process. An operation that needs no checkpoint, or that
/// needs one, is refused before that.
fn take_over(seen: &Seen, phase: &Phase, operation: &Operation) -> Step {
    use Operation::{Change, Save};
    use Phase::{Changing, Moved, Removing, Writing};
    let phase = match phase {
        Writing if seen.is_marked => Changing,
        Writing if matches!(operation, Save { continues: true, .. }) => Writing,
        Writing => Removing,
        phase => phase.clone(),
    };
    let has_checkpoint = seen.is_marked && phase == Changing || matches!(phase, Moved(_));
    match operation {
        Save { .. } if has_checkpoint => Step::Refuse(Refusal::Exists),
        Save { .. } if phase == Changing && seen.has_files => Step::Refuse(Refusal::Foreign),
        Change { .. } if !has_checkpoint => Step::Refuse(Refusal::NotFound),
        _ => Step::Take(phase),
    }
}

/// Why nothing is saved to a target that is not empty.
fn exists(seen: &Seen) -> Refusal {
    if seen.is_marked { Refusal::Exists } else { Refusal::Foreign }
}

/// The first step of an operation at a target that no process changes.
fn begin(seen: &Seen, operation: &Operation) -> Step {
    use Operation::{Change, Clean, Overwrite, Remove, Save};
    match operation {
        Clean => Step::Refuse(Refusal::NotFound),
        Save { .. } if seen.is_marked || seen.has_files => Step::Refuse(exists(seen)),
        Save { .. } => Step::Take(Phase::Writing),
        Overwrite { .. } if !seen.is_marked && seen.has_files => Step::Refuse(Refusal::Foreign),
        Change { .. } | Remove if !seen.is_marked => Step::Refuse(Refusal::NotFound),
        _ => Step::Take(Phase::Changing),
    }
}

#[cfg(test)]
mod tests;
