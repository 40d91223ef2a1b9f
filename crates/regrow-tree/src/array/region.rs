//! Shapes, and hyper-rectangles inside them.

use std::fmt;
use std::sync::Arc;

use super::Dtype;
use crate::bytes::limits::RANK_MAX;
use crate::error::{Error, ErrorKind, Result};

/// The lengths of an array's axes; `[]` for a scalar.
///
/// A shape has at most [`RANK_MAX`] axes, and the number of elements fits in 63 bits. Clones share
/// memory, because the leaves of a tree usually have only a few different shapes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, serde::Deserialize)]
#[serde(try_from = "Vec<u64>")]
pub struct Shape(Arc<[u64]>);

impl TryFrom<Vec<u64>> for Shape {
    type Error = Error;

    fn try_from(dims: Vec<u64>) -> Result<Self> {
        Self::new(dims)
    }
}

impl Shape {
    /// Makes a shape from the lengths of the axes.
    ///
    /// # Errors
    /// `Limit` beyond [`RANK_MAX`] axes or 2^63 elements.
    pub fn new(dims: impl Into<Vec<u64>>) -> Result<Self> {
        let dims = dims.into();
        // Strides are products of some of the dimensions, so an axis of length 0 must not hide an
        // overflow of the other axes.
        let product = dims.iter().try_fold(1_u64, |n, &dim| n.checked_mul(dim.max(1)));
        if dims.len() > RANK_MAX || product.is_none_or(|n| n > i64::MAX as u64) {
            return Err(Error::new(
                ErrorKind::Limit,
                format!("shape {dims:?} has more than {RANK_MAX} axes or 2^63 elements"),
            ));
        }
        Ok(Self(dims.into()))
    }

    /// The shape of a scalar: no axes, one element.
    #[inline]
    pub fn scalar() -> Self {
        Self::default()
    }

    /// The lengths of the axes.
    #[inline]
    pub fn dims(&self) -> &[u64] {
        &self.0
    }

    /// Number of axes.
    #[inline]
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Number of elements.
    #[inline]
    pub fn len_elements(&self) -> u64 {
        self.0.iter().product()
    }

    /// Whether an axis has length 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.contains(&0)
    }

    /// The length in bytes of an array of this shape.
    ///
    /// # Errors
    /// `Limit` if the length does not fit in 63 bits.
    pub fn len_bytes(&self, dtype: Dtype) -> Result<u64> {
        let len =
            self.len_elements().checked_mul(dtype.size_bytes() as u64).filter(|&n| n <= i64::MAX as u64);
        len.ok_or_else(|| {
            Error::new(
                ErrorKind::Limit,
                format!("an array of shape {self} and dtype {dtype} passes 2^63 bytes"),
            )
        })
    }

    /// Strides in C order, in elements.
    pub fn strides_elements(&self) -> Vec<u64> {
        let mut strides = vec![1; self.0.len()];
        let mut step = 1_u64;
        for (stride, &dim) in strides.iter_mut().zip(&*self.0).rev() {
            *stride = step;
            step = step.saturating_mul(dim.max(1));
        }
        strides
    }
}

impl From<Shape> for Vec<u64> {
    fn from(shape: Shape) -> Self {
        shape.0.to_vec()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, dim) in self.0.iter().enumerate() {
            write!(f, "{}{dim}", if i > 0 { "," } else { "" })?;
        }
        f.write_str("]")
    }
}

/// A hyper-rectangle: for each axis a start and a length, in elements.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Region {
    starts: Vec<u64>,
    lens: Vec<u64>,
}

impl Region {
    /// Makes a region from one start and one length for each axis.
    ///
    /// # Errors
    /// `InvalidArgument` if there are more starts than lengths or the opposite, or if an end
    /// overflows; `Limit` as in `Shape::new`.
    pub fn new(starts: impl Into<Vec<u64>>, lens: impl Into<Vec<u64>>) -> Result<Self> {
        let (starts, lens) = (starts.into(), lens.into());
        let overflows = starts.iter().zip(&lens).any(|(&start, &len)| start.checked_add(len).is_none());
        if starts.len() != lens.len() || overflows {
            return Err(Error::invalid(format!("starts {starts:?} and lengths {lens:?} are not a region")));
        }
        Shape::new(lens.clone())?;
        Ok(Self { starts, lens })
    }

    /// Makes a region without checks, from valid parts.
    pub fn from_parts(starts: Vec<u64>, lens: Vec<u64>) -> Self {
        debug_assert_eq!(starts.len(), lens.len());
        Self { starts, lens }
    }

    /// The region of a whole array.
    #[inline]
    pub fn whole(shape: &Shape) -> Self {
        Self { starts: vec![0; shape.rank()], lens: shape.dims().to_vec() }
    }

    /// The first index on each axis.
    #[inline]
    pub fn starts(&self) -> &[u64] {
        &self.starts
    }

    /// The number of elements on each axis.
    #[inline]
    pub fn lens(&self) -> &[u64] {
        &self.lens
    }

    /// Number of axes.
    #[inline]
    pub fn rank(&self) -> usize {
        self.lens.len()
    }

    /// The shape of the region.
    #[inline]
    pub fn shape(&self) -> Shape {
        Shape(self.lens.as_slice().into())
    }

    /// Number of elements.
    #[inline]
    pub fn len_elements(&self) -> u64 {
        self.lens.iter().product()
    }

    /// Whether the region has no elements.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.lens.contains(&0)
    }

    /// Whether the region lies inside an array of `shape`.
    pub fn is_inside(&self, shape: &Shape) -> bool {
        self.rank() == shape.rank()
            && self
                .starts
                .iter()
                .zip(&self.lens)
                .zip(shape.dims())
                .all(|((start, len), &dim)| start + len <= dim)
    }

    /// The common part of two regions; `None` if they do not overlap or have different ranks.
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        if self.rank() != other.rank() {
            return None;
        }
        let mut starts = Vec::with_capacity(self.rank());
        let mut lens = Vec::with_capacity(self.rank());
        for axis in self.axes().zip(other.axes()) {
            let ((a_start, a_len), (b_start, b_len)) = axis;
            let start = a_start.max(b_start);
            let end = (a_start + a_len).min(b_start + b_len);
            if end <= start {
                return None;
            }
            starts.push(start);
            lens.push(end - start);
        }
        Some(Self { starts, lens })
    }

    /// The same region relative to `origin`, which must not lie after the start of the region on
    /// any axis.
    ///
    /// # Errors
    /// `InvalidArgument` if `origin` lies after the start, or has fewer axes than the region.
    pub fn relative_to(&self, origin: &[u64]) -> Result<Self> {
        let starts: Option<Vec<u64>> =
            self.starts.iter().zip(origin).map(|(start, from)| start.checked_sub(*from)).collect();
        match starts {
            Some(starts) if starts.len() == self.rank() => Ok(Self { starts, lens: self.lens.clone() }),
            _ => Err(Error::invalid(format!("region {self} begins before {origin:?}"))),
        }
    }

    /// The offset and length of the region's bytes in a C-order array of `shape`; `None` if the
    /// bytes are not contiguous.
    pub fn contiguous_bytes(&self, shape: &Shape, dtype: Dtype) -> Option<(u64, u64)> {
        let size = dtype.size_bytes() as u64;
        let strides = shape.strides_elements();
        // From the last axis back, all axes are whole up to the first cut axis. All axes before the
        // cut axis must have length 1.
        let mut cut = false;
        for ((start_len, &dim), _) in self.axes().zip(shape.dims()).zip(&strides).rev() {
            let (_, len) = start_len;
            if cut && len != 1 {
                return None;
            }
            cut |= len != dim;
        }
        let offset: u64 = self.starts.iter().zip(&strides).map(|(start, stride)| start * stride).sum();
        Some((offset * size, self.len_elements() * size))
    }

    fn axes(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + DoubleEndedIterator + '_ {
        self.starts.iter().copied().zip(self.lens.iter().copied())
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, (start, len)) in self.axes().enumerate() {
            write!(f, "{}{start}:{}", if i > 0 { "," } else { "" }, start + len)?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refuses_shapes_that_overflow() {
        assert!(Shape::new(vec![1 << 40, 1 << 40]).is_err());
        assert!(Shape::new(vec![0, 1 << 40, 1 << 40]).is_err());
        assert!(Shape::new(vec![1; 65]).is_err());
        assert!(Shape::new(vec![1 << 62]).unwrap().len_bytes(Dtype::Float32).is_err());
        assert_eq!(Shape::scalar().len_bytes(Dtype::Float32).unwrap(), 4);
    }

    #[test]
    fn knows_which_regions_are_one_run() {
        let shape = Shape::new(vec![4, 5, 6]).unwrap();
        let run = |starts: &[u64], lens: &[u64]| {
            Region::new(starts, lens).unwrap().contiguous_bytes(&shape, Dtype::Int16)
        };
        assert_eq!(run(&[1, 0, 0], &[2, 5, 6]), Some((60, 120)));
        assert_eq!(run(&[1, 2, 0], &[1, 2, 6]), Some(((30 + 12) * 2, 24)));
        assert_eq!(run(&[1, 2, 3], &[1, 1, 2]), Some(((30 + 12 + 3) * 2, 4)));
        assert_eq!(run(&[0, 0, 0], &[2, 5, 5]), None);
        assert_eq!(run(&[0, 0, 0], &[2, 1, 6]), None);
    }

    proptest! {
        #[test]
        fn intersections_hold_the_common_points(a in (0_u64..9, 0_u64..9), b in (0_u64..9, 0_u64..9)) {
            let ra = Region::new(vec![a.0], vec![a.1]).unwrap();
            let rb = Region::new(vec![b.0], vec![b.1]).unwrap();
            let both = ra.intersect(&rb);
            for x in 0..20 {
                let inside = |r: &Region| x >= r.starts[0] && x < r.starts[0] + r.lens[0];
                prop_assert_eq!(inside(&ra) && inside(&rb), both.as_ref().is_some_and(inside));
            }
        }
    }
}
