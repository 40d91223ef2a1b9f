//! `regrow doctor`: checks the machine and its file systems. Lists missing features and their
//! effects, and the locks and temporary files of other processes.

use std::io::Write;
use std::path::{Path, PathBuf};

use regrow::doctor::{Disk, Machine, Trace, disk, machine, traces};
use regrow::location::Location;
use regrow::{Error, OpenOptions};
use regrow_base::text::printable;
use regrow_storage::Found;
use serde_json::{Map, Value, json};

use crate::exit::{self, Exit, Failure};
use crate::out::{self, Align, size};
use crate::{Globals, Package, Packages, build};

const EXAMPLES: &str = "\
Examples:
  regrow doctor runs
  regrow doctor runs/step_100           # which process uses it, and what a killed one left
  regrow doctor s3://bucket/runs/step_100";

/// Check the machine, a folder or bucket, the packages, and locks.
///
/// Lists missing features and their effects. For a checkpoint, lists the process that changes it,
/// and the files that killed processes left, with the way to end each. The check writes a few
/// kilobytes beside PATH and removes them; it writes nothing to a bucket. Exit code 1: PATH is not
/// writable, the bucket cannot be reached, or a lock cannot be used.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Doctor {
    /// A checkpoint, or the folder or bucket of your checkpoints.
    #[arg(value_name = "PATH", default_value = ".")]
    path: PathBuf,
}

/// Everything that the command found.
struct Findings {
    machine: Machine,
    place: Place,
    traces: Vec<Trace>,
    packages: Option<Vec<Package>>,
}

/// The properties of the path.
enum Place {
    Disk(Disk),
    /// A URL, and what exists there.
    Url(PathBuf, Result<Option<Found>, Error>),
}

/// A missing feature, and its effect.
struct Missing {
    what: String,
    why: String,
}

impl Doctor {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn run(
        &self,
        globals: &Globals,
        packages: Option<Packages<'_>>,
        out: &mut impl Write,
    ) -> Result<Exit, Failure> {
        globals.refuse_step_and_item()?;
        let at = globals.locate(&self.path)?;
        // The test of a disk deletes lock files of dead processes, so look before it.
        let traces = traces(&at);
        let place = Place::of(&at)?;
        let findings = Findings {
            machine: machine(),
            traces: if place.error().is_none() { traces? } else { traces.unwrap_or_default() },
            place,
            packages: packages.map(|packages| packages()),
        };
        match globals.json {
            true => out::json(out, &findings.as_json())?,
            false => findings.print(out)?,
        }
        let has_error = findings.place.error().is_some() || findings.traces.iter().any(has_error);
        Ok(if has_error { Exit::FoundWrong } else { Exit::Fine })
    }
}

impl Place {
    fn of(at: &Location) -> Result<Self, Error> {
        match at.local_path() {
            Ok(path) => Ok(Self::Disk(disk(&folder_to_write(at, path))?)),
            Err(_) => Ok(Self::Url(at.describe(), at.look())),
        }
    }

    /// The error that makes the path unusable; `None` if there is none.
    fn error(&self) -> Option<&Error> {
        match self {
            Self::Disk(disk) => disk.abilities.as_ref().err(),
            Self::Url(_, found) => found.as_ref().err(),
        }
    }

    fn rows(&self, rows: &mut Vec<[String; 2]>) {
        let mut row = |name: &str, value: String| rows.push([name.to_owned(), value]);
        match self {
            Self::Disk(disk) => {
                row("folder", disk.folder.display().to_string());
                row("file system", disk.kind.clone().unwrap_or_else(|| "not known".to_owned()));
                let free = disk.free_bytes.zip(disk.total_bytes);
                let free = free.map(|(free, total)| format!("{} of {}", size(free), size(total)));
                row("free", free.unwrap_or_else(|| "not known".to_owned()));
                for (ability, is_there) in disk.abilities.iter().flatten() {
                    row(ability.name(), if *is_there { "yes" } else { "no" }.to_owned());
                }
            }
            Self::Url(url, found) => {
                row("URL", url.display().to_string());
                match found {
                    Ok(Some(Found::Folder)) => row("found", "a folder".to_owned()),
                    Ok(Some(Found::File { len_bytes })) => {
                        row("found", format!("a file of {}", size(*len_bytes)))
                    }
                    Ok(Some(Found::Other(what))) => row("found", (*what).to_owned()),
                    Ok(None) => row("found", "nothing; the storage answers".to_owned()),
                    Err(_) => {}
                }
            }
        }
    }

    fn as_json(&self) -> Value {
        let error = self.error().map(exit::error_json);
        match self {
            Self::Disk(disk) => {
                let found = disk.abilities.iter().flatten();
                let abilities: Map<String, Value> = found
                    .map(|(ability, is_there)| (ability.name().to_owned(), (*is_there).into()))
                    .collect();
                json!({
                    "folder": disk.folder.to_string_lossy(),
                    "file_system": disk.kind,
                    "free_bytes": disk.free_bytes,
                    "total_bytes": disk.total_bytes,
                    "free_files": disk.free_files,
                    "abilities": abilities,
                    "error": error,
                })
            }
            Self::Url(url, found) => {
                let kind = match found {
                    Ok(Some(Found::Folder)) => Some("folder"),
                    Ok(Some(Found::File { .. })) => Some("file"),
                    Ok(Some(Found::Other(_))) => Some("other"),
                    Ok(None) | Err(_) => None,
                };
                json!({ "url": url.to_string_lossy(), "found": kind, "error": error })
            }
        }
    }
}

impl Findings {
    fn missing(&self) -> Vec<Missing> {
        let of_disk = match &self.place {
            Place::Disk(disk) => disk.abilities.as_deref().unwrap_or_default(),
            Place::Url(..) => &[],
        };
        let abilities = of_disk.iter().filter(|(_, is_there)| !is_there).map(|(ability, _)| Missing {
            what: ability.name().to_owned(),
            why: ability.without().to_owned(),
        });
        let packages = self.packages.iter().flatten().filter(|package| package.version.is_none());
        let packages = packages
            .map(|package| Missing { what: package.name.clone(), why: format!("for {}", package.used_for) });
        abilities.chain(packages).collect()
    }

    fn print(&self, out: &mut impl Write) -> Result<(), Failure> {
        use Align::Left;
        let Machine { cores, threads, memory_available_bytes, budget_bytes, .. } = self.machine;
        let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "not known".to_owned());
        let mut rows = vec![
            ["regrow".to_owned(), build::SUMMARY.to_owned()],
            ["cores".to_owned(), or_unknown(cores.map(|cores| format!("{cores}, regrow uses {threads}")))],
            [
                "memory".to_owned(),
                or_unknown(memory_available_bytes.map(|bytes| format!("{} free", size(bytes)))),
            ],
            ["budget".to_owned(), format!("{} beside the arrays, by default", size(budget_bytes))],
        ];
        self.place.rows(&mut rows);
        match &self.packages {
            Some(packages) => rows.extend(packages.iter().map(|package| {
                let version = package.version.clone().unwrap_or_else(|| "not installed".to_owned());
                [package.name.clone(), version]
            })),
            None => {
                rows.push(["Python".to_owned(), "not checked; python -m regrow doctor checks".to_owned()])
            }
        }
        out::columns(out, "", None, [Left, Left], &rows)?;
        let missing = self.missing();
        if !missing.is_empty() {
            writeln!(out, "\nmissing:")?;
            let rows: Vec<_> = missing.into_iter().map(|missing| [missing.what, missing.why]).collect();
            out::columns(out, "  ", None, [Left, Left], &rows)?;
        }
        if !self.traces.is_empty() {
            writeln!(out, "\nlocks and temporary files:")?;
        }
        for trace in &self.traces {
            let path = trace.path.to_string_lossy();
            writeln!(out, "  {}  {}", trace.kind.name(), printable(&path))?;
            writeln!(out, "    {}", printable(&told(trace)))?;
            writeln!(out, "    {}", trace.remedy())?;
        }
        for error in self.traces.iter().filter_map(|trace| trace.error.as_ref()) {
            out.flush()?;
            exit::report(error, false);
        }
        if let Some(error) = self.place.error() {
            out.flush()?;
            exit::report(error, false);
        }
        Ok(())
    }

    fn as_json(&self) -> Value {
        let packages = self.packages.as_ref().map(|packages| {
            let package = |package: &Package| {
                json!({ "name": package.name, "version": package.version, "used_for": package.used_for })
            };
            packages.iter().map(package).collect::<Vec<_>>()
        });
        let missing: Vec<_> = self
            .missing()
            .iter()
            .map(|missing| json!({ "what": missing.what, "why": missing.why }))
            .collect();
        json!({
            "regrow": build::as_json(),
            "machine": {
                "cores": self.machine.cores,
                "threads": self.machine.threads,
                "memory_available_bytes": self.machine.memory_available_bytes,
                "budget_bytes": self.machine.budget_bytes,
            },
            "place": self.place.as_json(),
            "traces": self.traces.iter().map(trace_as_json).collect::<Vec<_>>(),
            "packages": packages,
            "missing": missing,
        })
    }
}

fn has_error(trace: &Trace) -> bool {
    trace.error.is_some()
}

/// The owner of a trace, in a line.
fn told(trace: &Trace) -> String {
    let owner = trace.owner.as_ref().map_or_else(|| "process not known".to_owned(), ToString::to_string);
    let phase = trace.phase.map(|phase| format!(", {phase}")).unwrap_or_default();
    format!("{owner}{phase}: {}", trace.life.name())
}

fn trace_as_json(trace: &Trace) -> Value {
    json!({
        "path": trace.path.to_string_lossy(),
        "kind": trace.kind.name(),
        "owner": trace.owner,
        "phase": trace.phase,
        "life": trace.life.name(),
        "remedy": trace.remedy(),
        "error": trace.error.as_ref().map(exit::error_json),
    })
}

/// The folder into which a save to `path` would write. For a checkpoint, its parent folder; for
/// other paths, the nearest existing folder.
fn folder_to_write(at: &Location, path: &Path) -> PathBuf {
    let is_checkpoint = || {
        regrow::open_with(at.clone(), &OpenOptions::default())
            .is_ok_and(|checkpoint| checkpoint.description().step.is_none())
    };
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if absolute.is_dir() && !is_checkpoint() {
        return absolute;
    }
    let above = absolute.ancestors().skip(1).find(|folder| folder.is_dir());
    above.map_or(absolute.clone(), Path::to_owned)
}
