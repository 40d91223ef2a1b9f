//! Objects with blocks kept on a local disk.
//!
//! Every request goes to the storage except reads of a version with a strong tag. Such a read is
//! assembled from blocks. A block comes from the [`Cache`] if the cache has the block. Adjacent
//! missing blocks are fetched by one request, directly into the destination. If a read
//! of more than 1 MiB needs a part of a block, a separate request fetches the whole block.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::{Extent, Facts, Keys, Object, ObjectWrites, Objects};
use crate::bytes::limits::work_space;
use crate::cache::{BLOCK_LEN_BYTES, Cache, Source};
use crate::error::Result;
use crate::threads::for_each_parallel;

/// Longest read whose first and last blocks are fetched in one request.
const ONE_REQUEST_LEN_MAX_BYTES: usize = 4 * BLOCK_LEN_BYTES as usize;

/// Concurrent requests of one read: the first block, the last block, and the bytes between.
const REQUESTS: usize = 3;

#[derive(Debug)]
pub(crate) struct CachedObjects {
    objects: Arc<dyn Objects>,
    cache: Cache,
    /// Identifies the storage among all others.
    name: String,
}

/// Adjacent blocks that the cache lacks, and the buffer for their wanted bytes.
struct Run<'a> {
    blocks: Range<u64>,
    /// The offset of the first wanted byte in the object.
    start: u64,
    out: &'a mut [u8],
}

/// The same objects, with blocks kept in `cache`; `None` for a storage that is not cached.
pub(crate) fn cached(objects: &Arc<dyn Objects>, cache: &Cache) -> Option<Arc<dyn Objects>> {
    let name = objects.cache_name()?;
    Some(Arc::new(CachedObjects { objects: Arc::clone(objects), cache: cache.clone(), name }))
}

impl CachedObjects {
    /// The identity of blocks of this version; `None` if its tag is weak, because different
    /// contents may share a weak tag.
    fn source<'a>(&'a self, object: &'a Object) -> Option<Source<'a>> {
        let tag = object.tag.e_tag().filter(|tag| !tag.starts_with("W/"))?;
        Some(Source { storage: &self.name, key: &object.key, tag, len_bytes: object.len_bytes })
    }

    fn fetch(&self, object: &Object, source: &Source<'_>, run: Run<'_>) -> Result<()> {
        let whole =
            run.blocks.start * BLOCK_LEN_BYTES..(run.blocks.end * BLOCK_LEN_BYTES).min(object.len_bytes);
        if whole == (run.start..run.start + run.out.len() as u64) {
            self.objects.read(object, whole.start, run.out)?;
            self.keep(source, run.blocks.start, run.out);
            return Ok(());
        }
        let mut bytes = work_space(whole.end - whole.start)?;
        self.objects.read(object, whole.start, &mut bytes)?;
        let skip = (run.start - whole.start) as usize;
        if let Some(wanted) = bytes.get(skip..skip + run.out.len()) {
            run.out.copy_from_slice(wanted);
        }
        self.keep(source, run.blocks.start, &bytes);
        Ok(())
    }

    fn keep(&self, source: &Source<'_>, first: u64, bytes: &[u8]) {
        for (position, block) in (first..).zip(bytes.chunks(BLOCK_LEN_BYTES as usize)) {
            self.cache.keep(source, position, block);
        }
    }
}

/// Splits a read into blocks. Each has its position, the offset of the first wanted byte in the
/// block, and the buffer for the bytes.
fn blocks(offset_bytes: u64, mut out: &mut [u8]) -> Vec<(u64, usize, &mut [u8])> {
    let mut blocks = Vec::new();
    let mut at = offset_bytes;
    while !out.is_empty() {
        let (position, skip) = (at / BLOCK_LEN_BYTES, (at % BLOCK_LEN_BYTES) as usize);
        let len = (BLOCK_LEN_BYTES as usize - skip).min(out.len());
        let (part, rest) = out.split_at_mut(len);
        blocks.push((position, skip, part));
        (out, at) = (rest, at + len as u64);
    }
    blocks
}

impl Objects for CachedObjects {
    fn url(&self, key: &str) -> String {
        self.objects.url(key)
    }

    fn facts(&self) -> Facts {
        // A request ahead would fetch the whole object, even if the cache has its blocks.
        Facts { ahead_len_max_bytes: 0, ..self.objects.facts() }
    }

    fn head(&self, key: &str) -> Result<Option<Object>> {
        self.objects.head(key)
    }

    fn get_up_to(&self, key: &str, len_max_bytes: u64) -> Result<Option<(Bytes, Object)>> {
        self.objects.get_up_to(key, len_max_bytes)
    }

    fn read(&self, object: &Object, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        let is_inside = offset_bytes.saturating_add(out.len() as u64) <= object.len_bytes;
        let Some(source) = self.source(object).filter(|_| is_inside) else {
            return self.objects.read(object, offset_bytes, out);
        };
        let is_short = out.len() <= ONE_REQUEST_LEN_MAX_BYTES;
        // The wanted bytes that the cache lacks, as ranges of `out`.
        let mut missing: Vec<Range<usize>> = Vec::new();
        let mut at = 0;
        for (position, skip, part) in blocks(offset_bytes, out) {
            let range = at..at + part.len();
            at = range.end;
            if self.cache.read(&source, position, skip, part) {
                continue;
            }
            // A block that is wanted only in part gets a request of its own, so that whole blocks
            // arrive directly in `out`.
            let is_whole = skip == 0 && is_end_of_block(object, offset_bytes + range.end as u64);
            match missing.last_mut() {
                Some(last)
                    if last.end == range.start
                        && (is_short || is_whole && is_aligned(offset_bytes, last)) =>
                {
                    last.end = range.end;
                }
                _ => missing.push(range),
            }
        }
        let mut runs = Vec::with_capacity(missing.len());
        let (mut rest, mut at) = (out, 0);
        for range in missing {
            let (_, after) = rest.split_at_mut(range.start - at);
            let (part, after) = after.split_at_mut(range.len());
            let start = offset_bytes + range.start as u64;
            let end = start + part.len() as u64;
            runs.push(Run {
                blocks: start / BLOCK_LEN_BYTES..end.div_ceil(BLOCK_LEN_BYTES),
                start,
                out: part,
            });
            (rest, at) = (after, range.end);
        }
        let threads = runs.len().min(REQUESTS);
        for_each_parallel(threads, runs, u64::MAX, |_| 0, |run| self.fetch(object, &source, run))
    }

    fn whole(&self, object: &Object) -> Result<Option<Bytes>> {
        self.objects.whole(object)
    }

    fn keys(&self, begins: &str, extent: Extent) -> Result<Keys> {
        self.objects.keys(begins, extent)
    }

    fn writes(&self, key: &str) -> Result<&dyn ObjectWrites> {
        self.objects.writes(key)
    }

    fn cache_name(&self) -> Option<String> {
        None
    }
}

fn is_aligned(offset_bytes: u64, range: &Range<usize>) -> bool {
    (offset_bytes + range.start as u64).is_multiple_of(BLOCK_LEN_BYTES)
}

/// Whether `end` is the end of a block or of the object.
fn is_end_of_block(object: &Object, end: u64) -> bool {
    end == object.len_bytes || end.is_multiple_of(BLOCK_LEN_BYTES)
}
