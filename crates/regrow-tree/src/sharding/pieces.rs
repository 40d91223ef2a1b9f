//! The saved pieces of one array. They fill the array, and each has the number of its source.

use super::boxes::Boxes;
use super::grid::Grid;
use super::tiling::check_tiling;
use crate::array::{Region, Shape};
use crate::error::{Error, Result};

/// The regions in which an array was saved. They fill the array and do not overlap.
#[derive(Debug, Clone)]
pub struct Pieces(Found);

#[derive(Debug, Clone)]
enum Found {
    Grid(Grid),
    Listed { shape: Shape, boxes: Boxes, ids: Vec<u64> },
}

impl Pieces {
    /// The cells of a grid. The number of a piece is the index of its cell in C order. The cells in
    /// a region are computed.
    #[inline]
    pub fn grid(grid: Grid) -> Self {
        Self(Found::Grid(grid))
    }

    /// Any list of regions with the numbers of their sources. Takes O(n log n).
    ///
    /// # Errors
    /// Errors of [`check_tiling`]: `InvalidArgument` for a gap, an overlap, or a region beyond the
    /// array.
    pub fn listed(shape: &Shape, pieces: impl IntoIterator<Item = (Region, u64)>) -> Result<Self> {
        let (regions, ids): (Vec<Region>, Vec<u64>) = pieces.into_iter().unzip();
        check_tiling(shape, &regions)?;
        Ok(Self(Found::Listed { shape: shape.clone(), boxes: Boxes::new(regions), ids }))
    }

    /// The shape of the array.
    pub fn shape(&self) -> &Shape {
        match &self.0 {
            Found::Grid(grid) => grid.shape(),
            Found::Listed { shape, .. } => shape,
        }
    }

    /// Calls `visit` with the number and region of each piece that overlaps `wanted`. The time
    /// depends on the number of these pieces, and without a grid also on the logarithm of the
    /// number of all pieces.
    ///
    /// # Errors
    /// `InvalidArgument` if `wanted` exceeds the array.
    pub fn each_touched(&self, wanted: &Region, mut visit: impl FnMut(u64, &Region)) -> Result<()> {
        if !wanted.is_inside(self.shape()) {
            return Err(Error::invalid(format!(
                "region {wanted} is outside an array of shape {}",
                self.shape()
            )));
        }
        match &self.0 {
            Found::Grid(grid) => grid.each_touched(wanted, visit),
            Found::Listed { boxes, ids, .. } => boxes.each_touched(wanted, |at, region| {
                if let Some(&id) = ids.get(at) {
                    visit(id, region);
                }
            }),
        }
        Ok(())
    }
}
