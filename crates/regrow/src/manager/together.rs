//! Common decisions of the processes of a job: rank 0 reads the storage and decides for all.
//!
//! Every process makes the same calls in the same order. If one process fails, all fail, so that no
//! process waits for a failed one.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::coordination::{Job, Session};
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::monitor::Monitor;

/// The processes that share a folder of steps. A single process sends no messages.
#[derive(Debug)]
pub struct Together {
    job: Option<Job>,
    root: Location,
}

impl Together {
    /// The processes of a job; a single process if `job` is `None`.
    pub fn new(job: Option<&Job>, root: &Location) -> Self {
        Self { job: job.filter(|job| job.has_others()).cloned(), root: root.clone() }
    }

    pub(super) fn has_others(&self) -> bool {
        self.job.is_some()
    }

    /// Whether this process is rank 0, which decides for all.
    pub(super) fn is_rank_0(&self) -> bool {
        self.job.as_ref().is_none_or(|job| job.coordinator.rank() == 0)
    }

    /// Waits until all processes have made this call; the error of one process becomes the error of
    /// all. `purpose` is a word that names the call.
    pub(super) fn agree<T>(&self, purpose: &str, own: Result<T>) -> Result<T> {
        let Some(job) = &self.job else { return own };
        let session = self.begin(job, purpose)?;
        let own = session.agree("agreed", own)?;
        session.finish();
        Ok(own)
    }

    /// Runs `look` on rank 0, and returns its result in every process.
    ///
    /// # Errors
    /// Errors of `look`, in every process.
    pub fn of_rank_0<T: Serialize + DeserializeOwned>(
        &self,
        purpose: &str,
        look: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.decide(purpose, (), |_| look())
    }

    /// Gathers a value from each process, and returns the decision of rank 0 in every process.
    pub(super) fn decide<G: Serialize + DeserializeOwned, T: Serialize + DeserializeOwned>(
        &self,
        purpose: &str,
        own: G,
        decide: impl FnOnce(Vec<G>) -> Result<T>,
    ) -> Result<T> {
        let Some(job) = &self.job else { return decide(vec![own]) };
        let session = self.begin(job, purpose)?;
        let given = session.gather("given", to_bytes(&own)?)?;
        let decided = session.broadcast("decided", || {
            let all = given.unwrap_or_default();
            to_bytes(&decide(all.iter().map(from_bytes).collect::<Result<_>>()?)?)
        })?;
        session.finish();
        from_bytes(&decided)
    }

    fn begin(&self, job: &Job, purpose: &str) -> Result<Session> {
        job.begin(&self.root, purpose, &Monitor::new())
    }
}

fn to_bytes(value: &impl Serialize) -> Result<Bytes> {
    let text = serde_json::to_vec(value);
    text.map(Bytes::from).map_err(|error| Error::new(ErrorKind::Internal, format!("not JSON: {error}")))
}

fn from_bytes<T: DeserializeOwned>(bytes: &Bytes) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| {
        Error::invalid(format!("cannot read the message of another process: {error}"))
            .help("run one version of regrow in all processes")
    })
}
