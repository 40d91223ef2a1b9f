//! The positions of all pieces of all arrays, and the database's entries for them.
//!
//! A piece costs 12 bytes, or 20 bytes if any leaf is compressed: a save of a thousand processes
//! may have ten million pieces. Keys are made when the writer of the database asks for them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::super::part_columns::PartColumns;
use super::super::stored_dtype;
use super::index::names_rise;
use super::plan::Plan;
use crate::coverage::{Coverage, CutLeaf};
use crate::options::Compression;
use regrow_base::error::{Error, Result};
use regrow_ocdbt::{Entries, FileName, ValueRef};
use regrow_tree::array::{Dtype, Shape, chunk_counts};
use regrow_tree::tree::Leaf;
use regrow_zarr::zarr::{ArrayMeta, V3_DOCUMENT};

/// The number of leaves whose pieces are placed together: their positions then stay in the CPU
/// cache.
const LEAVES_AT_A_TIME: usize = 64;

/// The distance between the entries whose leaf is in `hints`.
const ENTRIES_PER_HINT: usize = 64;

/// The position of every piece.
pub(super) struct PiecePlaces {
    coverage: Coverage,
    offsets: Vec<u64>,
    /// The length of each piece in its data file; empty if no leaf is compressed.
    lens: Vec<u64>,
    /// The names of the data files, by their numbers as sources.
    names: Vec<FileName>,
}

impl PiecePlaces {
    pub fn new(plan: &Plan<'_>) -> Result<Self> {
        let cut = |(at, leaf): (usize, &Leaf)| {
            let name = plan.name(at).to_owned();
            match leaf.as_array() {
                Some(array) => {
                    let (shape, piece_shape) = (array.shape().clone(), plan.chunk_shape(at, array).clone());
                    Ok(CutLeaf { name, shape, piece_shape })
                }
                None => CutLeaf::nothing(name),
            }
        };
        let coverage = Coverage::new(plan.tree.leaves().iter().enumerate().map(cut))?;
        let piece_count = coverage.piece_count();
        let is_coded = (0..plan.leaves.len()).any(|leaf| plan.is_coded(leaf));
        Ok(Self {
            offsets: vec![0; piece_count],
            lens: if is_coded { vec![0; piece_count] } else { Vec::new() },
            coverage,
            names: Vec::new(),
        })
    }

    /// Adds the pieces of some processes, each with its rank.
    ///
    /// # Errors
    /// `InvalidArgument` for a piece that another process has written too, or that the tree lacks;
    /// `Corrupt` for a piece without a position.
    pub fn add(&mut self, parts: &[(u32, PartColumns)]) -> Result<()> {
        let mut cursors = Vec::with_capacity(parts.len());
        for (rank, columns) in parts {
            let first = self.names.len() as u32;
            for file in &columns.data_files {
                self.names.push((Arc::default(), Arc::from(file.name.as_bytes())));
                self.coverage.add_source(*rank);
            }
            let sources = first..self.names.len() as u32;
            cursors.push(Cursor { rank: *rank, sources, columns, at: 0, coded_at: 0 });
        }
        let ends =
            (LEAVES_AT_A_TIME..self.coverage.leaf_count()).step_by(LEAVES_AT_A_TIME).chain([usize::MAX]);
        for end in ends {
            for cursor in &mut cursors {
                while let Some(Piece { leaf, chunk, file, offset, coded_len }) = cursor.next_before(end) {
                    let source =
                        u32::try_from(file).ok().and_then(|file| cursor.sources.start.checked_add(file));
                    let Some(source) = source.filter(|source| cursor.sources.contains(source)) else {
                        return Err(Error::corrupt(format!(
                            "process {} did not report the position of chunk {chunk}",
                            cursor.rank
                        )));
                    };
                    let at = self.coverage.take(source, leaf, chunk)?;
                    if let Some(to) = at.and_then(|at| self.offsets.get_mut(at)) {
                        *to = offset;
                    }
                    if let Some(to) = at.and_then(|at| self.lens.get_mut(at)) {
                        *to = coded_len;
                    }
                }
            }
        }
        Ok(())
    }

    pub fn check_whole(&self) -> Result<()> {
        self.coverage.check_whole()
    }

    pub fn piece_count(&self) -> usize {
        self.coverage.piece_count()
    }

    pub fn file_count(&self) -> usize {
        self.names.len()
    }

    /// File and offset of each chunk of a leaf, in C order of the chunks.
    pub fn of_leaf(&self, leaf: usize) -> impl Iterator<Item = (&str, u64)> {
        self.coverage.pieces_of(leaf).filter_map(|at| {
            let (file, offset) = self.place(at)?;
            let (_, name) = self.names.get(file as usize)?;
            Some((std::str::from_utf8(name).unwrap_or_default(), offset))
        })
    }

    fn place(&self, piece: usize) -> Option<(u32, u64)> {
        Some((self.coverage.source_of(piece)?, *self.offsets.get(piece)?))
    }
}

/// The pieces of one process that are not yet added.
struct Cursor<'c> {
    rank: u32,
    /// The data files of the process, by their numbers as sources.
    sources: Range<u32>,
    columns: &'c PartColumns,
    at: usize,
    /// The number of the next compressed piece.
    coded_at: usize,
}

/// A piece and its position.
struct Piece {
    leaf: u32,
    chunk: u64,
    file: i32,
    offset: u64,
    /// The length of the piece in the file, if the piece is compressed.
    coded_len: u64,
}

impl Cursor<'_> {
    /// The next piece, if it belongs to a leaf before `end`.
    fn next_before(&mut self, end: usize) -> Option<Piece> {
        let (columns, at) = (self.columns, self.at);
        let leaf = *columns.pieces.leaves.get(at)?;
        if leaf as usize >= end {
            return None;
        }
        self.at += 1;
        let chunk = *columns.pieces.chunks.get(at)?;
        let coded = columns.pieces.coded.as_ref();
        let coded =
            coded.filter(|coded| coded.pieces.get(self.coded_at).is_some_and(|&it| it as usize == at));
        let Some(coded) = coded else {
            let (file, offset) = (*columns.leaf_files.get(at)?, *columns.leaf_offsets.get(at)?);
            return Some(Piece { leaf, chunk, file, offset, coded_len: 0 });
        };
        let (offset, coded_len) = (*coded.offsets.get(self.coded_at)?, *coded.lens.get(self.coded_at)?);
        self.coded_at += 1;
        Some(Piece { leaf, chunk, file: i32::try_from(coded.file).ok()?, offset, coded_len })
    }
}

/// The database's entries: for each array, references to its chunks, then its zarr document.
pub(super) struct PieceEntries<'p> {
    plan: &'p Plan<'p>,
    places: &'p PiecePlaces,
    /// The leaves with entries, sorted by name.
    leaves: Vec<EntryLeaf>,
    documents: Vec<Document>,
    count: usize,
    /// For every [`ENTRIES_PER_HINT`]th entry, the number of its leaf in `leaves`.
    hints: Vec<u32>,
}

/// A leaf with entries.
struct EntryLeaf {
    leaf: u32,
    document: u32,
    /// The number of the leaf's first entry.
    first: usize,
}

struct Document {
    json: Bytes,
    /// The keys of the chunks, sorted by bytes, each with its number in C order.
    chunks: Vec<(String, u32)>,
    /// The length of each chunk; `None` for compressed chunks, whose lengths differ.
    chunk_len_bytes: Option<u64>,
}

impl<'p> PieceEntries<'p> {
    /// The entries of all arrays with elements.
    pub fn new(plan: &'p Plan<'p>, places: &'p PiecePlaces, compression: Compression) -> Result<Self> {
        let mut entries =
            Self { plan, places, leaves: Vec::new(), documents: Vec::new(), count: 0, hints: Vec::new() };
        let mut known: HashMap<(Dtype, &Shape, &Shape, bool), u32> = HashMap::new();
        for &leaf in plan.by_name() {
            let Some((planned, source)) = plan.leaf(leaf as usize) else { continue };
            let Some(array) = source.as_array().filter(|_| Plan::has_elements(source)) else { continue };
            let (dtype, shape) = (stored_dtype(planned.dtype), array.shape());
            let (chunk, is_coded) = (plan.chunk_shape(leaf as usize, array), plan.is_coded(leaf as usize));
            let document = match known.get(&(dtype, shape, chunk, is_coded)) {
                Some(&document) => document,
                None => {
                    let compression = if is_coded { compression } else { Compression::None };
                    let added = Document::new(dtype, shape, chunk, compression);
                    entries.documents.push(added.map_err(|error| error.at_leaf(&plan.path(leaf as usize)))?);
                    let document = (entries.documents.len() - 1) as u32;
                    known.insert((dtype, shape, chunk, is_coded), document);
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

    /// Whether the keys have the same order as the names.
    pub fn are_in_order(&self) -> bool {
        names_rise(self.leaves.iter().map(|leaf| self.plan.name(leaf.leaf as usize)))
    }

    /// The leaf of entry number `at`, its document, and the entry's number within the leaf.
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
    fn new(dtype: Dtype, shape: &Shape, chunk: &Shape, compression: Compression) -> Result<Self> {
        let meta = ArrayMeta::v3(shape.clone(), dtype, chunk.clone(), compression)?;
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
        let chunk_len_bytes = match compression {
            Compression::None => Some(chunk.len_bytes(dtype)?),
            Compression::Zstd(_) => None,
        };
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
        let part = document.chunks.get(at).map_or(V3_DOCUMENT, |(key, _)| key.as_str());
        out.extend_from_slice(part.as_bytes());
    }

    fn value(&self, at: usize) -> ValueRef<'_> {
        let nothing = ValueRef::Inline(b"");
        let Some((leaf, document, at)) = self.entry(at) else { return nothing };
        let Some(&(_, number)) = document.chunks.get(at) else { return ValueRef::Inline(&document.json) };
        let piece = self.places.coverage.pieces_of(leaf as usize).start + number as usize;
        match self.places.place(piece) {
            Some((file, offset_bytes)) => {
                let coded_len = || self.places.lens.get(piece).copied().unwrap_or(0);
                let len_bytes = document.chunk_len_bytes.unwrap_or_else(coded_len);
                ValueRef::Indirect { file, offset_bytes, len_bytes }
            }
            None => nothing,
        }
    }
}
