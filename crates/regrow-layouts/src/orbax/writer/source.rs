//! The bytes of one chunk, extracted from an array with any strides, put in C order, and cast.
//!
//! ```text
//! array in memory, any strides --copy runs--> piece in C order --cast--> piece of the stored dtype
//! ```
//!
//! A chunk is processed in pieces of at most [`PIECE_LEN_BYTES`], so that it needs no buffer of its
//! own size. A chunk that is already in its stored form is not copied.

use std::borrow::Cow;

use regrow_base::bytes::limits::work_space;
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_tree::array::{Array, Casting, Dtype, Region};

/// Bytes of a piece, before and after a cast: small enough to stay in cache between the two.
const PIECE_LEN_BYTES: usize = 256 << 10;

/// A region of an array, as elements of the dtype that is stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChunkSource<'a> {
    pub(super) array: &'a Array,
    pub(super) region: &'a Region,
    pub(super) dtype: Dtype,
    pub(super) casting: Casting,
}

impl<'a> ChunkSource<'a> {
    /// Bytes as stored, before compression.
    pub(super) fn len_bytes(&self) -> u64 {
        self.region.len_elements().saturating_mul(self.dtype.size_bytes() as u64)
    }

    /// The chunk's bytes in the memory of the array; `None` if they have another form than the
    /// stored form.
    fn in_place(&self) -> Option<&'a [u8]> {
        if self.dtype != self.array.dtype() {
            return None;
        }
        let (offset, len) = self.region.contiguous_bytes(self.array.shape(), self.dtype)?;
        self.array.c_order_bytes()?.get(offset as usize..(offset + len) as usize)
    }

    /// All bytes of the chunk in their stored form. Copies them only if the memory of the array has
    /// another form.
    ///
    /// # Errors
    /// `Limit` if there is no memory for the copy; errors of a cast.
    pub(super) fn bytes(&self) -> Result<Cow<'a, [u8]>> {
        if let Some(bytes) = self.in_place() {
            return Ok(Cow::Borrowed(bytes));
        }
        let mut out = Vec::new();
        let no_memory = || Error::new(ErrorKind::Limit, "there is no memory for a chunk");
        let len = usize::try_from(self.len_bytes()).map_err(|_| no_memory())?;
        out.try_reserve_exact(len).map_err(|_| no_memory())?;
        self.for_each_piece(|piece| {
            out.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(Cow::Owned(out))
    }

    /// Passes the chunk to `each` piece by piece, in C order.
    pub(super) fn for_each_piece(&self, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if let Some(bytes) = self.in_place() {
            return bytes.chunks(PIECE_LEN_BYTES).try_for_each(each);
        }
        let from = self.array.dtype();
        let widest = from.size_bytes().max(self.dtype.size_bytes());
        let piece_elements = ((PIECE_LEN_BYTES / widest) as u64).min(self.region.len_elements()) as usize;
        let mut raw = work_space((piece_elements * from.size_bytes()) as u64)?;
        let cast_elements = if from == self.dtype { 0 } else { piece_elements };
        let mut cast = work_space((cast_elements * self.dtype.size_bytes()) as u64)?;
        let mut show = |raw: &[u8]| {
            if from == self.dtype {
                return each(raw);
            }
            let len = raw.len() / from.size_bytes() * self.dtype.size_bytes();
            let cast = cast.get_mut(..len).unwrap_or_default();
            self.casting.cast(raw, from, self.dtype, cast)?;
            each(cast)
        };
        let mut filled = 0;
        self.region.for_each_run(self.array.shape(), from, |offset_bytes, _, run_len| {
            let mut done = 0;
            while done < run_len {
                let room = raw.get_mut(filled..).unwrap_or_default();
                let len = room.len().min(run_len - done);
                let room = room.get_mut(..len).unwrap_or_default();
                self.array.copy_c_order(offset_bytes + done as u64, room)?;
                (filled, done) = (filled + len, done + len);
                if filled == raw.len() {
                    show(&raw)?;
                    filled = 0;
                }
            }
            Ok(())
        })?;
        match raw.get(..filled) {
            Some(rest) if filled > 0 => show(rest),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use regrow_tree::array::{Shape, copy_region};

    proptest! {
        #[test]
        fn cuts_out_what_copy_region_does(
            axes in proptest::collection::vec((1_u64..5, 0_u64..3, 0_u64..3), 0..4),
            fortran: bool,
        ) {
            let dims: Vec<u64> = axes.iter().map(|(len, before, after)| len + before + after).collect();
            let shape = Shape::new(dims.clone()).unwrap();
            let region = Region::new(
                axes.iter().map(|axis| axis.1).collect::<Vec<_>>(),
                axes.iter().map(|axis| axis.0).collect::<Vec<_>>(),
            ).unwrap();
            let data: Vec<u8> = (0..shape.len_elements() as u16).flat_map(u16::to_le_bytes).collect();
            let array = if fortran {
                let mut strides = Vec::new();
                let mut step = 2;
                for &dim in &dims {
                    strides.push(step);
                    step *= dim as i64;
                }
                Array::with_strides(Dtype::UInt16, shape.clone(), strides, 0, data.into()).unwrap()
            } else {
                Array::new(Dtype::UInt16, shape.clone(), data.into()).unwrap()
            };
            let mut expect = vec![0; region.len_elements() as usize * 2];
            let origin = vec![0; shape.rank()];
            copy_region(2, &array.to_c_order().unwrap(), &shape, &region, &mut expect, &region.shape(), &origin).unwrap();
            let source = ChunkSource { array: &array, region: &region, dtype: Dtype::UInt16, casting: Casting::Checked };
            prop_assert_eq!(&source.bytes().unwrap()[..], &expect[..]);
        }
    }

    #[test]
    fn casts_across_pieces() {
        let count = 3 * PIECE_LEN_BYTES as u64 / 8 + 5;
        let shape = Shape::new([count]).unwrap();
        let data: Vec<u8> = (0..count).flat_map(|i| (i as f64).to_le_bytes()).collect();
        let array = Array::new(Dtype::Float64, shape.clone(), data.into()).unwrap();
        let region = Region::whole(&shape);
        let casting = Casting::Checked;
        let source = ChunkSource { array: &array, region: &region, dtype: Dtype::Int32, casting };
        let expect: Vec<u8> = (0..count as i32).flat_map(i32::to_le_bytes).collect();
        assert_eq!(source.len_bytes(), expect.len() as u64);
        assert!(source.bytes().unwrap() == expect);
    }
}
