//! The leaf that a header describes: its kind, its dtype, and the conversion of the bytes after the
//! header to little-endian elements in C order.

use std::sync::Arc;

use bytes::Bytes;

use super::descr::Descr;
use super::header::Header;
use regrow_base::error::Result;
use regrow_tree::array::{Array, Dtype, Region, Shape};
use regrow_tree::tree::{LeafInfo, LeafKind};

/// The data after one header, in the form of a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// The kind: an array, or an array of a dtype that only NumPy has.
    pub kind: LeafKind,
    /// The dtype; `uint8` for a dtype that only NumPy has.
    pub dtype: Dtype,
    /// The shape. A dtype that only NumPy has adds one axis: the bytes of an element.
    pub shape: Shape,
    /// Whether the first axis is the one whose neighbours lie side by side.
    fortran_order: bool,
    /// Whether the high bytes come first.
    big_endian: bool,
}

impl Record {
    /// The leaf for a header, with the dtype that `np.load` gives. The exception is `<V2`, which
    /// NumPy reads as two bytes without a type. Only the bfloat16 of ml_dtypes is written as `<V2`,
    /// and JAX reads it as bfloat16.
    pub fn of(header: &Header) -> Result<Self> {
        let (kind, dtype, big_endian) = match &header.descr {
            Descr::Number { dtype, big_endian } => (LeafKind::NumpyArray, *dtype, *big_endian),
            Descr::Void { item_len_bytes: 2, is_nameless: true } => {
                (LeafKind::NumpyArray, Dtype::BFloat16, false)
            }
            other => (LeafKind::NumpyOther(Arc::from(other.text())), Dtype::UInt8, false),
        };
        let shape = match kind {
            LeafKind::NumpyOther(_) => {
                let mut dims = header.shape.dims().to_vec();
                dims.push(header.descr.item_len_bytes());
                Shape::new(dims)?
            }
            _ => header.shape.clone(),
        };
        shape.len_bytes(dtype)?;
        Ok(Self {
            kind,
            dtype,
            shape,
            fortran_order: header.fortran_order && header.shape.rank() > 1,
            big_endian,
        })
    }

    pub fn of_bytes(len_bytes: u64) -> Result<Self> {
        let shape = Shape::new(vec![len_bytes])?;
        Ok(Self {
            kind: LeafKind::Bytes,
            dtype: Dtype::UInt8,
            shape,
            fortran_order: false,
            big_endian: false,
        })
    }

    /// The same data as the leaf `info` in the sidecar; `None` if the data does not fit this leaf.
    pub fn known_as(&self, info: &LeafInfo, header: &Header) -> Option<Self> {
        let known = Self { kind: info.kind.clone(), ..self.clone() };
        match (&info.kind, &self.kind) {
            (LeafKind::NumpyOther(kept), LeafKind::NumpyOther(found)) if kept != found => return None,
            (LeafKind::NumpyOther(_), LeafKind::NumpyOther(_)) => {}
            // A dtype of ml_dtypes whose name NumPy has lost.
            (_, LeafKind::NumpyOther(_)) => {
                let nameless = Descr::as_numpy_writes(info.dtype);
                let is_this = nameless == header.descr && header.shape == info.shape;
                return is_this.then(|| Self { dtype: info.dtype, shape: header.shape.clone(), ..known });
            }
            _ => {}
        }
        (self.dtype == info.dtype && self.shape == info.shape).then_some(known)
    }

    pub fn len_bytes(&self) -> u64 {
        self.shape.len_elements().saturating_mul(self.dtype.size_bytes() as u64)
    }

    /// Whether the bytes in the file are the array as it is in memory.
    pub fn is_raw(&self) -> bool {
        !self.fortran_order && !self.swaps()
    }

    pub fn is_c_order(&self) -> bool {
        !self.fortran_order
    }

    /// Copies a region of the complete data, in C order and little endian.
    pub fn copy_region(&self, data: Bytes, region: &Region, out: &mut [u8]) -> Result<()> {
        let array = match self.fortran_order {
            false => Array::new(self.dtype, self.shape.clone(), data)?,
            true => Array::with_strides(self.dtype, self.shape.clone(), self.fortran_strides(), 0, data)?,
        };
        array.copy_region_c_order(region, out)?;
        self.to_little_endian(out);
        Ok(())
    }

    pub fn to_little_endian(&self, elements: &mut [u8]) {
        if self.swaps() {
            elements.chunks_exact_mut(self.dtype.word_bytes()).for_each(<[u8]>::reverse);
        }
    }

    pub fn coding(&self, deflated: bool) -> String {
        let mut out = if deflated { "deflate" } else { "raw" }.to_owned();
        if self.fortran_order {
            out.push_str(", fortran order");
        }
        if self.swaps() {
            out.push_str(", big endian");
        }
        out
    }

    fn swaps(&self) -> bool {
        self.big_endian && self.dtype.word_bytes() > 1
    }

    /// The strides of a Fortran-order array. The bytes of an element are always adjacent.
    fn fortran_strides(&self) -> Vec<i64> {
        let is_other = matches!(self.kind, LeafKind::NumpyOther(_));
        let dims = self.shape.dims();
        let axes = dims.len() - usize::from(is_other);
        let (axes, element) = dims.split_at_checked(axes).unwrap_or((dims, &[]));
        let mut step = element.first().copied().unwrap_or(self.dtype.size_bytes() as u64);
        let mut strides = Vec::with_capacity(dims.len());
        for &dim in axes {
            strides.push(step as i64);
            step = step.saturating_mul(dim.max(1));
        }
        strides.extend(element.iter().map(|_| 1));
        strides
    }
}
