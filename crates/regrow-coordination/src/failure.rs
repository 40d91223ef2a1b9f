//! An error in the form in which it is sent to the other processes.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use regrow_base::error::{Error, ErrorKind};

/// The failure of a process, as the process sends it to the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failure {
    pub rank: usize,
    pub phase: String,
    kind: String,
    what: String,
    file: Option<String>,
    expected_found: Option<(String, String)>,
    help: Option<String>,
    /// Rank 0 has left the attempt for a new attempt: processes that still wait for `begun` join
    /// the new attempt.
    #[serde(default)]
    pub is_superseded: bool,
}

impl Failure {
    pub(super) fn new(rank: usize, phase: &str, error: &Error) -> Self {
        let place = error.place();
        let leaf = place.leaf.as_ref().map(|leaf| format!(" (leaf {leaf})"));
        let owned = |(expected, found): (&str, &str)| (expected.to_owned(), found.to_owned());
        Self {
            rank,
            phase: phase.to_owned(),
            kind: error.kind().name().to_owned(),
            what: format!("{}{}", error.what(), leaf.unwrap_or_default()),
            file: place.file.as_ref().map(|file| file.to_string_lossy().into_owned()),
            expected_found: error.expected_found().map(owned),
            help: error.help_text().map(str::to_owned),
            is_superseded: false,
        }
    }

    /// The failure of an attempt that rank 0 has left for a new one.
    pub(super) fn superseded() -> Self {
        let error = Error::new(ErrorKind::Cancelled, "the process started the same work again");
        Self { is_superseded: true, ..Self::new(0, "begin", &error) }
    }

    pub(super) fn to_bytes(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        let unreadable = |_| {
            Self::new(
                0,
                "unknown",
                &Error::new(
                    ErrorKind::Io,
                    "the process failed, and its report is \
                damaged",
                ),
            )
        };
        serde_json::from_slice(bytes).unwrap_or_else(unreadable)
    }

    pub(super) fn into_error(self) -> Error {
        let kind = ErrorKind::from_name(&self.kind).unwrap_or(ErrorKind::Io);
        let mut error =
            Error::new(kind, format!("rank {} failed in phase `{}`: {}", self.rank, self.phase, self.what));
        if let Some(file) = self.file {
            error = error.in_file(file);
        }
        if let Some((expected, found)) = self.expected_found {
            error = error.expected(expected, found);
        }
        if let Some(help) = self.help {
            error = error.help(help);
        }
        error
    }
}

/// The reason why a wait ended without the awaited values.
#[derive(Debug)]
pub(super) enum Stop {
    Here(Error),
    There(Box<Failure>),
}

impl Stop {
    /// The failure that the other processes receive.
    pub(super) fn failure(&self, rank: usize, phase: &str) -> Failure {
        match self {
            Self::Here(error) => Failure::new(rank, phase, error),
            Self::There(failure) => Failure::clone(failure),
        }
    }

    pub(super) fn into_error(self) -> Error {
        match self {
            Self::Here(error) => error,
            Self::There(failure) => failure.into_error(),
        }
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Here(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_kind_and_place_and_tells_who_had_it() {
        let error = Error::new(ErrorKind::StorageFull, "cannot write: no space")
            .in_file("/data/x")
            .expected("1", "2")
            .help("free some");
        let failure = Failure::new(2, "write", &error);
        let there = Failure::from_bytes(&failure.to_bytes());
        assert_eq!(there, failure);
        let there = there.into_error();
        assert_eq!(there.kind(), ErrorKind::StorageFull);
        assert_eq!(
            there.to_string(),
            "rank 2 failed in phase `write`: cannot write: no space\n  in /data/x\n  expected 1, found 2\n  help: free some"
        );
        assert_eq!(Failure::from_bytes(b"{").into_error().kind(), ErrorKind::Io);
    }

    #[test]
    fn every_kind_arrives() {
        for kind in ErrorKind::ALL {
            let failure = Failure::new(0, "x", &Error::new(kind, "x"));
            assert_eq!(Failure::from_bytes(&failure.to_bytes()).into_error().kind(), kind);
        }
    }
}
