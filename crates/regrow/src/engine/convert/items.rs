//! Converts a checkpoint of items to a layout with items: each item stays an item, but a lone
//! pytree becomes a checkpoint without items, unless `keep_items` is set.
//!
//! ```text
//! the item is        becomes
//! a tree             a tree in the target's layout
//! JSON               the same document, unless a rule changes or leaves out one of its leaves: then a tree
//! metrics, files     the same
//! ```
//! With `rename`, `nest` or `salvage` the result is one pytree, and files and metrics are losses: a
//! rename may move leaves from one item to another.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{ConvertOptions, Draft};
use crate::engine::checks::check_place;
use crate::engine::save::check_save;
use crate::engine::{Checkpoint, ItemsOptions, ItemsSave, SaveOptions, SaveReport};
use crate::error::{Error, Result};
use crate::formats::container::CheckpointMetadata;
use crate::formats::container::metadata_of;
use crate::formats::container::{STEP_RECORD, StepRecord};
use crate::formats::item_folder::is_files;
use crate::location::Location;
use crate::tree::{Key, KeyPath, Leaf, Tree};

/// The items of the source that become items of the target.
#[derive(Debug)]
pub(super) struct PlannedItems {
    checkpoint: Checkpoint,
    items: Vec<PlannedItem>,
    /// The record of the history that the step belongs to; `None` if the source has none, or if the
    /// options do not keep items.
    step_record: Option<StepRecord>,
}

#[derive(Debug)]
struct PlannedItem {
    name: String,
    /// The key of the item's tree in the root; `None` if the root is the item's tree.
    key: Option<Key>,
    form: ItemForm,
}

impl PlannedItem {
    fn tree(&self, whole: &Tree<Leaf>) -> Option<Tree<Leaf>> {
        self.key.as_ref().map_or_else(|| Some(whole.clone()), |key| whole.child(key))
    }

    fn has_leaf(&self, leaf: &KeyPath) -> bool {
        self.key.is_none() || leaf.keys().first() == self.key.as_ref()
    }
}

#[derive(Debug, PartialEq, Eq)]
enum ItemForm {
    Tree,
    Json,
    Metrics,
    Files(Option<String>),
}

impl PlannedItems {
    /// `None` if the result is one pytree.
    pub fn of(checkpoint: &Checkpoint, drafts: &[Draft], options: &ConvertOptions) -> Result<Option<Self>> {
        let has_items = options.save.layout.item_form(false).is_ok_and(|form| form.handler.is_some());
        let moves = !options.rename.is_empty() || options.nest.is_some();
        let folder = checkpoint.reader().standing().items.filter(|items| items.is_whole);
        let Some(folder) = folder.filter(|_| has_items && !moves && !options.salvage) else {
            return Ok(None);
        };
        let kinds = &checkpoint.description().items;
        let is_only_tree = kinds.len() == 1 && kinds.iter().all(|(_, kind)| kind == "pytree");
        if kinds.is_empty() || is_only_tree && !options.keep_items {
            return Ok(None);
        }
        let is_beside = |kind: &str| kind == "metrics" || is_files(kind);
        let tree_count = kinds.iter().filter(|(_, kind)| !is_beside(kind)).count();
        let CheckpointMetadata { item_handlers, step_record, .. } = metadata_of(&folder.at)?;
        let planned = |(name, kind): &(String, String)| {
            // If only one item is a tree, this item is the whole tree.
            let key = (tree_count > 1).then(|| Key::dict(name.as_str()));
            let mut item = PlannedItem { name: name.clone(), key, form: ItemForm::Tree };
            item.form = match kind.as_str() {
                "metrics" => ItemForm::Metrics,
                kind if is_files(kind) => ItemForm::Files(item_handlers.of(name).map(str::to_owned)),
                "json" if is_untouched(checkpoint, drafts, &item) => ItemForm::Json,
                _ => ItemForm::Tree,
            };
            item
        };
        let items = kinds.iter().map(planned).collect();
        let step_record = step_record.filter(|_| options.keep_items);
        Ok(Some(Self { checkpoint: checkpoint.clone(), items, step_record }))
    }

    /// Whether a leaf is part of a document that is copied unchanged.
    pub fn keeps_text_of(&self, leaf: &KeyPath) -> bool {
        self.items.iter().any(|item| item.form == ItemForm::Json && item.has_leaf(leaf))
    }

    pub fn has_metrics(&self) -> bool {
        self.items.iter().any(|item| item.form == ItemForm::Metrics)
    }

    pub fn check(&self, tree: &Tree<Leaf>, target: &Location, options: &SaveOptions) -> Result<()> {
        check_place(target, options)?;
        let trees = self.items.iter().filter(|item| item.form == ItemForm::Tree);
        trees.filter_map(|item| item.tree(tree)).try_for_each(|tree| check_save(target, &tree, options))
    }

    pub fn save(&self, tree: &Tree<Leaf>, target: &Location, options: &SaveOptions) -> Result<SaveReport> {
        let custom_metadata = options.custom_metadata.as_ref().and_then(Value::as_object);
        let mut custom_metadata = custom_metadata.cloned().unwrap_or_default();
        if let Some(record) = &self.step_record {
            custom_metadata.insert(STEP_RECORD.to_owned(), json!(record));
        }
        let save = ItemsSave::begin(
            target,
            ItemsOptions {
                overwrite: options.overwrite,
                not_durable: options.not_durable,
                keep_cached: options.keep_cached,
                v1: options.layout.item_form(false)?.is_v1,
                custom_metadata,
                base: options.base.clone(),
                monitor: options.monitor.clone(),
                ..ItemsOptions::default()
            },
        )?;
        let own = SaveOptions { base: None, custom_metadata: None, ..options.clone() };
        for item @ PlannedItem { name, form, .. } in &self.items {
            save.ask_side_files(name, &own);
            match form {
                ItemForm::Tree => item.tree(tree).map_or(Ok(()), |tree| save.tree(name, &tree, &own))?,
                ItemForm::Json => save.json_text(name, None, &self.document(name)?)?,
                ItemForm::Metrics => save.metrics_text(&self.document(name)?)?,
                ItemForm::Files(handler) => {
                    if let Some(handler) = handler {
                        save.handler(name, handler);
                    }
                    let files = self.checkpoint.item_files(name)?;
                    if files.is_empty() {
                        save.folder(name)?;
                    }
                    files.iter().try_for_each(|(file, bytes)| save.file(name, file, bytes))?;
                }
            }
        }
        save.commit()
    }

    /// The text of an item that is a single document.
    fn document(&self, item: &str) -> Result<Bytes> {
        let mut files = self.checkpoint.item_files(item)?;
        let is_document = |(name, _): &(String, Bytes)| {
            files.len() == 1 || matches!(name.as_str(), "data.json" | "metadata" | "metrics")
        };
        let at = files.iter().position(is_document);
        at.map(|at| files.swap_remove(at).1).ok_or_else(|| {
            Error::corrupt("the document of an item is missing")
                .in_file(self.checkpoint.location().join(item))
        })
    }
}

/// Whether all leaves of an item are converted unchanged.
fn is_untouched(checkpoint: &Checkpoint, drafts: &[Draft], item: &PlannedItem) -> bool {
    let is_same = |draft: &&Draft| {
        let (from, to) = (&draft.source, &draft.target);
        item.has_leaf(&draft.from) && from.kind == to.kind && from.dtype == to.dtype && from.shape == to.shape
    };
    let count = checkpoint.paths().iter().filter(|path| item.has_leaf(path)).count();
    drafts.iter().filter(is_same).count() == count
}
