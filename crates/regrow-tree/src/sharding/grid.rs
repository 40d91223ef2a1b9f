//! An array divided along its axes. The cells are regions, numbered in C order.

use super::cuts::Cuts;
use crate::array::{Region, Shape};
use crate::error::{Error, Result};

/// An array divided along its axes. The cells fill the array and do not overlap. Some may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    shape: Shape,
    axes: Vec<Cuts>,
}

impl Grid {
    /// The grid of chunks of one shape, as in zarr. The chunks at the ends are smaller.
    ///
    /// # Errors
    /// `InvalidArgument` if the ranks differ or a chunk has no elements.
    pub fn of_chunks(shape: &Shape, chunk: &Shape) -> Result<Self> {
        if chunk.rank() != shape.rank() || chunk.is_empty() {
            return Err(Error::invalid(format!("chunks of {chunk} do not fit an array of {shape}")));
        }
        let axes = shape.dims().iter().zip(chunk.dims()).map(|(&len, &step)| Cuts::by_step(len, step));
        Ok(Self { shape: shape.clone(), axes: axes.collect() })
    }

    /// A grid with one division for each axis. The caller has checked that the divisions match
    /// `shape`.
    pub(super) fn of_cuts(shape: Shape, axes: Vec<Cuts>) -> Self {
        Self { shape, axes }
    }

    /// The shape of the array.
    #[inline]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The number of parts of each axis.
    #[inline]
    pub fn counts(&self) -> Vec<u64> {
        self.axes.iter().map(Cuts::count).collect()
    }

    /// The longest part of each axis. In a regular grid, this is the shape of the first cell.
    pub fn cell_shape(&self) -> Shape {
        let dims: Vec<u64> = self.axes.iter().map(Cuts::longest).collect();
        // No dimension is longer than the array's, and the array's shape was checked.
        Shape::new(dims).unwrap_or_default()
    }

    /// The cell at an index of the grid, one number for each axis.
    pub(super) fn cell(&self, index: impl IntoIterator<Item = u64>) -> Region {
        let (starts, lens) = self.axes.iter().zip(index).map(|(cuts, at)| cuts.part(at)).unzip();
        Region::from_parts(starts, lens)
    }

    /// Calls `visit` with the number and region of each cell that overlaps `region`, in C order.
    /// The time depends only on the number of these cells.
    pub fn each_touched(&self, region: &Region, mut visit: impl FnMut(u64, &Region)) {
        if region.is_empty() || !region.is_inside(&self.shape) {
            return;
        }
        let ranges: Vec<_> = self
            .axes
            .iter()
            .zip(region.starts().iter().zip(region.lens()))
            .map(|(cuts, (&start, &len))| cuts.touched(start, len))
            .collect();
        let mut index: Vec<u64> = ranges.iter().map(|range| range.start).collect();
        loop {
            let cell = self.cell(index.iter().copied());
            if !cell.is_empty() {
                let number = self.axes.iter().zip(&index).fold(0_u64, |number, (cuts, &at)| {
                    number.saturating_mul(cuts.count()).saturating_add(at)
                });
                visit(number, &cell);
            }
            // Count up like an odometer, the last axis first.
            let mut axis = index.len();
            loop {
                let Some(next) = axis.checked_sub(1) else { return };
                axis = next;
                let (Some(at), Some(range)) = (index.get_mut(axis), ranges.get(axis)) else { return };
                *at += 1;
                if *at < range.end {
                    break;
                }
                *at = range.start;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visits_what_a_region_touches_and_nothing_else() {
        let shape = Shape::new([10, 7]).unwrap();
        let grid = Grid::of_chunks(&shape, &Shape::new([4, 3]).unwrap()).unwrap();
        assert_eq!(grid.counts(), [3, 3]);
        let mut seen = Vec::new();
        grid.each_touched(&Region::new([3, 5], [6, 2]).unwrap(), |number, cell| {
            seen.push((number, cell.to_string()))
        });
        let expected = [
            (1, "[0:4,3:6]"),
            (2, "[0:4,6:7]"),
            (4, "[4:8,3:6]"),
            (5, "[4:8,6:7]"),
            (7, "[8:10,3:6]"),
            (8, "[8:10,6:7]"),
        ];
        assert_eq!(seen, expected.map(|(number, cell)| (number, cell.to_owned())));
        grid.each_touched(&Region::new([3, 5], [0, 2]).unwrap(), |_, _| panic!("nothing is touched"));
        let mut count = 0;
        Grid::of_chunks(&Shape::scalar(), &Shape::scalar())
            .unwrap()
            .each_touched(&Region::whole(&Shape::scalar()), |_, _| count += 1);
        assert_eq!(count, 1);
    }
}
