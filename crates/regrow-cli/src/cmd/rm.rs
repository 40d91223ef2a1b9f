//! `regrow rm`: removes one checkpoint, or the files of an unfinished save.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use regrow::location::Location;
use regrow::{Error, RemoveOptions};
use regrow_base::text::{counted, printable};
use serde_json::json;

use crate::Globals;
use crate::exit::{Exit, Failure};
use crate::out;

const EXAMPLES: &str = "\
Examples:
  regrow rm runs/step_100
  regrow rm runs/step_200 --unfinished --yes";

/// Remove one checkpoint.
///
/// Asks first on a terminal; a script needs --yes. Refuses a folder of several checkpoints, a path
/// that is not a checkpoint, and a folder that holds files of yours.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Rm {
    /// The checkpoint.
    path: PathBuf,
    /// Remove temporary files of an unfinished save or copy to this path, not a checkpoint.
    #[arg(long)]
    unfinished: bool,
    /// Remove them even if their writer may still run.
    #[arg(long, requires = "unfinished")]
    force: bool,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
}

impl Rm {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn run(&self, globals: &Globals, out: &mut impl Write) -> Result<Exit, Failure> {
        globals.refuse_step_and_item()?;
        let at = globals.locate(&self.path)?;
        if !self.yes && !self.is_wanted(&at)? {
            out::warn("nothing was removed");
            return Ok(Exit::Fine);
        }
        let options = RemoveOptions { unfinished: self.unfinished, force: self.force, wait: globals.wait() };
        let report = regrow::remove(at, &options)?;
        let path = report.path.to_string_lossy();
        if globals.json {
            out::json(out, &json!({ "path": path, "file_count": report.file_count, "bytes": report.bytes }))?;
            return Ok(Exit::Fine);
        }
        let files = counted(report.file_count, "file", "files");
        writeln!(out, "{}: removed {files}, {}", printable(&path), out::size(report.bytes))?;
        Ok(Exit::Fine)
    }

    fn is_wanted(&self, at: &Location) -> Result<bool, Failure> {
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return Err(Failure::Usage(
                Error::invalid("there is no terminal to ask for confirmation")
                    .help("pass --yes to remove without confirmation"),
            ));
        }
        let what = if self.unfinished { "files of unfinished saves at " } else { "" };
        let stock = at.stock().ok().flatten().filter(|_| !self.unfinished);
        let size = stock.map_or(String::new(), |stock| {
            format!(" ({}, {})", counted(stock.file_count, "file", "files"), out::size(stock.bytes))
        });
        let path = at.describe();
        let mut stderr = io::stderr().lock();
        write!(stderr, "remove {what}{}{size}? [y/N] ", printable(&path.to_string_lossy()))?;
        stderr.flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }
}
