//! Uses arrays that other libraries export in DLPack capsules, without a copy. An array of the
//! engine keeps its tensor alive.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use bytes::Bytes;
use pyo3::ffi;
use pyo3::prelude::*;
use regrow::array::{Array, Dtype};
use regrow::{Error, Result};

use super::borrowed::{Memory, Reach, Shapes};

/// DLPack's `DLTensor`: an array of another library, in memory.
///
/// Source: <https://dmlc.github.io/dlpack/latest/c_api.html>.
#[repr(C)]
struct DlTensor {
    data: *const u8,
    device_type: c_int,
    device_id: c_int,
    rank: c_int,
    dtype_code: u8,
    dtype_bits: u8,
    dtype_lanes: u16,
    dims: *const i64,
    /// Strides in elements; null for C order.
    strides: *const i64,
    first_byte: u64,
}

/// A tensor and its destructor. The caller that takes the tensor out of its capsule owns it.
#[repr(C)]
struct DlManagedTensor {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedTensor)>,
}

/// The names of a capsule before and after its tensor was taken.
const TENSOR: &CStr = c"dltensor";
const TENSOR_TAKEN: &CStr = c"used_dltensor";

/// DLPack's number for memory that this machine's processors can read.
const DEVICE_CPU: c_int = 1;

impl DlTensor {
    /// The dtype; `None` for vectors, for numbers that share bytes, and for dtypes that the engine
    /// does not have.
    fn dtype(&self) -> Option<Dtype> {
        if self.dtype_lanes != 1 {
            return None;
        }
        Some(match (self.dtype_code, self.dtype_bits) {
            (0, 8) => Dtype::Int8,
            (0, 16) => Dtype::Int16,
            (0, 32) => Dtype::Int32,
            (0, 64) => Dtype::Int64,
            (1, 8) => Dtype::UInt8,
            (1, 16) => Dtype::UInt16,
            (1, 32) => Dtype::UInt32,
            (1, 64) => Dtype::UInt64,
            (2, 16) => Dtype::Float16,
            (2, 32) => Dtype::Float32,
            (2, 64) => Dtype::Float64,
            (4, 16) => Dtype::BFloat16,
            (5, 64) => Dtype::Complex64,
            (5, 128) => Dtype::Complex128,
            (6, 8) => Dtype::Bool,
            (7, 8) => Dtype::Float8E3m4,
            (8, 8) => Dtype::Float8E4m3,
            (9, 8) => Dtype::Float8E4m3b11fnuz,
            (10, 8) => Dtype::Float8E4m3fn,
            (11, 8) => Dtype::Float8E4m3fnuz,
            (12, 8) => Dtype::Float8E5m2,
            (13, 8) => Dtype::Float8E5m2fnuz,
            (14, 8) => Dtype::Float8E8m0fnu,
            _ => return None,
        })
    }
}

/// The tensor in a capsule; `None` if it was already taken.
fn tensor_in(capsule: &Bound<'_, PyAny>) -> Option<NonNull<DlManagedTensor>> {
    // SAFETY: both functions accept any Python object. The second is called only if the object has
    // a pointer of this name.
    let pointer = unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), TENSOR.as_ptr()) != 1 {
            return None;
        }
        ffi::PyCapsule_GetPointer(capsule.as_ptr(), TENSOR.as_ptr())
    };
    NonNull::new(pointer.cast())
}

/// The number of the device that owns a tensor in this machine's memory. `None` if the tensor is in
/// other memory, or if the engine does not have its dtype.
pub fn tensor_host_device(capsule: &Bound<'_, PyAny>) -> Option<i32> {
    let told = tensor_in(capsule)?;
    // SAFETY: the capsule owns the tensor until it is taken, and the tensor does not change.
    let tensor = unsafe { &told.as_ref().tensor };
    (tensor.device_type == DEVICE_CPU && tensor.dtype().is_some()).then_some(tensor.device_id)
}

/// Takes the tensor out of a capsule. The array uses the tensor's memory, and can be dropped on any
/// thread.
pub fn take_tensor(capsule: &Bound<'_, PyAny>, shapes: &mut Shapes) -> Result<Array> {
    let unfit = || Error::invalid("a capsule has no tensor in the memory of this machine");
    let told = tensor_in(capsule).ok_or_else(unfit)?;
    // SAFETY: the capsule owns the tensor. Below, the array becomes its owner.
    let tensor = unsafe { &told.as_ref().tensor };
    let dtype = tensor.dtype().filter(|_| tensor.device_type == DEVICE_CPU).ok_or_else(unfit)?;
    let rank = usize::try_from(tensor.rank).map_err(|_| unfit())?;
    // SAFETY: DLPack promises `rank` numbers at each pointer that is not null.
    let (dims, strides) = unsafe { (numbers_at(tensor.dims, rank), numbers_at(tensor.strides, rank)) };
    let dims = dims.unwrap_or_default();
    if dims.len() != rank || dims.iter().any(|&dim| dim < 0) {
        return Err(unfit());
    }
    let shape = shapes.get(dims.iter().map(|&dim| dim as u64))?;
    if shape.is_empty() {
        return Array::new(dtype, shape, Bytes::new());
    }
    let strides = strides.filter(|strides| !is_c_order(dims, strides));
    let strides: Option<Vec<i64>> = match strides {
        Some(strides) => Some(
            strides
                .iter()
                .map(|stride| stride.checked_mul(dtype.size_bytes() as i64))
                .collect::<Option<_>>()
                .ok_or_else(unfit)?,
        ),
        None => None,
    };
    let reach = match &strides {
        Some(strides) => {
            let dims: Vec<usize> = dims.iter().map(|&dim| dim as usize).collect();
            Reach::of(&dims, strides.iter().map(|&stride| stride as isize), dtype.size_bytes())
        }
        None => Reach { before: 0, after: shape.len_bytes(dtype)? as usize },
    };
    if tensor.data.is_null() {
        return Err(unfit());
    }
    let first = tensor.data.wrapping_add(tensor.first_byte as usize);
    // SAFETY: a capsule can be renamed while it is valid, and the name is static. From then on we
    // own the tensor, and the capsule's destructor would do nothing.
    let is_ours = unsafe {
        ffi::PyCapsule_SetName(capsule.as_ptr(), TENSOR_TAKEN.as_ptr()) == 0
            && ffi::PyCapsule_SetDestructor(capsule.as_ptr(), None) == 0
    };
    if !is_ours {
        return Err(unfit());
    }
    let owner =
        Memory { start: first.wrapping_sub(reach.before), len_bytes: reach.len_bytes(), _owner: Taken(told) };
    let data = Bytes::from_owner(owner);
    match strides {
        Some(strides) => Array::with_strides(dtype, shape, strides, reach.before, data),
        None => Array::new(dtype, shape, data),
    }
}

/// Whether strides in elements are in C order.
fn is_c_order(dims: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1_i64;
    dims.iter().zip(strides).rev().all(|(&dim, &stride)| {
        let is_next = dim <= 1 || stride == expected;
        expected = expected.saturating_mul(dim);
        is_next
    })
}

/// # Safety
/// Where `start` is not null there are `len` numbers, and they stay.
unsafe fn numbers_at<'a>(start: *const i64, len: usize) -> Option<&'a [i64]> {
    // SAFETY: as above.
    (!start.is_null()).then(|| unsafe { std::slice::from_raw_parts(start, len) })
}

/// A tensor that was taken out of its capsule, and is released on drop.
struct Taken(NonNull<DlManagedTensor>);

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: we own the tensor, and release it only here.
        unsafe {
            if let Some(deleter) = self.0.as_ref().deleter {
                deleter(self.0.as_ptr());
            }
        }
    }
}

// SAFETY: a tensor may be released on any thread, with or without the interpreter, because its
// deleter takes the interpreter if needed. JAX keeps the array until JAX next has it (see
// `gather::let_go`).
unsafe impl Send for Taken {}
