//! A copy by several processes that need not be a job: one plans and commits, each of the others
//! brings a share of the files.
//!
//! ```text
//! whoever begins   open, plan, begin ── ticket, files ──▶  ... takes over what they bring ...  the rest, commit
//! each share                             open, plan again, join,
//!                                        read, hash, write, read back, compare ──▶ digests
//! ```
//!
//! Shares know nothing of each other, so any of them can be brought again where a process died. A
//! share that has been taken over is in the journal of the copy: what is interrupted goes on with
//! it, with an executor or without.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use blake3::Hash;

use super::plan::{Plan, SourceFile};
use super::work::Copying;
use super::{CopyOptions, CopyReport, begin, commit, passes, stays, transfer_options};
use crate::engine::shares::shares_of;
use crate::error::{Error, ErrorKind, Result};
use crate::location::{Location, ToLocation};
use crate::storage::{Brought, Left, Target, Transfer};

/// A copy that has begun. Dropped before [`finish`](Self::finish), it leaves what it has for
/// another copy to go on with.
#[derive(Debug)]
pub struct SharedCopy {
    source: Location,
    target: Location,
    plan: Plan,
    options: CopyOptions,
    transfer: Box<dyn Transfer>,
    ticket: String,
    /// The number of each file, by its name.
    numbers: HashMap<String, usize>,
    taken: Mutex<Taken>,
    began: Instant,
}

/// What was taken over.
#[derive(Debug, Default)]
struct Taken {
    files: Vec<bool>,
    reused_bytes: u64,
}

/// The files of one share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesOfShare {
    /// Name and length of each.
    pub files: Vec<(String, u64)>,
    /// Bytes of all of them.
    pub len_bytes: u64,
}

/// What one process brings.
#[derive(Debug, Clone, Copy)]
pub struct CopyShare<'a> {
    /// What [`SharedCopy::ticket`] says.
    pub ticket: &'a str,
    /// Those of [`SharedCopy::shares`].
    pub files: &'a [(String, u64)],
}

/// What one process has brought, for [`SharedCopy::take`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedShare {
    /// Its files.
    pub files: Vec<CopiedFile>,
    /// Bytes of those that an interrupted copy had brought before.
    pub reused_bytes: u64,
}

/// A file that a process has brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedFile {
    /// Its name in the checkpoint.
    pub name: String,
    /// By what the storage finds it.
    pub by: String,
    /// Its BLAKE3, in hex digits.
    pub digest: String,
    /// Whether it was read back.
    pub is_verified: bool,
}

impl SharedCopy {
    /// Plans a copy, and begins it, or goes on with one that was interrupted. Reads no array data.
    ///
    /// # Errors
    /// As [`copy`](super::copy).
    pub fn begin(source: impl ToLocation, target: impl ToLocation, options: &CopyOptions) -> Result<Self> {
        let began = Instant::now();
        let (source, target) = (source.to_location()?, target.to_location()?);
        let (plan, transfer) = begin(&source, &target, options)?;
        // What is one file, or a few beside each other, has no shares.
        let ticket = match plan.kind {
            Target::Folder => format!("{} {}", env!("CARGO_PKG_VERSION"), transfer.ticket()?),
            _ => String::new(),
        };
        let names = plan.files.iter().map(|file| file.transfer.name.clone());
        let taken = Taken { files: vec![false; plan.files.len()], reused_bytes: 0 };
        Ok(Self {
            source,
            target,
            numbers: names.zip(0..).collect(),
            taken: Mutex::new(taken),
            plan,
            options: options.clone(),
            transfer,
            ticket,
            began,
        })
    }

    /// By what others join: a short text.
    pub fn ticket(&self) -> &str {
        &self.ticket
    }

    /// Bytes of all files.
    pub fn len_bytes(&self) -> u64 {
        self.plan.len_bytes()
    }

    /// At most `count` shares with about as many bytes each. What is in none of them,
    /// [`finish`](Self::finish) copies: a checkpoint that is no folder, and markers, which come
    /// last.
    pub fn shares(&self, count: u32) -> Vec<FilesOfShare> {
        if self.plan.kind != Target::Folder {
            return Vec::new();
        }
        let is_proven = |at: usize| matches!(self.transfer.left(at), Left::Whole { is_proven: true, .. });
        let files: Vec<&SourceFile> = self
            .plan
            .files
            .iter()
            .enumerate()
            .filter(|(at, file)| !file.is_marker() && !file.is_made() && !is_proven(*at))
            .map(|(_, file)| file)
            .collect();
        let mut shares =
            vec![FilesOfShare { files: Vec::new(), len_bytes: 0 }; (count as usize).min(files.len())];
        let numbers = shares_of(files.iter().map(|file| file.transfer.len_bytes), shares.len() as u32);
        for (file, number) in files.iter().zip(numbers) {
            if let Some(share) = shares.get_mut(number as usize) {
                share.files.push((file.transfer.name.clone(), file.transfer.len_bytes));
                share.len_bytes += file.transfer.len_bytes;
            }
        }
        shares
    }

    /// Takes over what a process has brought. From then on an interrupted copy goes on with it.
    ///
    /// # Errors
    /// What the storage says.
    pub fn take(&self, share: &CopiedShare) -> Result<()> {
        for file in &share.files {
            let not_ours =
                || Error::invalid(format!("a worker has brought {:?}, which is not copied", file.name));
            let at = *self.numbers.get(&file.name).ok_or_else(not_ours)?;
            let digest = Hash::from_hex(&file.digest).map_err(|_| not_ours())?;
            let brought = Brought { at, by: file.by.clone(), digest, is_verified: file.is_verified };
            self.transfer.take(at, &brought).map_err(|error| stays(error, &self.options))?;
            if let Some(taken) = self.taken().files.get_mut(at) {
                *taken = true;
            }
        }
        self.taken().reused_bytes += share.reused_bytes;
        Ok(())
    }

    /// Copies what no share has brought, and makes it a checkpoint.
    ///
    /// # Errors
    /// As [`copy`](super::copy); `Replaced` if the source is no longer what was planned.
    pub fn finish(self) -> Result<CopyReport> {
        let Self { source, target, plan, options, transfer, taken, began, .. } = self;
        let taken = taken.into_inner().unwrap_or_else(PoisonError::into_inner);
        let monitor = &options.monitor;
        let _running = monitor.begin()?;
        let is_taken = |at: usize| taken.files.get(at).copied().unwrap_or(false);
        let rest = plan.files.iter().enumerate().filter(|(at, _)| !is_taken(*at));
        let rest_bytes = rest.map(|(_, file)| file.transfer.len_bytes).fold(0, u64::saturating_add);
        monitor.expect(rest_bytes.saturating_mul(passes(&options)));
        let copying = Copying::new(&*transfer, &options);
        // Workers open the source anew: what they have read must be what was planned.
        plan.check_versions(&source, &target, is_taken)?;
        copying.all(&plan, &|at| !is_taken(at)).map_err(|error| stays(error, &options))?;
        let reused_bytes = copying.reused_bytes.load(Ordering::Relaxed).saturating_add(taken.reused_bytes);
        monitor.finish()?;
        commit(&source, &target, &plan.kind, transfer, options.overwrite)?;
        Ok(CopyReport {
            path: target.describe(),
            file_count: plan.files.len(),
            bytes: plan.len_bytes(),
            reused_bytes,
            seconds: began.elapsed().as_secs_f64(),
        })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Brings one share of a copy that another process has begun, with the same source, target and
/// options.
///
/// # Errors
/// As [`copy`](super::copy); `Replaced` if the source is no longer what was planned; `NotFound` if
/// whoever began the copy has given it up, or writes elsewhere.
pub fn copy_share(
    source: impl ToLocation,
    target: impl ToLocation,
    options: &CopyOptions,
    share: &CopyShare<'_>,
) -> Result<CopiedShare> {
    let (source, target) = (source.to_location()?, target.to_location()?);
    let monitor = &options.monitor;
    let brought = monitor.begin().and_then(|_running| {
        let brought = bring(&source, &target, options, share)?;
        monitor.finish()?;
        Ok(brought)
    });
    monitor.conclude(brought)
}

fn bring(
    source: &Location,
    target: &Location,
    options: &CopyOptions,
    share: &CopyShare<'_>,
) -> Result<CopiedShare> {
    let Some((version, ticket)) = share.ticket.split_once(' ') else {
        return Err(Error::invalid(format!("{:?} is no ticket of a copy", share.ticket)));
    };
    if version != env!("CARGO_PKG_VERSION") {
        return Err(Error::invalid("a worker has another version of regrow")
            .expected(version, env!("CARGO_PKG_VERSION"))
            .help("install the same version everywhere"));
    }
    let checkpoint = crate::engine::open(source)?;
    let mut plan = Plan::of(&checkpoint, target)?;
    drop(checkpoint);
    let wanted: HashMap<&str, u64> = share.files.iter().map(|(name, len)| (&**name, *len)).collect();
    plan.files.retain(|file| {
        !file.is_marker() && wanted.get(&*file.transfer.name) == Some(&file.transfer.len_bytes)
    });
    if plan.files.len() != wanted.len() {
        return Err(Error::new(ErrorKind::Replaced, "a worker finds other files in the source")
            .in_file(source)
            .help(
                "copy again; if it was not replaced, check whether all machines see the same files under this path",
            ));
    }
    options.monitor.expect(plan.len_bytes().saturating_mul(passes(options)));
    let files = plan.transfer_files();
    let how = transfer_options(&plan, &files, options);
    let transfer = target.storage().join_transfer(target, ticket, how)?;
    let copying = Copying::new(&*transfer, options);
    copying.all(&plan, &|_| true).map_err(|error| stays(error, options))?;
    let reused_bytes = copying.reused_bytes.load(Ordering::Relaxed);
    let brought = transfer.finish_share()?.into_iter().filter_map(|brought| {
        let name = files.get(brought.at)?.name.clone();
        let digest = brought.digest.to_hex().to_string();
        Some(CopiedFile { name, by: brought.by, digest, is_verified: brought.is_verified })
    });
    Ok(CopiedShare { files: brought.collect(), reused_bytes })
}
