//! Parses `kernel[0:4,-1,...]`: the name of a leaf, followed by NumPy's basic slicing.
//!
//! ```text
//! LEAF            the whole leaf
//! LEAF[i]         one index; removes the axis; a negative index counts from the end
//! LEAF[a:b]       from a to b, without b; either may be missing or negative; bounds are clamped
//! LEAF[..., i]    the dots stand for all axes that are not given
//! ```
//! Steps other than 1 are errors, because a region on disk is a hyper-rectangle.

use regrow::Error;
use regrow::array::{Region, Shape};
use regrow_base::text::counted;

/// The selected part of an array whose shape is not known yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice(Vec<Axis>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Axis {
    Index(i64),
    Range(Option<i64>, Option<i64>),
    Dots,
}

/// A region, and the shape of the result without the indexed axes.
#[derive(Debug, PartialEq, Eq)]
pub struct Selection {
    pub region: Region,
    pub shape: Shape,
}

/// Splits `kernel[0:4]` into the name and the text within the brackets.
pub fn split(leaf: &str) -> Option<(&str, &str)> {
    let (name, slice) = leaf.strip_suffix(']')?.rsplit_once('[')?;
    Some((name, slice))
}

impl Slice {
    pub fn parse(text: &str) -> Result<Self, Error> {
        let axes: Vec<Axis> =
            text.split(',').map(|axis| parse_axis(axis.trim())).collect::<Result<_, _>>()?;
        if axes.iter().filter(|axis| **axis == Axis::Dots).count() > 1 {
            return Err(bad(format!("[{text}] has two ellipses")));
        }
        Ok(Self(axes))
    }

    /// The region that the slice selects in an array of `shape`.
    ///
    /// # Errors
    /// `InvalidArgument` for too many axes, or an index outside the shape.
    pub fn select(&self, shape: &Shape) -> Result<Selection, Error> {
        let (mut starts, mut lens, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        for (axis, &dim) in self.for_rank(shape)?.into_iter().zip(shape.dims()) {
            let (start, len) = match axis {
                Axis::Index(index) => {
                    let start = from_end(index, dim).filter(|start| *start < dim).ok_or_else(|| {
                        bad(format!(
                            "index {index} is outside an axis of {}, of shape {shape}",
                            counted(dim, "element", "elements")
                        ))
                    })?;
                    (start, 1)
                }
                Axis::Range(start, end) => {
                    let clamp = |at: i64| from_end(at, dim).unwrap_or(0).min(dim);
                    let start = start.map_or(0, clamp);
                    (start, end.map_or(dim, clamp).saturating_sub(start))
                }
                Axis::Dots => (0, dim),
            };
            starts.push(start);
            lens.push(len);
            if !matches!(axis, Axis::Index(_)) {
                kept.push(len);
            }
        }
        Ok(Selection { region: Region::new(starts, lens)?, shape: Shape::new(kept)? })
    }

    /// One entry for each axis of the shape. Dots, written or implied at the end, stand for the
    /// missing axes.
    fn for_rank(&self, shape: &Shape) -> Result<Vec<Axis>, Error> {
        let dots = self.0.iter().position(|axis| *axis == Axis::Dots);
        let named = self.0.len() - usize::from(dots.is_some());
        let missing = shape.rank().checked_sub(named).ok_or_else(|| {
            bad(format!(
                "the slice has {}, and the leaf {}: its shape is {shape}",
                counted(named, "axis", "axes"),
                shape.rank()
            ))
        })?;
        let mut axes = self.0.clone();
        let at = dots.unwrap_or(axes.len());
        axes.splice(at..at + usize::from(dots.is_some()), std::iter::repeat_n(Axis::Dots, missing));
        Ok(axes)
    }
}

fn parse_axis(text: &str) -> Result<Axis, Error> {
    let number = |text: &str| -> Result<i64, Error> {
        text.trim().parse().map_err(|_| bad(format!("{:?} in the slice is not an integer", text.trim())))
    };
    let optional = |text: &str| if text.trim().is_empty() { Ok(None) } else { number(text).map(Some) };
    let mut parts = text.split(':');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("..."), None, ..) => Ok(Axis::Dots),
        (Some(index), None, ..) => Ok(Axis::Index(number(index)?)),
        (Some(start), Some(end), None, _) => Ok(Axis::Range(optional(start)?, optional(end)?)),
        (Some(start), Some(end), Some("" | "1"), None) => Ok(Axis::Range(optional(start)?, optional(end)?)),
        _ => Err(bad(format!("{text:?} in the slice has a step other than 1"))),
    }
}

/// `at` as an index from the start; a negative `at` counts from the end. `None` if it is before the
/// start.
fn from_end(at: i64, dim: u64) -> Option<u64> {
    if at < 0 { dim.checked_sub(at.unsigned_abs()) } else { Some(at.unsigned_abs()) }
}

fn bad(what: String) -> Error {
    Error::invalid(what).help("slice as in NumPy: kernel[0:4,-1] or kernel[...,0], without steps")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The starts, the lengths and the remaining shape, or the text of the error.
    fn select(text: &str, shape: &[u64]) -> Result<[Vec<u64>; 3], String> {
        let shape = Shape::new(shape).unwrap();
        let Selection { region, shape } =
            Slice::parse(text).and_then(|slice| slice.select(&shape)).map_err(|e| e.what().to_owned())?;
        Ok([region.starts().to_vec(), region.lens().to_vec(), shape.dims().to_vec()])
    }

    #[test]
    fn slices_as_numpy_does() {
        assert_eq!(select("0:4,:", &[8, 3]), Ok([vec![0, 0], vec![4, 3], vec![4, 3]]));
        assert_eq!(select("-1", &[8, 3]), Ok([vec![7, 0], vec![1, 3], vec![3]]));
        assert_eq!(select("..., 2", &[8, 3]), Ok([vec![0, 2], vec![8, 1], vec![8]]));
        assert_eq!(select("1,...,2", &[4, 5, 6]), Ok([vec![1, 0, 2], vec![1, 5, 1], vec![5]]));
        assert_eq!(select("...", &[]), Ok([vec![], vec![], vec![]]));
        assert_eq!(select("-3:-1", &[8]), Ok([vec![5], vec![2], vec![2]]));
        assert_eq!(select("-99:99", &[8]), Ok([vec![0], vec![8], vec![8]]));
        assert_eq!(select("5:2", &[8]), Ok([vec![5], vec![0], vec![0]]));
        assert_eq!(select("2::1", &[8]), Ok([vec![2], vec![6], vec![6]]));
        assert_eq!(select("9:", &[0]), Ok([vec![0], vec![0], vec![0]]));
    }

    #[test]
    fn refuses_what_it_cannot_mean() {
        for (text, shape) in [
            ("8", &[8][..]),
            ("-9", &[8]),
            ("0,0", &[8]),
            ("0:4:2", &[8]),
            ("a", &[8]),
            ("", &[8]),
            ("...,...", &[8]),
            ("99999999999999999999", &[8]),
            ("0", &[]),
            ("-9223372036854775808", &[8]),
            ("0:1:1:1", &[8]),
        ] {
            assert!(select(text, shape).is_err(), "{text:?}");
        }
    }

    #[test]
    fn splits_at_the_last_bracket() {
        assert_eq!(split("a/b[0:4,:]"), Some(("a/b", "0:4,:")));
        assert_eq!(split("a[0]/b"), None);
        assert_eq!(split("a[0][1]"), Some(("a[0]", "1")));
        assert_eq!(split("a]"), None);
    }
}
