//! The `regrow` program: the command of the library [`regrow_cli`], as a process of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    regrow_cli::main(std::env::args_os(), None).into()
}
