//! Makes the engine's bytes available as Python buffers, and Python buffers available as bytes.

use std::ffi::{c_int, c_void};

use bytes::Bytes;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use regrow_store::PrivateMap;

/// Read-only bytes of the engine (a view of a map, a buffer) with Python's buffer protocol.
#[pyclass(frozen, module = "regrow._native")]
pub struct Slab(Bytes);

impl Slab {
    pub fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

#[pymethods]
impl Slab {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Fills `view` for Python's buffer protocol.
    ///
    /// # Safety
    /// Python calls this with a `view` that may be written.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no buffer to fill"));
        }
        let bytes = &slf.get().0;
        let start = bytes.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: the bytes never move or change (the class is frozen, `Bytes` are shared and
        // read-only). They live as long as `slf`, which the view references. The view is marked
        // read-only, so Python does not write to it.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, bytes.len() as ffi::Py_ssize_t, 1, flags)
        };
        if filled < 0 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }
}

/// A private, writable map of a file with the buffer protocol. Writes do not reach the file.
#[pyclass(frozen, module = "regrow._native")]
pub struct MapBuffer(PrivateMap);

impl MapBuffer {
    pub fn new(map: PrivateMap) -> Self {
        Self(map)
    }
}

#[pymethods]
impl MapBuffer {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Fills `view` for Python's buffer protocol.
    ///
    /// # Safety
    /// Python calls this with a `view` that may be written.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no buffer to fill"));
        }
        let map = &slf.get().0;
        let start = map.as_mut_ptr().cast::<c_void>();
        // SAFETY: the map never moves, is writable and lives as long as `slf`, which the view
        // references; no Rust code looks at its bytes. As everywhere in Python, concurrent writes
        // to the same memory are not kept apart.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, map.len() as ffi::Py_ssize_t, 0, flags)
        };
        if filled < 0 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }
}

/// The bytes of any contiguous Python buffer (`bytes`, `memoryview`, `mmap`), read without a copy.
pub struct ReadOnly(PyBuffer<u8>, Py<PyAny>);

impl ReadOnly {
    /// Borrows the buffer of `data`, and keeps it alive.
    pub fn new(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        let view = PyMemoryView::from(data)?.call_method0("toreadonly")?;
        let is_bytes = view.getattr("format")?.eq("B")? && view.getattr("ndim")?.eq(1)?;
        let view = if is_bytes { view } else { view.call_method1("cast", ("B",))? };
        let buffer = PyBuffer::get(&view)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the bytes are not contiguous"));
        }
        Ok(Self(buffer, view.unbind()))
    }

    pub fn view<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.1.bind(py).clone()
    }

    pub fn as_bytes(&self) -> &[u8] {
        if self.0.item_count() == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous and held until `self` is dropped. As with arrays, a
        // write during the read gives a mixture.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast::<u8>().cast_const(), self.0.item_count()) }
    }
}
