//! The record of items in `regrow.items.json`: their kinds, and the checksums of their files.
//!
//! Files that this process writes are checksummed during the write, and copies after the copy.
//! Files that callers write into folders are checksummed at the commit; on a disk after all
//! processes have written. The record has no checksums of files that a handler reads.

use super::names::check_file;
use super::{ItemsSave, WHOLE};
use crate::error::Result;
use crate::formats::container::COMMIT_SUCCESS_FILE;
use crate::formats::items_record::{ItemKind, ItemRecord, ItemsRecord, SmallFile, sum_of_file};
use crate::formats::{container, format_named};
use crate::location::Location;
use crate::storage::{NewFolder, is_desktop_file};

/// The part of the record that is known so far.
#[derive(Debug, Default)]
pub(super) struct Noted {
    items: Vec<ItemRecord>,
    pub sums: Vec<SmallFile>,
    /// Files and folders of the checkpoint that still need checksums.
    unsummed: Vec<String>,
}

impl Noted {
    fn item(&mut self, name: &str, kind: ItemKind) -> &mut ItemRecord {
        let at = self.items.iter().position(|item| item.name == name).unwrap_or(self.items.len());
        if at == self.items.len() {
            self.items.push(ItemRecord::new(name, kind));
        }
        #[expect(clippy::indexing_slicing, reason = "it was found, or pushed")]
        &mut self.items[at]
    }

    /// Computes the remaining checksums, and records folders without a handler as plain files.
    pub fn settle(
        &mut self,
        handlers: &[(String, Option<String>)],
        publication: &dyn NewFolder,
    ) -> Result<()> {
        let has_handler = |name: &str| handlers.iter().any(|(item, by)| item == name && by.is_some());
        for item in &mut self.items {
            if item.kind == ItemKind::Handler && item.name != WHOLE && !has_handler(&item.name) {
                item.kind = ItemKind::Files;
            }
        }
        let is_files = |path: &str| {
            let name = path.split('/').next().unwrap_or(path);
            self.items
                .iter()
                .any(|item| item.kind == ItemKind::Files && (item.name == name || item.name == WHOLE))
        };
        for path in std::mem::take(&mut self.unsummed) {
            if let Some(folder) = publication.local_folder().filter(|_| is_files(&path)) {
                sum_below(&Location::local(folder).join(&path), &path, &mut self.sums)?;
            }
        }
        let record_of = |item: &ItemRecord| {
            let record = format_named(item.layout.as_deref()?)?.file_names().record?;
            Some(format!("{}/{record}", item.name))
        };
        for file in self.items.iter().filter(|item| item.name != WHOLE).filter_map(record_of) {
            let bytes = publication.written(&file)?;
            self.sums.push(SmallFile::of_bytes(file, &bytes));
        }
        self.sums.retain(|file| {
            let name = file.name.split('/').next().unwrap_or_default();
            !self.items.iter().any(|item| item.kind == ItemKind::Handler && item.name == name)
        });
        Ok(())
    }

    /// Whether the checkpoint has trees or items of handlers, has all trees in the layout orbax,
    /// and has no items of plain files.
    pub fn is_all_of_orbax(&self) -> bool {
        let is_orbax =
            |item: &ItemRecord| item.layout.as_deref().is_none_or(|name| name == container::LAYOUT);
        let is_tree = |item: &ItemRecord| matches!(item.kind, ItemKind::Tree | ItemKind::Handler);
        self.items.iter().any(is_tree)
            && self.items.iter().all(|item| item.kind != ItemKind::Files && is_orbax(item))
    }

    /// The record. `None` without items, and for a checkpoint that is itself the item of a handler:
    /// the handler reads all files of the folder.
    pub fn record(&self) -> Option<ItemsRecord> {
        let is_of_handler = |item: &ItemRecord| item.name == WHOLE && item.kind == ItemKind::Handler;
        match self.items.is_empty() || self.items.iter().any(is_of_handler) {
            true => None,
            false => Some(ItemsRecord::new(self.items.clone(), self.sums.clone())),
        }
    }
}

impl ItemsSave {
    /// Records the kind of an item. A tree that shares its name with a folder counts as a tree. An
    /// item whose parts have their own names belongs to its handler.
    pub(super) fn note_kind(&self, name: &str, kind: ItemKind) {
        let item = name.split('/').next().unwrap_or(name);
        let kind = if item == name { kind } else { ItemKind::Handler };
        let mut state = self.state();
        let known = state.noted.item(item, kind);
        if known.kind != ItemKind::Tree {
            known.kind = kind;
        }
    }

    pub(super) fn note_json(&self, name: &str, kind: ItemKind, file: &str) {
        self.note_kind(name, kind);
        if !name.contains('/') {
            self.state().noted.item(name, kind).file = Some(file.to_owned());
        }
    }

    pub(super) fn note_tree(&self, name: &str, layout: &str) {
        self.note_kind(name, ItemKind::Tree);
        if !name.contains('/') {
            self.state().noted.item(name, ItemKind::Tree).layout = Some(layout.to_owned());
        }
    }

    /// Records that a user's file has the name of the item's marker.
    pub(super) fn note_marker(&self, name: &str, file: &str) {
        if file == COMMIT_SUCCESS_FILE && name != WHOLE {
            let mut state = self.state();
            state.marked.push(name.to_owned());
            state.noted.item(name, ItemKind::Files).has_own_marker = true;
        }
    }

    pub(super) fn write_summed(&self, path: &str, bytes: &[u8]) -> Result<()> {
        self.publication.write(path, bytes)?;
        self.state().noted.sums.push(SmallFile::of_bytes(path.to_owned(), bytes));
        Ok(())
    }

    pub(super) fn sum_copy(&self, from: &Location, path: &str) -> Result<()> {
        let mut sums = Vec::new();
        match self.publication.local_folder() {
            Some(folder) => sum_below(&Location::local(folder).join(path), path, &mut sums)?,
            None => sum_below(from, path, &mut sums)?,
        }
        self.state().noted.sums.extend(sums);
        Ok(())
    }

    /// Records the checksums of a folder into which the caller wrote. On a disk this happens later,
    /// when all processes have written into the folder.
    pub(super) fn sum_lent(&self, folder: &Location, path: &str) -> Result<()> {
        if self.publication.local_folder().is_some() {
            self.state().noted.unsummed.push(path.to_owned());
            return Ok(());
        }
        let mut sums = Vec::new();
        sum_below(folder, path, &mut sums)?;
        self.state().noted.sums.extend(sums);
        Ok(())
    }
}

/// Computes the checksum of a local file, or of all files below a local folder. `path` is the name
/// of the file or folder in the record.
fn sum_below(at: &Location, path: &str, sums: &mut Vec<SmallFile>) -> Result<()> {
    if !at.is_folder() {
        check_file(path)?;
        sums.push(sum_of_file(at, path.to_owned())?);
        return Ok(());
    }
    for entry in at.entries()? {
        let Some(name) = entry.name.to_str().filter(|name| !is_desktop_file(name)) else { continue };
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
        sum_below(&at.join(name), &path, sums)?;
    }
    Ok(())
}
