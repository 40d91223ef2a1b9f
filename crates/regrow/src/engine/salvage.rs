//! Salvage: loads the intact leaves of a damaged checkpoint, and lists the losses.
//!
//! ```text
//! load      opens with the caller's options, and loads all leaves. If this works, the salvage ends
//! open      leniently: the layout opens the remaining files, and a seal counts only for files that
//!           fit the seal. If a leaf still cannot be opened, the salvage also opens the arrays only.
//!           The opening with more openable leaves counts
//! verify    reads everything once, and finds the damaged leaves
//! load      the intact leaves, with placeholders for lost leaves
//! ```
//!
//! Salvage returns a leaf if it can be read and passes every checksum that covers it. A leaf
//! without a checksum is returned unchecked.
//!
//! [`open_intact`] stops after the verification. It returns a checkpoint with placeholders for lost
//! leaves, so that every operation on a checkpoint (a conversion, regions, lazy leaves) works on
//! the rest.

use std::collections::{HashMap, HashSet};

use super::view::View;
use super::{Checkpoint, LoadOptions, OpenOptions, open_with};
use crate::error::{Error, Result};
use crate::formats::located;
use crate::location::{Location, ToLocation};
use crate::monitor::Monitor;
use crate::options::LostFiles;
use crate::reads::{Source, Unreadable};
use crate::tree::{KeyPath, Leaf, LeafInfo, LeafKind, Tree};

/// The intact part of a checkpoint.
#[derive(Debug)]
#[non_exhaustive]
pub struct Salvaged {
    /// The pytree with the intact leaves. Placeholders replace lost leaves.
    pub tree: Tree<Leaf>,
    /// The reason for each lost leaf, with its key path, and with file and offset if known, in
    /// flatten order.
    pub lost: Vec<Error>,
    /// Damage outside of leaves: errors of the opening, and damage in files that hold no leaves.
    pub damage: Vec<Error>,
    /// Whether the pytree is lost, in its own file or in a file that also holds an array. Then
    /// `tree` holds the remaining arrays by their names.
    pub is_bare: bool,
    /// Whether checksums cover all bytes of the returned leaves, so that any damage is found.
    pub has_data_checksums: bool,
}

impl Salvaged {
    /// Whether nothing is lost or damaged.
    pub fn is_whole(&self) -> bool {
        self.lost.is_empty() && self.damage.is_empty()
    }
}

/// Loads the intact leaves of the checkpoint at a path or URL: leaves that can be read and pass all
/// their checksums. Use it if [`load`](super::load) returns an error. An intact checkpoint costs
/// the same as a load; damaged files are read twice. With trusted keys only proved leaves are
/// returned.
///
/// # Errors
/// The errors of [`open`](super::open), if the checkpoint cannot be opened in any way; `Corrupt` if
/// no leaf is intact; `Mismatch` if a template does not fit; `InvalidArgument` with
/// [`unverified`](LoadOptions::unverified) or leaves that are [`unread`](LoadOptions::unread);
/// `Cancelled`.
pub fn salvage(path: impl ToLocation, options: &LoadOptions) -> Result<Salvaged> {
    if options.unverified || !options.unread.is_empty() {
        return Err(Error::invalid("a salvage reads and verifies all leaves")
            .help("leave out the options that skip verification or leaves"));
    }
    let at = located(path)?;
    match open_with(&at, &options.open).and_then(|checkpoint| Ok((checkpoint.load(options)?, checkpoint))) {
        Ok((tree, checkpoint)) => {
            let has_data_checksums = checkpoint.reader().standing().has_data_checksums;
            let (lost, damage) = (Vec::new(), Vec::new());
            return Ok(Salvaged { tree, lost, damage, is_bare: false, has_data_checksums });
        }
        Err(error) if error.kind().is_damage() => {}
        Err(error) => return Err(error),
    }
    let Intact { checkpoint, mut lost, damage, is_bare } = open_intact(&at, &options.open, &options.monitor)?;
    let places = Places::of(&checkpoint);
    // Whether a lost leaf would fit the template is unknown.
    let unread = lost.iter().filter_map(|error| places.of_leaf(error)).collect();
    let options = LoadOptions { unread, ..options.clone() };
    let wanted: HashSet<usize> =
        checkpoint.select(&options)?.into_iter().flatten().map(|selected| selected.leaf).collect();
    lost.retain(|error| places.of_leaf(error).is_some_and(|leaf| wanted.contains(&leaf)));
    refuse_nothing(&lost, wanted.len())?;
    let tree = checkpoint.load(&options)?;
    let has_data_checksums = checkpoint.reader().standing().has_data_checksums;
    Ok(Salvaged { tree, lost, damage, is_bare, has_data_checksums })
}

/// The intact part of a checkpoint, opened.
#[derive(Debug)]
#[non_exhaustive]
pub struct Intact {
    /// The opened checkpoint. Its tree has placeholders for lost leaves, which are never read.
    pub checkpoint: Checkpoint,
    /// The reason for each lost leaf, as in [`Salvaged::lost`].
    pub lost: Vec<Error>,
    /// Other damage, as [`Salvaged::damage`].
    pub damage: Vec<Error>,
    /// Whether the pytree is lost, as [`Salvaged::is_bare`].
    pub is_bare: bool,
}

/// Opens the intact part of the checkpoint at a path or URL in the first way that works, and
/// verifies all of it.
///
/// # Errors
/// The errors of [`open`](super::open), if the checkpoint cannot be opened in any way; `Corrupt` if
/// no leaf is intact; `Cancelled`.
pub fn open_intact(path: impl ToLocation, options: &OpenOptions, monitor: &Monitor) -> Result<Intact> {
    let mut damage = Vec::new();
    let at = located(path)?;
    let (checkpoint, is_bare) = open_somehow(&at, options, &mut damage)?;
    let lost = lost_leaves(&checkpoint, monitor, &mut damage)?;
    let leaf_count = checkpoint.tree().len();
    let lost_errors: Vec<Error> =
        (0..leaf_count).filter_map(|leaf| lost.get(&leaf)).map(Error::duplicate).collect();
    refuse_nothing(&lost_errors, leaf_count)?;
    if lost.is_empty() {
        return Ok(Intact { checkpoint, lost: lost_errors, damage, is_bare });
    }
    let info = |(leaf, info): (usize, &LeafInfo)| match lost.contains_key(&leaf) {
        true => LeafInfo { kind: LeafKind::Placeholder, sharding: None, ..info.clone() },
        false => info.clone(),
    };
    let infos = checkpoint.tree().leaves().iter().enumerate().map(info).collect();
    let tree = checkpoint.tree().with_leaves(infos)?;
    let from = (0..tree.len()).map(|leaf| (!lost.contains_key(&leaf)).then_some(leaf)).collect();
    let intact = checkpoint.read_by(|whole| Box::new(View::new(whole, tree, from)));
    Ok(Intact { checkpoint: intact, lost: lost_errors, damage, is_bare })
}

/// Opens a checkpoint so that all intact files are read, in the first way that works. Also returns
/// whether the pytree is lost. Errors of earlier ways count as damage.
fn open_somehow(at: &Location, options: &OpenOptions, damage: &mut Vec<Error>) -> Result<(Checkpoint, bool)> {
    let lenient = OpenOptions { salvage: true, ..options.clone() };
    let error = match open_with(at, options) {
        Ok(checkpoint) => {
            // Items that could not be opened are damage.
            let has_items = checkpoint.reader().standing().items.is_some();
            for leaf in 0..if has_items { checkpoint.tree().len() } else { 0 } {
                if let Ok(Source::Unreadable(Unreadable { why, is_sound: false, .. })) =
                    checkpoint.reader().source(leaf)
                {
                    damage.push(checkpoint.of_leaf(leaf, why));
                }
            }
            // Files with another length than recorded are read as far as possible.
            return Ok((open_with(at, &lenient).unwrap_or(checkpoint), false));
        }
        Err(error) if error.kind().is_damage() => error,
        Err(error) => return Err(error),
    };
    let lenient = OpenOptions { lost_files: LostFiles::Warn, ..lenient };
    let arrays_only = OpenOptions { arrays_only: true, ..lenient.clone() };
    let mut best: Option<(usize, Checkpoint, bool)> = None;
    for (options, is_bare) in [(lenient, false), (arrays_only, true)] {
        let Ok(checkpoint) = open_with(at, &options) else { continue };
        let is_openable =
            |leaf: &usize| !matches!(checkpoint.reader().source(*leaf), Ok(Source::Unreadable(_)) | Err(_));
        let leaf_count = checkpoint.tree().len();
        let openable = (0..leaf_count).filter(is_openable).count();
        // Opening by names alone may find arrays whose pytree is lost.
        if best.as_ref().is_none_or(|(before, ..)| openable > *before) {
            best = Some((openable, checkpoint, is_bare));
        }
        if openable == leaf_count {
            break;
        }
    }
    let Some((_, checkpoint, is_bare)) = best else { return Err(error) };
    damage.push(error);
    // The warnings list other files that were missing at the opening.
    let warnings = &checkpoint.description().warnings;
    damage.extend(warnings.iter().map(|warning| Error::corrupt(warning.as_str()).in_file(at)));
    let is_bare = is_bare || checkpoint.reader().standing().has_lost_pytree;
    Ok((checkpoint, is_bare))
}

/// The leaves of a checkpoint by their key paths.
struct Places<'c>(HashMap<&'c KeyPath, usize>);

impl<'c> Places<'c> {
    fn of(checkpoint: &'c Checkpoint) -> Self {
        Self(checkpoint.paths().iter().enumerate().map(|(leaf, path)| (path, leaf)).collect())
    }

    fn of_leaf(&self, error: &Error) -> Option<usize> {
        error.place().leaf.as_ref().and_then(|path| self.0.get(path).copied())
    }
}

/// The leaves in which a verification finds damage, by position. Other findings go to `damage`.
fn lost_leaves(
    checkpoint: &Checkpoint,
    monitor: &Monitor,
    damage: &mut Vec<Error>,
) -> Result<HashMap<usize, Error>> {
    let places = Places::of(checkpoint);
    let mut lost = HashMap::new();
    match checkpoint.verify_watched(monitor) {
        Ok(report) => {
            for finding in report.findings {
                match places.of_leaf(&finding.error) {
                    // A finding about a sharding or a view does not mean that the numbers are
                    // damaged, so read them.
                    Some(leaf) if checkpoint.read_error(leaf, monitor)?.is_some() => {
                        lost.insert(leaf, finding.error);
                    }
                    _ => damage.push(finding.error),
                }
            }
        }
        Err(error) if error.kind().is_damage() => {
            // The verification ended before it had read all leaves, so read each leaf here.
            damage.push(error);
            for leaf in 0..checkpoint.tree().len() {
                if let Some(error) = checkpoint.read_error(leaf, monitor)? {
                    lost.insert(leaf, error);
                }
            }
        }
        Err(error) => return Err(error),
    }
    // A leaf with an unreadable form cannot be loaded, even if its bytes are sound.
    for leaf in 0..checkpoint.tree().len() {
        if let Ok(Source::Unreadable(Unreadable { why, .. })) = checkpoint.reader().source(leaf) {
            lost.entry(leaf).or_insert_with(|| checkpoint.of_leaf(leaf, why));
        }
    }
    Ok(lost)
}

/// Returns an error if all leaves are lost.
fn refuse_nothing(lost: &[Error], leaf_count: usize) -> Result<()> {
    match lost.first() {
        Some(first) if lost.len() == leaf_count => Err(first.duplicate().help(
            "no leaf is intact, so nothing can be salvaged; try `regrow repair` with parity or a copy (`--from`)",
        )),
        _ => Ok(()),
    }
}
