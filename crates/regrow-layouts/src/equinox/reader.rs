//! The reader of a leaf file as a checkpoint: a pytree whose leaves are in records.

use bytes::Bytes;

use super::file::LeafFile;
use super::pytree::{self, Place, Placed};
use crate::options::OpenOptions;
use crate::{ARRAYS_ONLY_HELP, Description, Reader, Rest, Standing};
use regrow_base::error::{Error, Result, ResultExt};
use regrow_base::text::counted;
use regrow_storage::location::Location;
use regrow_store::reads::{Coded, Source, Text};
use regrow_tree::array::{Array, Region};
use regrow_tree::tree::{LeafInfo, Tree};

/// An opened file.
#[derive(Debug)]
pub(super) struct EquinoxReader {
    description: Description,
    file: LeafFile,
    placed: Placed,
}

impl EquinoxReader {
    /// If `arrays_only`, the pytree is the list of the file's records, with or without a trailer.
    /// In a salvage, the list ends before the first broken record.
    pub(super) fn open(at: &Location, options: &OpenOptions) -> Result<Self> {
        let &OpenOptions { arrays_only, salvage, .. } = options;
        let (file, damage) = LeafFile::open_front(at.clone())?;
        let is_front_enough = arrays_only && salvage && !file.records().is_empty();
        if let Some(damage) = damage.filter(|_| !is_front_enough) {
            return Err(damage);
        }
        if file.broken().is_some() && !is_front_enough {
            let broken = file.into_broken();
            return Err(broken.unwrap_or_else(|| Error::corrupt("a record is damaged")));
        }
        let file = if arrays_only { file } else { whole(file)? };
        let placed = pytree::of(&file, arrays_only).in_file(at)?;
        let mut notes = Vec::new();
        if file.trailer().is_none() {
            notes.push("the file has no checksums: regrow cannot detect damage of its data".to_owned());
        }
        notes.extend(trailing(&file));
        let line = file.line().map(|line| line.value.clone());
        let records = counted(file.records().len(), "record", "records");
        let description = Description {
            layout: "equinox".to_owned(),
            variant: records + if file.trailer().is_some() { ", with a trailer" } else { "" },
            custom_metadata: line.or_else(|| file.trailer().and_then(|trailer| trailer.metadata.clone())),
            notes,
            ..Description::default()
        };
        Ok(Self { description, file, placed })
    }

    fn leaf(&self, leaf: usize) -> Result<(&LeafInfo, &Place)> {
        let place = self.placed.places.get(leaf);
        self.placed
            .tree
            .leaves()
            .get(leaf)
            .zip(place)
            .ok_or_else(|| Error::invalid(format!("leaf {leaf} does not exist")))
    }

    /// The stored data of a whole leaf. Checks data in the trailer; the caller checks a record.
    fn stored(&self, info: &LeafInfo, place: &Place) -> Result<Bytes> {
        self.file.check_len()?;
        match *place {
            Place::Record(at, _) => self.file.data(at, 0, info.len_bytes()),
            Place::Blob(offset, len, crc32c) => self.file.blob((offset, len, crc32c)),
            Place::Nowhere => Err(Error::invalid("the leaf has no elements")),
        }
    }
}

/// The file, or an error if it is empty or the bytes beside its records are damaged.
fn whole(file: LeafFile) -> Result<LeafFile> {
    if file.is_empty() {
        return Err(Error::corrupt("the file is empty")
            .in_file(file.location())
            .at_byte(0)
            .expected("a record, or a trailer", "0 bytes")
            .help(
                "a save was interrupted, or the pytree has no arrays; `arrays_only` opens it as an empty \
                 list",
            ));
    }
    file.check_line().and_then(|()| file.into_undamaged()).map_err(|error| error.help(ARRAYS_ONLY_HELP))
}

fn trailing(file: &LeafFile) -> Option<String> {
    let len = file.trailing_len_bytes();
    let what = counted(len, "byte after the last record is", "bytes after the last record are");
    let note = || format!("{what} not a record; Equinox ignores them");
    (len > 0).then(note)
}

impl Reader for EquinoxReader {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tree(&self) -> &Tree<LeafInfo> {
        &self.placed.tree
    }

    fn source(&self, leaf: usize) -> Result<Source<'_>> {
        let (info, place) = self.leaf(leaf)?;
        Ok(match place {
            Place::Record(at, elements) if elements.is_raw() => {
                // A record may begin at any offset. Unaligned data has no view, since few programs
                // accept it.
                Source::Raw(self.file.extent(*at, info.dtype.word_bytes())?)
            }
            Place::Record(..) | Place::Blob(..) => Source::Coded(Coded::in_chunks(info.chunk_len_bytes())),
            Place::Nowhere => {
                self.placed.texts.get(&leaf).map_or(Source::Nothing, |text| Source::Text(Text::Known(text)))
            }
        })
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        let (info, place) = self.leaf(leaf)?;
        let bytes = self.stored(info, place)?;
        let Place::Record(at, elements) = place else {
            return Array::new(info.dtype, info.shape.clone(), bytes)?.copy_region_c_order(region, out);
        };
        // In Fortran order the elements of the region may be anywhere in the data, so check all of
        // the data.
        let (first, len) = match region.contiguous_bytes(&info.shape, info.dtype) {
            Some(span) if elements.is_c_order() => span,
            _ => (0, info.len_bytes()),
        };
        if !region.is_empty() {
            self.file.check(*at, first, first + len)?;
        }
        elements.copy_region(bytes, region, out)
    }

    fn read_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.placed.tree.len()).collect();
        order.sort_by_key(|&leaf| match self.placed.places.get(leaf) {
            Some(Place::Record(at, _)) => (0, *at as u64),
            Some(Place::Blob(offset, ..)) => (1, *offset),
            _ => (2, 0),
        });
        order
    }

    fn check_rest(&self) -> Result<Rest> {
        Ok(Rest::noted(trailing(&self.file)))
    }

    fn standing(&self) -> Standing<'_> {
        Standing { has_data_checksums: self.file.trailer().is_some(), ..Standing::default() }
    }
}
