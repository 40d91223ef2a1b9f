//! The `regrow` program: it runs the command of the library [`regrow_cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    regrow_cli::main(std::env::args_os(), None).into()
}
