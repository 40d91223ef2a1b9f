//! Open, save, load, verify: the functions that users call, with their threads and memory budgets.
//!
//! | module | does |
//! |---|---|
//! | `open` | finds the layout, returns a [`Checkpoint`] of lazy leaves |
//! | `attempt` | reads that start again if one of their checkpoints is replaced |
//! | `leaves` | reads one leaf, or a part of one |
//! | `search`, `keys` | find a leaf by its key path, even if two key paths print as the same text |
//! | `patterns`, `casts` | errors for globs that match nothing, and for casts without effect |
//! | `load`, `template` | selection, casts, restoring into a template: makes a plan of reads, and runs it |
//! | `regions` | loads regions of many leaves at once, and reads each byte only once |
//! | `in_memory` | a pytree in memory as a checkpoint |
//! | `mapped` | private maps of the files with leaves |
//! | `view` | a subtree, or leaves with new key paths, as a checkpoint |
//! | `arena`, `bands` | memory for loaded leaves; divides large leaves into bands |
//! | [`value`] | loads a Rust value: `regrow::load::<Model>` |
//! | `checks` | the checks before the first write of a save |
//! | `save`, `replace` | saves and commits; decides which files an overwrite may replace |
//! | `items` | several items in one checkpoint, committed at once |
//! | `together` | saves by all processes of a job, each its own shards |
//! | `background` | saves while the caller continues |
//! | `convert` | converts any layout to any other, one leaf at a time, also with several processes |
//! | `shares` | divides leaves between processes that do not exchange messages |
//! | `copy` | copies a checkpoint byte for byte |
//! | `seal`, `sealed` | writes seals; opens sealed and signed checkpoints |
//! | `sign` | writes signatures |
//! | `parity`, `repair` | writes parity; repairs checkpoints |
//! | `side_files` | the seal and parity of a save |
//! | `standing` | writes a side file only if its checkpoint was not replaced |
//! | `digests` | checksums of the blocks of files |
//! | `names` | the files in a checkpoint's folder |
//! | `remove` | removes one checkpoint, or the files of an unfinished save |
//! | `list` | the checkpoints in a folder |
//! | `verify`, `steps` | reads everything once, and reports all damage; the same for each step of a folder |
//! | `salvage` | loads the intact leaves of a damaged checkpoint, and lists the losses |
//! | `statistics` | statistics of every leaf, and damage, in one pass |
//! | `pieces`, `small` | for `diff` and `statistics`: read pieces of several leaves, or many small leaves |
//! | `diff` | compares two checkpoints of any layouts |
//! | `overview` | the checkpoint on one page for people |
//!
//! The options of callers are in [`options`](crate::options), the reports of saves in
//! [`report`](crate::report).

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod arena;
mod attempt;
mod background;
mod bands;
mod casts;
mod checks;
mod convert;
mod copy;
mod diff;
mod digests;
mod in_memory;
mod items;
mod keys;
mod leaves;
mod list;
mod load;
mod locked;
mod mapped;
mod names;
mod open;
mod overview;
mod parity;
mod patterns;
mod pieces;
mod regions;
mod remove;
mod repair;
mod replace;
mod salvage;
mod save;
mod seal;
mod sealed;
mod search;
mod shares;
mod side_files;
mod sign;
mod small;
mod statistics;
mod steps;
mod template;
mod together;
pub mod value;
mod verify;
mod view;

pub use crate::options::{
    AboutCheckpoint, BUDGET_DEFAULT_BYTES, ByteSize, Compression, DataFormat, Layout, LeafChunking,
    LoadOptions, OpenOptions, OrbaxOptions, RegionOptions, RegrowOptions, SaveOptions, TemplateLeaf,
    VerifyOptions, refuse_folder_named_like_a_file,
};
pub use crate::report::{Finding, SaveReport, UnprotectedFile, VerifyReport};
pub(crate) use crate::storage::Retries;
pub use crate::text::format_bytes;
pub use background::{
    AsyncOptions, AsyncSaver, Blocked, CopyLeaves, QUEUE_LEN_MAX, REFER_FROM_BYTES, SaveHandle, WhenBusy,
    save_async, save_async_with,
};
pub use convert::{
    ConvertOptions, ConvertPlan, ConvertReport, ConvertRules, PlannedLeaf, Rename, convert, convert_steps,
    plan_convert, plan_convert_steps,
};
pub use copy::{CopyOptions, CopyReport, copy};
pub use diff::{
    ContainerDiff, DiffCounts, DiffFinding, DiffOptions, DiffReport, LeafDiff, LeafStatus, Side, diff,
    diff_with,
};
pub use items::{ItemsOptions, ItemsSave, WHOLE};
pub use list::{Listed, ListedState, list};
pub use load::{load, load_with};
pub use open::{Checkpoint, open, open_with};
pub use overview::{Overview, Share, overview};
pub use parity::{ParityOptions, ParityReport, add_parity};
pub use regions::LeafRegion;
pub use remove::{RemoveOptions, RemoveReport, remove};
pub use repair::{HealedFile, ProofBy, RecoveredFile, RepairOptions, RepairReport, Verdict, repair};
pub use salvage::{Salvaged, salvage};
pub use save::{save, save_with};
pub use seal::{SealOptions, SealReport, seal};
pub use sign::{SignOptions, SignReport, sign};
pub use statistics::{
    LeafReading, LeafStatistics, StatisticsOptions, StatisticsReport, statistics, statistics_with,
};
pub use steps::{CommittedStep, committed_steps, verify_steps};
pub use verify::{verify, verify_with};

// Only for the other crates of regrow.
#[doc(hidden)]
pub use attempt::{Attempt, read_unreplaced};
#[doc(hidden)]
pub use background::{BeforeCommit, OnEnd};
#[doc(hidden)]
pub use convert::{
    CastRule, ConvertShare, ConvertedShare, RenameRule, ReshapeRule, SharedConvert, TransposeRule,
    convert_share,
};
#[doc(hidden)]
pub use load::Selected;
#[doc(hidden)]
pub use salvage::{Intact, open_intact};
#[doc(hidden)]
pub use verify::{VerifiedShare, verify_share};
