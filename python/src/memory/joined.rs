//! Makes one `bytes` object of many parts.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use regrow::Result;
use regrow::array::Array;

use crate::error::{OrRaise, caught};

/// A part of the `bytes` object to make.
pub enum Piece<'a> {
    Bytes(&'a [u8]),
    /// A range of the C-order bytes of an array.
    Array(&'a Array, Range<u64>),
}

/// Bytes that one thread copies at once.
const COPY_LEN_BYTES: usize = 4 << 20;

/// A copy of at least this length uses several threads. Most of the time goes into new pages, which
/// the kernel clears on the thread that first writes to them. (Huge pages take several times as
/// long if memory is fragmented.)
const LARGE_LEN_BYTES: usize = 8 << 20;

const COPY_THREADS: usize = 2;

/// The pieces, one after another, as one `bytes` object, which is allocated once.
pub fn join<'py>(py: Python<'py>, pieces: &[Piece<'_>]) -> PyResult<Bound<'py, PyBytes>> {
    let len = pieces.iter().try_fold(0_usize, |len, piece| len.checked_add(piece.len()?));
    let too_long = || PyMemoryError::new_err("the bytes do not fit in memory");
    let len = len.filter(|&len| isize::try_from(len).is_ok()).ok_or_else(too_long)?;
    // SAFETY: with a null pointer Python allocates the object and leaves its bytes to us; an error
    // gives null.
    let made = unsafe {
        let made = ffi::PyBytes_FromStringAndSize(std::ptr::null(), len as ffi::Py_ssize_t);
        Bound::from_owned_ptr_or_err(py, made)?.cast_into::<PyBytes>()?
    };
    // SAFETY: no other code has the object yet, and it has room for `len` bytes, which are not
    // initialised.
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

/// Asks the kernel to make all pages of new memory at once, which is cheaper than a fault for each
/// page. The kernel may ignore this.
#[cfg(target_os = "linux")]
fn make_present(room: &mut [MaybeUninit<u8>]) {
    use rustix::mm::{Advice, madvise};

    let page = rustix::param::page_size();
    let start = room.as_mut_ptr();
    let skip = start.addr().next_multiple_of(page) - start.addr();
    let Some(len) = room.len().checked_sub(skip).map(|len| len / page * page) else { return };
    // SAFETY: the range is whole pages within memory that is ours alone, and the advice changes no
    // contents.
    let _ = unsafe { madvise(start.wrapping_add(skip).cast(), len, Advice::LinuxPopulateWrite) };
}

/// Does nothing: only Linux has this advice.
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
        // If no thread can be started, this thread copies everything.
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

    /// The part from `done` on, at most `len_max` bytes long; `None` at the end of the piece.
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

    /// Copies the piece into `room`, which must be as long as the piece.
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
