//! Options that a save cannot fulfil. They are errors before the first write, for one process and
//! for several.

use std::sync::Arc;

use super::casts::check_casts;
use super::in_memory::info_of;
use super::patterns::check_patterns;
use super::side_files::take_from_files;
use super::{AboutCheckpoint, Compression, Layout, SaveOptions, replace};
use crate::array::{Array, Casting, Dtype};
use crate::error::{Error, Result};
use crate::formats::refusals::Refusals;
use crate::formats::{Format, Loss, LossKind};
use crate::location::Location;
use crate::options::refuse_folder_named_like_a_file;
use crate::storage::Retries;
use crate::storage::{Publication, PublishOptions, Target};
use crate::tree::{Leaf, LeafData, LeafInfo, LeafKind, Tree};

/// Returns an error if a location cannot be saved to. Looks again if another save replaces the
/// checkpoint there in between.
pub(super) fn check_place(at: &Location, options: &SaveOptions) -> Result<()> {
    Retries::until_unreplaced(|| replace::check_place(at, options))
}

/// Errs if the layout would make a folder under the name of a file.
pub(super) fn check_name(at: &Location, options: &SaveOptions) -> Result<()> {
    let format = options.layout.format();
    if options.replace_any_file || format.target(at, options) != Target::Folder {
        return Ok(());
    }
    refuse_folder_named_like_a_file(at, format.name())
}

/// Begins the checkpoint of a save; as [`check_place`], where another save is at work.
pub(super) fn publish(at: &Location, kind: &Target, options: &SaveOptions) -> Result<Box<dyn Publication>> {
    Retries::until_unreplaced(|| at.publish(how_published(kind, options)))
}

/// How a save publishes its checkpoint.
pub(super) fn how_published<'a>(kind: &'a Target, options: &'a SaveOptions) -> PublishOptions<'a> {
    let may_replace: Option<fn(&Location) -> Result<()>> =
        if options.replace_any_file { None } else { Some(replace::check_file) };
    PublishOptions {
        kind,
        overwrite: options.overwrite,
        may_replace,
        make_way: if options.overwrite { Some(take_from_files) } else { None },
        keeps_others: options.keeps_others,
        replaces_links: options.replace_any_file,
        durable: !options.not_durable,
        monitor: &options.monitor,
    }
}

/// Errs with all leaves for which the layout has no form.
pub(super) fn check_leaves(tree: &Tree<Leaf>, options: &SaveOptions) -> Result<()> {
    if tree.leaves().iter().any(|leaf| refuse_other_scalar(options, &leaf.kind).is_some()) {
        let mut refusals = Refusals::default();
        for (path, leaf) in tree.iter() {
            refuse_other_scalar(options, &leaf.kind).into_iter().for_each(|error| refusals.add(&path, error));
        }
        refusals.finish("cannot be stored")?;
    }
    Ok(())
}

/// The error for a NumPy scalar of a dtype that is NumPy's alone, in a layout that has no form for
/// it.
pub(super) fn refuse_other_scalar(options: &SaveOptions, kind: &LeafKind) -> Option<Error> {
    match (&options.layout, kind) {
        (Layout::Flax(_), _) => None,
        (_, LeafKind::NumpyOtherScalar(dtype)) => Some(
            Error::unsupported(format!("a NumPy scalar of dtype {dtype} cannot be stored"))
                .help("store it as an array: np.asarray(...)"),
        ),
        _ => None,
    }
}

/// Errs with all patterns of `cast` and of `per_leaf` that match no leaf.
pub(super) fn check_rules(tree: &Tree<Leaf>, options: &SaveOptions) -> Result<()> {
    let per_leaf = match &options.layout {
        Layout::Orbax(orbax) => orbax.per_leaf.as_slice(),
        Layout::Regrow(regrow) => regrow.per_leaf.as_slice(),
        _ => &[],
    };
    let patterns = options.cast.iter().map(|rule| &rule.0).chain(per_leaf.iter().map(|rule| &rule.0));
    check_patterns(tree, patterns)?;
    check_casts(tree, &options.cast, options.casting, |leaf| {
        (leaf.kind.clone(), leaf.as_array().map_or(Dtype::UInt8, Array::dtype))
    })
}

/// Errs if the layout's tool would not read all leaves back as saved, notes aside. The default
/// layout stores every leaf.
///
/// # Errors
/// `Unsupported` with the leaves whose values would be lost, unless casts may lose values, too: one
/// word allows both.
pub(super) fn check_losses(
    at: Option<&Location>,
    tree: &Tree<Leaf>,
    options: &SaveOptions,
) -> Result<Vec<Loss>> {
    // Report first the leaves that no option can allow.
    check_leaves(tree, options)?;
    if matches!(options.layout, Layout::Regrow(_)) {
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
    Err(losses_refused(what, &lost)
        .help("leave these leaves out, choose the layout regrow, or pass `lossy` to save what can be saved"))
}

/// The most losses that one error names.
const NAMED_MAX: usize = 20;

/// The error that names the losses.
pub(super) fn losses_refused(mut what: String, losses: &[&Loss]) -> Error {
    for loss in losses.iter().take(NAMED_MAX) {
        what.push_str(&format!("\n  {loss}"));
    }
    if losses.len() > NAMED_MAX {
        what.push_str(&format!("\n  and {} more", losses.len() - NAMED_MAX));
    }
    Error::unsupported(what)
}

/// Refuses options that the layout does not use: they would have no effect.
pub(super) fn check_options(format: &dyn Format, options: &SaveOptions) -> Result<()> {
    let name = format.name();
    let is_compressed = matches!(options.compression, Some(Compression::Zstd(_)));
    let unused = |what: &str, help: &str| {
        Err(Error::invalid(format!("the layout {name} does not support {what}")).help(help))
    };
    match &options.layout {
        Layout::Regrow(_) if options.base.is_some() && is_compressed => {
            Err(Error::invalid("a save with a base cannot be compressed").help(
                "leave out one of the two: saves with a base link files, and compressed files cannot \
                    be linked",
            ))
        }
        Layout::Regrow(_) => Ok(()),
        _ if options.base.is_some() => unused("base", "it belongs to the layout regrow"),
        Layout::Orbax(_) => Ok(()),
        _ if options.about != AboutCheckpoint::default() => {
            unused("metadata of the whole checkpoint", "they belong to the layouts regrow and orbax")
        }
        _ if is_compressed => {
            unused("this kind of compression", "the layouts regrow and orbax compress with zstd")
        }
        _ if options.custom_metadata.is_some() && !format.holds_metadata(options) => {
            unused("metadata", "the layouts regrow, orbax, safetensors and equinox keep it")
        }
        _ => Ok(()),
    }
}
