//! A folder of steps, and the list of its committed steps.

use std::collections::BTreeSet;
use std::time::UNIX_EPOCH;

use serde_json::{Map, Value};

use super::keep::StepFacts;
use super::names::StepNames;
use super::pointer::Pointer;
use crate::bytes::glance::Language;
use crate::bytes::limits::JSON_LEN_MAX_BYTES;
use crate::engine::Retries;
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::formats::container::COMMIT_SUCCESS_FILE;
use crate::formats::container::METADATA_FILE;
use crate::formats::container::StepRecord;
use crate::formats::container::is_checkpoint;
use crate::formats::container::{CHECKPOINT_METADATA_FILE, CheckpointMetadata, ItemHandlers};
use crate::formats::located;
use crate::formats::{formats, refuse_unmarked};
use crate::location::{Location, StepFolder, ToLocation};
use crate::storage::{Found, Stock, UNCOMMITTED_MARK};
use crate::threads::map_ordered;

const LOOKS_MAX: usize = 16;

/// Steps that are read at once. On a disk the reads wait little, in a bucket they wait for a
/// network.
const THREADS: usize = 8;
const BUCKET_THREADS: usize = 32;

/// The name of the item in which Orbax stores metrics, and of its file.
const METRICS_ITEM: &str = "metrics";

/// A folder of steps. Cheap to clone, because it caches nothing.
#[derive(Debug, Clone)]
pub struct Steps {
    root: Location,
    names: StepNames,
}

/// A step that the storage has committed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Step {
    /// The number of the step.
    pub number: u64,
    /// The name of the step in the folder.
    pub name: String,
    /// The location.
    pub location: Location,
    /// The time of the commit, in seconds since 1970; `None` if unknown.
    pub seconds: Option<f64>,
    /// The seconds from the beginning of the save to its commit, if both times were recorded.
    pub save_seconds: Option<f64>,
    /// The metrics that were saved with the step.
    pub metrics: Map<String, Value>,
    /// The user's own metadata.
    pub custom_metadata: Map<String, Value>,
    /// The record of the manager that saved the step; `None` for a step of another program.
    pub record: Option<StepRecord>,
    /// Whether the marker or the folder of a listed item is missing. Known without reading the
    /// data, but only for a step with a record on a disk.
    pub is_damaged: bool,
}

/// The content of a folder of steps.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct StepList {
    /// Committed steps, by number.
    pub steps: Vec<Step>,
    /// The names of saves that are in progress or were interrupted.
    pub unfinished: Vec<String>,
    /// Notes about folders that have the name of a step but are not steps.
    pub notes: Vec<String>,
    record: Option<StepRecord>,
}

impl StepList {
    /// The facts for a policy. With `adopt`, steps of other programs count as steps of the run.
    #[doc(hidden)]
    pub fn facts(&self, leased: &[u64], damaged: &BTreeSet<u64>, adopt: bool) -> Vec<StepFacts> {
        let is_own = |record: &StepRecord| self.record.as_ref().is_some_and(|current| current.is_own(record));
        let facts = |step: &Step| StepFacts {
            number: step.number,
            seconds: step.seconds,
            metrics: step.metrics.clone(),
            is_leased: leased.contains(&step.number),
            is_damaged: step.is_damaged || damaged.contains(&step.number),
            is_other: !self.is_current(step) || !(adopt || step.record.as_ref().is_some_and(is_own)),
        };
        self.steps.iter().map(facts).collect()
    }

    /// Whether a step belongs to the current history.
    pub fn is_current(&self, step: &Step) -> bool {
        self.record.as_ref().is_none_or(|record| record.has(step.number, step.record.as_ref()))
    }

    /// The steps of the current history, by number.
    pub fn current(&self) -> impl DoubleEndedIterator<Item = &Step> {
        self.steps.iter().filter(|step| self.is_current(step))
    }

    /// Steps of another history than the current one, by number.
    pub fn abandoned(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| !self.is_current(step))
    }

    /// Whether the run has since gone back from this step to an older one.
    pub(super) fn has_left(&self, number: u64) -> bool {
        let is_current = self.current().any(|step| step.number == number);
        let has_gone_back = |record: &StepRecord| {
            record.from.values().any(|last| *last < number)
                || record.left.keys().any(|first| *first <= number)
        };
        !is_current && self.record.as_ref().is_some_and(has_gone_back)
    }
}

impl Steps {
    /// The steps in a folder, which need not exist yet. If `names` is `None`, the names have the
    /// form of the existing names.
    ///
    /// # Errors
    /// `InvalidArgument` if the path is a file or a checkpoint by itself; errors of the storage.
    pub fn new(root: impl ToLocation, names: Option<StepNames>) -> Result<Self> {
        let root = located(root)?;
        if let Some(Found::File { .. } | Found::Other(_)) = root.look()? {
            return Err(Error::invalid("this is a file, not a folder of steps").in_file(&root));
        }
        let records = formats().filter_map(|format| format.file_names().record);
        let marks: Vec<&str> = [CHECKPOINT_METADATA_FILE, METADATA_FILE].into_iter().chain(records).collect();
        if let Some(mark) = root.first_file(&marks) {
            return Err(Error::invalid("this is one checkpoint, not a folder of steps")
                .in_file(&root)
                .expected("a folder for each step", mark)
                .help("give the folder that has the steps"));
        }
        let names = match names {
            Some(names) => names,
            None => StepNames::found_in(folders_in(&root)?.iter().map(String::as_str)),
        };
        Ok(Self { root, names })
    }

    /// The folder.
    pub fn root(&self) -> &Location {
        &self.root
    }

    /// The forms of the names.
    pub fn names(&self) -> &StepNames {
        &self.names
    }

    /// Whether an empty folder has the name of this step. It is not a step, and a save replaces it.
    #[doc(hidden)]
    pub fn is_empty_folder(&self, step: u64) -> bool {
        self.place(step).entries().is_ok_and(|entries| entries.is_empty())
    }

    /// The location of a new step with this number.
    #[doc(hidden)]
    pub fn place(&self, step: u64) -> Location {
        self.root.join(self.names.format(step))
    }

    /// Lists the folder. Reads a small file of each step.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn list(&self) -> Result<StepList> {
        self.look(|names| {
            let (list, may_have_gone) = self.list_of(names)?;
            let is_in_vain = may_have_gone && list.steps.is_empty();
            Ok((list, is_in_vain))
        })
    }

    /// Calls `look` with the names of the folders, and again with new names if all steps have
    /// disappeared: before a slow reader reads the listed steps, a writer may have deleted all of
    /// them and saved newer ones.
    fn look<T>(&self, look: impl Fn(Vec<String>) -> Result<(T, bool)>) -> Result<T> {
        let (mut before, mut looks) = (Vec::new(), 0);
        loop {
            looks += 1;
            let mut names = folders_in(&self.root)?;
            names.sort_unstable();
            let (found, is_in_vain) = look(names.clone())?;
            if !is_in_vain || names == before || looks == LOOKS_MAX {
                return Ok(found);
            }
            before = names;
        }
    }

    /// The list of the steps in these folders, and whether any of them may have been removed since.
    fn list_of(&self, names: Vec<String>) -> Result<(StepList, bool)> {
        let mut list = StepList::default();
        let mut may_have_gone = false;
        let mut found: Vec<(u64, usize, String)> = Vec::new();
        for name in names {
            match name.split_once(UNCOMMITTED_MARK) {
                Some((target, _)) if self.names.parse(target).is_some() => list.unfinished.push(name),
                Some(_) => {}
                None => found.extend(self.names.parse(&name).map(|(number, form)| (number, form, name))),
            }
        }
        found.sort_unstable();
        let threads = if self.root.commits_by_marker() { BUCKET_THREADS } else { THREADS };
        map_ordered(
            threads,
            found,
            u64::MAX,
            |_| 0,
            |(number, _, name)| Ok((self.look_at(number, &name)?, name)),
            |(looked, name)| {
                match looked {
                    // If two names have the same number, the first name counts.
                    Looked::Committed(step)
                        if list.steps.last().is_some_and(|last| last.number == step.number) =>
                    {
                        list.notes
                            .push(format!("the folder {name} is left out: another step has the same number"));
                    }
                    Looked::Committed(step) => list.steps.push(*step),
                    Looked::Unfinished => {
                        // In a bucket a step that is being removed has lost its marker, so it looks
                        // unfinished.
                        may_have_gone = true;
                        list.unfinished.push(name);
                    }
                    Looked::Nothing => {
                        list.notes.push(format!("the folder {name} is left out: it is not a checkpoint"))
                    }
                    Looked::Gone => may_have_gone = true,
                }
                Ok(())
            },
        )?;
        list.unfinished.sort_unstable();
        let records = list.steps.iter().map(|step| (step.number, step.record.as_ref()));
        list.record = StepRecord::current(records).cloned();
        Ok((list, may_have_gone))
    }

    /// The numbers of the committed steps, of any history.
    ///
    /// # Errors
    /// The errors of [`list`](Self::list).
    pub fn numbers(&self) -> Result<Vec<u64>> {
        Ok(self.list()?.steps.into_iter().map(|step| step.number).collect())
    }

    /// The numbers of the committed steps of the current history.
    ///
    /// # Errors
    /// The errors of [`list`](Self::list).
    pub fn current(&self) -> Result<Vec<u64>> {
        Ok(self.list()?.current().map(|step| step.number).collect())
    }

    /// The committed step with this number.
    ///
    /// # Errors
    /// `NotFound`, with the numbers of the existing steps; `Uncommitted` if the step is being
    /// written or its writer was killed; errors of the storage.
    pub fn step(&self, number: u64) -> Result<Step> {
        if let Some(step) = self.find(number)? {
            return Ok(step);
        }
        let list = self.list()?;
        let is_it = |name: &&String| {
            let target = name.split(UNCOMMITTED_MARK).next().unwrap_or_default();
            self.names.parse(target).is_some_and(|(found, _)| found == number)
        };
        if let Some(name) = list.unfinished.iter().find(is_it) {
            return Err(Error::new(ErrorKind::Uncommitted, format!("step {number} was never committed"))
                .in_file(self.root.join(name))
                .help("it is being written, or its writer was killed: restore an earlier step"));
        }
        let numbers: Vec<u64> = list.steps.iter().map(|step| step.number).collect();
        Err(Error::new(ErrorKind::NotFound, format!("step {number} does not exist"))
            .in_file(&self.root)
            .help(said(&numbers)))
    }

    /// The committed step with this number; `None` if it does not exist or is not committed.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn find(&self, number: u64) -> Result<Option<Step>> {
        for name in self.names.names_of(number) {
            if let Looked::Committed(step) = self.look_at(number, &name)? {
                return Ok(Some(*step));
            }
        }
        Ok(None)
    }

    /// The newest committed step of the current history; `None` if there is none.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn latest(&self) -> Result<Option<Step>> {
        if self.root.commits_by_marker()
            && let Some(pointer) = Pointer::read(&self.root)?
        {
            if pointer.spares_a_list(&self.root)
                && let Looked::Committed(step) = self.look_at(pointer.step, &pointer.name)?
            {
                return Ok(Some(*step));
            }
            // In a bucket each read costs a request. If the highest step has the turn of the
            // pointer, only that step is read.
            let highest = self.highest()?;
            let turn = highest.as_ref().and_then(|step| Some(step.record.as_ref()?.turn));
            if turn == pointer.turn {
                return Ok(highest);
            }
        }
        Ok(self.list()?.current().next_back().cloned())
    }

    fn highest(&self) -> Result<Option<Step>> {
        let parsed = |name: &String| {
            let (number, form) = self.names.parse(name)?;
            Some((number, std::cmp::Reverse(form), name.clone()))
        };
        self.look(|names| {
            let mut found: Vec<_> = names.iter().filter_map(parsed).collect();
            found.sort_unstable();
            let mut may_have_gone = false;
            for (number, _, name) in found.into_iter().rev() {
                match self.look_at(number, &name)? {
                    Looked::Committed(step) => return Ok((Some(*step), false)),
                    Looked::Gone | Looked::Unfinished => may_have_gone = true,
                    Looked::Nothing => {}
                }
            }
            Ok((None, may_have_gone))
        })
    }

    /// Rewrites the pointer if it differs from the list.
    pub(super) fn point(&self, list: &StepList) -> Result<()> {
        let Some(last) = list.current().next_back() else {
            return match Pointer::read(&self.root)? {
                Some(_) => Pointer::remove(&self.root),
                None => Ok(()),
            };
        };
        let turn = last.record.as_ref().map(|record| record.turn);
        let pointer =
            Pointer { step: last.number, name: last.name.clone(), step_count: list.steps.len(), turn };
        if Pointer::read(&self.root)?.as_ref() == Some(&pointer) {
            return Ok(());
        }
        pointer.write(&self.root)
    }

    /// The number and bytes of a step's files; `None` if unknown.
    ///
    /// # Errors
    /// Errors of the storage.
    #[doc(hidden)]
    pub fn stock(&self, step: &Step) -> Result<Option<Stock>> {
        step.location.stock()
    }

    fn look_at(&self, number: u64, name: &str) -> Result<Looked> {
        let location = self.root.join(name);
        match Retries::until_unreplaced(|| self.look_into(number, name, &location)) {
            Err(error) => match error.kind() {
                ErrorKind::Uncommitted => Ok(Looked::Unfinished),
                // The step was removed between two reads.
                ErrorKind::NotFound => Ok(Looked::Gone),
                _ => Err(error),
            },
            looked => looked,
        }
    }

    fn look_into(&self, number: u64, name: &str, location: &Location) -> Result<Looked> {
        if location.commits_by_marker() {
            refuse_unmarked(location)?;
            return self.read(number, name, location, &location.for_reading()?.location);
        }
        // If an overwrite runs during the read, the result may mix the old and the new step.
        let standing = StepFolder::at(location);
        let looked = self.read(number, name, location, location);
        if standing.is_replaced() { Err(standing.was_replaced()) } else { looked }
    }

    /// Reads the metadata documents of a step from `reading`.
    fn read(&self, number: u64, name: &str, location: &Location, reading: &Location) -> Result<Looked> {
        let is_bucket = location.commits_by_marker();
        let about = match read_json(&reading.join(CHECKPOINT_METADATA_FILE))? {
            // If the document is unreadable, the folder may still be a checkpoint. `open` reports
            // the error.
            Some(bytes) => CheckpointMetadata::parse(&bytes).unwrap_or_default(),
            None => match location.look()? {
                None => return Ok(Looked::Gone),
                Some(_) if !is_bucket && !is_checkpoint(location)? => return Ok(Looked::Nothing),
                Some(_) => CheckpointMetadata::default(),
            },
        };
        let seconds =
            about.commit_timestamp_nsecs.or(about.init_timestamp_nsecs).map(|nsecs| nsecs as f64 / 1e9);
        let seconds = match seconds {
            Some(seconds) => Some(seconds),
            None => modified(location)?,
        };
        let is_damaged =
            !is_bucket && about.step_record.is_some() && !is_complete(location, &about.item_handlers);
        let times = about.init_timestamp_nsecs.zip(about.commit_timestamp_nsecs);
        let save_seconds = times.and_then(|(began, ended)| Some(ended.checked_sub(began)? as f64 / 1e9));
        // A check for a file is free on a disk, but costs a request in a bucket.
        let may_have_metrics = !is_bucket || lists_metrics(&about.item_handlers);
        let metrics = match about.metrics.is_empty() && may_have_metrics {
            true => metrics_item(reading)?,
            false => about.metrics,
        };
        Ok(Looked::Committed(Box::new(Step {
            number,
            name: name.to_owned(),
            location: location.clone(),
            seconds,
            save_seconds,
            metrics,
            custom_metadata: about.custom_metadata,
            record: about.step_record,
            is_damaged,
        })))
    }
}

/// The state of a folder with the name of a step.
enum Looked {
    Committed(Box<Step>),
    Unfinished,
    /// A folder that is not a checkpoint.
    Nothing,
    /// The folder no longer exists.
    Gone,
}

/// The folders in a folder, and links to folders; empty if the folder does not exist.
fn folders_in(root: &Location) -> Result<Vec<String>> {
    let entries = match root.entries() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let folders = entries.into_iter().filter(|entry| entry.is_folder());
    Ok(folders.filter_map(|entry| entry.name.into_string().ok()).collect())
}

fn read_json(file: &Location) -> Result<Option<Vec<u8>>> {
    file.read_document("a metadata file", Language::Json, JSON_LEN_MAX_BYTES)
}

fn is_complete(step: &Location, handlers: &ItemHandlers) -> bool {
    let items = match handlers {
        ItemHandlers::Many(items) => items.as_slice(),
        _ => &[],
    };
    step.join(COMMIT_SUCCESS_FILE).is_file() && items.iter().all(|(name, _)| step.join(name).is_folder())
}

/// Whether the step may have an item of metrics. If its items are listed, only if the list contains
/// this item.
fn lists_metrics(handlers: &ItemHandlers) -> bool {
    match handlers {
        ItemHandlers::None => true,
        ItemHandlers::One(_) => false,
        ItemHandlers::Many(items) => items.iter().any(|(name, _)| name == METRICS_ITEM),
    }
}

/// The metrics that Orbax stores as an item; empty if the item is not a JSON object.
fn metrics_item(step: &Location) -> Result<Map<String, Value>> {
    let file = step.join(METRICS_ITEM).join(METRICS_ITEM);
    let Some(bytes) = read_json(&file)? else { return Ok(Map::new()) };
    match crate::formats::container::json_text::parse(&bytes).in_file(&file) {
        Ok(Value::Object(metrics)) => Ok(metrics),
        _ => Ok(Map::new()),
    }
}

fn modified(location: &Location) -> Result<Option<f64>> {
    let stock = location.stock()?;
    let modified = stock.and_then(|stock| stock.modified);
    Ok(modified
        .and_then(|modified| modified.duration_since(UNIX_EPOCH).ok())
        .map(|since| since.as_secs_f64()))
}

/// The existing steps as text, for the end of an error.
pub(super) fn said(numbers: &[u64]) -> String {
    const SHOWN: usize = 12;
    if numbers.is_empty() {
        return "there are no steps".to_owned();
    }
    let shown: Vec<String> = numbers.iter().rev().take(SHOWN).rev().map(u64::to_string).collect();
    let more = if numbers.len() > SHOWN {
        format!(" and {} older ones", numbers.len() - SHOWN)
    } else {
        String::new()
    };
    format!("the steps are {}{more}", shown.join(", "))
}
