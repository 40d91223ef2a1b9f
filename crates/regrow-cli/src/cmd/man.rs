//! `regrow man`: manual pages.

use std::path::PathBuf;

use regrow::Error;

use crate::exit::{Exit, Failure};

/// Write manual pages into a folder.
///
/// For one user: `regrow man ~/.local/share/man/man1`, and then `man regrow-ls`.
#[derive(Debug, clap::Args)]
pub struct Man {
    /// The folder, which is made if it is not there.
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
