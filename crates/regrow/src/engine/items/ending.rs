//! The end of a save of items: what others have written is taken over, the documents of the whole are written, and it gets its
//! name.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{ItemsSave, Rest, State, WHOLE};
use crate::commit::{keep_others, note_of_files};
use crate::engine::SaveReport;
use crate::engine::together::commit_together;
use crate::error::{Error, Result};
use crate::formats::orbax::checkpoint_metadata::{
    CHECKPOINT_METADATA_FILE, CheckpointMetadata, ItemHandlers, OF_THE_WHOLE,
};
use crate::formats::orbax::marker_files::{COMMIT_SUCCESS_FILE, V1_MARKER_FILE};
use crate::formats::orbax::writer::documents::COMMIT_TEXT;
use crate::formats::regrow::manifest;
use crate::storage::Publication;

impl ItemsSave {
    pub(super) fn committed(self) -> Result<SaveReport> {
        if self.has_failed.load(Ordering::Acquire) {
            return Err(Error::invalid("an item of this checkpoint could not be saved, so none is")
                .in_file(&self.at)
                .help("begin again; the error of that item says what was wrong"));
        }
        if self.state().handlers.is_empty() {
            return Err(Error::invalid("a checkpoint of items has at least one").in_file(&self.at));
        }
        let written = match self.session.as_ref().is_none_or(|session| session.rank() == 0) {
            true => self.take_lent(),
            // On a disk all have written into the same folders.
            false if self.publication.local_folder().is_some() => self.take_lent(),
            false => Ok(()),
        };
        let Self { publication, session, at, options, state, v1, of_step, mode, began_nsecs, .. } = self;
        let mut state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let reused_bytes = publication.reused_bytes();
        let (leaf_count, data_bytes) = (state.leaf_count, state.data_bytes);
        let mut side_files = state.side_files.take();
        let is_first = session.as_ref().is_none_or(|session| session.rank() == 0);
        let mut rest = |publication: &dyn Publication| {
            settle(&mut state, publication)?;
            write_rest(&state, v1, of_step, began_nsecs, publication)?;
            mode.map_or(Ok(()), |mode| set_modes(&state, mode, publication))?;
            match publication.local_folder() {
                Some(staged) if options.keeps_others => {
                    keep_others(at.local_path()?, staged, !options.not_durable)?;
                }
                _ => {}
            }
            side_files.as_mut().map_or(Ok(()), |side_files| side_files.before(publication))
        };
        let stored_bytes = match &session {
            None => {
                written?;
                rest(&*publication)?;
                let stored_bytes = publication.stored_bytes()?;
                options.monitor.finish()?;
                publication.commit()?;
                stored_bytes
            }
            Some(session) => commit_together(session, publication, written, rest, &options.monitor)?,
        };
        if let Some(side_files) = side_files.filter(|_| is_first) {
            side_files.after(&at)?;
        }
        if let Some(session) = session {
            session.finish();
        }
        let report = SaveReport::new(at.describe(), stored_bytes, leaf_count, data_bytes);
        Ok(SaveReport { reused_bytes, ..report })
    }

    /// Takes what others have written into the folders that were lent.
    fn take_lent(&self) -> Result<()> {
        let all = std::mem::take(&mut self.state().lent);
        for lent in all {
            let is_whole = lent.below() == WHOLE;
            if is_whole && lent.has(manifest::FILE_NAME) {
                return Err(Error::unsupported(
                    "a handler has saved a pytree in the layout regrow, which has checksums of all that lies beside it, as \
                     the checkpoint itself",
                )
                .in_file(&self.at)
                .help("save in the layout orbax there, or into a folder below"));
            }
            lent.take(&*self.publication, if is_whole { OF_THE_WHOLE } else { &[] })?;
            let mut state = self.state();
            if is_whole {
                state.lent.push(lent);
            } else if lent.has(COMMIT_SUCCESS_FILE) {
                state.marked.push(lent.below().to_owned());
            }
        }
        Ok(())
    }
}

/// Puts the files of a checkpoint that is itself an item where they belong, when every process has written its own.
fn settle(state: &mut State, publication: &dyn Publication) -> Result<()> {
    for lent in std::mem::take(&mut state.lent) {
        state.files = Some(lent.settle(publication, OF_THE_WHOLE)?);
    }
    Ok(())
}

/// What stands beside the items, when they are all there.
fn write_rest(
    state: &State,
    v1: bool,
    of_step: bool,
    began_nsecs: Option<u64>,
    publication: &dyn Publication,
) -> Result<()> {
    let marker = format!("{COMMIT_TEXT}{}", state.files.as_deref().map(note_of_files).unwrap_or_default());
    match state.rest {
        Rest::Nothing => return Ok(()),
        Rest::Marker => return publication.write(COMMIT_SUCCESS_FILE, marker.as_bytes()),
        Rest::All => {}
    }
    // As Orbax. In a bucket each folder needs its marker to be read by itself.
    let marks_items = !v1 || of_step || publication.local_folder().is_none();
    let is_item =
        |item: &str| marks_items && item != WHOLE && !state.marked.iter().any(|marked| marked == item);
    for (item, _) in state.handlers.iter().filter(|(item, _)| is_item(item)) {
        publication.write(&format!("{item}/{COMMIT_SUCCESS_FILE}"), COMMIT_TEXT.as_bytes())?;
    }
    if v1 && !of_step {
        publication.write(V1_MARKER_FILE, b"")?;
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
    publication.write(CHECKPOINT_METADATA_FILE, &about.to_json()?)?;
    publication.write(COMMIT_SUCCESS_FILE, marker.as_bytes())
}

/// As Orbax: of the checkpoint's folder, and of those of its items.
fn set_modes(state: &State, mode: u32, publication: &dyn Publication) -> Result<()> {
    let items = state.handlers.iter().map(|(item, _)| item.as_str()).filter(|item| *item != WHOLE);
    items.chain([""]).try_for_each(|folder| publication.set_mode(folder, mode))
}

pub(super) fn now_nsecs() -> Option<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(now.as_nanos()).ok()
}
