//! An array, in memory or deferred, and copies of hyper-rectangles between arrays.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;

use super::{Dtype, Region, Shape, Shards};
use crate::bytes::limits::{allocate, work_space};
use crate::error::{Error, Result};

/// The source of the elements of a [deferred](Array::deferred) array.
pub trait ArraySource: Debug + Send + Sync {
    /// Reads the C-order bytes from `offset_bytes` on, little endian. The range may begin and end
    /// inside an element. A reader of a whole array reads in order, so a source may keep the last
    /// part that it has decoded.
    ///
    /// # Errors
    /// Errors of the read: `Corrupt`, `Io`.
    fn read_c_order(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()>;

    /// Reads a hyper-rectangle, in C order.
    ///
    /// # Errors
    /// The same as for [`read_c_order`](Self::read_c_order).
    fn read_region(&self, region: &Region, out: &mut [u8]) -> Result<()>;

    /// Length of the memory that the source may keep between reads. Each of several sources that
    /// are read at the same time needs this memory. Two readers of one source would replace each
    /// other's kept data. 0 if reads at any offset are cheap.
    fn kept_len_bytes(&self) -> u64 {
        0
    }

    /// Frees the kept memory, because the next read does not continue here.
    fn release(&self) {}

    /// The shards of the array; `None` if it is not divided into shards.
    fn shards(&self) -> Option<&Shards> {
        None
    }
}

/// An array: dtype, shape, and shared little-endian bytes or a source of them.
///
/// The bytes are in C order unless [`with_strides`](Self::with_strides) has made the array. A
/// strided array (Fortran order, a slice) is saved from its memory without a copy. An array of
/// [`deferred`](Self::deferred) is not in memory: it is read in pieces while it is written, as in
/// `convert`.
#[derive(Debug, Clone)]
pub struct Array {
    dtype: Dtype,
    shape: Shape,
    /// The bytes between neighbours on each axis, and the offset of the first element in `data`;
    /// `None` for C order.
    strides: Option<(Vec<i64>, usize)>,
    data: Bytes,
    source: Option<Arc<dyn ArraySource>>,
}

impl Array {
    /// A C-order array.
    ///
    /// # Errors
    /// `InvalidArgument` if `data` does not have exactly the length for dtype and shape.
    pub fn new(dtype: Dtype, shape: Shape, data: Bytes) -> Result<Self> {
        let len = shape.len_bytes(dtype)?;
        if data.len() as u64 != len {
            return Err(Error::invalid(format!(
                "the size of an array does not fit its shape {shape} and dtype {dtype}"
            ))
            .expected(format_args!("{len} bytes"), data.len()));
        }
        Ok(Self { dtype, shape, strides: None, data, source: None })
    }

    /// Makes a C-order array without a check: `data` must have the right length.
    pub fn from_parts(dtype: Dtype, shape: Shape, data: Bytes) -> Self {
        debug_assert_eq!(shape.len_bytes(dtype).ok(), Some(data.len() as u64));
        Self { dtype, shape, strides: None, data, source: None }
    }

    /// An array with `strides_bytes[i]` bytes between neighbours on axis `i`. The first element is
    /// at `first_byte`.
    ///
    /// # Errors
    /// `InvalidArgument` if an element would lie outside `data`.
    pub fn with_strides(
        dtype: Dtype,
        shape: Shape,
        strides_bytes: Vec<i64>,
        first_byte: usize,
        data: Bytes,
    ) -> Result<Self> {
        let bad = || {
            Error::invalid(format!(
                "strides {strides_bytes:?} go outside the memory of an array of shape \
                {shape}"
            ))
        };
        if strides_bytes.len() != shape.rank() {
            return Err(bad());
        }
        if !shape.is_empty() {
            let (mut low, mut high) = (first_byte as i128, first_byte as i128 + dtype.size_bytes() as i128);
            for (&stride, &dim) in strides_bytes.iter().zip(shape.dims()) {
                let reach = i128::from(stride) * (i128::from(dim) - 1);
                if reach < 0 { low += reach } else { high += reach }
            }
            if low < 0 || high > data.len() as i128 {
                return Err(bad());
            }
        }
        let c_order = {
            let mut expect = dtype.size_bytes() as i64;
            let mut all = true;
            for (&stride, &dim) in strides_bytes.iter().zip(shape.dims()).rev() {
                all &= dim <= 1 || stride == expect;
                expect = expect.saturating_mul(dim.max(1) as i64);
            }
            all
        };
        if c_order {
            let len = shape.len_bytes(dtype)? as usize;
            let data = if len == 0 { Bytes::new() } else { data.slice(first_byte..first_byte + len) };
            return Self::new(dtype, shape, data);
        }
        Ok(Self { dtype, shape, strides: Some((strides_bytes, first_byte)), data, source: None })
    }

    /// The same elements with the axes in reverse order, without a copy; `None` for a deferred
    /// array.
    pub fn transposed(&self) -> Option<Self> {
        if self.source.is_some() {
            return None;
        }
        let (mut strides, first_byte) = self.strides.clone().unwrap_or_else(|| {
            let size = self.dtype.size_bytes() as u64;
            let strides = self.shape.strides_elements();
            (strides.into_iter().map(|stride| (stride * size) as i64).collect(), 0)
        });
        let mut dims = self.shape.dims().to_vec();
        strides.reverse();
        dims.reverse();
        Self::with_strides(self.dtype, Shape::new(dims).ok()?, strides, first_byte, self.data.clone()).ok()
    }

    /// An array whose elements are read in pieces when they are needed.
    ///
    /// # Errors
    /// `Limit` if the length in bytes overflows.
    pub fn deferred(dtype: Dtype, shape: Shape, source: Arc<dyn ArraySource>) -> Result<Self> {
        shape.len_bytes(dtype)?;
        Ok(Self { dtype, shape, strides: None, data: Bytes::new(), source: Some(source) })
    }

    /// The type of the elements.
    #[inline]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The shape.
    #[inline]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The length of the array in bytes.
    #[inline]
    pub fn len_bytes(&self) -> u64 {
        self.shape.len_elements() * self.dtype.size_bytes() as u64
    }

    /// The bytes, if they are in memory in C order; otherwise `None`. Does not copy.
    #[inline]
    pub fn c_order_bytes(&self) -> Option<&Bytes> {
        (self.strides.is_none() && self.source.is_none()).then_some(&self.data)
    }

    /// The bytes in C order. Copies them if they are in another order.
    ///
    /// # Errors
    /// `Limit` if there is no memory for the copy; for a deferred array, errors of the read.
    pub fn to_c_order(&self) -> Result<Bytes> {
        if let Some(bytes) = self.c_order_bytes() {
            return Ok(bytes.clone());
        }
        let mut out = allocate(self.len_bytes())?;
        self.copy_c_order(0, &mut out)?;
        Ok(out.into())
    }

    /// The shards of the array; `None` if it is not divided into shards.
    #[inline]
    pub fn shards(&self) -> Option<&Shards> {
        self.source.as_ref().and_then(|source| source.shards())
    }

    /// The length of the memory that a deferred array [keeps](ArraySource::kept_len_bytes) between
    /// reads; 0 for an array in memory.
    #[inline]
    pub fn kept_len_bytes(&self) -> u64 {
        self.source.as_ref().map_or(0, |source| source.kept_len_bytes())
    }

    /// Frees the memory that a deferred array keeps, if it was not read to its end.
    pub fn release(&self) {
        if let Some(source) = &self.source {
            source.release();
        }
    }

    /// Passes the C-order bytes to `each`, in order, in pieces of whole elements of at most
    /// `piece_len_bytes`. C-order bytes in memory are not copied. Others go through one buffer.
    ///
    /// # Errors
    /// Errors of `each`; for a deferred array, errors of the read.
    pub fn for_each_piece(
        &self,
        piece_len_bytes: usize,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let size = self.dtype.size_bytes();
        let piece_len = (piece_len_bytes / size).max(1) * size;
        if let Some(bytes) = self.c_order_bytes() {
            return bytes.chunks(piece_len).try_for_each(each);
        }
        let len = self.len_bytes();
        let mut buffer = work_space(len.min(piece_len as u64))?;
        let mut offset = 0;
        while offset < len {
            let now = (len - offset).min(piece_len as u64);
            let piece = buffer.get_mut(..now as usize).unwrap_or_default();
            self.copy_c_order(offset, piece)?;
            each(piece)?;
            offset += now;
        }
        Ok(())
    }

    /// Copies the C-order bytes from `offset_bytes` on into `out`. So an array can be written
    /// through a small buffer. The range may begin and end inside an element.
    ///
    /// # Errors
    /// `InvalidArgument` if the range exceeds [`len_bytes`](Self::len_bytes); for a deferred array,
    /// errors of the read.
    #[expect(
        clippy::indexing_slicing,
        reason = "with_strides has checked that every element lies inside the data"
    )]
    pub fn copy_c_order(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        if offset_bytes.checked_add(out.len() as u64).is_none_or(|end| end > self.len_bytes()) {
            return Err(Error::invalid("a piece reaches beyond its array")
                .expected(format_args!("at most {} bytes", self.len_bytes()), offset_bytes));
        }
        if let Some(source) = &self.source {
            return source.read_c_order(offset_bytes, out);
        }
        let Some((strides, first_byte)) = &self.strides else {
            let offset = offset_bytes as usize;
            out.copy_from_slice(&self.data[offset..offset + out.len()]);
            return Ok(());
        };
        if out.is_empty() {
            return Ok(());
        }
        let size = self.dtype.size_bytes() as u64;
        let dims = self.shape.dims();
        let mut element = offset_bytes / size;
        let mut skip = (offset_bytes % size) as usize;
        // The index starts at the first element and counts up like an odometer.
        let mut index = vec![0_u64; dims.len()];
        for axis in (0..dims.len()).rev() {
            index[axis] = element % dims[axis];
            element /= dims[axis];
        }
        let mut at = *first_byte as i64;
        for (&i, &stride) in index.iter().zip(strides) {
            at += i as i64 * stride;
        }
        let mut written = 0;
        while written < out.len() {
            let part = &self.data[at as usize + skip..at as usize + size as usize];
            let len = part.len().min(out.len() - written);
            out[written..written + len].copy_from_slice(&part[..len]);
            written += len;
            skip = 0;
            for axis in (0..dims.len()).rev() {
                index[axis] += 1;
                at += strides[axis];
                if index[axis] < dims[axis] {
                    break;
                }
                at -= strides[axis] * dims[axis] as i64;
                index[axis] = 0;
            }
        }
        Ok(())
    }

    /// Copies a hyper-rectangle into `out`, in C order, for any strides.
    ///
    /// # Errors
    /// `InvalidArgument` if the region leaves the array or `out` has another size.
    pub fn copy_region_c_order(&self, region: &Region, out: &mut [u8]) -> Result<()> {
        let target = region.shape();
        if let Some(source) = &self.source {
            let fits = region.is_inside(&self.shape) && target.len_bytes(self.dtype)? == out.len() as u64;
            return match fits {
                true => source.read_region(region, out),
                false => {
                    Err(Error::invalid(format!("{region} of an array of shape {} is asked for", self.shape))
                        .expected(format_args!("{} bytes", out.len()), &target))
                }
            };
        }
        let Some((strides, first_byte)) = &self.strides else {
            let origin = vec![0; region.rank()];
            let size = self.dtype.size_bytes();
            return copy_region(size, &self.data, &self.shape, region, out, &target, &origin);
        };
        if !region.is_inside(&self.shape) {
            return Err(Error::invalid(format!(
                "region {region} is outside an array of shape {}",
                self.shape
            )));
        }
        if target.len_bytes(self.dtype)? != out.len() as u64 {
            return Err(Error::invalid("the destination and the region differ in size"));
        }
        // The region is a strided array over the same bytes.
        let moved: i64 =
            region.starts().iter().zip(strides).map(|(&start, &stride)| start as i64 * stride).sum();
        let first = if region.is_empty() { 0 } else { *first_byte as i64 + moved };
        let part =
            Self::with_strides(self.dtype, target, strides.clone(), first as usize, self.data.clone())?;
        part.copy_c_order(0, out)
    }
}

/// Copies the hyper-rectangle `from` of a C-order array to the position `to_start` in another
/// C-order array, run by run.
///
/// `src` and `dst` contain arrays of `src_shape` and `dst_shape` with elements of `size_bytes`.
///
/// # Errors
/// `InvalidArgument` if shapes, regions and slices do not match.
#[expect(clippy::indexing_slicing, reason = "the checks at the door bound every index")]
pub fn copy_region(
    size_bytes: usize,
    src: &[u8],
    src_shape: &Shape,
    from: &Region,
    dst: &mut [u8],
    dst_shape: &Shape,
    to_start: &[u64],
) -> Result<()> {
    let to = Region::new(to_start, from.lens())?;
    let fits = |bytes: usize, shape: &Shape, region: &Region| {
        region.is_inside(shape) && shape.len_elements().checked_mul(size_bytes as u64) == Some(bytes as u64)
    };
    if !fits(src.len(), src_shape, from) || !fits(dst.len(), dst_shape, &to) {
        return Err(Error::invalid(format!(
            "cannot copy {from} of an array of shape {src_shape} to {to} of one of shape {dst_shape}"
        )));
    }
    if from.is_empty() {
        return Ok(());
    }
    let rank = from.rank();
    // Last axes that are whole on both sides merge into one run.
    let mut inner = rank;
    let mut run = size_bytes;
    while inner > 0 {
        let axis = inner - 1;
        run *= from.lens()[axis] as usize;
        inner = axis;
        if from.lens()[axis] != src_shape.dims()[axis] || from.lens()[axis] != dst_shape.dims()[axis] {
            break;
        }
    }
    let strides = |shape: &Shape| -> Vec<usize> {
        shape.strides_elements().into_iter().map(|stride| stride as usize * size_bytes).collect()
    };
    let (src_strides, dst_strides) = (strides(src_shape), strides(dst_shape));
    let start = |starts: &[u64], strides: &[usize]| -> usize {
        starts.iter().zip(strides).map(|(&start, &stride)| start as usize * stride).sum()
    };
    let mut src_at = start(from.starts(), &src_strides);
    let mut dst_at = start(to.starts(), &dst_strides);
    let mut index = vec![0_u64; inner];
    loop {
        dst[dst_at..dst_at + run].copy_from_slice(&src[src_at..src_at + run]);
        let mut axis = inner;
        loop {
            if axis == 0 {
                return Ok(());
            }
            axis -= 1;
            index[axis] += 1;
            src_at += src_strides[axis];
            dst_at += dst_strides[axis];
            if index[axis] < from.lens()[axis] {
                break;
            }
            src_at -= src_strides[axis] * from.lens()[axis] as usize;
            dst_at -= dst_strides[axis] * from.lens()[axis] as usize;
            index[axis] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shape(dims: &[u64]) -> Shape {
        Shape::new(dims).unwrap()
    }

    #[test]
    fn fortran_order_comes_out_in_c_order() {
        let data = Bytes::from((0..6_u16).flat_map(u16::to_le_bytes).collect::<Vec<u8>>());
        let array = Array::with_strides(Dtype::UInt16, shape(&[2, 3]), vec![2, 4], 0, data).unwrap();
        assert_eq!(&array.to_c_order().unwrap()[..], &[0, 0, 2, 0, 4, 0, 1, 0, 3, 0, 5, 0]);
        for split in 0..=12 {
            let (mut a, mut b) = (vec![0; split], vec![0; 12 - split]);
            array.copy_c_order(0, &mut a).unwrap();
            array.copy_c_order(split as u64, &mut b).unwrap();
            assert_eq!([a, b].concat(), &array.to_c_order().unwrap()[..]);
        }
    }

    #[test]
    fn regions_of_strided_arrays_come_out_in_c_order() {
        let data = Bytes::from((0..12_u8).collect::<Vec<u8>>());
        // Shape [3,4] in Fortran order: element (i,j) is i + 3j.
        let array = Array::with_strides(Dtype::UInt8, shape(&[3, 4]), vec![1, 3], 0, data).unwrap();
        let region = Region::new(vec![1, 2], vec![2, 2]).unwrap();
        let mut out = [0; 4];
        array.copy_region_c_order(&region, &mut out).unwrap();
        assert_eq!(out, [7, 10, 8, 11]);
        assert!(array.copy_region_c_order(&region, &mut [0; 3]).is_err());
        assert!(
            array.copy_region_c_order(&Region::new(vec![2, 2], vec![2, 2]).unwrap(), &mut [0; 4]).is_err()
        );
    }

    #[test]
    fn strides_may_not_leave_the_data() {
        let data = Bytes::from(vec![0; 8]);
        let make = |strides: Vec<i64>, first| {
            Array::with_strides(Dtype::UInt8, shape(&[2, 4]), strides, first, data.clone())
        };
        assert!(make(vec![4, 1], 0).unwrap().c_order_bytes().is_some());
        assert!(make(vec![4, 1], 1).is_err());
        assert!(make(vec![-4, 1], 0).is_err());
        assert!(make(vec![-4, 1], 4).is_ok());
    }

    proptest! {
        #[test]
        fn copies_exactly_the_region(
            dims in proptest::collection::vec((1_u64..5, 0_u64..4, 0_u64..4), 0..4),
            seed: u8,
        ) {
            // For each axis: the length of the region, and the number of elements before it in
            // source and target.
            let lens: Vec<u64> = dims.iter().map(|d| d.0).collect();
            let (from, to): (Vec<u64>, Vec<u64>) = (dims.iter().map(|d| d.1).collect(), dims.iter().map(|d| d.2).collect());
            let src_shape = shape(&dims.iter().map(|d| d.0 + d.1).collect::<Vec<_>>());
            let dst_shape = shape(&dims.iter().map(|d| d.0 + d.2).collect::<Vec<_>>());
            let src: Vec<u8> = (0..src_shape.len_elements()).map(|i| (i as u8).wrapping_add(seed)).collect();
            let mut dst = vec![0xee; dst_shape.len_elements() as usize];
            let region = Region::new(from.clone(), lens.clone()).unwrap();
            copy_region(1, &src, &src_shape, &region, &mut dst, &dst_shape, &to).unwrap();
            let (src_strides, dst_strides) = (src_shape.strides_elements(), dst_shape.strides_elements());
            for (i, &byte) in dst.iter().enumerate() {
                let mut rest = i as u64;
                let point: Vec<u64> = dst_strides.iter().map(|s| { let x = rest / s; rest %= s; x }).collect();
                let inside = point.iter().zip(&to).all(|(p, t)| p >= t);
                let expect = if inside {
                    let at: u64 = (0..point.len()).map(|a| (point[a] - to[a] + from[a]) * src_strides[a]).sum();
                    src[at as usize]
                } else { 0xee };
                prop_assert_eq!(byte, expect);
            }
        }
    }
}
