//! Folders of `flax.training.checkpoints`: one file for each step, `<prefix><step>`.
//!
//! ```text
//! checkpoint_9  checkpoint_10  checkpoint_10.5     steps, in the order of their numbers
//! checkpoint_10_gda/                               arrays of several processes, for checkpoint_10
//! checkpoint_tmp                                   left by a save that was killed
//! checkpoint_99.bak                                a stray: no step (Flax would take it for the latest)
//! ```
//!
//! By Flax' own rule, a folder with `checkpoint`, `_METADATA` or `manifest.ocdbt` belongs to Orbax.
//!
//! Source: flax `training/checkpoints.py`.

use std::collections::BTreeMap;

use super::files::holds_one_object;
use super::step_names::{PREFIX, number, split};
use crate::checkpoint_markers;
use crate::options::OpenOptions;
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_storage::Entry;
use regrow_storage::location::Location;

const UNFINISHED: &str = "tmp";

/// The suffix of the folder with the arrays of several processes.
pub const ARRAYS_SUFFIX: &str = "_gda";

/// The file of Orbax' oldest checkpoints, whose name has no number.
const AGGREGATE_OF_ORBAX: &str = "checkpoint";

/// The most prefixes that are examined in one folder. A folder with more has other files.
const PREFIXES_MAX: usize = 16;

/// The steps in a folder with one prefix: the prefix that the caller asked for; otherwise the only
/// prefix, or `checkpoint_` if there are several.
#[derive(Debug)]
pub(super) struct Steps {
    pub files: Vec<StepFile>,
    pub notes: Vec<String>,
    pub prefixes: Vec<String>,
}

/// One step: a file.
#[derive(Debug, Clone)]
pub(super) struct StepFile {
    pub step: f64,
    pub text: String,
    pub at: Location,
    is_file: bool,
}

impl StepFile {
    /// The step as an integer; `None` for a step with a fraction.
    pub fn whole(&self) -> Option<u64> {
        let whole = self.step as u64;
        (whole as f64 == self.step).then_some(whole)
    }
}

/// Whether a folder has steps of Flax. At least one file of a prefix must be a msgpack object.
///
/// # Errors
/// Errors of the storage.
pub fn are_in(folder: &Location) -> Result<bool> {
    Ok(!found(folder)?.is_empty())
}

impl Steps {
    /// The steps in `folder`; `options.item` names a prefix, if there are several.
    ///
    /// # Errors
    /// `NotFound` for an unknown prefix; also if the caller gave no prefix, and the folder has
    /// several prefixes but not `checkpoint_`.
    pub fn find(folder: &Location, options: &OpenOptions) -> Result<Self> {
        let mut by_prefix = found(folder)?;
        let prefixes: Vec<String> = by_prefix.keys().cloned().collect();
        let wanted = match (&options.item, prefixes.as_slice()) {
            (Some(prefix), _) => prefix.clone(),
            (None, [only]) => only.clone(),
            (None, _) => PREFIX.to_owned(),
        };
        let Some(files) = by_prefix.remove(&wanted) else {
            let what = match &options.item {
                Some(item) => format!("no file of a step begins with {item:?}"),
                None => "the steps have several prefixes".to_owned(),
            };
            return Err(Error::new(ErrorKind::NotFound, what).in_file(folder).help(format!(
                "give one prefix as the item, or the path of a file: {}",
                prefixes.join(", ")
            )));
        };
        let mut notes = Vec::new();
        for name in names(folder)?.iter().filter(|name| !name.is_folder).map(|name| &name.text) {
            match name.strip_prefix(wanted.as_str()) {
                Some(UNFINISHED) => {
                    notes.push(format!("{name} belongs to an unfinished save, or to one that runs now"));
                }
                Some(rest) if number(rest).is_none() => {
                    notes.push(format!(
                        "{name} is not a step and was left out; Flax itself may open it as the latest"
                    ));
                }
                _ => {}
            }
        }
        Ok(Self { files, notes, prefixes })
    }

    /// The step with this number; the latest step if `None`.
    pub fn pick(&self, step: Option<u64>, folder: &Location) -> Result<&StepFile> {
        let found = match step {
            Some(wanted) => self.files.iter().find(|file| file.whole() == Some(wanted)),
            None => self.files.last(),
        };
        found.ok_or_else(|| {
            let steps: Vec<&str> = self.files.iter().map(|file| file.text.as_str()).collect();
            let what =
                step.map_or("there are no steps".to_owned(), |step| format!("step {step} does not exist"));
            Error::new(ErrorKind::NotFound, what)
                .in_file(folder)
                .help(format!("the steps are {}", steps.join(", ")))
        })
    }
}

/// The steps in a folder: their numbers, `None` for one that is not whole, and the names of their
/// files.
pub fn named(folder: &Location, options: &OpenOptions) -> Result<Vec<(Option<u64>, String)>> {
    let files = Steps::find(folder, options)?.files;
    Ok(files.into_iter().map(|file| (file.whole(), file.at.name_text())).collect())
}

fn found(folder: &Location) -> Result<BTreeMap<String, Vec<StepFile>>> {
    let mut by_prefix: BTreeMap<String, Vec<StepFile>> = BTreeMap::new();
    let names = names(folder)?;
    let is_of_another =
        |name: &Name| name.text == AGGREGATE_OF_ORBAX || checkpoint_markers().contains(&name.text.as_str());
    if names.iter().any(is_of_another) {
        return Ok(by_prefix);
    }
    for Name { text: name, is_file, .. } in names.iter().filter(|name| !name.is_folder) {
        if let Some((prefix, step)) = split(name) {
            let text = name.get(prefix.len()..).unwrap_or_default().to_owned();
            let file = StepFile { step, text, at: folder.join(name), is_file: *is_file };
            by_prefix.entry(prefix.to_owned()).or_default().push(file);
        }
        if by_prefix.len() > PREFIXES_MAX {
            return Ok(BTreeMap::new());
        }
    }
    by_prefix.retain(|_, files| {
        files.sort_by(|a, b| a.step.total_cmp(&b.step).then_with(|| a.text.cmp(&b.text)));
        files.iter().rev().any(|file| file.is_file && holds_one_object(&file.at))
    });
    Ok(by_prefix)
}

/// One name in a folder.
#[derive(Debug)]
struct Name {
    text: String,
    /// Whether the entry is a folder. Links to folders do not count.
    is_folder: bool,
    /// Whether the entry is a file or a link to a file.
    is_file: bool,
}

/// The names of files and folders. Skips names that are not UTF-8, which cannot be steps.
fn names(folder: &Location) -> Result<Vec<Name>> {
    let name = |entry: Entry| {
        let (is_folder, is_file) = (entry.is_folder() && !entry.is_link, entry.is_file());
        Some(Name { text: entry.name.into_string().ok()?, is_folder, is_file })
    };
    let mut names: Vec<Name> = folder.entries()?.into_iter().filter_map(name).collect();
    names.sort_unstable_by(|a, b| a.text.cmp(&b.text));
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_flax_are_steps() {
        let folder = tempfile::tempdir().unwrap();
        let at = Location::local(folder.path());
        let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
        write("shard_1", b"no msgpack at all");
        write("notes7", b"\x81text");
        assert!(!are_in(&at).unwrap());
        write("gen_2", &[0x81, 0xa1, b'a', 1]);
        write("gen_10", &[0x81, 0xa1, b'a', 2]);
        write("gen_tmp", &[]);
        assert!(are_in(&at).unwrap());
        let steps = Steps::find(&at, &OpenOptions::default()).unwrap();
        assert_eq!(steps.pick(None, &at).unwrap().text, "10");
        assert_eq!(steps.notes.len(), 1);
        assert!(steps.pick(Some(3), &at).unwrap_err().help_text().unwrap().ends_with("2, 10"));
        write("disc_4", &[0x80]);
        let error = Steps::find(&at, &OpenOptions::default()).unwrap_err();
        assert!(error.help_text().unwrap().ends_with("disc_, gen_"));
        let item = OpenOptions { item: Some("disc_".to_owned()), ..OpenOptions::default() };
        assert_eq!(Steps::find(&at, &item).unwrap().files.len(), 1);
        write("checkpoint", &[0x80]);
        assert!(!are_in(&at).unwrap());
    }
}
