//! The destination of decoded pieces: the caller's slice for one region of an array.
//!
//! ```text
//!        the region            a piece that is one run of the slice is decoded directly into
//!   +---------------------+    the slice; any other piece is decoded into a buffer, and the
//!   | piece | piece | pie-|ce  part in the region is copied row by row
//!   +---------------------+
//! ```
//!
//! Chunks go into arrays this way, and inner chunks into chunks.

use crate::array::{Dtype, Region, Shape, copy_region};
use crate::codec::{CodecChain, Endian, bytes_codec};
use crate::error::{Error, Result};

use super::Missing;

/// The caller's slice for `region`, in C order, little endian.
pub struct Destination<'a> {
    dtype: Dtype,
    region: &'a Region,
    shape: Shape,
    out: &'a mut [u8],
    buffer: Vec<u8>,
}

impl<'a> Destination<'a> {
    /// Takes a slice that is exactly as long as the region.
    pub fn new(dtype: Dtype, region: &'a Region, out: &'a mut [u8]) -> Result<Self> {
        let shape = region.shape();
        let len_bytes = shape.len_bytes(dtype)?;
        if out.len() as u64 != len_bytes {
            return Err(Error::invalid(format!(
                "the slice for region {region} of dtype {dtype} has another size"
            ))
            .expected(format_args!("{len_bytes} bytes"), out.len()));
        }
        Ok(Self { dtype, region, shape, out, buffer: Vec::new() })
    }

    /// The region of the array that the slice is for.
    pub fn region(&self) -> &Region {
        self.region
    }

    /// Decodes a piece with the region `piece`, and keeps the part that the region needs.
    pub fn put_chunk(
        &mut self,
        piece: &Region,
        chain: &CodecChain,
        stored: &[u8],
        missing: Missing,
    ) -> Result<()> {
        let Some(common) = self.region.intersect(piece) else { return Ok(()) };
        if let Some(slot) = self.slot(piece)? {
            return chain.decode_into(stored, slot, missing);
        }
        chain.decode(stored, &mut self.buffer, missing)?;
        copy_common(self.dtype, piece, &self.buffer, &common, self.region, &self.shape, self.out)
    }

    /// The slice for a piece with the region `piece`, if the region needs the whole piece and the
    /// piece is one run of the slice; `None` otherwise.
    pub fn slot(&mut self, piece: &Region) -> Result<Option<&mut [u8]>> {
        if self.region.intersect(piece).as_ref() != Some(piece) {
            return Ok(None);
        }
        slot(piece, self.region, &self.shape, self.dtype, self.out)
    }

    /// Copies the raw elements of `piece`, which are in C order, little endian.
    pub fn put_raw(&mut self, piece: &Region, bytes: &[u8]) -> Result<()> {
        let Some(common) = self.region.intersect(piece) else { return Ok(()) };
        if bytes_codec::takes_any_bytes(self.dtype) {
            return copy_common(self.dtype, piece, bytes, &common, self.region, &self.shape, self.out);
        }
        self.buffer.clear();
        self.buffer.extend_from_slice(bytes);
        bytes_codec::to_memory(self.dtype, Endian::Little, &mut self.buffer)?;
        copy_common(self.dtype, piece, &self.buffer, &common, self.region, &self.shape, self.out)
    }

    /// Repeats one element in the part of `piece` that the region needs.
    pub fn fill(&mut self, piece: &Region, element: &[u8]) -> Result<()> {
        match self.region.intersect(piece) {
            None => Ok(()),
            Some(common) => self.fill_runs(&common, element),
        }
    }

    fn fill_runs(&mut self, part: &Region, element: &[u8]) -> Result<()> {
        if let Some(slot) = slot(part, self.region, &self.shape, self.dtype, self.out)? {
            if element.iter().all(|&byte| byte == 0) {
                slot.fill(0);
            } else {
                slot.chunks_exact_mut(element.len()).for_each(|to| to.copy_from_slice(element));
            }
            return Ok(());
        }
        // A part that is not one run has more than one index on some axis.
        let axis = part.lens().iter().position(|&len| len > 1).unwrap_or_default();
        let (mut starts, mut lens) = (part.starts().to_vec(), part.lens().to_vec());
        for _ in 0..part.lens().get(axis).copied().unwrap_or_default() {
            if let Some(len) = lens.get_mut(axis) {
                *len = 1;
            }
            self.fill_runs(&Region::new(starts.clone(), lens.clone())?, element)?;
            if let Some(start) = starts.get_mut(axis) {
                *start += 1;
            }
        }
        Ok(())
    }
}

/// The slice of `out` for `part` of `region`; `None` if the part is not one run.
fn slot<'a>(
    part: &Region,
    region: &Region,
    shape: &Shape,
    dtype: Dtype,
    out: &'a mut [u8],
) -> Result<Option<&'a mut [u8]>> {
    let local = part.relative_to(region.starts())?;
    let run = local.contiguous_bytes(shape, dtype);
    Ok(run.and_then(|(offset, len)| out.get_mut(offset as usize..(offset + len) as usize)))
}

fn copy_common(
    dtype: Dtype,
    piece: &Region,
    bytes: &[u8],
    common: &Region,
    region: &Region,
    shape: &Shape,
    out: &mut [u8],
) -> Result<()> {
    let from = common.relative_to(piece.starts())?;
    let to = common.relative_to(region.starts())?;
    copy_region(dtype.size_bytes(), bytes, &piece.shape(), &from, out, shape, to.starts())
}
