//! The files that an overwrite may replace: checkpoints, and files that were meant as checkpoints.
//!
//! For a folder, [`commit`](crate::commit) decides by the markers in the folder. A file has no
//! marker, so the name and the content of the file decide:
//!
//! | the file | is replaced |
//! |---|---|
//! | is empty | yes |
//! | has a name that only checkpoints have (`x.msgpack`, `x.npy`, …), with any content | yes |
//! | has a recognised content, and is not a pickle | yes |
//! | is anything else | no |
//!
//! For pairs of files (`x.data`, `x.manifest`) the name is enough, because the caller chose the
//! suffixes.
//!
//! A save inside the folder of another checkpoint is an error: its files would be removed with that
//! checkpoint.

use super::SaveOptions;
use crate::error::{Error, Result};
use crate::formats::{
    COMMIT_MARKERS, Format, FormatExt, UNCOMMITTED_MARK, contents, formats, may_be_anothers, suggestions,
};
use crate::location::Location;
use crate::storage::{Found, archive};
use crate::threads::map_ordered;
use crate::tree::{Leaf, Tree};

/// The most folders between a file and the checkpoint that it belongs to:
/// `default/ocdbt.process_0/d/<hex>`.
const FOLDERS_ABOVE_MAX: usize = 4;

/// Returns an error unless a save of a single file may replace the file at `at`.
pub(super) fn check_file(at: &Location) -> Result<()> {
    let len_bytes = match at.look()? {
        Some(Found::File { len_bytes }) => len_bytes,
        // Another process removed the file after the first look.
        None => return Ok(()),
        Some(Found::Folder | Found::Other(_)) => 0,
    };
    let is_recognised = || {
        let is_one = formats().any(|format| format.recognise(at).unwrap_or(false));
        (is_one || matches!(contents::layout_of(at), Ok(Some(_)))) && !may_be_anothers(at)
    };
    if len_bytes == 0 || suggestions::is_named_like_one(at.name()) || is_recognised() {
        return Ok(());
    }
    Err(Error::invalid("the target is a file, but not a checkpoint")
        .in_file(at)
        .expected(
            "an empty file, or a file of a layout that regrow reads",
            format_args!("{len_bytes} bytes of something else"),
        )
        .help("an overwrite would remove it: choose another path, or remove it yourself"))
}

/// Returns an error if the target lies inside an archive or a checkpoint folder. An uncommitted
/// folder is allowed, because its writer, such as Orbax, may put a checkpoint into it.
pub(super) fn check_place(target: &Location, options: &SaveOptions) -> Result<()> {
    archive::refuse_inside(target)?;
    if options.replace_any_file {
        return Ok(());
    }
    let is_committed = |folder: &Location| !folder.name_text().contains(UNCOMMITTED_MARK);
    let above: Vec<Location> =
        target.folders_above().take(FOLDERS_ABOVE_MAX).take_while(is_committed).collect();
    // In a bucket every look is a request, so ask all folders at once.
    let threads = if target.commits_by_marker() { above.len() } else { 1 };
    let look = |folder: Location| Ok(marker_in(&folder).map(|marker| (marker, folder)));
    map_ordered(
        threads,
        above,
        u64::MAX,
        |_| 0,
        look,
        |found| {
            match found {
        Some((marker, folder)) => Err(Error::invalid("the target is inside a checkpoint")
            .in_file(target)
            .expected("a folder outside of it", format_args!("{marker} in {folder}"))
            .help(
                "a save would damage that checkpoint, or be removed with it: choose another path, or save \
                 to the folder of the checkpoint to replace it",
            )),
        None => Ok(()),
    }
        },
    )
}

fn marker_in(folder: &Location) -> Option<&'static str> {
    if !folder.commits_by_marker() {
        return suggestions::marker_in(folder);
    }
    // In a bucket every checkpoint folder has this marker.
    let marker = COMMIT_MARKERS[0];
    let found = folder.store().len_bytes(marker.as_bytes());
    found.is_ok_and(|len_bytes| len_bytes.is_some()).then_some(marker)
}

/// Returns an error if a file that holds `tree` would be opened in another layout under the name of
/// the target. The bytes of a single number or text do not show their layout, and some suffixes
/// belong to other layouts.
pub(super) fn check_file_name(
    format: &'static dyn Format,
    tree: &Tree<Leaf>,
    target: &Location,
    options: &SaveOptions,
) -> Result<()> {
    if options.replace_any_file || format.claims_name(target.name()) {
        return Ok(());
    }
    let preview = format.preview(tree, options)?;
    let found = formats().find(|format| format.recognise_preview(target.name(), &preview));
    let name = format.name();
    let what = match found {
        Some(found) if found.name() == name => return Ok(()),
        Some(found) => {
            format!("a file of this name would be opened in the layout {}, not {name}", found.name())
        }
        // Only the file's name could show this layout, and the caller chose the name.
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
