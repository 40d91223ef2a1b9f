//! A leaf of an opened checkpoint as an array that is read when the writer wants it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::super::Checkpoint;
use super::super::verify::band_rows;
use super::Reporter;
use crate::array::{ArraySource, Region, copy_region};
use crate::error::{Error, Result, ResultExt};
use crate::tree::LeafInfo;

/// One leaf. It keeps the band of rows that it decoded last, and gives it up when the last byte has been read:
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

    /// Reads the band that holds `offset_bytes`: a whole number of chunks high, so that none is decoded twice.
    fn band_at(&self, offset_bytes: u64) -> Result<(u64, Bytes)> {
        let shape = &self.info.shape;
        let whole = Region::whole(shape);
        let (Some(&rows), Some(step)) = (shape.dims().first(), band_rows(&self.info)) else {
            return Ok((0, self.read(&whole)?));
        };
        let row_bytes = self.info.len_bytes() / rows.max(1);
        let first = offset_bytes / row_bytes.max(1) / step * step;
        let (mut starts, mut lens) = (whole.starts().to_vec(), whole.lens().to_vec());
        if let (Some(start), Some(len)) = (starts.first_mut(), lens.first_mut()) {
            (*start, *len) = (first, step.min(rows - first));
        }
        Ok((first * row_bytes, self.read(&Region::new(starts, lens)?)?))
    }

    fn read(&self, region: &Region) -> Result<Bytes> {
        self.checkpoint.region(self.leaf, region)?.to_c_order()
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
