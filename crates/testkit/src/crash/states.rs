//! The possible contents of a disk after a power cut.

use std::collections::HashSet;
use std::sync::Arc;

use super::disk::{Change, Disk};
use super::record::{Event, Recording, Synced};

/// A write is torn only at multiples of this.
const SECTOR_LEN_BYTES: usize = 512;

const PIECES_MAX: usize = 8;

/// The guarantees of a file system for changes that are not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// Only the guarantees of POSIX: any change may be lost, in any order. A name is on disk after
    /// a sync of the folder, and the content of a file after a sync of the file.
    Posix,
    /// The guarantees of ext4: names are lost only from the last one backwards, and every sync
    /// makes all earlier names durable. The content of files is lost as in `Posix`.
    Journal,
}

/// The content of a disk after a power cut.
#[derive(Debug)]
pub struct CrashState {
    /// The number of recorded calls before the power cut.
    pub after: usize,
    /// Whether the child had made all its calls, so that it had reported its result.
    pub is_at_end: bool,
    /// A description of the lost changes, for messages.
    pub lost: String,
    /// The content of the disk.
    pub disk: Disk,
}

/// All states that a recording can lead to, each once. If many changes were not synced, only some
/// subsets of them are lost: none, all, each alone, all but each, the last ones, and some random
/// ones.
#[derive(Debug)]
pub struct States<'r> {
    recording: &'r Recording,
    rules: Rules,
    /// The changes that may be lost, each with the number of its call.
    pieces: Vec<(usize, Change)>,
    seen: HashSet<(bool, u64)>,
    after: usize,
    /// The number of calls between two checks of the disk.
    pace: usize,
    /// The sets of changes that are lost in the next states, as indexes of `pieces`.
    to_come: Vec<Vec<usize>>,
    random: u64,
}

impl<'r> States<'r> {
    /// The states of a recording. `seed` determines the random subsets.
    pub fn new(recording: &'r Recording, rules: Rules, seed: u64) -> Self {
        let mut now = recording.before.clone();
        let mut pieces = Vec::new();
        for (at, event) in recording.events.iter().enumerate() {
            if let Event::Change(change) = event {
                pieces.extend(torn(change, &now).into_iter().map(|piece| (at, piece)));
                now.apply(change);
            }
        }
        let mut states = Self {
            recording,
            rules,
            pieces,
            seen: HashSet::new(),
            after: 0,
            pace: 1,
            to_come: Vec::new(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        };
        states.to_come = states.losses();
        states
    }

    /// Limits the states to those after every `pace` calls, those right before a sync, where most
    /// can be lost, and those at the end.
    #[must_use]
    pub fn paced(self, pace: usize) -> Self {
        Self { pace: pace.max(1), ..self }
    }

    /// The number of calls before the next check of the disk.
    fn next_look(&self) -> usize {
        let events = &self.recording.events;
        let farthest = events.len().min(self.after + self.pace);
        let is_before_sync = |at: &usize| matches!(events.get(*at), Some(Event::Sync { .. }));
        (self.after + 1..farthest).find(is_before_sync).unwrap_or(farthest)
    }

    /// Whether a change is certainly on the disk after the calls so far.
    fn is_synced(&self, at: usize, change: &Change) -> bool {
        let syncs = self.recording.events.iter().take(self.after).skip(at);
        syncs.into_iter().any(|event| match event {
            Event::Sync { before, .. } if *before <= at => false,
            Event::Sync { what: Synced::All, .. } => true,
            Event::Sync { what: Synced::Inode(inode), .. } => {
                change.is_of(*inode) || self.rules == Rules::Journal && change.is_of_names()
            }
            Event::Change(_) => false,
        })
    }

    /// The sets of changes that may be lost after the calls so far.
    fn losses(&mut self) -> Vec<Vec<usize>> {
        let made = self.pieces.iter().enumerate().filter(|(_, (at, _))| *at < self.after);
        let open: Vec<usize> =
            made.filter(|(_, (at, change))| !self.is_synced(*at, change)).map(|(piece, _)| piece).collect();
        let is_name =
            |piece: &&usize| self.pieces.get(**piece).is_some_and(|(_, change)| change.is_of_names());
        let (names, bytes): (Vec<usize>, Vec<usize>) = match self.rules {
            Rules::Posix => (Vec::new(), open.clone()),
            Rules::Journal => open.iter().copied().partition(|piece| is_name(&piece)),
        };
        let subsets = subsets(&bytes, &mut self.random);
        let mut losses = Vec::new();
        for kept in (0..=names.len()).rev() {
            let lost_names = names.get(kept..).unwrap_or_default();
            losses.extend(subsets.iter().map(|lost| [lost, lost_names].concat()));
        }
        losses
    }

    /// The disk without these changes; `None` if this state is not new or is not possible.
    fn state(&mut self, lost: &[usize]) -> Option<CrashState> {
        let is_at_end = self.after == self.recording.events.len();
        let lost: HashSet<usize> = lost.iter().copied().collect();
        let mut disk = self.recording.before.clone();
        let mut words = Vec::new();
        for (piece, (at, change)) in self.pieces.iter().enumerate() {
            if *at >= self.after {
                break;
            }
            match lost.contains(&piece) {
                false => disk.apply(change),
                true => words.push(format!("call {at}: {}", described(change))),
            }
        }
        let fingerprint = disk.fingerprint()?;
        self.seen.insert((is_at_end, fingerprint)).then(|| CrashState {
            after: self.after,
            is_at_end,
            lost: words.join("; "),
            disk,
        })
    }
}

impl Iterator for States<'_> {
    type Item = CrashState;

    fn next(&mut self) -> Option<CrashState> {
        loop {
            while let Some(lost) = self.to_come.pop() {
                if let Some(state) = self.state(&lost) {
                    return Some(state);
                }
            }
            if self.after == self.recording.events.len() {
                return None;
            }
            self.after = self.next_look();
            self.to_come = self.losses();
        }
    }
}

fn subsets(open: &[usize], random: &mut u64) -> Vec<Vec<usize>> {
    let mut subsets = vec![Vec::new(), open.to_vec()];
    for (at, &piece) in open.iter().enumerate() {
        subsets.push(vec![piece]);
        subsets.push(open.iter().copied().filter(|&other| other != piece).collect());
        subsets.push(open.get(at..).unwrap_or_default().to_vec());
        let mut by_chance = || {
            // Marsaglia's xorshift. It is random enough for choosing subsets.
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            *random & 1 == 0
        };
        subsets.push(open.iter().copied().filter(|_| by_chance()).collect());
    }
    subsets
}

/// The pieces into which a change may be torn.
fn torn(change: &Change, now: &Disk) -> Vec<Change> {
    let Change::Bytes { file, offset, bytes } = change else { return vec![change.clone()] };
    let mut pieces = Vec::new();
    let end = offset + bytes.len();
    if end > now.len_bytes(*file) {
        // The new length may be on the disk before the new bytes.
        pieces.push(Change::Grow { file: *file, len: end });
    }
    let step = bytes.len().div_ceil(PIECES_MAX).next_multiple_of(SECTOR_LEN_BYTES);
    let mut first = 0;
    while first < bytes.len() {
        // Tear at sectors of the file, not of the write.
        let last = ((offset + first + step) / SECTOR_LEN_BYTES * SECTOR_LEN_BYTES - offset).min(bytes.len());
        let piece = bytes.get(first..last).unwrap_or_default().to_vec();
        pieces.push(Change::Bytes { file: *file, offset: offset + first, bytes: Arc::new(piece) });
        first = last;
    }
    pieces
}

fn described(change: &Change) -> String {
    match change {
        Change::Names(names) => {
            let each = |(folder, name, to): &(usize, String, Option<usize>)| match to {
                Some(to) => format!("folder {folder} names {to} {name:?}"),
                None => format!("folder {folder} names {name:?} no more"),
            };
            names.iter().map(each).collect::<Vec<_>>().join(" and ")
        }
        Change::Bytes { file, offset, bytes } => format!("{} bytes at {offset} of file {file}", bytes.len()),
        Change::Grow { file, len } => format!("file {file} grows to {len}"),
        Change::Resize { file, len } => format!("file {file} is cut at {len}"),
    }
}
