//! Steps: the folders of a `CheckpointManager`, and whether each is committed.
//!
//! ```text
//! ROOT/
//!   100/  or  step_100/  or  00000100/      [prefix_]number, plain or zero-padded to one width
//!   200.orbax-checkpoint-tmp/               a save in progress, or one that was killed
//!   metadata/_ROOT_METADATA                 {"internal_metadata": {}, "custom_metadata": {…}}
//!   trash/99/                               moved aside by the manager: no step
//! ```
//!
//! A local save is committed by its rename, so the name is enough. Old releases added a timestamp
//! or a counter after the suffix. Orbax itself lists an empty folder `7` as step 7; regrow leaves
//! it out, with a note.

use std::collections::BTreeMap;

use serde_json::Value;

use super::checkpoint_metadata::{CHECKPOINT_METADATA_FILE, CheckpointMetadata};
use super::files::{Listed, list, read_small};
use super::history::StepRecord;
use super::marker_files::{AGGREGATE_FILE, COMMIT_SUCCESS_FILE, MANIFEST_FILE, V1_MARKER_FILE};
use super::{json_text, metadata};
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_base::threads::map_ordered;
use regrow_storage::location::{Location, StepFolder};

/// The part of a name that shows that a file or folder is not committed.
pub const TMP_MARK: &str = regrow_storage::UNCOMMITTED_MARK;

const ROOT_METADATA_FOLDER: &str = "metadata";
const ROOT_METADATA_FILES: [&str; 2] = ["_ROOT_METADATA", "metadata"];

const THREADS: usize = 8;

/// A committed step.
#[derive(Debug, Clone)]
pub struct Step {
    /// The number in the step's name.
    pub number: u64,
    /// The folder of the step.
    pub folder: Location,
}

/// The steps in a folder of steps.
#[derive(Debug, Clone, Default)]
pub struct Steps {
    /// Committed steps, by number.
    pub committed: Vec<Step>,
    /// Names of steps that are not committed.
    pub uncommitted: Vec<String>,
    /// Notes about folders that look like steps but are not.
    pub notes: Vec<String>,
}

impl Steps {
    /// The step of this number, or the newest of the current history.
    ///
    /// # Errors
    /// `Uncommitted` if only a temporary folder has this step, `NotFound` if no folder has it;
    /// errors of the storage.
    pub fn pick(&self, number: Option<u64>, root: &Location) -> Result<&Step> {
        let found = match number {
            Some(number) => self.committed.iter().find(|step| step.number == number),
            None => self.newest()?,
        };
        if let Some(step) = found {
            return Ok(step);
        }
        let temporary = self.uncommitted.iter().find(|name| match number {
            Some(number) => name.split(TMP_MARK).next().and_then(step_number) == Some(number),
            None => true,
        });
        if let Some(name) = temporary {
            return Err(uncommitted(&root.join(name)));
        }
        let numbers: Vec<String> = self.committed.iter().map(|step| step.number.to_string()).collect();
        Err(Error::new(
            ErrorKind::NotFound,
            format!("step {} does not exist", number.map_or_else(String::new, |n| n.to_string())),
        )
        .in_file(root)
        .help(format!("the committed steps are: {}", numbers.join(", "))))
    }

    /// The newest step of the current history. If there are several steps, reads a small file of
    /// each.
    fn newest(&self) -> Result<Option<&Step>> {
        if self.committed.len() < 2 {
            return Ok(self.committed.last());
        }
        let mut records = Vec::with_capacity(self.committed.len());
        let read = |step: &Step| Ok(step_record(&step.folder));
        map_ordered(
            THREADS,
            self.committed.iter(),
            u64::MAX,
            |_| 0,
            read,
            |record| {
                records.push(record);
                Ok(())
            },
        )?;
        let numbers = self.committed.iter().map(|step| step.number);
        let current = StepRecord::current(numbers.zip(records.iter().map(Option::as_ref)));
        let is_current = |(step, record): &(&Step, &Option<StepRecord>)| {
            current.is_none_or(|current| current.has(step.number, record.as_ref()))
        };
        Ok(self.committed.iter().zip(&records).rfind(is_current).map(|(step, _)| step))
    }
}

/// The record that a manager wrote into a step; `None` if the step has no readable record.
fn step_record(step: &Location) -> Option<StepRecord> {
    let reading = step.for_reading().ok()?.location;
    metadata_of(&reading).ok()?.step_record
}

/// The document of the checkpoint in a folder; empty if the document is missing or unreadable.
///
/// # Errors
/// Errors of the storage.
pub fn metadata_of(folder: &Location) -> Result<CheckpointMetadata> {
    let bytes = read_small(&folder.join(CHECKPOINT_METADATA_FILE))?;
    Ok(bytes.and_then(|bytes| CheckpointMetadata::parse(&bytes).ok()).unwrap_or_default())
}

pub(super) fn uncommitted(at: &Location) -> Error {
    Error::new(ErrorKind::Uncommitted, "this checkpoint was never committed: its name is a temporary one")
        .in_file(at)
        .help(
            "a save is running or was killed: wait for it, or restore an earlier checkpoint and delete \
            this folder",
        )
}

/// Whether a location is in a folder that is not committed. A symbolic link may have any name.
pub(super) fn is_temporary(at: &Location) -> bool {
    let mut part = at.clone();
    loop {
        if part.name_text().contains(TMP_MARK) && !part.is_link() {
            return true;
        }
        let above = part.parent();
        if above.is_same(&part) {
            return false;
        }
        part = above;
    }
}

/// The highest number of a step. A name with a higher number is not a step.
pub const STEP_MAX: u64 = 9_223_372_036_854_775_807;

/// The number in a step's name: `[prefix_]digits`.
pub fn step_number(name: &str) -> Option<u64> {
    split_name(name).and_then(|(_, digits)| number_of(digits))
}

/// The number of a step with these digits; `None` above `STEP_MAX`.
pub fn number_of(digits: &str) -> Option<u64> {
    digits.parse().ok().filter(|number| *number <= STEP_MAX)
}

/// The prefix of a step's name, which may be empty, and its digits.
pub fn split_name(name: &str) -> Option<(&str, &str)> {
    let (prefix, digits) = match name.rsplit_once('_') {
        Some((prefix, digits)) if !prefix.is_empty() => (prefix, digits),
        Some(_) => return None,
        None => ("", name),
    };
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then_some((prefix, digits))
}

/// The steps below `root`, from the listing of `root`.
///
/// If the folder has step names of several forms, takes the most frequent form, and adds a note.
pub(super) fn find(root: &Location, listed: &[Listed]) -> Result<Steps> {
    let mut steps = Steps::default();
    let mut forms: BTreeMap<&str, Vec<(&str, u64)>> = BTreeMap::new();
    for entry in listed.iter().filter(|entry| entry.is_dir) {
        if entry.name.contains(TMP_MARK) && !entry.is_link {
            if entry.name.split(TMP_MARK).next().and_then(step_number).is_some() {
                steps.uncommitted.push(entry.name.clone());
            }
            continue;
        }
        let Some((prefix, digits)) = split_name(&entry.name) else { continue };
        let Some(number) = number_of(digits) else { continue };
        match look_into(&root.join(&entry.name))? {
            Inside::Checkpoint => forms.entry(prefix).or_default().push((&entry.name, number)),
            Inside::Unmarked => steps.uncommitted.push(entry.name.clone()),
            Inside::Nothing => {
                steps.notes.push(format!("the folder {} is empty, so it is not a step", entry.name));
            }
            Inside::Other | Inside::Gone => {}
        }
    }
    // If two forms are equally frequent, plain numbers win: their empty prefix sorts first.
    let mut chosen: Option<(&str, Vec<(&str, u64)>)> = None;
    for (prefix, names) in forms {
        match &mut chosen {
            Some((_, best)) if best.len() >= names.len() => left_out(&mut steps.notes, &names),
            _ => {
                if let Some((_, beaten)) = chosen.replace((prefix, names)) {
                    left_out(&mut steps.notes, &beaten);
                }
            }
        }
    }
    let (prefix, mut names) = chosen.unwrap_or_default();
    let digits_of = |name: &str| name.len() - if prefix.is_empty() { 0 } else { prefix.len() + 1 };
    let is_padded = |name: &str| {
        digits_of(name) > 1
            && name.get(name.len() - digits_of(name)..).is_some_and(|text| text.starts_with('0'))
    };
    let widths: Vec<usize> =
        names.iter().filter(|(name, _)| is_padded(name)).map(|(name, _)| digits_of(name)).collect();
    let one_width = widths.first().is_none_or(|&width| {
        widths.iter().all(|&other| other == width) && names.iter().all(|(name, _)| digits_of(name) >= width)
    });
    if !one_width {
        let (padded, plain): (Vec<_>, Vec<_>) = names.into_iter().partition(|(name, _)| is_padded(name));
        left_out(&mut steps.notes, &padded);
        names = plain;
    }
    steps.committed =
        names.into_iter().map(|(name, number)| Step { number, folder: root.join(name) }).collect();
    steps.committed.sort_by_key(|step| step.number);
    Ok(steps)
}

fn left_out(notes: &mut Vec<String>, names: &[(&str, u64)]) {
    let names: Vec<&str> = names.iter().take(4).map(|(name, _)| *name).collect();
    notes.push(format!("folders whose names differ from the other steps are left out: {}", names.join(", ")));
}

/// The contents of a folder that has the name of a step.
enum Inside {
    Checkpoint,
    /// A folder without its commit marker: not a checkpoint yet, or a failed save.
    Unmarked,
    Other,
    Nothing,
    /// The folder was removed after its name was listed.
    Gone,
}

/// Looks into a folder that has the name of a step. An overwrite gives the name to another folder,
/// and then removes the files of the old folder. So a folder counts as no checkpoint only if it
/// still has its name after the look.
///
/// # Errors
/// `Replaced` if another folder takes the name in between; errors of the storage.
fn look_into(folder: &Location) -> Result<Inside> {
    match look_once(folder) {
        Ok(inside @ (Inside::Checkpoint | Inside::Unmarked)) => return Ok(inside),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let standing = StepFolder::at(folder);
    let inside = look_once(folder);
    match (standing.is_replaced(), inside) {
        (true, _) => Err(standing.was_replaced()),
        (false, Err(error)) if error.kind() == ErrorKind::NotFound => Ok(Inside::Gone),
        (false, inside) => inside,
    }
}

fn look_once(folder: &Location) -> Result<Inside> {
    let listed = list(folder)?;
    let is_marked = || listed.iter().any(|entry| super::super::COMMIT_MARKERS.contains(&&*entry.name));
    Ok(if folder.commits_by_marker() && !is_marked() {
        Inside::Unmarked
    } else if holds_checkpoint(folder, &listed)? {
        Inside::Checkpoint
    } else if listed.is_empty() {
        Inside::Nothing
    } else {
        Inside::Other
    })
}

/// Whether a folder is a checkpoint of any version, by the names in it and one level below.
///
/// # Errors
/// Errors of the storage.
pub fn is_checkpoint(folder: &Location) -> Result<bool> {
    holds_checkpoint(folder, &list(folder)?)
}

/// As `is_checkpoint`, for a folder whose listing is `listed`.
pub(super) fn holds_checkpoint(folder: &Location, listed: &[Listed]) -> Result<bool> {
    if listed.iter().any(is_mark) {
        return Ok(true);
    }
    for entry in listed.iter().filter(|entry| entry.is_dir && !entry.name.contains(TMP_MARK)) {
        if list(&folder.join(&entry.name))?.iter().any(is_mark) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_mark(entry: &Listed) -> bool {
    let marks = [
        metadata::METADATA_FILE,
        CHECKPOINT_METADATA_FILE,
        COMMIT_SUCCESS_FILE,
        V1_MARKER_FILE,
        AGGREGATE_FILE,
        MANIFEST_FILE,
    ];
    !entry.is_dir && marks.contains(&entry.name.as_str())
}

pub(super) fn root_metadata(root: &Location) -> Result<Option<Value>> {
    for name in ROOT_METADATA_FILES {
        let file = root.join(ROOT_METADATA_FOLDER).join(name);
        let Some(bytes) = read_small(&file)? else { continue };
        let mut members = match json_text::parse(&bytes).in_file(&file)? {
            Value::Object(members) => members,
            _ => return Err(Error::corrupt("the metadata of the steps is not a JSON object").in_file(&file)),
        };
        members.remove("internal_metadata");
        let mut custom = match members.remove("custom_metadata") {
            Some(Value::Object(custom)) => custom,
            _ => serde_json::Map::new(),
        };
        custom.append(&mut members);
        return Ok((!custom.is_empty()).then_some(Value::Object(custom)));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_in(root: &tempfile::TempDir) -> Result<Steps> {
        let root = Location::local(root.path());
        find(&root, &list(&root).unwrap())
    }

    fn root_of(names: &[&str]) -> (tempfile::TempDir, Result<Steps>) {
        let root = tempfile::tempdir().unwrap();
        for name in names {
            std::fs::create_dir_all(root.path().join(name)).unwrap();
            std::fs::write(root.path().join(name).join(metadata::METADATA_FILE), "{}").unwrap();
        }
        let steps = find_in(&root);
        (root, steps)
    }

    fn numbers(names: &[&str]) -> Vec<u64> {
        root_of(names).1.unwrap().committed.iter().map(|step| step.number).collect()
    }

    #[test]
    fn reads_numbers_in_all_their_forms() {
        assert_eq!(numbers(&["0", "10", "9", "notes", "-3", "010", "x"]), [0, 9, 10]);
        assert_eq!(numbers(&["step_2", "step_10", "5"]), [2, 10]);
        assert_eq!(numbers(&["0001", "0020", "12345"]), [1, 20, 12345]);
        assert_eq!(numbers(&["a_b_000", "a_b_001", "_7"]), [0, 1]);
        assert_eq!(numbers(&["99999999999999999999999", "9223372036854775808"]), [0; 0]);
    }

    #[test]
    fn leaves_out_the_temporary_and_the_empty() {
        let (root, steps) = root_of(&["1", "2.orbax-checkpoint-tmp", "3.orbax-checkpoint-tmp-1699"]);
        std::fs::create_dir(root.path().join("7")).unwrap();
        let steps = {
            steps.unwrap();
            find_in(&root).unwrap()
        };
        let root = Location::local(root.path());
        assert_eq!(steps.committed.len(), 1);
        assert_eq!(steps.uncommitted.len(), 2);
        assert!(steps.notes[0].contains('7'));
        assert_eq!(steps.pick(None, &root).unwrap().number, 1);
        assert_eq!(steps.pick(Some(3), &root).unwrap_err().kind(), ErrorKind::Uncommitted);
        let missing = steps.pick(Some(9), &root).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert!(missing.help_text().unwrap().ends_with("are: 1"));
    }

    #[test]
    fn knows_a_temporary_path() {
        for (path, expected) in [
            ("/x/5.orbax-checkpoint-tmp/default", true),
            ("5.orbax-checkpoint-tmp", true),
            ("/x/5/default", false),
            ("../5", false),
            ("/", false),
            ("", false),
        ] {
            assert_eq!(is_temporary(&Location::local(path)), expected, "{path}");
        }
        let root = tempfile::tempdir().unwrap();
        let link = root.path().join("5.orbax-checkpoint-tmp");
        std::os::unix::fs::symlink("elsewhere", &link).unwrap();
        assert!(!is_temporary(&Location::local(link.join("default"))));
    }
}
