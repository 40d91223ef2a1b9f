//! Begins, checks and joins checkpoints on a local disk, by the kind of the target.

use super::joined_folder::JoinedFolder;
use super::staging::Terms;
use super::{StagedFile, StagedFolder, StagedSiblings};
use crate::error::Result;
use crate::location::Location;
use crate::{Publication, PublishOptions, Target, no_such_file};

/// Begins a checkpoint at a path of the local file system.
///
/// # Errors
/// The same as for [`StagedFolder::create`], [`StagedFile::create`], [`StagedSiblings::create`];
/// errors of `may_replace` for an existing file.
pub(crate) fn begin(target: &Location, options: PublishOptions<'_>) -> Result<Box<dyn Publication>> {
    let path = target.local_path()?;
    let terms = Terms {
        keeps_others: options.keeps_others,
        replaces_links: options.replaces_links,
        ..Terms::of_save(options.overwrite, options.durable, options.monitor)
    };
    Ok(match options.kind {
        Target::Folder => Box::new(StagedFolder::begin(path, &terms)?),
        Target::File => Box::new(StagedFile::begin(path, &terms, options.may_replace)?),
        Target::Siblings { suffixes } => Box::new(StagedSiblings::begin(path, suffixes, &terms)?),
    })
}

/// Returns an error if [`begin`] would refuse the target. Changes nothing.
pub(crate) fn may_begin(target: &Location, options: PublishOptions<'_>) -> Result<()> {
    let (path, overwrite) = (target.local_path()?, options.overwrite);
    match options.kind {
        Target::Folder => StagedFolder::may_begin(path, overwrite, options.keeps_others),
        Target::File => StagedFile::may_begin(target, &options),
        Target::Siblings { suffixes } => StagedSiblings::may_begin(path, suffixes, overwrite),
    }
}

/// Joins the folder that another process has begun.
pub(crate) fn join(
    target: &Location,
    ticket: &str,
    options: PublishOptions<'_>,
) -> Result<Box<dyn Publication>> {
    match options.kind {
        Target::Folder => Ok(Box::new(JoinedFolder::join(target, ticket, options)?)),
        Target::File | Target::Siblings { .. } => Err(no_such_file("folder")),
    }
}
