//! The parts of a source that are not leaves, and that a conversion may leave out: metadata,
//! metrics, items of files, other steps.

use super::ConvertOptions;
use super::items::PlannedItems;
use crate::engine::Checkpoint;
use crate::error::{Error, Result};
use crate::formats::{Loss, LossKind};
use crate::tree::KeyPath;

const NAMED_MAX: usize = 20;

/// Returns an error for a folder of several steps if the caller has not chosen a step, because
/// all other steps would be left out.
pub(super) fn refuse_many_steps(checkpoint: &Checkpoint, options: &ConvertOptions) -> Result<()> {
    let steps = &checkpoint.description().steps;
    if steps.len() < 2 || options.open.step.is_some() {
        return Ok(());
    }
    let named = steps.iter().take(NAMED_MAX).map(u64::to_string).collect::<Vec<_>>().join(", ");
    let more = if steps.len() > NAMED_MAX { ", ..." } else { "" };
    Err(Error::invalid(format!(
        "the source is a folder of {} steps, but a conversion takes one",
        steps.len()
    ))
    .in_file(checkpoint.location())
    .expected("`step` or `all_steps`", format_args!("steps {named}{more}"))
    .help("pass `step` to convert one, or `all_steps` to convert all into a folder of steps"))
}

/// The losses of a conversion that are not leaves.
pub(super) fn losses(
    checkpoint: &Checkpoint,
    options: &ConvertOptions,
    items: Option<&PlannedItems>,
) -> Vec<Loss> {
    let about = checkpoint.description();
    let holds_metadata = options.save.features().metadata;
    let mut losses = Vec::new();
    let mut lose = |kind, what: String| losses.push(Loss { kind, path: KeyPath::root(), what });
    let is_files = |kind: &str| kind.starts_with("files");
    if options.open.item.is_none() && items.is_none() {
        for (name, kind) in about.items.iter().filter(|(_, kind)| is_files(kind)) {
            lose(LossKind::Value, format!("the item {name:?} ({kind}) is left out; `regrow cp` keeps it"));
        }
        if is_files(&about.variant) {
            lose(LossKind::Value, "its files are left out; `regrow cp` keeps them".to_owned());
        }
    }
    if about.custom_metadata.is_some() && !holds_metadata {
        lose(LossKind::Value, "the checkpoint's own metadata is left out".to_owned());
    }
    if about.objects.is_some() && !holds_metadata {
        let what = "PyTorch's sets, parameters and shared tensors become plain containers and arrays";
        lose(LossKind::Note, what.to_owned());
    }
    for warning in &about.warnings {
        lose(LossKind::Note, format!("the source is incomplete: {warning}"));
    }
    if about.metrics.is_some() && !items.is_some_and(PlannedItems::has_metrics) {
        lose(LossKind::Value, "the metrics saved with the step are left out".to_owned());
    }
    losses
}
