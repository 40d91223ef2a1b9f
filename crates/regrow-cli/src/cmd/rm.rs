//! `regrow rm`: removes one checkpoint, or the files of an unfinished save.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use regrow::location::Location;
use regrow::text::{counted, printable};
use regrow::{Error, RemoveOptions};
use serde_json::json;

use crate::Globals;
use crate::exit::{Exit, Failure};
use crate::out;

/// Remove one checkpoint.
///
/// What is no checkpoint is refused, and so are a folder of several and one with something of your
/// own in it. Asks first on a terminal; elsewhere it needs --yes.
#[derive(Debug, clap::Args)]
pub struct Rm {
    /// The checkpoint.
    path: PathBuf,
    /// Remove what a save or a copy to this path has left that never ended, instead of a
    /// checkpoint.
    #[arg(long)]
    unfinished: bool,
    /// Also if its writer may still be running.
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
        let options = RemoveOptions { unfinished: self.unfinished, force: self.force };
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

    /// What the user says, if there is one to be asked.
    fn is_wanted(&self, at: &Location) -> Result<bool, Failure> {
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return Err(Failure::Usage(
                Error::invalid("there is no terminal to ask for confirmation")
                    .help("say --yes to remove without a question"),
            ));
        }
        let what = if self.unfinished { "what unfinished saves have left at " } else { "" };
        let stock = at.storage().stock(at.path()).ok().flatten().filter(|_| !self.unfinished);
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
