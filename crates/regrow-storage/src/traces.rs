//! The traces of other processes at a target, for people: the lock of the target, the temporary
//! files of running and killed writers, and how to end each of them.

use std::path::PathBuf;

use crate::error::Error;
use crate::lock::Holder;

/// A lock, or temporary files, at the target of a checkpoint.
#[derive(Debug)]
pub struct Trace {
    /// The lock file, the state object, or the temporary folder or file.
    pub path: PathBuf,
    /// What it is.
    pub kind: TraceKind,
    /// The process that made it; `None` if its text cannot be read.
    pub owner: Option<Holder>,
    /// How far the owner of a state object is: `writing`, `changing`, `moved`, `removing`.
    pub phase: Option<&'static str>,
    /// Whether the owner lives.
    pub life: Life,
    /// Why no operation can use this lock.
    pub error: Option<Error>,
}

/// What a trace is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceKind {
    /// The lock of the target: its owner changes the checkpoint.
    Lock,
    /// The files of a save or removal that has not ended.
    Unfinished,
    /// The files of a copy that has not ended. The next copy continues from them.
    Copy,
    /// The old checkpoint, which an overwrite has moved aside.
    Replaced,
    /// A committed overwrite in a bucket, which is copied to its target.
    Moved,
    /// The files of an unfinished save of another tool.
    Foreign,
}

/// Whether the process that made a trace lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// The process lives.
    Alive,
    /// The process has ended, or counts as ended.
    Dead,
    /// Another machine has the process, or the storage has no locks.
    Unknown,
}

impl Trace {
    /// How to end it, in the words of the command.
    pub fn remedy(&self) -> &str {
        if let Some(error) = &self.error {
            return error.help_text().unwrap_or("remove it if no process changes the checkpoint");
        }
        if self.phase.is_some() && self.life == Life::Unknown {
            return "wait: 3 minutes after the last sign of its process, other processes take the lock";
        }
        match (self.kind, self.life) {
            (_, Life::Alive) => "wait until the process ends, or end the process",
            (TraceKind::Lock, Life::Dead) => "nothing to do: the next save, copy or removal takes the lock",
            (TraceKind::Lock, Life::Unknown) => {
                "wait until the process ends; if it is dead, remove this file yourself"
            }
            (TraceKind::Unfinished, Life::Dead) => {
                "the next save deletes it; `regrow rm --unfinished PATH` deletes it now"
            }
            (TraceKind::Copy, Life::Dead) => {
                "the next copy continues it; `regrow rm --unfinished PATH` deletes it now"
            }
            (TraceKind::Replaced, Life::Dead) => {
                "the next save puts it back if the overwrite did not finish, and deletes it otherwise"
            }
            (TraceKind::Moved, Life::Dead) => "nothing to do: the next save or removal finishes the copy",
            (TraceKind::Foreign, _) => "regrow leaves it alone; `regrow rm --unfinished PATH` deletes it",
            (_, Life::Unknown) => {
                "wait until its process ends; if it is dead, `regrow rm --unfinished --force PATH` deletes it"
            }
        }
    }
}

impl TraceKind {
    /// The words for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Unfinished => "unfinished save or removal",
            Self::Copy => "unfinished copy",
            Self::Replaced => "old checkpoint of an unfinished overwrite",
            Self::Moved => "overwrite that is copied to its path",
            Self::Foreign => "unfinished save of another tool",
        }
    }
}

impl Life {
    /// The words for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Dead => "dead",
            Self::Unknown => "not known",
        }
    }
}
