//! Arrays with a dtype known only at run time: dtype, shape, region, strided copies, casts,
//! statistics.
//!
//! All arithmetic is on 64 bits with overflow checks: shapes come from files. Bytes are little
//! endian and, unless a type says otherwise, in C order.
//!
//! | type | is |
//! |---|---|
//! | [`Dtype`] | every element type of NumPy and ml_dtypes that a layout can hold |
//! | [`Shape`], [`Region`] | the lengths of the axes of an array; a hyper-rectangle inside an array |
//! | [`Array`] | dtype, shape, strides and shared bytes; or, deferred, an [`ArraySource`] to read them from |
//! | [`Shards`] | an array in separate pieces, some of them in other processes |
//! | [`cast_bytes`] | casts between any two dtypes, and says whether any value changed beyond rounding |
//! | [`cast_checked`] | the same cast, with an error for a value that changes beyond rounding |
//! | [`is_lossless`] | whether a cast keeps every value exactly, decided from the two dtypes alone |
//! | [`Stats`], [`Histogram`] | bounds, mean, deviation, norm, counts and distribution of an array that comes in pieces |
//! | [`Distance`], [`Tolerance`] | the distance of two arrays, and the allowed distance |
//! | [`copy_region`] | copies a hyper-rectangle of one array into another array |

mod cast;
mod distance;
mod dtype;
mod float16;
mod histogram;
mod lossless;
mod region;
mod runs;
mod shards;
mod small_float;
mod stats;
mod strided;
mod transform;

pub use cast::is_same_kind;
pub use cast::{Casting, cast_bytes, cast_checked};
pub use distance::{Distance, Tolerance, Worst};
pub use dtype::{Dtype, DtypeClass};
pub use histogram::Histogram;
pub use lossless::is_lossless;
pub use region::{Region, Shape};
pub use runs::{Runs, for_each_box};
pub use shards::{Shard, Shards};
pub use shards::{chunk_counts, chunk_starts};
pub use stats::Stats;
pub use strided::{Array, ArraySource, copy_region};
pub use transform::{Losses, transposed};
