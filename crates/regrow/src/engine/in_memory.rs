//! A pytree in memory as a checkpoint, with all functions of an opened checkpoint.

use crate::array::{Dtype, Region, Shape};
use crate::engine::Checkpoint;
use crate::error::{Error, Result};
use crate::formats::{Description, Reader, Rest, Standing};
use crate::reads::{Coded, Source, Text};
use crate::tree::{Leaf, LeafData, LeafInfo, Tree};

/// The reader of a pytree in memory: its leaves, unchanged.
#[derive(Debug)]
struct Held {
    description: Description,
    infos: Tree<LeafInfo>,
    leaves: Vec<Leaf>,
}

impl Checkpoint {
    /// A pytree in memory as a checkpoint. Its path is empty, and no data is copied.
    ///
    /// ```
    /// use regrow::tree::{Leaf, Scalar, Tree};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("step_1");
    /// regrow::save(&path, &Tree::single(Leaf::scalar(Scalar::Int(3))))?;
    /// let held = regrow::Checkpoint::of_tree(Tree::single(Leaf::scalar(Scalar::Int(3))))?;
    /// assert!(regrow::open(&path)?.diff(&held, &Default::default())?.is_equal());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for a text too long to count.
    pub fn of_tree(tree: Tree<Leaf>) -> Result<Self> {
        let infos = tree.try_map(|path, leaf| info_of(leaf, &path.join(".")))?;
        let description = Description { layout: "memory".to_owned(), ..Description::default() };
        Ok(Self::in_memory(Box::new(Held { description, infos, leaves: tree.into_leaves() })))
    }
}

pub(super) fn info_of(leaf: &Leaf, name: &str) -> Result<LeafInfo> {
    let (dtype, shape) = match &leaf.data {
        LeafData::Array(array) => (array.dtype(), array.shape().clone()),
        LeafData::Text(text) => (Dtype::UInt8, Shape::new([text.len() as u64])?),
        LeafData::Absent => (Dtype::UInt8, Shape::scalar()),
    };
    Ok(LeafInfo {
        kind: leaf.kind.clone(),
        dtype,
        shape,
        name: name.into(),
        chunk_shape: None,
        write_shape: None,
        sharding: leaf.sharding.clone(),
        coding: "".into(),
    })
}

impl Held {
    fn leaf(&self, leaf: usize) -> Result<&Leaf> {
        self.leaves.get(leaf).ok_or_else(|| Error::invalid("the leaf does not exist"))
    }
}

impl Reader for Held {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tree(&self) -> &Tree<LeafInfo> {
        &self.infos
    }

    fn source(&self, leaf: usize) -> Result<Source<'_>> {
        Ok(match &self.leaf(leaf)?.data {
            LeafData::Array(array) => match array.c_order_bytes() {
                Some(bytes) => Source::Memory(bytes.clone()),
                None => Source::Coded(Coded::default()),
            },
            LeafData::Text(text) => Source::Text(Text::Known(text)),
            LeafData::Absent => Source::Nothing,
        })
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        match &self.leaf(leaf)?.data {
            LeafData::Array(array) => array.copy_region_c_order(region, out),
            _ => Err(Error::invalid("the leaf has no elements")),
        }
    }

    fn read_order(&self) -> Vec<usize> {
        (0..self.leaves.len()).collect()
    }

    fn check_rest(&self) -> Result<Rest> {
        Ok(Rest::default())
    }

    fn standing(&self) -> Standing<'_> {
        Standing { is_never_rewritten: true, reads_open_files: true, ..Standing::default() }
    }
}
