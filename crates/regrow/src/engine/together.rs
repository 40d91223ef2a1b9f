//! Saves by all processes of a job: each process writes its shards, and rank 0 commits.
//!
//! ```text
//! phase      rank 0                                     other ranks
//! begin      waits for all processes                    wait for all processes
//! check      options, target, patterns                  options, patterns
//! probe      writes a file in the target's folder       check that they see the file
//! tree       the trees are equal; leaves that each process holds whole have equal bytes
//! publish    begins the checkpoint, sends its ticket    join the checkpoint
//! write      writes its shards                          write their shards and sync them
//! commit     merges the shares, renames                 wait
//! ```
//!
//! Every phase ends in an agreement: if one process fails, all fail, and nothing is committed.
//! After the checkpoint has its final name, the storage decides: a process that lost the connection
//! checks whether the checkpoint exists.

use std::collections::BTreeMap;
use std::ops::Deref;

use bytes::Bytes;

use super::checks::{check_losses, check_name, check_options, check_place, check_rules, how_published};
use super::side_files::SideFiles;
use super::{SaveOptions, SaveReport};
use crate::array::{Array, Shape};
use crate::coordination::{Job, Session};
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::formats::structure::{LeafColumns, Structure};
use crate::formats::{Format, ManyWriters, WriterRank};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::storage::within::Within;
use crate::storage::{BegunFolder, JoinedFolder, NewFolder, PublishOptions, Retries};
use crate::text::counted;
use crate::tree::{Leaf, LeafData, Tree};

const NAMED_MAX: usize = 8;

pub(super) fn save_together(
    at: &Location,
    tree: &Tree<Leaf>,
    options: &SaveOptions,
    job: &Job,
    may_commit: &dyn Fn() -> Result<()>,
) -> Result<SaveReport> {
    let session = job.begin(at, "save", &options.monitor)?;
    let writer = writer_of(&session);
    let format = options.layout.format();
    let many = session.agree("check", check(format, at, tree, options, writer))?;
    session.shares_storage(at)?;
    check_same_tree(&session, tree, options)?;
    check_same_bytes(&session, tree)?;

    let data_bytes = held_len_bytes(tree);
    options.monitor.expect(data_bytes);
    let mut side_files = SideFiles::of(options);
    let publication = publish_together(&session, at, side_files.noted(how_published(options)))?;
    let written = many.write_share(tree, writer, &*publication, options).and_then(|()| may_commit());
    let reused_bytes = publication.reused_bytes();
    let merge = |folder: &dyn BegunFolder| {
        many.merge(tree, &(0..writer.count).collect::<Vec<_>>(), folder, options)?;
        side_files.before(folder)
    };
    let stored_bytes = publication.commit(Some(&session), written, merge, &options.monitor)?;
    if writer.rank == 0 {
        side_files.after(at)?;
    }
    session.finish();
    Ok(SaveReport { reused_bytes, ..SaveReport::new(at.describe(), stored_bytes, tree.len(), data_bytes) })
}

fn writer_of(session: &Session) -> WriterRank {
    WriterRank { rank: session.rank() as u32, count: session.size() as u32 }
}

/// A new folder of several processes, or of one.
#[derive(Debug)]
pub(super) enum Shared {
    /// This process has begun the folder.
    Begun(Box<dyn BegunFolder>),
    /// Rank 0 has begun the folder.
    Joined(Box<dyn JoinedFolder>),
}

impl Deref for Shared {
    type Target = dyn NewFolder;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Begun(folder) => &**folder,
            Self::Joined(folder) => &**folder,
        }
    }
}

/// Rank 0 begins the checkpoint, and the other ranks join it. `how` has the options of the
/// publication.
pub(super) fn publish_together(session: &Session, at: &Location, how: PublishOptions<'_>) -> Result<Shared> {
    let mut begun = None;
    let ticket = session.broadcast("publish", || {
        let folder = begun.insert(Retries::until_unreplaced(|| at.publish_folder(how))?);
        Ok(folder.ticket()?.into())
    })?;
    let shared = match begun {
        Some(folder) => Ok(Shared::Begun(folder)),
        None => String::from_utf8(ticket.to_vec())
            .map_err(|_| Error::invalid("rank 0 sent a ticket that is not text"))
            .and_then(|ticket| at.join_publication(&ticket, how).map(Shared::Joined)),
    };
    session.agree("join", shared)
}

/// Writes a part of a checkpoint that all processes have joined: the folder `below`, without the
/// files in `left_out`. Rank 0 combines the shares. Returns the bytes of array data that this
/// process holds.
pub(super) fn write_together(
    tree: &Tree<Leaf>,
    options: &SaveOptions,
    job: &Job,
    whole: &Shared,
    below: &str,
    left_out: &'static [&'static str],
) -> Result<u64> {
    let part = Within::new(&**whole, below, left_out);
    let at = part.target();
    // This session runs inside the session of the whole checkpoint, which may have the same target.
    let session = job.begin(at, "save-part", &options.monitor)?;
    let writer = writer_of(&session);
    // Only rank 0 checks the target. The save of the whole checkpoint did this already, so pass
    // another rank.
    let elsewhere = WriterRank { rank: u32::MAX, ..writer };
    let many = session.agree("check", check(options.layout.format(), at, tree, options, elsewhere))?;
    check_same_tree(&session, tree, options)?;
    check_same_bytes(&session, tree)?;
    let data_bytes = held_len_bytes(tree);
    options.monitor.expect(data_bytes);
    let written = many.write_share(tree, writer, &part, options);
    match whole {
        Shared::Joined(whole) => {
            session.agree("write", written.and_then(|()| whole.finish_share()))?;
            session.agree("merge", Ok(()))?;
        }
        Shared::Begun(whole) => {
            session.agree("write", written)?;
            let part = Within::new(&**whole, below, left_out);
            let merged = many.merge(tree, &(0..writer.count).collect::<Vec<_>>(), &part, options);
            session.agree("merge", merged)?;
        }
    }
    session.finish();
    Ok(data_bytes)
}

impl Shared {
    /// Ends a save after every process has written its part (`written`). Rank 0 runs `rest` and
    /// commits. Returns the bytes of all files on rank 0.
    ///
    /// Once the checkpoint has its name the save has succeeded, even if a process loses the
    /// connection.
    ///
    /// # Errors
    /// The first error of any process, in every process.
    pub(super) fn commit(
        self,
        session: Option<&Session>,
        written: Result<()>,
        rest: impl FnOnce(&dyn BegunFolder) -> Result<()>,
        monitor: &Monitor,
    ) -> Result<u64> {
        let agree = |what, done| match session {
            Some(session) => session.agree(what, done),
            None => done,
        };
        let folder = match self {
            Self::Begun(folder) => folder,
            Self::Joined(share) => {
                agree("write", written.and_then(|()| share.finish_share()))?;
                let committed = match agree("commit", Ok(())) {
                    // A process that lost its connection to rank 0 looks for the checkpoint in the
                    // storage.
                    Err(_) if share.is_published().unwrap_or(false) => Ok(()),
                    committed => committed,
                };
                monitor.finish()?;
                return committed.map(|()| share.share_len_bytes());
            }
        };
        agree("write", written)?;
        let ended = rest(&*folder).and_then(|()| folder.stored_bytes());
        let committed = ended.and_then(|stored_bytes| {
            monitor.finish()?;
            folder.commit()?;
            Ok(stored_bytes)
        });
        match committed {
            Ok(stored_bytes) => {
                // A process that misses this message finds the checkpoint in the storage.
                let _ = agree("commit", Ok(()));
                Ok(stored_bytes)
            }
            Err(error) => agree("commit", Err(error)).map(|()| 0),
        }
    }
}

fn check<'f>(
    format: &'f dyn Format,
    at: &Location,
    tree: &Tree<Leaf>,
    options: &SaveOptions,
    writer: WriterRank,
) -> Result<&'f dyn ManyWriters> {
    check_options(options)?;
    if writer.rank == 0 {
        check_name(at, options)?;
        check_place(at, options)?;
    }
    check_rules(tree, options)?;
    check_losses(Some(at), tree, options)?;
    format.roles().many_writers.ok_or_else(|| {
        Error::unsupported(format!("several processes cannot write the layout {} together", format.name()))
            .in_file(at)
            .help("save in the layout regrow or orbax; or gather the arrays, and save from one process")
    })
}

fn held_len_bytes(tree: &Tree<Leaf>) -> u64 {
    let held = |array: &Array| match array.shards() {
        Some(shards) => shards.held().iter().map(|shard| shard.array.len_bytes()).sum(),
        None => array.len_bytes(),
    };
    tree.leaves().iter().filter_map(Leaf::as_array).map(held).fold(0, u64::saturating_add)
}

/// Returns an error in every process unless all processes save the same tree with the same options
/// and the same version of regrow.
fn check_same_tree(session: &Session, tree: &Tree<Leaf>, options: &SaveOptions) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let ways = format!("{:?} {:?} {:?}", options.layout, options.cast, options.compression);
    let told = structure_of(tree).map(|structure| {
        let digest = blake3::hash(structure.as_bytes()).to_hex();
        let ways = blake3::hash(ways.as_bytes()).to_hex();
        Bytes::from(format!("{version}\n{}\n{ways}\n{digest}", counted(tree.len(), "leaf", "leaves")))
    });
    let told = session.agree("structure", told)?;
    let all = session.gather("tree", told)?;
    let verdict = session.broadcast("tree-result", || compare_told(&all.unwrap_or_default()))?;
    if verdict.is_empty() {
        return Ok(());
    }
    name_first_difference(session, tree)
}

/// The differences, in the order of the lines that each process sends.
const VERSION: &str = "a different version of regrow";
const LEAVES: &str = "a different number of leaves";
const OPTIONS: &str = "other options";
const TREE: &str = "another tree";

/// Compares the lines that the processes sent. The result is not empty if only the trees differ.
///
/// # Errors
/// `InvalidArgument` for any other difference from rank 0.
fn compare_told(all: &[Bytes]) -> Result<Bytes> {
    let lines =
        |told: &Bytes| -> Vec<String> { String::from_utf8_lossy(told).lines().map(str::to_owned).collect() };
    let told: Vec<Vec<String>> = all.iter().map(lines).collect();
    let Some(ours) = told.first() else { return Ok(Bytes::new()) };
    let mut differ = BTreeMap::<&str, Vec<usize>>::new();
    for (rank, theirs) in told.iter().enumerate() {
        let pairs = [VERSION, LEAVES, OPTIONS, TREE].into_iter().zip(ours.iter().zip(theirs));
        if let Some((what, _)) = pairs.into_iter().find(|(_, (a, b))| a != b) {
            differ.entry(what).or_default().push(rank);
        }
    }
    match differ.into_iter().next() {
        None => Ok(Bytes::new()),
        // In the next exchange, the processes find the leaf that differs.
        Some((TREE, _)) => Ok(Bytes::from_static(b"differ")),
        Some((what, ranks)) => Err(other_than_rank_0(what, &ranks, &told)),
    }
}

fn other_than_rank_0(what: &str, ranks: &[usize], told: &[Vec<String>]) -> Error {
    let error = Error::invalid(format!("{} has {what} than rank 0", ranks_text(ranks)));
    let line = match what {
        VERSION => Some(0),
        LEAVES => Some(1),
        _ => None,
    };
    let said = |line: usize, rank: usize| told.get(rank).and_then(|lines| lines.get(line)).cloned();
    let error = match line {
        Some(line) => {
            let first = ranks.first().copied().unwrap_or(0);
            error.expected(said(line, 0).unwrap_or_default(), said(line, first).unwrap_or_default())
        }
        None => error,
    };
    error.help("save the same tree with the same arguments in every process, each with its own shards")
}

/// Returns an error in every process, which names the first leaf in which the trees differ.
fn name_first_difference(session: &Session, tree: &Tree<Leaf>) -> Result<()> {
    let own: Vec<String> = tree.iter().map(|(path, leaf)| format!("{path}: {}", leaf_text(leaf))).collect();
    let all = session.gather("leaves", Bytes::from(own.join("\n")))?;
    session.broadcast("leaves-result", || {
        for (rank, theirs) in all.unwrap_or_default().iter().enumerate() {
            let theirs = String::from_utf8_lossy(theirs);
            if let Some((ours, theirs)) = own.iter().zip(theirs.split('\n')).find(|(a, b)| a.as_str() != *b) {
                return Err(Error::invalid(format!("the tree of rank {rank} differs from that of rank 0"))
                    .expected(ours, theirs)
                    .help("save the same tree with the same shardings in every process"));
            }
        }
        Err(Error::invalid(
            "the trees of the processes have the same leaves, but different containers or keys",
        )
        .help("save the same tree in every process: the same keys in the same order, the same classes"))
    })?;
    Ok(())
}

/// The properties of a leaf that must be equal in every process.
fn leaf_text(leaf: &Leaf) -> String {
    match &leaf.data {
        LeafData::Array(array) => match array.shards() {
            Some(shards) => {
                format!("{} {} in chunks of {}", array.dtype(), array.shape(), shards.chunk_shape())
            }
            None => format!("{} {}", array.dtype(), array.shape()),
        },
        LeafData::Text(text) => format!("{text:?}"),
        LeafData::Absent => leaf.kind.name().to_owned(),
    }
}

/// The tree as text, without properties that may differ between processes, such as the device of an
/// array on one device.
fn structure_of(tree: &Tree<Leaf>) -> Result<String> {
    let columns = |_, leaf: &'_ Leaf| -> (Shape, std::sync::Arc<str>) {
        match &leaf.data {
            LeafData::Array(array) => (array.shape().clone(), leaf_text(leaf).into()),
            LeafData::Text(text) => (Shape::scalar(), text.clone()),
            LeafData::Absent => (Shape::scalar(), std::sync::Arc::default()),
        }
    };
    let structure = Structure::of_columns(tree, |at, leaf| {
        let (shape, text) = columns(at, leaf);
        let dtype = leaf.as_array().map_or(crate::array::Dtype::UInt8, Array::dtype);
        LeafColumns { kind: &leaf.kind, dtype, shape, text, name: None, sharding: None }
    })?;
    let cuts: Vec<String> = tree.leaves().iter().map(leaf_text).collect();
    Ok(format!("{}\n{}", structure.to_json()?, cuts.join("\n")))
}

/// Returns an error in every process if a leaf that each process holds whole has different bytes in
/// some processes. Which bytes are right is unknown.
fn check_same_bytes(session: &Session, tree: &Tree<Leaf>) -> Result<()> {
    let is_own = |leaf: &Leaf| leaf.as_array().is_some_and(|array| array.shards().is_none());
    let digests = || -> Result<Bytes> {
        let mut digests = Vec::new();
        for (path, leaf) in tree.iter().filter(|(_, leaf)| is_own(leaf)) {
            let Some(array) = leaf.as_array() else { continue };
            let mut hasher = blake3::Hasher::new();
            let hashed = array.for_each_piece(1 << 20, |piece| {
                hasher.update(piece);
                Ok(())
            });
            hashed.at_leaf(&path)?;
            digests.extend_from_slice(hasher.finalize().as_bytes().get(..16).unwrap_or_default());
        }
        Ok(digests.into())
    };
    let digests = session.agree("digests", digests())?;
    let all = session.gather("bytes", digests)?;
    session.broadcast("bytes-result", || {
        let all = all.unwrap_or_default();
        let Some((ours, others)) = all.split_first() else { return Ok(Bytes::new()) };
        let mut differ: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (rank, theirs) in others.iter().enumerate() {
            let pairs = ours.chunks(16).zip(theirs.chunks(16)).enumerate();
            for (at, _) in pairs.filter(|(_, (a, b))| a != b) {
                differ.entry(at).or_default().push(rank + 1);
            }
        }
        if differ.is_empty() {
            return Ok(Bytes::new());
        }
        let own: Vec<String> =
            tree.iter().filter(|(_, leaf)| is_own(leaf)).map(|(path, _)| path.to_string()).collect();
        let named = differ.iter().take(NAMED_MAX).map(|(&at, ranks)| {
            format!("{}: {}", own.get(at).map_or("?", String::as_str), ranks_text(ranks))
        });
        let list = named.collect::<Vec<_>>().join("\n    ");
        let more = differ.len().saturating_sub(NAMED_MAX);
        let rest = if more > 0 { format!("\n    and {more} more") } else { String::new() };
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "these leaves are whole in every process, but differ from those of rank 0:\n    \
                {list}{rest}"
            ),
        )
        .help("broadcast them from rank 0, or shard them over the mesh as one global array"))
    })?;
    Ok(())
}

fn ranks_text(ranks: &[usize]) -> String {
    let list: Vec<String> = ranks.iter().take(NAMED_MAX).map(usize::to_string).collect();
    let more = if ranks.len() > NAMED_MAX {
        format!(" and {} more", ranks.len() - NAMED_MAX)
    } else {
        String::new()
    };
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}{more}", list.join(", "))
}
