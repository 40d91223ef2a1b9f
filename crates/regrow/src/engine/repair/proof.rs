//! The sealed or signed state of a checkpoint. A repair writes no other bytes into its files.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::is_damage;
use crate::bytes::limits::work_space;
use crate::error::{Error, Result};
use crate::location::Location;
use crate::reads::Block;
use crate::seal::{Seal, SealedFile};
use crate::signature;

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
        self.0.iter().all(|seal| {
            listed(seal, file).is_some_and(|listed| {
                let part =
                    |block: Block| bytes.get(block.start as usize..block.end as usize).unwrap_or_default();
                listed.len_bytes == bytes.len() as u64
                    && listed
                        .table
                        .blocks(0, listed.len_bytes)
                        .all(|block| listed.table.is_good(block, part(block)))
            })
        })
    }

    pub fn into_seals(self) -> Vec<Seal> {
        self.0
    }

    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the checkpoint did not have this file when it was sealed.
    pub fn has_none(&self, file: &Location) -> bool {
        self.0.iter().all(|seal| listed(seal, file).is_none())
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
