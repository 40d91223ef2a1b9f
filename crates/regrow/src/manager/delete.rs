//! Deletes steps, or moves them to another folder. A step with a reader stays, unless the options
//! say otherwise. A removal removes the whole step or no file of it: it refuses a step whose folder
//! contains other files. On a disk, a move takes the folder with all its files.

use super::lease::Announced;
use super::records;
use super::steps::{Step, Steps};
use crate::engine::{CopyOptions, RemoveOptions, copy, remove};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::refuse_unmarked;
use crate::location::Location;

/// The options of a deletion.
#[derive(Debug, Clone, Default)]
pub struct DeleteOptions {
    /// Move each step into this folder, below the folder of steps, instead of removing it.
    pub aside: Option<String>,
    /// Delete a step even if it has a reader.
    pub also_leased: bool,
}

/// The result for one step.
#[derive(Debug)]
pub struct Deletion {
    /// The number of the step.
    pub step: u64,
    /// The name of the step in the folder.
    pub name: String,
    /// The result; an error if the step is unchanged.
    pub outcome: Result<Deleted>,
}

/// How the deletion of a step ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Deleted {
    /// The step was removed. Its hard-linked files take space until their last link is removed.
    Removed {
        /// The bytes of its files.
        bytes: u64,
    },
    /// The step was moved to another folder.
    Moved {
        /// The new location of the step.
        to: std::path::PathBuf,
    },
    /// The step has a reader, and was not deleted.
    Leased,
    /// The step no longer existed.
    Gone,
}

impl DeleteOptions {
    /// Returns an error if `aside` is not the name of a folder into which steps can be moved.
    #[doc(hidden)]
    pub fn check(&self) -> Result<()> {
        let is_name = |name: &String| {
            name.split('/').all(|part| !matches!(part, "" | "." | "..") && !part.contains('\0'))
                && name != records::FOLDER
        };
        match &self.aside {
            Some(name) if !is_name(name) => Err(Error::invalid("steps cannot be moved to this folder")
                .expected("the name of a folder below that of the steps", format_args!("{name:?}"))),
            _ => Ok(()),
        }
    }
}

impl Steps {
    /// Deletes steps, one after another. An error for one step does not stop the others.
    ///
    /// # Errors
    /// `InvalidArgument` for options that are not valid. The error of each step is in its result.
    pub fn delete(&self, numbers: &[u64], options: &DeleteOptions) -> Result<Vec<Deletion>> {
        options.check()?;
        if let Some(aside) = &options.aside
            && self.names().parse(aside).is_some()
        {
            return Err(Error::invalid("the folder for deleted steps has the name of a step")
                .expected("another name", aside));
        }
        let deletion = |&step: &u64| {
            let found = self.find(step);
            let name = found.as_ref().ok().and_then(|found| Some(found.as_ref()?.name.clone()));
            let outcome = found.and_then(|found| match found {
                Some(found) => self.delete_one(&found, options),
                None => Ok(Deleted::Gone),
            });
            Deletion { step, name: name.unwrap_or_else(|| self.names().format(step)), outcome }
        };
        Ok(numbers.iter().map(deletion).collect())
    }

    fn delete_one(&self, step: &Step, options: &DeleteOptions) -> Result<Deleted> {
        let _announced = match Announced::new(self.root(), &step.name) {
            // A deletion must work on a full disk, where no reader can write a lease either.
            Err(error) if error.kind() == ErrorKind::StorageFull => None,
            announced => Some(announced?),
        };
        // From here on new readers see the announcement; earlier readers have a lease.
        if !options.also_leased && self.leased()?.contains(&step.number) {
            return Ok(Deleted::Leased);
        }
        match &options.aside {
            Some(aside) => self.move_aside(step, aside),
            None => match remove(&step.location, &RemoveOptions::default()) {
                Ok(report) => Ok(Deleted::Removed { bytes: report.bytes }),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(Deleted::Gone),
                Err(error) => Err(error),
            },
        }
    }

    fn move_aside(&self, step: &Step, aside: &str) -> Result<Deleted> {
        let folder = self.root().join(aside);
        let to = free_name(&folder, &step.name);
        if !step.location.move_folder(&to)? {
            // A bucket cannot rename, so copy all objects and then remove them.
            copy(&step.location, &to, &CopyOptions::default())?;
            remove(&step.location, &RemoveOptions::default())?;
        }
        Ok(Deleted::Moved { to: to.describe() })
    }
}

/// The location with this name. If a step of an earlier history has the name, a number is appended.
/// If a copy under this name failed, the next copy continues from its files.
fn free_name(folder: &Location, name: &str) -> Location {
    let names = (1_u64..).map(|count| if count == 1 { name.to_owned() } else { format!("{name}.{count}") });
    let mut places = names.map(|name| folder.join(name));
    let is_left = |place: &Location| {
        let marked = refuse_unmarked(place);
        place.commits_by_marker() && marked.is_err_and(|error| error.kind() == ErrorKind::Uncommitted)
    };
    places.find(|place| !place.is_taken() || is_left(place)).unwrap_or_else(|| folder.join(name))
}
