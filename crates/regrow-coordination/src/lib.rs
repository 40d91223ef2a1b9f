//! Internals of regrow, without promises: messages between the processes of a job that save or
//! restore one checkpoint together.
//!
//! regrow has no service of its own. A [`Coordinator`] is a thin layer over a service that the job
//! already has: the key-value store of `jax.distributed`, torch's store, MPI, or a shared folder. A
//! coordinator gets values, and puts a value if its key has none. A [`Session`] uses a coordinator
//! to gather, broadcast and agree. If one process fails, no other process waits for ever.
//!
//! ```text
//! rank 0    begin ── gather("index") ◀──┐ ── merge ── agree("committed", commit()) ── finish
//! rank 1    begin ── gather("index") ───┤          ── agree("committed", Ok(()))   ── finish
//! rank 2    begin ── gather("index") ───┘          ── agree("committed", Ok(()))   ── finish
//! ```
//! ```
//! use std::sync::Arc;
//! use regrow_coordination::{Coordinator, Folder, Session, SessionOptions};
//! use regrow_storage::location::ToLocation;
//! # let shared = tempfile::tempdir()?;
//! # let process = |rank: usize| -> regrow_base::error::Result<()> {
//! let folder = Folder::new(shared.path().to_location()?, rank, 2)?;   // the same folder in each of two processes
//! let target = "/data/run/step_100".to_location()?;
//! let session = Session::begin(Arc::new(folder), &target, "save", SessionOptions::default())?;
//! if let Some(parts) = session.gather("index", format!("shards of {rank}").into())? {
//!     assert_eq!(parts, ["shards of 0", "shards of 1"]);             // on rank 0, in the order of ranks
//! }
//! let name = session.broadcast("name", || Ok("made on rank 0".into()))?;
//! assert_eq!(name, "made on rank 0");
//! session.agree("committed", Ok(()))?;                                // an error of one is an error of all
//! session.finish();
//! # Ok(()) };
//! # std::thread::scope(|scope| {
//! #     let other = scope.spawn(|| process(1));
//! #     process(0)?;
//! #     other.join().expect("it does not panic")
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | does |
//! |---|---|
//! | this file | [`Coordinator`] |
//! | `single` | [`Single`]: a job of one process |
//! | `folder` | [`Folder`]: files or objects in a folder that all processes see |
//! | `session` | [`Session`]: gather, broadcast, agree |
//! | `job` | [`Job`]: what a caller hands to a save or a restore |
//! | `attempt` | how the processes meet: one attempt to save or restore one checkpoint |
//! | `exchange` | puts values under the names of an attempt, and waits for the values of other processes |
//! | `values` | values of any length in keys of limited length |
//! | `failure` | an error on its way to the other processes |
//! | `ranks` | lists of ranks, for messages |
//! | `shared` | whether all processes see the same folder |

use std::fmt::Debug;
use std::time::Duration;

use bytes::Bytes;

use regrow_base::error::Result;

mod attempt;
mod exchange;
mod failure;
mod folder;
mod job;
mod ranks;
mod session;
mod shared;
mod single;
mod values;

pub use exchange::{OnWait, SessionOptions, Waiting};
pub use folder::Folder;
pub use job::Job;
pub use session::Session;
pub use single::Single;

/// A service through which the processes of a job exchange values. Any thread may call it.
///
/// Keys are names of letters, digits, `-`, `_` and `.`, with `/` between them; no key followed by a
/// `/` is the beginning of another key. Values are never empty, and no longer than
/// [`value_len_max_bytes`](Self::value_len_max_bytes).
pub trait Coordinator: Debug + Send + Sync {
    /// Which process this is, from 0 on.
    fn rank(&self) -> usize;

    /// The number of processes.
    fn size(&self) -> usize;

    /// Puts a value if the key has none. Returns false, and changes nothing, if the key has a
    /// value. Of several callers at once, one gets true; from then on every process gets the
    /// complete value.
    ///
    /// # Errors
    /// Errors of the service.
    fn put_if_absent(&self, key: &str, value: Bytes) -> Result<bool>;

    /// The value at the key. Waits for a value; `None` if none comes within `wait`, which may be
    /// zero.
    ///
    /// # Errors
    /// Errors of the service.
    fn get(&self, key: &str, wait: Duration) -> Result<Option<Bytes>>;

    /// The values of these keys, in order, from one call to the service. `None` stands for a
    /// missing value, and for a value that needs its own `get`. Returns no vector if the service
    /// has no such call.
    ///
    /// Rank 0 uses it to gather: all keys are in one folder or in its direct subfolders, and all
    /// values together fit into one message.
    ///
    /// # Errors
    /// Errors of the service.
    fn get_many(&self, _keys: &[String]) -> Result<Option<Vec<Option<Bytes>>>> {
        Ok(None)
    }

    /// Removes the key and all keys that begin with it and a `/`, as far as the service can find
    /// them.
    ///
    /// # Errors
    /// Errors of the service.
    fn remove(&self, key: &str) -> Result<()>;

    /// The ranks that are known to live; `None` if the service cannot know. Does not wait.
    ///
    /// # Errors
    /// Errors of the service.
    fn live(&self) -> Result<Option<Vec<usize>>> {
        Ok(None)
    }

    /// The longest value that the service accepts.
    fn value_len_max_bytes(&self) -> usize {
        usize::MAX
    }
}
