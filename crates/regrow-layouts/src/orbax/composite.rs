//! Items in several layouts. The reader of an item's layout reads the item, and checks its
//! checksums.
//!
//! ```text
//! leaf of the whole   0 1 2 3 | 4 | 5 6 7
//! reader              state   cfg  ema         regrow, orbax (JSON), safetensors
//! leaf of the reader  0 1 2 3 | 0 | 0 1 2
//! ```

use std::path::PathBuf;

use crate::{Description, Reader, Rest, Sparse, Standing};
use regrow_base::error::{Error, Result};
use regrow_storage::location::StepFolder;
use regrow_store::reads::Source;
use regrow_tree::array::Region;
use regrow_tree::tree::{Key, LeafInfo, NodeKind, Tree, TreeBuilder};

use super::slot::graft;

/// The items of one checkpoint as one tree: a dict of items by name, or one item alone.
#[derive(Debug)]
pub(super) struct Composite {
    description: Description,
    tree: Tree<LeafInfo>,
    items: Vec<Item>,
    step_folder: Option<StepFolder>,
}

#[derive(Debug)]
struct Item {
    /// The name of the item; `None` if the item is the whole checkpoint.
    key: Option<Key>,
    first_leaf: usize,
    reader: Box<dyn Reader>,
}

impl Composite {
    pub(super) fn of_items(
        readers: Vec<(String, Box<dyn Reader>)>,
        mut description: Description,
        step_folder: Option<StepFolder>,
    ) -> Result<Self> {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict)?;
        let (mut items, mut first_leaf) = (Vec::new(), 0);
        let mut variants: Vec<String> = Vec::new();
        for (name, reader) in readers {
            let key = Key::dict(name.as_str());
            graft(&mut build, key.clone(), reader.tree().clone())?;
            let own = reader.description();
            description.notes.extend(own.notes.iter().map(|note| format!("{name}: {note}")));
            description.warnings.extend(own.warnings.iter().map(|warning| format!("{name}: {warning}")));
            let variant = match own.layout.as_str() {
                "orbax" => own.variant.clone(),
                layout => layout.to_owned(),
            };
            if !variants.contains(&variant) {
                variants.push(variant);
            }
            let leaf_count = reader.tree().len();
            items.push(Item { key: Some(key), first_leaf, reader });
            first_leaf += leaf_count;
        }
        build.close()?;
        description.variant = variants.join("; ");
        Ok(Self { description, tree: build.finish()?, items, step_folder })
    }

    /// One item as the whole tree. `about` describes the checkpoint that has the item.
    pub(super) fn of_one(
        reader: Box<dyn Reader>,
        about: Description,
        step_folder: Option<StepFolder>,
    ) -> Self {
        let own = reader.description().clone();
        let description = Description {
            layout: own.layout,
            variant: own.variant,
            custom_metadata: own.custom_metadata.or(about.custom_metadata),
            metrics: about.metrics.or(own.metrics),
            notes: [own.notes, about.notes].concat(),
            warnings: [own.warnings, about.warnings].concat(),
            ..about
        };
        let tree = reader.tree().clone();
        Self { description, tree, items: vec![Item { key: None, first_leaf: 0, reader }], step_folder }
    }

    fn find(&self, leaf: usize) -> Result<(&Item, usize)> {
        let at = self.items.partition_point(|item| item.first_leaf <= leaf);
        let item = at.checked_sub(1).and_then(|at| self.items.get(at)).filter(|_| leaf < self.tree.len());
        let item = item.ok_or_else(|| {
            Error::invalid(format!("leaf {leaf} does not exist"))
                .expected(format_args!("fewer than {}", self.tree.len()), leaf)
        })?;
        Ok((item, leaf - item.first_leaf))
    }
}

impl Item {
    /// Adds the item's name to the leaf path in an error of its reader.
    fn blame(&self, error: Error) -> Error {
        match &self.key {
            Some(key) => error.below(key),
            None => error,
        }
    }
}

impl Reader for Composite {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tree(&self) -> &Tree<LeafInfo> {
        &self.tree
    }

    fn source(&self, leaf: usize) -> Result<Source<'_>> {
        let (item, leaf) = self.find(leaf)?;
        item.reader.source(leaf).map_err(|error| item.blame(error))
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        let (item, leaf) = self.find(leaf)?;
        item.reader.read_region(leaf, region, out).map_err(|error| item.blame(error))
    }

    fn holders(&self, leaf: usize) -> Result<Vec<(PathBuf, u64)>> {
        let (item, leaf) = self.find(leaf)?;
        item.reader.holders(leaf).map_err(|error| item.blame(error))
    }

    fn sparse(&self, leaf: usize) -> Result<Option<Sparse>> {
        let (item, leaf) = self.find(leaf)?;
        item.reader.sparse(leaf).map_err(|error| item.blame(error))
    }

    fn read_order(&self) -> Vec<usize> {
        let order = |item: &Item| {
            let first = item.first_leaf;
            item.reader.read_order().into_iter().map(move |leaf| first + leaf)
        };
        self.items.iter().flat_map(order).collect()
    }

    fn check_rest(&self) -> Result<Rest> {
        let mut all = Rest::default();
        for item in &self.items {
            let rest = item.reader.check_rest().map_err(|error| item.blame(error))?;
            all = all.found(rest.findings.into_iter().map(|finding| item.blame(finding.error)));
            all.notes.extend(rest.notes);
        }
        Ok(all)
    }

    fn standing(&self) -> Standing<'_> {
        let all = |is: fn(&Standing<'_>) -> bool| self.items.iter().all(|item| is(&item.reader.standing()));
        Standing {
            // An item without array data cannot have unseen damage.
            has_data_checksums: self.items.iter().all(|item| {
                item.reader.standing().has_data_checksums
                    || !item.reader.tree().leaves().iter().any(|leaf| leaf.kind.is_array())
            }),
            is_never_rewritten: all(|standing| standing.is_never_rewritten),
            reads_open_files: all(|standing| standing.reads_open_files),
            signer: None,
            has_lost_pytree: self.items.iter().any(|item| item.reader.standing().has_lost_pytree),
            has_guessed_tree: self.items.iter().any(|item| item.reader.standing().has_guessed_tree),
            step_folder: self.step_folder.as_ref(),
            items: None,
        }
    }
}
