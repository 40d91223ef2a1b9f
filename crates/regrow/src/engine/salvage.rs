//! Salvage: what is intact in a damaged checkpoint, and what is lost of it.
//!
//! ```text
//! open      as asked; else leniently (under a seal that files do not fit, or without one that cannot be read); else bare
//! load      as ever: where nothing is wrong, that is all
//! verify    everything once: which leaves are damaged
//! load      the others; one that fails all the same is lost too
//! ```
//!
//! A leaf is given if it can be read and passes every checksum that is over it. Where no checksum is over it, nothing can
//! tell, and it is given as it is.

use std::collections::HashMap;

use super::{Checkpoint, LoadOptions, OpenOptions, open_with};
use crate::error::{Error, ErrorKind, Result};
use crate::location::{Location, ToLocation};
use crate::tree::{KeyPath, Leaf, LeafData, LeafKind, Tree};

/// What is intact of a checkpoint.
#[derive(Debug)]
#[non_exhaustive]
pub struct Salvaged {
    /// The leaves that are intact, in the whole structure: placeholders stand for those that are lost.
    pub tree: Tree<Leaf>,
    /// Why each lost leaf is lost, with its key path, and with file and offset where these are known. In flatten order.
    pub lost: Vec<Error>,
    /// What else is wrong: with the opening, or with files that no leaf lies in.
    pub damage: Vec<Error>,
    /// Whether damage to any leaf that was given would have been seen: all their bytes are under checksums.
    pub has_data_checksums: bool,
}

impl Salvaged {
    /// Whether nothing was lost, and nothing is wrong.
    pub fn is_whole(&self) -> bool {
        self.lost.is_empty() && self.damage.is_empty()
    }
}

/// Loads what is intact in the checkpoint at a path or URL, where [`load`](super::load) gives an error: the leaves that can be
/// read and pass all checksums that are over them. What is intact as a whole comes as from a load, and costs the same;
/// what is damaged is read twice. With trusted keys only proved leaves are given.
///
/// # Errors
/// As [`open`](super::open), if the checkpoint cannot be opened in any way; `Corrupt` if no leaf is intact; `Mismatch` if a
/// template does not fit; `InvalidArgument` with [`unverified`](LoadOptions::unverified) or leaves that are
/// [`unread`](LoadOptions::unread); `Cancelled`.
pub fn salvage(path: impl ToLocation, options: &LoadOptions) -> Result<Salvaged> {
    if options.unverified || !options.unread.is_empty() {
        return Err(Error::invalid("what is salvaged is read, and verified")
            .help("leave out that nothing is to be verified, and the leaves that are not to be read"));
    }
    let at = path.to_location()?;
    let mut damage = Vec::new();
    let checkpoint = open_somehow(&at, &options.open, &mut damage)?;
    let (tree, lost) = intact(&checkpoint, options, &mut damage)?;
    let has_data_checksums = checkpoint.reader().standing().has_data_checksums;
    Ok(Salvaged { tree, lost, damage, has_data_checksums })
}

/// Opens a checkpoint in the first way that works. Errors of the others before it are damage.
fn open_somehow(at: &Location, options: &OpenOptions, damage: &mut Vec<Error>) -> Result<Checkpoint> {
    let error = match open_with(at, options) {
        Ok(checkpoint) => return Ok(checkpoint),
        Err(error) if is_damage(&error) => error,
        Err(error) => return Err(error),
    };
    let lenient = OpenOptions { salvage: true, strict: false, ..options.clone() };
    let bare = OpenOptions { bare: true, ..lenient.clone() };
    let opened = open_with(at, &lenient).or_else(|_| open_with(at, &bare));
    match opened {
        Ok(checkpoint) => {
            damage.push(error);
            Ok(checkpoint)
        }
        Err(_) => Err(error),
    }
}

fn is_damage(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Corrupt | ErrorKind::Limit | ErrorKind::Unsupported | ErrorKind::NotFound | ErrorKind::Io
    )
}

/// The tree without what is lost, and what that is.
fn intact(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    damage: &mut Vec<Error>,
) -> Result<(Tree<Leaf>, Vec<Error>)> {
    // Patterns that match nothing and templates that do not fit are the caller's errors.
    let mut wanted: Vec<usize> =
        checkpoint.select(options)?.into_iter().flatten().map(|selected| selected.leaf).collect();
    wanted.sort_unstable();
    match checkpoint.load(options) {
        Ok(tree) => return Ok((tree, Vec::new())),
        Err(error) if is_damage(&error) => {}
        Err(error) => return Err(error),
    }
    let places: HashMap<&KeyPath, usize> =
        checkpoint.paths().iter().enumerate().map(|(leaf, path)| (path, leaf)).collect();
    let place_of = |error: &Error| error.place().leaf.as_ref().and_then(|path| places.get(path).copied());
    let mut lost: HashMap<usize, Error> = HashMap::new();
    match checkpoint.verify_watched(&options.monitor) {
        Ok(report) => {
            for finding in report.findings {
                match place_of(&finding.error) {
                    Some(leaf) => drop(lost.insert(leaf, finding.error)),
                    None => damage.push(finding.error),
                }
            }
        }
        Err(error) if is_damage(&error) => damage.push(error),
        Err(error) => return Err(error),
    }
    // Each round but the last one loses a leaf.
    let tree = loop {
        let options = LoadOptions { unread: lost.keys().copied().collect(), ..options.clone() };
        match checkpoint.load(&options) {
            Ok(tree) => break tree,
            Err(error) if is_damage(&error) => match place_of(&error) {
                Some(leaf) if !lost.contains_key(&leaf) => drop(lost.insert(leaf, error)),
                _ => return Err(error),
            },
            Err(error) => return Err(error),
        }
    };
    let mut lost: Vec<(usize, Error)> =
        lost.into_iter().filter(|(leaf, _)| wanted.binary_search(leaf).is_ok()).collect();
    lost.sort_unstable_by_key(|(leaf, _)| *leaf);
    if lost.len() == wanted.len()
        && let Some((_, first)) = lost.first()
    {
        return Err(first.duplicate().help("no leaf is intact: nothing can be salvaged"));
    }
    Ok((without_lost(tree)?, lost.into_iter().map(|(_, error)| error).collect()))
}

/// What was not read is a placeholder: a kind without data would look like a leaf that is there.
fn without_lost(tree: Tree<Leaf>) -> Result<Tree<Leaf>> {
    let leaf = |leaf: &Leaf| match (&leaf.data, &leaf.kind) {
        (LeafData::Absent, LeafKind::Unknown(_)) => leaf.clone(),
        (LeafData::Absent, _) => Leaf { kind: LeafKind::Placeholder, data: LeafData::Absent, sharding: None },
        _ => leaf.clone(),
    };
    tree.with_leaves(tree.leaves().iter().map(leaf).collect())
}
