//! Saves a tree: writes temporary files in the layout, then commits them.

use std::borrow::Cow;
use std::time::Instant;

use super::checks::{
    check_losses, check_name, check_options, check_place, check_rules, how_published, publish,
};
use super::side_files::SideFiles;
use super::together::save_together;
use super::{Layout, SaveOptions, SaveReport, replace};
use crate::array::{Array, Losses};
use crate::error::{Result, ResultExt};
use crate::formats::{WriteAs, located};
use crate::location::{Location, ToLocation};
use crate::storage::Target;
use crate::tree::{KeyPath, Leaf, LeafData, Pytree, Tree};

/// Saves a value at `path`: all of it or nothing, synced to disk. The suffix of a file chooses its
/// layout (`x.safetensors`, `x.npz`, `x.npy`, `x.msgpack`, `x.eqx`); any other path becomes a
/// folder in the default layout.
///
/// A [`Tree<Leaf>`](Tree) is written as it is. Any other [`Pytree`] is made into a tree first, with
/// copies of leaves that cannot be shared: see [`tree::pytree`](crate::tree::pytree).
///
/// # Errors
/// `AlreadyExists`, `PermissionDenied`, `StorageFull`, `Unsupported` or `NameCollision` with key
/// paths; `InvalidArgument` for the suffix of a file that regrow does not write, such as `.pt`.
/// After an error all earlier files are unchanged and no temporary file is left, with two
/// exceptions. After `NotDurable` the new checkpoint exists, but may not survive a power cut. If an
/// overwrite of a single file in a bucket fails in its last request, the seal, signature and parity
/// of the old file are already removed.
pub fn save<P: Pytree>(path: impl ToLocation, value: &P) -> Result<SaveReport> {
    let at = located(path)?;
    let layout = Layout::for_target(&at)?;
    save_with(at, value, &SaveOptions { layout, ..SaveOptions::default() })
}

/// Saves a value at `path` in the layout of the options, with any suffix: see
/// [`Layout::for_target`].
///
/// # Errors
/// The errors of [`save`]; `InvalidArgument` if the layout would make a folder under the name of a
/// file; `Cancelled`, or the error of the hook, if the [monitor](SaveOptions::monitor) ended the
/// save.
pub fn save_with<P: Pytree>(path: impl ToLocation, value: &P, options: &SaveOptions) -> Result<SaveReport> {
    save_watched(&located(path)?, options, || value.to_tree(), &|| Ok(()))
}

/// Saves the tree that `tree` makes, under the options' monitor. After the write, `may_commit` can
/// return an error. For a single file in a bucket this is too late to keep the old file, because
/// the complete new file has already replaced it.
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
    check_options(options)?;
    check_name(at, options)?;
    check_place(at, options)?;
    check_rules(tree, options)?;
    let data_bytes = data_len_bytes(tree, options);
    options.monitor.expect(data_bytes);
    let losses = check_losses(Some(at), tree, options)?;
    let tree = as_written(tree, options)?;
    let mut side_files = SideFiles::of(options);
    let may_commit_now = || {
        options.monitor.finish()?;
        may_commit()
    };
    let (stored_bytes, reused_bytes) = match format.write_as(at, options) {
        WriteAs::Folder(write) => {
            let new = publish(options, |how| at.publish_folder(side_files.noted(how)))?;
            options.monitor.check()?;
            write(&tree, &*new, options)?;
            let lens_bytes = (new.stored_bytes()?, new.reused_bytes());
            may_commit_now()?;
            side_files.before(&*new)?;
            new.commit()?;
            side_files.after(at)?;
            lens_bytes
        }
        WriteAs::Siblings { suffixes, write } => {
            let new = publish(options, |how| at.publish_siblings(&suffixes, how))?;
            options.monitor.check()?;
            write(&tree, &*new, options)?;
            let stored_bytes = new.stored_bytes()?;
            may_commit_now()?;
            side_files.commit(at, new, &options.monitor)?;
            (stored_bytes, 0)
        }
        WriteAs::File(write) => {
            let new = publish(options, |how| at.publish_file(how))?;
            replace::check_file_name(format, &tree, at, options)?;
            options.monitor.check()?;
            write(&tree, &*new, options)?;
            let stored_bytes = new.stored_bytes()?;
            may_commit_now()?;
            side_files.commit(at, new, &options.monitor)?;
            (stored_bytes, 0)
        }
    };
    Ok(SaveReport {
        reused_bytes,
        losses,
        ..SaveReport::new(at.describe(), stored_bytes, tree.len(), data_bytes)
    })
}

pub(super) fn data_len_bytes(tree: &Tree<Leaf>, options: &SaveOptions) -> u64 {
    if options.cast.is_empty() {
        let arrays = tree.leaves().iter().filter_map(Leaf::as_array);
        return arrays.map(Array::len_bytes).fold(0, u64::saturating_add);
    }
    let len_bytes = |(path, leaf): (KeyPath, &Leaf)| {
        let array = leaf.as_array()?;
        match options.cast_for(&path, &leaf.kind, array.dtype()) {
            Some(to) => array.shape().len_bytes(to).ok(),
            None => Some(array.len_bytes()),
        }
    };
    tree.iter().filter_map(len_bytes).fold(0, u64::saturating_add)
}

/// Makes all checks of [`save_with`] that need no write, in the same order. Only an error of the
/// disk can still prevent the save. Writes nothing.
pub(super) fn check_save(at: &Location, tree: &Tree<Leaf>, options: &SaveOptions) -> Result<()> {
    let format = options.layout.format();
    check_options(options)?;
    check_name(at, options)?;
    check_place(at, options)?;
    check_rules(tree, options)?;
    check_losses(None, tree, options)?;
    let tree = as_written(tree, options)?;
    let kind = format.write_as(at, options).kind();
    at.check_publish(&kind, how_published(options))?;
    if kind == Target::File {
        replace::check_file_name(format, &tree, at, options)?;
    }
    format.check(&tree, at, options)
}

/// The tree in the form that a [`WriteAs`] takes: with casts that the layout does not make.
pub(super) fn as_written<'a>(tree: &'a Tree<Leaf>, options: &SaveOptions) -> Result<Cow<'a, Tree<Leaf>>> {
    match options.cast.is_empty() || options.features().casts {
        true => Ok(Cow::Borrowed(tree)),
        false => cast_leaves(tree, options).map(Cow::Owned),
    }
}

/// The tree with the requested casts. Each leaf is cast when it is written.
fn cast_leaves(tree: &Tree<Leaf>, options: &SaveOptions) -> Result<Tree<Leaf>> {
    tree.try_map(|path, leaf| {
        let cast = leaf.as_array().and_then(|array| {
            let to = options.cast_for(path, &leaf.kind, array.dtype())?;
            Some(array.cast_as(to, Losses::of(options.casting, path)).at_leaf(path))
        });
        let data = cast.transpose()?.map_or_else(|| leaf.data.clone(), LeafData::Array);
        Ok(Leaf { data, ..leaf.clone() })
    })
}
