//! What lies beside a checkpoint of single files and goes with them: its seal, its signature and its parity. Those of a folder
//! are files of it.

use std::sync::Arc;

use crate::bytes::limits::work_space;
use crate::engine::sign::put;
use crate::engine::standing::Standing;
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::parity::{ParityDocument, ParityPlace, closing};
use crate::seal::{Place, SealDocument, side_files_of};
use crate::signature;
use crate::storage::PublishOptions;
use crate::store::{Blob, ReadPath};

/// Bytes of parity that are copied at once.
const PIECE_LEN_BYTES: u64 = 4 << 20;

/// What lies beside a checkpoint of single files, on its way.
#[derive(Debug)]
pub(super) struct Beside {
    /// With the names of the copy.
    seal: Option<SealDocument>,
    signature: Option<Vec<u8>>,
    parity: Option<Parity>,
}

/// The index, with the names of the copy, and the file with the blocks.
#[derive(Debug)]
struct Parity {
    document: ParityDocument,
    blocks: Arc<dyn Blob>,
}

impl Beside {
    /// That of `source`, for its copy at `target`.
    ///
    /// # Errors
    /// `Corrupt` for a seal or a parity that cannot be used; what the storage says.
    pub(super) fn of(source: &Location, target: &Location) -> Result<Self> {
        if source.is_folder() {
            return Ok(Self { seal: None, signature: None, parity: None });
        }
        let place = Place::of(source);
        let stem = Place::of(target).stem;
        let mut seal = match place.read("the seal")? {
            Some(bytes) => Some(SealDocument::parse(&bytes).in_file(&place.file)?),
            None => None,
        };
        if let Some(seal) = &mut seal {
            seal.rename(&place.stem, &stem);
        }
        let parity = Parity::of(&ParityPlace::of(source), &stem)?;
        Ok(Self { seal, signature: signature::place_of(source).read("the signature")?, parity })
    }

    /// Puts it beside the copy.
    ///
    /// # Errors
    /// What the storage says, and that the copy is there without it.
    pub(super) fn put(self, target: &Location) -> Result<()> {
        if self.seal.is_none() && self.signature.is_none() && self.parity.is_none() {
            return Ok(());
        }
        let files: Vec<Location> = side_files_of(target).collect();
        match Standing::now(target).put(&files.iter().collect::<Vec<_>>(), || self.put_all(target)) {
            // A save has followed this copy, and what lies beside its checkpoint is its own matter.
            Err(error) if error.kind() == ErrorKind::Replaced => Ok(()),
            put => put,
        }
    }

    fn put_all(self, target: &Location) -> Result<()> {
        let written = |what: &str, again: &str, error: Error| {
            error.help(format!(
                "the checkpoint was copied, and its {what} was not: `regrow verify` the copy, and `regrow {again}` it, or copy it again"
            ))
        };
        if let Some(seal) = self.seal {
            let bytes = seal.to_bytes()?;
            put(&Place::of(target).file, bytes).map_err(|error| written("seal", "seal", error))?;
        }
        if let Some(bytes) = self.signature {
            put(&signature::place_of(target).file, bytes)
                .map_err(|error| written("signature", "sign", error))?;
        }
        if let Some(parity) = self.parity {
            parity.put(&ParityPlace::of(target)).map_err(|error| written("parity", "parity", error))?;
        }
        Ok(())
    }
}

impl Parity {
    fn of(at: &ParityPlace, stem: &str) -> Result<Option<Self>> {
        let Some(bytes) = at.place.read("the index of the parity")? else { return Ok(None) };
        let mut document = ParityDocument::parse(&bytes).in_file(&at.place.file)?;
        document.rename(&at.place.stem, stem);
        let store = at.blocks.parent().store();
        let blocks = store.open(at.blocks.name().as_encoded_bytes())?.ok_or_else(|| {
            Error::corrupt("the blocks of the parity are gone")
                .in_file(&at.blocks)
                .help("`regrow repair` makes them anew, or `regrow parity --remove` takes the rest away")
        })?;
        Ok(Some(Self { document, blocks }))
    }

    fn put(self, at: &ParityPlace) -> Result<()> {
        let index = self.document.to_bytes()?;
        let target = &at.blocks;
        let publication = target.storage().publish(target, PublishOptions::of_one_file(&Monitor::new()))?;
        let mut writer = publication.single_writer(0, 0)?;
        let len_bytes = self.document.geometry().parity_len_bytes();
        let mut piece = work_space(PIECE_LEN_BYTES.min(len_bytes))?;
        for start in (0..len_bytes).step_by(PIECE_LEN_BYTES as usize) {
            let piece = piece.split_at_mut(PIECE_LEN_BYTES.min(len_bytes - start) as usize).0;
            self.blocks.read(start, piece, ReadPath::Cached)?;
            writer.write(piece)?;
        }
        writer.write(&index)?;
        writer.write(&closing(index.len() as u64))?;
        writer.finish()?;
        publication.commit()?;
        put(&at.place.file, index)
    }
}
