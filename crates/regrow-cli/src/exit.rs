//! The exit codes of a command, and the failures that lead to them.

use std::io;

use regrow::{Error, ErrorKind};
use regrow_base::wording::Caller;
use serde_json::{Value, json};

use crate::out;

/// The exit codes. Scripts may rely on the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    Fine = 0,
    /// The command ran, and found damage or differences.
    FoundWrong = 1,
    /// The command line is not valid, or not for this checkpoint.
    WrongUsage = 2,
    /// The checkpoint could not be read, or another error occurred.
    CouldNotRead = 3,
    /// No damage was found, but no checksum covers all bytes.
    NotKnown = 4,
}

/// The reason why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// An error of the engine. Its kind decides the exit code.
    Engine(Error),
    /// The checkpoint has no leaf that the user named, or no match for a glob.
    Usage(Error),
    Output(io::Error),
}

impl Failure {
    pub fn exit(&self) -> Exit {
        match self {
            Self::Engine(error) => exit_of(error.kind()),
            Self::Usage(_) => Exit::WrongUsage,
            // The reader of the output closed the pipe, as in `regrow ls x | head`.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Fine,
            Self::Output(_) => Exit::CouldNotRead,
        }
    }

    pub fn report(&self, as_json: bool) {
        match self {
            Self::Engine(error) | Self::Usage(error) => report(error, as_json),
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Self::Output(error) => out::warn(&format!("error: cannot write to stdout: {error}")),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

pub fn report(error: &Error, as_json: bool) {
    let error = &error.in_words_of(Caller::Shell);
    if as_json {
        // If even stderr cannot be written, the error cannot be reported.
        let _ = out::json_line(&mut io::stderr().lock(), &json!({ "error": error_json(error) }));
    } else {
        out::warn(&format!("error: {error}"));
    }
}

/// An error as JSON: the name of its kind, and its parts. An unknown part is `null`.
pub fn error_json(error: &Error) -> Value {
    let error = error.in_words_of(Caller::Shell);
    let place = error.place();
    let (expected, found) = error.expected_found().unzip();
    json!({
        "kind": error.kind().name(),
        "what": error.what(),
        "file": place.file.as_ref().map(|file| file.to_string_lossy()),
        "leaf": place.leaf.as_ref().map(ToString::to_string),
        "offset_bytes": place.offset_bytes,
        "expected": expected,
        "found": found,
        "help": error.help_text(),
    })
}

fn exit_of(kind: ErrorKind) -> Exit {
    match kind {
        ErrorKind::Corrupt | ErrorKind::Untrusted | ErrorKind::Mismatch | ErrorKind::NameCollision => {
            Exit::FoundWrong
        }
        ErrorKind::InvalidArgument | ErrorKind::AlreadyExists => Exit::WrongUsage,
        ErrorKind::NotFound
        | ErrorKind::NotACheckpoint
        | ErrorKind::Uncommitted
        | ErrorKind::Unsupported
        | ErrorKind::Limit
        | ErrorKind::PermissionDenied
        | ErrorKind::StorageFull
        | ErrorKind::TimedOut
        | ErrorKind::Io => Exit::CouldNotRead,
        // `ErrorKind` may grow: a kind that this build does not know counts as unreadable.
        _ => Exit::CouldNotRead,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_fine_and_a_full_disk_is_not() {
        assert_eq!(Failure::Output(io::ErrorKind::BrokenPipe.into()).exit(), Exit::Fine);
        assert_eq!(Failure::Output(io::ErrorKind::StorageFull.into()).exit(), Exit::CouldNotRead);
    }

    #[test]
    fn damage_and_absence_end_differently() {
        assert_eq!(Failure::from(Error::corrupt("x")).exit(), Exit::FoundWrong);
        assert_eq!(Failure::from(Error::invalid("x")).exit(), Exit::WrongUsage);
        assert_eq!(Failure::from(Error::new(ErrorKind::NotFound, "x")).exit(), Exit::CouldNotRead);
        assert_eq!(Failure::Usage(Error::new(ErrorKind::NotFound, "x")).exit(), Exit::WrongUsage);
    }

    #[test]
    fn json_names_every_part() {
        let error = Error::corrupt("bad").at_byte(7).in_file("d/x").expected("1", "2").help("copy");
        let json = error_json(&error);
        assert_eq!(json["kind"], "corrupt");
        assert_eq!(json["file"], "d/x");
        assert_eq!(json["offset_bytes"], 7);
        assert_eq!(json["expected"], "1");
        assert_eq!(json["found"], "2");
        assert!(json["leaf"].is_null());
    }
}
