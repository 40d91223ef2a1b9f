//! Opening what is sealed.

use std::sync::Arc;

use super::reader::SealedReader;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::Reader;
use crate::location::Location;
use crate::seal::Seal;

/// Reads the metadata of a checkpoint: under its seal, if it has one.
///
/// # Errors
/// What `read` says; `Corrupt` if the files are not those that were sealed; `Replaced` if another step is the newest by
/// now.
pub(in crate::engine) fn read_under_seal(
    at: &Location,
    ignore_seal: bool,
    read: &dyn Fn(&Location) -> Result<Box<dyn Reader>>,
) -> Result<Box<dyn Reader>> {
    if ignore_seal {
        return read(at);
    }
    if let Some(seal) = found(at)? {
        return under(seal, at, read);
    }
    // Which step is opened only its layout knows. Each has a seal of its own.
    let reader = read(at)?;
    let Some(step) = step_of(&*reader) else { return Ok(reader) };
    let Some(seal) = Seal::found(&step)? else { return Ok(reader) };
    let sealed = under(seal, at, read)?;
    match step_of(&*sealed).is_some_and(|again| again.is_same(&step)) {
        true => Ok(sealed),
        false => Err(Error::new(ErrorKind::Replaced, "another step came while this was opened").in_file(at)),
    }
}

/// What does not fit of the seal of a location; nothing if it has none.
///
/// # Errors
/// As [`read_under_seal`].
pub(in crate::engine) fn misfits(at: &Location) -> Result<Vec<Error>> {
    Seal::found(at)?.map_or(Ok(Vec::new()), |seal| seal.misfits())
}

fn found(at: &Location) -> Result<Option<Seal>> {
    Seal::found(at).map_err(|error| match error.kind() {
        // It is the first request: what is wrong is the way to the checkpoint, not the seal.
        ErrorKind::Io if at.local_path().is_err() => error.of_file(at),
        _ => error,
    })
}

fn under(
    seal: Seal,
    at: &Location,
    read: &dyn Fn(&Location) -> Result<Box<dyn Reader>>,
) -> Result<Box<dyn Reader>> {
    if let Some(first) = seal.misfits()?.into_iter().next() {
        return Err(first);
    }
    let seal = Arc::new(seal);
    let reader = read(&seal.location(at))?;
    Ok(Box::new(SealedReader::new(reader, seal)?))
}

fn step_of(reader: &dyn Reader) -> Option<Location> {
    reader.standing().step_folder.map(|step| step.location().clone())
}
