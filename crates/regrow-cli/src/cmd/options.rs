//! `regrow options`: prints the options that every command has.

use std::io::Write;

use crate::exit::{Exit, Failure};

pub fn run(out: &mut impl Write) -> Result<Exit, Failure> {
    let mut command = crate::command_line();
    command.build();
    let help = command.find_subcommand_mut("options").map(|options| options.render_help());
    write!(out, "{}", help.unwrap_or_default())?;
    Ok(Exit::Fine)
}
