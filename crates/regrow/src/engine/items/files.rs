//! The files of an item, as they are.

use bytes::Bytes;

use super::names::check_item;
use crate::engine::Checkpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::COMMIT_MARKERS;
use crate::store::StoreExt;

impl Checkpoint {
    /// The files of an item by their names below its folder, in the order of these: of items that are no trees. All of
    /// them are in memory.
    ///
    /// # Errors
    /// `NotFound` if there is no such item; `Replaced`; what the storage says.
    pub fn item_files(&self, item: &str) -> Result<Vec<(String, Bytes)>> {
        let at = self.reader().standing().step_folder.map_or(self.location(), |step| step.location());
        check_item(item)?;
        if !self.description().items.iter().any(|(name, _)| name == item) {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no item {item:?}")).in_file(at));
        }
        let read = || {
            let store = at.for_reading()?.location.join(item).opened()?;
            let mut files = Vec::new();
            let mut names = store.list(b"")?;
            names.sort();
            for key in names {
                let Ok(name) = String::from_utf8(key.clone()) else { continue };
                if COMMIT_MARKERS.contains(&name.as_str()) {
                    continue;
                }
                if let Some(bytes) = store.get_whole(&key)? {
                    files.push((name, bytes));
                }
            }
            Ok(files)
        };
        self.unless_replaced(read())
    }
}
