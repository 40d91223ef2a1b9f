//! Salvage: loads the intact leaves of a damaged checkpoint, and lists the losses.
//!
//! ```text
//! open      with the caller's options. If this fails: leniently. Then the layout opens the
//!           remaining files, and a seal counts only for files that fit the seal. If a leaf still
//!           cannot be opened, the salvage also opens the arrays only. The opening with more
//!           openable leaves counts
//! load      if the first opening worked: all leaves. If this works too, the salvage ends here.
//!           If a leaf is damaged, the salvage opens the checkpoint again, leniently
//! verify    reads everything once, and finds the damaged leaves
//! load      the intact leaves. A leaf that still fails is lost too
//! ```
//!
//! Salvage returns a leaf if it can be read and passes every checksum that covers it. A leaf
//! without a checksum is returned unchecked.
//!
//! [`open_intact`] stops after the verification. It returns a checkpoint with placeholders for lost
//! leaves, so that every operation on a checkpoint (a conversion, regions, lazy leaves) works on
//! the rest.

use std::collections::HashMap;

use super::view::View;
use super::{Checkpoint, LoadOptions, OpenOptions, open_with};
use crate::error::{Error, Result};
use crate::formats::located;
use crate::location::{Location, ToLocation};
use crate::monitor::Monitor;
use crate::options::LostFiles;
use crate::reads::{Source, Unreadable};
use crate::tree::{KeyPath, Leaf, LeafData, LeafInfo, LeafKind, Tree};

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

/// A checkpoint opened in the first way that worked.
struct Opened {
    checkpoint: Checkpoint,
    is_bare: bool,
    options: OpenOptions,
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
    let mut damage = Vec::new();
    let mut opened = open_somehow(&at, &options.open, &mut damage)?;
    if damage.is_empty() {
        match opened.checkpoint.load(options) {
            Ok(tree) => {
                let has_data_checksums = opened.checkpoint.reader().standing().has_data_checksums;
                let (lost, is_bare) = (Vec::new(), opened.is_bare);
                return Ok(Salvaged { tree, lost, damage, is_bare, has_data_checksums });
            }
            Err(error) if error.kind().is_damage() => opened = opened.leniently(&at, &mut damage),
            Err(error) => return Err(error),
        }
    }
    let Opened { checkpoint, is_bare, .. } = opened;
    let (tree, lost) = intact(&checkpoint, options, &mut damage)?;
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
    let opened = open_somehow(&at, options, &mut damage)?;
    let Opened { checkpoint, is_bare, .. } = opened.leniently(&at, &mut damage);
    let lost = lost_leaves(&checkpoint, monitor, &mut damage)?;
    let leaves = 0..checkpoint.tree().len();
    let lost_errors = listed(&lost, leaves.clone().filter(|leaf| lost.contains_key(leaf)), leaves.len())?;
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

/// Opens a checkpoint in the first way that works. Errors of earlier ways count as damage.
fn open_somehow(at: &Location, options: &OpenOptions, damage: &mut Vec<Error>) -> Result<Opened> {
    let error = match open_with(at, options) {
        Ok(checkpoint) => return Ok(Opened { checkpoint, is_bare: false, options: options.clone() }),
        Err(error) if error.kind().is_damage() => error,
        Err(error) => return Err(error),
    };
    let lenient = OpenOptions { salvage: true, lost_files: LostFiles::Warn, ..options.clone() };
    let arrays_only = OpenOptions { arrays_only: true, ..lenient.clone() };
    let mut best: Option<(usize, Opened)> = None;
    for (options, is_bare) in [(lenient, false), (arrays_only, true)] {
        let Ok(checkpoint) = open_with(at, &options) else { continue };
        let (len, openable) = (checkpoint.tree().len(), openable_len(&checkpoint));
        // Opening by names alone may find arrays whose pytree is lost.
        if best.as_ref().is_none_or(|(before, _)| openable > *before) {
            best = Some((openable, Opened { checkpoint, is_bare, options }));
        }
        if openable == len {
            break;
        }
    }
    let Some((_, mut opened)) = best else { return Err(error) };
    damage.push(error);
    // The warnings list other files that were missing at the opening.
    let warnings = &opened.checkpoint.description().warnings;
    damage.extend(warnings.iter().map(|warning| Error::corrupt(warning.as_str()).in_file(at)));
    opened.is_bare |= opened.checkpoint.reader().standing().has_lost_pytree;
    Ok(opened)
}

/// Whether a leaf can be opened, so that its data may be intact.
fn is_openable(checkpoint: &Checkpoint, leaf: usize) -> bool {
    !matches!(checkpoint.reader().source(leaf), Ok(Source::Unreadable(_)) | Err(_))
}

fn openable_len(checkpoint: &Checkpoint) -> usize {
    (0..checkpoint.tree().len()).filter(|&leaf| is_openable(checkpoint, leaf)).count()
}

impl Opened {
    /// Opens the checkpoint again so that files with another length than recorded are read as far
    /// as possible. Items that could not be opened before count as damage.
    fn leniently(self, at: &Location, damage: &mut Vec<Error>) -> Self {
        let has_items = self.checkpoint.reader().standing().items.is_some();
        let leaves = if has_items && !self.options.salvage { self.checkpoint.tree().len() } else { 0 };
        for leaf in 0..leaves {
            if let Ok(Source::Unreadable(Unreadable { why, is_sound: false, .. })) =
                self.checkpoint.reader().source(leaf)
            {
                damage.push(self.checkpoint.of_leaf(leaf, why));
            }
        }
        let options = OpenOptions { salvage: true, ..self.options.clone() };
        match open_with(at, &options) {
            Ok(checkpoint) => Self { checkpoint, options, ..self },
            Err(_) => self,
        }
    }
}

/// The tree with placeholders for lost leaves, and the reason for each loss.
fn intact(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    damage: &mut Vec<Error>,
) -> Result<(Tree<Leaf>, Vec<Error>)> {
    // Patterns without a match and templates that do not fit are errors of the caller. Whether a
    // leaf that cannot be opened would fit is unknown.
    let unread = (0..checkpoint.tree().len()).filter(|&leaf| !is_openable(checkpoint, leaf)).collect();
    let selected = checkpoint.select(&LoadOptions { unread, ..options.clone() })?;
    let mut wanted: Vec<usize> = selected.into_iter().flatten().map(|selected| selected.leaf).collect();
    wanted.sort_unstable();
    let mut lost = lost_leaves(checkpoint, &options.monitor, damage)?;
    let places = Places::of(checkpoint);
    // Each round except the last finds one more lost leaf.
    let tree = loop {
        let options = LoadOptions { unread: lost.keys().copied().collect(), ..options.clone() };
        match checkpoint.load(&options) {
            Ok(tree) => break tree,
            Err(error) if error.kind().is_damage() => match places.of_leaf(&error) {
                Some(leaf) if !lost.contains_key(&leaf) => drop(lost.insert(leaf, error)),
                _ => return Err(error),
            },
            Err(error) => return Err(error),
        }
    };
    let errors = listed(&lost, wanted.iter().copied().filter(|leaf| lost.contains_key(leaf)), wanted.len())?;
    Ok((without_lost(tree)?, errors))
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

/// The errors of these lost leaves. Returns an error if all wanted leaves are lost.
fn listed(
    lost: &HashMap<usize, Error>,
    leaves: impl Iterator<Item = usize>,
    wanted_len: usize,
) -> Result<Vec<Error>> {
    let errors: Vec<Error> = leaves.filter_map(|leaf| lost.get(&leaf)).map(Error::duplicate).collect();
    match errors.first() {
        Some(first) if errors.len() == wanted_len => Err(first.duplicate().help(
            "no leaf is intact, so nothing can be salvaged; try `regrow repair` \
                with parity or a copy (`--from`)",
        )),
        _ => Ok(errors),
    }
}

/// Replaces unread leaves by placeholders, because a leaf without data would look like a real one.
fn without_lost(tree: Tree<Leaf>) -> Result<Tree<Leaf>> {
    let leaf = |leaf: &Leaf| match (&leaf.data, &leaf.kind) {
        (LeafData::Absent, LeafKind::Unknown(_)) => leaf.clone(),
        (LeafData::Absent, _) => Leaf { kind: LeafKind::Placeholder, data: LeafData::Absent, sharding: None },
        _ => leaf.clone(),
    };
    tree.with_leaves(tree.leaves().iter().map(leaf).collect())
}
