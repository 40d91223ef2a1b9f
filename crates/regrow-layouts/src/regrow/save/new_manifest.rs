//! Builds `regrow.json`.

use serde::Serialize;

use super::super::manifest::{
    BODY_OFFSET, CHUNKS, CRC_HEX_LEN, ChunkShapes, DataFile, LeafPlace, NOWHERE, OPENING, PartRecord, Pieces,
    SmallFile, VERSION, VERSION_OF_PARTS,
};
use regrow_base::bytes::checksum::crc32c;
use regrow_base::bytes::side_document::{now_unix_ns, writer};
use regrow_base::error::{Error, Result};

/// The contents of the `regrow.json` of a new checkpoint.
#[derive(Debug)]
pub(super) struct NewManifest<'a> {
    pub structure: &'a str,
    pub custom_metadata: Option<&'a serde_json::Value>,
    pub data_files: &'a [DataFile],
    pub files: &'a [SmallFile],
    /// The UUID of the database; `None` without a database.
    pub database_uuid: Option<&'a str>,
    pub parts: &'a [PartRecord],
    pub chunks: Option<&'a ChunkShapes>,
    /// The pieces of a part; `None` in `regrow.json` itself.
    pub pieces: Option<&'a Pieces>,
    /// The exact pytree of the whole checkpoint, in the first part. A repair uses it to rebuild a
    /// lost `regrow.json`.
    pub whole: Option<&'a str>,
}

impl NewManifest<'_> {
    /// The file's bytes, in one pass. `places` has the position of each leaf's bytes.
    pub fn to_json(&self, places: impl ExactSizeIterator<Item = LeafPlace> + Clone) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(4096 + self.structure.len() + 16 * places.len());
        out.extend_from_slice(OPENING.as_bytes());
        out.extend_from_slice(b"00000000\",");
        out.extend_from_slice(b"\"format\":\"regrow\",\"version\":");
        let in_parts = !self.parts.is_empty() || self.pieces.is_some();
        push_json(&mut out, if in_parts { &VERSION_OF_PARTS } else { &VERSION })?;
        out.extend_from_slice(b",\"writer\":");
        push_json(&mut out, &writer())?;
        out.extend_from_slice(b",\"created_unix_ns\":");
        push_json(&mut out, &now_unix_ns())?;
        out.extend_from_slice(b",\"custom_metadata\":");
        push_json(&mut out, &self.custom_metadata)?;
        // A merge reads a part only up to these columns, so they come first.
        if let Some(pieces) = self.pieces {
            out.extend_from_slice(b",\"pieces\":");
            push_json(&mut out, pieces)?;
            self.push_columns(&mut out, places)?;
            self.push_structure(&mut out);
        } else {
            self.push_structure(&mut out);
            self.push_columns(&mut out, places)?;
        }
        out.extend_from_slice(b",\"files\":");
        push_json(&mut out, &self.files)?;
        if let Some(uuid) = self.database_uuid {
            out.extend_from_slice(b",\"database_uuid\":");
            push_json(&mut out, uuid)?;
        }
        if !self.parts.is_empty() {
            out.extend_from_slice(b",\"parts\":");
            push_json(&mut out, self.parts)?;
        }
        if let Some(chunks) = self.chunks {
            out.extend_from_slice(b",\"chunks\":");
            push_json(&mut out, chunks)?;
        }
        if let Some(whole) = self.whole {
            out.extend_from_slice(b",\"whole\":");
            out.extend_from_slice(whole.as_bytes());
        }
        out.push(b'}');
        let crc = format!("{:08x}", crc32c(out.get(BODY_OFFSET..).unwrap_or_default()));
        if let Some(slot) = out.get_mut(OPENING.len()..OPENING.len() + CRC_HEX_LEN) {
            slot.copy_from_slice(crc.as_bytes());
        }
        Ok(out)
    }

    fn push_structure(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"structure\":");
        out.extend_from_slice(self.structure.as_bytes());
    }

    fn push_columns(
        &self,
        out: &mut Vec<u8>,
        places: impl ExactSizeIterator<Item = LeafPlace> + Clone,
    ) -> Result<()> {
        out.extend_from_slice(b",\"data_files\":");
        push_json(out, &self.data_files)?;
        out.extend_from_slice(b",\"leaf_files\":[");
        for (at, place) in places.clone().enumerate() {
            let file = match place {
                LeafPlace::Raw { file, .. } => i32::try_from(file).unwrap_or(i32::MAX),
                LeafPlace::Chunks => CHUNKS,
                LeafPlace::Nowhere => NOWHERE,
            };
            push_item(out, at, &file)?;
        }
        out.extend_from_slice(b"],\"leaf_offsets\":[");
        for (at, place) in places.enumerate() {
            let offset_bytes = match place {
                LeafPlace::Raw { offset_bytes, .. } => offset_bytes,
                LeafPlace::Chunks | LeafPlace::Nowhere => 0,
            };
            push_item(out, at, &offset_bytes)?;
        }
        out.push(b']');
        Ok(())
    }
}

fn push_item(out: &mut Vec<u8>, at: usize, number: &impl Serialize) -> Result<()> {
    if at > 0 {
        out.push(b',');
    }
    push_json(out, number)
}

fn push_json(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) -> Result<()> {
    serde_json::to_writer(out, value).map_err(|error| Error::invalid(format!("not JSON: {error}")))
}
