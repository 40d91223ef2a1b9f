//! Bands: parts of leaves that the layout decodes. A band that is not cast is decoded directly into
//! its destination.

use crate::array::{Casting, Dtype, Region};
use crate::bytes::limits::allocate;
use crate::engine::bands::for_each_band;
use crate::error::Result;
use crate::formats::Reader;
use crate::tree::LeafInfo;

/// Arrays above this size are read in bands by several threads.
pub(super) const BAND_LEN_BYTES: u64 = 8 << 20;

/// A part of a leaf, and its destination.
pub(super) struct Band<'a> {
    pub leaf: usize,
    region: Region,
    dtype: Dtype,
    casting: Casting,
    pub out: &'a mut [u8],
    /// Memory that decoding needs; if `None`, as much as the band.
    working_len_bytes: Option<u64>,
}

impl Band<'_> {
    /// The number of stored bytes if the band is cast; otherwise `None`.
    fn source_len_bytes(&self, info: &LeafInfo) -> Option<u64> {
        (self.dtype != info.dtype).then(|| self.stored_len_bytes(info))
    }

    /// Memory needed in addition to the destination. A band that is cast also needs its stored
    /// bytes.
    pub fn cost_bytes(&self, info: &LeafInfo) -> u64 {
        let stored = self.source_len_bytes(info);
        let working = self.working_len_bytes.unwrap_or(stored.unwrap_or(self.out.len() as u64));
        working.saturating_add(stored.unwrap_or(0))
    }

    pub fn stored_len_bytes(&self, info: &LeafInfo) -> u64 {
        self.region.len_elements() * info.dtype.size_bytes() as u64
    }

    /// The length of a band that keeps one thread busy for long; `None` for shorter bands.
    pub fn is_long(&self) -> Option<usize> {
        Some(self.out.len()).filter(|&len| len as u64 > 2 * BAND_LEN_BYTES)
    }

    pub fn read(self, reader: &dyn Reader, info: &LeafInfo) -> Result<()> {
        let Some(len_bytes) = self.source_len_bytes(info) else {
            return reader.read_region(self.leaf, &self.region, self.out);
        };
        let mut source = allocate(len_bytes)?;
        reader.read_region(self.leaf, &self.region, &mut source)?;
        self.casting.cast(&source, info.dtype, self.dtype, self.out)
    }
}

/// Divides a leaf into bands whose bytes follow each other in `out`. If the leaf is not raw, a band
/// has whole rows of chunks along the first axis.
pub(super) fn cut_into_bands<'a>(
    reader: &dyn Reader,
    leaf: usize,
    info: &LeafInfo,
    (dtype, casting, working_len_bytes): (Dtype, Casting, Option<u64>),
    out: &'a mut [u8],
    bands: &mut Vec<Band<'a>>,
) -> Result<()> {
    let mut rest = out;
    for_each_band(reader, leaf, info, BAND_LEN_BYTES, |region, count| {
        let (band, after) = std::mem::take(&mut rest).split_at_mut(count as usize * dtype.size_bytes());
        rest = after;
        bands.push(Band { leaf, region: region.clone(), dtype, casting, out: band, working_len_bytes });
        Ok(())
    })
}
