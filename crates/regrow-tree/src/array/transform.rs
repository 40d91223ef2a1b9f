//! Arrays with another dtype, other axes or another shape. A read converts the requested part; the
//! whole array is never copied.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::runs::for_each_box;
use super::{Array, ArraySource, Casting, Dtype, Region, Shape, cast_bytes, cast_checked};
use crate::bytes::limits::work_space;
use crate::error::{Error, Result};
use crate::text::counted;
use crate::tree::KeyPath;

/// Largest number of bytes that a transposed array keeps in memory between reads.
const BAND_LEN_BYTES: u64 = 16 << 20;

const CAST_PIECE_LEN_BYTES: usize = 1 << 20;

impl Array {
    /// This array with another dtype. Each element is cast when it is read, as by
    /// [`cast_checked`](super::cast_checked).
    ///
    /// # Errors
    /// `Limit` if the length in bytes overflows.
    #[inline]
    pub fn cast(&self, to: Dtype) -> Result<Self> {
        self.cast_as(to, Losses::Refused(None))
    }

    /// As `cast`, but the caller decides about values that change by more than rounding.
    pub fn cast_as(&self, to: Dtype, losses: Losses) -> Result<Self> {
        if self.dtype() == to {
            return Ok(self.clone());
        }
        let source = Cast { inner: self.clone(), to, losses };
        Self::deferred(to, self.shape().clone(), Arc::new(source))
    }

    /// This array with another shape, and the elements in the same C order.
    ///
    /// # Errors
    /// `InvalidArgument` if the shape has another number of elements.
    pub fn reshape(&self, shape: Shape) -> Result<Self> {
        if shape.len_elements() != self.shape().len_elements() {
            return Err(Error::invalid("a reshape must keep the number of elements").expected(
                format_args!(
                    "{}, as in {}",
                    counted(self.shape().len_elements(), "element", "elements"),
                    self.shape()
                ),
                format_args!("{} in {shape}", shape.len_elements()),
            ));
        }
        match self.c_order_bytes() {
            Some(bytes) => Self::new(self.dtype(), shape, bytes.clone()),
            None => {
                let source = Reshape { inner: self.clone(), shape: shape.clone() };
                Self::deferred(self.dtype(), shape, Arc::new(source))
            }
        }
    }

    /// This array with its axes in another order: axis `i` of the result is axis `axes[i]` of this
    /// array.
    ///
    /// # Errors
    /// `InvalidArgument` if `axes` does not contain each axis once.
    pub fn transpose(&self, axes: &[usize]) -> Result<Self> {
        let shape = transposed(self.shape(), axes)?;
        let source = Transpose {
            inner: self.clone(),
            axes: axes.to_vec(),
            shape: shape.clone(),
            band: Mutex::default(),
        };
        Self::deferred(self.dtype(), shape, Arc::new(source))
    }
}

/// The shape with its axes in another order.
///
/// # Errors
/// `InvalidArgument` if `axes` does not contain each axis once.
pub fn transposed(shape: &Shape, axes: &[usize]) -> Result<Shape> {
    let dims: Vec<u64> = axes.iter().filter_map(|&axis| shape.dims().get(axis).copied()).collect();
    let mut sorted = axes.to_vec();
    sorted.sort_unstable();
    if dims.len() != shape.rank() || !sorted.iter().copied().eq(0..shape.rank()) {
        return Err(Error::invalid("a transpose must name each axis once").expected(
            format_args!("an order of the {} axes of {shape}", shape.rank()),
            format_args!("{axes:?}"),
        ));
    }
    Shape::new(dims)
}

/// How a cast treats values that change by more than rounding.
#[derive(Debug, Clone)]
pub enum Losses {
    /// Such values are errors, with this key path, when they are read.
    Refused(Option<KeyPath>),
    /// Such values change, and the cast sets this flag.
    Noted(Arc<AtomicBool>),
}

impl Losses {
    /// The choice for a leaf.
    pub fn of(casting: Casting, path: &KeyPath) -> Self {
        match casting {
            Casting::Checked => Self::Refused(Some(path.clone())),
            Casting::Lossy | Casting::AsNumpy => Self::Noted(Arc::default()),
        }
    }
}

#[derive(Debug)]
struct Cast {
    inner: Array,
    to: Dtype,
    losses: Losses,
}

impl Cast {
    fn cast(&self, src: &[u8], out: &mut [u8]) -> Result<()> {
        match &self.losses {
            Losses::Refused(leaf) => {
                cast_checked(src, self.inner.dtype(), self.to, out).map_err(|error| match leaf {
                    Some(leaf) => error.at_leaf(leaf),
                    None => error,
                })
            }
            Losses::Noted(is_lossy) => {
                if !cast_bytes(src, self.inner.dtype(), self.to, out)? {
                    is_lossy.store(true, Ordering::Relaxed);
                }
                Ok(())
            }
        }
    }

    fn read_elements(&self, first: u64, out: &mut [u8]) -> Result<()> {
        let (from_size, to_size) = (self.inner.dtype().size_bytes(), self.to.size_bytes());
        let step = (CAST_PIECE_LEN_BYTES / from_size.max(to_size)).max(1);
        let mut room = work_space((step.min(out.len() / to_size) * from_size) as u64)?;
        let mut at = first;
        for piece in out.chunks_mut(step * to_size) {
            let count = piece.len() / to_size;
            let raw = room.get_mut(..count * from_size).unwrap_or_default();
            self.inner.copy_c_order(at * from_size as u64, raw)?;
            self.cast(raw, piece)?;
            at += count as u64;
        }
        Ok(())
    }
}

impl ArraySource for Cast {
    fn read_c_order(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        let size = self.to.size_bytes() as u64;
        if offset_bytes.is_multiple_of(size) && (out.len() as u64).is_multiple_of(size) {
            return self.read_elements(offset_bytes / size, out);
        }
        // A piece that begins or ends inside an element is rare and short, so a copy is cheap.
        let first = offset_bytes / size;
        let end = (offset_bytes + out.len() as u64).div_ceil(size);
        let mut whole = work_space((end - first) * size)?;
        self.read_elements(first, &mut whole)?;
        let skip = (offset_bytes - first * size) as usize;
        out.copy_from_slice(whole.get(skip..skip + out.len()).unwrap_or_default());
        Ok(())
    }

    fn read_region(&self, region: &Region, out: &mut [u8]) -> Result<()> {
        let mut raw = work_space(region.shape().len_bytes(self.inner.dtype())?)?;
        self.inner.copy_region_c_order(region, &mut raw)?;
        self.cast(&raw, out)
    }

    fn kept_len_bytes(&self) -> u64 {
        self.inner.kept_len_bytes()
    }

    fn release(&self) {
        self.inner.release();
    }
}

#[derive(Debug)]
struct Reshape {
    inner: Array,
    shape: Shape,
}

impl ArraySource for Reshape {
    fn read_c_order(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        self.inner.copy_c_order(offset_bytes, out)
    }

    fn read_region(&self, region: &Region, out: &mut [u8]) -> Result<()> {
        region.for_each_run(&self.shape, self.inner.dtype(), |offset_bytes, at, len| {
            let end = at.saturating_add(len);
            self.inner.copy_c_order(offset_bytes, out.get_mut(at..end).unwrap_or_default())
        })
    }

    fn kept_len_bytes(&self) -> u64 {
        self.inner.kept_len_bytes()
    }

    fn release(&self) {
        self.inner.release();
    }
}

#[derive(Debug)]
struct Transpose {
    inner: Array,
    axes: Vec<usize>,
    shape: Shape,
    /// The offset of the kept rows, and their bytes. Without kept rows, reading row by row would
    /// read the source again for each row.
    band: Mutex<(u64, Vec<u8>)>,
}

impl ArraySource for Transpose {
    fn read_c_order(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        let len_bytes = self.shape.len_bytes(self.inner.dtype())?;
        let size = self.inner.dtype().size_bytes() as u64;
        let band_len = BAND_LEN_BYTES / size * size;
        let mut band = self.band.lock().unwrap_or_else(PoisonError::into_inner);
        let mut offset = offset_bytes;
        let mut rest = out;
        while !rest.is_empty() {
            if offset < band.0 || offset >= band.0 + band.1.len() as u64 {
                let start = offset / band_len * band_len;
                let len = band_len.min(len_bytes - start);
                let mut bytes = work_space(len)?;
                for_each_box(&self.shape, start / size, len / size, |region, at, count| {
                    let (from, to) = ((at * size) as usize, ((at + count) * size) as usize);
                    self.read_region(region, bytes.get_mut(from..to).unwrap_or_default())
                })?;
                *band = (start, bytes);
            }
            let kept = band.1.get((offset - band.0) as usize..).unwrap_or_default();
            let len = kept.len().min(rest.len());
            let (now, later) = rest.split_at_mut(len);
            now.copy_from_slice(kept.get(..len).unwrap_or_default());
            offset += len as u64;
            rest = later;
        }
        if offset == len_bytes {
            *band = (0, Vec::new());
        }
        Ok(())
    }

    fn read_region(&self, region: &Region, out: &mut [u8]) -> Result<()> {
        let rank = self.axes.len();
        let (mut starts, mut lens) = (vec![0; rank], vec![0; rank]);
        for ((&axis, &start), &len) in self.axes.iter().zip(region.starts()).zip(region.lens()) {
            if let (Some(to_start), Some(to_len)) = (starts.get_mut(axis), lens.get_mut(axis)) {
                (*to_start, *to_len) = (start, len);
            }
        }
        let inner = Region::new(starts, lens)?;
        let dtype = self.inner.dtype();
        let mut raw = work_space(inner.shape().len_bytes(dtype)?)?;
        self.inner.copy_region_c_order(&inner, &mut raw)?;
        let inner_strides = inner.shape().strides_elements();
        let strides = self.axes.iter().filter_map(|&axis| inner_strides.get(axis));
        let strides = strides.map(|&stride| stride as i64 * dtype.size_bytes() as i64).collect();
        Self::part(dtype, region.shape(), strides, raw)?.copy_c_order(0, out)
    }

    fn kept_len_bytes(&self) -> u64 {
        BAND_LEN_BYTES.saturating_add(self.inner.kept_len_bytes())
    }

    fn release(&self) {
        *self.band.lock().unwrap_or_else(PoisonError::into_inner) = (0, Vec::new());
        self.inner.release();
    }
}

impl Transpose {
    fn part(dtype: Dtype, shape: Shape, strides: Vec<i64>, raw: Vec<u8>) -> Result<Array> {
        Array::with_strides(dtype, shape, strides, 0, raw.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Hides that an array is in memory, so that tests use every code path.
    #[derive(Debug)]
    struct Hidden(Array);

    impl ArraySource for Hidden {
        fn read_c_order(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
            self.0.copy_c_order(offset_bytes, out)
        }

        fn read_region(&self, region: &Region, out: &mut [u8]) -> Result<()> {
            self.0.copy_region_c_order(region, out)
        }
    }

    fn counted(dims: &[u64]) -> (Array, Array) {
        let shape = Shape::new(dims).unwrap();
        let data: Vec<u8> = (0..shape.len_elements() as u16).flat_map(u16::to_le_bytes).collect();
        let array = Array::new(Dtype::UInt16, shape.clone(), data.into()).unwrap();
        let hidden = Array::deferred(Dtype::UInt16, shape, Arc::new(Hidden(array.clone()))).unwrap();
        (array, hidden)
    }

    proptest! {
        #[test]
        fn a_transpose_moves_every_element(
            dims in proptest::collection::vec(1_u64..5, 0..4),
            seed: u64,
            split in 0.0..1.0,
        ) {
            let (array, hidden) = counted(&dims);
            let mut axes: Vec<usize> = (0..dims.len()).collect();
            if !axes.is_empty() {
                let by = seed as usize % axes.len();
                axes.rotate_left(by);
            }
            let found = hidden.transpose(&axes).unwrap();
            let strides = array.shape().strides_elements();
            let expect = Array::with_strides(
                Dtype::UInt16,
                found.shape().clone(),
                axes.iter().map(|&axis| strides[axis] as i64 * 2).collect(),
                0,
                array.to_c_order().unwrap(),
            ).unwrap().to_c_order().unwrap();
            prop_assert_eq!(&found.to_c_order().unwrap(), &expect);
            let at = (expect.len() as f64 * split) as usize;
            let (mut a, mut b) = (vec![0; at], vec![0; expect.len() - at]);
            found.copy_c_order(at as u64, &mut b).unwrap();
            found.copy_c_order(0, &mut a).unwrap();
            prop_assert_eq!([a, b].concat(), &expect[..]);
        }

        #[test]
        fn a_reshape_keeps_c_order(split in 0_usize..48) {
            let (array, hidden) = counted(&[2, 3, 4]);
            let flat = hidden.reshape(Shape::new([4, 6]).unwrap()).unwrap();
            let bytes = array.to_c_order().unwrap();
            let mut tail = vec![0; 48 - split];
            flat.copy_c_order(split as u64, &mut tail).unwrap();
            prop_assert_eq!(&tail[..], &bytes[split..]);
            let region = Region::new([1, 2], [2, 3]).unwrap();
            let mut part = vec![0; 12];
            flat.copy_region_c_order(&region, &mut part).unwrap();
            let expect: Vec<u8> = [8_u16, 9, 10, 14, 15, 16].into_iter().flat_map(u16::to_le_bytes).collect();
            prop_assert_eq!(part, expect);
        }

        #[test]
        fn a_cast_may_begin_inside_an_element(start in 0_usize..96, end in 0_usize..96) {
            let (start, end) = (start.min(end), start.max(end));
            let (_, hidden) = counted(&[2, 3, 4]);
            let cast = hidden.cast(Dtype::Float32).unwrap();
            let expect: Vec<u8> = (0..24).flat_map(|i| (i as f32).to_le_bytes()).collect();
            let mut part = vec![0; end - start];
            cast.copy_c_order(start as u64, &mut part).unwrap();
            prop_assert_eq!(&part[..], &expect[start..end]);
        }
    }

    #[test]
    fn a_cast_of_a_region_and_bad_axes() {
        let (array, hidden) = counted(&[3, 4]);
        let mut out = vec![0; 8];
        hidden
            .cast(Dtype::UInt8)
            .unwrap()
            .copy_region_c_order(&Region::new([1, 0], [2, 4]).unwrap(), &mut out)
            .unwrap();
        assert_eq!(out, [4, 5, 6, 7, 8, 9, 10, 11]);
        for axes in [&[0][..], &[0, 0], &[0, 2], &[0, 1, 2]] {
            assert!(array.transpose(axes).unwrap_err().to_string().contains("each axis once"), "{axes:?}");
        }
        let error = array.reshape(Shape::new([5]).unwrap()).unwrap_err().to_string();
        assert!(error.contains("12 elements") && error.contains("5 in"), "{error}");
    }
}
