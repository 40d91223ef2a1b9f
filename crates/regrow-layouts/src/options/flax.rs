//! Options of a save in the layout `flax`.

use serde::Deserialize;

/// Arrays longer than this are cut into chunks of at most this many bytes.
pub const CHUNK_LEN_MAX_BYTES: u64 = 1 << 30;

/// Options of the layout `flax`. The defaults write the same bytes as the original.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlaxOptions {
    /// Sort the entries of every map, as `msgpack_serialize` does; `to_bytes` keeps their order.
    pub sort_keys: bool,
    /// Keep integer keys as integers, as `msgpack_serialize` does; `to_bytes` converts them to
    /// text, and Flax before April 2026 reads only text keys.
    pub integer_keys: bool,
    /// Longer arrays are cut into chunks of at most this many bytes.
    pub max_chunk_bytes: u64,
}

impl Default for FlaxOptions {
    fn default() -> Self {
        Self { sort_keys: false, integer_keys: false, max_chunk_bytes: CHUNK_LEN_MAX_BYTES }
    }
}
