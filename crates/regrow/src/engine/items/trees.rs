//! Writes an item that is a pytree. The layout writes into a folder of the publication; a layout of
//! one file writes one file into the folder.

use super::{ItemsSave, Rest, WHOLE};
use crate::engine::checks::{check_losses, check_options, check_rules};
use crate::engine::save::{as_written, data_len_bytes};
use crate::engine::side_files::SideFiles;
use crate::engine::together::write_together;
use crate::engine::{AboutCheckpoint, SaveOptions};
use crate::error::{Error, Result};
use crate::formats::container::COMMIT_SUCCESS_FILE;
use crate::formats::item_files::ItemForm;
use crate::formats::{Loss, WriteAs, WriteFile, WriteFolder};
use crate::location::Location;
use crate::storage::within::{FileWithin, Within};
use crate::tree::{Key, KeyPath, Leaf, Tree};

/// A part of the checkpoint, and the function of the layout that writes it.
enum Part {
    /// A folder, and the files of the layout that it does not get.
    Folder(WriteFolder, &'static [&'static str]),
    /// A file, and its path in the checkpoint.
    File(WriteFile, String),
}

impl ItemsSave {
    pub(super) fn write_tree(&self, name: &str, tree: &Tree<Leaf>, options: &SaveOptions) -> Result<()> {
        self.ask_side_files(name, options);
        let form = options.layout.item_form(self.v1)?;
        let own = self.own_options(name, options, &form);
        self.note(name, form.handler);
        self.note_tree(name, own.layout.name());
        let part = self.part_of(name, &own, &form)?;
        let data_bytes = match own.job.as_ref().filter(|job| job.has_others()) {
            Some(job) => {
                self.all_go_on()?;
                let left_out = if let Part::Folder(_, left_out) = part { left_out } else { &[] };
                write_together(tree, &own, job, &self.publication, name, left_out)?
            }
            None => self.write_alone(name, tree, &own, part)?,
        };
        let mut state = self.state();
        state.leaf_count += tree.len();
        state.data_bytes = state.data_bytes.saturating_add(data_bytes);
        Ok(())
    }

    /// The part of the checkpoint into which the item is written.
    fn part_of(&self, name: &str, own: &SaveOptions, form: &ItemForm) -> Result<Part> {
        let format = own.layout.format();
        let has_record = format.file_names().record.is_some();
        let at = if name == WHOLE { self.at.clone() } else { self.at.join(name) };
        let write_as = match (format.write_as(&at, own), form.file) {
            // The name of the file decides what the file contains, not the name of the item.
            (WriteAs::File(_), Some(file)) => format.write_as(&at.join(file), own),
            (write_as, _) => write_as,
        };
        match (write_as, form.file) {
            // The record contains a checksum of the marker, so the layout writes the marker itself.
            (WriteAs::Folder(write), _) if name == WHOLE && has_record => {
                self.state().rest = Rest::Nothing;
                Ok(Part::Folder(write, &[]))
            }
            (WriteAs::Folder(write), _) if name == WHOLE => {
                self.state().rest = Rest::Marker;
                Ok(Part::Folder(write, &[COMMIT_SUCCESS_FILE]))
            }
            (WriteAs::Folder(write), _) => {
                if has_record {
                    self.state().marked.push(name.to_owned());
                }
                Ok(Part::Folder(write, form.left_out))
            }
            (WriteAs::File(write), Some(file)) if name != WHOLE => {
                Ok(Part::File(write, format!("{name}/{file}")))
            }
            _ => Err(Error::unsupported(format!("the layout {} cannot store items", format.name()))
                .help("save it by itself")),
        }
    }

    /// Writes the tree in this process alone. Returns the bytes of array data.
    fn write_alone(&self, name: &str, tree: &Tree<Leaf>, own: &SaveOptions, part: Part) -> Result<u64> {
        check_options(own)?;
        check_rules(tree, own)?;
        let losses = check_losses(None, tree, own)?;
        let below = |loss: Loss| {
            let item = KeyPath::root().child(Key::dict(name));
            let path = loss.path.keys().iter().fold(item, |path, key| path.child(key.clone()));
            Loss { path, ..loss }
        };
        self.state().losses.extend(losses.into_iter().map(below));
        let data_bytes = data_len_bytes(tree, own);
        own.monitor.expect(data_bytes);
        let tree = as_written(tree, own)?;
        let whole = &*self.publication;
        match part {
            Part::Folder(write, left_out) => write(&tree, &Within::new(whole, name, left_out), own)?,
            Part::File(write, file) => write(&tree, &FileWithin::new(whole, file), own)?,
        }
        Ok(data_bytes)
    }

    /// Records that an item requests a seal or parity. Both always cover the whole checkpoint.
    pub(crate) fn ask_side_files(&self, name: &str, options: &SaveOptions) {
        let side_files =
            if name == WHOLE { SideFiles::wanted(options) } else { SideFiles::of_items(options) };
        if let Some(side_files) = side_files {
            self.state().side_files = Some(side_files);
        }
    }

    /// Returns an error if another process has failed: that process would not join the session of
    /// the next tree.
    fn all_go_on(&self) -> Result<()> {
        let Some(session) = &self.session else { return Ok(()) };
        let number = {
            let mut state = self.state();
            state.tree_count += 1;
            state.tree_count
        };
        session.barrier(&format!("tree-{number}"))
    }

    fn own_options(&self, name: &str, options: &SaveOptions, form: &ItemForm) -> SaveOptions {
        let layout = if name == WHOLE { &options.layout } else { &form.layout };
        let record = layout.format().file_names().record;
        let has_record = |at: &Location| record.is_some_and(|record| at.join(record).is_file());
        let in_base = |base: &Location| if name == WHOLE { base.clone() } else { base.join(name) };
        let base = match (&options.base, &self.base) {
            // The base is an item of a checkpoint of items, or else the checkpoint itself.
            (Some(base), _) => Some(Some(in_base(base)).filter(has_record).unwrap_or_else(|| base.clone())),
            (None, Some(base)) if options.features().base && options.compression.is_none() => {
                Some(in_base(base)).filter(has_record)
            }
            (None, _) => None,
        };
        let about = if name == WHOLE { self.about() } else { AboutCheckpoint::default() };
        let Self { options: whole, .. } = self;
        SaveOptions {
            layout: layout.clone(),
            base,
            about,
            overwrite: false,
            keeps_others: false,
            replace_any_file: false,
            not_durable: whole.not_durable,
            monitor: whole.monitor.clone(),
            job: whole.job.clone(),
            ..options.clone()
        }
    }

    /// The metadata of the checkpoint that callers have given so far.
    fn about(&self) -> AboutCheckpoint {
        let state = self.state();
        let handler = state.handlers.iter().find(|(item, _)| item == WHOLE);
        AboutCheckpoint {
            handler: handler.and_then(|(_, handler)| handler.clone()),
            custom_metadata: state.custom_metadata.clone(),
        }
    }
}
