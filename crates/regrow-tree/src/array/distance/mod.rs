//! The distance of two arrays in bits, in values and as an angle.
//!
//! The arrays come piece by piece, in any order and on any number of threads: [`Distance::update`]
//! takes one piece of each array, [`Distance::merge`] joins the results of two parts. Blocks with
//! equal bytes are only counted and squared. In other blocks each pair of elements is compared as
//! float64.
//!
//! | pair of elements | differs | distance |
//! |---|---|---|
//! | the same bits, NaN too | no | 0 |
//! | `0.0` and `-0.0` | in bits | 0 |
//! | two NaNs of different bits | in bits | 0 |
//! | NaN and a number, an infinity and anything else | yes | none: [`incomparable`](Distance::incomparable_count) |
//! | two finite numbers | if their bits differ | `abs(a - b)`, and its ratio to `abs(b)` if `b` is not 0 |
//!
//! Elements of two dtypes cannot be compared by bits. They differ if their values as float64
//! differ.

mod ulp;

use super::{Dtype, DtypeClass, Shape, cast_bytes};
use crate::error::{Error, Result};
use ulp::Steps;

const BLOCK: usize = 512;

/// Number of partial sums, so that the processor adds several at once.
const LANES: usize = 8;

/// How much elements may differ without counting as different.
///
/// If none of the fields is set, the bits must be equal. Otherwise an element is within the
/// tolerance if one of the fields allows it: `abs(a - b) <= atol + rtol * abs(b)`, as in NumPy and
/// PyTorch, or at most `max_ulp` steps in the dtype from one value to the other. NaN is within the
/// tolerance if both are NaN, an infinity if both are equal.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tolerance {
    /// Largest absolute difference.
    pub atol: Option<f64>,
    /// Largest difference relative to the element of the second array.
    pub rtol: Option<f64>,
    /// Largest number of steps in the dtype from one value to the other. Applies if both arrays
    /// have the same dtype.
    pub max_ulp: Option<u64>,
}

impl Tolerance {
    /// Whether the bits must be equal.
    #[inline]
    pub fn is_exact(&self) -> bool {
        *self == Self::default()
    }

    /// Returns an error if a bound is not valid.
    ///
    /// # Errors
    /// `InvalidArgument` for NaN, infinity and negative numbers.
    pub fn check(&self) -> Result<()> {
        for (name, bound) in [("atol", self.atol), ("rtol", self.rtol)] {
            if let Some(bound) = bound.filter(|bound| !bound.is_finite() || *bound < 0.0) {
                return Err(Error::invalid(format!("{name} is not a tolerance"))
                    .expected("a number of at least 0", bound)
                    .help("leave it out to compare bits"));
            }
        }
        Ok(())
    }

    fn allows(&self, distance: f64, magnitude: f64, ulp: Option<u64>) -> bool {
        let is_near = match (self.atol, self.rtol) {
            (None, None) => false,
            (atol, rtol) => distance <= atol.unwrap_or(0.0) + rtol.unwrap_or(0.0) * magnitude,
        };
        is_near || self.max_ulp.zip(ulp).is_some_and(|(max, ulp)| ulp <= max)
    }
}

/// The pair of elements with the largest difference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Worst {
    /// The index of the pair, in C order.
    pub element: u64,
    /// The real and imaginary part in both arrays.
    pub values: [[f64; 2]; 2],
    distance: f64,
}

/// The difference between two arrays, for the elements compared so far.
///
/// ```
/// use regrow_tree::array::{Distance, Dtype, Tolerance};
/// let bytes = |values: [f32; 2]| values.map(f32::to_le_bytes).concat();
/// let mut distance = Distance::new(Dtype::Float32, Dtype::Float32, Tolerance::default());
/// distance.update(0, &bytes([1.0, 2.0]), &bytes([1.0, 2.5]))?;
/// assert_eq!((distance.differing_count(), distance.max_abs()), (1, Some(0.5)));
/// assert_eq!(distance.max_relative(), Some(0.2));
/// # Ok::<(), regrow_base::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Distance {
    dtypes: [Dtype; 2],
    tolerance: Tolerance,
    count: u64,
    differing_count: u64,
    outside_count: u64,
    incomparable_count: u64,
    /// The number of pairs of two finite numbers. Only these have distances.
    finite_count: u64,
    nan_counts: [u64; 2],
    infinity_counts: [u64; 2],
    max_abs: f64,
    max_relative: f64,
    max_ulp: u64,
    worst: Option<Worst>,
    dot: f64,
    squares: [f64; 2],
}

impl Distance {
    /// Starts with no elements.
    pub fn new(a: Dtype, b: Dtype, tolerance: Tolerance) -> Self {
        Self {
            dtypes: [a, b],
            tolerance,
            count: 0,
            differing_count: 0,
            outside_count: 0,
            incomparable_count: 0,
            finite_count: 0,
            nan_counts: [0; 2],
            infinity_counts: [0; 2],
            max_abs: 0.0,
            max_relative: 0.0,
            max_ulp: 0,
            worst: None,
            dot: 0.0,
            squares: [0.0; 2],
        }
    }

    /// Extends the result to the whole arrays, if both arrays repeat. `once` is their shape with
    /// length 1 on the axes that repeat.
    pub fn repeat(&mut self, once: &Shape, whole: &Shape) {
        let times = whole.len_elements() / once.len_elements().max(1);
        let [nan_a, nan_b] = &mut self.nan_counts;
        let [infinity_a, infinity_b] = &mut self.infinity_counts;
        let counts = [
            &mut self.count,
            &mut self.differing_count,
            &mut self.outside_count,
            &mut self.incomparable_count,
            &mut self.finite_count,
            nan_a,
            nan_b,
            infinity_a,
            infinity_b,
        ];
        counts.into_iter().for_each(|count| *count = count.saturating_mul(times));
        self.dot *= times as f64;
        self.squares = self.squares.map(|squares| squares * times as f64);
        if let Some(worst) = &mut self.worst {
            let (mut rest, mut element, mut stride) = (worst.element, 0_u64, 1_u64);
            for (&once, &whole) in once.dims().iter().zip(whole.dims()).rev() {
                element = element.saturating_add((rest % once.max(1)).saturating_mul(stride));
                rest /= once.max(1);
                stride = stride.saturating_mul(whole);
            }
            worst.element = element;
        }
    }

    /// Adds a piece of both arrays, little endian. Its first element has the index `first` in the
    /// array.
    ///
    /// # Errors
    /// `InvalidArgument` if a piece is not a whole number of elements, or if the pieces have
    /// different numbers of elements.
    pub fn update(&mut self, first: u64, a: &[u8], b: &[u8]) -> Result<()> {
        let sizes = self.dtypes.map(Dtype::size_bytes);
        let counts = [a.len() / sizes[0], b.len() / sizes[1]];
        if counts[0] != counts[1] || a.len() != counts[0] * sizes[0] || b.len() != counts[1] * sizes[1] {
            return Err(Error::invalid("two pieces have different numbers of elements")
                .expected(format_args!("{} of {}", counts[0], self.dtypes[0]), counts[1]));
        }
        let is_complex = self.dtypes.map(Dtype::class).contains(&DtypeClass::Complex);
        let blocks = a.chunks(BLOCK * sizes[0]).zip(b.chunks(BLOCK * sizes[1]));
        for (number, (a, b)) in blocks.enumerate() {
            let first = first + (number * BLOCK) as u64;
            match is_complex {
                true => self.add_block::<2>(first, a, b)?,
                false => self.add_block::<1>(first, a, b)?,
            }
        }
        Ok(())
    }

    /// Adds the result for another part of the same arrays.
    ///
    /// # Errors
    /// `InvalidArgument` if the dtypes or the tolerance differ.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        if self.dtypes != other.dtypes || self.tolerance != other.tolerance {
            return Err(Error::invalid("distances of different arrays cannot be put together"));
        }
        self.count += other.count;
        self.differing_count += other.differing_count;
        self.outside_count += other.outside_count;
        self.incomparable_count += other.incomparable_count;
        self.finite_count += other.finite_count;
        for side in 0..2 {
            self.nan_counts[side] += other.nan_counts[side];
            self.infinity_counts[side] += other.infinity_counts[side];
            self.squares[side] += other.squares[side];
        }
        self.max_abs = self.max_abs.max(other.max_abs);
        self.max_relative = self.max_relative.max(other.max_relative);
        self.max_ulp = self.max_ulp.max(other.max_ulp);
        self.dot += other.dot;
        if let Some(worst) = other.worst {
            self.consider(worst);
        }
        Ok(())
    }

    /// Number of pairs compared so far.
    #[inline]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Number of pairs with different bits. For two dtypes, number of pairs with different values.
    #[inline]
    pub fn differing_count(&self) -> u64 {
        self.differing_count
    }

    /// Number of pairs that differ by more than the tolerance.
    #[inline]
    pub fn outside_count(&self) -> u64 {
        self.outside_count
    }

    /// Number of pairs without a distance: only one is NaN, or one is infinite and the other has
    /// another value.
    #[inline]
    pub fn incomparable_count(&self) -> u64 {
        self.incomparable_count
    }

    /// Number of NaN elements in each array. A complex element counts if a part is NaN.
    #[inline]
    pub fn nan_counts(&self) -> [u64; 2] {
        self.nan_counts
    }

    /// Number of infinite elements in each array. A complex element counts if a part is infinite
    /// and no part is NaN.
    #[inline]
    pub fn infinity_counts(&self) -> [u64; 2] {
        self.infinity_counts
    }

    /// The largest `abs(a - b)` of two finite elements; `None` if there are no such pairs. Integers
    /// are subtracted exactly.
    #[inline]
    pub fn max_abs(&self) -> Option<f64> {
        (self.finite_count > 0).then_some(self.max_abs)
    }

    /// The largest `abs(a - b) / abs(b)` of two finite elements with `b` not 0; `None` as for
    /// [`max_abs`](Self::max_abs).
    #[inline]
    pub fn max_relative(&self) -> Option<f64> {
        (self.finite_count > 0).then_some(self.max_relative)
    }

    /// The largest number of steps in the dtype from one finite element to the other; `None` also
    /// for two dtypes.
    #[inline]
    pub fn max_ulp(&self) -> Option<u64> {
        (self.finite_count > 0 && self.is_of_one_dtype()).then_some(self.max_ulp)
    }

    /// The cosine of the angle between the arrays as vectors, over pairs of finite elements; `None`
    /// if a vector is zero, or its length exceeds a float64.
    pub fn cosine(&self) -> Option<f64> {
        let lengths = self.squares[0].sqrt() * self.squares[1].sqrt();
        let cosine = self.dot / lengths;
        (lengths > 0.0 && lengths.is_finite() && cosine.is_finite()).then(|| cosine.clamp(-1.0, 1.0))
    }

    /// The pair with the largest difference. A pair without a distance comes first. If several are
    /// equal, the first of them.
    #[inline]
    pub fn worst(&self) -> Option<Worst> {
        self.worst
    }

    fn is_of_one_dtype(&self) -> bool {
        self.dtypes[0] == self.dtypes[1]
    }

    fn add_block<const P: usize>(&mut self, first: u64, a: &[u8], b: &[u8]) -> Result<()> {
        let mut memory = [[0; BLOCK * 16]; 2];
        let [of_a, of_b] = &mut memory;
        let of_a = values::<P>(a, self.dtypes[0], of_a)?;
        if self.is_of_one_dtype() && a == b {
            self.add_same(of_a);
            return Ok(());
        }
        let of_b = values::<P>(b, self.dtypes[1], of_b)?;
        let mut steps = [Steps::default(); BLOCK];
        if self.is_of_one_dtype() {
            ulp::compare(self.dtypes[0], a, b, &mut steps);
        }
        for ((place, (&a, &b)), steps) in of_a.iter().zip(of_b).enumerate().zip(&steps) {
            self.add_pair(first + place as u64, a.map(f64::from_le_bytes), b.map(f64::from_le_bytes), *steps);
        }
        self.count += of_a.len() as u64;
        Ok(())
    }

    /// Adds a block that is equal in both arrays.
    fn add_same<const P: usize>(&mut self, values: &[[[u8; 8]; P]]) {
        let mut sums = [0.0; LANES];
        let (mut nan_count, mut finite_count) = (0, 0);
        for values in values.chunks(LANES) {
            for (sum, value) in sums.iter_mut().zip(values) {
                let value = value.map(f64::from_le_bytes);
                let is_finite = value.iter().all(|part| part.is_finite());
                nan_count += u64::from(value.iter().any(|part| part.is_nan()));
                finite_count += u64::from(is_finite);
                *sum += if is_finite { value.iter().map(|part| part * part).sum() } else { 0.0 };
            }
        }
        let count = values.len() as u64;
        let sum: f64 = sums.iter().sum();
        self.count += count;
        self.finite_count += finite_count;
        self.dot += sum;
        for side in 0..2 {
            self.nan_counts[side] += nan_count;
            self.infinity_counts[side] += count - nan_count - finite_count;
            self.squares[side] += sum;
        }
    }

    fn add_pair<const P: usize>(&mut self, element: u64, a: [f64; P], b: [f64; P], steps: Steps) {
        let is_nan = [a, b].map(|value| value.iter().any(|part| part.is_nan()));
        let is_finite = [a, b].map(|value| value.iter().all(|part| part.is_finite()));
        for side in 0..2 {
            self.nan_counts[side] += u64::from(is_nan[side]);
            self.infinity_counts[side] += u64::from(!is_nan[side] && !is_finite[side]);
        }
        let is_of_one_dtype = self.is_of_one_dtype();
        let (distance, is_allowed) = if is_finite == [true; 2] {
            let distance = match self.dtypes[0] {
                // Beyond 2^53, float64 cannot hold every integer, so the exact steps count.
                Dtype::Int64 | Dtype::UInt64 if is_of_one_dtype => steps.ulp as f64,
                _ => magnitude::<P>(std::array::from_fn(|part| a[part] - b[part])),
            };
            let of_b = magnitude(b);
            self.finite_count += 1;
            self.max_abs = self.max_abs.max(distance);
            if of_b > 0.0 {
                self.max_relative = self.max_relative.max(distance / of_b);
            }
            self.max_ulp = self.max_ulp.max(steps.ulp);
            for part in 0..P {
                self.dot += a[part] * b[part];
                self.squares[0] += a[part] * a[part];
                self.squares[1] += b[part] * b[part];
            }
            let ulp = is_of_one_dtype.then_some(steps.ulp);
            (distance, self.tolerance.allows(distance, of_b, ulp))
        } else {
            let is_same = is_nan == [true; 2] || is_nan == [false; 2] && a == b;
            self.incomparable_count += u64::from(!is_same);
            (if is_same { 0.0 } else { f64::INFINITY }, is_same)
        };
        let differs = if is_of_one_dtype { steps.differs } else { a != b && is_nan != [true; 2] };
        if differs {
            self.differing_count += 1;
            self.outside_count += u64::from(self.tolerance.is_exact() || !is_allowed);
            let both = |value: [f64; P]| [value[0], if P == 2 { value[P - 1] } else { 0.0 }];
            self.consider(Worst { element, values: [both(a), both(b)], distance });
        }
    }

    fn consider(&mut self, worst: Worst) {
        let is_worse = self.worst.is_none_or(|known| {
            worst.distance > known.distance
                || worst.distance == known.distance && worst.element < known.element
        });
        if is_worse {
            self.worst = Some(worst);
        }
    }
}

/// The elements as one or two float64 each.
fn values<'m, const P: usize>(
    bytes: &[u8],
    dtype: Dtype,
    memory: &'m mut [u8; BLOCK * 16],
) -> Result<&'m [[[u8; 8]; P]]> {
    let wide = if P == 2 { Dtype::Complex128 } else { Dtype::Float64 };
    let memory = memory.get_mut(..bytes.len() / dtype.size_bytes() * 8 * P).unwrap_or_default();
    cast_bytes(bytes, dtype, wide, memory)?;
    Ok(memory.as_chunks::<8>().0.as_chunks::<P>().0)
}

fn magnitude<const P: usize>(value: [f64; P]) -> f64 {
    if P == 2 { value[0].hypot(value[P - 1]) } else { value[0].abs() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(tolerance: Tolerance, a: &[f64], b: &[f64]) -> Distance {
        let bytes = |values: &[f64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        let mut distance = Distance::new(Dtype::Float64, Dtype::Float64, tolerance);
        distance.update(0, &bytes(a), &bytes(b)).unwrap();
        distance
    }

    #[test]
    fn what_is_no_number_is_counted_and_has_no_distance() {
        let nan = f64::from_bits(f64::NAN.to_bits() ^ 1);
        let a = [f64::NAN, f64::NAN, f64::NAN, f64::INFINITY, f64::INFINITY, 0.0, 3.0];
        let b = [f64::NAN, nan, 1.0, f64::INFINITY, f64::NEG_INFINITY, -0.0, 4.0];
        let distance = of(Tolerance::default(), &a, &b);
        assert_eq!((distance.count(), distance.differing_count(), distance.outside_count()), (7, 5, 5));
        assert_eq!(distance.incomparable_count(), 2);
        assert_eq!((distance.nan_counts(), distance.infinity_counts()), ([3, 2], [2, 2]));
        assert_eq!((distance.max_abs(), distance.max_relative()), (Some(1.0), Some(0.25)));
        assert_eq!(distance.worst().unwrap().element, 2);
        let near = of(Tolerance { atol: Some(1.0), ..Tolerance::default() }, &a, &b);
        assert_eq!((near.differing_count(), near.outside_count()), (5, 2));
    }

    #[test]
    fn each_tolerance_allows_by_itself() {
        let (a, b) = ([100.0, 1e-9, 1.0_f64.next_up()], [101.0, 0.0, 1.0]);
        let outside = |atol, rtol, max_ulp| of(Tolerance { atol, rtol, max_ulp }, &a, &b).outside_count();
        assert_eq!(outside(None, None, None), 3);
        assert_eq!(outside(Some(0.0), None, None), 3);
        assert_eq!(outside(None, Some(0.01), None), 1);
        assert_eq!(outside(Some(1e-9), None, None), 1);
        assert_eq!(outside(Some(1e-9), Some(0.01), None), 0);
        assert_eq!(outside(None, None, Some(1)), 2);
        assert_eq!(outside(Some(1e-9), None, Some(0)), 1);
        assert!(Tolerance { rtol: Some(-1.0), ..Tolerance::default() }.check().is_err());
        assert!(Tolerance { atol: Some(f64::NAN), ..Tolerance::default() }.check().is_err());
    }

    #[test]
    fn long_integers_are_subtracted_exactly() {
        let mut distance = Distance::new(Dtype::Int64, Dtype::Int64, Tolerance::default());
        let (a, b) = ((1_i64 << 60) + 1, 1_i64 << 60);
        distance.update(0, &a.to_le_bytes(), &b.to_le_bytes()).unwrap();
        assert_eq!((distance.max_abs(), distance.max_ulp()), (Some(1.0), Some(1)));
    }

    #[test]
    fn two_dtypes_are_compared_by_value() {
        let mut distance = Distance::new(Dtype::Int8, Dtype::Complex64, Tolerance::default());
        let complex = [1.0_f32, 0.0, 2.0, 1.0].map(f32::to_le_bytes).concat();
        distance.update(0, &[1, 2], &complex).unwrap();
        assert_eq!(
            (distance.differing_count(), distance.max_abs(), distance.max_ulp()),
            (1, Some(1.0), None)
        );
        assert!(distance.update(0, &[1], &complex).is_err());
        assert!(distance.merge(&Distance::new(Dtype::Int8, Dtype::Int8, Tolerance::default())).is_err());
    }

    #[test]
    fn what_repeats_counts_as_often_as_it_is_there() {
        // The shape is 2 by 3 by 2, and the middle axis repeats.
        let (a, b) = ([1_i8, 2, 3, 4], [1_i8, 2, 3, 9]);
        let full = |of: [i8; 4]| -> Vec<u8> {
            of.chunks(2).flat_map(|row| row.repeat(3)).map(|value| value as u8).collect()
        };
        let of = |a: &[u8], b: &[u8]| {
            let mut distance = Distance::new(Dtype::Int8, Dtype::Int8, Tolerance::default());
            distance.update(0, a, b).unwrap();
            distance
        };
        let mut repeated = of(&a.map(|value| value as u8), &b.map(|value| value as u8));
        repeated.repeat(&Shape::new([2, 1, 2]).unwrap(), &Shape::new([2, 3, 2]).unwrap());
        assert_eq!(repeated, of(&full(a), &full(b)));
    }

    #[test]
    fn lengths_that_no_float_holds_have_no_angle() {
        assert_eq!(of(Tolerance::default(), &[0.0], &[1.0]).cosine(), None);
        assert_eq!(of(Tolerance::default(), &[1e200], &[1e200]).cosine(), None);
        assert_eq!(of(Tolerance::default(), &[1e200], &[1.0]).cosine(), None);
        assert_eq!(of(Tolerance::default(), &[1.0, 0.0], &[0.0, 1.0]).cosine(), Some(0.0));
        assert_eq!(of(Tolerance::default(), &[], &[]).max_abs(), None);
    }

    proptest! {
        #[test]
        fn pieces_in_any_order_give_what_the_whole_gives(
            mut pairs in proptest::collection::vec((0_i8..4, 0_i8..4), 0..1500),
            same_from in 0_usize..1500,
            cut in 0_usize..1500,
        ) {
            // Long equal sections use other code.
            pairs.iter_mut().skip(same_from).for_each(|pair| pair.1 = pair.0);
            let cut = cut.min(pairs.len());
            let (a, b): (Vec<u8>, Vec<u8>) = pairs.iter().map(|pair| (pair.0 as u8, pair.1 as u8)).unzip();
            let part = |from: usize, to: usize| {
                let mut distance = Distance::new(Dtype::Int8, Dtype::Int8, Tolerance { atol: Some(1.0), ..Tolerance::default() });
                distance.update(from as u64, &a[from..to], &b[from..to]).unwrap();
                distance
            };
            let (mut late, early, whole) = (part(cut, a.len()), part(0, cut), part(0, a.len()));
            late.merge(&early).unwrap();
            prop_assert_eq!(&late, &whole);
            let far = pairs.iter().filter(|(a, b)| a.abs_diff(*b) > 1).count() as u64;
            prop_assert_eq!(whole.outside_count(), far);
        }
    }
}
