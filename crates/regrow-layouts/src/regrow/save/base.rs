//! The base: an earlier checkpoint, opened to find the data files that this save can link.

use std::sync::Arc;

use super::super::checked::CheckedStore;
use super::super::manifest::{self, DataFile, LeafPlace};
use super::super::reader::RegrowReader;
use super::header::header_bytes;
use super::plan::Plan;
use crate::{Reader, refuse_uncommitted};
use regrow_base::error::{Error, Result};
use regrow_base::monitor::Monitor;
use regrow_storage::location::Location;
use regrow_storage::{NewFolder, Retries};
use regrow_store::{Blob, ReadPath};

/// The opened earlier checkpoint, with its `regrow.json`.
pub(super) struct Base {
    folder: Location,
    reader: RegrowReader,
}

/// A file of the base that the save can link instead of writing it.
pub(super) struct Link {
    source: Location,
    /// The open file, which stays the same even if the location later leads to another file.
    opened: Arc<dyn Blob>,
    record: DataFile,
}

impl Base {
    /// # Errors
    /// `NotFound`; `InvalidArgument` for a checkpoint of another layout; `Uncommitted`, `Corrupt`,
    /// `Unsupported` as in any opening.
    pub fn open(at: &Location) -> Result<Self> {
        Self::open_named(at, manifest::FILE_NAME)
    }

    /// Opens the checkpoint through the `regrow.json` with this name.
    fn open_named(at: &Location, name: &str) -> Result<Self> {
        Retries::until_unreplaced(|| {
            let before = at.identity();
            let opened = Self::check(at).and_then(|()| RegrowReader::open_named(at, name));
            // During the open, another save may have put a new checkpoint at this path, and removed
            // the files of the old checkpoint one by one.
            if at.identity() != before {
                return Err(Error::replaced("the base was replaced while it was opened").in_file(at));
            }
            Ok(Self { reader: opened?, folder: at.clone() })
        })
    }

    /// Opens the part of process `rank` of the checkpoint at a location; `None` if the checkpoint
    /// has no part of this rank.
    pub fn open_part(at: &Location, rank: u32) -> Result<Option<Self>> {
        Self::check(at)?;
        let name = manifest::part_name(rank);
        if !at.join(&name).is_file() {
            return Ok(None);
        }
        Self::open_named(at, &name).map(Some)
    }

    fn check(at: &Location) -> Result<()> {
        refuse_uncommitted(at)?;
        let cannot_open = |source| Error::io("cannot open the base of this save", at, source);
        if at.look()?.is_none() {
            return Err(cannot_open(std::io::ErrorKind::NotFound.into()));
        }
        if !at.join(manifest::FILE_NAME).is_file() {
            return Err(Error::invalid("the base of this save is not a checkpoint of the layout regrow")
                .in_file(at)
                .help("give one checkpoint or step in the layout regrow, or save without a base"));
        }
        Ok(())
    }

    /// For each data file of the base, its raw leaves, each with the leaf of the tree that may be
    /// equal.
    pub fn match_leaves(self, plan: &Plan<'_>) -> Vec<OldFile> {
        let Self { folder, reader } = self;
        let store = reader.store().clone();
        let open = |(at, record): (usize, &DataFile)| {
            Some(OldFile {
                at,
                source: folder.join(&record.name),
                opened: reader.data_file(record)?,
                store: store.clone(),
                record: record.clone(),
                leaves: Vec::new(),
                is_whole: true,
            })
        };
        let mut files: Vec<Option<OldFile>> = reader.data_files().enumerate().map(open).collect();
        for (info, place) in reader.tree().leaves().iter().zip(reader.places()) {
            let &LeafPlace::Raw { file, offset_bytes } = place else { continue };
            let Some(Some(old)) = files.get_mut(file) else { continue };
            let by_name = |&leaf: &u32| plan.name(leaf as usize).cmp(&info.name);
            let found = plan.by_name().binary_search_by(by_name).ok().and_then(|rank| {
                let leaf = *plan.by_name().get(rank)?;
                let (planned, source) = plan.leaf(leaf as usize)?;
                let is_same = matches!(planned.place, LeafPlace::Raw { .. })
                    && planned.dtype == info.dtype
                    && source.as_array()?.shape() == &info.shape;
                is_same.then_some(OldLeaf { leaf, rank, offset_bytes, len_bytes: planned.len_bytes })
            });
            match found {
                Some(leaf) => old.leaves.push(leaf),
                None => old.is_whole = false,
            }
        }
        let mut files: Vec<OldFile> = files.into_iter().flatten().collect();
        for file in &mut files {
            // An empty leaf has the same offset as the next leaf.
            file.leaves.sort_by_key(|leaf| (leaf.offset_bytes, leaf.len_bytes, leaf.rank));
        }
        files
    }
}

/// A data file of the base.
pub(super) struct OldFile {
    /// The number of the file among the data files of the base.
    pub at: usize,
    pub source: Location,
    /// The open file, which stays the same even if the location later leads to another file.
    pub opened: Arc<dyn Blob>,
    store: CheckedStore,
    pub record: DataFile,
    /// The leaves of the file that the tree has, too, in the order of their bytes.
    pub leaves: Vec<OldLeaf>,
    /// Whether the tree has all leaves of the file.
    pub is_whole: bool,
}

/// A leaf of the base, and the leaf of the tree with the same name, dtype and shape.
pub(super) struct OldLeaf {
    pub leaf: u32,
    rank: usize,
    pub offset_bytes: u64,
    pub len_bytes: u64,
}

impl OldFile {
    pub fn leaves_len_bytes(&self) -> u64 {
        self.leaves.iter().map(|leaf| leaf.len_bytes).fold(0, u64::saturating_add)
    }

    /// Whether reading the file needs a network. Storages behind a network have their own
    /// checksums.
    pub fn is_far(&self) -> bool {
        self.opened.suits().is_far()
    }

    pub fn check(&self, monitor: &Monitor) -> Result<()> {
        self.store.check_data_file(&self.record, monitor)
    }

    /// Whether the file begins with `header`, and its leaves follow in the order and at the offsets
    /// of a new file.
    fn is_laid_out_as(&self, header: &[u8]) -> bool {
        let mut end = header.len() as u64;
        for leaf in &self.leaves {
            if leaf.offset_bytes != end {
                return false;
            }
            end = end.saturating_add(leaf.len_bytes);
        }
        if header.len() as u64 != self.record.data_offset || end != self.record.len_bytes {
            return false;
        }
        let mut theirs = vec![0; header.len()];
        self.opened.read(0, &mut theirs, ReadPath::Cached).is_ok() && theirs == header
    }

    /// Whether a new file with these leaves would have the same header and offsets.
    pub fn would_be_written(&self, plan: &Plan<'_>, structure: Option<&str>) -> bool {
        header_bytes(plan, &self.order(), structure).is_ok_and(|header| self.is_laid_out_as(&header))
    }

    pub fn order(&self) -> Vec<u32> {
        self.leaves.iter().map(|leaf| leaf.leaf).collect()
    }

    pub fn into_link(self) -> Link {
        Link { source: self.source, opened: self.opened, record: self.record }
    }
}

impl Link {
    /// Links the file as `name` in the new checkpoint, and returns its new record. `None` if the
    /// storage cannot link it, or if the path now leads to another file.
    pub fn place(&self, name: &str, staged: &dyn NewFolder) -> Result<Option<DataFile>> {
        let is_linked = staged.reuse(name, &self.source, &*self.opened)?;
        Ok(is_linked.then(|| DataFile { name: name.to_owned(), ..self.record.clone() }))
    }
}
