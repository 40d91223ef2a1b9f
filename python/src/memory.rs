//! The only unsafe code of the extension: NumPy's memory as shared bytes, and shared bytes as a Python buffer.

use std::ffi::{c_int, c_void};

use bytes::Bytes;
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use regrow::array::{Array, Dtype, Shape};
use regrow::{Error, Result};

/// Bytes that the engine holds (a view of a map, a buffer), for the buffer protocol; read-only.
#[pyclass(frozen, module = "regrow._native")]
pub struct Slab(Bytes);

impl Slab {
    /// Shares the bytes.
    pub fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

#[pymethods]
impl Slab {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Fills `view`.
    ///
    /// # Safety
    /// Python calls this with a `view` that is its own to write to.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let bytes = &slf.get().0;
        let start = bytes.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: the bytes never move or change (the class is frozen, `Bytes` are shared and read-only) and live
        // as long as `slf`, of which the view takes a reference; it is marked read-only, so nobody writes.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, bytes.len() as ffi::Py_ssize_t, 1, flags)
        };
        if filled < 0 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }
}

/// The array as it lies in NumPy's memory: no copy, whatever its strides.
///
/// The result keeps the Python array alive. As everywhere in NumPy, whoever writes to an array while another
/// thread reads it gets a mixture of old and new values.
pub fn borrow_array(array: &Bound<'_, PyUntypedArray>, dtype: Dtype) -> Result<Array> {
    let shape = Shape::new(array.shape().iter().map(|&dim| dim as u64).collect::<Vec<_>>())?;
    let itemsize = array.dtype().itemsize();
    if itemsize != dtype.size_bytes() {
        return Err(Error::unsupported(format!("an array of dtype {dtype} has elements of another size"))
            .expected(dtype.size_bytes(), itemsize));
    }
    if shape.is_empty() {
        return Array::new(dtype, shape, Bytes::new());
    }
    // Bytes before and after the first element that the array reaches.
    let (mut before, mut after) = (0_usize, itemsize);
    for (&stride, &dim) in array.strides().iter().zip(array.shape()) {
        let reach = stride.unsigned_abs().saturating_mul(dim - 1);
        let side = if stride < 0 { &mut before } else { &mut after };
        *side = side.saturating_add(reach);
    }
    // SAFETY: the pointer comes from a live NumPy array, whose struct has had `data` in this place since NumPy 1.
    let first = unsafe { (*array.as_array_ptr()).fields.data }.cast::<u8>().cast_const();
    let owner = ArrayMemory {
        start: first.wrapping_sub(before),
        len_bytes: before.saturating_add(after),
        _array: array.clone().unbind(),
    };
    let strides = array.strides().iter().map(|&stride| stride as i64).collect();
    Array::with_strides(dtype, shape, strides, before, Bytes::from_owner(owner))
}

/// The memory between an array's lowest and highest element, and the array that owns it.
struct ArrayMemory {
    start: *const u8,
    len_bytes: usize,
    _array: Py<PyUntypedArray>,
}

// SAFETY: the pointer is only read through, and the memory behind it stays until the array is dropped, which
// PyO3 does safely on any thread.
unsafe impl Send for ArrayMemory {}

impl AsRef<[u8]> for ArrayMemory {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: NumPy promises that the elements, at start + strides, are memory of the array; `borrow_array`
        // has computed their bounds, and `_array` keeps them there.
        unsafe { std::slice::from_raw_parts(self.start, self.len_bytes) }
    }
}
