//! Shows NumPy's arrays to the engine, without a copy.

use bytes::Bytes;
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use regrow::array::{Array, Dtype, Shape};
use regrow::{Error, Result};

/// An array that uses NumPy's memory without a copy, with any strides.
///
/// The result keeps the Python array alive. As always in NumPy, if a thread writes to an array
/// while another reads it, the reader gets a mixture of old and new values.
pub fn borrow_array(array: &Bound<'_, PyUntypedArray>, dtype: Dtype) -> Result<Array> {
    borrow_one_of_many(array, dtype, &mut Shapes::default())
}

/// Like `borrow_array`, for an array whose shape other arrays may share.
pub fn borrow_one_of_many(
    array: &Bound<'_, PyUntypedArray>,
    dtype: Dtype,
    shapes: &mut Shapes,
) -> Result<Array> {
    let shape = shapes.get(array.shape().iter().map(|&dim| dim as u64))?;
    let itemsize = array.dtype().itemsize();
    if itemsize != dtype.size_bytes() {
        return Err(Error::unsupported(format!("an array of dtype {dtype} has elements of another size"))
            .expected(dtype.size_bytes(), itemsize));
    }
    if array.is_c_contiguous() && !shape.is_empty() {
        let len_bytes = shape.len_bytes(dtype)? as usize;
        let owner = Memory { start: first_element(array), len_bytes, _owner: array.clone().unbind() };
        return Array::new(dtype, shape, Bytes::from_owner(owner));
    }
    let strides = array.strides().iter().map(|&stride| stride as i64).collect();
    borrow(array, dtype, shape, strides)
}

/// A cache of the last few shapes. Thousands of leaves share few shapes.
#[derive(Default)]
pub struct Shapes {
    known: Vec<Shape>,
    /// The position of the shape that is replaced next.
    oldest: usize,
}

impl Shapes {
    /// The shape with these extents, from the cache if it is there.
    pub fn get(&mut self, dims: impl Iterator<Item = u64> + Clone) -> Result<Shape> {
        if let Some(shape) = self.known.iter().find(|known| known.dims().iter().copied().eq(dims.clone())) {
            return Ok(shape.clone());
        }
        let shape = Shape::new(dims.collect::<Vec<_>>())?;
        if self.known.len() < SHAPES_LEN {
            self.known.push(shape.clone());
        } else if let Some(oldest) = self.known.get_mut(self.oldest) {
            *oldest = shape.clone();
            self.oldest = (self.oldest + 1) % SHAPES_LEN;
        }
        Ok(shape)
    }
}

/// The number of shapes in the cache: a search among more would be slower than making a new shape.
const SHAPES_LEN: usize = 16;

/// The elements of an array of any dtype in NumPy's memory, as numbers of the same size. If no
/// number has the size of an element, each element becomes an axis of bytes.
pub fn borrow_elements(array: &Bound<'_, PyUntypedArray>) -> Result<Array> {
    let mut dims: Vec<u64> = array.shape().iter().map(|&dim| dim as u64).collect();
    let mut strides: Vec<i64> = array.strides().iter().map(|&stride| stride as i64).collect();
    let dtype = match array.dtype().itemsize() {
        1 => Dtype::UInt8,
        2 => Dtype::UInt16,
        4 => Dtype::UInt32,
        8 => Dtype::UInt64,
        16 => Dtype::Complex128,
        other => {
            dims.push(other as u64);
            strides.push(1);
            Dtype::UInt8
        }
    };
    borrow(array, dtype, Shape::new(dims)?, strides)
}

fn borrow(array: &Bound<'_, PyUntypedArray>, dtype: Dtype, shape: Shape, strides: Vec<i64>) -> Result<Array> {
    if shape.is_empty() {
        return Array::new(dtype, shape, Bytes::new());
    }
    let reach = Reach::of(array.shape(), array.strides().iter().copied(), array.dtype().itemsize());
    let owner = Memory {
        start: first_element(array).wrapping_sub(reach.before),
        len_bytes: reach.len_bytes(),
        _owner: array.clone().unbind(),
    };
    Array::with_strides(dtype, shape, strides, reach.before, Bytes::from_owner(owner))
}

fn first_element(array: &Bound<'_, PyUntypedArray>) -> *const u8 {
    // SAFETY: the pointer comes from a live NumPy array, whose struct has had `data` in this place
    // since NumPy 1.
    unsafe { (*array.as_array_ptr()).fields.data }.cast::<u8>().cast_const()
}

/// The bytes of an array before and after the start of its first element.
pub(super) struct Reach {
    pub before: usize,
    pub after: usize,
}

impl Reach {
    /// The reach of an array that has at least one element.
    pub fn of(shape: &[usize], strides: impl Iterator<Item = isize>, itemsize: usize) -> Self {
        let (mut before, mut after) = (0_usize, itemsize);
        for (stride, &dim) in strides.zip(shape) {
            let reach = stride.unsigned_abs().saturating_mul(dim.saturating_sub(1));
            let side = if stride < 0 { &mut before } else { &mut after };
            *side = side.saturating_add(reach);
        }
        Self { before, after }
    }

    pub fn len_bytes(&self) -> usize {
        self.before.saturating_add(self.after)
    }
}

/// The memory from an array's lowest to its highest element, and the owner of the memory.
pub(super) struct Memory<T> {
    pub start: *const u8,
    pub len_bytes: usize,
    pub _owner: T,
}

// SAFETY: the pointer is only used for reads, and the memory exists until the owner is dropped.
// PyO3 drops an object safely on any thread, and so does `Taken` with a tensor.
unsafe impl<T: Send> Send for Memory<T> {}

impl<T> AsRef<[u8]> for Memory<T> {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: NumPy, or the exporter of a tensor, promises that the elements (start + strides)
        // are memory of the array. `Reach` has computed their bounds, and `_owner` keeps the memory
        // alive.
        unsafe { std::slice::from_raw_parts(self.start, self.len_bytes) }
    }
}
