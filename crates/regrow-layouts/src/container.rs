//! The folders above checkpoints of any layout: folders of steps and folders of items. regrow
//! writes Orbax' documents into these folders, so that Orbax' managers can read them.

use super::{flax, items_record};
use crate::options::OpenOptions;
use regrow_base::error::Result;
use regrow_storage::location::Location;
use regrow_storage::{Entry, UNCOMMITTED_MARK};

pub use crate::orbax::checkpoint_metadata::{
    CHECKPOINT_METADATA_FILE, CheckpointMetadata, ItemHandlers, JSON_HANDLER, OF_THE_WHOLE, V1_JSON_HANDLER,
    V1_METRICS_HANDLER,
};
pub use crate::orbax::history::{STEP_RECORD, StepRecord};
pub use crate::orbax::json_text;
pub use crate::orbax::marker_files::{COMMIT_SUCCESS_FILE, JSON_FILE, V1_MARKER_FILE};
pub use crate::orbax::metadata::METADATA_FILE;
pub use crate::orbax::own_files::note_of_files;
pub use crate::orbax::steps::{STEP_MAX, is_checkpoint, metadata_of, number_of, split_name, step_number};
pub use crate::orbax::writer::documents::COMMIT_TEXT;

/// The layout of a checkpoint of several items.
pub const LAYOUT: &str = crate::orbax::NAME;

/// Files whose presence shows that the folders beside them are items.
const OF_ITEMS: [&str; 3] = [CHECKPOINT_METADATA_FILE, V1_MARKER_FILE, items_record::FILE_NAME];

/// Folders of one pytree that are not items. A name that ends with `_` is a prefix of such names.
const PARTS: [&str; 3] = [
    regrow_ocdbt::DATA_FOLDER,
    crate::orbax::array_metadatas::ARRAY_METADATAS_FOLDER,
    crate::orbax::PROCESS_PREFIX,
];

/// Usual names of items, for checkpoints of earlier versions of Orbax: these checkpoints have none
/// of the files in `OF_ITEMS`.
const ITEMS: [&str; 3] = ["default", "state", "params"];

/// The committed steps in a folder: number and name. For a step with a fraction, such as `10.5`,
/// the number is `None`.
///
/// # Errors
/// Errors of the storage.
pub fn steps_in(at: &Location, options: &OpenOptions) -> Result<Vec<(Option<u64>, String)>> {
    if let Some(steps) = crate::orbax::steps_in(at)? {
        return Ok(steps.into_iter().map(|step| (Some(step.number), step.folder.name_text())).collect());
    }
    match at.is_folder() && flax::steps::are_in(at)? {
        true => flax::steps::named(at, options),
        false => Ok(Vec::new()),
    }
}

/// Whether a folder has files that show that the folders beside them are items.
pub fn has_items(at: &Location) -> bool {
    at.first_file(&OF_ITEMS).is_some()
}

/// The folders of a checkpoint's items, without items that no layout can read.
///
/// # Errors
/// Errors of the storage.
pub fn item_folders(at: &Location) -> Result<Vec<Location>> {
    if !at.is_folder() || !at.has_listings() {
        return Ok(Vec::new());
    }
    let has_items = has_items(at);
    let is_part =
        |name: &str| PARTS.iter().any(|part| name == *part || part.ends_with('_') && name.starts_with(part));
    let is_item = |name: &str| {
        (has_items || ITEMS.contains(&name)) && !name.contains(UNCOMMITTED_MARK) && !is_part(name)
    };
    let folders = at.entries()?.into_iter().filter(|entry| Entry::is_folder(entry) && !entry.is_link);
    let names = folders.filter_map(|folder| folder.name.into_string().ok());
    let names = crate::orbax::items::for_layouts(at, names.filter(|name| is_item(name)).collect())?;
    Ok(names.into_iter().map(|name| at.join(name)).collect())
}
