//! Saving: stage, let the format write, commit.

use std::borrow::Cow;
use std::time::Instant;

use super::patterns::check_patterns;
use super::together::save_together;
use super::{Compression, Layout, SaveOptions, SaveReport, replace};
use crate::array::Array;
use crate::error::{Error, Result, ResultExt};
use crate::formats::Format;
use crate::formats::refusals::Refusals;
use crate::location::{Location, ToLocation};
use crate::storage::{PublishOptions, Target};
use crate::tree::{KeyPath, Leaf, LeafData, LeafKind, Pytree, Tree};

/// Saves a value at `path` in the default layout: all of it or nothing, synced to disk.
///
/// A [`Tree<Leaf>`](Tree) is written as it is. Of any other [`Pytree`] a tree is made first, with a copy of the
/// data of those leaves that cannot be shared: see [`tree::pytree`](crate::tree::pytree).
///
/// # Errors
/// `AlreadyExists`, `PermissionDenied`, `StorageFull`, `Unsupported` or `NameCollision` with key paths. Whatever
/// the error, nothing that was there before has changed and no temporary file is left; but for `NotDurable`, after which
/// the new checkpoint is there, and may not survive a power cut.
pub fn save<P: Pytree>(path: impl ToLocation, value: &P) -> Result<SaveReport> {
    save_with(path, value, &SaveOptions::default())
}

/// Saves a value at `path`.
///
/// # Errors
/// As [`save`]; `Cancelled`, or what the hook said, if the [monitor](SaveOptions::monitor) ended it.
pub fn save_with<P: Pytree>(path: impl ToLocation, value: &P, options: &SaveOptions) -> Result<SaveReport> {
    save_watched(&path.to_location()?, options, || value.to_tree(), &|| Ok(()))
}

/// Saves what `tree` makes under the eyes of the options' monitor; `may_commit` has the last word, when all is written.
pub(super) fn save_watched<'a>(
    at: &Location,
    options: &SaveOptions,
    tree: impl FnOnce() -> Result<Cow<'a, Tree<Leaf>>>,
    may_commit: &dyn Fn() -> Result<()>,
) -> Result<SaveReport> {
    let monitor = &options.monitor;
    let began = Instant::now();
    let report = monitor.begin().and_then(|_running| {
        let mut report = match options.job.as_ref().filter(|job| job.has_others()) {
            Some(job) => match tree() {
                Ok(tree) => save_together(at, &tree, options, job, may_commit)?,
                Err(error) => {
                    return Err(job.refuse(at, "save", error));
                }
            },
            None => save_tree(at, &*tree()?, options, may_commit)?,
        };
        report.take_stock(monitor, began.elapsed());
        Ok(report)
    });
    monitor.conclude(report)
}

fn save_tree(
    at: &Location,
    tree: &Tree<Leaf>,
    options: &SaveOptions,
    may_commit: &dyn Fn() -> Result<()>,
) -> Result<SaveReport> {
    let format = options.layout.format();
    check_options(format, options)?;
    replace::check_place(at, options)?;
    check_rules(tree, options)?;
    let data_bytes = data_len_bytes(tree, options);
    options.monitor.expect(data_bytes);
    let tree = as_written(tree, options)?;
    let kind = format.target(at, options);
    let publication = at.storage().publish(at, how_published(&kind, options))?;
    if kind == Target::File && publication.staged_file().is_none() {
        // Where a file has its name as soon as it is whole, it is too late to refuse the name afterwards.
        replace::check_name_ahead(format, &tree, at, options)?;
        options.monitor.check()?;
    }
    format.write(&tree, &*publication, options)?;
    if kind == Target::File {
        replace::check_written(format, &tree, &*publication, options)?;
    }
    let stored_bytes = publication.stored_bytes()?;
    options.monitor.finish()?;
    may_commit()?;
    let reused_bytes = publication.reused_bytes();
    publication.commit()?;
    Ok(SaveReport { reused_bytes, ..SaveReport::new(at.describe(), stored_bytes, tree.len(), data_bytes) })
}

pub(super) fn how_published<'a>(kind: &'a Target, options: &'a SaveOptions) -> PublishOptions<'a> {
    let may_replace: Option<fn(&Location) -> Result<()>> =
        if options.replace_any_file { None } else { Some(replace::check_file) };
    PublishOptions {
        kind,
        overwrite: options.overwrite,
        may_replace,
        durable: !options.not_durable,
        monitor: &options.monitor,
    }
}

/// Bytes of array data, after the casts.
fn data_len_bytes(tree: &Tree<Leaf>, options: &SaveOptions) -> u64 {
    if options.cast.is_empty() {
        let arrays = tree.leaves().iter().filter_map(Leaf::as_array);
        return arrays.map(Array::len_bytes).fold(0, u64::saturating_add);
    }
    let len_bytes = |(path, leaf): (KeyPath, &Leaf)| {
        let array = leaf.as_array()?;
        let cast = options.cast.iter().find(|(pattern, _)| pattern.matches(&path));
        match cast.filter(|_| leaf.kind.is_castable()) {
            Some((_, to)) => array.shape().len_bytes(*to).ok(),
            None => Some(array.len_bytes()),
        }
    };
    tree.iter().filter_map(len_bytes).fold(0, u64::saturating_add)
}

/// Everything but the disk's own word that would keep [`save_with`] from saving this; writes nothing.
///
/// # Errors
/// Those of [`save_with`], in the same order.
pub(super) fn check_save(at: &Location, tree: &Tree<Leaf>, options: &SaveOptions) -> Result<()> {
    let format = options.layout.format();
    check_options(format, options)?;
    replace::check_place(at, options)?;
    check_rules(tree, options)?;
    let tree = as_written(tree, options)?;
    let kind = format.target(at, options);
    at.storage().check_publish(at, how_published(&kind, options))?;
    format.check(&tree, at, options)?;
    if kind == Target::File { replace::check_name_ahead(format, &tree, at, options) } else { Ok(()) }
}

/// The error for a NumPy scalar of a dtype that is NumPy's alone, in a layout that has no form for it.
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

/// The tree as [`Format::write`] takes it.
fn as_written<'a>(tree: &'a Tree<Leaf>, options: &SaveOptions) -> Result<Cow<'a, Tree<Leaf>>> {
    if tree.leaves().iter().any(|leaf| refuse_other_scalar(options, &leaf.kind).is_some()) {
        let mut refusals = Refusals::default();
        for (path, leaf) in tree.iter() {
            refuse_other_scalar(options, &leaf.kind).into_iter().for_each(|error| refusals.add(&path, error));
        }
        refusals.finish("cannot be stored")?;
    }
    match options.layout {
        // These two cast on their way to the file, and keep what they know of the original.
        Layout::Regrow | Layout::Orbax(_) => Ok(Cow::Borrowed(tree)),
        _ if options.cast.is_empty() => Ok(Cow::Borrowed(tree)),
        _ => cast_leaves(tree, options).map(Cow::Owned),
    }
}

/// Errs with all patterns of `cast` and of Orbax' `per_leaf` that match no leaf.
pub(super) fn check_rules(tree: &Tree<Leaf>, options: &SaveOptions) -> Result<()> {
    let per_leaf = match &options.layout {
        Layout::Orbax(orbax) => orbax.per_leaf.as_slice(),
        _ => &[],
    };
    let patterns = options.cast.iter().map(|rule| &rule.0).chain(per_leaf.iter().map(|rule| &rule.0));
    check_patterns(tree, patterns)
}

/// Options that the layout has no use for are refused: whoever set them expects something of them.
pub(super) fn check_options(format: &dyn Format, options: &SaveOptions) -> Result<()> {
    let name = format.name();
    let is_compressed = matches!(options.compression, Some(Compression::Zstd(_)));
    let unused =
        |what: &str, help: &str| Err(Error::invalid(format!("the layout {name} has no {what}")).help(help));
    match &options.layout {
        Layout::Regrow if options.base.is_some() && is_compressed => {
            Err(Error::invalid("a save with a base cannot be compressed")
                .help("leave out one of the two: what is compressed has no files that could be linked"))
        }
        Layout::Regrow => Ok(()),
        _ if options.base.is_some() => unused("base", "it belongs to the layout regrow"),
        Layout::Orbax(_) => Ok(()),
        _ if options.strict_orbax => unused("strict_orbax", "it belongs to the layout regrow"),
        _ if is_compressed => {
            unused("compression of this kind", "the layouts regrow and orbax compress with zstd")
        }
        _ if options.custom_metadata.is_some() && !format.holds_metadata(options) => {
            unused("place for metadata", "the layouts regrow, orbax, safetensors and equinox keep it")
        }
        _ => Ok(()),
    }
}

/// The tree with its leaves cast as asked, each when it is written.
fn cast_leaves(tree: &Tree<Leaf>, options: &SaveOptions) -> Result<Tree<Leaf>> {
    tree.try_map(|path, leaf| {
        let cast = options.cast.iter().find(|(pattern, _)| pattern.matches(path));
        let data = match (&leaf.data, cast) {
            (LeafData::Array(array), Some((_, to))) if leaf.kind.is_castable() => {
                LeafData::Array(array.cast(*to).at_leaf(path)?)
            }
            (data, _) => data.clone(),
        };
        Ok(Leaf { data, ..leaf.clone() })
    })
}
