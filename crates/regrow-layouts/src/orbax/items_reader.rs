//! The reader of a checkpoint of items: it combines the readers of the items and the checks of
//! their files.

use std::path::PathBuf;

use crate::item_folder::ItemFolder;
use crate::{Description, Reader, Rest, Standing};
use regrow_base::error::Result;
use regrow_store::reads::Source;
use regrow_tree::array::Region;
use regrow_tree::tree::{LeafInfo, Tree};

/// A checkpoint of items, or one item of it.
#[derive(Debug)]
pub(super) struct ItemsReader {
    pub reader: Box<dyn Reader>,
    pub items: ItemFolder,
}

impl Reader for ItemsReader {
    fn description(&self) -> &Description {
        self.reader.description()
    }

    fn tree(&self) -> &Tree<LeafInfo> {
        self.reader.tree()
    }

    fn source(&self, leaf: usize) -> Result<Source<'_>> {
        self.reader.source(leaf)
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        self.reader.read_region(leaf, region, out)
    }

    fn holders(&self, leaf: usize) -> Result<Vec<(PathBuf, u64)>> {
        self.reader.holders(leaf)
    }

    fn read_order(&self) -> Vec<usize> {
        self.reader.read_order()
    }

    fn check_rest(&self) -> Result<Rest> {
        let rest = self.reader.check_rest()?;
        Ok(if self.items.is_whole { rest.found(self.items.findings()?) } else { rest })
    }

    fn standing(&self) -> Standing<'_> {
        Standing { items: Some(&self.items), ..self.reader.standing() }
    }
}
