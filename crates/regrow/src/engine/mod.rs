//! Open, save, load, verify: the calls that users make, and the threads and budgets behind them.
//!
//! | module | does |
//! |---|---|
//! | `options` | what a caller may ask for |
//! | `open` | finds the layout, gives a [`Checkpoint`] of lazy leaves |
//! | `search`, `keys` | leaves by their key paths, also where these print alike |
//! | `patterns` | globs that match nothing |
//! | `arena` | memory for what is loaded |
//! | `load` | selection, template, casts: a plan of reads, and the one executor of it |
//! | [`value`] | loads a Rust value: `regrow::load::<Model>` |
//! | `save` | stages, lets the format write, commits |
//! | `background` | saves while the caller goes on |
//! | `report` | what a save took, and where its time went |
//! | `convert` | from any layout to any other, a leaf at a time |
//! | `verify` | reads everything once and reports all that is wrong |
//! | `bands` | large leaves, cut for reading |
//! | `overview` | the tree as a table for people |

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod arena;
mod background;
mod bands;
mod convert;
mod keys;
mod load;
mod open;
mod overview;
mod patterns;
mod replace;
mod retry;
mod save;
mod search;
mod template;
pub mod value;
mod verify;

pub use crate::options::{
    BUDGET_DEFAULT_BYTES, Compression, Layout, LeafChunking, LoadOptions, OpenOptions, OrbaxOptions,
    SaveOptions, TemplateLeaf, VerifyOptions,
};
pub use crate::report::{Finding, SaveReport, VerifyReport};
pub use crate::text::format_bytes;
pub use background::{
    AsyncOptions, AsyncSaver, Blocked, CopyLeaves, OnEnd, QUEUE_LEN_MAX, REFER_FROM_BYTES, SaveHandle,
    WhenBusy, save_async, save_async_with,
};
pub use convert::{ConvertOptions, ConvertPlan, ConvertReport, PlannedLeaf, Rename, convert};
pub use load::{load, load_with};
pub use open::{Checkpoint, open, open_with};
pub use overview::overview;
pub use save::{save, save_with};
pub use verify::{verify, verify_with};
