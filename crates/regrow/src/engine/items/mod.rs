//! Several items in one checkpoint, committed at once: the state of a model, a configuration, an
//! iterator, metrics.
//!
//! ```text
//! step_100/                            one publication: all of it, or nothing
//!   _CHECKPOINT_METADATA               for Orbax: handlers, metrics, times, the user's metadata
//!   regrow.items.json                  kinds of items, checksums of files outside of trees
//!   commit_success.txt
//!   state/…                            tree(): a pytree in any layout of a folder
//!   lora/model.safetensors             tree(): a pytree in a layout of one file
//!   config/metadata                    json()
//!   metrics/metrics                    metrics()
//!   iterator/process_0.json            file(), or files written into folder()
//! ```
//!
//! The items have the form that Orbax' `Composite` handler and manager read and write.
//! [`OpenOptions::item`] and [`open`](crate::open) read them in regrow.
//!
//! **A checkpoint can itself be one item**, which then has the empty name, [`WHOLE`]. Such an item
//! is a pytree, or the files of a handler directly in the checkpoint's folder. A pytree then has
//! the metadata of the checkpoint beside its own metadata.
//!
//! Readers see nothing before [`commit`](ItemsSave::commit). If the save is dropped, its files are
//! removed. After an error in one item nothing is committed. Several threads may add items.
//!
//! **Several processes** ([`ItemsOptions::job`]) must all call the same methods in the same order.
//! As in other saves, each process writes its shards of a tree. Rank 0 writes everything else,
//! except files that callers write into `folder()`. If one process fails, all processes fail.
//!
//! [`OpenOptions::item`]: super::OpenOptions::item

mod documents;
mod ending;
mod names;
mod reading;
mod record;
mod trees;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::time::Instant;

use serde_json::{Map, Value};

use self::ending::now_nsecs;
use self::names::{Taken, check_file, check_item, path_in};
use self::record::Noted;
use super::checks::{check_place, how_published, publish};
use super::side_files::SideFiles;
use super::together::{Shared, publish_together};
use super::{SaveOptions, SaveReport};
use crate::coordination::{Job, Session};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::Loss;
use crate::formats::container::COMMIT_SUCCESS_FILE;
use crate::formats::container::OF_THE_WHOLE;
use crate::formats::items_record::ItemKind;
use crate::formats::located;
use crate::location::{Location, ToLocation};
use crate::monitor::{Monitor, Running};
use crate::storage::PublishOptions;
use crate::storage::lent::{Lent, copy_in};
use crate::tree::{Key, Pytree};

/// The name of an item that is the checkpoint itself. There are then no other items.
pub const WHOLE: &str = "";

/// The options of a save of several items.
#[derive(Debug, Clone, Default)]
pub struct ItemsOptions {
    /// Replace an existing checkpoint, as [`SaveOptions::overwrite`].
    pub overwrite: bool,
    /// With `overwrite` on a disk: also replace a folder that holds other files of the user, and
    /// keep these files. Other storages return an error.
    pub keeps_others: bool,
    /// Do not sync to disk. This is faster, but the checkpoint may be lost in a power cut.
    pub not_durable: bool,
    /// As [`SaveOptions::keep_cached`], for all files of the checkpoint.
    pub keep_cached: bool,
    /// Use the form of Orbax' v1 API: its marker, and its names of handlers and JSON files.
    pub v1: bool,
    /// With `v1`: the checkpoint is a step in a folder of steps, for which Orbax writes other
    /// markers.
    #[doc(hidden)]
    pub of_step: bool,
    /// The metadata of the checkpoint itself.
    pub custom_metadata: Map<String, Value>,
    /// An earlier checkpoint of items. If it has an item of the same name in the default layout,
    /// that item is the [`SaveOptions::base`] of the new item.
    pub base: Option<Location>,
    /// The mode of the folders of the checkpoint and its items, on a disk; the system's default if
    /// `None`.
    pub mode: Option<u32>,
    /// As [`SaveOptions::wait`].
    pub wait: Option<Duration>,
    /// Watches the save, and can cancel it.
    pub monitor: Monitor,
    /// The job whose processes save together.
    pub job: Option<Job>,
}

/// An unfinished checkpoint of several items. If it is dropped before the commit, its files are
/// removed.
///
/// ```
/// use regrow::engine::{ItemsOptions, ItemsSave, SaveOptions};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("100");
/// let save = ItemsSave::begin(&path, ItemsOptions::default())?;
/// save.tree("state", &vec![0_f32; 1000], &SaveOptions::default())?;
/// save.json("config", &serde_json::json!({"width": 1024}))?;
/// save.metrics(&serde_json::json!({"loss": 0.25}))?;
/// save.commit()?;
/// let state = regrow::OpenOptions { item: Some("state".to_owned()), ..Default::default() };
/// assert_eq!(regrow::open_with(&path, &state)?.tree().len(), 1);      // a vector of numbers is one array
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ItemsSave {
    // Drop order: the publication removes its files before the session tells other processes that
    // the save ended.
    publication: Shared,
    session: Option<Session>,
    at: Location,
    v1: bool,
    of_step: bool,
    mode: Option<u32>,
    base: Option<Location>,
    /// The options that apply to all items.
    options: SaveOptions,
    state: Mutex<State>,
    has_failed: AtomicBool,
    began: Instant,
    began_nsecs: Option<u64>,
    _running: Running,
}

#[derive(Debug, Default)]
struct State {
    /// The name and the handler of each item, in the order of the calls.
    handlers: Vec<(String, Option<String>)>,
    noted: Noted,
    /// Names already used for items or parts of items, and their use.
    taken: Vec<(String, Taken)>,
    lent: Vec<Lent>,
    /// The names at the top of a checkpoint that is itself the item of a handler.
    files: Option<Vec<String>>,
    /// The files that remain to be written for a checkpoint that is itself a pytree.
    rest: Rest,
    /// The side files; `None` if no item requests them.
    side_files: Option<SideFiles>,
    marked: Vec<String>,
    custom_metadata: Map<String, Value>,
    metrics: Map<String, Value>,
    /// Losses that a reader of a tree's own layout would see.
    losses: Vec<Loss>,
    tree_count: usize,
    leaf_count: usize,
    data_bytes: u64,
}

/// The files that remain to be written when all items are complete.
#[derive(Debug, Default, PartialEq, Eq)]
enum Rest {
    #[default]
    All,
    Marker,
    Nothing,
}

impl ItemsSave {
    /// Begins a checkpoint of items at `path`.
    ///
    /// # Errors
    /// `AlreadyExists`, `InvalidArgument`, `PermissionDenied` and other errors of a save about its
    /// target. Existing files are unchanged.
    pub fn begin(path: impl ToLocation, options: ItemsOptions) -> Result<Self> {
        let at = located(path)?;
        let ItemsOptions {
            overwrite,
            keeps_others,
            not_durable,
            keep_cached,
            v1,
            of_step,
            custom_metadata,
            base,
            mode,
            wait,
            monitor,
            job,
        } = options;
        let options = SaveOptions {
            overwrite,
            keeps_others,
            not_durable,
            keep_cached,
            wait,
            monitor,
            job,
            ..SaveOptions::default()
        };
        let running = options.monitor.begin()?;
        let (session, publication) = match options.job.as_ref().filter(|job| job.has_others()) {
            None => {
                check_place(&at, &options)?;
                let begun = publish(&options, |how| at.publish_folder(PublishOptions { mode, ..how }))?;
                (None, Shared::Begun(begun))
            }
            Some(job) => {
                let session = job.begin(&at, "save", &options.monitor)?;
                let checked = if session.rank() == 0 { check_place(&at, &options) } else { Ok(()) };
                session.agree("check", checked)?;
                session.shares_storage(&at)?;
                let publication =
                    publish_together(&session, &at, PublishOptions { mode, ..how_published(&options) })?;
                (Some(session), publication)
            }
        };
        Ok(Self {
            publication,
            session,
            at,
            v1,
            of_step,
            mode,
            base,
            options,
            state: Mutex::new(State { custom_metadata, ..State::default() }),
            has_failed: AtomicBool::new(false),
            began: Instant::now(),
            began_nsecs: now_nsecs(),
            _running: running,
        })
    }

    /// The location of the new checkpoint.
    pub fn location(&self) -> &Location {
        &self.at
    }

    /// The monitor of the save.
    pub fn monitor(&self) -> &Monitor {
        &self.options.monitor
    }

    /// Adds a pytree in the layout of `options`. The options of the whole checkpoint set
    /// overwriting, syncing, monitor and job.
    ///
    /// `name` is the name of the item, or a path below it (`rng/jax_random_key`). For [`WHOLE`],
    /// first call [`handler`](Self::handler) and [`metadata`](Self::metadata).
    ///
    /// # Errors
    /// The errors of a save; `Unsupported` for a layout that cannot be an item; `AlreadyExists` for
    /// a name that was already added.
    pub fn tree<P: Pytree>(&self, name: &str, value: &P, options: &SaveOptions) -> Result<()> {
        self.add(name, Taken::Tree, || {
            let tree = value.to_tree()?;
            self.write_tree(name, &tree, options).map_err(|error| error.below(&Key::dict(name)))
        })
    }

    /// Adds one file of an item. Several calls with the same `name` make an item of several files.
    ///
    /// # Errors
    /// `AlreadyExists` for a file that was already added; `InvalidArgument` for a name that leads
    /// out of the item; errors of the storage.
    pub fn file(&self, name: &str, file: &str, bytes: &[u8]) -> Result<()> {
        self.guarded(|| {
            self.check_name(name)?;
            check_file(file)?;
            self.take_name(name, Taken::Files)?;
            self.note(name, None);
            self.note_kind(name, ItemKind::Files);
            self.note_marker(name, file);
            self.keep_name(name, file)?;
            self.on_rank_0(|| self.write_summed(&path_in(name, file), bytes))
        })
    }

    /// Adds a copy of a local file or folder. A folder becomes the item itself, a file becomes a
    /// file in the item.
    ///
    /// # Errors
    /// The errors of [`file`](Self::file); `NotFound`; `InvalidArgument` for links and everything
    /// else that is not a regular file.
    #[doc(hidden)]
    pub fn copy_of(&self, name: &str, from: &Path) -> Result<()> {
        let from = Location::local(from);
        self.add(name, Taken::Alone, || {
            self.note(name, None);
            self.note_kind(name, ItemKind::Files);
            if !from.is_folder() {
                let (file, path) = (from.name_text(), path_in(name, &from.name_text()));
                self.keep_name(name, &file)?;
                self.note_marker(name, &file);
                return self.on_rank_0(|| {
                    copy_in(&*self.publication, &from, &path, &[])?;
                    self.sum_copy(&from, &path)
                });
            }
            if from.join(COMMIT_SUCCESS_FILE).is_file() {
                self.note_marker(name, COMMIT_SUCCESS_FILE);
            }
            let left_out = if name == WHOLE { OF_THE_WHOLE } else { &[] };
            for entry in from.entries()?.into_iter().filter(|_| name == WHOLE) {
                let file = entry.name.to_string_lossy().into_owned();
                if !left_out.contains(&file.as_str()) {
                    self.keep_name(name, &file)?;
                }
            }
            self.on_rank_0(|| {
                copy_in(&*self.publication, &from, name, left_out)?;
                self.sum_copy(&from, name)
            })
        })
    }

    /// Returns a local folder. Until the commit, the caller writes the files of an item with its
    /// own handler into this folder.
    ///
    /// On a disk this is the item's folder in the checkpoint, under its temporary name. For other
    /// storages it is a temporary folder on this machine, and the commit uploads its content. In a
    /// job on such a storage each process has its own folder, and the folder of rank 0 is saved. A
    /// [`tree`](Self::tree) of the same name may be added too: a tree with leaves that the user's
    /// type handlers write ([`OrbaxOptions::value_types`]).
    ///
    /// [`OrbaxOptions::value_types`]: super::OrbaxOptions::value_types
    ///
    /// # Errors
    /// `AlreadyExists` for a name that was already added; errors of the system.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        self.add(name, Taken::Folder, || {
            self.note(name, None);
            self.note_kind(name, ItemKind::Handler);
            let lent = Lent::new(&*self.publication, name)?;
            let path = lent.path().to_owned();
            self.state().lent.push(lent);
            Ok(path)
        })
    }

    /// Sets the handler (a full class name) with which Orbax reads an item. By default an item has
    /// the handler of its kind, and an item of files has none.
    pub fn handler(&self, item: &str, handler: &str) {
        let mut state = self.state();
        match state.handlers.iter_mut().find(|(name, _)| name == item) {
            Some((_, known)) => *known = Some(handler.to_owned()),
            None => state.handlers.push((item.to_owned(), Some(handler.to_owned()))),
        }
    }

    /// Declares that the [`folder`](Self::folder) of this name has plain files, although it has a
    /// handler. `item_files` then returns the files. A folder without a handler has plain files
    /// anyway.
    pub fn files(&self, item: &str) {
        self.note_kind(item, ItemKind::Files);
    }

    /// Adds entries to the checkpoint's own metadata.
    pub fn metadata(&self, custom: &Map<String, Value>) {
        self.state().custom_metadata.extend(custom.clone());
    }

    /// Before the save is dropped: sends the reason for its failure to the other processes of the
    /// job, which return this error.
    #[doc(hidden)]
    pub fn fail(&self, error: Error) {
        self.has_failed.store(true, Ordering::Release);
        if let Some(session) = &self.session {
            // The caller returns its own error, even if the other processes received another error
            // first.
            let _ = session.agree::<()>("item", Err(error));
        }
    }

    /// Commits the checkpoint under its final name.
    ///
    /// # Errors
    /// The errors of the commit of a save; `InvalidArgument` if an item has failed, or if there are
    /// no items.
    pub fn commit(self) -> Result<SaveReport> {
        let (monitor, began) = (self.options.monitor.clone(), self.began);
        let saved = self.committed().map(|mut report| {
            report.take_stock(&monitor, began.elapsed());
            report
        });
        monitor.conclude(saved)
    }

    fn add<T>(&self, name: &str, taken: Taken, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.guarded(|| {
            self.check_name(name)?;
            self.take_name(name, taken)?;
            work()
        })
    }

    fn check_name(&self, name: &str) -> Result<()> {
        match name {
            WHOLE if self.v1 => {
                Err(Error::unsupported("a checkpoint of Orbax' v1 API has its items in folders")
                    .in_file(&self.at)
                    .help("give the item a name, or save in the form of the v0 API"))
            }
            WHOLE => Ok(()),
            name => {
                check_item(name)?;
                let Some((item, _)) = name.split_once('/') else { return Ok(()) };
                let has_handler =
                    self.state().handlers.iter().any(|(known, handler)| known == item && handler.is_some());
                match has_handler {
                    true => Ok(()),
                    false => Err(Error::invalid(format!("{name:?} has a slash: it cannot name an item"))
                        .in_file(&self.at)
                        .help("give the item a name without a slash")),
                }
            }
        }
    }

    /// Records a name at the top of a checkpoint that is itself an item.
    fn keep_name(&self, name: &str, file: &str) -> Result<()> {
        if name == WHOLE {
            check_item(file)?;
            let first = file.split('/').next().unwrap_or(file);
            self.state().files.get_or_insert_default().push(first.to_owned());
        }
        Ok(())
    }

    /// Reserves a name. It is an error if the name is in use.
    fn take_name(&self, name: &str, own: Taken) -> Result<()> {
        let mut state = self.state();
        let clash = |(taken, other): &&(String, Taken)| own.clashes(name, taken, *other);
        if let Some((taken, _)) = state.taken.iter().find(clash) {
            let what = match taken.as_str() {
                WHOLE => "the checkpoint is itself one item already".to_owned(),
                taken => format!("the checkpoint already has the item {taken}"),
            };
            return Err(Error::new(ErrorKind::AlreadyExists, what)
                .in_file(self.at.join(name))
                .help("give each item its own name"));
        }
        state.taken.push((name.to_owned(), own));
        Ok(())
    }

    /// Runs `work`. If it fails, nothing can be committed any more.
    fn guarded<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = work();
        if done.is_err() {
            self.has_failed.store(true, Ordering::Release);
        }
        self.options.monitor.conclude(done)
    }

    /// Records the item of a name, and its handler unless the item already has one.
    fn note(&self, name: &str, handler: Option<&str>) {
        let item = name.split('/').next().unwrap_or(name);
        // Only the name of the whole item has a handler; names below it have none.
        let handler = handler.filter(|_| item == name).map(str::to_owned);
        let mut state = self.state();
        match state.handlers.iter_mut().find(|(known, _)| known == item) {
            Some((_, known)) if known.is_none() => *known = handler,
            Some(_) => {}
            None => state.handlers.push((item.to_owned(), handler)),
        }
    }

    fn on_rank_0(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.session.as_ref().is_none_or(|session| session.rank() == 0) { work() } else { Ok(()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
