//! Where every piece of every array lies, and the database's entries for them.
//!
//! Twelve bytes a piece: there may be ten million of them, of a thousand processes. Keys are made when the writer of
//! the database asks for them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::super::part_columns::PartColumns;
use super::super::stored_dtype;
use super::index::names_rise;
use super::plan::Plan;
use crate::array::{Dtype, Region, Shape, chunk_counts, chunk_starts};
use crate::error::{Error, Result};
use crate::options::Compression;
use crate::store::ocdbt::{Entries, FileName, ValueRef};
use crate::zarr::ArrayMeta;

/// No process has written the piece.
const NOBODY: u32 = u32::MAX;

/// Leaves whose pieces are placed at a time: the places of many processes' pieces of them lie in the cache.
const LEAVES_AT_A_TIME: usize = 64;

/// Of so many entries one says which leaf it is of.
const ENTRIES_PER_HINT: usize = 64;

/// Where the pieces are.
pub(super) struct PiecePlaces {
    /// Of each leaf, the number of its first piece; one more at the end.
    first: Vec<usize>,
    /// Of each piece, the number of its file and the offset there.
    files: Vec<u32>,
    offsets: Vec<u64>,
    names: Vec<FileName>,
    /// Who wrote which file.
    ranks: Vec<u32>,
    /// What to say of a leaf.
    leaves: Vec<(String, Shape, Shape)>,
}

impl PiecePlaces {
    /// Of a tree of which nobody has written anything.
    pub fn new(plan: &Plan<'_>) -> Result<Self> {
        let mut first = Vec::with_capacity(plan.tree.len() + 1);
        let mut leaves = Vec::with_capacity(plan.tree.len());
        let mut total = 0_usize;
        for (at, leaf) in plan.tree.leaves().iter().enumerate() {
            first.push(total);
            let (shape, chunk) = match leaf.as_array() {
                Some(array) => (array.shape().clone(), plan.chunk_shape(array).clone()),
                None => (Shape::new([0])?, Shape::new([1])?),
            };
            let counts = chunk_counts(&shape, &chunk).iter().try_fold(1_u64, |a, &b| a.checked_mul(b));
            let count = counts.and_then(|count| usize::try_from(count).ok());
            let next =
                count.and_then(|count| total.checked_add(count)).filter(|&next| next < NOBODY as usize);
            total = next.ok_or_else(|| Error::invalid("the arrays are cut into too many chunks"))?;
            leaves.push((plan.name(at).to_owned(), shape, chunk));
        }
        first.push(total);
        let (files, offsets) = (vec![NOBODY; total], vec![0; total]);
        Ok(Self { first, files, offsets, names: Vec::new(), ranks: Vec::new(), leaves })
    }

    /// Adds what some processes have written, each with its rank.
    ///
    /// # Errors
    /// `InvalidArgument` for a piece that another process has written too, or that the tree has not.
    pub fn add(&mut self, parts: &[(u32, PartColumns)]) -> Result<()> {
        let mut cursors = Vec::with_capacity(parts.len());
        for (rank, columns) in parts {
            let first_file = self.names.len();
            let names = columns.data_files.iter();
            self.names.extend(names.map(|file| (Arc::default(), Arc::from(file.name.as_bytes()))));
            self.ranks.resize(self.names.len(), *rank);
            cursors.push(Cursor {
                rank: *rank,
                first_file,
                files: first_file..self.names.len(),
                columns,
                at: 0,
            });
        }
        let ends = (LEAVES_AT_A_TIME..self.leaves.len()).step_by(LEAVES_AT_A_TIME).chain([usize::MAX]);
        for end in ends {
            for cursor in &mut cursors {
                while let Some((leaf, chunk, file, offset)) = cursor.next_before(end) {
                    self.place(cursor, leaf, chunk, file, offset)?;
                }
            }
        }
        Ok(())
    }

    fn place(&mut self, by: &Cursor<'_>, leaf: usize, chunk: u64, file: i32, offset: u64) -> Result<()> {
        let rank = by.rank;
        let range = self.first.get(leaf).zip(self.first.get(leaf.saturating_add(1)));
        let at = range.and_then(|(&first, &end)| {
            let at = usize::try_from(chunk).ok().and_then(|chunk| first.checked_add(chunk))?;
            // A leaf without elements has no chunks, and needs none.
            (at < end).then_some(at)
        });
        let Some(at) = at else {
            let is_empty = self.leaves.get(leaf).is_some_and(|(_, shape, _)| shape.is_empty());
            if is_empty {
                return Ok(());
            }
            return Err(Error::invalid(format!(
                "process {rank} has written chunk {chunk} of leaf {leaf}, which process 0 does not know"
            ))
            .help("all processes save the same tree, with the same shardings"));
        };
        let number = usize::try_from(file).ok().and_then(|file| by.first_file.checked_add(file));
        let Some(number) = number.filter(|number| by.files.contains(number)) else {
            return Err(Error::corrupt(format!("process {rank} has not said where chunk {chunk} lies")));
        };
        let (Some(place), Some(to)) = (self.files.get_mut(at), self.offsets.get_mut(at)) else {
            return Ok(());
        };
        if *place != NOBODY {
            let other = self.ranks.get(*place as usize).copied().unwrap_or(0);
            return Err(self.of_piece(leaf, chunk, |region, name| {
                format!("processes {other} and {rank} have both written {region} of {name}")
            }));
        }
        (*place, *to) = (number as u32, offset);
        Ok(())
    }

    /// Errs if a piece was written by nobody.
    ///
    /// # Errors
    /// `InvalidArgument` with the region and the leaf.
    pub fn check_whole(&self) -> Result<()> {
        let Some(at) = self.files.iter().position(|&file| file == NOBODY) else { return Ok(()) };
        let leaf = self.first.partition_point(|&first| first <= at).saturating_sub(1);
        let chunk = at - self.first.get(leaf).copied().unwrap_or(0);
        Err(self.of_piece(leaf, chunk as u64, |region, name| {
            format!("no process has written {region} of {name}")
        }))
    }

    fn of_piece(&self, leaf: usize, chunk: u64, say: impl FnOnce(&Region, &str) -> String) -> Error {
        let Some((name, shape, chunk_shape)) = self.leaves.get(leaf) else {
            return Error::invalid(format!("there is no leaf {leaf}"));
        };
        let starts = chunk_starts(chunk, shape, chunk_shape);
        let whole = Region::whole(shape);
        let region = Region::new(starts, chunk_shape.dims()).ok().and_then(|region| region.intersect(&whole));
        Error::invalid(say(&region.unwrap_or(whole), name)).help(
            "the shards of an array cover it without holes and overlaps; each is held by one process, or has \
                   replicas of which the one numbered 0 is saved",
        )
    }

    /// How many pieces there are.
    pub fn piece_count(&self) -> usize {
        self.files.len()
    }

    /// How many data files they lie in.
    pub fn file_count(&self) -> usize {
        self.names.len()
    }

    /// File and offset of each chunk of a leaf, in C order of the chunks.
    pub fn of_leaf(&self, leaf: usize) -> impl Iterator<Item = (&str, u64)> {
        let range = self.first.get(leaf).zip(self.first.get(leaf + 1)).map_or(0..0, |(&a, &b)| a..b);
        range.filter_map(|at| {
            let (_, name) = self.names.get(*self.files.get(at)? as usize)?;
            Some((std::str::from_utf8(name).unwrap_or_default(), *self.offsets.get(at)?))
        })
    }
}

/// What one process has written, as far as it was not added yet.
struct Cursor<'c> {
    rank: u32,
    first_file: usize,
    files: Range<usize>,
    columns: &'c PartColumns,
    at: usize,
}

impl Cursor<'_> {
    /// The next piece, if it is of a leaf before `end`: leaf, chunk, file and offset.
    fn next_before(&mut self, end: usize) -> Option<(usize, u64, i32, u64)> {
        let (columns, at) = (self.columns, self.at);
        let leaf = *columns.pieces.leaves.get(at)? as usize;
        if leaf >= end {
            return None;
        }
        self.at += 1;
        Some((
            leaf,
            *columns.pieces.chunks.get(at)?,
            *columns.leaf_files.get(at)?,
            *columns.leaf_offsets.get(at)?,
        ))
    }
}

/// The database's entries: of each array its chunks by reference, then its zarr document.
pub(super) struct PieceEntries<'p> {
    plan: &'p Plan<'p>,
    places: &'p PiecePlaces,
    /// The leaves that have entries, by name.
    leaves: Vec<EntryLeaf>,
    documents: Vec<Document>,
    count: usize,
    /// Of every [`ENTRIES_PER_HINT`]th entry its number in `leaves`.
    hints: Vec<u32>,
}

/// A leaf with entries.
struct EntryLeaf {
    leaf: u32,
    document: u32,
    /// The number of its first entry.
    first: usize,
}

struct Document {
    json: Bytes,
    /// The keys of the chunks, in the order of bytes, with their numbers in C order.
    chunks: Vec<(String, u32)>,
    chunk_len_bytes: u64,
}

impl<'p> PieceEntries<'p> {
    /// The entries of all arrays with elements.
    pub fn new(plan: &'p Plan<'p>, places: &'p PiecePlaces) -> Result<Self> {
        let mut entries =
            Self { plan, places, leaves: Vec::new(), documents: Vec::new(), count: 0, hints: Vec::new() };
        let mut known: HashMap<(Dtype, &Shape, &Shape), u32> = HashMap::new();
        for &leaf in plan.by_name() {
            let Some((planned, source)) = plan.leaf(leaf as usize) else { continue };
            let Some(array) = source.as_array().filter(|_| Plan::has_elements(source)) else { continue };
            let (dtype, shape, chunk) = (stored_dtype(planned.dtype), array.shape(), plan.chunk_shape(array));
            let document = match known.get(&(dtype, shape, chunk)) {
                Some(&document) => document,
                None => {
                    let added = Document::new(dtype, shape, chunk);
                    entries.documents.push(added.map_err(|error| error.at_leaf(&plan.path(leaf as usize)))?);
                    let document = (entries.documents.len() - 1) as u32;
                    known.insert((dtype, shape, chunk), document);
                    document
                }
            };
            entries.leaves.push(EntryLeaf { leaf, document, first: entries.count });
            entries.count += entries.documents.get(document as usize).map_or(0, |it| it.chunks.len() + 1);
            let number = (entries.leaves.len() - 1) as u32;
            entries.hints.resize(entries.count.div_ceil(ENTRIES_PER_HINT), number);
        }
        Ok(entries)
    }

    /// Whether keys rise as names do.
    pub fn are_in_order(&self) -> bool {
        names_rise(self.leaves.iter().map(|leaf| self.plan.name(leaf.leaf as usize)))
    }

    /// A leaf, its document, and which of its entries number `at` is.
    fn entry(&self, at: usize) -> Option<(u32, &Document, usize)> {
        let mut number = *self.hints.get(at / ENTRIES_PER_HINT)? as usize;
        while self.leaves.get(number + 1).is_some_and(|next| next.first <= at) {
            number += 1;
        }
        let leaf = self.leaves.get(number)?;
        Some((leaf.leaf, self.documents.get(leaf.document as usize)?, at - leaf.first))
    }
}

impl Document {
    fn new(dtype: Dtype, shape: &Shape, chunk: &Shape) -> Result<Self> {
        let meta = ArrayMeta::v3(shape.clone(), dtype, chunk.clone(), Compression::None)?;
        let counts = chunk_counts(shape, chunk);
        let total: u64 = counts.iter().product();
        let key = |number: u64| {
            let mut rest = number;
            let mut index: Vec<u64> = vec![0; counts.len()];
            for (index, &count) in index.iter_mut().zip(&counts).rev() {
                *index = rest % count;
                rest /= count;
            }
            (meta.chunk_key(&index), number as u32)
        };
        let mut chunks: Vec<(String, u32)> = (0..total).map(key).collect();
        chunks.sort();
        let chunk_len_bytes = chunk.len_bytes(dtype)?;
        Ok(Self { json: meta.to_json().into(), chunks, chunk_len_bytes })
    }
}

impl Entries for PieceEntries<'_> {
    fn count(&self) -> usize {
        self.count
    }

    fn files(&self) -> &[FileName] {
        &self.places.names
    }

    fn push_key(&self, at: usize, out: &mut Vec<u8>) {
        let Some((leaf, document, at)) = self.entry(at) else { return };
        let name = self.plan.name(leaf as usize);
        if !name.is_empty() {
            out.extend_from_slice(name.as_bytes());
            out.push(b'/');
        }
        let part = document.chunks.get(at).map_or("zarr.json", |(key, _)| key.as_str());
        out.extend_from_slice(part.as_bytes());
    }

    fn value(&self, at: usize) -> ValueRef<'_> {
        let nothing = ValueRef::Inline(b"");
        let Some((leaf, document, at)) = self.entry(at) else { return nothing };
        let Some(&(_, number)) = document.chunks.get(at) else { return ValueRef::Inline(&document.json) };
        let Some(&first) = self.places.first.get(leaf as usize) else { return nothing };
        let piece = first + number as usize;
        match (self.places.files.get(piece), self.places.offsets.get(piece)) {
            (Some(&file), Some(&offset_bytes)) => {
                ValueRef::Indirect { file, offset_bytes, len_bytes: document.chunk_len_bytes }
            }
            _ => nothing,
        }
    }
}
