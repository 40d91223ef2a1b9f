//! A folder of numbered steps: its list, when to save, which steps to keep, and its locks.
//!
//! ```text
//! ROOT/
//!   100/  200/  …                      steps in one of Orbax' forms of names, each with its own commit
//!   300.orbax-checkpoint-tmp-…/        a save that is in progress or was killed: not listed
//!   trash/100/                         a step that was moved aside, if the caller asked for this
//!   .regrow/latest.json                the pointer: the newest step, and the number of steps
//!   .regrow/writer.lock, writer.json   the writer's lock: of the system; in a bucket a lease
//!   .regrow/leases/100~<nonce>         a process reads step 100, until the time in the file
//!   .regrow/deleting/100               step 100 is about to be removed
//! ```
//! The list contains exactly the steps that the storage has committed. It never contains a failed
//! or killed save, and no file contains a second list that could differ. The files in `.regrow` are
//! never required: without them there is no pointer, no lease and no known writer. Orbax ignores
//! these files.
//!
//! | module | does |
//! |---|---|
//! | `names` | the forms of names |
//! | `when`, `keep` | when to save; which steps to keep: functions of their arguments alone |
//! | `history` | the steps that the next save continues from, and the abandoned steps |
//! | `steps` | [`Steps`]: a folder; the list, one step, its size on the disk |
//! | `pointer` | the newest step in one read, for long lists |
//! | `lease` | keeps a step while a process reads it |
//! | `lock` | one writer at a time |
//! | `delete` | removes steps, or moves them to another folder |
//! | `newest` | the newest good step, and the reasons for skipped steps |
//! | `wait` | waits for a new step |
//! | `run` | [`TrainingRun`]: a loop's steps without their values: policies, histories, deletions |
//! | `resume` | [`TrainingRun`] restores the newest good step |
//! | `follow` | the thread for the work after a save |
//! | `together` | common decisions of the processes of a job |
//! | `hooks` | functions of the program that a run calls |
//! | `options` | the options of a manager, and the options of each save |
//! | `saving`, `restoring` | [`Manager`]: a run that saves and restores the loop's state |
//! | `preemption` | whether the program must end |
//! | `event_log` | one record of each save, restore and deletion |
//! | `tidy` | the work after a save (verify, write the pointer, choose, delete), and the start of a writer |
//! | `records` | the small files in `.regrow` |
//!
//! A step is not deleted while a process takes a lease on the step. The deletion announces itself
//! before it looks for leases. The reader writes its lease before it looks for announcements. So
//! the deletion finds the lease, or the reader finds the announcement, or both. A process that
//! finds the other file stops.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod delete;
mod event_log;
mod follow;
mod history;
mod hooks;
mod keep;
mod lease;
mod lock;
mod names;
mod newest;
mod options;
mod pointer;
mod preemption;
mod records;
mod restoring;
mod resume;
mod run;
mod saving;
mod steps;
mod tidy;
mod together;
mod wait;
mod when;

pub use crate::formats::container::{STEP_RECORD, StepRecord};
pub use delete::{DeleteOptions, Deleted, Deletion};
pub use event_log::TARGET as LOG_TARGET;
pub use hooks::Hooks;
pub use keep::{Best, BestMode, Keep, KeepIf, StepFacts};
pub use lease::Lease;
pub use lock::WriterLock;
pub use names::{StepName, StepNames};
pub use newest::{PassedOver, Restored};
pub use options::{ManagerOptions, SaveStep};
pub use preemption::Preemption;
pub use run::TrainingRun;
pub use saving::{DEFAULT_ITEM, Manager};
pub use steps::{Step, StepList, Steps};
pub use tidy::{Tidied, TidyOptions};
pub use when::{Moment, SaveIf, SaveWhen};

// For regrow's own programs.
#[doc(hidden)]
pub use follow::{Begun, Followed};
#[doc(hidden)]
pub use keep::to_delete;
#[doc(hidden)]
pub use restoring::refuse_lost_items;
#[doc(hidden)]
pub use run::DueStep;
#[doc(hidden)]
pub use together::Together;
