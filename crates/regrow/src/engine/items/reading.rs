//! Reads items of an opened checkpoint: opens one item, or returns its files.

use bytes::Bytes;

use super::names::check_item;
use crate::engine::{Checkpoint, OpenOptions, open_with};
use crate::error::{Error, ErrorKind, Result};

impl Checkpoint {
    /// Opens one item, in the version in which the checkpoint was opened. The item stays readable
    /// even if a save replaces the checkpoint.
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
    /// The errors of [`open_with`]; `NotFound` if the item does not exist, with the names of the
    /// existing items; `Replaced` if another checkpoint has taken the path.
    pub fn item(&self, item: &str) -> Result<Self> {
        let options = OpenOptions {
            step: self.description().step,
            item: Some(item.to_owned()),
            mapped: self.is_mapped(),
            trusted_keys: self.reader().standing().signer.into_iter().collect(),
            ..OpenOptions::default()
        };
        let opened = open_with(self.location(), &options);
        // If the checkpoint was replaced before or after the opening, the item may belong to
        // another save.
        if self.is_replaced() { Err(self.was_replaced()) } else { opened }
    }

    /// The files of an item that is not a tree, sorted by their names below the item's folder. All
    /// files are read into memory, and checked against the record, the seal and the signature.
    ///
    /// # Errors
    /// `NotFound` if the item does not exist; `Corrupt`; `Replaced`; errors of the storage.
    pub fn item_files(&self, item: &str) -> Result<Vec<(String, Bytes)>> {
        check_item(item)?;
        let items = self.reader().standing().items;
        let Some(items) = items.filter(|items| items.items.iter().any(|(name, _)| name == item)) else {
            return Err(
                Error::new(ErrorKind::NotFound, format!("there is no item {item:?}")).in_file(self.path())
            );
        };
        self.unless_replaced(items.files(item))
    }
}
