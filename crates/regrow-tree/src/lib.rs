//! Internals of regrow, without promises: the data model. No I/O.
//!
//! | module | holds |
//! |---|---|
//! | [`tree`] | pytrees: containers, key paths, leaves, globs; Rust values as trees |
//! | [`mod@array`] | arrays with a dtype known only at run time: dtypes, casts, regions, statistics |
//! | [`sharding`] | the shards of arrays on devices, and the parts for each process |

pub mod array;
pub mod sharding;
pub mod tree;

use regrow_base::{bytes, error, text};
