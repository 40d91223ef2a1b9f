//! The end of a save of items: it collects files that callers have written into folders, writes the
//! documents of the checkpoint, and commits.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{ItemsSave, Rest, State, WHOLE};
use crate::commit::{keep_others, set_mode};
use crate::engine::SaveReport;
use crate::error::{Error, Result};
use crate::formats::container::COMMIT_TEXT;
use crate::formats::container::note_of_files;
use crate::formats::container::{CHECKPOINT_METADATA_FILE, CheckpointMetadata, ItemHandlers, OF_THE_WHOLE};
use crate::formats::container::{COMMIT_SUCCESS_FILE, V1_MARKER_FILE};
use crate::formats::items_record::{self, MARKER_LINE, SmallFile};
use crate::formats::{Format, formats};
use crate::location::Location;
use crate::storage::{BegunFolder, NewFolder};
use crate::store::local::folders::relative_path;

impl ItemsSave {
    pub(super) fn committed(self) -> Result<SaveReport> {
        if self.has_failed.load(Ordering::Acquire) {
            return Err(Error::invalid("the checkpoint is not saved, because one of its items failed")
                .in_file(&self.at)
                .help("see the error of that item, then save again"));
        }
        if self.state().handlers.is_empty() {
            return Err(Error::invalid("a checkpoint of items needs at least one").in_file(&self.at));
        }
        let written = match self.session.as_ref().is_none_or(|session| session.rank() == 0) {
            true => self.take_lent(),
            // On a disk all processes write into the same folders, and each process syncs the
            // files.
            false if self.publication.local_folder().is_some() => self.take_lent(),
            false => Ok(()),
        };
        let Self { publication, session, at, options, state, v1, of_step, mode, began_nsecs, .. } = self;
        let mut state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let reused_bytes = publication.reused_bytes();
        let (leaf_count, data_bytes) = (state.leaf_count, state.data_bytes);
        let losses = std::mem::take(&mut state.losses);
        let mut side_files = state.side_files.take();
        let is_first = session.as_ref().is_none_or(|session| session.rank() == 0);
        let rest = |publication: &dyn BegunFolder| {
            settle(&mut state, publication)?;
            let handlers = state.handlers.clone();
            state.noted.settle(&handlers, publication)?;
            write_rest(&mut state, v1, of_step, began_nsecs, publication)?;
            if let Some(staged) = publication.local_folder() {
                mode.map_or(Ok(()), |mode| set_modes(&state, mode, &Location::local(staged)))?;
                if options.keeps_others {
                    keep_others(at.local_path()?, staged, !options.not_durable)?;
                }
            }
            side_files.as_mut().map_or(Ok(()), |side_files| side_files.before(publication))
        };
        let stored_bytes = publication.commit(session.as_ref(), written, rest, &options.monitor)?;
        if let Some(side_files) = side_files.filter(|_| is_first) {
            side_files.after(&at)?;
        }
        if let Some(session) = session {
            session.finish();
        }
        let report = SaveReport::new(at.describe(), stored_bytes, leaf_count, data_bytes);
        Ok(SaveReport { reused_bytes, losses, ..report })
    }

    /// Collects the files that callers have written into the folders of `ItemsSave::folder`.
    fn take_lent(&self) -> Result<()> {
        let all = std::mem::take(&mut self.state().lent);
        for lent in all {
            let is_whole = lent.below() == WHOLE;
            let has_record =
                |format: &&dyn Format| format.file_names().record.is_some_and(|name| lent.has(name));
            if let Some(format) = formats().find(|format| is_whole && has_record(format)) {
                return Err(Error::unsupported(format!(
                    "a handler has saved a pytree in the layout {} as the checkpoint itself: that layout has checksums of all files beside it",
                    format.name()
                ))
                .in_file(&self.at)
                .help("save in the layout orbax there, or into a folder below"));
            }
            lent.take(&*self.publication, if is_whole { OF_THE_WHOLE } else { &[] })?;
            if is_whole {
                self.state().lent.push(lent);
                continue;
            }
            if lent.has(COMMIT_SUCCESS_FILE) {
                self.note_marker(lent.below(), COMMIT_SUCCESS_FILE);
            }
            self.sum_lent(&Location::local(lent.path()), lent.below())?;
        }
        Ok(())
    }
}

/// Moves the files of a checkpoint that is itself an item to their final place. All processes must
/// have written their files.
fn settle(state: &mut State, publication: &dyn NewFolder) -> Result<()> {
    for lent in std::mem::take(&mut state.lent) {
        state.files = Some(lent.settle(publication, OF_THE_WHOLE)?);
    }
    Ok(())
}

fn write_rest(
    state: &mut State,
    v1: bool,
    of_step: bool,
    began_nsecs: Option<u64>,
    publication: &dyn NewFolder,
) -> Result<()> {
    let mut marker =
        format!("{COMMIT_TEXT}{}", state.files.as_deref().map(note_of_files).unwrap_or_default());
    match state.rest {
        Rest::Nothing => return Ok(()),
        Rest::Marker => return publication.write(COMMIT_SUCCESS_FILE, marker.as_bytes()),
        Rest::All => {}
    }
    // Orbax marks items in the same cases. In a bucket, a reader of one item needs the marker of
    // the item.
    let marks_items = !v1 || of_step || publication.local_folder().is_none();
    let is_item =
        |item: &str| marks_items && item != WHOLE && !state.marked.iter().any(|marked| marked == item);
    let mut write = |name: &str, bytes: &[u8]| {
        state.noted.sums.push(SmallFile::of_bytes(name.to_owned(), bytes));
        publication.write(name, bytes)
    };
    for (item, _) in state.handlers.iter().filter(|(item, _)| is_item(item)) {
        write(&format!("{item}/{COMMIT_SUCCESS_FILE}"), COMMIT_TEXT.as_bytes())?;
    }
    if v1 && !of_step {
        write(V1_MARKER_FILE, b"")?;
    }
    let item_handlers = match state.handlers.as_slice() {
        [(item, handler)] if item == WHOLE => handler.clone().map_or(ItemHandlers::None, ItemHandlers::One),
        many => ItemHandlers::Many(many.to_vec()),
    };
    let about = CheckpointMetadata {
        item_handlers,
        metrics: state.metrics.clone(),
        init_timestamp_nsecs: began_nsecs,
        commit_timestamp_nsecs: now_nsecs(),
        custom_metadata: state.custom_metadata.clone(),
        ..CheckpointMetadata::default()
    };
    write(CHECKPOINT_METADATA_FILE, &about.to_json()?)?;
    // If the checkpoint has only files of Orbax, the handlers already describe all items.
    let has_handlers = state.handlers.iter().all(|(_, handler)| handler.is_some());
    let is_said = has_handlers && (v1 || state.noted.is_all_of_orbax());
    if let Some(record) = state.noted.record().filter(|_| !is_said) {
        publication.write(items_record::FILE_NAME, &record.to_bytes()?)?;
        marker.push_str(&format!("\n{MARKER_LINE}\n"));
    }
    publication.write(COMMIT_SUCCESS_FILE, marker.as_bytes())
}

/// Sets the mode of the items' folders on a disk, as Orbax does. The commit sets the mode of the
/// checkpoint's folder.
fn set_modes(state: &State, mode: u32, folder: &Location) -> Result<()> {
    let mut items = state.handlers.iter().map(|(item, _)| item).filter(|item| *item != WHOLE);
    items.try_for_each(|item| set_mode(folder.join(relative_path(item.as_bytes())?).path(), mode))
}

pub(super) fn now_nsecs() -> Option<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(now.as_nanos()).ok()
}
