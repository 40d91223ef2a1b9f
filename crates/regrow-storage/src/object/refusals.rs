//! The errors of operations that are refused.

use super::state::Refusal;
use crate::error::{Error, ErrorKind};
use crate::location::Location;

/// The error of an operation that is refused.
pub(super) fn refused(refusal: Refusal, target: &Location) -> Error {
    match refusal {
        Refusal::Exists => exists_already(target),
        Refusal::NotFound => Error::new(ErrorKind::NotFound, "no checkpoint is there").in_file(target),
        Refusal::Foreign => Error::invalid("the target is a folder with files, but not a checkpoint")
            .in_file(target)
            .help("an overwrite would remove them: choose another path, or remove the folder yourself"),
    }
}

/// The error of an operation that another one has overtaken.
pub(super) fn finished_first(target: &Location) -> Error {
    Error::new(ErrorKind::AlreadyExists, "another save to this target finished first").in_file(target)
}

pub(super) fn whole_bucket(at: &Location) -> Error {
    Error::invalid("a whole bucket cannot be a checkpoint").in_file(at)
}

pub(super) fn exists_already(target: &Location) -> Error {
    Error::new(ErrorKind::AlreadyExists, "the target already exists")
        .in_file(target)
        .help("choose another path, or pass `overwrite` to replace it")
}

/// The error for files of one stem that exist.
pub(super) fn pair_exists(target: &Location, suffixes: &[String], overwrite: bool) -> Error {
    let first = target.with_suffix(suffixes.first().map_or("", String::as_str));
    match overwrite {
        true => Error::unsupported("a bucket cannot replace several files at once")
            .in_file(first)
            .help("save under another name, then remove the old files"),
        false => exists_already(&first),
    }
}

/// The error text for a target inside an unfinished checkpoint.
pub(super) const NOT_ENDED_AROUND: &str = "a save, copy or removal of a folder above has not ended";

/// The error for a location inside the folder `begun`, in which an operation has not ended.
pub(super) fn not_ended(what: &str, begun: &Location) -> Error {
    Error::new(ErrorKind::Uncommitted, what).in_file(begun).help(
        "wait until it ends; if it was killed, save or copy again, or remove its files with `regrow rm \
         --unfinished` of this folder",
    )
}
