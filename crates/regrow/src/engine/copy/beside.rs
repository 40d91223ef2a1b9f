//! Copies the side files (seal, signature, parity) of a checkpoint that consists of single files.
//! In a folder, side files are ordinary files of the folder.

use std::sync::Arc;

use crate::bytes::limits::work_space;
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::parity::{ParityDocument, ParityPlace, closing};
use crate::seal::{Place, SealDocument};
use crate::signature;
use crate::storage::PublishOptions;
use crate::store::{Blob, FileWriter, ReadPath, StoreExt};

const PIECE_LEN_BYTES: u64 = 4 << 20;

/// The side files of a checkpoint of single files, read from the source.
#[derive(Debug)]
pub(super) struct Beside {
    seal: Option<SealDocument>,
    signature: Option<Vec<u8>>,
    parity: Option<Parity>,
}

/// The index of the parity, with the file names of the copy, and the file of its blocks.
#[derive(Debug)]
struct Parity {
    document: ParityDocument,
    blocks: Arc<dyn Blob>,
}

impl Beside {
    /// Reads the side files of `source`, and gives them the file names of the copy at `target`.
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

    pub(super) fn is_empty(&self) -> bool {
        self.seal.is_none() && self.signature.is_none() && self.parity.is_none()
    }

    /// Writes the side files beside the copy, whose lock the caller has.
    pub(super) fn put(self, target: &Location) -> Result<()> {
        let written = |what: &str, again: &str, error: Error| {
            error.help(format!(
                "the checkpoint was copied without its {what}: check the copy (`regrow verify`) and make the {what} (`regrow {again}`), or copy it again"
            ))
        };
        if let Some(seal) = self.seal {
            let bytes = seal.to_bytes()?;
            put_new(&Place::of(target).file, bytes).map_err(|error| written("seal", "seal", error))?;
        }
        if let Some(bytes) = self.signature {
            put_new(&signature::place_of(target).file, bytes)
                .map_err(|error| written("signature", "sign", error))?;
        }
        if let Some(parity) = self.parity {
            parity.put(&ParityPlace::of(target)).map_err(|error| written("parity", "parity", error))?;
        }
        Ok(())
    }
}

/// Writes a small file unless it exists: an existing file belongs to a later writer.
fn put_new(file: &Location, bytes: Vec<u8>) -> Result<()> {
    if file.commits_by_marker() {
        return file.parent().store().put_if_absent(file.name().as_encoded_bytes(), bytes.into()).map(drop);
    }
    // On a disk, sync the file so that it survives a power cut.
    write_new(file, |writer| writer.write(&bytes)).map(drop)
}

fn write_new(file: &Location, write: impl FnOnce(&mut FileWriter) -> Result<()>) -> Result<bool> {
    let monitor = Monitor::new();
    let options = PublishOptions::of_new(&monitor);
    let written = || -> Result<()> {
        let publication = file.publish_file(options)?;
        let mut writer = publication.single_writer(0, 0)?;
        write(&mut writer)?;
        writer.finish()?;
        publication.commit()
    };
    match written() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        written => written.map(|()| true),
    }
}

impl Parity {
    fn of(at: &ParityPlace, stem: &str) -> Result<Option<Self>> {
        let Some(bytes) = at.place.read("the index of the parity")? else { return Ok(None) };
        let mut document = ParityDocument::parse(&bytes).in_file(&at.place.file)?;
        document.rename(&at.place.stem, stem);
        let store = at.blocks.parent().store();
        let blocks = store.open(at.blocks.name().as_encoded_bytes())?.ok_or_else(|| {
            Error::corrupt("the blocks of the parity are missing")
                .in_file(&at.blocks)
                .help("`regrow repair` writes them again; `regrow parity --remove` removes the rest")
        })?;
        Ok(Some(Self { document, blocks }))
    }

    fn put(self, at: &ParityPlace) -> Result<()> {
        let index = self.document.to_bytes()?;
        let len_bytes = self.document.geometry().parity_len_bytes();
        let mut piece = work_space(PIECE_LEN_BYTES.min(len_bytes))?;
        let is_written = write_new(&at.blocks, |writer| {
            for start in (0..len_bytes).step_by(PIECE_LEN_BYTES as usize) {
                let piece = piece.split_at_mut(PIECE_LEN_BYTES.min(len_bytes - start) as usize).0;
                self.blocks.read(start, piece, ReadPath::Cached)?;
                writer.write(piece)?;
            }
            writer.write(&index)?;
            writer.write(&closing(index.len() as u64))
        })?;
        if is_written { put_new(&at.place.file, index) } else { Ok(()) }
    }
}
