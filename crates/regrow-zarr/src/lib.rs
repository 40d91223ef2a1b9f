//! Internals of regrow, without promises: arrays to chunks and back.
//!
//! | module | holds |
//! |---|---|
//! | [`zarr`] | metadata of zarr v2 and v3, chunk grids, chunk keys, reading regions |
//! | [`codec`] | the codecs of chunks: bytes, transpose, zstd, gzip, blosc, crc32c, shards |

pub mod codec;
pub mod zarr;

use regrow_base::{bytes, error, text};
use regrow_tree::array;
