//! Statistics of an array: bounds, mean, deviation, norm, and the numbers of NaN, infinite and zero
//! elements.
//!
//! The array comes piece by piece, in any order and on any number of threads: [`Stats::update`]
//! takes a piece, [`Stats::merge`] joins the results of two parts. Elements are read as float64,
//! one block at a time. The mean of each block is merged into the mean with its weight, so the
//! result stays precise for many and for large elements. The sum of the squared distances from the
//! mean is merged by the method of Chan, Golub and LeVeque, "Updating Formulae and a Pairwise
//! Algorithm for Computing Sample Variances" (1979).

use super::histogram::Histogram;
use super::{Dtype, DtypeClass, cast_bytes};
use crate::error::{Error, Result};

const BLOCK: usize = 512;

/// Number of partial sums, so that the processor adds several at once.
const LANES: usize = 8;

/// Statistics of the elements seen so far.
///
/// ```
/// use regrow_tree::array::{Dtype, Stats};
/// let mut stats = Stats::new(Dtype::Int8);
/// stats.update(&[0, 3, 0xfd])?;
/// assert_eq!((stats.min(), stats.max(), stats.mean()), (Some(-3.0), Some(3.0), Some(0.0)));
/// assert_eq!(stats.zero_count(), 1);
/// # Ok::<(), regrow_base::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Stats {
    dtype: Dtype,
    count: u64,
    nan_count: u64,
    infinity_count: u64,
    zero_count: u64,
    min: f64,
    max: f64,
    mean: f64,
    /// The sum of the squared distances from the mean of the finite elements. For complex elements,
    /// from 0.
    squares: f64,
    histogram: Option<Histogram>,
}

impl Stats {
    /// Starts with no elements. Also makes a [histogram](Self::histogram).
    pub fn with_histogram(dtype: Dtype) -> Self {
        let is_of_integers = dtype.class() != DtypeClass::Float;
        let has_one = dtype.class() != DtypeClass::Complex;
        Self { histogram: has_one.then(|| Histogram::new(is_of_integers)), ..Self::new(dtype) }
    }

    /// Starts with no elements.
    pub fn new(dtype: Dtype) -> Self {
        Self {
            dtype,
            count: 0,
            nan_count: 0,
            infinity_count: 0,
            zero_count: 0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            mean: 0.0,
            squares: 0.0,
            histogram: None,
        }
    }

    /// Multiplies the counts by `times`, so that an array that repeats is read only once.
    pub fn repeat(&mut self, times: u64) {
        let counts = [&mut self.count, &mut self.nan_count, &mut self.infinity_count, &mut self.zero_count];
        counts.into_iter().for_each(|count| *count = count.saturating_mul(times));
        self.squares *= times as f64;
        if let Some(histogram) = &mut self.histogram {
            histogram.repeat(times);
        }
    }

    /// Adds a piece of the array's bytes, little endian.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not a whole number of elements.
    pub fn update(&mut self, bytes: &[u8]) -> Result<()> {
        let size = self.dtype.size_bytes();
        if !bytes.len().is_multiple_of(size) {
            return Err(Error::invalid(format!("a piece of {} array ends inside an element", self.dtype))
                .expected(format_args!("a multiple of {size} bytes"), bytes.len()));
        }
        for piece in bytes.chunks(BLOCK * size) {
            let mut values = [0; BLOCK * 8];
            match self.dtype {
                Dtype::Complex64 => self.add_complex(piece.as_chunks::<4>().0, f32::from_le_bytes),
                Dtype::Complex128 => self.add_complex(piece.as_chunks::<8>().0, f64::from_le_bytes),
                dtype => {
                    let values = values.get_mut(..piece.len() / size * 8).unwrap_or_default();
                    cast_bytes(piece, dtype, Dtype::Float64, values)?;
                    self.add_block(values.as_chunks().0);
                }
            }
        }
        Ok(())
    }

    /// Adds the result for another part of the same array.
    ///
    /// # Errors
    /// `InvalidArgument` if `other` has another dtype.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        if self.dtype != other.dtype {
            return Err(Error::invalid("statistics of different dtypes cannot be put together")
                .expected(self.dtype, other.dtype));
        }
        self.join_mean(other.mean, other.squares, other.finite_count());
        self.count += other.count;
        self.nan_count += other.nan_count;
        self.infinity_count += other.infinity_count;
        self.zero_count += other.zero_count;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        match (&mut self.histogram, &other.histogram) {
            (Some(own), Some(other)) => own.merge(other),
            // If one part has no histogram, the whole has none.
            (own, _) => *own = None,
        }
        Ok(())
    }

    /// Number of elements so far.
    #[inline]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Number of NaN elements. A complex element counts if a part is NaN.
    #[inline]
    pub fn nan_count(&self) -> u64 {
        self.nan_count
    }

    /// Number of infinite elements. A complex element counts if a part is infinite and no part is
    /// NaN.
    #[inline]
    pub fn infinity_count(&self) -> u64 {
        self.infinity_count
    }

    /// Number of zero elements: 0, -0, or false.
    #[inline]
    pub fn zero_count(&self) -> u64 {
        self.zero_count
    }

    /// The smallest finite element; `None` if there is none, and for complex arrays. Integers
    /// beyond 2^53 are rounded.
    #[inline]
    pub fn min(&self) -> Option<f64> {
        self.of_finite(self.min)
    }

    /// The largest finite element; `None` as for [`min`](Self::min).
    #[inline]
    pub fn max(&self) -> Option<f64> {
        self.of_finite(self.max)
    }

    /// The mean of the finite elements; `None` as for [`min`](Self::min).
    #[inline]
    pub fn mean(&self) -> Option<f64> {
        self.of_finite(self.mean)
    }

    /// The standard deviation of the finite elements, as in NumPy's `std`: relative to the mean,
    /// divided by their number. `None` as for [`min`](Self::min), and if it exceeds a float64.
    pub fn std(&self) -> Option<f64> {
        self.of_finite((self.squares / self.finite_count() as f64).sqrt()).filter(|std| std.is_finite())
    }

    /// The square root of the sum of the squares of all finite elements; for complex elements, of
    /// their absolute values. 0 if there are no elements, `None` if it exceeds a float64.
    pub fn l2_norm(&self) -> Option<f64> {
        let of_means = self.finite_count() as f64 * self.mean * self.mean;
        Some((self.squares + of_means).sqrt()).filter(|norm| norm.is_finite())
    }

    /// The histogram of the finite elements; `None` if it was not requested, and for complex
    /// arrays.
    #[inline]
    pub fn histogram(&self) -> Option<&Histogram> {
        self.histogram.as_ref()
    }

    /// Number of elements that are neither NaN nor infinite.
    #[inline]
    pub fn finite_count(&self) -> u64 {
        self.count - self.nan_count - self.infinity_count
    }

    fn of_finite(&self, value: f64) -> Option<f64> {
        (self.finite_count() > 0 && self.dtype.class() != DtypeClass::Complex).then_some(value)
    }

    fn add_block(&mut self, values: &[[u8; 8]]) {
        let mut lanes = [Lane::EMPTY; LANES];
        for values in values.chunks(LANES) {
            lanes.iter_mut().zip(values).for_each(|(lane, value)| lane.add(f64::from_le_bytes(*value)));
        }
        let block = lanes.into_iter().fold(Lane::EMPTY, Lane::joined);
        let finite =
            || values.iter().map(|value| f64::from_le_bytes(*value)).filter(|value| value.is_finite());
        let mut mean = block.sum / block.finite_count as f64;
        if !mean.is_finite() {
            // The sum overflowed. Dividing first loses some precision, but cannot overflow.
            mean = finite().map(|value| value / block.finite_count as f64).sum();
        }
        let mut squares = [0.0; LANES];
        for values in values.chunks(LANES) {
            for (sum, value) in squares.iter_mut().zip(values) {
                let value = f64::from_le_bytes(*value);
                *sum += if value.is_finite() { (value - mean) * (value - mean) } else { 0.0 };
            }
        }
        self.join_mean(mean, squares.iter().sum(), block.finite_count);
        if let Some(histogram) = &mut self.histogram {
            histogram.update(finite(), block.min, block.max);
        }
        let count = values.len() as u64;
        self.min = self.min.min(block.min);
        self.max = self.max.max(block.max);
        self.zero_count += block.zero_count;
        self.nan_count += block.nan_count;
        self.infinity_count += count - block.nan_count - block.finite_count;
        self.count += count;
    }

    fn add_complex<const S: usize, F: Into<f64>>(&mut self, parts: &[[u8; S]], read: impl Fn([u8; S]) -> F) {
        for &[re, im] in parts.as_chunks::<2>().0 {
            let (re, im): (f64, f64) = (read(re).into(), read(im).into());
            let is_nan = re.is_nan() || im.is_nan();
            let is_finite = re.is_finite() && im.is_finite();
            self.count += 1;
            self.nan_count += u64::from(is_nan);
            self.infinity_count += u64::from(!is_nan && !is_finite);
            self.zero_count += u64::from(re == 0.0 && im == 0.0);
            self.squares += if is_finite { re * re + im * im } else { 0.0 };
        }
    }

    /// Merges the mean and squares of `count` more finite elements. Called before they are counted.
    fn join_mean(&mut self, mean: f64, squares: f64, count: u64) {
        if count > 0 {
            let own_count = self.finite_count() as f64;
            let weight = count as f64 / (own_count + count as f64);
            let apart = mean - self.mean;
            self.squares += squares;
            if own_count > 0.0 {
                self.squares += apart * apart * own_count * weight;
            }
            self.mean = self.mean * (1.0 - weight) + mean * weight;
        }
    }
}

/// The sums over every eighth element of a block.
#[derive(Debug, Clone, Copy)]
struct Lane {
    sum: f64,
    min: f64,
    max: f64,
    finite_count: u64,
    nan_count: u64,
    zero_count: u64,
}

impl Lane {
    const EMPTY: Self = Self {
        sum: 0.0,
        min: f64::INFINITY,
        max: f64::NEG_INFINITY,
        finite_count: 0,
        nan_count: 0,
        zero_count: 0,
    };

    fn add(&mut self, value: f64) {
        let is_finite = value.is_finite();
        self.sum += if is_finite { value } else { 0.0 };
        self.min = if is_finite && value < self.min { value } else { self.min };
        self.max = if is_finite && value > self.max { value } else { self.max };
        self.finite_count += u64::from(is_finite);
        self.nan_count += u64::from(value.is_nan());
        self.zero_count += u64::from(value == 0.0);
    }

    fn joined(self, other: Self) -> Self {
        Self {
            sum: self.sum + other.sum,
            min: self.min.min(other.min),
            max: self.max.max(other.max),
            finite_count: self.finite_count + other.finite_count,
            nan_count: self.nan_count + other.nan_count,
            zero_count: self.zero_count + other.zero_count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(dtype: Dtype, bytes: &[u8]) -> Stats {
        let mut stats = Stats::new(dtype);
        stats.update(bytes).unwrap();
        stats
    }

    #[test]
    fn what_repeats_counts_as_often_as_it_is_there() {
        let once = doubles(&[1.0, -2.0, 0.0, 5.5, f64::NAN, f64::INFINITY]);
        let mut repeated = Stats::with_histogram(Dtype::Float64);
        repeated.update(&once).unwrap();
        repeated.repeat(3);
        let mut whole = Stats::with_histogram(Dtype::Float64);
        whole.update(&once.repeat(3)).unwrap();
        assert_eq!(format!("{:?}", repeated.histogram), format!("{:?}", whole.histogram));
        let counts = |of: &Stats| (of.count, of.nan_count, of.infinity_count, of.zero_count, of.min, of.max);
        assert_eq!(counts(&repeated), counts(&whole));
        assert!(
            (repeated.mean - whole.mean).abs() < 1e-12 && (repeated.squares - whole.squares).abs() < 1e-9
        );
    }

    fn doubles(values: &[f64]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn counts_what_is_no_number() {
        let values = [1.0, f64::NAN, f64::INFINITY, -0.0, 5.0, f64::NEG_INFINITY];
        let stats = of(Dtype::Float64, &doubles(&values));
        assert_eq!(
            (stats.count(), stats.nan_count(), stats.infinity_count(), stats.zero_count()),
            (6, 1, 2, 1)
        );
        assert_eq!((stats.min(), stats.max(), stats.mean()), (Some(0.0), Some(5.0), Some(2.0)));
        let parts = [0.0_f32, 0.0, 1.0, f32::NAN, f32::INFINITY, 1.0];
        let stats = of(Dtype::Complex64, &parts.map(f32::to_le_bytes).concat());
        assert_eq!(
            (stats.count(), stats.nan_count(), stats.infinity_count(), stats.zero_count()),
            (3, 1, 1, 1)
        );
        assert_eq!((stats.mean(), stats.std(), stats.l2_norm()), (None, None, Some(0.0)));
        let stats = of(Dtype::Complex64, &[3.0_f32, 4.0, 0.0, 12.0].map(f32::to_le_bytes).concat());
        assert_eq!(stats.l2_norm(), Some(13.0));
    }

    #[test]
    fn nothing_has_no_bounds() {
        for bytes in [doubles(&[]), doubles(&[f64::NAN])] {
            let stats = of(Dtype::Float64, &bytes);
            assert_eq!((stats.min(), stats.max(), stats.mean(), stats.std()), (None, None, None, None));
            assert_eq!(stats.l2_norm(), Some(0.0));
        }
        assert!(Stats::new(Dtype::Int16).update(&[0]).is_err());
        assert!(Stats::new(Dtype::Int16).merge(&Stats::new(Dtype::Int8)).is_err());
    }

    #[test]
    fn the_mean_survives_size_and_number() {
        let stats = of(Dtype::Float64, &doubles(&[f64::MAX; 1000]));
        assert!((stats.mean().unwrap() / f64::MAX - 1.0).abs() < 1e-12);
        assert_eq!(stats.l2_norm(), None);
        // The deviation stays precise for elements far from zero.
        let far: Vec<f64> = (0..10_000).map(|i| 1e9 + f64::from(i % 2)).collect();
        assert!((of(Dtype::Float64, &doubles(&far)).std().unwrap() - 0.5).abs() < 1e-9);
        let thirds: Vec<u8> = (0..300_000).flat_map(|_| (1.0_f32 / 3.0).to_le_bytes()).collect();
        let stats = of(Dtype::Float32, &thirds);
        assert!((stats.mean().unwrap() - f64::from(1.0_f32 / 3.0)).abs() < 1e-12);
        let narrow = of(Dtype::Float8E4m3fn, &[0x38, 0x40, 0x7f]);
        assert_eq!((narrow.mean(), narrow.nan_count()), (Some(1.5), 1));
    }

    proptest! {
        #[test]
        fn parts_come_to_the_same_as_the_whole(
            values in proptest::collection::vec(-1e6_f64..1e6, 1..2000), cut in 0_usize..2000,
        ) {
            let cut = cut.min(values.len());
            let (whole, mut left) = (of(Dtype::Float64, &doubles(&values)), of(Dtype::Float64, &doubles(&values[..cut])));
            left.merge(&of(Dtype::Float64, &doubles(&values[cut..]))).unwrap();
            prop_assert_eq!((left.min(), left.max(), left.count()), (whole.min(), whole.max(), whole.count()));
            let plain = values.iter().sum::<f64>() / values.len() as f64;
            for stats in [&left, &whole] {
                prop_assert!((stats.mean().unwrap() - plain).abs() <= 1e-6);
                let squares = values.iter().map(|value| (value - plain).powi(2)).sum::<f64>();
                let std = (squares / values.len() as f64).sqrt();
                prop_assert!((stats.std().unwrap() - std).abs() <= 1e-9 * std.max(1.0));
                let norm = values.iter().map(|value| value * value).sum::<f64>().sqrt();
                prop_assert!((stats.l2_norm().unwrap() - norm).abs() <= 1e-9 * norm.max(1.0));
            }
        }
    }
}
