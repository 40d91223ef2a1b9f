//! A leaf of an opened checkpoint as an array that is read when the writer needs it.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use super::super::Checkpoint;
use super::super::bands::band_elements;
use crate::array::{ArraySource, Region, copy_region, for_each_box};
use crate::bytes::limits::allocate;
use crate::error::{Error, Result, ResultExt};
use crate::formats::ReaderExt;
use crate::monitor::{Monitor, Stage};
use crate::tree::LeafInfo;

const BAND_LEN_BYTES: u64 = 16 << 20;

/// Keeps the last decoded band, and drops the band when the last byte of the leaf is read. So a
/// writer that takes leaves in order needs the memory of one band.
#[derive(Debug)]
pub(super) struct LeafSource {
    checkpoint: Checkpoint,
    leaf: usize,
    info: LeafInfo,
    state: Mutex<State>,
    monitor: Monitor,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    New,
    /// A raw leaf in a file, mapped and checked.
    View(Bytes),
    /// The band that begins at this byte.
    Band { start_bytes: u64, bytes: Bytes },
}

impl LeafSource {
    pub(super) fn new(checkpoint: &Checkpoint, leaf: usize, info: &LeafInfo, monitor: &Monitor) -> Self {
        Self {
            checkpoint: checkpoint.clone(),
            leaf,
            info: info.clone(),
            state: Mutex::default(),
            monitor: monitor.clone(),
        }
    }

    /// A view of the leaf; `None` if the leaf cannot be mapped, or if another program may write to
    /// the file and the options do not ask for views. Such a write would change bytes after their
    /// check, and a truncation would kill this process.
    fn view(&self) -> Result<Option<Bytes>> {
        let reader = self.checkpoint.reader();
        match self.checkpoint.has_views() {
            true => reader.view(self.leaf),
            false => Ok(None),
        }
    }

    /// Opens and checks the map of the leaf at the first call, if the leaf can have a map.
    fn begin(&self, state: &mut State) -> Result<()> {
        if !matches!(state, State::New) {
            return Ok(());
        }
        let reader = self.checkpoint.reader();
        *state = match self.view()? {
            Some(view) => {
                self.timed(self.info.len_bytes(), || reader.check_view(self.leaf))?;
                State::View(view)
            }
            None => State::Band { start_bytes: 0, bytes: Bytes::new() },
        };
        Ok(())
    }

    fn band_elements(&self) -> u64 {
        band_elements(self.checkpoint.reader(), self.leaf, &self.info, BAND_LEN_BYTES)
    }

    fn band_at(&self, offset_bytes: u64) -> Result<(u64, Bytes)> {
        let (shape, size) = (&self.info.shape, self.info.dtype.size_bytes() as u64);
        let step = self.band_elements();
        let first = offset_bytes / size / step * step;
        let count = step.min(shape.len_elements() - first);
        if count == shape.len_elements() {
            let read = || self.checkpoint.region(self.leaf, &Region::whole(shape))?.to_c_order();
            return Ok((0, self.timed(count * size, read)?));
        }
        let mut band = allocate(count * size)?;
        self.timed(count * size, || {
            for_each_box(shape, first, count, |region, at, count| {
                let (from, to) = ((at * size) as usize, ((at + count) * size) as usize);
                let out = band.get_mut(from..to).unwrap_or_default();
                self.checkpoint.reader().read_region(self.leaf, region, out)
            })
        })?;
        Ok((first * size, band.into()))
    }

    /// Calls `read` and counts its time as reading. Returns an error if the work is cancelled.
    fn timed<R>(&self, bytes: u64, read: impl FnOnce() -> Result<R>) -> Result<R> {
        self.monitor.check()?;
        self.monitor.timed(Stage::Read, bytes, read)
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
                        // Free the old band before reading the new one.
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
        drop(state);
        if offset == self.info.len_bytes() {
            self.release();
        }
        Ok(())
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
        let out_len_bytes = out.len() as u64;
        begun.at_leaf(&self.checkpoint.key_path(self.leaf)?)?;
        if let State::View(view) = &*state {
            let view = view.clone();
            drop(state);
            let origin = vec![0; region.rank()];
            let size = self.info.dtype.size_bytes();
            copy_region(size, &view, &self.info.shape, region, out, &region.shape(), &origin)?;
        } else {
            drop(state);
            let read = || self.checkpoint.region(self.leaf, region)?.copy_c_order(0, out);
            self.timed(out_len_bytes, read)?;
        }
        Ok(())
    }

    fn kept_len_bytes(&self) -> u64 {
        match self.view() {
            Ok(Some(_)) => 0,
            _ => self.band_elements() * self.info.dtype.size_bytes() as u64,
        }
    }

    fn release(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Band { start_bytes, bytes } = &mut *state {
            (*start_bytes, *bytes) = (0, Bytes::new());
        }
    }
}
