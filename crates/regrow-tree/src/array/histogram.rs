//! The distribution of the numbers of an array: counts in at most 32 bins of one width.
//!
//! The range need not be known. Bin `i` is `[i * w, (i + 1) * w)`, and its width `w` is a power of
//! two: the smallest one for which all numbers so far lie in 32 bins. When the range grows, two
//! neighbours become one:
//!
//! ```text
//! w = 1      | -1 | 0 | 1 | 2 | ..      numbers in [-1, 3)
//! w = 2      |   -1   |   0   |   1 |   the same bins, after the number 60
//! ```
//! Every edge of a wide bin is also an edge of a narrow bin. So counts stay exact, and do not
//! depend on the order of the numbers or on their division into parts. For integers and bools no
//! bin is narrower than 1: if the range contains at most 32 integers, each integer has its own bin.

pub(super) const BINS_MAX: usize = 32;

/// The smallest exponent of two for which both the power and its inverse are normal numbers.
const EXPONENT_MIN: i32 = -1022;

/// Counts of finite numbers in bins of one width.
///
/// ```
/// use regrow_tree::array::{Dtype, Stats};
/// let mut stats = Stats::with_histogram(Dtype::Int8);
/// stats.update(&[1, 1, 3])?;
/// let histogram = stats.histogram().ok_or(regrow_base::Error::invalid("integers have one"))?;
/// assert_eq!(histogram.edges(), [1.0, 2.0, 3.0, 4.0]);
/// assert_eq!(histogram.counts(), [2, 0, 1]);
/// # Ok::<(), regrow_base::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// No bin is narrower than two to this power.
    exponent_min: i32,
    /// Bins are as wide as two to this power.
    exponent: i32,
    first: i64,
    /// The counts, from the bin of the smallest number to the bin of the largest.
    counts: Vec<u64>,
    min: f64,
    max: f64,
}

impl Histogram {
    pub(super) fn repeat(&mut self, times: u64) {
        self.counts.iter_mut().for_each(|count| *count = count.saturating_mul(times));
    }

    /// Starts without numbers. Bins for integers are not narrower than 1.
    pub(super) fn new(is_of_integers: bool) -> Self {
        Self {
            exponent_min: if is_of_integers { 0 } else { EXPONENT_MIN },
            exponent: 0,
            first: 0,
            counts: Vec::new(),
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
        }
    }

    /// Adds finite numbers from `min` to `max`. Skips values that are not finite.
    pub(super) fn update(&mut self, values: impl Iterator<Item = f64>, min: f64, max: f64) {
        if min > max {
            return;
        }
        self.cover(min, max);
        let inverse = power_of_two(-self.exponent);
        for value in values.filter(|value| value.is_finite()) {
            let at = bin(value, inverse) - self.first;
            if let Some(count) = self.counts.get_mut(at as usize) {
                *count += 1;
            }
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        if other.counts.is_empty() {
            return;
        }
        self.cover(other.min, other.max);
        let shift = shift(self.exponent - other.exponent);
        for (number, &more) in (other.first..).zip(&other.counts) {
            let at = (number >> shift) - self.first;
            if let Some(count) = self.counts.get_mut(at as usize) {
                *count += more;
            }
        }
    }

    /// The edges of the bins: one more than there are bins, or none if there are no bins. An edge
    /// that exceeds a float64 is the largest float64.
    pub fn edges(&self) -> Vec<f64> {
        let width = power_of_two(self.exponent);
        let count = if self.counts.is_empty() { 0 } else { self.counts.len() as i64 + 1 };
        let edges = (self.first..self.first + count).map(|number| number as f64 * width);
        edges.map(|edge| edge.clamp(f64::MIN, f64::MAX)).collect()
    }

    /// The number of values in each bin. The first and the last are not 0.
    #[inline]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Extends the histogram to numbers from `min` to `max`: makes bins wider, or adds bins.
    fn cover(&mut self, min: f64, max: f64) {
        if self.min <= min && max <= self.max {
            return;
        }
        let is_first = self.counts.is_empty();
        self.min = self.min.min(min);
        self.max = self.max.max(max);
        let exponent = self.exponent_for(self.min, self.max);
        let inverse = power_of_two(-exponent);
        let (first, last) = (bin(self.min, inverse), bin(self.max, inverse));
        let mut counts = vec![0; (last - first) as usize + 1];
        if !is_first {
            let shift = shift(exponent - self.exponent);
            for (number, count) in (self.first..).zip(&self.counts) {
                if let Some(slot) = counts.get_mut(((number >> shift) - first) as usize) {
                    *slot += count;
                }
            }
        }
        (self.exponent, self.first, self.counts) = (exponent, first, counts);
    }

    /// The exponent of the narrowest width such that 32 bins cover this range.
    fn exponent_for(&self, min: f64, max: f64) -> i32 {
        // If bins were narrower than the step between float64 numbers, most bins would stay empty.
        let narrowest = (exponent(min.abs().max(max.abs())) - 52).max(self.exponent_min);
        let fits = |exponent: i32| {
            let inverse = power_of_two(-exponent);
            bin(max, inverse) - bin(min, inverse) < BINS_MAX as i64
        };
        // Halve first: the range itself may overflow a float64.
        let guess = exponent(max / 2.0 - min / 2.0) - BINS_MAX.ilog2() as i32;
        let mut exponent = narrowest.max(guess - 1);
        while !fits(exponent) {
            exponent += 1;
        }
        exponent
    }
}

/// The index of the bin for a finite value. `inverse` is the inverse of the bins' width.
fn bin(value: f64, inverse: f64) -> i64 {
    let scaled = value * inverse;
    // A negative value whose product underflows to zero still belongs to the bin below zero.
    if scaled == 0.0 && value < 0.0 { -1 } else { scaled.floor() as i64 }
}

/// The number of bits by which a bin's index is shifted if the exponent of the width grows by
/// `exponents`.
fn shift(exponents: i32) -> u32 {
    exponents.clamp(0, 63) as u32
}

/// The exponent of a finite number: 0 for 1.0 and 1.5, -1023 for 0 and subnormal numbers.
fn exponent(value: f64) -> i32 {
    ((value.to_bits() >> 52) & 0x7ff) as i32 - 1023
}

/// Two to a power from -1022 to 1023.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[f64], is_of_integers: bool) -> Histogram {
        let mut histogram = Histogram::new(is_of_integers);
        add(&mut histogram, values);
        histogram
    }

    fn add(histogram: &mut Histogram, values: &[f64]) {
        let finite = || values.iter().copied().filter(|value| value.is_finite());
        let (min, max) = (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
        histogram.update(values.iter().copied(), min, max);
    }

    #[test]
    fn few_integers_have_a_bin_each() {
        let histogram = of(&[3.0, -1.0, 3.0, 0.0], true);
        assert_eq!(histogram.edges(), [-1.0, 0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(histogram.counts(), [1, 1, 0, 0, 2]);
        let all = of(&(-128..128).map(f64::from).collect::<Vec<_>>(), true);
        assert_eq!(all.counts(), [8; 32]);
        assert_eq!(all.edges()[0], -128.0);
        assert_eq!(of(&[7.0; 5], true).edges(), [7.0, 8.0]);
    }

    #[test]
    fn extremes_have_a_bin() {
        let tiny = f64::from_bits(1);
        for values in [
            vec![f64::MAX, f64::MIN, 0.0, -tiny],
            vec![-tiny, tiny, 0.0, -0.0],
            vec![1e300, 1e300 * (1.0 + f64::EPSILON)],
            vec![f64::MIN],
            vec![-tiny, f64::MAX],
            vec![i64::MAX as f64, i64::MIN as f64],
        ] {
            for is_of_integers in [false, true] {
                let histogram = of(&values, is_of_integers);
                assert_eq!(histogram.counts().iter().sum::<u64>(), values.len() as u64, "{values:?}");
                assert!(histogram.edges().iter().all(|edge| edge.is_finite()), "{values:?}");
            }
        }
        let histogram = of(&[-tiny, 0.0, f64::MAX], false);
        assert_eq!(histogram.counts()[0], 1, "below zero is not zero");
        assert_eq!(of(&[f64::NAN, f64::INFINITY], false).edges(), [0.0; 0]);
    }

    proptest! {
        #[test]
        fn counts_are_those_of_the_edges_however_the_numbers_come(
            values in proptest::collection::vec(prop_oneof![
                -1.0_f64..1.0, proptest::num::f64::ANY, (-40_i32..40).prop_map(f64::from),
            ], 1..300),
            cut in 0_usize..300,
            is_of_integers: bool,
        ) {
            let cut = cut.min(values.len());
            let whole = of(&values, is_of_integers);
            let mut one_by_one = Histogram::new(is_of_integers);
            values.iter().rev().for_each(|value| add(&mut one_by_one, &[*value]));
            prop_assert_eq!(&one_by_one, &whole);
            let mut merged = of(&values[cut..], is_of_integers);
            merged.merge(&of(&values[..cut], is_of_integers));
            prop_assert_eq!(&merged, &whole);
            prop_assert!(whole.counts().len() <= BINS_MAX);
            let edges = whole.edges();
            for (count, edges) in whole.counts().iter().zip(edges.windows(2)) {
                let is_in = |value: &&f64| {
                    edges[0] <= **value && (**value < edges[1] || edges[1] == f64::MAX && **value == f64::MAX)
                };
                prop_assert_eq!(*count, values.iter().filter(is_in).count() as u64, "{:?}", edges);
            }
            let finite = values.iter().filter(|value| value.is_finite()).count() as u64;
            prop_assert_eq!(whole.counts().iter().sum::<u64>(), finite);
            prop_assert!(whole.counts().first() != Some(&0) && whole.counts().last() != Some(&0));
        }
    }
}
