//! Items of an opened checkpoint: each opened by itself, or its files as they are.

use bytes::Bytes;

use super::names::check_item;
use crate::engine::{Checkpoint, OpenOptions, open_with};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::COMMIT_MARKERS;
use crate::storage::is_desktop_file;
use crate::store::StoreExt;

impl Checkpoint {
    /// One of the items, opened by itself: in the version of the checkpoint that was opened here, whoever replaces it.
    ///
    /// ```
    /// # use regrow::engine::{ItemsOptions, ItemsSave, LoadOptions, SaveOptions};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("100");
    /// let save = ItemsSave::begin(&path, ItemsOptions::default())?;
    /// save.tree("state", &vec![0.5_f32; 1000], &SaveOptions::default())?;
    /// save.json("config", &serde_json::json!({"width": 1024}))?;
    /// save.commit()?;
    ///
    /// #[derive(regrow::Pytree)]
    /// struct Config {
    ///     width: u64,
    /// }
    /// let checkpoint = regrow::open(&path)?;
    /// let state: Vec<f32> = checkpoint.item("state")?.load_value(&LoadOptions::default())?;
    /// let config: Config = checkpoint.item("config")?.load_value(&LoadOptions::default())?;
    /// assert_eq!((state.len(), config.width), (1000, 1024));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`open_with`]: `NotFound` with the items that are there, or because there are none. `Replaced`
    /// if another checkpoint has taken the path.
    pub fn item(&self, item: &str) -> Result<Self> {
        let options = OpenOptions {
            step: self.description().step,
            item: Some(item.to_owned()),
            mapped: self.is_mapped(),
            ..OpenOptions::default()
        };
        let opened = open_with(self.location(), &options);
        // Before it was opened or after: what has the place now may be of another save.
        if self.is_replaced() { Err(self.was_replaced()) } else { opened }
    }

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
                let last = name.rsplit('/').next().unwrap_or(&name);
                if COMMIT_MARKERS.contains(&name.as_str()) || is_desktop_file(last) {
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
