//! One save in the background, from its snapshot to its outcome.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::super::save::save_watched;
use super::super::{ItemsSave, SaveOptions, SaveReport};
use super::snapshot::check_unchanged;
use super::{BeforeCommit, Blocked, OnEnd};
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::tree::{Leaf, Tree};

#[derive(Debug)]
pub(super) struct Job {
    location: Location,
    /// The location as a path or URL.
    pub path: PathBuf,
    pub monitor: Monitor,
    pub blocked: Blocked,
    pub on_end: Option<OnEnd>,
    work: Mutex<Option<Work>>,
    outcome: OnceLock<Result<SaveReport>>,
    /// Whether a caller has seen the result or has cancelled the save.
    is_seen: AtomicBool,
}

/// The data that a job saves.
#[derive(Debug)]
pub(super) enum Work {
    Tree(Box<TreeWork>),
    Items(Box<ItemsSave>, Vec<(String, TreeWork)>, Option<BeforeCommit>),
}

/// A tree with the values of the snapshot.
#[derive(Debug)]
pub(super) struct TreeWork {
    pub tree: Tree<Leaf>,
    pub options: SaveOptions,
    pub fingerprints: Option<Vec<Option<u32>>>,
}

impl TreeWork {
    fn check_unchanged(&self) -> Result<()> {
        self.fingerprints.as_ref().map_or(Ok(()), |before| check_unchanged(&self.tree, before))
    }
}

impl Job {
    pub(super) fn new(
        location: Location,
        work: Work,
        monitor: &Monitor,
        on_end: Option<OnEnd>,
        blocked: Blocked,
    ) -> Self {
        Self {
            path: location.describe(),
            location,
            monitor: monitor.clone(),
            blocked,
            on_end,
            work: Mutex::new(Some(work)),
            outcome: OnceLock::new(),
            is_seen: AtomicBool::new(false),
        }
    }

    pub(super) fn run(&self) {
        let work = self.work.lock().unwrap_or_else(PoisonError::into_inner).take();
        let outcome = match work {
            Some(work) => catch_unwind(AssertUnwindSafe(|| self.save(work))).unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Internal, "the save panicked: this is a bug in regrow")
                    .in_file(&self.path))
            }),
            None => Err(Error::invalid("the save already ran")),
        };
        let _ = self.outcome.set(outcome);
    }

    fn save(&self, work: Work) -> Result<SaveReport> {
        let mut report = match work {
            Work::Tree(work) => {
                let tree = || Ok(Cow::Borrowed(&work.tree));
                save_watched(&self.location, &work.options, tree, &|| work.check_unchanged())?
            }
            Work::Items(items, trees, before_commit) => {
                for (name, work) in &trees {
                    items.tree(name, &work.tree, &work.options)?;
                }
                let ready = trees.iter().try_for_each(|(_, work)| work.check_unchanged());
                let ready = ready.and_then(|()| before_commit.map_or(Ok(()), |call| (call.0)()));
                // Send the error to the other processes of the job, which return the same error.
                ready.inspect_err(|error| items.fail(error.duplicate()))?;
                items.commit()?
            }
        };
        report.stages.splice(0..0, self.blocked.stages());
        Ok(report)
    }

    pub(super) fn cancel(&self) {
        self.is_seen.store(true, Ordering::Release);
        self.monitor.cancel();
    }

    pub(super) fn is_done(&self) -> bool {
        self.outcome.get().is_some()
    }

    /// The outcome of a save that has ended; the job then counts as seen. `None` while the save
    /// runs.
    pub(super) fn outcome(&self) -> Option<Result<SaveReport>> {
        let outcome = self.outcome.get()?;
        self.is_seen.store(true, Ordering::Release);
        Some(match outcome {
            Ok(report) => Ok(report.clone()),
            Err(error) => Err(error.duplicate()),
        })
    }

    /// The error of a failed save that no caller has seen; the job then counts as seen.
    pub(super) fn unseen_failure(&self) -> Option<Error> {
        let error = self.outcome.get()?.as_ref().err()?;
        if self.is_seen.swap(true, Ordering::AcqRel) {
            return None;
        }
        let what = format!("the save of {} in the background failed: {}", self.path.display(), error.what());
        Some(error.duplicate().reworded(what))
    }
}
