//! A conversion by several processes that need not be a job. One process plans and commits, and
//! each of the others writes a share of the leaves.
//!
//! ```text
//! process 0        open, plan, publish ── ticket ──▶  ... waits ...  merge the shares, commit
//! each share                              open, plan again, join,
//!                                         write its leaves into its own files ──▶ writer number
//! ```
//!
//! Shares are independent, so a share can be written again after its process has died. Each writer
//! claims an unused number, and uses it in the names of its files. The files of a dead writer, or
//! of a writer that only seemed dead, have another number, and are not merged.

use std::time::Instant;

use super::left_out::refuse_many_steps;
use super::{ConvertOptions, ConvertPlan, ConvertReport};
use crate::array::{Array, Region, Shard};
use crate::engine::checks::how_published;
use crate::engine::save::check_save;
use crate::engine::shares::shares_of;
use crate::engine::side_files::SideFiles;
use crate::engine::{Checkpoint, SaveOptions, SaveReport, open_with};
use crate::error::{Error, Result};
use crate::formats::{Claims, Format, ManyWriters, WriterRank, formats, located};
use crate::location::{Location, ToLocation};
use crate::storage::{BegunFolder, JoinedFolder};
use crate::tree::{Leaf, LeafData, Tree};

/// The most times that one share may be started.
const CLAIMS_MAX: u32 = 64;

/// A started conversion. If it is dropped before [`finish`](Self::finish), its files are removed.
#[derive(Debug)]
pub struct SharedConvert {
    checkpoint: Checkpoint,
    plan: ConvertPlan,
    save: SaveOptions,
    publication: Box<dyn BegunFolder>,
    ticket: String,
    began: Instant,
}

/// The share that one process has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConvertedShare {
    /// The number of the writer of its files, for [`SharedConvert::finish`].
    pub writer: u32,
    /// The bytes of its files, on storages where only their writer can count them.
    pub stored_bytes: u64,
    /// Bytes reused from a base.
    pub reused_bytes: u64,
    /// Positions in the target of leaves in which a cast has changed values by more than rounding.
    pub changed_leaves: Vec<u32>,
}

/// The part of a conversion that one process writes.
#[derive(Debug, Clone, Copy)]
pub struct ConvertShare<'a> {
    /// The text of [`SharedConvert::ticket`].
    pub ticket: &'a str,
    /// The number of this share, from 0.
    pub share: u32,
    /// The number of shares, the same in all processes.
    pub count: u32,
}

impl SharedConvert {
    /// Plans a conversion, and begins the new checkpoint. Reads no array data.
    ///
    /// # Errors
    /// The errors of [`convert`](super::convert); `Unsupported` for a layout that only one process
    /// can write.
    pub fn begin(source: impl ToLocation, target: impl ToLocation, options: &ConvertOptions) -> Result<Self> {
        if options.salvage {
            return Err(Error::invalid("a conversion by several processes cannot salvage")
                .help("salvage in one process, then convert the result"));
        }
        let began = Instant::now();
        let (source, target) = (located(source)?, located(target)?);
        let checkpoint = open_with(&source, &options.open)?;
        refuse_many_steps(&checkpoint, options)?;
        let plan = checkpoint.plan_convert(options)?;
        if plan.items.is_some() {
            return Err(Error::unsupported("a checkpoint of items is converted by one process")
                .in_file(&source)
                .help("convert it without an executor, or pass `item` to convert one item"));
        }
        many_writers(&options.save, &target)?;
        let save = plan.admit(&target, options)?;
        check_save(&target, &plan.tree, &save)?;
        let publication = target.publish_folder(how_published(&save))?;
        let ticket = format!("{} {} {}", env!("CARGO_PKG_VERSION"), plan.digest(), publication.ticket()?);
        Ok(Self { checkpoint, plan, save, publication, ticket, began })
    }

    /// A short text with which other processes join.
    pub fn ticket(&self) -> &str {
        &self.ticket
    }

    /// The step that was opened, if the source is a folder of steps: a newer step may appear later.
    pub fn step(&self) -> Option<u64> {
        let about = self.checkpoint.description();
        about.step.filter(|_| !about.steps.is_empty())
    }

    /// The bytes of array data in each of `count` shares.
    pub fn share_len_bytes(&self, count: u32) -> Vec<u64> {
        let mut out = vec![0; count as usize];
        for (leaf, share) in self.plan.tree.leaves().iter().zip(self.plan.shares(count)) {
            if let Some(total) = out.get_mut(share as usize) {
                *total += len_bytes(leaf);
            }
        }
        out
    }

    /// Merges the shares, in the order of `shares`, and commits the checkpoint.
    ///
    /// # Errors
    /// The errors of a save; `InvalidArgument` if a leaf is in none of the shares; `Replaced` if
    /// another checkpoint has replaced the source. After an error all files are removed.
    pub fn finish(self, shares: &[ConvertedShare]) -> Result<ConvertReport> {
        let Self { checkpoint, plan, save, publication, began, .. } = self;
        let monitor = save.monitor.clone();
        let _running = monitor.begin()?;
        if checkpoint.is_replaced() {
            return Err(checkpoint.was_replaced());
        }
        let writers: Vec<u32> = shares.iter().map(|share| share.writer).collect();
        let at = publication.target().clone();
        let Claiming { many, claims } = many_writers(&save, &at)?;
        many.merge(&plan.tree, &writers, &*publication, &save)?;
        publication.sweep("", &claims.is_name)?;
        let sum = |bytes: fn(&ConvertedShare) -> u64| shares.iter().map(bytes).fold(0, u64::saturating_add);
        let stored_bytes = publication.stored_bytes()?.saturating_add(sum(|share| share.stored_bytes));
        let mut side_files = SideFiles::of(&save);
        side_files.before(&*publication)?;
        publication.commit()?;
        side_files.after(&at)?;
        let data_bytes = plan.tree.leaves().iter().map(len_bytes).fold(0, u64::saturating_add);
        let mut report = SaveReport {
            reused_bytes: sum(|share| share.reused_bytes),
            ..SaveReport::new(at.describe(), stored_bytes, plan.tree.len(), data_bytes)
        };
        report.take_stock(&monitor, began.elapsed());
        let changed: Vec<u32> = shares.iter().flat_map(|share| share.changed_leaves.clone()).collect();
        Ok(ConvertReport { save: report, losses: plan.losses_with(&changed), damage: plan.damage })
    }
}

/// Writes one share of a conversion that another process has begun. Source, target and options must
/// be the same. Leaves of other shares are not read.
///
/// # Errors
/// The errors of [`convert`](super::convert); `Replaced` if the source has changed since the plan;
/// `NotFound` if the process that started the conversion has ended it or writes to another target.
/// The files of the share are removed with the conversion.
pub fn convert_share(
    source: impl ToLocation,
    target: impl ToLocation,
    options: &ConvertOptions,
    share: &ConvertShare<'_>,
) -> Result<ConvertedShare> {
    let (source, target) = (located(source)?, located(target)?);
    let monitor = &options.save.monitor;
    let written = monitor.begin().and_then(|_running| {
        let written = write_share(&source, &target, options, share)?;
        monitor.finish()?;
        Ok(written)
    });
    monitor.conclude(written)
}

fn write_share(
    source: &Location,
    target: &Location,
    options: &ConvertOptions,
    share: &ConvertShare<'_>,
) -> Result<ConvertedShare> {
    let mut parts = share.ticket.splitn(3, ' ');
    let (Some(version), Some(digest), Some(ticket)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(Error::invalid(format!("{:?} is not the ticket of a conversion", share.ticket)));
    };
    if version != env!("CARGO_PKG_VERSION") {
        return Err(Error::invalid("a worker has another version of regrow")
            .expected(version, env!("CARGO_PKG_VERSION"))
            .help("install the same version everywhere"));
    }
    let checkpoint = open_with(source, &options.open)?;
    let plan = checkpoint.plan_convert(options)?;
    if plan.digest() != digest {
        return Err(Error::replaced("a worker finds other leaves in the source").in_file(source).help(
            "convert again; if the source was not replaced, check that all machines see the same files at \
             this path",
        ));
    }
    let save = plan.save_options(options);
    let Claiming { many, claims } = many_writers(&save, target)?;
    let tree = plan.share(share.share, share.count)?;
    let held = plan.tree.leaves().iter().zip(plan.shares(share.count));
    save.monitor.expect(
        held.filter(|(_, own)| *own == share.share)
            .map(|(leaf, _)| len_bytes(leaf))
            .fold(0, u64::saturating_add),
    );
    let joined = target.join_publication(ticket, how_published(&save))?;
    let writer = WriterRank { rank: claim(&*joined, claims, share)?, count: share.count };
    many.write_share(&tree, writer, &*joined, &save)?;
    joined.finish_share()?;
    Ok(ConvertedShare {
        writer: writer.rank,
        stored_bytes: joined.share_len_bytes(),
        reused_bytes: joined.reused_bytes(),
        changed_leaves: plan.changed_leaves(),
    })
}

/// An unused writer number: the number of the share, or a larger number if the share was started
/// before.
fn claim(joined: &dyn JoinedFolder, claims: Claims, share: &ConvertShare<'_>) -> Result<u32> {
    for attempt in 0..CLAIMS_MAX {
        let number = share.count.checked_mul(attempt).and_then(|first| first.checked_add(share.share));
        let number = number.ok_or_else(|| Error::invalid("a conversion has too many shares"))?;
        if joined.claim(&(claims.name)(number))? {
            return Ok(number);
        }
    }
    Err(Error::invalid(format!("share {} of the conversion failed {CLAIMS_MAX} times", share.share)))
}

/// The functions of a layout that can leave out the files of a dead writer.
#[derive(Clone, Copy)]
struct Claiming {
    many: &'static dyn ManyWriters,
    claims: Claims,
}

/// The functions with which several workers write the layout.
fn many_writers(save: &SaveOptions, target: &Location) -> Result<Claiming> {
    let format = save.layout.format();
    let claiming = |format: &'static dyn Format| {
        let many = format.roles().many_writers?;
        Some(Claiming { many, claims: many.claims()? })
    };
    claiming(format).ok_or_else(|| {
        let others = formats().filter(|format| claiming(*format).is_some());
        let others: Vec<&str> = others.map(|format| format.name()).collect();
        Error::unsupported(format!("several workers cannot write the layout {} together", format.name()))
            .in_file(target)
            .help(format!("convert without an executor, or to the layout {}", others.join(" or ")))
    })
}

fn len_bytes(leaf: &Leaf) -> u64 {
    leaf.as_array().map_or(0, Array::len_bytes)
}

impl ConvertPlan {
    /// A digest that shows whether two processes have the same plan.
    fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for leaf in &self.leaves {
            let (from, to) = (&leaf.source, &leaf.target);
            let line = format!(
                "{:?} {:?} {:?} {} {} {:?} {} {}\n",
                leaf.from, leaf.to, from.kind, from.dtype, from.shape, to.kind, to.dtype, to.shape
            );
            hasher.update(line.as_bytes());
        }
        for leaf in self.tree.leaves() {
            if let LeafData::Text(text) = &leaf.data {
                hasher.update(format!("{text:?}\n").as_bytes());
            }
        }
        hasher.finalize().to_hex().chars().take(32).collect()
    }

    fn shares(&self, count: u32) -> Vec<u32> {
        shares_of(self.tree.leaves().iter().map(len_bytes), count)
    }

    /// The tree for the writer of one share. Arrays of other shares have no data in it.
    fn share(&self, share: u32, count: u32) -> Result<Tree<Leaf>> {
        let shares = self.shares(count);
        let held = |(leaf, own): (&Leaf, u32)| -> Result<Leaf> {
            let Some(array) = leaf.as_array() else { return Ok(leaf.clone()) };
            let (dtype, shape) = (array.dtype(), array.shape());
            let whole = || Shard { region: Region::whole(shape), array: array.clone() };
            let shards = if own == share { vec![whole()] } else { Vec::new() };
            let array = Array::sharded(dtype, shape.clone(), shape.clone(), shards, false)?;
            Ok(Leaf { data: LeafData::Array(array), ..leaf.clone() })
        };
        self.tree.with_leaves(self.tree.leaves().iter().zip(shares).map(held).collect::<Result<_>>()?)
    }
}
