//! The sizes that regrow refuses to exceed for any file. Each is far above what real checkpoints
//! hold. Each prevents a hostile file from using gigabytes of memory for a few bytes. Memory below
//! a limit comes from `allocate`, which gives an error if the system has none.
//!
//! Below a limit, opening takes as much memory as the content needs, not as much as a file claims:
//!
//! | file | memory while the file is opened |
//! |---|---|
//! | a file that cannot be a document (zeros, spaces, brackets without end) | at most 64 MiB, see `glance` |
//! | a manifest or node of an OCDBT database that fails its checksum | a piece: the checksum is checked in pieces, before the structure is read as a whole |
//! | a document of the right form | its length and its decoded content: a metadata file of a million leaves is some hundred MB |
//! | a text without end in JSON | its length: a leaf may be a text of any length |

use super::pages::zeroed;
use crate::error::{Error, ErrorKind, Result};

/// Longest JSON document that is read (a `_METADATA` of a million leaves is about 300 MiB).
pub const JSON_LEN_MAX_BYTES: u64 = 1 << 30;

/// Longest metadata document of one zarr array.
pub const ZARR_DOCUMENT_LEN_MAX_BYTES: usize = 1 << 20;

/// Longest decoded OCDBT manifest or node, for any `max_decoded_node_bytes`.
pub const OCDBT_NODE_LEN_MAX_BYTES: u64 = 1 << 30;

/// Longest array that a comparison or statistics read whole, for any length of its stored
/// bytes.
pub const CLAIM_LEN_MAX_BYTES: u64 = 16 << 30;

/// A longer array may be at most this many times as long as its stored bytes.
pub const CLAIM_FACTOR_MAX: u64 = 1024;

/// Most OCDBT nodes that one traversal visits. A small hostile file can contain the same subtree
/// many times.
pub const OCDBT_NODES_MAX: u64 = 10_000_000;

/// Longest safetensors header. safetensors has the same limit.
pub const SAFETENSORS_HEADER_LEN_MAX_BYTES: u64 = 100_000_000;

/// Largest number of axes of an array; NumPy has the same limit.
pub const RANK_MAX: usize = 64;

/// Greatest depth of nested containers.
pub const TREE_DEPTH_MAX: usize = 100_000;

/// Longest decoded chunk. A large leaf may be one chunk, so this only excludes absurd sizes.
pub const CHUNK_LEN_MAX_BYTES: u64 = 1 << 46;

/// Zeroed memory of a size that a file specifies. Returns an error, instead of aborting, if the
/// system lacks the memory.
pub fn allocate(len_bytes: u64) -> Result<Vec<u8>> {
    zeroed(len_bytes).ok_or_else(|| {
        Error::new(ErrorKind::Limit, format!("a leaf of {len_bytes} bytes does not fit in memory"))
            .help("read it in parts, by slices")
    })
}

/// As `allocate`, for working memory during a load or save.
pub fn work_space(len_bytes: u64) -> Result<Vec<u8>> {
    zeroed(len_bytes).ok_or_else(|| {
        Error::new(ErrorKind::Limit, format!("there is not enough memory for a buffer of {len_bytes} bytes"))
            .help("free some memory, or give a smaller budget")
    })
}
