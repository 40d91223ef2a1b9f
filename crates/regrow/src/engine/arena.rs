//! Memory for what a load brings: anonymous maps, in which each leaf's bytes begin on a cache line.
//!
//! ```text
//! map of 8 MiB   | leaf 0 | leaf 1 | leaf 3 |        a leaf of more than half of that has a map of its own
//!                   64-byte aligned                  a map is given back when the last of its leaves is let go
//! ```
//!
//! The pages of fresh memory are made when they are touched, and that takes longer than to read what goes there. An
//! allocator that zeroes memory itself touches all of it, with one thread, before the first read. From a map the
//! threads that fill it take the pages; and where the disk leaves time, [`Pages`] are made ahead, many in one call
//! (1 GiB with one thread: 0.57 s one by one, 0.38 s many in a call, 0.2 s as large pages). The system may look for a
//! large page by moving others out of the way, which can take seconds: so they are asked for one at a time, and no
//! more once one was slow to come.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use memmap2::{MmapMut, MmapOptions};

use crate::error::{Error, ErrorKind, Result};
use crate::store::{make_pages, want_large_page};

/// Leaves begin at multiples of this: a cache line, and what JAX takes over without a copy.
const ALIGN_BYTES: usize = 64;

/// Length of a map that leaves share. So much stays taken while one small leaf of it is still held.
const SHARED_LEN_BYTES: usize = 8 << 20;

/// Pages are made so many bytes at a time, a large page: in between somebody looks whether they are still wanted.
const STEP_LEN_BYTES: usize = 2 << 20;

/// A large page that takes longer had to be looked for: as small ones a step takes 0.7 ms.
const STEP_SECONDS_MAX: Duration = Duration::from_millis(1);

/// After a large page that was slow to come, so many steps are made of small ones.
const SMALL_STEPS: u32 = 64;

/// Memory for leaves, in the order in which it was asked for.
#[derive(Debug, Default)]
pub(super) struct Arena {
    maps: Vec<MmapMut>,
    /// For each leaf, its map and where in it; `None` for one without bytes.
    places: Vec<Option<(usize, Range<usize>)>>,
    /// The map that is shared, and how much of it is taken.
    shared: Option<(usize, usize)>,
}

impl Arena {
    /// Takes memory for one more leaf. It is zero.
    ///
    /// # Errors
    /// `Limit` if there is not that much.
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
            // Maps of whole large pages begin on one.
            self.maps.push(map(len.checked_next_multiple_of(STEP_LEN_BYTES).ok_or_else(too_much)?)?);
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

    /// The pages that leaves lie in.
    pub fn pages(&self) -> Pages {
        let mut spans: Vec<(usize, usize)> = self.maps.iter().map(|map| (map.as_ptr().addr(), 0)).collect();
        for (map, place) in self.places.iter().flatten() {
            if let Some((_, len)) = spans.get_mut(*map) {
                *len = place.end;
            }
        }
        Pages(spans)
    }

    /// The memory of each leaf, to be filled.
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

    /// The bytes of each leaf.
    pub fn into_bytes(self) -> Vec<Bytes> {
        let maps: Vec<Bytes> = self.maps.into_iter().map(Bytes::from_owner).collect();
        let bytes = self.places.into_iter().map(|place| {
            let (map, place) = place?;
            maps.get(map).map(|map| map.slice(place))
        });
        bytes.map(Option::unwrap_or_default).collect()
    }
}

/// Pages of fresh memory: where each run of them begins, and how many bytes it has.
#[derive(Debug)]
pub(crate) struct Pages(Vec<(usize, usize)>);

impl Pages {
    /// The pages of memory that nobody has touched yet.
    pub fn of<'a>(memory: impl Iterator<Item = &'a [u8]>) -> Self {
        Self(memory.map(|memory| (memory.as_ptr().addr(), memory.len())).collect())
    }

    /// Does `work`, and has a thread of its own make the pages in the meantime: front to back, as they are filled.
    /// Those that it has not come to are made when they are touched, as ever.
    pub fn made_during<R>(&self, work: impl FnOnce() -> R) -> R {
        if self.0.iter().all(|(_, len)| *len < STEP_LEN_BYTES) {
            return work();
        }
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            // If there is no thread to be had, the pages are made all the same.
            let _ = thread::Builder::new()
                .name("regrow-pages".to_owned())
                .spawn_scoped(scope, || self.make(&is_over));
            let done = work();
            is_over.store(true, Ordering::Relaxed);
            done
        })
    }

    fn make(&self, is_over: &AtomicBool) {
        let mut small_steps = 0_u32;
        for &(start, len) in &self.0 {
            let (mut at, end) = (start, start + len);
            while at < end {
                let next = (at / STEP_LEN_BYTES + 1).saturating_mul(STEP_LEN_BYTES).min(end);
                let is_large = next - at == STEP_LEN_BYTES && small_steps == 0;
                if is_large {
                    want_large_page(at, next - at);
                }
                let began = Instant::now();
                if is_over.load(Ordering::Relaxed) || !make_pages(at, next - at) {
                    return;
                }
                let was_slow = is_large && began.elapsed() > STEP_SECONDS_MAX;
                small_steps = if was_slow { SMALL_STEPS } else { small_steps.saturating_sub(1) };
                at = next;
            }
        }
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

    #[test]
    fn pages_are_made_until_nobody_wants_them() {
        // Of all maps that have a part of the range: large pages are asked for piece by piece, which cuts it up, and
        // what lies side by side is one map to the system.
        let resident = |at: usize, len: usize| {
            let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let range_of = |line: &str| {
                let (start, end) = line.split_once(' ').and_then(|(range, _)| range.split_once('-'))?;
                let parse = |text| usize::from_str_radix(text, 16).ok();
                parse(start).zip(parse(end))
            };
            let (mut is_in, mut sum) = (false, 0);
            for line in maps.lines() {
                if let Some((start, end)) = range_of(line) {
                    is_in = start < at + len && at < end;
                } else if let Some(size) = line.strip_prefix("Rss:").filter(|_| is_in) {
                    sum += size.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10;
                }
            }
            sum
        };
        const LEN: usize = 64 << 20;
        let mut arena = Arena::default();
        arena.add(LEN as u64).unwrap();
        let start = arena.maps[0].as_ptr().addr();
        let before = resident(start, LEN);
        arena.pages().make(&AtomicBool::new(true));
        assert!(resident(start, LEN) < before + LEN / 2);
        arena.pages().make(&AtomicBool::new(false));
        assert!(resident(start, LEN) >= before + LEN - STEP_LEN_BYTES, "{}", resident(start, LEN));
    }
}
