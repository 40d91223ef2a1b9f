//! Rewrites damaged files from their intact blocks and the restored blocks.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;

use super::guard::Guard;
use super::is_damage;
use super::lost_marker::{is_lost_marker, is_marker, not_put_back};
use super::proof::{Proof, refused};
use super::restored::RestoredBlocks;
use super::rewrite::rewrite_file;
use super::scan::Damage;
use crate::bytes::limits::work_space;
use crate::engine::parity::{Run, RunFile};
use crate::error::{Error, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::parity::Geometry;
use crate::store::ReadPath;

/// A damaged file that was repaired.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HealedFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The number of bytes in it that were restored.
    pub bytes: u64,
}

/// The result of rewriting the damaged files.
#[derive(Debug, Default)]
pub(super) struct Healed {
    pub healed: Vec<HealedFile>,
    pub lost: Vec<Error>,
    /// Damaged blocks of files that are not rewritten.
    pub left_blocks: BTreeSet<u64>,
}

/// The repair of the files of a run.
pub(super) struct Heal<'h, 'r> {
    pub folder: &'h Location,
    pub run: &'r Run,
    pub geometry: Geometry,
    pub damage: &'r Damage,
    pub restored: RestoredBlocks<'r>,
    pub guard: &'h Guard<'h>,
    /// The sealed or signed state of the files.
    pub proof: &'h Proof,
    pub is_check: bool,
    pub monitor: &'h Monitor,
}

impl Heal<'_, '_> {
    /// Rewrites each damaged file and renames it over the old one. Blocks that cannot be restored
    /// keep their bytes. A missing or truncated file with a lost block stays unchanged. A file that
    /// matches its seal or signature also stays: it was changed on purpose after the parity was
    /// made. A missing marker is written last, and only if nothing is lost.
    /// After an error, files that were already written are complete, and all others are unchanged.
    pub fn all(&mut self) -> Result<Healed> {
        let mut done = Healed::default();
        let run = self.run;
        let (markers, others): (Vec<_>, Vec<_>) =
            run.files().iter().enumerate().partition(|(_, file)| is_marker(self.folder, &file.name));
        for (number, file) in others.into_iter().chain(markers) {
            self.monitor.check()?;
            let blocks = self.geometry.blocks_of(file.range.clone());
            let bad: Vec<u64> = self.damage.data.range(blocks).copied().collect();
            let is_misfit = self.damage.misfits.contains(&number);
            if bad.is_empty() && !is_misfit {
                continue;
            }
            if !done.lost.is_empty() && is_lost_marker(self.folder, &file.name)? {
                done.lost.push(not_put_back(self.at(file), None));
                done.left_blocks.extend(bad);
                continue;
            }
            if self.is_as_sealed(file)? {
                done.left_blocks.extend(bad);
                continue;
            }
            done.lost.extend(self.lost_of(file, &bad));
            if self.has_holes(file, &bad, is_misfit)? {
                done.left_blocks.extend(bad);
                continue;
            }
            let changed = self.changed_bytes(file, &bad)?;
            if !is_misfit && changed == 0 {
                continue;
            }
            if !self.would_be_as_sealed(file, &bad)? {
                done.lost.push(refused(&self.at(file)));
                done.left_blocks.extend(bad);
                continue;
            }
            if !self.is_check {
                self.write(file, &bad)?;
            }
            done.healed.push(HealedFile { path: self.at(file).describe(), bytes: changed });
        }
        Ok(done)
    }

    /// Whether a file matches its seal or signature; false if there is neither.
    fn is_as_sealed(&self, file: &RunFile) -> Result<bool> {
        if self.proof.is_none() {
            return Ok(false);
        }
        let at = self.at(file);
        let blob = match self.run.store().open(file.name.as_bytes()) {
            Err(error) if is_damage(&error, &at) => None,
            blob => blob?,
        };
        let Some(blob) = blob else { return Ok(self.proof.has_none(&at)) };
        let all = |_: Range<u64>| true;
        self.proof.fits(&at, blob.len_bytes(), &all, &mut |offset_bytes, out| match blob.read(
            offset_bytes,
            out,
            ReadPath::Cached,
        ) {
            Err(error) if is_damage(&error, &at) => Ok(false),
            read => read.map(|()| true),
        })
    }

    /// Whether the restored file would match its seal or signature; true if there is neither.
    fn would_be_as_sealed(&mut self, file: &RunFile, bad: &[u64]) -> Result<bool> {
        let (at, start, geometry) = (self.at(file), file.range.start, self.geometry);
        let bad: BTreeSet<u64> = bad.iter().copied().collect();
        let (lost, restored): (BTreeSet<u64>, BTreeSet<u64>) =
            bad.iter().partition(|block| self.restored.lost.contains(block));
        let wanted = |part: Range<u64>| {
            let meets = |blocks: &BTreeSet<u64>| {
                blocks.range(geometry.blocks_of(start + part.start..start + part.end)).next().is_some()
            };
            meets(&restored) && !meets(&lost)
        };
        let (proof, len_bytes) = (self.proof, file.range.end - start);
        proof.fits(&at, len_bytes, &wanted, &mut |offset_bytes, out| {
            self.fill(file, &bad, offset_bytes, out).map(|()| true)
        })
    }

    /// Whether some lost bytes of a file have no source at all: even the damaged file does not have
    /// them.
    fn has_holes(&self, file: &RunFile, bad: &[u64], is_misfit: bool) -> Result<bool> {
        for &block in bad.iter().filter(|block| self.restored.lost.contains(block)) {
            let range = self.part(file, block);
            let mut present = work_space(range.end - range.start)?;
            if is_misfit || !self.run.read_if_there(range.start, &mut present)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn at(&self, file: &RunFile) -> Location {
        self.folder.join(&file.name)
    }

    /// The lost bytes of a file as errors, one error for each run of blocks.
    fn lost_of(&self, file: &RunFile, bad: &[u64]) -> Vec<Error> {
        let lost: BTreeSet<u64> =
            bad.iter().copied().filter(|block| self.restored.lost.contains(block)).collect();
        let mut runs: Vec<Range<u64>> = Vec::new();
        for block in lost {
            let range = self.geometry.range(block);
            match runs.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => runs.push(range),
            }
        }
        let error = |range: Range<u64>| {
            let start = range.start.max(file.range.start) - file.range.start;
            let end = range.end.min(file.range.end) - file.range.start;
            // If files share a block, its checksum does not say which of the files is damaged.
            let is_shared = range.start < file.range.start || range.end > file.range.end;
            let are = if is_shared { "may be" } else { "are" };
            Error::corrupt(format!(
                "{} bytes {are} lost: more is damaged than the parity can heal",
                end - start
            ))
            .in_file(self.at(file))
            .at_byte(start)
            .help("pass `--from` to take data from a copy")
        };
        runs.into_iter().map(error).collect()
    }

    /// The number of restored bytes that differ from the current file.
    fn changed_bytes(&mut self, file: &RunFile, bad: &[u64]) -> Result<u64> {
        let mut changed = 0;
        for &block in bad {
            let range = self.part(file, block);
            let mut present = work_space(range.end - range.start)?;
            let is_there = self.run.read_if_there(range.start, &mut present)?;
            let Some(bytes) = self.restored_part(&range, block)? else { continue };
            let differing = bytes.iter().zip(&present).filter(|(to, from)| to != from).count();
            changed += if is_there { differing as u64 } else { range.end - range.start };
        }
        Ok(changed)
    }

    fn part(&self, file: &RunFile, block: u64) -> Range<u64> {
        let range = self.geometry.range(block);
        range.start.max(file.range.start)..range.end.min(file.range.end)
    }

    /// The restored bytes of a range within a block.
    fn restored_part(&mut self, range: &Range<u64>, block: u64) -> Result<Option<&[u8]>> {
        let start = self.geometry.range(block).start;
        let within = (range.start - start) as usize..(range.end - start) as usize;
        Ok(self.restored.get(block)?.and_then(|bytes| bytes.get(within)))
    }

    fn write(&mut self, file: &RunFile, bad: &[u64]) -> Result<()> {
        let len_bytes = file.range.end - file.range.start;
        let bad: BTreeSet<u64> = bad.iter().copied().collect();
        let (folder, guard) = (self.folder, self.guard);
        rewrite_file(folder, &file.name, len_bytes, guard, &mut |offset_bytes, out| {
            self.fill(file, &bad, offset_bytes, out)
        })
    }

    /// Fills `out` with bytes of the repaired file from `offset_bytes` on.
    fn fill(&mut self, file: &RunFile, bad: &BTreeSet<u64>, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        let start = file.range.start + offset_bytes;
        let end = start + out.len() as u64;
        let (mut at, mut left) = (start, out);
        while at < end {
            let blocks = self.geometry.blocks_of(at..end);
            let block = blocks.start;
            // Read good blocks together, up to the next damaged block.
            let next_bad = bad.range(blocks).next().copied();
            let to = match next_bad {
                Some(next) if next == block => self.geometry.range(block).end.min(end),
                Some(next) => self.geometry.range(next).start.min(end),
                None => end,
            };
            let (now, later) = left.split_at_mut((to - at) as usize);
            if next_bad == Some(block) {
                match self.restored_part(&(at..to), block)? {
                    Some(bytes) => now.copy_from_slice(bytes),
                    None => self.run.read(at, now)?,
                }
            } else {
                self.run.read(at, now)?;
            }
            (at, left) = (to, later);
        }
        Ok(())
    }
}
