//! Memory for loaded leaves: anonymous maps, in which the bytes of each leaf begin on a cache line.
//!
//! ```text
//! map of 8 MiB   | leaf 0 | leaf 1 | leaf 3 |     a leaf of more than 4 MiB has its own map
//!                   64-byte aligned               a map is freed with the last of its leaves
//! ```
//!
//! The threads that fill the maps also make the pages of the maps, or [`Pages`] makes the pages in
//! advance. An allocator that zeroes memory would write all pages with one thread before any read.

use std::ops::Range;

use bytes::Bytes;
use memmap2::{MmapMut, MmapOptions};

use crate::bytes::pages::{LARGE_PAGE_LEN_BYTES, Pages};
use crate::error::{Error, ErrorKind, Result};

/// Leaves begin at multiples of this: a cache line, and the alignment that JAX takes over without a
/// copy.
const ALIGN_BYTES: usize = 64;

/// Length of a map that several leaves share. The whole map stays in memory until its last leaf is
/// freed.
const SHARED_LEN_BYTES: usize = 8 << 20;

/// Memory for leaves, in the order in which the leaves were added.
#[derive(Debug, Default)]
pub(super) struct Arena {
    maps: Vec<MmapMut>,
    places: Vec<Option<(usize, Range<usize>)>>,
    shared: Option<(usize, usize)>,
}

impl Arena {
    pub fn add(&mut self, len_bytes: u64) -> Result<()> {
        let too_much = || {
            Error::new(ErrorKind::Limit, format!("a leaf of {len_bytes} bytes does not fit in memory"))
                .help("read it in parts, by slices")
        };
        let len = usize::try_from(len_bytes).ok().filter(|&len| len <= isize::MAX as usize);
        let len = len.ok_or_else(too_much)?;
        let map = |len| MmapOptions::new().len(len).map_anon().map_err(|_| too_much());
        let place = if len == 0 {
            None
        } else if len > SHARED_LEN_BYTES / 2 {
            // A map of whole large pages begins at a page boundary.
            self.maps.push(map(len.checked_next_multiple_of(LARGE_PAGE_LEN_BYTES).ok_or_else(too_much)?)?);
            Some((self.maps.len() - 1, 0..len))
        } else {
            let shared = self.shared.filter(|(_, end)| end + len <= SHARED_LEN_BYTES);
            let (at, start) = match shared {
                Some(shared) => shared,
                None => {
                    self.maps.push(map(SHARED_LEN_BYTES)?);
                    (self.maps.len() - 1, 0)
                }
            };
            self.shared = Some((at, (start + len).next_multiple_of(ALIGN_BYTES)));
            Some((at, start..start + len))
        };
        self.places.push(place);
        Ok(())
    }

    pub fn pages(&self) -> Pages {
        let mut spans: Vec<(usize, usize)> = self.maps.iter().map(|map| (map.as_ptr().addr(), 0)).collect();
        for (map, place) in self.places.iter().flatten() {
            if let Some((_, len)) = spans.get_mut(*map) {
                *len = place.end;
            }
        }
        Pages::at(spans)
    }

    pub fn slices(&mut self) -> Vec<&mut [u8]> {
        let mut rests: Vec<(&mut [u8], usize)> = self.maps.iter_mut().map(|map| (&mut map[..], 0)).collect();
        let places = self.places.iter().map(|place| {
            let (map, place) = place.as_ref()?;
            let (rest, at) = rests.get_mut(*map)?;
            let (_, from) = std::mem::take(rest).split_at_mut_checked(place.start - *at)?;
            let (out, after) = from.split_at_mut_checked(place.len())?;
            (*rest, *at) = (after, place.end);
            Some(out)
        });
        places.map(Option::unwrap_or_default).collect()
    }

    /// The bytes of each leaf. Leaves of one map share the map without a copy.
    pub fn into_bytes(self) -> Vec<Bytes> {
        let maps: Vec<Bytes> = self.maps.into_iter().map(Bytes::from_owner).collect();
        let bytes = self.places.into_iter().map(|place| {
            let (map, place) = place?;
            maps.get(map).map(|map| map.slice(place))
        });
        bytes.map(Option::unwrap_or_default).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENS: [usize; 9] = [1, 0, 5 << 20, 63, 64, 3 << 20, 3 << 20, 3 << 20, 4096];

    #[test]
    fn every_leaf_has_memory_of_its_own_on_a_cache_line() {
        let mut arena = Arena::default();
        for len in LENS {
            arena.add(len as u64).unwrap();
        }
        assert_eq!(arena.maps.len(), 3);
        arena.pages().made_during(|| ());
        for (at, (out, len)) in arena.slices().into_iter().zip(LENS).enumerate() {
            assert_eq!(out.len(), len);
            assert!(out.iter().all(|&byte| byte == 0));
            out.fill(at as u8 + 1);
        }
        let bytes = arena.into_bytes();
        assert_eq!(bytes.len(), LENS.len());
        for (at, (found, len)) in bytes.iter().zip(LENS).enumerate() {
            assert_eq!(found.len(), len);
            assert!(found.iter().all(|&byte| byte == at as u8 + 1));
            assert!(found.is_empty() || found.as_ptr().addr() % ALIGN_BYTES == 0);
        }
    }

    #[test]
    fn what_there_is_no_memory_for_is_an_error() {
        for len in [u64::MAX, i64::MAX as u64, 1 << 62] {
            assert_eq!(Arena::default().add(len).unwrap_err().kind(), ErrorKind::Limit);
        }
    }
}
