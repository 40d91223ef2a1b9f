//! Conversion between C order and hyper-rectangles: the runs of consecutive elements of a region,
//! and the boxes of such a run.

use super::{Dtype, Region, Shape};
use crate::error::{Error, Result};

impl Region {
    /// Calls `each(offset, at, len)` for every run of contiguous bytes of this region in a C-order
    /// array of `shape`. `offset` is the position in the array, `at` is the position in the
    /// region's own C order, and `len` is the length.
    ///
    /// # Errors
    /// Errors of `each`; `InvalidArgument` if the region leaves the array.
    pub fn for_each_run(
        &self,
        shape: &Shape,
        dtype: Dtype,
        mut each: impl FnMut(u64, usize, usize) -> Result<()>,
    ) -> Result<()> {
        self.runs(shape, dtype)?.try_for_each(|run| each(run.offset_bytes, run.at, run.len_bytes))
    }

    /// The runs of contiguous bytes of this region in a C-order array of `shape`, in order.
    ///
    /// # Errors
    /// `InvalidArgument` if the region leaves the array.
    pub fn runs(&self, shape: &Shape, dtype: Dtype) -> Result<Runs> {
        if !self.is_inside(shape) {
            return Err(Error::invalid(format!("region {self} is outside an array of shape {shape}")));
        }
        let size = dtype.size_bytes() as u64;
        let strides = shape.strides_elements();
        // Walk from the last axis back: whole axes merge into one run. The first axis that is not
        // whole also joins the run, and ends the walk.
        let mut inner = self.rank();
        let mut run_elements = 1;
        for (&len, &dim) in self.lens().iter().zip(shape.dims()).rev() {
            run_elements *= len;
            inner -= 1;
            if len != dim {
                break;
            }
        }
        let bytes = strides.iter().map(|stride| stride * size);
        let outer: Vec<(u64, u64)> = self.lens().iter().copied().zip(bytes).take(inner).collect();
        let offset: u64 = self.starts().iter().zip(&strides).map(|(start, stride)| start * stride).sum();
        let len_bytes = (run_elements * size) as usize;
        let next = (!self.is_empty()).then_some(Run { offset_bytes: offset * size, at: 0, len_bytes });
        Ok(Runs { index: vec![0; inner], outer, next })
    }
}

/// Contiguous bytes of a region in the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The offset in the array.
    pub offset_bytes: u64,
    /// The offset in the region's own C order.
    pub at: usize,
    /// The number of bytes.
    pub len_bytes: usize,
}

/// The runs of a region.
#[derive(Debug)]
pub struct Runs {
    /// For each axis outside of a run, the current index. The next field has the length of each
    /// axis and its step in bytes.
    index: Vec<u64>,
    outer: Vec<(u64, u64)>,
    next: Option<Run>,
}

impl Iterator for Runs {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let run = self.next?;
        let mut offset_bytes = run.offset_bytes;
        self.next = None;
        for (index, &(len, stride)) in self.index.iter_mut().zip(&self.outer).rev() {
            *index += 1;
            offset_bytes += stride;
            if *index < len {
                self.next = Some(Run { offset_bytes, at: run.at + run.len_bytes, ..run });
                break;
            }
            offset_bytes -= stride * len;
            *index = 0;
        }
        Some(run)
    }
}

/// Calls `each(region, at, count)` for the boxes that together are the `count` elements from
/// `first` on, in C order. There are at most two boxes for each axis and one more. `at` counts from
/// `first`. The elements of each box are contiguous in the array.
///
/// # Errors
/// Errors of `each`; `InvalidArgument` if the range leaves the array.
pub fn for_each_box(
    shape: &Shape,
    first: u64,
    count: u64,
    mut each: impl FnMut(&Region, u64, u64) -> Result<()>,
) -> Result<()> {
    if first.checked_add(count).is_none_or(|end| end > shape.len_elements()) {
        return Err(Error::invalid(format!(
            "{count} elements from {first} on are outside an array of shape {shape}"
        )));
    }
    let strides = shape.strides_elements();
    let mut at = 0;
    while at < count {
        let (from, left) = (first + at, count - at);
        // Take the outermost axis on which a whole step begins here and fits; the innermost always
        // fits.
        let axis = strides
            .iter()
            .position(|&stride| stride > 0 && from % stride == 0 && stride <= left)
            .unwrap_or(shape.rank());
        let (mut starts, mut lens) = (Vec::with_capacity(shape.rank()), Vec::with_capacity(shape.rank()));
        let mut rest = from;
        for (i, (&stride, &dim)) in strides.iter().zip(shape.dims()).enumerate() {
            let start = rest / stride.max(1);
            rest -= start * stride;
            let len = match i.cmp(&axis) {
                std::cmp::Ordering::Less => 1,
                std::cmp::Ordering::Equal => (left / stride).min(dim - start),
                std::cmp::Ordering::Greater => dim,
            };
            starts.push(start);
            lens.push(len);
        }
        let region = Region::new(starts, lens)?;
        let taken = region.len_elements();
        each(&region, at, taken)?;
        at += taken.max(1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_and_boxes_cover_every_element_once(
            axes in proptest::collection::vec((1_u64..5, 0_u64..3, 0_u64..3), 0..4),
            range in (0.0..1.0, 0.0..1.0),
        ) {
            let dims: Vec<u64> = axes.iter().map(|(len, before, after)| len + before + after).collect();
            let shape = Shape::new(dims).unwrap();
            let total = shape.len_elements();
            let (a, b) = ((total as f64 * range.0) as u64, (total as f64 * range.1) as u64);
            let (first, end) = (a.min(b), a.max(b));
            // Divides each box into runs, and checks that together they are the bytes of the range,
            // in order.
            let mut found = Vec::new();
            let mut boxes = 0;
            for_each_box(&shape, first, end - first, |region, at, count| {
                assert_eq!(at, found.len() as u64 / 2);
                assert_eq!(region.len_elements(), count);
                boxes += 1;
                let (offset, len) = region.contiguous_bytes(&shape, Dtype::UInt16).unwrap();
                found.extend(offset..offset + len);
                Ok(())
            }).unwrap();
            prop_assert_eq!(found, (first * 2..end * 2).collect::<Vec<_>>());
            prop_assert!(boxes <= 2 * axes.len() + 1);
            let region = Region::new(
                axes.iter().map(|axis| axis.1).collect::<Vec<_>>(),
                axes.iter().map(|axis| axis.0).collect::<Vec<_>>(),
            ).unwrap();
            let data: Vec<u8> = (0..total as u16).flat_map(u16::to_le_bytes).collect();
            let mut expect = vec![0; region.len_elements() as usize * 2];
            let origin = vec![0; shape.rank()];
            super::super::copy_region(2, &data, &shape, &region, &mut expect, &region.shape(), &origin).unwrap();
            let mut out = Vec::new();
            region.for_each_run(&shape, Dtype::UInt16, |offset, at, len| {
                assert_eq!(at, out.len());
                out.extend_from_slice(&data[offset as usize..offset as usize + len]);
                Ok(())
            }).unwrap();
            prop_assert_eq!(out, expect);
        }
    }

    #[test]
    fn what_leaves_the_array_is_refused() {
        let shape = Shape::new([2, 3]).unwrap();
        assert!(for_each_box(&shape, 4, 3, |_, _, _| Ok(())).is_err());
        let region = Region::new([1, 0], [2, 3]).unwrap();
        assert!(region.for_each_run(&shape, Dtype::Int8, |_, _, _| Ok(())).is_err());
    }
}
