//! `regrow completions`: completion scripts for shells.

use std::io::Write;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::Cli;
use crate::exit::{Exit, Failure};

const EXAMPLES: &str = "\
Examples:
  regrow completions bash > ~/.local/share/bash-completion/completions/regrow";

/// Print a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Completions {
    /// The shell.
    shell: Shell,
}

impl Completions {
    pub fn run(&self, out: &mut impl Write) -> Result<Exit, Failure> {
        // `generate` panics if a write fails, and a write to a `Vec` cannot fail.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "regrow", &mut script);
        out.write_all(&script)?;
        Ok(Exit::Fine)
    }
}
