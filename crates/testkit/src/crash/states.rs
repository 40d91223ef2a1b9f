//! The possible contents of a disk after a power cut.

use std::collections::HashSet;
use std::sync::Arc;

use super::disk::{Change, Disk};
use super::record::{Event, Recording, Synced};

/// A write is torn at multiples of this.
const SECTOR_LEN_BYTES: usize = 512;

/// A write is torn into at most so many pieces.
const PIECES_MAX: usize = 8;

/// What a file system promises of what is not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// As little as POSIX says: any of it may be lost, in any order. A name is on disk once the
    /// folder is synced, what is in a file once the file is.
    Posix,
    /// As ext4: names are lost from the last one backwards, and any sync makes all names before it
    /// last. What is in files is lost as before.
    Journal,
}

/// A disk after a power cut.
#[derive(Debug)]
pub struct CrashState {
    /// How many of the recorded calls had been made.
    pub after: usize,
    /// Whether the child had made all its calls, and so had said how it ended.
    pub is_at_end: bool,
    /// What of them had been lost, for people.
    pub lost: String,
    /// What is on it.
    pub disk: Disk,
}

/// All states that a recording can leave, each once. Where much was not synced, some of its
/// subsets: none, all, each alone, all but each, the first ones, and some by chance.
#[derive(Debug)]
pub struct States<'r> {
    recording: &'r Recording,
    rules: Rules,
    /// The pieces that are lost or kept, each with the number of its call.
    pieces: Vec<(usize, Change)>,
    seen: HashSet<(bool, u64)>,
    after: usize,
    /// Calls from one look at the disk to the next.
    pace: usize,
    /// What is lost in the states to come of this call, as numbers of pieces.
    to_come: Vec<Vec<usize>>,
    random: u64,
}

impl<'r> States<'r> {
    /// The states of a recording; `seed` is for those that chance chooses.
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

    /// Only those after each so many calls, those right before a sync, where the most can be lost,
    /// and those at the end.
    #[must_use]
    pub fn paced(self, pace: usize) -> Self {
        Self { pace: pace.max(1), ..self }
    }

    /// The number of calls after which the disk is looked at next.
    fn next_look(&self) -> usize {
        let events = &self.recording.events;
        let farthest = events.len().min(self.after + self.pace);
        let is_before_sync = |at: &usize| matches!(events.get(*at), Some(Event::Sync { .. }));
        (self.after + 1..farthest).find(is_before_sync).unwrap_or(farthest)
    }

    /// Whether a change is on the disk in any case, after so many calls.
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

    /// The sets of pieces that may be lost after so many calls.
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

    /// The disk without some pieces; `None` if it has been seen, or if there is none like it.
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

/// Sets of what is lost.
fn subsets(open: &[usize], random: &mut u64) -> Vec<Vec<usize>> {
    let mut subsets = vec![Vec::new(), open.to_vec()];
    for (at, &piece) in open.iter().enumerate() {
        subsets.push(vec![piece]);
        subsets.push(open.iter().copied().filter(|&other| other != piece).collect());
        subsets.push(open.get(at..).unwrap_or_default().to_vec());
        let mut by_chance = || {
            // Of Marsaglia: enough to choose by.
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            *random & 1 == 0
        };
        subsets.push(open.iter().copied().filter(|_| by_chance()).collect());
    }
    subsets
}

/// The pieces that a change may be torn into.
fn torn(change: &Change, now: &Disk) -> Vec<Change> {
    let Change::Bytes { file, offset, bytes } = change else { return vec![change.clone()] };
    let mut pieces = Vec::new();
    let end = offset + bytes.len();
    if end > now.len_bytes(*file) {
        // The length may be on the disk before what is there.
        pieces.push(Change::Grow { file: *file, len: end });
    }
    let step = bytes.len().div_ceil(PIECES_MAX).next_multiple_of(SECTOR_LEN_BYTES);
    let mut first = 0;
    while first < bytes.len() {
        // At a border of the file's sectors, not of the write.
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
