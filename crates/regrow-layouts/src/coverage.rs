//! Records which process has written each piece of every array. Each piece must have exactly one
//! writer.
//!
//! ```text
//! w (4, 6) in chunks of (2, 3)   pieces 0 1 2 3     written by process 0 0 1 1
//! b (5)    in one piece          piece  4           written by process 1
//! ```
//!
//! The record costs four bytes for each piece. A save of a thousand processes may have ten million
//! pieces.

use std::ops::Range;

use regrow_base::error::{Error, Result};
use regrow_tree::array::{Region, Shape, chunk_counts, chunk_starts};

const UNWRITTEN: u32 = u32::MAX;

/// A leaf to write, cut into pieces.
pub(crate) struct CutLeaf {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    /// The shape of a piece; pieces at the far edges may reach beyond the array.
    pub(crate) piece_shape: Shape,
}

impl CutLeaf {
    /// A leaf without elements.
    pub(crate) fn nothing(name: String) -> Result<Self> {
        Ok(Self { name, shape: Shape::new([0])?, piece_shape: Shape::new([1])? })
    }
}

/// The process that has written each piece.
pub(crate) struct Coverage {
    leaves: Vec<CutLeaf>,
    /// For each leaf, the number of its first piece; then the total number of pieces.
    first: Vec<usize>,
    /// For each piece, the number of its source, or `UNWRITTEN`.
    sources: Vec<u32>,
    /// For each source, the rank of its process.
    ranks: Vec<u32>,
}

impl Coverage {
    /// The coverage of these leaves before any piece is written.
    ///
    /// # Errors
    /// `InvalidArgument` for more pieces than can be counted.
    pub(crate) fn new(leaves: impl Iterator<Item = Result<CutLeaf>>) -> Result<Self> {
        let leaves = leaves.collect::<Result<Vec<_>>>()?;
        let mut first = Vec::with_capacity(leaves.len() + 1);
        let mut total = 0_usize;
        for leaf in &leaves {
            first.push(total);
            let counts = chunk_counts(&leaf.shape, &leaf.piece_shape);
            let count = counts.iter().try_fold(1_u64, |a, &b| a.checked_mul(b));
            let next = count
                .and_then(|count| total.checked_add(usize::try_from(count).ok()?))
                .filter(|&next| next < UNWRITTEN as usize);
            total = next.ok_or_else(|| Error::invalid("the arrays have too many chunks"))?;
        }
        first.push(total);
        Ok(Self { leaves, first, sources: vec![UNWRITTEN; total], ranks: Vec::new() })
    }

    /// The first source has number 0.
    pub(crate) fn add_source(&mut self, rank: u32) -> u32 {
        self.ranks.push(rank);
        (self.ranks.len() - 1) as u32
    }

    /// Records the source of a piece, and returns the number of the piece among all pieces. `None`
    /// for a leaf without elements, which has no pieces.
    ///
    /// # Errors
    /// `InvalidArgument` for a piece that another process has written too, or that no leaf has.
    pub(crate) fn take(&mut self, source: u32, leaf: u32, piece: u64) -> Result<Option<usize>> {
        let leaf = leaf as usize;
        let rank = self.rank_of(source);
        let range = self.pieces_of(leaf);
        let at = usize::try_from(piece).ok().and_then(|piece| range.start.checked_add(piece));
        let place = at.filter(|at| range.contains(at)).and_then(|at| Some((at, self.sources.get_mut(at)?)));
        let Some((at, place)) = place else {
            if self.leaves.get(leaf).is_some_and(|leaf| leaf.shape.is_empty()) {
                return Ok(None);
            }
            return Err(Error::invalid(format!(
                "process {rank} wrote chunk {piece} of leaf {leaf}, which process 0 does not know"
            ))
            .help("save the same tree with the same shardings in every process"));
        };
        if *place != UNWRITTEN {
            let other = *place;
            return Err(self.of_piece(leaf, piece, |region, name| {
                twice(&format!("processes {} and {rank}", self.rank_of(other)), region, name)
            }));
        }
        *place = source;
        Ok(Some(at))
    }

    pub(crate) fn check_whole(&self) -> Result<()> {
        let Some(at) = self.sources.iter().position(|&source| source == UNWRITTEN) else { return Ok(()) };
        let leaf = self.first.partition_point(|&first| first <= at).saturating_sub(1);
        let piece = at - self.first.get(leaf).copied().unwrap_or(0);
        Err(self.of_piece(leaf, piece as u64, |region, name| {
            Error::invalid(format!("no process has written {region} of {name}")).help(COVER)
        }))
    }

    fn of_piece(&self, leaf: usize, piece: u64, say: impl FnOnce(&Region, &str) -> Error) -> Error {
        match self.leaves.get(leaf) {
            Some(CutLeaf { name, shape, piece_shape }) => say(&inside(piece, shape, piece_shape), name),
            None => Error::invalid(format!("leaf {leaf} does not exist")),
        }
    }

    fn rank_of(&self, source: u32) -> u32 {
        self.ranks.get(source as usize).copied().unwrap_or(0)
    }

    pub(crate) fn leaf_count(&self) -> usize {
        self.leaves.len()
    }

    pub(crate) fn piece_count(&self) -> usize {
        self.sources.len()
    }

    /// The numbers of a leaf's pieces, in C order.
    pub(crate) fn pieces_of(&self, leaf: usize) -> Range<usize> {
        self.first.get(leaf).zip(self.first.get(leaf + 1)).map_or(0..0, |(&first, &end)| first..end)
    }

    /// The source of a piece; `None` if no process has written it.
    pub(crate) fn source_of(&self, piece: usize) -> Option<u32> {
        self.sources.get(piece).copied().filter(|&source| source != UNWRITTEN)
    }
}

const COVER: &str = "shards must cover the array without gaps or overlaps; one process has each shard, or \
    replica 0 is saved";

pub(crate) fn twice(who: &str, region: &Region, name: &str) -> Error {
    Error::invalid(format!("{who} have both written {region} of {name}")).help(COVER)
}

/// The region of a piece in the array, cut at the array's edges.
pub(crate) fn inside(piece: u64, shape: &Shape, piece_shape: &Shape) -> Region {
    let whole = Region::whole(shape);
    let starts = chunk_starts(piece, shape, piece_shape);
    let region = Region::new(starts, piece_shape.dims()).ok().and_then(|region| region.intersect(&whole));
    region.unwrap_or(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(name: &str, shape: &[u64], piece_shape: &[u64]) -> Result<CutLeaf> {
        let (shape, piece_shape) = (Shape::new(shape)?, Shape::new(piece_shape)?);
        Ok(CutLeaf { name: name.to_owned(), shape, piece_shape })
    }

    #[test]
    fn each_piece_has_one_writer() {
        let leaves = [leaf("a", &[5, 4], &[2, 4]), CutLeaf::nothing("none".to_owned()), leaf("b", &[], &[])];
        let mut coverage = Coverage::new(leaves.into_iter()).unwrap();
        assert_eq!(coverage.piece_count(), 4);
        let (one, other) = (coverage.add_source(7), coverage.add_source(3));
        assert_eq!(coverage.take(one, 0, 2).unwrap(), Some(2));
        assert_eq!(coverage.take(other, 2, 0).unwrap(), Some(3));
        assert_eq!(coverage.take(other, 1, 0).unwrap(), None);
        assert_eq!(coverage.take(other, 0, 0).unwrap(), Some(0));
        let error = coverage.take(other, 0, 2).unwrap_err().to_string();
        assert!(error.contains("processes 7 and 3 have both written [4:5,0:4] of a"), "{error}");
        let error = coverage.check_whole().unwrap_err().to_string();
        assert!(error.contains("no process has written [2:4,0:4] of a"), "{error}");
        for (leaf, piece) in [(0, 3), (2, 1), (3, 0), (0, u64::MAX)] {
            let error = coverage.take(one, leaf, piece).unwrap_err().to_string();
            assert!(error.contains("process 7") && error.contains("does not know"), "{error}");
        }
        coverage.take(one, 0, 1).unwrap();
        coverage.check_whole().unwrap();
        assert_eq!(coverage.pieces_of(0), 0..3);
        assert_eq!([0, 1, 2, 3].map(|piece| coverage.source_of(piece).unwrap()), [other, one, one, other]);
    }
}
