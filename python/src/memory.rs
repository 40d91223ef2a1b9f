//! The only unsafe code of the extension: NumPy's memory as shared bytes, and shared bytes as a Python buffer.

mod dlpack;

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use numpy::npyffi::{self, PY_ARRAY_API, npy_intp};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};
use regrow::array::{Array, Dtype, Shape};
use regrow::store::PrivateMap;
use regrow::{Error, Result};

pub use self::dlpack::{take_tensor, tensor_host_device};
use crate::error::{OrRaise, caught};

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

/// A private map of a file, for the buffer protocol; writable: what is written to it does not reach the file.
#[pyclass(frozen, module = "regrow._native")]
pub struct MapBuffer(PrivateMap);

impl MapBuffer {
    /// Owns the map.
    pub fn new(map: PrivateMap) -> Self {
        Self(map)
    }
}

#[pymethods]
impl MapBuffer {
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
        let map = &slf.get().0;
        let start = map.as_mut_ptr().cast::<c_void>();
        // SAFETY: the map never moves, is writable and lives as long as `slf`, of which the view takes a reference; no
        // Rust code looks at its bytes. As everywhere in Python, two who write to the same memory are not kept apart.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, map.len() as ffi::Py_ssize_t, 0, flags)
        };
        if filled < 0 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }
}

/// The array as it lies in NumPy's memory: no copy, whatever its strides.
///
/// The result keeps the Python array alive. As everywhere in NumPy, whoever writes to an array while another
/// thread reads it gets a mixture of old and new values.
pub fn borrow_array(array: &Bound<'_, PyUntypedArray>, dtype: Dtype) -> Result<Array> {
    borrow_one_of_many(array, dtype, &mut Shapes::default())
}

/// The same of an array whose shape other arrays may have.
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

/// The last few shapes: thousands of leaves share a few, which need no memory of their own.
#[derive(Default)]
pub struct Shapes {
    known: Vec<Shape>,
    /// The one that is forgotten next.
    oldest: usize,
}

impl Shapes {
    /// The shape of these extents.
    fn get(&mut self, dims: impl Iterator<Item = u64> + Clone) -> Result<Shape> {
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

/// Shapes that are remembered: more would be slower to go through than to make.
const SHAPES_LEN: usize = 16;

/// The elements of an array of any dtype as it lies in NumPy's memory, as some numbers of the same size; elements
/// of a size that no number has become an axis of bytes.
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
    // SAFETY: the pointer comes from a live NumPy array, whose struct has had `data` in this place since NumPy 1.
    unsafe { (*array.as_array_ptr()).fields.data }.cast::<u8>().cast_const()
}

/// Bytes before and after the beginning of the first element that an array reaches.
struct Reach {
    before: usize,
    after: usize,
}

impl Reach {
    /// Of an array that has elements.
    fn of(shape: &[usize], strides: impl Iterator<Item = isize>, itemsize: usize) -> Self {
        let (mut before, mut after) = (0_usize, itemsize);
        for (stride, &dim) in strides.zip(shape) {
            let reach = stride.unsigned_abs().saturating_mul(dim.saturating_sub(1));
            let side = if stride < 0 { &mut before } else { &mut after };
            *side = side.saturating_add(reach);
        }
        Self { before, after }
    }

    fn len_bytes(&self) -> usize {
        self.before.saturating_add(self.after)
    }
}

/// The memory between an array's lowest and highest element, and what owns it.
struct Memory<T> {
    start: *const u8,
    len_bytes: usize,
    _owner: T,
}

// SAFETY: the pointer is only read through, and the memory behind it stays until the owner is dropped, which PyO3
// does safely on any thread for an object, and `Taken` for a tensor.
unsafe impl<T: Send> Send for Memory<T> {}

impl<T> AsRef<[u8]> for Memory<T> {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: NumPy, and who exports a tensor, promise that the elements, at start + strides, are memory of the
        // array; `Reach` has computed their bounds, and `_owner` keeps them there.
        unsafe { std::slice::from_raw_parts(self.start, self.len_bytes) }
    }
}

/// Arrays up to this size share the object that keeps their memory alive: one for each would take longer to make
/// than the array, and Python's garbage collector would go through all of them.
const SMALL_LEN_BYTES: usize = 4 << 10;

/// What a small array can keep alive of its neighbours.
const GROUP_LEN_BYTES: usize = 64 << 10;

/// The most arrays of a group, if they are tiny.
const GROUP_LEN: usize = 256;

/// The memory of a group of small arrays.
#[pyclass(frozen, module = "regrow._native")]
pub struct SmallSlabs(Mutex<Vec<Bytes>>);

/// Shows the engine's arrays to NumPy, where they lie.
pub struct Shown<'py> {
    py: Python<'py>,
    group: Option<Bound<'py, SmallSlabs>>,
    /// Arrays and bytes of the group.
    group_len: usize,
    group_len_bytes: usize,
}

impl<'py> Shown<'py> {
    /// None yet.
    pub fn new(py: Python<'py>) -> Self {
        Self { py, group: None, group_len: 0, group_len_bytes: 0 }
    }

    /// The array as a read-only array of NumPy's, which keeps its bytes alive.
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
        // SAFETY: `dims` are `rank` extents, and the array of them, in C order, is as long as the bytes at `first`,
        // which the keeper holds where they are. The array owns the keeper from the start of its life to its end, and
        // is not writeable. NumPy takes over one reference to the descriptor and one to the keeper; null means that it
        // has raised.
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
            // Bytes of a file lie where they lie: whether they are aligned is for NumPy to see.
            PY_ARRAY_API.PyArray_UpdateFlags(py, pointer, npyffi::NPY_ARRAY_UPDATE_ALL);
            Ok(made)
        }
    }

    /// An object that holds the bytes.
    fn keeper(&mut self, bytes: Bytes) -> PyResult<Bound<'py, PyAny>> {
        let len_bytes = bytes.len();
        if len_bytes > SMALL_LEN_BYTES {
            return Ok(Bound::new(self.py, Slab(bytes))?.into_any());
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

/// Writable C-contiguous arrays of the caller, to be filled.
pub struct Destinations<'py>(Vec<Option<(Bound<'py, PyUntypedArray>, usize, usize)>>);

impl<'py> Destinations<'py> {
    /// Those of the arrays that can be filled where they are. One that shares memory with another cannot: what is
    /// written to it would depend on who comes last.
    pub fn new(arrays: Vec<Option<Bound<'py, PyUntypedArray>>>) -> Self {
        let place = |array: Bound<'py, PyUntypedArray>| {
            // SAFETY: the pointer comes from a live NumPy array, whose struct is a public part of NumPy's ABI.
            let fields = unsafe { &(*array.as_array_ptr()).fields };
            let wanted = numpy::npyffi::NPY_ARRAY_C_CONTIGUOUS | numpy::npyffi::NPY_ARRAY_WRITEABLE;
            let len = array.shape().iter().product::<usize>() * array.dtype().itemsize();
            (fields.flags & wanted == wanted && len > 0)
                .then(|| (fields.data.addr(), len))
                .map(|(at, len)| (array, at, len))
        };
        let mut places: Vec<_> = arrays.into_iter().map(|array| array.and_then(place)).collect();
        let mut spans: Vec<(usize, usize, usize)> = places
            .iter()
            .enumerate()
            .filter_map(|(i, place)| place.as_ref().map(|&(_, at, len)| (at, at.saturating_add(len), i)))
            .collect();
        spans.sort_unstable();
        let mut reached: Option<(usize, usize)> = None;
        for (start, end, i) in spans {
            match reached {
                Some((reached_end, other)) if start < reached_end => {
                    for shared in [i, other] {
                        if let Some(place) = places.get_mut(shared) {
                            *place = None;
                        }
                    }
                    reached = Some((reached_end.max(end), if end > reached_end { i } else { other }));
                }
                _ => reached = Some((end, i)),
            }
        }
        Self(places)
    }

    /// Whether each will be filled where it is.
    pub fn are_filled(&self) -> Vec<bool> {
        self.0.iter().map(Option::is_some).collect()
    }

    /// Their bytes. As everywhere in NumPy, whoever reads an array while it is filled gets a mixture.
    pub fn bytes_mut(&mut self) -> Vec<Option<&mut [u8]>> {
        let bytes = |place: &mut Option<(Bound<'py, PyUntypedArray>, usize, usize)>| {
            let (array, _, len) = place.as_ref()?;
            // SAFETY: a writable C-contiguous array has `len` bytes at `data`; `self` keeps the array alive and is
            // borrowed for as long as the slices; no two of them overlap, as `new` has seen to.
            Some(unsafe {
                let data = (*array.as_array_ptr()).fields.data.cast::<u8>();
                std::slice::from_raw_parts_mut(data, *len)
            })
        };
        self.0.iter_mut().map(bytes).collect()
    }
}

/// The bytes of any contiguous buffer of Python's (`bytes`, `memoryview`, `mmap`), read where they lie.
pub struct ReadOnly(PyBuffer<u8>, Py<PyAny>);

impl ReadOnly {
    /// Borrows the buffer of `data`, and keeps it alive.
    pub fn new(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        let view = PyMemoryView::from(data)?.call_method0("toreadonly")?;
        let is_bytes = view.getattr("format")?.eq("B")? && view.getattr("ndim")?.eq(1)?;
        let view = if is_bytes { view } else { view.call_method1("cast", ("B",))? };
        let buffer = PyBuffer::get(&view)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the bytes do not lie together"));
        }
        Ok(Self(buffer, view.unbind()))
    }

    /// The same bytes as a read-only `memoryview`.
    pub fn view<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.1.bind(py).clone()
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        if self.0.item_count() == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous and held until `self` is dropped. As with arrays, whoever writes to it
        // while it is read gets a mixture.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast::<u8>().cast_const(), self.0.item_count()) }
    }
}

/// A part of a `bytes` object that is being made.
pub enum Piece<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// A range of the C-order bytes of an array.
    Array(&'a Array, Range<u64>),
}

/// Bytes that one thread copies at a time.
const COPY_LEN_BYTES: usize = 4 << 20;

/// From here on, a thread costs less than it saves: most of the time goes into fresh pages, which the kernel clears
/// on the thread that first touches them. (Huge pages take several times as long where memory is fragmented.)
const LARGE_LEN_BYTES: usize = 8 << 20;

/// Threads that copy.
const COPY_THREADS: usize = 2;

/// The pieces, one after another, as one `bytes` object: allocated once, every byte written once.
pub fn join<'py>(py: Python<'py>, pieces: &[Piece<'_>]) -> PyResult<Bound<'py, PyBytes>> {
    let len = pieces.iter().try_fold(0_usize, |len, piece| len.checked_add(piece.len()?));
    let too_long = || PyMemoryError::new_err("the bytes do not fit in memory");
    let len = len.filter(|&len| isize::try_from(len).is_ok()).ok_or_else(too_long)?;
    // SAFETY: with a null pointer Python allocates the object and leaves its bytes to us; an error gives null.
    let made = unsafe {
        let made = ffi::PyBytes_FromStringAndSize(std::ptr::null(), len as ffi::Py_ssize_t);
        Bound::from_owned_ptr_or_err(py, made)?.cast_into::<PyBytes>()?
    };
    // SAFETY: nobody else has the object yet, and it has room for `len` bytes, which are not initialised.
    let mut room = unsafe {
        let start = ffi::PyBytes_AsString(made.as_ptr()).cast::<MaybeUninit<u8>>();
        std::slice::from_raw_parts_mut(start, len)
    };
    let mut jobs: Vec<(&mut [MaybeUninit<u8>], Piece<'_>)> = Vec::new();
    for piece in pieces {
        let mut done = 0;
        while let Some(part) = piece.part(done, COPY_LEN_BYTES) {
            let part_len = part.len().ok_or_else(too_long)?;
            let (now, later) =
                std::mem::take(&mut room).split_at_mut_checked(part_len).ok_or_else(too_long)?;
            jobs.push((now, part));
            (room, done) = (later, done + part_len);
        }
    }
    let written = if len < LARGE_LEN_BYTES {
        jobs.into_iter().try_for_each(|(room, piece)| piece.copy(room))
    } else {
        py.detach(|| caught(|| copy_with_threads(jobs)))
    };
    written.or_raise()?;
    Ok(made)
}

/// Has the kernel make all pages of fresh memory at once, which is cheaper than a fault for each; advice only.
#[cfg(target_os = "linux")]
fn make_present(room: &mut [MaybeUninit<u8>]) {
    use rustix::mm::{Advice, madvise};

    let page = rustix::param::page_size();
    let start = room.as_mut_ptr();
    let skip = start.addr().next_multiple_of(page) - start.addr();
    let Some(len) = room.len().checked_sub(skip).map(|len| len / page * page) else { return };
    // SAFETY: the range is whole pages within memory that is ours alone, and the advice changes no contents.
    let _ = unsafe { madvise(start.wrapping_add(skip).cast(), len, Advice::LinuxPopulateWrite) };
}

/// Only Linux does that.
#[cfg(not(target_os = "linux"))]
fn make_present(_room: &mut [MaybeUninit<u8>]) {}

fn copy_with_threads(jobs: Vec<(&mut [MaybeUninit<u8>], Piece<'_>)>) -> Result<()> {
    let jobs = Mutex::new(jobs.into_iter());
    let work = || loop {
        let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
        match next {
            Some((room, piece)) => {
                make_present(room);
                piece.copy(room)?;
            }
            None => return Ok(()),
        }
    };
    std::thread::scope(|scope| {
        // What no thread can be started for, this one copies.
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..COPY_THREADS).map_while(start).collect();
        let own = work();
        others.into_iter().fold(own, |result, other| {
            result.and(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    })
}

impl Piece<'_> {
    fn len(&self) -> Option<usize> {
        match self {
            Self::Bytes(bytes) => Some(bytes.len()),
            Self::Array(_, range) => usize::try_from(range.end.checked_sub(range.start)?).ok(),
        }
    }

    /// At most `len_max` bytes from `done` on; `None` at the end.
    fn part(&self, done: usize, len_max: usize) -> Option<Piece<'_>> {
        let left = self.len()?.checked_sub(done).filter(|&left| left > 0)?;
        let end = done + left.min(len_max);
        Some(match self {
            Self::Bytes(bytes) => Piece::Bytes(bytes.get(done..end)?),
            Self::Array(array, range) => {
                Piece::Array(array, range.start + done as u64..range.start + end as u64)
            }
        })
    }

    /// Writes every byte of `room`, which is as long as the piece.
    fn copy(&self, room: &mut [MaybeUninit<u8>]) -> Result<()> {
        let bytes = match self {
            Self::Bytes(bytes) => Some(*bytes),
            Self::Array(array, range) => {
                array.c_order_bytes().and_then(|bytes| bytes.get(range.start as usize..range.end as usize))
            }
        };
        if let Some(bytes) = bytes.filter(|bytes| bytes.len() == room.len()) {
            room.write_copy_of_slice(bytes);
            return Ok(());
        }
        room.fill(MaybeUninit::new(0));
        // SAFETY: every byte has just been written.
        let room = unsafe { room.assume_init_mut() };
        match self {
            Self::Array(array, range) => array.copy_c_order(range.start, room),
            Self::Bytes(_) => Ok(()),
        }
    }
}
