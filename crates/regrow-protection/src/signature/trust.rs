//! Finds the signature of a checkpoint, verifies it, and makes a `Seal` from it.

use std::sync::Arc;

use super::document::{HELP, NAMES, SignatureDocument, Signed, untrusted};
use crate::keys::{PublicKey, check_available};
use crate::seal::{Place, Said, Seal, SealedFile};
use regrow_base::error::{Error, Result, ResultExt};
use regrow_storage::location::Location;
use regrow_store::reads::{BlockTable, Words};

const WORDS: Words = Words {
    what: |_, block| format!("block {block} of a signed file differs from the signature"),
    help: HELP,
    help_if_zeros: "the block is all zeros, because a write never reached the disk: copy the checkpoint \
        again",
};

const SAID: Said = Said {
    misfit: || {
        Error::corrupt(
            "the checkpoint differs from its signature: a file is missing, or has another \
            length",
        )
        .help(HELP)
    },
    unlisted: || Error::corrupt("the checkpoint differs from its signature: a file was added").help(HELP),
    changed: || Error::corrupt("a signed file changed while it was read").help(HELP),
};

/// The error for a checkpoint that has no signature.
pub fn missing() -> Error {
    untrusted("the checkpoint has no signature")
}

/// The place of a checkpoint's signature.
pub fn place_of(at: &Location) -> Place {
    Place::named(at, NAMES)
}

/// The signature of a location by one of these keys; for a part of a folder on a disk, the
/// signature of the folder. `None` if there is no signature.
pub fn trusted(at: &Location, keys: &[PublicKey]) -> Result<Option<Seal>> {
    Place::search(at, NAMES, &|place| read(place, keys))
}

/// The signature of a checkpoint by any signer, trusted or not, for restoring the signed files.
/// `None` if the signature is missing, unreadable or not valid.
pub fn unverified(at: &Location) -> Result<Option<Seal>> {
    let place = place_of(at);
    let Some(bytes) = place.read("the signature")? else { return Ok(None) };
    check_available().in_file(&place.file)?;
    let read = || {
        let document = SignatureDocument::parse(&bytes)?;
        let signer = document.signers().into_iter().next().ok_or_else(missing)?;
        in_use(document.unverified()?, signer, place.clone())
    };
    Ok(read().ok())
}

/// Parses a signature that was read at a place, and verifies it with its own keys. It is then
/// valid, but not yet trusted.
pub fn of_its_own_keys(bytes: &[u8], place: Place) -> Result<Seal> {
    check_available()?;
    let document = SignatureDocument::parse(bytes)?;
    let (signed, signer) = document.verified(&document.signers())?;
    in_use(signed, signer, place)
}

fn read(place: Place, keys: &[PublicKey]) -> Result<Option<Seal>> {
    let Some(bytes) = place.read("the signature")? else { return Ok(None) };
    let verified = || SignatureDocument::parse(&bytes)?.verified(keys);
    let (signed, signer) = verified().in_file(&place.file)?;
    in_use(signed, signer, place.clone()).in_file(&place.file).map(Some)
}

fn in_use(signed: Signed, signer: PublicKey, place: Place) -> Result<Seal> {
    if signed.covers_folder != place.covers_folder {
        return Err(untrusted("the signature belongs to another kind of checkpoint").expected(
            if place.covers_folder { "one of a folder" } else { "one of single files" },
            if signed.covers_folder { "one of a folder" } else { "one of single files" },
        ));
    }
    let mut left = signed.block_blake3.as_slice();
    let mut files = Vec::with_capacity(signed.names.len());
    for (number, (name, len_bytes)) in signed.names.into_iter().zip(signed.len_bytes).enumerate() {
        let count = usize::try_from(len_bytes.div_ceil(signed.block_len_bytes)).unwrap_or(usize::MAX);
        let too_few = || untrusted("the signature lacks the digest of a block");
        let (expected, rest) = left.split_at_checked(count).ok_or_else(too_few)?;
        left = rest;
        let table = BlockTable::of_digests(0..len_bytes, signed.block_len_bytes, expected.to_vec(), WORDS)?;
        let name = match name.strip_prefix('*') {
            Some(rest) if !place.covers_folder => format!("{}{rest}", place.stem),
            _ => name,
        };
        files.push(Arc::new(SealedFile { name, len_bytes, table: table.labelled(number) }));
    }
    Ok(Seal::new(place, files, SAID, Some(signer)))
}
