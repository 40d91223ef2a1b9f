//! The sealed or signed state of a checkpoint. A repair writes no other bytes into its files.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::by_checksums::read;
use super::is_damage;
use crate::bytes::limits::work_space;
use crate::error::{Error, Result};
use crate::location::Location;
use crate::seal::{Seal, SealedFile};
use crate::signature;
use crate::store::Store;

/// Reads bytes of a file from an offset on. Returns false if the bytes cannot be read.
pub(super) type ReadPart<'f> = &'f mut dyn FnMut(u64, &mut [u8]) -> Result<bool>;

/// The error for a file that would differ from its sealed or signed state.
pub(super) fn refused(file: &Location) -> Error {
    Error::corrupt("the rebuilt files differ from the sealed or signed ones").in_file(file).help(
        "pass `--from` to take it from a copy; or remove the seal (`regrow seal --remove`) or the signature (remove its file, \
         `regrow.signature….json`), and repair again",
    )
}

/// The sealed or signed state of a checkpoint. A repair restores exactly this state. With any other
/// content the file would not match the seal, and a later repair from a replica could not fix this.
pub(super) struct Proof(Vec<Seal>);

impl Proof {
    /// Reads the seal and the signature of the checkpoint at a location.
    pub fn of(at: &Location) -> Result<Self> {
        let seal = match Seal::found(at) {
            Err(error) if is_damage(&error, at) => None,
            found => found?,
        };
        Ok(Self(seal.into_iter().chain(signature::unverified(at)?).collect()))
    }

    /// Whether the repair may write these bytes to a file; true if there is no seal and no
    /// signature.
    pub fn allows(&self, file: &Location, bytes: &[u8]) -> bool {
        let read: ReadPart<'_> = &mut |start, out| {
            let part = bytes.get(start as usize..).and_then(|rest| rest.get(..out.len()));
            Ok(part.is_some_and(|part| {
                out.copy_from_slice(part);
                true
            }))
        };
        self.fits(file, bytes.len() as u64, &|_| true, read).unwrap_or(false)
    }

    pub fn into_seals(self) -> Vec<Seal> {
        self.0
    }

    /// Whether a file, a key of `store`, matches its seal or signature, or is missing as in these.
    /// False if there is neither.
    pub fn holds(&self, file: &Location, store: &dyn Store, name: &str) -> Result<bool> {
        if self.0.is_empty() {
            return Ok(false);
        }
        let blob = match store.open(name.as_bytes()) {
            Err(error) if is_damage(&error, file) => None,
            blob => blob?,
        };
        let Some(blob) = blob else { return Ok(self.0.iter().all(|seal| listed(seal, file).is_none())) };
        let read: ReadPart<'_> = &mut |offset_bytes, out| read(Some(&*blob), file, offset_bytes, out);
        self.fits(file, blob.len_bytes(), &|_| true, read)
    }

    /// Whether the `wanted` blocks of a file of this length match all seals and signatures.
    pub fn fits(
        &self,
        file: &Location,
        len_bytes: u64,
        wanted: &dyn Fn(Range<u64>) -> bool,
        read: ReadPart<'_>,
    ) -> Result<bool> {
        for seal in &self.0 {
            let Some(listed) = listed(seal, file).filter(|listed| listed.len_bytes == len_bytes) else {
                return Ok(false);
            };
            for block in listed.table.blocks(0, len_bytes).filter(|block| wanted(block.start..block.end)) {
                let mut bytes = work_space(block.end - block.start)?;
                if !read(block.start, &mut bytes)? || !listed.table.is_good(block, &bytes) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// The entry for a file in a seal or signature; `None` if it does not list the file.
fn listed<'s>(seal: &'s Seal, file: &Location) -> Option<&'s Arc<SealedFile>> {
    let below = file.below(&seal.place.folder);
    seal.files.iter().find(|listed| Path::new(&listed.name) == below)
}
