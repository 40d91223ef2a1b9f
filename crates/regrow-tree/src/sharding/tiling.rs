//! Checks that regions fill an array with each element once, and finds their regular grid.
//!
//! The number of regions that hold an element changes only at corners. Each of the 2^k corners of a
//! region gets +1 or -1: along each axis a region adds one at its beginning and subtracts one at
//! its end. The corners of the array get +1 and -1 in the same way. The regions fill the array
//! exactly if the sums are equal at every point:
//!
//! ```text
//! +1───────-1
//!  │   A   │       the corners of A and B that meet cancel, and the corners of the whole are left
//! -1───────+1 +1
//! ```
//!
//! If the sums differ, the first such point in C order is in an overlap or in a gap, because the
//! sums are equal at all points before it. The check takes O(n 2^k log n) for n regions that divide
//! k axes, in any position.

use crate::array::{Region, Shape};
use crate::error::{Error, ErrorKind, Result};

/// Largest number of corners: a million regions on one axis, or 64 Ki on five.
const CORNERS_MAX: usize = 1 << 21;

/// Checks that regions fill an array of `shape` exactly: without gaps and overlaps. Empty regions
/// are ignored.
///
/// # Errors
/// `InvalidArgument` if a region exceeds the array, if two regions overlap (with both and their
/// common part), or if there is a gap (with its region); `Limit` for millions of regions.
pub fn check_tiling<'a>(shape: &Shape, regions: impl IntoIterator<Item = &'a Region>) -> Result<()> {
    let mut held: Vec<&Region> = Vec::new();
    for region in regions {
        if !region.is_inside(shape) {
            return Err(Error::invalid(format!("region {region} is outside an array of shape {shape}")));
        }
        if !region.is_empty() {
            held.push(region);
        }
    }
    if shape.is_empty() {
        return Ok(());
    }
    match first_fault(shape, &held)? {
        None => Ok(()),
        Some(fault) if fault.is_hole => {
            let hole = hole_at(shape, &held, &fault.point);
            Err(Error::invalid(format!("the regions do not cover the array: {hole} of {shape} is missing")))
        }
        Some(fault) => {
            let mut both = held.iter().filter(|region| holds(region, &fault.point));
            let pair = both.next().zip(both.next());
            let shared = pair.and_then(|(a, b)| a.intersect(b).map(|shared| (a, b, shared)));
            Err(Error::invalid(match shared {
                Some((a, b, shared)) => {
                    format!("the regions {a} and {b} overlap: {shared} of {shape} is in both")
                }
                None => format!("the regions overlap at {:?} of {shape}", fault.point),
            }))
        }
    }
}

struct Fault {
    point: Vec<u64>,
    is_hole: bool,
}

/// The first point, in C order, that is not in exactly one region.
fn first_fault(shape: &Shape, regions: &[&Region]) -> Result<Option<Fault>> {
    let whole = Region::whole(shape);
    // An axis that no region cuts needs no corners.
    let is_cut =
        |axis: &usize| regions.iter().any(|region| region.lens().get(*axis) != whole.lens().get(*axis));
    let axes: Vec<usize> = (0..shape.rank()).filter(is_cut).collect();
    let corner_count =
        1_usize.checked_shl(axes.len() as u32).and_then(|each| each.checked_mul(regions.len() + 1));
    if corner_count.is_none_or(|count| count > CORNERS_MAX) {
        let what = format!("{} regions that cut {} axes are too many to compare", regions.len(), axes.len());
        return Err(Error::new(ErrorKind::Limit, what));
    }
    // Replace each bound by its number among the sorted bounds of its axis, so that a corner is a
    // few small numbers.
    let places: Vec<Vec<u64>> = axes
        .iter()
        .map(|&axis| {
            let of = |region: &Region| {
                let (start, len) = (at(region.starts(), axis), at(region.lens(), axis));
                [start, start + len]
            };
            let mut places: Vec<u64> =
                regions.iter().flat_map(|region| of(region)).chain(of(&whole)).collect();
            places.sort_unstable();
            places.dedup();
            places
        })
        .collect();
    // One number encodes a corner, and the numbers have the order of the corners. A number of 128
    // bits is too small only if the regions cut very many axes.
    let radix_fits =
        places.iter().try_fold(1_u128, |all, places| all.checked_mul(places.len() as u128)).is_some();
    if !radix_fits {
        return Err(Error::new(
            ErrorKind::Limit,
            format!("regions that cut {} axes are too many to compare", axes.len()),
        ));
    }
    let mut corners: Vec<(u128, i64)> = Vec::with_capacity(corner_count.unwrap_or(0));
    let mut push = |region: &Region, sign: i64| {
        let first = corners.len();
        corners.push((0, sign));
        for (&axis, places) in axes.iter().zip(&places) {
            let (start, len) = (at(region.starts(), axis), at(region.lens(), axis));
            let rank = |place: u64| places.partition_point(|&known| known < place) as u128;
            let (near, far) = (rank(start), rank(start + len));
            for at in first..corners.len() {
                let Some(corner) = corners.get_mut(at) else { continue };
                let base = corner.0 * places.len() as u128;
                corner.0 = base + near;
                let opposite = (base + far, -corner.1);
                corners.push(opposite);
            }
        }
    };
    regions.iter().for_each(|region| push(region, 1));
    push(&whole, -1);
    corners.sort_unstable_by_key(|corner| corner.0);
    for same in corners.chunk_by(|a, b| a.0 == b.0) {
        let sum: i64 = same.iter().map(|corner| corner.1).sum();
        let Some(&(mut number, _)) = same.first().filter(|_| sum != 0) else { continue };
        let mut point = vec![0; shape.rank()];
        for (&axis, places) in axes.iter().zip(&places).rev() {
            let count = places.len() as u128;
            let place = places.get((number % count) as usize);
            if let (Some(to), Some(&place)) = (point.get_mut(axis), place) {
                *to = place;
            }
            number /= count;
        }
        return Ok(Some(Fault { point, is_hole: sum < 0 }));
    }
    Ok(None)
}

/// The gap around a point that is in no region. On each axis it reaches to the next start or end of
/// a region.
fn hole_at(shape: &Shape, regions: &[&Region], point: &[u64]) -> Region {
    let lens = point.iter().zip(shape.dims()).enumerate().map(|(axis, (&from, &dim))| {
        let ends = regions.iter().flat_map(|region| {
            let start = at(region.starts(), axis);
            [start, start + at(region.lens(), axis)]
        });
        ends.filter(|&end| end > from).fold(dim, u64::min) - from
    });
    Region::from_parts(point.to_vec(), lens.collect())
}

fn holds(region: &Region, point: &[u64]) -> bool {
    region
        .starts()
        .iter()
        .zip(region.lens())
        .zip(point)
        .all(|((&start, &len), &at)| start <= at && at < start + len)
}

fn at(numbers: &[u64], axis: usize) -> u64 {
    numbers.get(axis).copied().unwrap_or(0)
}

/// The chunk shape of the regular grid that the regions lie on. Chunks at the ends of the array are
/// smaller.
///
/// Regions of one shape give this shape, also if the last regions on an axis are smaller: each
/// region is one chunk. Otherwise the result is the coarsest grid in which each region is a whole
/// number of chunks. `None` if this grid has more than `chunks_max` chunks. An axis without
/// elements gives 1. Takes O(n).
pub fn chunk_shape<'a>(
    shape: &Shape,
    regions: impl IntoIterator<Item = &'a Region>,
    chunks_max: u64,
) -> Option<Shape> {
    // Find on each axis the largest step that divides every bound except the end of the array.
    let mut steps = vec![0_u64; shape.rank()];
    let held: Vec<&Region> = regions.into_iter().filter(|region| !region.is_empty()).collect();
    for region in &held {
        if !region.is_inside(shape) {
            return None;
        }
        let axes = region.starts().iter().zip(region.lens()).zip(shape.dims());
        for (((&start, &len), &dim), step) in axes.zip(&mut steps) {
            *step = gcd(*step, start);
            if start + len != dim {
                *step = gcd(*step, start + len);
            }
        }
    }
    // A step of 0 means that nothing cuts the axis, so one chunk covers it.
    let steps = steps.iter().zip(shape.dims());
    let dims: Vec<u64> = steps.map(|(&step, &dim)| if step == 0 { dim } else { step }.max(1)).collect();
    let count = dims
        .iter()
        .zip(shape.dims())
        .try_fold(1_u64, |n, (&step, &dim)| n.checked_mul(dim.div_ceil(step).max(1)))?;
    let is_one_each = held.iter().all(|region| {
        region
            .lens()
            .iter()
            .zip(region.starts())
            .zip(&dims)
            .zip(shape.dims())
            .all(|(((&len, &start), &step), &dim)| len == step.min(dim - start))
    });
    if is_one_each || count <= chunks_max { Shape::new(dims).ok() } else { None }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
