//! NumPy arrays of the caller that the engine fills in place.

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods, npyffi};
use pyo3::prelude::*;

/// Writable C-contiguous arrays of the caller that the engine fills.
pub struct Destinations<'py>(Vec<Option<(Bound<'py, PyUntypedArray>, usize, usize)>>);

impl<'py> Destinations<'py> {
    /// Chooses the arrays that can be filled in place. An array that shares memory with another
    /// cannot: the order of the writes would decide its content.
    pub fn new(arrays: Vec<Option<Bound<'py, PyUntypedArray>>>) -> Self {
        let place = |array: Bound<'py, PyUntypedArray>| {
            // SAFETY: the pointer comes from a live NumPy array, whose struct is a public part of
            // NumPy's ABI.
            let fields = unsafe { &(*array.as_array_ptr()).fields };
            let wanted = npyffi::NPY_ARRAY_C_CONTIGUOUS | npyffi::NPY_ARRAY_WRITEABLE;
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

    /// Whether each array is filled in place.
    pub fn are_filled(&self) -> Vec<bool> {
        self.0.iter().map(Option::is_some).collect()
    }

    /// The bytes of the arrays. As always in NumPy, a read of an array while it is filled returns a
    /// mixture.
    pub fn bytes_mut(&mut self) -> Vec<Option<&mut [u8]>> {
        let bytes = |place: &mut Option<(Bound<'py, PyUntypedArray>, usize, usize)>| {
            let (array, _, len) = place.as_ref()?;
            // SAFETY: a writable C-contiguous array has `len` bytes at `data`. `self` keeps the
            // array alive and is borrowed for as long as the slices. No two slices overlap: `new`
            // has checked this.
            Some(unsafe {
                let data = (*array.as_array_ptr()).fields.data.cast::<u8>();
                std::slice::from_raw_parts_mut(data, *len)
            })
        };
        self.0.iter_mut().map(bytes).collect()
    }
}
