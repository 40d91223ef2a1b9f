//! Finds and reads the parity of a checkpoint, even if the parity is damaged.

use crate::bytes::limits::JSON_LEN_MAX_BYTES;
use crate::error::{Error, Result, ResultExt};
use crate::location::Location;
use crate::parity::{CLOSING_LEN_BYTES, ParityDocument, ParityPlace, index_len_bytes};
use crate::store::{Blob, ReadPath};

/// The parity of a checkpoint: its location, and its parsed index.
#[derive(Debug)]
pub(super) struct Parity {
    pub at: ParityPlace,
    pub document: ParityDocument,
    /// Whether both copies of the index exist and are equal.
    pub is_index_whole: bool,
}

impl Parity {
    /// Finds the parity of the checkpoint at a location. Reads both copies of the index, in its own
    /// file and behind the blocks, and uses a copy that is intact.
    pub fn find(at: &Location) -> Result<Option<Self>> {
        let at = ParityPlace::of(at);
        let mut copies = Copies::read(&at)?;
        if copies.is_none() {
            if !at.blocks.is_file() && !at.place.file.is_file() {
                return Ok(None);
            }
            // A save may have written the index after the first read.
            copies = Copies::read(&at)?;
        }
        let Copies { own, behind } = copies;
        let parsed = |bytes: Option<Vec<u8>>| bytes.map(|bytes| ParityDocument::parse(&bytes));
        let (behind, own) = (parsed(behind), parsed(own));
        // Two processes that made parity at the same time may each have written one of the copies.
        let is_index_whole = match (&behind, &own) {
            (Some(Ok(behind)), Some(Ok(own))) => behind.is_of_same_parity(own),
            _ => false,
        };
        let document = match (behind, own) {
            (Some(Ok(document)), _) | (_, Some(Ok(document))) => document,
            (_, Some(Err(error))) => return Err(error.in_file(&at.place.file)),
            (Some(Err(error)), None) => return Err(error.in_file(&at.blocks)),
            (None, None) => {
                return Err(Error::corrupt("the index of the parity is lost, in both of its copies")
                    .in_file(&at.place.file)
                    .help("this parity cannot repair; pass `--from` to take data from a copy"));
            }
        };
        if document.covers_folder != at.place.covers_folder {
            return Err(Error::corrupt("the parity belongs to another kind of checkpoint"))
                .in_file(&at.place.file);
        }
        at.place.check_names(&document.names).in_file(&at.place.file)?;
        Ok(Some(Self { at, document, is_index_whole }))
    }

    pub fn blocks(&self) -> Result<Option<std::sync::Arc<dyn Blob>>> {
        let file = &self.at.blocks;
        file.parent().store().open(file.name().as_encoded_bytes())
    }
}

/// The unparsed bytes of both copies of the index; `None` for a copy that cannot be read.
struct Copies {
    own: Option<Vec<u8>>,
    behind: Option<Vec<u8>>,
}

impl Copies {
    fn read(at: &ParityPlace) -> Result<Self> {
        let undamaged = |read: Result<Option<Vec<u8>>>, file: &Location| match read {
            Err(error) if super::is_damage(&error, file) => Ok(None),
            other => other,
        };
        Ok(Self {
            own: undamaged(at.place.read("the index of the parity"), &at.place.file)?,
            behind: undamaged(behind_blocks(at), &at.blocks)?,
        })
    }

    fn is_none(&self) -> bool {
        self.own.is_none() && self.behind.is_none()
    }
}

/// The copy of the index that follows the blocks in their file.
fn behind_blocks(at: &ParityPlace) -> Result<Option<Vec<u8>>> {
    let store = at.blocks.parent().store();
    let Some(blob) = store.open(at.blocks.name().as_encoded_bytes())? else { return Ok(None) };
    let Some(end) = blob.len_bytes().checked_sub(CLOSING_LEN_BYTES) else { return Ok(None) };
    let mut closing = [0; CLOSING_LEN_BYTES as usize];
    blob.read(end, &mut closing, ReadPath::Cached)?;
    let len_bytes = index_len_bytes(&closing).filter(|len| *len <= JSON_LEN_MAX_BYTES);
    let Some((len_bytes, start)) = len_bytes.and_then(|len| Some((len, end.checked_sub(len)?))) else {
        return Ok(None);
    };
    let mut bytes = crate::bytes::limits::work_space(len_bytes)?;
    blob.read(start, &mut bytes, ReadPath::Cached)?;
    Ok(Some(bytes))
}
