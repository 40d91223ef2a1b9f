//! What lies beside a checkpoint of single files and goes with them: its seal and its signature. Those of a folder are two of
//! its files.

use crate::engine::sign::put;
use crate::error::{Error, Result, ResultExt};
use crate::location::Location;
use crate::seal::{Place, SealDocument};
use crate::signature;

/// The seal and the signature of a checkpoint of single files, on their way.
#[derive(Debug)]
pub(super) struct Beside {
    /// With the names of the copy.
    seal: Option<SealDocument>,
    signature: Option<Vec<u8>>,
}

impl Beside {
    /// Those of `source`, for its copy at `target`.
    ///
    /// # Errors
    /// `Corrupt` for a seal that cannot be used; what the storage says.
    pub(super) fn of(source: &Location, target: &Location) -> Result<Self> {
        if source.is_folder() {
            return Ok(Self { seal: None, signature: None });
        }
        let place = Place::of(source);
        let mut seal = match place.read("the seal")? {
            Some(bytes) => Some(SealDocument::parse(&bytes).in_file(&place.file)?),
            None => None,
        };
        if let Some(seal) = &mut seal {
            seal.rename(&place.stem, &Place::of(target).stem);
        }
        Ok(Self { seal, signature: signature::place_of(source).read("the signature")? })
    }

    /// Puts them beside the copy.
    ///
    /// # Errors
    /// What the storage says, and that the copy is there without them.
    pub(super) fn put(self, target: &Location) -> Result<()> {
        let written = |what: &str, error: Error| {
            error.help(format!(
                "the checkpoint was copied, and its {what} was not: `regrow verify` the copy, and {what} it, or copy it again"
            ))
        };
        if let Some(seal) = self.seal {
            let bytes = seal.to_bytes()?;
            put(&Place::of(target).file, bytes).map_err(|error| written("seal", error))?;
        }
        if let Some(bytes) = self.signature {
            put(&signature::place_of(target).file, bytes).map_err(|error| written("signature", error))?;
        }
        Ok(())
    }
}
