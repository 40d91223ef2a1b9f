//! Options that a save cannot fulfil, and checkpoints that cannot be changed. They are errors
//! before the first write.

use std::sync::Arc;

use super::casts::check_casts;
use super::in_memory::info_of;
use super::patterns::check_patterns;
use super::{AboutCheckpoint, Compression, SaveOptions, replace};
use crate::array::{Array, Casting, Dtype};
use crate::error::{Error, Result};
use crate::formats::refusals::Refusals;
use crate::formats::{Features, Loss, LossKind, formats, located};
use crate::location::{Location, ToLocation};
use crate::monitor::Monitor;
use crate::options::refuse_folder_named_like_a_file;
use crate::storage::Retries;
use crate::storage::{PublishOptions, Target, archive};
use crate::tree::{Leaf, LeafData, LeafInfo, LeafKind, Tree};

/// Changes the checkpoint at a path or URL, under the monitor. `help` is for a checkpoint in an
/// archive, which cannot be changed.
pub(super) fn change_at<T>(
    path: impl ToLocation,
    help: &str,
    monitor: &Monitor,
    change: impl FnOnce(&Location) -> Result<T>,
) -> Result<T> {
    let at = located(path)?;
    if archive::find(&at)?.is_some() {
        return Err(Error::unsupported("archives are read only").in_file(&at).help(help));
    }
    let changed = monitor.begin().and_then(|_running| {
        let changed = change(&at);
        monitor.finish().and(changed)
    });
    monitor.conclude(changed)
}

/// Returns an error if a location cannot be saved to. Checks again if another save replaces the
/// checkpoint at the location during the check.
pub(super) fn check_place(at: &Location, options: &SaveOptions) -> Result<()> {
    Retries::until_unreplaced(|| replace::check_place(at, options))
}

/// Returns an error if the layout would make a folder with the name of a file, such as `x.npz`.
pub(super) fn check_name(at: &Location, options: &SaveOptions) -> Result<()> {
    let format = options.layout.format();
    if options.replace_any_file || format.write_as(at, options).kind() != Target::Folder {
        return Ok(());
    }
    refuse_folder_named_like_a_file(at, format.name())
}

/// Begins the checkpoint of a save with `begin`, a method of [`Location`]. Like [`check_place`],
/// tries again if another save replaces the checkpoint at the location.
pub(super) fn publish<New>(
    options: &SaveOptions,
    begin: impl Fn(PublishOptions<'_>) -> Result<New>,
) -> Result<New> {
    Retries::until_unreplaced(|| begin(how_published(options)))
}

pub(super) fn how_published(options: &SaveOptions) -> PublishOptions<'_> {
    let may_replace: Option<fn(&Location) -> Result<()>> =
        if options.replace_any_file { None } else { Some(replace::check_file) };
    PublishOptions {
        overwrite: options.overwrite,
        may_replace,
        keeps_others: options.keeps_others,
        replaces_links: options.replace_any_file,
        wait: options.wait,
        mode: None,
        durable: !options.not_durable,
        keep_cached: options.keep_cached,
        in_memory: None,
        monitor: &options.monitor,
    }
}

/// Returns an error that lists all NumPy scalars whose dtype the layout cannot store.
pub(super) fn check_leaves(tree: &Tree<Leaf>, options: &SaveOptions) -> Result<()> {
    let mut refusals = Refusals::default();
    if tree.leaves().iter().any(|leaf| matches!(leaf.kind, LeafKind::NumpyOtherScalar(_))) {
        for (path, leaf) in tree.iter() {
            refuse_other_scalar(options, &leaf.kind).into_iter().for_each(|error| refusals.add(&path, error));
        }
    }
    refusals.finish("cannot be stored")
}

/// The error for a NumPy scalar of a dtype that only NumPy has, if the layout cannot store the
/// scalar.
pub(super) fn refuse_other_scalar(options: &SaveOptions, kind: &LeafKind) -> Option<Error> {
    let LeafKind::NumpyOtherScalar(dtype) = kind else { return None };
    if options.features().numpy_scalars {
        return None;
    }
    let error = Error::unsupported(format!("a NumPy scalar of dtype {dtype} cannot be stored"));
    Some(error.help("store it as an array: np.asarray(...)"))
}

/// Returns an error that lists all patterns of `cast` and of `per_leaf` that match no leaf, or an
/// error for a cast without effect.
pub(super) fn check_rules(tree: &Tree<Leaf>, options: &SaveOptions) -> Result<()> {
    let per_leaf = options.features().per_leaf.iter().map(|rule| &rule.0);
    let patterns = options.cast.iter().map(|rule| &rule.0).chain(per_leaf);
    check_patterns(tree, patterns)?;
    check_casts(tree, &options.cast, options.casting, |leaf| {
        (leaf.kind.clone(), leaf.as_array().map_or(Dtype::UInt8, Array::dtype))
    })
}

/// Returns an error if the layout's own tool would not read all leaves back as saved. Losses that
/// are only notes are allowed.
///
/// # Errors
/// `Unsupported` with the leaves whose values would be lost. There is no error if the options allow
/// lossy casts: one option allows both.
pub(super) fn check_losses(
    at: Option<&Location>,
    tree: &Tree<Leaf>,
    options: &SaveOptions,
) -> Result<Vec<Loss>> {
    // Report first the leaves that no option can allow.
    check_leaves(tree, options)?;
    if options.features().is_exact {
        return Ok(Vec::new());
    }
    let format = options.layout.format();
    let infos = tree.try_map(|path, leaf| {
        let info = info_of(leaf, &path.join("."))?;
        let dtype = options.cast_for(path, &info.kind, info.dtype).unwrap_or(info.dtype);
        Ok(LeafInfo { dtype, ..info })
    })?;
    let text = |(at, leaf): (usize, &Leaf)| match &leaf.data {
        LeafData::Text(text) => Some((at, Arc::clone(text))),
        _ => None,
    };
    let texts: Vec<_> = tree.leaves().iter().enumerate().filter_map(text).collect();
    let texts: Vec<(usize, &str)> = texts.iter().map(|(at, text)| (*at, &**text)).collect();
    let mut losses = format.losses(&infos, &texts, options);
    losses.retain(|loss| loss.kind != LossKind::Note);
    losses.sort_by_key(|loss| std::cmp::Reverse(loss.kind));
    let lost: Vec<&Loss> = losses.iter().filter(|loss| loss.kind == LossKind::Value).collect();
    if options.casting != Casting::Checked || lost.is_empty() {
        return Ok(losses);
    }
    if let Some(at) = at {
        format.check(tree, at, options)?;
    }
    let what = format!("readers of the layout {} would not get everything unchanged", format.name());
    Err(losses_refused(what, &lost).help(format!(
        "leave these leaves out, choose {}, or pass `lossy` to save what can be saved",
        layouts_with(|features| features.is_exact)
    )))
}

const NAMED_MAX: usize = 20;

pub(super) fn losses_refused(mut what: String, losses: &[&Loss]) -> Error {
    for loss in losses.iter().take(NAMED_MAX) {
        what.push_str(&format!("\n  {loss}"));
    }
    if losses.len() > NAMED_MAX {
        what.push_str(&format!("\n  and {} more", losses.len() - NAMED_MAX));
    }
    Error::unsupported(what)
}

/// Returns an error for options that the layout does not use: they would have no effect.
pub(super) fn check_options(options: &SaveOptions) -> Result<()> {
    let features = options.features();
    let is_compressed = matches!(options.compression, Some(Compression::Zstd(_)));
    if options.base.is_some() && !features.base {
        return Err(unused(options, "base", |features| features.base));
    }
    if options.base.is_some() && is_compressed {
        return Err(Error::invalid("a save with a base cannot be compressed").help(
            "leave out one of the two: saves with a base link files, and compressed files cannot be linked",
        ));
    }
    if options.about != AboutCheckpoint::default() && !features.about {
        return Err(unused(options, "metadata of the whole checkpoint", |features| features.about));
    }
    if is_compressed && !features.compression {
        return Err(unused(options, "this kind of compression", |features| features.compression));
    }
    if options.custom_metadata.is_some() && !features.metadata {
        return Err(unused(options, "metadata", |features| features.metadata));
    }
    Ok(())
}

fn unused(options: &SaveOptions, what: &str, has: fn(&Features<'_>) -> bool) -> Error {
    Error::invalid(format!("the layout {} does not support {what}", options.layout.name()))
        .help(format!("choose {}", layouts_with(has)))
}

/// The layouts whose saves have a feature, as text: `the layout regrow or orbax`.
pub(super) fn layouts_with(has: fn(&Features<'_>) -> bool) -> String {
    let defaults = SaveOptions::default();
    let formats = formats().filter(|format| has(&format.features(&defaults)));
    let names: Vec<&str> = formats.map(|format| format.name()).collect();
    match names.as_slice() {
        [rest @ .., last] if !rest.is_empty() => format!("the layout {} or {last}", rest.join(", ")),
        names => format!("the layout {}", names.concat()),
    }
}
