//! `regrow man`: manual pages.

use std::path::PathBuf;

use regrow::Error;

use crate::exit::{Exit, Failure};

const EXAMPLES: &str = "\
Examples:
  regrow man ~/.local/share/man/man1 && man regrow-ls";

/// Write manual pages into a folder.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Man {
    /// The folder. It is created if it does not exist.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl Man {
    pub fn run(&self) -> Result<Exit, Failure> {
        let cannot_write = |error| Error::io("cannot write manual pages", &self.folder, error);
        std::fs::create_dir_all(&self.folder).map_err(cannot_write)?;
        clap_mangen::generate_to(crate::command_line(), &self.folder).map_err(cannot_write)?;
        Ok(Exit::Fine)
    }
}
