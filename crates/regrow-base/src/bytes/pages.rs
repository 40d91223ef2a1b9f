//! Pages of new memory, made in one call for many pages instead of one by one at the first access.
//!
//! Making pages takes longer than reading the data for them:
//!
//! | 1 GiB of pages, one thread | takes |
//! |---|---|
//! | one by one, as they are touched | 0.57 s |
//! | many in a call | 0.38 s |
//! | as large pages | 0.2 s |
//!
//! But for a large page the system may first have to move other pages, which can take seconds for a
//! gigabyte. So large pages are requested one at a time. After a slow one, no more are requested
//! for a while.
//!
//! | type | makes |
//! |---|---|
//! | [`Pages`] | all pages, front to back, on one thread while other threads fill them |
//! | [`FreshPages`] | the next few pages, on the thread that fills them |

use std::alloc::{Layout, alloc_zeroed};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::system::{make_large_page, make_pages, page_size};

/// Length of a large page. At most this much memory is prepared at a time. In between, the thread
/// checks whether the pages are still needed.
pub const LARGE_PAGE_LEN_BYTES: usize = 2 << 20;

/// Small pages are prepared in groups of this length, and filled while they are in the processor's
/// cache.
const RUN_LEN_BYTES: usize = 512 << 10;

/// For less memory than this, the pages are not prepared ahead.
const FRESH_LEN_MIN_BYTES: usize = 128 << 10;

/// If a large page takes longer than this, the system had to search for it. Such a page takes about
/// 7 ms, a free one 0.4 ms, and small pages of this length 0.7 ms. The time is the processor time
/// of this thread, so other programs do not count.
const LARGE_PAGE_TIME_MAX: Duration = Duration::from_millis(2);

/// After a slow large page, this much memory gets small pages.
const SMALL_LEN_BYTES: usize = 128 << 20;

/// Bytes that still get small pages before the next large one. All threads share the number,
/// because the whole system lacks large pages.
static SMALL_LEFT_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Zeroed memory whose pages the system makes at the first access. `None` if the system lacks the
/// memory; `vec!` would abort.
pub fn zeroed(len_bytes: u64) -> Option<Vec<u8>> {
    let len = usize::try_from(len_bytes).ok()?;
    let layout = Layout::array::<u8>(len).ok()?;
    if len == 0 {
        return Some(Vec::new());
    }
    // SAFETY: the layout has a length.
    let memory = unsafe { alloc_zeroed(layout) };
    if memory.is_null() {
        return None;
    }
    // SAFETY: the allocator that vectors use gave `len` bytes, aligned as bytes are, and all of
    // them are zero.
    Some(unsafe { Vec::from_raw_parts(memory, len, len) })
}

/// Pages of new memory: the address and length of each range.
#[derive(Debug)]
pub struct Pages(Vec<(usize, usize)>);

impl Pages {
    /// The pages of untouched memory, given by address and length.
    #[inline]
    pub fn at(spans: Vec<(usize, usize)>) -> Self {
        Self(spans)
    }

    /// The pages of memory that other code has allocated; some of them may exist already. Ranges
    /// without a page between them are combined, so that large pages can cover both.
    pub fn of_all<'m>(memories: impl IntoIterator<Item = &'m [u8]>) -> Self {
        let spans = memories.into_iter().filter(|memory| !memory.is_empty());
        let mut spans: Vec<(usize, usize)> =
            spans.map(|memory| (memory.as_ptr().addr(), memory.len())).collect();
        spans.sort_unstable();
        let page_len = page_size();
        let mut joined: Vec<(usize, usize)> = Vec::with_capacity(spans.len());
        for (start, len) in spans {
            match joined.last_mut() {
                Some((first, before)) if start / page_len <= (*first + *before - 1) / page_len + 1 => {
                    *before = (*before).max(start + len - *first);
                }
                _ => joined.push((start, len)),
            }
        }
        Self(joined)
    }

    /// Calls `work`. At the same time another thread makes the pages, in the order in which `work`
    /// fills them. The system makes the remaining pages at the first access, as usual.
    pub fn made_during<R>(&self, work: impl FnOnce() -> R) -> R {
        if self.0.iter().all(|(_, len)| *len < LARGE_PAGE_LEN_BYTES) {
            return work();
        }
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            // If no thread starts, the system makes the pages when they are touched.
            let _ = thread::Builder::new()
                .name("regrow-pages".to_owned())
                .spawn_scoped(scope, || self.make(&is_over));
            let done = work();
            is_over.store(true, Ordering::Relaxed);
            done
        })
    }

    fn make(&self, is_over: &AtomicBool) {
        for &(start, len_bytes) in &self.0 {
            let mut pages = FreshPages { start, len_bytes, made_bytes: 0 };
            while pages.made_bytes < len_bytes {
                if is_over.load(Ordering::Relaxed) || !pages.make_more() {
                    return;
                }
            }
        }
    }
}

/// Memory whose pages may not exist yet, and the length up to which they were made.
#[derive(Debug)]
pub struct FreshPages {
    start: usize,
    len_bytes: usize,
    made_bytes: usize,
}

impl FreshPages {
    /// The pages of `memory`, which the caller will fill in order. If the memory is short, its
    /// pages are made at the first access.
    pub fn of(memory: &[u8]) -> Self {
        let len_bytes = memory.len();
        let made_bytes = if len_bytes < FRESH_LEN_MIN_BYTES { len_bytes } else { 0 };
        Self { start: memory.as_ptr().addr(), len_bytes, made_bytes }
    }

    /// Makes the pages of the first `len_bytes`, and a few more.
    pub fn make_to(&mut self, len_bytes: usize) {
        while self.made_bytes < len_bytes.min(self.len_bytes) {
            if !self.make_more() {
                // Count all pages as made: the system makes each of them when it is touched.
                self.made_bytes = self.len_bytes;
            }
        }
    }

    /// Makes the next large page or group of small pages. Returns `false` if the system cannot.
    fn make_more(&mut self) -> bool {
        let at = self.start + self.made_bytes;
        let left = self.len_bytes - self.made_bytes;
        let is_large = at.is_multiple_of(LARGE_PAGE_LEN_BYTES)
            && left >= LARGE_PAGE_LEN_BYTES
            && SMALL_LEFT_BYTES.load(Ordering::Relaxed) == 0;
        if is_large {
            let Some(time) = make_large_page(at, LARGE_PAGE_LEN_BYTES) else { return false };
            if time > LARGE_PAGE_TIME_MAX {
                SMALL_LEFT_BYTES.store(SMALL_LEN_BYTES, Ordering::Relaxed);
            }
            self.made_bytes += LARGE_PAGE_LEN_BYTES;
            return true;
        }
        let to_large = LARGE_PAGE_LEN_BYTES - at % LARGE_PAGE_LEN_BYTES;
        let run = RUN_LEN_BYTES.min(left).min(to_large);
        let less = |small_left: usize| Some(small_left.saturating_sub(run));
        let _ = SMALL_LEFT_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.made_bytes += run;
        make_pages(at, run)
    }
}

#[cfg(test)]
mod tests {
    use memmap2::MmapOptions;

    use super::*;

    // Only Linux can make pages ahead.
    #[cfg(all(target_os = "linux", not(feature = "portable")))]
    #[test]
    fn pages_are_made_until_no_longer_wanted() {
        // Add up all maps with a part of the range. Requests for large pages split the range into
        // several maps, and the system combines adjacent maps.
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
        let map = MmapOptions::new().len(LEN).map_anon().unwrap();
        let (start, pages) = (map.as_ptr().addr(), Pages::at(vec![(map.as_ptr().addr(), LEN)]));
        let before = resident(start, LEN);
        pages.make(&AtomicBool::new(true));
        assert!(resident(start, LEN) < before + LEN / 2);
        pages.make(&AtomicBool::new(false));
        assert!(resident(start, LEN) >= before + LEN - LARGE_PAGE_LEN_BYTES, "{}", resident(start, LEN));
    }

    #[test]
    fn memories_that_no_page_lies_between_are_one() {
        let page = page_size();
        let map = MmapOptions::new().len(8 * page).map_anon().unwrap();
        let base = map.as_ptr().addr();
        let cut = |from: usize, to: usize| &map[from..to];
        // The cases: adjacent ranges, ranges in neighbouring pages, ranges with a page between
        // them, empty ranges.
        let memories = [cut(5 * page, 6 * page), cut(page, 2 * page - 9), cut(2 * page + 16, 3 * page + 1)];
        let all = Pages::of_all([memories.as_slice(), &[cut(0, 10), cut(10, 20), cut(7, 7)]].concat());
        assert_eq!(all.0, [(base, 3 * page + 1), (base + 5 * page, page)]);
    }

    #[cfg(all(target_os = "linux", not(feature = "portable")))]
    #[test]
    fn pages_of_a_filling_thread_are_made_up_to_its_position_and_keep_their_bytes() {
        let mut map = MmapOptions::new().len(4 << 20).map_anon().unwrap();
        map[7] = 7;
        let mut pages = FreshPages::of(&map[5..]);
        pages.make_to(1);
        assert!((1..=RUN_LEN_BYTES).contains(&pages.made_bytes));
        pages.make_to(usize::MAX);
        assert_eq!(pages.made_bytes, map.len() - 5);
        assert!(map.iter().enumerate().all(|(at, &byte)| (byte == 7) == (at == 7)));
        FreshPages::of(&[]).make_to(9);
    }

    #[cfg(all(target_os = "linux", not(feature = "portable")))]
    #[test]
    fn after_a_large_page_that_was_slow_some_are_made_small() {
        let map = MmapOptions::new().len(4 * LARGE_PAGE_LEN_BYTES).map_anon().unwrap();
        let before = map.as_ptr().addr().next_multiple_of(LARGE_PAGE_LEN_BYTES) - map.as_ptr().addr();
        let mut pages = FreshPages::of(&map[before..]);
        SMALL_LEFT_BYTES.store(LARGE_PAGE_LEN_BYTES - 1, Ordering::Relaxed);
        for run in 1..=LARGE_PAGE_LEN_BYTES / RUN_LEN_BYTES {
            assert!(pages.make_more());
            assert_eq!(pages.made_bytes, run * RUN_LEN_BYTES);
        }
        assert_eq!(SMALL_LEFT_BYTES.load(Ordering::Relaxed), 0);
        assert!(pages.make_more());
        assert_eq!(pages.made_bytes, 2 * LARGE_PAGE_LEN_BYTES, "then a large one is asked for again");
    }
}
