//! A leaf of an opened checkpoint as an array that is read when the writer wants it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::super::Checkpoint;
use super::super::bands::band_elements;
use super::Reporter;
use crate::array::{ArraySource, Region, copy_region, for_each_box};
use crate::bytes::limits::allocate;
use crate::error::{Error, Result, ResultExt};
use crate::tree::LeafInfo;

/// Bytes of a band.
const BAND_LEN_BYTES: u64 = 16 << 20;

/// One leaf. It keeps the band that it decoded last, and gives it up when the last byte has been read:
/// a writer that takes one leaf after the other costs the memory of one band.
#[derive(Debug)]
pub(super) struct LeafSource {
    checkpoint: Checkpoint,
    leaf: usize,
    info: LeafInfo,
    state: Mutex<State>,
    /// How far it has been read, for the progress report: pieces may be read twice.
    reached_bytes: AtomicU64,
    reporter: Arc<Reporter>,
}

#[derive(Debug, Default)]
enum State {
    /// Nobody has asked yet.
    #[default]
    New,
    /// It lies raw in a file, mapped and checked.
    View(Bytes),
    /// The band that begins at this byte.
    Band { start_bytes: u64, bytes: Bytes },
}

impl LeafSource {
    pub(super) fn new(
        checkpoint: &Checkpoint,
        leaf: usize,
        info: &LeafInfo,
        reporter: &Arc<Reporter>,
    ) -> Self {
        Self {
            checkpoint: checkpoint.clone(),
            leaf,
            info: info.clone(),
            state: Mutex::default(),
            reached_bytes: AtomicU64::new(0),
            reporter: reporter.clone(),
        }
    }

    /// The map, if there is one; looked for and checked once.
    fn begin(&self, state: &mut State) -> Result<()> {
        if !matches!(state, State::New) {
            return Ok(());
        }
        let reader = self.checkpoint.reader();
        *state = match reader.view(self.leaf)? {
            Some(view) => {
                reader.check_view(self.leaf)?;
                State::View(view)
            }
            None => State::Band { start_bytes: 0, bytes: Bytes::new() },
        };
        Ok(())
    }

    /// Reads the band that holds `offset_bytes`.
    fn band_at(&self, offset_bytes: u64) -> Result<(u64, Bytes)> {
        let (shape, size) = (&self.info.shape, self.info.dtype.size_bytes() as u64);
        let step = band_elements(&self.info, BAND_LEN_BYTES);
        let first = offset_bytes / size / step * step;
        let count = step.min(shape.len_elements() - first);
        if count == shape.len_elements() {
            return Ok((0, self.checkpoint.region(self.leaf, &Region::whole(shape))?.to_c_order()?));
        }
        let mut band = allocate(count * size)?;
        for_each_box(shape, first, count, |region, at, count| {
            let (from, to) = ((at * size) as usize, ((at + count) * size) as usize);
            self.checkpoint.reader().read_region(
                self.leaf,
                region,
                band.get_mut(from..to).unwrap_or_default(),
            )
        })?;
        Ok((first * size, band.into()))
    }

    fn reached(&self, end_bytes: u64) -> Result<()> {
        let before = self.reached_bytes.fetch_max(end_bytes, Ordering::Relaxed);
        self.reporter.add(end_bytes.saturating_sub(before))
    }

    fn copy(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.begin(&mut state)?;
        let mut offset = offset_bytes;
        let mut rest = out;
        while !rest.is_empty() {
            let (start, bytes) = match &mut *state {
                State::View(view) => (0, view.clone()),
                State::Band { start_bytes, bytes } => {
                    if offset < *start_bytes || offset >= *start_bytes + bytes.len() as u64 {
                        // The old band goes before the new one comes.
                        *bytes = Bytes::new();
                        (*start_bytes, *bytes) = self.band_at(offset)?;
                    }
                    (*start_bytes, bytes.clone())
                }
                State::New => return Err(Error::invalid("a leaf was read before it was opened")),
            };
            let kept = bytes.get((offset - start) as usize..).unwrap_or_default();
            let len = kept.len().min(rest.len());
            if len == 0 {
                return Err(Error::corrupt("a leaf ends early")
                    .expected(format_args!("{} bytes", self.info.len_bytes()), start + bytes.len() as u64));
            }
            let (now, later) = rest.split_at_mut(len);
            now.copy_from_slice(kept.get(..len).unwrap_or_default());
            offset += len as u64;
            rest = later;
        }
        if let (true, State::Band { start_bytes, bytes }) = (offset == self.info.len_bytes(), &mut *state) {
            (*start_bytes, *bytes) = (0, Bytes::new());
        }
        drop(state);
        self.reached(offset)
    }
}

impl ArraySource for LeafSource {
    fn read_c_order(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        self.checkpoint
            .unless_replaced(self.copy(offset_bytes, out))
            .at_leaf(&self.checkpoint.key_path(self.leaf)?)
    }

    fn read_region(&self, region: &Region, out: &mut [u8]) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = self.begin(&mut state);
        begun.at_leaf(&self.checkpoint.key_path(self.leaf)?)?;
        if let State::View(view) = &*state {
            let view = view.clone();
            drop(state);
            let origin = vec![0; region.rank()];
            let size = self.info.dtype.size_bytes();
            copy_region(size, &view, &self.info.shape, region, out, &region.shape(), &origin)?;
        } else {
            drop(state);
            let part = self.checkpoint.region(self.leaf, region)?;
            part.copy_c_order(0, out)?;
        }
        let read = self.reached_bytes.load(Ordering::Relaxed).saturating_add(out.len() as u64);
        self.reached(read.min(self.info.len_bytes()))
    }
}
