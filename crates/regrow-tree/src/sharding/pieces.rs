//! The saved pieces of one array. They fill the array, and each has the number of its source.

use super::boxes::Boxes;
use super::grid::Grid;
use super::tiling::check_tiling;
use crate::array::{Region, Shape};
use crate::error::{Error, Result};

/// The pieces that an array was saved in. They fill it and do not overlap: that was checked where
/// it is not so by nature.
#[derive(Debug, Clone)]
pub struct Pieces(Found);

#[derive(Debug, Clone)]
enum Found {
    Grid(Grid),
    Listed { shape: Shape, boxes: Boxes, ids: Vec<u64> },
}

impl Pieces {
    /// The cells of a grid; the number of a piece is that of its cell in C order. What a region
    /// touches is computed.
    #[inline]
    pub fn grid(grid: Grid) -> Self {
        Self(Found::Grid(grid))
    }

    /// Any regions with the numbers of their sources. O(n log n).
    ///
    /// # Errors
    /// Those of [`check_tiling`]: `InvalidArgument` for a hole, an overlap, or a region beyond the
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

    /// Calls `visit` with number and region of each piece that holds an element of `wanted`. Takes
    /// time for these, and a logarithm of all where they lie in no grid.
    ///
    /// # Errors
    /// `InvalidArgument` if `wanted` reaches beyond the array.
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
