//! Opens a checkpoint that has a seal or a signature.

use std::sync::Arc;

use super::reader::SealedReader;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::Reader;
use crate::location::Location;
use crate::options::OpenOptions;
use crate::seal::Seal;
use crate::signature;

/// Reads the metadata of a checkpoint, checked by the required signature, or else by its seal if it
/// has one.
///
/// # Errors
/// Errors of `read`; `Untrusted`; `Corrupt` if the files differ from the sealed or signed files;
/// `Replaced` if another step has become the newest.
pub(in crate::engine) fn read_under_seal(
    at: &Location,
    options: &OpenOptions,
    read: &dyn Fn(&Location) -> Result<Box<dyn Reader>>,
) -> Result<Box<dyn Reader>> {
    let needs_none = options.trusted_keys.is_empty();
    if options.ignore_seal && needs_none {
        return read(at);
    }
    if let Some(seal) = found_for(at, options)? {
        return under(seal, at, options, read);
    }
    // Only the layout knows which step it opens. Each step has its own seal and signature.
    let reader = read(at)?;
    let step = step_of(&*reader);
    let seal = step.as_ref().map_or(Ok(None), |step| found_for(step, options))?;
    let (Some(step), Some(seal)) = (step, seal) else {
        return if needs_none { Ok(reader) } else { Err(signature::missing().in_file(at)) };
    };
    let sealed = under(seal, at, options, read)?;
    match step_of(&*sealed).is_some_and(|again| again.is_same(&step)) {
        true => Ok(sealed),
        false => Err(Error::replaced("another step came while this was opened").in_file(at)),
    }
}

/// The differences between the files at a location and their signature or seal; empty if there is
/// neither.
pub(in crate::engine) fn misfits(at: &Location, options: &OpenOptions) -> Result<Vec<Error>> {
    found(at, options)?.map_or(Ok(Vec::new()), |seal| seal.misfits())
}

/// The signature of a trusted key if the options require one, otherwise the seal.
fn found(at: &Location, options: &OpenOptions) -> Result<Option<Seal>> {
    let found = match options.trusted_keys.as_slice() {
        [] => Seal::found(at),
        keys => signature::trusted(at, keys),
    };
    found.map_err(|error| match error.kind() {
        // The seal is the first file requested, so the error is about the address of the
        // checkpoint.
        ErrorKind::Io if at.local_path().is_err() => error.of_file(at),
        _ => error,
    })
}

/// Like `found`, but a salvage ignores an unreadable seal. A missing signature is always an error.
fn found_for(at: &Location, options: &OpenOptions) -> Result<Option<Seal>> {
    match found(at, options) {
        Err(error) if options.salvage && options.trusted_keys.is_empty() && error.kind().is_of_content() => {
            Ok(None)
        }
        found => found,
    }
}

fn under(
    seal: Seal,
    at: &Location,
    options: &OpenOptions,
    read: &dyn Fn(&Location) -> Result<Box<dyn Reader>>,
) -> Result<Box<dyn Reader>> {
    // If a file does not fit the seal, a salvage reports each leaf of the file instead.
    if !options.salvage
        && let Some(first) = seal.misfits()?.into_iter().next()
    {
        return Err(first);
    }
    let seal = Arc::new(seal);
    match read(&seal.location(at)) {
        Ok(reader) => Ok(Box::new(SealedReader::new(reader, seal, options.salvage)?)),
        // Some layouts read a whole file at the opening. The damage may be in array data of the
        // file.
        Err(error) if options.salvage && seal.signer.is_none() && error.kind().is_of_content() => {
            let unchecked = read(at).and_then(|reader| SealedReader::new(reader, seal, true));
            match unchecked.and_then(|sealed| sealed.check_structure().map(|()| sealed)) {
                Ok(sealed) => Ok(Box::new(sealed)),
                Err(_) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

fn step_of(reader: &dyn Reader) -> Option<Location> {
    reader.standing().step_folder.map(|step| step.location().clone())
}
