//! Leaves as memory of this process: private maps of their files, without copies.

use std::collections::HashMap;
use std::path::PathBuf;

use super::load::short_blocks;
use super::{Checkpoint, RegionOptions};
use crate::error::Result;
use crate::formats::ReaderExt;
use crate::monitor::{Monitor, Stage};
use crate::reads::{CheckFor, Extent, MappedPlace, PrivateMaps, check_ahead};
use crate::threads::pool;

impl Checkpoint {
    /// Private maps of the files with raw leaves, and the place of each leaf. Writes to a map do
    /// not reach its file. If a leaf has gaps or another axis order, its place spans from its first
    /// to its last element. A leaf that is encoded, or not on a local disk, has no place.
    ///
    /// Every leaf that has a place is checked first, unless `options` turn the checks off.
    ///
    /// # Errors
    /// `InvalidArgument` if a leaf does not exist; `Corrupt` with file, leaf and offset;
    /// `Replaced`; `Cancelled`.
    #[doc(hidden)]
    pub fn map_private(&self, leaves: &[usize], options: &RegionOptions) -> Result<PrivateMaps> {
        let monitor = &options.monitor;
        let running = monitor.begin();
        let mapped = running
            .and_then(|_running| self.unless_replaced(self.mapped(leaves, options.unverified, monitor)));
        monitor.conclude(mapped)
    }

    fn mapped(&self, leaves: &[usize], unverified: bool, monitor: &Monitor) -> Result<PrivateMaps> {
        monitor.enter(Stage::Read);
        let mut spans: Vec<(usize, Extent<'_>)> = Vec::with_capacity(leaves.len());
        for (at, &leaf) in leaves.iter().enumerate() {
            self.info(leaf)?;
            let span = self.reader().span(leaf).map_err(|error| self.of_leaf(leaf, error))?;
            spans.extend(span.filter(|span| span.is_viewable && span.len_bytes > 0).map(|span| (at, span)));
        }
        let mut maps = PrivateMaps { files: Vec::new(), places: vec![None; leaves.len()] };
        let mut known: HashMap<PathBuf, Option<usize>> = HashMap::new();
        let mut kept = Vec::with_capacity(spans.len());
        for (at, span) in spans {
            let name = span.blob.describe();
            let file = match known.get(&name) {
                Some(&file) => file,
                None => {
                    let file = span.blob.map_private()?.map(|map| {
                        maps.files.push(map);
                        maps.files.len() - 1
                    });
                    known.insert(name, file);
                    file
                }
            };
            let place = file.map(|file| MappedPlace {
                file,
                offset_bytes: span.offset_bytes,
                len_bytes: span.len_bytes,
            });
            if let Some(slot) = maps.places.get_mut(at).filter(|_| place.is_some()) {
                *slot = place;
                kept.push((at, span));
            }
        }
        if !unverified {
            self.check_spans(leaves, kept, monitor)?;
        }
        monitor.finish()?;
        Ok(maps)
    }

    /// Checks all blocks that contain bytes of the spans. A block of several leaves is checked
    /// once.
    fn check_spans(
        &self,
        leaves: &[usize],
        mut spans: Vec<(usize, Extent<'_>)>,
        monitor: &Monitor,
    ) -> Result<()> {
        monitor.expect(spans.iter().map(|(_, span)| span.len_bytes).fold(0, u64::saturating_add));
        spans.sort_by_cached_key(|(_, span)| (span.blob.describe(), span.offset_bytes));
        check_ahead(spans.iter().filter_map(|(_, span)| short_blocks(span)), CheckFor::Views, Some(monitor))?;
        pool::for_each_parallel(
            pool::thread_count(),
            spans,
            u64::MAX,
            |_| 0,
            |(at, span)| {
                let leaf = leaves.get(at).copied().unwrap_or_default();
                span.check(CheckFor::Views).map_err(|error| self.of_leaf(leaf, error))?;
                let is_told = short_blocks(&span).is_some();
                if is_told { Ok(()) } else { monitor.done(Stage::Read, span.len_bytes) }
            },
        )
    }
}
