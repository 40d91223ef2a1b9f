//! Compares the data of checkpoints of items that is not in leaves: metrics, metadata, and the
//! files of items.
//!
//! Each file is reported like a leaf of bytes. Its key path is the item's name and the file's name.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::DiffOptions;
use super::report::{DiffFinding, DiffReport, LeafDiff, LeafStatus, Side};
use crate::array::{Dtype, Shape};
use crate::engine::Checkpoint;
use crate::error::{Error, Result};
use crate::formats::item_folder::ItemFolder;
use crate::tree::{Key, KeyPath, LeafInfo, LeafKind};

type Beside = BTreeMap<KeyPath, Bytes>;

/// Adds the result to the report: damage of a file is a finding, not an error.
pub(super) fn compare(
    a: &Checkpoint,
    b: &Checkpoint,
    options: &DiffOptions,
    report: &mut DiffReport,
) -> Result<()> {
    let of = |checkpoint: &Checkpoint| checkpoint.reader().standing().items.map(|items| items.is_whole);
    let is_in_memory = [a, b].iter().any(|checkpoint| checkpoint.path().as_os_str().is_empty());
    // A single item and a pytree in memory have only leaves to compare.
    match (of(a), of(b)) {
        (Some(false), _) | (_, Some(false)) | (None, None) => return Ok(()),
        _ if is_in_memory => return Ok(()),
        _ => {}
    }
    let mut unread = BTreeSet::new();
    let of_a = beside(a, Side::A, report, &mut unread)?;
    let of_b = beside(b, Side::B, report, &mut unread)?;
    let is_chosen =
        |path: &&KeyPath| options.only.is_empty() || options.only.iter().any(|only| only.matches(path));
    let paths: BTreeSet<&KeyPath> = of_a.keys().chain(of_b.keys()).chain(&unread).filter(is_chosen).collect();
    for path in paths {
        let (own, other) = (of_a.get(path), of_b.get(path));
        let status = match (own, other) {
            _ if unread.contains(path) => LeafStatus::Unread,
            (Some(own), Some(other)) if own == other => LeafStatus::Equal,
            (Some(_), Some(_)) => LeafStatus::Values,
            (Some(_), None) => LeafStatus::OnlyA,
            _ => LeafStatus::OnlyB,
        };
        report.counts.add(status, 1);
        report.read_bytes += [own, other].into_iter().flatten().map(|bytes| bytes.len() as u64).sum::<u64>();
        if status != LeafStatus::Equal || options.list_equal {
            let (a, b) = (own.map(|bytes| info(path, bytes)), other.map(|bytes| info(path, bytes)));
            let path = path.clone();
            report.leaves.push(LeafDiff { path, status, a, b, distance: None, is_same_file: false });
        }
    }
    Ok(())
}

fn beside(
    checkpoint: &Checkpoint,
    side: Side,
    report: &mut DiffReport,
    unread: &mut BTreeSet<KeyPath>,
) -> Result<Beside> {
    let mut beside = Beside::new();
    let items = checkpoint.reader().standing().items;
    for item in items.into_iter().flat_map(ItemFolder::of_files) {
        match checkpoint.item_files(item) {
            Ok(files) if files.is_empty() => drop(beside.insert(path(&[item]), Bytes::new())),
            Ok(files) => beside.extend(files.into_iter().map(|(name, bytes)| (path(&[item, &name]), bytes))),
            Err(error) if error.kind().is_damage() => {
                unread.insert(path(&[item]));
                report.findings.push(DiffFinding { side, error });
            }
            Err(error) => return Err(error),
        }
    }
    let about = checkpoint.description();
    for (item, why) in &about.lost_items {
        unread.insert(path(&[item]));
        let error = Error::corrupt(why.as_str()).in_file(checkpoint.path());
        report.findings.push(DiffFinding { side, error });
    }
    for (name, value) in [("metrics", &about.metrics), ("metadata", &about.custom_metadata)] {
        // Compare numbers as numbers: two writers may spell one number differently.
        let text = value.as_ref().map(ToString::to_string);
        beside.extend(text.map(|text| (path(&[name]), text.into())));
    }
    Ok(beside)
}

fn path(keys: &[&str]) -> KeyPath {
    let mut path = KeyPath::root();
    keys.iter().for_each(|key| path.push(Key::dict(*key)));
    path
}

fn info(path: &KeyPath, bytes: &Bytes) -> LeafInfo {
    let shape = Shape::new(vec![bytes.len() as u64]).unwrap_or_default();
    LeafInfo {
        kind: LeafKind::Bytes,
        dtype: Dtype::UInt8,
        shape,
        name: path.join(".").into(),
        chunk_shape: None,
        write_shape: None,
        sharding: None,
        coding: "raw".into(),
    }
}
