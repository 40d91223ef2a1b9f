//! Tells the files of a checkpoint from other files in its folder. The storage calls this test
//! before it replaces or removes the folder.
//!
//! An overwrite removes the whole folder. So the storage first searches the folder for files that
//! no layout writes: notes, a tokenizer, logs. Any such file prevents the overwrite. A subfolder
//! with a known name or with a marker belongs to the checkpoint, and is not searched. Any other
//! subfolder belongs to the checkpoint if all files in it do.
//!
//! The name of an array file proves little: `lora.safetensors` and `embeddings.npy` may be a user's
//! own files. Such a file belongs to the checkpoint only if the checkpoint lists the file.

use std::collections::HashSet;
use std::sync::LazyLock;

use super::formats;
use super::item_files::ItemForm;
use crate::options::Layout;
use regrow_base::error::Result;
use regrow_storage::location::{Location, ToLocation};
use regrow_storage::{Found, IsOwn, Names, tell_names};
use regrow_store::StoreExt;

/// Most folder levels between a checkpoint and an array whose name has slashes.
const DEPTH_MAX: usize = 8;

/// Reads the names of the files that the checkpoint in a folder lists as its own.
pub type ListedIn = fn(&Location) -> Option<HashSet<String>>;

/// Makes the test for a layout's own names in a folder. The flag says whether the checkpoint lists
/// its files.
pub type OwnNamesIn = fn(&Location, bool) -> Box<dyn OwnNames + '_>;

/// The file names of a layout.
#[derive(Debug, Clone, Copy)]
pub struct FileNames {
    /// A folder with a file of one of these names is a checkpoint, and `overwrite` may replace it.
    /// Names that other programs use too (`checkpoint`, `zarr.json`) are not markers, because
    /// folders with these files may hold other data.
    pub markers: &'static [&'static str],
    /// The files that the original library writes as soon as it makes the folder of a checkpoint.
    pub first: &'static [&'static str],
    /// A checkpoint's folder has at least one of these files. A web server cannot list the folder.
    pub beginnings: &'static [&'static str],
    /// Reads the names at the top of a checkpoint's folder, if the checkpoint lists all of them.
    pub listed_in: Option<ListedIn>,
    /// Makes the test for the layout's own names in a folder.
    pub own_in: Option<OwnNamesIn>,
    /// Whether these names are all files of one checkpoint without a marker.
    pub are_of_one: Option<fn(&[&str]) -> bool>,
    /// The suffixes of a checkpoint that is several files; the last file describes the others.
    pub pair_suffixes: &'static [&'static str],
    /// An item with one of these files is a folder of this layout.
    pub of_item_folders: &'static [&'static str],
    /// An item with one of these files is that file.
    pub of_item_files: &'static [&'static str],
    /// The form of an item; the flag asks for the v1 form of a checkpoint. `None` for a layout that
    /// no item can have.
    pub item: Option<fn(&Layout, bool) -> ItemForm>,
    /// The name of a step, from its number and its plain name; `None` if a step has its plain name.
    pub step_name: Option<fn(u64, &str, &Layout) -> String>,
    /// The file with checksums of all other files; `None` if a checkpoint needs a seal for
    /// checksums.
    pub record: Option<&'static str>,
    /// Whether a checkpoint in a folder needs the commit marker in a bucket; `None` for a layout
    /// that has no marker.
    pub needs_marker: Option<fn(&Location) -> bool>,
    /// Whether the files are read and written by their paths on a local disk.
    pub needs_local_disk: bool,
    /// Whether a file is one of several files of a checkpoint in one folder.
    pub is_part: Option<fn(&Location) -> bool>,
    /// Whether another program may have written the file, so that no save replaces it.
    pub may_be_anothers: Option<fn(&Location) -> bool>,
    /// Whether a file of this name may be a step in a folder of steps.
    pub may_be_step: Option<fn(&str) -> bool>,
    /// Suffixes of paths that choose the layout for a save.
    pub suffixes: &'static [&'static str],
    /// The names that readers look for, for error messages.
    pub looked_for: &'static [&'static str],
}

impl FileNames {
    /// The names of a layout that has no folders.
    pub const NONE: Self = Self {
        markers: &[],
        first: &[],
        beginnings: &[],
        listed_in: None,
        own_in: None,
        are_of_one: None,
        pair_suffixes: &[],
        of_item_folders: &[],
        of_item_files: &[],
        item: None,
        step_name: None,
        record: None,
        needs_marker: None,
        needs_local_disk: false,
        is_part: None,
        may_be_anothers: None,
        may_be_step: None,
        suffixes: &[],
        looked_for: &[],
    };
}

/// Tests which names in one folder are a layout's own.
pub trait OwnNames {
    /// Whether a file with this name, at the top of the folder, is the layout's own.
    fn has_file(&self, name: &str) -> bool;

    /// Whether a subfolder with this name, at the top of the folder, is the layout's own.
    fn has_folder(&self, name: &str) -> bool;

    /// Whether a deeper folder is the layout's own, by the files in it.
    fn is_part(&self, _folder: &Location) -> bool {
        false
    }

    /// Whether a file in a deeper folder with the name `_folder` is the layout's own.
    fn has_file_below(&self, _folder: &str, _name: &str) -> bool {
        false
    }
}

/// The markers of all layouts.
pub fn checkpoint_markers() -> &'static [&'static str] {
    static MARKERS: LazyLock<Vec<&str>> = LazyLock::new(|| of_all(|names| names.markers));
    &MARKERS
}

pub(super) fn first_files() -> &'static [&'static str] {
    static FIRST: LazyLock<Vec<&str>> = LazyLock::new(|| of_all(|names| names.first));
    &FIRST
}

fn of_all(which: fn(FileNames) -> &'static [&'static str]) -> Vec<&'static str> {
    formats().flat_map(|format| which(format.file_names())).copied().collect()
}

/// The location of a path or URL. Registers the layouts' file names with the storage first.
///
/// # Errors
/// `Unsupported` for a URL without a storage in this build.
pub fn located(place: impl ToLocation) -> Result<Location> {
    tell_storage();
    place.to_location()
}

/// A checkpoint's folder on a web server has at least one of these files.
pub fn beginnings() -> &'static [&'static str] {
    static BEGINNINGS: LazyLock<Vec<&str>> = LazyLock::new(|| of_all(|names| names.beginnings));
    &BEGINNINGS
}

/// Registers the layouts' file names with the storage.
#[inline]
pub fn tell_storage() {
    tell_names(&OfAll);
}

/// The file names of all layouts, as the storage asks for them.
#[derive(Debug)]
struct OfAll;

impl Names for OfAll {
    fn markers(&self) -> &[&'static str] {
        checkpoint_markers()
    }

    fn first_files(&self) -> &[&'static str] {
        first_files()
    }

    fn beginnings(&self) -> &[&'static str] {
        beginnings()
    }

    fn are_of_one(&self, files: &[&str]) -> bool {
        let mut layouts = formats().filter_map(|format| format.file_names().are_of_one);
        layouts.any(|are_of_one| are_of_one(files))
    }

    fn pair_suffixes(&self) -> &[&'static str] {
        static SUFFIXES: LazyLock<Vec<&str>> = LazyLock::new(|| of_all(|names| names.pair_suffixes));
        &SUFFIXES
    }

    fn own_in<'f>(&self, folder: &'f Location) -> IsOwn<'f> {
        let names = formats().map(|format| format.file_names());
        let listed = names.clone().find_map(|names| names.listed_in?(folder));
        let own = names.filter_map(|names| Some(names.own_in?(folder, listed.is_some())));
        let own: Vec<Box<dyn OwnNames + 'f>> = own.collect();
        Box::new(move |name| {
            let is_listed = || listed.as_ref().is_some_and(|listed| listed.contains(name.text));
            Ok(match name.is_folder {
                true => {
                    is_listed()
                        || own.iter().any(|own| own.has_folder(name.text))
                        || is_part(&folder.join(name.text), &own, DEPTH_MAX)?
                }
                false => {
                    checkpoint_markers().contains(&name.text)
                        || is_listed()
                        || own.iter().any(|own| own.has_file(name.text))
                }
            })
        })
    }
}

/// Whether a folder is an item, an array, a folder of arrays with slashes in their names, or has no
/// file that could be lost.
fn is_part(folder: &Location, own: &[Box<dyn OwnNames + '_>], depth: usize) -> Result<bool> {
    if own.iter().any(|own| own.is_part(folder)) || folder.first_file(checkpoint_markers()).is_some() {
        return Ok(true);
    }
    let name = folder.name_text();
    for entry in folder.entries()? {
        let text = entry.name.to_string_lossy();
        let belongs = match entry.is_real_folder() {
            true => depth > 0 && is_part(&folder.join(&entry.name), own, depth - 1)?,
            false => {
                entry.is_file() && !entry.is_link && own.iter().any(|own| own.has_file_below(&name, &text))
            }
        };
        if !belongs {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The contents of a short file; `None` if the file is missing or longer than `len_max_bytes`.
pub(super) fn read_short(file: &Location, len_max_bytes: u64) -> Option<Vec<u8>> {
    match file.look() {
        Ok(Some(Found::File { len_bytes })) if len_bytes <= len_max_bytes => {}
        _ => return None,
    }
    let found = file.parent().store().get_whole(file.name().as_encoded_bytes());
    found.ok().flatten().map(Into::into)
}

#[cfg(test)]
mod tests;
