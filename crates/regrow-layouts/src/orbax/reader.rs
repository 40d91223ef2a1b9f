//! The reader of an opened checkpoint: it finds and reads the bytes of the leaves.

use std::path::PathBuf;

use bytes::Bytes;

use super::slot::{Source, leaf_path};
use crate::pieces::copy_pieces;
use crate::regrow;
use crate::{Description, Finding, Reader, Rest, Sparse, Standing};
use regrow_base::error::{Error, Result};
use regrow_base::text::counted;
use regrow_storage::location::{Location, StepFolder};
use regrow_store::reads;
use regrow_tree::array::Region;
use regrow_tree::tree::{KeyPath, LeafInfo, Tree};
use regrow_zarr::zarr::Missing;

/// An opened Orbax checkpoint.
#[derive(Debug)]
pub(super) struct OrbaxReader {
    pub(super) description: Description,
    pub(super) tree: Tree<LeafInfo>,
    pub(super) sources: Vec<Source>,
    pub(super) databases: Vec<Location>,
    /// The missing `regrow.json` files that regrow wrote.
    pub(super) lost: Vec<Location>,
    pub(super) step_folder: Option<StepFolder>,
    pub(super) is_guessed: bool,
}

impl OrbaxReader {
    fn leaf(&self, leaf: usize) -> Result<(&LeafInfo, &Source)> {
        match (self.tree.leaves().get(leaf), self.sources.get(leaf)) {
            (Some(info), Some(source)) => Ok((info, source)),
            _ => Err(Error::invalid(format!("leaf {leaf} does not exist"))
                .expected(format_args!("fewer than {}", self.tree.len()), leaf)),
        }
    }

    /// The key path of a leaf. O(leaves), so use it only for errors.
    fn path(&self, leaf: usize) -> KeyPath {
        leaf_path(&self.tree, leaf)
    }
}

impl Reader for OrbaxReader {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tree(&self) -> &Tree<LeafInfo> {
        &self.tree
    }

    fn source(&self, leaf: usize) -> Result<reads::Source<'_>> {
        Ok(match self.leaf(leaf)?.1 {
            Source::Zarr(stored) => stored.source().map_err(|error| error.at_leaf(&self.path(leaf)))?,
            Source::Pieces(pieces) => match pieces.as_slice() {
                [piece] => reads::Source::Memory(piece.clone()),
                _ => reads::Source::Coded(reads::Coded::default()),
            },
            Source::Text(text) => reads::Source::Text(reads::Text::Known(text)),
            Source::Absent => reads::Source::Nothing,
            Source::Lost(why) => reads::Source::Unreadable(reads::Unreadable::lost(why.duplicate())),
        })
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        let (info, source) = self.leaf(leaf)?;
        let read = match source {
            Source::Zarr(stored) => stored.array.read_region(region, out),
            Source::Pieces(pieces) => copy_pieces(pieces, info.dtype, &info.shape, region, out),
            Source::Text(text) => {
                copy_pieces(&[Bytes::copy_from_slice(text.as_bytes())], info.dtype, &info.shape, region, out)
            }
            Source::Lost(why) => Err(why.duplicate()),
            Source::Absent => {
                Err(Error::unsupported(format!("a leaf of kind {} has no array", info.kind.name())))
            }
        };
        read.map_err(|error| error.at_leaf(&self.path(leaf)))
    }

    fn holders(&self, leaf: usize) -> Result<Vec<(PathBuf, u64)>> {
        match self.leaf(leaf)? {
            (_, Source::Zarr(stored)) => stored.holders(),
            _ => Ok(Vec::new()),
        }
    }

    fn sparse(&self, leaf: usize) -> Result<Option<Sparse>> {
        match self.leaf(leaf)? {
            (_, Source::Zarr(stored)) => Ok(stored.sparse()?.map(Sparse::Regions)),
            _ => Ok(None),
        }
    }

    fn read_order(&self) -> Vec<usize> {
        let mut order: Vec<(Vec<u8>, u64, usize)> = Vec::with_capacity(self.sources.len());
        for (leaf, source) in self.sources.iter().enumerate() {
            let (file, offset) = match source {
                Source::Zarr(stored) => stored.position(),
                _ => (Vec::new(), 0),
            };
            order.push((file, offset, leaf));
        }
        order.sort_unstable();
        order.into_iter().map(|(.., leaf)| leaf).collect()
    }

    fn check_rest(&self) -> Result<Rest> {
        Ok(Rest { findings: self.check_files()?, notes: self.check_notes()? })
    }

    fn standing(&self) -> Standing<'_> {
        Standing {
            is_never_rewritten: true,
            step_folder: self.step_folder.as_ref(),
            has_guessed_tree: self.is_guessed,
            ..Standing::default()
        }
    }
}

impl OrbaxReader {
    /// The errors of the databases, and of arrays with missing chunks.
    fn check_files(&self) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        for folder in &self.databases {
            let errors = regrow_ocdbt::check(folder.store());
            findings.extend(errors.into_iter().map(|error| Finding { error }));
        }
        findings.extend(self.lost.iter().map(|file| Finding {
            error: Error::corrupt(regrow::MANIFEST_LOST).in_file(file).help(
                "copy the whole checkpoint again; until then regrow cannot detect damage of the \
                        data",
            ),
        }));
        for (leaf, source) in self.sources.iter().enumerate() {
            let Source::Zarr(stored) = source else { continue };
            if stored.missing() == Missing::Fill {
                continue;
            }
            if let Some(file) = stored.first_missing()? {
                let error = Error::corrupt("a chunk of an array is missing")
                    .in_file(file)
                    .at_leaf(&self.path(leaf))
                    .help("copy the whole checkpoint again, or restore the other leaves");
                findings.push(Finding { error });
            }
        }
        Ok(findings)
    }

    /// Notes about arrays whose missing chunks have the fill value.
    fn check_notes(&self) -> Result<Vec<String>> {
        const SHOWN: usize = 5;
        let mut filled = Vec::new();
        for (source, info) in self.sources.iter().zip(self.tree.leaves()) {
            let Source::Zarr(stored) = source else { continue };
            if stored.missing() == Missing::Fill && stored.first_missing()?.is_some() {
                filled.push(&*info.name);
            }
        }
        if filled.is_empty() {
            return Ok(Vec::new());
        }
        let shown = filled.get(..SHOWN).unwrap_or(&filled).join(", ");
        let more = if filled.len() > SHOWN { ", …" } else { "" };
        let arrays = counted(filled.len(), "array", "arrays");
        Ok(vec![format!(
            "chunks of {arrays} are missing and read as the fill value: {shown}{more}; Orbax before \
             December 2024 left out zeros, but an unfinished copy looks the same"
        )])
    }
}
