//! What an overwrite may cost: a file goes only if a checkpoint file is what it is, or was meant to be.
//!
//! Folders are [`commit`](crate::commit)'s to judge, by the markers in them. A file has none, so it is looked at:
//!
//! | the file | is replaced |
//! |---|---|
//! | is empty | yes |
//! | has a name that only checkpoints have (`x.msgpack`, `x.npy`, …), whatever is in it | yes |
//! | is recognised by what is in it | yes |
//! | is anything else | no |
//!
//! Of files beside each other (`x.data`, `x.manifest`) the name is enough: the caller chose the suffixes.
//!
//! Nothing is saved inside a checkpoint folder, new or not: it would be no part of that checkpoint, and go with it.

use std::fs;
use std::path::Path;

use super::SaveOptions;
use crate::error::{Error, Result};
use crate::formats::{Format, UNCOMMITTED_MARK, builtin_formats, nearby};
use crate::location;
use crate::tree::{Leaf, Tree};

/// How far above a file the checkpoint that it is part of may be: `default/ocdbt.process_0/d/<hex>`.
const FOLDERS_ABOVE_MAX: usize = 4;

/// Errs unless a checkpoint of one file may take the place of this one.
pub(super) fn check_file(path: &Path) -> Result<()> {
    let len_bytes = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        // Taken away meanwhile.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io("cannot look at the target", path, error)),
    };
    let is_recognised = || builtin_formats().iter().any(|format| format.recognise(path).unwrap_or(false));
    if len_bytes == 0 || nearby::is_named_like_one(path) || is_recognised() {
        return Ok(());
    }
    Err(Error::invalid("the target is a file, but no checkpoint")
        .in_file(path)
        .expected(
            "an empty file, or one of a layout that regrow reads",
            format_args!("{len_bytes} bytes of something else"),
        )
        .help("overwriting would remove it; choose another path, or remove it yourself"))
}

/// Errs if the target lies inside a checkpoint folder; not if that is uncommitted, since its writer, such as Orbax, may
/// put a checkpoint into it.
pub(super) fn check_place(target: &Path, options: &SaveOptions) -> Result<()> {
    let absolute = std::path::absolute(location::local(target)?).unwrap_or_else(|_| target.to_owned());
    if options.replace_any_file {
        return Ok(());
    }
    for folder in absolute.ancestors().skip(1).take(FOLDERS_ABOVE_MAX) {
        let is_uncommitted =
            folder.file_name().is_some_and(|name| name.to_string_lossy().contains(UNCOMMITTED_MARK));
        if is_uncommitted {
            break;
        }
        if let Some(marker) = nearby::marker_in(folder) {
            return Err(Error::invalid("the target lies inside a checkpoint")
                .in_file(target)
                .expected("a place of its own", format_args!("{marker} in {}", folder.display()))
                .help(
                    "what is saved there would damage that checkpoint, or be removed with it; choose another path, or \
                     save to the folder of the checkpoint to replace all of it",
                ));
        }
    }
    Ok(())
}

/// Errs if the file that was written would not be opened as what it is under the name that it is to get: a single
/// number or text has nothing to be recognised by, and some suffixes are other layouts'.
pub(super) fn check_name(
    format: &'static dyn Format,
    written: &Path,
    target: &Path,
    options: &SaveOptions,
) -> Result<()> {
    if options.replace_any_file || format.claims_name(target) {
        return Ok(());
    }
    let found = builtin_formats().into_iter().find(|format| format.recognise(written).unwrap_or(false));
    must_be(format, found, target)
}

/// [`check_name`] of a file of `tree`, before it is written.
pub(super) fn check_name_ahead(
    format: &'static dyn Format,
    tree: &Tree<Leaf>,
    target: &Path,
    options: &SaveOptions,
) -> Result<()> {
    if options.replace_any_file || format.claims_name(target) {
        return Ok(());
    }
    let sketch = format.sketch(tree, options)?;
    let found = builtin_formats().into_iter().find(|format| format.recognise_sketch(target, &sketch));
    must_be(format, found, target)
}

/// Errs unless the layout that was found is the one that was written.
fn must_be(format: &'static dyn Format, found: Option<&'static dyn Format>, target: &Path) -> Result<()> {
    let name = format.name();
    let what = match found {
        Some(found) if found.name() == name => return Ok(()),
        Some(found) => {
            format!("a file of this name would be opened in the layout {}, not {name}", found.name())
        }
        // Of the other layouts only names tell; who chose the form chose that.
        None if format.suffix().is_none() => return Ok(()),
        None => format!(
            "a file of this name would not be recognised: nothing in such a tree shows the layout {name}"
        ),
    };
    let help = match format.suffix() {
        Some(suffix) => format!("end the name in {suffix}"),
        None => "give it the suffix of its own layout".to_owned(),
    };
    Err(Error::invalid(what).in_file(target).help(help))
}
