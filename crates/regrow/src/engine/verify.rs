//! Verifies a checkpoint: reads everything once and checks it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::bands::{band_elements, for_each_band};
use super::load::short_blocks;
use super::sealed::misfits;
use super::shares::shares_of;
use super::{BUDGET_DEFAULT_BYTES, Checkpoint, OpenOptions, VerifyOptions};
use crate::array::Region;
use crate::bytes::limits::allocate;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::{Reader, ReaderExt, Rest, Sparse, located};
use crate::location::{Location, ToLocation};
use crate::monitor::{Monitor, Stage};
use crate::reads::{CheckFor, Coded, Extent, Source, Unreadable, check_ahead};
use crate::report::{Finding, UnprotectedFile, VerifyReport};
use crate::storage::Retries;
use crate::text::counted;
use crate::threads::pool;
use crate::tree::{KeyPath, LeafInfo, LeafKind};

/// The most bytes of one array that are decoded at once.
const PIECE_LEN_BYTES: u64 = 16 << 20;

/// The most refused leaves that a note lists. The note counts all refused leaves.
const REFUSED_SHOWN_MAX: usize = 10;

/// The most findings in a report about shardings that do not fit their leaves.
const MISFITS_SHOWN_MAX: usize = 100;

const SHARDING_HELP: &str = "the data is intact: give shardings for your devices, or load without shardings";

/// Reads and checks the whole checkpoint at `path`: indexes, small files, and every leaf.
///
/// Damage to one leaf does not hide damage to the next: all findings are reported. Memory stays
/// within a few chunks.
///
/// # Errors
/// The errors of opening, if the checkpoint cannot be opened at all; errors of listing its files.
pub fn verify(path: impl ToLocation) -> Result<VerifyReport> {
    verify_with(path, &VerifyOptions::default())
}

/// Like [`verify`], with options: a step, an item, a monitor.
///
/// # Errors
/// The errors of [`verify`]; `Cancelled`.
pub fn verify_with(path: impl ToLocation, options: &VerifyOptions) -> Result<VerifyReport> {
    let at = located(path)?;
    Retries::until_unreplaced(|| verify_once(&at, options, Share::ALL)).map(|verified| verified.report)
}

/// The findings of one process in its share of the leaves, if several processes verify.
#[derive(Debug)]
pub struct VerifiedShare {
    /// The report of the share. Only the report of share 0 has findings outside of leaves.
    pub report: VerifyReport,
    /// The rank of each finding among the findings of all shares. Sorted by rank, findings have the
    /// order of a single process.
    pub places: Vec<usize>,
}

/// Like [`verify_with`], for share number `share` of `count`: some of the leaves, about as many
/// bytes in each share. Share 0 also checks the data beside the leaves.
///
/// # Errors
/// The errors of [`verify_with`].
pub fn verify_share(
    path: impl ToLocation,
    options: &VerifyOptions,
    share: u32,
    count: u32,
) -> Result<VerifiedShare> {
    let at = located(path)?;
    Retries::until_unreplaced(|| verify_once(&at, options, Share { number: share, count }))
}

/// The share of the leaves that this process checks.
#[derive(Debug, Clone, Copy)]
struct Share {
    number: u32,
    count: u32,
}

impl Share {
    const ALL: Self = Self { number: 0, count: 1 };

    /// Whether this share also checks the data beside the leaves.
    fn has_rest(self) -> bool {
        self.number == 0
    }
}

fn verify_once(at: &Location, options: &VerifyOptions, share: Share) -> Result<VerifiedShare> {
    let error = match super::open_with(at, &options.open) {
        Ok(checkpoint) => {
            let report = checkpoint.verify_part(&options.monitor, share)?;
            return Ok(VerifiedShare { places: checkpoint.places_of(&report), report });
        }
        Err(error) => error,
    };
    if let Some(verified) = verify_without_seal(&error, at, options, share)? {
        return Ok(verified);
    }
    // If only the pytree's file is damaged, the arrays can still be checked.
    let arrays_only = OpenOptions { arrays_only: true, ..options.open.clone() };
    let Some(checkpoint) =
        error.kind().is_of_content().then(|| super::open_with(at, &arrays_only).ok()).flatten()
    else {
        return Err(error);
    };
    let report = checkpoint.verify_part(&options.monitor, share)?;
    Ok(checkpoint.found_first(report, if share.has_rest() { vec![error] } else { Vec::new() }))
}

/// The report for a checkpoint that opens only if its seal is ignored: all files that do not fit
/// the seal, or else `error`, and the findings of the layout. `None` for other checkpoints.
fn verify_without_seal(
    error: &Error,
    at: &Location,
    options: &VerifyOptions,
    share: Share,
) -> Result<Option<VerifiedShare>> {
    let open = OpenOptions { ignore_seal: true, trusted_keys: Vec::new(), ..options.open.clone() };
    let opened = || super::open_with(at, &open).ok();
    let is_sealed =
        error.kind().is_of_content() && (!options.open.ignore_seal || !options.open.trusted_keys.is_empty());
    let Some(checkpoint) = is_sealed.then(opened).flatten() else { return Ok(None) };
    let step = checkpoint.reader().standing().step_folder.map(|step| step.location().clone());
    let mut errors =
        misfits(step.as_ref().unwrap_or(checkpoint.location()), &options.open).unwrap_or_default();
    if errors.is_empty() {
        errors.push(error.duplicate());
    }
    let report = checkpoint.verify_part(&options.monitor, share)?;
    Ok(Some(checkpoint.found_first(report, if share.has_rest() { errors } else { Vec::new() })))
}

impl Checkpoint {
    /// Reads and checks everything.
    ///
    /// # Errors
    /// Errors if the files cannot be listed; `Replaced` if another checkpoint took the path during
    /// the read, because findings may then be wrong or missing.
    pub fn verify(&self) -> Result<VerifyReport> {
        self.verify_watched(&Monitor::new())
    }

    /// Like `verify`, with a monitor.
    ///
    /// # Errors
    /// The errors of [`verify`](Self::verify); `Cancelled`.
    pub fn verify_watched(&self, monitor: &Monitor) -> Result<VerifyReport> {
        self.verify_part(monitor, Share::ALL)
    }

    /// The error of reading one leaf and checking its checksums; `None` if the leaf is intact.
    pub(super) fn read_error(&self, leaf: usize, monitor: &Monitor) -> Result<Option<Error>> {
        match self.info(leaf).and_then(|info| check_leaf(self.reader(), leaf, info, monitor)) {
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::Cancelled => Err(error),
            Err(error) => Ok(Some(self.of_leaf(leaf, error))),
        }
    }

    fn verify_part(&self, monitor: &Monitor, share: Share) -> Result<VerifyReport> {
        let _running = monitor.begin()?;
        let len_bytes = || self.tree().leaves().iter().map(LeafInfo::len_bytes);
        let shares = shares_of(len_bytes(), share.count);
        let own = |leaf: usize| shares.get(leaf) == Some(&share.number);
        let expected = len_bytes().enumerate().filter(|(leaf, _)| own(*leaf));
        monitor.expect(expected.map(|(_, len_bytes)| len_bytes).fold(0, u64::saturating_add));
        monitor.enter(Stage::Read);
        let report = monitor.timed(Stage::Read, 0, || self.check_leaves(monitor, &own, share.has_rest()));
        let report = self.unless_misled(report).and_then(|report| monitor.finish().map(|()| report));
        monitor.conclude(report)
    }

    /// The report of one checkpoint. If the checkpoint was replaced, files that were removed with
    /// it are not damage, and the result is an error.
    fn unless_misled(&self, report: Result<VerifyReport>) -> Result<VerifyReport> {
        match report {
            Ok(report) => self.unless_missing(!report.is_ok()).map(|()| report),
            error => self.unless_replaced(error),
        }
    }

    /// The report with the errors of the opening before all other findings.
    fn found_first(&self, mut report: VerifyReport, errors: Vec<Error>) -> VerifiedShare {
        let mut places = vec![0; errors.len()];
        places.extend(self.places_of(&report));
        report.findings.splice(0..0, errors.into_iter().map(|error| Finding { error }));
        VerifiedShare { report, places }
    }

    /// The place of each finding: before all leaves, or after the leaves whose paths sort before
    /// it.
    fn places_of(&self, report: &VerifyReport) -> Vec<usize> {
        if report.findings.is_empty() {
            return Vec::new();
        }
        let mut paths: Vec<&KeyPath> = self.paths().iter().collect();
        paths.sort_unstable();
        let place = |finding: &Finding| match &finding.error.place().leaf {
            Some(leaf) => 1 + paths.partition_point(|path| *path < leaf),
            None => 0,
        };
        report.findings.iter().map(place).collect()
    }

    fn check_leaves(
        &self,
        monitor: &Monitor,
        own: &dyn Fn(usize) -> bool,
        has_rest: bool,
    ) -> Result<VerifyReport> {
        let reader = self.reader();
        let rest =
            if has_rest { reader.check_rest()?.found(self.misfit_shardings()) } else { Rest::default() };
        let findings = Mutex::new(rest.findings);
        let refused = Mutex::new(Vec::new());
        let checked = AtomicU64::new(0);
        let root = KeyPath::root();
        let mut order = reader.read_order();
        order.retain(|&leaf| own(leaf));
        // Check all extents at the speed of the disk. The loop below checks failing leaves again to
        // name them.
        let extents: Vec<Extent<'_>> = order.iter().filter_map(|&leaf| raw(reader, leaf)).collect();
        check_ahead(extents.iter().filter_map(short_blocks), CheckFor::Verify, Some(monitor))?;
        let cost =
            |&leaf: &usize| self.tree().leaves().get(leaf).map_or(0, |info| cost_bytes(reader, leaf, info));
        pool::for_each_parallel(pool::thread_count(), order, BUDGET_DEFAULT_BYTES, cost, |leaf| {
            let Some(info) = self.tree().leaves().get(leaf) else { return Ok(()) };
            let path = self.paths().get(leaf).unwrap_or(&root);
            if let Some(why) = refused_leaf(reader, leaf) {
                lock(&refused).push((path, why));
                return Ok(());
            }
            match check_leaf(reader, leaf, info, monitor) {
                Ok(bytes) => {
                    checked.fetch_add(bytes, Ordering::Relaxed);
                }
                Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
                Err(error) => {
                    lock(&findings).push(Finding { error: error.at_leaf(path) });
                }
            }
            Ok(())
        })?;
        let mut findings = findings.into_inner().unwrap_or_else(PoisonError::into_inner);
        findings.sort_by(|a, b| a.error.place().leaf.cmp(&b.error.place().leaf));
        let mut notes = rest.notes;
        notes.extend(refused_note(refused.into_inner().unwrap_or_else(PoisonError::into_inner)));
        let is_found = |what: &String| findings.iter().any(|finding| finding.error.what() == what);
        let warnings = if has_rest { self.description().warnings.as_slice() } else { &[] };
        notes.extend(warnings.iter().filter(|warning| !is_found(warning)).cloned());
        if has_rest && self.tree().is_empty() {
            // The notes list data outside of leaves that was not checked.
            notes.extend(self.description().notes.iter().cloned());
        }
        let unprotected = self.unprotected_files(own);
        let about = self.description();
        Ok(VerifyReport {
            step: about.step,
            steps: about.steps.clone(),
            findings,
            leaf_count: self.tree().len(),
            checked_bytes: checked.into_inner(),
            notes,
            has_data_checksums: reader.standing().has_data_checksums,
            unprotected_bytes: unprotected.iter().map(|file| file.bytes).fold(0, u64::saturating_add),
            unprotected_files: unprotected,
            signer: reader.standing().signer,
        })
    }

    /// The files of these leaves that hold array data without a checksum. If the layout does not
    /// know the files, the result is the checkpoint itself.
    fn unprotected_files(&self, own: &dyn Fn(usize) -> bool) -> Vec<UnprotectedFile> {
        let reader = self.reader();
        if reader.standing().has_data_checksums {
            return Vec::new();
        }
        let mut files: BTreeMap<PathBuf, u64> = BTreeMap::new();
        let arrays = self.tree().leaves().iter().enumerate().filter(|(_, info)| info.kind.is_array());
        for (leaf, info) in arrays.filter(|(leaf, info)| own(*leaf) && info.len_bytes() > 0) {
            for (file, bytes) in self.unprotected(leaf, info) {
                let all = files.entry(file).or_default();
                *all = all.saturating_add(bytes);
            }
        }
        files.into_iter().map(|(file, bytes)| UnprotectedFile { file, bytes }).collect()
    }

    fn unprotected(&self, leaf: usize, info: &LeafInfo) -> Vec<(PathBuf, u64)> {
        let whole = || vec![(self.path().to_owned(), info.len_bytes())];
        match self.reader().source(leaf) {
            Ok(Source::Raw(extent) | Source::Coded(Coded { seal: None, span: Some(extent), .. })) => {
                let is_bare = extent.checks.is_none();
                is_bare.then(|| (extent.blob.describe(), info.len_bytes())).into_iter().collect()
            }
            Ok(Source::Coded(Coded { seal: None, .. })) => {
                // An unreadable file is already a finding.
                let holders = self.reader().holders(leaf).unwrap_or_default();
                if holders.is_empty() { whole() } else { holders }
            }
            Ok(Source::Memory(_)) => whole(),
            _ => Vec::new(),
        }
    }

    /// The leaves with a stored sharding that their shape does not allow.
    fn misfit_shardings(&self) -> Vec<Error> {
        let leaves = self.tree().leaves().iter().zip(self.paths());
        let misfit = |(info, path): (&LeafInfo, &KeyPath)| {
            // A sharding of an unknown kind may fit.
            let error = info.sharding.as_ref()?.layout(&info.shape).err()?;
            let is_wrong = error.kind() == ErrorKind::InvalidArgument;
            let what = format!("the stored sharding does not fit its leaf: {}", error.what());
            let error = error.reworded(what).of_kind(ErrorKind::Corrupt).in_file(self.path()).at_leaf(path);
            is_wrong.then(|| error.help(SHARDING_HELP))
        };
        leaves.filter_map(misfit).take(MISFITS_SHOWN_MAX).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reason why an intact leaf is not read, such as an unsupported encoding; `None` for others.
pub(super) fn refused_leaf(reader: &dyn Reader, leaf: usize) -> Option<Error> {
    match reader.source(leaf) {
        Ok(Source::Unreadable(Unreadable { why, seal, is_sound: true })) => seal.check().ok().map(|()| why),
        _ => None,
    }
}

pub(super) fn refused_note(mut refused: Vec<(&KeyPath, Error)>) -> Option<String> {
    refused.sort_by_key(|(path, _)| *path);
    let texts = refused.iter().take(REFUSED_SHOWN_MAX);
    let texts: Vec<String> = texts.map(|(path, why)| format!("{path} ({})", why.what())).collect();
    let more = if refused.len() > REFUSED_SHOWN_MAX { " and more" } else { "" };
    let leaves =
        counted(refused.len(), "leaf is refused, and not damaged", "leaves are refused, and not damaged");
    (!refused.is_empty()).then(|| format!("{leaves}: {}{more}", texts.join("; ")))
}

fn raw(reader: &dyn Reader, leaf: usize) -> Option<Extent<'_>> {
    match reader.source(leaf) {
        Ok(Source::Raw(extent)) => Some(extent),
        _ => None,
    }
}

/// Memory needed to check a leaf: zero for raw leaves; other leaves are decoded in parts.
fn cost_bytes(reader: &dyn Reader, leaf: usize, info: &LeafInfo) -> u64 {
    let piece =
        band_elements(reader, leaf, info, PIECE_LEN_BYTES).saturating_mul(info.dtype.size_bytes() as u64);
    let working = match reader.source(leaf) {
        Ok(Source::Memory(_)) => return 0,
        Ok(Source::Raw(extent)) if is_checked_raw(&extent) => return 0,
        Ok(Source::Raw(extent)) => extent.working_len_bytes,
        Ok(Source::Coded(coded)) => coded.working_len_bytes,
        _ => None,
    };
    working.unwrap_or(piece).saturating_add(piece)
}

/// Whether the leaf needs no decoding: its bytes have checksums, or it is in a map and has no
/// checksum.
fn is_checked_raw(extent: &Extent<'_>) -> bool {
    extent.checks.is_some() || extent.view().is_ok_and(|view| view.is_some())
}

/// Checks one leaf. Returns the number of checked bytes.
fn check_leaf(reader: &dyn Reader, leaf: usize, info: &LeafInfo, monitor: &Monitor) -> Result<u64> {
    match info.kind {
        LeafKind::Str => return Ok(reader.read_text(leaf)?.len() as u64),
        LeafKind::Placeholder => return Ok(0),
        LeafKind::Unknown(_) => return reader.check_unknown(leaf).map(|()| 0),
        _ => {}
    }
    let is_counted = match reader.source(leaf)? {
        Source::Memory(_) => false,
        Source::Raw(extent) if extent.checks.is_some() => {
            extent.check(CheckFor::Verify)?;
            short_blocks(&extent).is_some()
        }
        Source::Raw(extent) if extent.view()?.is_some() => false,
        // Views need no decoding, even if they repeat elements many times.
        Source::Coded(Coded { seal: Some(seal), span: Some(extent), .. }) if extent.view()?.is_some() => {
            seal.check()?;
            false
        }
        _ => return decode(reader, leaf, info, monitor),
    };
    if !is_counted {
        monitor.done(Stage::Read, info.len_bytes())?;
    }
    Ok(stored_len_bytes(reader, leaf, info))
}

/// The stored bytes of a leaf. Its shape may claim more bytes than are stored.
fn stored_len_bytes(reader: &dyn Reader, leaf: usize, info: &LeafInfo) -> u64 {
    match reader.sparse(leaf) {
        Ok(Some(sparse)) => sparse.len_bytes(info.dtype).min(info.len_bytes()),
        _ => info.len_bytes(),
    }
}

/// Decodes a leaf in parts, so that the layout's own checks run.
fn decode(reader: &dyn Reader, leaf: usize, info: &LeafInfo, monitor: &Monitor) -> Result<u64> {
    let (mut buffer, mut read_bytes) = (Vec::new(), 0_u64);
    let mut read = |region: &Region| {
        let len_bytes = region.shape().len_bytes(info.dtype)?;
        if buffer.len() as u64 != len_bytes {
            buffer = allocate(len_bytes)?;
        }
        reader.read_region(leaf, region, &mut buffer)?;
        read_bytes = read_bytes.saturating_add(len_bytes);
        monitor.done(Stage::Read, len_bytes)
    };
    match reader.sparse(leaf)? {
        // Regions without stored bytes have nothing to check.
        Some(Sparse::Regions(regions)) => regions.iter().try_for_each(read)?,
        Some(Sparse::Repeats(shape, _)) => {
            let once = LeafInfo { shape, ..info.clone() };
            for_each_band(reader, leaf, &once, PIECE_LEN_BYTES, |region, _| read(region))?;
        }
        None => for_each_band(reader, leaf, info, PIECE_LEN_BYTES, |region, _| read(region))?,
    }
    monitor.done(Stage::Read, info.len_bytes().saturating_sub(read_bytes))?;
    Ok(read_bytes)
}
