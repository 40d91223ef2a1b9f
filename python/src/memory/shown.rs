//! Makes the engine's arrays available to NumPy, without a copy.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use numpy::npyffi::{self, PY_ARRAY_API, npy_intp};
use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use regrow::array::Array;

use super::Slab;
use crate::error::OrRaise;

/// Arrays up to this size share an object that keeps their memory alive. An object for each array
/// would take longer to make than the array, and Python's garbage collector would visit all of
/// them.
const SMALL_LEN_BYTES: usize = 4 << 10;

/// The most bytes of neighbours that a small array keeps alive.
const GROUP_LEN_BYTES: usize = 64 << 10;

/// The most arrays of a group, if they are tiny.
const GROUP_LEN: usize = 256;

/// The memory of a group of small arrays.
#[pyclass(frozen, module = "regrow._native")]
pub struct SmallSlabs(Mutex<Vec<Bytes>>);

/// Makes NumPy arrays of the engine's arrays, and groups the small ones.
pub struct Shown<'py> {
    py: Python<'py>,
    group: Option<Bound<'py, SmallSlabs>>,
    /// The number of arrays in the current group, and their bytes.
    group_len: usize,
    group_len_bytes: usize,
}

impl<'py> Shown<'py> {
    pub fn new(py: Python<'py>) -> Self {
        Self { py, group: None, group_len: 0, group_len_bytes: 0 }
    }

    /// A read-only NumPy array that uses the array's bytes and keeps them alive.
    pub fn show(
        &mut self,
        descriptor: &Bound<'py, PyArrayDescr>,
        array: &Array,
    ) -> PyResult<Bound<'py, PyAny>> {
        let bytes = array.to_c_order().or_raise()?;
        let too_large = || PyValueError::new_err("it has too many elements");
        let dims: Option<Vec<npy_intp>> =
            array.shape().dims().iter().map(|&dim| dim.try_into().ok()).collect();
        let mut dims = dims.ok_or_else(too_large)?;
        let len =
            dims.iter().try_fold(descriptor.itemsize(), |len, &dim| len.checked_mul(dim.unsigned_abs()));
        if len != Some(bytes.len()) {
            return Err(too_large());
        }
        let rank = c_int::try_from(dims.len()).map_err(|_| too_large())?;
        let first = bytes.as_ptr().cast_mut().cast::<c_void>();
        let keeper = self.keeper(bytes)?;
        let py = self.py;
        // SAFETY: `dims` are `rank` extents, and the array of them, in C order, is as long as the
        // bytes at `first`, which the keeper holds where they are. The array owns the keeper from
        // the start of its life to its end, and is not writeable. NumPy takes over one reference to
        // the descriptor and one to the keeper; null means that it has raised.
        unsafe {
            let class = npyffi::get_type_object(py, npyffi::NpyTypes::PyArray_Type);
            let (strides, object) = (std::ptr::null_mut(), std::ptr::null_mut());
            let kind = descriptor.clone().into_dtype_ptr();
            let made = PY_ARRAY_API.PyArray_NewFromDescr(
                py,
                class,
                kind,
                rank,
                dims.as_mut_ptr(),
                strides,
                first,
                0,
                object,
            );
            let made = Bound::from_owned_ptr_or_err(py, made)?;
            let pointer = made.as_ptr().cast::<npyffi::PyArrayObject>();
            if PY_ARRAY_API.PyArray_SetBaseObject(py, pointer, keeper.into_ptr()) < 0 {
                return Err(PyErr::fetch(py));
            }
            // Bytes of a file may be unaligned, so let NumPy compute the flags.
            PY_ARRAY_API.PyArray_UpdateFlags(py, pointer, npyffi::NPY_ARRAY_UPDATE_ALL);
            Ok(made)
        }
    }

    fn keeper(&mut self, bytes: Bytes) -> PyResult<Bound<'py, PyAny>> {
        let len_bytes = bytes.len();
        if len_bytes > SMALL_LEN_BYTES {
            return Ok(Bound::new(self.py, Slab::new(bytes))?.into_any());
        }
        let has_room = self.group_len < GROUP_LEN && self.group_len_bytes + len_bytes <= GROUP_LEN_BYTES;
        let group = match self.group.take().filter(|_| has_room) {
            Some(group) => group,
            None => {
                (self.group_len, self.group_len_bytes) = (0, 0);
                Bound::new(self.py, SmallSlabs(Mutex::default()))?
            }
        };
        group.get().0.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
        self.group_len += 1;
        self.group_len_bytes += len_bytes;
        Ok(self.group.insert(group).clone().into_any())
    }
}
