//! The form of each leaf in the target layout: unchanged, the nearest possible form, or left out.

use std::collections::HashSet;
use std::sync::Arc;

use super::items::PlannedItems;
use super::rename::{self, Part};
use super::{ConvertOptions, ConvertPlan, Draft, PlannedLeaf, left_out, objects};
use crate::array::{Dtype, Shape, is_lossless};
use crate::engine::Checkpoint;
use crate::engine::checks::refuse_other_scalar;
use crate::error::Result;
use crate::formats::{Format, Loss, LossKind};
use crate::tree::{KeyPath, LeafData, LeafInfo, LeafKind, Tree};

/// Common dtypes, the narrowest first. If the target refuses a leaf's dtype, the first of these
/// that holds every value and that the target accepts replaces the dtype. Dtypes of the same class
/// come first.
const COMMON: [Dtype; 12] = [
    Dtype::Int8,
    Dtype::UInt8,
    Dtype::BFloat16,
    Dtype::Float16,
    Dtype::Int16,
    Dtype::UInt16,
    Dtype::Float32,
    Dtype::Int32,
    Dtype::Int64,
    Dtype::Float64,
    Dtype::Complex64,
    Dtype::Complex128,
];

/// Plans the conversion. A leaf that the target refuses gets a form that the target accepts, or is
/// left out; both count as losses. Without `lossy`, a plan with such losses cannot run.
pub(super) fn plan(
    checkpoint: &Checkpoint,
    positions: &Tree<usize>,
    drafts: Vec<Draft>,
    options: &ConvertOptions,
) -> Result<ConvertPlan> {
    let format = options.save.layout.format();
    let gaps: HashSet<KeyPath> =
        drafts.iter().filter(|draft| is_gap(draft, options)).map(|draft| draft.to.clone()).collect();
    let items = PlannedItems::of(checkpoint, &drafts, options)?;
    let mut losses = Vec::new();
    let mut kept = Vec::with_capacity(drafts.len());
    let mut dropped = Vec::new();
    for draft in drafts {
        match adapt(format, draft, options, &mut losses)? {
            Ok(draft) => kept.push(Some(draft)),
            Err(draft) => {
                kept.push(None);
                dropped.push(draft);
            }
        }
    }
    let tree = if dropped.is_empty() {
        positions.with_leaves(kept.into_iter().flatten().collect())?
    } else {
        let mut items = rename::items(positions);
        items.retain(|item| match item.part {
            Part::Leaf(leaf) => kept.get(leaf).is_some_and(Option::is_some),
            Part::Empty(_) => true,
        });
        let tree = rename::rename(positions, &items, &[], None)?;
        let mut order = Vec::with_capacity(tree.len());
        for &leaf in tree.leaves() {
            order.extend(kept.get_mut(leaf).and_then(Option::take));
        }
        tree.with_leaves(order)?
    };
    let infos = tree.try_map(|_, draft| Ok(draft.target.clone()))?;
    let mut texts = Vec::new();
    for (leaf, draft) in tree.leaves().iter().enumerate() {
        if let LeafData::Text(text) = &draft.leaf.data {
            texts.push((leaf, &**text));
        }
    }
    losses.extend(format.losses(&infos, &texts, &options.save));
    // The limits of the layout do not apply to leaves that are written as a text document.
    losses.retain(|loss: &Loss| !items.as_ref().is_some_and(|items| items.keeps_text_of(&loss.path)));
    losses.extend(left_out::losses(checkpoint, options, items.as_ref()));
    // The report already lists a lost leaf as damage of the source, so the loss of the leaf is only
    // a note.
    for loss in losses.iter_mut().filter(|loss| gaps.contains(&loss.path)) {
        loss.kind = LossKind::Note;
    }
    losses.sort_by_key(|loss| std::cmp::Reverse(loss.kind));
    let planned = |draft: &Draft, to: Option<KeyPath>| PlannedLeaf {
        from: draft.from.clone(),
        to,
        source: draft.source.clone(),
        target: draft.target.clone(),
    };
    let mut leaves: Vec<PlannedLeaf> = tree.iter().map(|(path, draft)| planned(draft, Some(path))).collect();
    leaves.extend(dropped.iter().map(|draft| planned(draft, None)));
    let own = match options.save.features().metadata {
        true => objects::metadata(checkpoint, &leaves, options),
        false => None,
    };
    let metadata = options.save.custom_metadata.clone().or(own);
    let source = checkpoint.location().clone();
    let is_lossy = tree.leaves().iter().map(|draft| Arc::clone(&draft.is_lossy)).collect();
    let tree = tree.map(|draft| draft.leaf);
    Ok(ConvertPlan { leaves, losses, damage: Vec::new(), source, tree, items, is_lossy, metadata })
}

/// Whether the draft replaces a lost leaf of the source.
fn is_gap(draft: &Draft, options: &ConvertOptions) -> bool {
    options.salvage && draft.source.kind == LeafKind::Placeholder
}

/// `Err` with the draft if the leaf is left out.
fn adapt(
    format: &dyn Format,
    draft: Draft,
    options: &ConvertOptions,
    losses: &mut Vec<Loss>,
) -> Result<std::result::Result<Draft, Draft>> {
    let Some(refusal) = refusal(format, &draft.target, options) else { return Ok(Ok(draft)) };
    let lost = |kind: LossKind, what: String| Loss { kind, path: draft.to.clone(), what };
    for (kind, dtype) in substitutes(&draft.target) {
        let target = LeafInfo { kind: kind.clone(), dtype, ..draft.target.clone() };
        if refusal_of(format, &target, options) {
            continue;
        }
        let LeafData::Array(array) = &draft.leaf.data else { continue };
        let data = LeafData::Array(array.cast(dtype)?);
        let what = in_words(&draft.target, &target);
        losses.push(lost(LossKind::Kind, what));
        let mut draft = draft;
        draft.leaf.kind = kind;
        draft.leaf.data = data;
        draft.target = target;
        return Ok(Ok(draft));
    }
    losses.push(lost(LossKind::Value, format!("is left out: {refusal}")));
    Ok(Err(draft))
}

fn in_words(from: &LeafInfo, to: &LeafInfo) -> String {
    let becomes = match (&from.kind, &to.kind) {
        (from_kind, to_kind) if from_kind == to_kind => {
            return format!("{} becomes {}", from.dtype, to.dtype);
        }
        (LeafKind::NumpyOther(descr), LeafKind::NumpyArray) => {
            let is_text = descr.trim_start_matches(['<', '>', '=', '|']).starts_with(['U', 'S']);
            let text = if is_text { " (text)" } else { "" };
            let each = from.shape.dims().last().copied().unwrap_or(0);
            return format!(
                "an array of dtype {descr}{text} becomes an array of uint8: the {each} bytes of each element, in one \
                 more axis"
            );
        }
        (LeafKind::NumpyOtherScalar(descr), LeafKind::NumpyOther(_)) => {
            return format!("a NumPy scalar of dtype {descr} becomes a 0-d array");
        }
        (LeafKind::Bytes, LeafKind::NumpyArray) => "bytes become a uint8 array",
        (LeafKind::PrngKey(_), LeafKind::NumpyArray) => "a PRNG key becomes the array of its key data",
        (from, to) => return format!("a leaf of kind {} becomes one of kind {}", from.name(), to.name()),
    };
    becomes.to_owned()
}

fn refusal(format: &dyn Format, leaf: &LeafInfo, options: &ConvertOptions) -> Option<String> {
    if let LeafKind::Unknown(name) = &leaf.kind {
        return Some(format!("its type {name} was never decoded"));
    }
    if let Some(error) = refuse_other_scalar(&options.save, &leaf.kind) {
        return Some(error.what().to_owned());
    }
    format.refusal(leaf, &options.save).map(|error| error.what().to_owned())
}

fn refusal_of(format: &dyn Format, leaf: &LeafInfo, options: &ConvertOptions) -> bool {
    refusal(format, leaf, options).is_some()
}

/// Leaf kinds and dtypes that can replace a leaf, the nearest first.
fn substitutes(leaf: &LeafInfo) -> Vec<(LeafKind, Dtype)> {
    let mut out = Vec::new();
    match &leaf.kind {
        LeafKind::Str | LeafKind::Placeholder | LeafKind::Unknown(_) => return out,
        LeafKind::Bytes | LeafKind::NumpyOther(_) | LeafKind::PrngKey(_) => {
            out.push((LeafKind::NumpyArray, leaf.dtype));
        }
        LeafKind::NumpyOtherScalar(descr) => {
            out.push((LeafKind::NumpyOther(descr.clone()), leaf.dtype));
            out.push((LeafKind::NumpyArray, leaf.dtype));
        }
        LeafKind::JaxArray => {
            out.push((LeafKind::NumpyArray, leaf.dtype));
            out.extend(wider(leaf.dtype).map(|dtype| (LeafKind::JaxArray, dtype)));
            out.extend(wider(leaf.dtype).map(|dtype| (LeafKind::NumpyArray, dtype)));
        }
        LeafKind::NumpyArray => out.extend(wider(leaf.dtype).map(|dtype| (LeafKind::NumpyArray, dtype))),
        LeafKind::NumpyScalar | LeafKind::Scalar => {
            out.extend([LeafKind::NumpyScalar, LeafKind::NumpyArray].map(|kind| (kind, leaf.dtype)));
            out.extend(wider(leaf.dtype).map(|dtype| (leaf.kind.clone(), dtype)));
            out.extend(wider(leaf.dtype).map(|dtype| (LeafKind::NumpyArray, dtype)));
        }
    }
    // A plain number has no axes.
    let has_axes = leaf.shape != Shape::scalar();
    out.retain(|(kind, _)| !(has_axes && matches!(kind, LeafKind::Scalar | LeafKind::NumpyScalar)));
    out
}

/// Dtypes that hold every value of `from`. Dtypes of the same class come first.
fn wider(from: Dtype) -> impl Iterator<Item = Dtype> {
    let holds = move |same_class: bool| {
        let fits = move |&to: &Dtype| {
            to != from && is_lossless(from, to) && (to.class() == from.class()) == same_class
        };
        COMMON.into_iter().filter(fits)
    };
    holds(true).chain(holds(false))
}
