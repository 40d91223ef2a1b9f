//! An item that is a pytree: any layout writes it into a folder of the publication.

use super::{ItemsSave, Rest, WHOLE};
use crate::engine::checks::{check_losses, check_options, check_rules};
use crate::engine::save::{as_written, data_len_bytes};
use crate::engine::side_files::SideFiles;
use crate::engine::together::write_together;
use crate::engine::{AboutCheckpoint, Layout, OrbaxOptions, SaveOptions};
use crate::error::{Error, Result};
use crate::formats::orbax::checkpoint_metadata::{OF_THE_WHOLE, PYTREE_HANDLER, V1_PYTREE_HANDLER};
use crate::formats::orbax::marker_files::COMMIT_SUCCESS_FILE;
use crate::formats::regrow::manifest;
use crate::formats::{Loss, item_files};
use crate::location::Location;
use crate::storage::Target;
use crate::storage::within::Within;
use crate::tree::{Key, KeyPath, Leaf, Tree};

impl ItemsSave {
    /// Writes the item, and records its kind.
    pub(super) fn write_tree(&self, name: &str, tree: &Tree<Leaf>, options: &SaveOptions) -> Result<()> {
        self.ask_side_files(name, options);
        let own = self.own_options(name, options);
        let handler = match &options.layout {
            Layout::Orbax(orbax) if orbax.v1 || self.v1 => Some(V1_PYTREE_HANDLER),
            Layout::Regrow(_) if self.v1 => Some(V1_PYTREE_HANDLER),
            Layout::Orbax(_) | Layout::Regrow(_) => Some(PYTREE_HANDLER),
            _ => None,
        };
        self.note(name, handler);
        self.note_tree(name, own.layout.name());
        let format = own.layout.format();
        let whole = &*self.publication;
        let at = if name == WHOLE { self.at.clone() } else { self.at.join(name) };
        let part = match format.target(&at, &own) {
            Target::Folder if name == WHOLE => {
                // The layout regrow writes the marker itself, because regrow.json has its checksum.
                let has_checksums = matches!(own.layout, Layout::Regrow(_));
                self.state().rest = if has_checksums { Rest::Nothing } else { Rest::Marker };
                Within::folder(whole, name, if has_checksums { &[] } else { &[COMMIT_SUCCESS_FILE] })
            }
            _ if name == WHOLE => {
                return Err(Error::unsupported(format!("the layout {} cannot store items", format.name()))
                    .help("save it by itself"));
            }
            Target::Folder => {
                // Orbax leaves files of the whole out; regrow keeps all files that regrow.json
                // records.
                let left_out = if matches!(own.layout, Layout::Orbax(_)) { OF_THE_WHOLE } else { &[] };
                if matches!(own.layout, Layout::Regrow(_)) {
                    self.state().marked.push(name.to_owned());
                }
                if matches!(own.layout, Layout::Trak(_)) {
                    item_files::name_of(&own.layout)?;
                }
                Within::folder(whole, name, left_out)
            }
            Target::File => Within::single_file(whole, name, item_files::name_of(&own.layout)?),
            Target::Siblings { .. } => {
                item_files::name_of(&own.layout)?;
                return Err(Error::unsupported("an item cannot be a layout of several files"));
            }
        };
        let data_bytes = match own.job.as_ref().filter(|job| job.has_others()) {
            Some(job) => {
                self.all_go_on()?;
                write_together(tree, &own, job, &part, whole)?
            }
            None => {
                check_options(format, &own)?;
                check_rules(tree, &own)?;
                let losses = check_losses(None, tree, &own)?;
                let below = |loss: Loss| {
                    let item = KeyPath::root().child(Key::dict(name));
                    let path = loss.path.keys().iter().fold(item, |path, key| path.child(key.clone()));
                    Loss { path, ..loss }
                };
                self.state().losses.extend(losses.into_iter().map(below));
                let data_bytes = data_len_bytes(tree, &own);
                own.monitor.expect(data_bytes);
                let tree = as_written(tree, &own)?;
                format.write(&tree, &part, &own)?;
                data_bytes
            }
        };
        let mut state = self.state();
        state.leaf_count += tree.len();
        state.data_bytes = state.data_bytes.saturating_add(data_bytes);
        Ok(())
    }

    /// Takes the wish for a seal or parity: there is one of each, of the whole.
    pub(crate) fn ask_side_files(&self, name: &str, options: &SaveOptions) {
        let side_files =
            if name == WHOLE { SideFiles::wanted(options) } else { SideFiles::of_items(options) };
        if let Some(side_files) = side_files {
            self.state().side_files = Some(side_files);
        }
    }

    /// Errs if another process has given up: it would not come to the session of the next tree.
    fn all_go_on(&self) -> Result<()> {
        let Some(session) = &self.session else { return Ok(()) };
        let number = {
            let mut state = self.state();
            state.tree_count += 1;
            state.tree_count
        };
        session.barrier(&format!("tree-{number}"))
    }

    /// The options of one tree, combined with the options of the whole.
    fn own_options(&self, name: &str, options: &SaveOptions) -> SaveOptions {
        let layout = match &options.layout {
            layout if name == WHOLE => layout.clone(),
            // The whole writes the marker and the item metadata.
            Layout::Orbax(orbax) => Layout::Orbax(OrbaxOptions { v1: false, ..orbax.clone() }),
            other => other.clone(),
        };
        let has_record = |at: &Location| at.join(manifest::FILE_NAME).is_file();
        let in_base = |base: &Location| if name == WHOLE { base.clone() } else { base.join(name) };
        let base = match (&options.base, &self.base) {
            // The base is an item of a checkpoint of items, or else the checkpoint itself.
            (Some(base), _) => Some(Some(in_base(base)).filter(has_record).unwrap_or_else(|| base.clone())),
            (None, Some(base)) if matches!(layout, Layout::Regrow(_)) && options.compression.is_none() => {
                Some(in_base(base)).filter(has_record)
            }
            (None, _) => None,
        };
        let about = if name == WHOLE { self.about() } else { AboutCheckpoint::default() };
        let Self { options: whole, .. } = self;
        SaveOptions {
            layout,
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

    /// The metadata of the checkpoint given so far.
    fn about(&self) -> AboutCheckpoint {
        let state = self.state();
        let handler = state.handlers.iter().find(|(item, _)| item == WHOLE);
        AboutCheckpoint {
            handler: handler.and_then(|(_, handler)| handler.clone()),
            custom_metadata: state.custom_metadata.clone(),
        }
    }
}
